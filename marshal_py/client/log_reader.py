"""Reading the coordination log: replay it and tail it (specs/PROTOCOL.md §6, §7).

`LogReader` owns the consumer, the world that it folds, and this reader's own measurements of when
it saw what. It has no thread: `driver.Driver` drives it, and the `LogWriter`, from one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    TopicPartition,
)

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.client.genesis import count_changed, counts_told
from marshal_py.client.kafka_clients import (
    NO_CREATION,
    RECONNECT,
    ConnectionErrors,
    close_consumer,
    connect,
)
from marshal_py.client.log_metadata import LogMetadata, asking
from marshal_py.client.pulse import Pulse
from marshal_py.client.settings import KafkaConfig
from marshal_py.client.snapshots import Boundary, SnapshotDesk, newest_snapshots
from marshal_py.client.topic_watch import ANSWER_S, LOOK_EVERY_S, TopicFacts, TopicWatch
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    LogHole,
    MalformedRecord,
    PartitionCountChanged,
)
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.rationalizer import BOUNDARY, PartitionState
from marshal_py.protocol.snapshots import Snapshot, SnapshotDue, anchor_of
from marshal_py.protocol.state_image import image_of
from marshal_py.protocol.wire import MSGPACK, Wire
from marshal_py.protocol.world import Observer

__all__ = ["Batch", "Hangs", "LogReader", "Truncated", "boottime_ns"]

logger = logging.getLogger("marshal_py.log")
BATCH: Final = 2_000
"""Messages per `consume`: more is slower in librdkafka, not faster."""

GATHERED_BYTES: Final = 1_000_000
"""Where brokers gather records, they answer when there are so many bytes, or their time is up."""

WAIT_MS: Final = 1_000
"""A fetch to which there is no answer waits for so long; a record that arrives ends the wait."""

MOCK_WAIT_MS: Final = 10
_SOON_S: Final = 0.005
"""In librdkafka's mock cluster it does not."""

_LOOK_AGAIN: Final = {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
"""Errors after which the topic may be another one."""

_FIRST_LOOK_S: Final = 5.0
"""A reader starts without knowing the topic's id when the brokers do not tell it by then."""

_TRUNCATED: Final = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,
}


def boottime_ns() -> int:
    """Return a monotonic clock, in nanoseconds, that counts the time that the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK)


_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Truncated(Exception):
    """What was read is not what the log says now; the caller drops its leases and replays.

    The log lost records that had been applied, the topic was made anew, or nothing comes of it any
    more: the text says which.
    """


class Hangs(Truncated):
    """Nothing comes any more, as the reader's own Kafka client hangs: the log may be the same."""


class Batch(NamedTuple):
    """What one read brought of one coordination partition. `now_ns` is taken after the read."""

    coordinator: int
    events: list[Event]
    now_ns: int


class LogReader:
    """Replays the coordination topic into `world`, then tails it.

    `open` connects, restores snapshots and replays to the end of the log; then `read` returns what
    came since. All methods belong to one thread, except that `world` may be read by others under
    the caller's own lock: `read` folds only inside `guard`.

    - `groups`: read the coordination partitions of these groups and no others; None: all. States
      of partitions that are not read stay empty, and never count as caught up.
    - `look_every_s`: how often `poll` has the topic looked at: whether it is still the same one.
    - `doubt_after_s`: what comes after a silence that was longer is kept back until the brokers,
      asked then, say that it is still the same topic (§7.4). None: it is not.
    - `gather_ms`: how long a broker may gather records before it answers; 0: it answers at once.
    - `needs`: the rights that `AccessDenied` names where the brokers hide a topic.
    - `admin`: asks for the topic's id; closed with the reader. By default one of its own.
    - `is_polled`: whether it is polled all the time. If not, nobody knows whether its Kafka client
      hangs: what that has to tell would pile up.

    It is long because replay, tail and recovery from a truncation are one pass over one Kafka
    consumer, and share where each partition is; what could be told apart is in `log_metadata` and
    `snapshots`.
    """

    def __init__(
        self,
        config: KafkaConfig,
        *,
        topic: str,
        snapshot_topic: str,
        clock: Callable[[], int] = boottime_ns,
        use_snapshots: bool = True,
        compare_snapshots: bool = True,
        wire: Wire = MSGPACK,
        groups: Collection[str] | None = None,
        look_every_s: float = LOOK_EVERY_S,
        doubt_after_s: float | None = None,
        needs: tuple[str, ...] = ("Read", "Write"),
        gather_ms: int = 0,
        admin: AdminOnDemand | None = None,
        is_polled: bool = True,
    ) -> None:
        self.topic = topic
        self.snapshot_topic = snapshot_topic
        self.wire = wire
        self.world = wire.world(time.time)
        self.observers: list[Observer] = []
        self.caught_up = False
        self.replayed = 0
        """Records applied by the last replay."""
        self.partitions: tuple[int, ...] = ()
        """The coordination partitions that are read; known once `open` has returned."""
        self.writer_of: Callable[[int, int, str], str] = lambda _p, _next_offset, _crossed_by: ""
        """Says who writes the snapshot of a boundary: (coordination partition, next offset, the
        instance whose record crossed it) → the writer's name, empty if this process does not."""
        self.check_waiting: Callable[[], None] = lambda: None
        """Called while the brokers do not answer `open` or `await_topic`: may raise, to give up."""
        self._desk = SnapshotDesk(topic)
        self.newest_snapshot = self._desk.newest
        """Coordination partition → `next_offset` of the newest valid snapshot seen."""
        self.snapshots_to_write = self._desk.ready
        """(coordination partition, value) of snapshots that `writer_of` asked for."""
        self.mismatches = self._desk.mismatches
        self.partition_count_error: PartitionCountChanged | None = None
        """Set when the topic has another number of partitions than it was read with, or than its
        genesis speaks of: no claim is safe then."""
        self.highest_epoch = NO_OFFSET
        """No claim of a log that was read before the last `open` had a larger epoch."""
        self.met_other_wire = False
        """Whether records of the other version were met; it is logged once."""
        self._clock = clock
        self._use_snapshots = use_snapshots
        self._compare = compare_snapshots
        self._config = config
        self._groups = groups
        self._watch = TopicWatch(admin or AdminOnDemand(config), topic, look_every_s)
        self._doubt_after_ns = math.inf if doubt_after_s is None else doubt_after_s * 1e9
        self._heard_ns = clock()
        """When the last record came."""
        self._kept: list[Any] = []
        """What came after a silence, until it is known of which topic it is."""
        self._kept_since_s = 0.0
        self._facts: TopicFacts | None = None
        """What the topic was when it was opened, as far as the brokers tell."""
        self._past_ids: set[str | None] = set()
        """Ids that another has replaced: they do not come back."""
        self._was_served = False
        """Whether the coordination topic could be read from: records came, or its end was told."""
        self._needs = needs
        self._is_quick = False
        """Whether fetches wait as briefly as the mock cluster needs it."""
        self._was_assigned = False
        """Whether this consumer was ever assigned the topic."""
        self._gather_ms = gather_ms
        self._is_polled = is_polled
        self._connect(WAIT_MS)
        self._last_value: list[bytes | None] = []
        self._ends: dict[int, int] = {}
        self._anchors: dict[int, bytes] = {}
        self._begins: dict[int, int] = {}
        self._partitions = 0
        self._distrusted: set[int] = set()
        self._not_after: dict[int, int] = {}
        self._until: dict[int, int] = {}
        """Where to stop, when the past is asked for."""

    # Opening

    def _connect(self, wait_ms: int) -> None:
        """Make the consumer. A fetch to which there is no answer waits for `wait_ms`."""
        errors = ConnectionErrors()
        pulse = Pulse({} if self._is_polled else {"statistics.interval.ms": 0})
        least_bytes = 1
        if self._gather_ms:
            wait_ms, least_bytes = min(wait_ms, self._gather_ms), GATHERED_BYTES
        self._consumer = connect(
            Consumer,
            {
                "fetch.wait.max.ms": wait_ms,
                # Replay: librdkafka fetches ahead, and does not rest for a second when it has.
                "queued.min.messages": 300_000,
                "fetch.queue.backoff.ms": 5,
                "topic.metadata.refresh.interval.ms": 30_000,
                **RECONNECT,
                **self._config,
                **NO_CREATION,
                "group.id": "marshal",  # librdkafka wants one; nothing is committed under it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.min.bytes": least_bytes,
                **pulse.settings,
            },
            errors,
        )
        self._pulse = pulse
        self._metadata = LogMetadata(
            self._consumer,
            self._config,
            errors,
            self.topic,
            self.snapshot_topic,
            self._needs,
            lambda: self.check_waiting(),
        )

    def await_topic(self, timeout_s: float) -> None:
        """Wait until the brokers tell of the topic: `open` need not wait for them. Needs no lock.

        Raises as `open` does. What was read stays as it is, and `open` is to come next.
        """
        if self._was_assigned:
            self._reconnect()
        self._metadata.describe(time.monotonic() + timeout_s, with_snapshots=False)

    def open(
        self,
        timeout_s: float,
        *,
        since_offset: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> None:
        """Connect and restore the newest snapshots; `replay` reads on from there.

        With `since_offset` (in every coordination partition) or `since_ms` (the broker's time), a
        snapshot that lies later is passed over, so that `history` tells of all since then; unless
        the log does not reach back so far. With `until_ms`, what the broker stamped later is not
        there for this reader: it sees the world as it was.

        Raises `TopicMissing`, `BrokerUnavailable` after `timeout_s` without an answer, `LogHole`
        when records that no snapshot covers are gone (`AccessDenied` if the snapshots are hidden),
        `PartitionCountChanged` when the same topic has another number of partitions than before.
        The replay itself may take as long as it takes.
        """
        deadline = time.monotonic() + timeout_s
        if self._was_assigned:
            # A client of librdkafka never forgets a partition's highest leader epoch, and passes
            # over the leaders of a topic made anew, whose epochs begin at 0: it fetches nothing.
            self._reconnect()
        count, snapshot_partitions, facts = self._describe(deadline)
        if self._metadata.is_mock and not self._is_quick:
            self._is_quick = True
            self._reconnect()
        is_anew = self._is_another(facts)
        if self._partitions and count != self._partitions and not is_anew:
            raise self._changed(count)
        if is_anew and facts is not None:
            logger.warning("topic %r was made anew; its id is %s now", self.topic, facts.topic_id)
            self._distrusted.clear()
            if self._facts is not None:
                self._past_ids.add(self._facts.topic_id)
        self._facts = facts
        self.highest_epoch = max(
            self.highest_epoch, *(s.base + s.next_offset for s in self.world.states), NO_OFFSET
        )
        self._partitions = count
        self.partitions = self._partitions_read(count)
        self.partition_count_error = None
        self.world.states[:] = [self.wire.state(p) for p in range(count)]
        self.observers[:] = [Observer() for _ in range(count)]
        self._last_value = [None] * count
        self._desk.reset(count)
        self._anchors.clear()
        self._kept = []
        self.caught_up = False
        self.replayed = 0

        self._begins = self._metadata.first_offsets(self.topic, self.partitions, deadline)
        self._ends = self._metadata.next_offsets(self.topic, self.partitions, deadline)
        self._until = {}
        if until_ms is not None:
            self._until = self._metadata.offsets_at(until_ms + 1, self._ends, deadline)
            self._ends = self._until
        self._not_after = {}
        if since_ms is not None:
            self._not_after = self._metadata.offsets_at(since_ms, self._ends, deadline)
        elif since_offset is not None:
            self._not_after = dict.fromkeys(self.partitions, since_offset)
        snapshot_ends: dict[int, int] = {}
        if snapshot_partitions:
            snapshot_ends = self._metadata.next_offsets(
                self.snapshot_topic,
                [p for p in self.partitions if p < snapshot_partitions],
                deadline,
            )
            if snapshot_partitions != count:
                logger.warning(
                    "%s has %d partitions and %s has %d: not all snapshots can be kept; `marshal "
                    "topic recover` mends it",
                    self.topic,
                    count,
                    self.snapshot_topic,
                    snapshot_partitions,
                )
            if self._use_snapshots:
                self._restore(snapshot_ends, deadline)
        log = [TopicPartition(self.topic, p, self._start_of(p)) for p in self.partitions]
        snapshots = [TopicPartition(self.snapshot_topic, p, at) for p, at in snapshot_ends.items()]
        self._was_assigned = True
        # librdkafka fetches as soon as the first partition is there, and what comes later waits
        # until that fetch is answered: at once, where there are records.
        full = [place for place in log if place.offset < self._ends[place.partition]]
        empty = [place for place in log if place.offset >= self._ends[place.partition]]
        self._consumer.assign(full)
        for more in (empty, snapshots if self._compare else []):
            if more:
                self._consumer.incremental_assign(more)

    def _reconnect(self) -> None:
        old = self._consumer
        self._connect(MOCK_WAIT_MS if self._is_quick else WAIT_MS)  # first: it may raise
        self._was_assigned = False
        close_consumer(old)

    def _describe(self, deadline: float) -> tuple[int, int, TopicFacts | None]:
        """Return how many partitions log and snapshots have, and what topic the log is.

        These are two answers, and the topic may be made anew between them: they are asked for until
        they tell of the same number of partitions.
        """
        while True:
            self._watch.ask()
            count, snapshot_partitions = self._metadata.describe(
                deadline, with_snapshots=self.wire.has_snapshots
            )
            if self._metadata.is_mock:
                self._watch.give_up()
            facts = self._watch.wait(min(deadline, time.monotonic() + _FIRST_LOOK_S))
            is_past = self._is_past(facts)
            if facts is None or (facts.partitions == count and not is_past):
                return count, snapshot_partitions, facts
            if time.monotonic() >= deadline:
                if is_past:
                    raise BrokerUnavailable(
                        f"a broker tells of a topic {self.topic!r} that another has replaced: it "
                        "has not heard of that yet"
                    )
                raise BrokerUnavailable(
                    f"the brokers do not agree how many partitions topic {self.topic!r} has: "
                    f"{count} or {facts.partitions}"
                )
            self._consumer.poll(0.05)

    def _partitions_read(self, count: int) -> tuple[int, ...]:
        if self._groups is None or self.wire.home is None:
            return tuple(range(count))
        return tuple(sorted({self.wire.home(group, count) for group in self._groups}))

    def extent(self) -> dict[int, tuple[int, int]]:
        """Return (first offset, next offset) of each partition, as `open` found them."""
        return {p: (self._begins[p], self._ends[p]) for p in self._ends}

    def replay(self, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Apply everything up to the ends that `open` saw; `progress(done, total)` as it goes.

        Raises `Truncated`, `LogHole`.
        """
        total = sum(max(0, end - self._at(p)) for p, end in self._ends.items())
        for _ in self.history(events=False):
            if progress is not None:
                progress(self.replayed, total)

    def history(self, *, events: bool = True) -> Iterator[tuple[list[Any], list[Batch]]]:
        """Replay up to the ends that `open` saw, and show what was read: (messages, batches).

        The batches hold the events; without `events` there are none, and reading is faster. Yields
        empty lists when the broker has sent nothing for a while, so that the caller may give up.
        Raises `Truncated`.
        """
        behind = {p for p in self._ends if self._is_behind(p)}
        while behind:
            messages = self._poll(0.2)
            if events:
                batches = list(self.fold(messages))
                self._note_ends(messages)
                self.replayed += sum(
                    m.error() is None and m.topic() == self.topic for m in messages
                )
                yield messages, batches
            else:
                self._replay_batch(messages)
                yield messages, []
            behind = {p for p in behind if self._is_behind(p)}
        self._heard_ns = now_ns = self._clock()
        for p in self.partitions:
            observer = self.observers[p]
            observer.caught_up_at_offset = self._at(p)
            observer.seen.note(self._at(p) - 1, now_ns)
        self.caught_up = True
        self._check_count()

    def check_founding(self, timeout_s: float) -> dict[int, int]:
        """Make sure that a partition without a genesis is not one that was added to a log (§7.2).

        The others' begin with theirs, which say how many there are. Returns where each partition
        ends by now. Raises `PartitionCountChanged`, `BrokerUnavailable`.
        """
        deadline = time.monotonic() + timeout_s
        everything = range(self._partitions)
        with asking(
            self._config, topic=self.topic, snapshot_topic=self.snapshot_topic, needs=self._needs
        ) as brokers:
            begins = brokers.first_offsets(self.topic, everything, deadline)
            ends = brokers.next_offsets(self.topic, everything, deadline)
        extents = {p: (begins[p], ends[p]) for p in everything}
        for count in counts_told(self._config, self.topic, extents, deadline):
            if count != self._partitions:
                raise self._changed(self._partitions, count)
        return ends

    def _check_count(self) -> None:
        """Compare the number of partitions with what the log's genesis says (§7.2)."""
        if self.partition_count_error is not None:
            return
        for state in self.world.states:
            if state.partitions not in (0, self._partitions):
                self.partition_count_error = self._changed(self._partitions, state.partitions)

    def _is_behind(self, p: int) -> bool:
        return self._at(p) < self._ends[p] or p in self._anchors

    def _note_ends(self, messages: list[Any]) -> None:
        for message in messages:
            error = message.error()
            if (
                error is not None
                and error.code() == KafkaError._PARTITION_EOF
                and message.topic() == self.topic
            ):
                self._at_end(message.partition())

    def _at_end(self, p: int) -> None:
        """The broker says that there is no more for now."""
        # Transaction markers may end the log: no record will bring us to its end.
        self._ends[p] = min(self._ends[p], self._at(p))
        if p in self._anchors:
            self._distrust(p)

    # Snapshots (§6)

    def _restore(self, ends: dict[int, int], deadline: float) -> None:
        newest = self._find_snapshots(ends, deadline)
        lacking = {p: ends[p] for p in self._not_after if self._begins[p] > 0 and p not in newest}
        if lacking:  # the history that was asked for is gone: the one that is left, then
            self._not_after.clear()
            newest |= self._find_snapshots(lacking, deadline)
        for p, (snapshot, state) in newest.items():
            self.world.states[p] = state
            self.newest_snapshot[p] = snapshot.next_offset
            self._anchors[p] = snapshot.anchor

    def _find_snapshots(
        self, ends: dict[int, int], deadline: float
    ) -> dict[int, tuple[Snapshot, PartitionState]]:
        return newest_snapshots(self._config, self.snapshot_topic, ends, deadline, self._acceptable)

    def _acceptable(self, snapshot: Snapshot) -> PartitionState | None:
        """Return the snapshot's state if the log still goes on from where it ends, else None."""
        p = snapshot.coordinator
        if snapshot.next_offset > self._not_after.get(p, snapshot.next_offset):
            return None
        if snapshot.partitions != self._partitions or p >= self._partitions:
            return None
        if p in self._distrusted:
            return None
        if not self._begins[p] <= snapshot.next_offset <= self._ends[p]:
            return None
        try:
            return snapshot.restore()
        except MalformedRecord as error:
            logger.error("%s; it is not used", error)
            return None

    def _start_of(self, p: int) -> int:
        """Where to read from: one record early, to check the snapshot's anchor."""
        begin, restored = self._begins[p], self.world.states[p].next_offset
        if restored > begin:
            return restored - 1
        self._anchors.pop(p, None)  # the record is gone by retention, which is as it should be
        if restored == begin or begin == 0 or not self.wire.has_snapshots:
            return begin
        raise self._hole(p)

    def _hole(self, p: int) -> LogHole | AccessDenied:
        if self._metadata.snapshots_denied is not None:
            return self._metadata.snapshots_denied  # a snapshot may well cover them
        begin = self._begins[p]
        return LogHole(
            f"records below offset {begin} of {self.topic}/{p} were deleted and no snapshot covers "
            "them, so the state cannot be known. If a client still runs, `marshal snapshot` cannot "
            "help, but its own next snapshot will; otherwise stop all clients and create the topic "
            "anew. Set retention.ms=-1 and delete with `marshal topic trim`"
        )

    def _check_anchor(self, p: int, message: Any) -> None:
        """Check the record just below the snapshot; start over without it if it is another one."""
        anchor = self._anchors.pop(p)
        state = self.world.states[p]
        if message.offset() == state.next_offset - 1 and anchor_of(message.value()) == anchor:
            self._last_value[p] = message.value()
            return
        self._distrust(p)

    def _distrust(self, p: int) -> NoReturn:
        logger.error(
            "the snapshot of %s/%d at offset %d is of another log (was the topic made anew?); "
            "it is not used",
            self.topic,
            p,
            self._at(p),
        )
        self._distrusted.add(p)
        self.world.states[p] = self.wire.state(p)  # its epochs are not of this log either
        raise Truncated(f"{self.topic}/{p} is another log than its snapshot's")

    # Reading

    def _at(self, p: int) -> int:
        return self.world.states[p].next_offset

    def _poll(self, timeout_s: float) -> list[Any]:
        # poll() returns with the first record; consume() alone would wait for a full batch.
        first = self._consumer.poll(timeout_s)
        if first is None:
            if self._pulse.stopped(time.monotonic()):
                raise Hangs(
                    f"the Kafka client that reads {self.topic!r} hangs: it gave no sign of life "
                    f"for {self._pulse.limit_s:g} s"
                )
            return []
        messages = [first, *self._consumer.consume(BATCH, 0)]
        return [m for m in messages if not self._too_late(m)] if self._until else messages

    def _too_late(self, message: Any) -> bool:
        """Whether the record is of after the moment that is asked for."""
        return (
            message.error() is None
            and message.topic() == self.topic
            and message.offset() >= self._until[message.partition()]
        )

    def _replay_batch(self, messages: list[Any]) -> None:
        """Apply a batch without events. This loop is the start-up time of every process."""
        states, topic, last, apply = self.world.states, self.topic, {}, self.wire.apply
        replayed = 0
        for message in messages:
            p = message.partition()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    self._on_error(error, message.topic())
                elif message.topic() == topic:
                    self._was_served = True
                    self._at_end(p)
                continue
            if message.topic() != topic:
                self._on_snapshot(message)
                continue
            if self._anchors and p in self._anchors:
                self._check_anchor(p, message)
                continue
            offset = message.offset()
            state = states[p]
            if offset < state.next_offset:
                raise self._repeated(p, offset)
            if not apply(state, offset, message.value(), None):
                self._met_foreign(p, message.value())
            last[p] = message
            replayed += 1
        self.replayed += replayed
        for p, message in last.items():
            self._last_value[p] = message.value()
            kind, stamp_ms = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                self.observers[p].stamped.note(message.offset(), stamp_ms)

    def poll(self, timeout_s: float) -> list[Any]:
        """Wait up to `timeout_s` for records; hand them to `fold`. Needs no lock.

        Raises `Truncated` when the topic is not the one any more that was opened.
        """
        self._look()
        return self._known(self._poll(min(timeout_s, _SOON_S) if self._kept else timeout_s))

    def _known(self, messages: list[Any]) -> list[Any]:
        """Return what is surely of the topic that was opened, or has been kept back for too long.

        Heartbeats that a client sends as it comes back may arrive in another topic, that has grown
        as far as the old one: read as what comes next, they would renew leases of the old one.
        """
        now_s = time.monotonic()
        if any(message.error() is None for message in messages):
            now_ns = self._clock()
            was_silent = now_ns > self._heard_ns + self._doubt_after_ns
            self._heard_ns = now_ns
            if was_silent and not self._kept and self._facts and self._facts.topic_id:
                self._kept, self._kept_since_s = messages, now_s
                self._watch.soon()
                return []
        if not self._kept:
            return messages
        kept = [*self._kept, *messages]
        is_known = self._watch.as_of_s >= self._kept_since_s
        self._kept = [] if is_known or now_s > self._kept_since_s + ANSWER_S else kept
        return [] if self._kept else kept

    def _repeated(self, p: int, offset: int) -> Truncated:
        return Truncated(
            f"topic {self.topic!r} lost records that had been read, or was made anew: offset "
            f"{offset} of partition {p} came again"
        )

    def _look(self) -> None:
        """Take in what the brokers say of the topic, if they said something (§7.1, §7.2)."""
        facts = self._watch.look()
        if facts is None or self._is_past(facts):
            return
        if facts.partitions == 0:
            raise Truncated(f"topic {self.topic!r} was deleted")
        if self._is_another(facts):
            raise Truncated(f"topic {self.topic!r} was made anew; its id is {facts.topic_id} now")
        if self._facts is None:
            self._facts = facts
        if facts.partitions != self._partitions and self.partition_count_error is None:
            self.partition_count_error = self._changed(facts.partitions)

    def _is_another(self, facts: TopicFacts | None) -> bool:
        """Whether this is another topic than the one that was opened, of the same name."""
        if self._facts is None or facts is None or None in (self._facts.topic_id, facts.topic_id):
            return False
        return facts.topic_id != self._facts.topic_id

    def _is_past(self, facts: TopicFacts | None) -> bool:
        """Whether a broker tells of a topic that another has replaced: it lags."""
        return facts is not None and facts.topic_id in self._past_ids

    def fold(self, messages: list[Any]) -> Iterator[Batch]:
        """Apply what `poll` returned and yield the events, by coordination partition.

        The caller holds its lock. Raises `Truncated` when the log lost applied records.
        """
        events: dict[int, list[Event]] = {}
        for message in messages:
            p = message.partition()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    self._on_error(error, message.topic())
                elif message.topic() == self.topic:
                    self._was_served = True
                continue
            if message.topic() != self.topic:
                self._on_snapshot(message)
                continue
            if p in self._anchors:
                self._check_anchor(p, message)
                continue
            offset = message.offset()
            state = self.world.states[p]
            if offset < state.next_offset:
                raise self._repeated(p, offset)
            found = events.setdefault(p, [])
            crossing = offset // BOUNDARY != (state.next_offset - 1) // BOUNDARY
            fold = self._cross if crossing and self.wire.has_snapshots else self.wire.apply
            if not fold(state, offset, message.value(), found):
                self._met_foreign(p, message.value())
            self._last_value[p] = message.value()
            kind, stamp_ms = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                self.observers[p].stamped.note(offset, stamp_ms)
        for p, found in events.items():
            now_ns = self._clock()
            self.observers[p].seen.note(self._at(p) - 1, now_ns)
            yield Batch(p, found, now_ns)
        if events:
            self._check_count()

    def _cross(
        self, state: PartitionState, offset: int, value: bytes | None, found: list[Event] | None
    ) -> bool:
        """Take an image of the state at a boundary, then apply the record beyond it (§6.5)."""
        if state.next_offset == 0 or found is None:
            return self.wire.apply(state, offset, value, found)
        p, next_offset, image = state.partition, state.next_offset, image_of(state)
        anchor, before = anchor_of(self._last_value[p]), len(found)
        is_record = self.wire.apply(state, offset, value, found)
        sender = next((getattr(e, "instance_id", "") for e in found[before:][::-1]), "")
        writer = self.writer_of(p, next_offset, sender)
        self._desk.at_boundary(Boundary(p, next_offset, anchor, image, writer))
        return is_record

    def _met_foreign(self, p: int, value: bytes | None) -> None:
        if not self.met_other_wire and value is not None and self.wire.is_other(value):
            self.met_other_wire = True
            logger.error("%s/%d: %s", self.topic, p, self.wire.met_other)

    def _on_snapshot(self, message: Any) -> None:
        try:
            self._desk.read(message.value(), self._state_read)
        except MalformedRecord as error:
            logger.error("%s/%d: %s", self.snapshot_topic, message.partition(), error)

    def _state_read(self, p: int) -> PartitionState | None:
        return self.world.states[p] if p in self.partitions else None

    def snapshot_now(self, p: int) -> SnapshotDue | None:
        """Return the present state of one partition, None where nothing was ever written."""
        state = self.world.states[p]
        if state.next_offset == 0:
            return None
        return SnapshotDue(p, state.next_offset, anchor_of(self._last_value[p]), state.encode(), "")

    def _on_error(self, error: KafkaError, topic: str | None) -> None:
        if error.code() in _TRUNCATED:
            raise Truncated(
                f"topic {self.topic!r} lost records that had been read, or was made anew "
                f"({error.str()})"
            )
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # librdkafka looks for the coordinator of a group that nobody uses
        if error.code() in _LOOK_AGAIN:
            self._watch.soon()
        why: object = error.str()
        if error.code() in REFUSED:
            why = problem = denied(self._config, topic or self.topic, "Read")
            if topic != self.snapshot_topic and not (self._was_served or self.replayed):
                raise problem
        logger.warning("reading %s: %s; trying on", topic or self.topic, why)

    def _changed(self, count: int, was: int | None = None) -> PartitionCountChanged:
        return count_changed(self.topic, was or self._partitions, count)

    def close(self) -> None:
        """Disconnect."""
        self._watch.close()
        self._desk.close()
        close_consumer(self._consumer)

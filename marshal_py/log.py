"""The coordination log over confluent-kafka: replay and tail it, append to it (PROTOCOL.md §6, §7).

`LogReader` owns the consumer, the world that it folds, and this reader's own measurements of when
it saw what. `LogWriter` owns the producer. Neither has a thread: `Marshal` drives both from one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from marshal_py.access import REFUSED, denied
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    LogHole,
    MalformedRecord,
    PartitionCountChanged,
    SnapshotMismatch,
    TopicMissing,
)
from marshal_py.events import Event
from marshal_py.rationalizer import SWEEP_EVERY, PartitionState
from marshal_py.settings import KafkaConfig
from marshal_py.snapshots import Snapshot, anchor_of, decode_snapshot, encode_snapshot
from marshal_py.wire import MSGPACK, Wire
from marshal_py.world import Observer

__all__ = ["Batch", "LogReader", "LogWriter", "SnapshotDue", "Truncated"]

logger = logging.getLogger("marshal_py.log")
rdkafka_logger = logging.getLogger("marshal_py.rdkafka")
rdkafka_logger.setLevel(logging.CRITICAL)  # what it says, `logger` says once; lower it to see all

BATCH: Final = 2_000
"""Messages per `consume`: more is slower in librdkafka, not faster."""

KEPT_DIGESTS: Final = 8
"""Boundaries per coordination partition whose digest is kept to compare snapshots with."""

STATS_MS: Final = 10_000

OUTAGE_WARNING_S: Final = 30.0
"""An outage is worth one line in this time, not one for each attempt to connect."""

_TRUNCATED: Final = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._LOG_TRUNCATION,
}

_LATEST, _EARLIEST = -1, -2  # the ListOffsets protocol's special timestamps


def boottime_ns() -> int:
    """Return a monotonic clock, in nanoseconds, that counts the time that the machine sleeps."""
    return time.clock_gettime_ns(_CLOCK)


_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Truncated(Exception):
    """The log lost records that had been applied; the caller drops its leases and replays."""


class SnapshotDue(NamedTuple):
    """The state at a boundary, which the client whose record crossed it may write down."""

    coordinator: int
    next_offset: int
    anchor: bytes
    state: bytes
    crossed_by: str


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
    ) -> None:
        self.topic = topic
        self.snapshot_topic = snapshot_topic
        self.wire = wire
        self.world = wire.world()
        self.observers: list[Observer] = []
        self.caught_up = False
        self.replayed = 0
        """Records applied by the last replay."""
        self.due: list[SnapshotDue] = []
        """Boundaries crossed since the caller last emptied this list."""
        self.newest_snapshot: dict[int, int] = {}
        """Coordination partition → `next_offset` of the newest valid snapshot seen."""
        self.mismatches: list[SnapshotMismatch] = []
        self.partition_count_error: PartitionCountChanged | None = None
        self.met_other_wire = False
        """Whether records of the other version were met; it is logged once."""
        self._clock = clock
        self._use_snapshots = use_snapshots
        self._compare = compare_snapshots
        self._config = config
        self._was_served = False
        """Whether the coordination topic could be read from: records came, or its end was told."""
        self._consumer_trouble = Trouble()
        self._consumer = _client(
            Consumer,
            {
                "fetch.wait.max.ms": 100,
                # Replay: librdkafka fetches ahead, and does not rest for a second when it has.
                "queued.min.messages": 300_000,
                "fetch.queue.backoff.ms": 5,
                "topic.metadata.refresh.interval.ms": 30_000,
                **_RECONNECT,
                **config,
                "group.id": "marshal",  # librdkafka wants one; nothing is committed under it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.min.bytes": 1,
                "statistics.interval.ms": STATS_MS,
                "stats_cb": self._on_stats,
            },
            self._consumer_trouble,
        )
        self._last_value: list[bytes | None] = []
        self._digests: list[dict[int, bytes]] = []
        self._ends: dict[int, int] = {}
        self._anchors: dict[int, bytes] = {}
        self._begins: dict[int, int] = {}
        self._partitions = 0
        self._distrusted: set[int] = set()
        self._not_after: dict[int, int] = {}

    # Opening

    def open(
        self, timeout_s: float, *, since_offset: int | None = None, since_ms: int | None = None
    ) -> None:
        """Connect and restore the newest snapshots; `replay` reads on from there.

        With `since_offset` (in every coordination partition) or `since_ms` (the broker's time), a
        snapshot that lies later is passed over, so that `history` tells of all since then; unless
        the log does not reach back so far.

        Raises `TopicMissing`, `BrokerUnavailable` after `timeout_s` without an answer, `LogHole`
        when records that no snapshot covers are gone, `PartitionCountChanged` on a second call
        that finds another number of partitions. The replay itself may take as long as it takes.
        """
        deadline = time.monotonic() + timeout_s
        count, has_snapshots = self._describe(deadline)
        if self._partitions and count != self._partitions:
            raise self._changed(count)
        self._partitions = count
        self.world.states[:] = [self.wire.state(p) for p in range(count)]
        self.observers[:] = [Observer() for _ in range(count)]
        self._last_value = [None] * count
        self._digests = [{} for _ in range(count)]
        self._anchors.clear()
        self.newest_snapshot.clear()
        self.due.clear()
        self.caught_up = False
        self.replayed = 0

        self._begins = self._offsets(self.topic, _EARLIEST, deadline)
        self._ends = self._offsets(self.topic, _LATEST, deadline)
        self._not_after = {}
        if since_ms is not None:
            self._not_after = self._offsets(self.topic, since_ms, deadline)
        elif since_offset is not None:
            self._not_after = dict.fromkeys(range(count), since_offset)
        snapshot_ends: dict[int, int] = {}
        if has_snapshots:
            snapshot_ends = self._offsets(self.snapshot_topic, _LATEST, deadline)
            if self._use_snapshots:
                self._restore(snapshot_ends, deadline)
        assignment = [
            TopicPartition(self.topic, p, self._start_of(p)) for p in range(self._partitions)
        ]
        if self._compare:
            assignment += [
                TopicPartition(self.snapshot_topic, p, end) for p, end in snapshot_ends.items()
            ]
        self._consumer.assign(assignment)

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
        now_ns = self._clock()
        for p, observer in enumerate(self.observers):
            observer.caught_up_at_offset = self._at(p)
            observer.seen.note(self._at(p) - 1, now_ns)
        self.caught_up = True

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

    def _describe(self, deadline: float) -> tuple[int, bool]:
        while True:
            try:
                topics = self._consumer.list_topics(
                    self.topic, timeout=max(0.1, min(5.0, deadline - time.monotonic()))
                ).topics
                error = topics[self.topic].error
                if error is None and topics[self.topic].partitions:
                    return len(topics[self.topic].partitions), self._has_snapshots(deadline)
                if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise TopicMissing(
                        f"coordination topic {self.topic!r} does not exist: run "
                        f"`marshal topic create --topic {self.topic} --bootstrap-servers ...`, or "
                        "pass create_topics=True"
                    )
                if error is not None and error.code() in REFUSED:
                    raise denied(self._config, self.topic, "Read", "Write")
                if error is not None and error.code() in _FINAL:
                    raise ConfigurationError(f"coordination topic {self.topic!r}: {error.str()}")
            except KafkaException as problem:
                self._give_up(problem.args[0], deadline)
            self._pause(deadline, "no metadata of the coordination topic")

    def _has_snapshots(self, deadline: float) -> bool:
        if not self.wire.has_snapshots:
            return False
        found = self._consumer.list_topics(
            self.snapshot_topic, timeout=max(0.1, deadline - time.monotonic())
        ).topics[self.snapshot_topic]
        if found.error is None and len(found.partitions) >= 1:
            return True
        if found.error is not None and found.error.code() in REFUSED:
            problem = denied(self._config, self.snapshot_topic, "Read", "Write")
            logger.warning("without snapshots, every start replays the whole log: %s", problem)
            return False
        logger.warning(
            "there is no topic %r: every start replays the whole log; `marshal topic create` "
            "makes it",
            self.snapshot_topic,
        )
        return False

    def _offsets(self, topic: str, which: int, deadline: float) -> dict[int, int]:
        """Return the first, the next, or the offset at a time in ms of every partition."""
        query = [TopicPartition(topic, p, which) for p in range(self._partitions)]
        while True:
            try:
                answer = self._consumer.offsets_for_times(
                    query, timeout=max(0.1, min(5.0, deadline - time.monotonic()))
                )
                if all(p.error is None and (p.offset >= 0 or which >= 0) for p in answer):
                    # For a time after the last record the answer is "the end", −1.
                    return {
                        p.partition: p.offset if p.offset >= 0 else self._ends[p.partition]
                        for p in answer
                    }
            except KafkaException as problem:
                self._give_up(problem.args[0], deadline)
            self._pause(deadline, f"no leader for some partition of {topic!r}")

    def _give_up(self, error: KafkaError, deadline: float) -> None:
        if error.code() in REFUSED:
            raise denied(self._config, self.topic, "Read", "Write") from None
        self._consumer.poll(0)  # to hear what TLS and SASL have said
        if time.monotonic() >= deadline or self._consumer_trouble.repeated:
            why = self._consumer_trouble.text or error.str()
            raise BrokerUnavailable(f"no answer from the brokers: {why}") from None
        if error.code() in _FINAL:
            raise BrokerUnavailable(f"the brokers refused: {error.str()}") from None

    def _pause(self, deadline: float, what: str) -> None:
        """Let librdkafka reconnect; its own back-off sets the pace."""
        if time.monotonic() >= deadline:
            raise BrokerUnavailable(f"gave up: {what}")
        self._consumer.poll(0.05)

    # Snapshots (§6)

    def _restore(self, ends: dict[int, int], deadline: float) -> None:
        newest = self._find_snapshots(ends, deadline)
        lacking = {p: ends[p] for p in self._not_after if self._begins[p] > 0 and p not in newest}
        if lacking:  # the history that was asked for is gone: the one that is left, then
            self._not_after.clear()
            newest |= self._find_snapshots(lacking, deadline)
        for p, snapshot in newest.items():
            self.world.states[p] = snapshot.restore()
            self.newest_snapshot[p] = snapshot.next_offset
            self._anchors[p] = snapshot.anchor

    def _find_snapshots(self, ends: dict[int, int], deadline: float) -> dict[int, Snapshot]:
        return _newest_snapshots(
            self._config, self.snapshot_topic, ends, deadline, self._acceptable
        )

    def _acceptable(self, snapshot: Snapshot) -> bool:
        """Whether the log still goes on from where the snapshot ends."""
        p = snapshot.coordinator
        if snapshot.next_offset > self._not_after.get(p, snapshot.next_offset):
            return False
        if snapshot.partitions != self._partitions or p >= self._partitions:
            return False
        if p in self._distrusted:
            return False
        if not self._begins[p] <= snapshot.next_offset <= self._ends[p]:
            return False
        try:
            snapshot.restore()
        except MalformedRecord as error:
            logger.error("%s; it is not used", error)
            return False
        return True

    def _start_of(self, p: int) -> int:
        """Where to read from: one record early, to check the snapshot's anchor."""
        begin, restored = self._begins[p], self.world.states[p].next_offset
        if restored > begin:
            return restored - 1
        self._anchors.pop(p, None)  # the record is gone by retention, which is as it should be
        if restored == begin or begin == 0 or not self.wire.has_snapshots:
            return begin
        raise self._hole(p)

    def _hole(self, p: int) -> LogHole:
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
        raise Truncated(f"{self.topic}/{p} is another log than its snapshot's")

    # Reading

    def _at(self, p: int) -> int:
        return self.world.states[p].next_offset

    def _poll(self, timeout_s: float) -> list[Any]:
        # poll() returns with the first record; consume() alone would wait for a full batch.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        return [first, *self._consumer.consume(BATCH, 0)]

    def _replay_batch(self, messages: list[Any]) -> None:
        """Apply a batch without events. This loop is the start-up time of every process."""
        states, topic, last, apply = self.world.states, self.topic, {}, self.wire.apply
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
                raise Truncated(f"{topic}/{p}: offset {offset} came again")
            if not apply(state, offset, message.value(), None):
                self._met_foreign(p, message.value())
            last[p] = message
            self.replayed += 1
        for p, message in last.items():
            self._last_value[p] = message.value()
            kind, stamp_ms = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                self.observers[p].stamped.note(message.offset(), stamp_ms)

    def poll(self, timeout_s: float) -> list[Any]:
        """Wait up to `timeout_s` for records; hand them to `fold`. Needs no lock."""
        return self._poll(timeout_s)

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
                raise Truncated(f"{self.topic}/{p}: offset {offset} came again")
            found = events.setdefault(p, [])
            crossing = offset // SWEEP_EVERY != (state.next_offset - 1) // SWEEP_EVERY
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

    def _cross(
        self, state: PartitionState, offset: int, value: bytes | None, found: list[Event] | None
    ) -> bool:
        """Keep the digest of the state at a boundary, then apply the record beyond it (§6.5)."""
        if state.next_offset == 0 or found is None:
            return self.wire.apply(state, offset, value, found)
        p = state.partition
        encoded, next_offset = state.encode(), state.next_offset
        digests = self._digests[p]
        digests[next_offset] = anchor_of(encoded)
        while len(digests) > KEPT_DIGESTS:
            del digests[next(iter(digests))]
        anchor, before = anchor_of(self._last_value[p]), len(found)
        is_record = self.wire.apply(state, offset, value, found)
        sender = next((getattr(e, "instance_id", "") for e in found[before:][::-1]), "")
        self.due.append(SnapshotDue(p, next_offset, anchor, encoded, sender))
        return is_record

    def _met_foreign(self, p: int, value: bytes | None) -> None:
        if not self.met_other_wire and value is not None and self.wire.is_other(value):
            self.met_other_wire = True
            logger.error("%s/%d: %s", self.topic, p, self.wire.met_other)

    def _on_snapshot(self, message: Any) -> None:
        try:
            snapshot = decode_snapshot(message.value())
        except MalformedRecord as error:
            logger.error("%s/%d: %s", self.snapshot_topic, message.partition(), error)
            return
        p = snapshot.coordinator
        if p >= self._partitions or snapshot.partitions != self._partitions:
            return
        self.newest_snapshot[p] = max(snapshot.next_offset, self.newest_snapshot.get(p, 0))
        own = self._digests[p].get(snapshot.next_offset)
        if own is None and snapshot.next_offset == self._at(p):
            own = self.world.states[p].digest()
        if own is not None and own != snapshot.digest:
            mismatch = SnapshotMismatch(
                f"{snapshot.writer}'s snapshot of {self.topic}/{p} at offset "
                f"{snapshot.next_offset} differs from the state of this process: one of the two "
                "does not follow the protocol. Compare their versions; `marshal verify` replays "
                "the log"
            )
            logger.error("%s", mismatch)
            self.mismatches.append(mismatch)

    def snapshot_now(self, p: int) -> SnapshotDue | None:
        """Return the present state of one partition, None where nothing was ever written."""
        state = self.world.states[p]
        if state.next_offset == 0:
            return None
        return SnapshotDue(p, state.next_offset, anchor_of(self._last_value[p]), state.encode(), "")

    def _on_error(self, error: KafkaError, topic: str | None) -> None:
        if error.code() in _TRUNCATED:
            raise Truncated(f"{self.topic}: {error.str()}")
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # librdkafka looks for the coordinator of a group that nobody uses
        why: object = error.str()
        if error.code() in REFUSED:
            why = problem = denied(self._config, topic or self.topic, "Read")
            if topic != self.snapshot_topic and not (self._was_served or self.replayed):
                raise problem
        logger.warning("reading %s: %s; trying on", topic or self.topic, why)

    def _on_stats(self, text: str) -> None:
        topic = json.loads(text).get("topics", {}).get(self.topic)
        if topic is None or self.partition_count_error is not None:
            return
        count = sum(1 for p in topic["partitions"] if p != "-1")
        if self.caught_up and count > self._partitions:
            self.partition_count_error = self._changed(count)

    def _changed(self, count: int) -> PartitionCountChanged:
        return PartitionCountChanged(
            f"topic {self.topic!r} had {self._partitions} partitions and now has {count}: claims "
            "would be decided in two places. Stop all clients, then create the topic anew"
        )

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class LogWriter:
    """Appends records to the coordination topic: all in-sync replicas, idempotent, in order.

    For any thread. Failures are queued; the driver takes them with `take_failures`.
    """

    def __init__(
        self, config: KafkaConfig, *, topic: str, snapshot_topic: str, timeout_ms: int
    ) -> None:
        self.topic = topic
        self.snapshot_topic = snapshot_topic
        self.refusal: AccessDenied | None = None
        """Set when the brokers refuse to let this client write, and never let it before."""
        self._was_served = False
        self._refusal_told_s = -OUTAGE_WARNING_S
        self._failures: deque[tuple[int, str]] = deque()
        self._config: KafkaConfig = {
            "linger.ms": 0,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": 32 * 1024 * 1024,  # for snapshots; the broker has its own limit
            **_RECONNECT,
            **config,
            "acks": "all",
            "enable.idempotence": True,
        }
        self._producer = _client(Producer, self._config)

    def append(self, coordinator: int, seq: int, value: bytes) -> None:
        """Hand a record to the producer; it is sent at once, and retried until it times out."""
        self._produce(
            self.topic,
            value,
            partition=coordinator,
            failed=lambda why: self._failures.append((seq, why)),
        )

    def _produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int,
        failed: Callable[[str], None],
        key: bytes | None = None,
    ) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._was_served = True
                return
            if error.code() in REFUSED:
                self._refused(topic)
            failed(error.str())

        try:
            self._producer.produce(
                topic, value, key=key, partition=partition, on_delivery=delivered
            )
        except (BufferError, KafkaException) as error:
            failed(str(error))
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL:
                self._replace(error)

    def _replace(self, why: Exception) -> None:
        """Make a new producer: this one will never send again. What it held counts as failed."""
        if isinstance(why, KafkaException) and why.args[0].code() in REFUSED:
            # No right to write to any topic, and therefore none to be idempotent.
            self._refused(self.topic)
        else:
            logger.error("the producer failed for good (%s); making a new one", why)
        old, self._producer = self._producer, _client(Producer, self._config)
        old.purge()
        with contextlib.suppress(*_FATAL):  # it says once more that it failed
            old.poll(0)

    def _refused(self, topic: str) -> None:
        problem = denied(self._config, topic, "Write")
        if topic == self.topic and not self._was_served and self.refusal is None:
            self.refusal = problem
        if time.monotonic() - self._refusal_told_s >= OUTAGE_WARNING_S:
            self._refusal_told_s = time.monotonic()
            logger.error("%s", problem)

    def write_snapshot(self, due: SnapshotDue, partitions: int, writer: str) -> None:
        """Write a snapshot; one that fails is reported and forgotten: the next will do."""
        value = encode_snapshot(
            due.state,
            coordinator=due.coordinator,
            partitions=partitions,
            next_offset=due.next_offset,
            anchor=due.anchor,
            writer=writer,
        )

        self._produce(
            self.snapshot_topic,
            value,
            key=str(due.coordinator).encode(),
            partition=due.coordinator,
            failed=lambda why: logger.warning(
                "a snapshot of partition %d failed: %s", due.coordinator, why
            ),
        )

    def serve(self) -> None:
        """Run the delivery callbacks that are due."""
        try:
            self._producer.poll(0)
        except _FATAL as error:
            self._replace(error)

    def take_failures(self) -> list[tuple[int, str]]:
        """Return (seq, why) of the appends that failed, or whose outcome is unknown."""
        failures = []
        while self._failures:
            failures.append(self._failures.popleft())
        return failures

    def flush(self, timeout_s: float) -> int:
        """Wait until everything has been delivered; return how many records have not."""
        try:
            return int(self._producer.flush(timeout_s))
        except _FATAL:
            return len(self._producer)


_FATAL: Final = (KafkaException, SystemError)
"""What polling a producer raises once it has failed for good, and only then. (SystemError is
confluent-kafka's own mishap when it raises while a callback of ours runs.)"""

_RECONNECT: Final[KafkaConfig] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1_000}

_FINAL: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.UNSUPPORTED_VERSION,
}
"""Errors that trying again cannot mend."""


class Trouble:
    """Why a client gets no answer from its brokers: what TLS or SASL said last, and how often."""

    def __init__(self) -> None:
        self.text = ""
        self.count = 0
        self.told_s = -OUTAGE_WARNING_S

    @property
    def repeated(self) -> bool:
        """Whether it came often enough to be no accident, as of a broker that is killed."""
        return self.count >= 5

    def note(self, text: str) -> None:
        """Keep it, and log it once in a while."""
        self.text, self.count = text, self.count + 1
        if time.monotonic() - self.told_s >= OUTAGE_WARNING_S:
            self.told_s = time.monotonic()
            logger.error("%s", text)


def _client(kind: Any, config: KafkaConfig, trouble: Trouble | None = None) -> Any:
    """Make a Consumer or Producer; a setting that it refuses becomes a `ConfigurationError`."""

    last_warning_s = -OUTAGE_WARNING_S
    trouble = trouble or Trouble()

    def on_error(error: KafkaError) -> None:
        nonlocal last_warning_s
        if error.code() in REFUSED:
            pass  # whoever asked is told, and tells which right is missing
        elif error.fatal() or error.code() in _FINAL:
            trouble.note(f"{kind.__name__}: {error.str()}")
        elif time.monotonic() - last_warning_s >= OUTAGE_WARNING_S:
            last_warning_s = time.monotonic()
            logger.warning(
                "%s: %s; reconnecting for as long as it takes", kind.__name__, error.str()
            )

    try:
        return kind({"error_cb": on_error, **config}, logger=rdkafka_logger)
    except (KafkaException, TypeError, ValueError) as error:
        problem = error.args[0] if error.args else error
        text = problem.str() if isinstance(problem, KafkaError) else str(problem)
        raise ConfigurationError(f"librdkafka refuses the configuration: {text}") from None


def _newest_snapshots(
    config: KafkaConfig,
    topic: str,
    ends: dict[int, int],
    deadline: float,
    acceptable: Callable[[Snapshot], bool],
) -> dict[int, Snapshot]:
    """Return the newest acceptable snapshot of each partition that has one.

    Looks at the last record of each partition, and at all of them only if that one will not do.
    """
    newest: dict[int, Snapshot] = {}
    starts = {p: end - 1 for p, end in ends.items() if end > 0}
    for attempt in (starts, dict.fromkeys(starts, 0)):
        missing = {p: at for p, at in attempt.items() if p not in newest}
        if not missing:
            break
        for message in read_to_end(config, topic, missing, ends, deadline):
            try:
                snapshot = decode_snapshot(message.value())
            except MalformedRecord as error:
                logger.error("%s/%d: %s; it is not used", topic, message.partition(), error)
                continue
            if snapshot.coordinator == message.partition() and acceptable(snapshot):
                newest[snapshot.coordinator] = snapshot
    return newest


def read_to_end(
    config: KafkaConfig,
    topic: str,
    starts: dict[int, int],
    ends: dict[int, int],
    deadline: float,
) -> Iterator[Any]:
    """Yield the records of some partitions from `starts` to below `ends`, or what is left of them.

    Raises `BrokerUnavailable` at the deadline (of `time.monotonic`), or when the brokers refuse.
    """
    # A consumer of its own: re-assigning one waits for its last fetch to come back.
    consumer = _client(
        Consumer,
        {
            **_RECONNECT,
            **config,
            "group.id": "marshal",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        },
    )
    try:
        consumer.assign([TopicPartition(topic, p, at) for p, at in starts.items()])
        behind = set(starts)
        while behind:
            message = consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"no answer while reading {topic!r}")
                continue
            error = message.error()
            if error is None:
                yield message
                if message.offset() + 1 >= ends[message.partition()]:
                    behind.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                behind.discard(message.partition())
            elif error.code() in REFUSED:
                raise denied(config, topic, "Read")
            elif error.code() in _FINAL:
                raise BrokerUnavailable(f"reading {topic!r}: {error.str()}")
    finally:
        consumer.close()

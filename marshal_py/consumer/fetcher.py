"""Fetching: one confluent-kafka consumer, and what it brings, sorted by partition.

Nothing here knows of delivery guarantees. The thread that iterates fetches; what the thread of the
assignment asks for (assign, pause, ...) is carried out between two fetches.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.headers import make_headers_readable
from marshal_py.client.kafka_clients import (
    CLOSE_S,
    CONNECT_AGAIN_S,
    OUTAGE_WARNING_S,
    RECONNECT,
    ConnectionErrors,
    close_consumer,
    connect,
)
from marshal_py.client.marshal import Marshal
from marshal_py.client.pulse import Pulse
from marshal_py.client.settings import kafka_config
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.held_partition import HeldPartition, Run
from marshal_py.consumer.leader_epochs import LeaderEpochs, Unverified, truncated_at
from marshal_py.consumer.range_stream import RangeStream
from marshal_py.consumer.slot_stream import SlotStream
from marshal_py.consumer.stream import Stream
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import ConfigurationError, MarshalError

__all__ = ["CONNECT_S", "FETCH", "IDLE_WAIT_S", "MAX_FETCH", "Fetcher", "key_of"]

FETCH: Final = 300
"""Messages per `consume`, by default. Python's cyclic garbage collector goes round when there are
700 objects more than before. With two fetches at a time, one in the user's hands and one new, there
are not: it stays at rest, which is worth more than the calls that larger fetches would save."""

MAX_FETCH: Final = 1_000
"""Messages per `consume`, where larger batches were asked for: more is slower in librdkafka."""

IDLE_WAIT_S: Final = 0.02
"""An idle loop looks up so often: for new partitions, Ctrl-C, `close`, claims that came back."""

REST_AFTER_S, REST_S = 2.0, 0.6
"""How often it does once nothing has come, and nothing was asked for, for so long. What is asked
for, and what interrupts it, ends its wait."""

TURN_S: Final = 0.2
"""It waits in turns of so long: but for a message, nothing wakes a consumer of confluent-kafka, and
each time that a thread wakes up costs about 50 us of a processor."""

RANGES_WAIT_S: Final = 0.005
"""And so often where ranges are fetched: what another member has given back is there at once."""

CONNECT_S: Final = 1.0
"""Leaders that have not answered at the start by then are connected to when they are needed."""

HEAR_S: Final = 300.0
"""While nobody fetches, as a handler takes hours, say, what the Kafka client has to tell (`Pulse`)
is taken in so often: librdkafka keeps it all."""

LOOK_S: Final = 5.0
"""`look` waits for an answer so long."""

_GONE: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}

_message: Final[Any] = Message
_partition_of: Callable[[Any], int] = _message.partition
_topic_of: Callable[[Any], str] = _message.topic
_error_of: Callable[[Any], KafkaError | None] = _message.error


class Fetcher:
    """Fetches what is assigned to it, and collects it as runs (`collect_in`).

    `fetch` is for the loop; all else is for any thread.
    """

    def __init__(
        self,
        marshal: Marshal,
        kafka: Mapping[str, Any] | None,
        log: Fields,
        wakeup: Wakeup,
        *,
        batch_size: int,
    ) -> None:
        self.batch_size = batch_size
        self.active: dict[tuple[str, int], HeldPartition] = {}
        """Partitions that are fetched. Changed between two fetches."""
        self.topics_seen: set[str] = set()
        """Every topic of which something was ever fetched."""
        self.on_gone: Callable[[str], None] = lambda _: None
        """Called when Kafka says that it does not know a topic that is fetched. Be quick."""
        self.problem: str | None = None
        """Why nothing is fetched for now, None while it is."""
        self._client_id = marshal.client_id
        self._log = log
        self._wakeup = wakeup
        config = _fetch_config(marshal, kafka)
        self._pulse = Pulse(config)
        self._config = config | self._pulse.settings
        self._errors = ConnectionErrors()
        self._kafka: Any = None
        """The confluent-kafka consumer, once open."""
        self._assigned: dict[tuple[str, int], int] = {}
        """Where the fetching of each partition that is not shared began."""
        self._fetched: deque[Run] = deque()
        self._streams: dict[tuple[str, int], Stream] = {}
        """Partitions that are shared by keys, or by ranges: who gets which of their messages."""
        self._unverified = Unverified()
        self._again: set[tuple[str, int]] = set()
        """What the last fetch brought of these comes again."""
        self.streams_ranges = False
        """Whether ranges are fetched: an idle loop looks up oftener, they come and go."""
        self._lock = threading.Lock()
        self._commands: deque[Callable[[], None]] = deque()
        self._commanded = threading.Event()
        self._again_s = self._warned_s = float("-inf")
        """When a Kafka client that could not be made is tried again, and when that was told."""
        self._heard_s = 0.0
        """When the Kafka client could tell something for the last time."""
        self._moved_s = 0.0
        """When something was fetched or asked for the last time."""
        self._is_closed = False
        self._is_left = False
        """Whether nobody has closed the Kafka consumer, as it was being used."""
        self._is_interrupted = False
        self._fetching: int | None = None
        """The thread that fetches now."""

    @property
    def isolation_level(self) -> str:
        """Which messages are fetched: ``read_committed`` or ``read_uncommitted``."""
        return str(self._config.get("isolation.level", "read_committed"))

    @property
    def idle_wait_s(self) -> float:
        """How long a loop that has nothing else to do may wait for a message."""
        if self.streams_ranges:
            return RANGES_WAIT_S
        return REST_S if self.is_resting else IDLE_WAIT_S

    @property
    def is_resting(self) -> bool:
        """Whether nothing has come, and nothing was asked for, for a while."""
        return time.monotonic() - self._moved_s > REST_AFTER_S

    def collect_in(self, runs: deque[Run]) -> None:
        """Put what is fetched at the end of `runs`, from now on."""
        self._fetched = runs

    def open(self) -> None:
        """Connect."""
        self._kafka = connect(KafkaConsumer, self._config, self._errors)
        self._is_closed = False  # a start that failed may be tried again
        self._heard_s = time.monotonic()

    def close(self) -> None:
        """Disconnect. What was asked for and is not done is forgotten, and nothing more comes.

        Whoever iterates in another thread may fetch once more, and finds nothing.
        """
        self.interrupt()
        if self._fetching == threading.get_ident():
            # A signal handler has interrupted it, and it cannot end before that: it closes it then.
            self._is_closed = self._is_left = True
            return
        if not self._lock.acquire(timeout=CLOSE_S):
            # Whoever fetches hangs, and closes it, should that end: confluent-kafka does not keep
            # one thread from freeing what another one uses.
            self._is_closed = self._is_left = True
            self._log.error(
                "%s: the Kafka client that fetches messages is not free to be closed within %g s; "
                "it is left behind",
                self._client_id,
                CLOSE_S,
            )
            return
        try:
            self._is_closed = True
            self._commands.clear()
            close_consumer(self._kafka)
        finally:
            self._lock.release()

    def list_topics(self, timeout_s: float, topic: str | None = None) -> Any:
        """Return `topic`, or all topics, as confluent-kafka does. Raises `KafkaException`."""
        if topic is None:
            return self._kafka.list_topics(timeout=timeout_s)
        return self._kafka.list_topics(topic, timeout=timeout_s)

    def hear_errors(self) -> ConnectionErrors:
        """Return why brokers do not answer. For the start: nothing is assigned yet."""
        self._kafka.poll(0)
        return self._errors

    def fetch(self, most: int, wait_s: float = 0.0) -> int:
        """Fetch up to `most` messages, waiting up to `wait_s` for one. Returns how many.

        Raises `MarshalError` if the Kafka client hangs.
        """
        with self._lock:
            if self._is_closed:
                return 0
            self._heard_s = time.monotonic()
            before = len(self._fetched)
            is_ready = self._run_commands()
            found = len(self._fetched) - before  # what was fetched before it was ours
            if found > 0:
                return found
            self._fetching = threading.get_ident()
            try:
                messages = self._take(most, wait_s) if is_ready else []
            finally:
                self._fetching = None
        if self._is_left:
            close_consumer(self._kafka)
            return 0
        if is_ready and self._pulse.stopped(time.monotonic()):
            hangs = MarshalError(
                f"the Kafka client that fetches messages hangs: it gave no sign of life for "
                f"{self._pulse.limit_s:g} s. Close this consumer, and start another"
            )
            self._wakeup.fail(hangs)
            raise hangs
        self._run_commands_if_free()
        if wait_s and not messages and not (self.active and is_ready):
            # Not in `poll`, under the lock: the first partition shall not wait for its end.
            self._await_command(wait_s)
        self._is_interrupted = False  # last: whoever fetches looks at everything now
        return len(messages)

    def hear(self) -> None:
        """Take in what the Kafka client has to tell if nobody has fetched for a while (`HEAR_S`).

        A message comes with it, which goes out when its turn comes.
        """
        is_due = time.monotonic() - self._heard_s > HEAR_S
        if not is_due or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._is_closed and self._run_commands():  # first: what was dropped comes again
                self._heard_s = time.monotonic()
                self._take(1, 0.0)
        finally:
            self._lock.release()
        self._run_commands_if_free()

    def _take(self, most: int, wait_s: float) -> list[Any]:
        before = len(self._fetched)
        try:
            messages = self._ask(most, wait_s)
            if messages:
                self._moved_s = time.monotonic()
                self._again.clear()
                self._sort_out(messages)
        except BaseException:
            # Ctrl-C, or a callback of the program: confluent-kafka drops what it has taken.
            for run in list(self._fetched)[before:]:  # these are not lost
                part = run.part
                part.last_end = part.fetched = run.end
                part.read_to = max(part.read_to, run.end)
            self._commands.appendleft(self._read_again)
            raise
        return messages

    def _ask(self, most: int, wait_s: float) -> list[Any]:
        if wait_s and self.active:
            message = self._await_message(wait_s)
            messages = [] if message is None else [message]
            if messages and most > 1:  # more have come with it
                messages += self._kafka.consume(min(most, self.batch_size) - 1, 0)
        else:
            messages = self._kafka.consume(min(most, self.batch_size), 0)
        make_headers_readable(messages)
        return messages

    def _await_message(self, wait_s: float) -> Any:
        """Return a message, None when none comes in time or there is something else to do."""
        until_s = time.monotonic() + wait_s
        while True:
            left_s = until_s - time.monotonic()
            message = self._kafka.poll(max(0.0, min(TURN_S, left_s)))
            if message is not None or left_s <= TURN_S or self._commands or self._is_interrupted:
                return message

    def _await_command(self, wait_s: float) -> None:
        until_s = time.monotonic() + wait_s
        while not self._commanded.wait(max(0.0, min(TURN_S, until_s - time.monotonic()))):
            if self._is_interrupted or time.monotonic() >= until_s:
                return
        self._commanded.clear()

    def interrupt(self) -> None:
        """Have a fetch that waits come back soon. Takes no lock: signal handlers may call it."""
        self._is_interrupted = True

    def connect_to_leaders(self, topics: Mapping[str, int]) -> None:
        """Connect to who leads these partitions (topic → how many), before the first is claimed.

        A partition that moves here would lie idle meanwhile. Who cannot be reached now is left.
        """
        where = [
            TopicPartition(t, p, OFFSET_END) for t, count in topics.items() for p in range(count)
        ]
        if where:
            with contextlib.suppress(KafkaException):
                self._kafka.offsets_for_times(where, timeout=CONNECT_S)

    # What is fetched

    def assign(self, part: HeldPartition, offset: int) -> None:
        """Fetch `part` from `offset` on."""

        def assign() -> None:
            self.topics_seen.add(part.topic)
            self.active[part.key] = part
            self._assigned[part.key] = offset
            where = self._unverified.place(part.key, offset, part.epochs)
            self._kafka.incremental_assign([where])
            if not part.wants_messages:  # paused before there was anything to pause
                self._kafka.pause([where])

        part.assigned = True
        self._command(assign if part.number is None else partial(self._attach, part))

    def unassign(self, part: HeldPartition) -> None:
        """Fetch `part` no more, if it is fetched."""

        def unassign() -> None:
            del self.active[part.key], self._assigned[part.key]
            where = [TopicPartition(part.topic, part.partition)]
            self._kafka.resume(where)  # a pause would outlive the assignment
            self._kafka.incremental_unassign(where)

        if part.assigned:
            part.assigned = False
            self._command(unassign if part.number is None else partial(self._detach, part))

    def _attach(self, part: HeldPartition) -> None:
        if part.number is None or not part.assigned:
            return
        self.topics_seen.add(part.topic)
        self.active[part.key] = part
        if part.source not in self._streams:
            self._streams[part.source] = (
                RangeStream(part.source)
                if part.slot is None
                else SlotStream(part.slot, self._unverified)
            )
        stream = self._streams[part.source]
        stream.add(part.number, part)
        if part.out_of_range:
            self._wakeup.wake()
        self._follow(stream)

    def _detach(self, part: HeldPartition) -> None:
        stream = self._streams.get(part.source)
        if part.number is None or stream is None or stream.parts.get(part.number) is not part:
            return
        del self.active[part.key], stream.parts[part.number]
        self._follow(stream)
        if not stream.is_of_use:
            del self._streams[part.source]

    def _follow(self, stream: Stream) -> None:
        stream.follow(self._kafka)
        size = self.batch_size
        for part, messages in stream.kept_for_parts():
            for at in range(0, len(messages), size):
                self._add(part, messages[at : at + size])

    def end_of(self, source: tuple[str, int]) -> int:
        """Return below what there are messages of a partition, as far as is known here; −1: not."""
        stream = self._streams.get(source)
        return -1 if stream is None else stream.end

    def set_end(self, source: tuple[str, int], end: int) -> None:
        """Kafka has said that there are messages below `end`: fetching may begin there."""
        stream = self._streams.get(source)
        if stream is None:
            stream = self._streams[source] = RangeStream(source)
        stream.end = max(stream.end, end)

    def truncated(self, source: tuple[str, int], end: int) -> None:
        """Kafka has said that there are no messages from `end` on any more."""
        stream = self._streams.get(source)
        if stream is not None:
            stream.truncated(end)

    def look(self, where: TopicPartition) -> Any:
        """Return the first message that Kafka has there, the end, or an error; None: no answer.

        Asks with a connection of its own.
        """
        try:
            kafka = connect(KafkaConsumer, self._config)
        except ConfigurationError as error:
            self._warn(error)
            return None
        try:
            kafka.assign([where])
            return kafka.poll(LOOK_S)
        finally:
            close_consumer(kafka)

    def leave(self, source: tuple[str, int]) -> None:
        """Fetch nothing more of a partition whose ranges were fetched."""

        def leave() -> None:
            stream = self._streams.get(source)  # kept: how far it goes may be told already again
            if stream is not None:
                stream.stop(self._kafka)

        self._command(leave)

    def suspend(self, part: HeldPartition, suspended: bool) -> None:
        """Fetch no more of `part` while its lease has lapsed, or again: it would pile up."""
        if part.suspended is not suspended:
            part.suspended = suspended
            self.pause_or_resume(part)

    def pause_or_resume(self, part: HeldPartition) -> None:
        """Ask Kafka for the messages of `part`, or not, as things stand when it is done."""

        def pause() -> None:
            if not part.assigned:
                return
            if (stream := self._streams.get(part.source)) is not None:
                self._follow(stream)
                return
            where = [TopicPartition(part.topic, part.partition)]
            if part.wants_messages:
                self._kafka.resume(where)
            else:
                self._kafka.pause(where)

        self._command(pause)

    def reconnect(self, renewed: Collection[str]) -> None:
        """Go on with another Kafka consumer, where this one is: topics were made anew.

        A client of librdkafka never forgets a partition's highest leader epoch, and passes over the
        leaders of a topic made anew, whose epochs begin at 0: it would fetch nothing more.
        """

        def reconnect() -> None:
            for at in self._kafka.position([TopicPartition(*key) for key in self._assigned]):
                key = (at.topic, at.partition)
                if at.offset >= 0:  # the offset behind the last message that it brought
                    self._assigned[key] = at.offset
                if at.topic in renewed:
                    self.active[key].epochs = LeaderEpochs()
            self._replace(renewed)

        self._command(reconnect)

    def _read_again(self) -> None:
        """Have what a fetch had taken when it raised come once more."""
        for key, offset in self._assigned.items():
            self._assigned[key] = max(offset, self.active[key].last_end)
        self._replace()

    def _replace(self, renewed: Collection[str] = ()) -> None:
        streams = list(self._streams.values())
        kafka = connect(KafkaConsumer, self._config, self._errors)  # first: it may raise
        for stream in streams:
            stream.stop(self._kafka)
            if stream.source[0] in renewed:
                stream.renew()
        close_consumer(self._kafka)
        self._kafka = kafka
        self._kafka.incremental_assign(
            [
                self._unverified.place(key, offset, self.active[key].epochs)
                for key, offset in self._assigned.items()
            ]
        )
        idle = [part for key in self._assigned if not (part := self.active[key]).wants_messages]
        self._kafka.pause([TopicPartition(*part.key) for part in idle])
        for stream in streams:
            self._follow(stream)

    def _command(self, command: Callable[[], None]) -> None:
        """Have `command` use the Kafka consumer, in the order given, and never during a fetch.

        confluent-kafka's consumer has a lock of its own, which a polling thread hardly ever leaves
        to another; and what a fetch brings must belong to the assignment of that moment.
        """
        self._moved_s = time.monotonic()
        self._commands.append(command)
        self._run_commands_if_free()
        self._commanded.set()

    def _run_commands_if_free(self) -> None:
        is_ready = True
        while is_ready and self._commands and self._lock.acquire(blocking=False):
            try:
                is_ready = self._run_commands()
            finally:
                self._lock.release()

    def _run_commands(self) -> bool:
        """Return whether all was carried out; not while the Kafka client cannot be replaced.

        Its settings have worked: its files are being replaced, as a certificate and its key are,
        one after the other. Nothing is fetched before that, as what was dropped must come first.
        """
        while self._commands:
            if self.problem is not None and time.monotonic() < self._again_s:
                return False
            command = self._commands.popleft()
            if self._is_closed:
                continue
            try:
                command()
            except ConfigurationError as error:
                self._commands.appendleft(command)
                self.problem, self._again_s = str(error), time.monotonic() + CONNECT_AGAIN_S
                self._warn(error)
                return False
            self.problem = None
        return True

    def _warn(self, problem: ConfigurationError) -> None:
        """Log why a Kafka client cannot be made, once in a while."""
        if time.monotonic() - self._warned_s >= OUTAGE_WARNING_S:
            self._warned_s = time.monotonic()
            self._log.warning(
                "%s: no Kafka client can be made to fetch with: %s; trying on",
                self._client_id,
                problem,
            )

    def _sort_out(self, messages: list[Any]) -> None:
        """Collect what was fetched, by partition; order matters within a partition only.

        Every message passes here: the loops are those of `map` and `count`, not of Python.
        """
        if any(map(_error_of, messages)):
            good = [message for message in messages if message.error() is None]
            if good:
                self._sort_out(good)
            for message in messages:  # afterwards: the end of a partition comes behind its messages
                error = message.error()
                if error is not None:
                    self._on_error(message, error)
            return
        active = self.active
        if len(active) == 1 and not self._streams:  # nothing else is fetched
            [part] = active.values()
            if key_of(messages[0]) == part.key == key_of(messages[-1]):
                self._add_if_active(part.key, messages)
            return
        seen = self.topics_seen
        numbers = list(map(_partition_of, messages))
        [*topics] = seen if len(seen) == 1 else set(map(_topic_of, messages))
        if len(topics) == 1 and numbers.count(numbers[0]) == len(numbers):
            self._add_if_active(
                (topics[0], numbers[0]), messages
            )  # most fetches are of one partition
            return
        groups: dict[tuple[str, int], list[Any]] = {}
        at = 0
        for number, same in groupby(numbers):
            found = messages[at : (at := at + len(list(same)))]
            if len(topics) == 1:
                groups.setdefault((topics[0], number), []).extend(found)
                continue
            for topic, group in groupby(found, _topic_of):
                groups.setdefault((topic, number), []).extend(group)
        for key, found in groups.items():
            self._add_if_active(key, found)

    def _add_if_active(self, key: tuple[str, int], messages: list[Any]) -> None:
        stream, part = self._streams.get(key), self.active.get(key)
        if stream is None and part is None:
            return
        if not self._unverified.verify(key, messages[0], self._kafka):
            self._again.add(key)
            return
        if stream is not None:
            lost_from = -1 if stream.is_lost else stream.note(messages)
            if lost_from >= 0:
                self._place_again(key, lost_from)
            if stream.is_lost:  # until it is known where to go on
                return
            for each, mine in stream.sort(messages):
                self._add(each, mine)
            if stream.passed(messages[-1].offset() + 1, self._kafka):
                self._follow(stream)
        elif part is not None:
            self._add(part, messages)

    def _add(self, part: HeldPartition, messages: list[Any]) -> None:
        if part.number is None:
            part.epochs.note_all(messages)
        run = Run(part, messages)
        self._fetched.append(run)
        part.last_end = run.end
        part.fetched = max(part.fetched, run.end)  # last: the run must be found somewhere, always

    def _on_error(self, message: Any, error: KafkaError) -> None:
        key, code = key_of(message), error.code()
        stream = self._streams.get(key)
        if code == KafkaError._PARTITION_EOF and key in self._again:
            return
        if stream is not None and code == KafkaError._PARTITION_EOF:
            if stream.is_lost:
                return
            if stream.ended(message.offset(), self._kafka):
                self._follow(stream)
            if any(part.out_of_range for part in stream.parts.values()):
                self._wakeup.wake()
            return
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._place_again(key, truncated_at(message))
            return
        part = next(iter(self._parts_of(key)), None)
        if part is None:
            return
        if code == KafkaError._PARTITION_EOF:
            part.reached(message.offset())
            part.fetched = max(part.fetched, message.offset())
            return
        if code in _GONE:
            # Of the topic nothing may be left under this name, or another topic.
            self.on_gone(part.topic)
            return
        if code in REFUSED:
            self._wakeup.fail(denied(self._config, part.topic, "Read"))
        else:
            self._log.warning(
                "%s: %s/%d: %s",
                self._client_id,
                part.topic,
                part.partition,
                error.str(),
                extra=part.log_fields,
            )

    def _parts_of(self, key: tuple[str, int]) -> list[HeldPartition]:
        """Return who reads a partition."""
        if (stream := self._streams.get(key)) is not None:
            return list(stream.parts.values())
        return [self.active[key]] if key in self.active else []

    def _place_again(self, key: tuple[str, int], end: int) -> None:
        """Kafka has nothing where it was to read: no messages from `end` on; −1: not known."""
        if (stream := self._streams.get(key)) is not None:
            stream.lose(end)
        for part in (parts := self._parts_of(key)):
            part.out_of_range, part.truncated_at = True, end
        if parts:
            self._wakeup.wake()


def _fetch_config(marshal: Marshal, kafka: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return librdkafka's settings for the messages. Raises `ConfigurationError`."""
    own = dict(kafka or {})
    # Every reader of the coordination log must see the same; of the messages, as each likes.
    isolation = {k: own.pop(k) for k in ("isolation.level",) if k in own}
    checked = kafka_config({**marshal.settings.kafka, **own}) | isolation
    return {
        "client.id": f"marshal-{marshal.client_id}",
        "fetch.queue.backoff.ms": 5,
        **RECONNECT,
        **checked,
        # librdkafka wants a group; nothing is joined or committed under it.
        "group.id": f"marshal.{marshal.group_id}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        # Where a partition ends is told, too: offsets without a message (markers of transactions,
        # what was compacted away) are passed by it alone.
        "enable.partition.eof": True,
    }


def key_of(message: Any) -> tuple[str, int]:
    """Return topic and partition of a message."""
    return (message.topic(), message.partition())

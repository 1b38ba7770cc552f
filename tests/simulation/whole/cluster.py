"""A Kafka cluster in virtual time, and the parts of confluent-kafka that the product uses of it.

Each machine has a `Link` to the cluster. What it writes may be held, refused, written late, or
written and never acknowledged; what it reads comes late, or not at all for a while; a partition may
be without a leader. A producer keeps its order within a partition, and writes nothing twice.

A partition may lose its last records, and a topic may be deleted and made anew. A consumer notices
the first, as librdkafka does, which compares leader epochs; of the second it may notice nothing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, Final

import httpcore
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
    Uuid,
)

from tests.simulation.whole.green import MS, Hub, Machine, current_thread, machine

EPOCH_MS: Final = 1_800_000_000_000

Headers = list[tuple[str, bytes]]
Watcher = Callable[[str, int, int, bytes | None], None]


class Partition:
    """One partition: its records, and whether somebody leads it."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.records: list[tuple[bytes | None, bytes | None, int]] = []
        self.headers: list[Headers] = []
        self.end = 0
        self.begin = 0
        """Records before it are kept, and given to nobody."""
        self.down_until = 0

    def cut(self, end: int) -> None:
        """Lose the records from an offset on."""
        count = self.index(end)
        del self.offsets[count:], self.records[count:], self.headers[count:]
        self.end = end

    def index(self, offset: int) -> int:
        """The index of the first record at or after an offset."""
        low, high = 0, len(self.offsets)
        while low < high:
            middle = (low + high) // 2
            if self.offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low


class Link:
    """The way of one machine to the cluster, and what is wrong with it."""

    def __init__(self, cluster: Cluster, owner: Machine) -> None:
        self.cluster = cluster
        self.machine = owner
        self.write_cut: tuple[int, str, int] | None = None
        """Until when, how ("hold", "fail", "late", "lost_ack"), and by how much."""
        self.read_cut_until = 0
        self.slow_until = 0
        self.slow_ns = 0
        self.lose_in_flight = False
        self.appends_failed = 0
        self.consumers: list[SimConsumer] = []
        self.about_to_produce: Callable[[str, int, bytes], None] = lambda *_: None

    def latency(self) -> int:
        hub = self.cluster.hub
        x = hub.random.random()
        ns = int((0.3 + 2.0 * x) * MS)
        if x > 0.98:
            hub.fired["long_tail"] += 1
            ns *= 10
        return ns + (self.slow_ns if hub.now < self.slow_until else 0)

    def heal(self) -> None:
        self.write_cut = None
        self.read_cut_until = self.slow_until = 0
        for consumer in self.consumers:
            consumer.catch_up()


class Cluster:
    """Topics. `watch` hears of every record at the moment at which it enters the log."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, int] = {}
        self.watch: Watcher = lambda *_: None
        self.links: dict[Machine, Link] = {}
        self.sink_client: Any = None
        """Stands for `harvest.sinks.kafka.clients.make_client`, where a history has such sinks."""
        self.healed = False

        self.httpcore: Any = httpcore
        """Stands for the module of that name, where a history has destinations."""

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic; one that was deleted is another one now, and not every consumer sees it."""
        self.topics[topic] = [Partition() for _ in range(partitions)]
        self.ids[topic] = self.ids.get(topic, 0) + 1
        for consumer in self._consumers():
            consumer.made_anew(topic)

    def delete(self, topic: str) -> None:
        del self.topics[topic]
        for consumer in self._consumers():
            consumer.deleted(topic)

    def truncate(self, topic: str, p: int, end: int) -> None:
        """A partition loses its last records, as by an unclean leader election."""
        self.topics[topic][p].cut(end)
        for consumer in self._consumers():
            consumer.truncated(topic, p)

    def _consumers(self) -> list[SimConsumer]:
        return [consumer for link in self.links.values() for consumer in link.consumers]

    def partition(self, topic: str, p: int) -> Partition:
        """Raises `KafkaException` where there is none."""
        if topic not in self.topics:
            raise KafkaException(_no_topic())
        return self.topics[topic][p]

    def link(self, owner: Machine) -> Link:
        if owner not in self.links:
            self.links[owner] = Link(self, owner)
        return self.links[owner]

    def append(
        self,
        topic: str,
        p: int,
        value: bytes | None,
        key: bytes | None = None,
        gap: int = 0,
        headers: Headers | None = None,
    ) -> int:
        """A record enters the log, now."""
        partition = self.topics[topic][p]
        partition.end += gap
        offset = partition.end
        partition.offsets.append(offset)
        partition.records.append((key, value, EPOCH_MS + self.hub.now // MS))
        partition.headers.append(headers or [])
        partition.end = offset + 1
        self.watch(topic, p, offset, value)
        for consumer in self._consumers():
            consumer.appended(topic, p)
        return offset

    def connect(self, kind: Any, config: dict[str, Any], errors: Any = None) -> Any:
        """Stands for `marshal_py.client.kafka_clients.connect`."""
        del errors
        link = self.link(machine())
        return {"Consumer": SimConsumer, "Producer": SimProducer, "AdminClient": SimAdmin}[
            kind.__name__
        ](link, config)


def _round_trip(link: Link, timeout_s: float) -> None:
    """Ask a broker something. Raises `KafkaException` when nobody answers in time."""
    hub, me = link.cluster.hub, current_thread()
    span = link.latency() + link.latency()
    blocked = max(link.read_cut_until, link.write_cut[0] if link.write_cut else 0)
    if hub.now < blocked:
        span += blocked - hub.now
    if span > timeout_s * 1e9:
        hub.fired["request_timeout"] += 1
        me.park(timeout_s)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "simulated"))
    me.park(span / 1e9)


def _no_topic() -> KafkaError:
    return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "simulated")


def _metadata(link: Link, asked: str | None) -> Any:
    topics = {
        name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(len(partitions))))
        for name, partitions in link.cluster.topics.items()
    }
    if asked is not None and asked not in topics:
        topics[asked] = SimpleNamespace(error=_no_topic(), partitions={})
    return SimpleNamespace(cluster_id="simulated", topics=topics)


class SimClient:
    """What all of librdkafka's clients can be asked."""

    link: Link

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        _round_trip(self.link, timeout)
        return _metadata(self.link, topic)


class SimConsumer(SimClient):
    """As `confluent_kafka.Consumer`, of what the product calls."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        self.link = link
        self.hub = link.cluster.hub
        self.eof = bool(config.get("enable.partition.eof"))
        self._from_start = config.get("auto.offset.reset") == "earliest"
        self._partitions: dict[tuple[str, int], Partition] = {}
        """As they are followed: of a topic that was made anew, perhaps still the old ones."""
        self._followed: dict[str, int] = {}
        """The ids of the topics that were assigned first."""
        self._errors: dict[tuple[str, int], int] = {}
        """What is to be told of a partition instead of records."""
        self._positions: dict[tuple[str, int], int] = {}
        self._paused: set[tuple[str, int]] = set()
        self._visible: dict[tuple[str, int], int] = {}
        """Records (by index) that have reached this consumer."""
        self._pending: set[tuple[str, int]] = set()
        """Where there may be something to take."""
        self._told_end: dict[tuple[str, int], int] = {}
        self._turn: deque[tuple[str, int]] = deque()
        self._waiters: list[Callable[[], None]] = []
        self._every_ns = int(config.get("statistics.interval.ms", 0)) * MS
        self._statistics: Callable[[str], None] = config.get("stats_cb", lambda _: None)
        self._told_ns = self.hub.now
        self.closed = False
        link.consumers.append(self)

    # What comes

    def appended(self, topic: str, p: int) -> None:
        key = (topic, p)
        partition = self._partitions.get(key)
        if partition is self.link.cluster.topics[topic][p]:
            count = len(partition.offsets)
            self.hub.at(self.hub.now + self.link.latency(), self._arrive, key, count)

    def _arrive(self, key: tuple[str, int], count: int) -> None:
        if self.link.machine.dead or key not in self._positions:
            return
        if self.hub.now < self.link.read_cut_until:
            self.hub.fired["cut_read"] += 1
            self.hub.at(self.link.read_cut_until, self._arrive, key, count)
            return
        self._visible[key] = max(count, self._visible[key])
        self._pending.add(key)
        self._wake()

    # What becomes of topics

    def _tell(self, key: tuple[str, int], code: int) -> None:
        """Tell of an error in the place of records, when word of it comes."""
        self._errors[key] = code
        self.hub.at(self.hub.now + self.link.latency(), self._arrive, key, 0)

    def truncated(self, topic: str, p: int) -> None:
        key = (topic, p)
        if key in self._positions:
            partition = self._partitions[key]
            self._visible[key] = min(self._visible[key], len(partition.offsets))
            if self._positions[key] > partition.end:
                self._tell(key, KafkaError._LOG_TRUNCATION)

    def deleted(self, topic: str) -> None:
        for key in list(self._positions):
            if key[0] == topic and self.hub.random.random() < 0.5:
                self._tell(key, KafkaError._UNKNOWN_PARTITION)

    def made_anew(self, topic: str) -> None:
        """A consumer goes on at its offset, unless it has seen a later leader epoch: then nowhere.

        Where there is no such offset yet it waits, and reads on once there is.
        """
        for key in list(self._positions):
            if key[0] == topic and self.hub.random.random() < 0.5:
                self.hub.fired["reads_on_in_another_topic"] += 1
                self._partitions[key] = self.link.cluster.topics[topic][key[1]]
                self._visible[key] = 0

    def go_back(self, topic: str, p: int, records: int) -> None:
        """Bring the last records once more."""
        key = (topic, p)
        if key in self._positions and self._positions[key] <= self._partitions[key].end:
            partition = self._partitions[key]
            index = max(0, partition.index(self._positions[key]) - records)
            if index < len(partition.offsets) and partition.offsets[index] >= partition.begin:
                self.hub.fired["offset_repeated"] += 1
                self._positions[key] = partition.offsets[index]
                self._pending.add(key)
                self._wake()

    def _wake(self) -> None:
        for wake in self._waiters:
            wake()
        self._waiters.clear()

    def catch_up(self) -> None:
        for key in self._positions:
            self._visible[key] = len(self._partitions[key].offsets)
            self._pending.add(key)
        self._wake()

    # Assigning

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._forget()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            key = (at.topic, at.partition)
            if key in self._positions:
                raise KafkaException(KafkaError(KafkaError._CONFLICT, f"{key} is assigned"))
            # What is not there brings nothing, and perhaps not what has another id than before.
            cluster, partition = self.link.cluster, Partition()
            if at.topic in cluster.topics:
                topic_id = cluster.ids[at.topic]
                same = self._followed.setdefault(at.topic, topic_id) == topic_id
                if same or self.hub.random.random() < 0.5:
                    partition = cluster.partition(*key)
            offset = at.offset
            self._partitions[key] = partition
            self._positions[key] = partition.begin if offset == OFFSET_BEGINNING else offset
            self._visible[key] = 0
            self._told_end.pop(key, None)
            self._turn.append(key)
            self.hub.at(
                self.hub.now + self.link.latency(), self._arrive, key, len(partition.offsets)
            )

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for at in partitions:
            key = (at.topic, at.partition)
            if key not in self._positions:
                raise KafkaException(KafkaError(KafkaError._CONFLICT, f"{key} is not assigned"))
            del self._positions[key], self._partitions[key]
            self._errors.pop(key, None)
            self._turn.remove(key)
            self._pending.discard(key)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        keys = [(at.topic, at.partition) for at in partitions]
        return [TopicPartition(*key, self._positions[key]) for key in keys]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused.update((at.topic, at.partition) for at in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        keys = {(at.topic, at.partition) for at in partitions}
        self._paused -= keys
        self._pending |= keys & self._positions.keys()
        self._wake()

    # Reading

    def poll(self, timeout: float = -1) -> Any:
        found = self._take(1)
        if not found and timeout != 0:
            me = current_thread()
            wake = me.waker()
            self._waiters.append(wake)
            me.park(None if timeout < 0 else timeout)
            if wake in self._waiters:
                self._waiters.remove(wake)
            found = self._take(1)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        assert timeout == 0
        return self._take(num_messages)

    def _take(self, most: int) -> list[Any]:
        if self._every_ns and self.hub.now - self._told_ns >= self._every_ns:
            self._told_ns = self.hub.now
            self._statistics("{}")
        found: list[Any] = []
        if not self._pending:
            return found
        for _ in range(len(self._turn)):
            key = self._turn[0]
            self._turn.rotate(-1)
            if key not in self._pending or key in self._paused:
                continue
            found += self._take_of(key, most - len(found))
            if len(found) >= most:
                break
            if not self._ends_with_no_record(key):  # its end is told with the next answer
                self._pending.discard(key)
        return found

    def _ends_with_no_record(self, key: tuple[str, int]) -> bool:
        partition, at = self._partitions[key], self._positions[key]
        return (
            self.eof
            and partition.offsets[-1:] == [at - 1]
            and at < partition.end != self._told_end.get(key)
        )

    def _take_of(self, key: tuple[str, int], most: int) -> list[Any]:
        partition, at = self._partitions[key], self._positions[key]
        if self._from_start and not partition.begin <= at <= partition.end:
            at = self._positions[key] = partition.begin
        code = self._errors.pop(key, None)
        if code is None and not partition.begin <= at <= partition.end:
            code = KafkaError._AUTO_OFFSET_RESET
        if code is not None:
            self._positions[key] = partition.end  # told once
            error = KafkaError(code, "simulated")
            return [Message(topic=key[0], partition=key[1], offset=at, error=error)]
        start = partition.index(at)
        stop = min(self._visible[key], len(partition.offsets), start + most)
        found = [
            Message(
                topic=key[0],
                partition=key[1],
                offset=partition.offsets[n],
                key=partition.records[n][0],
                value=partition.records[n][1],
                timestamp=(TIMESTAMP_LOG_APPEND_TIME, partition.records[n][2]),
            )
            for n in range(start, stop)
        ]
        if found:
            self._positions[key] = partition.offsets[stop - 1] + 1
        elif (
            self.eof
            and start == len(partition.offsets)
            and self._told_end.get(key) != partition.end
            and self._visible[key] >= len(partition.offsets)
        ):
            self._told_end[key] = partition.end
            error = KafkaError(KafkaError._PARTITION_EOF, "simulated")
            found = [Message(topic=key[0], partition=key[1], offset=partition.end, error=error)]
        return found

    # Asking

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        _round_trip(self.link, timeout)
        return [
            TopicPartition(at.topic, at.partition, _offset(self.link, at, at.offset))
            for at in partitions
        ]

    def get_watermark_offsets(self, where: TopicPartition, cached: bool = False) -> tuple[int, int]:
        """As of what has reached this consumer."""
        assert cached
        key = (where.topic, where.partition)
        partition, seen = self._partitions[key], self._visible.get(key, 0)
        return partition.begin, partition.offsets[seen - 1] + 1 if seen else -1001

    def close(self) -> None:
        self.closed = True
        self._forget()
        if self in self.link.consumers:
            self.link.consumers.remove(self)

    def _forget(self) -> None:
        self._positions.clear()
        self._partitions.clear()
        self._errors.clear()
        self._turn.clear()
        self._pending.clear()


def _offset(link: Link, at: TopicPartition, which: int) -> int:
    partition = link.cluster.partition(at.topic, at.partition)
    assert which in (-1, -2)
    return partition.end if which == -1 else partition.begin


class SimAdmin(SimClient):
    """As `confluent_kafka.admin.AdminClient`, of what a consumer asks."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        self.link = link

    def poll(self, timeout: float = 0) -> int:
        return 0

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        _round_trip(self.link, request_timeout)
        answers: dict[str, Future[Any]] = {}
        cluster = self.link.cluster
        for name in topics.topic_names:
            answer = answers[name] = Future()
            if name in cluster.topics:
                found = SimpleNamespace(
                    topic_id=Uuid(cluster.ids[name], len(name)), partitions=cluster.topics[name]
                )
                answer.set_result(found)
            else:
                answer.set_exception(KafkaException(_no_topic()))
        return answers

    def delete_records(
        self, partitions: list[TopicPartition], request_timeout: float
    ) -> dict[Any, Future[Any]]:
        """Done when it is asked for, and answered at once."""
        answers: dict[Any, Future[Any]] = {}
        for at in partitions:
            answer = answers[at] = Future()
            try:
                partition = self.link.cluster.partition(at.topic, at.partition)
            except KafkaException as error:
                answer.set_exception(error)
                continue
            partition.begin = max(partition.begin, min(at.offset, partition.end))
            self.link.cluster.hub.fired["log_trimmed"] += 1
            answer.set_result(None)
        return answers

    def list_offsets(
        self, queries: dict[Any, Any], request_timeout: float, isolation_level: object = None
    ) -> dict[Any, Any]:
        _round_trip(self.link, request_timeout)
        answers = {}
        for at, spec in queries.items():
            offset = _offset(self.link, at, spec._value)
            answers[at] = answer = SimpleNamespace(
                result=lambda offset=offset: SimpleNamespace(offset=offset)
            )
            answer.add_done_callback = lambda call, answer=answer: call(answer)
        return answers


class SimProducer(SimClient):
    """As `confluent_kafka.Producer` with idempotence: in order, nothing twice."""

    def __init__(self, link: Link, config: dict[str, Any]) -> None:
        self.link = link
        self.hub = link.cluster.hub
        timeout_ms = config.get("message.timeout.ms", config.get("delivery.timeout.ms", 300_000))
        self.timeout_ns = int(timeout_ms) * MS
        self._last: dict[tuple[str, int], int] = {}
        self._reports: deque[tuple[Any, KafkaError | None, SimpleNamespace]] = deque()
        self._waiting = 0
        self._wakers: list[Callable[[], None]] = []

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = 0,
        headers: Headers | None = None,
        on_delivery: Any,
    ) -> None:
        link, hub, now = self.link, self.hub, self.hub.now
        link.about_to_produce(topic, partition, value or b"")
        self._waiting += 1
        where = (topic, partition)
        arrives = now + link.latency()
        cut = link.write_cut
        report_lost = False
        if cut is not None and now < cut[0]:
            until, mode, by_ns = cut
            if mode == "fail":
                hub.fired["append_fails"] += 1
                hub.at(now + by_ns, self._report, on_delivery, KafkaError._MSG_TIMED_OUT)
                return
            if mode == "late":
                hub.fired["written_after_failure"] += 1
                hub.at(now + by_ns, self._report, on_delivery, KafkaError._MSG_TIMED_OUT)
                hub.at(arrives + 2 * by_ns, self._write, where, value, key, headers, None)
                return
            if mode == "lost_ack":
                hub.fired["lost_ack"] += 1
                report_lost = True
            else:
                hub.fired["cut_write"] += 1
                arrives += until - now
        if topic in link.cluster.topics:
            down_until = link.cluster.topics[topic][partition].down_until
            arrives = max(arrives, down_until + link.latency())
        if arrives - now > self.timeout_ns:
            hub.fired["delivery_timeout"] += 1
            hub.at(now + self.timeout_ns, self._report, on_delivery, KafkaError._MSG_TIMED_OUT)
            return
        arrives = self._last[where] = max(arrives, self._last.get(where, 0) + 1)
        report = None if report_lost else on_delivery
        hub.at(arrives, self._write, where, value, key, headers, report)
        if report_lost and cut is not None:
            hub.at(arrives + cut[2], self._report, on_delivery, KafkaError._MSG_TIMED_OUT)

    def _write(
        self,
        where: tuple[str, int],
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        on_delivery: Any,
    ) -> None:
        owner = self.link.machine
        if owner.dead:
            if self.link.lose_in_flight:
                self.hub.fired["in_flight_lost"] += 1
                return
            self.hub.fired["written_after_death"] += 1
        if where[0] not in self.link.cluster.topics:
            self.hub.fired["written_to_no_topic"] += 1
            if on_delivery is not None:
                self._report(on_delivery, KafkaError._UNKNOWN_TOPIC)
            return
        offset = self.link.cluster.append(*where, value, key, headers=headers)
        if on_delivery is not None:
            self.hub.at(self.hub.now + self.link.latency(), self._report, on_delivery, None, offset)

    def _report(self, on_delivery: Any, code: int | None, offset: int | None = None) -> None:
        self._waiting -= 1
        if code is not None:
            self.link.appends_failed += 1
        error = None if code is None else KafkaError(code, "simulated")
        self._reports.append((on_delivery, error, SimpleNamespace(offset=lambda: offset)))
        for wake in self._wakers:
            wake()
        self._wakers.clear()

    def poll(self, timeout: float = 0) -> int:
        count = 0
        if timeout > 0 and not self._reports:
            me = current_thread()
            self._wakers.append(me.waker())
            me.park(timeout)
        while self._reports:
            on_delivery, error, message = self._reports.popleft()
            count += 1
            if on_delivery is not None:
                on_delivery(error, message)
        return count

    def flush(self, timeout: float = -1) -> int:
        me = current_thread()
        deadline = me.machine.now_ns + int(timeout * 1e9)
        while self._waiting and me.machine.now_ns < deadline:
            self._wakers.append(me.waker())
            me.park((deadline - me.machine.now_ns) / 1e9)
        self.poll(0)
        return self._waiting

    def purge(self) -> None:
        """Nothing is kept back here."""

    def __len__(self) -> int:
        return self._waiting


@contextlib.contextmanager
def quiet_logs() -> Any:
    """The product's log lines are of no interest: thousands of histories tell the same."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)

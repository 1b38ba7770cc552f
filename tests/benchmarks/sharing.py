"""Several members on one partition: by keys and by ranges, beside share groups and a bare loop.

One partition, messages of 1 KB, each of a key of its own. With handlers of 5 ms, linear is what so
many members would do if each had a partition. Members are threads, each with its own consumer.
Kafka's share groups are measured in the same run where confluent-kafka and the brokers know them.

By ranges, besides: how long after its append a message is begun while 4 members are idle; for how
long the others wait behind one message that takes 1 s while 3 members are idle; how many records of
the coordination log 1,000 messages cost one member whose handlers do nothing; and of a member that
is killed, how many intervals after its last record what it held is begun elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from marshal_py import Consumer
from marshal_py.client.marshal import driver_of
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.events import Beat, Claimed, Event
from marshal_py.protocol.slots import Sharing
from tests.benchmarks._servers import new_topic, produce_all
from tests.benchmarks.consumer import FETCH, bare, pace
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.support.messages import offset_of

KAFKA = "4.2.0"
"""The first version that has share groups without further ado."""

PROPERTIES = {
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}
WORK_S = 0.005
SLOTS = 16
SHARINGS: tuple[Sharing, ...] = ("keys", "ranges")
GAP_S = 0.01
"""Between two messages that arrive at idle members."""

INTERVALS_MS = (500, 5_000)
"""Of the members of which one is killed: a short one, and the default."""

PATIENCE_S = 120.0
JOIN_S = 8.0
"""The members of a share group have joined by then; nothing here can ask the brokers."""

_groups = itertools.count()


def fill(kafka: EmbeddedKafka, topic: str, count: int) -> None:
    """Write messages of 1,000 bytes, each of a key of its own, to partition 0."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 20,
        }
    )
    value = os.urandom(1_000)
    produce_all(producer, topic, ((0, b"key-%d" % n, value) for n in range(count)))


class Tally:
    """Counts what members have done, and when the first and the last was."""

    def __init__(self, count: int) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._left = count
        self._count = count
        self._first_s = self._last_s = 0.0

    def begin(self) -> None:
        with self._lock:
            self._first_s = self._first_s or time.perf_counter()

    def end(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._last_s = time.perf_counter()
                self.done.set()

    def rate(self) -> float:
        if not self.done.wait(PATIENCE_S):
            raise RuntimeError(f"{self._left} of {self._count} messages were never done")
        return self._count / (self._last_s - self._first_s)


@contextlib.contextmanager
def members_of(
    kafka: EmbeddedKafka,
    coordination: str,
    sharing: Sharing,
    members: int,
    handle: Callable[[Any], None],
) -> Iterator[str]:
    """Have so many members share a topic; its name, once all have what they wait with."""
    topic, group = kafka.create_topic(partitions=1), f"{sharing}-{next(_groups)}"
    consumers = [
        Consumer(
            kafka.bootstrap_servers,
            group_id=group,
            client_id=f"m{n}",
            topics=topic,
            topic=coordination,
            sharing=sharing,
            slots=SLOTS,
        )
        for n in range(members)
    ]

    def work(consumer: Consumer) -> None:
        for message in consumer:
            handle(message)

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in consumers]
    for thread in threads:
        thread.start()
    claims = SLOTS // members if sharing == "keys" else 1
    _wait(lambda: all(len(each.claims()) == claims for each in consumers))
    try:
        yield topic
    finally:
        for each in consumers:
            each.close(timeout_s=1)


def shared(
    kafka: EmbeddedKafka, coordination: str, sharing: Sharing, members: int, count: int
) -> float:
    """Messages a second, from the first that is begun to the last that is done."""
    tally = Tally(count)

    def handle(_: Any) -> None:
        tally.begin()
        time.sleep(WORK_S)
        tally.end()

    with members_of(kafka, coordination, sharing, members, handle) as topic:
        fill(kafka, topic, count)
        return tally.rate()


def arrivals(kafka: EmbeddedKafka, coordination: str, count: int) -> list[float]:
    """Milliseconds from the acknowledged append of a message to its begin, by 4 idle members."""
    begun: dict[int, float] = {}
    is_begun = threading.Semaphore(0)

    def handle(message: Any) -> None:
        begun[message.offset()] = time.perf_counter()
        is_begun.release()

    written: dict[int, float] = {}

    def delivered(_: Any, message: Any) -> None:
        written[message.offset()] = time.perf_counter()

    with members_of(kafka, coordination, "ranges", 4, handle) as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
        for _ in range(count):
            producer.produce(topic, b"x", partition=0, on_delivery=delivered)
            producer.flush(30)
            is_begun.acquire(timeout=30)
            time.sleep(GAP_S)
    return sorted(max(0.0, begun[offset] - at) * 1e3 for offset, at in written.items())


def beside_a_slow_one(kafka: EmbeddedKafka, coordination: str) -> float:
    """Milliseconds until the last of 40 messages is begun, the first of which takes 1 s."""
    begun: dict[int, float] = {}
    done = threading.Event()

    def handle(message: Any) -> None:
        begun[message.offset()] = time.perf_counter()
        if len(begun) == 40:
            done.set()
        if message.offset() == 0:
            time.sleep(1.0)

    with members_of(kafka, coordination, "ranges", 4, handle) as topic:
        fill(kafka, topic, 40)
        done.wait(PATIENCE_S)
    return (max(begun.values()) - begun[0]) * 1e3


class Killed(NamedTuple):
    """What became of the ranges of a member that was killed."""

    first: float
    """Intervals from its last record in the log to the begin of the first message elsewhere."""
    last: float
    """To that of the last one."""
    in_flight: int
    """So many messages it held, by the log: begun, or claimed ahead."""
    repeated: int


VICTIM = """
import os, sys, time
from marshal_py import Consumer
servers, topic, coordination, group, interval_ms, path = sys.argv[1:]
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with Consumer(servers, group_id=group, client_id="victim", topics=topic, topic=coordination,
              sharing="ranges", interval_ms=int(interval_ms)) as consumer:
    for message in consumer:
        os.write(file, b"%d\\n" % message.offset())
        time.sleep(0.005)
"""


def killed(
    kafka: EmbeddedKafka, coordination: str, folder: Path, count: int, interval_ms: int
) -> Killed:
    """Kill one of two members, which is a process, amid its work; see what the other one gets.

    Raises `RuntimeError` if a message is lost.
    """
    topic, group = kafka.create_topic(partitions=1), f"killed-{next(_groups)}"
    fill(kafka, topic, count)
    begun: dict[int, float] = {}
    held: set[int] = set()
    all_begun, heard = threading.Event(), [0]
    path = folder / group
    path.touch()

    def victims() -> set[int]:
        return set(map(int, path.read_bytes().rpartition(b"\n")[0].split()))

    with Consumer(
        kafka.bootstrap_servers,
        group_id=group,
        client_id="heir",
        topics=topic,
        topic=coordination,
        sharing="ranges",
        interval_ms=interval_ms,
    ) as heir:
        marshal = heir.marshal

        def note(_: int, events: list[Event]) -> None:
            for event in events:
                if isinstance(event, Beat | Claimed) and event.client_id == "victim":
                    heard[0] = event.offset

        def work() -> None:
            for message in heir:
                begun.setdefault(offset_of(message), time.time())
                if held and held <= begun.keys():
                    all_begun.set()
                time.sleep(WORK_S)

        marshal.listen(note)
        arguments = [kafka.bootstrap_servers, topic, coordination, group, str(interval_ms)]
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, *arguments, str(path)])
        _wait(lambda: len(victims()) > 50)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        _wait(lambda: len(begun) > 50)
        victim.kill()
        victim.wait()
        time.sleep(interval_ms / 1_000)  # what it sent last is read; nobody takes over so soon
        with marshal.world() as world:
            found = world.group(group)
            assert found is not None
            for each in found.open_ranges.of((topic, 0)):
                cell = found.cells[each.cell]
                if cell.holder == "victim":
                    held.update(range(cell.position, min(each.end, count)))
            home = world.home(group)
        if not held:
            raise RuntimeError("the victim held nothing")
        if held <= begun.keys():
            all_begun.set()
        if not all_begun.wait(PATIENCE_S):
            raise RuntimeError("what the victim held was never begun elsewhere")
        _wait(lambda: len(victims() | begun.keys()) == count)
        stamped = driver_of(marshal).observers[home].stamped
        last_ms = stamped.at(heard[0])
    assert last_ms is not None
    times = sorted(begun[offset] for offset in held)
    interval_s = interval_ms / 1_000
    return Killed(
        (times[0] - last_ms / 1_000) / interval_s,
        (times[-1] - last_ms / 1_000) / interval_s,
        len(held),
        len(victims() & begun.keys()),
    )


def takeover(
    kafka: EmbeddedKafka, coordination: str, interval_ms: int, repeats: int
) -> list[Figure]:
    """Kill members of two, so many times."""
    count = 500 + interval_ms // 2  # the heir has enough to do until it takes over
    with tempfile.TemporaryDirectory() as folder:
        ends = [
            killed(kafka, coordination, Path(folder), count, interval_ms) for _ in range(repeats)
        ]
    first, last = median(end.first for end in ends), median(end.last for end in ends)
    killed_one = f"ranges, a member killed, interval {interval_ms} ms"
    return [
        Figure(
            f"{killed_one}: begun elsewhere",
            first,
            "intervals",
            None,
            "2 to 2.5",
            2 <= first <= 2.5,
        ),
        Figure(
            f"{killed_one}: the last of its messages",
            last,
            "intervals",
            None,
            "2 to 2.5",
            2 <= last <= 2.5,
        ),
        Figure(
            f"{killed_one}: repeats, worst",
            max(end.repeated for end in ends),
            "messages",
            max(end.in_flight for end in ends),
            "≤ what was in flight",
            all(end.repeated <= end.in_flight for end in ends),
        ),
    ]


def by_share_group(kafka: EmbeddedKafka, members: int, count: int) -> float:
    """The same with Kafka's share groups."""
    topic, group = kafka.create_topic(partitions=1), f"share-{next(_groups)}"
    _from_the_start(kafka, group)
    tally, stop = Tally(count), threading.Event()

    def work() -> None:
        consumer = confluent_kafka.ShareConsumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            for _ in _batch(consumer.poll(timeout=0.2)):
                tally.begin()
                time.sleep(WORK_S)
                tally.end()
        consumer.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(members)]
    for thread in threads:
        thread.start()
    time.sleep(JOIN_S)
    fill(kafka, topic, count)
    try:
        return tally.rate()
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


def _batch(found: Any) -> Iterator[Any]:
    for message in found or ():
        if message.error() is None:
            yield message


def _from_the_start(kafka: EmbeddedKafka, group: str) -> None:
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() >= deadline:
            raise RuntimeError("the members did not share evenly")
        time.sleep(0.02)


def bare_shared(
    kafka: EmbeddedKafka, coordination: str, sharing: Sharing, topic: str, count: int
) -> tuple[float, float]:
    """One member, whose loop does nothing: its rate, and the log's records per 1,000 messages."""
    with Consumer(
        kafka.bootstrap_servers,
        group_id=f"bare-{next(_groups)}",
        topics=topic,
        topic=coordination,
        sharing=sharing,
        slots=SLOTS,
        kafka=FETCH,
    ) as consumer:
        found = pace(consumer, count - 1).rate
        with consumer.marshal.world() as world:
            group_id = consumer.marshal.group_id
            written = world.states[world.home(group_id)].next_offset
    return found, written


def bare_by_share_group(kafka: EmbeddedKafka, topic: str, count: int) -> float:
    """One member of a share group, whose loop does nothing."""
    group, taken, first_s = f"share-{next(_groups)}", 0, 0.0
    _from_the_start(kafka, group)
    consumer = confluent_kafka.ShareConsumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    )
    consumer.subscribe([topic])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while taken < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"a share group gave {taken} of {count} messages")
            for _ in _batch(consumer.poll(timeout=0.2)):
                first_s = first_s or time.perf_counter()
                taken += 1
        return taken / (time.perf_counter() - first_s)
    finally:
        consumer.close()


def measure(options: Options) -> list[Figure]:
    count, many = (400, 60_000) if options.quick else (4_000, 400_000)
    crowd = (1, 4) if options.quick else (1, 2, 4, 8)
    figures = []
    has_share_groups = hasattr(confluent_kafka, "ShareConsumer")
    with EmbeddedKafka(version=KAFKA, properties=PROPERTIES) as kafka:
        coordination = new_topic(kafka, 1)
        for members in crowd:
            linear = members / WORK_S
            for sharing in SHARINGS:
                found = [
                    shared(kafka, coordination, sharing, members, count)
                    for _ in range(options.repeats)
                ]
                value = median(found)
                say(f"{sharing}, {members} members, 5 ms: {value:,.0f} of {linear:,.0f}")
                figures.append(
                    Figure(
                        f"{sharing}, {members} member{'s' * (members > 1)}, 5 ms",
                        value,
                        "messages/s",
                        linear,
                        "≥ 0.9 of linear",
                        value >= 0.9 * linear,
                    )
                )
            if has_share_groups:
                try:
                    value = by_share_group(kafka, members, count)
                except Exception as error:
                    say(f"share groups were not measured: {error}")
                    has_share_groups = False
                else:
                    figures.append(
                        Figure(f"share group, {members} members, 5 ms", value, "messages/s", linear)
                    )
        topic = kafka.create_topic(partitions=1)
        fill(kafka, topic, many)
        bare(kafka, topic, 1, many - 1)  # into the page cache
        rates: dict[str, list[float]] = {"bare": [], "keys": [], "ranges": [], "share group": []}
        written: list[float] = []
        for _ in range(options.repeats):
            rates["bare"].append(bare(kafka, topic, 1, many - 1).rate)
            for sharing in SHARINGS:
                log = new_topic(kafka, 1)
                found_rate, records = bare_shared(kafka, log, sharing, topic, many)
                rates[sharing].append(found_rate)
                if sharing == "ranges":
                    written.append(records / many * 1_000)
            if has_share_groups:
                rates["share group"].append(bare_by_share_group(kafka, topic, many))
        baseline = median(rates["bare"])
        for sharing, least in (("keys", 0.6), ("ranges", 0.5)):
            value = median(rates[sharing])
            figures.append(
                Figure(
                    f"{sharing}, 1 member, 0 ms",
                    value,
                    "messages/s",
                    baseline,
                    f"≥ {least} of a bare loop",
                    value >= least * baseline,
                )
            )
        if rates["share group"]:
            value, theirs = median(rates["ranges"]), median(rates["share group"])
            figures.append(
                Figure(
                    "ranges, 1 member, 0 ms, beside a share group",
                    value,
                    "messages/s",
                    theirs,
                    "≥ 1.3 of a share group",
                    value >= 1.3 * theirs,
                )
            )
        value = median(written)
        figures.append(
            Figure("ranges, records of the log", value, "/1,000 messages", None, "≤ 4", value <= 4)
        )
        waits = arrivals(kafka, coordination, 50 if options.quick else 400)
        for name, at, most in (("p50", 0.5, 3.0), ("p99", 0.99, 15.0)):
            value = waits[min(len(waits) - 1, int(len(waits) * at))]
            figures.append(
                Figure(
                    f"ranges, idle, arrival to begin, {name}",
                    value,
                    "ms",
                    None,
                    f"≤ {most:g} ms",
                    value <= most,
                )
            )
        for interval_ms in INTERVALS_MS:
            figures += takeover(kafka, coordination, interval_ms, options.repeats)
        slow = [beside_a_slow_one(kafka, coordination) for _ in range(options.repeats)]
        value = median(slow)
        figures.append(
            Figure("ranges, beside a message of 1 s", value, "ms", None, "≤ 50 ms", value <= 50)
        )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)

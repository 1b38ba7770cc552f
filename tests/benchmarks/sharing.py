"""Several members on one partition: by keys, beside Kafka's share groups and a bare loop.

One partition, messages of 1 KB, each of a key of its own. With handlers of 5 ms, linear is what so
many members would do if each had a partition. Members are threads, each with its own consumer.
Share groups are measured in the same run where confluent-kafka and the brokers know them.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

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
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic, produce_all
from tests.benchmarks.consumer import FETCH, bare, rate
from tests.benchmarks.harness import Figure, Options, median, run, say

KAFKA = "4.2.0"
"""The first version that has share groups without further ado."""

PROPERTIES = {
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}
WORK_S = 0.005
SLOTS = 16
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


def by_keys(kafka: EmbeddedKafka, coordination: str, members: int, count: int) -> float:
    """Messages a second, from the first that is begun to the last that is done."""
    topic, group = kafka.create_topic(partitions=1), f"keys-{next(_groups)}"
    tally = Tally(count)
    consumers = [
        Consumer(
            kafka.bootstrap_servers,
            group_id=group,
            client_id=f"m{n}",
            topics=topic,
            topic=coordination,
            sharing="keys",
            slots=SLOTS,
        )
        for n in range(members)
    ]

    def work(consumer: Consumer) -> None:
        for _ in consumer:
            tally.begin()
            time.sleep(WORK_S)
            tally.end()

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in consumers]
    for thread in threads:
        thread.start()
    _wait(lambda: all(len(each.claims()) == SLOTS // members for each in consumers))
    fill(kafka, topic, count)
    try:
        return tally.rate()
    finally:
        for each in consumers:
            each.close(timeout_s=1)


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


def bare_by_keys(kafka: EmbeddedKafka, coordination: str, topic: str, count: int) -> float:
    """One member that holds all slots, whose loop does nothing."""
    with Consumer(
        kafka.bootstrap_servers,
        group_id=f"bare-{next(_groups)}",
        topics=topic,
        topic=coordination,
        sharing="keys",
        slots=SLOTS,
        kafka=FETCH,
    ) as consumer:
        return rate(consumer, count)


def measure(options: Options) -> list[Figure]:
    count, many = (400, 60_000) if options.quick else (4_000, 400_000)
    crowd = (1, 4) if options.quick else (1, 2, 4, 8)
    figures = []
    has_share_groups = hasattr(confluent_kafka, "ShareConsumer")
    with EmbeddedKafka(version=KAFKA, properties=PROPERTIES) as kafka:
        coordination = new_topic(kafka, 1)
        for members in crowd:
            found = [by_keys(kafka, coordination, members, count) for _ in range(options.repeats)]
            linear = members / WORK_S
            value = median(found)
            say(f"keys, {members} members, 5 ms: {value:,.0f} of {linear:,.0f}")
            figures.append(
                Figure(
                    f"keys, {members} member{'s' * (members > 1)}, 5 ms",
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
        bare(kafka, topic, 1, many)  # into the page cache
        rates: dict[str, list[float]] = {"bare": [], "keys": []}
        for _ in range(options.repeats):
            rates["bare"].append(bare(kafka, topic, 1, many))
            rates["keys"].append(bare_by_keys(kafka, coordination, topic, many))
        value, baseline = median(rates["keys"]), median(rates["bare"])
        figures.append(
            Figure(
                "keys, 1 member, 0 ms",
                value,
                "messages/s",
                baseline,
                "≥ 0.6 of a bare loop",
                value >= 0.6 * baseline,
            )
        )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)

"""`Consumer.run` with 5 ms handlers, 10,000 messages of 1,000 keys on one partition.

The ideal is what perfect workers would take: messages x 5 ms / workers. The clock runs from the
first handler's start to the last one's end; order within each key is checked. For asyncio the
baseline is what as many bare tasks with the same sleeps take in the same run: its timers, and one
thread, are slower than that ideal by themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from marshal_py import Consumer
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say

HANDLER_S = 0.005
KEYS = 1_000

_groups = itertools.count()


def fill(kafka: EmbeddedKafka, count: int) -> str:
    """Create a topic of one partition: message n has key n % KEYS."""
    topic = kafka.create_topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    for n in range(count):
        producer.produce(topic, b"x" * 100, key=str(n % KEYS), partition=0)
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("the topic could not be filled")
    return topic


class Clock:
    """Notes when the first handler began and the last one ended, and the order in each key."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.done = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.offsets: dict[bytes, list[int]] = defaultdict(list)
        self.consumer: Consumer | None = None

    def begin(self) -> None:
        if not self.first_s:
            self.first_s = time.perf_counter()

    def end(self, message: Any) -> None:
        self.offsets[message.key()].append(message.offset())
        self.done += 1
        if self.done >= self.count and self.consumer is not None:
            self.last_s = time.perf_counter()
            self.consumer.stop()

    @property
    def seconds(self) -> float:
        if any(offsets != sorted(offsets) for offsets in self.offsets.values()):
            raise RuntimeError("some key's messages came out of order")
        return self.last_s - self.first_s


def in_threads(clock: Clock) -> Callable[..., Any]:
    def handle(message: Any) -> None:
        clock.begin()
        time.sleep(HANDLER_S)
        clock.end(message)

    return handle


def in_tasks(clock: Clock) -> Callable[..., Any]:
    async def handle(message: Any) -> None:
        clock.begin()
        await asyncio.sleep(HANDLER_S)
        clock.end(message)

    return handle


def ours(
    kafka: EmbeddedKafka,
    coordination: str,
    topic: str,
    count: int,
    workers: int,
    make: Callable[[Clock], Callable[..., Any]],
) -> float:
    """Return the seconds of one run."""
    clock = Clock(count)
    clock.consumer = Consumer(
        kafka.bootstrap_servers,
        group_id=f"bench-{next(_groups)}",
        topics=topic,
        topic=coordination,
    )
    clock.consumer.run(make(clock), workers=workers, ordering="key")
    return clock.seconds


def bare_tasks(count: int, workers: int) -> float:
    """Return the seconds that as many tasks take for the same sleeps, without any messages."""

    async def work() -> None:
        for _ in range(count // workers):
            await asyncio.sleep(HANDLER_S)

    async def main() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(workers)))
        return time.perf_counter() - started

    return asyncio.run(main())


def measure(options: Options) -> list[Figure]:
    count = 1_000 if options.quick else 10_000
    figures = []
    with EmbeddedKafka() as kafka:
        coordination = new_topic(kafka)
        topic = fill(kafka, count)
        for name, workers, make in (
            ("threads", 16, in_threads),
            ("threads", 64, in_threads),
            ("asyncio", 64, in_tasks),
        ):
            seconds: list[float] = []
            bare: list[float] = []
            for _ in range(options.repeats):
                seconds.append(ours(kafka, coordination, topic, count, workers, make))
                bare.append(bare_tasks(count, workers))
                say(f"{workers} {name}: {seconds[-1]:.2f} s; bare tasks: {bare[-1]:.2f} s")
            value = median(seconds)
            ideal = median(bare) if name == "asyncio" else count * HANDLER_S / workers
            figures.append(
                Figure(
                    f"{workers} {name}, 5 ms handlers",
                    value,
                    "s",
                    ideal,
                    "≤ 1.3 of " + ("bare tasks" if name == "asyncio" else "the ideal"),
                    value <= 1.3 * ideal,
                )
            )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)

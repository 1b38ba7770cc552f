"""How fast the coordination log is replayed, and how long a start takes on a long log."""

from __future__ import annotations

import itertools
import time

from confluent_kafka import Consumer, TopicPartition

from marshal_py.client.log_reader import LogReader
from marshal_py.client.log_writer import LogWriter
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import append_all, fill_with_heartbeats, new_topic
from tests.benchmarks._synthetic_group import group_of
from tests.benchmarks.harness import Figure, Options, median, run, say

PARTITIONS = 8


def replay(kafka: EmbeddedKafka, topic: str) -> tuple[float, LogReader]:
    reader = LogReader(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
    )
    started = time.perf_counter()
    reader.open(30)
    reader.replay()
    return time.perf_counter() - started, reader


def bare_consume_s(kafka: EmbeddedKafka, topic: str, count: int) -> float:
    """A `consume(1000)` loop that looks at nothing but errors, with the reader's fetch settings."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "queued.min.messages": 300_000,
            "fetch.queue.backoff.ms": 5,
        }
    )
    started = time.perf_counter()
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    got = 0
    while got < count:
        for message in consumer.consume(1_000, 0.05):
            if message.error() is None:
                got += 1
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


def write_snapshots(kafka: EmbeddedKafka, topic: str) -> None:
    _, reader = replay(kafka, topic)
    writer = LogWriter(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        timeout_ms=30_000,
    )
    for p in range(PARTITIONS):
        due = reader.snapshot_now(p)
        assert due is not None
        writer.write_snapshot(due, PARTITIONS, "benchmark")
    writer.flush(30)
    reader.close()


def replay_of_holders(
    kafka: EmbeddedKafka, count: int, options: Options, *, moving: bool
) -> Figure:
    """Replay heartbeats of 100 clients that hold 100 cells each."""
    group, topic = group_of(100, 10_000, partitions=PARTITIONS), new_topic(kafka, PARTITIONS)
    turns = range(count // group.clients)
    beats = (group.interval(turn, moving=moving) for turn in turns)
    what = "all moving" if moving else "at rest"
    say(f"writing {count:,} heartbeats of holders of 100 cells, {what}")
    records = itertools.chain(group.opening(), itertools.chain.from_iterable(beats))
    append_all(kafka, topic, group.home, records, together=True)
    rates, bare = [], []
    for repeat in range(options.repeats + 1):  # the first one warms the page cache
        seconds, reader = replay(kafka, topic)
        total = reader.replayed
        reader.close()
        bare_s = bare_consume_s(kafka, topic, total)
        if repeat:
            rates.append(total / seconds)
            bare.append(total / bare_s)
    rate, target = median(rates), 0.3 * median(bare)
    name = f"replay of heartbeats of holders of 100 cells, {what}"
    return Figure(name, rate, "records/s", median(bare), "ratio ≥ 0.3", rate >= target)


def measure(options: Options) -> list[Figure]:
    count = 50_000 if options.quick else 500_000
    long = 200_000 if options.quick else 5_000_000
    with EmbeddedKafka() as kafka:
        topic = new_topic(kafka, PARTITIONS)
        say(f"writing {count:,} heartbeats")
        fill_with_heartbeats(kafka, topic, count, partitions=PARTITIONS)
        rates, bare = [], []
        for repeat in range(options.repeats + 1):  # the first one warms the page cache
            say(f"replay {repeat} of {options.repeats}")
            seconds, reader = replay(kafka, topic)
            assert reader.replayed == count + 1_000
            reader.close()
            bare_s = bare_consume_s(kafka, topic, count + 1_000)
            if repeat:
                rates.append((count + 1_000) / seconds)
                bare.append((count + 1_000) / bare_s)

        holders = [
            replay_of_holders(kafka, count // 5 if moving else count, options, moving=moving)
            for moving in (False, True)
        ]
        empty = new_topic(kafka, PARTITIONS)
        topic = new_topic(kafka, PARTITIONS)
        say(f"writing {long:,} heartbeats")
        fill_with_heartbeats(kafka, topic, long, partitions=PARTITIONS)
        write_snapshots(kafka, topic)
        extra, on_empty = [], []
        for _ in range(options.repeats):
            empty_s, reader = replay(kafka, empty)
            reader.close()
            seconds, reader = replay(kafka, topic)
            assert reader.replayed < long / 10
            reader.close()
            extra.append(seconds - empty_s)
            on_empty.append(empty_s)
    return [
        Figure(
            "replay of single-claim heartbeats",
            median(rates),
            "records/s",
            median(bare),
            "ratio ≥ 0.35",
            median(rates) >= 0.35 * median(bare),
        ),
        *holders,
        Figure(
            f"start on {long:,} records with snapshots, beyond an empty log",
            median(extra),
            "s",
            median(on_empty),
            "≤ 1.5 s",
            median(extra) <= 1.5,
        ),
    ]


if __name__ == "__main__":
    run(measure, __doc__)

"""How long a claim takes: one round trip, 64 at once, and from process start to the first one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from marshal_py import Marshal
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import fill_with_heartbeats, new_topic
from tests.benchmarks.harness import Figure, Options, compiled, median, percentile, run, say

CHILD = """
from marshal_py import Marshal
with Marshal({servers!r}, group_id="g", client_id="child-{n}", topic={topic!r}) as m:
    m.claim("start", {n})
    print("held", flush=True)
"""


def bare_round_trip_ms(kafka: EmbeddedKafka, count: int) -> list[float]:
    """Produce one record (acks=all) and fetch it, with confluent-kafka alone."""
    topic = kafka.create_topic(partitions=1)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
    )
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "bare"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    times = []
    for _ in range(count + 10):
        started = time.perf_counter()
        producer.produce(topic, b"x" * 100)
        while consumer.poll(0.1) is None:
            pass
        times.append((time.perf_counter() - started) * 1_000)
        producer.poll(0)
    consumer.close()
    return times[10:]


def start_to_first_claim_s(
    kafka: EmbeddedKafka, topic: str, n: int, environment: dict[str, str]
) -> float:
    code = CHILD.format(servers=kafka.bootstrap_servers, topic=topic, n=n)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = time.perf_counter() - started
    process.wait(30)
    if line != "held\n":
        raise RuntimeError("the child did not get its claim")
    return seconds


def measure(options: Options) -> list[Figure]:
    count = 50 if options.quick else 400
    with EmbeddedKafka() as kafka:
        topic = new_topic(kafka)
        with Marshal(kafka.bootstrap_servers, group_id="g", client_id="a", topic=topic) as m:
            p50, p99, bare50, bare99, many = [], [], [], [], []
            for repeat in range(options.repeats):
                say(f"claims, repeat {repeat + 1} of {options.repeats}")
                bare = bare_round_trip_ms(kafka, count)
                bare50.append(percentile(bare, 50))
                bare99.append(percentile(bare, 99))
                times = []
                for n in range(count):
                    started = time.perf_counter()
                    claim = m.claim(f"one-{repeat}", n)
                    times.append((time.perf_counter() - started) * 1_000)
                    claim.release(wait=False)
                p50.append(percentile(times, 50))
                p99.append(percentile(times, 99))
                started = time.perf_counter()
                m.claim_many([(f"many-{repeat}", n) for n in range(64)])
                many.append(time.perf_counter() - started)
        say("process start to first claim, on a topic of 10,000 records")
        fill_with_heartbeats(kafka, topic, 10_000)
        with tempfile.TemporaryDirectory() as folder:
            environment = compiled(Path(folder))  # by the first start, which does not count
            starts = [
                start_to_first_claim_s(kafka, topic, n, environment)
                for n in range(options.repeats + 1)
            ][1:]
        python = []
        for _ in starts:
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import confluent_kafka"], check=True)
            python.append(time.perf_counter() - started)
    return [
        Figure(
            "claim round trip, p50",
            median(p50),
            "ms",
            median(bare50),
            "≤ 5 ms",
            median(p50) <= 5,
        ),
        Figure(
            "claim round trip, p99",
            median(p99),
            "ms",
            median(bare99),
            "≤ 25 ms",
            median(p99) <= 25,
        ),
        Figure("64 claims at once", median(many), "s", None, "≤ 0.6 s", median(many) <= 0.6),
        Figure(
            "process start to first claim",
            median(starts),
            "s",
            median(python),
            "≤ 0.4 s",
            median(starts) <= 0.4,
        ),
    ]


if __name__ == "__main__":
    run(measure, __doc__)

"""Commands that read a large log: time, processor time and memory of the process, output to a file.

- a log of 100,000 claims of 100 clients: `claims`, `claims --json`, `status`
- a log of 1,000,000 records, nearly all of them heartbeats that move ten positions: `verify`,
  `tail --since`, `status`, `claims`

The baseline is a bare `consume(1000)` loop over the same topic, in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks import harness
from tests.benchmarks._servers import append_all, new_topic
from tests.benchmarks._synthetic_group import group_of
from tests.benchmarks.harness import Figure, Options, median, say

BARE: Final = """
import sys
from confluent_kafka import Consumer, TopicPartition
servers, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": "bare", "enable.auto.commit": False,
                     "fetch.queue.backoff.ms": 1, "enable.partition.eof": False})
ends = {}
for p in consumer.list_topics(topic).topics[topic].partitions:
    _, ends[p] = consumer.get_watermark_offsets(TopicPartition(topic, p))
consumer.assign([TopicPartition(topic, p, 0) for p in ends])
left = sum(ends.values())
while left:
    left -= len(consumer.consume(1000, 1.0))
"""


LAUNCH: Final = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(sys.argv[1:])
seconds = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]), file=sys.stderr)
sys.exit(code)
"""
"""A small process in between: until its `exec`, a child counts as large as its parent, and this one
is large when it has filled a log."""


class Run(NamedTuple):
    """What one process took."""

    seconds: float
    cpu_s: float
    peak_mb: float


def run(folder: Path, command: Sequence[str], **environment: str) -> Run:
    """Run a command to its end, and look at what the kernel counted of it."""
    given = harness.compiled(folder) | environment
    launched = [sys.executable, "-I", "-S", "-c", LAUNCH, *command]
    with (folder / "out").open("wb") as out:
        process = subprocess.run(
            launched, stdout=out, stderr=subprocess.PIPE, env=given, text=True, check=False
        )
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {process.stderr}")
    return Run(*json.loads(process.stderr.splitlines()[-1]))


def measure(options: Options) -> list[Figure]:
    """Measure everything here."""
    claims, records = (5_000, 20_000) if options.quick else (100_000, 1_000_000)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as at:
        folder = Path(at)

        def figures_of(log: str, topic: str, wanted: dict[tuple[str, ...], float]) -> list[Figure]:
            log_is = {"MARSHAL_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "MARSHAL_TOPIC": topic}
            bare = [sys.executable, "-c", BARE, kafka.bootstrap_servers, topic]
            found: list[Figure] = []
            marshal = [sys.executable, "-m", "marshal_py.cli"]
            taken: dict[tuple[str, ...], list[Run]] = {command: [] for command in wanted}
            bares = [run(folder, bare).seconds for _ in range(options.repeats + 1)][1:]
            for turn in range(options.repeats + 1):  # the first warms up, and is not counted
                for command, runs in taken.items():
                    took = run(folder, [*marshal, *command], **log_is)
                    if turn:
                        runs.append(took)
            for command, most_s in wanted.items():
                name = f"{' '.join(command)}, {log}"
                seconds = median(r.seconds for r in taken[command])
                peak_mb = median(r.peak_mb for r in taken[command])
                cpu_s = median(r.cpu_s for r in taken[command])
                say(f"{name}: {seconds:.2f} s, {cpu_s:.2f} s of a processor, {peak_mb:.0f} MB")
                found += [
                    Figure(name, seconds, "s", median(bares), f"≤ {most_s:g}", seconds <= most_s),
                    Figure(f"{name}, processor", cpu_s, "s"),
                    Figure(f"{name}, memory", peak_mb, "MB", None, "≤ 200", peak_mb <= 200),
                ]
            return found

        many = new_topic(kafka)
        group = group_of(100, claims)
        append_all(kafka, many, group.home, group.opening(), together=True)
        beats = itertools.chain.from_iterable(group.interval(t, moving=False) for t in range(3))
        append_all(kafka, many, group.home, beats, together=True)
        result = figures_of(
            f"{claims:,} claims",
            many,
            {("claims",): 5, ("claims", "--json"): 5, ("status",): 5},
        )
        long = new_topic(kafka)
        group = group_of(100, 1_000)
        append_all(kafka, long, group.home, group.opening(), together=True)
        turns = range((records - 1_101) // 100)
        beats = itertools.chain.from_iterable(group.interval(t, moving=True) for t in turns)
        append_all(kafka, long, group.home, beats, together=True)
        return result + figures_of(
            f"{records:,} records",
            long,
            {
                ("verify",): 15,
                ("status",): 15,
                ("claims",): 15,
                ("tail", "--since", "1d"): 15,
            },
        )


if __name__ == "__main__":
    harness.run(measure, __doc__)

"""One idle process, for `idle`: it is given a kind, the brokers, a topic and seconds.

Prints one line of JSON: the share of a core, the threads, and the fetches per second (which are
counted in a run of their own, as librdkafka's statistics cost something themselves).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka

from marshal_py import Consumer, Marshal
from marshal_py.client import log_reader
from marshal_py.consumer import fetcher

DATA = "idle-data"
SETTLE_S = 3.0
INTERVAL_MS = 5_000


class Fetches:
    """Counts the fetch requests of all Kafka consumers that are made after `watch`."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    @property
    def total(self) -> int:
        return sum(self._count.values())

    def watch(self) -> None:
        """Have the consumers of this process report their requests."""

        def with_statistics(config: dict[str, Any], **rest: Any) -> Any:
            extra = {"statistics.interval.ms": 200, "stats_cb": self._note}
            return confluent_kafka.Consumer({**config, **extra}, **rest)

        for module, name in ((log_reader, "Consumer"), (fetcher, "KafkaConsumer")):
            setattr(module, name, with_statistics)

    def _note(self, text: str) -> None:
        told = json.loads(text)
        brokers = told["brokers"].values()
        self._count[told["name"]] = sum(broker["req"].get("Fetch", 0) for broker in brokers)


@contextlib.contextmanager
def started(kind: str, servers: str, topic: str) -> Iterator[None]:
    """Run what is measured, idle, during the block."""
    settings: dict[str, Any] = {"topic": topic, "interval_ms": INTERVAL_MS}
    if kind == "client":
        with Marshal(servers, group_id="idle", **settings) as marshal:
            marshal.claim("anything", 0, timeout_s=30)
            yield
    elif kind == "iterating consumer":
        with Consumer(servers, group_id="idle-loop", topics=[DATA], **settings) as consumer:
            threading.Thread(target=lambda: list(consumer), daemon=True).start()
            time.sleep(SETTLE_S)
            yield
    elif kind == "running consumer":
        with Consumer(servers, group_id="idle-run", topics=[DATA], **settings) as consumer:
            threading.Thread(target=lambda: consumer.run(lambda _: None), daemon=True).start()
            time.sleep(SETTLE_S)
            yield
            consumer.stop()
    else:  # what a bare consumer of confluent-kafka costs
        bare = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bare"})
        bare.assign([confluent_kafka.TopicPartition(DATA, 0)])
        threading.Thread(target=lambda: [bare.poll(1.0) for _ in range(10**6)], daemon=True).start()
        time.sleep(SETTLE_S)
        yield


def by_thread() -> Counter[str]:
    """Processor time by the name of the thread, in ticks."""
    used: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name, fields = (task / "stat").read_text().rsplit(")", 1)
            times = fields.split()
            used[f"{name.split('(', 1)[1]} {task.name}"] = int(times[11]) + int(times[12])
    return used


def main() -> None:
    kind, servers, topic, seconds = *sys.argv[1:4], float(sys.argv[4])
    fetches = Fetches()
    if "--fetches" in sys.argv:
        fetches.watch()
    with started(kind, servers, topic):
        time.sleep(SETTLE_S)
        cpu, wall, before, threads = (
            time.process_time(),
            time.monotonic(),
            fetches.total,
            by_thread(),
        )
        time.sleep(seconds)  # the measured time itself
        passed = time.monotonic() - wall
        share = (time.process_time() - cpu) / passed
        per_s = (fetches.total - before) / passed
        count = len(os.listdir("/proc/self/task"))
        if "--by-thread" in sys.argv:
            print((by_thread() - threads).most_common(12), file=sys.stderr)
        print(json.dumps({"share": share, "fetches": per_s, "threads": count}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

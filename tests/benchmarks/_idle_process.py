"""One idle process, for `idle`: it is given a kind, the brokers, a topic and seconds.

Prints one line of JSON: the share of a core, the threads, and the fetches per second (which are
counted in a run of their own, as librdkafka's statistics cost something themselves). A loop runs in
the main thread, as a program's does; the thread that measures is not counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from marshal_py import Consumer, Marshal
from marshal_py.client import log_reader
from marshal_py.consumer import fetcher

DATA = "idle-data"
SETTLE_S = 8.0
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


def idle(kind: str, servers: str, topic: str) -> None:
    """Run what is measured, idle, without end."""
    settings: dict[str, Any] = {"topic": topic, "interval_ms": INTERVAL_MS}
    if kind == "client":
        with Marshal(servers, group_id="idle", **settings) as marshal:
            marshal.claim("anything", 0, timeout_s=30)
            threading.Event().wait()
    elif kind == "iterating consumer":
        with Consumer(servers, group_id="idle-loop", topics=[DATA], **settings) as consumer:
            list(consumer)
    elif kind == "running consumer":
        Consumer(servers, group_id="idle-run", topics=[DATA], **settings).run(lambda _: None)
    elif kind == "bare consumer":
        bare_consumer(servers, topic=DATA)
    else:  # what a consumer of ours consists of, as confluent-kafka comes
        producer = confluent_kafka.Producer({"bootstrap.servers": servers})
        producer.list_topics(topic)
        admin = AdminClient({"bootstrap.servers": servers})
        admin.list_topics(topic)
        log = threading.Thread(target=bare_consumer, args=(servers, topic), daemon=True)
        log.start()
        bare_consumer(servers, topic=DATA)


def bare_consumer(servers: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bare"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0)])
    while True:
        consumer.poll(1.0)


def by_thread() -> Counter[str]:
    """Processor time by the name of the thread, in nanoseconds."""
    used: Counter[str] = Counter()
    python = {each.native_id: each.name for each in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = python.get(int(task.name)) or (task / "comm").read_text().strip()
            used[f"{name} {task.name}"] = int((task / "schedstat").read_text().split()[0])
    return used


def measure(seconds: float, fetches: Fetches) -> None:
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
    count = len(os.listdir("/proc/self/task")) - 1
    if "--by-thread" in sys.argv:
        for name, ns in (by_thread() - threads).most_common():
            print(f"{ns / passed / 1e7:.3f} % {name}", file=sys.stderr)
    print(json.dumps({"share": share, "fetches": per_s, "threads": count}), flush=True)
    os._exit(0)


def main() -> None:
    kind, servers, topic, seconds = *sys.argv[1:4], float(sys.argv[4])
    fetches = Fetches()
    if "--fetches" in sys.argv:
        fetches.watch()
    threading.Thread(target=measure, args=(seconds, fetches), daemon=True).start()
    idle(kind, servers, topic)


if __name__ == "__main__":
    main()

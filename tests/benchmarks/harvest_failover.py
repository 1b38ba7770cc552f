"""How long nothing is published when the leader dies or stalls, and what comes twice or never."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.benchmarks.harness import Figure, Options, median, run, say
from tests.benchmarks.harvest_latency import child, output_of
from tests.support.messages import value_of

PARTITIONS = 3
INTERVAL_S = 1.0
RATE = 750
STORES = {"mark": PostgresMarkStore, "range": PostgresRangeStore, "wal": PostgresWalSource}
_WAIT_S = 60.0
_SETTLE_S = 2.0


@dataclass(frozen=True)
class Outcome:
    """What a reader saw of one failure."""

    gap_s: float
    duplicates: int
    lost: int
    reordered: int


@dataclass
class Reader:
    """Reads committed records as they come; knows when each came, and what came before it."""

    servers: str
    topic: str
    came: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    last_of: dict[bytes, int] = field(default_factory=dict)
    reordered: int = 0
    last_s: float = 0.0
    longest_s: float = 0.0
    stopping: bool = False

    def start(self) -> threading.Thread:
        """Read in a thread, from the start of the topic."""
        thread = threading.Thread(target=self.run)
        thread.start()
        return thread

    def run(self) -> None:
        settings = {"enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "failover", **settings})
        consumer.assign([TopicPartition(self.topic, p, 0) for p in range(PARTITIONS)])
        while not self.stopping:
            for message in consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    self.take(message.key() or b"", int(value_of(message).partition(b"|")[0]))
        consumer.close()

    def take(self, key: bytes, stamp: int) -> None:
        now_s = time.monotonic()
        if self.last_s:
            self.longest_s = max(self.longest_s, now_s - self.last_s)
        self.last_s = now_s
        self.came[stamp] += 1
        if self.came[stamp] == 1:
            self.reordered += stamp < self.last_of.get(key, 0)
            self.last_of[key] = stamp

    def wait(self, more: int) -> None:
        """Until so many more distinct records have come."""
        wanted, deadline = len(self.came) + more, time.monotonic() + _WAIT_S
        while len(self.came) < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError("nothing is published any more")
            time.sleep(0.01)


class Harvesters:
    """Processes of one outbox; one leads."""

    def __init__(self, folder: Path, config: str) -> None:
        self._folder = folder
        self._file = folder / "reaper.yaml"
        self._file.write_text(config)
        self._made: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """One more, which stands by or leads when this returns."""
        log = self._folder / f"{len(self._made)}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "harvest.cli", "reap", "-c", str(self._file)], stderr=stream
            )
        self._made.append((process, log))
        deadline = time.monotonic() + _WAIT_S
        while "standing by" not in log.read_text():
            if time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.02)
        return process

    def close(self) -> None:
        for process, _ in self._made:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(_WAIT_S)


def fail(
    kafka: EmbeddedKafka, postgres: EmbeddedPostgres, mode: str, delivery: str, what: str
) -> Outcome:
    """One failure of the leader in the middle of the work."""
    database = postgres.create_database()
    topic = kafka.create_topic(partitions=PARTITIONS)
    store = STORES[mode](database, "outbox")
    store.init()
    if not isinstance(store, PostgresWalSource):
        store.install_notify()
    store.close()
    reader = Reader(kafka.bootstrap_servers, topic)
    with tempfile.TemporaryDirectory() as folder:
        harvesters = Harvesters(
            Path(folder),
            f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
            f"database: {database}\ngroup: {topic}\nmode: {mode}\ndelivery: {delivery}\n"
            f"coordination: {{topic: {topic}.marshal, create_topics: true, "
            f"interval_ms: {INTERVAL_S * 1000:.0f}}}\n",
        )
        reading = reader.start()
        try:
            leader = harvesters.start()
            seconds = 3 * INTERVAL_S + 2 * _SETTLE_S
            writer = child("write", database, topic, str(RATE), str(seconds))
            reader.wait(1)
            harvesters.start()
            reader.wait(RATE // 2)
            reader.longest_s = 0.0
            os.kill(leader.pid, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            reader.wait(int(RATE * 2.0 * INTERVAL_S))
            gap_s = reader.longest_s
            if what == "paused":
                os.kill(leader.pid, signal.SIGCONT)
            written = len(json.loads(output_of(writer))["commits_ns"])
            writer.wait(_WAIT_S)
            with contextlib.suppress(RuntimeError):  # lost rows are counted below
                reader.wait(written - len(reader.came))
            time.sleep(_SETTLE_S)  # for what a zombie, or a repeating leader, still publishes
        finally:
            harvesters.close()
            reader.stopping = True
            reading.join(_WAIT_S)
            if isinstance(store, PostgresWalSource):  # a server has ten slots
                store.slot.drop()
                store.close()
    duplicates = sum(count - 1 for count in reader.came.values())
    return Outcome(gap_s, duplicates, written - len(reader.came), reader.reordered)


def measure(options: Options) -> list[Figure]:
    figures = []
    kinds = [("mark", "transactional"), ("range", "transactional"), ("wal", "transactional")]
    kinds += [("mark", "idempotent"), ("wal", "idempotent")]
    with EmbeddedKafka() as kafka, EmbeddedPostgres(durable=True) as postgres:
        for mode, delivery in kinds[:3] if options.quick else kinds:
            for what in ("killed", "paused"):
                found = []
                for _ in range(1 if options.quick else options.repeats):
                    found.append(fail(kafka, postgres, mode, delivery, what))
                    say(f"{mode}, {delivery}, {what}: {found[-1]}")
                name = f"{mode}, {delivery}, leader {what}"
                gap = median(o.gap_s / INTERVAL_S for o in found)
                figures.append(Figure(f"{name}: gap", gap, "intervals", None, "≤ 2.5", gap <= 2.5))
                exact = delivery == "transactional"
                for label in ("duplicates", "lost", "reordered"):
                    total = sum(getattr(o, label) for o in found)
                    must = exact or label == "lost"
                    figures.append(
                        Figure(
                            f"{name}: {label}, in all",
                            total,
                            "rows",
                            None,
                            "0" if must else "",
                            total == 0 if must else None,
                        )
                    )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)

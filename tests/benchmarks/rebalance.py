"""How long nobody consumes a partition when members come and go: ours against Kafka's own groups.

Three consumers share twelve partitions, each of which is written to a hundred times a second. A
member joins, leaves (SIGTERM), is killed (SIGKILL), and all are restarted one after the other under
their names: once as by default, where others take over meanwhile, and once where the places of
those who are away are kept for them (`keep_on_close`; Kafka's static members). Every delivery is
noted with its time; a gap is the time between two deliveries of one partition, whoever made them.
All three declare a member dead after 6 seconds.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, compiled, median, run, say

PARTITIONS = 12
EVERY_S = 0.01
DEAD_AFTER_MS = 6_000
STEADY_S = 1.0
RESTART, RESTART_KEPT = "rolling restart", "rolling restart, places kept"

OURS = """
import json, os, signal, sys, time
from marshal_py import Consumer

servers, group, name, topic, coordination, path, static = json.loads(sys.argv[1])
log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with Consumer(servers, group_id=group, client_id=name, topics=topic, topic=coordination,
              interval_ms=3_000, keep_on_close=static, start="latest") as consumer:
    for message in consumer:
        os.write(log, b"%d %d %d\\n" % (time.monotonic_ns(), message.partition(), message.offset()))
"""

KAFKA = """
import json, os, signal, sys, time
from confluent_kafka import Consumer

servers, group, name, topic, protocol, path, static = json.loads(sys.argv[1])
log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
config = {"bootstrap.servers": servers, "group.id": group, "client.id": name,
          "auto.offset.reset": "latest", "group.protocol": protocol,
          "fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 5}
if static:
    config["group.instance.id"] = name
if protocol == "classic":
    config |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000,
               "partition.assignment.strategy": "cooperative-sticky"}
consumer = Consumer(config)
consumer.subscribe([topic])
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
while not ended:
    message = consumer.poll(0.1)
    if message is not None and message.error() is None:
        os.write(log, b"%d %d %d\\n" % (time.monotonic_ns(), message.partition(), message.offset()))
consumer.close()
"""

_groups = itertools.count()


class Writer:
    """Writes to every partition a hundred times a second."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            for p in range(PARTITIONS):
                self._producer.produce(self._topic, b"x", partition=p)
            self._producer.poll(0)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)


@dataclass
class Group:
    """The members of one group, as processes that note what they are given."""

    kafka: EmbeddedKafka
    kind: str
    topic: str
    coordination: str
    folder: Path
    static: bool
    members: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    """Whose each partition was when the group had settled."""
    changed_s: float = 0.0
    """When a member was last started or ended."""
    name: str = ""

    def start(self, member: str) -> None:
        ours = self.kind == "ours"
        self.name = self.name or f"{self.kind}-{next(_groups)}"
        how = self.coordination if ours else self.kind
        path = str(self.folder / f"{self.name}.{member}")
        servers = self.kafka.bootstrap_servers
        arguments = json.dumps([servers, self.name, member, self.topic, how, path, self.static])
        code = OURS if ours else KAFKA
        self.changed_s = time.monotonic()
        self.members[member] = subprocess.Popen(
            [sys.executable, "-c", code, arguments], env=compiled(self.folder)
        )

    def end(self, member: str, number: int) -> None:
        process = self.members.pop(member)
        process.send_signal(number)
        process.wait()
        self.changed_s = time.monotonic()

    def kill_all(self) -> None:
        for member in list(self.members):
            self.end(member, signal.SIGKILL)

    def deliveries(self, since_s: float) -> list[tuple[float, int, str]]:
        """(time, partition, member), in the order of time."""
        found = []
        for path in self.folder.glob(f"{self.name}.*"):
            for line in path.read_text().splitlines(keepends=True):
                at_ns, p, _ = line.split()
                if line.endswith("\n") and int(at_ns) / 1e9 >= since_s:
                    found.append((int(at_ns) / 1e9, int(p), path.suffix[1:]))
        return sorted(found)

    def settle(self, shares: dict[str, int]) -> dict[int, str]:
        """Wait until each member has had its share, and nothing else, for a while.

        Only what was given since a member came or went counts. Returns whose each partition is.
        """
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            time.sleep(0.25)
            recent = self.deliveries(max(self.changed_s, time.monotonic() - STEADY_S))
            held: dict[str, set[int]] = {}
            for _, p, member in recent:
                held.setdefault(member, set()).add(p)
            if {m: len(ps) for m, ps in held.items()} == shares:
                self.owners = {p: member for _, p, member in recent}
                return self.owners
        raise RuntimeError(f"{self.name} never settled at {shares}")


@dataclass
class Outcome:
    """What an event did: the longest silence of a partition, and of those that stayed; moves."""

    worst_s: float
    stayed_s: float
    moved: int


def watch(group: Group, shares: dict[str, int], deed: Callable[[], object]) -> Outcome:
    """Do something to a settled group, wait until it has settled again, and look at the gaps."""
    before = group.owners
    since_s = time.monotonic() - STEADY_S
    deed()
    after = group.settle(shares)
    last: dict[int, float] = {}
    gaps = dict.fromkeys(range(PARTITIONS), 0.0)
    for at_s, p, _ in group.deliveries(since_s):
        gaps[p] = max(gaps[p], at_s - last.get(p, at_s))
        last[p] = at_s
    moved = {p for p in range(PARTITIONS) if before[p] != after[p]}
    stayed = [gaps[p] for p in range(PARTITIONS) if p not in moved]
    return Outcome(max(gaps.values()), max(stayed, default=0.0), len(moved))


def one_round(make: Callable[[bool], Group]) -> dict[str, Outcome]:
    """Join, leave, crash and both kinds of rolling restart, once."""
    found = {}
    group = make(False)
    try:
        group.start("a")
        group.start("b")
        group.settle({"a": 6, "b": 6})
        thirds = dict.fromkeys("abc", 4)
        found["join"] = watch(group, thirds, lambda: group.start("c"))
        halves = {"a": 6, "b": 6}
        found["leave"] = watch(group, halves, lambda: group.end("c", signal.SIGTERM))
        group.start("c")
        group.settle(thirds)
        found["crash"] = watch(group, halves, lambda: group.end("c", signal.SIGKILL))
    finally:
        group.kill_all()
    for event, static in ((RESTART, False), (RESTART_KEPT, True)):
        group = make(static)
        try:
            found[event] = restarted(group, thirds)
        finally:
            group.kill_all()
    return found


def restarted(group: Group, shares: dict[str, int]) -> Outcome:
    """Restart all members, one after the other."""
    for member in shares:
        group.start(member)
    group.settle(shares)

    def restart_all() -> None:
        for member in shares:
            group.end(member, signal.SIGTERM)
            group.start(member)
            group.settle(shares)

    return watch(group, shares, restart_all)


def measure(options: Options) -> list[Figure]:
    kinds = ("ours", "classic", "consumer")
    results: dict[tuple[str, str], list[Outcome]] = {}
    settings = {
        "group.min.session.timeout.ms": str(DEAD_AFTER_MS),
        "group.consumer.min.session.timeout.ms": str(DEAD_AFTER_MS),
        "group.consumer.session.timeout.ms": str(DEAD_AFTER_MS),
        "group.consumer.min.heartbeat.interval.ms": "2000",
        "group.consumer.heartbeat.interval.ms": "2000",
    }
    with EmbeddedKafka(properties=settings) as kafka, tempfile.TemporaryDirectory() as folder:
        imports = "import confluent_kafka, marshal_py"
        subprocess.run([sys.executable, "-c", imports], env=compiled(Path(folder)), check=True)
        coordination = new_topic(kafka)
        topic = kafka.create_topic(partitions=PARTITIONS)
        writer = Writer(kafka, topic)
        try:
            for _ in range(1 if options.quick else min(options.repeats, 3)):
                for kind in kinds:
                    found = one_round(
                        lambda static, kind=kind: Group(  # type: ignore[misc]
                            kafka, kind, topic, coordination, Path(folder), static
                        )
                    )
                    for event, outcome in found.items():
                        results.setdefault((event, kind), []).append(outcome)
                        say(
                            f"{kind}, {event}: {outcome.worst_s:.2f} s, "
                            f"{outcome.stayed_s:.2f} s where it stayed, {outcome.moved} moved"
                        )
        finally:
            writer.stop()
    figures = []
    for event in ("join", "leave", "crash", RESTART, RESTART_KEPT):
        worst = {k: median(o.worst_s for o in results[event, k]) for k in kinds}
        for kind, name in (("classic", "classic"), ("consumer", "KIP-848")):
            figures.append(
                Figure(
                    f"{event}: nobody consumes a partition, against {name}",
                    worst["ours"],
                    "s",
                    worst[kind],
                    "no longer",
                    worst["ours"] <= worst[kind],
                )
            )
        if event not in (RESTART, RESTART_KEPT):
            stayed = median(o.stayed_s for o in results[event, "ours"])
            figures.append(
                Figure(f"{event}: partitions that stay", stayed, "s", None, "≤ 0.2", stayed <= 0.2)
            )
        if event == RESTART:  # all move to those who stay, and as many back
            continue
        moved = max(o.moved for o in results[event, "ours"])
        least = 0 if event == RESTART_KEPT else PARTITIONS // 3
        figures.append(
            Figure(f"{event}: moved", moved, "partitions", None, f"{least}", moved == least)
        )
    return figures


if __name__ == "__main__":
    run(measure, __doc__)

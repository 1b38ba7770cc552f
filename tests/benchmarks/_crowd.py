"""A crowd for the dashboard: many groups with many partitions, written straight into the log.

No real clients: one process writes the heartbeats that hundreds would, with positions that move.
Members fall silent, are replaced, and come back, as on a bad day. For benchmarks and screenshots::

    python -m tests.benchmarks._crowd SERVERS TOPIC --groups 50 --partitions 5000
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, field

from confluent_kafka import Producer

from marshal_py.protocol.messages import (
    MAX_ENTRIES,
    ClaimingPartition,
    Heartbeat,
    ReleasingPartition,
    encode,
)
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import coordinating_partition

WORDS = """
billing orders payments ledger shipping inventory pricing search mail fraud audit catalog invoices
refunds returns carts sessions clicks metrics alerts exports imports media thumbs geo routing
dispatch drivers quotes risk kyc limits cards payouts fx tax reports archive backfill features
ranking ads bids budget notify push sms webhooks sync dedupe enrich
""".split()  # noqa: SIM905 (a list of literals would be a page long)


def group_name(n: int) -> str:
    return WORDS[n] if n < len(WORDS) else f"{WORDS[n % len(WORDS)]}-{n // len(WORDS)}"


def end_of(topic: str, partition: int, now_s: float) -> int:
    """Where a partition ends at a moment: ten messages a second and more."""
    return int(now_s % 10_000_000 * (10 + partition % 7))


def position_of(topic: str, partition: int, now_s: float) -> int:
    """Where its consumer is: most are close behind, a few far."""
    spread = (partition * 2_654_435_761 + len(topic) * 40_503) % 1_000 / 1_000
    lag = int(10 ** (6 * spread**6)) if spread > 0.2 else 0
    return max(0, end_of(topic, partition, now_s) - lag)


@dataclass
class Member:
    group: str
    client: str
    instance: str
    topic: str
    partitions: list[int]
    seq: int = 0
    silent_until_s: float = 0.0
    next_beat_s: float = 0.0
    told: bool = False
    epochs: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Taken over while it was silent; it learns of it after its next heartbeat."""


class Crowd:
    """Writes as `groups` × `clients` members with `partitions` each group would."""

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        coordinators: int,
        groups: int,
        partitions: int,
        clients: int = 10,
        interval_ms: int = 5_000,
        seed: int = 1,
    ) -> None:
        self.topic = topic
        self.coordinators = coordinators
        self.interval_ms = interval_ms
        self.random = random.Random(seed)
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1_000_000,
                "linger.ms": 5,
            }
        )
        self.offsets = [0] * coordinators
        self.versions: dict[tuple[str, int], tuple[int, str]] = {}
        """(group, partition) → offset of its own last record, and who holds it."""
        self.beats: dict[str, int] = {}
        """Client → offset of its last heartbeat."""
        self.homes: dict[str, int] = {}
        self.members = [
            self._member(group_name(g), c, clients, partitions)
            for g in range(groups)
            for c in range(clients)
        ]
        for number, member in enumerate(self.members):
            member.next_beat_s = number / len(self.members) * interval_ms / 1000

    def _member(self, group: str, number: int, of: int, partitions: int) -> Member:
        each = -(-partitions // of)
        mine = list(range(number * each, min(partitions, (number + 1) * each)))
        name = f"{group}-{number + 1}"
        return Member(group, name, f"{name}-a", f"{group}.events", mine)

    def _append(self, p: int, record: bytes) -> int:
        while True:
            try:
                self.producer.produce(self.topic, record, partition=p)
                break
            except BufferError:
                self.producer.poll(0.1)
        self.offsets[p] += 1
        return self.offsets[p] - 1

    def _home(self, group: str) -> int:
        home = self.homes.get(group)
        if home is None:
            home = self.homes[group] = coordinating_partition(group, self.coordinators)
        return home

    def _version(self, group: str, partition: int) -> int:
        """What a claim has to name: the cell's last record, or its holder's last heartbeat."""
        own, holder = self.versions.get((group, partition), (-1, ""))
        return max(own, self.beats.get(holder, -1))

    def claim(self, member: Member, partitions: list[int]) -> None:
        """Claim cells, whoever holds them now."""
        for partition in partitions:
            p = self._home(member.group)
            member.seq += 1
            record = ClaimingPartition(
                2, member.client, member.instance, member.group, member.seq,
                member.topic, partition, self.interval_ms,
                self._version(member.group, partition),
            )  # fmt: skip
            offset = self._append(p, encode(record))
            self.versions[member.group, partition] = (offset, member.client)
            member.epochs[partition] = offset

    def release(self, member: Member, partitions: list[int], now_s: float) -> None:
        for partition in partitions:
            p = self._home(member.group)
            member.seq += 1
            record = ReleasingPartition(
                2, member.client, member.instance, member.group, member.seq,
                member.topic, partition, member.epochs.pop(partition),
                position_of(member.topic, partition, now_s),
            )  # fmt: skip
            self.versions[member.group, partition] = (self._append(p, encode(record)), "")

    def beat(self, member: Member, now_s: float) -> None:
        """Write the heartbeat of a member: it is there, and where it has come to."""
        p = self._home(member.group)
        says = b""
        if not member.told:
            labels = {"zone": "abc"[len(member.topic) % 3]}
            says = Subscription(topics=frozenset({member.topic}), labels=labels).encode()
            member.told = True
        moved = [
            (epoch, position_of(member.topic, partition, now_s))
            for partition, epoch in member.epochs.items()
        ]
        for start in range(0, max(1, len(moved)), MAX_ENTRIES):
            pairs = moved[start : start + MAX_ENTRIES]
            member.seq += 1
            record = Heartbeat(
                2, member.client, member.instance, member.group, member.seq, self.interval_ms, 1,
                [number for pair in pairs for number in pair], [], says or None,
            )  # fmt: skip
            self.beats[member.client] = self._append(p, encode(record))
        for partition in member.lost:
            member.epochs.pop(partition, None)
        member.lost.clear()

    def begin(self) -> None:
        """Claim everything."""
        for member in self.members:
            self.claim(member, member.partitions)
            self.beat(member, time.time())
        self.producer.flush(120)

    def run(self, seconds: float, *, trouble_every_s: float = 0.0) -> None:
        """Beat for so long; every now and then somebody falls silent and is replaced."""
        began = time.monotonic()
        trouble_s = trouble_every_s
        late: list[tuple[float, Member]] = []
        while (now := time.monotonic() - began) < seconds:
            for member in self.members:
                if member.next_beat_s <= now:
                    member.next_beat_s = max(now - 1, member.next_beat_s + self.interval_ms / 1000)
                    if member.silent_until_s <= now:
                        self.beat(member, time.time())
            if trouble_every_s and trouble_s <= now:
                trouble_s += trouble_every_s
                member = self.random.choice(self.members)
                member.silent_until_s = now + 5 * self.interval_ms / 1000
                late.append((now + 2.4 * self.interval_ms / 1000, member))
            for due in [due for due in late if due[0] <= now]:
                late.remove(due)
                self._replace(due[1])
            self.producer.poll(0.02)
        self.producer.flush(60)

    def _replace(self, dead: Member) -> None:
        """The others of the group take over most of what a silent member held."""
        others = [m for m in self.members if m.group == dead.group and m is not dead]
        held = [p for p in dead.epochs if self.random.random() < 0.8]
        for partition in held:
            heir = self.random.choice(others)
            self.claim(heir, [partition])
            dead.lost.add(partition)
        for other in others:
            kept = sorted(other.epochs.keys() - other.lost)
            if len(kept) > 20:
                self.release(other, self.random.sample(kept, 3), time.time())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("--coordinators", type=int, default=8)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--interval-ms", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--trouble-every", type=float, default=0.0)
    options = parser.parse_args()
    crowd = Crowd(
        options.servers,
        options.topic,
        coordinators=options.coordinators,
        groups=options.groups,
        partitions=options.partitions,
        clients=options.clients,
        interval_ms=options.interval_ms,
    )
    crowd.begin()
    print("begun", flush=True)
    crowd.run(options.seconds, trouble_every_s=options.trouble_every)


if __name__ == "__main__":
    main()

"""The coordination topic as it is, and a fold written anew from specs/PROTOCOL.md.

Shares no code with the product: `msgpack` decodes, `mmh3` hashes, a plain consumer reads. It knows
the records that the processes of a run write (§3.2 to §3.7, §3.10, §3.11); any other is an anomaly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mmh3
import msgpack
from confluent_kafka import Consumer, KafkaException, TopicPartition

__all__ = ["Claimed", "Fold", "Ranges", "Record", "Taken", "coordinator", "read_topic"]

Key = tuple[str, str, int]
"""(group, topic, partition)."""


class Record(NamedTuple):
    """A record as the broker has it. `at_ms` is the broker's time of it."""

    offset: int
    key: Any
    value: Any
    at_ms: int = 0


class Taken(NamedTuple):
    """What was taken from a holder: the version that the claim names, how long the holder had been
    silent, in its intervals, and what happened, in words."""

    named: int
    silence: float
    text: str


def coordinator(group: str, partitions: int) -> int:
    """The coordination partition of a group (§2.2)."""
    return int(mmh3.hash(group.encode(), 0, signed=False)) % partitions


def read_topic(
    servers: str, topic: str, *, committed: bool = False, timeout_s: float = 60.0
) -> dict[int, list[Record]]:
    """Return every record of each partition, up to the present ends.

    Raises `TimeoutError`.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "chaos-judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + timeout_s
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        found: dict[int, list[Record]] = {p: [] for p in partitions}
        # Of a partition that is written to all the time, Kafka tells no end.
        ends = {p: _end(consumer, TopicPartition(topic, p), deadline) for p in partitions}
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        open_ends = set(partitions)
        while open_ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not read to its end within {timeout_s:g} s")
            for message in consumer.consume(1_000, 0.2):
                p, offset = message.partition(), message.offset()
                if p is None or offset is None or message.error() is not None:
                    open_ends.discard(-1 if p is None else p)
                else:
                    at_ms = message.timestamp()[1]
                    found[p].append(Record(offset, message.key(), message.value(), at_ms))
                    if offset + 1 >= ends[p]:
                        open_ends.discard(p)
        return found
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition, deadline: float) -> int:
    """Where a partition ends by now, also while its leadership moves."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            consumer.poll(0.2)


@dataclass
class Claimed:
    """An accepted claim: whose, from which position, and when the broker had it."""

    key: Key
    client: str
    instance: str
    position: int
    at_ms: int


@dataclass
class Ranges:
    """The messages that were claimed under one epoch: [(from, to)]."""

    parts: list[tuple[int, int]] = field(default_factory=list)

    def covers(self, offset: int) -> bool:
        """Whether a message was claimed."""
        return any(low <= offset < high for low, high in self.parts)


@dataclass
class _Cell:
    holder: str | None = None
    instance: str | None = None
    epoch: int = -1
    version: int = -1
    """Its own: what its holder's session wrote since is not in it (§4.2)."""
    next_offset: int = -1
    claimed_offset: int = -1
    interval_ms: int = 0
    heard_ms: int = 0
    """When the broker had the last record that the version comes from."""


class Fold:
    """The state of one coordination partition, and what led to it."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.cells: dict[Key, _Cell] = {}
        self.claims: dict[int, Claimed] = {}
        """Epoch → the accepted claim."""
        self.ranges: dict[int, Ranges] = {}
        """Epoch → what was claimed under it, at most once."""
        self.beats: dict[tuple[str, str, str], int] = {}
        """(group, client, instance) → the offset of its last heartbeat.

        Also of one that held nothing then: a claim that comes later has a higher offset.
        """
        self.paused: dict[str, int] = {}
        """Group → the offset of the record that paused it."""
        self.identity = ""
        self.base = 0
        self.geneses: list[tuple[int, int]] = []
        """(when the broker had it, base) of those that counted."""
        self.released: set[int] = set()
        """Epochs that their holders gave back."""
        self.heard_ms: dict[tuple[str, str, str], int] = {}
        """When the broker had the last heartbeat of a session."""
        self.taken: list[Taken] = []
        """What somebody else held."""
        self.accepted = 0
        self.rejected = 0
        self.strange: list[int] = []
        """Offsets of what nobody in a run should have written."""

    def state(self) -> list[list[Any]]:
        """All cells, sorted, as the processes record theirs."""
        return sorted(
            [
                *(*key, c.holder, c.instance, c.epoch, self.version(key)),
                *(c.next_offset, c.claimed_offset),
            ]
            for key, c in self.cells.items()
        )

    def version(self, key: Key) -> int:
        """What a claim has to name: the cell's version, or its holder's session's (§4.2)."""
        cell = self.cells.get(key)
        if cell is None:
            return -1
        beat = self.beats.get((key[0], cell.holder or "", cell.instance or ""), -1)
        return cell.version if cell.holder is None else max(cell.version, beat)

    def apply(self, found: Record) -> None:
        """Apply one record (§4.5)."""
        offset = found.offset
        try:
            record = msgpack.unpackb(found.value, raw=False)
            kind, version, client, instance, group, _ = record[:6]
            if version != 2:
                raise ValueError(version)
        except Exception:  # whatever a decoder raises for what is no record
            self.strange.append(offset)
            return
        rest = record[6:]
        if kind == 1:
            self._claim(found, (group, rest[0], rest[1]), client, instance, *rest[2:4])
        elif kind == 2:
            self._beat(found, (group, client, instance), rest[2])
        elif kind == 3:
            self._release(offset, (group, rest[0], rest[1]), rest[2], rest[3], *rest[4:5])
        elif kind == 4:
            self._claim_messages(found, (group, rest[0], rest[1]), rest[2], rest[3])
        elif kind == 5:
            self.paused[group] = offset
        elif kind == 6:
            if self.paused.get(group) == rest[0]:
                del self.paused[group]
            else:
                self.rejected += 1
        elif kind == 9:
            self._genesis(found.at_ms, *rest[:3])
        elif kind == 10:
            pass  # a level says who may take part, which is judged by what they do
        else:
            self.strange.append(offset)

    def _claim(
        self, found: Record, key: Key, client: str, instance: str, interval_ms: int, expected: int
    ) -> None:
        offset = found.offset
        if key[0] in self.paused or self.version(key) != expected:
            self.rejected += 1
            return
        epoch = self.base + offset
        cell = self.cells.setdefault(key, _Cell())
        if cell.holder not in (None, client):
            self._taken(found, key, cell, client, expected)
        cell.interval_ms, cell.heard_ms = interval_ms, found.at_ms
        cell.holder, cell.instance, cell.epoch, cell.version = client, instance, epoch, offset
        position = max(cell.next_offset, cell.claimed_offset)
        self.claims[epoch] = Claimed(key, client, instance, position, found.at_ms)
        self.accepted += 1

    def _taken(self, found: Record, key: Key, cell: _Cell, client: str, named: int) -> None:
        session = (key[0], cell.holder or "", cell.instance or "")
        silence_ms = found.at_ms - max(cell.heard_ms, self.heard_ms.get(session, 0))
        text = (
            f"{self.partition}@{found.offset}: {client} took {key} from {cell.holder} "
            f"{silence_ms} ms after its last record, at an interval of {cell.interval_ms} ms"
        )
        self.taken.append(Taken(named, silence_ms / cell.interval_ms, text))

    def _genesis(self, at_ms: int, identity: str, previous: str, base: int) -> None:
        if previous != self.identity or (base <= self.base and (self.identity or base)):
            self.rejected += 1  # two clients that came first at once, say
            return
        self.identity, self.base = identity, base
        self.geneses.append((at_ms, base))

    def _current(self, key: Key, epoch: int) -> _Cell | None:
        cell = self.cells.get(key)
        if cell is None or cell.holder is None or cell.epoch != epoch:
            self.rejected += 1
            return None
        return cell

    def _beat(self, found: Record, sender: tuple[str, str, str], positions: list[int]) -> None:
        """Renew all that the session holds, and take in the positions that moved (§4.5)."""
        self.beats[sender], self.heard_ms[sender] = found.offset, found.at_ms
        for claimed_at, next_offset in zip(positions[::2], positions[1::2], strict=False):
            epoch = self.base + claimed_at
            claim = self.claims.get(epoch)
            cell = None if claim is None else self.cells.get(claim.key)
            if (
                claim is None
                or cell is None
                or (cell.epoch, cell.holder, cell.instance) != (epoch, *sender[1:])
                or claim.key[0] != sender[0]
            ):
                self.rejected += 1
                continue
            cell.next_offset = max(cell.next_offset, next_offset)
            self.accepted += 1

    def _release(self, offset: int, key: Key, epoch: int, next_offset: int, ends: int = 0) -> None:
        if cell := self._current(key, epoch):
            self.released.add(epoch)
            cell.holder = cell.instance = None
            cell.version = offset
            cell.next_offset = max(cell.next_offset, next_offset)
            if ends:
                del self.cells[key]
            self.accepted += 1

    def _claim_messages(self, found: Record, key: Key, epoch: int, proposed: int) -> None:
        if cell := self._current(key, epoch):
            if proposed <= cell.claimed_offset:
                self.rejected += 1
                return
            low = cell.claimed_offset
            cell.claimed_offset, cell.version = proposed, found.offset
            cell.heard_ms = found.at_ms
            self.ranges.setdefault(epoch, Ranges()).parts.append((low, proposed))
            self.accepted += 1

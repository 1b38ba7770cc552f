"""The coordination topic as it is, and a fold written anew from specs/PROTOCOL.md.

Shares no code with the product: `msgpack` decodes, `mmh3` hashes, a plain consumer reads. It knows
the records that the processes of a run write (§3.2 to §3.5); any other is an anomaly here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import mmh3
import msgpack
from confluent_kafka import Consumer, TopicPartition

__all__ = ["Claimed", "Fold", "Ranges", "coordinator", "read_topic"]

Key = tuple[str, str, int]
"""(group, topic, partition)."""


def coordinator(topic: str, partition: int, partitions: int) -> int:
    """The coordination partition of a cell (§2.2)."""
    data = topic.encode() + partition.to_bytes(4, "big")
    return int(mmh3.hash(data, 0, signed=False)) % partitions


def read_topic(
    servers: str, topic: str, *, committed: bool = False, timeout_s: float = 60.0
) -> dict[int, list[tuple[int, Any, Any]]]:
    """Return (offset, key, value) of every record of each partition, up to the present ends.

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
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: dict[int, list[tuple[int, Any, Any]]] = {p: [] for p in partitions}
        open_ends, deadline = set(partitions), time.monotonic() + timeout_s
        while open_ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not read to its end within {timeout_s:g} s")
            for message in consumer.consume(1_000, 0.2):
                p, offset = message.partition(), message.offset()
                if p is None or offset is None or message.error() is not None:
                    open_ends.discard(-1 if p is None else p)
                else:
                    found[p].append((offset, message.key(), message.value()))
        return found
    finally:
        consumer.close()


@dataclass
class Claimed:
    """An accepted claim: whose, and from which position."""

    key: Key
    client: str
    instance: str
    position: int


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
    next_offset: int = -1
    claimed_offset: int = -1


class Fold:
    """The state of one coordination partition, and what led to it."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.cells: dict[Key, _Cell] = {}
        self.claims: dict[int, Claimed] = {}
        """Epoch → the accepted claim."""
        self.ranges: dict[int, Ranges] = {}
        """Epoch → what was claimed under it, at most once."""
        self.paused: set[str] = set()
        self.released: set[int] = set()
        """Epochs that their holders gave back."""
        self.accepted = 0
        self.rejected = 0
        self.strange: list[int] = []
        """Offsets of what nobody in a run should have written."""

    def state(self) -> list[list[Any]]:
        """All cells, sorted, as the processes record theirs."""
        return sorted(
            [*key, c.holder, c.instance, c.epoch, c.version, c.next_offset, c.claimed_offset]
            for key, c in self.cells.items()
        )

    def apply(self, offset: int, value: bytes | None) -> None:
        """Apply one record (§4.5)."""
        try:
            record = msgpack.unpackb(value, raw=False)
            kind, version, client, instance, group, _ = record[:6]
            if version != 2:
                raise ValueError(version)
        except Exception:  # whatever a decoder raises for what is no record
            self.strange.append(offset)
            return
        rest = record[6:]
        if kind == 1:
            self._claim(offset, (group, rest[0], rest[1]), client, instance, rest[3])
        elif kind == 2:
            for entry in rest[0]:
                self._renew(offset, (group, entry[0], entry[1]), entry[2], entry[3])
        elif kind == 3:
            self._release(offset, (group, rest[0], rest[1]), rest[2], rest[3])
        elif kind == 4:
            self._claim_messages(offset, (group, rest[0], rest[1]), rest[2], rest[3])
        elif kind == 5:
            self.paused.add(group)
        elif kind == 6:
            self.paused.discard(group)
        else:
            self.strange.append(offset)

    def _claim(self, offset: int, key: Key, client: str, instance: str, expected: int) -> None:
        cell = self.cells.get(key)
        if key[0] in self.paused or (cell.version if cell else -1) != expected:
            self.rejected += 1
            return
        cell = self.cells.setdefault(key, _Cell())
        cell.holder, cell.instance, cell.epoch, cell.version = client, instance, offset, offset
        position = max(cell.next_offset, cell.claimed_offset)
        self.claims[offset] = Claimed(key, client, instance, position)
        self.accepted += 1

    def _current(self, key: Key, epoch: int) -> _Cell | None:
        cell = self.cells.get(key)
        if cell is None or cell.holder is None or cell.epoch != epoch:
            self.rejected += 1
            return None
        return cell

    def _renew(self, offset: int, key: Key, epoch: int, next_offset: int) -> None:
        if cell := self._current(key, epoch):
            cell.version = offset
            cell.next_offset = max(cell.next_offset, next_offset)
            self.accepted += 1

    def _release(self, offset: int, key: Key, epoch: int, next_offset: int) -> None:
        if cell := self._current(key, epoch):
            self.released.add(epoch)
            cell.holder = cell.instance = None
            cell.version = offset
            cell.next_offset = max(cell.next_offset, next_offset)
            self.accepted += 1

    def _claim_messages(self, offset: int, key: Key, epoch: int, proposed: int) -> None:
        if cell := self._current(key, epoch):
            if proposed <= cell.claimed_offset:
                self.rejected += 1
                return
            low = cell.claimed_offset
            cell.claimed_offset, cell.version = proposed, offset
            self.ranges.setdefault(epoch, Ranges()).parts.append((low, proposed))
            self.accepted += 1

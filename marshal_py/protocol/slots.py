"""Slots: parts of a partition, by the keys of its messages, claimed one by one (§5.17). Pure.

A slot is an ordinary cell of the protocol; here is how it is called, and which messages are its.
The fold knows nothing of slots: a cell has a name, a position, a lease and an epoch, as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

import mmh3

from marshal_py.errors import ConfigurationError
from marshal_py.protocol.messages import MAX_TOPIC_LENGTH
from marshal_py.protocol.ranges import range_of

__all__ = [
    "BY_PARTITIONS",
    "BY_RANGES",
    "MAX_SLOTS",
    "Sharing",
    "Slot",
    "Slots",
    "agreed_for",
    "agreement_cell",
    "agreement_of",
    "check_slots",
    "in_words",
    "slot_of",
    "slot_of_key",
    "slots_cell",
    "source_of",
]

MAX_SLOTS: Final = 1024

Sharing: TypeAlias = Literal["partitions", "keys", "ranges"]
"""How the members of a group share a topic; by keys, in so many slots besides."""

Slots: TypeAlias = int | Literal["partitions", "ranges"]
"""The same, as operators say it: by keys, in so many slots; by partitions, or by ranges."""

BY_PARTITIONS: Final = 0
"""What stands in the log in place of a number of slots: whole partitions are claimed."""

BY_RANGES: Final = 65_536
"""The same: ranges of messages are claimed (§5.18)."""

_WORDS: Final[Mapping[int, Slots]] = {BY_PARTITIONS: "partitions", BY_RANGES: "ranges"}
_AGREEMENT: Final = "#slots"
_SLOTS: Final = re.compile(r"([A-Za-z0-9._-]+)/(0|[1-9][0-9]{0,9})#([1-9][0-9]{0,3})")
_LONGEST_TOPIC: Final = MAX_TOPIC_LENGTH - len(f"/{2**31 - 1}#{MAX_SLOTS}")


class Slot(NamedTuple):
    """One slot: of which partition of Kafka, its number, and how many there are."""

    topic: str
    partition: int
    number: int
    slots: int


def slots_cell(topic: str, partition: int, slots: int) -> str:
    """Return the `topic` of the cells of a partition's slots; their `partition` is the slot."""
    return f"{topic}/{partition}#{slots}"


@lru_cache(1 << 12)
def _parse(topic: str) -> tuple[str, int, int] | None:
    found = _SLOTS.fullmatch(topic)
    if found is None or int(found[3]) > MAX_SLOTS or int(found[2]) >= 2**31:
        return None
    return found[1], int(found[2]), int(found[3])


def slot_of(topic: str, partition: int) -> Slot | None:
    """Return the slot that a cell of this name is; None if it is something else."""
    found = _parse(topic)
    if found is None or not 0 <= partition < found[2]:
        return None
    return Slot(found[0], found[1], partition, found[2])


def source_of(topic: str, partition: int) -> tuple[str, int]:
    """Return the topic and the partition whose messages a cell of this name is about.

    For a slot or a range, those that it is a part of.
    """
    part = slot_of(topic, partition) or range_of(topic, partition)
    return (topic, partition) if part is None else (part.topic, part.partition)


def slot_of_key(key: bytes | None, offset: int, slots: int) -> int:
    """Return the slot of a message: by its key, or by its offset if it has none.

    Murmur3 (x86, 32 bit, seed 0, unsigned) of the key, as for groups (§2.2). It is none of the
    hashes that producers choose a partition by (murmur2, CRC-32, FNV-1a): with one of those, the
    keys that share a partition would share few slots.
    """
    return (offset if key is None else mmh3.hash(key, 0, False)) % slots


def agreement_cell(topic: str) -> tuple[str, int]:
    """Return the cell whose position says how many slots each partition of a topic has."""
    return topic + _AGREEMENT, 0


def agreement_of(topic: str) -> str | None:
    """Return the topic that a cell of this name is the agreement about; None: it is none."""
    return topic.removesuffix(_AGREEMENT) if topic.endswith(_AGREEMENT) else None


def in_words(agreed: int) -> Slots:
    """Return what the number that stands in the log means."""
    return _WORDS.get(agreed, agreed)


def agreed_for(slots: Slots) -> int:
    """Return what stands in the log for it (0 is ``"partitions"``). Raises `ConfigurationError`."""
    for agreed, word in _WORDS.items():
        if slots == word:
            return agreed
    if type(slots) is not int or not 0 <= slots <= MAX_SLOTS:
        raise ConfigurationError(
            f"slots = {slots!r} must be a number from 0 to {MAX_SLOTS}, 'partitions' or 'ranges'"
        )
    return slots


def check_slots(slots: int, topics: frozenset[str] | set[str] = frozenset()) -> None:
    """Raise `ConfigurationError` for a number of slots, or a topic, that cannot be."""
    if type(slots) is not int or not 1 <= slots <= MAX_SLOTS:
        raise ConfigurationError(f"slots = {slots!r} must be a whole number from 1 to {MAX_SLOTS}")
    for topic in topics:
        if len(topic) > _LONGEST_TOPIC:
            raise ConfigurationError(
                f"topics: {topic!r} is too long to be shared by keys: of {len(topic)} characters, "
                f"where {_LONGEST_TOPIC} leave room for the name of a slot. Share it by partitions"
            )

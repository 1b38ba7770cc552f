"""What a consumer tells the other members of its group: what it wants, and how much of it.

It travels as the member metadata of the consumer's heartbeats (specs/PROTOCOL.md §3.3), which the
fold never looks into: a msgpack map with one-letter keys. Unknown keys are skipped.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from marshal_py.errors import ConfigurationError
from marshal_py.protocol.messages import MAX_MEMBER_METADATA_BYTES, MAX_TOPIC_LENGTH
from marshal_py.protocol.slots import (
    BY_PARTITIONS,
    BY_RANGES,
    Sharing,
    check_slots,
    slot_of,
    source_of,
)

__all__ = ["Subscription"]


@dataclass(frozen=True)
class Subscription:
    """What one member wants.

    - `topics`: names of topics; `pattern`: a regular expression that must match the whole name.
      One of the two, or both.
    - `entire_topics`: whole topics are claimed, not partitions.
    - `max_claims`: the member never takes more units than that; None: no limit.
    - `weight`: its share in relation to the others': 2.0 takes twice as much as 1.0.
    - `by_lag`: units are weighed by how far behind they are, if all members of the group say so.
    - `labels`: free text for people, shown by `marshal status`.
    - `prefer`: shell patterns of `topic` or `topic/partition` that it gets rather than others, if
      it has room. A preference moves nothing that somebody holds.
    - `sharing`: partitions are claimed whole, or shared by the keys of their messages, by so many
      `slots` each, or by ranges of them.

    Raises `ConfigurationError`, naming field and value.
    """

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    entire_topics: bool = False
    max_claims: int | None = None
    weight: float = 1.0
    by_lag: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    prefer: tuple[str, ...] = ()
    sharing: Sharing = "partitions"
    slots: int = 0

    def __post_init__(self) -> None:
        for topic in self.topics:
            if not isinstance(topic, str) or not 0 < len(topic) <= MAX_TOPIC_LENGTH:
                raise ConfigurationError(
                    f"topics: {topic!r} must be the name of a topic, text of 1 to "
                    f"{MAX_TOPIC_LENGTH} characters"
                )
        if self.pattern is not None:
            try:
                _compiled(self.pattern)
            # A repetition too large overflows; so many brackets within each other are too deep.
            except (re.error, TypeError, OverflowError, RecursionError) as error:
                raise ConfigurationError(
                    f"pattern = {self.pattern!r} is no regular expression: {error}"
                ) from None
        if self.max_claims is not None and (
            type(self.max_claims) is not int or self.max_claims < 0
        ):
            raise ConfigurationError(
                f"max_claims = {self.max_claims!r} must be a whole number, or None for no limit"
            )
        if self.sharing == "keys":
            check_slots(self.slots, self.topics)
        elif self.slots:
            raise ConfigurationError(
                f"slots = {self.slots!r}: only partitions that are shared by keys have slots"
            )
        if self.sharing != "partitions" and self.entire_topics:
            raise ConfigurationError(
                f"claim_entire_topic: whole topics are not shared by {self.sharing}; leave one of "
                "them out"
            )
        if not isinstance(self.weight, int | float) or not 0.001 <= self.weight <= 1000:
            raise ConfigurationError(f"weight = {self.weight!r} must be 0.001 to 1000")

    @property
    def agreed(self) -> int:
        """What stands for its `sharing` in the log (PROTOCOL §5.17)."""
        return {"partitions": BY_PARTITIONS, "keys": self.slots, "ranges": BY_RANGES}[self.sharing]

    def wants(self, topic: str) -> bool:
        """Whether the member wants partitions of `topic`."""
        return topic in self.topics or (
            self.pattern is not None and _full_match(self.pattern, topic)
        )

    def claims(self, topic: str) -> bool:
        """Whether the member claims units of `topic`: its partitions, or the slots that it names.

        Who shares by keys claims slots of its own number alone, others whole partitions alone.
        """
        slot = slot_of(topic, 0)
        if slot is None:
            return self.sharing == "partitions" and self.wants(topic)
        return self.sharing == "keys" and slot.slots == self.slots and self.wants(slot.topic)

    def likes(self, unit: tuple[str, int]) -> bool:
        """Whether the member prefers this unit to others."""
        topic, partition = source_of(*unit)
        name = f"{topic}/{partition}"
        return any(fnmatchcase(name, p) or fnmatchcase(topic, p) for p in self.prefer)

    def encode(self) -> bytes:
        """Return the member metadata. Raises `ConfigurationError` when there is too much of it."""
        document: dict[str, Any] = {"t": sorted(self.topics)}
        if self.pattern is not None:
            document["p"] = self.pattern
        if self.entire_topics:
            document["e"] = True
        if self.max_claims is not None:
            document["m"] = self.max_claims
        if self.weight != 1:
            document["w"] = float(self.weight)
        if self.by_lag:
            document["b"] = True
        if self.labels:
            document["l"] = dict(self.labels)
        if self.prefer:
            document["f"] = list(self.prefer)
        if self.agreed != BY_PARTITIONS:
            document["k"] = self.agreed
        data: bytes = msgspec.msgpack.encode(document)
        if len(data) > MAX_MEMBER_METADATA_BYTES:
            raise ConfigurationError(
                f"the subscription takes {len(data)} bytes, of which other members can be told "
                f"{MAX_MEMBER_METADATA_BYTES}: name the topics with one `pattern`, or use fewer "
                "labels"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> Subscription | None:
        """Return what a member published, None if that is no subscription."""
        return _decode(data)


class _Wire(msgspec.Struct):
    t: list[str]
    p: str | None = None
    e: bool = False
    m: int | None = None
    w: float = 1.0
    b: bool = False
    l: dict[str, str] = {}  # noqa: E741 (a key of the format; msgspec copies defaults)
    f: list[str] = []
    k: Annotated[int, msgspec.Meta(ge=0, le=BY_RANGES)] = BY_PARTITIONS


_SHARING: Final[Mapping[int, Sharing]] = {BY_PARTITIONS: "partitions", BY_RANGES: "ranges"}
_decoder: Final = msgspec.msgpack.Decoder(_Wire)


@lru_cache(maxsize=4096)
def _decode(data: bytes) -> Subscription | None:
    try:
        wire = _decoder.decode(data)
        sharing = _SHARING.get(wire.k, "keys")
        return Subscription(
            frozenset(wire.t),
            wire.p,
            wire.e,
            wire.m,
            wire.w,
            wire.b,
            wire.l,
            tuple(wire.f),
            sharing,
            wire.k if sharing == "keys" else 0,
        )
    # RecursionError: an unknown key, nested deeply.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigurationError):
        return None


@lru_cache(maxsize=16384)
def _full_match(pattern: str, topic: str) -> bool:
    return _compiled(pattern).fullmatch(topic) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except FutureWarning:  # an error under `python -W error`: other members' patterns stop nobody
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            return re.compile(pattern)

"""What a consumer tells the others with each claim: how far behind it is, and which messages fail.

It travels as the metadata of the claim (at most 256 bytes, specs/PROTOCOL.md §3.3), which the fold
never looks into: a msgpack map with one-letter keys, of which all may be missing; unknown ones are
skipped. It goes when the claim goes to somebody else: the counts are of one claim.

| key | what |
|---|---|
| ``c`` | cost of the partition, from its lag (see `balance.weigh`); 1 when missing |
| ``r`` | messages that failed and wait for another attempt |
| ``k`` | handlers that have been running for too long |
| ``d`` | messages that went to the dead-letter topic |
| ``s`` | messages that failed for good and were skipped |
| ``o`` | offset of the first message that fails or is stuck now, else of the last one given up |
| ``e`` | class of the last exception, at most 64 characters |
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from marshal_py.consumer.handlers.schedule import Home

__all__ = ["Note", "Troubles"]

MAX_CLASS: Final = 64


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is published with one claim."""

    cost: int = msgspec.field(default=1, name="c")
    retrying: int = msgspec.field(default=0, name="r")
    stuck: int = msgspec.field(default=0, name="k")
    dead_lettered: int = msgspec.field(default=0, name="d")
    skipped: int = msgspec.field(default=0, name="s")
    offset: int = msgspec.field(default=-1, name="o")
    error: str = msgspec.field(default="", name="e")

    @property
    def is_poisoned(self) -> bool:
        """Whether some message failed, or does not come to an end."""
        return bool(self.retrying or self.stuck or self.dead_lettered or self.skipped)

    def encode(self) -> bytes:
        """Return the metadata; nothing at all for a note that says nothing."""
        return b"" if self == _NOTHING else _encoder.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Note:
        """Return what a holder published; a note that says nothing if it is no note."""
        return _decode(data) if data else _NOTHING


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Note)
_NOTHING: Final = Note()


@lru_cache(maxsize=4096)
def _decode(data: bytes) -> Note:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _NOTHING


class _Trouble:
    __slots__ = ("dead", "error", "failing", "last", "skipped", "stuck")

    def __init__(self) -> None:
        self.failing: set[int] = set()
        self.stuck: frozenset[int] = frozenset()
        self.dead = 0
        self.skipped = 0
        self.last = -1
        self.error = ""

    def note(self) -> Note:
        now = self.failing | self.stuck
        return Note(
            retrying=len(self.failing),
            stuck=len(self.stuck),
            dead_lettered=self.dead,
            skipped=self.skipped,
            offset=min(now) if now else self.last,
            error=self.error,
        )


class Troubles:
    """The messages that fail, by partition. Not for several threads at once."""

    def __init__(self) -> None:
        self._of: dict[Home, _Trouble] = {}
        self._changed: set[Home] = set()

    def failing(self, home: Home, offset: int, error: BaseException) -> None:
        """A message failed, and will be tried again."""
        trouble = self._of.setdefault(home, _Trouble())
        trouble.failing.add(offset)
        trouble.error = type(error).__name__[:MAX_CLASS]
        self._changed.add(home)

    def recovered(self, home: Home, offset: int) -> None:
        """It is done after all, or somebody else's."""
        trouble = self._of.get(home)
        if trouble is not None and offset in trouble.failing:
            trouble.failing.discard(offset)
            self._changed.add(home)

    def given_up(self, home: Home, offset: int, error: BaseException, *, dead: bool) -> None:
        """It went to the dead-letter topic, or was skipped."""
        trouble = self._of.setdefault(home, _Trouble())
        trouble.failing.discard(offset)
        trouble.dead += dead
        trouble.skipped += not dead
        trouble.last = offset
        trouble.error = type(error).__name__[:MAX_CLASS]
        self._changed.add(home)

    def stuck(self, messages: Iterable[tuple[Home, int]]) -> None:
        """These are all that are stuck now."""
        now: dict[Home, set[int]] = {}
        for home, offset in messages:
            now.setdefault(home, set()).add(offset)
        for home in now.keys() | self._of.keys():
            offsets = frozenset(now.get(home, ()))
            if offsets != (self._of[home].stuck if home in self._of else frozenset()):
                self._of.setdefault(home, _Trouble()).stuck = offsets
                self._changed.add(home)

    @property
    def stuck_now(self) -> int:
        """How many are stuck."""
        return sum(len(trouble.stuck) for trouble in self._of.values())

    def of(self, home: Home) -> Note:
        """Return what is to be said of a partition."""
        trouble = self._of.get(home)
        return _NOTHING if trouble is None else trouble.note()

    def all(self) -> dict[Home, Note]:
        """Return what is to be said of each partition."""
        return {home: trouble.note() for home, trouble in self._of.items()}

    def forget(self, home: Home) -> None:
        """The claim has ended: the next holder counts for itself."""
        self._of.pop(home, None)
        self._changed.discard(home)

    def tell_again(self, home: Home) -> None:
        """What changed there could not be published yet."""
        if home in self._of:
            self._changed.add(home)

    def take_news(self) -> list[tuple[Home, Note]]:
        """Return what changed since the last call."""
        changed, self._changed = self._changed, set()
        return [(home, self.of(home)) for home in changed]

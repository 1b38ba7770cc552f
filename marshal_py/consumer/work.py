"""What works on the messages of a consumer, as whoever gives back ranges sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from marshal_py.consumer.held_partition import HeldPartition

__all__ = ["Work"]


class Work(Protocol):
    """A loop, or handlers."""

    is_loop: bool
    """Whether the next message is taken when the one before is done."""

    def cut(self, part: HeldPartition, give_back: Callable[[int], None]) -> None:
        """Call `give_back` with the first message of a range that was not begun.

        None of what it gives back is begun after that.
        """

    def next_offset(self, part: HeldPartition) -> int:
        """Return the first message of a range that was not begun, as of a moment ago."""

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether something of `part` is in the user's hands, or must still go there."""

    def progress(self) -> object | None:
        """Return what changes whenever a message is begun; None while one could be at once."""

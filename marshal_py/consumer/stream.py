"""One partition of Kafka whose messages belong to several parts: slots of it, or ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from confluent_kafka import KafkaException, TopicPartition

from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.protocol.balance import Unit

__all__ = ["LEAP", "Stream", "known_end"]

LEAP: Final = 10_000
"""Where nobody wants the next so many offsets, Kafka need not send them."""


class Stream(Protocol):
    """Reads a partition once for all of its parts. All of it is called between two fetches."""

    parts: dict[int, HeldPartition]
    """Those that are fetched, by `HeldPartition.number`."""
    is_lost: bool
    """Kafka has ended the fetching: there is nothing where it was."""
    end: int
    """There are messages below it, as far as is known; −1: nothing is."""

    @property
    def source(self) -> Unit:
        """The partition."""

    @property
    def is_of_use(self) -> bool:
        """Whether what it has read, or is told, may still serve somebody."""

    def add(self, number: int, part: HeldPartition) -> None:
        """Fetch this one, too. It may be out of range by what is known."""

    def lose(self, end: int) -> None:
        """Kafka has nothing where it was to read: no messages from `end` on; −1: not known."""

    def truncated(self, end: int) -> None:
        """There are no messages from `end` on any more, and whom it concerns knows."""

    def renew(self) -> None:
        """The topic was made anew: what is known is not of this one."""

    def note(self, messages: list[Any]) -> int:
        """Look at what was fetched before anything else does.

        Returns from where on others are gone that were known to be there; −1: none are.
        """

    def follow(self, kafka: Any) -> None:
        """Have Kafka bring what the parts want now."""

    def stop(self, kafka: Any) -> None:
        """Have Kafka bring nothing more, and keep nothing."""

    def kept_for_parts(self) -> Iterator[tuple[HeldPartition, list[Any]]]:
        """Yield what was fetched before somebody wanted it, and is wanted now."""

    def sort(self, messages: list[Any]) -> Iterator[tuple[HeldPartition, list[Any]]]:
        """Yield what of these messages, which are in order, belongs to which part."""

    def passed(self, end: int, kafka: Any) -> bool:
        """Kafka has brought what there is below `end`, and each part was given its messages.

        Returns whether it is time to `follow`.
        """

    def ended(self, end: int, kafka: Any) -> bool:
        """Kafka has nothing more to bring for now, as `passed`.

        A part may be out of range by that.
        """


def known_end(source: Unit, kafka: Any) -> int:
    """Return the offset behind the last message, as it came with others; negative: not known."""
    try:
        _, end = kafka.get_watermark_offsets(TopicPartition(*source), cached=True)
    except KafkaException:
        return -1
    return int(end)

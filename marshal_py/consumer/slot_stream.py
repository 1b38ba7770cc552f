"""One partition of Kafka, read once for all the slots of it that a consumer holds.

Each slot is read from its own position on. Kafka reads the partition from the lowest of them; what
a slot has been given already, or does not want now, is passed over. A slot whose messages are not
wanted for a while (its lease has lapsed, it is paused, its handlers are behind) is not waited for
and nothing is kept for it: when it wants them again, Kafka is asked again, and the others pass over
what they have had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import mmh3
from confluent_kafka import TopicPartition

from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.leader_epochs import LeaderEpochs, Unverified
from marshal_py.consumer.stream import LEAP, known_end
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.slots import Slot

__all__ = ["SlotStream"]


class SlotStream:
    """The slots of one partition that are fetched. All of it is called between two fetches."""

    def __init__(self, slot: Slot, unverified: Unverified) -> None:
        self.source: Final[Unit] = (slot.topic, slot.partition)
        self.parts: dict[int, HeldPartition] = {}
        """By the number of the slot."""
        self.is_lost = False
        """Kafka has ended the fetching: there is nothing where it was."""
        self.end = -1
        """There are messages below it, as far as is known."""
        self._slots = slot.slots
        self._unverified = unverified
        self._epochs = LeaderEpochs()
        """Of the messages of all slots."""
        self._wanting: list[HeldPartition] = []
        self._at: int | None = None
        """What Kafka brings next: −1 for its first message; None: it is not asked."""
        self._is_paused = False

    def add(self, number: int, part: HeldPartition) -> None:
        """Fetch a slot, too."""
        self.parts[number] = part
        if not self._epochs.take_over(part.epochs):
            part.out_of_range = True  # it comes from before something was lost
        part.epochs = self._epochs

    def lose(self, end: int) -> None:  # noqa: ARG002 (see `Stream`)
        """Kafka has nothing where it was to read."""
        self.is_lost = True
        self._epochs = LeaderEpochs()
        for part in self.parts.values():
            part.epochs = self._epochs

    def truncated(self, end: int) -> None:
        """There are no messages from `end` on any more."""
        self.end = min(self.end, end)

    def renew(self) -> None:
        """The topic was made anew."""
        self.end = -1
        self.lose(-1)

    def note(self, messages: list[Any]) -> int:
        """Return from where on the messages are others than a slot had before; −1: they are not.

        Kafka was asked with the epoch of the slot that is behind the others.
        """
        return self._epochs.note_all(messages)

    def follow(self, kafka: Any) -> None:
        """Have Kafka bring what the slots want now."""
        parts = self.parts.values()
        self._wanting = [part for part in parts if part.wants_messages]
        where = [TopicPartition(*self.source)]
        if not self._wanting:
            if not parts:
                self.stop(kafka)
            elif self._at is not None and not self._is_paused:
                kafka.pause(where)
                self._is_paused = True
            return
        if any(part.out_of_range for part in self._wanting):
            return  # once it is known where each of them goes on
        first = min(part.read_to for part in self._wanting)
        if self._at is None or self.is_lost or not 0 <= first - self._at <= LEAP:
            self.stop(kafka)
            kafka.incremental_assign([self._unverified.place(self.source, first, self._epochs)])
            self._at = first
        elif self._is_paused:
            kafka.resume(where)
            self._is_paused = False

    @property
    def is_of_use(self) -> bool:
        """Whether a slot of it is fetched."""
        return bool(self.parts)

    def kept_for_parts(self) -> Iterator[tuple[HeldPartition, list[Any]]]:
        """Nothing is kept."""
        return iter(())

    def stop(self, kafka: Any) -> None:
        """Have Kafka bring nothing more."""
        if self._at is not None:
            where = [TopicPartition(*self.source)]
            kafka.resume(where)  # a pause would outlive the assignment
            kafka.incremental_unassign(where)
        self._at, self._is_paused, self.is_lost = None, False, False

    def sort(self, messages: list[Any]) -> Iterator[tuple[HeldPartition, list[Any]]]:
        """Yield what of these messages, which are in order, belongs to which slot."""
        slots, of = self._slots, mmh3.hash
        found: list[list[Any]] = [[] for _ in range(slots)]
        for message in messages:  # as `slots.slot_of_key`: every message passes here
            key = message.key()
            found[(message.offset() if key is None else of(key, 0, False)) % slots].append(message)
        for part in self._wanting:
            mine = found[part.slot.number] if part.slot is not None else messages
            if mine and mine[0].offset() < part.read_to:
                mine = [message for message in mine if message.offset() >= part.read_to]
            if mine:
                yield part, mine

    def ended(self, end: int, kafka: Any) -> bool:
        """Kafka has nothing more to bring.

        A slot that is beyond the last message was there before something was lost. It is not asked
        for where the slot is, if another is behind.
        """
        last_end = known_end(self.source, kafka)
        for part in self.parts.values():
            part.out_of_range |= 0 <= last_end < part.read_to
        return self.passed(end, kafka)

    def passed(self, end: int, kafka: Any) -> bool:  # noqa: ARG002 (see `Stream`)
        """Kafka has brought what there is below `end`, and each slot was given its messages."""
        self.end = max(self.end, end)
        self._at = end if self._at is None else max(self._at, end)
        for part in self._wanting:
            if end > part.read_to:
                part.read_to = end
                part.reached(end)
                part.fetched = max(part.fetched, end)
        return False

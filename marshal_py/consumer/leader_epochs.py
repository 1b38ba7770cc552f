"""Leader epochs of a partition (KIP-320): they tell whether what is before an offset was lost.

A partition that lost its last messages and has grown again has messages at the old offsets, of
later leaders. So the epoch of the message before the position goes with the position. If the next
message has the same, that one is there: an offset and an epoch are of one message only. If it has
a later one, Kafka is asked (`Unverified`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from marshal_py.protocol.balance import Unit

__all__ = ["LeaderEpochs", "Unverified", "truncated_at"]

_TRUNCATED_AT: Final = re.compile(r"truncation detected.*broker end offset is (\d+)")
"""How librdkafka says, and nowhere else, where a partition ended that may have grown again."""

KEPT: Final = 64
"""Changes of the leader that are known, at most; the first ones go."""


class LeaderEpochs:
    """Which leader epoch the messages of one partition have, as far as they were seen.

    One thread notes; any may ask.
    """

    def __init__(self) -> None:
        self._known: tuple[tuple[int, int], ...] = ()
        """Offsets and epochs, both in order: what comes after has that epoch, or a later one."""

    def before(self, offset: int) -> int:
        """Return the epoch of what comes before `offset`; −1: not known."""
        known = self._known
        at = bisect_right(known, offset - 1, key=itemgetter(0))
        return known[at - 1][1] if at else -1

    def note(self, epoch: int, offset: int) -> bool:
        """What is at `offset` has this epoch. Returns whether that fits: epochs never go back.

        If it does not, some of what is known is of messages that are gone.
        """
        known = self._known
        at = bisect_right(known, offset, key=itemgetter(0))
        earlier, later = known[:at], known[at:]
        if later and later[0][1] < epoch:
            return False
        if earlier and earlier[-1][1] >= epoch:
            return earlier[-1][1] == epoch
        if earlier and earlier[-1][0] == offset:
            return False
        self._known = (*earlier, (offset, epoch), *later)[-KEPT:]
        return True

    def note_all(self, messages: list[Any]) -> int:
        """Note those of `messages`, which are in order.

        Returns the offset of the first that does not fit; −1: all do.
        """
        first, last = messages[0], messages[-1]
        epoch = first.leader_epoch()
        if epoch is None or epoch < 0:  # an old broker
            return -1
        if last.leader_epoch() == epoch == self.before(first.offset() + 1) and (
            last is first or self.before(last.offset() + 1) == epoch
        ):
            return -1
        for message in messages:
            if not self.note(message.leader_epoch(), message.offset()):
                return int(message.offset())
        return -1

    def take_over(self, other: LeaderEpochs) -> bool:
        """Note what `other` knows. Returns whether it fits."""
        fits = True
        for offset, epoch in other._known:
            fits &= self.note(epoch, offset)
        return fits


class Unverified:
    """Where partitions began to be fetched, until it is known that what came before is there.

    All of it is called between two fetches.
    """

    def __init__(self) -> None:
        self._places: dict[Unit, TopicPartition] = {}

    def place(self, source: Unit, offset: int, epochs: LeaderEpochs) -> TopicPartition:
        """Return where to fetch a partition from."""
        epoch = epochs.before(offset)
        where = TopicPartition(*source, offset if offset >= 0 else OFFSET_BEGINNING)
        self._places.pop(source, None)
        if epoch >= 0:
            self._places[source] = TopicPartition(*source, offset, leader_epoch=epoch)
        return where

    def verify(self, source: Unit, first: Any, kafka: Any) -> bool:
        """Look at the first message that came of a partition.

        Returns False if Kafka is asked with the epoch: it begins there once more, or says what was
        lost. librdkafka does not ask by itself where it begins, but where it is told to `seek`.
        """
        if not self._places or (where := self._places.pop(source, None)) is None:
            return True
        epoch = first.leader_epoch()
        if epoch is None or epoch <= where.leader_epoch:
            return True
        kafka.seek(where)
        return False


def truncated_at(answer: Any) -> int:
    """Return from where on a partition lost its messages, as Kafka says; −1: it does not."""
    error = answer.error()
    found = None if error is None else _TRUNCATED_AT.search(error.str())
    return -1 if found is None else int(found[1])

"""How a group shares a topic: by partitions, by so many slots each, or by ranges. All alike.

Two members that share a topic differently would hand out the same messages, under claims that the
other does not look at. So the group agrees in the log, by an ordinary cell (PROTOCOL §5.17): its
position is the number of slots, or stands for ranges. Whoever comes first claims it, sets it, and
releases it; all others read it. Members that share by partitions leave it alone, unless somebody
has begun to set it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from marshal_py.client.claim import core_of
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.errors import Closed, NotHeld, SharingDiffers
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.slots import (
    BY_PARTITIONS,
    BY_RANGES,
    agreement_cell,
    check_slots,
    in_words,
    slots_cell,
)

__all__ = ["Agreement"]


class Agreement:
    """What one member may claim of the topics that it wants. For the thread of the assignment.

    `slots`: so many for each partition; `BY_PARTITIONS`: it claims whole partitions; `BY_RANGES`:
    ranges of messages.
    """

    def __init__(self, marshal: Marshal, slots: int) -> None:
        self._marshal = marshal
        self._slots = slots
        self._claims: dict[str, Claim] = {}
        """Topic → the claim under which this member sets how it is shared."""

    def ready(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return those of the topics (with their numbers of partitions) that may be claimed.

        Of the others the group has to agree first: that is under way. Raises `SharingDiffers`.
        """
        if self._slots == BY_PARTITIONS:
            self._refuse_if_shared_by_ranges(counts)
            return dict(counts)
        return {topic: n for topic, n in counts.items() if self._agrees(topic, n)}

    def allows(self, part: HeldPartition) -> bool:
        """Whether a partition, or slot, that has just been claimed may be worked on.

        It is looked at after the claim was read: whoever shares the topic otherwise has agreed on
        that before, and is seen; or comes later, and sees. Raises `SharingDiffers`.
        """
        if self._marshal.settings.wire == "text":
            return True
        if self._slots == BY_PARTITIONS:
            about = self._marshal.cell(*agreement_cell(part.topic))
            if about is None or (about.position < 0 and not about.held):
                return True
        return self._agrees(part.topic, 0)

    def units(self, counts: Mapping[str, int]) -> list[Unit]:
        """Return the slots of these topics."""
        return [
            (slots_cell(topic, p, self._slots), slot)
            for topic, count in counts.items()
            for p in range(count)
            for slot in range(self._slots)
        ]

    def _agrees(self, topic: str, count: int) -> bool:
        """Whether the group shares a topic of `count` partitions as this member does."""
        marshal = self._marshal
        agreement = agreement_cell(topic)
        cell = marshal.cell(*agreement)
        claim = self._claims.get(topic)
        if cell is not None and cell.position >= 0:
            if claim is not None:
                del self._claims[topic]
                claim.release(wait=False)
            if cell.position != self._slots:
                raise SharingDiffers(
                    f"group {marshal.group_id!r} shares {topic!r} by {_by(cell.position)}, this "
                    f"member would by {_by(self._slots)}: start it with "
                    f"{_argument(cell.position)}, or change the group with `marshal group slots "
                    f"{marshal.group_id} {topic} {in_words(self._slots)}`"
                )
            return True
        if self._slots not in (BY_PARTITIONS, BY_RANGES):
            check_slots(self._slots, {topic})
        self._refuse_if_shared_by_partitions(topic, count, claim)
        if claim is None or core_of(claim).ended.is_set():
            self._claims[topic] = marshal.want(*agreement)
        elif claim.held:
            with contextlib.suppress(NotHeld, Closed):
                claim.commit(self._slots)  # it goes with the release
                claim.release(wait=False)
        return False

    def _refuse_if_shared_by_ranges(self, topics: Iterable[str]) -> None:
        """Raise `SharingDiffers`: while ranges are open, no partition is ever won."""
        if self._marshal.settings.wire == "text":
            return
        for topic in topics:
            with contextlib.suppress(Closed):  # who is closed claims nothing either
                cell = self._marshal.cell(*agreement_cell(topic))
                if cell is not None and cell.position == BY_RANGES:
                    self._agrees(topic, 0)

    def _refuse_if_shared_by_partitions(self, topic: str, count: int, claim: Claim | None) -> None:
        """Raise `SharingDiffers` if somebody works, or has worked, on whole partitions.

        Whoever claims one after `claim` was accepted waits for what is agreed on.
        """
        if self._slots == BY_PARTITIONS:
            return
        marshal = self._marshal
        for p in range(count):
            cell = marshal.cell(topic, p)
            # By ranges, a position is where they begin.
            is_used = cell is not None and self._slots != BY_RANGES and cell.position >= 0
            if cell is not None and (cell.held or is_used):
                if claim is not None:
                    del self._claims[topic]
                    claim.release(wait=False)
                raise SharingDiffers(
                    f"group {marshal.group_id!r} shares {topic!r} by partitions ({topic}/{p} is "
                    f"{'held' if cell.held else 'at ' + str(cell.position)}), this member would by "
                    f"{_by(self._slots)}: start it with sharing='partitions', or change the group "
                    f"with `marshal group slots {marshal.group_id} {topic} {in_words(self._slots)}`"
                )


def _by(slots: int) -> str:
    if slots == BY_RANGES:
        return "ranges"
    return "partitions" if slots == BY_PARTITIONS else f"keys, {slots} slots to a partition"


def _argument(slots: int) -> str:
    if slots == BY_RANGES:
        return "sharing='ranges'"
    return "sharing='partitions'" if slots == BY_PARTITIONS else f"sharing='keys', slots={slots}"

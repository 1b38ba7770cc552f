"""What the members of a group share, as `Consumer` sees it: partitions, slots of them, or ranges.

`ByPartitions` and `BySlots` are here; `marshal_py.consumer.by_ranges` has the third.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.consumer.deserializers import Deserializers
from marshal_py.consumer.fetcher import Fetcher, key_of
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.consumer.partition_claims import PartitionClaims
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.errors import InvalidArgument, NotHeld
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.slots import slot_of, slot_of_key, slots_cell, source_of
from marshal_py.protocol.subscription import Subscription

__all__ = ["ByPartitions", "BySlots", "Shared"]


class Shared(Protocol):
    """One way of sharing. What `Consumer` says of a method of the same name holds here as well."""

    @property
    def subscription(self) -> Subscription:
        """What this member wants, and tells the others that it does."""

    def part_of(self, message: Any) -> HeldPartition | None:
        """Return what a message was handed out from, if its claim has not ended."""

    def standing_of(self, claim: Claim) -> tuple[Unit, int] | None:
        """Return where a partition stands in the log; None if another claim tells."""

    def pause(self, topic: str, partition: int) -> None:
        """Hand out nothing more of a partition."""

    def resume(self, topic: str, partition: int) -> None:
        """Go on with it."""

    def paused(self) -> list[Unit]:
        """Return the partitions that are paused."""

    def seek(self, topic: str, partition: int, offset: int, timeout_s: float) -> None:
        """Go on with a partition at `offset`."""

    def lag(self, timeout_s: float) -> dict[Unit, int]:
        """Return how far partitions are behind their ends. Raises `BrokerUnavailable`."""

    def set_max_claims(self, max_claims: int | None) -> None:
        """Take no more than so many."""

    def release(self, message: Any, delay_s: float) -> None:
        """Have a message that was handed out come again, after `delay_s`."""

    def delivery_count(self, message: Any) -> int:
        """Return how often a message was claimed."""


class ByPartitions:
    """Each partition goes to one member."""

    def __init__(
        self,
        partitions: Partitions,
        positions: Positions,
        fetcher: Fetcher,
        claims: PartitionClaims,
    ) -> None:
        self._partitions: Final = partitions
        self._positions = positions
        self._fetcher = fetcher
        self._claims = claims

    @property
    def subscription(self) -> Subscription:
        """What this member wants, and tells the others that it does."""
        return self._claims.subscription

    def part_of(self, message: Any) -> HeldPartition | None:
        """Return the partition that a message is in, if it came under the claim of now."""
        return _if_of(self._partitions.by_key.get(key_of(message)), message)

    def standing_of(self, claim: Claim) -> tuple[Unit, int] | None:
        """Return where the claimed partition stands in the log."""
        return (claim.topic, claim.partition), max(claim.stored_offset, claim.claimed_offset)

    def pause(self, topic: str, partition: int) -> None:
        """Hand out nothing more of a partition that is held. Raises `NotHeld`."""
        for part in self._held(topic, partition):
            self._partitions.pause(part, True)

    def resume(self, topic: str, partition: int) -> None:
        """Go on with it. Raises `NotHeld`."""
        for part in self._held(topic, partition):
            self._partitions.pause(part, False)

    def paused(self) -> list[Unit]:
        """Return the partitions that are paused."""
        paused = (part.source for part in self._partitions.all() if part.is_paused)
        return list(dict.fromkeys(paused))

    def seek(self, topic: str, partition: int, offset: int, timeout_s: float) -> None:
        """Go on with a partition that is held at `offset`. Raises `NotHeld`, `ClaimTimeout`."""
        self._partitions.seek(self._held(topic, partition), offset, timeout_s)

    def lag(self, timeout_s: float) -> dict[Unit, int]:
        """Return how far partitions that are held are behind. Raises `BrokerUnavailable`."""
        active = list(self._fetcher.active.values())
        lags = self._positions.lags(active, timeout_s)
        found: dict[Unit, int] = {}
        for part in active:
            if part.key in lags:
                found[part.source] = max(found.get(part.source, 0), lags[part.key])
        return found

    def set_max_claims(self, max_claims: int | None) -> None:
        """Take no more than so many units."""
        self._claims.change(max_claims=max_claims)

    def release(self, message: Any, delay_s: float) -> None:  # noqa: ARG002 (see `Shared`)
        """Raise `InvalidArgument`: what is behind it in order would have to wait for it."""
        raise InvalidArgument(
            "kind = RELEASE: a message is released with sharing='ranges' alone; otherwise leave "
            "it unacknowledged"
        )

    def delivery_count(self, message: Any) -> int:  # noqa: ARG002 (see `Shared`)
        """Raise `InvalidArgument`: nothing counts that."""
        raise InvalidArgument("delivery_count: deliveries are counted with sharing='ranges'")

    def parts_of(self, topic: str, partition: int) -> list[HeldPartition]:
        """Return what is wanted of a partition: itself, or some slots of it."""
        return [part for part in self._partitions.all() if part.source == (topic, partition)]

    def _held(self, topic: str, partition: int) -> list[HeldPartition]:
        """Return what is held of a partition, with slots whose leases may be regained."""
        parts = self.parts_of(topic, partition)
        if not any(part.claim.held for part in parts):
            raise NotHeld(f"{topic}/{partition} is not held")
        return [part for part in parts if part.stage is not Stage.WANTED or part.claim.held]


class BySlots(ByPartitions):
    """Each partition has so many slots, by the keys of its messages; each goes to one member."""

    def __init__(
        self,
        marshal: Marshal,
        partitions: Partitions,
        positions: Positions,
        fetcher: Fetcher,
        claims: PartitionClaims,
        deserializers: Deserializers,
        slots: int,
    ) -> None:
        super().__init__(partitions, positions, fetcher, claims)
        self._marshal = marshal
        self._deserializers = deserializers
        self._slots = slots

    def part_of(self, message: Any) -> HeldPartition | None:
        """Return the slot that a message is in, if it came under the claim of now."""
        source = key_of(message)
        if not self._deserializers.changes_keys:
            slot = slot_of_key(message.key(), message.offset(), self._slots)
            unit = slots_cell(*source, self._slots), slot
            return _if_of(self._partitions.by_key.get(unit), message)
        for part in self.parts_of(*source):  # its key does not tell any more
            if part.has_handed_out(message.offset()):
                return _if_of(part, message)
        return None

    def standing_of(self, claim: Claim) -> tuple[Unit, int] | None:
        """Return the lowest of its partition's slots, for the claim on the first of them."""
        slot = slot_of(claim.topic, claim.partition)
        if slot is None or slot.number:
            return None
        driver = driver_of(self._marshal)
        with driver.lock:  # also when it is closed: what was stored at the end counts
            world, group = driver.world, self._marshal.group_id
            cells = [world.cell(group, claim.topic, n) for n in range(slot.slots)]
        at = min(-1 if cell is None else cell.position for cell in cells)
        return source_of(claim.topic, claim.partition), at


def _if_of(part: HeldPartition | None, message: Any) -> HeldPartition | None:
    return part if part is not None and part.is_of(message) else None

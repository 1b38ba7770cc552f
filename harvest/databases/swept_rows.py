"""Published rows where there are no partitions to drop: deleted, oldest first, a few at a time.

Implements `harvest.maintenance.partitions.PartitionStore` for range mode in SQLite, MariaDB and
MySQL. Ids and ages ascend together, nearly: a batch in which nothing is old enough ends the search,
so that rows that are kept are not looked at again and again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from harvest.maintenance.partitions import Extent, Inventory, Partition

__all__ = ["SweptRows"]

_BATCH: Final = 2_000
_MOST: Final = 200_000
"""So many rows a time at most: whoever stops the harvester waits for it."""
_BEFORE_ALL: Final = -(1 << 63)


class SweptRows(ABC):
    """All but the dialect."""

    @abstractmethod
    def _any(self) -> bool:
        """Whether there is any row."""

    @abstractmethod
    def _ages(self, after: int, below: int, retain_s: float, limit: int) -> Sequence[Any]:
        """The next ids between `after` and `below`, and whether each row is old enough to go."""

    @abstractmethod
    def _delete(self, ids: str) -> int:
        """Delete the rows of the list, in a transaction of its own; return how many."""

    def inventory(self) -> Inventory:
        """See `PartitionStore.inventory`: no partitions; whether there are rows, not how many."""
        return Inventory((), 0, int(self._any()), partitioned=False)

    def create(self, low: int, high: int) -> str | None:
        """See `PartitionStore.create`: there are none."""
        del low, high
        return None

    def extent(self, partition: Partition) -> Extent:
        """See `PartitionStore.extent`: there are none."""
        raise NotImplementedError(partition.name)

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        """See `PartitionStore.rows`: there are none."""
        raise NotImplementedError(partition.name)

    def drop(self, partition: Partition, expected: Extent | None = None) -> bool:
        """See `PartitionStore.drop`: there are none."""
        del partition, expected
        return False

    def sweep(self, below: int, retain_s: float) -> int:
        """See `PartitionStore.sweep`; at most 200,000 rows a time."""
        swept, after = 0, _BEFORE_ALL
        while swept < _MOST:
            batch = self._ages(after, below, retain_s, _BATCH)
            old = [str(int(row_id)) for row_id, is_old in batch if is_old]
            if not old:
                break
            swept += self._delete(", ".join(old))
            after = batch[-1][0]
        return swept

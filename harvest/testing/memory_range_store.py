"""An outbox table in memory, in range mode: a fake held to the contract of the real stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harvest.core.gaps import Holders, Range, missing, union
from harvest.core.interfaces.mark_store import Backlog, Finding
from harvest.core.interfaces.range_store import Bounds, Window, waiting_after
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.core.shards import shard_of
from harvest.errors import StoreUnavailable
from harvest.testing.memory_table import MemorySources, MemoryTable

__all__ = ["MemoryRangeStore"]


class MemoryRangeStore(MemorySources):
    """A connection to a `MemoryTable`, for one shard. Implements `RangeStore`.

    `fail_next`: the next question raises `StoreUnavailable`.
    """

    def __init__(self, table: MemoryTable, shard: int = 0, shards: int = 1) -> None:
        self.table = table
        self.shard = shard
        self.shards = shards
        self.fail_next = False

    def connect(self) -> None:
        """See `RangeStore.connect`."""

    def bounds(self) -> Bounds:
        """See `RangeStore.bounds`."""
        self._fail()
        return Bounds(1, self.table.next_id - 1)

    def read(self, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        self._fail()
        with self.table.lock:
            ids = sorted(id for id in self.table.committed if id > after)[:limit]
            rows = self._mine(ids)
        last = ids[-1] if ids else after
        return Window(rows, last, missing(after, ids), len(ids) == limit)

    def lookup(self, ranges: Sequence[Range]) -> list[Range]:
        """See `RangeStore.lookup`."""
        self._fail()
        return union((id, id) for id in self._within(ranges))

    def fetch(self, ids: Sequence[Range]) -> list[Row]:
        """See `RangeStore.fetch`."""
        self._fail()
        return self._mine(self._within(ids))

    def holders(self) -> Holders:
        """See `RangeStore.holders`."""
        self._fail()
        with self.table.lock:
            drawn = self.table.next_id - 1
            running = {t.name for t in self.table.running if not t.prepared}
            nameless = {t.name for t in self.table.running if t.prepared}
        return Holders(frozenset(running), frozenset(nameless), drawn)

    def layout(self) -> int:
        """See `RangeStore.layout`."""
        with self.table.lock:
            if self.table.shards is None:
                self.table.shards = self.shards
            return self.table.shards

    def save(self, position: Position) -> None:
        """See `RangeStore.save`."""
        self._fail()
        with self.table.lock:
            old = self.table.saved.get(position.shard)
            if old is None or old.last_id <= position.last_id:
                self.table.saved[position.shard] = position

    def saved(self) -> list[Position]:
        """See `RangeStore.saved`."""
        with self.table.lock:
            return [self.table.saved[shard] for shard in sorted(self.table.saved)]

    def ping(self) -> None:
        """See `RangeStore.ping`."""

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        """See `RangeStore.rewrite`."""
        with self.table.lock:
            self.table.saved = {position.shard: position for position in positions}
            self.table.shards = shards

    def backlog(self, position: Position | None = None) -> Backlog:
        """See `RangeStore.backlog`; ages are not kept, the oldest is 0 s old."""
        after, gaps = waiting_after(self, self.shards, position)
        rows = 0
        for shard, last_id in enumerate(after):
            other = MemoryRangeStore(self.table, shard=shard, shards=self.shards)
            open_ = [(low, high) for n, low, high in gaps if n == shard]
            with self.table.lock:
                waiting = [
                    id
                    for id in self.table.committed
                    if id > last_id or any(low <= id <= high for low, high in open_)
                ]
                rows += len(other._mine(waiting))
        return Backlog(rows, 0, 0.0 if rows else None)

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """See `RangeStore.init`: the table always exists."""
        del value_type
        return False

    def check(self) -> list[Finding]:
        """See `RangeStore.check`."""
        return [Finding("table", "ok", "in memory")]

    def cancel(self) -> None:
        """See `RangeStore.cancel`: nothing here takes long."""

    def close(self) -> None:
        """See `RangeStore.close`."""

    def _within(self, ranges: Sequence[Range]) -> list[int]:
        with self.table.lock:
            ids = sorted(self.table.committed)
        return [id for id in ids if any(low <= id <= high for low, high in ranges)]

    def _mine(self, ids: Sequence[int]) -> list[Row]:
        rows = [self.table.committed[id].row for id in ids]
        return [row for row in rows if shard_of(row.key, self.shards) == self.shard]

    def _fail(self) -> None:
        if self.fail_next:
            self.fail_next = False
            raise StoreUnavailable

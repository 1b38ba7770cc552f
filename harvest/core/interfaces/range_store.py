"""What a harvester needs from a database in range mode.

One store is one connection, used by one thread. `read` and `lookup` are each one statement, which
sees what was committed when it began. Every method raises `StoreUnavailable` when
the connection broke or could not be made, and connects again when it is called again.

The contract that the algorithm rests on (specs/HARVEST.md §15), for every implementation:

1. Ids are drawn in ascending order: when a row is visible, every smaller id has been drawn.
2. A transaction is among the holders, under one name, from before it draws an id until it has
   ended; once it is no more, whatever it committed is visible to every later `read` or `lookup`.
   If its name can change (a prepared transaction), the new one is among the nameless.
3. A transaction inserts a row under an id that it has drawn itself.

`check` and `connect` find what would break these, and refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from harvest.core.gaps import Holders, Range, clip
from harvest.core.interfaces.mark_store import Backlog, Finding
from harvest.core.interfaces.source_store import SourceStore
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row

__all__ = ["Bounds", "RangeStore", "RangeStoreFactory", "Window", "waiting_after"]


class Window(NamedTuple):
    """What one `read` saw above an id.

    - `rows`: the rows of this shard, ascending.
    - `last_id`: the highest id that was looked at; the `after` of the question if there was none.
    - `missing`: the ids between that were not to be seen, of any shard.
    - `full`: there may be more above `last_id`.
    """

    rows: Sequence[Row]
    last_id: int
    missing: Sequence[Range] = ()
    full: bool = False

    def upto(self, id: int) -> Window:
        """The same, as if there were nothing above an id."""
        if self.last_id <= id:
            return self
        rows = [row for row in self.rows if row[0] <= id]
        # The id itself may be missing: then the next one below it that is there is the last.
        last_id = next((low - 1 for low, high in self.missing if low <= id <= high), id)
        return Window(rows, last_id, clip(self.missing, -(1 << 63), last_id))


class Bounds(NamedTuple):
    """The ids of the table: `first` that can ever be drawn, `last` that was (`first` − 1 if none
    was)."""

    first: int
    last: int

    def problem(self, position: Position) -> str | None:
        """What is wrong if the next row would count as published; None if it would not: its id is
        above the position, or in a gap below ids that an application chose itself."""
        coming = self.last + 1
        if coming > position.last_id or any(low <= coming <= high for low, high in position.gaps):
            return None
        return (
            f"the checkpoint is at id {position.last_id}, and the table has drawn ids up to "
            f"{self.last} only: was it emptied or made anew, its sequence set back, or an old "
            "backup restored? New rows would be skipped; `harvest checkpoint reset` starts from "
            "the first row, and `harvest checkpoint restore` from the copy of the position that "
            "the database has"
        )


class RangeStore(SourceStore, Protocol):
    """One shard of the outbox table, seen by the range algorithm."""

    def connect(self) -> None:
        """Connect and look at the table, so that a later `read` is quick.

        Raises `TableMissing` and `SchemaError` too, the latter also for a table whose ids do not
        keep the contract above.
        """

    def bounds(self) -> Bounds:
        """Which ids there are. Every row that is visible now has an id within."""

    def read(self, after: int, limit: int) -> Window:
        """The `limit` lowest committed rows, of any shard, with ids above `after`; of those that
        are not this shard's, only the ids."""

    def lookup(self, ranges: Sequence[Range]) -> list[Range]:
        """Which ids within `ranges` are there, of any shard, all seen at one moment."""

    def fetch(self, ids: Sequence[Range]) -> list[Row]:
        """The rows of this shard with these ids, ascending."""

    def holders(self) -> Holders:
        """The transactions that may have drawn an id and not ended yet."""

    def layout(self) -> int:
        """In how many shards the table is harvested: as many as the first one who asked had."""

    def save(self, position: Position) -> None:
        """Keep a copy of what was committed to Kafka, for people, and for when Kafka forgot it."""

    def saved(self) -> list[Position]:
        """The copies, of all shards."""

    def ping(self) -> None:
        """Ask for an answer, and do nothing else."""

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        """Set the layout, and keep these copies and no others."""

    def backlog(self, position: Position | None = None) -> Backlog:
        """Count the rows of all shards that are above `position`, and in its gaps; by default above
        the copy of each shard's. For people and slow gauges."""

    def init(self, *, value_type: Literal["text", "bytes"] = "text") -> bool:
        """Create the tables if they do not exist; return whether the outbox was created."""

    def check(self) -> list[Finding]:
        """Look at the table, its columns, ids, indexes and privileges. Changes nothing."""

    def cancel(self) -> None:
        """From any thread: break off the statement under way, which then raises."""

    def close(self) -> None:
        """Close the connection. The store can be used again; it then connects again."""


RangeStoreFactory: TypeAlias = Callable[[], RangeStore]


def waiting_after(
    store: RangeStore, shards: int, position: Position | None
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Where rows wait: above which id, for each shard; and in which gaps: shard, first, last."""
    if position is None:
        found = {saved.shard: saved for saved in store.saved()}
    else:
        found = dict.fromkeys(range(shards), position)
    none = store.bounds().first - 1
    after = [found[n].last_id if n in found else none for n in range(shards)]
    return after, [(n, *gap) for n in range(shards) if n in found for gap in found[n].gaps]

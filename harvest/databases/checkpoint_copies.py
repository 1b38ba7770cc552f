"""The table of positions beside an outbox, where only the dialect of its SQL differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from harvest.core.interfaces.mark_store import Finding
from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName

__all__ = ["LAYOUT", "CheckpointCopies"]

LAYOUT: Final = -1  # the row that says how many shards there are
_SAVED: Final = "SELECT checkpoint FROM {positions} WHERE shard >= 0 ORDER BY shard"


class CheckpointCopies(ABC):
    """The part of a `RangeStore` that keeps copies of checkpoints. For tables with `_sql`."""

    _set_layout: ClassVar[str]
    """Adds the row (shard, shards) unless it is there."""
    _get_layout: ClassVar[str]
    """Reads the shards of a shard's row."""
    _save: ClassVar[str]
    """Writes (shard, shards, last_id, checkpoint) unless what is there is newer."""
    _table: TableName
    _shards: int

    @abstractmethod
    def _sql(self, template: str) -> str: ...

    @abstractmethod
    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int: ...

    @property
    def positions_table(self) -> TableName:
        """Where copies of the checkpoints are kept: beside the outbox."""
        *schema, table = self._table.parts
        return TableName((*schema, f"{table}_positions"))

    def layout(self) -> int:
        """See `RangeStore.layout`."""
        self._change(self._sql(self._set_layout), (LAYOUT, self._shards))
        ((shards,),) = self._execute(self._sql(self._get_layout), (LAYOUT,))
        return int(shards)

    def save(self, position: Position) -> None:
        """See `RangeStore.save`."""
        self._change(self._sql(self._save), self._values(position))

    def _values(self, position: Position) -> tuple[Any, ...]:
        return position.shard, position.shards, position.last_id, position.encode()

    def saved(self) -> list[Position]:
        """See `RangeStore.saved`."""
        found = self._execute(self._sql(_SAVED))
        return [Position.decode(checkpoint.decode()) for (checkpoint,) in found]

    def _positions_finding(self, *, exists: bool) -> Finding:
        name = self.positions_table
        if not exists:
            text = f"the table {name} does not exist: run `harvest init --mode range`"
            return Finding("positions", "error", text)
        return Finding("positions", "ok", f"{name} exists")

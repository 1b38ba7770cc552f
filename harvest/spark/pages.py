"""The outbox read once for several shards of it, which one process publishes at the same time.

Each shard has its own position, connection and pace (`harvest.core.range`); what they share is the
reading. A shard that is behind finds the page that another has read. That the page is older then
does no harm: a window is what the table showed at one moment, and whatever is asked about its gaps
is asked after that moment (specs/HARVEST.md §15).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from harvest.core.gaps import Range, clip
from harvest.core.interfaces.range_store import Window
from harvest.core.row import Row
from harvest.core.table_name import TableName
from harvest.databases.postgres.range import PostgresRangeStore

__all__ = ["PagedStore", "Pages"]

_KEPT: Final = 4
"""A shard that is further behind than so many pages reads for itself, and others after it."""
_id: Final = itemgetter(0)


class _Page(NamedTuple):
    after: int
    last_id: int
    missing: Sequence[Range]
    full: bool
    rows: Sequence[Sequence[Row]]
    """Those of each shard."""


class Pages:
    """The last pages of an outbox. `read` may be called by the threads of all shards.

    `store` is read by one thread at a time, and `together` is how many shards share the pages:
    where each asks for so many rows of its own, a page has as many for each of them.
    """

    def __init__(self, store: PostgresRangeStore, together: int) -> None:
        self._store = store
        self._together = together
        self._reading = threading.Lock()
        self._pages: tuple[_Page, ...] = ()

    def read(self, shard: int, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        page = self._found(after)
        if page is None:
            with self._reading:
                page = self._found(after) or self._read(after, limit)
        rows = page.rows[shard]
        if after > page.after:
            rows = rows[bisect_right(rows, after, key=_id) :]
        last_id, full = page.last_id, page.full
        if len(rows) > limit:
            rows = rows[:limit]
            last_id, full = rows[-1][0], True
        missing = clip(page.missing, after + 1, last_id) if page.missing else ()
        return Window(rows, last_id, missing, full)

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def _found(self, after: int) -> _Page | None:
        return next((page for page in self._pages if page.after <= after < page.last_id), None)

    def _read(self, after: int, limit: int) -> _Page:
        window, rows = self._store.read_all(after, limit * self._together)
        page = _Page(after, window.last_id, window.missing, window.full, rows)
        if page.last_id > after:
            self._pages = (*self._pages[1 - _KEPT :], page)
        return page


class PagedStore(PostgresRangeStore):
    """A shard whose rows come from pages that are shared."""

    def __init__(
        self, conninfo: str, table: str | TableName, *, shard: int, shards: int, pages: Pages
    ) -> None:
        super().__init__(conninfo, table, shard=shard, shards=shards)
        self._pages = pages

    def read(self, after: int, limit: int) -> Window:
        """See `RangeStore.read`."""
        return self._pages.read(self._shard, after, limit)

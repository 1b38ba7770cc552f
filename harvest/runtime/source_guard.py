"""Looks whether the database is still the one whose rows were published (specs/HARVEST.md §20).

A leader asks its guard before the first question of a term to the table, which comes after every
reconnection, too, and every few seconds after that. What does not fit raises `DatabaseChanged`,
which ends the leadership before anything is published.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import replace
from typing import Final, Protocol

from harvest.core.interfaces.source_store import SourceStore
from harvest.core.source import Registration, Source, differences, registration_problem
from harvest.core.wal_slot import gone_back
from harvest.errors import DatabaseChanged, HarvestError
from harvest.runtime.lease import Lease

__all__ = ["LogPosition", "SourceGuard", "Sources", "WalGuard", "WalSourceStore"]

_LOOK_S: Final = 5.0
_RENEW_S: Final = 3600.0
"""Long before Kafka forgets it (`offsets.retention.minutes`)."""
LogPosition = tuple[int, int]
"""Timeline, and how far the log had come in it."""


class Sources(Protocol):
    """Where the source is kept outside of the database; see `harvest.sinks.kafka.source_record`."""

    def load(self) -> Source | None: ...
    def save(self, source: Source, *, wait: bool = False) -> None: ...
    def close(self) -> None: ...


class SourceGuard:
    """The guard of one leadership. Its methods are for the thread that uses `store`, but for `saw`,
    `fits` and `log_position`.

    - `store`: the connection on which rows are read.
    - `exact`: positions in the log are kept with every checkpoint, so that a failover that lost
      nothing is known to have lost nothing. Costs one statement for each mark or read.
    """

    def __init__(
        self, store: SourceStore, sources: Sources, registration: Registration, *, exact: bool
    ) -> None:
        self._store = store
        self._sources = sources
        self._registration = registration
        self._exact = exact
        self.lease: Lease | None = None
        """Without it, Kafka hears nothing: since it was lost, another database may be accepted."""
        self._source: Source | None = None
        self._log = 0
        """How far the log had come when rows were last seen; `_seen_up_to` raises it."""
        self._log_lock = threading.Lock()
        self._looked_s = 0.0
        self._saved_s = 0.0
        self._busy = False
        """Whether rows were seen since the last visit."""
        self.row: tuple[int, str] | None = None
        """The last row that was seen: its id and checksum."""
        self._unchecked: tuple[int, str] | None = None
        """The first that was seen since rows were compared: newer ones may have come under ids that
        were given again, and say nothing. Kafka hears of this one until it is compared."""

    @property
    def rows(self) -> list[tuple[int, str]]:
        """The rows by which it is known whether ids were given again."""
        return [row for row in (self._unchecked, self.row) if row is not None]

    def rows_fit(self) -> None:
        """All of `rows` are what they were."""
        self._unchecked = None

    @property
    def log_position(self) -> LogPosition:
        """What a checkpoint of all that was seen until now rests on; (0, 0) if it is not known."""
        if self._source is None or not self._exact:
            return 0, 0
        return self._source.timeline, self._log

    def begin(self, checkpoint: LogPosition = (0, 0)) -> None:
        """A term begins, on the connection that `store` has now.

        `checkpoint`: what the last one rests on. Raises `DatabaseChanged`, `StoreUnavailable` and
        `SinkUnavailable`.
        """
        self._source = None
        self._log = 0
        problem = registration_problem(self._registered(), self._registration)
        if problem is not None:
            raise DatabaseChanged(
                f"{problem}: two configurations would publish rows twice; stop the other one, or "
                "run `harvest switch` with this one"
            )
        # In this order: a visit is in the database before Kafka knows of it, and another shard's
        # may come in between.
        before = self._sources.load()
        now = self._store.source()
        if before is not None and checkpoint > (before.timeline, before.log):
            before = replace(before, timeline=checkpoint[0], log=checkpoint[1])
        self._compare(before, now)
        self.row = (before.row_id, before.row) if before is not None and before.row else None
        self._unchecked = self.row
        self._visit()

    def look(self) -> bool:
        """Look if that is due; return whether it was. Raises as `begin` does."""
        now_s = time.monotonic()
        if self._source is None or now_s < self._looked_s + _LOOK_S:
            return False
        problem = registration_problem(self._registered(), self._registration)
        if problem is not None:
            raise DatabaseChanged(f"{problem}: the configuration was changed by `harvest switch`")
        now = self._store.source()
        # Another leader's visit may be the last one, where there are shards.
        self._compare(replace(self._source, log=max(self._source.log, self._log)), now)
        if self._busy or now_s > self._saved_s + _RENEW_S:
            self._visit()
        self._looked_s = now_s
        return True

    def saw(self, store: SourceStore, row: tuple[int, str] | None = None) -> None:
        """Rows were marked, read or deleted on the connection of `store`. From any thread.

        `row`: the id and the checksum of one of them, if ids are the position.
        """
        self._busy = True
        self.row = row or self.row
        self._unchecked = self._unchecked or row
        if self._exact:
            self._seen_up_to(store.log_end())

    def fits(self, store: SourceStore) -> bool:
        """Whether the connection of `store` leads to the database that this term began with."""
        source = self._source
        if source is None:
            return False
        now = store.source()
        same = (now.server, now.timeline, now.table) == (
            source.server,
            source.timeline,
            source.table,
        )
        return same and differences(source, now) is None

    def close(self) -> None:
        """Let Kafka know of a row that was seen, and let go of the brokers."""
        if self._source is not None and self._busy:
            with contextlib.suppress(HarvestError):  # at most 5 s are missing then
                self._save(self._source, wait=True)
        self._sources.close()

    def _registered(self) -> Registration:
        """Who began is written down before the first term (`check_registration`)."""
        registration = self._store.registration()
        if registration is None:
            raise DatabaseChanged(f"nobody is registered any more for the outbox; {_WAY_OUT}")
        return registration

    def _compare(self, before: Source | None, now: Source) -> None:
        problem = None if before is None else self._problem(before, now)
        if problem is not None:
            raise DatabaseChanged(problem)

    def _problem(self, before: Source, now: Source) -> str | None:
        moved = now.timeline > before.timeline
        promoted_at = self._store.promoted_at() if moved else None
        problem = differences(before, now, promoted_at=promoted_at)
        return None if problem is None else f"{problem}; {_WAY_OUT}"

    def _visit(self) -> None:
        self._busy = False
        source = self._store.visit(secrets.token_hex(8))
        self._source = source
        self._seen_up_to(source.log)
        self._looked_s = time.monotonic()
        self._save(source)
        self._saved_s = self._looked_s

    def _seen_up_to(self, log: int) -> None:
        """Another thread may have seen more since the database was asked."""
        with self._log_lock:
            self._log = max(self._log, log)

    def _save(self, source: Source, *, wait: bool = False) -> None:
        if self.lease is not None and not self.lease.held:
            return
        row_id, row = self._unchecked or self.row or (0, "")
        self._sources.save(replace(source, row_id=row_id, row=row), wait=wait)


class WalSourceStore(SourceStore, Protocol):
    """The database of a slot."""

    def end_of(self, timeline: int) -> int:
        """How far it has the log of a timeline; 0 of one that is none of its own."""


class WalGuard(SourceGuard):
    """The guard of one leadership in wal mode, where a term begins with every stream."""

    def __init__(self, store: WalSourceStore, sources: Sources, registration: Registration) -> None:
        super().__init__(store, sources, registration, exact=False)
        self._end_of = store.end_of

    def streamed(self) -> None:
        """Rows came. From any thread."""
        self._busy = True

    def _problem(self, before: Source, now: Source) -> str | None:
        return gone_back(before, now, self._end_of)


_WAY_OUT: Final = (
    "nothing is published until somebody has decided which of the rows were: see "
    "`harvest checkpoint accept --help`"
)

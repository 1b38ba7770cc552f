"""What an operator changes about a replication slot while no harvester runs (specs/HARVEST.md §19).

Holds the leadership meanwhile, and can be repeated if it was interrupted: until its end, the old
checkpoint and the new slot do not belong together, and a harvester refuses them.
"""

from __future__ import annotations

import contextlib
import secrets
import select
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from harvest.config.model import ReaperConfig
from harvest.core import wal as w
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy
from harvest.core.extra_columns import with_extra
from harvest.core.interfaces.sink import Sink
from harvest.core.interfaces.source_store import SourceStore
from harvest.core.interfaces.wal_stream import WalStream
from harvest.core.row import Row
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.core.wal_slot import SlotState
from harvest.databases.postgres.header_arrays import with_headers
from harvest.databases.postgres.pgoutput import NotBinary
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import CheckpointError, ConfigurationError, SinkUnavailable
from harvest.runtime.checkpoints import alone
from harvest.runtime.parts import make_dead_letters, make_record, make_sink, make_wal_source

__all__ = [
    "Left",
    "Renewal",
    "begin_slot",
    "drop_slot",
    "goes_on",
    "keep_source",
    "leave_slot",
    "refuse_dead_letters",
    "renew_slot",
]

_PAGE: Final = 5_000
_AS_BYTES: Final = ("text", "varchar", "bpchar", "json")
_ROWS: Final = "SELECT {columns} FROM {table} WHERE id > {after} ORDER BY id"


@dataclass(frozen=True, slots=True)
class Renewal:
    """What `renew_slot` did, or would do: the slot before, rows published, where it goes on."""

    before: SlotState | None
    rows: int
    begins_at: str | None = None


def renew_slot(
    config: ReaperConfig, *, publish_table: bool, after: int | None = None, dry_run: bool = False
) -> Renewal:
    """Make the slot anew, and let the checkpoint begin there.

    `publish_table`: publish the rows that the table has from before the new slot (those above the
    id `after`, in the order of their ids) first; if it is interrupted, they come again when it is
    repeated. `dry_run`: nothing is written, nor is it noticed that a harvester runs. Raises
    `ConfigurationError` while one runs, or if there are dead letters, behind which rows of the
    table may have to wait; `StoreUnavailable` and `SinkUnavailable`.
    """
    options = config.wal.options()
    has_table = options.source == "table" and options.layout.is_goharvest
    if publish_table and not has_table:
        raise ConfigurationError(
            "--publish-table is for tables of goharvest's layout, whose ids say the order: publish "
            "the gap by other means, and use --begin-now"
        )
    with contextlib.nullcontext() if dry_run else alone(config, 1):
        if publish_table:
            refuse_dead_letters(config)
        source = make_wal_source(config)
        try:
            before = source.slot.state()
            if dry_run:
                return Renewal(before, source.count_rows(after) if publish_table else 0)
            source.create_publication()
            source.slot.drop()
            done = _renewed(
                config,
                source,
                before,
                publish_table=publish_table,
                after=after,
                guard_table=publish_table,
            )
            # Last: in a database that went back, a new slot may be behind the old position.
            keep_source(config, source)
            return done
        finally:
            source.close()


def keep_source(config: ReaperConfig, store: SourceStore) -> None:
    """Let Kafka know the database as it is now."""
    with contextlib.closing(make_record(config)) as record:
        record.save(store.visit(secrets.token_hex(8)), wait=True)


def refuse_dead_letters(config: ReaperConfig, how: str = "") -> None:
    """Rows of the table are published when the slot is made, also those that should wait."""
    with contextlib.closing(make_dead_letters(config)) as letters:
        count = letters.count()
    if count:
        raise ConfigurationError(
            f"{config.outbox} has {count} dead letters, behind which rows of the table may have to "
            f"wait: run `harvest dead-letters retry` or `drop` first{how}"
        )


def begin_slot(config: ReaperConfig) -> int:
    """Make publication and slot, and publish the rows that are in the table from before; how many.

    Whoever calls holds the leadership, and has deleted the rows that are published. Up to 5,000
    rows are published in one transaction with the checkpoint; of more, those that are published
    come again if it is interrupted and repeated.
    """
    source = make_wal_source(config)
    try:
        source.create_publication()
        before = source.slot.state()
        source.slot.drop()
        has_table = source.options.layout.is_goharvest and source.has_table()
        return _renewed(config, source, before, publish_table=has_table, after=None).rows
    finally:
        source.close()


@dataclass(frozen=True, slots=True)
class Left:
    """What `leave_slot` did, or would do: rows published from the log, rows deleted."""

    published: int
    deleted: int


def leave_slot(config: ReaperConfig, found: str | None, *, dry_run: bool = False) -> Left:
    """Publish what the log has up to a place, and delete what the table has from before it.

    So the rows that are left in the table are those that are not published. `found`: the saved
    position. Whoever calls holds the leadership. Interrupted, it can be repeated. Raises as a
    harvester does where slot and position do not belong together, and `ConfigurationError` while
    there are dead letters.
    """
    if config.wal.layout != "goharvest":
        raise ConfigurationError(
            f"{config.table} has the columns of {config.wal.layout}: only wal mode reads these"
        )
    with contextlib.closing(make_dead_letters(config)) as letters:
        count = letters.count()
    if count:
        raise ConfigurationError(
            f"{config.table} has {count} dead letters, which only wal mode puts back: run `harvest "
            "dead-letters retry` or `drop` first, with the configuration as it was"
        )
    source = make_wal_source(config)
    sink = None if dry_run else make_sink(config)
    try:
        with source.leaving() as (lsn, delete):
            published = _publish_up_to(lsn, source, sink, found, config)
            if sink is not None:
                return Left(published, delete())
            there = 0 if source.options.source == "message" else source.count_rows(None)
            return Left(published, there)
    finally:
        source.close()
        if sink is not None:
            sink.close()


def drop_slot(config: ReaperConfig) -> None:
    """Drop slot and publication, if they are there: nobody reads them any more."""
    with contextlib.closing(make_wal_source(config)) as source:
        source.slot.drop()
        source.drop_publication()


def goes_on(config: ReaperConfig, found: str | None) -> bool:
    """Whether the text `found` is a position, and the slot goes on there."""
    try:
        position = None if found is None else WalPosition.decode(found)
        if position is None:
            return False
        with contextlib.closing(make_wal_source(config)) as source:
            source.begin(position)
    except (CheckpointError, ConfigurationError):
        return False
    return True


def _publish_up_to(
    lsn: int,
    source: PostgresWalSource,
    sink: Sink | None,
    found: str | None,
    config: ReaperConfig,
) -> int:
    """Harvest what begins to be committed below `lsn`; without a sink, only count it."""
    # A row that cannot be published stops it, as one that Kafka refuses does.
    row_filter = BadRowFilter(BadRowPolicy(on_bad_row="stop"))
    scheduler = w.WalScheduler(0, True, config.limits.limits(), row_filter)
    events: deque[w.Event] = deque([w.Start()])
    stream: WalStream | None = None
    wanted: w.Read | None = None
    rows = 0
    try:
        while True:
            while events:
                for action in scheduler.step(events.popleft()):
                    match action:
                        case w.Open():
                            text = found if sink is None else sink.open(lambda: True)
                            rows = 0 if sink is None else rows
                            events.append(
                                w.Opened(None if text is None else WalPosition.decode(text))
                            )
                        case w.OpenStream(position):
                            stream, begin = source.open(0, position)
                            events.append(w.StreamOpened(begin))
                        case w.Read():
                            wanted = action
                        case w.Send(number, its, position):
                            if sink is not None:
                                _deliver(sink, its, position.encode())
                            rows += len(its)
                            events.append(w.Settled((number,)))
                        case w.Finish():
                            return rows
            assert stream is not None and wanted is not None  # noqa: S101, PT018 - it runs
            stream.keep_alive()
            try:
                done = stream.read(wanted.limit, wanted.limit_bytes)
            except NotBinary:  # the next stream of this source is in text form
                stream.close()
                stream = None
                events.append(w.StreamFailed())
                continue
            if done is None:
                select.select([stream.fileno()], [], [], 1.0)
                continue
            chunks = [chunk for chunk in done.chunks if chunk.commit_lsn < lsn]
            events.append(w.ReadDone(chunks, min(done.lsn, lsn)))
            if done.lsn >= lsn or len(chunks) < len(done.chunks):
                events.append(w.Stop())
    finally:
        if stream is not None:
            stream.close()


def _renewed(
    config: ReaperConfig,
    source: PostgresWalSource,
    before: SlotState | None,
    *,
    publish_table: bool,
    after: int | None,
    guard_table: bool = False,
) -> Renewal:
    """`guard_table`: where there is no checkpoint, make one first, that does not fit the slot.
    Whoever finds a slot and none begins with the slot: were this killed right behind it, the purge
    would take rows from before it for published. (Who switches is not registered before the end.)
    """
    sink = make_sink(config)
    try:
        found = sink.open(lambda: True)
        if found is None and guard_table:
            _deliver(sink, (), source.before_all().encode())
        with source.new_slot() as (position, connection):
            if found is None or publish_table:
                found = WalPosition(0, position.system, position.timeline, 0).encode()
            published = 0
            last: list[Row] = []
            for rows in _pages(connection, source, after) if publish_table else ():
                if last:
                    _deliver(sink, last, found)
                last = rows
                published += len(rows)
            _deliver(sink, last, position.encode())
            return Renewal(before, published, format_lsn(position.lsn))
    finally:
        sink.close()


def _deliver(sink: Any, rows: Any, checkpoint: str) -> None:
    failure = sink.deliver(rows, checkpoint)
    if failure is not None:
        raise SinkUnavailable(f"rows were not published: {failure.reason}; try again")


def _pages(
    connection: psycopg.Connection[Any], source: PostgresWalSource, after: int | None
) -> Iterator[list[Row]]:
    for name in _AS_BYTES:
        connection.adapters.register_loader(name, ByteaBinaryLoader)
    with connection.cursor("rows", row_factory=tuple_row) as cursor:
        cursor.itersize = _PAGE
        cursor.format = psycopg.pq.Format.BINARY
        cursor.execute(source.rows_query(_ROWS, after))
        while True:
            found = cursor.fetchmany(_PAGE)
            if not found:
                return
            rows = with_extra(with_headers(found), source.options.layout.headers)
            yield [Row(r[0], r[1].decode(), r[2], r[3], r[4] or (), r[5] or ()) for r in rows]

"""What an operator changes about a replication slot while no harvester runs (specs/HARVEST.md §19).

Holds the leadership meanwhile, and can be repeated if it was interrupted: until its end, the old
checkpoint and the new slot do not belong together, and a harvester refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from harvest.config.model import ReaperConfig
from harvest.core.row import Row
from harvest.core.wal_layout import GOHARVEST
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.core.wal_slot import SlotState
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import ConfigurationError, SinkUnavailable
from harvest.runtime.checkpoints import alone
from harvest.runtime.parts import make_sink, make_wal_source

__all__ = ["Renewal", "begin_slot", "renew_slot"]

_PAGE: Final = 5_000
_AS_BYTES: Final = ("text", "varchar", "bpchar", "json")
_ROWS: Final = """
SELECT id, kafka_topic::text, {key}, {value}, kafka_header_keys, kafka_header_values
FROM {table} WHERE id > {after} ORDER BY id
"""


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
    repeated. Raises `ConfigurationError` while a harvester runs, `StoreUnavailable` and
    `SinkUnavailable`.
    """
    options = config.wal.options()
    has_table = options.source == "table" and options.layout is GOHARVEST
    if publish_table and not has_table:
        raise ConfigurationError(
            "--publish-table is for tables of goharvest's layout, whose ids say the order: publish "
            "the gap by other means, and use --begin-now"
        )
    with alone(config, 1):
        source = make_wal_source(config)
        try:
            before = source.slot.state()
            if dry_run:
                return Renewal(before, source.count_rows(after) if publish_table else 0)
            source.create_publication()
            source.slot.drop()
            return _renewed(config, source, before, publish_table=publish_table, after=after)
        finally:
            source.close()


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
        has_table = source.options.layout is GOHARVEST and source.has_table()
        return _renewed(config, source, before, publish_table=has_table, after=None).rows
    finally:
        source.close()


def _renewed(
    config: ReaperConfig,
    source: PostgresWalSource,
    before: SlotState | None,
    *,
    publish_table: bool,
    after: int | None,
) -> Renewal:
    sink = make_sink(config)
    try:
        with source.new_slot() as (position, connection):
            found = sink.open(lambda: True)
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
            yield [Row(r[0], r[1].decode(), r[2], r[3], tuple(r[4]), tuple(r[5])) for r in found]

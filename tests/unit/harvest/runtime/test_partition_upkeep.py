"""Partitions go when every shard has published them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import parquet

from harvest.config.load import parse
from harvest.core.range_checkpoint import Position
from harvest.errors import ConfigurationError
from harvest.maintenance.partitions import Extent, Inventory, Partition
from harvest.runtime import partition_upkeep as module

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
    "group: g\nmode: range\nshards: 3\npartitions: {rows: 1000, retain_hours: 0}\n"
)
PARTS = [Partition(f"outbox_p{low}", low, low + 1000, 99.0) for low in (1, 1001, 2001, 3001)]


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("last_id", [None, 500, 2500])
def test_the_slowest_shard_keeps_a_partition(
    monkeypatch: pytest.MonkeyPatch, slow: int, last_id: int | None
) -> None:
    def read(shard: int) -> Position | None:
        if shard != slow:
            return Position(1, shard, 3, 3900)
        return None if last_id is None else Position(1, shard, 3, last_id)

    closed: list[str] = []
    store: Any = SimpleNamespace(
        inventory=lambda: Inventory(PARTS, 3900), close=lambda: closed.append("store")
    )
    monkeypatch.setattr(module, "database", lambda _: SimpleNamespace(partitions=lambda _: store))
    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(read=read))
    dropped = [part.low for part in module.maintain_partitions(CONFIG, dry_run=True).drop]
    assert dropped == ([1, 1001] if last_id == 2500 else [])
    assert closed == ["store"]


def test_in_wal_mode_each_look_at_what_is_published_is_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who drops a partition waits until the harvester has published what is in it."""
    config = parse(
        "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
        "group: g\nmode: wal\nwal: {purge: partitions}\n"
    )
    places = [None, SimpleNamespace(lsn=7), SimpleNamespace(lsn=9)]
    looks: list[int] = []

    def partitions(_table: object, published: Any) -> Any:
        def inventory() -> Inventory:
            looks.extend(published() for _ in range(3))
            return Inventory([], 0)

        return SimpleNamespace(inventory=inventory, close=lambda: None)

    made = SimpleNamespace(wal_partitions=partitions)
    checkpoints = SimpleNamespace(wal=lambda: places.pop(0))
    monkeypatch.setattr(module, "database", lambda _: made)
    monkeypatch.setattr(module, "Checkpoints", lambda _: checkpoints)
    module.maintain_partitions(config, dry_run=True)
    assert looks == [0, 7, 9]


def test_in_wal_mode_a_dry_run_says_of_each_partition_that_stays_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = parse(
        "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
        "group: g\nmode: wal\nwal: {purge: partitions}\n"
        "partitions: {rows: 1000, retain_hours: 1}\n"
    )
    old, busy, young = (
        part._replace(age_s=age_s) for part, age_s in zip(PARTS, (9e9, 9e9, 9.0), strict=False)
    )
    obstacles = {old: None, busy: "somebody writes to it"}
    store = SimpleNamespace(
        inventory=lambda: Inventory([old, busy, young], 3900),
        obstacle=obstacles.__getitem__,
        close=lambda: None,
    )
    made = SimpleNamespace(wal_partitions=lambda *_: store)
    monkeypatch.setattr(module, "database", lambda _: made)
    todo = module.maintain_partitions(config, dry_run=True, published=lambda: 9)
    assert todo.drop == [old]
    assert dict(todo.kept) == {young: "its newest row is 9 s old", busy: "somebody writes to it"}


@pytest.mark.parametrize(("drawn", "dropped"), [(999, []), (1000, PARTS[:1]), (1001, PARTS[:1])])
def test_in_wal_mode_a_partition_goes_that_was_filled_just_now(
    monkeypatch: pytest.MonkeyPatch, drawn: int, dropped: list[Partition]
) -> None:
    config = parse(
        "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
        "group: g\nmode: wal\nwal: {purge: partitions}\n"
        "partitions: {rows: 1000, retain_hours: 0}\n"
    )
    closed: list[str] = []
    store = SimpleNamespace(
        inventory=lambda: Inventory(PARTS[:1], drawn),
        obstacle=lambda _: None,
        close=lambda: closed.append("store"),
    )
    made = SimpleNamespace(wal_partitions=lambda *_: store)
    monkeypatch.setattr(module, "database", lambda _: made)
    todo = module.maintain_partitions(config, dry_run=True, published=lambda: 9)
    assert (todo.drop, list(todo.kept), closed) == (dropped, [], ["store"])


def test_in_wal_mode_too_rows_are_in_the_archive_before_their_partition_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = parse(
        "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
        "group: g\nmode: wal\nwal: {purge: partitions}\n"
        f"partitions: {{rows: 1000, retain_hours: 0, archive: '{tmp_path}'}}\n"
    )
    row = (7, None, "t", b"k", b"v", None, None)
    archived: list[int] = []

    def drop(_: object, expected: Extent | None) -> bool:
        assert expected == Extent(1, 7, 7)
        archived.extend(parquet.read_table(next(tmp_path.iterdir()))["id"].to_pylist())
        return True

    store = SimpleNamespace(
        inventory=lambda: Inventory(PARTS[:1], 1500),
        extent=lambda _: Extent(1, 7, 7),
        rows=lambda *_: iter([[row]]),
        create=lambda *_: None,
        drop=drop,
        close=lambda: None,
    )
    monkeypatch.setattr(
        module, "database", lambda _: SimpleNamespace(wal_partitions=lambda *_: store)
    )
    done = module.maintain_partitions(config, published=lambda: 9)
    assert [part.low for part in done.drop] == [1]
    assert archived == [7]


def test_the_archive_knows_which_rows_are_set_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed: list[str] = []
    letters = SimpleNamespace(
        ids=lambda low, high: frozenset({low, high, 2}), close=lambda: closed.append("letters")
    )
    monkeypatch.setattr(
        module, "database", lambda _: SimpleNamespace(dead_letters=lambda _: letters)
    )
    its = CONFIG.partitions.model_copy(update={"archive": str(tmp_path)})
    archive = module.make_archive(CONFIG.model_copy(update={"partitions": its}))
    assert archive is not None
    row = ("t", b"k", b"v", None, None)
    store: Any = SimpleNamespace(
        extent=lambda _: Extent(2, 2, 3),
        rows=lambda *_: iter([[(n, None, *row) for n in (2, 3)]]),
    )
    archive.keep(Partition("outbox_p1", 1, 1001), store)
    assert [found["id"] for found in archive.read(1, 1000)] == [3]
    assert parquet.read_table(archive.files()[0].path).num_rows == 2
    assert closed == ["letters"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("mode: range\nprimary: {database: host=p}\n", "where there are two databases"),
        ("mode: wal\n", "wal.purge is delete: "),
        ("mode: wal\nwal: {purge: keep}\n", "wal.purge is keep: "),
    ],
)
def test_where_partitions_are_not_dropped_that_is_said(
    monkeypatch: pytest.MonkeyPatch, more: str, why: str
) -> None:
    config = parse("database: host=d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\n" + more)
    monkeypatch.setattr(module, "database", lambda _: pytest.fail("the table is touched"))
    with pytest.raises(ConfigurationError, match=why):
        module.maintain_partitions(config)


def test_what_was_done_is_told_and_what_could_not_be_archived_is_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "harvest")
    done = SimpleNamespace(
        create=[(3001, 4001)],
        drop=PARTS[:1],
        unarchived=[(PARTS[1], "no space left")],
        kept=[(PARTS[2], "its newest row is 9 s old")],
        swept=3,
    )
    monkeypatch.setattr(module, "maintain_partitions", lambda *_, **__: done)
    module.maintain_partitions_and_tell(CONFIG)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "a partition for ids from 3001 to 4000 is ready"),
        ("INFO", "the partition outbox_p1 is dropped: all published"),
        ("ERROR", "the partition outbox_p1001 is not dropped: no space left"),
        ("INFO", "3 rows are deleted: published, and old enough"),
    ]

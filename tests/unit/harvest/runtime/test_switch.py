"""What is carried over from one configuration to the next."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.core.range_checkpoint import Position
from harvest.core.shards import shard_of
from harvest.core.source import Registration
from harvest.errors import StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.runtime import registration as module
from harvest.runtime.registration import switch
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\n"
)


@pytest.mark.parametrize("page", [1, 3, 100])
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_range_mode_has_published_is_deleted_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, page: int, dry_run: bool
) -> None:
    table = MemoryTable()
    for n in range(40):
        table.insert(OutboxRecord("t", f"key {n % 7}", "v"))
        if n % 5 == 0:
            table.begin().insert(OutboxRecord("t", "late", "v"))
    positions = [Position(1, 0, 2, 30, ((3, 3), (10, 14))), Position(1, 1, 2, 17, ((5, 6),))]
    monkeypatch.setattr(module, "_PAGE", page)
    monkeypatch.setattr(module, "make_store", lambda _: MemoryMarkStore(table))
    monkeypatch.setattr(
        module, "make_range_store", lambda _, shard: MemoryRangeStore(table, shard, 2)
    )
    rows = {row[0]: row[2] for row in MemoryRangeStore(table).read(0, 100).rows}
    published = set()
    for id, key in rows.items():
        position = positions[shard_of(key, 2)]
        if id <= position.last_id and not any(a <= id <= b for a, b in position.gaps):
            published.add(id)
    found: list[Position | None] = [*positions]
    assert module._delete_published(CONFIG, found, dry_run=dry_run) == len(published)
    assert set(rows) - set(table.committed) == (set() if dry_run else published)


def test_who_has_no_checkpoint_has_published_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MemoryTable()
    table.insert(OutboxRecord("t", "k", "v"))
    monkeypatch.setattr(module, "make_store", lambda _: MemoryMarkStore(table))
    assert module._delete_published(CONFIG, [None], dry_run=False) == 0
    assert len(table.committed) == 1


class Store:
    """Where the configuration is registered that comes before `CONFIG`; it notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def registration(self) -> Registration:
        return Registration("c", CONFIG.coordination.topic, "another", "mark")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


def test_who_was_interrupted_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the new configuration would publish again what was not carried over."""
    store = Store()

    def interrupted(*_: object, **__: object) -> None:
        store.calls.append("carry over")
        raise StoreUnavailable("no")

    monkeypatch.setattr(module, "make_any_store", lambda _: store)
    monkeypatch.setattr(module, "_cluster_id", lambda _: "c")
    monkeypatch.setattr(module, "alone", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "Checkpoints", lambda _: store)
    monkeypatch.setattr(module, "_check_source", lambda _: store.calls.append("compare"))
    monkeypatch.setattr(module, "_carry_over", interrupted)
    with pytest.raises(StoreUnavailable):
        switch(CONFIG)
    assert store.calls == ["connect", "fence", "compare", "carry over", "close"]

"""Partitions go when every shard has published them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.core.range_checkpoint import Position
from harvest.maintenance.partitions import Inventory, Partition
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

    store: Any = SimpleNamespace(inventory=lambda: Inventory(PARTS, 3900), close=lambda: None)
    monkeypatch.setattr(module, "database", lambda _: SimpleNamespace(partitions=lambda _: store))
    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(read=read))
    dropped = [part.low for part in module.maintain_partitions(CONFIG, dry_run=True).drop]
    assert dropped == ([1, 1001] if last_id == 2500 else [])

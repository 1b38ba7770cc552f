"""Histories of whole harvesters in range mode: nothing in the table is touched, all is in Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from harvest.errors import StoreUnavailable
from harvest.runtime.leadership import Tools
from harvest.runtime.range_leader import RangeTools
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryTable
from tests.simulation.whole import harvesters
from tests.simulation.whole.harvesters import Harvester, Scenario
from tests.simulation.whole.outbox import Server, SimSink

_ASKED: Final = (
    "connect",
    "bounds",
    "read",
    "lookup",
    "fetch",
    "holders",
    "layout",
    "save",
    "saved",
)


class SimRangeStore:
    """A `RangeStore` over the simulated network: every question is one to `MemoryRangeStore`."""

    def __init__(self, server: Server, table: MemoryTable, shard: int = 0, shards: int = 1) -> None:
        self._server = server
        self._store = MemoryRangeStore(table, shard, shards)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._store, name)
        if name not in _ASKED:
            return method
        return lambda *args: self._server.call(lambda: method(*args), StoreUnavailable)


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    return replace(harvesters.generate(seed), atomic=True)


class RangeHarvester(Harvester):
    """One process in range mode, of one shard."""

    def tools(self, shard: int) -> Tools:
        del shard
        world = self.world
        return RangeTools(
            SimRangeStore(world.database, world.table),
            SimRangeStore(world.database, world.table),
            SimSink(world.broker),
            world.scenario.limits,
        )


class World(harvesters.World):
    """One history."""

    process: type[Harvester] = RangeHarvester

    @property
    def left(self) -> bool:
        return any(not self.seen[i] for ids in self.committed.values() for i in ids)


REQUIRED: Final = tuple(
    name for name in harvesters.REQUIRED if name not in ("mark_too_late", "row_refused")
)
REQUIRED_COUNTS: Final = ("published", "rolled back", "stopped")

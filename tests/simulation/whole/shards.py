"""Histories of whole harvesters that share an outbox in shards, which move between them.

Each shard is a leadership of its own. Whatever moves, stops, freezes or dies: each committed row
comes once, those of a key in order; and once all is quiet, each shard has a leader, and nobody
leads two more than another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from harvest.runtime.candidacy import Candidacy, FairShare
from harvest.runtime.leadership import Tools
from harvest.runtime.range_leader import RangeTools
from marshal_py import Marshal
from tests.simulation.whole import harvesters, ranges
from tests.simulation.whole.green import MS, Violation
from tests.simulation.whole.harvesters import Harvester
from tests.simulation.whole.outbox import SimSink
from tests.simulation.whole.ranges import SimRangeStore

KEYS: Final = tuple("abcdefghijkl")


@dataclass
class Scenario(harvesters.Scenario):
    """As of other harvesters, in shards."""

    shards: int = 2


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"shards {seed}")
    made = Scenario(**vars(harvesters.generate(seed)), shards=rng.choice((2, 3, 5)))
    made.atomic = True
    made.harvesters = max(2, made.harvesters)
    return made


class ShardHarvester(Harvester):
    """One process of ``harvest reap`` with `shards`."""

    world: World
    warm_standby = False

    def candidacy(self, marshal: Marshal) -> Candidacy:
        return FairShare(marshal, "outbox", self.world.scenario.shards)

    def tools(self, shard: int) -> Tools:
        world, shards = self.world, self.world.scenario.shards
        reader, saver = (
            SimRangeStore(world.database, world.table, shard, shards) for _ in range(2)
        )
        return RangeTools(
            reader,
            saver,
            SimSink(world.broker, shard=shard),
            world.scenario.limits,
            shard,
            shards,
        )

    @property
    def leads(self) -> list[int]:
        """The shards that it works on."""
        return [] if self.running is None else self.running.leading


class World(ranges.World):
    """One history."""

    process = ShardHarvester
    keys = KEYS
    scenario: Scenario

    def is_fair(self) -> bool:
        working = [h.leads for h in self._staying()]
        led = sorted(number for shards in working for number in shards)
        counts = sorted(map(len, working))
        return led == list(range(self.scenario.shards)) and counts[-1] - counts[0] <= 1

    def _staying(self) -> list[ShardHarvester]:
        return [
            harvester
            for harvester in self.harvesters.values()
            if isinstance(harvester, ShardHarvester)
            and harvester.alive
            and not harvester.told_to_stop
        ]

    def finish(self) -> None:
        super().finish()
        self.run_until(self.is_fair, self.hub.now + (30 * self.scenario.interval_ms + 10_000) * MS)
        if not self.is_fair():
            who = {harvester.name: harvester.leads for harvester in self._staying()}
            raise Violation("shares are fair", f"{self.scenario.shards} shards: {who}")


REQUIRED: Final = ranges.REQUIRED
REQUIRED_COUNTS: Final = (*ranges.REQUIRED_COUNTS, "moved")

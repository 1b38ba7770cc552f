"""Runs one history of a kind, by its seed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

from tests.simulation.whole import (
    consumers,
    dead_letters,
    handlers,
    harvesters,
    keys,
    logs,
    messages,
    ranges,
    relays,
    shards,
    sinks,
    wals,
)
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.green import Hub
from tests.simulation.whole.ground import ground

KINDS: dict[str, Any] = {
    "consumers": consumers,
    "keys": keys,
    "logs": logs,
    "messages": messages,
    "handlers": handlers,
    "harvesters": harvesters,
    "ranges": ranges,
    "shards": shards,
    "dead_letters": dead_letters,
    "sinks": sinks,
    "relays": relays,
    "wals": wals,
}


class Outcome(NamedTuple):
    """What a history was: `violation` is None for a good one."""

    violation: tuple[str, str] | None
    virtual_s: float
    fired: Counter[str]
    counts: Counter[str]
    trace: list[tuple[int, str, str]] | None


def run(kind: str, seed: int, *, scenario: Any = None, trace: bool = False) -> Outcome:
    """Run the history of a seed, or another scenario with that seed's interleaving."""
    module = KINDS[kind]
    hub = Hub(random.Random(f"{kind} {seed}").getrandbits(64), trace=trace)
    cluster = Cluster(hub)
    with ground(hub, cluster):
        module.World(hub, cluster, scenario or module.generate(seed)).run()
    return Outcome(hub.violation, hub.now / 1e9, hub.fired, hub.counts, hub.trace)

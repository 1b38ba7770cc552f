"""Histories of consumers that share each partition by keys: those of `consumers`, with slots."""

from __future__ import annotations

import random

from tests.simulation.whole import consumers
from tests.simulation.whole.consumers import REQUIRED, REQUIRED_COUNTS, Scenario, World

__all__ = ["REQUIRED", "REQUIRED_COUNTS", "World", "generate"]


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    made = consumers.generate(seed)
    rng = random.Random(f"keys {seed}")
    made.slots = rng.choice((1, 2, 3, 5, 8))
    made.partitions = min(made.partitions, rng.choice((1, 1, 2)))
    made.incidents = [
        (at, kind, who % made.partitions if kind in ("burst", "set_position") else who, args)
        for at, kind, who, args in made.incidents
    ]
    return made

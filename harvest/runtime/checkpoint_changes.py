"""What an operator changes about checkpoints and shards while no harvester runs.

Each function holds the leadership of all shards meanwhile, and can be repeated if it was
interrupted (specs/HARVEST.md §16). All raise `ConfigurationError` while a harvester runs,
`CheckpointError`, `SinkUnavailable` and `StoreUnavailable`.
"""

from __future__ import annotations

from harvest.config.model import ReaperConfig
from harvest.core.range_checkpoint import Position
from harvest.errors import CheckpointError
from harvest.runtime.checkpoints import Checkpoints, alone, divided
from harvest.runtime.parts import make_range_store

__all__ = ["change_shards", "reset_checkpoints", "restore_checkpoints"]


def change_shards(config: ReaperConfig, number: int) -> int:
    """Divide the outbox into `number` shards; return how many there were."""
    store = make_range_store(config)
    store.connect()
    before = store.layout()
    with alone(config, before):
        checkpoints = Checkpoints(config)
        found = [checkpoints.read(shard) for shard in range(max(before, number))]
        new = [p for p in found if p is not None and p.shards == number]
        if len(new) < number:
            old = [p for p in found[:before] if p is not None]
            if old and len(old) < before:
                raise CheckpointError(
                    f"only {len(old)} of {before} shards have a checkpoint: let harvesters lead "
                    "all of them once, then try again"
                )
            new = []
            if old:
                one_each = [
                    make_range_store(config.model_copy(update={"shards": before}), shard)
                    for shard in range(before)
                ]
                new = divided(one_each, old, number)
                checkpoints.write(new, fence=before)
        store.rewrite(number, new)
    store.close()
    return before


def restore_checkpoints(config: ReaperConfig) -> list[Position]:
    """Write the copies that the database has into Kafka; return them."""
    store = make_range_store(config)
    with alone(config, config.shards):
        copies = [p for p in store.saved() if p.shards == config.shards]
        if not copies:
            raise CheckpointError("the database has no copies: there is nothing to restore")
        Checkpoints(config).write(copies, fence=config.shards)
    store.close()
    return copies


def reset_checkpoints(config: ReaperConfig, after: int | None) -> int:
    """Let all shards go on after this id, None: before the first row; return the id."""
    store = make_range_store(config)
    last_id = store.bounds().first - 1 if after is None else after
    with alone(config, config.shards):
        new = [Position(0, s, config.shards, last_id) for s in range(config.shards)]
        Checkpoints(config).write(new, fence=config.shards)
        store.rewrite(config.shards, new)
    store.close()
    return last_id

"""What an operator changes about checkpoints and shards while no harvester runs.

Each function holds the leadership of all shards meanwhile, and can be repeated if it was
interrupted (specs/HARVEST.md §16). All raise `ConfigurationError` while a harvester runs, or for
another configuration than the registered one, whose claims are not those of the harvesters;
`CheckpointError`, `SinkUnavailable` and `StoreUnavailable`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.source_store import SourceStore
from harvest.core.range_checkpoint import Position
from harvest.core.source import Source, differences
from harvest.errors import CheckpointError, ConfigurationError
from harvest.runtime.checkpoints import Checkpoints, alone, divided
from harvest.runtime.parts import AnyStore, make_any_store, make_range_store, make_record
from harvest.runtime.registration import check_registration, keep_source

__all__ = [
    "Acceptance",
    "accept_database",
    "change_shards",
    "reset_checkpoints",
    "restore_checkpoints",
]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What `accept_database` found. `difference`: None if the database is the one it was."""

    before: Source | None
    now: Source
    difference: str | None


def accept_database(config: ReaperConfig, *, dry_run: bool = False) -> Acceptance:
    """Take the database as it is now for the one whose rows were published.

    Positions and checkpoints stay as they are: what they say was published is not published again,
    and what else is in the table is. Raises `CheckpointError` where the position is above all ids.
    """
    if config.mode == "wal":
        raise ConfigurationError(
            "mode: wal goes on from its slot: `harvest slot renew` takes the database as it is now"
        )
    with contextlib.closing(make_any_store(config)) as store:
        check_registration(config, store, dry_run=dry_run)
        found = _compared(config, store)
        if not dry_run:
            with alone(config, config.shards):
                _accept(config, store)
        return found


def _compared(config: ReaperConfig, store: SourceStore) -> Acceptance:
    with contextlib.closing(make_record(config)) as record:
        now, before = store.source(), record.load()
    log = _log_of_checkpoints(config)
    if before is not None and log > (before.timeline, before.log):
        before = replace(before, timeline=log[0], log=log[1])
    difference = None
    if before is not None:
        difference = differences(before, now, promoted_at=store.promoted_at())
    return Acceptance(before, now, difference)


def _log_of_checkpoints(config: ReaperConfig) -> tuple[int, int]:
    checkpoints = Checkpoints(config)
    if config.mode == "range":
        found = [checkpoints.read(shard) for shard in range(config.shards)]
        return max([(p.timeline, p.log) for p in found if p is not None], default=(0, 0))
    checkpoint = checkpoints.read_mark()
    return (0, 0) if checkpoint is None else (checkpoint.timeline, checkpoint.log)


def _accept(config: ReaperConfig, store: AnyStore) -> None:
    """Whoever holds all claims: what rests on the database's log begins anew."""
    checkpoints = Checkpoints(config)
    if config.mode == "range":
        found = [checkpoints.read(shard) for shard in range(config.shards)]
        positions = [replace(p, timeline=0, log=0) for p in found if p is not None]
        with contextlib.closing(make_range_store(config)) as ranges:
            bounds = ranges.bounds()
        for problem in filter(None, map(bounds.problem, positions)):
            raise CheckpointError(problem)
        checkpoints.write(positions, fence=config.shards)
    else:
        checkpoint = checkpoints.read_mark()
        if checkpoint is not None:
            checkpoints.write_mark(replace(checkpoint, timeline=0, log=0))
    keep_source(config, store)


def change_shards(config: ReaperConfig, number: int) -> int:
    """Divide the outbox into `number` shards; return how many there were."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(make_range_store(config)))
        store.connect()
        check_registration(config, store)
        before = store.layout()
        stack.enter_context(alone(config, before))
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
                as_before = config.model_copy(update={"shards": before})
                one_each = [
                    stack.enter_context(contextlib.closing(make_range_store(as_before, shard)))
                    for shard in range(before)
                ]
                new = divided(one_each, old, number)
                checkpoints.write(new, fence=before)
        store.rewrite(number, new)
    return before


def restore_checkpoints(config: ReaperConfig) -> list[Position]:
    """Write the copies that the database has into Kafka; return them."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(make_range_store(config)))
        check_registration(config, store)
        stack.enter_context(alone(config, config.shards))
        copies = [p for p in store.saved() if p.shards == config.shards]
        if not copies:
            raise CheckpointError("the database has no copies: there is nothing to restore")
        Checkpoints(config).write(
            [replace(copy, timeline=0, log=0) for copy in copies], fence=config.shards
        )
        keep_source(config, store)
    return copies


def reset_checkpoints(config: ReaperConfig, after: int | None) -> int:
    """Let all shards go on after this id, None: before the first row; return the id."""
    with contextlib.closing(make_range_store(config)) as store:
        check_registration(config, store)
        last_id = store.bounds().first - 1 if after is None else after
        with alone(config, config.shards):
            new = [Position(0, s, config.shards, last_id) for s in range(config.shards)]
            Checkpoints(config).write(new, fence=config.shards)
            store.rewrite(config.shards, new)
            keep_source(config, store)
    return last_id

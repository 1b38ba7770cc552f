"""Partitions of an outbox, as configured: created in time, dropped when published."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from harvest.config.model import ReaperConfig
from harvest.databases.registry import database
from harvest.errors import ConfigurationError
from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import PartitionPlan, carry_out, plan, plan_below
from harvest.runtime.checkpoints import Checkpoints

__all__ = ["maintain_partitions", "maintain_partitions_and_tell", "make_archive"]

_LOG: Final = logging.getLogger("harvest")


def maintain_partitions(
    config: ReaperConfig,
    *,
    dry_run: bool = False,
    published: Callable[[], int] | None = None,
) -> PartitionPlan:
    """Create, drop and delete what is due; return what was done, or would be.

    `published`: in wal mode, the place in the log up to which all is; by default as Kafka has it.
    Raises `HarvestError`.
    """
    if config.mode == "wal":
        return _maintain_behind(config, published or _saved_place(config), dry_run=dry_run)
    if config.primary is not None:
        raise ConfigurationError(
            "partitions are not dropped where there are two databases: the positions are ids of "
            "the primary, and the partitions are of the outbound table"
        )
    store = database(config.database).partitions(config.table)
    archive = make_archive(config)
    try:
        checkpoints = Checkpoints(config)
        positions = [checkpoints.read(shard) for shard in range(config.shards)]
        todo = plan(store.inventory(), positions, config.partitions.policy())
        return todo if dry_run else carry_out(todo, store, config.partitions.policy(), archive)
    finally:
        store.close()


def _maintain_behind(
    config: ReaperConfig, published: Callable[[], int], *, dry_run: bool
) -> PartitionPlan:
    """The same in wal mode, where the store finds out what is published."""
    if config.wal.purge != "partitions":
        raise ConfigurationError(
            f"wal.purge is {config.wal.options().purge}: partitions are made and dropped with "
            "purge: partitions"
        )
    store = database(config.database).wal_partitions(config.table, published)
    policy = config.partitions.policy()
    try:
        found = store.inventory()
        todo = plan_below(found, found.drawn + 1, policy)
        if not dry_run:
            return carry_out(todo, store, policy, make_archive(config))
        kept = [(p, why) for p in todo.drop if (why := store.obstacle(p)) is not None]
        drop = [p for p in todo.drop if p not in dict(kept)]
        return replace(todo, drop=drop, kept=[*todo.kept, *kept])
    finally:
        store.close()


def _saved_place(config: ReaperConfig) -> Callable[[], int]:
    """The position as Kafka has it by now: a harvester may be at work."""
    checkpoints = Checkpoints(config)

    def lsn() -> int:
        found = checkpoints.wal()
        return 0 if found is None else found.lsn

    return lsn


def maintain_partitions_and_tell(
    config: ReaperConfig, published: Callable[[], int] | None = None
) -> None:
    """The same, with what was done in the log. Raises `HarvestError`."""
    done = maintain_partitions(config, published=published)
    for low, high in done.create:
        _LOG.info("a partition for ids from %d to %d is ready", low, high - 1)
    for partition in done.drop:
        _LOG.info("the partition %s is dropped: all published", partition.name)
    for partition, why in done.unarchived:
        _LOG.error("the partition %s is not dropped: %s", partition.name, why)
    if done.swept:
        _LOG.info("%d rows are deleted: published, and old enough", done.swept)


def make_archive(config: ReaperConfig) -> ParquetArchive | None:
    """The archive of `config`, if there is one. Raises `ConfigurationError`."""
    folder = config.partitions.archive
    if folder is None:
        return None
    if config.mode == "wal":  # what is set aside there has other ids
        return ParquetArchive(folder, str(config.table))

    def set_aside(low: int, high: int) -> frozenset[int]:
        with contextlib.closing(database(config.database).dead_letters(config.table)) as letters:
            return letters.ids(low, high)

    return ParquetArchive(folder, str(config.table), set_aside)

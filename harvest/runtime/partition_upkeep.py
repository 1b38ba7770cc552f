"""Partitions of an outbox in range mode, as configured: created in time, dropped when published."""

from __future__ import annotations

import logging
from typing import Final

from harvest.config.model import ReaperConfig
from harvest.databases.registry import database
from harvest.errors import ConfigurationError
from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import PartitionPlan, carry_out, plan
from harvest.runtime.checkpoints import Checkpoints

__all__ = ["maintain_partitions", "maintain_partitions_and_tell", "make_archive"]

_LOG: Final = logging.getLogger("harvest")


def maintain_partitions(config: ReaperConfig, *, dry_run: bool = False) -> PartitionPlan:
    """Create, drop and delete what is due; return what was done, or would be.

    Raises `HarvestError`.
    """
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


def maintain_partitions_and_tell(config: ReaperConfig) -> None:
    """The same, with what was done in the log. Raises `HarvestError`."""
    done = maintain_partitions(config)
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
    return None if folder is None else ParquetArchive(folder, str(config.table))

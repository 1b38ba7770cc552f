"""`harvest partitions | shards | orphans`: looking after an outbox in range mode, mostly."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from harvest.cli.options import DryRunCount, JsonFlag, RangeConfigFile
from harvest.cli.outbox import load_partitioned_config, load_range_config
from harvest.config.model import MAX_RETAIN_HOURS, PartitionsConfig
from harvest.config.validation import validated
from harvest.databases.postgres.two_databases import PostgresIds, archive_name
from harvest.errors import ConfigurationError
from harvest.maintenance.partitions import Partition
from harvest.outbox.outbound_stasher import archive_orphans
from harvest.runtime.checkpoint_changes import change_shards
from harvest.runtime.partition_upkeep import maintain_partitions, make_archive
from harvest.runtime.registration import check_source
from marshal_py.cli.output import print_json, say

__all__ = ["orphans", "partitions", "shards"]


def partitions(
    config: RangeConfigFile,
    create_ahead: Annotated[
        int | None,
        typer.Option(help="How many to keep ready.", show_default="as configured", min=1),
    ] = None,
    retain_hours: Annotated[
        float | None,
        typer.Option(
            help="How long published rows are kept.",
            show_default="as configured",
            min=0.0,
            max=MAX_RETAIN_HOURS,
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            help="A folder: a Parquet file of each before it is dropped.",
            show_default="as configured",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create range partitions ahead, drop those that are published. `harvest reap` does it, too.

    A partition is dropped only when all of it is below what Kafka has committed for every shard,
    no gap is open in it, and its newest row is older than the retention. With an archive, all its
    rows are on the disk before that. In wal mode (`purge: partitions`), one is dropped when nobody
    writes to it and all that is in it is behind the position. Exit code 1: something could not be
    archived, and stays. Exit code 2, and nothing is done: the database is not the one, or not as
    far, as it was when rows were published.
    Where a table has no partitions (SQLite, MariaDB, MySQL), old published rows are deleted.

    [dim]Example:[/dim] harvest partitions --config reaper.yaml --dry-run
    """
    settings = load_partitioned_config(config)
    changes: dict[str, Any] = {}
    if create_ahead is not None:
        changes["ahead"] = create_ahead
    if retain_hours is not None:
        changes["retain_hours"] = retain_hours
    if archive is not None:
        changes["archive"] = archive
    given = {**settings.partitions.model_dump(), **changes}
    policy = validated(PartitionsConfig, given, "the options")
    settings = settings.model_copy(update={"partitions": policy})
    files = make_archive(settings)
    check_source(settings)
    done = maintain_partitions(settings, dry_run=dry_run)
    if as_json:
        report = {
            "dry_run": dry_run,
            "created": [{"low": low, "high": high} for low, high in done.create],
            "dropped": [
                {**_bounds(p), "archive": None if files is None else str(files.path(p))}
                for p in done.drop
            ],
            "unarchived": [{**_bounds(p), "why": why} for p, why in done.unarchived],
            "swept_rows": done.swept,
            "kept": [{**_bounds(p), "why": why} for p, why in done.kept],
        }
        print_json(report, indent=None)
        raise typer.Exit(1 if done.unarchived else 0)
    for low, high in done.create:
        say(f"{'create' if dry_run else 'created':<9}ids {low} to {high - 1}")
    for one in done.drop:
        say(
            f"{'drop' if dry_run else 'dropped':<9}{one.name}, ids {one.low} to {one.high - 1}"
            + ("" if files is None else f", archived in {files.path(one)}")
        )
    for one, why in done.unarchived:
        say(f"{'NOT':<9}dropped: {one.name}, ids {one.low} to {one.high - 1}: {why}")
    for one, why in done.kept:
        say(f"{'kept':<9}{one.name}, ids {one.low} to {one.high - 1}: {why}")
    if done.swept:
        say(f"{'deleted':<9}{done.swept} published rows of no partition")
    if not (done.create or done.drop or done.kept or done.swept or done.unarchived):
        say("nothing to do")
    raise typer.Exit(1 if done.unarchived else 0)


def shards(
    number: Annotated[int, typer.Argument(help="How many there should be.", min=1, max=1_000)],
    config: RangeConfigFile,
    as_json: JsonFlag = False,
) -> None:
    """Divide the outbox into another number of shards, while no harvester runs.

    Then write the number into the configuration of all harvesters, and start them. Interrupted at
    any moment, it can be repeated.

    [dim]Example:[/dim] harvest shards 4 --config reaper.yaml
    """
    settings = load_range_config(config)
    before = change_shards(settings, number)
    if as_json:
        print_json({"before": before, "shards": number}, indent=None)
    else:
        say(f"{settings.outbox}: {before} shards before, {number} now")


def orphans(
    config: RangeConfigFile,
    older_than_hours: Annotated[
        float, typer.Option(help="Only payloads that are older.", min=0.0)
    ] = 24.0,
    dry_run: DryRunCount = False,
    as_json: JsonFlag = False,
) -> None:
    """Move payloads away whose ids were never committed in the primary (two databases).

    They go to OUTBOX_orphans. A transaction that lasts longer than the time given, and commits all
    the same, stops the harvest: choose far more than the longest one takes.

    [dim]Example:[/dim] harvest orphans --config reaper.yaml --older-than-hours 48 --dry-run
    """
    settings = load_range_config(config)
    if settings.primary is None:
        raise ConfigurationError(f"{config} has no primary: this is for two databases")
    primary = PostgresIds(settings.primary.database, settings.primary.ids)
    with closing(primary):
        count = archive_orphans(
            settings.database, settings.table, primary, older_than_hours * 3600, dry_run=dry_run
        )
    if as_json:
        print_json({"orphans": count, "dry_run": dry_run}, indent=None)
        return
    where = archive_name(settings.table)
    say(f"{count} orphans {'would go' if dry_run else 'went'} to {where}")


def _bounds(partition: Partition) -> dict[str, Any]:
    return {"name": partition.name, "low": partition.low, "high": partition.high}

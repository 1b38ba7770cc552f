"""`harvest partitions | shards | checkpoint | orphans`: the commands of range mode."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from harvest.config.load import load
from harvest.config.model import ReaperConfig
from harvest.core.range_checkpoint import Position
from harvest.databases.two_databases import PostgresIds, archive_name
from harvest.errors import CheckpointError, ConfigurationError
from harvest.maintenance.partitions import Partition
from harvest.outbox.outbound_stasher import archive_orphans
from harvest.runtime.checkpoints import Checkpoints, alone, divided
from harvest.runtime.process import look_after_partitions, make_archive, make_range_store

__all__ = ["register"]

checkpoint = typer.Typer(
    name="checkpoint", help="How far each shard has published (range mode).", no_args_is_help=True
)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", "-f", help="reaper.yaml.", exists=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `harvest`."""
    app.command()(partitions)
    app.command()(shards)
    app.command()(orphans)
    app.add_typer(checkpoint)


def partitions(
    config: ConfigOption,
    create_ahead: Annotated[
        int | None,
        typer.Option(help="How many to keep ready.", show_default="as configured", min=1),
    ] = None,
    retain_hours: Annotated[
        float | None,
        typer.Option(
            help="How long published rows are kept.", show_default="as configured", min=0.0
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
    as_json: JsonOption = False,
) -> None:
    """Create range partitions ahead, drop those that are published. `harvest reap` does it, too.

    A partition is dropped only when all of it is below what Kafka has committed for every shard,
    no gap is open in it, and its newest row is older than the retention. With an archive, all its
    rows are on the disk before that. Exit code 1: something could not be archived, and stays.
    Where a table has no partitions (SQLite, MariaDB, MySQL), old published rows are deleted.

    [dim]Example:[/dim] harvest partitions --config reaper.yaml --dry-run
    """
    settings = _range_config(config)
    changes: dict[str, Any] = {}
    if create_ahead is not None:
        changes["ahead"] = create_ahead
    if retain_hours is not None:
        changes["retain_hours"] = retain_hours
    if archive is not None:
        changes["archive"] = archive
    policy = settings.partitions.model_copy(update=changes)
    settings = settings.model_copy(update={"partitions": policy})
    files = make_archive(settings)
    done = look_after_partitions(settings, dry_run=dry_run)
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
        typer.echo(json.dumps(report))
        raise typer.Exit(1 if done.unarchived else 0)
    for low, high in done.create:
        typer.echo(f"{'create' if dry_run else 'created':<9}ids {low} to {high - 1}")
    for one in done.drop:
        typer.echo(
            f"{'drop' if dry_run else 'dropped':<9}{one.name}, ids {one.low} to {one.high - 1}"
            + ("" if files is None else f", archived in {files.path(one)}")
        )
    for one, why in done.unarchived:
        typer.echo(f"{'NOT':<9}dropped: {one.name}, ids {one.low} to {one.high - 1}: {why}")
    for one, why in done.kept:
        typer.echo(f"{'kept':<9}{one.name}, ids {one.low} to {one.high - 1}: {why}")
    if done.swept:
        typer.echo(f"{'deleted':<9}{done.swept} published rows of no partition")
    if not (done.create or done.drop or done.kept or done.swept or done.unarchived):
        typer.echo("nothing to do")
    raise typer.Exit(1 if done.unarchived else 0)


def shards(
    number: Annotated[int, typer.Argument(help="How many there should be.", min=1, max=1_000)],
    config: ConfigOption,
    as_json: JsonOption = False,
) -> None:
    """Divide the outbox into another number of shards, while no harvester runs.

    Then write the number into the configuration of all harvesters, and start them. Interrupted at
    any moment, it can be repeated.

    [dim]Example:[/dim] harvest shards 4 --config reaper.yaml
    """
    settings = _range_config(config)
    store = make_range_store(settings)
    store.connect()
    before = store.layout()
    with alone(settings, before):
        checkpoints = Checkpoints(settings)
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
                    make_range_store(settings.model_copy(update={"shards": before}), shard)
                    for shard in range(before)
                ]
                new = divided(one_each, old, number)
                checkpoints.write(new, fence=before)
        store.rewrite(number, new)
    store.close()
    if as_json:
        typer.echo(json.dumps({"before": before, "shards": number}))
    else:
        typer.echo(f"{settings.outbox}: {before} shards before, {number} now")


@checkpoint.command()
def show(config: ConfigOption, as_json: JsonOption = False) -> None:
    """Show the checkpoints, as Kafka has them.

    [dim]Example:[/dim] harvest checkpoint show --config reaper.yaml
    """
    settings = _range_config(config)
    checkpoints = Checkpoints(settings)
    found = [(shard, checkpoints.read(shard)) for shard in range(settings.shards)]
    if as_json:
        typer.echo(json.dumps([_described(shard, position) for shard, position in found]))
        return
    for shard, position in found:
        if position is None:
            typer.echo(f"shard {shard}: none yet")
            continue
        gaps = f", {len(position.gaps)} gaps from id {position.low_id}" if position.gaps else ""
        typer.echo(
            f"shard {shard} of {position.shards}: up to id {position.last_id}{gaps}, "
            f"epoch {position.epoch}"
        )


@checkpoint.command()
def restore(config: ConfigOption) -> None:
    """Write the copies from the database into Kafka, while no harvester runs.

    For a Kafka that has lost the checkpoints, or another one. What was published after the copies
    were made is published again.

    [dim]Example:[/dim] harvest checkpoint restore --config reaper.yaml
    """
    settings = _range_config(config)
    store = make_range_store(settings)
    with alone(settings, settings.shards):
        copies = [p for p in store.saved() if p.shards == settings.shards]
        if not copies:
            raise CheckpointError("the database has no copies: there is nothing to restore")
        Checkpoints(settings).write(copies, fence=settings.shards)
    store.close()
    for position in copies:
        typer.echo(f"shard {position.shard}: goes on after id {position.last_id}")


@checkpoint.command()
def reset(
    config: ConfigOption,
    after: Annotated[
        int | None,
        typer.Option(help="Publish what has a higher id.", show_default="before the first row"),
    ] = None,
) -> None:
    """Set all checkpoints anew, while no harvester runs: rows above are published, again or not.

    [dim]Example:[/dim] harvest checkpoint reset --config reaper.yaml --after 120000
    """
    settings = _range_config(config)
    store = make_range_store(settings)
    last_id = store.bounds().first - 1 if after is None else after
    with alone(settings, settings.shards):
        new = [Position(0, s, settings.shards, last_id) for s in range(settings.shards)]
        Checkpoints(settings).write(new, fence=settings.shards)
        store.rewrite(settings.shards, new)
    store.close()
    typer.echo(f"{settings.outbox}: goes on after id {last_id}")


def orphans(
    config: ConfigOption,
    older_than_hours: Annotated[
        float, typer.Option(help="Only payloads that are older.", min=0.0)
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Move payloads away whose ids were never committed in the primary (two databases).

    They go to OUTBOX_orphans. A transaction that lasts longer than the time given, and commits all
    the same, stops the harvest: choose far more than the longest one takes.

    [dim]Example:[/dim] harvest orphans --config reaper.yaml --older-than-hours 48 --dry-run
    """
    settings = _range_config(config)
    if settings.primary is None:
        raise ConfigurationError(f"{config} has no primary: this is for two databases")
    primary = PostgresIds(settings.primary.database, settings.primary.ids)
    with closing(primary):
        count = archive_orphans(
            settings.database, settings.table, primary, older_than_hours * 3600, dry_run=dry_run
        )
    if as_json:
        typer.echo(json.dumps({"orphans": count, "dry_run": dry_run}))
        return
    where = archive_name(settings.table)
    typer.echo(f"{count} orphans {'would go' if dry_run else 'went'} to {where}")


def _range_config(path: Path) -> ReaperConfig:
    settings = load(path)
    if settings.mode != "range":
        raise ConfigurationError(f"{path} has mode: {settings.mode}; this is for mode: range")
    return settings


def _bounds(partition: Partition) -> dict[str, Any]:
    return {"name": partition.name, "low": partition.low, "high": partition.high}


def _described(shard: int, position: Position | None) -> dict[str, Any]:
    if position is None:
        return {"shard": shard, "last_id": None}
    return {
        "shard": shard,
        "shards": position.shards,
        "last_id": position.last_id,
        "low_id": position.low_id,
        "gaps": position.gaps,
        "epoch": position.epoch,
    }

"""`harvest checkpoint …`: how far each shard has published, and where it goes on."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from harvest.cli.options import ConfigFile, JsonFlag, RangeConfigFile
from harvest.cli.outbox import load_range_config
from harvest.config.load import load
from harvest.config.model import ReaperConfig
from harvest.core.range_checkpoint import Position
from harvest.core.wal_position import format_lsn
from harvest.runtime.checkpoint_changes import (
    accept_database,
    reset_checkpoints,
    restore_checkpoints,
)
from harvest.runtime.checkpoints import Checkpoints
from harvest.runtime.parts import make_wal_source
from marshal_py.cli.output import print_json, say

__all__ = ["app"]

app = typer.Typer(
    help="What was published: how far each shard is, and which database it was.",
    no_args_is_help=True,
)


@app.command()
def show(config: RangeConfigFile, as_json: JsonFlag = False) -> None:
    """Show the checkpoints, as Kafka has them: ids in range mode, a place in the log in wal mode.

    [dim]Example:[/dim] harvest checkpoint show --config reaper.yaml
    """
    settings = load(config)
    if settings.mode == "wal":
        _show_place(settings, as_json=as_json)
        return
    settings = load_range_config(config)
    checkpoints = Checkpoints(settings)
    found = [(shard, checkpoints.read(shard)) for shard in range(settings.shards)]
    if as_json:
        print_json([_described(shard, position) for shard, position in found], indent=None)
        return
    for shard, position in found:
        if position is None:
            say(f"shard {shard}: none yet")
            continue
        gaps = f", {len(position.gaps)} gaps from id {position.low_id}" if position.gaps else ""
        say(
            f"shard {shard} of {position.shards}: up to id {position.last_id}{gaps}, "
            f"epoch {position.epoch}"
        )


@app.command()
def restore(config: RangeConfigFile) -> None:
    """Write the copies from the database into Kafka, while no harvester runs.

    For a Kafka that has lost the checkpoints, or another one. What was published after the copies
    were made is published again.

    [dim]Example:[/dim] harvest checkpoint restore --config reaper.yaml
    """
    copies = restore_checkpoints(load_range_config(config))
    for position in copies:
        say(f"shard {position.shard}: goes on after id {position.last_id}")


@app.command()
def reset(
    config: RangeConfigFile,
    after: Annotated[
        int | None,
        typer.Option(help="Publish what has a higher id.", show_default="before the first row"),
    ] = None,
) -> None:
    """Set all checkpoints anew, while no harvester runs: rows above are published, again or not.

    [dim]Example:[/dim] harvest checkpoint reset --config reaper.yaml --after 120000
    """
    settings = load_range_config(config)
    last_id = reset_checkpoints(settings, after)
    say(f"{settings.outbox}: goes on after id {last_id}")


@app.command()
def accept(
    config: ConfigFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what differs.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Take the database as it is now for the one whose rows were published.

    In mark mode, in range mode, and with destinations; in wal mode it is `harvest slot renew`.

    A harvester publishes nothing when its database is not the one that it was: a replica that
    lacked commits was promoted, a backup restored, a table emptied or made anew. What to do then:

    - Nothing was lost (a planned move, an upgrade): `accept`.
    - Mark mode and destinations: `accept`. What is in the table is published; what a backup or an
      older replica brought back, is published again. Delete it before, if that must not be.
    - Range mode, a database that went back in time: `restore`. It goes on from the copy of the
      position that went back with it: nothing is left out.
    - Range mode, a table that was emptied or made anew: `reset`.

    Exit code 1 of --dry-run: something differs.

    [dim]Example:[/dim] harvest checkpoint accept --config reaper.yaml --dry-run
    """
    found = accept_database(load(config), dry_run=dry_run)
    if as_json:
        before = None if found.before is None else asdict(found.before)
        report = {"dry_run": dry_run, "difference": found.difference, "before": before}
        print_json({**report, "now": asdict(found.now)}, indent=None)
    else:
        say(found.difference or "the database is the one that it was")
        if not dry_run:
            say("accepted as it is now")
    raise typer.Exit(1 if dry_run and found.difference else 0)


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


def _show_place(settings: ReaperConfig, *, as_json: bool) -> None:
    found = Checkpoints(settings).wal()
    behind = None
    if found is not None:
        with closing(make_wal_source(settings)) as source:
            behind = max(0, source.slot.log_end() - found.lsn)
    if as_json:
        report = {
            "lsn": None if found is None else format_lsn(found.lsn),
            "part_rows": 0 if found is None else found.part_rows,
            "timeline": None if found is None else found.timeline,
            "epoch": None if found is None else found.epoch,
            "behind_bytes": behind,
        }
        print_json(report, indent=None)
    elif found is None:
        say("none yet")
    else:
        part = f", and {found.part_rows} rows of the next transaction" if found.part_rows else ""
        say(
            f"up to {format_lsn(found.lsn)}{part}, {behind} bytes before the end of the log, "
            f"timeline {found.timeline}, epoch {found.epoch}"
        )

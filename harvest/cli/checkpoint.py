"""`harvest checkpoint …`: how far each shard has published, and where it goes on."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from harvest.cli.options import JsonFlag, RangeConfigFile
from harvest.cli.outbox import load_range_config
from harvest.core.range_checkpoint import Position
from harvest.runtime.checkpoint_changes import reset_checkpoints, restore_checkpoints
from harvest.runtime.checkpoints import Checkpoints

__all__ = ["app"]

app = typer.Typer(help="How far each shard has published (range mode).", no_args_is_help=True)


@app.command()
def show(config: RangeConfigFile, as_json: JsonFlag = False) -> None:
    """Show the checkpoints, as Kafka has them.

    [dim]Example:[/dim] harvest checkpoint show --config reaper.yaml
    """
    settings = load_range_config(config)
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


@app.command()
def restore(config: RangeConfigFile) -> None:
    """Write the copies from the database into Kafka, while no harvester runs.

    For a Kafka that has lost the checkpoints, or another one. What was published after the copies
    were made is published again.

    [dim]Example:[/dim] harvest checkpoint restore --config reaper.yaml
    """
    copies = restore_checkpoints(load_range_config(config))
    for position in copies:
        typer.echo(f"shard {position.shard}: goes on after id {position.last_id}")


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
    typer.echo(f"{settings.outbox}: goes on after id {last_id}")


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

"""The `harvest` command: here the commands are mounted.

Exit codes: 0 done; 1 a finding or a failure; 2 wrong usage or configuration; 3 the environment
(a server that cannot be reached).
"""

from __future__ import annotations

import sys
from typing import Final

import typer

from harvest.cli import checkpoint, dead_letters, slot
from harvest.cli.bench import bench
from harvest.cli.check import check
from harvest.cli.init import init
from harvest.cli.range_mode import orphans, partitions, shards
from harvest.cli.reap import reap
from harvest.cli.replay import replay
from harvest.cli.spark import backlog, reconcile
from harvest.cli.stash import stash
from harvest.cli.switch import switch
from harvest.errors import HarvestError
from marshal_py.errors import MarshalError

__all__ = ["app", "main"]

_EXIT_CODES: Final = {"usage": 2, "configuration": 2, "log": 3, "environment": 3}

app = typer.Typer(
    name="harvest",
    help="Publish the rows of an outbox table to Kafka: in order, and only what was committed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(init)
app.command()(reap)
app.command()(stash)
app.command()(check)
app.command()(bench)
app.command()(reconcile)
app.command()(backlog)
app.command()(partitions)
app.command()(shards)
app.command()(orphans)
app.command()(replay)
app.command()(switch)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(slot.app, name="slot")


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    try:
        app()
    except (HarvestError, MarshalError) as error:
        typer.echo(f"harvest: {error}", err=True)
        sys.exit(_EXIT_CODES[error.blame])

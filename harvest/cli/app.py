"""The `harvest` command: here the commands are mounted.

Exit codes are those of `marshal` (marshal_py/cli/exit_codes.py).
"""

from __future__ import annotations

from typing import Any

from harvest.cli import checkpoint, dead_letters, slot
from harvest.cli.bench import bench
from harvest.cli.check import check
from harvest.cli.init import init
from harvest.cli.pause import pause, resume
from harvest.cli.range_mode import orphans, partitions, shards
from harvest.cli.reap import reap
from harvest.cli.replay import replay
from harvest.cli.spark import lake, reconcile
from harvest.cli.stash import stash
from harvest.cli.switch import switch
from harvest.errors import HarvestError
from marshal_py.cli.command import EXIT_CODES_HELP, Commands, new_app, version_flag
from marshal_py.cli.exit_codes import EXIT_CODES, errors_as_exit_codes, fail
from marshal_py.cli.output import prepare_output

__all__ = ["app", "main"]


class _Commands(Commands):
    """Errors become one line and an exit code, as those of `marshal` do."""

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes():
            try:
                return super().invoke(ctx)
            except HarvestError as error:
                fail(str(error), EXIT_CODES[error.blame])


app = new_app(
    name="harvest",
    cls=_Commands,
    help="Publish the rows of an outbox table to Kafka: in order, and only what was committed.",
    epilog=EXIT_CODES_HELP,
)
app.callback()(version_flag)
app.command()(init)
app.command()(reap)
app.command()(stash)
app.command()(check)
app.command()(bench)
app.command()(reconcile)
app.command()(lake)
app.command()(partitions)
app.command()(shards)
app.command()(orphans)
app.command()(replay)
app.command()(switch)
app.command()(pause)
app.command()(resume)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(slot.app, name="slot")


def main() -> None:
    """Entry point."""
    prepare_output()
    app(prog_name="harvest")

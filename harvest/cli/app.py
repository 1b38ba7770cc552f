"""The `harvest` command: here the commands are mounted.

Exit codes are those of `marshal` (marshal_py/cli/exit_codes.py).
"""

from __future__ import annotations

import sys

from harvest.cli import checkpoint, dead_letters, slot
from harvest.cli.bench import bench
from harvest.cli.check import check
from harvest.cli.init import init
from harvest.cli.pause import pause, resume
from harvest.cli.range_mode import orphans, partitions, shards
from harvest.cli.reap import reap
from harvest.cli.replay import replay
from harvest.cli.spark import reconcile
from harvest.cli.stash import stash
from harvest.cli.switch import switch
from harvest.errors import HarvestError
from marshal_py.cli.command import EXIT_CODES_HELP, new_app, version_flag
from marshal_py.cli.exit_codes import EXIT_CODES, exit_code, say_error
from marshal_py.cli.output import prepare_output
from marshal_py.errors import MarshalError

__all__ = ["app", "main"]

app = new_app(
    name="harvest",
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
    """Entry point: errors become one line and an exit code."""
    prepare_output()
    try:
        app(prog_name="harvest")
    except MarshalError as error:
        say_error(str(error))
        sys.exit(exit_code(error))
    except HarvestError as error:
        say_error(str(error))
        sys.exit(EXIT_CODES[error.blame])

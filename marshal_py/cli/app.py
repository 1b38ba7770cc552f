"""The `marshal` command. Each command is a module of `marshal_py.commands`; here they are mounted.

To add a family of commands (`marshal topic …`), make an `app` with `new_app` of
`marshal_py.cli.framework` and give its module a line in `_FAMILIES`. To add a single command, give
its module a function `register(app)` and a line in `_COMMANDS`. Import what an extra brings inside
the commands, so that the others work without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from typing import Final

from marshal_py.cli import (
    claims,
    doctor,
    explain,
    groups,
    lag,
    snapshot,
    status,
    tail,
    top,
    verify,
)
from marshal_py.cli import migrate as cli_migrate
from marshal_py.cli.demo import command as demo
from marshal_py.cli.framework import global_flags, new_app

__all__ = ["app", "main"]

app = new_app(
    help="Look after coordination on Kafka: who holds what, who leads, and the log behind it.",
    epilog=(
        "Exit codes: 0 all well, 1 a finding, 2 wrong usage or configuration, 3 the environment "
        "(no broker, no topic, a package missing)."
    ),
)
app.callback()(global_flags)
app.command()(status.status)
app.command()(claims.claims)
app.command()(groups.groups)
app.command()(groups.members)
app.command()(lag.lag)
app.command()(tail.tail)
app.command()(top.top)
app.command()(explain.explain)
app.command()(verify.verify)
app.command()(doctor.doctor)
app.command()(snapshot.snapshot)
app.command()(demo.demo)

_FAMILIES: Final = {
    "metrics": "marshal_py.cli.metrics",
    "topic": "marshal_py.cli.topic",
    "group": "marshal_py.cli.group",
}
"""Name of the family → module with its `app`. One that is not there is left out."""

_COMMANDS: Final = ("marshal_py.cli.audit", "marshal_py.cli.dashboard")
"""Modules with a function `register`. One that is not there is left out."""

for _module in _COMMANDS:
    if importlib.util.find_spec(_module) is not None:
        importlib.import_module(_module).register(app)

for _name, _module in _FAMILIES.items():
    if importlib.util.find_spec(_module) is not None:
        _family = importlib.import_module(_module).app
    elif _name == "group":
        _family = new_app(help="Look after a group: its pause, its positions, its version.")
    else:
        continue
    if _name == "group":
        cli_migrate.register(_family)
    app.add_typer(_family, name=_name)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character is no failure
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="marshal")

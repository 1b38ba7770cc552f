"""The `marshal` command: here the commands are mounted, in the order in which `--help` lists them.

A single command is a function under `command` of `marshal_py.cli.command`; a family (`marshal topic
…`) is an app of `new_app`. Import what an extra brings inside the commands, so that the others work
without it.
"""

from __future__ import annotations

import logging

from marshal_py.cli import group, lake, metrics, topic
from marshal_py.cli.audit import audit
from marshal_py.cli.claims import claims
from marshal_py.cli.command import EXIT_CODES_HELP, global_flags, new_app
from marshal_py.cli.dashboard import dashboard
from marshal_py.cli.demo.command import demo
from marshal_py.cli.doctor import doctor
from marshal_py.cli.explain import explain
from marshal_py.cli.groups import groups, members
from marshal_py.cli.lag import lag
from marshal_py.cli.output import prepare_output
from marshal_py.cli.run import run
from marshal_py.cli.snapshot import snapshot
from marshal_py.cli.status import status
from marshal_py.cli.tail import tail
from marshal_py.cli.top import top
from marshal_py.cli.verify import verify

__all__ = ["app", "main"]

app = new_app(
    help="Look after coordination on Kafka: who holds what, who leads, and the log behind it.",
    epilog=EXIT_CODES_HELP,
)
app.callback()(global_flags)
app.command()(status)
app.command()(claims)
app.command()(groups)
app.command()(members)
app.command()(lag)
app.command()(tail)
app.command()(top)
app.command()(explain)
app.command()(verify)
app.command()(doctor)
app.command()(snapshot)
app.command()(demo)
app.command()(run)
app.command(
    epilog="Example: marshal audit -b localhost:9092 --out audit && open audit/report.html"
)(audit)
app.command(epilog="Example: marshal dashboard -b localhost:9092")(dashboard)
app.add_typer(lake.app, name="lake")
app.add_typer(metrics.app, name="metrics")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")


def main() -> None:
    """Run the command line."""
    prepare_output()
    # Commands say what they find; what the library logs besides is shown by --verbose.
    logging.getLogger("marshal_py").addHandler(logging.NullHandler())
    app(prog_name="marshal")

"""`marshal topic create`, `marshal topic trim` and `marshal topic recover`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_review import WHY, TopicReview, create_and_review
from marshal_py.cli.command import command, new_app
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, print_json, show, table
from marshal_py.cli.recover import recover
from marshal_py.cli.trim import trim
from marshal_py.client.topics import DEFAULT_PARTITIONS

__all__ = ["app"]

app = new_app(help="Create, trim and recover the coordination topic and its snapshot topic.")
app.command()(trim)
app.command()(recover)


@app.command()
@command()
def create(
    connection: Connection,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            metavar="N",
            help=f"Coordination partitions, fixed for the life of the topic: {DEFAULT_PARTITIONS}.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            metavar="R",
            help="Replicas: 3, or as many as there are brokers.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create the coordination topic and its snapshot topic; say what was chosen, and why.

    A topic that exists is left alone; settings that are not sound are shown, and the exit code is 1
    then.

    [bold]Examples[/]

      marshal topic create -b localhost:9092

      marshal topic create --topic __marshal.test --partitions 4 --replication-factor 1
    """
    results, brokers = create_and_review(connection, partitions, replication_factor)
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        for result in results:
            _print(result, brokers)
    if any(result.differences for result in results):
        raise typer.Exit(FINDING)


def _print(result: TopicReview, brokers: int) -> None:
    out = console()
    if result.created:
        out.print(f"[bold green]created[/] [bold]{result.topic}[/]")
        made = table("", "", "")
        made.show_header = False
        made.add_row("  partitions", str(result.partitions), "fixed for the life of the topic")
        made.add_row(
            "  replication factor",
            str(result.replication_factor),
            f"{brokers} broker{'s' if brokers != 1 else ''} in the cluster"
            + (": a single disk holds the log" if result.replication_factor == 1 else ""),
        )
        for name, value in result.config.items():
            made.add_row(f"  {name}", value, WHY.get(name, ""))
        show(out, made)
        return
    out.print(
        f"[bold]{result.topic}[/] exists: {result.partitions} partitions, replication factor "
        f"{result.replication_factor}; left as it is"
    )
    if not result.differences:
        out.print("  its settings are sound")
        return
    made = table("  DIFFERS IN", "IS", "SOUND", "WHY")
    for d in result.differences:
        made.add_row(f"  {d.setting}", str(d.found), d.sound, d.why)
    show(out, made)

"""`marshal topic recover`: the way back for a topic that was made anew, grown, cut or restored."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, safe
from marshal_py.admin.log_recovery import Recovery, recover_log
from marshal_py.cli.command import command
from marshal_py.cli.options import JsonFlag
from marshal_py.cli.output import console, note, print_json, show, table

__all__ = ["recover"]


@command()
def recover(
    connection: Connection,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it, only say what.")] = False,
    positions: Annotated[
        bool,
        typer.Option(
            "--positions/--no-positions",
            help="Set the positions again that snapshots have and the log has lost.",
        ),
    ] = True,
    above: Annotated[
        int | None,
        typer.Option(
            "--above",
            min=0,
            metavar="EPOCH",
            help="An epoch that a fence has seen; those from now on are larger.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Give the log a new identity, after its topic was made anew, grown, cut off or restored.

    A dry run without --yes. Stop all clients first. Each coordination partition gets a new genesis,
    with the number of partitions that the topic has now. What it does to fences: every epoch from
    then on is larger than any before, so that whatever refuses old epochs goes on doing so. Groups'
    positions that the log has lost are taken from the newest snapshots, if they are larger. Those
    that went on after the newest snapshot are lost: records may be handled once more.

    [bold]Examples[/]

      marshal topic recover -b localhost:9092          (says what it would do)

      marshal topic recover --yes

      marshal topic recover --no-positions --above 1795221000000000 --yes
    """
    done = recover_log(connection, apply=yes, restore_positions=positions, above=above)
    if as_json:
        print_json({**asdict(done), "positions": [asdict(row) for row in done.positions]})
        return
    _print(done)


def _print(done: Recovery) -> None:
    out = console()
    word = "has" if done.done else "would get"
    out.print(
        f"[bold]{done.topic}[/] {word} a new genesis in {count(done.partitions, 'partition')}; "
        f"epochs are above {done.base}, and were {done.highest_epoch} at most"
    )
    if 0 < done.snapshot_partitions < done.partitions:
        grown = "was" if done.done else "would be"
        out.print(
            f"{done.topic}.snapshots {grown} grown from {done.snapshot_partitions} to "
            f"{done.partitions} partitions"
        )
    if done.positions:
        right = ("POSITION", "NOW")
        made = table("GROUP", "TOPIC", "POSITION", "NOW", "FROM", right=right)
        for row in done.positions:
            made.add_row(
                safe(row.group_id),
                f"{safe(row.topic)}/{row.partition}",
                str(row.position),
                "–" if row.present < 0 else str(row.present),
                row.source,
            )
        show(out, made)
    for group in done.paused:
        note(f"group {group} is paused, and stays so: `marshal group resume` ends that")
    if not done.done:
        note("dry run: stop all clients and add --yes to do it")

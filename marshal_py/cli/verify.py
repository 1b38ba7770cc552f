"""`marshal verify`: replay the log, check every rule and every snapshot."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import clock_time, count, iso_utc, safe
from marshal_py.admin.log_verification import Verdict, verify_log
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import Interval, JsonFlag, WireFlag
from marshal_py.cli.output import console, note, print_json, table
from marshal_py.cli.output import show as show_tables

__all__ = ["verify"]

SHOWN: Final = 50


@command()
def verify(
    connection: Connection,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings count as findings, too.")
    ] = False,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """Replay the log; check every rule of the protocol and every snapshot; say what is wrong.

    Nothing is written. Errors break a rule: a client that does not follow the protocol, two
    processes under one name, a damaged snapshot, lost records. Warnings tell of trouble that the
    protocol withstands: processes that were paused, slow clocks, foreign bytes. Exit code 1 if
    there is an error.

    A log of version 1 (--wire text) has neither epochs nor snapshots: there it is checked who took
    what from whom, whether it was free by then, and what the clients' clocks show.

    [bold]Examples[/]

      marshal verify -b localhost:9092

      marshal verify --strict --json | jq '.findings[] | [.kind, .coordinator, .offset, .what]'

      marshal verify --wire text     (a log shared with Go Marshal)
    """
    verdict = verify_log(connection, interval_s if wire == "text" else None)
    if as_json:
        document = asdict(verdict)
        for finding in document["findings"]:
            finding["time"] = iso_utc(finding["at_ms"])
        print_json(document)
    else:
        _print(verdict)
    if not verdict.ok or (strict and verdict.findings):
        raise typer.Exit(FINDING)


def _names(text: str, client_id: str) -> bool:
    """Whether a text has the name of a client, and not only one that begins or ends as it does."""
    return re.search(rf"(?<![\w.-]){re.escape(client_id)}(?![\w-])", text) is not None


def _print(verdict: Verdict) -> None:
    out = console()
    shown = sorted(verdict.findings, key=lambda f: (f.level, f.at_ms))[:SHOWN]
    if shown:
        made = table("", "WHERE", "TIME", "KIND", "WHAT", right=("WHERE",))
        for f in shown:
            colour = "red" if f.level == "error" else "yellow"
            cell = "" if not f.topic else f"{f.topic}/{f.partition} of {f.group}: "
            who = "" if f.client_id is None or _names(f.what, f.client_id) else f"{f.client_id}: "
            made.add_row(
                f"[{colour}]{f.level}[/]",
                f"{f.coordinator}@{f.offset}",
                clock_time(f.at_ms, date=True) if f.at_ms > 0 else "",
                f.kind,
                safe(f"{cell}{who}{f.what}"),
            )
        show_tables(out, made)
        if len(verdict.findings) > SHOWN:
            note(f"and {len(verdict.findings) - SHOWN:,} more; --json shows all")
        kinds: dict[str, Any] = {f.kind: f.meaning for f in verdict.findings}
        for kind, meaning in kinds.items():
            note(f"{kind}: {meaning}")
    compared = f"{count(verdict.snapshots, 'snapshot')} compared, " if verdict.has_snapshots else ""
    summary = (
        f"{count(verdict.records, 'record')} in {count(verdict.partitions, 'partition')} replayed, "
        f"{compared}in {verdict.seconds:.1f} s: "
    )
    if not verdict.findings:
        out.print(f"{summary}[green]nothing is wrong[/]")
        return
    levels = Counter(f.level for f in verdict.findings)
    totals = [count(levels[level], level) for level in ("error", "warning") if levels[level]]
    out.print(f"{summary}[{'yellow' if verdict.ok else 'red'}]{', '.join(totals)}[/]")

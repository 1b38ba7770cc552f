"""`marshal doctor`: whether a cluster keeps what the guarantees need: facts, then checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Final

import typer

from marshal_py.admin.cluster_checks import (
    Check,
    check_cluster,
)
from marshal_py.admin.cluster_facts import gather_cluster_facts
from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count, safe
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import LONGEST_S, JsonFlag
from marshal_py.cli.output import console, print_json

__all__ = ["doctor"]

_MARKS: Final = {
    "ok": "[green]ok[/]     ",
    "note": "[cyan]note[/]   ",
    "skipped": "[dim]skipped[/]",
    "warning": "[yellow]warning[/]",
    "error": "[red]error[/]  ",
}


@command()
def doctor(
    connection: Connection,
    watch_s: Annotated[
        float,
        typer.Option(
            "--watch", min=0.0, max=LONGEST_S, metavar="SECONDS", help="Watch clocks so long."
        ),
    ] = 3.0,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Measure clocks with a scratch topic; it is removed."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show what is well, too.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check a cluster for what would break the guarantees; print the command that mends it.

    Looks at topics, replicas, settings, rights, versions, clocks and the log. Reads only, unless
    --probe is given. Run it with the settings of your clients, on a machine that runs one; as an
    administrator it sees more settings. Exit code 1 if there is a warning or an error.

    [bold]Examples[/]

      marshal doctor -b localhost:9092

      marshal doctor --config client.properties --probe --json | jq '.checks[] | select(.fix)'
    """
    checks = check_cluster(gather_cluster_facts(connection, watch_s=watch_s, probe=probe))
    findings = [c for c in checks if c.level in ("warning", "error")]
    if as_json:
        print_json(
            {
                "topic": connection.topic,
                "ok": not findings,
                "checks": [asdict(check) for check in checks],
            }
        )
    else:
        _print(checks, everything=everything)
    if findings:
        raise typer.Exit(FINDING)


def _print(checks: list[Check], *, everything: bool) -> None:
    out = console()
    for check in checks:
        if check.level == "ok" and not everything:
            continue
        mark = _MARKS[check.level]
        out.print(f"{mark}  [bold]{check.name}[/] of {safe(check.subject)}: {safe(check.text)}")
        if check.why:
            out.print(f"         {safe(check.why)}")
        if check.fix:
            out.print(f"         [bold]fix:[/] {safe(check.fix)}")
    levels = Counter(check.level for check in checks)
    bad = [count(levels[level], level) for level in ("error", "warning") if levels[level]]
    verdict = f"[red]{', '.join(bad)}[/]" if bad else "[green]nothing endangers the guarantees[/]"
    rest = f"; {levels['skipped']} not checked" if levels["skipped"] else ""
    out.print(f"{count(len(checks), 'check')}, {levels['ok']} well{rest}: {verdict}")

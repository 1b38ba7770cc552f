"""``python -m tests.simulation``: run a campaign of histories, or look at one of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.campaign import Result, run_campaign
from tests.simulation.compiled import CannotCompile, compiled, run_in, same_histories
from tests.simulation.scenario import Scenario, generate
from tests.simulation.shrink import shrink, timeline
from tests.simulation.simulator import run

STRETCH: Final = 10_000
"""Histories between two writings of --total."""
SAME: Final = 100
"""Histories that the compiled code is compared with the interpreted on."""

app = typer.Typer(add_completion=False)
errors = Console(stderr=True)


@app.command()
def main(
    histories: Annotated[int, typer.Option(min=1, help="How many histories to run.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The seed of the first; the next ones follow.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes to use.")] = (
        os.cpu_count() or 1
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the timeline of the one history of --seed.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Run a scenario from a file that --save wrote.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the first failure, made small, to this file.")
    ] = None,
    shrinking: Annotated[bool, typer.Option("--shrink/--no-shrink", help="Make it small.")] = True,
    total: Annotated[
        Path | None,
        typer.Option(help="Add up in this file; a campaign that was broken off goes on from it."),
    ] = None,
    compile_first: Annotated[
        bool,
        typer.Option(
            "--compiled", help="Compile with mypyc first: twice as fast (needs a C compiler)."
        ),
    ] = False,
) -> None:
    """Run HISTORIES simulated histories and check every invariant at every step.

    Exit status: 0 all held; 1 one was violated, or a kind of fault never fired.

    Example: python -m tests.simulation --histories 10000 --seed 1 --json
    """
    if replay is not None or show:
        scenario = (
            generate(seed)
            if replay is None
            else Scenario.from_json(json.loads(replay.read_text("utf-8")))
        )
        if shrinking:
            scenario = shrink(scenario)
        typer.echo(timeline(scenario))
        raise typer.Exit(run(scenario).violation is not None)
    if compile_first:
        raise typer.Exit(_compiled(seed))
    result = _with_progress(seed, histories, processes, total)
    failures = sorted(result.failures)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        _print(result)
    if failures:
        small = generate(failures[0].seed)
        if shrinking:
            small = shrink(small)
        errors.print(timeline(small), markup=False, highlight=False, soft_wrap=True)
        if save is not None:
            save.write_text(json.dumps(small.to_json()), "utf-8")
    raise typer.Exit(0 if result.good else 1)


def _compiled(seed: int) -> int:
    try:
        with compiled() as tree:
            if not same_histories(tree, seed, SAME):
                errors.print("the compiled code makes other histories than the interpreted")
                return 1
            errors.print(f"compiled; {SAME} histories are the same as interpreted")
            return run_in(tree, *(word for word in sys.argv[1:] if word != "--compiled"))
    except CannotCompile as error:
        errors.print(f"cannot compile: {error}", markup=False)
        return 3


def _with_progress(seed: int, histories: int, processes: int, file: Path | None) -> Result:
    sofar = Result()
    if file is not None and file.exists():
        sofar = Result.from_json(json.loads(file.read_text("utf-8")))
    bar = Progress(
        TextColumn("histories"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=errors,
        disable=not errors.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=histories, completed=sofar.histories, failed=0)

        def show(part: Result) -> None:
            done = sofar.histories + part.histories
            bar.update(task, completed=done, failed=len(sofar.failures + part.failures))

        while sofar.histories < histories:
            count = min(histories - sofar.histories, STRETCH if file else histories)
            sofar.add(run_campaign(seed + sofar.histories, count, processes, show))
            if file is not None:
                new = file.with_name(file.name + ".new")
                new.write_text(json.dumps(sofar.to_json(), indent=2), "utf-8")
                new.replace(file)
    return sofar


def _print(result: Result) -> None:
    data = result.to_json()
    typer.echo(
        f"{data['histories']} histories, {data['virtual_hours']} hours of virtual time, "
        f"{data['seconds']} s, {data['histories_per_s']} a second"
    )
    for title in ("kinds", "fired", "counts"):
        typer.echo(f"\n{title}:")
        for name, count in data[title].items():
            typer.echo(f"  {name:<32}{count:>12}")
    if result.never_fired:
        typer.echo(f"\nNEVER FIRED: {', '.join(result.never_fired)}")
    typer.echo(f"\n{len(result.failures)} histories violate an invariant")
    for failure in sorted(result.failures)[:20]:
        typer.echo(f"  seed {failure.seed} ({failure.kind}): {failure.invariant}: {failure.text}")


if __name__ == "__main__":
    app()

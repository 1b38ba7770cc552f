"""``python -m tests.mutation``: run every mutant, print who caught it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from tests.mutation.child import found_by
from tests.mutation.find import AnyMutant
from tests.mutation.load import DoesNotApply
from tests.mutation.mutants import MUTANTS
from tests.mutation.mutants.systematic import systematic
from tests.support.paths import ROOT

UNIT_TESTS: Final[dict[str, tuple[str, ...]]] = {
    "protocol": (
        "marshal_py/protocol/test_rationalizer.py",
        "marshal_py/protocol/test_claimant.py",
        "marshal_py/protocol/test_claimant_edge_cases.py",
        "marshal_py/protocol/test_claimant_regressions.py",
        "marshal_py/protocol/test_claimant_spec.py",
        "marshal_py/protocol/test_claimant_ranges.py",
        "marshal_py/protocol/test_vectors.py",
        "marshal_py/protocol/test_ranges.py",
        "marshal_py/protocol/test_world.py",
        "marshal_py/protocol/test_messages.py",
        "marshal_py/protocol/test_state_image.py",
        "marshal_py/protocol/test_snapshot_records.py",
        "marshal_py/protocol/test_claimant_properties.py",
        "marshal_py/protocol/test_rationalizer_properties.py",
    ),
    "consumers": (
        "marshal_py/consumer/test_decisions.py",
        "marshal_py/consumer/test_partition_claims.py",
        "marshal_py/consumer/test_claimed_ahead.py",
        "marshal_py/consumer/test_handover.py",
        "marshal_py/consumer/test_held_partition.py",
        "marshal_py/protocol/test_claimant_regressions.py",
        "marshal_py/consumer/handlers/test_options.py",
        "marshal_py/protocol/test_balance.py",
        "marshal_py/protocol/test_shares.py",
        "marshal_py/consumer/test_group_view.py",
        "marshal_py/consumer/test_positions.py",
    ),
    "keys": (
        "marshal_py/consumer/test_slots.py",
        "marshal_py/protocol/test_slots.py",
    ),
    "messages": (
        "marshal_py/protocol/test_range_choice.py",
        "marshal_py/protocol/test_claimant_ranges.py",
        "marshal_py/protocol/test_ranges.py",
        "marshal_py/consumer/test_range_stream.py",
        "marshal_py/consumer/test_range_claims.py",
    ),
    "handlers": (
        "marshal_py/consumer/handlers/test_schedule.py",
        "marshal_py/consumer/test_dead_letters.py",
        "marshal_py/consumer/handlers/test_options.py",
        "marshal_py/consumer/handlers/test_middleware.py",
        "marshal_py/consumer/handlers/test_runner.py",
        "marshal_py/consumer/test_positions.py",
    ),
    "harvesters": (
        "harvest/core/test_pacing.py",
        "harvest/core/test_mark_actions.py",
        "harvest/runtime/test_mark_leader.py",
        "harvest/core/test_mark.py",
        "harvest/core/test_source.py",
        "harvest/runtime/test_source_guard.py",
        "harvest/runtime/test_harvester.py",
        "harvest/runtime/test_sharded_harvester.py",
    ),
    "ranges": (
        "harvest/core/test_range_actions.py",
        "harvest/runtime/test_range_leader.py",
        "harvest/core/test_gaps.py",
        "harvest/core/test_range.py",
    ),
    "dead_letters": (
        "harvest/core/test_mark_actions.py",
        "harvest/core/test_range_dead_letters.py",
        "harvest/runtime/test_dead_letters.py",
        "harvest/core/test_mark.py",
        "harvest/core/test_range.py",
    ),
    "shards": ("harvest/runtime/test_sharded_harvester.py",),
    "wals": ("harvest/core/test_wal.py", "harvest/runtime/test_wal_leader.py"),
    "sinks": (
        "harvest/sinks/test_idempotent_sink.py",
        "harvest/sinks/test_transactional_sink.py",
        "harvest/core/test_kafka_headers.py",
        "harvest/sinks/test_partitioner.py",
        "harvest/core/test_relay.py",
        "harvest/core/test_extra_columns.py",
        "harvest/sinks/test_committed_checkpoint.py",
        "harvest/sinks/test_sinks_over_failing_kafka.py",
        "harvest/runtime/test_replay.py",
    ),
    "relays": (
        "harvest/core/test_relay.py",
        "harvest/sinks/test_http_exchange.py",
        "harvest/runtime/test_relay_metrics.py",
        "harvest/runtime/test_relay_leader.py",
    ),
    "sources": (
        "harvest/databases/test_pgoutput.py",
        "harvest/databases/test_replication.py",
        "harvest/runtime/test_wal_leader.py",
        "harvest/runtime/test_source_guard.py",
        "harvest/core/test_wal.py",
        "harvest/maintenance/test_partitions.py",
    ),
    "looking": (
        "harvest/runtime/test_monitor.py",
        "marshal_py/dashboard/test_guard.py",
        "marshal_py/dashboard/test_log_follower.py",
        "marshal_py/dashboard/test_live_state.py",
        "marshal_py/telemetry/test_consumer_status.py",
        "marshal_py/telemetry/test_lag_clock.py",
        "marshal_py/telemetry/test_group_metrics.py",
    ),
    "logs": (
        "marshal_py/client/test_log_writer.py",
        "marshal_py/client/test_log_reader.py",
        "marshal_py/client/test_snapshot_desk.py",
        "marshal_py/client/test_held_without_a_lock.py",
    ),
    "workers": (
        "marshal_py/consumer/handlers/test_workers.py",
        "marshal_py/consumer/test_callbacks.py",
    ),
    "reconcile": ("harvest/spark/test_compare.py",),
}
"""For each campaign, the unit tests that may notice what it does not: files below
tests/unit, quick ones first."""
NO_HISTORIES: Final = ("workers", "reconcile", "sources", "looking")
"""Campaigns of what no history of `tests.simulation` plays."""
UNIT_TESTS_S: Final = 300
WHOLE_HISTORIES: Final = 400
"""Histories of whole clients take longer, and each tells more."""

app = typer.Typer(add_completion=False)
errors = Console(stderr=True)


@app.command()
def main(
    histories: Annotated[
        int, typer.Option(min=0, help="Histories after which the campaign gives up.")
    ] = 2_000,
    seed: Annotated[int, typer.Option(help="The seed of the first history.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Mutants at a time.")] = 1,
    systematically: Annotated[
        str,
        typer.Option(
            "--systematic",
            help="Instead: every small change to rationalizer, claimant or world, or to any module "
            "with the campaign that tests it: marshal_py.client.log_writer:logs.",
        ),
    ] = "",
    only: Annotated[str, typer.Option(help="Only mutants whose name contains this.")] = "",
    both: Annotated[
        bool, typer.Option("--both", help="Run the unit tests, too, where the campaign caught it.")
    ] = False,
    tests_first: Annotated[
        bool,
        typer.Option("--tests-first", help="Histories only where no unit test notices: quicker."),
    ] = False,
    total: Annotated[
        Path | None,
        typer.Option(help="Keep the rows in this file; what is in it is not run again."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Leave out one guard after the other; the campaign or a unit test must notice.

    Exit status: 0 all were caught; 1 some were not; 3 some mutants do not apply any more, or the
    unit tests fail without a mutant.

    Example: python -m tests.mutation --json > mutants.json
    """
    mutants: Sequence[AnyMutant] = MUTANTS
    if systematically:
        module, _, campaign = systematically.partition(":")
        name = module if "." in module else f"marshal_py.protocol.{module}"
        mutants = systematic(name, campaign or "protocol")
    chosen = [mutant for mutant in mutants if only in mutant.name]
    for mutant in chosen:
        try:
            mutant.code()
        except DoesNotApply as problem:
            errors.print(f"does not apply: {problem}", markup=False)
            raise typer.Exit(3) from None
    for campaign in sorted({mutant.campaign for mutant in chosen}):
        failing = _unit_tests(campaign)
        if failing is not None:
            errors.print(f"without any mutant, {failing} fails", markup=False)
            raise typer.Exit(3)
    table: dict[str, dict[str, Any]] = {}
    if total is not None and total.exists():
        table = {row["mutant"]: row for row in json.loads(total.read_text("utf-8"))}
    left = [mutant for mutant in chosen if mutant.name not in table]
    with ThreadPoolExecutor(processes) as pool:
        for row in pool.map(lambda m: try_mutant(m, histories, seed, both, tests_first), left):
            table[row["mutant"]] = row
            if total is not None:
                new = total.with_name(total.name + ".new")
                new.write_text(json.dumps(list(table.values()), indent=1), "utf-8")
                new.replace(total)
            if not as_json:
                _print(row)
    rows = [table[mutant.name] for mutant in chosen]
    survivors = [row["mutant"] for row in rows if row["caught_by"] is None]
    if as_json:
        by_campaign = [row for row in rows if row["invariant"] is not None]
        summary = {
            "mutants": len(rows),
            "caught": len(rows) - len(survivors),
            "caught_by_campaign": len(by_campaign),
            "histories_at_most": histories,
            "seed": seed,
            "survivors": survivors,
            "table": rows,
        }
        typer.echo(json.dumps(summary, indent=1))
    else:
        typer.echo(f"\n{len(rows) - len(survivors)} of {len(rows)} mutants were caught")
        for name in survivors:
            typer.echo(f"  NOT CAUGHT: {name}")
    raise typer.Exit(1 if survivors else 0)


def try_mutant(
    mutant: AnyMutant, histories: int, seed: int, both: bool, tests_first: bool = False
) -> dict[str, Any]:
    """Run one mutant; return its row of the table."""
    started = time.monotonic()
    found: dict[str, Any] = {"caught": None, "histories": 0}
    if mutant.campaign in NO_HISTORIES:
        histories = 0
    elif mutant.campaign != "protocol":
        histories = min(histories, WHOLE_HISTORIES)
    test = _unit_tests(mutant.campaign, mutant.name) if tests_first else None
    if histories and test is None:
        found = found_by("tests.mutation.child", mutant.name, str(histories), str(seed))
    invariant = found["caught"][0] if found["caught"] else None
    if not tests_first and (invariant is None or both):
        test = _unit_tests(mutant.campaign, mutant.name)
    return {
        "mutant": mutant.name,
        "caught_by": f"invariant: {invariant}" if invariant else test and f"test: {test}",
        "invariant": invariant,
        "histories": found["histories"],
        "test": test,
        "seconds": round(time.monotonic() - started, 1),
    }


def _unit_tests(campaign: str, name: str = "") -> str | None:
    """Return the first unit test that fails, with the mutant `name` or none; None if all pass."""
    tests = [f"tests/unit/{test}" for test in UNIT_TESTS[campaign]]
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.plugin", "-x", "-q"]
    try:
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--timeout", "60", *tests],
            cwd=ROOT,
            env={**os.environ, "MUTANT": name},
            capture_output=True,
            text=True,
            timeout=UNIT_TESTS_S,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if done.returncode == 0:
        return None
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0].rsplit("/", 1)[-1]
    if done.returncode in (1, 2):
        return "the tests cannot start"
    raise RuntimeError(f"{name}: pytest ended with {done.returncode}\n{done.stdout}")


def _print(row: dict[str, Any]) -> None:
    caught = row["caught_by"] or "NOT CAUGHT"
    after = f"after {row['histories']}" if row["invariant"] else ""
    typer.echo(f"{row['mutant']:<100} {caught} {after}")


if __name__ == "__main__":
    app()

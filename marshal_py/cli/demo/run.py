"""`marshal demo`, from the options to the exit code."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import psycopg

from marshal_py.cli.demo.audit import audit_and_reconcile, can_audit
from marshal_py.cli.demo.compare import Comparison, Entry, compare
from marshal_py.cli.demo.config import DemoConfig
from marshal_py.cli.demo.environment import Options, open_environment
from marshal_py.cli.demo.observers import read_topic
from marshal_py.cli.demo.progress import LiveProgress, PlainProgress
from marshal_py.cli.demo.report import as_document, as_table, sound, verdict
from marshal_py.cli.demo.scenario import Scenario
from marshal_py.cli.output import console, print_json, show

__all__ = ["run"]


def run(options: Options, *, as_json: bool) -> bool:
    """Run the demo and print the report; return whether all was sound.

    Raises what `open_environment` raises, and `DemoFailed`.
    """
    began_s = time.monotonic()
    terminal = console(stderr=True, wide=False)
    progress = LiveProgress(terminal) if terminal.is_terminal else PlainProgress(terminal)
    with _sigterm_ends(), progress, open_environment(options, progress.say) as environment:
        scenario = Scenario(
            environment.config,
            environment.processes,
            options.seconds,
            options.drain_limit_s,
            progress,
        )
        try:
            scenario.run()
            progress.say("comparing the database, Kafka and the consumers")
            result = _compare(environment.config, scenario)
            audit = None
            if options.audit and can_audit():
                progress.say("audit and reconciliation, on Spark")
                audit = audit_and_reconcile(environment.config)
        finally:
            scenario.close()
    document: dict[str, Any] = as_document(
        result, scenario, environment.servers, time.monotonic() - began_s, audit
    )
    good = sound(result, scenario) and (audit is None or audit.clean)
    if as_json:
        print_json(document, indent=None)
    else:
        out = console(wide=False)
        show(out, as_table(result, scenario, audit))
        colour = "green" if good else "bold red"
        out.print(f"\n[{colour}]{verdict(result, scenario, audit)}[/]")
        if audit is not None:
            for name, path in audit.reports.items():
                out.print(f"{name}: {path}", soft_wrap=True, markup=False)
        elif options.audit:
            out.print(
                "[dim]audit and reconciliation left out: pip install 'marshal-py\\[spark]'[/]"
            )
        out.print(
            f"[dim]{document['took_s']:.0f} s on {environment.servers}; seed {options.seed}[/]"
        )
    return good


def _compare(config: DemoConfig, scenario: Scenario) -> Comparison:
    rows = f"SELECT row_id, key, seq FROM {config.schema}.ledger"  # noqa: S608
    counts = f"SELECT key, seq FROM {config.schema}.accounts"  # noqa: S608
    with psycopg.connect(config.dsn, connect_timeout=10) as connection:
        ledger = [Entry(*row) for row in connection.execute(rows)]
        accounts: dict[str, int] = dict(connection.execute(counts))
    return compare(ledger, accounts, read_topic(config), scenario.deliveries.all)


@contextlib.contextmanager
def _sigterm_ends() -> Iterator[None]:
    """Let SIGTERM end the demo as Ctrl-C does, so that everything is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

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

from marshal_py.cli.demo.compare import Comparison, Entry, compare
from marshal_py.cli.demo.config import DemoConfig
from marshal_py.cli.demo.director import Director
from marshal_py.cli.demo.proof import can_prove, prove
from marshal_py.cli.demo.report import as_document, as_table, sound, verdict
from marshal_py.cli.demo.stage import Options, open_stage
from marshal_py.cli.demo.view import LiveView, PlainView
from marshal_py.cli.demo.watch import read_topic
from marshal_py.cli.output import console, print_json, show

__all__ = ["run"]


def run(options: Options, *, as_json: bool) -> bool:
    """Run the demo and print the report; return whether all was sound.

    Raises what `open_stage` raises, and `DemoFailed`.
    """
    began_s = time.monotonic()
    progress = console(stderr=True, wide=False)
    view = LiveView(progress) if progress.is_terminal else PlainView(progress)
    with _sigterm_ends(), view, open_stage(options, view.say) as stage:
        director = Director(stage.config, stage.cast, options.seconds, options.drain_limit_s, view)
        try:
            director.run()
            view.say("comparing the database, Kafka and the consumers")
            result = _compare(stage.config, director)
            proof = None
            if options.prove and can_prove():
                view.say("audit and reconciliation, on Spark")
                proof = prove(stage.config)
        finally:
            director.close()
    document: dict[str, Any] = as_document(
        result, director, stage.servers, time.monotonic() - began_s, proof
    )
    good = sound(result, director) and (proof is None or proof.clean)
    if as_json:
        print_json(document, indent=None)
    else:
        out = console(wide=False)
        show(out, as_table(result, director, proof))
        colour = "green" if good else "bold red"
        out.print(f"\n[{colour}]{verdict(result, director, proof)}[/]")
        if proof is not None:
            for name, path in proof.reports.items():
                out.print(f"{name}: {path}", soft_wrap=True, markup=False)
        elif options.prove:
            out.print(
                "[dim]audit and reconciliation left out: pip install 'marshal-py\\[spark]'[/]"
            )
        out.print(f"[dim]{document['took_s']:.0f} s on {stage.servers}; seed {options.seed}[/]")
    return good


def _compare(config: DemoConfig, director: Director) -> Comparison:
    rows = f"SELECT row_id, key, seq FROM {config.schema}.ledger"  # noqa: S608
    counts = f"SELECT key, seq FROM {config.schema}.accounts"  # noqa: S608
    with psycopg.connect(config.dsn, connect_timeout=10) as connection:
        ledger = [Entry(*row) for row in connection.execute(rows)]
        accounts: dict[str, int] = dict(connection.execute(counts))
    return compare(ledger, accounts, read_topic(config), director.deliveries.all)


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

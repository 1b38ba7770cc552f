"""The `harvest` command.

Exit codes: 0 done; 1 a finding or a failure; 2 wrong usage or configuration; 3 the environment
(a server that cannot be reached).
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from harvest.cli import dead_letters as dead_letters_cli
from harvest.cli import range_mode as range_cli
from harvest.cli import replay as replay_cli
from harvest.cli import spark as spark_cli
from harvest.config.load import load
from harvest.config.model import ReaperConfig
from harvest.core.table_name import TableName
from harvest.databases import registry as databases
from harvest.databases.registry import AnyMarkStore, AnyRangeStore, Database
from harvest.databases.two_databases import PostgresIds
from harvest.errors import ConfigurationError, HarvestError
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher
from harvest.runtime.monitor import Monitor
from harvest.runtime.status_server import StatusServer, parse_address
from marshal_py.errors import MarshalError

if TYPE_CHECKING:
    from harvest.runtime.process import Process

__all__ = ["app", "main"]

_LOG: Final = logging.getLogger("harvest")
_EXIT_CODES: Final = {"usage": 2, "configuration": 2, "log": 3, "environment": 3}


class Mode(StrEnum):
    """How rows are harvested."""

    MARK = "mark"
    RANGE = "range"


app = typer.Typer(
    name="harvest",
    help="Publish the rows of an outbox table to Kafka: in order, and only what was committed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", "-f", help="reaper.yaml, ours or goharvest's.", show_default=False
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        "-d",
        help="Not a configuration but postgresql://…, key=value, sqlite:///path or mysql://…",
        show_default=False,
    ),
]
TableOption = Annotated[
    str | None, typer.Option("--table", "-t", help="The outbox table. [dim]default: outbox[/dim]")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def init(
    config: ConfigOption = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    bytes_: Annotated[
        bool, typer.Option("--bytes", help="Keys and values of any bytes (BYTEA), not text.")
    ] = False,
    notify: Annotated[
        bool | None,
        typer.Option(
            "--notify/--no-notify",
            help="Make or remove the trigger that wakes an idle harvester.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="What it is for.", show_default="mark, or as configured"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create the outbox table, if it does not exist.

    --mode range makes it partitioned, with a small table beside it for positions; an existing
    outbox is left as it is, and gets that table.

    --notify adds a trigger that says when rows were inserted: new rows are published within
    milliseconds. Without it an idle harvester looks less and less often, at the latest every
    `limits.max_poll_interval_ms`.

    [dim]Example:[/dim] harvest init --database postgresql://localhost/shop
    """
    tables, name, mode = _database(config, database, table, mode)
    store = _store(tables, name, mode)
    created = store.init(value_type="bytes" if bytes_ else "text")
    ids = _ids_in_primary(config)
    if ids is not None:
        with closing(ids):
            ids.init()
    with closing(tables.dead_letters(TableName.parse(name))) as dead_letters:
        dead_letters.create()
    report = {"table": name, "created": created}
    lines = [f"{name}: created" if created else f"{name}: exists already, left as it is"]
    if notify is not None:
        changed = tables.install_notify(TableName.parse(name), remove=not notify)
        report["notify"] = notify
        state = "there" if notify else "not there"
        lines.append(f"{name}: the trigger is {state}{'' if changed else ' already'}")
    typer.echo(json.dumps(report) if as_json else "\n".join(lines))


@app.command()
def reap(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", "-f", help="reaper.yaml, ours or goharvest's.", exists=True),
    ],
    create_topics: Annotated[
        bool,
        typer.Option("--create-topics", help="Make the coordination topics if they are missing."),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /healthz and /metrics (Prometheus) here.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Harvest, whenever this process leads, until SIGTERM or Ctrl-C.

    Start several: one works, the others stand by. On SIGTERM it finishes what is in flight, hands
    over and exits with 0.

    [dim]Example:[/dim] harvest reap --config reaper.yaml --listen 127.0.0.1:9101
    """
    settings = load(config)
    if create_topics:
        coordination = settings.coordination.model_copy(update={"create_topics": True})
        settings = settings.model_copy(update={"coordination": coordination})
    logging.basicConfig(
        stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    logging.getLogger("harvest").setLevel(settings.logging.python_level())
    logging.getLogger("marshal_py").setLevel(settings.logging.python_level())
    _reap(settings, None if listen is None else parse_address(listen))


def _reap(settings: ReaperConfig, listen: tuple[str, int] | None) -> None:
    from harvest.runtime.process import process

    stopped = False

    def before(_number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, before)
    with process(settings) as running, _serving(running, listen):

        def stop(number: int, _: FrameType | None) -> None:
            nonlocal stopped
            if stopped and number == signal.SIGINT:
                raise KeyboardInterrupt
            stopped = True
            running.reaper.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        running.reaper.run()
    _LOG.info("stopped: %d rows published", running.reaper.stats.published)


@app.command()
def stash(
    topic: Annotated[str, typer.Argument(help="Kafka topic.")],
    key: Annotated[str, typer.Argument(help="Key: decides partition and order.")],
    value: Annotated[
        str | None, typer.Argument(help="Value; without it, a tombstone.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="name=value, as often as needed.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    database: DatabaseOption = None,
    table: TableOption = None,
) -> None:
    """Insert one row into the outbox, in a transaction of its own. For trying things out.

    [dim]Example:[/dim] harvest stash orders order-1 '{"paid": true}' -d postgresql://localhost/shop
    """
    tables, name, mode = _database(config, database, table)
    record = OutboxRecord(topic, key, value, [_pair(text) for text in header or []])
    store = _store(tables, name, mode)
    store.connect()
    with tables.transaction() as connection:
        Stasher(name).stash(connection, record)
    typer.echo(f"{name}: one row for {topic}, key {key!r}")


@app.command()
def check(
    config: ConfigOption = None,
    database: DatabaseOption = None,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at the database, the table, its privileges, and with --config at Kafka and its topics.

    Says what to do about what is wrong, and then exits with 1. It changes nothing.

    [dim]Example:[/dim] harvest check --config reaper.yaml
    """
    tables, name, mode = _database(config, database, table)
    store = _store(tables, name, mode)
    findings = store.check()
    ids = _ids_in_primary(config)
    if ids is not None:
        with closing(ids):
            findings += ids.check()
    wrong = any(finding.level == "error" for finding in findings)
    backlog = None if wrong else store.backlog()
    if not wrong:
        findings += store.check_around()
    if config is not None:
        from harvest.sinks.kafka.check import check_kafka

        settings = load(config)
        # With destinations, the topic column names no topics of Kafka.
        topics = [] if wrong or settings.destinations else store.topics()
        findings += check_kafka(settings, topics)
        wrong = any(finding.level == "error" for finding in findings)
    if as_json:
        report: dict[str, Any] = {
            "table": name,
            "ok": not wrong,
            "findings": [
                {"subject": f.subject, "level": f.level, "text": f.text} for f in findings
            ],
        }
        if backlog is not None:
            report["backlog_rows"] = backlog.rows
            report["oldest_age_s"] = backlog.oldest_age_s
        typer.echo(json.dumps(report))
    else:
        for finding in findings:
            typer.echo(f"{finding.level:<8}{finding.subject:<11}{finding.text}")
        if backlog is not None:
            age = "" if backlog.oldest_age_s is None else f", oldest {backlog.oldest_age_s:.1f} s"
            typer.echo(f"{'ok':<8}{'backlog':<11}{backlog.rows} rows{age}")
    if wrong:
        raise typer.Exit(1)


@app.command()
def bench(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", "-f", help="reaper.yaml, ours or goharvest's.", exists=True),
    ],
    rows: Annotated[int, typer.Option(min=1, help="How many rows to drain.")] = 100_000,
    value_bytes: Annotated[int, typer.Option(min=0, help="Size of each value.")] = 256,
    keys: Annotated[int, typer.Option(min=1, help="How many keys.")] = 10_000,
    partitions: Annotated[int, typer.Option(min=1, help="Of the scratch topic.")] = 6,
    mode: Annotated[
        list[Mode] | None, typer.Option("--mode", help="Only this mode.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Drain a backlog on your own database and Kafka, in each mode, and say how fast that was.

    Uses a table and topics with scratch names, and removes them. They take disk space, and the
    servers are busy meanwhile. The harvester runs in this process, with the file's settings.

    [dim]Example:[/dim] harvest bench --config reaper.yaml --rows 500000
    """
    from harvest.cli.bench import Work, reachable
    from harvest.cli.bench import bench as measure

    settings = load(config)
    reachable(settings)
    work = Work(rows, value_bytes, keys, partitions)
    results = [measure(settings, chosen.value, work) for chosen in mode or list(Mode)]
    if as_json:
        typer.echo(json.dumps({"results": [asdict(result) for result in results]}))
        return
    typer.echo(f"{rows} rows of {value_bytes} bytes, {keys} keys, {partitions} partitions")
    typer.echo(f"{'mode':<22}{'rows/s':>10}{'CPU s/100,000':>16}{'peak MB':>10}")
    for result in results:
        typer.echo(
            f"{result.mode:<22}{result.drain_rows_per_s:>10,.0f}{result.cpu_s_per_100k:>16.2f}"
            f"{result.peak_mb:>10.0f}"
        )


spark_cli.register(app)
app.add_typer(dead_letters_cli.app, name="dead-letters")
range_cli.register(app)
replay_cli.register(app)


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    try:
        app()
    except (HarvestError, MarshalError) as error:
        typer.echo(f"harvest: {error}", err=True)
        sys.exit(_EXIT_CODES[error.blame])


@contextmanager
def _serving(running: Process, listen: tuple[str, int] | None) -> Iterator[None]:
    if listen is None:
        yield
        return
    monitor = Monitor(running.reaper, running.probes())
    with StatusServer(monitor, listen):
        monitor.start()
        try:
            yield
        finally:
            monitor.close()


def _database(
    config: Path | None, database: str | None, table: str | None, mode: Mode | None = None
) -> tuple[Database, str, Mode]:
    if (config is None) == (database is None):
        raise ConfigurationError("give either --config FILE or --database CONNECTION")
    if config is None:
        return databases.given(database or ""), table or "outbox", mode or Mode.MARK
    settings = load(config)
    tables = databases.database(settings.database)
    return tables, table or settings.outbox, mode or Mode(settings.mode)


def _store(tables: Database, name: str, mode: Mode) -> AnyMarkStore | AnyRangeStore:
    table = TableName.parse(name)
    return tables.range_store(table) if mode is Mode.RANGE else tables.mark_store(table)


def _ids_in_primary(config: Path | None) -> PostgresIds | None:
    """The table of ids, where the configuration has two databases."""
    primary = None if config is None else load(config).primary
    return None if primary is None else PostgresIds(primary.database, primary.ids)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigurationError(f"--header {text!r}: write name=value")
    return name, value

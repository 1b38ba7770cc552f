"""`harvest reconcile`: what of an outbox arrived in Kafka; `harvest lake`: its rows for a lake."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harvest.cli.options import JsonFlag, SparkMaster
from harvest.errors import ConfigurationError
from marshal_py.cli.folders import make_folder
from marshal_py.cli.options import LONGEST_H, LONGEST_S
from marshal_py.cli.output import print_json, say

if TYPE_CHECKING:
    from harvest.spark.reconcile import Reconciliation

__all__ = ["lake", "reconcile"]


def reconcile(
    brokers: Annotated[
        str, typer.Option("--bootstrap-servers", "-b", metavar="HOST:PORT,…", help="Kafka.")
    ],
    database: Annotated[
        str | None,
        typer.Option("--database", "-d", help="Connection string of PostgreSQL."),
    ] = None,
    table: Annotated[str, typer.Option("--table", "-t", help="The outbox table.")] = "outbox",
    parquet: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A Parquet archive of --table, instead of the database."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Topics to read; by default those that the outbox names."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka setting; kafka.… for Java's."),
    ] = None,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            max=LONGEST_S,
            metavar="SECONDS",
            help="Younger rows may still be on their way.",
        ),
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the findings, and report.html, here."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Compare only what is new since the last run; a folder that executors reach.",
        ),
    ] = None,
    late_h: Annotated[
        float,
        typer.Option(
            "--late",
            max=LONGEST_H,
            metavar="HOURS",
            help="With --state: how long a transaction may take.",
        ),
    ] = 24.0,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only what was written from then on: 2026-11-20T08:00Z."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was written before then.")
    ] = None,
    master: SparkMaster = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare an outbox with Kafka: what is missing, altered, duplicated, reordered or foreign?

    Exit code 1 if anything differs. The table must still hold what was published; that of mark mode
    does not, so give its archive. Needs the extra `spark`.

    With --state, say once a day, what was on its way is carried over to the next run; a row that
    was reported as missing is told once, and counts as outstanding until it arrives.

    [dim]Example:[/dim] harvest reconcile -d postgresql://localhost/shop -b localhost:9092 --out r
    """
    config: dict[str, str] = {}
    for text in setting or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError("-X wants KEY=VALUE, as in `-X security.protocol=SSL`")
        config[name] = value
    config["bootstrap.servers"] = brokers
    from harvest.spark.reconcile import Outbox
    from harvest.spark.reconcile import reconcile as run
    from marshal_py.spark.session import spark_session

    outbox = Outbox(dsn=database, table=table, parquet=parquet)
    since_ms, until_ms = _moment("--since", since), _moment("--until", until)
    if out is not None:
        make_folder("--out", out)
    spark = spark_session("harvest reconcile", master=master)

    def tell(result: Reconciliation) -> None:
        if out is not None:
            from harvest.spark.report import render

            (out / "report.html").write_text(render(result), encoding="utf-8")
        if as_json:
            print_json({**asdict(result), "clean": result.clean}, indent=None)
        else:
            _show(result)

    result = run(
        spark,
        outbox,
        config,
        topics=topic or None,
        grace_s=grace_s,
        out=None if out is None else str(out),
        state=state,
        late_s=late_h * 3600,
        since_ms=since_ms,
        until_ms=until_ms,
        tell=tell,
    )
    if not result.clean:
        raise typer.Exit(1)


def lake(
    outbox: Annotated[
        str,
        typer.Option(
            metavar="NAME/OUTBOX", help="As in the header harvest-id: `harvest_id` and `outbox`."
        ),
    ],
    place: Annotated[
        str, typer.Option("--lake", metavar="PLACE", help="The lake of `marshal lake run`.")
    ] = "lake",
    database: Annotated[
        str | None,
        typer.Option("--database", "-d", help="Connection string of PostgreSQL."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="The outbox table; OUTBOX by default.")
    ] = None,
    parquet: Annotated[
        str | None, typer.Option(metavar="PATH", help="A Parquet archive instead of a table.")
    ] = None,
    late_h: Annotated[
        float,
        typer.Option(
            "--late", max=LONGEST_H, metavar="HOURS", help="How long a transaction may take."
        ),
    ] = 24.0,
    master: SparkMaster = None,
    as_json: JsonFlag = False,
) -> None:
    """Add an outbox's rows to a lake, from a table that keeps them, or from an archive. Each once.

    Do it before `marshal lake run`, which joins them with their records. Needs the extra `spark`.

    [dim]Example:[/dim] harvest lake --outbox shop/outbox --lake /data/lake --parquet /data/archive
    """
    if (database is None) == (parquet is None):
        raise ConfigurationError("give either --database or --parquet: where the rows are")
    from harvest.spark.lake import add_archive, add_table, table_of
    from marshal_py.spark.session import spark_session

    s3 = place.startswith("s3a://")
    spark = spark_session("harvest lake", master=master, delta=True, s3=s3)
    if parquet is not None:
        added = add_archive(spark, place, outbox, parquet)
    else:
        table = table or table_of(outbox)
        added = add_table(spark, place, outbox, database or "", table, late_s=late_h * 3600)
    if as_json:
        print_json({"outbox": outbox, "added": added}, indent=None)
    else:
        say(f"{added:,} rows added")


def _moment(name: str, text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO time; without a zone it is UTC."""
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{name} {text}: write a time as 2026-11-20T08:00Z") from None
    return int((found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def _show(result: Reconciliation) -> None:
    say(f"{result.rows:,} rows, {result.records:,} records, compared in {result.seconds:.1f} s")
    if result.pending:
        say(f"{result.pending:,} young rows are not in Kafka yet")
    if result.outstanding:
        say(f"{result.outstanding:,} rows that were reported as missing still are")
    for kind, count in result.findings.items():
        say(f"{kind}: {count:,}")
    if result.clean:
        say("everything arrived: once, unaltered, in the order of its key")
    for sample in result.samples[:10]:
        where = "" if sample["offset"] is None else f" at {sample['partition']}/{sample['offset']}"
        row = "" if sample["id"] is None else f" row {sample['id']}"
        say(f"  {sample['kind']}:{row} {sample['topic']} key {sample['key']!r}{where}")

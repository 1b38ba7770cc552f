"""`marshal lake`: the log, topics and outboxes as tables of a lake, day by day."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.cli.command import command, new_app
from marshal_py.cli.exit_codes import FINDING, errors_as_exit_codes
from marshal_py.cli.folders import check_file
from marshal_py.cli.options import LONGEST_D, LONGEST_H, LONGEST_S, JsonFlag
from marshal_py.cli.output import console, note, print_json, say, show, table
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.history.anomalies import KINDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from marshal_py.spark.lake.run import LakeRun

__all__ = ["app"]

_OF_ROWS: Final = ("lost", "duplicated", "disordered", "altered", "unexpected")

app = new_app(help="What each day was like, as tables: Spark, Delta Lake (specs/AUDIT.md §7).")

Place = Annotated[
    str,
    typer.Option(
        "--lake", metavar="PLACE", help="A folder, or a URI that Spark and all executors reach."
    ),
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master; local[*] by default."),
]


@app.command()
@command()
def run(
    connection: Connection,
    place: Place = "lake",
    day: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="The day (UTC); yesterday by default."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="With --day: all days up to, and with, this one."),
    ] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(
            "--published", metavar="TOPIC", help="A topic that outboxes are published to; repeat."
        ),
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run again and again, for today.")
    ] = False,
    every_s: Annotated[
        float,
        typer.Option("--every", min=0.1, max=LONGEST_S, metavar="SECONDS", help="Between runs."),
    ] = 60.0,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            max=LONGEST_S,
            metavar="SECONDS",
            help="Younger rows may still be on their way.",
        ),
    ] = 3_600.0,
    late_days: Annotated[
        int,
        typer.Option(
            "--late-days",
            max=LONGEST_D,
            help="On so many later days a row's record is looked for.",
        ),
    ] = 1,
    sample_s: Annotated[
        float,
        typer.Option(
            "--sample", max=LONGEST_S, metavar="SECONDS", help="Between positions of a claim."
        ),
    ] = 60.0,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="A kind of finding to put up with; repeat."),
    ] = None,
    max_latency_p99_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="From a row's insertion to its record.")
    ] = None,
    max_lag: Annotated[
        int | None, typer.Option(metavar="RECORDS", help="Of a partition, at the end of the day.")
    ] = None,
    min_availability: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of each leadership, as in 0.999.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Register the tables in the session's catalog there."),
    ] = None,
    master: Master = None,
    as_json: JsonFlag = False,
) -> None:
    """Read what is new, and write the tables of a day. Run again, it changes nothing.

    A run reads the coordination log and the published topics into bronze, folds the log into
    silver, joins each outbox row with its record and with who handled it, and writes the day's gold
    tables. Rows of outboxes come by `harvest lake`. Exit code 1 if an expectation is not met: by
    default that nothing is lost, duplicated, out of order, altered or strange. Needs the extra
    `spark`.

    [bold]Examples[/]

      marshal lake run -b localhost:9092 --lake /data/lake --published orders --day 2026-11-21

      marshal lake run -b localhost:9092 --lake s3a://bucket/lake --published orders --continuous
    """
    allowed = tuple(allow or ())
    for kind in allowed:
        if kind not in (*KINDS, *_OF_ROWS):
            known = ", ".join((*_OF_ROWS, *KINDS))
            raise ConfigurationError(f"--allow {kind!r} is no kind of finding; kinds are: {known}")
    if continuous and (day or until):
        raise ConfigurationError("--continuous is for today: leave out --day and --until")
    days = _days(day, until)
    from marshal_py.spark.lake.gold import Expectations
    from marshal_py.spark.lake.run import LakeSettings, last_run, run_lake
    from marshal_py.spark.lake.tables import Lake

    settings = LakeSettings(
        topic=connection.topic,
        published=tuple(published or ()),
        sample_s=sample_s,
        grace_s=grace_s,
        late_days=late_days,
        expectations=Expectations(allowed, max_latency_p99_ms, max_lag, min_availability),
    )
    lake = Lake.at(place)
    spark = _session(master, place)
    grace, before = dt.timedelta(seconds=grace_s), _now()
    finish: list[dt.date] = []
    if continuous and (last := last_run(spark, place)):
        # The command before this one may have ended in the middle of a day.
        finish = _days_between((last - grace).date(), before.date())

    def tell(done: LakeRun) -> None:
        if as_json:
            print_json(_document(done), indent=None if continuous else 2)
        else:
            _show(done)

    while True:
        if continuous:
            # Also a day that was not over for the run before, or whose rows might be on their way.
            now = _now()
            days, before = _days_between((before - grace).date(), now.date()), now
        done = run_lake(
            spark,
            connection.kafka,
            place,
            days,
            settings,
            finish=finish,
            timeout_s=max(30.0, connection.timeout_s),
            progress=note,
            tell=tell,
        )
        if schema is not None:
            lake.register(spark, schema)
        if not continuous:
            break
        finish = []
        time.sleep(every_s)
    if not done.met:
        raise typer.Exit(FINDING)


@app.command()
def maintain(
    place: Place = "lake",
    bronze_days: Annotated[int, typer.Option(help="How long days of bronze are kept.")] = 90,
    days: Annotated[
        int, typer.Option(help="How long those of silver and gold are: 30 more than that at least.")
    ] = 400,
    vacuum_h: Annotated[
        float,
        typer.Option(
            "--vacuum", max=LONGEST_H, metavar="HOURS", help="Replaced files go after so long."
        ),
    ] = 168.0,
    master: Master = None,
    as_json: JsonFlag = False,
) -> None:
    """Delete days that are older than wanted, and compact the others.

    [bold]Examples[/]

      marshal lake maintain --lake /data/lake --bronze-days 30
    """
    with errors_as_exit_codes():
        from marshal_py.spark.lake.maintenance import maintain as run_maintenance
        from marshal_py.spark.lake.tables import Lake
        from marshal_py.spark.watch import cluster_watched

        spark = _session(master, place)
        with cluster_watched(spark):
            deleted = run_maintenance(
                spark,
                Lake.to_write(spark, place),
                today=_today(),
                bronze_days=bronze_days,
                days=days,
                vacuum_h=vacuum_h,
            )
        if as_json:
            print_json({"lake": place, "deleted": deleted})
        else:
            for name, rows in deleted.items():
                say(f"{name}: {rows:,} rows deleted")
            say("compacted")


@app.command()
def report(
    place: Place = "lake",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the page.")] = Path(
        "lake.html"
    ),
    until: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="The last day; yesterday by default."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How many days.")] = 30,
    master: Master = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the days as one HTML page, from gold alone.

    [bold]Examples[/]

      marshal lake report --lake /data/lake --out report.html --days 7
    """
    with errors_as_exit_codes():
        from marshal_py.spark.lake.report import render_lake
        from marshal_py.spark.lake.tables import Lake
        from marshal_py.spark.watch import cluster_watched

        last = _yesterday() if until is None else _date("--until", until)
        lake = Lake.at(place)
        check_file("--out", out)
        spark = _session(master, place)
        with cluster_watched(spark):
            lake.check_is_there(spark)
            page = render_lake(spark, lake, last, days)
        out.write_text(page, encoding="utf-8")
        if as_json:
            print_json({"lake": place, "report": str(out), "last": str(last), "days": days})
        else:
            say(str(out))


def _session(master: str | None, place: str) -> SparkSession:
    from marshal_py.spark.session import spark_session

    s3 = place.startswith("s3a://")
    return spark_session("marshal lake", master=master, delta=True, s3=s3)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _today() -> dt.date:
    return _now().date()


def _yesterday() -> dt.date:
    return _today() - dt.timedelta(1)


def _days(day: str | None, until: str | None) -> list[dt.date]:
    first = _yesterday() if day is None else _date("--day", day)
    last = first if until is None else _date("--until", until)
    if last < first:
        raise ConfigurationError(f"--until {last} is before --day {first}")
    if last > (today := _today()):  # it would be as expected
        option = "--day" if until is None else "--until"
        raise ConfigurationError(f"{option} {last} has not begun: today (UTC) is {today}")
    return _days_between(first, last)


def _days_between(first: dt.date, last: dt.date) -> list[dt.date]:
    return [first + dt.timedelta(n) for n in range((last - first).days + 1)]


def _date(option: str, text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{option} {text!r} must be a day, as in 2026-11-21") from None


def _document(done: LakeRun) -> dict[str, Any]:
    return {
        "days": list(done.days),
        "records": done.records,
        "published": done.published,
        "met": done.met,
        "expectations": [each._asdict() | {"day": str(each.day)} for each in done.expectations],
    }


def _show(done: LakeRun) -> None:
    out = console()
    days = ", ".join(done.days)
    out.print(f"{days}: {done.records:,} new records of the log, {done.published:,} of topics")
    several = ("day",) if len(done.days) > 1 else ()
    gates = table(*several, "expectation", "found", "limit", right=("found", "limit"))
    for each in done.expectations:
        found = "not known" if each.found is None else f"{each.found:,g}"
        line = (str(each.day), each.name, found, f"{each.limit:,g}")[1 - len(several) :]
        gates.add_row(*line, style=None if each.met else "red")
    show(out, gates)

"""`marshal audit`: the coordination log as tables and a report, and a gate for CI."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marshal_py.admin.connection import Connection
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import LONGEST_D, LONGEST_S, JsonFlag
from marshal_py.cli.output import console, print_json, table
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.history.anomalies import KINDS

if TYPE_CHECKING:
    from marshal_py.spark.audit import AuditRun
    from marshal_py.spark.audit_store import Store

__all__ = ["audit"]


@command()
def audit(
    connection: Connection,
    out: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Where the tables are: a local folder, or a URI that all executors reach.",
        ),
    ] = "audit",
    as_json: JsonFlag = False,
    report: Annotated[bool, typer.Option(help="Write FOLDER/report.html.")] = True,
    report_days: Annotated[
        int, typer.Option(min=1, max=LONGEST_D, help="Days in it, up to the newest record.")
    ] = 30,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="A kind of anomaly to put up with; may be repeated."),
    ] = None,
    new_only: Annotated[
        bool, typer.Option("--new", help="Let only the anomalies of this run count.")
    ] = False,
    sample_s: Annotated[
        float,
        typer.Option(
            "--sample", min=0.001, max=LONGEST_S, metavar="SECONDS", help="Between positions."
        ),
    ] = 60.0,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--every", min=0.1, max=LONGEST_S, metavar="SECONDS", help="Run again and again."
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark's master; local[*] by default, sc://… for Connect."
        ),
    ] = None,
) -> None:
    """Turn the coordination log into tables, look for anomalies, and write a report.

    Goes on from where the last run into the same folder ended. Exit code 1 if there are anomalies.
    The tables are described in specs/AUDIT.md. Needs the extra `spark`.
    """
    allowed = set(allow or ())
    unknown = allowed - set(KINDS)
    if unknown:
        raise ConfigurationError(
            f"--allow {sorted(unknown)[0]!r} is no kind of anomaly; kinds are: {', '.join(KINDS)}"
        )
    from marshal_py.spark.session import spark_session

    spark = spark_session("marshal audit", master=master, kafka=False)
    from marshal_py.spark.audit import audit as run_audit
    from marshal_py.spark.audit_store import Store

    store = Store(out)
    while True:
        run = run_audit(
            spark,
            connection.kafka,
            out,
            topic=connection.topic,
            sample_ms=max(1, int(sample_s * 1000)),
            timeout_s=max(30.0, connection.timeout_s),
        )
        document = _document(store, run, report_days if report else None)
        if as_json:
            print_json(document, indent=None if every_s else 2)
        else:
            _show(document)
        if every_s is None:
            break
        time.sleep(every_s)
    counted: dict[str, int] = document["new" if new_only else "all"]["anomalies"]
    if any(kind not in allowed for kind in counted):
        raise typer.Exit(FINDING)


def _document(store: Store, run: AuditRun, report_days: int | None) -> dict[str, Any]:
    from marshal_py.spark.audit_report import summary, write_report

    path = write_report(store, days=report_days) if report_days and store.exists() else None
    everything = summary(store) if store.exists() else {"rows": {}, "anomalies": {}}
    return {"out": store.out, "report": path, "new": asdict(run), "all": everything}


def _show(document: dict[str, Any]) -> None:
    new, everything = document["new"], document["all"]
    rate = f", {new['records'] / new['seconds']:,.0f} a second" if new["seconds"] else ""
    out = console()
    out.print(f"{new['records']:,} new records{rate}; tables in {document['out']}", markup=False)
    counts = table("table", "rows", right=("rows",))
    for name, rows in everything["rows"].items():
        counts.add_row(name, f"{rows:,}")
    out.print(counts)
    if everything["anomalies"]:
        kinds = table("anomaly", "count", right=("count",))
        for kind, count in everything["anomalies"].items():
            kinds.add_row(kind, f"{count:,}", style="red")
        out.print(kinds)
    else:
        out.print("no anomalies", style="green")
    if document["report"]:
        out.print(f"report: {document['report']}", markup=False)

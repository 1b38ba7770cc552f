"""A reconciliation as one HTML page that loads nothing from elsewhere."""

from __future__ import annotations

import datetime as dt

from harvest.spark.reconcile import KINDS, NO_FINDINGS, Reconciliation
from marshal_py.spark.html import html_page, html_table, html_tiles

__all__ = ["render"]


def render(result: Reconciliation) -> str:
    """Return the page."""
    tiles = html_tiles(
        (
            ("rows", result.rows, False),
            ("records", result.records, False),
            ("pending", result.pending, False),
            ("outstanding", result.outstanding, False),
            *(
                (kind, result.findings.get(kind, 0), True)
                for kind in KINDS
                if kind not in NO_FINDINGS
            ),
        )
    )
    if result.clean:
        verdict = "<p>Everything arrived: once, unaltered, in the order of its key.</p>"
        return html_page("Reconciliation of an outbox", tiles + verdict)
    meaning = html_table(
        ("finding", "count", "meaning"),
        ((kind, f"{count:,}", KINDS[kind]) for kind, count in result.findings.items()),
        numbers=("count",),
    )
    by_topic = html_table(
        ("topic", "finding", "count"),
        (
            (topic, kind, f"{count:,}")
            for topic, counts in result.topics.items()
            for kind, count in counts.items()
        ),
        numbers=("count",),
    )
    by_hour = html_table(
        ("topic", "hour", "finding", "count"),
        (
            (line["topic"], _when(line["hour_ms"]), line["kind"], f"{line['count']:,}")
            for line in result.hours
        ),
        numbers=("count",),
    )
    by_key = html_table(
        ("topic", "key", "finding", "count"),
        ((k["topic"], k["key"], k["kind"], f"{k['count']:,}") for k in result.keys),
        numbers=("count",),
    )
    names = ("finding", "topic", "key", "row", "written", "partition", "offset", "published")
    samples = html_table(
        names,
        (
            (
                s["kind"],
                s["topic"],
                s["key"],
                s["id"],
                _when(s["row_at_ms"]),
                s["partition"],
                s["offset"],
                _when(s["record_at_ms"]),
            )
            for s in result.samples
        ),
        numbers=("row", "partition", "offset"),
    )
    total = sum(result.findings.values())
    return html_page(
        "Reconciliation of an outbox",
        f"{tiles}<h2>Findings</h2>{meaning}<h2>By topic</h2>{by_topic}<h2>By hour</h2>"
        f"{by_hour}<h2>Keys with the most</h2>{by_key}<h2>The first "
        f"{len(result.samples):,} of {total:,}</h2>{samples}",
    )


def _when(at_ms: int | None) -> str:
    if at_ms is None:
        return ""
    try:
        return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):  # PostgreSQL has years that Python has not
        return f"{at_ms} ms"

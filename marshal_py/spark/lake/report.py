"""The days of a lake as one HTML file. It reads gold alone: its cost is that of the days shown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from marshal_py.spark.html import html_page, html_table, html_tiles
from marshal_py.spark.lake.sql import days_before
from marshal_py.spark.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["render_lake"]

Row = Mapping[str, Any]

_MOST: Final = 500
"""Lines of a table; gold has all of them."""
_WIDTH, _HEIGHT = 1000, 150


def render_lake(spark: SparkSession, lake: Lake, last: dt.date, days: int = 30) -> str:
    """The `days` up to, and with, `last` as an HTML document without script."""
    from pyspark.sql import functions as F

    first = days_before(last, days - 1)
    between = f"day BETWEEN DATE '{first}' AND DATE '{last}'"

    def read(table: str, order: str, condition: str = "true") -> list[Row]:
        found = lake.frame(spark, table).filter(between).filter(condition)
        newest = found.orderBy(*map(F.desc, order.split())).limit(_MOST).collect()
        return [row.asDict() for row in reversed(newest)]

    def per_day(table: str, **sums: str) -> list[Row]:
        found = lake.frame(spark, table).filter(between).groupBy("day")
        return [
            row.asDict()
            for row in found.agg(*(F.expr(sql).alias(name) for name, sql in sums.items())).collect()
        ]

    outboxes = read("gold.outboxes", "day outbox")
    groups = read("gold.groups", "day group_id")
    kinds = [
        row.asDict()
        for row in lake.frame(spark, "gold.findings")
        .filter(between)
        .groupBy("day", "kind")
        .count()
        .orderBy("day", "kind")
        .collect()
    ]
    lag = [
        # Spark gives times as those of this machine's zone.
        {**row.asDict(), "hour": dt.datetime.fromtimestamp(row["hour"], dt.UTC)}
        for row in lake.frame(spark, "gold.lag")
        .filter(between)
        .groupBy("hour", "group_id")
        .agg({"lag": "sum"})
        .selectExpr("unix_seconds(hour) AS hour", "group_id", "`sum(lag)` AS lag")
        .orderBy("hour")
        .collect()
    ]
    parts = [
        f'<p class="note">{first} to {last}, UTC.</p>',
        _tiles(
            per_day(
                "gold.outboxes",
                records="sum(records)",
                lost="IF(bool_or(lost IS NULL), NULL, sum(lost))",
            ),
            per_day("gold.groups", takeovers="sum(takeovers)"),
            kinds,
        ),
        _section("Not as expected", read("gold.expectations", "day name", "NOT met"), {}),
        _section("Findings", kinds, {}),
        _section("Outboxes", outboxes, {"latency_p99_ms": "outbox"}),
        _section("Groups", groups, {"takeover_max_ms": "group_id"}),
        "<h2>Lag by hour</h2>" + (_lines(lag, "hour", "lag", "group_id") or "<p>Not known.</p>"),
        _section("Leadership", read("gold.leadership", "day name"), {"availability": "name"}),
    ]
    return html_page("What the days were like", "".join(parts))


def _tiles(outboxes: Sequence[Row], groups: Sequence[Row], kinds: Sequence[Row]) -> str:
    lost = [row["lost"] for row in outboxes]
    return html_tiles(
        (
            ("records of rows", sum(row["records"] or 0 for row in outboxes), False),
            ("takeovers", sum(row["takeovers"] or 0 for row in groups), False),
            ("findings", sum(row["count"] for row in kinds), True),
            *([("rows lost", sum(filter(None, lost)), True)] if None not in lost else []),
        )
    )


def _section(title: str, rows: Sequence[Row], pictures: Mapping[str, str]) -> str:
    """A table of all columns; `pictures`: column that is drawn over the days → what it is of."""
    if not rows:
        return f"<h2>{title}</h2><p>None.</p>"
    names = tuple(rows[0])
    numbers = tuple(name for name in names if any(type(row[name]) in (int, float) for row in rows))
    lines = [tuple(_text(row[name]) for name in names) for row in rows]
    drawn = "".join(_lines(rows, "day", column, of) for column, of in pictures.items())
    more = f'<p class="note">The last {_MOST}.</p>' if len(rows) == _MOST else ""
    return f"<h2>{title}</h2>{drawn}{html_table(names, lines, numbers=numbers)}{more}"


def _text(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _lines(rows: Sequence[Row], across: str, column: str, of: str) -> str:
    """A line for each of the values of the column `of`; nothing for fewer than two moments."""
    points: dict[str, list[tuple[Any, float]]] = {}
    for row in rows:
        if row[column] is not None:
            points.setdefault(str(row[of]), []).append((row[across], float(row[column])))
    moments = sorted({at for line in points.values() for at, _ in line})
    if len(moments) < 2:
        return ""
    top = max(value for line in points.values() for _, value in line) or 1.0
    seconds = (moments[-1] - moments[0]).total_seconds()
    drawn = []
    for n, (name, line) in enumerate(sorted(points.items())[:12]):
        corners = " ".join(
            f"{(at - moments[0]).total_seconds() / seconds * _WIDTH:.1f},"
            f"{_HEIGHT - 20 - (_HEIGHT - 40) * value / top:.1f}"
            for at, value in line
        )
        drawn.append(
            f'<polyline points="{corners}" fill="none" stroke-width="1.5" '
            f'stroke="hsl({n * 67 % 360} 55% 45%)"><title>{escape(name)}</title></polyline>'
        )
    began, ended = (str(at)[:16] for at in (moments[0], moments[-1]))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(column)}">'
        f'{"".join(drawn)}<text x="0" y="12">{escape(column)}: {_text(top)}</text>'
        f'<text x="0" y="{_HEIGHT - 4}">{began}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">{ended}</text></svg>'
    )

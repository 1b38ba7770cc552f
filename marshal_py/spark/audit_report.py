"""The audit as one HTML file: charts inside, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import datetime as dt
import hashlib
import statistics
from bisect import bisect_right
from collections import Counter
from html import escape
from itertools import accumulate
from typing import Any, Final, NamedTuple

from marshal_py.protocol.history.anomalies import MEANING
from marshal_py.protocol.ranges import range_of
from marshal_py.protocol.slots import BY_RANGES, agreement_of, slot_of, source_of
from marshal_py.spark.audit_store import Store
from marshal_py.spark.html import html_page, html_table, html_tiles

__all__ = ["render", "summary", "write_report"]

Record = dict[str, Any]

DAYS: Final = 30
"""What the report shows, up to the newest record; the tables hold all."""
MAX_ANOMALIES: Final = 500
MAX_ELECTIONS: Final = 100
MAX_CELLS: Final = 60
MAX_BARS: Final = 400
"""Claims drawn for one cell; the tables hold all of them."""

_WIDTH, _LEFT, _ROW = 1000, 240, 18


def write_report(store: Store, name: str = "report.html", *, days: int = DAYS) -> str:
    """Write the report beside the tables; return its path. Raises `ConfigurationError`."""
    return store.write_text(name, render(store, days=days))


def summary(store: Store) -> dict[str, Any]:
    """Return the counts of all tables, and of the anomalies by kind."""
    tables = ("claims", "takeovers", "rejections", "batches", "ranges", "elections", "operations")
    return {
        "rows": {name: store.count(name) for name in tables},
        "anomalies": dict(store.values("anomalies", "kind").most_common()),
    }


def render(store: Store, *, days: int = DAYS) -> str:
    """Return the report of the newest `days`, and of what is held, as one HTML document.

    Its memory is that of those days, however long the history is.
    """
    latest = store.latest()
    since = None if latest is None else latest - dt.timedelta(days)

    def rows(name: str, column: str = "at") -> list[Record]:
        found = store.table(name, since=None if since is None else (column, since))
        return found.to_pylist()  # type: ignore[no-any-return]

    claims = rows("claims", "until_at")
    anomalies = rows("anomalies")
    takeovers = rows("takeovers")
    rejections = rows("rejections")
    elections = rows("elections", "until_at")
    positions = rows("positions")
    if since is not None:  # a position holds until the next one, however long ago it was
        positions += store.newest_before("positions", since, ["group_id", "topic", "partition"])
    times = [c["from_at"] for c in claims if c["from_at"]] + [a["at"] for a in anomalies]
    times += [c["last_beat_at"] for c in claims if c["last_beat_at"]]
    times += [c["until_at"] for c in claims if c["until_at"]]
    span = (min(times), max(times)) if times else None
    parts = [
        f'<p class="note">The {days} days up to the newest record. The tables hold all.</p>',
        _tiles(claims, takeovers, rejections, anomalies, span),
        _anomalies(anomalies),
        _holders(claims, span),
        _takeovers(takeovers),
        _lag(rows("ends"), positions),
        _rejections(rejections),
        _elections(elections),
        _records(anomalies),
    ]
    return html_page("Audit of the coordination log", "".join(parts))


def _tiles(
    claims: list[Record],
    takeovers: list[Record],
    rejections: list[Record],
    anomalies: list[Record],
    span: tuple[dt.datetime, dt.datetime] | None,
) -> str:
    held = sum(c["until_at"] is None for c in claims)
    boxes = html_tiles(
        (
            ("claims", len(claims), False),
            ("held now", held, False),
            ("takeovers", len(takeovers), False),
            ("rejected", len(rejections), False),
            ("anomalies", len(anomalies), True),
        )
    )
    when = "The log holds no claim." if span is None else f"{_when(span[0])} to {_when(span[1])}"
    return f'<p class="note">{when}, broker time (UTC).</p>{boxes}'


def _anomalies(anomalies: list[Record]) -> str:
    if not anomalies:
        return "<h2>Anomalies</h2><p>None.</p>"
    kinds = Counter(a["kind"] for a in anomalies)
    by_kind = html_table(
        ("kind", "count", "meaning"),
        ((k, f"{n:,}", MEANING.get(k, "")) for k, n in kinds.most_common()),
        numbers=("count",),
    )
    shown = _newest(anomalies)
    each = html_table(
        ("time", "kind", "who", "cell", "what", "record"),
        (
            (
                _when(a["at"]),
                a["kind"],
                " ".join(filter(None, (a["group_id"], a["client_id"]))),
                _cell(a),
                a["what"],
                _link(a),
            )
            for a in shown
        ),
        raw=("record",),
    )
    more = _more(len(anomalies), len(shown), "anomalies, the newest first")
    return f"<h2>Anomalies</h2>{by_kind}<br>{more}{each}"


def _holders(claims: list[Record], span: tuple[dt.datetime, dt.datetime] | None) -> str:
    title = "<h2>Who held what, when</h2>"
    if span is None or not claims:
        return f"{title}<p>Nobody held anything.</p>"
    cells: dict[tuple[str, str, int], list[Record]] = {}
    for claim in claims:
        key = (claim["group_id"], claim["topic"], claim["partition"])
        cells.setdefault(key, []).append(claim)
    # The busiest cells tell most.
    chosen = sorted(sorted(cells, key=lambda key: (-len(cells[key]), key))[:MAX_CELLS])
    begin, end = span
    seconds = max(0.001, (end - begin).total_seconds())
    scale = (_WIDTH - _LEFT - 10) / seconds
    body = []
    for row, key in enumerate(chosen):
        y = row * _ROW + 4
        label = f"{key[0]} · {key[1]}/{key[2]}"
        body.append(f'<text x="0" y="{y + 11}">{escape(_short(label, 38))}</text>')
        ordered = sorted(cells[key], key=lambda c: int(c["epoch"]))
        for claim in ordered[-MAX_BARS:]:
            start, until = claim["from_at"] or begin, claim["until_at"] or end
            x = _LEFT + (start - begin).total_seconds() * scale
            width = max(1.0, (until - start).total_seconds() * scale)
            how = claim["how"] or "held"
            tip = (
                f"{claim['client_id']}, epoch {claim['epoch']}: {_when(start)} to {_when(until)}, "
                f"{how}; offsets {claim['first_offset']} to {claim['last_offset']}"
            )
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 5}" rx="2" '
                f'fill="{_colour(claim["client_id"] or "")}"><title>{escape(tip)}</title></rect>'
            )
    height = len(chosen) * _ROW + 22
    axis = "".join(
        f'<text x="{_LEFT + (_WIDTH - _LEFT - 10) * n / 4:.0f}" y="{height - 4}" '
        f'text-anchor="{("start", "middle", "middle", "middle", "end")[n]}">'
        f"{_when(begin + (end - begin) * n / 4)}</text>"
        for n in range(5)
    )
    clients = sorted({c["client_id"] for c in claims if c["client_id"]})[:20]
    legend = " ".join(
        f'<span style="color:{_colour(name)}">■</span> {escape(name)}' for name in clients
    )
    return (
        f'{title}<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(body)}{axis}</svg>'
        f'<p class="note">{legend}</p>{_more(len(cells), len(chosen), "cells")}'
    )


def _takeovers(takeovers: list[Record]) -> str:
    title = "<h2>Takeovers</h2>"
    taken = [t for t in takeovers if t["how"] == "taken_over"]
    if not taken:
        return f"{title}<p>Nobody took over from anybody. Restarts: {len(takeovers)}.</p>"
    rows = []
    for name, column in (
        ("silence before, ms", "silence_ms"),
        ("first heartbeat after, ms", "first_beat_ms"),
    ):
        values = sorted(t[column] for t in taken if t[column] is not None)
        if values:
            picks = (values[0], statistics.median(values), values[-1 - len(values) // 20])
            rows.append((name, len(values), *(f"{v:,.0f}" for v in (*picks, values[-1]))))
    names = ("time", "takeovers", "least", "median", "95 %", "most")
    table = html_table(names, rows, numbers=names[1:])
    silences = [
        t["silence_ms"] / t["from_interval_ms"]
        for t in taken
        if t["silence_ms"] is not None and t["from_interval_ms"]
    ]
    chart = _histogram(silences, "silence before the takeover, in heartbeat intervals")
    return f"{title}{table}{chart}"


def _histogram(values: list[float], caption: str, bins: int = 40) -> str:
    if not values:
        return ""
    low, high = 0.0, max(values) * 1.02 or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    top, width = max(counts), _WIDTH / bins
    bars = "".join(
        f'<rect x="{n * width:.1f}" y="{120 - 100 * c / top:.1f}" width="{width - 2:.1f}" '
        f'height="{100 * c / top:.1f}" fill="#4c78a8"><title>{c}</title></rect>'
        for n, c in enumerate(counts)
        if c
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} 140" role="img">{bars}<text x="0" y="136">0</text>'
        f'<text x="{_WIDTH}" y="136" text-anchor="end">{high:.1f}</text></svg>'
        f'<p class="note">{caption}</p>'
    )


def _lag(ends: list[Record], rows: list[Record]) -> str:
    """Lag of each group and topic: ends of the topic less the positions at the same moment."""
    title = "<h2>Lag</h2>"
    if not ends:
        return f"{title}<p>No claimed topic exists in Kafka.</p>"
    slots = {
        (row["group_id"], topic): (row["next_offset"] or 0) % BY_RANGES  # ranges are no slots
        for row in sorted(rows, key=lambda row: row["at"])
        if (topic := agreement_of(row["topic"])) is not None
    }
    # Of a partition that is shared by keys, the last of its slots counts; by ranges, the furthest.
    by_ranges: set[tuple[str, str, int]] = set()
    positions: dict[tuple[str, str, int], dict[int, list[_Seen]]] = {}
    for row in rows:
        unit = (row["topic"], row["partition"])
        source, slot = source_of(*unit), slot_of(*unit)
        if slots.get((row["group_id"], source[0]), 0) != (0 if slot is None else slot.slots):
            continue  # it is shared otherwise by now
        at = max(row["next_offset"] or 0, row["claimed_offset"] or 0)
        of_slots = positions.setdefault((row["group_id"], *source), {})
        shared = range_of(*unit)
        begun = shared is None or at > shared.start
        seen_there = of_slots.setdefault(0 if slot is None else slot.number, [])
        seen_there.append(_Seen(row["at"], shared is None, at, begun))
        if shared is not None:
            by_ranges.add((row["group_id"], *source))
    lags: dict[tuple[str, str], Counter[dt.datetime]] = {}
    by_topic: dict[tuple[str, int], list[Record]] = {}
    for row in ends:
        by_topic.setdefault((row["topic"], row["partition"]), []).append(row)
    for (group, topic, partition), of_slots in positions.items():
        # Of two at one moment the later counts: where a position was set, the claim ended before.
        seen = [sorted(each, key=lambda s: s[:2]) for each in of_slots.values()]
        if (group, topic, partition) in by_ranges:
            seen = [_furthest(each) for each in seen]
        line = lags.setdefault((group, topic), Counter())
        for row in by_topic.get((topic, partition), []):
            done = min(_position(each, row["at"]) for each in seen)
            line[row["at"]] += max(0, row["end_offset"] - done)
    listed = [
        (f"{group} · {topic}", f"{line[max(line)]:,}", f"{max(line.values()):,}")
        for (group, topic), line in sorted(lags.items())
        if line
    ]
    table = html_table(("group and topic", "messages behind", "most"), listed, numbers=("most",))
    return f"{title}{_lines({k: v for k, v in lags.items() if len(v) > 1})}{table}"


class _Seen(NamedTuple):
    """A position, as of when; `is_whole` if it is not that of a range; `begun` unless it is that of
    one of which nothing is done: who has nothing to do holds one far behind the topic's end."""

    at: dt.datetime
    is_whole: bool
    position: int
    begun: bool


def _furthest(seen: list[_Seen]) -> list[_Seen]:
    """Return how far the furthest range was, at each time, since the partition had a position.

    Of those that are begun; where none is, the first.
    """

    def further(one: _Seen, other: _Seen) -> _Seen:
        if other.is_whole:
            return other
        if one.begun is not other.begun:
            return (one if one.begun else other)._replace(at=other.at)
        either = (one.position, other.position)
        return other._replace(position=max(either) if one.begun else min(either))

    return list(accumulate(seen, further))


def _position(seen: list[_Seen], at: dt.datetime) -> int:
    """Return the last position that was seen by then; 0 before the first."""
    before = bisect_right(seen, at, key=lambda s: s.at)
    return seen[before - 1].position if before else 0


def _lines(lines: dict[tuple[str, str], Counter[dt.datetime]]) -> str:
    times = [at for line in lines.values() for at in line]
    if not times:
        return ""
    begin, seconds = min(times), max(0.001, (max(times) - min(times)).total_seconds())
    top = max(max(line.values()) for line in lines.values()) or 1
    drawn = []
    for (group, topic), line in list(lines.items())[:12]:
        points = " ".join(
            f"{(at - begin).total_seconds() / seconds * _WIDTH:.1f},{150 - 130 * lag / top:.1f}"
            for at, lag in sorted(line.items())
        )
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke-width="1.5" '
            f'stroke="{_colour(group + topic)}"><title>{escape(f"{group} · {topic}")}</title>'
            "</polyline>"
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} 170" role="img">{"".join(drawn)}'
        f'<text x="0" y="14">{top:,} messages</text><text x="0" y="166">{_when(begin)}</text>'
        f'<text x="{_WIDTH}" y="166" text-anchor="end">{_when(max(times))}</text></svg>'
    )


def _rejections(rejections: list[Record]) -> str:
    title = "<h2>Rejected records</h2>"
    if not rejections:
        return f"{title}<p>None.</p>"
    counts = Counter((r["record"], r["reason"], r["group_id"]) for r in rejections)
    rows = ((*key, f"{n:,}") for key, n in counts.most_common(50))
    names = ("record", "reason", "group", "count")
    return (
        f"{title}{html_table(names, rows, numbers=('count',))}"
        '<p class="note">Races that the log decides: two claims at once, a heartbeat that was on '
        "its way when the claim ended.</p>"
    )


def _elections(elections: list[Record]) -> str:
    if not elections:
        return ""
    begun = sorted(elections, key=lambda e: (e["from_at"] is not None, e["from_at"]))
    newest = sorted(begun, key=lambda e: e["until_at"] is None)[-MAX_ELECTIONS:]  # who leads, too
    newest.sort(key=lambda e: (e["name"], -e["epoch"]))
    rows = (
        (
            e["name"],
            e["group_id"],
            e["client_id"],
            e["epoch"],
            _when(e["from_at"]),
            _when(e["until_at"]),
            e["how"] or "leads",
            "" if e["vacancy_ms"] is None else f"{e['vacancy_ms']:,}",
        )
        for e in newest
    )
    names = ("name", "group", "leader", "epoch", "from", "until", "how", "vacant before, ms")
    more = _more(len(elections), len(newest), "elections, the newest")
    return f"<h2>Elections</h2>{more}{html_table(names, rows, numbers=('epoch', names[-1]))}"


def _records(anomalies: list[Record]) -> str:
    blocks: dict[str, str] = {}
    for a in _newest(anomalies):
        if a["record"] is not None:
            blocks.setdefault(
                _anchor(a),
                f'<h3 id="{_anchor(a)}">partition {a["coordinator"]}, offset {a["log_offset"]}, '
                f"{_when(a['at'])}</h3><pre>{escape(a['record'])}</pre>",
            )
    return f"<h2>Records</h2>{''.join(blocks.values())}" if blocks else ""


# Pieces


def _anchor(a: Record) -> str:
    return f"r-{a['coordinator']}-{a['log_offset']}"


def _newest(anomalies: list[Record]) -> list[Record]:
    """Those that are shown: what has happened by now counts most."""
    return sorted(anomalies, key=lambda a: a["at"], reverse=True)[:MAX_ANOMALIES]


def _link(a: Record) -> str:
    where = f"{a['coordinator']}/{a['log_offset']}"
    return where if a["record"] is None else f'<a href="#{_anchor(a)}">{where}</a>'


def _cell(row: Record) -> str:
    return "" if row["topic"] is None else f"{row['topic']}/{row['partition']}"


def _when(at: dt.datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2] + "…" + text[-(most // 2) + 1 :]


def _colour(name: str) -> str:
    hue = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=2).digest(), "big") % 360
    return f"hsl({hue} 55% 50%)"


def _more(total: int, shown: int, what: str) -> str:
    if shown >= total:
        return ""
    return f'<p class="note">{shown:,} of {total:,} {what}; the tables hold all.</p>'

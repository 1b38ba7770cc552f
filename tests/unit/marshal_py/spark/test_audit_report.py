"""What the audit's report says of rows that are given."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from marshal_py.spark.audit_report import (
    MAX_ANOMALIES,
    MAX_ELECTIONS,
    _anomalies,
    _elections,
    _holders,
    _lag,
    _records,
    _rejections,
    _takeovers,
    _tiles,
)

Record = dict[str, Any]


def at(seconds: float) -> dt.datetime:
    return dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def cells(html: str) -> list[list[str]]:
    """The lines of the tables of a page, without their heads."""
    lines = re.findall(r"<tr>(.*?)</tr>", html)
    return [found for line in lines if (found := re.findall(r"<td[^>]*>(.*?)</td>", line))]


def end(end_offset: int, seconds: float, partition: int = 0) -> Record:
    return {"topic": "t", "partition": partition, "at": at(seconds), "end_offset": end_offset}


def position(upto: int | None, seconds: float, *cell: Any, **more: Any) -> Record:
    topic, partition = cell or ("t", 0)
    given = {"group_id": "g", "topic": topic, "partition": partition, "at": at(seconds)}
    return given | {"next_offset": upto, "claimed_offset": None} | more


def test_lag_is_the_end_less_the_position_at_that_moment() -> None:
    ends = [end(10, 1), end(20, 2), end(30, 3), end(5, 3, partition=1)]
    positions = [position(4, 1), position(14, 2.5), position(7, 3.5), position(2, 1, "t", 1)]
    # 6, 16 and 30 - 14, and 5 - 2 of the other partition.
    assert cells(_lag(ends, positions)) == [["g · t", "19", "19"]]
    claimed = [position(4, 1, claimed_offset=9)]
    assert cells(_lag([end(10, 1), end(20, 2)], claimed)) == [["g · t", "11", "11"]]
    assert cells(_lag([end(10, 1), end(12, 2)], [position(4, 1.5)])) == [["g · t", "8", "10"]]


def test_a_position_that_was_set_is_where_the_group_is_though_its_claim_ended_with_it() -> None:
    set_back = [position(14, 1), position(14, 2), position(4, 2)]
    assert cells(_lag([end(20, 3)], set_back)) == [["g · t", "16", "16"]]


def test_lag_of_a_shared_partition_is_that_of_its_last_slot() -> None:
    shared = position(2, 0, "t#slots", 0)
    slots = [position(8, 1, "t/0#2", 0), position(3, 1, "t/0#2", 1)]
    old = position(1, 1, "t/0#3", 0)  # it was shared by three before
    before = position(0, 1)  # and by nobody before that
    found = cells(_lag([end(10, 2)], [*slots, shared, old, before]))
    assert [line for line in found if line[0] == "g · t"] == [["g · t", "7", "7"]]


@pytest.mark.parametrize("order", [1, -1])
def test_lag_by_ranges_is_of_the_furthest_since_a_position_was_set(order: int) -> None:
    rows = [
        position(8, 1, "t/0@4", 0),
        position(9, 2, "t/0@8", 0),  # it was set free, in the same moment
        position(2, 2),
        position(4, 3, "t/0@2", 0),
        position(3, 4, "t/0@3", 0),
    ][::order]
    for seconds, lag in ((1, "2"), (2, "8"), (3, "6"), (4, "6")):
        assert cells(_lag([end(10, seconds)], rows)) == [["g · t", lag, lag]]


def test_lag_by_ranges_is_not_of_one_that_nobody_has_begun() -> None:
    """Who finds all messages granted gets a range behind the topic's end, and waits there."""
    rows = [
        position(0, 1, "t/0@0", 0),
        position(1_000, 2, "t/0@1000", 0),
        position(4, 3, "t/0@0", 0),
        position(2_000, 4, "t/0@2000", 0),
    ]
    for seconds, lag in ((1, "10"), (2, "10"), (3, "6"), (4, "6")):
        assert cells(_lag([end(10, seconds)], rows)) == [["g · t", lag, lag]]


def test_who_holds_something_now_is_counted() -> None:
    claims: list[Record] = [{"until_at": None}, {"until_at": at(1)}]
    html = _tiles(claims, [{}], [{}, {}], [], (at(0), at(1)))
    assert "held now" in html
    assert "2026-03-01 00:00:00.000 to 2026-03-01 00:00:01.000" in html


def claim(epoch: int, since: float | None, until: float | None, **more: Any) -> Record:
    given = {"group_id": "g", "topic": "t", "partition": 0, "client_id": "c", "epoch": epoch}
    ended = {
        "until_at": None if until is None else at(until),
        "how": None if until is None else "released",
    }
    started = {"from_at": None if since is None else at(since)}
    return given | ended | started | {"first_offset": 0, "last_offset": 9} | more


def test_a_claim_is_drawn_from_its_beginning_to_its_end() -> None:
    html = _holders([claim(1, None, 5), claim(2, 5, None, topic="<t>")], (at(0), at(10)))
    drawn = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', html)
    assert [(float(x), float(width)) for x, width in drawn] == [(615, 375), (240, 375)]
    assert "epoch 2: 2026-03-01 00:00:05.000 to 2026-03-01 00:00:10.000, held" in html
    assert "&lt;t&gt;/0" in html


def test_takeovers_are_those_from_clients_that_were_silent() -> None:
    def taken(how: str, silence_ms: int | None, beat_ms: int | None) -> Record:
        given = {"how": how, "silence_ms": silence_ms, "first_beat_ms": beat_ms}
        return given | {"from_interval_ms": 1_000}

    rows = [taken("taken_over", ms, ms // 10) for ms in range(1_000, 1_100)]
    rows += [taken("resumed", 9_000, 9_000), taken("taken_over", None, None)]
    silence, beat = cells(_takeovers(rows))
    assert silence == ["silence before, ms", "100", "1,000", "1,050", "1,094", "1,099"]
    assert beat[1] == "100"
    assert "Restarts: 1" in _takeovers([taken("resumed", 1, 1)])


def test_anomalies_are_counted_all_and_the_newest_are_shown() -> None:
    """What happens now must not be hidden behind what happened weeks ago."""
    one = {"group_id": "g", "client_id": None, "topic": None, "partition": None, "kind": "zombie"}
    rows = [
        one | {"at": at(n), "what": f"<{n}>", "coordinator": 0, "log_offset": n, "record": f"r{n}"}
        for n in range(MAX_ANOMALIES + 1)
    ]
    html = _anomalies(rows)
    assert cells(html)[0][:2] == ["zombie", f"{MAX_ANOMALIES + 1:,}"]
    assert cells(html)[1][4] == f"&lt;{MAX_ANOMALIES}&gt;"
    assert "&lt;0&gt;" not in html
    assert f"{MAX_ANOMALIES:,} of {MAX_ANOMALIES + 1:,} anomalies, the newest first" in html
    shown = _records(rows)
    assert (f"r{MAX_ANOMALIES}</pre>" in shown, "r0</pre>" in shown) == (True, False)


def test_what_was_rejected_is_counted_by_kind_and_leaders_are_told_the_newest_first() -> None:
    row = {"record": "Heartbeat", "reason": "not_held", "group_id": "g"}
    assert cells(_rejections([row, row, row | {"reason": "stale"}])) == [
        ["Heartbeat", "not_held", "g", "2"],
        ["Heartbeat", "stale", "g", "1"],
    ]
    elections = [
        claim(1, 0, 5, name="n", vacancy_ms=None),
        claim(2, 6, None, name="n", vacancy_ms=1_000),
    ]
    newest, oldest = cells(_elections(elections))
    assert (newest[3], newest[5:]) == ("2", ["", "leads", "1,000"])
    assert (oldest[3], oldest[6:]) == ("1", ["released", ""])


def test_of_more_elections_than_are_shown_the_newest_are_and_who_leads() -> None:
    many = [claim(n, n, n + 1, name="a", vacancy_ms=None) for n in range(MAX_ELECTIONS)]
    others = [
        claim(1, 500, 501, name="b", vacancy_ms=None),
        claim(2, None, None, name="c", vacancy_ms=None),  # since before the log began
    ]
    html = _elections([*others, *many])
    shown = cells(html)
    assert [line[0] for line in shown[-2:]] == ["b", "c"]
    assert [int(line[3]) for line in shown[:-2]] == [*range(MAX_ELECTIONS - 1, 1, -1)]
    assert f"{MAX_ELECTIONS} of {MAX_ELECTIONS + 2} elections" in html

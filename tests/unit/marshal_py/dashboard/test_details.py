"""Answers about one cell, one row's past and the time bar, from a log that the test writes."""

from __future__ import annotations

from typing import Any, cast

import pytest

from marshal_py.dashboard import details as module
from marshal_py.dashboard.details import cell_document, lanes_document, time_bar_document
from marshal_py.dashboard.live_state import LiveState
from marshal_py.dashboard.log_follower import LogFollower
from marshal_py.protocol.messages import ClaimingRange, ReleasingPartition
from tests.unit.marshal_py.dashboard.test_live_state import INTERVAL_MS, START_MS, Stage

KEY = ("g", "t", 0)
ROW = ("g", "t")


class Follower:
    """What answers ask of a follower."""

    def __init__(self, live: LiveState | None) -> None:
        self.live = live

    def known_from_ms(self) -> int:
        return 7


def follower(live: LiveState | None) -> LogFollower:
    return cast(LogFollower, Follower(live))


def cell(stage: Stage) -> dict[str, Any]:
    return cell_document(follower(stage.live), key=KEY)


def lanes(stage: Stage, start: int, end: int) -> dict[str, Any]:
    """Bars and marks of a window, in ms since the test began."""
    window = (START_MS + start, START_MS + end)
    return lanes_document(follower(stage.live), row=ROW, window_ms=window)


def bars(stage: Stage, start: int, end: int) -> list[list[Any]]:
    found = lanes(stage, start, end)
    return [[found["clients"][bar[0]], *bar[1:4]] for bar in found["lanes"][0]["bars"]]


@pytest.fixture
def stage() -> Stage:
    """Held by a for 1 s from 1,000, and by b from 3,000."""
    made = Stage()
    made.wait(1_000)
    epoch = made.claim("a")
    made.wait(1_000)
    made.put(ReleasingPartition, "a", "t", 0, epoch, 3)
    made.wait(1_000)
    made.claim("b")
    return made


def test_of_a_cell_that_nobody_knows_only_its_name_is_told() -> None:
    named = {"group": "g", "topic": "t", "partition": 0, "claims": [], "rejections": []}
    assert cell(Stage()) == named
    assert cell_document(follower(None), key=KEY) == named


def test_a_cell_is_told_with_its_holder_its_lag_and_its_claims(stage: Stage) -> None:
    stage.live.set_ends({"t": {0: 10}})
    found = cell(stage)
    assert (found["holder"], found["instance"]) == ("b", "b-1")
    assert (found["interval_ms"], found["coordinator"]) == (INTERVAL_MS, 0)
    assert (found["next_offset"], found["end"], found["lag"]) == (3, 10, 7)
    assert found["epoch"] == found["version"] == 2
    assert found["book"] is None
    assert isinstance(found["silence_ms"], int)
    assert [(c["client_id"], c["how"]) for c in found["claims"]] == [("a", "released"), ("b", None)]


def test_nobody_is_silent_where_nobody_holds() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    stage.put(ReleasingPartition, "a", "t", 0, epoch, 3)
    found = cell(stage)
    assert (found["holder"], found["silence_ms"]) == (None, None)
    assert [c["how"] for c in found["claims"]] == ["released"]


def test_of_many_claims_the_latest_are_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHOWN_CLAIMS", 1)
    assert [c["client_id"] for c in cell(stage)["claims"]] == ["b"]


def test_bars_are_the_claims_that_touch_the_window(stage: Stage) -> None:
    both = [["a", 1_000, 2_000, "released"], ["b", 3_000, None, None]]
    assert bars(stage, 0, 9_000) == both
    assert bars(stage, 0, 3_000) == both
    assert bars(stage, 0, 2_999) == [both[0]]
    assert bars(stage, 2_000, 2_500) == [["a", -1_000, 0, "released"]]
    assert bars(stage, 2_001, 2_500) == []
    assert bars(stage, 8_000, 9_000) == [["b", -5_000, None, None]]
    assert bars(stage, 0, 999) == []


def test_lanes_are_told_with_their_window_and_since_when_all_is_known(stage: Stage) -> None:
    stage.claim("c", 10)
    stage.claim("c", 2)
    found = lanes(stage, 0, 9_000)
    assert (found["group"], found["topic"], found["start"]) == ("g", "t", START_MS)
    assert [lane["partition"] for lane in found["lanes"]] == [0, 2, 10]
    assert found["clients"] == ["a", "b", "c"]
    assert (found["known_from"], found["cut"]) == (7, False)
    other = lanes_document(follower(stage.live), row=("g", "u"), window_ms=(0, 1))
    assert (other["lanes"], other["clients"]) == ([], [])
    assert lanes_document(follower(None), row=ROW, window_ms=(0, 1))["lanes"] == []


def test_of_a_row_with_too_many_bars_each_cell_keeps_its_latest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.claim("c", 1)
    monkeypatch.setattr(module, "MAX_BARS", 1)
    found = lanes(stage, 0, 9_000)
    assert found["cut"]
    names = [[found["clients"][bar[0]] for bar in lane["bars"]] for lane in found["lanes"]]
    assert names == [["b"], ["c"]]


def test_a_rejection_is_a_mark_at_its_time_and_with_its_reason(stage: Stage) -> None:
    stage.now_ms = START_MS + 4_000
    stage.put(ReleasingPartition, "z", "t", 0, 999, 3)
    found = lanes(stage, 500, 4_000)
    ((at, client, reason),) = found["lanes"][0]["marks"]
    assert (at, found["clients"][client]) == (3_500, "z")
    assert reason == cell(stage)["rejections"][0]["reason"]
    assert lanes(stage, 4_000, 4_001)["lanes"][0]["marks"] != []
    assert lanes(stage, 4_001, 9_000)["lanes"][0]["marks"] == []
    assert lanes(stage, 0, 3_999)["lanes"][0]["marks"] == []


def test_the_time_bar_says_what_happened_when(stage: Stage) -> None:
    window = (START_MS, START_MS + 24_000)  # 100 ms a bin
    found = time_bar_document(follower(stage.live), window_ms=window)
    assert (found["start"], found["end"]) == window
    told = [
        (kind, bin, number)
        for kind, bins in enumerate(found["bins"])
        for bin, number in enumerate(bins)
        if number
    ]
    assert told == [(2, 10, 1), (2, 30, 1), (3, 20, 1)]
    assert [len(bins) for bins in found["bins"]] == [240] * 4


def test_the_time_bar_begins_with_its_start_and_ends_before_its_end(stage: Stage) -> None:
    def events(start: int, end: int) -> int:
        window = (START_MS + start, START_MS + end)
        bins = time_bar_document(follower(stage.live), window_ms=window)["bins"]
        return sum(map(sum, bins))

    assert [events(1_000, 3_000), events(1_001, 3_001), events(1_000, 1_000)] == [2, 2, 0]
    assert sum(map(sum, time_bar_document(follower(None), window_ms=(0, 1))["bins"])) == 0


def test_a_cell_behind_too_many_bars_still_has_its_latest(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.claim("c", 1)
    epoch = stage.claim("d", 2)
    stage.put(ReleasingPartition, "d", "t", 2, epoch, 3)
    stage.claim("e", 2)
    monkeypatch.setattr(module, "MAX_BARS", 1)
    found = lanes(stage, 0, 9_000)
    assert [len(lane["bars"]) for lane in found["lanes"]] == [1, 1, 1]
    assert found["clients"][found["lanes"][2]["bars"][0][0]] == "e"
    monkeypatch.setattr(module, "MAX_BARS", 4)
    assert lanes(stage, 0, 9_000)["cut"]
    monkeypatch.setattr(module, "MAX_BARS", 5)
    found = lanes(stage, 0, 9_000)
    assert [len(lane["bars"]) for lane in found["lanes"]] == [2, 1, 2]
    assert not found["cut"], "all that there are"


@pytest.mark.parametrize("position", [-1, 0, 7])
def test_what_was_held_before_all_that_is_known_is_a_claim_of_unknown_beginning(
    position: int,
) -> None:
    """As of a holder that a snapshot names, and that is silent since. Nobody holds nothing."""
    stage = Stage()
    epoch = stage.claim("a")
    stage.beat("a", epoch, next_offset=position)
    stage.put(ReleasingPartition, "b", "t", 1, stage.claim("b", 1), 3)
    of_a_snapshot = LiveState(stage.world, [stage.observer])
    (claim,) = cell_document(follower(of_a_snapshot), key=KEY)["claims"]
    assert (claim["client_id"], claim["instance_id"], claim["epoch"]) == ("a", "a-1", epoch)
    assert (claim["interval_ms"], claim["from_ms"], claim["until_ms"]) == (INTERVAL_MS, None, None)
    assert (claim["how"], claim["by"], claim["last_ms"]) == (None, None, None)
    assert (claim["heartbeats"], claim["longest_gap_ms"]) == (0, 0)
    assert claim["position"] == (None if position < 0 else position)
    assert cell_document(follower(of_a_snapshot), key=("g", "t", 1))["claims"] == []
    of_a_snapshot.caught_up(stage.now_ns, stage.now_ms)
    found = lanes_document(follower(of_a_snapshot), row=ROW, window_ms=(0, 1))
    assert [lane["bars"] for lane in found["lanes"]] == [
        [[0, None, None, None, None, INTERVAL_MS, epoch]],
        [],
    ]


def test_a_partition_that_is_shared_by_ranges_is_told_with_those_that_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    for client, start, count in (("a", 0, 10), ("b", 10, 20)):
        stage.put(ClaimingRange, client, "t", 0, INTERVAL_MS, start, count)
    book = cell(stage)["book"]
    assert (book["position"], book["frontier"], book["open"]) == (0, 30, 2)
    assert book["ranges"] == [[0, 10, 0, "a", 1], [10, 30, 10, "b", 1]]
    monkeypatch.setattr(module, "SHOWN_RANGES", 1)
    book = cell(stage)["book"]
    assert (book["open"], [r[0] for r in book["ranges"]]) == (2, [0])


def test_what_happens_as_a_short_window_begins_is_in_its_first_bin(stage: Stage) -> None:
    found = time_bar_document(follower(stage.live), window_ms=(START_MS + 1_000, START_MS + 1_100))
    assert found["bins"][2][0] == 1

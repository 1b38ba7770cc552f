"""Words and bounds of what pages get: alerts of silence, the stream, groups, claims of late."""

from __future__ import annotations

from typing import Any, cast

import pytest

from marshal_py.dashboard import live_state as module
from marshal_py.dashboard.cell_grid import FRESH, STALE, CellGrid, lag_bucket
from marshal_py.dashboard.groups import members_document, metadata_text
from marshal_py.dashboard.recent_claims import RecentClaims, open_claim
from marshal_py.protocol.history.tracks import CellTrack
from marshal_py.protocol.messages import Heartbeat, ReleaseGroup, ReleasingPartition
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import World
from tests.unit.marshal_py.dashboard.test_live_state import Stage


def test_of_many_who_are_silent_those_with_most_are_named_and_the_others_counted() -> None:
    stage = Stage()
    for partition, client in enumerate(["a", "b", "b", "c", "d", "e"]):
        stage.claim(client, partition)
    stage.wait(4_000)
    ((text, _),) = stage.alerts("stale")
    assert text.startswith("b, a, c and 2 others hold 6 partitions of t, silent")
    (alert,) = [a for a in stage.live.alerts.all() if a.kind == "stale"]
    assert (alert.severity, alert.client_id) == ("high", None)


def test_a_leader_who_is_silent_is_named_with_what_it_leads() -> None:
    stage = Stage()
    stage.claim("a", topic="leader:night")
    stage.wait(4_000)
    ((text, _),) = stage.alerts("stale")
    assert text.startswith("a leads night, silent for over two intervals")
    (alert,) = [a for a in stage.live.alerts.all() if a.kind == "stale"]
    assert alert.client_id == "a"


def test_who_claims_what_another_held_takes_over_and_who_held_it_itself_resumes() -> None:
    stage = Stage()
    stage.claim("a")
    stage.wait(4_000)
    stage.claim("b")
    stage.wait(4_000)
    stage.claim("b", instance="b-2")
    told = [(line["kind"], line["text"]) for line in stage.live.document(0)["activity"]]
    assert [kind for kind, _ in told] == ["Claimed", "TakenOver", "Resumed"]
    assert told[1][1].endswith("by b from a")
    assert " from " not in told[2][1]


def test_the_stream_is_told_once_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, bound in (("ACTIVITY", 3), ("SENT_AT_ONCE", 2), ("SENT_AT_FIRST", 2)):
        monkeypatch.setattr(module, name, bound)
    stage = Stage()
    for partition in range(20):
        stage.claim("a", partition)
        assert len(stage.live.activity) <= 6
        assert len(stage.live._unsent) <= 4
    first = [line["partition"] for line in stage.live.document(0)["activity"]]
    assert first == [18, 19]
    changes = stage.live.take_changes(stage.now_ms)
    assert [line["partition"] for line in changes["activity"]] == [18, 19]
    assert "activity" not in stage.live.take_changes(stage.now_ms)


def test_groups_are_told_again_only_where_they_changed() -> None:
    stage = Stage()
    stage.claim("a")
    stage.wait(250)
    assert "groups" in stage.live.take_changes(stage.now_ms)
    stage.wait(1_000)
    assert "groups" not in stage.live.take_changes(stage.now_ms)
    stage.put(ReleaseGroup, "op", stage.now_ms + 9_000)
    stage.wait(1_000)
    assert "groups" in stage.live.take_changes(stage.now_ms)


def test_a_group_of_which_only_its_pause_is_known_is_one() -> None:
    stage = Stage()
    stage.put(ReleaseGroup, "op", stage.now_ms + 1_000)
    assert [group["group"] for group in stage.live.document(0)["groups"]] == ["g"]


def test_the_first_moment_is_the_earliest() -> None:
    stage = Stage()
    later = stage.now_ms
    stage.claim("a")
    stage.now_ms -= 500
    stage.claim("a", 1)
    stage.now_ms += 900
    stage.claim("a", 2)
    assert (stage.live.first_ms, stage.live.newest_ms) == (later - 500, later + 400)


class Members:
    """What a world says of its members."""

    def __init__(self, *names: tuple[str, str], metadata: bytes = b"") -> None:
        self.names, self.metadata = names, metadata
        self.instance_id, self.interval_ms = "i", 5

    def members(self) -> list[Any]:
        class View:
            def __init__(self, group: str, client: str, member: Members) -> None:
                self.group_id, self.client_id, self.member = group, client, member

        return [View(group, client, self) for group, client in self.names]


def test_members_come_by_group_and_name() -> None:
    world = cast(World, Members(("h", "a"), ("g", "b"), ("g", "a")))
    found = [(m["group"], m["client"], m["says"]) for m in members_document(world)]
    assert found == [("g", "a", ""), ("g", "b", ""), ("h", "a", "")]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Subscription(topics=frozenset(("u", "t"))), "t, u"),
        (Subscription(pattern="o.*", max_claims=2), "matching o.* · at most 2"),
        (Subscription(topics=frozenset("t"), weight=0.5), "t · weight 0.5"),
        (Subscription(topics=frozenset("t"), labels={"z": "1", "a": "2"}), "t · a=2 · z=1"),
    ],
)
def test_what_a_member_wants_is_told_where_it_says_something(
    wanted: Subscription, text: str
) -> None:
    (found,) = members_document(cast(World, Members(("g", "a"), metadata=wanted.encode())))
    assert found["says"] == text


def test_of_long_metadata_only_the_beginning_is_told() -> None:
    assert len(metadata_text(b'{"a": "' + b"x" * 5_000 + b'"}')) == 2_000


def claim(n: int) -> tuple[Any, ...]:
    return (0, "g", "t", n, "a", "a-1", n, 1, 10, 20, "released", "b", 0, 0, 30, 4, 15, 6)


def test_a_claim_of_late_is_kept_with_what_is_known_of_it() -> None:
    log = RecentClaims()
    log.add({"claims": [claim(3)]})
    (kept,) = log.claims(("g", "t", 3))
    assert kept[4:] == (10, 20, "released", "b", 15, 30, 4, 6)


def test_of_cells_and_rejections_that_are_dropped_nothing_stays() -> None:
    log = RecentClaims(max_claims=2, max_rejections=1)
    for n in range(5):
        log.add({"claims": [claim(n)]})
    assert list(log._claims) == [("g", "t", 3), ("g", "t", 4)]
    log.add({"rejections": [(0, 1, 1, "g", "a", "a-1", "R", "why", None, None, None)]})
    assert log._rejections == {}


def test_a_claim_that_stands_is_as_far_as_its_holder_said_last() -> None:
    track = CellTrack("a", None, 7, 5, 0, next_offset=0, claimed_offset=4, version_ms=0)
    found = open_claim(track)
    assert found is not None
    assert (found.from_ms, found.last_ms, found.position, found.instance_id) == (0, 0, 4, "")
    assert open_claim(CellTrack()) is None
    begun = open_claim(CellTrack("a"))
    assert begun is not None
    assert (begun.from_ms, begun.last_ms, begun.position) == (None, None, None)


def test_who_holds_how_many_stale_cells_follows_each_change() -> None:
    grid = CellGrid()
    row, slot = grid.put("g", "t", 0, Cell(("t", 0), holder="a"))
    assert row.set_live(slot, STALE)
    assert not row.set_live(slot, STALE)
    assert +row.stale_by == {1: 1}
    grid.put("g", "t", 0, Cell(("t", 0), holder="b"))
    assert +row.stale_by == {2: 1}
    assert row.set_live(slot, FRESH)
    assert +row.stale_by == {}


def test_a_lag_is_told_with_that_of_its_row() -> None:
    grid = CellGrid()
    row, slot = grid.put("g", "t", 0, None)
    grid.take_changes()
    row.set_lag(slot, lag_bucket(5))
    row.lag_total, row.lag_max, row.lag_unknown = 9, 5, 2
    grid.touch(row)
    assert grid.take_changes() == {
        "cells": [{"row": 0, "lag": {"4": "0"}, "lag_total": 9, "lag_max": 5, "lag_unknown": 2}]
    }
    assert lag_bucket(-5) == lag_bucket(0) == 1


def test_a_cell_that_is_released_is_nobody_s() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    stage.put(ReleasingPartition, "a", "t", 0, epoch, 3)
    assert stage.live.grid.rows["g", "t"].holders[0] == 0


def test_two_processes_under_one_name_are_no_small_matter() -> None:
    stage = Stage()
    first = stage.claim("a", instance="a-1")
    stage.claim("a", 1, instance="a-2")
    for _ in range(4):
        stage.put(Heartbeat, "a", 1_000, 0, [first, 3], instance="a-1")
        stage.put(Heartbeat, "a", 1_000, instance="a-2")
    found = [a for a in stage.live.alerts.all() if a.kind == "duplicate_client_id"]
    assert {a.severity for a in found} == {"high"}

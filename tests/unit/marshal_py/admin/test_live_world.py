"""Pictures of the world for `marshal top`: rates, and what happened of late."""

from __future__ import annotations

import pytest

from marshal_py.admin import live_world as module
from marshal_py.admin.live_world import KEPT_EVENTS, LiveWorld
from marshal_py.errors import PartitionCountChanged
from marshal_py.protocol.messages import (
    ClaimingPartition,
    ClaimingRange,
    Message,
    ReleasingPartition,
    SetPosition,
)
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat


def claim(who: str, group: str, partition: int = 0) -> Message:
    return ClaimingPartition(2, who, f"{who}1", group, 0, "t", partition, 1_000, -1)


def beat(who: str, group: str, seq: int, epoch: int, position: int) -> Message:
    return heartbeat(who, seq, {epoch: position}, instance_id=f"{who}1", group_id=group)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_rates_are_of_the_time_since_the_picture_before(seconds: list[float]) -> None:
    log = LogByHand()
    epoch = log.write(claim("a", "g"))
    log.write(beat("a", "g", 1, epoch, 1_000))
    live = LiveWorld(log.view(), topic="log")
    first = live.frame()
    assert (first.records, first.records_per_s, first.moved_per_s) == (2, None, {})
    for seq, position in ((2, 1_100), (3, 1_300)):
        log.write(beat("a", "g", seq, epoch, position))
    other = log.write(claim("b", "h"))
    log.write(beat("b", "h", 1, other, 5_000))
    live.watch(0)
    seconds[0] += 2.0
    second = live.frame()
    assert (second.records, second.records_per_s) == (6, 2.0)
    assert second.moved_per_s == {"g": 150.0, "h": 0.0}, "what has come is not what moved"
    seconds[0] += 4.0
    third = live.frame()
    assert (third.records_per_s, third.moved_per_s) == (0.0, {"g": 0.0, "h": 0.0})


def test_a_position_that_was_set_back_is_no_speed(seconds: list[float]) -> None:
    log = LogByHand()
    epoch = log.write(claim("a", "g"))
    log.write(beat("a", "g", 1, epoch, 1_000))
    view = log.view()
    live = LiveWorld(view, topic="log")
    live.frame()
    ((_, _, cell),) = view.world.cells("g")
    cell.next_offset = 10
    seconds[0] += 1.0
    assert live.frame().moved_per_s == {"g": 0.0}


def test_what_is_granted_is_no_speed_and_what_is_done_of_it_is(seconds: list[float]) -> None:
    log = LogByHand()
    live = LiveWorld(log.view(), topic="log")

    def speed() -> float:
        live.watch(0)
        seconds[0] += 1.0
        return live.frame().moved_per_s.get("g", 0.0)

    grant = ClaimingRange(2, "a", "a1", "g", 0, "t", 0, 1_000, 1_000_000, 100)
    first = log.write(grant)
    assert speed() == 0
    log.write(beat("a", "g", 1, first, 1_000_030))
    second = log.write(grant)
    assert speed() == 30
    log.write(beat("a", "g", 2, second, 1_000_105))
    cell = ("t/0@1000000", 0)
    log.write(ReleasingPartition(2, "a", "a1", "g", 3, *cell, first, 1_000_100))
    assert speed() == 70 + 5
    assert speed() == 0


def test_a_first_position_is_no_speed_and_hides_none(seconds: list[float]) -> None:
    log = LogByHand()
    live = LiveWorld(log.view(), topic="log")
    old, back, new = (log.write(claim("a", "g", p)) for p in range(3))
    log.write(beat("a", "g", 1, old, 500))
    log.write(beat("a", "g", 2, back, 900))
    live.watch(0)
    live.frame()
    log.write(beat("a", "g", 3, old, 600))
    log.write(beat("a", "g", 4, new, 5_000_000))
    log.write(SetPosition(2, "a", "a1", "g", 5, "t", 1, 0, back + 5))
    live.watch(0)
    assert {key[2]: c.position for _, key, c in log.world.cells("g")} == {
        0: 600,
        1: 0,
        2: 5_000_000,
    }
    seconds[0] += 1.0
    assert live.frame().moved_per_s == {"g": 100.0}


@pytest.mark.usefixtures("seconds")
def test_of_one_group_nothing_of_others_is_shown_and_no_heartbeats() -> None:
    log = LogByHand()
    live = LiveWorld(log.view(), topic="log", group="g")
    epoch = log.write(claim("a", "g"), 1_000)
    log.write(claim("b", "h"), 2_000)
    log.write(beat("a", "g", 1, epoch, 10), 3_000)
    live.watch(0)
    frame = live.frame()
    assert [(e.stamp_ms, type(e.event).__name__) for e in frame.events] == [(1_000, "Claimed")]
    assert [group.group for group in frame.summary.groups] == ["g"]
    assert frame.records == 3


@pytest.mark.usefixtures("seconds")
def test_the_latest_events_are_kept() -> None:
    log = LogByHand()
    live = LiveWorld(log.view(), topic="log")
    for partition in range(KEPT_EVENTS + 5):
        log.write(claim("a", "g", partition))
    live.watch(0)
    assert [e.event.offset for e in live.frame().events] == list(range(5, KEPT_EVENTS + 5))


@pytest.mark.usefixtures("seconds")
def test_of_records_long_ago_no_times_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_STAMPS", 3)
    log = LogByHand()
    view = log.view()
    live = LiveWorld(view, topic="log")
    for partition in range(20):
        log.write(claim("a", "g", partition))
        live.watch(0)
    assert 3 <= len(view.stamps[0].offsets) <= 6


@pytest.mark.usefixtures("seconds")
def test_a_topic_that_has_grown_is_not_shown_as_if_nothing_were_missing() -> None:
    log = LogByHand()
    live = LiveWorld(log.view(), topic="log")
    live.watch(0)
    log.partition_count_error = PartitionCountChanged("8, and were 1")
    with pytest.raises(PartitionCountChanged, match="8, and were 1"):
        live.watch(0)

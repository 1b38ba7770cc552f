"""The world counted: what each number counts, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py.admin.world_summary import summarize, wanted_topics
from marshal_py.protocol.messages import (
    ClaimingPartition,
    ClaimingRange,
    Heartbeat,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    SetLevel,
)
from marshal_py.protocol.slots import agreement_cell, slots_cell
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.text.codec import CLAIMING_PARTITION, RELEASE_GROUP, TextRecord
from marshal_py.protocol.wire import text_wire
from marshal_py.protocol.world import LEADER_PREFIX, MS
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat

NOW_MS = 1_700_000_000_000
INTERVAL_MS = 1_000
FRESH, UNKNOWN, STALE = NOW_MS - 500, NOW_MS - 1_500, NOW_MS - 5_000


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: NOW_MS * MS)


def claim(who: str, topic: str, partition: int, *, group: str = "g") -> Message:
    return ClaimingPartition(2, who, f"{who}1", group, 0, topic, partition, INTERVAL_MS, -1)


def joined(who: str, *, group: str = "g", wants: bytes | None = None) -> Message:
    return heartbeat(
        who, 1, instance_id=f"{who}1", group_id=group, membership=1, member_metadata=wants
    )


def test_claims_that_are_held_stale_and_free() -> None:
    log = LogByHand()
    log.write(claim("dead", "t", 0), STALE)
    log.write(claim("slow", "t", 1), UNKNOWN)
    log.write(claim("live", "t", 2), FRESH)
    epoch = log.write(claim("live", "u", 0), FRESH)
    log.write(ReleasingPartition(2, "live", "live1", "g", 9, "u", 0, epoch, 7), FRESH)
    (group,) = summarize(log.view()).groups
    assert (group.held, group.stale, group.free, group.topics) == (3, 1, 1, 2)
    assert (group.leaders, group.members, group.paused) == (0, 0, False)


def test_members_have_the_claims_of_their_own_group() -> None:
    log = LogByHand()
    log.write(joined("a", wants=Subscription(frozenset({"t"}), None).encode()), FRESH)
    log.write(claim("a", "t", 0), FRESH)
    log.write(claim("a", "t", 1), FRESH)
    log.write(joined("a", group="h"), STALE)
    log.write(claim("a", "t", 0, group="h"), STALE)
    found = summarize(log.view())
    told = [(m.group, m.claims, m.liveness, m.wants) for m in found.members]
    assert told == [("g", 2, "fresh", ["t"]), ("h", 1, "stale", None)]
    assert [(g.group, g.members) for g in found.groups] == [("g", 1), ("h", 1)]
    alone = summarize(log.view(), group="h")
    assert [g.group for g in alone.groups] == ["h"]
    assert [m.group for m in alone.members] == ["h"]


def test_leaders_are_told_by_name_and_count_as_no_topic() -> None:
    log = LogByHand()
    epoch = log.write(claim("a", f"{LEADER_PREFIX}b", 0), FRESH)
    free = log.write(claim("a", f"{LEADER_PREFIX}a", 0), FRESH)
    log.write(ReleasingPartition(2, "a", "a1", "g", 9, f"{LEADER_PREFIX}a", 0, free, -1), FRESH)
    found = summarize(log.view())
    told = [(x.name, x.leader, x.epoch, x.liveness) for x in found.leaders]
    assert told == [("a", None, free, None), ("b", "a", epoch, "fresh")]
    assert (found.groups[0].leaders, found.groups[0].topics) == (2, 0)


def test_of_a_partition_that_is_shared_by_ranges_its_ranges_count() -> None:
    log = LogByHand()
    log.write(ClaimingRange(2, "a", "a1", "g", 0, "t", 0, INTERVAL_MS, 0, 10), FRESH)
    log.write(ClaimingRange(2, "b", "b1", "g", 0, "t", 0, INTERVAL_MS, 0, 10), FRESH)
    (group,) = summarize(log.view()).groups
    assert (group.open_ranges, group.held, group.free, group.topics) == (2, 2, 0, 1)


def test_each_group_has_its_own_topics_its_level_and_its_members_wherever_it_is_decided() -> None:
    log = LogByHand(8)
    names = ["g", "h", "k", "m"]
    assert len({log.world.home(name) for name in names} - {0}) > 1
    for number, group in enumerate(names, 1):
        log.write(SetLevel(2, "op", "op1", group, 0, number + 1, 1), FRESH)
        log.write(Heartbeat(2, "b", "b1", group, 1, INTERVAL_MS, 1, lowest=1, highest=9), FRESH)
        log.write(joined_at("a", group, number + 1), STALE if number == 1 else FRESH)
        log.write(claim("b", "t", 0, group=group), FRESH)
    found = summarize(log.view())
    assert {g.group: (g.topics, g.level, g.held) for g in found.groups} == {
        name: (1, number, 1) for number, name in enumerate(names, 2)
    }
    assert [(m.group, m.client_id) for m in found.members] == [
        (group, client) for group in names for client in "ab"
    ]
    told = {(m.group, m.client_id): (m.lowest_level, m.highest_level) for m in found.members}
    assert (told["g", "a"], told["g", "b"]) == ((2, 2), (1, 9))
    silent = [m.group for m in found.members if m.liveness == "stale"]
    assert silent == ["g"]


def joined_at(who: str, group: str, level: int) -> Message:
    return Heartbeat(2, who, f"{who}1", group, 1, INTERVAL_MS, 1, lowest=level, highest=level)


def test_how_a_topic_is_shared_is_no_claim() -> None:
    log = LogByHand()
    topic, partition = agreement_cell("t")
    log.write(
        ReleasingPartition(
            2,
            "a",
            "a1",
            "g",
            9,
            topic,
            partition,
            log.write(claim("a", topic, partition), FRESH),
            16,
        ),
        FRESH,
    )
    log.write(claim("a", slots_cell("t", 0, 16), 3), FRESH)
    (group,) = summarize(log.view()).groups
    assert (group.held, group.free, group.topics) == (1, 0, 1)


def test_a_pause_says_when_it_ends() -> None:
    log = LogByHand()
    log.write(ReleaseGroup(2, "op", "op1", "g", 0, NOW_MS + 9_000), FRESH)
    log.write(joined("a", group="h"), FRESH)
    paused, other = summarize(log.view()).groups
    assert (paused.group, paused.paused, paused.paused_until_ms) == ("g", True, NOW_MS + 9_000)
    assert (other.paused, other.paused_until_ms) == (False, None)


def test_in_version_1_the_pause_that_ends_last_counts_and_epochs_are_none() -> None:
    """One was written to each coordination partition, and may have reached some alone."""
    log: Any = LogByHand(2, text_wire(60))
    now_s = NOW_MS // 1000
    log.write(TextRecord(CLAIMING_PARTITION, 1, now_s, "i", "a", "g", f"{LEADER_PREFIX}x", 0))
    log.write(TextRecord(RELEASE_GROUP, 1, now_s, "i", "op", "g", "", 0, now_s + 9))
    view = log.view()
    view.world.states[1].paused["g"] = NOW_MS + 30_000
    found = summarize(view)
    assert found.groups[0].paused_until_ms == NOW_MS + 30_000
    assert [(x.leader, x.epoch) for x in found.leaders] == [("a", -1)]


def test_what_a_member_wants() -> None:
    both = Subscription(frozenset({"b", "a"}), "orders-.*").encode()
    assert wanted_topics(both) == ["a", "b", "/orders-.*/"]
    assert wanted_topics(b"") is None
    assert wanted_topics(b"\xc1 no subscription") is None

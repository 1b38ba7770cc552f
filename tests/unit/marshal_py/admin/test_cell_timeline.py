"""The history of one cell in sentences, out of records that a test writes."""

from __future__ import annotations

from typing import Literal

import pytest

from marshal_py.admin.cell_timeline import CellTimeline, TimelineEntry
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import (
    ClaimingMessages,
    ClaimingPartition,
    ForgetGroup,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetPosition,
    encode,
)
from marshal_py.protocol.rationalizer import PartitionState, apply
from tests.support.messages import heartbeat

KEY = ("g", "orders", 7)
INTERVAL = 5_000


class Log:
    """Writes records for the cell `KEY`, and keeps the timeline of it."""

    def __init__(self) -> None:
        self.state, self.timeline = PartitionState(3), CellTimeline(KEY, 3)
        self.now = 1_000_000

    def write(self, record: Message, after_ms: int = 0) -> int:
        self.now += after_ms
        offset = self.state.next_offset
        events: list[ev.Event] = []
        apply(self.state, offset, encode(record), events)
        for event in events:
            self.timeline.feed(event, self.now)
        return offset

    def _head(self, who: str) -> tuple[Literal[2], str, str, str, int]:
        client, _, instance = who.partition("#")
        return 2, client, instance or "i", "g", self.state.next_offset

    @property
    def version(self) -> int:
        return self.state.version(*KEY)

    def claim(self, who: str, after_ms: int = 0, version: int | None = None) -> int:
        expected = self.version if version is None else version
        return self.write(
            ClaimingPartition(*self._head(who), *KEY[1:], INTERVAL, expected), after_ms
        )

    def beat(self, who: str, epoch: int, after_ms: int, position: int = -1) -> None:
        _, client, instance, group, seq = self._head(who)
        record = heartbeat(client, seq, {epoch: position}, instance_id=instance, group_id=group)
        self.write(record, after_ms)

    def told(self) -> list[tuple[str, str]]:
        return [(e.kind, e.sentence) for e in self.timeline.entries]

    def entry(self, kind: str) -> TimelineEntry:
        return next(e for e in self.timeline.entries if e.kind == kind)


def test_a_takeover_says_who_was_silent_for_how_long_and_what_became_of_them() -> None:
    log = Log()
    epoch = log.claim("a")
    for position in (10, 20, 30):
        log.beat("a", epoch, INTERVAL, position)
    second = log.claim("b", 10_400)
    log.timeline.finish()
    assert [kind for kind, _ in log.told()] == ["claimed", "held", "taken_over"]
    claimed, held, taken = (text for _, text in log.told())
    assert "a claimed it, epoch 0" in claimed
    assert "nobody has ever claimed it" in claimed
    assert "3 heartbeats" in held
    assert "position 30" in held
    assert f"b took it over from a, epoch {second}" in taken
    assert "a had been silent for 10 s, over two of its intervals of 5.0 s" in taken
    assert "has not been heard of again" in taken
    assert log.entry("taken_over").silence_ms == 10_400


def test_a_holder_that_wakes_up_is_told_from_one_that_died() -> None:
    log = Log()
    epoch = log.claim("a")
    log.beat("a", epoch, 100)
    log.claim("b", 12_000)
    for _ in range(3):
        log.beat("a", epoch, 1_000, 7)
    log.timeline.finish()
    assert "a was heard of again" in log.entry("taken_over").sentence
    refused = log.entry("refused")
    assert (refused.client_id, refused.times) == ("a", 3)
    assert "a claim that is not its own any more (3 times, the last at" in refused.sentence
    assert "it had lost this one 1.0 s before" in refused.sentence
    assert "b holds it" in refused.sentence


def test_a_takeover_before_its_time_is_called_that() -> None:
    log = Log()
    log.claim("a")
    log.claim("b", 4_000)
    assert "less than two of its intervals" in log.entry("taken_over").sentence


def test_release_and_the_next_claim() -> None:
    log = Log()
    epoch = log.claim("a")
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], epoch, 44), 2_000)
    log.claim("b", 3_000)
    kinds = [kind for kind, _ in log.told()]
    assert kinds == ["claimed", "held", "released", "claimed"]
    assert log.timeline.entries[2].sentence == "a gave it back at position 44"
    assert "a had given it back 3.0 s before" in log.timeline.entries[3].sentence


def test_a_restart_is_no_takeover() -> None:
    log = Log()
    log.claim("a#1")
    log.claim("a#2", 500)
    assert "need not wait" in log.entry("resumed").sentence


def test_a_lost_race_a_pause_and_messages_claimed_twice() -> None:
    log = Log()
    log.claim("a")
    log.claim("b", version=-1)
    assert "somebody was faster" in log.entry("refused").sentence
    log = Log()
    epoch = log.claim("a")
    for _ in range(2):
        log.write(ClaimingMessages(*log._head("a"), *KEY[1:], epoch, 100))
    assert "nobody is handed them twice" in log.entry("refused").sentence
    paused = log.write(ReleaseGroup(*log._head("ops"), 2_000_000))
    log.write(SetPosition(*log._head("ops"), *KEY[1:], 50, log.version), 11_000)
    assert "set the position to 50 (it was 100)" in log.entry("position_set").sentence
    log.claim("b")
    assert "the group is paused" in log.timeline.entries[-1].sentence
    log.write(ForgetGroup(*log._head("ops"), paused))
    log.write(ResumeGroup(*log._head("ops"), paused))
    assert [e.kind for e in log.timeline.entries][-2:] == ["forgotten", "resumed_group"]
    assert log.timeline.status(log.now).holder is None


def test_the_standing_at_a_moment() -> None:
    log = Log()
    assert "nobody has ever claimed it" in log.timeline.status(log.now).text
    epoch = log.claim("a")
    log.beat("a", epoch, INTERVAL, 10)
    fresh = log.timeline.status(log.now + 4_999)
    assert (fresh.holder, fresh.epoch, fresh.position) == ("a", epoch, 10)
    assert fresh.liveness == "fresh"
    stale = log.timeline.status(log.now + 10_001)
    assert (stale.liveness, stale.silence_ms) == ("stale", 10_001)
    assert "its lease has lapsed" in stale.text
    now = log.timeline.status(log.now + 10_001, now=True)
    assert now.text.startswith("Now a holds orders/7 of g")
    assert "It was last heard of 10 s ago: stale" in now.text
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], epoch, 11), 1_000)
    free = log.timeline.status(log.now + 7_000)
    assert (free.holder, free.epoch, free.position) == (None, epoch, 11)
    assert "a had given it back 7.0 s before" in free.text


def test_a_story_that_begins_in_the_middle_says_so() -> None:
    log = Log()
    epoch = log.claim("a")
    log.beat("a", epoch, INTERVAL, 10)
    middle = CellTimeline(KEY, 3)
    middle.begin(log.state.cells[KEY], paused=False)
    assert middle.status(log.now).holder == "a"
    assert "before the log begins" in middle.status(log.now).text
    log.timeline = middle
    log.claim("b", 60_000)
    assert "is not in the log any more" in log.entry("taken_over").sentence


def test_other_cells_and_groups_are_another_story() -> None:
    log = Log()
    log.write(ClaimingPartition(*log._head("a"), "orders", 8, INTERVAL, -1))
    log.write(ClaimingPartition(2, "a", "i", "other", 1, "orders", 7, INTERVAL, -1))
    assert log.timeline.entries == []


def test_a_heartbeat_that_names_nothing_renews_all_that_its_session_holds() -> None:
    log = Log()
    epoch = log.claim("a")
    for _ in range(3):
        log.beat("a", epoch, INTERVAL)
    log.write(heartbeat("a", 99, instance_id="another"), INTERVAL)
    found = log.timeline.status(log.now)
    assert (found.silence_ms, found.liveness) == (INTERVAL, "unknown"), "another instance renews it"
    log.claim("b", INTERVAL + 1)
    assert "3 heartbeats" in log.entry("held").sentence
    assert log.entry("taken_over").silence_ms == 2 * INTERVAL + 1


def test_a_cell_that_its_user_ended() -> None:
    log = Log()
    epoch = log.claim("a")
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], epoch, 44, 1), 2_000)
    assert log.entry("released").sentence == "a gave it back at position 44, and ended it"
    found = log.timeline.status(log.now + 1_000)
    assert (found.holder, found.epoch, found.position) == (None, None, None)
    assert "a had ended it 1.0 s before" in found.text


def test_who_resumes_a_group_ends_the_pause_that_is_told() -> None:
    log = Log()
    log.claim("a")
    paused = log.write(ReleaseGroup(*log._head("ops"), 2_000_000))
    assert log.timeline.status(log.now).paused
    assert "The group was paused." in log.timeline.status(log.now).text
    log.write(ResumeGroup(*log._head("ops"), paused))
    assert not log.timeline.status(log.now).paused
    assert "paused" not in log.timeline.status(log.now).text


def test_a_member_that_others_forgot_was_not_heard_of_again() -> None:
    """That it was dropped from the members is what somebody else wrote."""
    log = Log()
    log.claim("a#1")
    log.claim("b", 12_000)
    log.now += 1_000
    log.timeline.feed(ev.MemberLeft(99, "a", "1", "g", "expired"), log.now)
    log.timeline.finish()
    assert "a (instance 1) has not been heard of again" in log.entry("taken_over").sentence


def test_nobody_holds_what_an_operator_has_set_or_forgotten() -> None:
    log = Log()
    log.claim("a")
    log.write(ReleaseGroup(*log._head("ops"), 2_000_000))
    log.write(SetPosition(*log._head("ops"), *KEY[1:], 50, log.version), 11_000)
    found = log.timeline.status(log.now)
    assert (found.holder, found.position) == (None, 50)
    log = Log()
    epoch = log.claim("a")
    log.beat("a", epoch, INTERVAL, 10)
    paused = log.write(ReleaseGroup(*log._head("ops"), 2_000_000))
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], epoch, 11))
    log.write(ForgetGroup(*log._head("ops"), paused), 11_000)
    found = log.timeline.status(log.now)
    assert (found.holder, found.epoch, found.position) == (None, None, None)
    assert "ops had the group forgotten" in found.text


def test_refusals_of_another_kind_are_told_apart() -> None:
    log = Log()
    epoch = log.claim("a")
    log.claim("b", 12_000)
    log.claim("a", version=0)
    log.claim("a", version=0)
    log.beat("a", epoch, 100, 7)
    log.claim("a", version=0)
    assert [(e.kind, e.times) for e in log.timeline.entries][-3:] == [
        ("refused", 2),
        ("refused", 1),
        ("refused", 1),
    ]


def test_of_whom_nothing_is_left_in_the_log_it_is_not_said_that_it_lives() -> None:
    log = Log()
    log.claim("a")
    log.timeline = CellTimeline(KEY, 3)
    log.timeline.begin(log.state.cells[KEY], paused=False)
    found = log.timeline.status(log.now)
    assert (found.holder, found.silence_ms, found.liveness) == ("a", None, "unknown")


def test_in_version_1_each_renewal_is_a_word_of_the_holder() -> None:
    timeline = CellTimeline(KEY, 3, has_sessions=False)
    who = ("a", "i", "g", 0, "orders", 7, -1)
    timeline.feed(ev.Claimed(1, *who, INTERVAL, None, None, -1), 1_000)
    for offset, at_ms in ((2, 6_000), (3, 11_000)):
        timeline.feed(ev.Renewed(offset, *who, offset), at_ms)
    found = timeline.status(12_000)
    assert (found.silence_ms, found.liveness, found.position) == (1_000, "fresh", 3)


def test_a_cell_that_was_free_where_the_log_begins() -> None:
    log = Log()
    epoch = log.claim("a")
    log.write(ClaimingMessages(*log._head("a"), *KEY[1:], epoch, 100))
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], epoch, 44))
    middle = CellTimeline(KEY, 3)
    middle.begin(log.state.cells[KEY], paused=True)
    found = middle.status(log.now)
    assert "it was free where the log begins. The group was paused." in found.text
    assert (found.position, found.epoch, found.paused) == (100, epoch, True)
    log.timeline = middle
    log.claim("b")
    assert "it was free where the log begins" in log.entry("claimed").sentence


def test_who_was_heard_at_the_moment_of_the_takeover_is_not_heard_of_again() -> None:
    log = Log()
    epoch = log.claim("a")
    log.beat("a", epoch, 100)
    log.claim("b")
    log.timeline.finish()
    assert "has not been heard of again" in log.entry("taken_over").sentence


def test_who_has_won_again_what_it_lost_does_not_beat_in_vain() -> None:
    log = Log()
    first = log.claim("a")
    log.claim("b", 12_000)
    second = log.claim("a", 12_000)
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], second, 44))
    log.beat("a", first, 100, 7)
    assert "refused" not in [kind for kind, _ in log.told()]


@pytest.mark.parametrize(
    ("silence_ms", "liveness"),
    [(4_999, "fresh"), (5_000, "unknown"), (10_000, "unknown"), (10_001, "stale")],
)
def test_who_may_still_live_is_not_called_dead(silence_ms: int, liveness: str) -> None:
    log = Log()
    log.claim("a")
    found = log.timeline.status(log.now + silence_ms)
    assert found.liveness == liveness
    assert ("its lease has lapsed" in found.text) == (liveness == "stale")


@pytest.mark.parametrize(
    ("silence_ms", "says"), [(9_498, "less than two of its"), (9_499, "over two of its")]
)
def test_a_takeover_is_too_early_by_the_margin_of_clocks(silence_ms: int, says: str) -> None:
    log = Log()
    log.claim("a")
    log.claim("b", silence_ms)
    assert says in log.entry("taken_over").sentence


@pytest.mark.parametrize(("gap_ms", "is_told"), [(10_000, False), (10_001, True)])
def test_a_claim_is_summed_up(gap_ms: int, is_told: bool) -> None:
    log = Log()
    log.write(ReleasingPartition(*log._head("z"), *KEY[1:], log.claim("z"), 7))
    epoch = log.claim("a")
    log.beat("a", epoch, 1_000, 10)
    log.beat("a", epoch, gap_ms, 30)
    log.write(ClaimingMessages(*log._head("a"), *KEY[1:], epoch, 100), 2_000)
    found = log.timeline.status(log.now + 1_000)
    assert (found.silence_ms, found.position) == (1_000, 100), "a claim of messages is a word, too"
    log.write(ReleasingPartition(*log._head("a"), *KEY[1:], epoch, 40))
    held = [e for e in log.timeline.entries if e.kind == "held"][-1].sentence
    assert "2 heartbeats" in held
    assert "1 batches claimed at most once; position 7 → 100; last heard of" in held
    assert ("once silent for 10 s" in held) == is_told


def test_who_claims_again_what_it_holds() -> None:
    log = Log()
    log.claim("a#1")
    log.claim("a#1")
    assert "it claimed again what it held" in log.entry("resumed").sentence


def test_a_group_that_was_forgotten_is_so_since_then() -> None:
    log = Log()
    paused = log.write(ReleaseGroup(*log._head("ops"), 2_000_000))
    log.write(SetPosition(*log._head("ops"), *KEY[1:], 50, log.version), 1_000)
    log.write(ForgetGroup(*log._head("ops"), paused), 11_000)
    found = log.timeline.status(log.now + 3_000)
    assert "ops had the group forgotten 3.0 s before" in found.text
    assert found.since_ms == log.now


def test_the_latest_time_is_that_of_no_slower_clock() -> None:
    log = Log()
    log.claim("a")
    log.claim("b", 60_000)
    latest = log.now
    log.beat("b", 1, -5_000)
    assert log.timeline.latest_ms == latest

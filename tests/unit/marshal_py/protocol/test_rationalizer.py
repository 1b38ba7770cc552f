"""The transition table, row by row, with states and events written by hand (PROTOCOL.md §4)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.rationalizer import (
    MEMBER_HORIZON,
    SWEEP_EVERY,
    Cell,
    Member,
    PartitionState,
    apply,
)
from tests.support.spec import spec

KEY = ("g", "t", 0)
Sender: TypeAlias = tuple[str, str, str, int]
A = ("a", "a1", "g", 1)
"""client_id, instance_id, group_id and seq of the usual sender."""
B = ("b", "b1", "g", 2)
OPERATOR = ("o", "o1", "g", 3)


class Log:
    """A state and the log that leads to it."""

    def __init__(self, *records: m.Message) -> None:
        self.state = PartitionState(0)
        for record in records:
            self.add(record)

    def add(self, record: m.Message | bytes | None, at: int | None = None) -> list[ev.Event]:
        """Append a record, here or further on, and return what happened."""
        value = record if isinstance(record, bytes) or record is None else m.encode(record)
        offset = self.state.next_offset if at is None else at
        events: list[ev.Event] = []
        apply(self.state, offset, value, events)
        return events

    def rejects(self, record: m.Message, reason: str) -> ev.Rejected:
        """Append a record that must be rejected and must change nothing."""
        before = self.state.encode()
        position = self.state.next_offset
        events = self.add(record)
        rejected = events[-1]
        assert isinstance(rejected, ev.Rejected)
        assert rejected.reason == reason
        assert rejected.offset == position
        assert rejected.record == type(record).__name__
        sent = (record.client_id, record.instance_id, record.group_id, record.seq)
        assert (rejected.client_id, rejected.instance_id, rejected.group_id, rejected.seq) == sent
        assert self.state.next_offset == position + 1
        self.state.next_offset = position
        assert self.state.encode() == before
        self.state.next_offset = position + 1
        return rejected

    @property
    def cell(self) -> Cell:
        return self.state.cells[KEY]


def claim(sender: Sender = A, expected_version: int = -1, interval_ms: int = 1000) -> m.Message:
    return m.ClaimingPartition(2, *sender, "t", 0, interval_ms, expected_version)


def entry(epoch: int, next_offset: int = -1, metadata: bytes = b"") -> m.Entry:
    return m.Entry("t", 0, epoch, next_offset, metadata)


def beat(*entries: m.Entry, sender: Sender = A) -> m.Heartbeat:
    return m.Heartbeat(2, *sender, list(entries))


def member(sender: Sender = A, interval_ms: int = 1000, metadata: bytes = b"") -> m.Heartbeat:
    return m.Heartbeat(2, *sender, [], 1, interval_ms, metadata)


def leave(sender: Sender = A) -> m.Heartbeat:
    return m.Heartbeat(2, *sender, [], 2, 1000)


def release(epoch: int, next_offset: int = -1, sender: Sender = A) -> m.Message:
    return m.ReleasingPartition(2, *sender, "t", 0, epoch, next_offset)


def messages(epoch: int, proposed_offset: int, sender: Sender = A) -> m.Message:
    return m.ClaimingMessages(2, *sender, "t", 0, epoch, proposed_offset)


def pause(sender: Sender = OPERATOR, expires_at_ms: int = 99) -> m.Message:
    return m.ReleaseGroup(2, *sender, expires_at_ms)


def resume() -> m.Message:
    return m.ResumeGroup(2, *OPERATOR)


def position(next_offset: int, expected_version: int) -> m.Message:
    return m.SetPosition(2, *OPERATOR, "t", 0, next_offset, expected_version)


def forget() -> m.Message:
    return m.ForgetGroup(2, *OPERATOR)


# ------------------------------------------------------------------ ClaimingPartition


@spec("F-20", "F-21")
def test_a_claim_of_an_untouched_cell_makes_it() -> None:
    log = Log()
    assert log.add(claim(), at=5) == [
        ev.Claimed(5, *A, "t", 0, 5, 1000, None, None, -1),
    ]
    assert log.state.cells == {KEY: Cell("a", "a1", 5, 5, 1000, -1, -1, b"")}


@spec("F-21")
def test_a_takeover_keeps_offsets_and_metadata() -> None:
    log = Log(claim(), beat(entry(0, 40, b"x")), messages(0, 55))
    assert log.cell == Cell("a", "a1", 0, 2, 1000, 40, 55, b"x")
    assert log.add(claim(B, 2, 500)) == [ev.Claimed(3, *B, "t", 0, 3, 500, "a", "a1", 0)]
    assert log.cell == Cell("b", "b1", 3, 3, 500, 40, 55, b"x")


@spec("F-20")
@pytest.mark.parametrize("expected_version", [-1, 0, 2, 99])
def test_a_claim_with_another_version_is_stale(expected_version: int) -> None:
    log = Log(claim(), beat(entry(0)))
    rejected = log.rejects(claim(B, expected_version), "stale_version")
    assert (rejected.topic, rejected.partition) == ("t", 0)
    assert (rejected.epoch, rejected.version, rejected.holder) == (0, 1, "a")


@spec("F-20", "F-16")
def test_a_claim_of_an_untouched_cell_with_a_version_is_stale() -> None:
    rejected = Log().rejects(claim(A, 0), "stale_version")
    assert (rejected.epoch, rejected.version, rejected.holder) == (-1, -1, None)


@spec("F-20")
def test_a_paused_group_takes_no_claims_and_that_is_checked_first() -> None:
    log = Log(claim(), pause())
    for version in (-1, 0, 7):
        log.rejects(claim(B, version), "group_paused")
    other = ("c", "c1", "other", 1)
    assert [type(e) for e in log.add(claim(other))] == [ev.Claimed]


@spec("F-21")
def test_a_released_cell_is_claimed_with_its_new_version() -> None:
    log = Log(claim(), release(0))
    assert log.add(claim(B, 1)) == [ev.Claimed(2, *B, "t", 0, 2, 1000, None, None, 0)]


# ------------------------------------------------------------------ Heartbeat


@spec("F-14", "F-23")
def test_a_heartbeat_renews() -> None:
    log = Log(claim())
    assert log.add(beat(entry(0, 7, b"x"))) == [
        ev.Beat(1, *A, 1, 0),
        ev.Renewed(1, *A, "t", 0, 0, 7),
    ]
    assert log.cell == Cell("a", "a1", 0, 1, 1000, 7, -1, b"x")


@spec("F-23")
def test_next_offset_never_goes_back_by_a_heartbeat() -> None:
    log = Log(claim(), beat(entry(0, 7, b"x")))
    assert log.add(beat(entry(0, 3))) == [ev.Beat(2, *A, 1, 0), ev.Renewed(2, *A, "t", 0, 0, 7)]
    assert log.cell == Cell("a", "a1", 0, 2, 1000, 7, -1, b"")


@spec("F-22")
def test_a_heartbeat_needs_a_holder_and_its_epoch() -> None:
    log = Log()
    log.rejects(beat(entry(0)), "not_held")
    log.add(claim())
    log.rejects(beat(entry(0)), "wrong_epoch")
    log.rejects(beat(entry(2)), "wrong_epoch")
    log.add(release(1))
    log.rejects(beat(entry(1)), "not_held")
    log.rejects(beat(entry(0)), "not_held")


@spec("F-24")
def test_entries_are_judged_one_by_one() -> None:
    log = Log(claim(), m.ClaimingPartition(2, *B, "t", 1, 1000, -1))
    events = log.add(
        beat(entry(0, 5), m.Entry("t", 1, 0, 6), m.Entry("t", 2, 0, 7), entry(0, 8, b"x"))
    )
    assert events == [
        ev.Beat(2, *A, 4, 0),
        ev.Renewed(2, *A, "t", 0, 0, 5),
        ev.Rejected(2, *A, "Heartbeat", "wrong_epoch", "t", 1, 1, 1, "b"),
        ev.Rejected(2, *A, "Heartbeat", "not_held", "t", 2, -1, -1, None),
        ev.Renewed(2, *A, "t", 0, 0, 8),
    ]
    assert log.cell == Cell("a", "a1", 0, 2, 1000, 8, -1, b"x")
    assert log.state.cells["g", "t", 1] == Cell("b", "b1", 1, 1, 1000)


@spec("F-37")
def test_the_epoch_alone_says_whose_claim_it_is() -> None:
    log = Log(claim())
    for record in (beat(entry(0, 3), sender=B), messages(0, 4, B)):
        log.add(record)
        assert log.cell.holder == "a"
    assert (log.cell.next_offset, log.cell.claimed_offset) == (3, 4)
    log.add(release(0, 9, B))
    assert log.cell == Cell(None, None, 0, 3, 1000, 9, 4)


@spec("F-22", "F-27", "F-29")
def test_a_paused_group_still_renews_releases_and_claims_messages() -> None:
    log = Log(claim(), pause())
    assert type(log.add(beat(entry(0, 1)))[1]) is ev.Renewed
    assert type(log.add(messages(0, 1))[0]) is ev.MessagesClaimed
    assert type(log.add(release(0, 1))[0]) is ev.Released


# ------------------------------------------------------------------ membership


@spec("F-25")
def test_a_member_joins_once() -> None:
    log = Log()
    assert log.add(member(metadata=b"m")) == [ev.Beat(0, *A, 0, 1), ev.MemberJoined(0, *A, 1000)]
    assert log.state.members == {("g", "a"): Member("a1", 0, 1000, b"m")}
    assert log.add(member(interval_ms=500)) == [ev.Beat(1, *A, 0, 1)]
    assert log.state.members == {("g", "a"): Member("a1", 1, 500, b"")}


@spec("F-25")
def test_a_new_instance_joins_in_the_place_of_the_old() -> None:
    log = Log(member())
    new = ("a", "a2", "g", 9)
    assert log.add(member(new)) == [ev.Beat(1, *new, 0, 1), ev.MemberJoined(1, *new, 1000)]
    assert log.state.members == {("g", "a"): Member("a2", 1, 1000, b"")}


@spec("F-26")
def test_only_the_known_instance_leaves() -> None:
    log = Log(member())
    stranger = ("a", "a2", "g", 9)
    assert log.add(leave(stranger)) == [ev.Beat(1, *stranger, 0, 2)]
    assert log.add(leave(B)) == [ev.Beat(2, *B, 0, 2)]
    assert set(log.state.members) == {("g", "a")}
    assert log.add(leave()) == [ev.Beat(3, *A, 0, 2), ev.MemberLeft(3, "a", "a1", "g", "left")]
    assert log.state.members == {}


@spec("F-14")
def test_membership_comes_after_the_entries() -> None:
    log = Log(claim())
    record = m.Heartbeat(2, *A, [entry(0)], 1, 1000)
    assert [type(e) for e in log.add(record)] == [ev.Beat, ev.Renewed, ev.MemberJoined]
    record = m.Heartbeat(2, *A, [entry(5)], 2, 1000)
    assert [type(e) for e in log.add(record)] == [ev.Beat, ev.Rejected, ev.MemberLeft]


@spec("F-26")
def test_a_heartbeat_that_says_nothing_of_membership_changes_none() -> None:
    log = Log(member())
    assert log.add(beat()) == [ev.Beat(1, *A, 0, 0)]
    assert log.state.members == {("g", "a"): Member("a1", 0, 1000, b"")}


# ------------------------------------------------------------------ ReleasingPartition


@spec("F-28")
def test_a_release_frees_the_cell() -> None:
    log = Log(claim(), beat(entry(0, 7, b"x")))
    assert log.add(release(0, 9)) == [ev.Released(2, *A, "t", 0, 0, 9)]
    assert log.cell == Cell(None, None, 0, 2, 1000, 9, -1, b"x")


@spec("F-28")
def test_next_offset_never_goes_back_by_a_release() -> None:
    log = Log(claim(), beat(entry(0, 7)))
    assert log.add(release(0, 3)) == [ev.Released(2, *A, "t", 0, 0, 7)]
    assert log.cell.next_offset == 7


@spec("F-27")
def test_a_release_needs_a_holder_and_its_epoch() -> None:
    log = Log()
    log.rejects(release(0), "not_held")
    log.add(claim())
    log.rejects(release(0), "wrong_epoch")
    log.add(release(1))
    log.rejects(release(1), "not_held")


# ------------------------------------------------------------------ ClaimingMessages


@spec("F-30")
def test_messages_are_claimed_in_ranges_that_follow_each_other() -> None:
    log = Log(claim(), beat(entry(0, 3)))
    assert log.add(messages(0, 0)) == [ev.MessagesClaimed(2, *A, "t", 0, 0, -1, 0)]
    assert log.add(messages(0, 10)) == [ev.MessagesClaimed(3, *A, "t", 0, 0, 0, 10)]
    assert log.cell == Cell("a", "a1", 0, 3, 1000, 3, 10, b"")


@spec("F-29")
@pytest.mark.parametrize("proposed_offset", [0, 9, 10])
def test_messages_are_never_claimed_twice(proposed_offset: int) -> None:
    log = Log(claim(), messages(0, 10))
    log.rejects(messages(0, proposed_offset), "offset_not_ahead")


@spec("F-29")
def test_a_messages_claim_needs_a_holder_and_its_epoch_first() -> None:
    log = Log()
    log.rejects(messages(0, 1), "not_held")
    log.add(claim())
    log.add(messages(1, 10))
    log.rejects(messages(0, 5), "wrong_epoch")
    log.rejects(messages(0, 50), "wrong_epoch")
    log.add(release(1))
    log.rejects(messages(1, 50), "not_held")


@spec("F-29")
def test_of_two_holders_only_the_later_has_its_messages() -> None:
    log = Log(claim(), messages(0, 10), claim(B, 1))
    log.rejects(messages(0, 20), "wrong_epoch")
    assert log.add(messages(2, 20, B)) == [ev.MessagesClaimed(4, *B, "t", 0, 2, 10, 20)]


# ------------------------------------------------------------------ groups


@spec("F-31")
def test_a_pause_is_always_accepted_and_touches_no_cell() -> None:
    log = Log(claim())
    assert log.add(pause(expires_at_ms=5)) == [ev.GroupPaused(1, *OPERATOR, 5)]
    assert log.add(pause(expires_at_ms=3)) == [ev.GroupPaused(2, *OPERATOR, 3)]
    assert log.state.paused == {"g": 3}
    assert log.cell == Cell("a", "a1", 0, 0, 1000)


@spec("F-32")
def test_a_resume_ends_the_pause() -> None:
    log = Log()
    rejected = log.rejects(resume(), "not_paused")
    assert (rejected.topic, rejected.partition, rejected.holder) == (None, None, None)
    assert (rejected.epoch, rejected.version) == (-1, -1)
    log.add(pause())
    assert log.add(resume()) == [ev.GroupResumed(2, *OPERATOR)]
    assert log.state.paused == {}
    log.rejects(resume(), "not_paused")


@spec("F-32")
def test_a_pause_that_expires_at_zero_is_a_pause() -> None:
    log = Log(pause(expires_at_ms=0))
    log.rejects(claim(), "group_paused")
    assert type(log.add(resume())[0]) is ev.GroupResumed


@spec("F-34")
def test_a_position_is_set_even_back_and_the_holder_is_out() -> None:
    log = Log(claim(), beat(entry(0, 500, b"x")), messages(0, 600), pause())
    assert log.add(position(100, 2)) == [ev.PositionSet(4, *OPERATOR, "t", 0, 100)]
    assert log.cell == Cell(None, None, 0, 4, 1000, 100, 100, b"")
    log.rejects(beat(entry(0, 700)), "not_held")


@spec("F-34")
def test_a_position_of_an_untouched_cell_makes_it() -> None:
    log = Log(pause())
    assert log.add(position(0, -1)) == [ev.PositionSet(1, *OPERATOR, "t", 0, 0)]
    assert log.state.cells == {KEY: Cell(None, None, -1, 1, 0, 0, 0, b"")}


@spec("F-33")
def test_a_holder_sets_its_own_position_without_a_pause() -> None:
    log = Log(claim(), beat(entry(0, 500, b"x")), messages(0, 600))
    mine = m.SetPosition(2, *A, "t", 0, 100, 2)
    for stranger in (B, ("a", "a2", *A[2:]), ("b", "a1", *A[2:])):
        log.rejects(m.SetPosition(2, *stranger, "t", 0, 100, log.cell.version), "not_paused")
    log.rejects(m.SetPosition(2, *A, "t", 0, 100, 1), "stale_version")
    offset = log.state.next_offset
    assert log.add(mine) == [ev.PositionSet(offset, *A, "t", 0, 100)]
    assert log.cell == Cell(None, None, 0, offset, 1000, 100, 100, b"")


@spec("F-33")
def test_a_position_needs_a_pause_and_then_the_version() -> None:
    log = Log()
    log.rejects(position(5, -1), "not_paused")
    log.add(claim())
    rejected = log.rejects(position(5, 1), "not_paused")
    assert (rejected.topic, rejected.partition, rejected.holder) == ("t", 0, "a")
    log.add(pause())
    log.rejects(position(5, -1), "stale_version")
    log.rejects(position(5, 9), "stale_version")


@spec("F-36")
def test_a_forgotten_group_leaves_only_its_pause() -> None:
    other = ("c", "c1", "other", 7)
    log = Log(claim(), claim(other), member(), member(other), release(0), pause())
    assert log.add(forget()) == [ev.GroupForgotten(6, *OPERATOR, 1)]
    assert set(log.state.cells) == {("other", "t", 0)}
    assert set(log.state.members) == {("other", "c")}
    assert log.state.paused == {"g": 99}
    log.add(resume())
    events = log.add(claim())
    assert events == [ev.Claimed(8, *A, "t", 0, 8, 1000, None, None, -1)]


@spec("F-35")
def test_to_forget_needs_a_pause_and_then_no_holder() -> None:
    log = Log()
    rejected = log.rejects(forget(), "not_paused")
    assert (rejected.topic, rejected.partition, rejected.holder) == (None, None, None)
    log.add(claim())
    log.rejects(forget(), "not_paused")
    log.add(pause())
    rejected = log.rejects(forget(), "still_held")
    assert (rejected.topic, rejected.holder, rejected.epoch) == (None, None, -1)
    log.add(release(1))
    assert log.add(forget()) == [ev.GroupForgotten(6, *OPERATOR, 1)]
    assert log.add(forget()) == [ev.GroupForgotten(7, *OPERATOR, 0)]


# ------------------------------------------------------------------ foreign records, position


@spec("F-2", "F-3", "F-10")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "undecodable"),
        (b"", "undecodable"),
        (b"\xc1", "undecodable"),
        (b"\x92\x01\x03", "unknown_version"),
        (b"\x92\x09\x02", "unknown_type"),
    ],
)
def test_foreign_records_are_reported_and_skipped(value: bytes | None, why: Any) -> None:
    log = Log(claim())
    before = log.state.cells[KEY]
    assert log.add(value) == [ev.Ignored(1, why)]
    assert log.state.next_offset == 2
    assert log.state.cells == {KEY: before}


def test_a_record_with_more_than_this_version_knows_counts_as_one_without() -> None:
    log, plain = Log(), Log(claim())
    array = msgspec.msgpack.decode(m.encode(claim()))
    log.add(msgspec.msgpack.encode([*array, "of a later version"]))
    assert log.state.encode() == plain.state.encode()


@spec("F-6")
@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("record", [None, b"junk", release(4), claim(B, 4)], ids=str)
def test_a_repeated_offset_changes_nothing(at: int, record: Any) -> None:
    log = Log()
    log.add(claim(), at=4)
    before = log.state.encode()
    assert log.add(record, at=at) == [ev.Ignored(at, "offset_repeated")]
    assert log.state.encode() == before
    assert apply(log.state, at, b"junk"), "nor does it where nobody is told"
    assert log.state.encode() == before


@spec("F-7", "F-8")
def test_offsets_may_have_gaps() -> None:
    log = Log()
    log.add(claim(), at=7)
    assert log.state.next_offset == 8
    log.add(b"junk", at=20)
    assert log.state.next_offset == 21
    log.add(claim(B, 7), at=1000)
    assert log.cell == Cell("b", "b1", 1000, 1000, 1000)
    assert log.state.next_offset == 1001


@spec("F-9")
def test_a_new_holder_starts_at_the_larger_offset() -> None:
    assert Cell().position == -1
    assert Cell(next_offset=5).position == 5
    assert Cell(next_offset=5, claimed_offset=9).position == 9
    assert Cell(next_offset=9, claimed_offset=5).position == 9


@spec("F-1", "T-5")
def test_the_fold_sees_offset_and_value_only() -> None:
    assert list(inspect.signature(apply).parameters) == ["state", "offset", "value", "events"]


@spec("F-1")
@pytest.mark.parametrize(
    "change",
    [
        claim(),
        beat(entry(0)),
        beat(entry(9)),
        member(),
        leave(),
        release(0),
        release(9),
        messages(0, 5),
        messages(0, 0),
        messages(9, 5),
        pause(),
        resume(),
        position(1, 1),
        position(1, 9),
        forget(),
        None,
    ],
    ids=str,
)
def test_without_events_the_state_is_the_same(change: Any) -> None:
    for start in ([claim(), messages(0, 0)], [claim(), release(0), pause()], [member()], []):
        told, silent = Log(*start), Log(*start)
        value = None if change is None else m.encode(change)
        apply(told.state, told.state.next_offset, value, [])
        apply(silent.state, silent.state.next_offset, value)
        assert told.state.encode() == silent.state.encode()


# ------------------------------------------------------------------ the sweep


@spec("F-50")
def test_a_silent_member_is_swept() -> None:
    assert (SWEEP_EVERY, MEMBER_HORIZON) == (4096, 65_536)
    log = Log()
    log.add(member(), at=4095)
    log.add(member(B), at=4096)
    assert log.add(b"", at=69_631) == [ev.Ignored(69_631, "undecodable")]
    assert log.add(b"", at=69_632) == [
        ev.MemberLeft(69_632, "a", "a1", "g", "expired"),
        ev.Ignored(69_632, "undecodable"),
    ]
    assert set(log.state.members) == {("g", "b")}


@spec("F-50")
@pytest.mark.parametrize("at", [69_633, 70_000, 73_727])
def test_the_sweep_comes_with_the_first_record_beyond_the_boundary(at: int) -> None:
    log = Log()
    log.add(member(), at=1)
    log.add(b"", at=69_631 - 4096)
    events = log.add(b"", at=at)
    assert isinstance(events[0], ev.MemberLeft)
    assert events[0].offset == at


@spec("F-51")
def test_there_is_no_sweep_between_boundaries() -> None:
    log = Log()
    log.add(member(), at=0)
    log.add(b"", at=65_536)
    for at in (65_537, 69_631):
        assert log.add(b"", at=at) == [ev.Ignored(at, "undecodable")]
    assert isinstance(log.add(b"", at=69_632)[0], ev.MemberLeft)


@spec("F-52")
def test_the_swept_leave_in_the_order_of_group_and_client() -> None:
    senders = [("b", "i", "g", 1), ("a", "i", "g", 1), ("z", "i", "f", 1), ("a", "i", "f", 1)]
    log = Log(*(member(sender) for sender in senders))
    events = log.add(b"", at=100_000)
    left = [(e.group_id, e.client_id) for e in events if isinstance(e, ev.MemberLeft)]
    assert left == [("f", "a"), ("f", "z"), ("g", "a"), ("g", "b")]


@spec("F-52")
def test_the_sweep_comes_before_the_record_that_caused_it() -> None:
    log = Log(claim(), member())
    events = log.add(member(), at=100_000)
    assert [type(e) for e in events] == [ev.MemberLeft, ev.Beat, ev.MemberJoined]
    assert log.state.members == {("g", "a"): Member("a1", 100_000, 1000, b"")}


@spec("F-53")
def test_the_sweep_touches_no_claim_and_no_pause() -> None:
    log = Log(claim(), member(), pause())
    log.add(b"", at=10_000_000)
    assert log.state.members == {}
    assert log.cell == Cell("a", "a1", 0, 0, 1000)
    assert log.state.paused == {"g": 99}


@spec("F-54")
def test_members_cannot_be_more_than_the_horizon_and_one_sweep() -> None:
    log = Log()
    for number in range(74_000):
        sender = (f"client-{number}", "i", "g", 1)
        apply(log.state, number, m._encoder.encode(member(sender)))
        if number % 1000 == 999 or number % 4096 in (0, 4095):
            assert len(log.state.members) <= 65_536 + 4_096
    assert len(log.state.members) < 74_000


# ------------------------------------------------------------------ canonical states


def everything() -> Log:
    """A state with something in every part."""
    other = ("c", "c1", "other", 7)
    return Log(claim(), beat(entry(0, 7, b"x")), claim(other), member(), member(other), pause())


@spec("S-1")
def test_the_canonical_bytes() -> None:
    log = Log(claim(), member(), pause(expires_at_ms=5))
    assert msgspec.msgpack.decode(log.state.encode()) == [
        0,
        3,
        [[["g", "t", 0], ["a", "a1", 0, 0, 1000, -1, -1, b""]]],
        [[["g", "a"], ["a1", 1, 1000, b""]]],
        [["g", 5]],
    ]


@spec("S-1")
def test_the_order_of_events_does_not_show_in_the_canonical_bytes() -> None:
    def log(order: Callable[[list[str]], list[str]]) -> Log:
        log = Log()
        for at, name in enumerate(order(["x", "y"])):
            sender = (name, "i", name, 1)
            log.add(claim(sender), at=100 * at)
            log.add(member(sender), at=100 * at + 1)
            log.add(pause(sender), at=100 * at + 2)
        for cell in log.state.cells.values():
            cell.epoch = cell.version = 0
        for known in log.state.members.values():
            known.version = 0
        return log

    straight, turned = log(list), log(lambda names: names[::-1])
    assert list(straight.state.cells) != list(turned.state.cells)
    assert straight.state.encode() == turned.state.encode()


@spec("S-2")
def test_the_digest_differs_where_states_differ() -> None:
    log = everything()
    digest = log.state.digest()
    assert len(digest) == 16
    log.state.next_offset += 1
    assert log.state.digest() != digest


@spec("F-5")
def test_a_state_comes_back_from_its_bytes() -> None:
    state = everything().state
    again = PartitionState.decode(state.encode())
    assert again.encode() == state.encode()
    assert (again.partition, again.next_offset) == (state.partition, state.next_offset)
    assert (again.cells, again.members, again.paused) == (
        state.cells,
        state.members,
        state.paused,
    )


@pytest.mark.parametrize("data", [b"", b"\x90", b"\xc0", b"\x95\x00\x00\x90\x90"])
def test_other_bytes_are_no_state(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        PartitionState.decode(data)

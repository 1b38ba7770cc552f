"""The transition table, row by row, with states and events written by hand (PROTOCOL.md §4)."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.rationalizer import (
    BOUNDARY,
    MEMBER_HORIZON,
    Cell,
    PartitionState,
    Pause,
    Session,
    apply,
)
from tests.support.spec import spec

KEY = ("g", "t", 0)
UNIT = ("t", 0)
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


def beat(*positions: int, sender: Sender = A, metadata: dict[int, bytes] | None = None) -> Any:
    """A heartbeat that says pairs of (where the claim was made, next_offset), and metadata."""
    said = [m.MetadataEntry(*item) for item in (metadata or {}).items()]
    return m.Heartbeat(2, *sender, 1000, 0, list(positions), said)


def member(
    sender: Sender = A,
    interval_ms: int = 1000,
    metadata: bytes | None = None,
    levels: tuple[int, int] = (1, 1),
) -> m.Heartbeat:
    return m.Heartbeat(2, *sender, interval_ms, 1, [], [], metadata, *levels)


def leave(sender: Sender = A) -> m.Heartbeat:
    return m.Heartbeat(2, *sender, 1000, 2)


def release(epoch: int, next_offset: int = -1, sender: Sender = A, ends: bool = False) -> Any:
    return m.ReleasingPartition(2, *sender, "t", 0, epoch, next_offset, 1 if ends else 0)


def messages(epoch: int, proposed_offset: int, sender: Sender = A) -> m.Message:
    return m.ClaimingMessages(2, *sender, "t", 0, epoch, proposed_offset)


def pause(sender: Sender = OPERATOR, expires_at_ms: int = 99) -> m.Message:
    return m.ReleaseGroup(2, *sender, expires_at_ms)


def resume(expected_version: int) -> m.Message:
    return m.ResumeGroup(2, *OPERATOR, expected_version)


def position(next_offset: int, expected_version: int) -> m.Message:
    return m.SetPosition(2, *OPERATOR, "t", 0, next_offset, expected_version)


def forget(expected_version: int) -> m.Message:
    return m.ForgetGroup(2, *OPERATOR, expected_version)


def genesis(identity: str, previous: str, base: int, partitions: int = 8) -> m.Message:
    return m.Genesis(2, *OPERATOR, identity, previous, base, partitions, 0)


def set_level(level: int, expected_level: int) -> m.Message:
    return m.SetLevel(2, *OPERATOR, level, expected_level)


# ------------------------------------------------------------------ ClaimingPartition


@spec("F-20", "F-21")
def test_a_claim_of_an_untouched_cell_makes_it() -> None:
    log = Log()
    assert log.add(claim(), at=5) == [
        ev.Claimed(5, *A, "t", 0, 5, 1000, None, None, -1),
    ]
    assert log.state.cells == {KEY: Cell(UNIT, "a", "a1", 5, 5, 1000, -1, -1, b"")}


@spec("F-21")
def test_a_takeover_keeps_offsets_and_metadata() -> None:
    log = Log(claim(), beat(0, 40, metadata={0: b"x"}), messages(0, 55))
    assert log.cell == Cell(UNIT, "a", "a1", 0, 2, 1000, 40, 55, b"x")
    assert log.add(claim(B, 2, 500)) == [ev.Claimed(3, *B, "t", 0, 3, 500, "a", "a1", 0)]
    assert log.cell == Cell(UNIT, "b", "b1", 3, 3, 500, 40, 55, b"x")


@spec("F-20")
@pytest.mark.parametrize("expected_version", [-1, 0, 2, 99])
def test_a_claim_with_another_version_is_stale(expected_version: int) -> None:
    log = Log(claim(), beat())
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


@spec("F-14", "F-23", "F-61", "F-63")
def test_a_heartbeat_renews_all_that_its_session_holds() -> None:
    log = Log(claim(), m.ClaimingPartition(2, *A, "t", 1, 1000, -1))
    assert log.add(beat(0, 7, metadata={0: b"x"})) == [
        ev.Beat(2, *A, 2, 2, 0),
        ev.Renewed(2, *A, "t", 0, 0, 7),
        ev.Renewed(2, *A, "t", 0, 0, 7),
    ]
    assert log.cell == Cell(UNIT, "a", "a1", 0, 0, 1000, 7, -1, b"x")
    assert [log.state.version("g", "t", n) for n in range(3)] == [2, 2, -1]


@spec("F-61")
def test_the_version_of_a_cell_that_nobody_holds_is_its_own() -> None:
    log = Log(claim(), m.ClaimingPartition(2, *A, "t", 1, 1000, -1), release(0), beat())
    assert [log.state.version("g", "t", n) for n in range(2)] == [2, 3]
    log.add(m.ClaimingPartition(2, *B, "t", 1, 1000, 3))
    log.add(beat())
    assert [log.state.version("g", "t", n) for n in range(2)] == [2, 4]


@spec("F-23")
def test_next_offset_never_goes_back_by_a_heartbeat() -> None:
    log = Log(claim(), beat(0, 7))
    assert log.add(beat(0, 3)) == [ev.Beat(2, *A, 1, 1, 0), ev.Renewed(2, *A, "t", 0, 0, 7)]
    assert log.cell.next_offset == 7


@spec("F-22")
def test_what_is_said_of_a_claim_needs_the_session_that_holds_it() -> None:
    log = Log()
    for record in (beat(0, 5), beat(metadata={0: b"x"})):
        log.rejects(record, "not_held")
    log.add(claim())
    for at in (0, 3):
        rejected = log.rejects(beat(at, 5, sender=B), "not_held")
        assert (rejected.topic, rejected.partition, rejected.epoch) == (None, None, -1)
    log.add(release(2))
    log.rejects(beat(2, 5), "not_held")


@spec("F-63")
def test_a_heartbeat_of_who_holds_nothing_and_is_no_member_leaves_nothing() -> None:
    log = Log()
    assert log.add(beat()) == [ev.Beat(0, *A, 0, 0, 0)]
    assert log.add(leave()) == [ev.Beat(1, *A, 0, 0, 2)]
    assert log.state.groups == {}


@spec("F-24")
def test_what_a_heartbeat_says_is_judged_one_by_one() -> None:
    log = Log(claim(), m.ClaimingPartition(2, *B, "t", 1, 1000, -1))
    events = log.add(beat(0, 5, 1, 6, 9, 7, 0, 8, 99, metadata={1: b"y", 0: b"x"}))
    refused = ev.Rejected(2, *A, "Heartbeat", "not_held", None, None, -1, -1, None)
    assert events == [
        ev.Beat(2, *A, 1, 6, 0),
        ev.Renewed(2, *A, "t", 0, 0, 5),
        refused,
        refused,
        ev.Renewed(2, *A, "t", 0, 0, 8),
        refused,
        ev.Renewed(2, *A, "t", 0, 0, 8),
    ]
    assert log.cell == Cell(UNIT, "a", "a1", 0, 0, 1000, 8, -1, b"x")
    assert log.state.cells["g", "t", 1] == Cell(("t", 1), "b", "b1", 1, 1, 1000)


@spec("F-37")
def test_the_epoch_alone_says_whose_claim_is_released_or_claims_messages() -> None:
    log = Log(claim())
    log.add(messages(0, 4, B))
    assert (log.cell.holder, log.cell.claimed_offset) == ("a", 4)
    log.add(release(0, 9, B))
    assert log.cell == Cell(UNIT, None, None, 0, 2, 1000, 9, 4)
    log.add(claim(B, 2))
    log.rejects(messages(0, 12), "wrong_epoch")
    log.rejects(release(0, 12), "wrong_epoch")
    log.rejects(messages(0, 12, B), "wrong_epoch")
    log.rejects(release(0, 12, B), "wrong_epoch")
    assert log.cell == Cell(UNIT, "b", "b1", 3, 3, 1000, 9, 4)


@spec("F-22", "F-27", "F-29")
def test_a_paused_group_still_renews_releases_and_claims_messages() -> None:
    log = Log(claim(), pause())
    assert type(log.add(beat(0, 1))[1]) is ev.Renewed
    assert log.state.version("g", "t", 0) == 2
    assert type(log.add(messages(0, 1))[0]) is ev.MessagesClaimed
    assert type(log.add(release(0, 1))[0]) is ev.Released


# ------------------------------------------------------------------ sessions and membership


def session(
    instance_id: str,
    version: int,
    metadata: bytes = b"",
    member: int = 1,
    interval_ms: int = 1000,
    **rest: Any,
) -> Session:
    return Session(instance_id, version, interval_ms, metadata, member, **rest)


@spec("F-25")
def test_a_member_joins_once() -> None:
    log = Log()
    assert log.add(member(metadata=b"m")) == [
        ev.Beat(0, *A, 0, 0, 1),
        ev.MemberJoined(0, *A, 1000),
    ]
    assert log.state.members == {("g", "a"): session("a1", 0, b"m")}
    assert log.add(member(interval_ms=500)) == [ev.Beat(1, *A, 0, 0, 1)]
    assert log.state.members == {("g", "a"): session("a1", 1, b"m", interval_ms=500)}
    log.add(member(metadata=b""))
    assert log.state.members == {("g", "a"): session("a1", 2)}


@spec("F-25", "F-60")
def test_a_new_instance_joins_in_the_place_of_the_old() -> None:
    log = Log(member())
    new = ("a", "a2", "g", 9)
    assert log.add(member(new)) == [ev.Beat(1, *new, 0, 0, 1), ev.MemberJoined(1, *new, 1000)]
    assert log.state.members == {("g", "a"): session("a2", 1)}
    assert list(log.state.groups["g"].sessions) == [("a", "a2")]


@spec("F-26")
def test_only_the_known_instance_leaves() -> None:
    log = Log(member())
    stranger = ("a", "a2", "g", 9)
    assert log.add(leave(stranger)) == [ev.Beat(1, *stranger, 0, 0, 2)]
    assert log.add(leave(B)) == [ev.Beat(2, *B, 0, 0, 2)]
    assert set(log.state.members) == {("g", "a")}
    assert log.add(leave()) == [ev.Beat(3, *A, 0, 0, 2), ev.MemberLeft(3, "a", "a1", "g", "left")]
    assert log.state.members == {}
    assert log.state.groups == {}


@spec("F-14")
def test_membership_comes_after_the_rest() -> None:
    log = Log(claim())
    record = m.Heartbeat(2, *A, 1000, 1, [0, 4])
    assert [type(e) for e in log.add(record)] == [ev.Beat, ev.Renewed, ev.MemberJoined]
    record = m.Heartbeat(2, *A, 1000, 2, [5, 4])
    assert [type(e) for e in log.add(record)] == [ev.Beat, ev.Rejected, ev.MemberLeft]


@spec("F-26")
def test_a_heartbeat_that_says_nothing_of_membership_changes_none() -> None:
    log = Log(member())
    assert log.add(beat()) == [ev.Beat(1, *A, 0, 0, 0)]
    assert log.state.members == {("g", "a"): session("a1", 1)}


@spec("F-60")
def test_a_session_is_there_as_long_as_it_holds_something_or_is_a_member() -> None:
    def sessions() -> list[tuple[str, str]]:
        return list(log.state.groups["g"].sessions)

    log = Log(claim())
    assert sessions() == [("a", "a1")]
    log.add(member())
    log.add(leave())
    assert sessions() == [("a", "a1")]
    log.add(claim(B, 2))
    assert sessions() == [("b", "b1")]
    log.add(member(B))
    log.add(release(3, sender=B))
    assert sessions() == [("b", "b1")]
    log.add(leave(B))
    assert sessions() == []
    log.add(claim(A, 5))
    log.add(pause())
    log.add(position(0, 7))
    assert sessions() == []


# ------------------------------------------------------------------ genesis


@spec("F-65", "F-66")
def test_epochs_are_counted_from_the_base_of_the_last_genesis() -> None:
    log = Log()
    assert log.add(genesis("one", "", 1000)) == [ev.Founded(0, *OPERATOR, "one", "", 1000, 8)]
    log.add(claim())
    assert log.cell.epoch == 1001
    assert log.add(beat(1, 5))[1:] == [ev.Renewed(2, *A, "t", 0, 1001, 5)]
    assert log.add(genesis("two", "one", 2000, 4)) == [
        ev.Founded(3, *OPERATOR, "two", "one", 2000, 4)
    ]
    assert (log.state.identity, log.state.base, log.state.partitions) == ("two", 2000, 4)
    assert log.cell.epoch == 1001
    log.add(claim(B, 2))
    assert log.cell.epoch == 2004


@spec("F-65")
def test_a_genesis_names_what_it_replaces_and_raises_the_base() -> None:
    log = Log()
    log.rejects(genesis("one", "none", 5), "wrong_identity")
    log.add(genesis("one", "", 0))
    for previous in ("", "two"):
        log.rejects(genesis("two", previous, 5), "wrong_identity")
    log.rejects(genesis("two", "one", 0), "base_too_low")
    log.add(genesis("two", "one", 1))
    log.rejects(genesis("three", "two", 1), "base_too_low")


# ------------------------------------------------------------------ levels


@spec("F-67", "F-68")
def test_a_level_is_set_when_every_session_can_follow() -> None:
    log = Log()
    assert log.add(set_level(2, 1)) == [ev.LevelSet(0, *OPERATOR, 2, 1)]
    log.rejects(set_level(3, 1), "stale_level")
    log.add(member(levels=(1, 2)))
    log.rejects(set_level(3, 2), "cannot_follow")
    log.add(member(levels=(1, 3)))
    log.add(set_level(3, 2))
    assert log.state.level("g") == 3
    log.add(claim(B))
    for level in (2, 4):
        log.rejects(set_level(level, 3), "cannot_follow")
    log.add(beat(sender=B))
    log.rejects(set_level(1, 3), "cannot_follow")
    log.add(m.Heartbeat(2, *B, 1000, 0, [], [], None, 1, 3))
    log.add(set_level(1, 3))
    log.add(leave())
    assert log.state.level("g") == 1
    assert log.state.level("other") == 1


@spec("F-62")
@pytest.mark.parametrize("levels", [(1, 1), (3, 3), (3, 1)])
def test_nothing_of_who_cannot_follow_counts(levels: tuple[int, int]) -> None:
    log = Log(claim(), set_level(2, 1)) if levels == (3, 3) else Log(set_level(2, 1), claim())
    if levels == (3, 3):
        log.rejects(m.Heartbeat(2, *A, 1000, 1, [0, 5], [], None, *levels), "cannot_follow")
        return
    log.rejects(m.Heartbeat(2, *A, 1000, 1, [1, 5], [], None, *levels), "cannot_follow")
    assert log.state.version("g", "t", 0) == 1


@spec("F-36")
def test_the_level_of_a_forgotten_group_is_forgotten() -> None:
    log = Log(set_level(2, 1), pause(), forget(1))
    assert log.state.level("g") == 1


# ------------------------------------------------------------------ ReleasingPartition


@spec("F-28")
def test_a_release_frees_the_cell() -> None:
    log = Log(claim(), beat(0, 7, metadata={0: b"x"}))
    assert log.add(release(0, 9)) == [ev.Released(2, *A, "t", 0, 0, 9)]
    assert log.cell == Cell(UNIT, None, None, 0, 2, 1000, 9, -1, b"x")


@spec("F-28")
def test_next_offset_never_goes_back_by_a_release() -> None:
    log = Log(claim(), beat(0, 7))
    assert log.add(release(0, 3)) == [ev.Released(2, *A, "t", 0, 0, 7)]
    assert log.cell.next_offset == 7


@spec("F-28")
def test_a_cell_may_go_with_its_release() -> None:
    log = Log(claim(), beat(0, 7))
    log.rejects(release(9, ends=True), "wrong_epoch")
    assert log.add(release(0, 9, ends=True)) == [ev.Released(3, *A, "t", 0, 0, 9, ended=True)]
    assert log.state.groups == {}
    log.rejects(claim(B, 3), "stale_version")
    assert log.add(claim(B)) == [ev.Claimed(5, *B, "t", 0, 5, 1000, None, None, -1)]


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
    log = Log(claim(), beat(0, 3))
    assert log.add(messages(0, 0)) == [ev.MessagesClaimed(2, *A, "t", 0, 0, -1, 0)]
    assert log.add(messages(0, 10)) == [ev.MessagesClaimed(3, *A, "t", 0, 0, 0, 10)]
    assert log.cell == Cell(UNIT, "a", "a1", 0, 3, 1000, 3, 10, b"")


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
    assert log.cell == Cell(UNIT, "a", "a1", 0, 0, 1000)


@spec("F-32", "F-64")
def test_a_resume_ends_the_pause_that_it_means() -> None:
    log = Log()
    rejected = log.rejects(resume(0), "not_paused")
    assert (rejected.topic, rejected.partition, rejected.holder) == (None, None, None)
    assert (rejected.epoch, rejected.version) == (-1, -1)
    log.add(pause())
    log.add(pause())
    rejected = log.rejects(resume(1), "stale_version")
    assert rejected.version == 2
    assert log.state.groups["g"].pause == Pause(2, 99)
    assert log.add(resume(2)) == [ev.GroupResumed(4, *OPERATOR)]
    assert log.state.paused == {}
    log.rejects(resume(2), "not_paused")


@spec("F-32")
def test_a_pause_that_expires_at_zero_is_a_pause() -> None:
    log = Log(pause(expires_at_ms=0))
    log.rejects(claim(), "group_paused")
    assert type(log.add(resume(0))[0]) is ev.GroupResumed


@spec("F-34")
def test_a_position_is_set_even_back_and_the_holder_is_out() -> None:
    log = Log(claim(), beat(0, 500, metadata={0: b"x"}), messages(0, 600), pause())
    log.rejects(position(100, 1), "stale_version")
    assert log.add(position(100, 2)) == [ev.PositionSet(5, *OPERATOR, "t", 0, 100)]
    assert log.cell == Cell(UNIT, None, None, 0, 5, 1000, 100, 100, b"")
    log.rejects(beat(0, 700), "not_held")


@spec("F-34")
def test_a_position_of_an_untouched_cell_makes_it() -> None:
    log = Log(pause())
    assert log.add(position(0, -1)) == [ev.PositionSet(1, *OPERATOR, "t", 0, 0)]
    assert log.state.cells == {KEY: Cell(UNIT, None, None, -1, 1, 0, 0, 0, b"")}


@spec("F-33")
def test_a_holder_sets_its_own_position_without_a_pause() -> None:
    log = Log(claim(), beat(0, 500, metadata={0: b"x"}), messages(0, 600))
    mine = m.SetPosition(2, *A, "t", 0, 100, 2)
    for stranger in (B, ("a", "a2", *A[2:]), ("b", "a1", *A[2:])):
        log.rejects(m.SetPosition(2, *stranger, "t", 0, 100, 2), "not_paused")
    log.rejects(m.SetPosition(2, *A, "t", 0, 100, 1), "stale_version")
    offset = log.state.next_offset
    assert log.add(mine) == [ev.PositionSet(offset, *A, "t", 0, 100)]
    assert log.cell == Cell(UNIT, None, None, 0, offset, 1000, 100, 100, b"")


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
    assert log.add(forget(5)) == [ev.GroupForgotten(6, *OPERATOR, 1)]
    assert set(log.state.cells) == {("other", "t", 0)}
    assert set(log.state.members) == {("other", "c")}
    assert log.state.paused == {"g": 99}
    log.add(resume(5))
    events = log.add(claim())
    assert events == [ev.Claimed(8, *A, "t", 0, 8, 1000, None, None, -1)]


@spec("F-35")
def test_to_forget_needs_a_pause_and_then_no_holder() -> None:
    log = Log()
    rejected = log.rejects(forget(-1), "not_paused")
    assert (rejected.topic, rejected.partition, rejected.holder) == (None, None, None)
    assert rejected.version == -1
    log.add(claim())
    log.rejects(forget(-1), "not_paused")
    log.add(pause())
    rejected = log.rejects(forget(3), "still_held")
    assert (rejected.topic, rejected.holder, rejected.epoch) == (None, None, -1)
    assert rejected.version == 3
    log.add(release(1))
    assert log.add(forget(3)) == [ev.GroupForgotten(6, *OPERATOR, 1)]
    assert log.add(forget(3)) == [ev.GroupForgotten(7, *OPERATOR, 0)]


@spec("F-35")
@pytest.mark.parametrize("meant", [-1, 1, 2, 4, 5])
def test_a_forgetting_under_another_pause_forgets_nothing(meant: int) -> None:
    log = Log(claim(), pause(), release(0), pause())
    rejected = log.rejects(forget(meant), "stale_version")
    assert (rejected.version, rejected.topic) == (3, None)
    assert len(log.state.cells) == 1


# ------------------------------------------------------------------ foreign records, position


@spec("F-2", "F-3", "F-10")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "undecodable"),
        (b"", "undecodable"),
        (b"\xc1", "undecodable"),
        (b"\x92\x01\x03", "unknown_version"),
        (b"\x92\x0d\x02", "unknown_type"),
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
    assert log.cell == Cell(UNIT, "b", "b1", 1000, 1000, 1000)
    assert log.state.next_offset == 1001


@spec("F-9")
def test_a_new_holder_starts_at_the_larger_offset() -> None:
    assert Cell(UNIT).position == -1
    assert Cell(UNIT, next_offset=5).position == 5
    assert Cell(UNIT, next_offset=5, claimed_offset=9).position == 9
    assert Cell(UNIT, next_offset=9, claimed_offset=5).position == 9


@spec("F-1", "T-5")
def test_the_fold_sees_offset_and_value_only() -> None:
    assert list(inspect.signature(apply).parameters) == ["state", "offset", "value", "events"]


@spec("F-1")
@pytest.mark.parametrize(
    "change",
    [
        claim(),
        beat(),
        beat(0, 5),
        beat(9, 5),
        member(),
        leave(),
        release(0),
        release(9),
        messages(0, 5),
        messages(0, 0),
        messages(9, 5),
        pause(),
        resume(0),
        resume(2),
        release(0, ends=True),
        genesis("one", "", 5),
        set_level(2, 1),
        position(1, 1),
        position(1, 9),
        forget(9),
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
    assert (BOUNDARY, MEMBER_HORIZON) == (4096, 65_536)
    log = Log()
    log.add(member(), at=10)
    log.add(member(B), at=11)
    assert log.add(b"", at=65_546) == [ev.Ignored(65_546, "undecodable")]
    assert log.add(b"", at=65_547) == [
        ev.MemberLeft(65_547, "a", "a1", "g", "expired"),
        ev.Ignored(65_547, "undecodable"),
    ]
    assert set(log.state.members) == {("g", "b")}


@spec("F-50")
def test_whoever_speaks_stays() -> None:
    log = Log()
    log.add(member(), at=0)
    for at in range(50_000, 500_000, 50_000):
        assert [type(e) for e in log.add(beat(), at=at)] == [ev.Beat]
    assert type(log.add(b"", at=450_000 + 65_537)[0]) is ev.MemberLeft


@spec("F-50")
def test_a_member_of_a_group_that_was_forgotten_is_swept_when_it_came_back() -> None:
    log = Log()
    log.add(member(), at=0)
    log.add(pause(), at=1)
    log.add(forget(1), at=2)
    log.add(resume(1), at=3)
    log.add(member(), at=10)
    assert [type(e) for e in log.add(b"", at=10 + 65_537)] == [ev.MemberLeft, ev.Ignored]


@spec("F-52")
def test_the_longest_silent_leave_first() -> None:
    senders = [("b", "i", "g", 1), ("a", "i", "g", 1), ("z", "i", "f", 1), ("a", "i", "f", 1)]
    log = Log(*(member(sender) for sender in senders))
    events = log.add(b"", at=100_000)
    left = [(e.group_id, e.client_id) for e in events if isinstance(e, ev.MemberLeft)]
    assert left == [("g", "b"), ("g", "a"), ("f", "z"), ("f", "a")]


@spec("F-52")
def test_the_sweep_comes_before_the_record_that_caused_it() -> None:
    log = Log(member(metadata=b"old"))
    events = log.add(member(), at=100_000)
    assert [type(e) for e in events] == [ev.MemberLeft, ev.Beat, ev.MemberJoined]
    assert log.state.members == {("g", "a"): session("a1", 100_000)}


@spec("F-53")
def test_the_sweep_touches_no_claim_no_pause_and_nobody_who_holds_something() -> None:
    log = Log(claim(), member(), pause())
    log.add(b"", at=10_000_000)
    assert set(log.state.members) == {("g", "a")}
    assert log.cell == Cell(UNIT, "a", "a1", 0, 0, 1000)
    assert log.state.paused == {"g": 99}
    log.add(release(0))
    assert set(log.state.members) == {("g", "a")}
    assert type(log.add(b"")[0]) is ev.MemberLeft


@spec("F-54")
def test_members_that_hold_nothing_cannot_be_more_than_the_horizon() -> None:
    log = Log()
    for number in range(70_000):
        sender = (f"client-{number}", "i", "g", 1)
        apply(log.state, number, m._encoder.encode(member(sender)))
        if number % 1000 == 999:
            assert len(log.state.groups["g"].members) <= 65_537
    assert len(log.state.members) == len(log.state.silent) == 65_537


# ------------------------------------------------------------------ canonical states


def everything() -> Log:
    """A state with something in every part."""
    other = ("c", "c1", "other", 7)
    return Log(
        genesis("one", "", 1000),
        claim(),
        beat(1, 7, metadata={1: b"x"}),
        claim(other),
        member(),
        member(other),
        set_level(2, 1),
        pause(),
    )


@spec("S-1")
def test_the_canonical_bytes() -> None:
    log = Log(genesis("one", "", 1000), claim(), member(), pause(expires_at_ms=5))
    assert msgspec.msgpack.decode(log.state.encode()) == [
        0,
        4,
        "one",
        1000,
        8,
        [
            [
                "g",
                1,
                [3, 5],
                [["a", "a1", 2, 1000, b"", 1, 1, 1]],
                [[["t", 0], "a", "a1", 1001, 1, 1000, -1, -1, b""]],
            ]
        ],
    ]
    assert PartitionState.decode(log.state.encode(canonical=False)).encode() == log.state.encode()


@spec("S-1")
def test_the_order_of_events_does_not_show_in_the_canonical_bytes() -> None:
    def log(names: str) -> Log:
        log = Log()
        for name in names:
            sender = (name, "i", name, 1)
            log.add(claim(sender))
            log.add(member(sender))
            log.add(pause(sender))
        for group in log.state.groups.values():
            (cell,), (known,) = group.cells.values(), group.sessions.values()
            cell.epoch = cell.version = known.version = 0
            group.pause = Pause(0, 99)
        return log

    straight, turned = log("xy"), log("yx")
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
    assert (again.identity, again.base, again.partitions) == ("one", 1000, 8)
    assert list(again.silent) == list(state.silent)
    for name, group in state.groups.items():
        other = again.groups[name]
        assert (other.ranges, other.held, other.level) == (group.ranges, group.held, group.level)


def put(state: PartitionState, cell: Cell) -> None:
    state.groups["g"].cells[cell.unit] = cell


@spec("S-6")
@pytest.mark.parametrize(
    "change",
    [
        lambda s: setattr(s.groups["g"].cells["t", 0], "holder", None),
        lambda s: setattr(s.groups["g"].cells["t", 0], "instance_id", None),
        lambda s: setattr(s.groups["g"].cells["t", 0], "instance_id", "another"),
        lambda s: setattr(s.groups["g"].cells["t", 0], "version", s.next_offset),
        lambda s: setattr(s.groups["g"].cells["t", 0], "epoch", 1000 + s.next_offset),
        lambda s: setattr(s.groups["g"].cells["t", 0], "epoch", -2),
        lambda s: setattr(s.groups["g"].cells["t", 0], "interval_ms", 86_400_001),
        lambda s: setattr(s.groups["g"].cells["t", 0], "next_offset", -2),
        lambda s: setattr(s.groups["g"].cells["t", 0], "claimed_offset", -2),
        lambda s: setattr(s.groups["g"].cells["t", 0], "metadata", b"x" * 257),
        lambda s: put(s, Cell(("t" * 250, 1), version=0)),
        lambda s: put(s, Cell(("t", 2**31), version=0)),
        lambda s: put(s, Cell(("t", -1), version=0)),
        lambda s: put(s, Cell(("t", 1))),
        lambda s: setattr(s.groups["g"].members["a"], "version", s.next_offset),
        lambda s: setattr(s.groups["g"].members["a"], "member", 2),
        lambda s: setattr(s.groups["g"].members["a"], "lowest", 0),
        lambda s: setattr(s.groups["g"].members["a"], "highest", 256),
        lambda s: setattr(s.groups["g"].members["a"], "metadata", b"x" * 4097),
        lambda s: s.groups["g"].sessions.update({("b", "i"): Session("i", 0, 1)}),
        lambda s: s.groups["g"].sessions.update({("a", "i"): Session("i", 0, 1, b"", 1)}),
        lambda s: setattr(s.groups["g"], "pause", Pause(s.next_offset, 5)),
        lambda s: setattr(s.groups["g"], "pause", Pause(0, -1)),
        lambda s: setattr(s.groups["g"], "level", 256),
        lambda s: s.groups.update({"": s.groups["g"]}),
        lambda s: setattr(s, "base", -1),
        lambda s: setattr(s, "identity", None),
        lambda s: setattr(s, "next_offset", 3),
    ],
)
def test_what_no_log_leads_to_is_no_state(change: Callable[[PartitionState], None]) -> None:
    state = everything().state
    PartitionState.decode(state.encode())
    change(state)
    with pytest.raises(msgspec.MsgspecError):
        PartitionState.decode(state.encode())


def set_to(value: Any, *path: int) -> Callable[[list[Any]], None]:
    """Set what lies at `path` in the canonical array of a state."""

    def change(array: list[Any]) -> None:
        for step in path[:-1]:
            array = array[step]
        array[path[-1]] = value

    return change


def add(value: Any, *path: int) -> Callable[[list[Any]], None]:
    """Append to the list at `path` in the canonical array of a state."""

    def change(array: list[Any]) -> None:
        for step in path:
            array = array[step]
        array.append(value)

    return change


_G = (5, 0)  # the group g, its session and its cell
_SESSION = (*_G, 3, 0)
_CELL = (*_G, 4, 0)
_END = 8  # the next offset of `everything`; its base is 1000


@spec("S-6")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_to(None, 2), "an identity without its partitions"),
        (set_to(0, 4), "an identity without its partitions"),
        (set_to(-1, 3), "its base"),
        (set_to(2**62 + 1, 3), "its base"),
        (add(["e", 1, None, [], []], 5), "group 'e' is empty"),
        (add(["g", 2, None, [], []], 5), "a group comes twice"),
        (set_to("", *_G, 0), "group_id of 0 characters"),
        (set_to(0, *_G, 1), "the level of 'g'"),
        (set_to(256, *_G, 1), "the level of 'g'"),
        (set_to([_END, 5], *_G, 2), "the pause of 'g' is of the future"),
        (set_to([-1, 5], *_G, 2), "the pause of 'g' is of the future"),
        (set_to([0, -1], *_G, 2), "the pause of 'g'$"),
        (add(["a", "a1", 4, 1, b"", 1, 1, 2], *_G, 3), "a session of 'g' comes twice"),
        (add(["a", "i", 4, 1, b"", 1, 1, 2], *_G, 3), "a client of 'g' is a member twice"),
        (add(["b", "i", 4, 1, b"", 0, 1, 2], *_G, 3), "'b' holds nothing"),
        (add(["", "i", 4, 1, b"", 1, 1, 2], *_G, 3), "client_id of 0 characters"),
        (add(["b", "", 4, 1, b"", 1, 1, 2], *_G, 3), "instance_id of 0 characters"),
        (set_to(_END, *_SESSION, 2), "the session of 'a' is of the future"),
        (set_to(-1, *_SESSION, 2), "the session of 'a' is of the future"),
        (set_to(-1, *_SESSION, 3), "the interval of 'a'"),
        (set_to(86_400_001, *_SESSION, 3), "the interval of 'a'"),
        (set_to(b"x" * 4097, *_SESSION, 4), "a member's metadata"),
        (set_to(2, *_SESSION, 5), "the membership of 'a'"),
        (set_to(-1, *_SESSION, 5), "the membership of 'a'"),
        (set_to(0, *_SESSION, 6), "the levels of 'a'"),
        (set_to(256, *_SESSION, 6), "the levels of 'a'"),
        (set_to(0, *_SESSION, 7), "the levels of 'a'"),
        (set_to(256, *_SESSION, 7), "the levels of 'a'"),
        (add([["t", 0], None, None, -1, 0, 0, -1, -1, b""], *_G, 4), "a cell of 'g' comes twice"),
        (
            add([["t", 1], "a", "a1", 1001, 1, 1000, 7, -1, b""], *_G, 4),
            "two cells of 'g' are held under one epoch",
        ),
        (add([["", 0], None, None, -1, 0, 0, -1, -1, b""], *_G, 4), "topic of 0 characters"),
        (add([["t", -1], None, None, -1, 0, 0, -1, -1, b""], *_G, 4), "'t'/-1: its number"),
        (
            add([["t", 2**31], None, None, -1, 0, 0, -1, -1, b""], *_G, 4),
            "'t'/2147483648: its number",
        ),
        (set_to("b", *_CELL, 1), "the holder of a cell has no session"),
        (set_to(None, *_CELL, 1), "'t'/0: half a holder"),
        (set_to(_END, *_CELL, 4), "'t'/0: its version is of the future"),
        (set_to(-1, *_CELL, 4), "'t'/0: its version is of the future"),
        (set_to(1000 + _END, *_CELL, 3), "'t'/0: its epoch is of the future"),
        (set_to(-2, *_CELL, 3), "'t'/0: its epoch is of the future"),
        (set_to(-1, *_CELL, 3), "'t'/0: it is held under no epoch"),
        (set_to(-1, *_CELL, 5), "'t'/0: its interval"),
        (set_to(86_400_001, *_CELL, 5), "'t'/0: its interval"),
        (set_to(-2, *_CELL, 6), "'t'/0: its position"),
        (set_to(-2, *_CELL, 7), "'t'/0: its position"),
        (set_to(b"x" * 257, *_CELL, 8), "'t'/0: its metadata"),
    ],
)
def test_a_state_is_refused_for_what_is_wrong_with_it(
    change: Callable[[list[Any]], None], why: str
) -> None:
    array = msgspec.msgpack.decode(everything().state.encode())
    change(array)
    with pytest.raises(msgspec.ValidationError, match=why):
        PartitionState.decode(msgspec.msgpack.encode(array))


@spec("S-6")
@pytest.mark.parametrize(
    "change",
    [
        set_to(2**62, 3),
        set_to(1, *_G, 1),
        set_to(255, *_G, 1),
        set_to([_END - 1, 0], *_G, 2),
        set_to([0, 0], *_G, 2),
        set_to(_END - 1, *_SESSION, 2),
        set_to(0, *_SESSION, 2),
        set_to(0, *_SESSION, 3),
        set_to(86_400_000, *_SESSION, 3),
        set_to(b"x" * 4096, *_SESSION, 4),
        set_to(0, *_SESSION, 5),
        set_to(255, *_SESSION, 6),
        set_to(255, *_SESSION, 7),
        add([["t", 1], None, None, -1, 0, 0, -1, -1, b""], *_G, 4),
        add([["t", 2**31 - 1], None, None, 0, 0, 86_400_000, 0, 0, b"x" * 256], *_G, 4),
        set_to(_END - 1, *_CELL, 4),
        set_to(0, *_CELL, 4),
        set_to(1000 + _END - 1, *_CELL, 3),
        set_to(0, *_CELL, 3),
    ],
)
def test_a_state_at_the_edge_of_what_may_be_is_none_the_less_one(
    change: Callable[[list[Any]], None],
) -> None:
    array = msgspec.msgpack.decode(everything().state.encode())
    change(array)
    data = msgspec.msgpack.encode(array)
    assert PartitionState.decode(data).encode() == data


def test_cells_share_names_and_numbers_that_are_equal() -> None:
    """Each record brings its own: a reader of many cells would keep them all."""
    log = Log()
    for n in range(2):
        log.add(m.ClaimingPartition(2, "a client", "an instance", "g", 1, "a topic", n, 1000, -1))
    for state in (log.state, PartitionState.decode(log.state.encode())):
        (_, one), (_, other) = state.groups["g"].cells.items()
        assert one.holder is other.holder
        assert one.instance_id is other.instance_id
        assert one.interval_ms is other.interval_ms
        topics = {id(topic) for topic, _ in state.groups["g"].cells}
        assert len(topics) == 1


@spec("F-55")
def test_no_record_costs_what_the_state_holds() -> None:
    """Counted in steps of Python, not in time: the same for a group of 10 cells and of 10,000."""

    def steps(cells: int) -> dict[str, int]:
        counted = 0

        def count(frame: Any, event: str, _: Any) -> Any:
            nonlocal counted
            counted += event in ("call", "line")
            return count

        def steps_of(record: m.Message) -> int:
            nonlocal counted
            counted = 0
            value = m.encode(record)
            sys.settrace(count)
            apply(log.state, log.state.next_offset, value, [])
            sys.settrace(None)
            return counted

        log = Log()
        for n in range(cells):
            log.add(m.ClaimingPartition(2, *A, "t", n, 1000, -1))
            log.add(member((f"m{n}", "i", "g", 1)))
        found: dict[str, int] = {}
        for record in (beat(), member(B), leave(B), claim(B, 0), pause(), set_level(2, 1)):
            found[type(record).__name__ + str(len(found))] = steps_of(record)
        for n in range(cells):
            epoch = log.state.cells["g", "t", n].epoch
            log.add(m.ReleasingPartition(2, *A, "t", n, epoch, -1))
        pauses = (group.pause for group in log.state.groups.values())
        paused_at = next(pause.version for pause in pauses if pause is not None)
        found["ForgetGroup"] = steps_of(forget(paused_at))
        return found

    few, many = steps(10), steps(2_000)
    assert all(many[name] <= few[name] + 20 for name in few), (few, many)


@pytest.mark.parametrize("data", [b"", b"\x90", b"\xc0", b"\x96\x00\x00\xc0\x00\x00"])
def test_other_bytes_are_no_state(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        PartitionState.decode(data)


@spec("F-50")
@pytest.mark.parametrize("says", [beat(), member()])
def test_whoever_speaks_leaves_after_those_who_do_not(says: m.Message) -> None:
    log = Log()
    log.add(member(), at=0)
    log.add(member(B), at=1)
    log.add(says, at=50_000)
    assert log.add(b"", at=65_600)[:1] == [ev.MemberLeft(65_600, "b", "b1", "g", "expired")]


@spec("F-50")
def test_who_gives_up_its_cells_after_a_long_silence_leaves_with_the_next_record() -> None:
    log = Log()
    log.add(member(), at=0)
    log.add(claim(), at=1)
    log.add(member(B), at=60_000)
    assert type(log.add(b"", at=66_000)[0]) is ev.Ignored
    log.add(release(1), at=66_001)
    assert log.add(b"", at=66_002)[:1] == [ev.MemberLeft(66_002, "a", "a1", "g", "expired")]


@spec("F-50")
@pytest.mark.parametrize("joins_at", [0, 7, 8])
def test_who_joins_when_nobody_was_there_leaves_by_the_same_offset(joins_at: int) -> None:
    log = Log()
    if joins_at:
        log.add(b"", at=7 if joins_at == 8 else 6)
    log.add(member(), at=joins_at)
    at = joins_at + MEMBER_HORIZON
    assert log.add(b"", at=at) == [ev.Ignored(at, "undecodable")]
    assert log.add(b"", at=at + 1)[0] == ev.MemberLeft(at + 1, "a", "a1", "g", "expired")


def test_the_silent_of_a_forgotten_group_are_forgotten_with_it() -> None:
    log = Log(member(), pause(), forget(1), resume(1))
    assert log.add(b"", at=70_000) == [ev.Ignored(70_000, "undecodable")]
    assert not log.state.silent


@spec("F-50")
def test_a_member_that_spoke_once_more_leaves_by_that_and_before_those_after_it() -> None:
    log = Log(member(), member(), member(B))
    assert log.add(b"", at=65_537) == [ev.Ignored(65_537, "undecodable")]
    left = [e for e in log.add(b"", at=65_538) if isinstance(e, ev.MemberLeft)]
    assert [(e.client_id, e.why) for e in left] == [("a", "expired")]


@spec("F-50")
def test_a_member_that_left_and_came_back_leaves_once() -> None:
    log = Log(member(), claim(), leave(), member())
    log.add(m.ReleasingPartition(2, *A, "t", 0, 1, -1))
    left = [e for e in log.add(b"", at=100_000) if isinstance(e, ev.MemberLeft)]
    assert [(e.client_id, e.why) for e in left] == [("a", "expired")]
    assert not log.state.groups["g"].sessions


def test_who_left_is_not_waited_for() -> None:
    log = Log(member(), claim(), leave())
    assert log.add(b"", at=100_000) == [ev.Ignored(100_000, "undecodable")]
    assert not log.state.silent


def test_the_goodbye_of_an_earlier_instance_that_still_holds_hides_nobody() -> None:
    log = Log(member(), claim(), member(("a", "a2", "g", 1)))
    log.add(leave())
    assert log.state.members["g", "a"].instance_id == "a2"


def test_a_pause_stays_when_the_last_member_goes() -> None:
    log = Log(member(), pause(), leave())
    assert log.state.paused == {"g": 99}


def test_who_has_left_keeps_no_level_down() -> None:
    log = Log(member(), member(B, levels=(1, 2)), leave())
    assert log.add(set_level(2, 1)) == [ev.LevelSet(3, *OPERATOR, 2, 1)]


def test_metadata_name_a_claim_by_its_offset_not_by_its_epoch() -> None:
    log = Log(genesis("one", "", 1_000), claim(), beat(metadata={1: b"x"}))
    assert log.cell.metadata == b"x"


def test_what_was_forgotten_is_freed_a_few_at_a_time() -> None:
    log = Log()
    for n in range(200):
        log.add(m.ClaimingPartition(2, *A, "t", n, 1000, -1))
        log.add(m.ReleasingPartition(2, *A, "t", n, 2 * n, -1))
    log.add(pause())
    log.add(forget(400))
    cells = next(pieces for pieces in log.state.forgotten if pieces)
    left = [len(cells)]
    while log.state.forgotten:
        log.add(b"")
        left.append(len(cells))
    assert left[0] == 200
    assert left[-1] == 0
    assert all(0 <= before - after <= 64 for before, after in itertools.pairwise(left))
    assert len(left) < 10


def test_a_claim_renews_nothing_else_of_its_session() -> None:
    log = Log(claim(), m.ClaimingPartition(2, *A, "t", 1, 1000, -1))
    assert log.state.version("g", "t", 0) == 0


def test_every_instance_has_a_session_of_its_own() -> None:
    log = Log(claim(), m.ClaimingPartition(2, "a", "a2", "g", 1, "t", 1, 1000, -1))
    assert set(log.state.groups["g"].sessions) == {("a", "a1"), ("a", "a2")}


def test_a_cell_that_changes_hands_takes_no_more_memory() -> None:
    """Of each record stays what is new, and a session keeps no room for what it held before."""

    def claims(client: str, first: int) -> None:
        for n in range(100):
            log.add(m.ClaimingPartition(2, client, "i", "g", n, "t", n + 1000, 500, first + n))

    log = Log()
    for n in range(100):
        log.add(m.ClaimingPartition(2, "a", "i", "g", n, "t", n + 1000, 500, -1))
    units = [id(unit) for unit in log.state.groups["g"].cells]
    for n in range(100):
        log.add(m.ReleasingPartition(2, "a", "i", "g", n, "t", n + 1000, n, -1))
    claims("b", 100)
    (session,) = log.state.groups["g"].sessions.values()
    fresh = sys.getsizeof(session.claims)
    assert [id(cell.unit) for cell in session.claims.values()] == units
    for n in range(100, 200):
        log.add(m.ClaimingPartition(2, "b", "i", "g", n, "t", n + 1000, 500, -1))
    for n in range(100, 200):
        epoch = log.state.cells["g", "t", n + 1000].epoch
        log.add(m.ReleasingPartition(2, "b", "i", "g", n, "t", n + 1000, epoch, -1))
    assert len(session.claims) == 100
    assert sys.getsizeof(session.claims) <= fresh


def test_a_session_that_claims_its_only_cell_again_goes_on() -> None:
    log = Log(claim(), claim(expected_version=0))
    session = log.state.session("g", "a", "a1")
    assert session is not None
    assert session.claims == {1: log.cell}
    assert type(log.add(release(1))[0]) is ev.Released


@pytest.mark.parametrize(
    "records", [(pause(), resume(0)), (set_level(2, 1), set_level(1, 2)), (set_level(1, 1),)]
)
def test_a_group_of_which_nothing_is_left_is_as_if_it_had_never_been(
    records: tuple[m.Message, ...],
) -> None:
    assert Log(*records).state.groups == {}


def test_a_group_that_is_not_paused_is_not_forgotten_though_nobody_holds() -> None:
    Log(claim(), release(0)).rejects(forget(-1), "not_paused")


def test_the_order_of_silence_comes_back_with_a_state() -> None:
    log = Log(member(B), member(), claim())
    assert list(PartitionState.decode(log.state.encode()).silent) == list(log.state.silent)
    log.add(b"", at=100_000)  # a holds a cell, and stays, but is not waited for
    assert log.state.members
    assert not log.state.silent
    again = PartitionState.decode(log.state.encode())
    apply(again, 100_001, b"")
    assert again.members
    assert not again.silent

"""What holds of the fold whatever lies on the log (specs/PROTOCOL.md §4), and that it is the fold
which the specification describes: a second one, written from the text, must agree on everything.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.ranges import range_cell
from marshal_py.protocol.rationalizer import PartitionState, apply
from tests.support import reference_fold as reference
from tests.support import strategies as some
from tests.support import vector_format
from tests.support.spec import spec
from tests.support.strategies import Log


def fold(log: Log, state: PartitionState | None = None) -> tuple[PartitionState, list[ev.Event]]:
    """The state and the events after a log."""
    state = state or PartitionState(0)
    events: list[ev.Event] = []
    for offset, value in log:
        apply(state, offset, value, events)
    return state, events


@spec("F-1", "F-2")
@given(some.logs)
def test_two_folds_agree_on_any_log(log: Log) -> None:
    state, expected = PartitionState(0), reference.new_state()
    for offset, value in log:
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        expected_events = reference.apply(expected, offset, value)
        assert [vector_format.event(event) for event in events] == expected_events
        assert vector_format.state(state) == expected
        assert state.encode() == reference.canonical(expected)
        assert state.digest().hex() == reference.digest(expected)


@spec("F-5", "S-4")
@given(some.logs, st.data())
def test_a_log_may_be_cut_anywhere(log: Log, data: st.DataObject) -> None:
    whole, events = fold(log)
    pieces = PartitionState(0)
    events_of_pieces: list[ev.Event] = []
    cuts = data.draw(st.sets(st.integers(0, len(log))))
    for number, (offset, value) in enumerate(log):
        if number in cuts:
            pieces = PartitionState.decode(pieces.encode())
        apply(pieces, offset, value, events_of_pieces)
    assert pieces.encode() == whole.encode()
    assert events_of_pieces == events


@spec("S-4")
@given(some.logs)
def test_a_replay_from_any_snapshot_is_a_replay_from_the_start(log: Log) -> None:
    whole, _ = fold(log)
    state = PartitionState(0)
    for number, (offset, value) in enumerate(log):
        snapshot = PartitionState.decode(state.encode())
        # A reader of a snapshot may get records from before it again.
        early, _ = fold(log[max(0, number - 2) :], snapshot)
        assert early.encode() == whole.encode()
        apply(state, offset, value)


@spec("F-1")
@given(some.logs)
def test_events_or_none_the_state_is_the_same(log: Log) -> None:
    told, _ = fold(log)
    silent = PartitionState(0)
    for offset, value in log:
        apply(silent, offset, value)
    assert silent.encode() == told.encode()


@spec("F-40", "F-41")
@given(some.logs)
def test_epochs_are_unique_and_rise_and_a_cell_has_one_holder(log: Log) -> None:
    state = PartitionState(0)
    epochs: list[int] = []
    holders: dict[Any, tuple[str, int]] = {}
    for offset, value in log:
        before = {key: cell.epoch for key, cell in state.cells.items()}
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        for event in events:
            # The events alone tell who holds what, and there is never a second holder.
            if isinstance(event, ev.Claimed):
                key = (event.group_id, event.topic, event.partition)
                previous = holders.get(key)
                assert event.previous_holder == (previous[0] if previous else None)
                holders[key] = (event.client_id, event.epoch)
                epochs.append(event.epoch)
            elif isinstance(event, ev.Released | ev.PositionSet):
                holders.pop((event.group_id, event.topic, event.partition), None)
        for key, cell in state.cells.items():
            assert cell.epoch >= before.get(key, -1)
            assert 0 <= cell.version <= state.version(*key) < state.next_offset
            assert -1 <= cell.epoch < state.base + state.next_offset
            assert (cell.holder is None) == (cell.instance_id is None)
        held = {k: (c.holder, c.epoch) for k, c in state.cells.items() if c.held}
        assert held == holders
    assert epochs == sorted(set(epochs))


@spec("F-40")
@given(some.logs, st.integers(0, 2**64))
def test_epochs_rise_over_a_topic_that_is_made_anew(log: Log, seed: int) -> None:
    old, earlier = fold(log)
    base = old.base + old.next_offset
    genesis = m.Genesis(2, "o", "o1", "g1", 0, "anew", "", base, 8, 0)
    _, later = fold(some.lively_log(Random(seed), 40, genesis))
    given_before = [event.epoch for event in earlier if isinstance(event, ev.Claimed)]
    given_after = [event.epoch for event in later if isinstance(event, ev.Claimed)]
    assert all(epoch >= base for epoch in given_after)
    assert max(given_before, default=-1) < base
    assert given_after == sorted(set(given_after))


@spec("F-42", "F-43")
@given(some.logs)
def test_offsets_only_rise_unless_a_position_is_set(log: Log) -> None:
    state = PartitionState(0)
    for offset, value in log:
        before = {k: (c.next_offset, c.claimed_offset) for k, c in state.cells.items()}
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        moved = {
            (e.group_id, e.topic, e.partition) for e in events if isinstance(e, ev.PositionSet)
        }
        for key, cell in state.cells.items():
            if key in before and key not in moved:
                assert cell.next_offset >= before[key][0]
                assert cell.claimed_offset >= before[key][1]


@spec("F-42")
@given(some.logs)
def test_no_message_is_claimed_twice(log: Log) -> None:
    _, events = fold(log)
    claimed: dict[Any, int] = {}
    for event in events:
        if isinstance(event, ev.PositionSet):
            claimed[event.group_id, event.topic, event.partition] = event.next_offset
        elif isinstance(event, ev.Released) and event.ended:
            claimed.pop((event.group_id, event.topic, event.partition), None)
        elif isinstance(event, ev.GroupForgotten):
            claimed = {key: at for key, at in claimed.items() if key[0] != event.group_id}
        elif isinstance(event, ev.MessagesClaimed):
            key = (event.group_id, event.topic, event.partition)
            assert event.from_offset == claimed.get(key, -1)
            assert event.to_offset > event.from_offset
            claimed[key] = event.to_offset


@spec("F-3")
@given(some.logs)
def test_what_is_rejected_changes_nothing(log: Log) -> None:
    state = PartitionState(0)
    for offset, value in log:
        before = copy.deepcopy(state)
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        # A heartbeat counts, and renews, even if all that it says of single claims is refused.
        if all(isinstance(e, ev.Rejected | ev.Ignored) for e in events):
            before.next_offset = state.next_offset
            assert state.encode() == before.encode()


@spec("F-15")
@given(some.logs)
def test_every_record_is_told_of_under_its_offset(log: Log) -> None:
    state = PartitionState(0)
    for offset, value in log:
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        assert {event.offset for event in events} == {offset}


@spec("F-6", "F-7")
@given(some.logs)
def test_the_position_is_one_beyond_the_highest_offset(log: Log) -> None:
    state = PartitionState(0)
    highest = -1
    for offset, value in log:
        apply(state, offset, value)
        highest = max(highest, offset)
        assert state.next_offset == highest + 1


@spec("F-54")
@given(some.logs)
def test_state_is_bounded_by_cells_and_live_members(log: Log) -> None:
    state, events = fold(log)
    touched = {
        (e.group_id, e.topic, e.partition)
        for e in events
        if isinstance(e, ev.Claimed | ev.PositionSet | ev.RangeGranted)
    }
    touched |= {
        (e.group_id, *range_cell(e.topic, e.partition, e.at))
        for e in events
        if isinstance(e, ev.RangeSplit)
    }
    assert set(state.cells) <= touched
    assert set(state.paused) <= {e.group_id for e in events if isinstance(e, ev.GroupPaused)}
    horizon = state.next_offset - 1 - 65_536
    idle = (member for member in state.members.values() if not member.claims)
    assert all(member.version >= horizon for member in idle)
    assert len({member.version for member in state.members.values()}) == len(state.members)
    # No row is larger than its longest fields, so the bytes are bounded by the number of rows.
    levels = {e.group_id for e in events if isinstance(e, ev.LevelSet)}
    assert {name for name, group in state.groups.items() if group.level != m.LEVEL} <= levels
    rows = len(state.cells) + len(state.members) + len(state.paused) + len(levels)
    assert len(state.encode()) <= 64 + rows * (4 * 1024 + 4 * 256 * 4)


@spec("F-2")
@given(st.lists(st.one_of(some.raw_values, st.binary(max_size=200)), max_size=20))
def test_no_bytes_raise(values: list[bytes | None]) -> None:
    state = PartitionState(0)
    for offset, value in enumerate(values):
        apply(state, offset, value, [])
        apply(PartitionState(0), offset, value)


@spec("F-9")
@given(some.logs)
def test_the_position_of_every_cell(log: Log) -> None:
    state, _ = fold(log)
    for cell in state.cells.values():
        assert cell.position == max(cell.next_offset, cell.claimed_offset)

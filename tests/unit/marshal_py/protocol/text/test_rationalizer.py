"""The version 1 fold: against the states that Go's own rationalizer reached, and by itself."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import CellKey
from marshal_py.protocol.text import rationalizer as module
from marshal_py.protocol.text.codec import decode
from marshal_py.protocol.text.rationalizer import TextCell, TextState, TextWorld, apply, slack_s
from tests.interop.gomodel import Bugs, GoWorld, Partition
from tests.support.paths import INTEROP_DATA

HB = 60
DATA = INTEROP_DATA
HISTORIES: list[dict[str, Any]] = [
    json.loads(line) for line in (DATA / "states.jsonl").read_text().splitlines()
]


def fold(*records: str | bytes) -> tuple[TextState, list[ev.Event]]:
    state = TextState(0, HB)
    events: list[ev.Event] = []
    for offset, record in enumerate(records):
        apply(state, offset, record if isinstance(record, bytes) else record.encode(), events)
    return state, events


def cell_of(state: TextState, topic: str = "t", partition: int = 0, group: str = "g") -> TextCell:
    cell = state.cells[group, topic, partition]
    assert isinstance(cell, TextCell)
    return cell


def shown(cell: TextCell | None) -> tuple[str, str, int, int, int]:
    cell = cell or TextCell(("t", 0))
    return (
        cell.owner_instance,
        cell.owner,
        cell.release_s,
        cell.heartbeat_s,
        cell.current_offset,
    )


def of_go(part: Partition) -> tuple[str, str, int, int, int]:
    return (
        part.instance_id,
        part.client_id,
        part.last_release,
        part.last_heartbeat,
        part.current_offset,
    )


def key_of(raw: str) -> CellKey:
    record = decode(raw.encode())
    return record.group_id, record.topic, record.partition


# Against Go's own states


@pytest.mark.parametrize("history", HISTORIES, ids=range(len(HISTORIES)))
def test_the_model_of_go_reaches_the_recorded_states(history: dict[str, Any]) -> None:
    world = GoWorld(hb=HB, bugs=Bugs())
    for now, raw in history["messages"]:
        world.read(raw.encode(), now)
    found = {
        (group, topic, number): part
        for (group, topic), parts in world.cells.items()
        for number, part in enumerate(parts)
    }
    assert len(found) == len(history["expect"])
    for cell in history["expect"]:
        part = found[cell["group"], cell["topic"], cell["partition"]]
        expected = [
            cell[name]
            for name in (
                "instance_id",
                "client_id",
                "last_release",
                "last_heartbeat",
                "current_offset",
            )
        ]
        assert list(of_go(part)) == expected
        assert part.claimed(history["query_now"], HB) == cell["claimed"]


@pytest.mark.parametrize("history", HISTORIES, ids=range(len(HISTORIES)))
def test_a_cell_differs_from_go_only_after_a_claim_read_at_another_time(
    history: dict[str, Any],
) -> None:
    """Where the reader's clock runs with the records, the states are equal.

    Where it does not, one claim may have been decided otherwise. It is undone by the next heartbeat
    or claim that both decide alike; until then the cell differs, and no other cell does.
    """
    state, go = TextState(3, HB), GoWorld(hb=HB, bugs=Bugs())
    differs: set[CellKey] = set()
    for offset, (now, raw) in enumerate(history["messages"]):
        key, record = key_of(raw), decode(raw.encode())
        was = shown(state.cells.get(key))  # type: ignore[arg-type]
        apply(state, offset, raw.encode())
        go.read(raw.encode(), now)
        ours = shown(state.cells.get(key))  # type: ignore[arg-type]
        theirs = of_go(go.partition(*key))
        if record.type == "Heartbeat":
            assert ours == theirs  # a heartbeat brings the two together, whatever was before
        runs = now == record.time_s and was[3] <= now
        if runs and key not in differs:
            assert ours == theirs, f"{raw} read at {now}"
        (differs.add if ours != theirs else differs.discard)(key)
    for cell in history["expect"]:
        key = (cell["group"], cell["topic"], cell["partition"])
        assert (shown(state.cells.get(key)) == of_go(go.partition(*key))) == (  # type: ignore[arg-type]
            key not in differs
        )


def test_histories_whose_clock_runs_with_the_records_give_equal_states() -> None:
    equal = 0
    for history in HISTORIES:
        if any(now != decode(raw.encode()).time_s for now, raw in history["messages"]):
            continue
        state, _ = fold(*(raw for _, raw in history["messages"]))
        for cell in history["expect"]:
            found = state.cells.get((cell["group"], cell["topic"], cell["partition"]))
            assert shown(found)[1:] == (  # type: ignore[arg-type]
                cell["client_id"],
                cell["last_release"],
                cell["last_heartbeat"],
                cell["current_offset"],
            )
        equal += 1
    assert equal >= 5


def test_recorded_claims_that_are_decided_otherwise_are_decided_for_waiting() -> None:
    """Where our answer and Go's differ, ours is the one that makes nobody act too early.

    - We refuse what this Go reader grants: the holder keeps the cell. If the sender may have read
      its claim as granted, it is in doubt, and the holder stops until that is settled.
    - We grant what this Go reader refuses: only where the sender's own clock says 2 HB or more, so
      that the sender itself reads it as granted. The old holder, if it is one of ours, stops.
    """
    refused = granted = 0
    for history in HISTORIES:
        state, go = TextState(3, HB), GoWorld(hb=HB, bugs=Bugs())
        for offset, (now, raw) in enumerate(history["messages"]):
            record, key = decode(raw.encode()), key_of(raw)
            events: list[ev.Event] = []
            before = go.partition(*key)
            heartbeat = before.last_heartbeat
            same = shown(state.cells.get(key)) == of_go(before)  # type: ignore[arg-type]
            go_grants = not before.claimed(now, HB)
            apply(state, offset, raw.encode(), events)
            go.read(raw.encode(), now)
            if record.type != "ClaimingPartition" or not same:
                continue
            we_grant = isinstance(events[0], ev.Claimed)
            if go_grants and not we_grant:
                refused += 1
                assert isinstance(events[0], ev.Rejected)
                assert abs(record.time_s - heartbeat) < 2 * HB
                if record.time_s < heartbeat or record.time_s - heartbeat >= 2 * HB - slack_s(HB):
                    own = (record.client_id, record.instance_id) == (
                        before.client_id,
                        before.instance_id,
                    )
                    assert own or events[0].reason == "in_doubt"
                else:
                    assert now != record.time_s  # it was read long after it was written
            elif we_grant and not go_grants:
                granted += 1
                assert abs(record.time_s - heartbeat) >= 2 * HB
                assert now != record.time_s
    assert refused > 20
    assert granted > 3


# By itself

CLAIM_A = "ClaimingPartition/1/1000/ia/a/g/t/0"
BEAT_A = "Heartbeat/1/1000/ia/a/g/t/0/5"


@pytest.mark.parametrize(
    ("time_s", "reason"),
    [
        (1120, None),
        (1119, "in_doubt"),
        (1090, "in_doubt"),
        (1089, "still_held"),
        (1000, "still_held"),
        (999, "in_doubt"),
        (881, "in_doubt"),
        (880, None),
    ],
)
def test_a_claim_is_granted_two_intervals_from_the_heartbeat(
    time_s: int, reason: str | None
) -> None:
    state, events = fold(BEAT_A, f"ClaimingPartition/1/{time_s}/ib/b/g/t/0")
    last = events[-1]
    if reason is None:
        assert isinstance(last, ev.Claimed)
        assert cell_of(state).holder == "b"
        assert cell_of(state).current_offset == 5  # kept
    else:
        assert isinstance(last, ev.Rejected)
        assert last.reason == reason
        assert cell_of(state).holder == "a"
        assert cell_of(state).version == (1 if reason == "in_doubt" else 0)


def test_a_refused_claim_of_the_owner_itself_is_no_doubt() -> None:
    state, events = fold(BEAT_A, "ClaimingPartition/1/999/ia/a/g/t/0")
    assert isinstance(events[-1], ev.Rejected)
    assert events[-1].reason == "still_held"
    assert cell_of(state).doubt == -1


def test_a_heartbeat_takes_the_cell_from_anyone() -> None:
    state, events = fold(BEAT_A, "Heartbeat/1/1001/ib/b/g/t/0/2")
    assert (cell_of(state).holder, cell_of(state).current_offset) == ("b", 2)
    claimed = events[-2]
    assert isinstance(claimed, ev.Claimed)
    assert (claimed.previous_holder, claimed.previous_epoch) == ("a", 0)
    assert cell_of(state).rival == 0  # a may go on


def test_a_release_needs_the_owner_and_its_instance() -> None:
    for sender in ("ib/a/g", "ia/b/g", "ia/a/h"):
        state, events = fold(BEAT_A, f"ReleasingPartition/1/1001/{sender}/t/0/9")
        assert isinstance(events[-1], ev.Rejected)
        assert cell_of(state).holder == "a"
    state, events = fold(BEAT_A, "ReleasingPartition/1/1001/ia/a/g/t/0/9")
    assert isinstance(events[-1], ev.Released)
    cell = cell_of(state)
    assert (cell.holder, cell.heartbeat_s, cell.release_s, cell.next_offset) == (None, 0, 1001, 9)
    assert (cell.owner, cell.owner_instance) == ("a", "ia")


def test_offset_zero_means_no_position() -> None:
    state, _ = fold("Heartbeat/1/1000/ia/a/g/t/0/0")
    assert (cell_of(state).current_offset, cell_of(state).next_offset) == (0, -1)


def test_a_rival_is_forgotten_when_the_owner_has_covered_three_intervals() -> None:
    taken = (BEAT_A, "Heartbeat/1/1001/ib/b/g/t/0/2")
    state, _ = fold(*taken, "Heartbeat/1/1180/ib/b/g/t/0/2")
    assert cell_of(state).rival == 0
    state, _ = fold(*taken, "Heartbeat/1/1181/ib/b/g/t/0/2")
    assert cell_of(state).rival == -1
    # The same without events, where heartbeats go another way through the code.
    state = TextState(0, HB)
    for offset, raw in enumerate((*taken, "Heartbeat/1/1181/ib/b/g/t/0/2")):
        apply(state, offset, raw.encode())
    assert cell_of(state).rival == -1


def test_a_rival_is_not_forgotten_because_the_next_owners_clock_is_ahead() -> None:
    """Found by the simulation: a time that passed on one clock is no difference of two."""
    owners = (BEAT_A, "Heartbeat/1/1001/ib/b/g/t/0/2", "ReleasingPartition/1/1002/ib/b/g/t/0/2")
    third = ("ClaimingPartition/1/1190/ic/c/g/t/0", "ReleasingPartition/1/1190/ic/c/g/t/0/2")
    state, _ = fold(*owners, *third)
    assert cell_of(state).holder is None
    assert cell_of(state).rival == 0
    state, _ = fold(*owners, third[0], "Heartbeat/1/1370/ic/c/g/t/0/2")
    assert cell_of(state).rival == -1


def test_a_doubt_is_forgotten_when_the_owner_has_covered_the_slack() -> None:
    doubted = (BEAT_A, "ClaimingPartition/1/999/ib/b/g/t/0")
    state, _ = fold(*doubted, "Heartbeat/1/1029/ia/a/g/t/0/2")
    assert cell_of(state).doubt == 1
    state, _ = fold(*doubted, "Heartbeat/1/1030/ia/a/g/t/0/2")
    assert cell_of(state).doubt == -1


def test_claiming_messages_changes_nothing() -> None:
    before, _ = fold(BEAT_A)
    after, events = fold(BEAT_A, "ClaimingMessages/1/1001/ib/b/g/t/0/99")
    assert after.cells == before.cells
    assert len(events) == 3  # those of the heartbeat


def test_a_pause_lasts_until_its_time_and_the_last_one_counts() -> None:
    state, events = fold("ReleaseGroup/0/1000/i/adm/g//0/1020")
    assert state.paused == {"g": 1_020_000}
    assert isinstance(events[-1], ev.GroupPaused)
    state, events = fold(
        "ReleaseGroup/0/1000/i/adm/g//0/1020", "ReleaseGroup/0/1001/i/adm/g//0/1001"
    )
    assert state.paused == {}
    assert isinstance(events[-1], ev.GroupResumed)


HOSTILE = [
    b"",
    b"banana",
    b"Heartbeat/1/2/i/c/g/t/-1/3",
    b"ClaimingPartition/1/2/i/c/g/t/-1",
    b"ReleasingPartition/1/2/i/c/g/t/-9223372036854775808/3",
    b"Heartbeat/1/2/i/c/g/t/2147483648/3",
    b"Heartbeat/1/2/a/b/g/t/0/3/4",
    b"Heartbeat/1/99999999999999999999/i/c/g/t/0/3",
    b"\xff" * 100,
    b"Heartbeat/" * 10_000,
    b"\x96\x02\x02",
    bytes(1_000_000),
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_record_is_reported_and_changes_nothing(value: bytes) -> None:
    state, events = fold(value)
    assert state.cells == {}
    assert [type(e) for e in events] == [ev.Ignored]
    assert not apply(TextState(0, HB), 0, value)


def test_a_huge_partition_number_costs_one_cell() -> None:
    state, _ = fold("Heartbeat/1/1000/ia/a/g/t/50000000/5")
    assert len(state.cells) == 1
    assert cell_of(state, partition=50_000_000).holder == "a"


def test_a_null_value_and_a_repeated_offset_change_nothing() -> None:
    state = TextState(0, HB)
    events: list[ev.Event] = []
    apply(state, 0, None, events)
    apply(state, 1, BEAT_A.encode(), events)
    apply(state, 1, b"Heartbeat/1/1001/ib/b/g/t/0/2", events)
    assert cell_of(state).holder == "a"
    assert [type(e) for e in events] == [ev.Ignored, ev.Beat, ev.Claimed, ev.Renewed, ev.Ignored]


def test_the_world_places_cells_by_topic_alone() -> None:
    world = TextWorld(8, HB, time.time)
    assert {world.coordinator("g", "orders", p) for p in range(50)} == {
        world.coordinator("h", "orders", 0)
    }


small = st.sampled_from(["0", "1", "2", "-1", "3000000000", "x", ""])
times = st.integers(1_000, 1_400).map(str) | st.sampled_from(["0", "-5", str(2**62), "+7", "x"])
who = st.sampled_from(["i1/a/g", "i2/a/g", "i1/b/g", "i3/c/g", "é/ü/g", "//"])
kinds = st.sampled_from(
    ["Heartbeat", "ClaimingPartition", "ReleasingPartition", "ClaimingMessages", "ReleaseGroup"]
)
texts = st.builds(
    lambda kind, t, w, p, o: "/".join(
        [kind, "1", t, w, "t", p] + ([o] if kind != "ClaimingPartition" else [])
    ).encode(),
    kinds,
    times,
    who,
    small,
    times,
)


@settings(max_examples=300)
@given(st.lists(texts | st.binary(max_size=40), max_size=60))
def test_any_log_folds_alike_with_and_without_events(values: list[bytes]) -> None:
    with_events, without = TextState(0, HB), TextState(0, HB)
    events: list[ev.Event] = []
    for offset, value in enumerate(values):
        apply(with_events, offset, value, events)
        apply(without, offset, value)
    assert with_events.encode() == without.encode()
    assert with_events.digest() == without.digest()
    assert all(0 <= e.offset < len(values) for e in events)


def test_an_earlier_process_of_the_owners_name_is_no_rival() -> None:
    state, _ = fold(BEAT_A, "Heartbeat/1/1001/again/a/g/t/0/2")
    assert (cell_of(state).instance_id, cell_of(state).rival) == ("again", -1)


def test_a_release_settles_what_its_time_settles() -> None:
    doubted = (BEAT_A, "ClaimingPartition/1/999/ib/b/g/t/0")
    for time_s, doubt in ((1029, 1), (1030, -1)):
        state, _ = fold(*doubted, f"ReleasingPartition/1/{time_s}/ia/a/g/t/0/5")
        assert cell_of(state).doubt == doubt


def test_a_doubt_is_not_forgotten_because_the_next_owners_clock_is_ahead() -> None:
    doubted = (BEAT_A, "ClaimingPartition/1/999/ib/b/g/t/0")
    ahead = ("Heartbeat/1/5000/ic/c/g/t/0/2", "Heartbeat/1/5029/ic/c/g/t/0/2")
    state, _ = fold(*doubted, *ahead)
    assert cell_of(state).doubt == 1
    state, _ = fold(*doubted, *ahead, "Heartbeat/1/5030/ic/c/g/t/0/2")
    assert cell_of(state).doubt == -1


def test_what_is_released_twice_was_released_once() -> None:
    released = "ReleasingPartition/1/1001/ia/a/g/t/0/9"
    _, events = fold(BEAT_A, released, released)
    assert [type(e) for e in events[-2:]] == [ev.Released, ev.Rejected]


def test_a_pause_ends_once_and_never_lies_beyond_what_a_number_can_say() -> None:
    over = "ReleaseGroup/0/1000/i/adm/g//0/1000"
    state, events = fold(over, f"ReleaseGroup/0/1000/i/adm/g//0/{2**62}", over, over)
    assert [type(e) for e in events] == [ev.GroupPaused, ev.GroupResumed]
    state, _ = fold(f"ReleaseGroup/0/1000/i/adm/g//0/{2**62}")
    assert state.paused == {"g": 2**63 - 1}


@pytest.mark.parametrize(
    "value",
    [b"Heartbeat/1/%d/ia/a/g/t/0/6" % (10**20), b"Heartbeat/1/1001/ia/a/g/t/0/%d" % (10**20)],
)
def test_a_number_that_is_too_large_is_none_when_the_log_is_replayed_either(value: bytes) -> None:
    state = TextState(0, HB)
    for offset in range(2):
        apply(state, offset, BEAT_A.encode())
    assert not apply(state, 2, value)
    assert (cell_of(state).heartbeat_s, cell_of(state).current_offset) == (1000, 5)


def test_names_that_were_seen_are_not_remembered_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_RENEWALS", 2)
    state = TextState(0, HB)
    for offset in range(9):
        apply(state, offset, f"Heartbeat/1/1000/ia/a/g/t/{offset}/5".encode())
    assert len(state.renewals) <= 2
    assert len(state.cells) == 9


def test_a_group_is_paused_while_any_coordination_partition_says_so() -> None:
    """One pause is written to each, and one may not have come."""
    world = TextWorld(3, HB, lambda: 1_000.0)
    state = world.states[1]
    assert isinstance(state, TextState)
    state.paused["g"] = 1_000_001
    assert world.paused("g")
    assert not world.paused("h")
    state.paused["g"] = 1_000_000
    assert not world.paused("g"), "its time has come"
    world.at_ms = 999_999
    assert world.paused("g"), "at that moment it was"


def test_the_cells_of_one_group_are_its_own() -> None:
    world = TextWorld(1, HB, time.time)
    for offset, group in enumerate("gh"):
        apply(world.states[0], offset, f"Heartbeat/1/1000/ia/a/{group}/t/0/5".encode())
    assert [key for _, key, _ in world.cells("g")] == [("g", "t", 0)]
    assert len(list(world.cells())) == 2

"""`marshal verify` is silent about any log that the fold made, and speaks about what is forged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from marshal_py.protocol import events as ev
from marshal_py.protocol.history.invariants import Invariants
from marshal_py.protocol.history.verifier import Finding, Verifier, differences
from marshal_py.protocol.messages import (
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    Genesis,
    ReleaseGroup,
    ResumeGroup,
    SetLevel,
    SetPosition,
    encode,
)
from marshal_py.protocol.ranges import MAX_OPEN_RANGES
from marshal_py.protocol.rationalizer import Cell, PartitionState, apply
from marshal_py.protocol.snapshots import Snapshot, anchor_of, decode_snapshot, encode_snapshot
from tests.support.messages import heartbeat
from tests.support.strategies import Log, lively_log
from tests.unit.marshal_py.protocol.history.test_partition_history import (
    PARTITIONS,
    PLANTS,
    Plant,
    Script,
)

WHO: dict[str, Any] = {"client_id": "c", "instance_id": "i", "group_id": "g", "seq": 0}
CELL: dict[str, Any] = {"topic": "t", "partition": 0}
TWIN: dict[str, Any] = {**WHO, "instance_id": "j"}


BREAK_A_RULE = frozenset(
    {
        "wrong_partition",
        "foreign_sender",
        "sequence",
        "duplicate_client_id",
        "early_takeover",
        "impossible_epoch",
        "impossible_version",
        "position_went_back",
        "claimed_not_ahead",
        "wrong_genesis",
    }
)


@pytest.mark.parametrize("seed", range(20))
def test_the_invariants_hold_of_any_log(seed: int) -> None:
    state = PartitionState(0)
    invariants = Invariants(state)
    applied = 0
    for offset, value in lively_log(Random(seed), 400):
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        for event in events:
            assert not invariants.check(event, value)
            applied += isinstance(event, ev.Claimed | ev.Renewed | ev.MessagesClaimed)
    assert invariants.finish(state) == []
    assert applied > 20, "a log in which nothing happens proves nothing"


@pytest.mark.parametrize("seed", range(30))
def test_what_is_left_of_a_log_is_sound_from_its_snapshot_on(seed: int) -> None:
    """Whatever was open there: claims with heartbeats, ranges, pauses, levels, a base of epochs."""
    log: Log = []
    for record in lively_log(Random(seed), 300):
        if not log or record[0] > log[-1][0]:
            log.append(record)
    cut, state = 20 + 7 * seed, PartitionState(0)
    taken: list[Snapshot] = []
    for number, (offset, value) in enumerate(log, 1):
        apply(state, offset, value)
        if number >= cut:
            taken.append(snapshot_of(state, value))
    verifier = Verifier(0, 1, taken[0].restore(), [(found, 7, 8) for found in taken])
    for offset, value in log[cut:]:
        verifier.feed(offset, value, 0)
    found = verifier.finish()
    assert {f.what for f in found if f.kind in ("invariant", "snapshot_differs")} == set()
    assert verifier.snapshots == len(taken) > 0


def claim_record(expected: int = -1) -> bytes:
    return encode(ClaimingPartition(2, "c", "i", "g", 0, "t", 0, 500, expected))


def claimed(
    offset: int, epoch: int | None = None, was: str | None = None, cell: int = 0
) -> ev.Claimed:
    return ev.Claimed(
        offset,
        **WHO,
        topic="t",
        partition=cell,
        epoch=offset if epoch is None else epoch,
        interval_ms=500,
        previous_holder=was,
        previous_instance_id="i",
        previous_epoch=-1,
    )


def forged(check: Callable[[Invariants], Sequence[str]]) -> Sequence[str]:
    state = PartitionState(0)
    apply(state, 0, claim_record())
    return check(Invariants(state))


@pytest.mark.parametrize(
    ("event", "value", "says"),
    [
        (claimed(5, was="c"), claim_record(3), "accepted for version 3"),
        (claimed(5, epoch=0, was="c"), claim_record(0), "epochs are the log"),
        (claimed(5, was="other"), claim_record(0), "though c held it"),
        (claimed(5, was="c"), b"junk", "no record"),
        (ev.Renewed(5, **WHO, **CELL, epoch=4, next_offset=1), None, "under epoch 4"),
        (ev.Renewed(5, **WHO, **CELL, epoch=0, next_offset=-2), None, "goes back"),
        (
            ev.Released(5, **WHO, topic="t", partition=9, epoch=0, next_offset=1),
            None,
            "nobody holds",
        ),
        (
            ev.MessagesClaimed(5, **WHO, **CELL, epoch=0, from_offset=-1, to_offset=-1),
            None,
            "were before",
        ),
        (
            ev.PositionSet(5, **{**WHO, "client_id": "d"}, **CELL, next_offset=3),
            claim_record(0),
            "not paused",
        ),
        (ev.GroupResumed(5, **WHO), None, "not paused"),
        (ev.Beat(5, **WHO, cells=3, entries=0, membership=0), None, "renews 3 cells"),
        (ev.LevelSet(5, **WHO, level=3, previous=2), None, "not what the group had"),
        (
            ev.Founded(5, **WHO, identity="b", previous="a", base=0, partitions=1),
            None,
            "log 'a' is replaced",
        ),
        (ev.GroupForgotten(5, **WHO, cells=1), None, "while it was held"),
        (ev.Renewed(-1, **WHO, **CELL, epoch=0, next_offset=1), None, "was applied after"),
        (
            ev.Renewed(5, **{**WHO, "client_id": "d"}, **CELL, epoch=0, next_offset=1),
            None,
            "renewed by d; c holds it",
        ),
        (ev.Renewed(5, **TWIN, **CELL, epoch=0, next_offset=1), None, "renewed by c; c holds it"),
        (
            ev.PositionSet(5, **WHO, **CELL, next_offset=3),
            encode(SetPosition(2, "c", "i", "g", 0, "t", 0, 3, 4)),
            "accepted for version 4; the cell was at 0",
        ),
        (ev.GroupForgotten(5, **WHO, cells=1), None, "that was not paused"),
    ],
)
def test_a_forged_report_breaks_an_invariant(
    event: ev.Event, value: bytes | None, says: str
) -> None:
    assert any(says in what for what in forged(lambda i: i.check(event, value)))


def granted(start: int, end: int, topic: str = "u") -> ev.RangeGranted:
    return ev.RangeGranted(5, **WHO, topic=topic, partition=0, start=start, end=end, granted=1)


def split(start: int, at: int, end: int) -> ev.RangeSplit:
    return ev.RangeSplit(5, **WHO, topic="u", partition=0, start=start, at=at, end=end)


RANGE: dict[str, Any] = {"topic": "u/0@0", "partition": 0, "epoch": 1}


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (granted(0, 11), "a range up to 10 is granted up to 11"),
        (granted(9, 20), "the frontier is beyond"),
        (granted(3, 20, topic="t"), "of what c holds"),
        (split(0, 5, 11), "is split at 5"),
        (split(0, 10, 10), "is split at 10"),
        (split(0, 2, 10), "was begun, or nobody's"),
        (ev.Released(5, **WHO, **RANGE, next_offset=9, ended=True), "a range up to 10 ended at 9"),
    ],
)
def test_a_forged_report_about_ranges_breaks_an_invariant(event: ev.Event, says: str) -> None:
    state = PartitionState(0)
    apply(state, 0, claim_record())
    apply(state, 1, encode(ClaimingRange(2, "c", "i", "g", 1, "u", 0, 500, 0, 10)))
    apply(state, 2, encode(ClaimingMessages(2, "c", "i", "g", 2, "u/0@0", 0, 1, 2)))
    assert any(says in what for what in Invariants(state).check(event, None))


def test_a_range_that_is_not_what_the_events_say() -> None:
    state = PartitionState(0)
    apply(state, 0, encode(ClaimingRange(2, "c", "i", "g", 1, "u", 0, 500, 0, 10)))
    invariants = Invariants(state)
    [found] = state.groups["g"].open_ranges.of_cell.values()
    found.end = 11
    assert [what for _, what in invariants.finish(state)] == [
        "its range from 0 is not what the events say"
    ]


def test_a_state_that_is_not_what_the_events_add_up_to() -> None:
    state = PartitionState(0)
    invariants = Invariants(state)
    apply(state, 0, claim_record())  # nobody told the invariants
    assert invariants.finish(state) == [(("g", "t", 0), "the state has it")]
    invariants = Invariants(state)
    state.cells["g", "t", 0].holder = "thief"
    assert "holder = thief" in invariants.finish(state)[0][1]


def paused(offset: int, state: PartitionState, group: str = "g") -> None:
    apply(state, offset, encode(ReleaseGroup(2, "op", "o", group, offset, 9)))


def raised(offset: int, state: PartitionState, group: str = "g") -> None:
    apply(state, offset, encode(SetLevel(2, "op", "o", group, offset, 2, 1)))


def founded(offset: int, state: PartitionState) -> None:
    apply(state, offset, encode(Genesis(2, "op", "o", "-", offset, "log", "", 40, 1, 0)))


@pytest.mark.parametrize(
    ("change", "what"),
    [(paused, "its pause"), (raised, "its level"), (founded, "the log's identity")],
)
def test_what_the_events_did_not_tell_is_found_at_the_end(
    change: Callable[[int, PartitionState], None], what: str
) -> None:
    """Whether it came up, or went."""
    changed, empty = PartitionState(0), PartitionState(0)
    change(0, changed)
    assert Invariants(changed).finish(changed) == []
    for told, state in ((empty, changed), (changed, empty)):
        found = [text for _, text in Invariants(told).finish(state)]
        assert found == [f"{what} is not what the events say"]


def test_epochs_never_begin_below_those_that_were() -> None:
    state = PartitionState(0)
    founded(0, state)
    for base, wrong in ((39, ["epochs begin at 39, below those that were: 40"]), (40, [])):
        event = ev.Founded(5, **WHO, identity="b", previous="log", base=base, partitions=1)
        assert Invariants(state).check(event, None) == wrong


def test_what_is_another_than_it_was_told_to_be_is_found_at_the_end() -> None:
    before, after = PartitionState(0), PartitionState(0)
    paused(0, before)
    paused(1, after)
    assert [what for _, what in Invariants(before).finish(after)] == [
        "its pause is not what the events say"
    ]
    state = PartitionState(0)
    apply(state, 0, encode(ClaimingRange(2, "c", "i", "g", 1, "u", 0, 500, 0, 10)))
    invariants = Invariants(state)
    state.groups["g"].open_ranges.of_cell.clear()
    assert (("g", "u", 0), "its range from 0 is not what the events say") in invariants.finish(
        state
    )
    state = PartitionState(0)
    founded(0, state)
    invariants = Invariants(state)
    state.base += 1
    assert [what for _, what in invariants.finish(state)] == [
        "the log's identity is not what the events say"
    ]
    state = PartitionState(0)
    apply(state, 0, claim_record())
    state.next_offset = 0
    assert [what for _, what in Invariants(state).finish(state)] == [
        "version 0 lies beyond the end of the log"
    ]


def test_a_claim_in_a_paused_group_and_a_range_too_many_break_an_invariant() -> None:
    state = PartitionState(0)
    paused(0, state)
    assert "a claim was accepted while the group was paused" in Invariants(state).check(
        claimed(5), claim_record()
    )
    state = PartitionState(0)
    for offset in range(MAX_OPEN_RANGES):
        value = encode(ClaimingRange(2, "c", "i", "g", offset, "u", 0, 500, 0, 1))
        assert apply(state, offset, value)
    event = replace(granted(MAX_OPEN_RANGES, MAX_OPEN_RANGES + 1), offset=MAX_OPEN_RANGES)
    assert Invariants(state).check(event, None) == [f"more than {MAX_OPEN_RANGES} ranges are open"]


def test_a_resume_ends_the_pause_that_it_means() -> None:
    invariants = Invariants(PartitionState(0))
    assert not invariants.check(ev.GroupPaused(3, **WHO, expires_at_ms=9), None)
    other = encode(ResumeGroup(2, "c", "i", "g", 0, 2))
    (what,) = invariants.check(ev.GroupResumed(5, **WHO), other)
    assert "began at 3" in what


def test_a_session_that_was_renewed_otherwise_than_the_events_say() -> None:
    state = PartitionState(0)
    invariants = Invariants(state)
    for offset, value in enumerate((claim_record(), beat(1, 0, 3))):
        events: list[ev.Event] = []
        apply(state, offset, value, events)
        for event in events:
            assert not invariants.check(event, value)
    assert invariants.finish(state) == []
    state.groups["g"].sessions["c", "i"].version = 0
    assert invariants.finish(state) == [
        (("g", "t", 0), "the state says it was renewed at 0, the events 1")
    ]


def snapshot_of(state: PartitionState, last: bytes | None, writer: str = "w") -> Snapshot:
    return decode_snapshot(
        encode_snapshot(
            state.encode(),
            coordinator=0,
            partitions=1,
            next_offset=state.next_offset,
            anchor=anchor_of(last),
            writer=writer,
        )
    )


def beat(offset: int, epoch: int, position: int) -> bytes:
    return encode(heartbeat("c", offset, {epoch: position}, interval_ms=500))


LOG = [claim_record(), *(beat(n, 0, n) for n in range(1, 6))]


def judged(log: list[bytes], snapshots: list[Snapshot]) -> tuple[list[Finding], int]:
    verifier = Verifier(0, 1, PartitionState(0), [(s, 7, 8) for s in snapshots])
    for offset, value in enumerate(log):
        verifier.feed(offset, value, 1_000 + 500 * offset)
    return verifier.finish(), verifier.snapshots


def state_after(records: int) -> PartitionState:
    state = PartitionState(0)
    for offset, value in enumerate(LOG[:records]):
        apply(state, offset, value)
    return state


def test_right_snapshots_are_compared_and_right() -> None:
    good = [snapshot_of(state_after(n), LOG[n - 1]) for n in (2, 4, 6)]
    assert judged(LOG, good) == ([], 3)


def test_a_wrong_snapshot_is_told_in_what_it_differs() -> None:
    state = state_after(4)
    state.cells["g", "t", 0].next_offset = 99
    findings, _ = judged(LOG, [snapshot_of(state, LOG[3], "liar")])
    assert [(f.kind, f.level, f.offset, f.client_id) for f in findings] == [
        ("snapshot_differs", "error", 4, "liar")
    ]
    assert "t/0 of g: next_offset is 99 in it and 3 by the log" in findings[0].what


CHANGES: dict[str, Callable[[PartitionState], None]] = {
    "t/0 of g is only in the log's state": lambda s: s.groups["g"].cells.clear(),
    "the session of c (instance i) in g differs": lambda s: setattr(
        s.groups["g"].sessions["c", "i"], "metadata", b"x"
    ),
    "t/1 of g is not in the log's state": lambda s: _put(s, Cell(("t", 1))),
    "the pause of g differs": lambda s: setattr(s.groups["g"], "pause", None),
    "g is at level 1 in it and 2 by the log": lambda s: setattr(s.groups["g"], "level", 1),
    "g is at level 3 in it and 2 by the log": lambda s: setattr(s.groups["g"], "level", 3),
    "the log's identity is 'x' in it and 'log' by the log": lambda s: setattr(s, "identity", "x"),
    "the log's base is 41 in it and 40 by the log": lambda s: setattr(s, "base", 41),
    "the log's partitions is 2 in it and 1 by the log": lambda s: setattr(s, "partitions", 2),
}


def _put(state: PartitionState, cell: Cell) -> None:
    state.groups["g"].cells[cell.unit] = cell


@pytest.mark.parametrize("says", CHANGES)
def test_each_difference_of_a_snapshot_is_told(says: str) -> None:
    log = PartitionState(0)
    founded(0, log)
    raised(1, log)
    apply(log, 2, claim_record())
    paused(3, log)
    changed = PartitionState.decode(log.encode())
    CHANGES[says](changed)
    assert differences(changed, log) == [says]
    assert differences(log, log) == ["its digest is not that of its own state"]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_snapshot_of_another_number_of_partitions_is_none_of_this_log(partitions: int) -> None:
    snapshot = replace(snapshot_of(state_after(4), LOG[3]), partitions=partitions)
    verifier = Verifier(0, 2, PartitionState(0), [(snapshot, 7, 8)])
    for offset, value in enumerate(LOG):
        verifier.feed(offset, value, 1_000 + 500 * offset)
    assert [f.what for f in verifier.finish() if f.kind == "snapshot_differs"] == [
        "the snapshot of w at offset 4 (record 7 of the snapshot topic): it is of a topic of "
        f"{partitions} partitions, not 2"
    ]


def test_a_snapshot_that_holds_no_state_is_told_and_ends_nothing() -> None:
    snapshot = replace(snapshot_of(state_after(4), LOG[3]), state=b"", digest=b"?")
    findings, compared = judged(LOG, [snapshot, snapshot_of(state_after(6), LOG[5])])
    assert [f.kind for f in findings] == ["snapshot_differs"]
    assert compared == 2


def test_findings_are_in_the_order_of_the_log_each_with_its_place() -> None:
    """Those of snapshots and of the end are found before, or after, the others."""
    wrong = snapshot_of(state_after(6), b"other")
    verifier = Verifier(0, 1, PartitionState(0), [(wrong, 7, 8)])
    log = [*LOG, b"junk", b"junk"]
    verifier.feed(0, log[0], 1_000, create_time=True)
    for offset, value in enumerate(log[1:], 1):
        verifier.feed(offset, value, 1_000 + 500 * offset, create_time=True)
    found = verifier.finish()
    assert [(f.kind, f.offset) for f in found] == [
        ("create_time", 0),
        ("snapshot_differs", 6),
        ("foreign_record", 6),
        ("foreign_record", 7),
    ]


def test_what_is_wrong_at_the_end_names_its_cell() -> None:
    verifier = Verifier(0, 1, PartitionState(0))
    for offset, value in enumerate(LOG):
        verifier.feed(offset, value, 1_000 + 500 * offset)
    verifier._audit()
    verifier._state.cells["g", "t", 0].next_offset = 99
    (finding,) = verifier.finish()
    told = (finding.kind, finding.offset, finding.at_ms, finding.level)
    assert told == ("invariant", 6, 3_500, "error")
    assert (finding.group, finding.topic, finding.partition) == ("g", "t", 0)


@pytest.mark.parametrize(("kind", "plant"), PLANTS)
def test_what_the_protocol_withstands_is_a_warning(kind: str, plant: Plant) -> None:
    script = Script()
    plant(script)
    partitions = PARTITIONS if kind == "wrong_partition" else 1
    verifier = Verifier(0, partitions, PartitionState(0))
    for record in script.records:
        verifier.feed(*record)
    found = {f.kind: f.level for f in verifier.finish()}
    assert found[kind] == ("error" if kind in BREAK_A_RULE else "warning")


def test_a_snapshot_of_another_log_or_of_the_future() -> None:
    other, beyond = snapshot_of(state_after(4), b"other"), state_after(6)
    beyond.next_offset = 60
    findings, _ = judged(LOG, [other, snapshot_of(beyond, LOG[5])])
    assert ["another log" in findings[0].what, "beyond the end" in findings[1].what] == [True] * 2


def test_what_no_correct_client_writes_is_told_with_the_record() -> None:
    early = encode(ClaimingPartition(2, "d", "j", "g", 0, "t", 0, 500, 5))
    findings, _ = judged([*LOG, early], [])
    assert [(f.kind, f.level, f.offset, f.client_id) for f in findings] == [
        ("early_takeover", "error", 6, "d")
    ]
    assert msgspec.json.decode(findings[0].record or "")["expected_version"] == 5


def test_foreign_bytes_are_a_warning() -> None:
    findings, _ = judged([*LOG, b"\xff"], [])
    assert [(f.kind, f.level) for f in findings] == [("foreign_record", "warning")]

"""The checker can fail: doctored histories, each with one thing wrong, and it says which."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.chaos.checker import Case, Era, judge
from tests.chaos.rawlog import Record, coordinator
from tests.chaos.receiver import Received

MS = 1_000_000
SECOND = 1_000 * MS


def _record(kind: int, who: str, seq: int, group: str, *rest: Any) -> bytes:
    return bytes(msgpack.packb([kind, 2, who, f"i-{who}", group, seq, *rest]))


def _log(group: str, values: list[bytes]) -> dict[int, list[Record]]:
    log: dict[int, list[Record]] = {p: [] for p in range(4)}
    log[coordinator(group, 4)] = [
        Record(n, None, value, 3_000 * n) for n, value in enumerate(values)
    ]
    return log


def _act(at_ms: int, epoch: int, *, lease_ms: int = 1_900, work_ms: int = 1) -> list[Any]:
    at = at_ms * MS
    return ["act", at, at + 1, "cells", 0, epoch, at + lease_ms * MS, at + work_ms * MS]


def _claims() -> Case:
    """a holds a cell, dies, and b takes it over under epoch 2."""
    a, b = "claimer-a", "claimer-b"
    values = [
        _record(1, a, 0, "claimer", "cells", 0, 1000, -1),
        _record(2, a, 1, "claimer", 1000, 0, [], [], None, 1, 1),
        _record(1, b, 0, "claimer", "cells", 0, 1000, 1),
    ]
    cell = ["claimer", "cells", 0, b, f"i-{b}", 2, 2, -1, -1]
    return Case(
        interval_ms=1_000,
        histories={
            a: [["start", 1, f"i-{a}"], _act(1_000, 0), _act(1_100, 0)],
            b: [
                ["start", 1, f"i-{b}"],
                _act(4_000, 2),
                ["world", 5 * SECOND, coordinator("claimer", 4), 3, [cell]],
            ],
        },
        director=[["dead", 1_200 * MS, a], ["quiet", 3_900 * MS, {"cells": 1}], ["end", 60**6]],
        log=_log("claimer", values),
    )


def _kinds(case: Case) -> set[str]:
    return {text.partition(":")[0] for text in judge(case).anomalies}


def test_a_clean_take_over_is_clean() -> None:
    verdict = judge(_claims())
    assert verdict.anomalies == []
    assert verdict.figures["takeovers_after_kill"] == 1
    assert verdict.figures["takeover_median_s"] == pytest.approx(2.8, abs=0.01)
    assert verdict.figures["states_compared"] == 1


def _acts_late(case: Case) -> None:
    case.histories["claimer-a"].append(_act(4_001, 0))


def _lease_too_long(case: Case) -> None:
    case.histories["claimer-a"].append(_act(1_150, 0, lease_ms=2_900))
    case.director.pop(0)  # nobody died


def _invented_epoch(case: Case) -> None:
    case.histories["claimer-b"].append(_act(4_100, 7))


def _stolen_epoch(case: Case) -> None:
    case.histories["claimer-a"].append(_act(3_000, 2))


def _other_state(case: Case) -> None:
    case.histories["claimer-b"][-1][4][0][5] = 0


def _too_slow(case: Case) -> None:
    case.histories["claimer-b"][1] = _act(20_000, 2)


def _never_again(case: Case) -> None:
    del case.histories["claimer-b"][1]


def _taken_early(case: Case) -> None:
    records = case.log[coordinator("claimer", 4)]
    records[2] = records[2]._replace(at_ms=records[1].at_ms + 1_900)


def _finding(case: Case) -> None:
    """Of 9.9 s; the fault that would explain it was over by then, but for its kind."""
    case.director += [["clock", 0, 0], ["fault", "stop", 1 * SECOND, 2 * SECOND, "a"]]
    case.findings = [_found("sequence", 9_900)]


def _garbage(case: Case) -> None:
    case.log[0].append(Record(100, None, b"\xc1"))


def _wrong_place(case: Case) -> None:
    p = (coordinator("claimer", 4) + 1) % 4
    case.log[p].append(Record(0, None, _record(1, "x", 0, "claimer", "cells", 0, 1000, -1)))


@pytest.mark.parametrize(
    ("doctor", "kind"),
    [
        (_acts_late, "two holders"),
        (_lease_too_long, "two leases"),
        (_invented_epoch, "no such claim"),
        (_stolen_epoch, "another's claim"),
        (_other_state, "states differ"),
        (_too_slow, "not free in time"),
        (_never_again, "not held when quiet"),
        (_taken_early, "taken too early"),
        (_finding, "verify"),
        (_garbage, "strange record"),
        (_wrong_place, "wrong coordination partition"),
    ],
)
def test_what_is_wrong_with_claims_is_seen(doctor: Callable[[Case], None], kind: str) -> None:
    case = _claims()
    doctor(case)
    assert kind in _kinds(case)


def _found(kind: str, at_ms: int) -> dict[str, Any]:
    return {"kind": kind, "at_ms": at_ms, "coordinator": 0, "offset": 7, "what": "it is so"}


def test_what_verify_finds_has_to_be_the_trace_of_a_fault() -> None:
    case = _claims()
    case.director += [["clock", 5 * SECOND, 0], ["fault", "stop", 1 * SECOND, 2 * SECOND, "a"]]
    case.findings = [_found("late_heartbeat", 1_000)]  # 6 s after boot
    verdict = judge(case)
    assert verdict.anomalies == []
    assert verdict.figures["verify_findings"] == {"late_heartbeat": 1}
    for late in (40_000, -5_000):
        case.findings = [_found("late_heartbeat", late)]
        assert _kinds(case) == {"verify"}


@pytest.mark.parametrize("kind", ["impossible_epoch", "impossible_version"])
def test_traces_of_another_log_are_explained_where_there_was_one_and_nowhere_else(
    kind: str,
) -> None:
    case = _claims()
    fault = ["fault", "topic_made_anew", 1 * SECOND, 2 * SECOND, "1 topics"]
    case.director += [["clock", 5 * SECOND, 0], fault]
    case.findings = [_found(kind, 1_000)]
    assert _kinds(case) == {"verify"}
    case.log_before = {0: [Record(0, None, b"")]}
    assert _kinds(case) == set()


def test_a_claim_that_names_a_lost_record_may_name_by_chance_what_there_is_now() -> None:
    case = _claims()
    _taken_early(case)
    p = coordinator("claimer", 4)
    case.log_before = {p: case.log[p][:2]}
    assert _kinds(case) == {"taken too early"}
    case.log_before = {p: [case.log[p][0], case.log[p][1]._replace(value=b"lost")]}
    verdict = judge(case)
    assert verdict.anomalies == []
    assert verdict.figures["taken_by_chance"] == 1
    assert "shortest_silence_intervals" not in verdict.figures


def test_a_takeover_has_a_bound_unless_the_machine_stood_still() -> None:
    case = _claims()
    case.histories["claimer-b"][1] = _act(4_300, 2)  # 3.1 s after the death
    assert _kinds(case) == {"not free in time"}
    case.director.insert(1, ["fault", "stall", 2_000 * MS, 2_400 * MS, "this machine"])
    verdict = judge(case)
    assert verdict.anomalies == []
    assert verdict.figures["takeovers_with_bound"] == 0
    assert verdict.figures["takeover_max_s"] == pytest.approx(3.1, abs=0.01)


def test_the_shortest_silence_before_a_takeover_is_told() -> None:
    verdict = judge(_claims())
    assert verdict.figures["takeovers_in_the_log"] == 1
    assert verdict.figures["shortest_silence_intervals"] == 3.0


def _ready(process: str, at_ms: int = 0) -> list[list[Any]]:
    return [[what, at_ms * MS, f"i-{process}"] for what in ("start", "ready")]


def _eras(*, second_epoch: int = 5_000_000, late_ms: int = 1_100) -> Case:
    """a holds a cell in a log that is made anew at 2.0 s, and b in the new one, with another base.

    `late_ms`: when a acts under the old claim for the last time.
    """
    a, b = "claimer-a", "claimer-b"
    group = ("claimer", "cells", 0)
    genesis = bytes(msgpack.packb([9, 2, b, f"i-{b}", group[0], 0, "new", "", second_epoch - 1, 4]))
    home = coordinator("claimer", 4)
    first = _log("claimer", [_record(1, a, 0, *group, 1000, -1)])
    second = _log("claimer", [genesis, _record(1, b, 1, *group, 1000, -1)])
    assert len(second[home]) == 2
    return Case(
        interval_ms=1_000,
        histories={
            a: [*_ready(a), _act(1_000, 0), _act(late_ms, 0)],
            b: [*_ready(b), _act(6_000, second_epoch)],
        },
        director=[["quiet", 5_900 * MS, {"cells": 1, "alo": 0}], ["end", 60**6]],
        log={p: [] for p in range(4)},
        claims=[Era("topic_made_anew", 2 * SECOND, first), Era("", 7 * SECOND, second)],
    )


def test_a_log_that_is_made_anew_is_judged_in_two_parts() -> None:
    verdict = judge(_eras())
    assert verdict.anomalies == []
    assert verdict.figures["eras_of_the_claims"] == 2
    assert verdict.figures["tenures"] == 2
    assert judge(_eras(late_ms=3_900)).anomalies == [], "within a lease"


def test_a_claim_of_a_log_that_is_gone_is_held_for_no_longer_than_a_lease() -> None:
    verdict = judge(_eras(late_ms=4_100))
    assert "era 1: no such claim" in {text.partition(": c")[0] for text in verdict.anomalies}


def _given_again() -> Case:
    case = _eras(second_epoch=1)
    case.claims[0].log = _log(
        "claimer",
        [_record(2, "x", 0, "claimer", 1000, 0, [], [], None, 1, 1)] * 3
        + [_record(1, "claimer-a", 0, "claimer", "cells", 0, 1000, -1)],
    )
    case.histories["claimer-a"][2:] = [_act(1_000, 3)]
    return case


def test_an_epoch_that_is_given_out_again_is_seen() -> None:
    assert [text.split(":")[1] for text in judge(_given_again()).anomalies] == [
        " epoch given again"
    ]


_LINK = {"claimer-a": "NETC-1", "claimer-b": "NETA-0"}


@pytest.mark.parametrize(
    ("restarted", "stopped", "cut", "seen"),
    [
        ({"claimer-a": 2_500, "claimer-b": 2_500}, "", {}, False),
        ({"claimer-a": 2_500, "claimer-b": 1_900}, "", {}, True),
        ({"claimer-b": 2_500}, "claimer-a", {}, False),
        ({"claimer-b": 2_500}, "claimer-b", {}, True),
        ({"claimer-b": 2_500}, "", {"claimer-a": (2_100, 4_900)}, False),
        ({"claimer-b": 2_500}, "", {"claimer-a": (2_100, 2_900)}, True),
        ({"claimer-b": 2_500}, "", {"claimer-a": (4_000, 9_000)}, True),
        ({"claimer-b": 2_500}, "", {"claimer-b": (2_100, 4_900)}, True),
    ],
)
def test_an_epoch_may_be_given_again_where_nobody_who_knows_better_could_write(
    restarted: dict[str, int], stopped: str, cut: dict[str, tuple[int, int]], seen: bool
) -> None:
    case = _given_again()
    for process, at_ms in restarted.items():
        case.histories[process] += _ready(process, at_ms)
        case.histories[process].sort(key=lambda line: line[1])
    if stopped:
        case.director.append(["fault", "stop", 1_900 * MS, 4_800 * MS, f"alo-1, {stopped}"])
    for process, (began_ms, ended_ms) in cut.items():
        whom = f"hole: NETB-0, {_LINK[process]}"
        case.director.append(["fault", "link_hole", began_ms * MS, ended_ms * MS, whom])
    verdict = judge(case)
    kinds = [text.split(":")[1] for text in verdict.anomalies]
    assert kinds == ([" epoch given again"] if seen else [])
    assert verdict.figures["epochs_given_again"] == (not seen)


@pytest.mark.parametrize(("fault", "seen"), [("power_loss", False), ("database_pause", True)])
def test_an_epoch_may_be_given_again_while_the_cluster_is_unwell(fault: str, *, seen: bool) -> None:
    case = _given_again()
    case.director.append(["fault", fault, 2_100 * MS, 4_900 * MS, "broker 1, 49 partitions"])
    assert judge(case).figures["epochs_given_again"] == (not seen)


@pytest.mark.parametrize(("died_ms", "seen"), [(900, True), (2_500, False), (9_000, True)])
def test_an_epoch_may_be_given_again_where_who_knows_better_is_dead(
    died_ms: int, *, seen: bool
) -> None:
    """`claimer-a` is; the other one began afterwards."""
    case = _given_again()
    case.histories["claimer-b"] += _ready("claimer-b", 2_500)
    case.histories["claimer-b"].sort(key=lambda line: line[1])
    case.histories["claimer-a"] = [*_ready("claimer-a", 950), _act(1_000, 3)]
    case.director.append(["dead", died_ms * MS, "claimer-a"])
    assert judge(case).figures["epochs_given_again"] == (not seen)


def test_an_epoch_may_be_given_again_in_a_log_that_nobody_could_write_to() -> None:
    """They could write to the one before it, which was lost as well."""
    case = _given_again()
    case.claims.insert(1, Era("topic_made_anew", 4_000 * MS, {p: [] for p in range(4)}))
    case.director.append(["fault", "link_hole", 4_100 * MS, 9_000 * MS, "hole: NETA-0, NETC-1"])
    verdict = judge(case)
    assert "epoch given again" not in " ".join(verdict.anomalies)
    assert verdict.figures["epochs_given_again"] == 1


@pytest.mark.parametrize(("after_ms", "seen"), [(1, False), (2_000, False), (2_001, True)])
def test_an_epoch_may_be_given_again_until_who_knows_better_has_written(
    after_ms: int, seen: bool
) -> None:
    case = _eras(second_epoch=1)
    home = coordinator("claimer", 4)
    beats = [_record(2, "x", n, "claimer", 1000, 0, [], [], None, 1, 1) for n in range(3)]
    claim = _record(1, "claimer-a", 0, "claimer", "cells", 0, 1000, -1)
    case.claims[0].log = _log("claimer", [*beats, claim])
    case.histories["claimer-a"][2:] = [_act(1_000, 3)]
    last = case.claims[1].log[home][-1]
    better = msgpack.packb([9, 2, "x", "i-x", "claimer", 0, "better", "new", 1_000, 4])
    case.claims[1].log[home].append(Record(2, None, better, last.at_ms + after_ms))
    verdict = judge(case)
    kinds = [text.split(":")[1] for text in verdict.anomalies]
    assert kinds == ([" epoch given again"] if seen else [])
    assert verdict.figures["epochs_given_again"] == (not seen)


def test_a_process_may_tell_of_the_log_before_that_it_has_not_seen_go() -> None:
    case = _eras()
    a = "claimer-a"
    cell = ["claimer", "cells", 0, a, f"i-{a}", 0, 0, -1, -1]
    told = ["world", 4_500 * MS, coordinator("claimer", 4), 1, [cell]]
    case.histories[a].append(told)
    assert judge(case).anomalies == []
    cell[5] = 1
    assert [text.split(":")[1] for text in judge(case).anomalies] == [" states differ"]


def test_who_cannot_follow_the_level_does_not_act() -> None:
    case = _claims()
    case.director.append(["level", 1_300 * MS, 4_100 * MS, ["claimer-a"]])
    verdict = judge(case)
    assert verdict.anomalies == []
    assert verdict.figures["levels_changed"] == 1
    case.director[-1][3] = ["claimer-b"]
    assert _kinds(case) == {"acts beyond its level"}


def test_a_suspended_action_is_counted_and_no_anomaly() -> None:
    case = _claims()
    case.histories["claimer-a"].append(_act(1_150, 0, work_ms=9_000))
    verdict = judge(case)
    assert verdict.anomalies == []
    assert verdict.figures["actions_overtaken_while_suspended"] == 1


def _deliver(topic: str, at_ms: int, epoch: int, offset: int) -> list[Any]:
    at = at_ms * MS
    return ["deliver", at, at + 1, topic, 0, epoch, at + SECOND, offset, at + 2]


def _messages(topic: str, values: list[bytes], delivered: dict[str, list[list[Any]]]) -> Case:
    records = [Record(n, None, b"m%d" % n) for n in range(4)]
    return Case(
        interval_ms=1_000,
        histories={name: [["start", 1, f"i-{name}"], *lines] for name, lines in delivered.items()},
        director=[],
        log=_log(topic, values),
        topics={topic: {0: records}},
    )


def _amo(second: list[int], first: int = 2, claimed: int = 4) -> Case:
    a, b = "amo-a", "amo-b"
    values = [
        _record(1, a, 0, "amo", "amo", 0, 1000, -1),
        _record(4, a, 1, "amo", "amo", 0, 0, 2),
        _record(1, b, 0, "amo", "amo", 0, 1000, 1),
        _record(4, a, 2, "amo", "amo", 0, 0, 4),  # a zombie's: another epoch
        _record(4, b, 1, "amo", "amo", 0, 2, claimed),
    ]
    delivered = {
        a: [_deliver("amo", 1_000 + n, 0, n) for n in range(first)],
        b: [_deliver("amo", 5_000 + n, 2, n) for n in second],
    }
    return _messages("amo", values, delivered)


def test_messages_claimed_and_delivered_once_are_fine() -> None:
    verdict = judge(_amo([2, 3]))
    assert verdict.anomalies == []
    assert verdict.figures["amo_delivered"] == 4


def test_a_message_delivered_twice_is_seen() -> None:
    assert "delivered twice" in _kinds(_amo([1, 2, 3]))


def test_a_message_delivered_without_a_claim_is_seen() -> None:
    assert "delivered unclaimed" in _kinds(_amo([2, 3], claimed=3))
    assert "delivered unclaimed" in _kinds(_amo([], first=3))  # the zombie's range was rejected


def _alo(second: list[int], *, stored: int = 1, first_ms: tuple[int, ...] = (1000, 1001)) -> Case:
    a, b = "alo-a", "alo-b"
    values = [
        _record(1, a, 0, "alo", "alo", 0, 1000, -1),
        _record(2, a, 1, "alo", 1000, 0, [0, stored], [], None, 1, 1),
        _record(1, b, 0, "alo", "alo", 0, 1000, 1),
    ]
    delivered = {
        a: [_deliver("alo", at, 0, n) for n, at in enumerate(first_ms)],
        b: [_deliver("alo", 9_000 + n, 2, n) for n in second],
    }
    return _messages("alo", values, delivered)


def test_a_message_that_comes_again_within_the_bound_is_fine() -> None:
    verdict = judge(_alo([1, 2, 3]))
    assert verdict.anomalies == []
    assert verdict.figures["alo_delivered_again"] == 1


def test_a_message_that_was_never_delivered_is_seen() -> None:
    assert "never delivered" in _kinds(_alo([1, 2]))


def test_a_message_that_was_passed_over_is_seen() -> None:
    assert "not in order" in _kinds(_alo([2, 3], stored=1))
    assert "not in order" in _kinds(_alo([1, 3, 2]))


def test_a_message_that_comes_again_late_is_seen() -> None:
    """The holder went on for more than two intervals, so it must have stored the first ones."""
    late = _alo([1, 2, 3], first_ms=(1_000, 1_001, 1_002, 3_100))
    assert "came again too late" in _kinds(late)


def _handled(calls: list[tuple[int, int, str]], dead: tuple[int, ...] = ()) -> Case:
    """Messages 0 to 3, all of one key. A call: (at, offset, outcome)."""
    records = [Record(n, b"k", b"m%d" % n) for n in range(4)]
    lines: list[list[Any]] = []
    for at, offset, outcome in calls:
        look = [at * MS, at * MS + 1, "run", 0, 0, (at + 1000) * MS]
        lines.append(["handle", *look, offset, "k", outcome, True, (at + 5) * MS])
    return Case(
        interval_ms=1_000,
        histories={"run-0": [["start", 1, "i-run-0"], *lines]},
        director=[],
        log=_log("run", [_record(1, "run-0", 0, "run", "run", 0, 1000, -1)]),
        topics={"run": {0: records}, "run.dlq": {0: [records[n] for n in dead]}},
    )


_ALL_HANDLED = [(10, 0, "done"), (20, 1, "done"), (40, 2, "done"), (50, 3, "done")]
_FAILED = [(at, 1, "failed") for at in (20, 26, 32)]


@pytest.mark.parametrize(
    ("calls", "dead", "kinds"),
    [
        (_ALL_HANDLED, (), set()),
        ([*_ALL_HANDLED[:1], *_FAILED, *_ALL_HANDLED[2:]], (1,), set()),
        (_ALL_HANDLED[:3], (), {"never handled"}),
        ([*_ALL_HANDLED, (60, 3, "done")], (), {"order of a key"}),
        ([_ALL_HANDLED[1], (30, 0, "done"), *_ALL_HANDLED[2:]], (), {"order of a key"}),
        ([*_ALL_HANDLED[:3], (42, 3, "done")], (), {"two handlers of a key"}),
        (
            [(5, 0, "failed"), *_ALL_HANDLED[1:], (60, 0, "done")],
            (),
            {"a failed message is passed over", "order of a key"},
        ),
        (
            [(10, 0, "done"), *_FAILED[:2], (40, 2, "done"), (50, 3, "done")],
            (1,),
            {"given up too early"},
        ),
    ],
)
def test_what_handlers_were_called_with_is_judged(
    calls: list[tuple[int, int, str]], dead: tuple[int, ...], kinds: set[str]
) -> None:
    assert _kinds(_handled(calls, dead)) == kinds


def test_of_a_message_that_was_appended_twice_each_copy_is_given_up_for_itself() -> None:
    again = [(at, 3, "failed") for at in (50, 56, 62)]
    case = _handled([_ALL_HANDLED[0], *_FAILED, _ALL_HANDLED[2], *again], (1, 3))
    for topic, at in (("run", 3), ("run.dlq", 1)):
        records = case.topics[topic][0]
        records[at] = records[at]._replace(value=b"m1")
    assert _kinds(case) == set()


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (_ALL_HANDLED[1:], "run/0/0: nobody tried; the last after it: 3 under epoch 0"),
        (
            [*_ALL_HANDLED[:3], (50, 3, "failed")],
            "run/0/3: failed by run-0 under epoch 0; the last after it: none",
        ),
    ],
)
def test_of_what_nobody_handled_it_is_told_who_tried(
    calls: list[tuple[int, int, str]], told: str
) -> None:
    assert f"never handled: {told}" in judge(_handled(calls)).anomalies


def test_a_dead_letter_of_no_message_is_seen() -> None:
    case = _handled(_ALL_HANDLED)
    case.topics["run.dlq"][0].append(Record(0, b"k", b"of nothing"))
    assert _kinds(case) == {"dead letter of nothing"}


def _rows(topic: str, rows: list[tuple[str, str, int]]) -> Case:
    records = [
        Record(n, key.encode(), json.dumps({"row": row, "seq": seq}).encode())
        for n, (row, key, seq) in enumerate(rows)
    ]
    case = Case(1_000, {}, [], {p: [] for p in range(4)}, {topic: {0: records}})
    case.truth = case.maria_truth = [("r1", 7, 1), ("r2", 7, 2), ("r3", 8, 1)]
    return case


_GOOD = [("r1", "7", 1), ("r3", "8", 1), ("r2", "7", 2)]


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        (_GOOD, set()),
        (_GOOD[:2], {"not relayed"}),
        ([*_GOOD, _GOOD[0]], {"relayed twice"}),
        ([*_GOOD, ("r9", "8", 2)], {"rolled back, but relayed"}),
        ([_GOOD[2], _GOOD[0], _GOOD[1]], {"order of a key"}),
    ],
)
@pytest.mark.parametrize("topic", ["rows", "ranged", "logged", "maria"])
def test_rows_are_relayed_once_and_in_order(
    topic: str, rows: list[tuple[str, str, int]], kinds: set[str]
) -> None:
    assert _kinds(_rows(topic, rows)) == kinds


def test_rows_of_mariadb_are_judged_by_its_own_books() -> None:
    case = _rows("maria", _GOOD)
    case.maria_truth = [*case.maria_truth, ("r4", 8, 2)]
    assert _kinds(case) == {"not relayed"}


def _received(rows: list[tuple[str, str, int]]) -> list[Received]:
    return [
        Received(key, json.dumps({"row": row, "seq": seq}), f"g.posted.{row}", 5)
        for row, key, seq in rows
    ]


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        (_GOOD, set()),
        ([_GOOD[0], *_GOOD], set()),
        ([*_GOOD, _GOOD[2]], set()),
        (_GOOD[:2], {"not relayed"}),
        ([], {"not relayed"}),
        ([*_GOOD, _GOOD[0]], {"order of a key"}),
        ([_GOOD[2], *_GOOD], {"order of a key"}),
        ([*_GOOD, ("r9", "8", 2)], {"rolled back, but relayed"}),
        ([*_GOOD, ("r3", "7", 1)], {"rolled back, but relayed"}),
    ],
)
def test_rows_reach_a_destination_at_least_once_and_in_order(
    rows: list[tuple[str, str, int]], kinds: set[str]
) -> None:
    case = _rows("rows", _GOOD)
    case.received = _received(rows)
    verdict = judge(case)
    assert {text.partition(":")[0] for text in verdict.anomalies} == kinds
    if not kinds:
        assert verdict.figures["posted"] == 3
        assert verdict.figures["posted_again"] == len(rows) - 3


def test_a_row_keeps_its_idempotency_key_and_no_other_has_it() -> None:
    case = _rows("rows", _GOOD)
    case.received = _received([*_GOOD, _GOOD[2]])
    case.received[-1] = case.received[-1]._replace(idempotency_key="g.posted.other")
    assert _kinds(case) == {"another idempotency key"}
    case.received = [each._replace(idempotency_key="one") for each in _received(_GOOD)]
    assert _kinds(case) == {"another idempotency key"}


def _version_1(*deliveries: tuple[str, int, int, bool]) -> Case:
    """Messages 0 to 3. A delivery: (process, at, offset, whether its claim was held)."""
    histories: dict[str, list[list[Any]]] = {}
    for process, at, offset, held in deliveries:
        lines = histories.setdefault(process, [["start", 1, f"i-{process}"]])
        lines.append(["text", at * MS, at * MS + 1, 0, 0, held, offset, at * MS + 2])
    records = [Record(n, None, b"m%d" % n) for n in range(4)]
    return Case(1_000, histories, [], {p: [] for p in range(4)}, {"text": {0: records}})


_A = [("text-0", 1_000 + n, n, True) for n in range(2)]
_LATE = [("text-1", 4_998 + n, n, True) for n in range(2)]
_B = [("text-1", 5_000 + n, n, True) for n in range(2, 4)]


@pytest.mark.parametrize(
    ("deliveries", "kinds"),
    [
        ([*_A, *_B], set()),
        ([*_A, ("text-1", 4_999, 1, True), *_B], set()),
        ([*_A, ("text-0", 5_100, 2, False), *_B], set()),
        ([*_A, ("text-0", 5_100, 2, True), *_B], {"two holders"}),
        ([*_A, *_B[:1]], {"never delivered"}),
        ([*_A, *_B[::-1]], {"not in order"}),
        (
            [*_A, ("text-0", 3_100, 2, True), *_LATE, *_B],
            {"came again too late"},
        ),
    ],
)
def test_claims_without_epochs_are_judged_by_what_their_holders_were_told(
    deliveries: list[tuple[str, int, int, bool]], kinds: set[str]
) -> None:
    assert _kinds(_version_1(*deliveries)) == kinds


@pytest.mark.parametrize(("client", "is_fine"), [("text-1", True), ("text-0", False)])
def test_a_late_heartbeat_of_another_sets_a_partition_back(client: str, is_fine: bool) -> None:
    case = _version_1(*_A, ("text-0", 3_100, 2, True), *_LATE, *_B)
    values = [
        "ClaimingPartition/1/100/i-0/text-0/text/text/0",
        "Heartbeat/1/100/i-0/text-0/text/text/0/3",
        f"Heartbeat/1/700/i/{client}/text/text/0/0",
    ]
    case.text_log = {0: [Record(n, None, value.encode()) for n, value in enumerate(values)]}
    assert _kinds(case) == (set() if is_fine else {"came again too late"})


def test_a_process_that_starts_again_has_other_claims() -> None:
    case = _version_1(*_A, *_B)
    case.histories["text-0"] += [["start", 2, "i-2"], *case.histories.pop("text-1")[1:]]
    assert _kinds(case) == set()
    assert judge(case).figures["text_claims"] == 2


def test_a_record_that_kafka_lost_is_seen() -> None:
    case = _amo([2, 3])
    case.histories["writer"] = [
        ["acknowledged", "amo", 0, 3, "m3"],
        ["acknowledged", "amo", 0, None, "m2"],
    ]
    assert _kinds(case) == set()
    case.histories["writer"].append(["acknowledged", "amo", 0, 4, "m4"])
    assert _kinds(case) == {"Kafka lost a record"}


@pytest.mark.parametrize(("threads", "kinds"), [(55, set()), (90, {"clients left behind"})])
def test_clients_that_failed_and_are_there_in_the_end_are_seen(
    threads: int, kinds: set[str]
) -> None:
    case = _claims()
    case.director.append(["threads", 6 * SECOND, {"claimer-a": 12, "harvester-0": threads}])
    assert _kinds(case) == kinds
    assert judge(case).figures["most_threads"] == threads

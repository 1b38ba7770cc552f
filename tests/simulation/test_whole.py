"""Whole clients in virtual time, at the size of a test run; and that the checks can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harvest.core.dead_letters import BadRowFilter
from harvest.runtime.candidacy import FairShare
from marshal_py.consumer import held_partition
from marshal_py.consumer.iteration import Iteration
from tests.simulation.whole.__main__ import RICH, Result, run_seeds
from tests.simulation.whole.history import KINDS, run

HISTORIES = {
    "handlers": 25,
    "messages": 10,
    "logs": 30,
    "shards": 15,
    "dead_letters": 40,
    "sinks": 30,
    "relays": 30,
    "wals": 30,
}
"""Of each kind; 60 of others. ``python -m tests.simulation.whole`` runs more, with every fault."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_invariant_holds_in_every_history(kind: str) -> None:
    result = run_seeds(kind, 1, HISTORIES.get(kind, 60))
    assert result.failures == []
    assert result.fired["freeze"]
    assert result.fired["kill"]


@pytest.mark.parametrize(
    "seed",
    [
        14,  # the position while a batch was in hand was that of its last message
        16,  # a heartbeat that tells of other metadata carried old positions
        49,  # a claim of messages that had been given up turned up late: nothing came ever after
        118,  # what had been claimed before a lapse came after what was claimed later
        504,  # the same, when the lease came back in between
        319,  # who gave up a partition and got it back never gave up another
    ],
)
def test_bugs_of_consumers_that_were_found_here(seed: int) -> None:
    assert run("consumers", seed).violation is None


@pytest.mark.parametrize(
    "seed",
    [
        0,  # a pause of the group gave back ranges as if nothing of them had been begun
        4,  # at most once, a range was cut where the log had it claimed, and the consumer failed
        6,  # a range without any message was never done, and was asked for again and again
        11,  # at most once, what was claimed of a range that was cut never went out
        22,  # what was acknowledged while the consumer was being closed counted for nothing
    ],
)
def test_bugs_of_sharing_by_ranges_that_were_found_here(seed: int) -> None:
    assert run("messages", seed).violation is None


@pytest.mark.parametrize("kind", list(KINDS))
def test_one_seed_is_one_history_in_any_process(kind: str) -> None:
    program = (
        "from zlib import crc32\n"
        "from tests.simulation.whole.history import run\n"
        f"traces = [run({kind!r}, seed, trace=True).trace for seed in range(3)]\n"
        "print(crc32(repr(traces).encode()))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(texts) == 1, texts


def test_a_campaign_in_which_a_fault_never_fired_fails() -> None:
    assert "freeze" in Result("consumers", histories=RICH).never_fired


def test_a_position_ahead_of_the_work_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    position = held_partition.HeldPartition.position
    monkeypatch.setattr(
        held_partition.HeldPartition,
        "position",
        lambda self: position(self) + (self.run is not None),
    )
    found = run_seeds("consumers", 1, 20, stop_after=1).failures
    assert [failure.invariant for failure in found] == ["at least once: stored is done"]


def test_handing_out_without_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Iteration, "_may_hand_out", lambda self, part: True)
    found = run_seeds("consumers", 1, 60, stop_after=1).failures
    assert found


def test_a_row_that_passes_one_that_is_aside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find_bad = BadRowFilter.find_bad
    monkeypatch.setattr(
        BadRowFilter,
        "find_bad",
        lambda self, rows, **how: [row for row in find_bad(self, rows, **how) if not row.waits],
    )
    found = run_seeds("dead_letters", 1, 30, stop_after=1).failures
    assert [failure.invariant for failure in found] == ["order of a key"]


def test_shards_that_are_never_given_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairShare, "_give_up_one", lambda self, decision, leading: None)
    found = run_seeds("shards", 1, 30, stop_after=1).failures
    assert [failure.invariant for failure in found] == ["shares are fair"]

"""The campaign at the size of a test run, and the simulator's own promises."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation import campaign
from tests.simulation.scenario import KINDS, Scenario, generate
from tests.simulation.shrink import timeline
from tests.simulation.simulator import run

HISTORIES = campaign.RICH
"""CI runs 10,000 beside the tests: ``python -m tests.simulation --histories 10000 --compiled``."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_holds_in_every_history() -> None:
    result = campaign.run_campaign(1, HISTORIES, 1)
    assert result.failures == [], timeline(generate(result.failures[0].seed), last=60)
    assert result.never_fired == []
    assert set(result.kinds) == set(KINDS)


@pytest.mark.parametrize(
    "seed",
    [
        128_770,  # the claimant: what was wanted while leaving was claimed and renewed for ever
        103_376,  # the checker: a cell that nobody has held since its group was forgotten
        137_772,  # the checker: a process that crashed went on for one step
        517_148,  # the checker: two of one client_id came across each other late
        568_409,  # the simulator: what a cut held back came when all faults had long ended
        1_199_313,  # the same, of what waited for a leader
        172_458,  # the checker: who goes silent may claim messages until its lease ends
        3_003_862,  # the checker: what was claimed before a truncation, and outlived it
        41_125_820,  # the checker: a clock that jumps ends the time for which an answer is waited
    ],
)
def test_what_the_long_campaign_found_stays_mended(seed: int) -> None:
    assert run(generate(seed)).violation is None


def test_one_seed_is_one_history_to_the_byte() -> None:
    for seed in range(20):
        first, second = run(generate(seed)), run(generate(seed), trace=True)
        assert first.fingerprint == second.fingerprint
        assert first.fired == second.fired


def test_a_history_is_the_same_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from tests.simulation.scenario import generate\n"
        "from tests.simulation.simulator import run\n"
        "print([run(generate(seed)).fingerprint for seed in range(20)])"
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


def test_a_scenario_survives_json() -> None:
    for seed in range(50):
        scenario = generate(seed)
        again = Scenario.from_json(json.loads(json.dumps(scenario.to_json())))
        assert again == scenario
        if seed < 5:
            assert run(again).fingerprint == run(scenario).fingerprint


def test_a_campaign_in_which_a_fault_never_fired_fails() -> None:
    result = campaign.Result(histories=campaign.RICH)
    assert "freeze" in result.never_fired
    assert not result.good

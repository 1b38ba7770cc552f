"""Members that share one partition, amid faults: a short run of each kind."""

from __future__ import annotations

import pytest

from tests.chaos.sharing import run


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("sharing", ["ranges", "keys"])
def test_nothing_is_lost_and_nothing_comes_twice(sharing: str, mode: str) -> None:
    result = run(sharing=sharing, mode=mode, seconds=25, seed=1)
    assert not result.anomalies
    for name in ("messages", "claims", "takeovers"):
        assert result.figures[name] > 0, f"nothing was tested: {name}"

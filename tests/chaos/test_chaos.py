"""One short run of the chaos: every fault once."""

from __future__ import annotations

import pytest

from tests.chaos.run import run


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_breaks_whatever_is_broken() -> None:
    said: list[str] = []
    result = run(seconds=20, seed=1, say=said.append)
    assert result.passed, "\n".join([*said, result.as_text()])

"""Tests that GUARANTEES.md names fail when the promise is broken."""

from __future__ import annotations

import re

import pytest

from tests.mutation.find import find
from tests.mutation.guarantees import BROKEN, Broken, notices
from tests.mutation.mutants.promises import PROMISES
from tests.support.paths import SPECS

_LINES = dict(
    re.findall(r"^\| ([GHS]\d+) \|(.*)$", (SPECS / "GUARANTEES.md").read_text(), re.MULTILINE)
)
_IDS = [f"{b.line}: {b.bug}: {b.test.rpartition('::')[2]}" for b in BROKEN]


@pytest.mark.parametrize("broken", BROKEN, ids=_IDS)
def test_the_line_names_the_test_and_the_bug_applies(broken: Broken) -> None:
    assert f"`{broken.test}`" in _LINES[broken.line]
    assert find(broken.bug).code()


def test_every_bug_that_was_made_for_a_promise_is_planted() -> None:
    assert {promise.name for promise in PROMISES} <= {broken.bug for broken in BROKEN}


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", BROKEN, ids=_IDS)
def test_the_named_test_fails_when_the_promise_is_broken(broken: Broken) -> None:
    assert notices(broken)

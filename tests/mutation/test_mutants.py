"""The mutation check at the size of a test run: every mutant still applies, and some are tried."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutation.__main__ import UNIT_TESTS, try_mutant
from tests.mutation.find import find
from tests.mutation.load import DoesNotApply, Edit, Mutant
from tests.mutation.mutants import MUTANTS
from tests.mutation.mutants.modules import MODULES
from tests.mutation.mutants.noticed import Noticed
from tests.mutation.mutants.systematic import systematic
from tests.support.paths import TESTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies(mutant: Mutant) -> None:
    assert mutant.code()
    assert find(mutant.name) is mutant


@pytest.mark.parametrize("noticed", MODULES, ids=lambda noticed: noticed.mutant.name)
def test_every_bug_of_a_module_applies(noticed: Noticed) -> None:
    assert noticed.mutant.code()
    assert find(noticed.mutant.name) is noticed.mutant
    file, _, test = noticed.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (TESTS / file).read_text("utf-8")


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in (*MUTANTS, *[noticed.mutant for noticed in MODULES])]
    assert len(set(names)) == len(names)


def test_every_campaign_has_unit_tests() -> None:
    assert {mutant.campaign for mutant in MUTANTS} == set(UNIT_TESTS)
    files = {TESTS / "unit" / file for files in UNIT_TESTS.values() for file in files}
    assert {file for file in files if not file.exists()} == set()


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (Edit("apply", "no such text", ""), "0 times"),
        (Edit("apply", "offset", ""), "times"),
        (Edit("no_such_function", "x", ""), "no function"),
        (Edit("apply", "if offset < state.next_offset:", "if"), "invalid syntax"),
    ],
)
def test_mutant_that_does_not_fit_the_source_says_so(edit: Edit, problem: str) -> None:
    with pytest.raises(DoesNotApply, match=problem):
        Mutant("wrong", "marshal_py.protocol.rationalizer", (edit,)).code()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("fold: version: that of the session", None),
        ("fold: claim: compare and swap", None),
        ("claimant: lease: the margin", "exclusion"),
        ("claimant: claiming: the wait of two intervals", "exclusion"),
        ("claimant: release: nobody acts any more", None),
        ("claimant: found: an end takes a later claim of the cell off the lists", None),
    ],
)
def test_a_campaign_catches(name: str, invariant: str | None) -> None:
    row: dict[str, Any] = try_mutant(find(name), 300, 1, both=False)
    assert row["invariant"] is not None, row
    if invariant is not None:
        assert row["invariant"] == invariant


def test_systematic_mutants_can_be_made() -> None:
    for module in ("rationalizer", "claimant", "world"):
        mutants = systematic(f"marshal_py.protocol.{module}")
        assert len(mutants) > 50
        assert find(mutants[7].name) == mutants[7]
        assert mutants[7].code() != mutants[8].code()

"""The commands of developers find the files that they name."""

from __future__ import annotations

import pytest

from tests import branch_coverage
from tests.benchmarks import __main__ as benchmarks
from tests.mutation.__main__ import UNIT_TESTS
from tests.support.paths import ROOT, TESTS


@pytest.mark.parametrize("file", [*branch_coverage.MODULES, *branch_coverage.TESTS])
def test_files_of_the_branch_coverage_exist(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.parametrize("campaign", UNIT_TESTS)
def test_the_unit_tests_that_may_notice_a_mutant_exist(campaign: str) -> None:
    assert all((TESTS / "unit" / file).is_file() for file in UNIT_TESTS[campaign])


@pytest.mark.parametrize("name", benchmarks.names())
def test_the_help_says_in_one_line_what_a_benchmark_measures(name: str) -> None:
    assert 20 < len(benchmarks.summary(name)) < 120
    assert f"  {name} " in benchmarks.listing()

"""Where CI runs everything is installed: a skip is a failure (`-p tests.support.no_skips`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest

NOT_FOR_THIS_CASE: Final = frozenset(
    {
        "one transaction writes at a time",  # SQLite, in the contracts of stores
        "only transactions fence",
        "this Python is not for other users",
        "two databases are harvested in one shard",
    }
)
"""Why a case of a test is skipped that no package could make run."""


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    reason = reason.removeprefix("Skipped: ")
    if reason not in NOT_FOR_THIS_CASE:
        report.outcome = "failed"
        report.longrepr = f"skipped where everything has to run: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what was skipped when it ran."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail what was skipped when it was collected."""
    report = yield
    _refuse(report)
    return report

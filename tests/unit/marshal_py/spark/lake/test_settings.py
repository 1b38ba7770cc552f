"""What a lake's run may be told, and when all that was expected of it holds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from marshal_py.errors import ConfigurationError
from marshal_py.spark.lake.gold import Expectation
from marshal_py.spark.lake.run import LakeRun, LakeSettings, _says_more


def given(name: str, value: float) -> dict[str, Any]:
    return {name: value}


@pytest.mark.parametrize(
    ("name", "least"),
    [("sample_s", 0.001), ("grace_s", 0), ("late_days", 1), ("lifetime_days", 1)],
)
def test_a_setting_has_a_least_value(name: str, least: float) -> None:
    LakeSettings(**given(name, least))
    for wrong in (least - 0.0005, float("nan")):
        with pytest.raises(ConfigurationError, match=f"{name} = {wrong} must be {least}"):
            LakeSettings(**given(name, wrong))


def test_a_run_is_as_expected_if_each_of_its_days_is() -> None:
    met, missed = Expectation("lost", 0, 0, True), Expectation("lost", 1, 0, False)
    assert LakeRun(("a",), 0, 0, (met, met)).met
    assert not LakeRun(("a", "b"), 0, 0, (missed, met)).met
    assert LakeRun((), 0, 0, ()).met


@pytest.mark.parametrize(
    ("written", "now", "more"),
    [
        # Hours since the day began; rows are judged an hour after its end, records come for a day.
        (23, 24.9, False),
        (23, 25, True),
        (24.5, 25, True),
        (25, 48.9, False),
        (25, 49, True),
        (23, 200, True),
        (48.9, 200, True),
        (49, 200, False),
    ],
)
def test_a_day_says_more_when_its_last_rows_are_judged_and_when_its_last_records_are_in(
    written: float, now: float, more: bool
) -> None:
    day = dt.date(2026, 3, 1)
    began = dt.datetime.combine(day, dt.time(), dt.UTC)
    at, then = (began + dt.timedelta(hours=hours) for hours in (written, now))
    assert _says_more(day, at, then, LakeSettings(grace_s=3_600, late_days=1)) is more

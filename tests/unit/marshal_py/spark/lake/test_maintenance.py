"""What a lake is asked for once in a while, told by a session that keeps its statements."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

import pytest

from marshal_py.errors import ConfigurationError
from marshal_py.spark.lake.maintenance import maintain
from marshal_py.spark.lake.tables import LAKE_TABLES

TODAY = dt.date(2026, 3, 1)


class Lake:
    """A session and a lake in one, in which each table has so many old rows."""

    def __init__(self, tables: list[str], old: int = 0, ran_h: float | None = 0.0) -> None:
        self.tables, self.old, self.ran_h = tables, old, ran_h
        self.statements: list[str] = []
        self.filters: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.conf = self

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def sql(self, statement: str) -> None:
        self.statements.append(statement)

    def check_version(self, _spark: object) -> None:
        pass

    def check_is_there(self, _spark: object) -> None:
        if not self.tables:
            raise ConfigurationError("there is no lake")

    def path(self, table: str) -> str:
        return f"/lake/{table}"

    def exists(self, _spark: object, table: str) -> bool:
        return table in self.tables

    def frame(self, _spark: object, table: str) -> Any:
        lake = self

        class Frame:
            def filter(self, condition: str) -> Frame:
                lake.filters[table] = condition
                return self

            def count(self) -> int:
                return lake.old

            def selectExpr(self, what: str) -> Frame:
                assert (table, "max(started_at)" in what) == ("gold.runs", True)
                return self

            def collect(self) -> list[tuple[float | None]]:
                return [(lake.ran_h,)]

        return Frame()

    def maintain(self, **settings: Any) -> dict[str, int]:
        return maintain(cast(Any, self), cast(Any, self), today=TODAY, **settings)


def test_days_go_when_they_are_older_than_is_wanted_and_findings_when_they_expire() -> None:
    lake = Lake(list(LAKE_TABLES))
    assert lake.maintain(bronze_days=2, days=32) == {}
    assert lake.filters["bronze.coordination"] == "day < DATE '2026-02-27'"
    assert lake.filters["gold.findings"] == "expires_on < DATE '2026-03-01'"
    assert {f for t, f in lake.filters.items() if t.startswith("silver.")} == {
        "day < DATE '2026-01-28'"
    }
    assert set(lake.filters) == {
        table
        for table, columns in LAKE_TABLES.items()
        if table == "gold.findings" or any(column.name == "day" for column in columns)
    }


def test_what_is_old_is_deleted_and_counted_before_files_go() -> None:
    lake = Lake(["bronze.coordination"], old=3)
    assert lake.maintain(vacuum_h=1.0) == {"bronze.coordination": 3}
    assert lake.statements == [
        "DELETE FROM delta.`/lake/bronze.coordination` WHERE day < DATE '2025-12-01'",
        "OPTIMIZE delta.`/lake/bronze.coordination`",
        "VACUUM delta.`/lake/bronze.coordination` RETAIN 1.0 HOURS",
    ]
    assert lake.settings == {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}


def test_a_place_without_a_lake_is_not_cared_for() -> None:
    """Of a name with a fault in it each night would be well, and the lake would grow."""
    with pytest.raises(ConfigurationError, match="there is no lake"):
        Lake([]).maintain()


def test_beside_a_run_that_was_faster_it_is_to_be_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sql(statement: str) -> None:
        raise RuntimeError(f"[DELTA_CONCURRENT_DELETE_DELETE] {statement}")

    lake = Lake(["bronze.coordination"])
    monkeypatch.setattr(lake, "sql", sql)
    with pytest.raises(ConfigurationError, match="start this one again"):
        lake.maintain()


def test_where_nothing_is_old_nothing_is_deleted() -> None:
    lake = Lake(["bronze.coordination"])
    assert lake.maintain() == {}
    assert [statement.split()[0] for statement in lake.statements] == ["OPTIMIZE", "VACUUM"]


@pytest.mark.parametrize(
    ("ran_h", "hours"), [(0.5, "168.0"), (166.9, "168.0"), (300.0, "301.0"), (None, None)]
)
def test_files_that_no_run_may_have_folded_yet_stay(ran_h: float | None, hours: str | None) -> None:
    """Runs that failed for longer than files are kept could not go on where they ended."""
    lake = Lake(["bronze.coordination", "bronze.published"], ran_h=ran_h)
    lake.maintain()
    vacuumed = [f"VACUUM delta.`/lake/bronze.coordination` RETAIN {hours} HOURS"] if hours else []
    published = "VACUUM delta.`/lake/bronze.published` RETAIN 168.0 HOURS"
    assert sorted(s for s in lake.statements if s.startswith("VACUUM")) == [*vacuumed, published]


@pytest.mark.parametrize(
    ("name", "value"),
    [("bronze_days", 1), ("days", 119), ("vacuum_h", 0.99), ("vacuum_h", float("nan"))],
)
def test_a_time_that_is_too_short_is_named_and_nothing_is_done(name: str, value: float) -> None:
    lake = Lake(list(LAKE_TABLES), old=1)
    with pytest.raises(ConfigurationError, match=rf"{name} = {value} must be"):
        lake.maintain(**{name: value})
    assert (lake.statements, lake.settings) == ([], {})


def test_silver_outlives_bronze_by_what_gold_looks_back() -> None:
    """A run would write days again of what is left: without lag, leaders and takeovers."""
    lake = Lake(list(LAKE_TABLES), old=1)
    with pytest.raises(ConfigurationError, match=r"days = 44 must be 45 or more: .*_days = 15\)"):
        lake.maintain(bronze_days=15, days=44)
    assert lake.statements == []
    assert lake.maintain(bronze_days=15, days=45)

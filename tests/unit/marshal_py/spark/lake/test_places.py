"""Where a lake may be, and which one this library may write to."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable
from string import Formatter
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import AnalysisException

from harvest.spark.lake import add_archive, add_table
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.slots import source_of
from marshal_py.spark.lake.maintenance import maintain
from marshal_py.spark.lake.report import _lines, _section, _tiles
from marshal_py.spark.lake.sql import PARTS, days_before, fill, table_name, time_literal
from marshal_py.spark.lake.tables import SCHEMA_VERSION, Lake
from tests.unit.marshal_py.spark.test_audit_report import at, cells

LOG_STORE = "spark.delta.logStore.s3a.impl"


class Session:
    """A session with settings."""

    def __init__(self, **settings: str) -> None:
        self.settings, self.conf = settings, self

    def get(self, name: str, otherwise: str | None) -> str | None:
        return self.settings.get(name, otherwise)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    @property
    def readStream(self) -> Session:
        return self

    read = readStream

    def parquet(self, _path: str) -> SimpleNamespace:
        return SimpleNamespace(schema=None)

    def schema(self, _types: object) -> Session:
        return self

    def option(self, _name: str, _value: str) -> Session:
        return self


def test_a_bucket_is_written_to_only_where_no_commit_can_be_overwritten() -> None:
    for place in ("s3://b/lake", "s3n://b/lake", "S3://b/lake"):
        with pytest.raises(ConfigurationError, match="Spark knows S3 as s3a://"):
            Lake.to_write(cast(Any, Session(**{LOG_STORE: "x"})), place)
        with pytest.raises(ConfigurationError, match="Spark knows S3 as s3a://"):
            Lake.at(place)
    with pytest.raises(ConfigurationError, match="could overwrite each other's commits"):
        Lake.to_write(cast(Any, Session()), "s3a://b/lake")
    session = Session(**{LOG_STORE: "x"})
    assert Lake.to_write(cast(Any, session), "s3a://b/lake/").path("gold.lag") == (
        "s3a://b/lake/gold/lag"
    )
    checkpoints = session.settings["spark.sql.streaming.checkpointFileManagerClass"]
    assert checkpoints == "marshal.spark.ConditionalPutCheckpoints"


def test_braces_of_a_path_are_no_names_of_frames() -> None:
    path = table_name("/a{day}/{b}/gold/findings")
    query = fill("MERGE INTO {path} USING {found} ON day = {day}", path=path, day="DATE 'x'")
    assert Formatter().format(query, found="_found") == (
        "MERGE INTO delta.`/a{day}/{b}/gold/findings` USING _found ON day = DATE 'x'"
    )


@pytest.mark.parametrize("place", ["/lake", "hdfs://name/lake"])
def test_a_session_of_somebody_else_gets_what_the_tables_rest_on(place: str) -> None:
    """Days are in UTC, times are moments, and what is replaced may be in another partition."""
    session = Session(
        **{
            "spark.sql.session.timeZone": "Europe/Berlin",
            "spark.sql.sources.partitionOverwriteMode": "dynamic",
        }
    )
    Lake.to_write(cast(Any, session), place)
    assert session.settings == {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.sources.partitionOverwriteMode": "static",
        "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "false",
    }


@pytest.mark.parametrize(
    ("latest", "refused"), [(None, False), (SCHEMA_VERSION, False), (SCHEMA_VERSION + 1, True)]
)
def test_a_lake_of_a_later_version_is_refused(
    latest: int | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = SimpleNamespace(
        selectExpr=lambda _: SimpleNamespace(collect=lambda: [(latest,)]),
    )
    monkeypatch.setattr(Lake, "frame", lambda *_: frame)
    monkeypatch.setattr(Lake, "check_is_there", lambda *_: None)
    lake, session = Lake.at("/lake"), cast(Any, Session())
    whoever_writes: list[Callable[[], object]] = [
        lambda: lake.check_version(session),
        lambda: maintain(session, lake, today=dt.date(2026, 3, 1)),
        lambda: add_archive(session, "/lake", "shop/outbox", "archive"),
        lambda: add_table(session, "/lake", "shop/outbox", "", "outbox", late_s=1.0),
    ]
    for write in whoever_writes if refused else whoever_writes[:1]:
        with (
            pytest.raises(ConfigurationError, match="upgrade it, or begin another lake")
            if refused
            else contextlib.nullcontext()
        ):
            write()


@pytest.mark.parametrize("condition", ["PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "OTHER"])
def test_a_table_that_cannot_be_read_is_not_taken_for_one_that_was_never_written(
    condition: str,
) -> None:
    def load(path: str) -> None:
        assert path == "/lake/gold/lag"
        raise AnalysisException("m", errorClass=condition, messageParameters={})

    reading = SimpleNamespace(format=lambda _: SimpleNamespace(load=load))
    spark, lake = cast(Any, SimpleNamespace(read=reading)), Lake.at("/lake")
    if condition == "OTHER":
        with pytest.raises(AnalysisException):
            lake.exists(spark, "gold.lag")
    else:
        assert not lake.exists(spark, "gold.lag")


@pytest.mark.parametrize("table", ["gold.runs", "bronze.outbox_rows", None])
def test_a_place_has_a_lake_when_it_has_a_table(
    monkeypatch: pytest.MonkeyPatch, table: str | None
) -> None:
    monkeypatch.setattr(Lake, "exists", lambda _self, _spark, name: name == table)
    with (
        contextlib.nullcontext()
        if table
        else pytest.raises(ConfigurationError, match="there is no lake at /lake: ")
    ):
        Lake.at("/lake").check_is_there(cast(Any, None))


def test_days_may_be_kept_and_shown_for_ever() -> None:
    day = dt.date(2026, 3, 1)
    assert days_before(day, 59) == dt.date(2026, 1, 1)
    assert days_before(day, 10**9) == dt.date(1, 1, 1)


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        *[(name, True) for name in ("a.b/0#16", "a/12#1", "a/3@0", "a/0@4711")],
        *[
            (name, False)
            for name in ("a/03#16", "a/0#016", "a/0#0", "a/00@1", "a/0@01", "a", "a/0")
        ],
    ],
)
def test_what_is_a_part_of_a_partition_to_the_protocol_is_one_to_sql(
    name: str, is_part: bool
) -> None:
    assert (source_of(name, 0) != (name, 0)) is is_part
    found = re.search(PARTS, name)
    assert (found is not None) is is_part
    if found is not None:
        assert (found[1], int(found[2])) == source_of(name, 0)


def test_names_and_moments_are_written_as_sql_reads_them() -> None:
    assert table_name("/a`b") == "delta.`/a``b`"
    assert time_literal(at(1.5)) == "TIMESTAMP '2026-03-01 00:00:01.500000'"


def table_at(location: str, kind: str = "Type: EXTERNAL", provider: str = "delta") -> str:
    """What a catalog says of a table."""
    return f"Table: gold_lag\n{kind}\nProvider: {provider}\nLocation: {location}\nSerde: x\n"


class Catalog:
    """A session whose catalog has these tables; a lake has `gold.lag` alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **tables: str) -> None:
        self.said: list[str] = []
        self._rows = [{"tableName": name, "information": said} for name, said in tables.items()]
        monkeypatch.setattr(Lake, "exists", lambda _self, _spark, table: table == "gold.lag")

    def sql(self, statement: str) -> Any:
        self.said.append(statement)
        return SimpleNamespace(collect=lambda: self._rows)

    def register(self, place: str, schema: str) -> list[str]:
        Lake.at(place).register(cast(Any, self), schema)
        return self.said


def test_tables_are_registered_by_names_and_places_as_sql_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = Catalog(monkeypatch)
    assert catalog.register("/it's a \\ lake", "days`") == [
        "CREATE SCHEMA IF NOT EXISTS `days```",
        "SHOW TABLE EXTENDED IN `days``` LIKE 'bronze_*|silver_*|gold_*'",
        "CREATE TABLE IF NOT EXISTS `days```.`gold_lag` USING delta "
        "LOCATION '/it\\'s a \\\\ lake/gold/lag'",
    ]


@pytest.mark.parametrize(
    ("location", "place", "is_there"),
    [
        ("file:/lake", "/lake", True),
        ("file:/lake", "file:///lake", True),
        ("s3a://b/lake", "s3a://b/lake/", True),
        ("hdfs://name:1/lake", "hdfs:///lake", True),
        ("file:/a b#c?d%20", "/a b#c?d%20", True),
        ("file:/lake", "/lake2", False),
        ("s3a://b/lake", "s3a://c/lake", False),
        ("s3a://b/lake", "/lake", False),
        ("hdfs://name/lake", "s3a://name/lake", False),
    ],
)
def test_a_lake_that_has_moved_is_the_one_that_the_catalog_knows(
    monkeypatch: pytest.MonkeyPatch, location: str, place: str, is_there: bool
) -> None:
    """Its tables would be those of the old place, as they were when it was left."""
    catalog = Catalog(monkeypatch, gold_lag=table_at(f"{location}/gold/lag"))
    found = [said.split()[0] for said in catalog.register(place, "days")[2:]]
    assert found == ([] if is_there else ["DROP", "CREATE"])


@pytest.mark.parametrize(
    "information",
    [
        table_at("file:/warehouse/gold_lag", "Type: MANAGED"),
        table_at("file:/lake/gold/lag", provider="parquet"),
        "Type: VIEW\nView Text: SELECT 1\n",
    ],
)
def test_what_has_a_tables_name_in_the_catalog_and_is_none_of_a_lake_stays(
    monkeypatch: pytest.MonkeyPatch, information: str
) -> None:
    """To drop a table that is not at a place of its own is to delete its rows."""
    catalog = Catalog(monkeypatch, gold_lag=information)
    with pytest.raises(ConfigurationError, match="--schema days: gold_lag is there, and no table"):
        catalog.register("/lake", "days")
    assert len(catalog.said) == 2


class Writer:
    """A frame that keeps how it is written."""

    def __init__(self) -> None:
        self.write = self
        self.given: dict[str, Any] = {}

    def selectExpr(self, *columns: str) -> Writer:
        self.given["columns"] = len(columns)
        return self

    def format(self, name: str) -> Writer:
        return self.option("format", name)

    def mode(self, how: str) -> Writer:
        return self.option("mode", how)

    def partitionBy(self, column: str) -> Writer:
        return self.option("by", column)

    def option(self, name: str, value: Any) -> Writer:
        self.given[name] = value
        return self

    def save(self, path: str) -> None:
        self.given["path"] = path


def test_a_part_of_a_table_is_written_in_place_of_what_is_there_and_once() -> None:
    def written(write: Callable[[Lake, Any], None]) -> dict[str, Any]:
        frame = Writer()
        write(Lake.at("/lake"), frame)
        assert (frame.given.pop("format"), frame.given.pop("mergeSchema")) == ("delta", "true")
        return frame.given

    lag = {"columns": 8, "by": "day", "path": "/lake/gold/lag"}
    assert written(lambda lake, frame: lake.append("gold.lag", frame)) == lag | {"mode": "append"}
    day = dt.date(2026, 3, 1)
    assert written(lambda lake, frame: lake.replace_day("gold.lag", frame, day)) == lag | {
        "mode": "overwrite",
        "replaceWhere": "day = DATE '2026-03-01'",
    }
    # Without days, all of it; and not again what was written under this number.
    found = written(lambda lake, frame: lake.replace("silver.fold", frame, None, once=("fold", 7)))
    assert found == {
        "columns": 5,
        "path": "/lake/silver/fold",
        "mode": "overwrite",
        "txnAppId": "fold",
        "txnVersion": 7,
    }


def test_what_is_lost_is_not_known_where_the_rows_of_an_outbox_are_not() -> None:
    known = {"lost": 2, "records": 5}
    assert "rows lost" in (html := _tiles([known, known], [{"takeovers": None}], [{"count": 3}]))
    assert ">4<" in html
    assert "rows lost" not in _tiles([known, {"lost": None, "records": None}], [], [])


def test_a_table_says_what_is_not_known_and_a_picture_needs_two_moments() -> None:
    rows = [{"name": "<a>", "found": None, "met": False, "limit": 1_234.5}]
    assert cells(_section("T", rows, {})) == [["&lt;a&gt;", "not known", "no", "1,234.5"]]
    assert _section("T", [], {}) == "<h2>T</h2><p>None.</p>"
    points: list[dict[str, Any]] = [
        {"day": at(0), "lag": 5, "of": "a"},
        {"day": at(10), "lag": 10, "of": "a"},
        {"day": at(5), "lag": None, "of": "b"},
    ]
    assert 'points="0.0,75.0 1000.0,20.0"' in _lines(points, "day", "lag", "of")
    assert _lines(points[:1], "day", "lag", "of") == ""

"""`marshal lake …`: which days are meant, what is asked of the run, and how it ends."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from marshal_py.cli import lake as module
from marshal_py.spark.lake.gold import Expectation
from marshal_py.spark.lake.run import LakeRun
from tests.support.marshal_command import without_brokers

SESSION = module._session


class Lake:
    """Keeps what the run was asked for; no Spark is started."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.met = True
        self.killed = False
        """Before the run is noted."""
        self.last: dt.datetime | None = None

    def run(
        self, _spark: object, _config: object, place: str, days: Any, settings: Any, **more: Any
    ) -> LakeRun:
        self.runs.append({"place": place, "days": days, "settings": settings, **more})
        gates = tuple(Expectation("lost", 3.0, 0.0, self.met, day) for day in days)
        done = LakeRun(tuple(map(str, days)), 12, 34, gates)
        more["tell"](done)
        if self.killed:
            raise KeyboardInterrupt
        return done


@pytest.fixture(autouse=True)
def lake(monkeypatch: pytest.MonkeyPatch) -> Lake:
    found = Lake()
    monkeypatch.setattr(module, "_session", lambda *_: None)
    monkeypatch.setattr("marshal_py.spark.lake.run.run_lake", found.run)
    monkeypatch.setattr("marshal_py.spark.lake.run.last_run", lambda *_: found.last)
    monkeypatch.setattr(module, "_today", lambda: dt.date(2026, 3, 1))
    return found


def days(lake: Lake, *arguments: str) -> list[str]:
    done = without_brokers("lake", "run", *arguments)
    assert done.exit_code == 0, done.stderr
    return [str(day) for day in lake.runs[-1]["days"]]


def test_it_runs_where_it_is_told_to_with_what_its_place_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "marshal_py.spark.session.spark_session", lambda _, **how: asked.append(how)
    )
    SESSION(None, "lake")
    SESSION("spark://box:7077", "s3a://bucket/lake")
    assert asked == [
        {"master": None, "delta": True, "s3": False},
        {"master": "spark://box:7077", "delta": True, "s3": True},
    ]


def test_by_default_it_is_yesterday_in_utc(lake: Lake) -> None:
    assert days(lake) == ["2026-02-28"]


def test_days_are_all_up_to_and_with_the_last(lake: Lake) -> None:
    assert days(lake, "--day", "2026-02-27") == ["2026-02-27"]
    assert days(lake, "--day", "2026-02-27", "--until", "2026-03-01") == [
        "2026-02-27", "2026-02-28", "2026-03-01",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["run", "--day", "yesterday"], "--day 'yesterday' must be a day"),
        (["run", "--day", "2026-02-27", "--until", "x"], "--until 'x' must be a day"),
        (["run", "--day", "2026-02-27", "--until", "2026-02-26"], "is before --day 2026-02-27"),
        (["run", "--continuous", "--day", "2026-02-27"], "--continuous is for today"),
        (["run", "--allow", "losses"], "--allow 'losses' is no kind of finding"),
        (["run", "--day", "2026-03-02"], "--day 2026-03-02 has not begun: today (UTC) is 2026-03-"),
        (["run", "--until", "2027-02-28"], "--until 2027-02-28 has not begun"),
        (["run", "--lake", "s3://b/lake"], "--lake s3://b/lake: Spark knows S3 as s3a://"),
        (["report", "--lake", "s3n://b/lake"], "--lake s3n://b/lake: Spark knows S3 as s3a://"),
        (["report", "--until", "x"], "--until 'x' must be a day"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_the_option(
    lake: Lake, arguments: list[str], why: str
) -> None:
    done = without_brokers("lake", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert lake.runs == []


def test_a_day_that_has_ended_is_written_until_its_last_row_is_judged(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [
        dt.datetime(2026, 2, 28, 23, 50, tzinfo=dt.UTC),  # when the command began
        dt.datetime(2026, 2, 28, 23, 51, tzinfo=dt.UTC),
        *(dt.datetime(2026, 3, 1, *at, tzinfo=dt.UTC) for at in ((0, 6), (1, 4), (1, 20), (1, 30))),
    ]
    monkeypatch.setattr(module, "_now", lambda: moments.pop(0))

    def sleep(_seconds: float) -> None:
        if not moments:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    without_brokers("lake", "run", "--continuous", "--grace", "4000")
    assert [[day.day for day in run["days"]] for run in lake.runs] == [
        [28],
        [28, 1],
        [28, 1],  # of the last hour some might have been on their way before
        [28, 1],
        [1],
    ]


def test_days_that_the_command_before_has_left_unfinished_are_finished(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed in the evening, say, and is started anew after a weekend."""
    days(lake, "--day", "2026-03-01")
    assert lake.runs.pop()["finish"] == []
    moments = [dt.datetime(2026, 3, 2, 9, n, tzinfo=dt.UTC) for n in range(3)]
    monkeypatch.setattr(module, "_now", lambda: moments.pop(0))
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if not moments:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    lake.last = dt.datetime(2026, 2, 28, 0, 30, tzinfo=dt.UTC)
    without_brokers("lake", "run", "--continuous", "--every", "7.5")
    found = [[[day.day for day in run[name]] for name in ("finish", "days")] for run in lake.runs]
    assert found == [[[27, 28, 1, 2], [2]], [[], [2]]]
    assert waited == [7.5, 7.5]


def test_tables_are_registered_where_they_are(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "marshal_py.spark.lake.tables.Lake.register",
        lambda self, _spark, schema: found.append((self.place, schema)),
    )
    days(lake, "--lake", "/data/lake")
    assert found == []
    days(lake, "--lake", "/data/lake", "--schema", "days")
    assert found == [("/data/lake", "days")]


def test_what_a_run_came_to_is_told_before_it_is_noted_and_of_which_day_it_is(lake: Lake) -> None:
    lake.killed = True
    words = ("lake", "run", "--day", "2026-02-27", "--until", "2026-02-28")
    told = without_brokers(*words).stdout.splitlines()
    assert [line.split()[:3] for line in told[-2:]] == [
        ["2026-02-27", "lost", "3"],
        ["2026-02-28", "lost", "3"],
    ]
    document = json.loads(without_brokers(*words, "--json").stdout)
    assert [each["day"] for each in document["expectations"]] == ["2026-02-27", "2026-02-28"]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_is_not_as_expected_is_exit_code_1(lake: Lake, more: list[str]) -> None:
    assert without_brokers("lake", "run", *more).exit_code == 0
    lake.met = False
    done = without_brokers("lake", "run", *more)
    assert done.exit_code == 1
    if more:
        document = json.loads(done.stdout)
        assert (document["met"], document["records"], document["published"]) == (False, 12, 34)
    else:
        assert done.stdout.splitlines()[-1].split() == ["lost", "3", "0"]


def test_options_become_the_runs_settings(lake: Lake) -> None:
    days(
        lake, "--lake", "here", "--published", "orders", "--published", "bills", "--grace", "60",
        "--late-days", "2", "--sample", "5", "--allow", "lost", "--max-lag", "7", "--timeout", "40",
        "--max-latency-p99-ms", "9", "--min-availability", "0.9", "--topic", "mine",
    )  # fmt: skip
    (run,) = lake.runs
    settings = run["settings"]
    assert (run["place"], run["timeout_s"]) == ("here", 40)
    assert (settings.topic, settings.published) == ("mine", ("orders", "bills"))
    assert (settings.grace_s, settings.late_days, settings.sample_s) == (60, 2, 5)
    found = settings.expectations
    assert found.allowed == ("lost",)
    assert (found.latency_p99_ms, found.lag, found.availability) == (9, 7, 0.9)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sessions whose cluster is watched now."""
    now: list[object] = []

    @contextmanager
    def watch(spark: object) -> Iterator[None]:
        now.append(spark)
        yield
        now.remove(spark)

    monkeypatch.setattr("marshal_py.spark.watch.cluster_watched", watch)
    return now


def test_a_report_ends_yesterday_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watched: list[object]
) -> None:
    asked: list[tuple[dt.date, int]] = []

    def render(spark: object, _lake: object, last: dt.date, days: int) -> str:
        assert watched == [spark], "it does not wait for ever for a cluster that is gone"
        asked.append((last, days))
        return "<html>ö"

    monkeypatch.setattr("marshal_py.spark.lake.report.render_lake", render)
    monkeypatch.setattr("marshal_py.spark.lake.tables.Lake.check_is_there", lambda *_: None)
    # Of a machine whose locale is not that of the page.
    monkeypatch.setattr(io, "text_encoding", lambda given, *_: given or "ascii")
    file = tmp_path / "lake.html"
    done = without_brokers("lake", "report", "--out", str(file), "--days", "7")
    assert (asked, file.read_text("utf-8")) == ([(dt.date(2026, 2, 28), 7)], "<html>ö")
    assert done.stdout == f"{file}\n"
    more = ["--until", "2026-02-20", "--json"]
    document = json.loads(without_brokers("lake", "report", "--out", str(file), *more).stdout)
    assert document["last"] == "2026-02-20"


@pytest.mark.usefixtures("watched")
def test_no_page_is_made_of_a_place_without_a_lake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("marshal_py.spark.lake.report.render_lake", lambda *_: "<html>")
    monkeypatch.setattr("marshal_py.spark.lake.tables.Lake.exists", lambda *_: False)
    file = tmp_path / "lake.html"
    done = without_brokers("lake", "report", "--lake", "/none", "--out", str(file))
    assert (done.exit_code, file.exists()) == (2, False)
    assert "there is no lake at /none: " in " ".join(done.stderr.split())


def test_a_report_that_cannot_be_written_starts_no_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_session", lambda *_: pytest.fail("Spark was started"))
    done = without_brokers("lake", "report", "--out", str(tmp_path / "missing" / "x.html"))
    assert done.exit_code == 2
    assert f"there is no folder {tmp_path / 'missing'}" in " ".join(done.stderr.split())


def test_maintenance_says_what_it_deleted(
    monkeypatch: pytest.MonkeyPatch, watched: list[object]
) -> None:
    asked: dict[str, Any] = {}

    def maintain(spark: object, _lake: object, **given: Any) -> dict[str, int]:
        assert watched == [spark]
        asked.update(given)
        return {"bronze.log": 1_234}

    monkeypatch.setattr("marshal_py.spark.lake.maintenance.maintain", maintain)
    monkeypatch.setattr("marshal_py.spark.lake.tables.Lake.to_write", lambda *_: None)
    done = without_brokers(
        "lake", "maintain", "--bronze-days", "30", "--days", "60", "--vacuum", "5"
    )
    assert "bronze.log: 1,234 rows deleted" in done.stdout
    assert asked == {
        "today": dt.date(2026, 3, 1), "bronze_days": 30, "days": 60, "vacuum_h": 5.0,
    }  # fmt: skip

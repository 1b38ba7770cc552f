"""`harvest reconcile` and `harvest lake`: what is asked for, and how they end. No Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from harvest.cli.app import app
from harvest.spark.reconcile import Reconciliation


class Spark:
    """Keeps what was asked for, and gives what is prepared."""

    def __init__(self) -> None:
        self.sessions: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.named: dict[str, Any] = {}
        self.findings: dict[str, int] = {}
        self.killed = False
        """Before what was compared is stored."""

    def session(self, _name: str, **given: Any) -> Spark:
        self.sessions.append(given)
        return self

    def reconcile(self, *given: Any, tell: Any, **named: Any) -> Reconciliation:
        self.calls.append(given)
        self.named = named
        result = Reconciliation(7, 8, 0, self.findings, 0, {}, [], 0.1)
        tell(result)
        if self.killed:
            raise KeyboardInterrupt
        return result

    def add(self, *given: Any, **named: Any) -> int:
        self.calls.append(given)
        self.named = named
        return 1_234


@pytest.fixture(autouse=True)
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    found = Spark()
    monkeypatch.setattr("marshal_py.spark.session.spark_session", found.session)
    monkeypatch.setattr("harvest.spark.reconcile.reconcile", found.reconcile)
    monkeypatch.setattr("harvest.spark.lake.add_archive", found.add)
    monkeypatch.setattr("harvest.spark.lake.add_table", found.add)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(app, words)


RECONCILE = ("reconcile", "-b", "kafka:1", "--parquet", "/archive")
LAKE = ("lake", "--outbox", "shop/outbox")


def test_options_become_what_is_compared(spark: Spark) -> None:
    words = ["--topic", "t", "-X", "a=b=c", "--grace", "5", "--late", "2", "--state", "s"]
    done = run(*RECONCILE, *words, "--since", "2026-03-01T08:00Z")
    assert done.exit_code == 0, done.output
    ((_, outbox, config),) = spark.calls
    assert (outbox.parquet, outbox.dsn) == ("/archive", None)
    assert config == {"a": "b=c", "bootstrap.servers": "kafka:1"}
    assert spark.named == {
        "topics": ["t"],
        "grace_s": 5,
        "out": None,
        "state": Path("s"),
        "late_s": 7_200,
        "since_ms": 1_772_352_000_000,
        "until_ms": None,
    }


@pytest.mark.parametrize(
    ("command", "option", "longest"),
    [
        (RECONCILE, "--grace", "31536000"),
        (RECONCILE, "--late", "87600"),
        ((*LAKE, "--parquet", "/archive"), "--late", "87600"),
    ],
)
def test_what_is_too_large_to_be_meant_is_refused_with_the_largest_value(
    spark: Spark, command: tuple[str, ...], option: str, longest: str
) -> None:
    done = run(*command, option, "1e20")
    assert done.exit_code == 2
    assert f"'{option}'" in done.output
    assert longest in done.output
    assert spark.sessions == []


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_differs_is_exit_code_1(spark: Spark, tmp_path: Path, more: list[str]) -> None:
    assert run(*RECONCILE, *more).exit_code == 0
    spark.findings = {"missing": 1}
    done = run(*RECONCILE, "--out", str(tmp_path / "new"), *more)
    assert done.exit_code == 1
    assert "missing" in (tmp_path / "new" / "report.html").read_text()
    if more:
        assert json.loads(done.stdout)["clean"] is False
    else:
        assert "missing: 1" in done.stdout


def test_what_was_found_is_told_before_the_next_run_takes_it_for_told(
    spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a machine whose locale is not that of the page.
    monkeypatch.setattr(io, "text_encoding", lambda given, *_: given or "ascii")
    monkeypatch.setattr("harvest.spark.report.render", lambda _: "<html>ö")
    spark.findings, spark.killed = {"missing": 1}, True
    done = run(*RECONCILE, "--out", str(tmp_path), "--state", str(tmp_path / "state"))
    assert "missing: 1" in done.stdout
    assert (tmp_path / "report.html").read_text("utf-8") == "<html>ö"


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-03-01T08:00Z", 8),
        ("2026-03-01T08:00", 8),
        ("2026-03-01T08:00+02:00", 6),
        ("2026-03-01", 0),
    ],
)
def test_a_time_without_a_zone_is_utc(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, text: str, hour: int
) -> None:
    run(*RECONCILE, "--until", text)
    assert spark.named["until_ms"] == 1_772_323_200_000 + hour * 3_600_000


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*RECONCILE, "-X", "abc"], "-X wants KEY=VALUE"),
        ([*RECONCILE, "--since", "monday"], "--since monday: write a time"),
        (["lake", "--outbox", "a/b"], "either --database or --parquet"),
        (
            ["lake", "--outbox", "a/b", "-d", "x", "--parquet", "y"],
            "either --database or --parquet",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(spark: Spark, words: list[str], why: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert why in done.stderr
    assert not spark.calls
    assert not spark.sessions, "Spark takes its time to start"


def test_where_nothing_can_be_written_no_spark_is_started(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(*RECONCILE, "--out", str(tmp_path / "file" / "out"))
    assert (done.exit_code, spark.sessions) == (2, [])
    assert "--out" in done.stderr


def test_rows_come_from_an_archive_or_a_table(spark: Spark) -> None:
    done = run(*LAKE, "--lake", "/lake", "--parquet", "/archive")
    assert done.stdout == "1,234 rows added\n"
    assert spark.calls == [(spark, "/lake", "shop/outbox", "/archive")]
    done = run(*LAKE, "--lake", "s3a://lake", "-d", "dsn", "-t", "rows",
               "--late", "2", "--json")  # fmt: skip
    assert json.loads(done.stdout) == {"outbox": "shop/outbox", "added": 1_234}
    assert spark.calls[1:] == [(spark, "s3a://lake", "shop/outbox", "dsn", "rows")]
    assert spark.named == {"late_s": 7_200}
    run("lake", "--outbox", "eu/shop/sales.orders", "-d", "dsn")
    assert spark.calls[-1][2:] == ("eu/shop/sales.orders", "dsn", "sales.orders")
    assert [(each["delta"], each["s3"]) for each in spark.sessions[:2]] == [
        (True, False),
        (True, True),
    ]

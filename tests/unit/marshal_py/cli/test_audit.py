"""`marshal audit`: which anomalies are exit code 1, and what is asked of the run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from marshal_py.cli import audit as module
from marshal_py.protocol.history.anomalies import KINDS
from marshal_py.spark.audit import AuditRun
from tests.support.marshal_command import without_brokers

OLD, NEW = list(KINDS)[:2]
"""Kinds of anomalies: of the first there were some before, of the second there are new ones."""


@pytest.fixture
def session() -> dict[str, Any]:
    """What Spark's session was asked for."""
    return {}


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, session: dict[str, Any]) -> dict[str, Any]:
    """What the run was asked for; no Spark is started."""
    found: dict[str, Any] = {}

    def audit(_spark: object, _config: object, _out: str, **given: Any) -> AuditRun:
        found.update(given)
        return AuditRun(2, 500, 0.5, {"claims": 3}, {NEW: 1})

    everything = {"rows": {"claims": 1_234}, "anomalies": {OLD: 2, NEW: 1}}
    monkeypatch.setattr(
        "marshal_py.spark.session.spark_session", lambda *_, **how: session.update(how)
    )
    monkeypatch.setattr("marshal_py.spark.audit.audit", audit)
    monkeypatch.setattr("marshal_py.spark.audit_store.Store.exists", lambda _: True)
    monkeypatch.setattr("marshal_py.spark.audit_report.summary", lambda _: everything)
    monkeypatch.setattr(
        "marshal_py.spark.audit_report.write_report", lambda *_, **__: "report.html"
    )
    return found


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 1),
        (["--allow", OLD], 1),
        (["--allow", NEW], 1),
        (["--allow", OLD, "--allow", NEW], 0),
        (["--new"], 1),
        (["--new", "--allow", NEW], 0),
        (["--new", "--allow", OLD], 1),
    ],
)
def test_an_anomaly_that_is_not_put_up_with_is_exit_code_1(
    tmp_path: Path, arguments: list[str], code: int, more: list[str]
) -> None:
    done = without_brokers("audit", "--out", str(tmp_path), *arguments, *more)
    assert done.exit_code == code


def test_it_runs_again_as_often_as_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    done = without_brokers("audit", "--out", str(tmp_path), "--every", "7.5", "--json")
    assert waited == [7.5, 7.5]
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 2


def test_it_runs_where_it_is_told_to(tmp_path: Path, session: dict[str, Any]) -> None:
    for more, master in (([], None), (["--master", "sc://box"], "sc://box")):
        without_brokers("audit", "--out", str(tmp_path), *more)
        assert session == {"master": master, "kafka": False}


def test_a_kind_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = without_brokers("audit", "--out", str(tmp_path), "--allow", "everything")
    assert done.exit_code == 2
    assert "--allow 'everything' is no kind of anomaly" in done.stderr


def test_what_was_found_is_told(tmp_path: Path, asked: dict[str, Any]) -> None:
    arguments = ["audit", "--out", str(tmp_path), "--sample", "0.25", "--topic", "mine"]
    text = without_brokers(*arguments).stdout
    assert "500 new records, 1,000 a second" in text
    assert "report: report.html" in text
    assert ["claims", "1,234"] in [line.split() for line in text.splitlines()]
    assert asked == {"topic": "mine", "sample_ms": 250, "timeout_s": 30.0}
    without_brokers(*arguments, "--timeout", "45")
    assert asked["timeout_s"] == 45.0, "Spark takes its time: it is given half a minute at least"
    document = json.loads(without_brokers(*arguments, "--no-report", "--json").stdout)
    assert document["report"] is None
    assert document["new"]["anomalies"] == {NEW: 1}
    assert document["all"]["anomalies"] == {OLD: 2, NEW: 1}

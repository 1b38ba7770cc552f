"""What a session is started with, and what is left alone of one that somebody else has started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from marshal_py.errors import ConfigurationError
from marshal_py.spark import session as module
from marshal_py.spark.session import spark_session


class Builder:
    """Keeps what it is told; starts nothing."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.later: dict[str, str] = {}
        self.log_levels: list[str] = []
        self.failure: Exception | None = None

    def appName(self, name: str) -> Builder:
        self.told["name"] = name
        return self

    def master(self, master: str) -> Builder:
        self.told["master"] = master
        return self

    def remote(self, url: str) -> Builder:
        self.told["remote"] = url
        return self

    def config(self, name: str, value: str) -> Builder:
        self.told[name] = value
        return self

    def getOrCreate(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(
            conf=SimpleNamespace(set=self.later.__setitem__),
            sparkContext=SimpleNamespace(setLogLevel=self.log_levels.append),
        )


@pytest.fixture(autouse=True)
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    found = Builder()
    running: list[object] = []
    kind = SimpleNamespace(
        builder=found, getActiveSession=lambda: running[0] if running else None, running=running
    )
    monkeypatch.setattr("pyspark.sql.SparkSession", kind)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "PYSPARK_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "")  # so that it is as it was after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.setenv("JAVA_HOME", "/java")
    for name in ("connector", "delta", "s3"):
        monkeypatch.setattr(
            f"marshal_py.spark.connector.{name}_jars", lambda name=name, **_: [f"/{name}.jar"]
        )
    return found


def test_here_it_is_reached_by_nobody_else_and_runs_this_python(builder: Builder) -> None:
    spark_session("mine")
    assert (builder.told["name"], builder.told["master"]) == ("mine", "local[*]")
    assert builder.told["spark.driver.bindAddress"] == "127.0.0.1"
    assert builder.told["spark.jars"] == "/connector.jar"
    for what in ("cache", "fetchedData.cache"):
        assert builder.told[f"spark.kafka.consumer.{what}.timeout"] == "20s"
    assert builder.later["spark.sql.session.timeZone"] == "UTC"
    assert builder.log_levels == ["ERROR"]
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert str(Path(module.__file__).parents[2]) in os.environ["PYTHONPATH"].split(":")


def test_settings_of_the_callers_win(builder: Builder) -> None:
    given = {
        "spark.driver.memory": "9g", "spark.sql.session.timeZone": "CET",
        "spark.log.level": "INFO", "spark.jars.packages": "a:b:1",
    }  # fmt: skip
    spark_session(settings=given)
    assert given.items() <= builder.told.items()
    assert "spark.jars" not in builder.told
    assert "spark.sql.session.timeZone" not in builder.later
    assert builder.log_levels == []


def test_an_interpreter_that_was_chosen_for_the_workers_is_theirs(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
    spark_session()
    assert os.environ["PYSPARK_PYTHON"] == "/their/python"


def test_a_cluster_must_reach_its_driver(builder: Builder) -> None:
    spark_session(master="spark://there:7077")
    assert builder.told["master"] == "spark://there:7077"
    assert "spark.driver.bindAddress" not in builder.told
    assert "PYSPARK_PYTHON" not in os.environ, "the workers have one of their own"


@pytest.mark.parametrize(
    ("kinds", "jars"),
    [
        ({"kafka": False}, None),
        ({"delta": True}, "/connector.jar,/delta.jar"),
        ({"kafka": False, "delta": True, "s3": True}, "/delta.jar,/s3.jar"),
    ],
)
def test_what_is_asked_for_is_brought(
    builder: Builder, kinds: dict[str, bool], jars: str | None
) -> None:
    spark_session(**kinds)  # type: ignore[arg-type]
    assert builder.told.get("spark.jars") == jars
    delta = "spark.sql.extensions" in builder.told
    assert delta == bool(kinds.get("delta"))
    assert any("snapshotPartitions" in name for name in builder.later) == delta
    assert ("spark.delta.logStore.s3a.impl" in builder.told) == bool(kinds.get("s3"))


def test_of_one_that_was_submitted_only_what_is_needed_is_set(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    spark_session("mine")
    assert builder.told == {"name": "mine"}
    assert builder.later["spark.sql.session.timeZone"] == "UTC"
    assert builder.log_levels == []


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_remote_one_is_not_started_here(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    if by_environment:
        monkeypatch.setenv("SPARK_REMOTE", "sc://there")
        spark_session()
        assert builder.told == {}
    else:
        spark_session(master="sc://there")
        assert builder.told == {"remote": "sc://there"}
    assert builder.log_levels == []
    builder.failure = ImportError("grpcio is missing")
    with pytest.raises(ConfigurationError, match=r"grpcio is missing; run .*spark,connect"):
        spark_session(master="sc://there")


def test_what_pyspark_lacks_here_is_no_matter_of_spark_connect(builder: Builder) -> None:
    builder.failure = ImportError("no numpy")
    with pytest.raises(ImportError, match="no numpy"):
        spark_session()

"""The commands, started by `spark-submit` as specs/AUDIT.md §4 says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from marshal_py.embedded import EmbeddedKafka
from marshal_py.embedded.java import find_java
from marshal_py.errors import ConfigurationError
from marshal_py.spark.session import spark_session
from tests.spark.logs import write
from tests.unit.marshal_py.protocol.history.test_partition_history import Script, life

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def submit(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, check=True
    )
    java = str(find_java().executable.resolve().parents[1])
    return subprocess.run(
        [str(SUBMIT), "--master", "local[2]", where.stdout.strip(), *arguments],
        env={**os.environ, "JAVA_HOME": java, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.kafka
def test_an_audit_is_submitted(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(config={"retention.ms": "-1"})
    script = Script()
    life(script)
    write(kafka.bootstrap_servers, topic, [(0, value, at) for _, value, at in script.records])
    done = submit(
        "marshal_py.cli.spark_submit",
        *("audit", "-b", kafka.bootstrap_servers, "--topic", topic),
        *("--out", str(tmp_path / "audit"), "--allow", "create_time", "--json"),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["new"]["records"] == len(script.records)


def test_harvest_is_submitted() -> None:
    done = submit("harvest.cli.spark_submit", "--version")
    assert (done.returncode, done.stdout[:8]) == (0, "harvest "), done.stderr[-2000:]


def test_executors_elsewhere_reach_the_driver_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback address leads an executor on another host to itself."""
    given: dict[str, str] = {}

    class Builder:
        def __getattr__(self, _: str) -> Callable[..., Builder]:
            return lambda *_: self

        def config(self, name: str, value: str) -> Builder:
            given[name] = value
            return self

        def getOrCreate(self) -> None:
            raise InterruptedError

    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    for master, local in (("local[2]", True), ("spark://one:7077", False)):
        given.clear()
        with pytest.raises(InterruptedError):
            spark_session(master=master, kafka=False)
        assert ("spark.driver.host" in given) is local


def test_what_spark_connect_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        def remote(self, _: str) -> Builder:
            return self

        def getOrCreate(self) -> None:
            raise ImportError("grpcio must be installed")

    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "builder", Builder())
    with pytest.raises(ConfigurationError, match=r"pip install 'marshal-py\[spark,connect\]'"):
        spark_session(master="sc://one:15002")

"""The tools by Spark Connect: a server as docs/deploy/spark.md starts it, and a client of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marshal_py.embedded import EmbeddedKafka
from marshal_py.embedded.java import find_java
from marshal_py.embedded.ports import HOST, free_ports
from marshal_py.spark.connector import connector_jars
from tests.spark.logs import write
from tests.spark.test_reconcile import World
from tests.support.paths import ROOT
from tests.support.spark_cluster import SPARK_HOME
from tests.unit.marshal_py.protocol.history.test_partition_history import Script, life

pytestmark = [pytest.mark.kafka, pytest.mark.campaign]

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address, as `--master` takes it."""
    (port,) = free_ports(1)
    settings = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": HOST,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [
                *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", *given),
                *("--jars", ",".join(map(str, connector_jars()))),
                *("--class", _CLASS, "spark-internal"),
            ],
            env={
                **os.environ,
                "JAVA_HOME": str(find_java().executable.resolve().parents[1]),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
            },
            stdout=file,
            stderr=file,
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    break
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
        yield f"sc://{HOST}:{port}"
    finally:
        server.kill()
        server.wait()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: a process is Spark Connect's, or it is not."""
    left_out = {"SPARK_HOME", "PYSPARK_GATEWAY_PORT", "SPARK_LOCAL_IP"}
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(
        [sys.executable, *command],
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


_MARSHAL = ("-c", "from marshal_py.cli.app import main; main()")


def test_the_audit(
    master: str, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(config={"retention.ms": "-1"})
    script = Script()
    life(script)
    write(kafka.bootstrap_servers, topic, [(0, value, at) for _, value, at in script.records])
    done = run(
        *(*_MARSHAL, "audit", "--master", master, "-b", kafka.bootstrap_servers),
        *("--topic", topic, "--out", str(tmp_path / "audit")),
        *("--allow", "create_time", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["new"]["records"] == len(script.records)


def test_the_reconciliation_and_what_applications_use(
    master: str,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
    tmp_path: Path,
) -> None:
    world = World(postgres_database, kafka.bootstrap_servers, [kafka_topic(partitions=2)])
    rows = world.rows(300)
    world.commit(rows)
    world.publish([row for row in rows if row[0] != 123])
    done = run(
        *("-m", "harvest.cli", "reconcile", "--master", master, "-d", world.dsn),
        *("-b", world.servers, "--json"),
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["findings"] == {"missing": 1}

    script = tmp_path / "application.py"
    script.write_text(_APPLICATION)
    done = run(str(script), master, world.servers, world.topics[0], str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [299, 299, 299]


_APPLICATION = """
import sys
from marshal_py.spark.batch import claimed_batch
from marshal_py.spark.session import spark_session
from marshal_py.spark.source import MarshalSource

master, servers, topic, folder = sys.argv[1:]
spark = spark_session(master=master)
spark.dataSource.register(MarshalSource)
given = {"kafka.bootstrap.servers": servers, "groupId": "g", "topics": topic}
given["coordinationTopic"] = f"{topic}.marshal"
counts = [spark.read.format("marshal").options(**given).load().count()]
frame = spark.readStream.format("marshal").options(**given).load()
writer = frame.writeStream.format("parquet").option("path", f"{folder}/out")
writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
for attempt in range(20):
    try:
        assert writer.start().awaitTermination(100)
        break
    except Exception as error:  # Spark gives the source's process ten seconds to begin
        if "connect back" not in str(error):
            raise
counts.append(spark.read.parquet(f"{folder}/out").count())
with claimed_batch(
    spark, servers, group_id="other", topics=[topic], coordination_topic=f"{topic}.marshal"
) as batch:
    counts.append(batch.frame.count())
print(counts)
"""

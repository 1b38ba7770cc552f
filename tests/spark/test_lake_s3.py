"""The lake in a store that speaks S3: `nox -s object_store` (moto answers conditional puts as S3).

The commands are processes of their own, with the settings of docs/how-to/lake.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marshal_py.embedded import EmbeddedKafka
from marshal_py.spark.lake.tables import Lake
from tests.spark.lake_world import OUTBOX, Traffic
from tests.spark.test_cluster import unmet
from tests.support.s3 import BUCKET, s3_settings
from tests.support.spark_commands import environment_for_spark
from tests.unit.marshal_py.protocol.history.test_partition_history import Script, life

pytestmark = [pytest.mark.campaign, pytest.mark.kafka, pytest.mark.timeout(1_800)]

PATIENCE_S = 600
"""For one command; a test starts six of them."""


class Store:
    """A bucket, and the commands that are told how to find it."""

    def __init__(self, settings: dict[str, str], folder: Path) -> None:
        self._environment = environment_for_spark(settings, folder)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, Any]:
        """The exit code, and the JSON that is printed."""
        process = self.start(*words)
        out, error = process.communicate(timeout=PATIENCE_S)
        assert "{" in out, f"{out}{error}"
        return process.returncode, json.loads(out[out.index("{") :])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with s3_settings() as settings:
        memory = {"spark.driver.memory": "1g"}
        yield Store(settings | memory, tmp_path_factory.mktemp("conf"))


def test_of_two_drivers_that_create_one_object_the_second_fails(store: Store) -> None:
    code, found = store.run("tests.spark.s3_race", f"s3a://{BUCKET}/race")
    assert code == 0
    one = {"met": "FileAlreadyExistsException", "there": "one"}
    assert found == {"checkpoint": one, "log": one}


def test_a_day_in_a_bucket_by_runs_that_overlap(
    store: Store, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    forever = {"retention.ms": "-1"}
    log, topic = (kafka_topic(partitions=1, config=forever) for _ in range(2))
    kafka.create_topic(f"{log}.snapshots", 1)
    traffic = Traffic(kafka.bootstrap_servers, log, topic, tmp_path)
    traffic.lake = Lake.at(f"s3a://{BUCKET}/lake")
    script = Script()
    life(script)
    traffic.coordinate(script)
    # Of 40 rows 7 is not published, 8 twice, 9 after 14 of its key.
    traffic.archive(range(40))
    traffic.publish(*range(7), 8, *range(10, 30), 8, 9, *range(30, 40))

    archive = ("--outbox", OUTBOX, "--parquet", str(tmp_path / "archive"), "--json")
    code, found = store.run("harvest.cli", "lake", "--lake", traffic.lake.place, *archive)
    assert (code, found["added"]) == (0, 40)
    words = ("marshal_py.cli", *traffic.command(), "--json")
    both = [store.start(*words) for _ in range(2)]
    for each in both:
        each.communicate(timeout=PATIENCE_S)
    wanted = {"lost": 1, "duplicated": 1, "disordered": 1}
    store.run(*words)
    code, found = store.run(*words)
    assert (code, found["records"], found["published"]) == (1, 0, 0)
    assert unmet(found) == wanted
    kept = ("--bronze-days", "9999", "--days", "99999", "--json")
    code, found = store.run(
        "marshal_py.cli", "lake", "maintain", "--lake", traffic.lake.place, *kept
    )
    assert (code, found["deleted"]) == (0, {})

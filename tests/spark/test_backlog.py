"""`harvest backlog` on real servers: what it publishes, who it refuses, what kills survive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from typer.testing import CliRunner

from harvest.cli.app import app
from harvest.config.load import load, parse
from harvest.config.model import ReaperConfig
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.errors import ConfigurationError
from harvest.runtime.parts import make_range_store
from harvest.runtime.registration import check_registration
from harvest.spark import backlog as backlog_module
from harvest.spark.backlog import Backlog, Progress, backlog
from harvest.spark.shard import Job, Outcome, publish
from marshal_py import Marshal
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import World, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

SHARDS = 2
FILL = """
INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value,
                    kafka_header_keys, kafka_header_values)
SELECT now(), %s, 'key-' || mod(n, %s), n::text, '{n}', ARRAY[n::text]
FROM generate_series(%s::int, %s::int) AS n
"""
KEYS = 50


@pytest.fixture
def world(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> Iterator[World]:
    topic = kafka_topic(partitions=3)
    made = World(
        tmp_path, kafka.bootstrap_servers, postgres_database, topic, mode="range", shards=SHARDS
    )
    with made.opened(kafka, PostgresRangeStore(postgres_database, "outbox")):
        yield made


def fill(world: World, first: int, last: int) -> None:
    """Rows with values from `first` to `last`, after an insert that was rolled back."""
    with psycopg.connect(world.database) as connection:
        connection.execute(FILL, (world.topic, KEYS, 1, 7))
        connection.rollback()
        connection.execute(FILL, (world.topic, KEYS, first, last))
    for n in range(first, last + 1):
        world.committed[f"key-{n % KEYS}"].append(str(n))


def config(world: World) -> ReaperConfig:
    return load(world.config)


def small(world: World) -> ReaperConfig:
    """Many small transactions, so that a kill meets one."""
    limits = {"mark_query_records": 50, "max_in_flight_records": 100}
    return parse(world.config.read_text() + f"limits: {json.dumps(limits)}\n")


def assert_published(world: World, result: Backlog) -> None:
    assert result.done, result
    assert world.published() == world.committed


def test_everything_is_published_once_and_in_order_and_then_nothing(
    spark: SparkSession, world: World
) -> None:
    fill(world, 1, 3_000)
    seen: list[Progress] = []
    first = backlog(spark, [config(world)], on_progress=seen.append)
    assert_published(world, first)
    assert first.published == 3_000
    with contextlib.closing(make_range_store(config(world))) as store:
        store.connect()
        registered = store.registration()
    assert registered is not None
    assert registered.cluster, "a harvester of another cluster is refused, and one of this is not"
    assert [shard.outcome.dead_ids for shard in first.shards] == [7, 7]
    fill(world, 3_001, 3_100)
    second = backlog(spark, [config(world)])
    assert_published(world, second)
    assert second.published == 100


def test_what_is_open_when_it_ends_is_left_to_the_harvester(
    spark: SparkSession, world: World
) -> None:
    with psycopg.connect(world.database) as late:
        late.execute(FILL, (world.topic, KEYS, 1, 5))
        fill(world, 101, 200)
        result = backlog(spark, [config(world)])
        assert result.published == 100
        assert [shard.outcome.gaps for shard in result.shards] == [1, 1]
    for n in range(1, 6):
        world.committed[f"key-{n}"].append(str(n))
    world.harvester()
    world.wait_drained()
    assert world.published() == world.committed


def test_it_refuses_to_run_beside_a_harvester(spark: SparkSession, world: World) -> None:
    harvester = world.harvester()
    harvester.wait_said("harvesting as", times=SHARDS)
    with pytest.raises(ConfigurationError, match="is at work"):
        backlog(spark, [config(world)], wait_s=0.5)
    fill(world, 1, 100)
    world.wait_drained()
    assert harvester.said("harvesting as") == SHARDS, "it was not disturbed"
    timer = threading.Timer(0.5, harvester.stop)
    timer.start()
    assert backlog(spark, [config(world)], wait_s=120).published == 0
    timer.join()


def test_a_harvester_waits_for_its_end(spark: SparkSession, world: World) -> None:
    fill(world, 1, 20_000)
    started: list[Any] = []

    def begin(_: object) -> None:
        if not started:
            started.append(world.harvester())

    result = backlog(spark, [small(world)], on_progress=begin)
    assert result.published == 20_000
    if started:
        started[0].wait_said("harvesting as", times=SHARDS)
    assert_published(world, result)


def test_mark_mode_and_twins_are_refused(spark: SparkSession, world: World) -> None:
    text = world.config.read_text()
    marking = parse(text.replace("range", "mark").replace(f"shards: {SHARDS}", "shards: 1"))
    with pytest.raises(ConfigurationError, match="mode: range"):
        backlog(spark, [marking])
    with pytest.raises(ConfigurationError, match="given twice"):
        backlog(spark, [config(world), config(world)])
    with pytest.raises(ConfigurationError, match="at least one"):
        backlog(spark, [])


def test_two_attempts_at_one_shard(world: World) -> None:
    """As with speculation: the later attempt works, the earlier one waits, then finds it done."""
    fill(world, 1, 3_000)
    settings = small(world)
    begun, fenced = threading.Event(), threading.Event()

    class Slow:
        """Waits, after its third transaction, until the other attempt has fenced it."""

        atomic = True

        def __init__(self, sink: Any) -> None:
            self._sink = sink
            self._count = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

        def deliver(self, rows: Any, checkpoint: str) -> Any:
            self._count += 1
            if self._count == 3:
                begun.set()
                assert fenced.wait(60)
            return self._sink.deliver(rows, checkpoint)

    class Telling(Slow):
        def deliver(self, rows: Any, checkpoint: str) -> Any:
            failure = self._sink.deliver(rows, checkpoint)
            fenced.set()
            return failure

    with driver(settings) as marshal:
        claims = marshal.claim_many(settings.shard_units())
        jobs = [Job(settings, n, claim.epoch, 3_007) for n, claim in enumerate(claims)]
        outcomes: list[Any] = []
        earlier = threading.Thread(
            target=lambda: outcomes.append(publish(jobs[0], Slow, silence_s=2)), daemon=True
        )
        earlier.start()
        assert begun.wait(60)
        later = publish(jobs[0], Telling)
        earlier.join(60)
        other = publish(jobs[1])
    assert not later.error
    assert not other.error
    assert [outcome.error for outcome in outcomes] == [""]
    assert outcomes[0].published + later.published + other.published == 3_000
    assert world.published() == world.committed


def test_a_task_whose_driver_has_lost_the_claim_stops(world: World) -> None:
    fill(world, 1, 100)
    settings = config(world)
    with driver(settings) as marshal:
        claim = marshal.claim(*settings.shard_units()[0])
        job = Job(settings, 0, claim.epoch - 1, 107)
        assert publish(job).error == "the claim was lost"
    with driver(settings, "next") as marshal:  # the old one is released: nobody holds it
        assert publish(Job(settings, 0, claim.epoch, 107)).error == "the claim was lost"
    assert world.published_count() == 0


def test_shards_whose_claim_was_lost_are_claimed_again(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world, 1, 300)
    epochs: list[dict[int, int]] = []

    def run(spark: SparkSession, tasks: Any, wrap: Any) -> list[Outcome]:
        epochs.append({job.shard: job.epoch for task in tasks for job in task})
        if len(epochs) == 1:  # shard 1 finds another epoch in the log than it was given
            tasks = [[replace(job, epoch=job.epoch - job.shard) for job in task] for task in tasks]
        return really(spark, tasks, wrap)

    really = backlog_module._run
    monkeypatch.setattr(backlog_module, "_run", run)
    result = backlog(spark, [config(world)])
    assert_published(world, result)
    assert result.published == 300
    assert [set(found) for found in epochs] == [{0, 1}, {1}]
    assert epochs[1][1] > epochs[0][1]


def driver(settings: ReaperConfig, client_id: str = "driver") -> Marshal:
    """What a driver does before its tasks begin; whoever enters it claims."""
    with contextlib.closing(make_range_store(settings)) as store:
        check_registration(settings, store)
    return Marshal(
        dict(settings.kafka),
        group_id=settings.group,
        client_id=client_id,
        interval_ms=settings.coordination.interval_ms,
        topic=settings.coordination.topic,
        create_topics=True,
    )


def processes(group: int, words: str) -> list[int]:
    """The processes of a group whose command line has these words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == group:
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                if words in command:
                    found.append(int(folder.name))
    return found


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_killed_tasks_executors_and_drivers(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """On two executors: tasks die in the middle of a transaction, then an executor, then the
    driver, whose executors outlive it for a moment."""
    fill(world, 1, 10_000)
    path = tmp_path / "small.yaml"
    path.write_text(small(world).model_dump_json())
    log = tmp_path / "job.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.backlog_app", str(path), str(tmp_path)],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def wait_for_more() -> None:
        before = world.published_count()
        more = lambda: world.published_count() > before + 500  # noqa: E731
        wait_until(more, "it goes on", log, timeout_s=200)

    try:
        # A session, workers and workers anew: on a busy machine that takes its time.
        died = lambda: len(list((tmp_path / "deaths").glob("*"))) == SHARDS  # noqa: E731
        wait_until(died, "tasks that died", log, timeout_s=300)
        wait_for_more()
        executors = processes(process.pid, "CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        wait_for_more()
        assert process.poll() is None, log.read_text()[-3000:]
        executors = processes(process.pid, "CoarseGrainedExecutorBackend")
        for pid in set(processes(process.pid, "")) - set(executors):
            os.kill(pid, signal.SIGKILL)
        result = backlog(spark, [small(world)], wait_s=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    assert_published(world, result)
    assert 0 < result.published < 9_000


def test_the_command(spark: SparkSession, world: World) -> None:
    fill(world, 1, 300)
    found = CliRunner().invoke(app, ["backlog", "--config", str(world.config), "--json"])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout.splitlines()[-1])
    assert (report["done"], report["published"]) == (True, 300)
    assert [shard["until"] for shard in report["shards"]] == [307, 307]
    again = CliRunner().invoke(app, ["backlog", "--config", str(world.config)])
    assert again.stdout.startswith("0 rows in ")

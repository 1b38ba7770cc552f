"""Reconciliation of a real outbox table with real topics: planted differences, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import typer
from confluent_kafka import Producer
from typer.testing import CliRunner

from harvest.errors import ConfigurationError
from harvest.spark.cli import register
from harvest.spark.reconcile import Outbox, Reconciliation, reconcile
from marshal_py.embedded import EmbeddedKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

Row = tuple[int, str, str | None, str | None, list[str], list[str]]
"""(id, topic, key, value, header keys, header values)"""

LONG_AGO = datetime.now(UTC) - timedelta(hours=1)


class World:
    """An outbox table and its topics, filled alike; a test then plants what differs."""

    def __init__(self, dsn: str, servers: str, topics: list[str]) -> None:
        self.dsn, self.servers, self.topics = dsn, servers, topics
        self.producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "CREATE TABLE outbox (id bigint PRIMARY KEY, create_time timestamptz NOT NULL, "
                "kafka_topic varchar(249) NOT NULL, kafka_key text, kafka_value text, "
                "kafka_header_keys text[] NOT NULL, kafka_header_values text[] NOT NULL, "
                "leader_id uuid)"
            )

    def rows(self, count: int, first: int = 1) -> list[Row]:
        return [
            (
                n,
                self.topics[n % len(self.topics)],
                f"key-{n % 37}",
                None if n % 50 == 0 else f"value {n} Ünïcode",
                ["trace", "trace"] if n % 3 == 0 else [],
                [f"{n}", ""] if n % 3 == 0 else [],
            )
            for n in range(first, first + count)
        ]

    def commit(self, rows: list[Row], at: datetime = LONG_AGO) -> None:
        statement = (
            "COPY outbox (id, create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) FROM STDIN"
        )
        with (
            psycopg.connect(self.dsn) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for row in rows:
                copy.write_row((row[0], at, *row[1:]))

    def publish(self, rows: list[Row]) -> None:
        for _, topic, key, value, names, values in rows:
            headers = list(zip(names, values, strict=True))
            self.producer.produce(topic, value, key, headers=headers or None)
        assert self.producer.flush(30) == 0


@pytest.fixture
def world(kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str) -> World:
    topics = [kafka_topic(partitions=3), kafka_topic(partitions=2)]
    return World(postgres_database, kafka.bootstrap_servers, topics)


def run(spark: SparkSession, world: World, **more: Any) -> Reconciliation:
    return reconcile(spark, Outbox(dsn=world.dsn), world.servers, **more)


def kinds(result: Reconciliation) -> list[tuple[str, int | None]]:
    return sorted(((s["kind"], s["id"]) for s in result.samples), key=repr)


def test_what_arrived_is_clean(spark: SparkSession, world: World) -> None:
    rows = world.rows(500)
    world.commit(rows)
    world.publish(rows)
    result = run(spark, world)
    assert result.clean
    assert (result.rows, result.records, result.buckets_different) == (500, 500, 0)


def test_each_planted_difference_is_found_and_nothing_else(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    rows = world.rows(600)
    never = (0, world.topics[0], "key-never", "rolled back", [], [])
    altered_value = (*rows[40][:3], "something else", *rows[40][4:])
    altered_headers = (*rows[98][:4], ["trace"], ["other"])
    published: list[Row] = list(rows)
    published[40] = altered_value
    published[98] = altered_headers  # id 99 has headers
    published[10], published[10 + 74] = published[10 + 74], published[10]  # one key, one topic
    assert rows[10][1:3] == rows[84][1:3]
    published.insert(300, rows[200])
    del published[20]
    published.append(never)
    world.commit(rows)
    world.publish(published)
    young = world.rows(1, first=1_000)
    world.commit(young, datetime.now(UTC))

    result = run(spark, world, out=str(tmp_path))
    assert kinds(result) == sorted(
        [
            ("altered", 41),
            ("altered", 99),
            ("duplicated", 201),
            ("missing", 21),
            ("never_committed", None),
            ("reordered", 85),
        ],
        key=repr,
    )
    assert result.pending == 1
    assert not result.clean
    assert sum(result.findings.values()) == 6
    written = spark.read.parquet(str(tmp_path / "findings"))
    assert written.count() == 7
    (sample,) = [s for s in result.samples if s["kind"] == "never_committed"]
    assert (sample["topic"], sample["key"]) == (world.topics[0], "key-never")


def test_null_and_empty_are_not_the_same(spark: SparkSession, world: World) -> None:
    topic = world.topics[0]
    world.commit([(1, topic, "a", None, [], []), (2, topic, "b", "", [], [])])
    world.publish([(1, topic, "a", "", [], []), (2, topic, "b", "", [], [])])
    assert kinds(run(spark, world)) == [("altered", 1)]


def test_records_of_an_aborted_transaction_do_not_count(spark: SparkSession, world: World) -> None:
    rows = world.rows(20)
    world.commit(rows)
    producer = Producer({"bootstrap.servers": world.servers, "transactional.id": world.topics[0]})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(rows[0][1], "aborted", "x")
    producer.flush(30)
    producer.abort_transaction(30)
    world.publish(rows)
    assert run(spark, world).clean


def test_a_topic_that_does_not_exist(spark: SparkSession, world: World) -> None:
    world.commit([(1, f"none-{time.time_ns()}", "a", "b", [], [])])
    assert kinds(run(spark, world)) == [("missing", 1)]


def test_a_parquet_archive(spark: SparkSession, world: World, tmp_path: Path) -> None:
    rows = world.rows(200)
    schema = (
        "id bigint, kafka_topic string, kafka_key string, kafka_value string, "
        "kafka_header_keys array<string>, kafka_header_values array<string>"
    )
    frame = spark.createDataFrame(rows, schema).selectExpr("*", "current_timestamp() create_time")
    frame.write.parquet(str(tmp_path / "archive"))
    world.publish(rows[:-1])
    archive = Outbox(parquet=str(tmp_path / "archive"))
    assert kinds(reconcile(spark, archive, world.servers, grace_s=0)) == [("missing", 200)]
    world.publish(rows[-1:])
    assert reconcile(spark, archive, world.servers, grace_s=0).clean


def test_both_or_no_source_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Outbox()
    with pytest.raises(ConfigurationError):
        Outbox(dsn="x", parquet="y")
    assert "secret" not in repr(Outbox(dsn="password=secret"))


def test_the_command(spark: SparkSession, world: World, tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)  # with one command alone, typer hides its name
    rows = world.rows(30)
    world.commit(rows)
    world.publish(rows[1:])
    command = ["reconcile", "-d", world.dsn, "-b", world.servers, "--out", str(tmp_path), "--json"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 1
    assert json.loads(first.stdout)["findings"] == {"missing": 1}
    assert "missing" in (tmp_path / "report.html").read_text()
    world.publish(rows[:1])  # late, but the only row of its key
    assert CliRunner().invoke(app, command).exit_code == 0

"""Reconciliation of a real outbox table with real topics: planted differences, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import typer
from confluent_kafka import Producer
from typer.testing import CliRunner

from harvest.cli.spark import reconcile as reconcile_command
from harvest.errors import ConfigurationError
from harvest.spark.reconcile import Outbox, Reconciliation, reconcile
from marshal_py.embedded import EmbeddedKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

Row = tuple[int, str, str | None, str | None, list[str], Sequence[str | None]]
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

    def publish(self, rows: list[Row], outbox: str | None = None) -> None:
        for id, topic, key, value, names, values in rows:
            headers: list[tuple[str, str | bytes | None]] = list(zip(names, values, strict=True))
            if outbox is not None:
                headers.append(("harvest-id", f"{outbox}/{id}"))
            self.producer.produce(topic, value, key, headers=headers or None)
        assert self.producer.flush(60) == 0


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


def test_the_header_that_the_lake_needs_alters_nothing(spark: SparkSession, world: World) -> None:
    rows = world.rows(60)
    rows[5] = (*rows[5][:4], ["harvest-id"], ["far/outbox/1"])  # of the message that it came of
    rows[8] = (*rows[8][:4], ["trace", "harvest-id"], ["1", None])
    world.commit(rows)
    rows[29] = (*rows[29][:4], ["trace"], ["other"])
    world.publish(rows, "shop/outbox")
    assert kinds(run(spark, world)) == [("altered", 30)]


def test_each_planted_difference_is_found_and_nothing_else(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    rows = world.rows(600)
    never: Row = (0, world.topics[0], "key-never", "rolled back", [], [])
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
    names = ["h", "i"]
    same = [
        (2, topic, "b", "", [], []),
        (4, topic, "d", "", names, [None, ""]),
        (6, topic, None, None, [], []),
    ]
    world.commit(
        [
            (1, topic, "a", None, [], []),
            (3, topic, "c", "", names, [None, "x"]),
            (5, topic, "e", "", ["h"], [None]),
            *same,
        ]
    )
    world.publish(
        [
            (1, topic, "a", "", [], []),
            (3, topic, "c", "", names, ["x", None]),
            (5, topic, "e", "", [], []),
            *same,
        ]
    )
    assert kinds(run(spark, world)) == [("altered", 1), ("altered", 3), ("altered", 5)]


def test_a_table_that_is_no_outbox_is_refused(spark: SparkSession, world: World) -> None:
    with psycopg.connect(world.dsn) as connection:
        connection.execute("ALTER TABLE outbox DROP COLUMN kafka_value")
    with pytest.raises(ConfigurationError, match="no column 'kafka_value'"):
        run(spark, world)


def test_records_of_an_aborted_transaction_do_not_count(spark: SparkSession, world: World) -> None:
    rows = world.rows(20)
    world.commit(rows)
    producer = Producer({"bootstrap.servers": world.servers, "transactional.id": world.topics[0]})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(rows[0][1], "aborted", "x")
    producer.flush(60)
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


class Daily:
    """Incremental runs with one folder."""

    def __init__(self, spark: SparkSession, world: World, folder: Path) -> None:
        self.spark, self.world, self.folder = spark, world, folder

    def __call__(self, **more: Any) -> Reconciliation:
        return run(self.spark, self.world, state=self.folder, **more)


@pytest.fixture
def daily(spark: SparkSession, world: World, tmp_path: Path) -> Daily:
    return Daily(spark, world, tmp_path / "a state")


def counts(result: Reconciliation) -> tuple[int, int, int, int]:
    return result.rows, result.records, result.pending, result.outstanding


def test_only_what_is_new_is_compared_and_what_was_on_its_way_is_carried_over(
    world: World, daily: Daily
) -> None:
    rows = world.rows(400)
    world.commit(rows[:200])
    world.publish(rows[:190])
    first = daily(grace_s=7200)  # all are young
    assert first.clean
    assert counts(first) == (200, 190, 10, 0)
    world.commit(rows[200:300])
    world.publish(rows[190:250])
    second = daily(grace_s=7200)
    assert second.clean
    assert counts(second) == (100, 60, 50, 0)
    world.publish(rows[250:299])
    third = daily()  # nothing is young any more
    assert kinds(third) == [("missing", 300)]
    assert counts(third) == (0, 49, 0, 0)
    fourth = daily()
    assert fourth.clean, "it is told once"
    assert counts(fourth) == (0, 0, 0, 1)
    world.publish(rows[299:300])
    fifth = daily()
    assert fifth.clean
    assert counts(fifth) == (0, 1, 0, 0)


def test_a_topic_that_one_run_leaves_out_is_read_on_by_the_next(world: World, daily: Daily) -> None:
    rows = world.rows(100)
    world.commit(rows)
    world.publish(rows)
    assert daily().records == 100
    assert daily(topics=world.topics[:1]).records == 0
    last = daily()
    assert (last.clean, last.records) == (True, 0)


def test_rows_that_commit_late_are_no_findings(world: World, daily: Daily) -> None:
    rows = world.rows(300)
    late = [rows[n] for n in (0, 50, 51, 150)]  # one below the first that is seen
    early = [row for row in rows if row not in late]
    world.commit(early[:200])
    world.publish(early[:200])
    assert daily().clean
    world.commit(late)
    world.commit(early[200:])
    world.publish(early[200:])
    world.publish(late)  # after later rows of their keys
    second = daily()
    assert second.clean, second.samples
    assert counts(second) == (100, 100, 0, 0)


def test_ids_that_never_come_are_given_up(world: World, daily: Daily) -> None:
    rows = world.rows(10)
    world.commit(rows[5:])
    world.publish(rows[5:])
    assert daily(late_s=0).clean
    state = json.loads((daily.folder / "state.json").read_text())
    assert [entry[:2] for entry in state["open_ids"]] == [[1, 5]]
    time.sleep(0.002)  # later than late_s
    assert daily(late_s=0).clean
    assert json.loads((daily.folder / "state.json").read_text())["open_ids"] == []


def test_differences_across_runs_are_found(world: World, daily: Daily) -> None:
    rows = world.rows(300)
    world.commit(rows[:200])
    world.publish([row for row in rows[:200] if row[0] not in (7, 9)])
    first = daily(grace_s=7200)
    assert counts(first) == (200, 198, 2, 0)
    altered = (*rows[8][:3], "something else", *rows[8][4:])
    world.publish([rows[6]])  # 7: after the record of 81, a later row of its key
    world.publish([altered])
    world.publish([rows[20]])  # 21, a second time
    world.publish([(0, world.topics[0], "key-never", "rolled back", [], [])])
    world.commit(rows[200:])
    world.publish(rows[200:])
    second = daily(grace_s=0)
    assert kinds(second) == sorted(
        [("reordered", 7), ("altered", 9), ("duplicated", 21), ("never_committed", None)], key=repr
    )
    assert {line["kind"]: line["count"] for line in second.hours} == second.findings
    assert {line["key"] for line in second.keys} == {"key-7", "key-9", "key-21", "key-never"}
    assert daily().clean


def test_records_that_come_before_their_archive_are_carried(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    rows = world.rows(100)
    schema = (
        "id bigint, kafka_topic string, kafka_key string, kafka_value string, "
        "kafka_header_keys array<string>, kafka_header_values array<string>"
    )
    path = str(tmp_path / "archive")

    def archive(part: list[Row]) -> None:
        frame = spark.createDataFrame(part, schema).selectExpr("*", "now() AS create_time")
        frame.write.mode("append").parquet(path)

    def compare(grace_s: float) -> Reconciliation:
        state = tmp_path / "state"
        return reconcile(spark, Outbox(parquet=path), world.servers, state=state, grace_s=grace_s)

    archive(rows[:60])
    world.publish(rows)
    first = compare(600)
    assert first.clean
    assert counts(first) == (60, 100, 0, 0)
    archive(rows[60:99])
    second = compare(0)
    assert kinds(second) == [("never_committed", None)]
    assert counts(second) == (39, 0, 0, 0)


def test_a_window_of_time(spark: SparkSession, world: World) -> None:
    """Rows of three times, each with one that is missing; the topics have no gap between them."""
    rows = world.rows(300)
    now = datetime.now(UTC)
    old, middle, new = (now - timedelta(hours=h) for h in (30, 10, 5))
    for part, at in ((rows[:100], old), (rows[100:200], middle), (rows[200:], new)):
        world.commit(part, at)
    world.publish([row for row in rows if row[0] not in (50, 150, 250)])

    def window(since: datetime | None, until: datetime | None) -> Reconciliation:
        ms = [None if at is None else int(at.timestamp() * 1000) for at in (since, until)]
        return run(spark, world, since_ms=ms[0], until_ms=ms[1])

    hour = timedelta(hours=1)
    found = window(middle - hour, middle + hour)
    assert kinds(found) == [("missing", 150)]
    assert found.rows == 100
    assert kinds(window(None, middle)) == [("missing", 50)]
    assert kinds(window(middle + hour, None)) == [("missing", 250)]
    with pytest.raises(ConfigurationError, match="give one of the two"):
        run(spark, world, since_ms=0, state="x")


def test_a_state_of_another_outbox_or_none_is_refused(world: World, daily: Daily) -> None:
    world.commit(world.rows(1))
    daily(grace_s=7200)
    with pytest.raises(ConfigurationError, match="is the state of outbox"):
        reconcile(daily.spark, Outbox(parquet="/x"), world.servers, state=daily.folder)
    (daily.folder / "state.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        daily()


def test_both_or_no_source_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Outbox()
    with pytest.raises(ConfigurationError):
        Outbox(dsn="x", parquet="y")
    assert "secret" not in repr(Outbox(dsn="password=secret"))


def test_the_command(spark: SparkSession, world: World, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("reconcile")(reconcile_command)
    app.command("other")(lambda: None)  # with one command alone, typer hides its name
    rows = world.rows(30)
    world.commit(rows)
    world.publish(rows[1:])
    command = ["reconcile", "-d", world.dsn, "-b", world.servers, "--out", str(tmp_path), "--json"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 1
    assert json.loads(first.stdout)["findings"] == {"missing": 1}
    page = (tmp_path / "report.html").read_text()
    assert "missing" in page
    assert "By hour" in page
    assert spark.read.parquet(str(tmp_path / "findings")).count() == 1
    world.publish(rows[:1])  # late, but the only row of its key
    assert CliRunner().invoke(app, command).exit_code == 0
    assert spark.read.parquet(str(tmp_path / "findings")).isEmpty()

"""The lake against real Kafka: a day with planted faults, runs that die, what retention leaves."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from typer.testing import CliRunner

from harvest import errors as harvest_errors
from harvest.spark.lake import add_archive, add_table
from marshal_py.cli.app import app
from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import ConfigurationError, LogHole
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.spark.audit_tables import to_arrow
from marshal_py.spark.lake.maintenance import maintain
from marshal_py.spark.lake.report import render_lake
from marshal_py.spark.lake.run import LakeRun, last_run, run_lake
from marshal_py.spark.lake.sql import table_name, time_literal
from marshal_py.spark.lake.tables import FOLDED, LAKE_TABLES, Lake
from tests.spark.lake_world import BEGAN, DAY, OUTBOX, World
from tests.support.paths import DOCS
from tests.unit.marshal_py.protocol.history.test_partition_history import START_MS, Script, life

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka


@pytest.fixture
def world(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> World:
    forever = {"retention.ms": "-1"}
    log = kafka_topic(partitions=1, config=forever)
    kafka.create_topic(f"{log}.snapshots", 1)
    topic = kafka_topic(partitions=1, config=forever)
    return World(spark, kafka.bootstrap_servers, log, topic, tmp_path)


def folded(script: Script, table: str) -> list[tuple[Any, ...]]:
    """What the fold gives for a whole log, by table, without the days."""
    history = PartitionHistory(0, 1)
    history.feed(*zip(*script.records, strict=True))
    if table == "anomalies":
        history.saw_create_time(0, START_MS)
    found = history.rows.tables.get(table, []) + history.open_rows().get(table, [])
    listed = [tuple(row.values()) for row in to_arrow(table, found).to_pylist()]
    return sorted((tuple(map(_naive, row)) for row in listed), key=repr)


def _naive(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def queries_of_the_guide() -> list[str]:
    page = (DOCS / "how-to" / "lake.md").read_text()
    [block] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    return [query for query in block.split(";") if query.strip()]


def run_the_notebook(world: World) -> dict[str, Any]:
    """Run the cells of the guide's notebook on this lake; return its names."""
    cells = json.loads((DOCS / "how-to" / "lake.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[0].startswith('LAKE = "/data/lake"\nDAY = ')
    names: dict[str, Any] = {}
    for cell in (f"LAKE, DAY = {world.lake.place!r}, '{DAY}'", *code[1:]):
        exec(cell, names)
    return names


def silver(world: World, table: str) -> list[tuple[Any, ...]]:
    names = [c.name for c in LAKE_TABLES[f"silver.{table}"] if c.name != "day"]
    return world.rows(f"silver.{table}", *names)


def test_a_day_says_what_happened_and_a_second_run_changes_nothing(
    world: World, kafka: EmbeddedKafka
) -> None:
    kafka.create_topic("t", 1, config={"retention.ms": "-1"})  # what `life` works on
    world.topic, world.settings = "t", replace(world.settings, published=["t"])
    script = Script()
    life(script)
    world.coordinate(script)
    world.archive(range(40))
    # 7 never arrives, 8 twice, 9 behind 14 of its key, 10 is altered, 39 comes a day later.
    world.publish(*range(7), 8)
    world.publish(10, value=b"something else")
    world.publish(*range(11, 30), 8, 9, *range(30, 39), 1_000)
    world.publish(39, days_later=1)
    world.archive([8_640_000])  # of the next day: rows of the day are known
    assert world.add_archive() == 41

    done = world.run()
    assert (done.records, done.published) == (len(script.records), 41)
    counts = "rows delivered records lost pending unexpected duplicated disordered altered"
    assert world.rows("gold.outboxes", "outbox", *counts.split()) == [
        # 13 and 18 are behind 9 in no way: they stand before it.
        (OUTBOX, 40, 39, 41, 1, 0, 1, 1, 1, 1)
    ]
    kinds = world.rows("gold.findings", "kind", "id", where="outbox IS NOT NULL")
    assert kinds == [
        ("altered", 10),
        ("disordered", 9),
        ("duplicated", 8),
        ("lost", 7),
        ("unexpected", 1_000),
    ]
    assert not done.met
    failed = {each.name: each.found for each in done.expectations if not each.met}
    assert failed == {f"findings: {kind}": 1.0 for kind, _ in kinds}
    late = world.rows("silver.deliveries", "status", "latency_ms", where="id = 39")
    assert late == [("delivered", 86_400_005)]

    # Who handled it: the claims of `life` went past 10, 20 and 50.
    handlers = [
        (offset, handled[0].client_id)
        for offset, handled in world.rows(
            "silver.deliveries", "offset", "handled", where="offset IN (0, 10)"
        )
    ]
    assert handlers == [(0, "a"), (10, "b")]
    assert world.rows("gold.groups", "group_id", "claims", "takeovers") == [("g", 3, 1)]
    for table in FOLDED:
        assert silver(world, table) == folded(script, table), table

    before = world.everything()
    result = CliRunner().invoke(
        app,
        [
            *("lake", "run", "-b", world.servers, "--coordination-topic", world.log),
            *("--lake", world.lake.place, "--published", world.topic, "--day", str(DAY)),
            *("--allow", "create_time", "--schema", "lake", "--json"),
        ],
    )
    assert result.exit_code == 1, result.output
    again = json.loads(result.stdout)
    assert (again["records"], again["published"], again["met"]) == (0, 0, False)
    assert world.everything() == before

    in_catalog = world.spark.sql("SELECT outbox, lost FROM lake.gold_outboxes").collect()
    assert [tuple(row) for row in in_catalog] == [(OUTBOX, 1)]
    for query in queries_of_the_guide():
        world.spark.sql(query.replace("/data/lake", world.lake.place)).collect()
    noted = run_the_notebook(world)["findings"]
    assert sorted(noted[noted.outbox.notna()].kind) == [kind for kind, _ in kinds]
    page = render_lake(world.spark, world.lake, DAY, 3)
    assert "findings: lost" in page
    assert OUTBOX in page


def test_runs_that_die_give_the_tables_of_one_that_lives(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    for _ in range(3):
        life(script)
        script.wait(2_500)
    script.claim("a")
    half = len(script.records) // 2
    world.publish(*range(20))
    world.coordinate(script, until=half)
    written: list[str] = []
    really_replace = Lake.replace

    def dies_at(count: int) -> Callable[..., None]:
        written.clear()

        def dying(lake: Lake, table: str, *rest: Any, **more: Any) -> None:
            written.append(table)
            if len(written) > count:
                raise RuntimeError("planted")
            really_replace(lake, table, *rest, **more)

        return dying

    def run_and_die(count: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Lake, "replace", dies_at(count))
            with pytest.raises((RuntimeError, StreamingQueryException), match="planted"):
                world.run()

    run_and_die(3)  # among the tables of the fold
    world.coordinate(script, since=half)
    run_and_die(len(FOLDED))  # it has all of the first half, but for what the fold goes on from
    run_and_die(len(FOLDED) + 2)  # it finished the first half, and dies in the second
    assert world.run().records == 0
    for table in FOLDED:
        assert silver(world, table) == folded(script, table), table
    assert world.rows("gold.outboxes", "rows", "records", "lost") == [(None, 20, None)]


def test_a_day_that_was_not_final_is_written_again_and_tells_what_is_new(world: World) -> None:
    """Its second record comes on the day after, when the day is written already."""
    world.lake = Lake.at(str(world.at / "a {day} lake"))
    world.archive([1, 2, 3])
    assert world.add_archive() == 3
    world.publish(1, 2)
    assert [gate.name for gate in world.run().expectations if not gate.met] == ["findings: lost"]
    # As if that had been in the night after it.
    runs = table_name(world.lake.path("gold.runs"))
    then = time_literal(dt.datetime.combine(DAY + dt.timedelta(1), dt.time(2, 30), dt.UTC))
    world.spark.sql(f"UPDATE {runs} SET started_at = {then}")

    world.publish(2, days_later=1)
    later = DAY + dt.timedelta(9)
    done = world.run(later)
    assert done.days == (str(DAY), str(later))
    assert [(gate.day, gate.name) for gate in done.expectations if not gate.met] == [
        (DAY, "findings: duplicated"),
        (DAY, "findings: lost"),
    ]
    assert world.rows("gold.outboxes", "rows", "records", "lost") == [(3, 3, 1)]
    # It is final, and nobody has brought the rows of `later` but those that there were.
    assert world.run(later).days == (str(later),)

    def die(_done: LakeRun) -> None:
        raise RuntimeError("planted")

    ended = last_run(world.spark, world.lake.place)
    with pytest.raises(RuntimeError, match="planted"):  # its tables are written, and nobody told
        run_lake(world.spark, world.servers, world.lake.place, [DAY], world.settings, tell=die)
    assert last_run(world.spark, world.lake.place) == ended
    assert world.run(later).days == (str(DAY), str(later))


def test_what_retention_and_compaction_leave(world: World) -> None:
    script = Script()
    life(script)
    half = len(script.records) // 2
    world.coordinate(script, until=half)
    world.publish(1)
    world.run()
    world.coordinate(script, since=half)
    world.publish(2)
    world.run()
    before = {table: world.rows(table) for table in ("bronze.coordination", "silver.claims")}
    deleted = maintain(world.spark, world.lake, today=DAY, bronze_days=2)
    assert deleted == {}
    assert {table: world.rows(table) for table in before} == before
    for table in LAKE_TABLES:
        if world.lake.exists(world.spark, table):
            frame = world.spark.read.format("delta").load(world.lake.path(table))
            assert len(frame.inputFiles()) <= 2, table

    # Bronze goes; what was made of it stays, and the fold goes on behind it.
    later = DAY + dt.timedelta(30)
    deleted = maintain(world.spark, world.lake, today=later, bronze_days=20)
    assert deleted == {"bronze.coordination": len(script.records), "bronze.published": 2}
    script.wait(30 * 86_400_000)
    count = len(script.records)
    life(script)
    world.coordinate(script, since=count)
    world.run(later)
    for table in FOLDED:
        assert silver(world, table) == folded(script, table), table
    kept = {table: world.rows(table) for table in ("silver.deliveries", "gold.outboxes")}
    assert len(kept["silver.deliveries"]) == 2
    with pytest.raises(ConfigurationError, match=f"nothing of {DAY} any more"):
        world.run(DAY)
    assert {table: world.rows(table) for table in kept} == kept


def test_a_topic_that_was_made_anew_is_not_read_on(world: World, kafka: EmbeddedKafka) -> None:
    script = Script()
    life(script)
    world.coordinate(script)
    world.publish(1, 2)
    world.run()
    kafka.delete_topic(world.topic)
    kafka.create_topic(world.topic, 1, config={"retention.ms": "-1"})
    world.publish(5, 6, 7)
    with pytest.raises(LogHole, match="made anew"):
        world.run()


def test_a_topic_that_was_made_anew_is_noticed_where_no_record_is_in_the_place_of_the_last(
    world: World, kafka: EmbeddedKafka
) -> None:
    world.publish(1, 2, 3)
    world.run()
    kafka.delete_topic(world.topic)
    kafka.create_topic(world.topic, 1, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": world.servers, "transactional.id": world.topic})
    producer.init_transactions()
    for count in (2, 3):  # the marker of the first is at offset 2
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(world.topic, b"v", partition=0)
        producer.commit_transaction()
    with pytest.raises(LogHole, match="made anew"):
        world.run()


def test_records_of_older_days_may_come_between_and_behind_those_of_the_newest(
    world: World,
) -> None:
    world.publish(1, days_later=1)
    world.publish(2, 3)
    world.publish(4, days_later=1)
    world.publish(5, 6)
    assert world.run().published == 6
    world.publish(7)
    assert world.run().published == 1


def test_a_log_that_nobody_has_written_to_yet_is_no_failure(
    world: World, kafka_topic: Callable[..., str]
) -> None:
    # Of two topics, whose streams make one table.
    world.settings = replace(world.settings, published=[world.topic, kafka_topic(partitions=1)])
    assert world.run() == LakeRun((str(DAY),), 0, 0, world.run().expectations)
    world.publish(1)
    assert world.run().published == 1
    script = Script()
    life(script)
    world.coordinate(script)
    assert world.run().records == len(script.records)
    assert silver(world, "claims") == folded(script, "claims")


def test_rows_of_a_table_come_once_each(world: World, postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE outbox (id bigint PRIMARY KEY, create_time timestamptz NOT NULL, "
            "kafka_topic text NOT NULL, kafka_key text, kafka_value text, "
            "kafka_header_keys text[] NOT NULL, kafka_header_values text[] NOT NULL)"
        )

        def insert(id: int, minutes: int) -> None:
            connection.execute(
                "INSERT INTO outbox VALUES (%s, %s, 't', 'k', 'v', '{}', '{}')",
                (id, BEGAN + dt.timedelta(minutes=minutes)),
            )

        def add(outbox: str = OUTBOX) -> int:
            return add_table(
                world.spark, world.lake.place, outbox, postgres_database, "outbox", late_s=3600
            )

        insert(1, 0)
        insert(3, 1)
        assert add() == 2
        insert(2, 0)  # a transaction that took its time
        insert(4, 2)
        assert add() == 2
        assert add() == 0
        insert(-5, 3)
        assert add() == 1
        assert add("shop/other") == 5  # whose ids and times are the same
        insert(5, 20 * 365 * 24 * 60)  # an application's own idea of time
        assert add() == 1
        insert(6, 4)
        assert add() == 1
    ids = world.rows("bronze.outbox_rows", "id", where=f"outbox = '{OUTBOX}'")
    assert sorted(id for (id,) in ids) == [-5, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("type", ["timestamp", "date"])
def test_times_of_a_table_without_a_zone_are_utc(
    world: World, postgres_database: str, type: str
) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE outbox (id bigint PRIMARY KEY, create_time {type} NOT NULL, "
            "kafka_topic text NOT NULL, kafka_key text, kafka_value text, "
            "kafka_header_keys text[] NOT NULL, kafka_header_values text[] NOT NULL)"
        )
        connection.execute("INSERT INTO outbox VALUES (1, '2026-03-01', 't', 'k', 'v', '{}', '{}')")
        connection.execute("INSERT INTO outbox VALUES (2, '2026-03-02', 't', 'k', 'v', '{}', '{}')")
    for added in (2, 0):
        found = add_table(
            world.spark, world.lake.place, OUTBOX, postgres_database, "outbox", late_s=60
        )
        assert found == added
    midnights = "at = CAST(day AS timestamp)"
    assert world.rows("bronze.outbox_rows", "id", "day", where=midnights) == [
        (id, dt.date(2026, 3, id)) for id in (1, 2)
    ]


@pytest.mark.parametrize("outbox", ["outbox", "/outbox", "shop/"])
def test_an_outbox_is_named_as_in_its_header(world: World, outbox: str) -> None:
    with pytest.raises(harvest_errors.ConfigurationError, match="NAME/OUTBOX"):
        add_archive(world.spark, world.lake.place, outbox, "nowhere")

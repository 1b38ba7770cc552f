"""The audit against real Kafka: planted anomalies, many runs, runs that die, real clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from marshal_py import Marshal
from marshal_py.client.log_reader import LogReader
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import LogHole
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.rationalizer import GroupState, Pause
from marshal_py.spark import audit_store as store_module
from marshal_py.spark.audit import audit
from marshal_py.spark.audit_store import Store
from marshal_py.spark.audit_tables import TABLES, to_arrow
from tests.spark.logs import Record, busy, write
from tests.unit.marshal_py.protocol.history.test_partition_history import PLANTS, Script, life

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka


def rows(out: str | Path, table: str) -> list[tuple[Any, ...]]:
    found = Store(str(out)).table(table).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def expected(history: PartitionHistory, table: str) -> list[tuple[Any, ...]]:
    found = history.rows.tables.get(table, []) + history.open_rows().get(table, [])
    return [tuple(row.values()) for row in to_arrow(table, found).to_pylist()]


@pytest.fixture
def coordination(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> Callable[..., str]:
    """Create a coordination topic and its snapshot topic; return the name."""

    def create(partitions: int = 1) -> str:
        topic = kafka_topic(partitions=partitions, config={"retention.ms": "-1"})
        kafka.create_topic(f"{topic}.snapshots", partitions)
        return topic

    return create


def records_of(script: Script, p: int) -> list[Record]:
    return [(p, value, at_ms) for _, value, at_ms in script.records]


def test_every_planted_anomaly_is_found_and_nothing_else(
    spark: SparkSession, kafka: EmbeddedKafka, coordination: Callable[..., str], tmp_path: Path
) -> None:
    """Each kind in a coordination partition of its own, among what correct clients do."""
    # The scripts' geneses speak of one partition.
    not_here = {"wrong_partition", "wrong_genesis", "second_genesis"}
    plants = [(kind, plant) for kind, plant in PLANTS if kind not in not_here]
    topic = coordination(len(plants))
    scripts = []
    for _, plant in plants:
        script = Script()
        life(script)
        script.wait(60_000)
        plant(script)
        scripts.append(script)
    records = [r for p, script in enumerate(scripts) for r in records_of(script, p)]
    write(kafka.bootstrap_servers, topic, records)
    run = audit(spark, kafka.bootstrap_servers, str(tmp_path), topic=topic)

    # Their times were chosen by the senders; and all cells stand in some wrong partition.
    also = {"create_time", "wrong_partition"}
    found: dict[int, list[str]] = {}
    for row in Store(str(tmp_path)).table("anomalies").to_pylist():
        if row["kind"] not in also:
            found.setdefault(row["coordinator"], []).append(row["kind"])
    assert found == {p: [kind] for p, (kind, _) in enumerate(plants)}
    assert run.anomalies["create_time"] == len(plants)
    assert run.records == len(records)

    claims = Counter(row[0] for row in rows(tmp_path, "claims"))
    for p, script in enumerate(scripts):
        assert claims[p] == len(expected(script.history(), "claims"))


@pytest.mark.parametrize("dies", ["before the commit", "after it", "in the middle of the moves"])
def test_many_runs_that_die_give_the_rows_of_one(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    coordination: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies: str,
) -> None:
    topic = coordination(2)
    script = Script()
    for _ in range(3):
        life(script)
        script.wait(2_500)
    log = records_of(script, 0)
    half = len(log) // 2
    write(kafka.bootstrap_servers, topic, log[:half])
    audit(spark, kafka.bootstrap_servers, str(tmp_path / "runs"), topic=topic)
    write(kafka.bootstrap_servers, topic, log[half:])

    class Killed(Exception):
        pass

    def die(*_: object) -> None:
        raise Killed

    moved: list[Any] = []
    real = store_module._move

    def move(*args: Any) -> None:
        if len(moved) == 3:
            raise Killed
        real(*args)
        moved.append(args)

    with monkeypatch.context() as patch:
        if dies == "before the commit":
            patch.setattr(Store, "commit", die)
        elif dies == "after it":
            patch.setattr(Store, "_finish", die)
        else:
            patch.setattr(store_module, "_move", move)
        with pytest.raises(Killed):
            audit(spark, kafka.bootstrap_servers, str(tmp_path / "runs"), topic=topic)
    audit(spark, kafka.bootstrap_servers, str(tmp_path / "runs"), topic=topic)
    assert audit(spark, kafka.bootstrap_servers, str(tmp_path / "runs"), topic=topic).run == 0
    audit(spark, kafka.bootstrap_servers, str(tmp_path / "once"), topic=topic)
    for table in TABLES.keys() - {"ends"}:
        assert rows(tmp_path / "runs", table) == rows(tmp_path / "once", table), table
    assert len(rows(tmp_path / "once", "claims")) == 9


def test_another_log_under_the_same_name_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, coordination: Callable[..., str], tmp_path: Path
) -> None:
    topic = coordination(1)
    write(kafka.bootstrap_servers, topic, busy(20, cells=5, partitions=1))
    audit(spark, kafka.bootstrap_servers, str(tmp_path), topic=topic)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 1)
    write(kafka.bootstrap_servers, topic, busy(30, cells=6, clients=3, partitions=1))
    with pytest.raises(LogHole, match="made anew"):
        audit(spark, kafka.bootstrap_servers, str(tmp_path), topic=topic)


def test_snapshots_that_differ_or_are_damaged(
    spark: SparkSession, kafka: EmbeddedKafka, coordination: Callable[..., str], tmp_path: Path
) -> None:
    topic = coordination(3)
    servers = kafka.bootstrap_servers
    write(servers, topic, busy(300, cells=30, partitions=3))
    reader = LogReader(
        {"bootstrap.servers": servers}, topic=topic, snapshot_topic=f"{topic}.snapshots"
    )
    reader.open(30)
    reader.replay()
    reader.world.states[1].groups["never"] = never = GroupState()
    never.pause = Pause(0, 1)
    writer = LogWriter(
        {"bootstrap.servers": servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        timeout_ms=30_000,
    )
    for p in (0, 1):
        due = reader.snapshot_now(p)
        assert due is not None
        writer.write_snapshot(due, 3, "w")
    writer.flush(60)
    reader.close()
    write(servers, f"{topic}.snapshots", [(2, b"damaged", None)])
    audit(spark, servers, str(tmp_path), topic=topic)
    audit(spark, servers, str(tmp_path), topic=topic)  # says it once
    found = Store(str(tmp_path)).table("anomalies").to_pylist()
    assert sorted((a["coordinator"], a["kind"]) for a in found if a["kind"] != "create_time") == [
        (1, "snapshot_differs"),
        (2, "snapshot_damaged"),
    ]


@pytest.mark.parametrize("covered", [True, False])
def test_a_log_whose_beginning_is_gone(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    coordination: Callable[..., str],
    tmp_path: Path,
    covered: bool,
) -> None:
    from confluent_kafka import TopicPartition

    topic = coordination(1)
    servers = kafka.bootstrap_servers
    write(servers, topic, busy(50, cells=5, partitions=1))
    if covered:
        reader = LogReader(
            {"bootstrap.servers": servers}, topic=topic, snapshot_topic=f"{topic}.snapshots"
        )
        reader.open(30)
        reader.replay()
        due = reader.snapshot_now(0)
        reader.close()
        assert due is not None
        writer = LogWriter(
            {"bootstrap.servers": servers},
            topic=topic,
            snapshot_topic=f"{topic}.snapshots",
            timeout_ms=30_000,
        )
        writer.write_snapshot(due, 1, "w")
        writer.flush(60)
    write(servers, topic, busy(80, cells=5, partitions=1)[50:])
    admin = kafka.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 45)]).values():
        future.result()
    audit(spark, servers, str(tmp_path), topic=topic)
    kinds = {a["kind"] for a in Store(str(tmp_path)).table("anomalies").to_pylist()}
    assert ("log_hole" in kinds) is not covered
    if covered:
        assert len(rows(tmp_path, "claims")) == 5


def test_what_real_clients_do_is_no_anomaly(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    data = kafka_topic(partitions=2)
    topic = f"{data}.marshal"
    create_topics(servers, topic=topic, partitions=2)
    write(servers, data, [(0, b"x", None)] * 10)

    def client(name: str) -> Marshal:
        return Marshal(servers, group_id="g", client_id=name, interval_ms=200, topic=topic)

    with client("a") as a, client("b") as b:
        claim = a.claim(data, 0)
        claim.commit(4, wait=True)
        assert claim.claim_messages(7)
        with a.leader("boss"):
            claim.release()
        taken = b.claim(data, 0, timeout_s=60)
        taken.commit(9, wait=True)
    audit(spark, servers, str(tmp_path), topic=topic)
    store = Store(str(tmp_path))
    assert store.table("anomalies").to_pylist() == []
    claims = [c for c in store.table("claims").to_pylist() if c["topic"] == data]
    assert [(c["client_id"], c["how"], c["last_offset"]) for c in claims] == [
        ("a", "released", 7),
        ("b", "released", 9),
    ]
    assert [e["name"] for e in store.table("elections").to_pylist()] == ["boss"]
    assert {(e["partition"], e["end_offset"]) for e in store.table("ends").to_pylist()} >= {(0, 10)}


def test_spark_reads_the_tables(
    spark: SparkSession, kafka: EmbeddedKafka, coordination: Callable[..., str], tmp_path: Path
) -> None:
    topic = coordination(1)
    script = Script()
    life(script)
    write(kafka.bootstrap_servers, topic, records_of(script, 0))
    audit(spark, kafka.bootstrap_servers, str(tmp_path), topic=topic)
    for table, columns in TABLES.items():
        frame = spark.read.parquet(str(tmp_path / table))
        assert frame.columns == [*(c.name for c in columns), "run"]
    assert spark.read.parquet(str(tmp_path / "claims")).count() == 3

"""Further columns of an outbox: headers, partition and time of the record; kept by dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from confluent_kafka import Consumer
from psycopg.conninfo import conninfo_to_dict

from harvest import Harvest
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.core.dead_letters import BadRow
from harvest.core.extra_columns import PARTITION, TIMESTAMP
from harvest.core.interfaces.dead_letter_store import Selection
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row, named
from harvest.core.table_name import TableName
from harvest.databases.mysql.table import connect_arguments
from harvest.databases.registry import database
from harvest.errors import SchemaError
from marshal_py.embedded import EmbeddedKafka
from tests.support.databases import MYSQL
from tests.support.harvest_world import forget, wait_until

OUTBOX = TableName(("outbox",))
EXTRA = {
    "tenant": "tenant",
    "customer": "tenant",
    "key": "kafka_key",
    PARTITION: "part",
    TIMESTAMP: "at",
}
"""One column may be two headers."""
AT_MS = 1_767_225_600_500
TERM = Term.of(1)
ALTER = (
    "ALTER TABLE outbox ADD COLUMN tenant {text} NOT NULL DEFAULT 'none'",
    "ALTER TABLE outbox ADD COLUMN part INTEGER",
    "ALTER TABLE outbox ADD COLUMN at {time}",
)
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values, tenant, part, at) VALUES "
    "('2026-01-01', '{topic}', 'a', 'v', {names}, {values}, 'acme', 2, {at}), "
    "('2026-01-01', '{topic}', 'b', 'v', {none}, {none}, 'none', NULL, NULL)"
)


class Outbox:
    """A database of one kind, with the further columns."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.kind = url.partition(":")[0].removesuffix("ql")

    def run(self, *statements: str) -> None:
        if self.kind == "postgres":
            with psycopg.connect(self.url, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)
        elif self.kind == "mys":
            with pymysql.connect(**connect_arguments(self.url), autocommit=True) as mysql:
                for statement in statements:
                    mysql.cursor().execute(statement)
        else:
            import sqlite3

            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as sqlite, sqlite:
                for statement in statements:
                    sqlite.execute(statement)

    def alter(self) -> None:
        time = {"postgres": "TIMESTAMP WITH TIME ZONE", "mys": "DATETIME(3)"}
        text = "VARCHAR(20)"
        self.run(*[s.format(text=text, time=time.get(self.kind, "INTEGER")) for s in ALTER])

    def insert(self, topic: str = "t") -> None:
        at = {"postgres": "'2026-01-01 01:00:00.5+01'", "mys": "'2026-01-01 00:00:00.5'"}
        json = self.kind != "postgres"
        given = {
            "names": """'["h"]'""" if json else "'{h}'",
            "values": """'["1"]'""" if json else "'{1}'",
            "none": "'[]'" if json else "'{}'",
            "at": at.get(self.kind, str(AT_MS)),
        }
        self.run(INSERT.format(topic=topic, **given))


@pytest.fixture(params=["postgres", "mariadb", MYSQL, "sqlite"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> Outbox:
    if request.param == "sqlite":
        return Outbox(f"sqlite:///{tmp_path}/outbox.db")
    return Outbox(request.getfixturevalue(f"{request.param}_database"))


def checked(rows: Sequence[Row], outbox: Outbox) -> None:
    first, second = sorted(rows)
    names = (b"h", b"tenant", b"customer", b"key", PARTITION.encode(), TIMESTAMP.encode())
    assert first.header_keys == names
    at = b"2026-01-01 00:00:00.500" if outbox.kind == "mys" else b"%d" % AT_MS
    assert first.header_values == (b"1", b"acme", b"acme", b"a", b"2", at)
    assert second.header_keys == (b"tenant", b"customer", b"key")
    assert second.header_values == (b"none", b"none", b"b")


def test_mark_mode_has_them_and_dead_letters_keep_them(outbox: Outbox) -> None:
    tables = database(outbox.url)
    with closing(tables.mark_store(OUTBOX, extra=EXTRA)) as store:
        store.init()
        with pytest.raises(SchemaError, match="`columns` names it"):
            store.connect()
        with closing(tables.dead_letters(OUTBOX)) as dead_letters:
            dead_letters.create()  # of a table without them
        outbox.alter()
        assert [f for f in store.check() if f.level == "error"] == []
        outbox.insert()
        checked(store.mark(TERM, 0, 10, 60_000), outbox)
        with closing(tables.dead_letters(OUTBOX)) as dead_letters:
            assert dead_letters.add([BadRow(1, "x"), BadRow(2, "x")], TERM) == {1, 2}
            assert store.backlog().rows == 0
            assert dead_letters.retry(Selection(), mode="mark") == 2
        checked(store.mark(Term.of(2), 0, 10, 60_000), outbox)


@pytest.mark.parametrize("shards", [1, 2])
def test_range_mode_has_them(outbox: Outbox, shards: int) -> None:
    tables = database(outbox.url)
    stores = [tables.range_store(OUTBOX, shard=n, shards=shards, extra=EXTRA) for n in (0, 1)]
    stores[0].init()
    outbox.alter()
    outbox.insert()
    rows = [row for store in stores[:shards] for row in named(store.read(0, 10).rows)]
    checked(rows, outbox)
    checked([row for store in stores[:shards] for row in named(store.fetch([(1, 2)]))], outbox)
    for store in stores:
        store.close()


def test_times_without_end_hold_up_nothing(postgres_database: str) -> None:
    outbox = Outbox(postgres_database)
    with closing(database(outbox.url).mark_store(OUTBOX, extra=EXTRA)) as store:
        store.init()
        outbox.alter()
        outbox.insert()
        outbox.run("UPDATE outbox SET at = 'infinity'")
        assert store.mark(TERM, 0, 10, 60_000)[0].header_values[-1] == b"infinity"


@pytest.mark.kafka
@pytest.mark.parametrize("mode", ["mark", "range", "wal"])
def test_records_have_them(
    postgres_database: str, mode: str, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=4)
    outbox = Outbox(postgres_database)
    given: dict[str, Any] = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "database": outbox.url,
        "group": topic,
        "mode": mode,
        "columns": {"partition": "part", "timestamp": "at", "headers": {"tenant": "tenant"}},
        "coordination": {"topic": f"{topic}.marshal", "create_topics": True},
    }
    config = validated(ReaperConfig, given, "the test")
    tables = database(outbox.url)
    made = tables.range_store(OUTBOX) if mode == "range" else tables.mark_store(OUTBOX)
    with closing(made):
        made.init()
    outbox.alter()
    name = conninfo_to_dict(postgres_database)["dbname"]
    outbox.run(f"ALTER DATABASE {name} SET datestyle = 'SQL, DMY'")  # changes nothing
    if mode == "wal":
        with closing(tables.wal_source(OUTBOX, config.wal.options(config.columns.extra()))) as wal:
            wal.init()
    outbox.insert(topic)
    outbox.run(
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
        "kafka_header_values, part, at) VALUES "
        f"(now(), '{topic}', 'c', 'v', '{{}}', '{{}}', 9, NULL), "
        # Kafka takes a time that is an hour ahead at most, and refuses a whole batch for one.
        f"(now(), '{topic}', 'd', 'v', '{{}}', '{{}}', NULL, now() + interval '9 hours'), "
        f"(now(), '{topic}', 'e', 'v', '{{}}', '{{}}', NULL, NULL)"
    )
    harvest = Harvest(config).start()
    consumer = Consumer({
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": f"{topic}.reader",
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe([topic])
    found: dict[bytes | None, Any] = {}

    def come() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found[message.key()] = message
        return len(found) == 3

    letters = (
        tables.wal_dead_letters(OUTBOX, config.wal.options())
        if mode == "wal"
        else tables.dead_letters(OUTBOX)
    )
    with closing(letters):
        wait_until(come, "three records")
        wait_until(lambda: letters.count() == 2, "there is no partition 9, and no time to come")
        assert {row.key for row in letters.rows(Selection(), 9)} == {b"c", b"d"}
    assert found[b"a"].partition() == 2
    assert found[b"a"].timestamp()[1] == AT_MS
    assert found[b"a"].headers() == [("h", b"1"), ("tenant", b"acme")]
    assert found[b"b"].headers() == [("tenant", b"none")]
    assert found[b"b"].timestamp()[1] != AT_MS
    consumer.close()
    harvest.stop()
    harvest.await_(30)
    if mode == "wal":
        with closing(tables.wal_source(OUTBOX, config.wal.options(config.columns.extra()))) as wal:
            wal.slot.drop()
    forget(kafka, topic)

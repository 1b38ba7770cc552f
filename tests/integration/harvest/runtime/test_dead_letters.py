"""Rows that cannot be published, on real servers: set aside, listed, retried, dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Literal

import psycopg
import pytest
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app
from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.dead_letter_store import Dropped, Selection
from harvest.core.interfaces.sink import Sink
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row
from harvest.core.source import Registration
from harvest.databases.postgres.attempts import Attempt, PostgresAttempts
from harvest.databases.postgres.dead_letters import PostgresDeadLetters
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.wal_dead_letters import PostgresWalDeadLetters
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.sink import TransactionalSink
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import World, forget, wait_until
from tests.support.kafka_reader import read_topic

TERM, OTHER = Term.of(1), Term.of(2)
ALL = Selection()


class Table:
    """An outbox, and what is set aside from it."""

    def __init__(self, url: str, *, key_type: str = "TEXT") -> None:
        self.url = url
        self.db = psycopg.connect(url, autocommit=True)
        self.store = PostgresMarkStore(url, "outbox")
        self.store.init()
        self.db.execute(f"ALTER TABLE outbox ALTER kafka_key TYPE {key_type} USING NULL")
        self.dead_letters = PostgresDeadLetters(url, "outbox")

    def insert(self, key: str | None, topic: str = "t", value: str = "v", *header: str) -> int:
        found = self.db.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) VALUES (now(), %s, %s, %s, %s, '{}') "
            "RETURNING id",
            (topic, key, value, list(header)),
        ).fetchone()
        assert found is not None
        return int(found[0])

    def mark(self, term: Term = TERM) -> list[int]:
        return [row.id for row in self.store.mark(term, 0, 100, 60_000.0)]

    def ids(self, table: str = "outbox") -> list[int]:
        return [r[0] for r in self.db.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()]

    def close(self) -> None:
        self.db.close()
        self.store.close()
        self.dead_letters.close()


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("TEXT", "JSONB", "kafka_value::jsonb"),
        ("JSONB", "TEXT", "kafka_value::text"),
        ("TEXT", "BYTEA", "convert_to(kafka_value, 'UTF8')"),
        ("BYTEA", "TEXT", "convert_from(kafka_value, 'UTF8')"),
        ("INTEGER", "BIGINT", "kafka_value"),
    ],
)
def test_a_type_that_changes_keeps_no_row_from_being_set_aside(
    postgres_database: str, before: str, after: str, changed: str
) -> None:
    table = Table(postgres_database)
    table.db.execute(f"ALTER TABLE outbox ALTER kafka_value TYPE {before} USING NULL")
    one = table.insert("k", value="7")
    assert table.mark() == [one]
    assert table.dead_letters.add([BadRow(one, "bad")], TERM) == {one}
    table.db.execute(f"ALTER TABLE outbox ALTER kafka_value TYPE {after} USING {changed}")
    table.store.close()
    two = table.insert("l", value="7")
    assert table.mark() == [two]
    assert table.dead_letters.add([BadRow(two, "bad")], TERM) == {two}
    assert table.dead_letters.retry(ALL, mode="mark") == 2
    assert [row.value for row in table.store.mark(OTHER, 0, 100, 60_000.0)] == [b"7"] * 2
    table.close()


def test_rows_are_set_aside_where_another_mode_has_made_the_table(postgres_database: str) -> None:
    """`harvest init` makes it for its mode; `harvest switch` changes that."""
    table = Table(postgres_database)
    with closing(PostgresWalDeadLetters(postgres_database, "outbox")) as of_the_log:
        of_the_log.create()
        one = table.insert("k", "t", "v", "name")
        assert table.mark() == [one]
        assert table.dead_letters.add([BadRow(one, "bad")], TERM) == {one}
        assert table.dead_letters.retry(ALL, mode="mark") == 1
        bad = Row(7, "t" * 300, b"\xff", b"\xfe")
        assert of_the_log.add_rows([(bad, BadRow(7, "bad"))]) == {7}
        assert of_the_log.waiting_keys() == {("t" * 300, b"\xff"): 7}
    table.close()


@pytest.fixture(params=["TEXT", "BYTEA", "JSON"])
def table(request: pytest.FixtureRequest, postgres_database: str) -> Iterator[Table]:
    made = Table(postgres_database, key_type=request.param)
    yield made
    made.close()


def test_a_row_moves_with_its_error_and_those_behind_it(table: Table) -> None:
    one, other, behind = table.insert("1"), table.insert("2"), table.insert("1")
    table.mark()
    assert table.dead_letters.waiting_keys() == {}
    rows = [BadRow(behind, "waits", waits=True), BadRow(one, "bad"), BadRow(other, "", waits=True)]
    assert table.dead_letters.add(rows, TERM) == {one, behind}
    assert table.ids() == [other]
    assert table.dead_letters.waiting_keys() == {("t", b"1"): one}
    found = table.dead_letters.rows(ALL, 10)
    assert [(row.id, row.error, row.waits) for row in found] == [
        (one, "bad", False),
        (behind, "waits", True),
    ]
    assert (found[0].topic, found[0].key, found[0].value_bytes) == ("t", b"1", 1)


def test_a_row_of_another_leader_is_left_alone(table: Table) -> None:
    row = table.insert("1")
    table.mark(OTHER)
    assert table.dead_letters.add([BadRow(row, "bad")], TERM) == frozenset()
    assert table.ids() == [row]


def test_range_mode_copies_and_repeats_itself_harmlessly(table: Table) -> None:
    row = table.insert("1")
    for _ in range(2):
        assert table.dead_letters.add([BadRow(row, "bad")], None) == {row}
    assert table.ids() == table.ids("outbox_dead_letters") == [row]


def test_retry_puts_back_what_waits_behind_it_too(table: Table) -> None:
    a, b, c, other = (table.insert(key) for key in ("1", "2", "1", "3"))
    table.mark()
    rows = [BadRow(a, "bad"), BadRow(b, "bad"), BadRow(c, "", waits=True), BadRow(other, "bad")]
    table.dead_letters.add(rows, TERM)
    assert table.dead_letters.retry(Selection(ids=(a,)), mode="mark", dry_run=True) == 2
    assert table.ids() == []
    assert table.dead_letters.retry(Selection(ids=(a,)), mode="mark") == 2
    assert table.ids() == [a, c]
    assert table.dead_letters.retry(Selection(topic="t", key="2"), mode="range") == 1
    assert table.ids() == [a, c, max(other, b) + 1]
    assert table.ids("outbox_dead_letters") == [other]


def test_drop_releases_what_waited_for_nothing_else(table: Table) -> None:
    a, b, c = table.insert("1"), table.insert("1"), table.insert("1")
    table.mark()
    table.dead_letters.add([BadRow(a, "x"), BadRow(b, "", waits=True), BadRow(c, "x")], TERM)
    assert table.dead_letters.drop(Selection(ids=(a,)), mode="mark", dry_run=True) == Dropped(1, 0)
    assert table.dead_letters.drop(Selection(ids=(a,)), mode="mark") == Dropped(1, 1)
    assert table.ids() == [b]
    assert table.ids("outbox_dead_letters") == [c]


def test_the_command_line(postgres_database: str) -> None:
    table = Table(postgres_database)
    one, two = table.insert("k"), table.insert("k")

    def dead_letters(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["dead-letters", *arguments, "-d", postgres_database])
        assert result.exit_code == code, result.output
        return result.stdout

    assert "0 rows" in dead_letters("list")
    table.mark()
    table.dead_letters.add([BadRow(one, "too bad"), BadRow(two, "", waits=True)], TERM)
    assert "too bad" in dead_letters("list", code=1)
    listed = json.loads(dead_letters("list", "--json", "--id", str(one), code=1))
    assert listed["count"] == 1
    assert listed["rows"][0]["error"] == "too bad"
    retried = json.loads(dead_letters("retry", "--key", "k", "--dry-run", "--json"))
    assert retried == {"retried": 2, "dry_run": True}
    assert "1 rows were dropped, 1 that waited" in dead_letters("drop", "--id", str(one))
    assert table.ids() == [two]
    table.close()


RIGHTS = {
    "mark": {
        "outbox": {"INSERT"},
        "outbox_dead_letters": {"SELECT", "DELETE"},
        "outbox_registration": {"SELECT"},
    },
    "range": {
        "outbox": {"SELECT", "INSERT", "DELETE"},
        "outbox_id_seq": {"USAGE"},
        "outbox_dead_letters": {"SELECT", "DELETE"},
        "outbox_registration": {"SELECT"},
    },
}
"""Of who retries and drops (docs/operate/operating.md)."""


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_the_rights_that_retry_and_drop_need(
    postgres_database: str, tmp_path: Path, mode: Literal["mark", "range"]
) -> None:
    table = Table(postgres_database)
    table.store.register(Registration("a cluster", "__marshal", "group", mode))
    user = f"operator_{table.db.info.dbname}"
    table.db.execute(f"CREATE ROLE {user} LOGIN")
    config = tmp_path / "reaper.yaml"
    url = psycopg.conninfo.make_conninfo(postgres_database, user=user)
    config.write_text(
        f"mode: {mode}\ngroup: group\nkafka: {{bootstrap.servers: 'localhost:1'}}\n"
        f"database: {url!r}\n"
    )

    def dead_letters(*arguments: str, code: int = 0) -> str:
        command = ["dead-letters", *arguments, "--config", str(config)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == code, result.output
        return result.output

    def set_aside() -> None:
        row = table.insert("k")
        table.mark()
        table.dead_letters.add([BadRow(row, "bad")], TERM if mode == "mark" else None)

    set_aside()
    grants = [(right, name) for name, its in RIGHTS[mode].items() for right in sorted(its)]
    try:
        for right, name in grants:
            table.db.execute(f"GRANT {right} ON {_object(name)} TO {user}")
        assert "1 rows went back" in dead_letters("retry", "--all")
        set_aside()
        assert "1 rows were dropped" in dead_letters("drop", "--all")
        set_aside()
        for right, name in grants:
            table.db.execute(f"REVOKE {right} ON {_object(name)} FROM {user}")
            assert "permission denied" in dead_letters("retry", "--all", code=2), (right, name)
            table.db.execute(f"GRANT {right} ON {_object(name)} TO {user}")
        assert "bad" in dead_letters("list", code=1)
    finally:
        table.db.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
        table.close()


def _object(name: str) -> str:
    return f"SEQUENCE {name}" if name.endswith("_seq") else name


def test_rows_that_a_destination_refused(postgres_database: str) -> None:
    table = Table(postgres_database)
    one, two, three = (table.insert(key) for key in "abc")
    table.mark()
    table.dead_letters.add([BadRow(i, "bad") for i in (one, two, three)], TERM)
    assert table.dead_letters.count(Selection(destination="bank")) == 0
    attempts = PostgresAttempts(postgres_database, "outbox")
    assert attempts.load() == {}
    attempts.record([Attempt(one, "shop", 3, "HTTP 500", 500, True)])
    attempts.record([Attempt(two, "bank", 1, "no answer", None, True)])
    attempts.record([Attempt(two, "bank", 2, "still no answer", None, True)])
    attempts.record([Attempt(99, "bank", 4, "not yet", None, False)])
    assert attempts.load() == {99: 4}
    found = table.dead_letters.rows(ALL, 10)
    assert [(r.id, r.destination, r.retries, r.status) for r in found] == [
        (one, "shop", 3, 500),
        (two, "bank", 2, None),
        (three, None, None, None),
    ]
    later = found[1].dead_lettered_at + timedelta(seconds=1)
    assert table.dead_letters.count(Selection(since=found[0].dead_lettered_at, until=later)) >= 2
    assert table.dead_letters.count(Selection(since=later + timedelta(hours=1))) == 0
    arguments = ["dead-letters", "retry", "-d", postgres_database, "--destination", "bank"]
    result = CliRunner().invoke(app, [*arguments, "--since", "2020-01-01T00:00:00Z"])
    assert result.exit_code == 0, result.output
    assert table.ids() == [two]
    noted = table.db.execute("SELECT id FROM outbox_attempts ORDER BY id").fetchall()
    assert [row[0] for row in noted] == [one, 99]
    attempts.forget([99])
    assert attempts.load() == {}
    attempts.close()
    table.close()


def test_a_time_that_is_none(postgres_database: str) -> None:
    arguments = ["dead-letters", "list", "-d", postgres_database, "--since", "soon"]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "--since is 'soon'" in result.stderr) == (2, True)


# --- What Kafka refuses ---


@pytest.fixture(params=["transactional", "idempotent"])
def sink(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> Iterator[Sink]:
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    if request.param == "idempotent":
        made: Sink = IdempotentSink(config)
    else:
        topic = kafka_topic()
        made = TransactionalSink(config, base_config=config, name=topic, checkpoint_topic=topic)
    yield made
    made.close()


def rows_of(topic: str, *sizes: int) -> list[Row]:
    return [Row(n, topic, b"k", b"x" * size) for n, size in enumerate(sizes, 1)]


@pytest.mark.kafka
def test_the_rows_of_a_missing_topic_are_refused(
    sink: Sink, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic()
    sink.open(lambda: True)
    failure = sink.deliver([*rows_of(topic, 1), Row(7, "no-such-topic", b"k", b"v")], "c")
    assert failure is not None
    assert failure.refused == {7}
    assert "'no-such-topic' does not exist: create it" in failure.errors[7]
    sink.open(lambda: True)
    assert sink.deliver(rows_of(topic, 1), "c") is None


@pytest.mark.kafka
def test_what_alone_is_too_large_is_refused_and_nothing_else(
    sink: Sink, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(config={"max.message.bytes": "20000", "compression.type": "uncompressed"})
    rows = rows_of(topic, *[6_000] * 10, 30_000, *[6_000] * 10)
    refused: set[int] = set()
    for _ in range(10):
        sink.open(lambda: True)
        failure = sink.deliver([row for row in rows if row.id not in refused], "c")
        if failure is None:
            break
        refused |= failure.refused
    assert refused == {11}
    published = [value for _, value, _ in read_topic(kafka.bootstrap_servers, topic)]
    assert len(published) >= 20
    assert b"x" * 30_000 not in published


@pytest.mark.kafka
def test_a_row_too_large_for_the_producer_is_refused(
    sink: Sink, kafka_topic: Callable[..., str]
) -> None:
    sink.open(lambda: True)
    failure = sink.deliver(rows_of(kafka_topic(), 10, 2_000_000, 10), "c")
    assert failure is not None
    assert failure.refused == {2}


# --- The whole process ---


@pytest.fixture
def world(
    tmp_path: Path, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> Iterator[World]:
    topic = kafka_topic(partitions=3)
    made = World(tmp_path, kafka.bootstrap_servers, postgres_database, topic, "transactional")
    yield made
    made.close()
    forget(kafka, topic)


@pytest.mark.kafka
def test_bad_rows_hold_up_nobody_and_are_published_once_retried(
    world: World, kafka: EmbeddedKafka
) -> None:
    table = Table(world.database)
    missing = f"{world.topic}.later"
    headers = table.insert("b", world.topic, "v", "name")
    waits = table.insert("b", world.topic, "behind")
    table.insert("k", missing, "1")
    table.insert("k", missing, "2")
    table.insert("k", "no/topic")
    harvester = world.harvester()
    with world.writing():
        world.wait_published(100)
    world.wait_drained()
    assert world.published() == world.committed
    dead_letters = {row.id: row for row in table.dead_letters.rows(ALL, 100)}
    assert len(dead_letters) == 5
    assert dead_letters[headers].error.startswith("1 header keys and 0 header values")
    assert dead_letters[waits].waits
    kafka.create_topic(missing)
    assert table.dead_letters.retry(Selection(topic=missing), mode="mark") == 2

    def read() -> list[bytes | None]:
        return [value for _, value, _ in read_topic(world.servers, missing)]

    wait_until(lambda: read() == [b"1", b"2"], "the retried rows, in order", harvester.log)
    assert table.dead_letters.drop(Selection(ids=(headers,)), mode="mark") == Dropped(1, 1)
    world.wait_drained()
    assert harvester.stop() == 0
    kafka.delete_topic(missing)
    table.close()


@pytest.mark.kafka
def test_range_mode_sets_aside_and_passes(
    tmp_path: Path, kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> None:
    topic = kafka_topic(partitions=3)
    world = World(tmp_path, kafka.bootstrap_servers, postgres_database, topic, mode="range")
    store = PostgresRangeStore(postgres_database, "outbox")
    store.init()
    store.close()
    dead_letters = PostgresDeadLetters(postgres_database, "outbox")
    missing = f"{topic}.later"
    with psycopg.connect(postgres_database) as connection:
        Stasher().stash_many(connection, [OutboxRecord(missing, "k", str(n)) for n in range(3)])
    harvester = world.harvester()
    try:
        with world.writing():
            wait_until(lambda: dead_letters.count() == 3, "three rows aside", harvester.log)
            world.wait_published(50)

        def all_others() -> bool:
            return world.published_count() == world.rows_left() - 3

        wait_until(all_others, "all others", harvester.log)
        assert world.published() == world.committed
        kafka.create_topic(missing)
        assert dead_letters.retry(ALL, mode="range") == 3

        def read() -> list[bytes | None]:
            return [value for _, value, _ in read_topic(world.servers, missing)]

        wait_until(lambda: read() == [b"0", b"1", b"2"], "the retried rows", harvester.log)
        assert harvester.stop() == 0
    finally:
        world.close()
        dead_letters.close()
        forget(kafka, topic)
        kafka.delete_topic(missing)

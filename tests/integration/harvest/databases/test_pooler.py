"""Behind a real pgbouncer in transaction mode, whose sessions are the application's, too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from harvest.core.mark_checkpoint import Term
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.notify import PostgresListener
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.errors import TableMissing
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import World, wait_until
from tests.support.pgbouncer import Pgbouncer, pgbouncer

SETTINGS = (
    "enable_seqscan", "enable_sort", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin",
    "jit", "max_parallel_workers_per_gather", "default_transaction_isolation",
    "synchronous_commit", "client_encoding",
)  # fmt: skip
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) SELECT now(), 't', 'k', n::text, '{}', '{}' FROM generate_series(1, 9) n"
)


@pytest.fixture(scope="module")
def pooler(postgres: EmbeddedPostgres) -> Iterator[Pgbouncer]:
    postgres.start()
    with pgbouncer(postgres, pool=1) as made:
        yield made


def settings_of_the_application(url: str) -> dict[str, str]:
    """What the next one sees who is given the pooler's only session."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        found = {}
        for name in SETTINGS:
            row = connection.execute(f"SHOW {name}").fetchone()
            assert row is not None
            found[name] = row[0]
        listening = connection.execute("SELECT pg_listening_channels()").fetchall()
        prepared = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
        return {**found, "listening": str(listening), "prepared": str(prepared)}


@pytest.mark.parametrize("durable", [True, False])
def test_mark_mode_leaves_nothing_in_the_applications_sessions(
    postgres_database: str, pooler: Pgbouncer, durable: bool
) -> None:
    url = pooler.url(postgres_database)
    before = settings_of_the_application(url)
    store = PostgresMarkStore(url, "outbox", durable=durable)
    assert store.pooled
    with pytest.raises(TableMissing):
        store.connect()
    store.init()
    term = Term.of(1)
    for _ in range(7):  # psycopg prepares what comes a sixth time
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            connection.execute(INSERT)
        rows = store.mark(term, 0, 100, 10_000)
        assert len(rows) == 9
        assert store.purge([row.id for row in rows], [term.tag(0)]) == 9
    assert settings_of_the_application(url) == before
    store.close()


def test_each_statement_has_the_settings_that_it_wants(
    postgres_database: str, pooler: Pgbouncer
) -> None:
    store = PostgresRangeStore(pooler.url(postgres_database), "outbox")
    store.init()
    for name, value in store._settings.items():
        found = store._execute(psycopg.sql.SQL(f"SHOW {name}")).fetchall()
        assert found in ([(value,)], [(value.encode(),)])
    store.close()


def test_after_a_statement_that_failed_the_next_one_works(
    postgres_database: str, pooler: Pgbouncer
) -> None:
    store = PostgresRangeStore(pooler.url(postgres_database), "outbox")
    with pytest.raises(TableMissing):
        store.read(0, 10)
    store.init()
    assert not store.read(0, 10).rows
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("DROP TABLE outbox")
    with pytest.raises(TableMissing):
        store.read(0, 10)
    assert settings_of_the_application(pooler.url(postgres_database))["enable_seqscan"] == "on"
    store.close()


def test_a_direct_connection_is_no_pooled_one(postgres_database: str) -> None:
    store = PostgresMarkStore(postgres_database, "outbox")
    assert not store.pooled
    store.close()


def test_check_finds_the_pooler_and_says_what_notifications_need(
    postgres_database: str, pooler: Pgbouncer
) -> None:
    store = PostgresMarkStore(pooler.url(postgres_database), "outbox")
    store.init()
    (found,) = [f for f in store.check_around() if f.subject == "pooler"]
    assert "direct_database" not in found.text
    store.install_notify()
    (found,) = [f for f in store.check_around() if f.subject == "pooler"]
    assert "direct_database" in found.text
    store.close()


class Signal:
    listening = False

    def wake(self) -> None: ...


def test_nobody_listens_through_a_pooler(
    postgres_database: str, pooler: Pgbouncer, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    store.install_notify()
    store.close()
    url = pooler.url(postgres_database)
    listener = PostgresListener(url, store._table, look_every_s=0.05)
    with caplog.at_level(logging.WARNING, logger="harvest"):
        listener.start(signal := Signal())
        wait_until(lambda: "direct_database" in caplog.text, "it says so")
    assert not signal.listening
    assert settings_of_the_application(url)["listening"] == "[]"
    listener.close()


@pytest.mark.kafka
@pytest.mark.parametrize("mode", ["mark", "range"])
def test_a_harvest_through_a_pooler_is_exactly_once_and_leaves_no_setting(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres: EmbeddedPostgres,
    postgres_database: str,
    mode: str,
) -> None:
    with pgbouncer(postgres) as pooler:
        url = pooler.url(postgres_database)
        before = settings_of_the_application(url)
        topic = kafka_topic(partitions=3)
        made = World(
            tmp_path,
            kafka.bootstrap_servers,
            url,
            topic,
            mode=mode,
            more=f"direct_database: '{postgres_database}'\n",
        )
        store = PostgresRangeStore if mode == "range" else PostgresMarkStore
        stored = store(postgres_database, "outbox")
        stored.init()
        stored.install_notify()
        with made.opened(kafka, stored):
            harvester = made.harvester()
            with made.writing():
                made.wait_published(500)
            made.assert_exactly_once()
            assert harvester.said("listening for new rows")
            assert settings_of_the_application(url) == before
            harvester.kill()
            made.harvester()
            with made.writing():
                made.wait_published(made.published_count() + 200)
            made.assert_exactly_once()

"""The table and the publication of wal mode: what is deleted, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from harvest import OutboxRecord, Stasher
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import ConfigurationError


@pytest.fixture
def source(postgres_database: str) -> Iterator[PostgresWalSource]:
    with closing(PostgresWalSource(postgres_database, "outbox")) as made:
        made.init()
        yield made
        made.slot.drop()


def insert(url: str, value: str) -> None:
    with psycopg.connect(url) as connection:
        Stasher().stash(connection, OutboxRecord("t", "k", value))


def there(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [v for (v,) in connection.execute("SELECT kafka_value FROM outbox").fetchall()]


def test_what_is_committed_while_published_rows_are_deleted_stays(
    postgres_database: str, source: PostgresWalSource
) -> None:
    insert(postgres_database, "published")

    def published() -> int:
        insert(postgres_database, "later")
        return 1 << 62

    assert source.purge(published) == 1
    assert there(postgres_database) == ["later"]


def test_what_is_not_published_in_time_is_not_deleted(
    postgres_database: str, source: PostgresWalSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.databases.postgres.wal._PURGE_WAIT_S", -1.0)
    insert(postgres_database, "waits")
    assert source.purge(lambda: 0) is None
    assert there(postgres_database) == ["waits"]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("outbox WHERE (id > 5)", "row filter: rows would be passed over"),
        ("outbox (id, kafka_topic)", "kafka_value are missing"),
        ("outbox, other", "must have public.outbox and no other"),
        ("other", "must have public.outbox and no other"),
        ("outbox WITH (publish = 'update')", "does not publish INSERT"),
    ],
)
def test_a_publication_without_all_rows_and_columns_is_refused(
    postgres_database: str, source: PostgresWalSource, of: str, said: str
) -> None:
    source.drop_publication()
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
        connection.execute(f"CREATE PUBLICATION {source.publication_name} FOR TABLE {of}")
    for refused in (source.connect, lambda: source.open(1, None)):
        with pytest.raises(ConfigurationError, match=said):
            refused()

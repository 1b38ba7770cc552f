"""What PostgreSQL says of itself, beside what its own functions say; and after a failover."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from harvest.core.source import Registration, differences
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.errors import TableMissing
from tests.support.postgres_replica import Replica

OWN_WORDS = """
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT timeline_id FROM pg_control_checkpoint()),
       (SELECT oid::text FROM pg_database WHERE datname = current_database())
         || '.' || 'outbox'::regclass::oid::text
"""


@pytest.fixture
def store(postgres_database: str) -> Iterator[PostgresMarkStore]:
    with closing(PostgresMarkStore(postgres_database, "outbox")) as made:
        made.init()
        made.register(Registration("cluster", "topic", "group", "mark"))
        yield made


def test_it_is_what_the_server_says(store: PostgresMarkStore, postgres_database: str) -> None:
    facts = store.facts()
    with psycopg.connect(postgres_database) as connection:
        (said,) = connection.execute(OWN_WORDS).fetchall()
        assert (facts.server, facts.timeline, facts.table) == said
        connection.execute("DROP TABLE outbox")
    assert store.promoted_at() is None
    with pytest.raises(TableMissing, match="harvest init"):
        store.facts()


def test_who_was_promoted_knows_up_to_where_it_has_all(
    store: PostgresMarkStore, postgres: Any, postgres_database: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        replica = Replica(postgres, Path(name))
        try:
            before = store.visit("aa")
            replica.wait_for(postgres_database, postgres_database)
            ahead = store.visit("bb")
            replica.wait_for(postgres_database, postgres_database)
            replica.promote(postgres_database)
            url = replica.url(postgres_database)
            with closing(PostgresMarkStore(url, "outbox")) as promoted:
                now, promoted_at = promoted.source(), promoted.promoted_at()
                promoted.visit("cc")
            replica.crash()
            with closing(PostgresMarkStore(url, "outbox")) as crashed:
                assert crashed.promoted_at() is None, "what it replayed last, it had written itself"
        finally:
            replica.close()
    assert now.timeline == before.timeline + 1
    assert differences(ahead, now, promoted_at=promoted_at) is None
    assert promoted_at is not None
    assert ahead.log <= promoted_at <= now.log


def test_a_visit_is_on_the_disk_where_commits_need_not_be(postgres_database: str) -> None:
    class Noted(PostgresMarkStore):
        noted: list[bool]

        def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
            query = sql.SQL("SELECT current_setting('synchronous_commit') = 'on'")
            self.noted += [waits for (waits,) in self._execute(query).fetchall()]
            return super()._statement(template, parameters)

    with closing(Noted(postgres_database, "outbox", durable=False)) as store:
        store.noted = []
        store.init()
        assert set(store.noted) == {False}
        store.noted.clear()
        store.visit("aa")
        assert set(store.noted) == {True}

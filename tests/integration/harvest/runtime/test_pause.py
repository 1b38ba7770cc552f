"""Pausing an outbox, and what its records and its health say, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import yaml
from typer.testing import CliRunner

from harvest import Harvest, OutboxRecord, Stasher
from harvest.cli.app import app
from harvest.config.load import load
from harvest.core.interfaces.mark_store import Backlog
from harvest.core.range_checkpoint import Position
from harvest.core.table_name import TableName
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.registry import database
from harvest.runtime.events import Stats
from harvest.runtime.monitor import Health, Monitor
from marshal_py.embedded import EmbeddedKafka
from tests.support.databases import MYSQL
from tests.support.harvest_world import forget, wait_until
from tests.support.kafka_reader import read_topic


@pytest.mark.kafka
@pytest.mark.parametrize("mode", ["mark", "range"])
def test_a_paused_outbox_publishes_nothing_and_then_goes_on(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
    mode: str,
) -> None:
    topic = kafka_topic()
    servers = kafka.bootstrap_servers
    file = tmp_path / "reaper.yaml"
    config = {
        "kafka": {"bootstrap.servers": servers},
        "database": postgres_database,
        "group": topic,
        "mode": mode,
        "harvest_id": "shop",
        "cloudevents": {"source": "/shop", "type": "{topic}"},
        "limits": {"max_row_age_ms": 1},
        "coordination": {"topic": f"{topic}.marshal", "interval_ms": 300, "create_topics": True},
    }
    file.write_text(yaml.safe_dump(config))
    store_class = PostgresMarkStore if mode == "mark" else PostgresRangeStore
    with closing(store_class(postgres_database, "outbox")) as store:
        store.init()

    def insert(value: str) -> None:
        with psycopg.connect(postgres_database) as connection:
            Stasher().stash(connection, OutboxRecord(topic, "k", value, [("a", "1")]))

    def values() -> list[bytes | None]:
        return [value for _, value, _ in read_topic(servers, topic)]

    def command(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--config", str(file)])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    with Harvest(load(file), meter_interval_s=0.1) as harvest:
        insert("1")
        wait_until(lambda: values() == [b"1"], "the first")
        assert "is paused until" in command("pause", "--for", "1h")
        wait_until(lambda: harvest.health().state == "paused", "it is seen")
        assert harvest.health().ok
        insert("2")
        assert '"was_paused": true' in command("resume", "--json")
        wait_until(lambda: values() == [b"1", b"2"], "the second")
        assert "was not paused" in command("resume")
        wait_until(lambda: harvest.health().state == "leading", "it leads again")
    found = read_topic(servers, topic)
    assert [value for _, value, _ in found] == [b"1", b"2"]
    headers = [dict(headers) for _, _, headers in found]
    assert [h["harvest-id"] for h in headers] == [b"shop/outbox/1", b"shop/outbox/2"]
    assert headers[1]["ce_id"] == f"{topic}.outbox.2".encode()
    assert headers[1]["a"] == b"1"
    forget(kafka, topic)


def test_a_row_that_waits_too_long_makes_a_harvester_ill_unless_it_is_paused() -> None:
    class Servers:
        age_s: float | None = 11.0
        is_paused = False

        def database(self) -> None: ...
        def kafka(self) -> None: ...
        def slot(self) -> None: ...
        def close(self) -> None: ...
        def publish(self, facts: dict[str, float]) -> None: ...

        def backlog(self) -> Backlog:
            return Backlog(1, 0, self.age_s)

        def dead_letters(self) -> int:
            return 0

        def holders(self) -> dict[str, str]:
            return {}

        def paused(self) -> bool:
            return self.is_paused

    class StandingBy:
        stats, state, in_flight, stuck_s, refusal = Stats(), "standing by", 0, 0.0, None

    servers = Servers()

    def health(max_age_s: float | None) -> Health:
        monitor = Monitor(StandingBy(), servers, max_age_s=max_age_s)
        monitor.check()
        return monitor.health()

    assert health(None).ok
    assert health(11.0).ok
    assert health(10.0).problems == ("the oldest row in the table waits for 11 s",)
    servers.age_s = None
    assert health(10.0).ok
    servers.age_s, servers.is_paused = 11.0, True
    assert health(10.0) == Health(True, "paused")


@pytest.mark.parametrize("server", ["postgres", "mariadb", MYSQL])
def test_the_age_of_the_oldest_row_is_that_of_one_that_committed_late_too(
    request: pytest.FixtureRequest, server: str
) -> None:
    tables = database(request.getfixturevalue(f"{server}_database"))
    with closing(tables.range_store(TableName.parse("outbox"))) as store:
        store.init()
        with tables.transaction() as connection:
            Stasher().stash_many(connection, [OutboxRecord("t", "k", str(n)) for n in range(9)])
        assert store.backlog(Position(1, 0, 1, 9)).rows == 0
        behind = store.backlog(Position(1, 0, 1, 8, ((2, 3), (5, 5))))
        assert behind.rows == 4
        assert behind.oldest_age_s is not None

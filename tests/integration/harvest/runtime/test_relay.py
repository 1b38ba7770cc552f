"""`harvest reap` with HTTP destinations, on real servers: failing groups, killed leaders."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app
from harvest.databases.postgres.mark import PostgresMarkStore
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import World, wait_until
from tests.support.http_server import HttpServer, http_server

pytestmark = pytest.mark.kafka


class RelayWorld(World):
    """One outbox, and a receiver instead of a topic."""

    receiver: HttpServer

    def configure(self, destinations: str) -> None:
        self.config.write_text(self.config.read_text() + destinations)

    def stash(self, topic: str, key: str, *values: str) -> None:
        with psycopg.connect(self.database) as connection:
            records = [OutboxRecord(topic, key, value) for value in values]
            Stasher().stash_many(connection, records)

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture
def world(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres_database: str,
) -> Iterator[RelayWorld]:
    topic = kafka_topic(partitions=1)
    made = RelayWorld(tmp_path, kafka.bootstrap_servers, postgres_database, topic)
    store = PostgresMarkStore(postgres_database, "outbox")
    with http_server() as made.receiver, made.opened(kafka, store):
        yield made


def test_a_failing_group_waits_is_set_aside_and_retried(world: RelayWorld) -> None:
    url = world.receiver.url
    world.receiver.script["/bad"] = 500
    world.configure(
        "route: '{topic}'\n"
        "destinations:\n"
        f"  shop: {{http: {{uri: '{url}/{{key}}'}}, attempts: 3, backoff_ms: 5}}\n"
        f"  bank: {{http: {{uri: '{url}/bank/{{key}}'}}}}\n"
    )
    world.stash("shop", "bad", "b1", "b2")
    world.stash("shop", "good", "g1", "g2")
    world.stash("bank", "k", "k1")
    world.stash("nowhere", "k", "n1")
    harvester = world.harvester()
    wait_until(lambda: world.rows_left() == 0, "an empty outbox", harvester.log)
    by_target: dict[str, list[bytes]] = defaultdict(list)
    for request in world.receiver.requests:
        by_target[request.target].append(request.body)
    assert by_target == {
        "/bad": [b"b1"] * 3,
        "/good": [b"g1", b"g2"],
        "/bank/k": [b"k1"],
    }
    noted = "SELECT destination, retries, destination_response_status, relay_error, gave_up "
    (bad, _) = world.query(f"{noted} FROM outbox_attempts ORDER BY id")
    assert bad == ("shop", 3, 500, "HTTP 500", True)

    def dead_letters(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["dead-letters", *arguments, "-c", str(world.config)])
        assert result.exit_code == code, result.output
        return result.stdout

    rows = json.loads(dead_letters("list", "--json", code=1))["rows"]
    errors = {(row["topic"], row["error"]) for row in rows}
    assert ("shop", "HTTP 500; given up after 3 tries") in errors
    assert any("there is no destination 'nowhere'" in error for _, error in errors)
    assert len(rows) == 3

    world.receiver.script["/bad"] = 204
    world.stash("shop", "bad", "b3")
    dead_letters("retry", "--topic", "shop")
    wait_until(lambda: b"b3" in world.receiver.bodies(), "the retried rows", harvester.log)
    wait_until(lambda: world.rows_left() == 0, "an empty outbox", harvester.log)
    assert [b for b in world.receiver.bodies() if b.startswith(b"b")][3:] == [b"b1", b"b2", b"b3"]
    assert harvester.stop() == 0


def test_killed_leaders_lose_nothing_and_keep_the_order(world: RelayWorld) -> None:
    world.receiver.script["/"] = [204, 503, 204, 204, "close", 500, 204, 204, "reset", 204] * 40 + [
        204
    ]
    world.configure(
        "destinations:\n"
        f"  shop: {{http: {{uri: '{world.receiver.url}/{{key}}', timeout_ms: 5000}},\n"
        "         attempts: 1000, backoff_ms: 2, max_backoff_ms: 20, breaker_open_ms: 20}\n"
    )
    world.harvester()
    world.harvester()
    with world.writing():
        for kills in range(2):
            wait_until(lambda: len(world.receiver.requests) > 150 * (kills + 1), "requests")  # noqa: B023
            world.leader().kill()
            world.harvester()
    world.wait_drained()
    assert world.leader().stop() == 0
    got: dict[str, list[str]] = defaultdict(list)
    for request in world.receiver.requests:
        assert request.headers["n"] == request.body.decode()
        got[request.target[1:]].append(request.body.decode())
    assert got.keys() == world.committed.keys()
    for key, values in got.items():
        assert list(dict.fromkeys(reversed(values)))[::-1] == world.committed[key]
    unique = {r.body: r.headers["idempotency-key"] for r in world.receiver.requests}
    assert len(set(unique.values())) == len(unique)

"""Leaderships that relay to a real HTTP server from a real table, one after the other."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable

import psycopg
import pytest

from harvest import OutboxRecord, Stasher
from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.runtime.events import Stats
from harvest.runtime.leadership import Leadership
from harvest.runtime.parts import make_relay_tools
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import wait_until
from tests.support.http_server import http_server
from tests.support.kafka_reader import read_topic
from tests.unit.harvest.runtime.test_harvester import FakeLease

KEYS = 7
ROWS = 400


class Relaying:
    def __init__(self, config: ReaperConfig, epoch: int) -> None:
        self.tools = make_relay_tools(config)
        self.tools.guard = None  # there is no Kafka here
        self.lease = FakeLease(epoch)
        self.stats = Stats()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        leadership = Leadership(self.lease, stats=self.stats)
        leadership.run(self.tools.leader(leadership))

    def end(self) -> None:
        """Lose the lease."""
        self.lease.lost.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.tools.close()


def test_leaders_that_follow_one_another_keep_the_order(postgres_database: str) -> None:
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    store.close()
    expected: dict[str, list[bytes]] = defaultdict(list)
    with psycopg.connect(postgres_database) as connection:
        for n in range(ROWS):
            expected[f"/k{n % KEYS}"].append(b"%d" % n)
            Stasher().stash(connection, OutboxRecord("t", f"k{n % KEYS}", str(n)))
    with http_server() as receiver:
        faults = [204, 503, 204, 204, "close", 500, 204, 204, "reset", 204]
        receiver.script["/"] = [*faults * 30, 204]
        config = parse(
            f"kafka: {{bootstrap.servers: x}}\ngroup: g\ndatabase: {postgres_database}\n"
            "limits: {max_in_flight_records: 40}\n"
            "destinations:\n"
            f"  shop: {{http: {{uri: '{receiver.url}/{{key}}'}}, attempts: 1000, backoff_ms: 1,\n"
            "         max_backoff_ms: 9, breaker_open_ms: 9, max_breaker_open_ms: 20}\n"
        )
        for epoch in (1, 2):
            leadership = Relaying(config, epoch)
            wait_until(lambda: len(receiver.requests) > 120 * epoch, "requests")  # noqa: B023
            leadership.end()
        leadership = Relaying(config, 3)
        wait_until(lambda: leadership.stats.purged and _rows(postgres_database) == 0, "all")
        leadership.end()
        got: dict[str, list[bytes]] = defaultdict(list)
        for request in receiver.requests:
            got[request.target].append(request.body)
        assert len({r.headers["idempotency-key"] for r in receiver.requests}) == ROWS
    assert {r.headers["harvest-epoch"] for r in receiver.requests} == {"1", "2", "3"}
    for target, bodies in got.items():
        assert list(dict.fromkeys(reversed(bodies)))[::-1] == expected[target]
    assert got.keys() == expected.keys()


def test_destinations_that_are_down_lose_nothing_and_hold_up_nobody(postgres_database: str) -> None:
    """500 to all, and 410; few attempts and short pauses, so that an hour is over soon."""
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    store.close()
    with psycopg.connect(postgres_database) as connection:
        for n in range(90):
            to = ("down", "gone", "up")[n % 3]
            Stasher().stash(connection, OutboxRecord(to, f"k{n % 9}", str(n)))
    with http_server() as receiver:
        receiver.script.update({"/down": 500, "/gone": 410})
        policy = "attempts: 2, pauses_ms: [1], max_breaker_open_ms: 2, breaker_open_ms: 1"
        kinds = [
            f"  {name}: {{http: {{uri: '{receiver.url}/{name}/{{key}}'}}, {policy}}}\n"
            for name in ("down", "gone", "up")
        ]
        config = parse(
            f"kafka: {{bootstrap.servers: x}}\ngroup: g\ndatabase: {postgres_database}\n"
            "limits: {max_in_flight_records: 20}\ndestinations:\n" + "".join(kinds)
        )

        def count(name: str) -> int:
            return sum(r.target.startswith(f"/{name}") for r in list(receiver.requests))

        leadership = Relaying(config, 1)
        wait_until(lambda: leadership.stats.purged == 30 and count("down") > 100, "the others")
        assert _rows(postgres_database) == 60
        assert count("gone") <= 3  # one of each key, all at once
        receiver.script["/down"] = 204
        wait_until(lambda: leadership.stats.purged == 60, "all that is not gone")
        gone = count("gone")
        leadership.end()
        receiver.script["/gone"] = 204
        leadership = Relaying(config, 2)
        wait_until(lambda: leadership.stats.purged == 30, "the next leader asks again")
        leadership.end()
        assert count("gone") - gone >= 30
        delivered: dict[str, list[int]] = defaultdict(list)
        for request in receiver.requests:
            delivered[request.target].append(int(request.body))
    assert _rows(postgres_database) == 0
    for bodies in delivered.values():
        assert list(dict.fromkeys(bodies)) == sorted(set(bodies))


def test_each_row_goes_in_batches_to_several_and_one_that_is_down_gets_it_later(
    postgres_database: str,
) -> None:
    """The leader changes while one is down; who had the rows before gets none again."""
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    store.close()
    with psycopg.connect(postgres_database) as connection:
        for n in range(60):
            value = "bad" if n == 17 else str(n)
            Stasher().stash(connection, OutboxRecord("t", f"k{n % 7}", value))
    with http_server() as receiver:
        receiver.script.update({"/late": 503})
        policy = "attempts: 3, pauses_ms: [1], max_breaker_open_ms: 2, breaker_open_ms: 1"
        batch = "batch: {records: 4, format: values}"
        kinds = [
            f"  {name}: {{http: {{uri: '{receiver.url}/{name}', {more}}}, {policy}}}\n"
            for name, more in (("now", batch), ("late", "timeout_ms: 20000"))
        ]
        config = parse(
            f"kafka: {{bootstrap.servers: x}}\ngroup: g\ndatabase: {postgres_database}\n"
            "route: [now, late]\nlimits: {max_in_flight_records: 20}\n"
            "bad_rows: {key_waits: false}\ndestinations:\n" + "".join(kinds)
        )

        def values(name: str) -> list[object]:
            requests = [r for r in list(receiver.requests) if r.target == f"/{name}"]
            found = [json.loads(r.body) for r in requests if r.body != b"bad"]
            return [one for all in found for one in (all if isinstance(all, list) else [all])]

        everything = sorted(set(range(60)) - {17})
        leadership = Relaying(config, 1)
        wait_until(lambda: len(values("now")) == 59, "all that are JSON, at one of the two")
        breakers = leadership.stats.breakers
        wait_until(lambda: breakers == {"now": "closed", "late": "open"}, "the breaker")
        wait_until(lambda: _rows(postgres_database) == 59, "the bad row, set aside")
        leadership.end()
        receiver.script["/late"] = 204
        leadership = Relaying(config, 2)
        wait_until(lambda: _rows(postgres_database) == 0, "all")
        leadership.end()
        assert sorted(map(str, values("now"))) == sorted(map(str, everything))  # once
        assert set(everything) <= set(values("late"))
        sizes = [len(json.loads(r.body)) for r in receiver.requests if r.target == "/now"]
        assert max(sizes) == 4
    with psycopg.connect(postgres_database) as connection:
        found = connection.execute("SELECT kafka_value, error FROM outbox_dead_letters").fetchall()
        left = connection.execute("SELECT delivered FROM outbox_attempts").fetchall()
    ((value, error),) = found
    assert value == "bad"
    assert error.startswith("now: the value is no JSON")
    assert left == [(None,)], "it goes to both when it is put back"


@pytest.mark.kafka
def test_one_relay_sends_to_http_and_to_kafka(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> None:
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    store.close()
    topic = kafka_topic(partitions=1)
    with psycopg.connect(postgres_database) as connection:
        for n in range(60):
            to = "events" if n % 2 else "shop"
            Stasher().stash(
                connection, OutboxRecord(topic, f"k{n % 6}", str(n), {"to": to, "n": str(n)})
            )
    with http_server() as receiver:
        config = parse(
            f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
            f"group: g\ndatabase: {postgres_database}\nroute: '{{header.to}}'\n"
            "destinations:\n"
            f"  shop: {{http: {{uri: '{receiver.url}/{{key}}'}}}}\n"
            "  events: {kafka: {topic: '{topic}'}}\n"
        )
        leadership = Relaying(config, 5)
        wait_until(lambda: leadership.stats.purged == 60, "all")
        leadership.end()
        bodies = defaultdict(list)
        for request in receiver.requests:
            bodies[request.target].append(int(request.body))
    records = defaultdict(list)
    for key, value, headers in read_topic(kafka.bootstrap_servers, topic):
        assert key is not None
        assert value is not None
        records[key].append(int(value))
        given = dict(headers)
        assert given["n"] == value
        assert given["idempotency-key"].startswith(b"g.outbox.")
        assert given["harvest-epoch"] == b"5"
    assert bodies == {f"/k{k}": list(range(k, 60, 6)) for k in (0, 2, 4)}
    assert records == {b"k%d" % k: list(range(k, 60, 6)) for k in (1, 3, 5)}
    assert leadership.stats.messages == {("shop", "delivered"): 30, ("events", "delivered"): 30}


def _rows(database: str) -> int:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT count(*) FROM outbox").fetchone()
        assert found is not None
        return int(found[0])

"""A harvester inside of a program: events, logger, health, metrics, on real servers."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harvest import Harvest, OutboxRecord, Stasher, StoreUnavailable, TableMissing
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.runtime import harvester
from harvest.runtime.events import (
    Event,
    LeaderAcquired,
    LeaderFenced,
    LeaderRefreshed,
    LeaderRevoked,
    MeterRead,
)
from marshal_py import Marshal
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import WAIT_S, World, forget, wait_until
from tests.support.http_server import http_server
from tests.support.kafka_reader import read_topic

pytestmark = pytest.mark.kafka


class Program:
    """What embeds harvesters of one outbox."""

    def __init__(self, servers: str, database: str, topic: str) -> None:
        self.servers, self.database, self.topic = servers, database, topic
        self.config = {
            "kafka": {"bootstrap.servers": servers},
            "database": database,
            "group": topic,
            "coordination": {
                "topic": f"{topic}.marshal",
                "interval_ms": 1_000,
                "create_topics": True,
            },
        }

    def insert(self, count: int, outbox: str = "outbox") -> None:
        with psycopg.connect(self.database) as connection:
            records = (OutboxRecord(self.topic, "k", str(n)) for n in range(count))
            Stasher(outbox).stash_many(connection, records)

    def published(self) -> int:
        return len(read_topic(self.servers, self.topic))


@pytest.fixture
def program(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], postgres_database: str
) -> Iterator[Program]:
    topic = kafka_topic()
    store = PostgresMarkStore(postgres_database, "outbox")
    store.init()
    store.close()
    yield Program(kafka.bootstrap_servers, postgres_database, topic)
    forget(kafka, topic)


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))


def test_the_events_and_the_logger_of_a_life(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    heard, logger = Listener(), logging.Logger("mine")
    logger.addHandler(heard)
    caplog.set_level(logging.INFO, "harvest")
    harvest = Harvest(program.config, on_event=events.append, logger=logger, meter_interval_s=0.05)
    with harvest:
        program.insert(10)
        wait_until(lambda: program.published() == 10, "ten records")
        wait_until(lambda: harvest.health().ok, "health")
        assert harvest.leading
        wait_until(lambda: sum(meter.published for meter in meters(events)) == 10, "meters")
    kinds = [type(event) for event in events if not isinstance(event, MeterRead)]
    assert kinds == [LeaderAcquired, LeaderRefreshed, LeaderRevoked]
    assert meters(events)[-1].total_published == harvest.stats.published == 10
    acquired = [level for level, line in heard.lines if "leader acquired" in line]
    assert acquired == [logging.INFO]
    assert not harvest.health().ok
    assert heard not in logging.getLogger("harvest").handlers


def meters(events: list[Event]) -> list[MeterRead]:
    return [event for event in events if isinstance(event, MeterRead)]


def test_the_next_leader_waits_for_the_handler_of_revoked(program: Program) -> None:
    order: list[str] = []
    proceed, revoked = threading.Event(), threading.Event()

    def first_hears(event: Event) -> None:
        if isinstance(event, LeaderRevoked):
            revoked.set()
            assert proceed.wait(WAIT_S)
            order.append("first is done")

    def second_hears(event: Event) -> None:
        if isinstance(event, LeaderAcquired):
            order.append("second leads")

    first = Harvest(program.config, on_event=first_hears).start()
    wait_until(lambda: first.leading, "the first leads")
    with Harvest(program.config, on_event=second_hears) as second:
        first.stop()
        assert revoked.wait(WAIT_S)
        assert not first.await_(0.5)
        assert order == []
        proceed.set()
        assert first.await_(WAIT_S)
        wait_until(lambda: second.leading, "the second leads")
    assert order == ["first is done", "second leads"]


@pytest.mark.parametrize("mode", ["mark", "range", "wal", "relay"])
def test_a_leader_that_alone_cannot_reach_the_database_lets_another_lead(
    program: Program, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harvester, "_CUT_OFF_S", 1.0)
    with (
        psycopg.connect(program.database, autocommit=True) as database,
        http_server() as receiver,
    ):

        def published() -> int:
            if mode != "relay":
                return program.published()
            return len({request.headers["idempotency-key"] for request in receiver.requests})

        role = f"cut_{program.topic}".replace(".", "_").replace("-", "_")
        database.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
        mine = program.database.replace("postgres@", f"{role}@")
        assert mine != program.database
        config: dict[str, Any] = {**program.config, "outbox": f"outbox_{mode}"}
        if mode == "relay":
            config["destinations"] = {"shop": {"http": {"uri": receiver.url}}}
        else:
            config["mode"] = mode
        file = tmp_path / "reaper.yaml"
        file.write_text(json.dumps(config))
        harvest = [sys.executable, "-m", "harvest.cli"]
        subprocess.run([*harvest, "init", "--config", file], check=True, timeout=WAIT_S)
        first = Harvest({**config, "database": mine}).start()
        try:
            wait_until(lambda: first.leading, "the first leads")
            with Harvest(config) as second:
                program.insert(3, config["outbox"])
                wait_until(lambda: published() == 3, "three records")
                database.execute(f"ALTER ROLE {role} NOLOGIN")
                database.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
                    [role],
                )
                wait_until(lambda: second.leading, "the second leads")
                program.insert(3, config["outbox"])
                wait_until(lambda: published() == 6, "six records")
                assert not first.leading
                database.execute(f"ALTER ROLE {role} LOGIN")
            wait_until(lambda: first.leading, "the first leads again")
            program.insert(3, config["outbox"])
            wait_until(lambda: published() == 9, "nine records")
        finally:
            first.stop()
            assert first.await_(WAIT_S)
        database.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
        database.execute(f"DROP ROLE {role}")


def test_a_start_that_cannot_work_says_why(program: Program) -> None:
    with pytest.raises(TableMissing):
        Harvest({**program.config, "outbox": "nowhere"}).start()
    with pytest.raises(StoreUnavailable):
        Harvest({**program.config, "database": "host=127.0.0.1 port=1 dbname=x"}).start()


def test_a_handler_that_raises_ends_the_harvest_and_hands_over(program: Program) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, LeaderRefreshed):
            raise ZeroDivisionError

    harvest = Harvest(program.config, on_event=fail).start()
    with pytest.raises(ZeroDivisionError):
        harvest.await_(WAIT_S)
    with Harvest(program.config) as other:
        wait_until(lambda: other.leading, "another leads")


def test_a_fenced_leader_hears_of_it(program: Program, kafka: EmbeddedKafka) -> None:
    events: list[Event] = []
    with Harvest(program.config, on_event=events.append) as harvest:
        wait_until(lambda: harvest.leading, "it leads")
        kafka.pause()
        try:
            wait_until(lambda: LeaderFenced in map(type, events), "fenced")
        finally:
            kafka.resume()
        wait_until(lambda: harvest.leading, "it leads again")
    assert harvest.stats.fenced == 1


# --- Over HTTP ---


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def healthz(port: int) -> dict[str, Any]:
    code, text = get(port, "/healthz")
    body: dict[str, Any] = json.loads(text) if text else {}
    return {"code": code, **body}


def published(kafka: EmbeddedKafka, topic: str) -> dict[str, Any]:
    """What the leader shows beside its claim."""
    with (
        Marshal(kafka.bootstrap_servers, group_id=topic, topic=f"{topic}.marshal") as marshal,
        marshal.world() as world,
    ):
        (cell,) = [cell for _, (_, name, _), cell in world.cells() if name.endswith(":outbox")]
        facts: dict[str, Any] = json.loads(cell.metadata) if cell.metadata else {}
        return facts


def test_health_and_metrics_of_a_process(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    postgres: EmbeddedPostgres,
    postgres_database: str,
) -> None:
    pytest.importorskip("prometheus_client")
    topic = kafka_topic()
    world = World(tmp_path, kafka.bootstrap_servers, postgres_database, topic, "transactional")
    PostgresMarkStore(postgres_database, "outbox").init()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    harvester = world.harvester("--listen", f"127.0.0.1:{port}")
    try:
        harvester.wait_said("harvesting as")
        with psycopg.connect(postgres_database) as connection:
            Stasher().stash_many(connection, [OutboxRecord(topic, "k", "v")] * 7)
        world.wait_drained()
        wait_until(lambda: healthz(port)["code"] == 200, "health", harvester.log)
        assert healthz(port) == {"code": 200, "ok": True, "state": "leading", "problems": []}
        code, text = get(port, "/metrics")
        assert code == 200
        lines = text.splitlines()
        whose = next(line for line in lines if line.startswith("harvest_up{"))[10:-4]
        assert 'outbox="outbox"' in whose
        assert "group_id=" in whose
        assert f"harvest_published_rows_total{whose} 7.0" in lines
        assert f"harvest_up{whose} 1.0" in lines
        assert f"harvest_leading{whose} 1.0" in lines
        assert f"harvest_kafka_reachable{whose} 1.0" in lines
        assert any(line.startswith(f"harvest_backlog_rows{whose} ") for line in lines)
        shard = 'shard="harvest:outbox"'
        wait_until(lambda: shard in get(port, "/metrics")[1], "who leads", harvester.log)
        assert get(port, "/")[0] == 404
        # The same for all who read the coordination log, as the dashboard does.
        wait_until(lambda: "rows/s" in published(kafka, topic), "publication", harvester.log)
        assert published(kafka, topic)["backlog"] == 0
        assert published(kafka, topic)["in flight"] == 0
        postgres.kill()
        wait_until(lambda: healthz(port)["code"] == 503, "illness", harvester.log)
        assert any("database" in problem for problem in healthz(port)["problems"])
        postgres.start()
        wait_until(lambda: healthz(port)["code"] == 200, "health again", harvester.log)
        assert harvester.stop() == 0
    finally:
        postgres.start()
        world.close()
        forget(kafka, topic)

"""The questions of the monitor: to which server, and what an answer means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.core.interfaces.mark_store import Backlog
from harvest.core.wal_slot import SlotHealth
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.runtime import probes as module
from harvest.runtime.probes import ServerProbes
from marshal_py.errors import BrokerUnavailable

CONFIG = parse(
    "database: host=d\nkafka: {bootstrap.servers: 'localhost:1', linger.ms: 5}\ngroup: g\n"
    "coordination: {topic: elsewhere}\n"
)


class World:
    """The servers, and the client that stands for election."""

    group_id = "g"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[object] = []
        self.failure: Exception | None = None
        self.cells: list[tuple[str, int, str | None]] = []
        self.is_paused = False
        self.claimed: list[Any] = []
        letters = SimpleNamespace(count=lambda: 4, close=self._note("letters closed"))
        monkeypatch.setattr(module, "make_dead_letters", lambda _: letters)
        monkeypatch.setattr(module, "make_client", self._make_client)
        self.store: Any = SimpleNamespace(
            connect=self._note("connect"),
            ping=self._note("ping"),
            backlog=lambda: Backlog(5, 2, 1.5),
            close=self._note("store closed"),
        )

    def probes(self) -> ServerProbes:
        marshal: Any = self
        return ServerProbes(CONFIG, marshal, self.store)

    @contextmanager
    def world(self) -> Iterator[Any]:
        def cells(group: str) -> Iterator[tuple[int, tuple[str, str, int], Any]]:
            for topic, partition, holder in self.cells:
                yield 0, (group, topic, partition), SimpleNamespace(holder=holder)

        yield SimpleNamespace(cells=cells, paused=lambda group: group == "g" and self.is_paused)

    def claims(self) -> list[Any]:
        return self.claimed

    def _make_client(self, kind: object, settings: dict[str, Any]) -> Any:
        del kind
        self.settings = settings
        return SimpleNamespace(list_topics=lambda topic, **given: self.seen.append((topic, given)))

    def _note(self, what: str) -> Callable[[], None]:
        return lambda: self.seen.append(what)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_database_is_asked_on_its_own_connection(world: World) -> None:
    probes = world.probes()
    probes.database()
    assert world.seen == ["connect", "ping"]
    assert (probes.backlog(), probes.dead_letters()) == (Backlog(5, 2, 1.5), 4)
    assert probes.slot() is None


def test_kafka_answers_in_time_for_the_next_look(world: World) -> None:
    world.probes().kafka()
    assert world.seen == [("elsewhere", {"timeout": 4.0})]
    assert world.settings == {"bootstrap.servers": "localhost:1"}


def test_a_client_that_has_failed_does_not_reach_kafka(world: World) -> None:
    """A connection of the probe's own says nothing about that of the client."""
    world.failure = BrokerUnavailable("it was fenced")
    with pytest.raises(BrokerUnavailable, match="it was fenced"):
        world.probes().kafka()
    assert world.seen == []


def test_the_slot_is_that_of_wal_mode(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    health = SlotHealth(True, pinned_bytes=7)
    monkeypatch.setattr(PostgresWalSource, "health", lambda _: health)
    world.store = PostgresWalSource("host=d", "outbox")
    assert world.probes().slot() == health


def test_holders_are_those_of_each_shard(world: World) -> None:
    world.cells = [("leader:harvest:a", 0, "one"), ("harvest:b", 0, "two"), ("harvest:b", 1, "one")]
    world.cells.append(("harvest:b", 2, None))
    assert world.probes().holders() == {
        "harvest:a": "one",
        "harvest:b": "two",
        "harvest:b.1": "one",
    }


@pytest.mark.parametrize("paused", [True, False])
def test_a_pause_is_that_of_the_group(world: World, paused: bool) -> None:
    world.is_paused = paused
    assert world.probes().paused() is paused


def test_facts_are_shown_beside_every_claim(world: World) -> None:
    told: list[bytes] = []
    world.claimed = [SimpleNamespace(set_metadata=told.append)] * 2
    world.probes().publish({"rows/s": 3, "oldest s": 1.5})
    assert [json.loads(text) for text in told] == [{"rows/s": 3, "oldest s": 1.5}] * 2


def test_every_connection_is_closed(world: World) -> None:
    world.probes().close()
    assert sorted(map(str, world.seen)) == ["letters closed", "store closed"]

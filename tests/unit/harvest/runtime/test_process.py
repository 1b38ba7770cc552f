"""What a harvesting process is made of, and in which order it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.errors import ConfigurationError, TableMissing
from harvest.runtime import process as module
from harvest.runtime.process import process


def config(more: str = "") -> ReaperConfig:
    return parse(
        "database: host=d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\nname: me\n"
        f"coordination: {{topic: elsewhere, interval_ms: 250}}\n{more}"
    )


class World:
    """Every part, as a double that notes what happens to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.missing = False
        self.refused = False
        self.client: dict[str, Any] = {}
        self.harvester: dict[str, Any] = {}
        self.candidacy: list[object] = []
        self.retried: dict[str, Any] = {}
        self.listened: list[str] = []
        for name in ("make_store", "make_range_store", "make_wal_source"):
            monkeypatch.setattr(module, name, self._store("table"))
        monkeypatch.setattr(module, "make_any_store", self._store("store"))
        monkeypatch.setattr(module, "check_layout", self._check_layout)
        monkeypatch.setattr(module, "check_registration", self._check_registration)
        monkeypatch.setattr(module, "make_dead_letters", lambda _: "letters")
        monkeypatch.setattr(module, "make_client", lambda *_: "admin")
        monkeypatch.setattr(module, "Marshal", self._marshal)
        monkeypatch.setattr(module, "Harvester", self._harvester)
        monkeypatch.setattr(module, "WaitingTopics", self._waiting_topics)
        monkeypatch.setattr(module, "Election", lambda *given: ("election", *given[1:]))
        monkeypatch.setattr(module, "FairShare", lambda *given: ("share", *given[1:]))
        monkeypatch.setattr(module, "database", self._database)

    def _store(self, name: str) -> Callable[[object], Any]:
        def connect() -> None:
            self.seen.append(f"{name} connects")
            if self.missing:
                raise TableMissing("no table")

        def close() -> None:
            self.seen.append(f"{name} closes")

        return lambda _: SimpleNamespace(connect=connect, close=close)

    def _check_layout(self, _: object, shards: int) -> None:
        self.seen.append(f"{shards} shards")

    def _check_registration(self, *_: object) -> None:
        self.seen.append("registration")
        if self.refused:
            raise ConfigurationError("another configuration harvests it")

    @contextmanager
    def _marshal(self, settings: object, **given: Any) -> Iterator[Any]:
        self.seen.append("marshal")
        self.client = {"settings": settings, **given}
        try:
            yield SimpleNamespace(group_id="g", client_id="me")
        finally:
            self.seen.append("marshal ends")

    def _harvester(self, candidacy: object, tools: object, **given: Any) -> Any:
        del tools
        self.candidacy.append(candidacy)
        self.harvester = given
        return SimpleNamespace(state="leading")

    def _waiting_topics(self, letters: object, existing: object, **given: Any) -> Any:
        del existing
        self.retried = {"letters": letters, **given}
        return SimpleNamespace(
            start=lambda: self.seen.append("topics"), close=lambda: self.seen.append("topics end")
        )

    def _database(self, source: str) -> Any:
        self.listened.append(source)
        return SimpleNamespace(listener=lambda _: "listener")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_process_is_what_was_configured(world: World) -> None:
    made = config("limits: {drain_timeout_ms: 2500, max_row_age_ms: 90000}\n")
    with process(made) as running:
        assert running.max_age_s == 90.0
        assert running.labels == {"group_id": "g", "outbox": "outbox"}
    assert world.candidacy == [("election", "harvest:outbox")]
    assert world.client == {
        "settings": {"bootstrap.servers": "localhost:1"},
        "group_id": "g",
        "client_id": "me",
        "interval_ms": 250,
        "topic": "elsewhere",
        "create_topics": False,
        "close_on_sigterm": False,
    }
    fields = {"group_id": "g", "client_id": "me", "topic": "harvest:outbox"}
    assert world.harvester == {
        "warm_standby": True,
        "on_event": None,
        "listener": "listener",
        "drain_timeout_s": 2.5,
        "fields": fields,
    }
    ends = ["marshal ends"]
    checks = ["table connects", "table closes", "marshal", "registration", "store closes"]
    assert world.seen == checks + ends


def test_without_a_bound_no_row_is_too_old(world: World) -> None:
    with process(config()) as running:
        assert running.max_age_s is None
    assert world.retried == {}, "rows of missing topics are set aside for good"


def test_shards_are_divided_and_nobody_stands_by_with_connections(world: World) -> None:
    with process(config("mode: range\nshards: 3\n")):
        pass
    assert world.candidacy == [("share", "harvest:outbox", 3)]
    assert world.harvester["warm_standby"] is False
    assert world.seen[:3] == ["table connects", "3 shards", "table closes"]


@pytest.mark.parametrize("more", ["", "mode: range\n", "mode: wal\n"])
def test_a_table_that_is_missing_is_told_before_kafka_hears_of_anything(
    world: World, more: str
) -> None:
    """And nothing stays open, of a program that tries again and again."""
    world.missing = True
    with pytest.raises(TableMissing), process(config(more)):
        pass
    assert world.seen == ["table connects", "table closes"]


def test_a_setting_that_no_producer_takes_is_told_before_anything_else(world: World) -> None:
    """A leader would try again for ever: what is refused later is a file that is replaced."""
    with (
        pytest.raises(ConfigurationError, match="linger"),
        process(config("producer: {linger.mss: 5}\n")),
    ):
        pass
    assert world.seen == []


def test_what_is_refused_leaves_nothing_open(world: World) -> None:
    world.refused = True
    with pytest.raises(ConfigurationError), process(config()):
        pass
    assert world.seen[-3:] == ["registration", "store closes", "marshal ends"]


def test_rows_that_wait_for_topics_are_looked_after_as_long_as_it_runs(world: World) -> None:
    with process(config("bad_rows: {unknown_topic: wait}\n")):
        assert world.seen[-1] == "topics"
    assert world.seen[-2:] == ["topics end", "marshal ends"]
    assert (world.retried["letters"], world.retried["mode"]) == ("letters", "mark")
    assert world.retried["leading"]() is True


@pytest.mark.parametrize(
    "more",
    [
        "bad_rows: {unknown_topic: wait, on_bad_row: stop}\n",
        "bad_rows: {unknown_topic: wait}\ndestinations: {shop: {kafka: {}}}\n",
        "bad_rows: {unknown_topic: wait}\nmode: range\nprimary: {database: host=p}\n",
    ],
)
def test_where_no_row_is_set_aside_for_its_topic_none_is_put_back(world: World, more: str) -> None:
    with process(config(more)):
        pass
    assert world.retried == {}


def test_who_hears_of_new_rows_does_so_past_the_pooler(world: World) -> None:
    with process(config("direct_database: host=direct\n")):
        pass
    assert world.listened == ["host=direct"]


@pytest.mark.parametrize("more", ["mode: wal\n", "mode: range\nprimary: {database: host=p}\n"])
def test_who_has_no_trigger_hears_nothing(world: World, more: str) -> None:
    with process(config(more)):
        pass
    assert world.harvester["listener"] is None


@pytest.mark.parametrize(("more", "stores"), [("mode: wal\n", "table"), ("", "store")])
def test_probes_have_a_store_of_the_mode(
    world: World, monkeypatch: pytest.MonkeyPatch, more: str, stores: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "ServerProbes", lambda *given: asked.append(given))
    with process(config(more)) as running:
        running.probes()
    asked[0][2].close()
    assert world.seen[-1] == f"{stores} closes"

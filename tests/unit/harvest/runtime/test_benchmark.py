"""What `harvest bench` takes from a configuration, and what it must not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.config.load import parse
from harvest.config.model import Mode
from harvest.errors import ConfigurationError, SinkUnavailable, StoreUnavailable
from harvest.runtime import benchmark
from harvest.runtime.benchmark import Work, scratch_config
from harvest.runtime.events import Event, LeaderRefreshed

OURS = "kafka: {bootstrap.servers: 'k:1'}\ndatabase: host=db\ngroup: prod\noutbox: prod\n"
PRIMARY = "mode: range\nprimary: {database: host=prod}\n"
SAME = {
    "kafka",
    "producer",
    "partitioner",
    "database",
    "direct_database",
    "limits",
    "harvest_id",
    "delivery",
}


@pytest.mark.parametrize("mode", ["mark", "range"])
@pytest.mark.parametrize(
    "prod",
    [
        "destinations: {shop: {http: {uri: 'http://prod/'}}}\nroute: shop\n",
        "columns: {headers: {tenant: tenant_id}, partition: p}\n",
        "mode: range\nshards: 4\npartitions: {archive: prod, rows: 7, retain_hours: 0}\n",
        PRIMARY,
        "mode: wal\nwal: {slot: prod, standby: host=prod}\n",
        "cloudevents: {source: '{header.prod}'}\nidempotency_key: '{header.prod}'\n",
        "bad_rows: {on_bad_row: stop}\nname: prod\ncoordination: {topic: prod}\n",
    ],
)
def test_nothing_of_what_is_in_use_is_touched(prod: str, mode: Mode) -> None:
    made = scratch_config(parse(OURS + prod), mode, "scratch")
    assert "prod" not in repr(made)
    assert made == scratch_config(parse(OURS), mode, "scratch")


def test_what_decides_how_fast_it_goes_is_as_in_the_file() -> None:
    given = parse(
        OURS + "direct_database: host=direct\nproducer: {linger.ms: 7}\npartitioner: java\n"
        "limits: {max_in_flight_records: 7}\nharvest_id: shop\ndelivery: idempotent\n"
        "coordination: {interval_ms: 70}\n"
    )
    made = scratch_config(given, "mark", "scratch")
    assert made.model_dump(include=SAME) == given.model_dump(include=SAME)
    assert made.coordination.interval_ms == 70
    assert scratch_config(given, "range", "scratch").delivery == "transactional"


class Harvester:
    """Stands for a `Harvest`, which is asked again and again how far it is."""

    def __init__(self, leads_at: int, published: list[int], error: Exception | None = None) -> None:
        self.leads_at, self.published, self.error = leads_at, published, error
        self.looks = 0
        self.stats = SimpleNamespace(published=0)

    def __call__(self, _: object, *, on_event: Callable[[Event], None], **__: Any) -> Harvester:
        self.hear = on_event
        return self

    def __enter__(self) -> Harvester:
        return self

    def __exit__(self, *_: object) -> None: ...

    def await_(self, _timeout_s: float) -> bool:
        self.looks += 1
        if self.looks == self.leads_at:
            self.hear(LeaderRefreshed(1))
        if self.published:
            self.stats.published = self.published.pop(0)
        elif self.error is not None:
            raise self.error
        return False


@pytest.mark.parametrize("leads_at", [1, 9])
def test_what_ended_the_harvester_is_told_whether_it_led_or_not(
    monkeypatch: pytest.MonkeyPatch, leads_at: int
) -> None:
    harvester = Harvester(leads_at, [0, 3], StoreUnavailable("no such right"))
    monkeypatch.setattr(benchmark, "Harvest", harvester)
    with pytest.raises(StoreUnavailable, match="no such right"):
        benchmark._drain(parse(OURS), Work(rows=7), 2)


def test_rows_count_from_when_it_leads_until_the_last_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harvester = Harvester(2, [0, 0, 3, 7])
    monkeypatch.setattr(benchmark, "Harvest", harvester)
    clock = SimpleNamespace(
        monotonic=lambda: 10.0 * harvester.looks, process_time=lambda: 1.0 * harvester.looks
    )
    monkeypatch.setattr(benchmark, "time", clock)
    assert benchmark._drain(parse(OURS), Work(rows=7), 600) == (30.0, 3.0)
    harvester = Harvester(1, [3])
    monkeypatch.setattr(benchmark, "Harvest", harvester)
    with pytest.raises(SinkUnavailable, match="3 of 7 rows were published within 60 s"):
        benchmark._drain(parse(OURS), Work(rows=7), 60)


@pytest.mark.parametrize("url", ["mysql://root@db/shop", "sqlite:///shop.db"])
def test_another_database_than_postgresql_is_told_before_anything_is_made(url: str) -> None:
    config = parse(OURS.replace("host=db", url))
    with pytest.raises(ConfigurationError, match=f"not {url.partition(':')[0]}://"):
        benchmark.check_reachable(config)


class Connection:
    """Keeps which rows are made."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, _statement: object, given: dict[str, int] | None = None) -> None:
        if given is not None:
            self.made.append((given["first"], given["last"]))


@pytest.mark.parametrize(
    ("rows", "made"),
    [
        (1, [(1, 1)]),
        (50_000, [(1, 50_000)]),
        (100_001, [(1, 50_000), (50_001, 100_000), (100_001, 100_001)]),
    ],
)
def test_as_many_rows_are_made_as_are_drained(
    monkeypatch: pytest.MonkeyPatch, rows: int, made: list[tuple[int, int]]
) -> None:
    connection = Connection()
    monkeypatch.setattr("psycopg.connect", lambda *_, **__: connection)
    benchmark._fill(parse(OURS), "scratch", Work(rows=rows))
    assert connection.made == made


def test_rates_are_of_the_rows_that_were_made_and_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 108.0])
    monkeypatch.setattr(benchmark, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for part in ("_topic", "_table"):
        monkeypatch.setattr(benchmark, part, lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(benchmark, "_fill", lambda *_: None)
    monkeypatch.setattr(benchmark, "_drain", lambda *_: (4.0, 2.0))
    found = benchmark.drain_benchmark(parse(OURS), "range", Work(rows=200))
    assert (found.mode, found.rows) == ("range, exactly once", 200)
    assert (found.fill_rows_per_s, found.drain_rows_per_s) == (25.0, 50.0)
    assert found.cpu_s_per_100k == 1_000.0


class Admin:
    """Makes one topic, and has no others."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def create_topics(self, topics: list[Any], **_: Any) -> dict[str, Any]:
        return {topic.topic: SimpleNamespace(result=lambda: None) for topic in topics}

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Any]:
        return {name: SimpleNamespace(result=partial(self._delete, name)) for name in names}

    def delete_consumer_groups(self, names: list[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(result=partial(self._delete, name)) for name in names}

    def _delete(self, name: str, _timeout_s: float = 0.0) -> None:
        self.deleted.append(name)
        if name.startswith("harvest."):
            raise TimeoutError
        if name != "scratch":
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))


def test_all_that_was_made_in_kafka_goes_though_it_failed_and_is_not_all_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = Admin()
    monkeypatch.setattr(benchmark, "make_client", lambda *_: admin)
    made = scratch_config(parse(OURS), "mark", "scratch")
    with pytest.raises(StoreUnavailable), benchmark._topic(made, "scratch", Work()):
        raise StoreUnavailable("no table")
    topics = ["scratch", "scratch.marshal", "scratch.marshal.snapshots"]
    groups = [f"harvest.{made.sink_name}", f"harvest.{made.shard_sink_name(0)}"]
    assert admin.deleted == topics + groups

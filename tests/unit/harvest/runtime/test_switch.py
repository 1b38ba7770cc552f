"""What is carried over from one configuration to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.core.interfaces.range_store import Bounds
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.range_checkpoint import Position
from harvest.core.shards import shard_of
from harvest.core.source import Registration, Source
from harvest.core.wal_position import WalPosition
from harvest.errors import (
    ConfigurationError,
    DatabaseChanged,
    SinkUnavailable,
    StoreUnavailable,
)
from harvest.outbox.record import OutboxRecord
from harvest.runtime import registration as module
from harvest.runtime.registration import Switch, check_registration, switch
from harvest.runtime.slot_changes import Left
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\n"
)


@pytest.mark.parametrize("page", [1, 3, 100])
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_range_mode_has_published_is_deleted_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, page: int, dry_run: bool
) -> None:
    table = MemoryTable()
    for n in range(40):
        table.insert(OutboxRecord("t", f"key {n % 7}", "v"))
        if n % 5 == 0:
            table.begin().insert(OutboxRecord("t", "late", "v"))
    positions = [Position(1, 0, 2, 30, ((3, 3), (10, 14))), Position(1, 1, 2, 17, ((5, 6),))]
    monkeypatch.setattr(module, "_PAGE", page)
    monkeypatch.setattr(module, "make_store", lambda _: MemoryMarkStore(table))
    monkeypatch.setattr(
        module, "make_range_store", lambda _, shard: MemoryRangeStore(table, shard, 2)
    )
    rows = {row[0]: row[2] for row in MemoryRangeStore(table).read(0, 100).rows}
    published = set()
    for id, key in rows.items():
        position = positions[shard_of(key, 2)]
        if id <= position.last_id and not any(a <= id <= b for a, b in position.gaps):
            published.add(id)
    found: list[Position | None] = [*positions]
    assert module._delete_published(CONFIG, found, dry_run=dry_run) == len(published)
    assert set(rows) - set(table.committed) == (set() if dry_run else published)


def test_who_has_no_checkpoint_has_published_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MemoryTable()
    table.insert(OutboxRecord("t", "k", "v"))
    monkeypatch.setattr(module, "make_store", lambda _: MemoryMarkStore(table))
    assert module._delete_published(CONFIG, [None], dry_run=False) == 0
    assert len(table.committed) == 1


class Store:
    """Where the configuration is registered that comes before `CONFIG`; it notes what is called."""

    def __init__(self, found: Registration | None = None) -> None:
        self.calls: list[str] = []
        topic = CONFIG.coordination.topic
        self.found = found or Registration("c", topic, "another", "mark")

    def registration(self) -> Registration:
        return self.found

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """What is called in the database and in Kafka, in one list."""
    made = Store()

    def carry_over(*_: object, dry_run: bool) -> Switch:
        del dry_run
        made.calls.append("carry over")
        return Switch(made.found, made.found)

    @contextlib.contextmanager
    def alone(config: ReaperConfig, shards: int) -> Iterator[None]:
        made.calls.append(f"claim {config.group} {shards}")
        yield
        made.calls.append(f"release {config.group}")

    for name in (
        "check_source",
        "_check_visit",
        "_refuse_half_sent",
        "refuse_dead_letters",
        "drop_slot",
    ):
        said = name.strip("_").replace("_", " ")
        monkeypatch.setattr(module, name, lambda *_, said=said: made.calls.append(said))
    monkeypatch.setattr(module, "keep_source", lambda *_: made.calls.append("keep source"))
    monkeypatch.setattr(module, "make_any_store", lambda _: made)
    monkeypatch.setattr(module, "_cluster_id", lambda _: "c")
    monkeypatch.setattr(module, "alone", alone)
    monkeypatch.setattr(module, "Checkpoints", lambda _: made)
    monkeypatch.setattr(module, "_carry_over", carry_over)
    return made


def test_who_was_interrupted_is_not_registered(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """Else the new configuration would publish again what was not carried over."""

    def interrupted(*_: object, **__: object) -> None:
        store.calls.append("carry over")
        raise StoreUnavailable("no")

    monkeypatch.setattr(module, "_carry_over", interrupted)
    with pytest.raises(StoreUnavailable):
        switch(CONFIG)
    assert store.calls == [
        "connect",
        "claim another 1",
        "claim g 1",
        "fence",
        "check source",
        "carry over",
        "close",
    ]


def test_a_switch_is_made_while_nobody_harvests_with_either(store: Store) -> None:
    switch(CONFIG)
    assert store.calls == [
        "connect",
        "claim another 1",
        "claim g 1",
        "fence",
        "check source",
        "carry over",
        "register_anew",
        "keep source",
        "release g",
        "release another",
        "close",
    ]


def test_a_dry_run_shuts_nobody_out_and_registers_nobody(store: Store) -> None:
    switch(CONFIG, dry_run=True)
    assert store.calls == [
        "connect",
        "claim another 1",
        "check source",
        "carry over",
        "release another",
        "close",
    ]


def test_a_slot_is_dropped_once_the_next_mode_is_registered(store: Store) -> None:
    store.found = replace(store.found, mode="wal")
    switch(CONFIG)
    last = store.calls.index("carry over")
    assert store.calls[last:][:4] == ["carry over", "register_anew", "keep source", "drop slot"]
    assert "check source" not in store.calls
    assert store.calls.index("check visit") < last, "what an old copy lost would be deleted"
    store.calls.clear()
    switch(CONFIG, dry_run=True)
    assert "drop slot" not in store.calls


def test_who_was_interrupted_before_the_slot_was_dropped_drops_it(store: Store) -> None:
    store.found = CONFIG.registration("c")
    old = CONFIG.model_copy(update={"mode": "wal"})
    for dry_run in (True, False):
        assert switch(CONFIG, old=old, dry_run=dry_run) == Switch(store.found, store.found)
        assert store.calls.count("drop slot") == (not dry_run)
    switch(CONFIG)
    assert store.calls.count("drop slot") == 1


@pytest.mark.parametrize(
    ("mode", "looked_at"), [("relay", "refuse half sent"), ("mark", "check source")]
)
def test_what_only_a_relay_knows_is_looked_at(store: Store, mode: str, looked_at: str) -> None:
    store.found = replace(store.found, mode=mode)
    switch(CONFIG)
    assert store.calls.index(looked_at) < store.calls.index("carry over")
    assert ("refuse half sent" in store.calls) is (mode == "relay")


def test_rows_that_are_aside_are_no_way_into_wal_mode(store: Store) -> None:
    switch(CONFIG.model_copy(update={"mode": "wal"}))
    assert store.calls.index("refuse dead letters") < store.calls.index("carry over")
    assert "connect" not in store.calls, "wal mode asks less of the table"


def test_another_cluster_is_refused_before_anybody_is_shut_out(store: Store) -> None:
    store.found = replace(store.found, cluster="other")
    with pytest.raises(ConfigurationError, match="cluster 'other' and not 'c'"):
        switch(CONFIG)
    assert store.calls == ["connect", "close"]


def test_nobody_is_switched_from_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "registration", lambda: None)
    with pytest.raises(ConfigurationError, match="nobody is registered"):
        switch(CONFIG)
    assert store.calls == ["connect", "close"]


@pytest.mark.parametrize(
    ("found", "refused"),
    [
        ({}, False),
        ({"group": "another"}, True),
        ({"mode": "range"}, True),
        ({"topic": "another"}, True),
        ({"cluster": "another"}, True),
    ],
)
def test_another_configuration_than_the_registered_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], refused: bool
) -> None:
    monkeypatch.setattr(module, "_cluster_id", lambda _: "c")
    asked: list[Registration] = []

    class Registered:
        def register(self, ours: Registration) -> Registration:
            asked.append(ours)
            return replace(ours, **found)

    registered: Any = Registered()
    refusal = pytest.raises(ConfigurationError, match="harvest switch")
    with refusal if refused else contextlib.nullcontext():
        check_registration(CONFIG, registered)
    assert asked == [CONFIG.registration("c")]


def test_the_mark_of_a_dry_run_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint(1, Term.of(1), 0, 1, 2)
    store, kafka = Store(), SimpleNamespace(read_mark=lambda: checkpoint)
    monkeypatch.setattr(module, "make_store", lambda _: store)
    monkeypatch.setattr(module, "Checkpoints", lambda _: kafka)
    module._clear(CONFIG, dry_run=True)
    assert store.calls == []
    module._clear(CONFIG, dry_run=False)
    assert store.calls == ["clear", "close"]


class Kafka:
    """What is written of positions."""

    def __init__(self) -> None:
        self.written: list[tuple[list[Position], int]] = []
        self.marks: list[Checkpoint] = []

    def write(self, positions: Sequence[Position], *, fence: int) -> None:
        self.written.append((list(positions), fence))

    def write_mark(self, checkpoint: Checkpoint) -> None:
        self.marks.append(checkpoint)


RANGES = CONFIG.model_copy(update={"mode": "range", "shards": 2})
THERE = Registration("c", "t", "another", "range")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    made = Kafka()
    monkeypatch.setattr(module, "Checkpoints", lambda _: made)
    return made


@pytest.mark.parametrize("dry_run", [True, False])
def test_range_mode_goes_on_at_its_positions_in_another_group(
    monkeypatch: pytest.MonkeyPatch, kafka: Kafka, dry_run: bool
) -> None:
    table = MemoryTable()
    table.insert(*[OutboxRecord("t", "k", "v") for _ in range(9)])
    monkeypatch.setattr(module, "make_range_store", lambda _: MemoryRangeStore(table, 0, 2))
    positions = [Position(1, 0, 2, 7), None]
    done = module._rename(RANGES, RANGES, THERE, THERE, positions, dry_run=dry_run)
    assert done.last_id == 7
    assert kafka.written == [([Position(1, 0, 2, 7)], 2)] * (not dry_run)
    low, high = Position(1, 1, 2, 3), Position(1, 0, 2, 7)
    left, at_most = (MemoryRangeStore(table, 0, 2).backlog(p).rows for p in (high, low))
    assert left < at_most
    done = module._rename(RANGES, RANGES, THERE, THERE, [high, low], dry_run=True)
    assert (done.last_id, done.waiting) == (3, at_most)
    fewer = RANGES.model_copy(update={"shards": 1})
    with pytest.raises(ConfigurationError, match="write shards: 2 to switch"):
        module._rename(RANGES, fewer, THERE, THERE, positions, dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [True, False])
def test_range_mode_begins_with_the_first_row(
    monkeypatch: pytest.MonkeyPatch, kafka: Kafka, dry_run: bool
) -> None:
    table = MemoryTable()
    table.insert(*[OutboxRecord("t", "k", "v") for _ in range(9)])
    monkeypatch.setattr(module, "make_range_store", lambda _: MemoryRangeStore(table, 0, 2))
    done = module._begin(RANGES, THERE, THERE, 4, dry_run=dry_run)
    assert (done.deleted, done.last_id) == (4, 0)
    assert done.waiting == (5 if dry_run else 9), "in a dry run, they are not deleted yet"
    begun = [Position(0, 0, 2, 0), Position(0, 1, 2, 0)]
    assert kafka.written == [(begun, 2)] * (not dry_run)
    assert list(table.saved.values()) == begun * (not dry_run)
    assert table.shards == (None if dry_run else 2)


@pytest.mark.parametrize("dry_run", [True, False])
def test_mark_mode_begins_with_a_checkpoint_that_names_no_row(
    monkeypatch: pytest.MonkeyPatch, kafka: Kafka, dry_run: bool
) -> None:
    """The group may have one of earlier days, which says that rows with these ids are published."""
    table = MemoryTable()
    table.insert(*[OutboxRecord("t", "k", "v") for _ in range(9)])
    store = MemoryMarkStore(table)
    term = Term.of(1)
    store.mark(term, 0, 3, 1_000.0)
    monkeypatch.setattr(module, "make_store", lambda _: store)
    done = module._begin(CONFIG, THERE, THERE, 4, dry_run=dry_run)
    assert (done.deleted, done.last_id) == (4, None)
    assert done.waiting == (5 if dry_run else 9), "in a dry run, they are not deleted yet"
    assert [store.clear(checkpoint) for checkpoint in kafka.marks] == [0] * (not dry_run)


@pytest.mark.parametrize("was_left", [True, False])
def test_wal_mode_that_was_left_before_an_interruption_is_not_left_again(
    monkeypatch: pytest.MonkeyPatch, *, was_left: bool
) -> None:
    """What is in the table then is the next mode's, and the slot has all that was published."""
    marked = Checkpoint(0, Term.of(1), 0, 1, 0).encode()
    found = marked if was_left else WalPosition(1, "s", 1, 100).encode()
    done: list[str | None] = []

    def leave(_: object, found: str, *, dry_run: bool) -> Left:
        assert not dry_run
        done.append(found)
        return Left(3, 2)

    def begin(*given: Any, dry_run: bool) -> Switch:
        assert not dry_run
        return Switch(THERE, THERE, given[-1])

    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(text=lambda: found))
    monkeypatch.setattr(module, "leave_slot", leave)
    monkeypatch.setattr(module, "_begin", begin)
    its = replace(THERE, mode="wal")
    switched = module._carry_over(CONFIG, CONFIG, its, THERE, dry_run=False)
    assert (switched.published, switched.deleted) == ((0, 0) if was_left else (3, 2))
    assert done == ([] if was_left else [found])


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_slot_that_was_made_before_an_interruption_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:
    """The rows of the table are published by then: they would be once more."""
    done: list[str] = []

    def clear(_: object, *, dry_run: bool) -> int:
        done.append(f"clear {dry_run}")
        return 2

    def begin(_: object) -> int:
        done.append("begin")
        return 7

    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(text=lambda: "there"))
    monkeypatch.setattr(module, "goes_on", lambda _, found: goes_on and found == "there")
    monkeypatch.setattr(module, "_clear", clear)
    monkeypatch.setattr(module, "begin_slot", begin)
    marks, wal = replace(THERE, mode="mark"), CONFIG.model_copy(update={"mode": "wal"})
    switched = module._carry_over(CONFIG, wal, marks, THERE, dry_run=False)
    assert (switched.deleted, switched.waiting) == ((0, 0) if goes_on else (2, 7))
    assert done == ([] if goes_on else ["clear False", "begin"])


@pytest.mark.parametrize("has_table", [True, False])
def test_a_dry_run_into_wal_mode_says_which_rows_would_be_left(
    monkeypatch: pytest.MonkeyPatch, *, has_table: bool
) -> None:
    closed: list[str] = []
    source = SimpleNamespace(
        has_table=lambda: has_table,
        count_rows=lambda _: 9,
        close=lambda: closed.append("source"),
    )
    deleted = 2 if has_table else 0
    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(text=lambda: "there"))
    monkeypatch.setattr(module, "goes_on", lambda *_: False)
    monkeypatch.setattr(module, "_clear", lambda _, *, dry_run: deleted * dry_run)
    monkeypatch.setattr(module, "begin_slot", lambda _: pytest.fail("it is made"))
    monkeypatch.setattr(module, "make_wal_source", lambda _: source)
    marks, wal = replace(THERE, mode="mark"), CONFIG.model_copy(update={"mode": "wal"})
    switched = module._carry_over(CONFIG, wal, marks, THERE, dry_run=True)
    assert (switched.deleted, switched.waiting) == ((2, 7) if has_table else (0, 0))
    assert closed == ["source"]


def test_a_kafka_that_cannot_be_reached_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "down"))

    monkeypatch.setattr(module, "make_client", lambda *_: SimpleNamespace(list_topics=fail))
    with pytest.raises(SinkUnavailable, match="Kafka cannot be reached: down"):
        module._cluster_id(CONFIG)


def test_rows_that_some_destinations_have_keep_a_relay_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []
    settled: list[int] = []
    attempts = SimpleNamespace(settled=lambda: settled, close=lambda: closed.append("closed"))
    tables = SimpleNamespace(attempts=lambda _: attempts)
    monkeypatch.setattr(module, "database", lambda _: tables)
    module._refuse_half_sent(CONFIG)
    settled.append(7)
    with pytest.raises(ConfigurationError, match="1 rows are at some of their destinations"):
        module._refuse_half_sent(CONFIG)
    assert closed == ["closed"] * 2


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("position", [None, WalPosition(1, "s", 1, 200)])
def test_in_wal_mode_position_and_visit_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, position: WalPosition | None, is_old: bool
) -> None:
    """The position alone does not tell an old copy whose log has grown past it."""
    config = CONFIG.model_copy(update={"mode": "wal"})
    known, now = Source("s", 1, 500, visit=5), Source("s", 1, 900, visit=4 if is_old else 6)
    began: list[WalPosition] = []
    closed: list[str] = []
    registered = SimpleNamespace(
        registration=lambda: config.registration("c"), close=lambda: closed.append("table")
    )
    slot = SimpleNamespace(
        begin=began.append, source=lambda: now, end_of=lambda _: 900, close=lambda: None
    )
    record = SimpleNamespace(load=lambda: known, close=lambda: closed.append("record"))
    monkeypatch.setattr(module, "_cluster_id", lambda _: "c")
    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(wal=lambda: position))
    monkeypatch.setattr(module, "make_any_store", lambda _: registered)
    monkeypatch.setattr(module, "make_wal_source", lambda _: slot)
    monkeypatch.setattr(module, "make_record", lambda _: record)
    refusal = pytest.raises(DatabaseChanged, match="gone back in time")
    with refusal if is_old else contextlib.nullcontext():
        module.check_source(config)
    assert began == ([] if position is None else [position])
    closed.clear()
    assert [f.level for f in module.check_database(config)] == ["ok", "error"][: 1 + is_old]
    assert sorted(closed) == ["record", "record", "table"], "each that was opened"


def test_a_position_that_moves_on_meanwhile_is_not_above_all_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`harvest check` looks while others harvest, and would call the database another one."""
    drawn = 5

    def read(shard: int) -> Position:
        nonlocal drawn
        drawn += 10
        return Position(1, shard, 2, drawn)

    store = SimpleNamespace(bounds=lambda: Bounds(1, drawn), close=lambda: None)
    monkeypatch.setattr(module, "make_range_store", lambda _: store)
    monkeypatch.setattr(module, "Checkpoints", lambda _: SimpleNamespace(read=read))
    assert module._ids_problem(RANGES) is None
    store.bounds = lambda: Bounds(1, drawn - 1)
    assert module._ids_problem(RANGES) is not None

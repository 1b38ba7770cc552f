"""A guard lets nothing be published from a database that is not the one it was."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest.core.source import Registration, Source
from harvest.errors import DatabaseChanged
from harvest.runtime.source_guard import SourceGuard
from harvest.testing.memory_table import MemoryMarkStore, MemoryTable

OURS = Registration("", "t", "g", "mark")


class Kafka:
    """Keeps the source."""

    def __init__(self) -> None:
        self.source: Source | None = None
        self.waited: list[bool] = []

    def load(self) -> Source | None:
        return self.source

    def save(self, source: Source, *, wait: bool = False) -> None:
        self.waited.append(wait)
        self.source = source

    def close(self) -> None: ...


class Store(MemoryMarkStore):
    """With a log, and a replica that may have been promoted."""

    promoted: int | None = None

    def promoted_at(self) -> int | None:
        return self.promoted

    def log_end(self) -> int:
        return self.table.source.log


def registered() -> Store:
    store = Store(MemoryTable())
    store.register(OURS)
    return store


def guard(store: Store, kafka: Kafka, ours: Registration = OURS) -> SourceGuard:
    return SourceGuard(store, kafka, ours, exact=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [1_000.0]
    monkeypatch.setattr("harvest.runtime.source_guard.time.monotonic", lambda: now_s[0])
    return now_s


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_no_term_begins_on_a_database_that_went_back_past_a_visit(seed: int) -> None:
    rnd = random.Random(seed)
    kafka, store = Kafka(), registered()
    backups: list[Source] = []
    for _ in range(rnd.randint(1, 30)):
        if rnd.random() < 0.3:
            backups.append(store.table.source)
        elif rnd.random() < 0.7 or not backups:
            guard(store, kafka).begin()
        else:
            newest = store.table.source
            store.table.source = rnd.choice(backups)
            if rnd.random() < 0.5:  # and others have visited it since, without our Kafka
                for _ in range(newest.visit - store.table.source.visit):
                    store.visit("other")
            if store.table.source == newest:
                continue
            with pytest.raises(DatabaseChanged):
                guard(store, kafka).begin()
            store.table.source = newest


def test_a_term_begins_only_with_the_registered_configuration() -> None:
    kafka, store = Kafka(), registered()
    guard(store, kafka).begin()
    with pytest.raises(DatabaseChanged, match="two configurations"):
        guard(store, kafka, replace(OURS, mode="range")).begin()


def test_a_term_registers_nobody_since_it_does_not_know_the_cluster() -> None:
    kafka, store = Kafka(), Store(MemoryTable())
    with pytest.raises(DatabaseChanged, match="nobody is registered any more"):
        guard(store, kafka).begin()
    assert store.registration() is None


def test_what_happens_during_a_term_is_seen_when_it_is_time_to_look(clock: list[float]) -> None:
    kafka, store = Kafka(), registered()
    looking = guard(store, kafka)
    looking.begin()
    fitting = store.table.source
    store.table.source = replace(fitting, server="another")
    assert not looking.look()
    clock[0] += 6
    with pytest.raises(DatabaseChanged, match="another server"):
        looking.look()
    store.table.source = fitting
    assert looking.look()
    store.register_anew(replace(OURS, group="h"))
    clock[0] += 6
    with pytest.raises(DatabaseChanged, match="was changed by `harvest switch`"):
        looking.look()


def test_an_idle_database_is_looked_at_now_and_then(clock: list[float]) -> None:
    """And not before each question, of which there are many in a second."""
    looking = guard(registered(), Kafka())
    looking.begin()
    looks = []
    for _ in range(12):
        clock[0] += 1
        looks.append(looking.look())
    assert [n for n, looked in enumerate(looks, 1) if looked] == [5, 10]


@pytest.mark.parametrize(
    ("checkpoint", "has_gone_back"),
    [((1, 900), False), ((2, 150), False), ((2, 151), True), ((3, 10), True)],
)
def test_a_checkpoint_rests_on_a_timeline_and_on_a_place_in_it(
    checkpoint: tuple[int, int], *, has_gone_back: bool
) -> None:
    """A place of an earlier timeline says nothing once Kafka has heard of a later one."""
    kafka, store = Kafka(), registered()
    now = store.table.source = replace(store.table.source, timeline=2, log=150)
    kafka.source = replace(now, log=100)
    refused = pytest.raises(DatabaseChanged) if has_gone_back else nullcontext()
    with refused:
        guard(store, kafka).begin(checkpoint)


def test_no_copy_of_a_position_is_written_into_a_database_that_went_back() -> None:
    store = registered()
    backup = replace(store.table.source, timeline=1)
    watching = guard(store, Kafka())
    assert not watching.fits(store), "the term has not begun"
    store.table.source = backup
    watching.begin()
    assert watching.fits(store)
    begun = store.table.source
    for changed in (backup, replace(begun, timeline=2), replace(begun, server="another")):
        store.table.source = changed
        assert not watching.fits(store)


def test_kafka_hears_of_a_visit_while_rows_are_seen(clock: list[float]) -> None:
    kafka, store = Kafka(), registered()
    looking = guard(store, kafka)
    looking.begin()
    clock[0] += 6
    assert looking.look()
    assert kafka.source is not None
    assert kafka.source.visit == 1, "nothing was seen"
    looking.saw(store)
    clock[0] += 6
    assert looking.look()
    assert kafka.source.visit == store.table.source.visit == 2


def test_kafka_forgets_no_database_of_an_outbox_that_is_idle(clock: list[float]) -> None:
    kafka, store = Kafka(), registered()
    looking = guard(store, kafka)
    looking.begin()
    visits = []
    for later_s in (3_594, 3_601, 3_607):
        clock[0] = 1_000.0 + later_s
        assert looking.look()
        visits.append(store.table.source.visit)
    assert visits == [1, 2, 2]
    assert kafka.source == store.table.source


def test_a_promoted_replica_is_accepted_if_it_had_what_the_checkpoint_rests_on() -> None:
    kafka, store = Kafka(), registered()
    store.table.source = Source("memory", 1, 100)
    first = guard(store, kafka)
    first.begin()
    store.table.source = replace(store.table.source, log=250)
    first.saw(store)
    assert first.log_position == (1, 250)
    store.table.source = replace(store.table.source, timeline=2, log=300)
    store.promoted = 249
    with pytest.raises(DatabaseChanged, match="a replica was promoted"):
        guard(store, kafka).begin(first.log_position)
    store.promoted = 250
    guard(store, kafka).begin(first.log_position)


def test_another_shards_visit_between_the_looks_is_no_way_back_in_time() -> None:
    """Kafka is asked before the database: what it knows of was in the database before."""
    asked: list[str] = []

    class Asked(Kafka):
        def load(self) -> Source | None:
            asked.append("kafka")
            return super().load()

    class Watched(Store):
        def source(self) -> Source:
            asked.append("database")
            return super().source()

    store = Watched(MemoryTable())
    store.register(OURS)
    guard(store, Asked()).begin()
    assert asked == ["kafka", "database"]


def test_rows_that_came_under_ids_given_again_do_not_hide_the_row_before_them(
    clock: list[float],
) -> None:
    """All within two looks: rows are read, ids begin anew, and new rows pass the position."""
    kafka, store = Kafka(), registered()
    leader = guard(store, kafka)
    leader.begin()
    leader.saw(store, (8, "before"))
    leader.saw(store, (17, "after"))
    assert leader.rows == [(8, "before"), (17, "after")]
    clock[0] += 6
    assert leader.look()
    successor = guard(store, kafka)  # who leads when the rows did not fit
    successor.begin()
    assert successor.rows == [(8, "before")] * 2
    leader.rows_fit()
    leader.saw(store, (18, "later"))
    leader.close()
    successor.begin()
    assert successor.row == (18, "later")


@pytest.mark.parametrize("asked", ["log_end", "visit"])
def test_what_another_thread_sees_while_the_database_is_asked_is_not_forgotten(
    asked: str, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Purges have a thread of their own. A checkpoint that rests on less of the log than was seen
    would fit a replica that lacks the purge, and what was purged would be published again."""
    kafka, store = Kafka(), registered()
    looking = guard(store, kafka)
    looking.begin()
    purger = Store(store.table)
    ask = getattr(store, asked)

    def slowly(*given: str) -> object:
        answer = ask(*given)
        store.table.source = replace(store.table.source, log=50)
        looking.saw(purger)
        return answer

    monkeypatch.setattr(store, asked, slowly)
    looking.saw(store) if asked == "log_end" else looking.saw(purger)
    clock[0] += 6
    if asked == "visit":
        assert looking.look()
    assert looking.log_position == (store.table.source.timeline, 50)


def test_a_term_rests_on_the_log_of_the_database_that_it_began_with(clock: list[float]) -> None:
    """Not on that of another one, which somebody has accepted since."""
    del clock
    kafka, store = Kafka(), registered()
    looking = guard(store, kafka)
    looking.begin()
    store.table.source = replace(store.table.source, log=50)
    looking.saw(store)
    kafka.source = None
    store.table.source = replace(store.table.source, log=10)
    looking.begin()
    assert looking.log_position == (store.table.source.timeline, 10)


@pytest.mark.parametrize("when", ["it looks", "it ends"])
def test_who_was_paused_takes_nothing_back_that_was_accepted_meanwhile(
    clock: list[float], when: str
) -> None:
    """The database was moved, and the new one accepted: what the old one was is no news to Kafka,
    and no successor's next term may be refused for it."""
    kafka, old, new = Kafka(), registered(), registered()
    lease: Any = SimpleNamespace(held=True)
    paused = guard(old, kafka)
    paused.lease = lease
    paused.begin()
    paused.saw(old)
    lease.held = False
    new.table.source = replace(new.table.source, server="another")
    kafka.source = accepted = new.visit("accepted")
    if when == "it looks":
        clock[0] += 6
        assert paused.look()
    else:
        paused.close()
    assert kafka.source == accepted
    guard(new, kafka).begin()


def test_who_leads_to_its_end_tells_what_it_saw_last() -> None:
    kafka, store = Kafka(), registered()
    lease: Any = SimpleNamespace(held=True)
    leader = guard(store, kafka)
    leader.lease = lease
    leader.begin()
    leader.saw(store, (18, "last"))
    leader.close()
    assert kafka.source is not None
    assert (kafka.source.row_id, kafka.source.row) == (18, "last")
    assert kafka.waited == [False, True], "what is under way when a client is closed may be lost"


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_look_knows_what_was_seen_since_the_last_visit(
    clock: list[float], is_promoted: bool
) -> None:
    """Published rows that are not in it would come again, or their ids for others."""
    kafka, store = Kafka(), registered()
    looking = guard(store, kafka)
    looking.begin()
    begun = store.table.source
    store.table.source = replace(begun, log=begun.log + 90)
    looking.saw(store)
    store.table.source = replace(begun, log=begun.log + 70)
    if is_promoted:
        store.promoted = begun.log + 80
        store.table.source = replace(begun, timeline=begun.timeline + 1, log=begun.log + 95)
    clock[0] += 6
    with pytest.raises(DatabaseChanged, match="a replica was promoted" if is_promoted else "back"):
        looking.look()

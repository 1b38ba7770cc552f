"""A leader in range mode: its sink, its checkpoints and their copies (specs/HARVEST.md §14)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core import range as r
from harvest.core.failure import Failure
from harvest.core.interfaces.range_store import Window
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.errors import (
    CheckpointError,
    ConfigurationError,
    DatabaseChanged,
    HarvestError,
    SinkUnavailable,
    StoreUnavailable,
)
from harvest.outbox.record import OutboxRecord
from harvest.runtime import range_leader as module
from harvest.runtime.leadership import Leadership
from harvest.runtime.range_leader import RangeLeader, RangeTools, check_layout
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from harvest.testing.memory_range_store import MemoryRangeStore
from harvest.testing.memory_table import MemoryTable
from tests.unit.harvest.runtime.test_harvester import FakeLease

WAIT_S = 60.0


class Lease:
    epoch = 7
    remaining_ms = 1_000.0

    def __init__(self, *held: bool) -> None:
        self._answers = list(held)

    @property
    def held(self) -> bool:
        return self._answers.pop(0)


class Sink:
    """Notes whether it was opened, and what it was told of the lease."""

    def __init__(self, checkpoint: str | None = None) -> None:
        self.checkpoint = checkpoint
        self.told: list[bool] = []

    def open(self, still_held: Callable[[], bool]) -> str | None:
        self.told.append(still_held())
        return self.checkpoint


class Store:
    def cancel(self) -> None: ...


def leader(lease: Lease, sink: Sink) -> RangeLeader:
    given: Any = lease
    store: Any = Store()
    takes: Any = sink
    return RangeLeader(Leadership(given), RangeTools(store, store, takes))


def test_who_has_lost_the_lease_during_the_back_off_does_not_open() -> None:
    sink = Sink()
    assert leader(Lease(False), sink).publisher.open(r.Open(0)) == r.LeaseLost()
    assert sink.told == []


def test_a_sink_that_opens_slowly_hears_that_the_lease_is_lost() -> None:
    sink = Sink()
    assert leader(Lease(True, False), sink).publisher.open(r.Open(0)) == r.Opened(None)
    assert sink.told == [False]


class Guard:
    """Of a database that is the one it was, or is not."""

    log_position = 3, 700
    rows: tuple[tuple[int, str], ...] = ()

    def __init__(self, *, is_same: bool = True) -> None:
        self.is_same = is_same
        self.calls: list[Any] = []

    def fits(self, store: object) -> bool:
        del store
        return self.is_same

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


class Rig:
    """A leader whose threads are not begun, on a table in memory."""

    def __init__(self, shard: int = 0, shards: int = 1, **given: Any) -> None:
        self.table = MemoryTable()
        self.lease = FakeLease(7)
        self.leadership = Leadership(self.lease)
        self.store = MemoryRangeStore(self.table, shard, shards)
        sink = MemorySink(MemoryBroker())
        self.tools = RangeTools(self.store, self.store, sink, shard=shard, shards=shards, **given)
        self.leader = RangeLeader(self.leadership, self.tools)

    def insert(self, count: int) -> None:
        self.table.insert(*[OutboxRecord("t", "k", "v") for _ in range(count)])

    def reported(self) -> list[Any]:
        events = self.leadership._events
        return [events.get_nowait() for _ in range(events.qsize())]


def sends(*last_ids: int) -> list[r.Send]:
    row = Row(1, "t", b"k", b"v")
    return [r.Send(n, [row], Position(7, 0, 1, last)) for n, last in enumerate(last_ids, 1)]


def test_only_what_was_delivered_is_committed() -> None:
    """A copy that is ahead of Kafka would have rows be skipped by whoever restores it."""
    rig = Rig()
    assert rig.leader._settled(sends(5, 9), Failure("no")) == r.Settled((1, 2), Failure("no"))
    assert rig.leader._committed is None
    assert rig.leadership.stats.published == 0
    assert rig.leader._settled(sends(5, 9), None) == r.Settled((1, 2), None)
    assert rig.leader._committed == Position(7, 0, 1, 9)
    assert rig.leadership.stats.published == 2


def test_of_several_copies_the_last_is_saved() -> None:
    rig = Rig()
    rig.leader._save([Position(7, 0, 1, 5), Position(7, 0, 1, 9)])
    assert rig.store.saved() == [Position(7, 0, 1, 9)]


def test_a_copy_that_cannot_be_saved_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.store.fail_next = True
    rig.leader._save([Position(7, 0, 1, 5)])
    assert "the copy of the checkpoint could not be written" in caplog.text
    assert rig.store.saved() == []


def test_a_copy_that_could_not_be_saved_is_saved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing has been committed since: by the copies the backlog is counted."""
    now_s = [10_000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    rig = Rig()
    rig.leader._opened(Position(7, 0, 1, 5).encode())
    rig.store.fail_next = True
    saving = rig.leader._saving
    saving.start(rig.leadership.report)
    found: list[tuple[bool, int]] = []
    for after_s, state in ((0.0, "opening"), (2.0, "running"), (4.0, "running"), (14.0, "running")):
        now_s[0] = 10_000.0 + after_s
        rig.leader.scheduler.state = r.State(state)
        rig.leader.every_tick()
        assert saving.wait_idle(WAIT_S)
        found.append((rig.store.fail_next, len(rig.store.saved())))
    assert found == [(True, 0), (False, 0), (False, 0), (False, 1)]
    assert saving.close(WAIT_S)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_database_that_went_back_keeps_its_copy(is_same: bool) -> None:
    rig = Rig(guard=Guard(is_same=is_same))
    rig.leader._save([Position(7, 0, 1, 5)])
    assert len(rig.store.saved()) == is_same


def test_a_checkpoint_says_what_it_rests_on() -> None:
    (send,) = sends(5)
    assert Position.decode(Rig().leader._checkpoint(send)) == send.position
    found = Position.decode(Rig(guard=Guard()).leader._checkpoint(send))
    assert (found.last_id, found.timeline, found.log) == (5, 3, 700)


@pytest.mark.parametrize(
    ("found", "rests_on"),
    [(None, (0, 0)), (Position(7, 0, 1, 5, timeline=3, log=700), (3, 700))],
)
def test_a_term_begins_with_what_its_checkpoint_rests_on(
    found: Position | None, rests_on: tuple[int, int]
) -> None:
    """A failover that lost what was published since the last visit is seen by nothing else."""
    guard = Guard()
    rig = Rig(guard=guard)
    rig.insert(9)
    rig.leader._opened(None if found is None else found.encode())
    rig.leader._asked(r.CheckTable(found))
    assert ("begin", rests_on) in guard.calls


def test_the_guard_hears_of_rows_that_come_late() -> None:
    """As of all others: a failover may lose them, too."""
    guard = Guard()
    rig = Rig(guard=guard)
    rig.insert(3)
    assert len(rig.leader._asked(r.Fetch([(2, 2)])).rows) == 1  # type: ignore[union-attr]
    assert ("saw", rig.store) in guard.calls


def test_who_leads_no_more_looks_after_no_partitions(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fail() -> None:
        done.append("maintained")
        raise StoreUnavailable("no")

    rig = Rig(maintain=fail)
    rig.leader._maintain([None])
    assert "the partitions could not be looked after: no" in caplog.text
    rig.lease.lost.set()
    rig.leader._maintain([None])
    assert done == ["maintained"]


def test_what_is_done_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [10_000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    rig = Rig(maintain=lambda: None)
    saved: list[Position] = []
    maintained: list[float] = []
    leader: Any = rig.leader
    leader._saving = SimpleNamespace(put=saved.append)
    leader._maintenance = SimpleNamespace(put=lambda _: maintained.append(now_s[0]))
    leader.scheduler.state = r.State.RUNNING
    first, second = Position(7, 0, 1, 5), Position(7, 0, 1, 9)

    def at(second_s: float) -> list[r.Refresh]:
        now_s[0] = 10_000.0 + second_s
        rig.leader.every_tick()
        return rig.reported()

    rig.leader._opened(first.encode())
    assert at(0.0) == [r.Refresh(anyway=False)]
    assert saved == [leader._committed] == [first]
    assert at(1.0) == []
    rig.leader._settled(sends(9), None)
    assert at(1.0) == [], "not more than once a second"
    assert saved == [first]
    assert at(1.5) == []
    assert saved == [first, second]
    assert at(2.6) == [r.Refresh(anyway=False)]
    assert saved == [first, second], "nothing new"
    assert at(60.5) == [r.Refresh(anyway=False)]
    assert maintained == [10_000.0, 10_060.5]
    assert at(3_602.0) == [r.Refresh(anyway=True)], "Kafka would forget it"


@pytest.mark.parametrize("state", list(r.State))
def test_no_partition_is_dropped_before_the_database_is_known_to_be_the_one_it_was(
    state: r.State,
) -> None:
    """The positions are of ids: in a table that was emptied, or restored, these are other rows."""
    rig = Rig(maintain=lambda: None)
    leader: Any = rig.leader
    maintained: list[None] = []
    leader._maintenance = SimpleNamespace(put=maintained.append)
    leader.scheduler.state = state
    leader.every_tick()
    assert maintained == ([None] if state is r.State.RUNNING else [])


def test_a_checkpoint_of_another_number_of_shards_is_refused() -> None:
    rig = Rig(1, 2)
    with pytest.raises(CheckpointError, match="run `harvest shards 3` again"):
        rig.leader._opened(Position(1, 1, 3, 5).encode())
    rig.leader._opened(Position(1, 1, 2, 5).encode())


def test_without_a_checkpoint_a_copy_of_the_same_shard_is_a_reason_to_stop() -> None:
    rig = Rig(1, 2)
    rig.insert(3)
    rig.store.save(Position(1, 0, 2, 3))
    assert rig.leader._asked(r.CheckTable(None)) == r.TableChecked(rig.store.bounds())
    rig.store.save(Position(1, 1, 2, 2))
    with pytest.raises(CheckpointError, match=r"no checkpoint of shard 1.*copy of one at id 2"):
        rig.leader._asked(r.CheckTable(None))


def test_a_checkpoint_ahead_of_the_table_is_refused() -> None:
    rig = Rig()
    rig.insert(3)
    assert rig.leader._asked(r.CheckTable(Position(1, 0, 1, 3)))
    with pytest.raises(DatabaseChanged, match=r"at id 4.*up to 3 only"):
        rig.leader._asked(r.CheckTable(Position(1, 0, 1, 4)))


def test_a_checkpoint_above_ids_that_wait_in_its_gaps_is_not_ahead() -> None:
    rig = Rig()
    rig.insert(3)
    assert rig.leader._asked(r.CheckTable(Position(1, 0, 1, 9, ((4, 8),))))
    rig.insert(5)
    with pytest.raises(DatabaseChanged, match=r"at id 9.*up to 8 only"):
        rig.leader._asked(r.CheckTable(Position(1, 0, 1, 9, ((4, 8),))))


def test_another_number_of_shards_is_refused_with_the_way_out() -> None:
    rig = Rig(0, 2)
    check_layout(rig.store, 2)
    with pytest.raises(ConfigurationError, match=r"shards is 3.*harvested in 2.*write shards: 2"):
        check_layout(rig.store, 3)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (StoreUnavailable("no"), False),
        (SinkUnavailable("no"), False),
        (CheckpointError("no"), True),
        (ConfigurationError("no"), True),
    ],
)
def test_an_outage_is_asked_again_and_what_would_lose_rows_ends_it(
    error: HarvestError, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()

    def fail() -> None:
        raise error

    monkeypatch.setattr(rig.store, "holders", fail)
    if ends:
        with pytest.raises(type(error)):
            rig.leader._ask([r.AskHolders()])
    else:
        rig.leader._ask([r.AskHolders()])
    assert rig.reported() == [r.AskFailed()] * (not ends)


def test_who_has_no_time_left_does_not_read() -> None:
    guard = Guard()
    rig = Rig(guard=guard)
    rig.insert(3)
    found = rig.leader._read(0, 10, 0)
    assert [row[0] for row in found.window.rows] == [1, 2, 3]
    assert [name for name, *_ in guard.calls] == ["look", "saw"]
    assert guard.lease is rig.lease
    rig.leadership._end_waits()
    assert rig.leader._read(0, 10, 0) == r.ReadDone(Window((), 0))
    assert len(guard.calls) == 2


@pytest.mark.parametrize("now", ["m7", "m8", None])
def test_with_two_databases_a_row_is_known_by_its_message(now: str | None) -> None:
    """Its contents are elsewhere, and say nothing about the primary."""
    messages: dict[int, str | None] = {3: "m7"}
    guard = Guard()
    rig = Rig(guard=guard, message_of=messages.get)
    rig.insert(3)
    rig.leader._read(0, 10, 0)
    assert guard.calls[-1] == ("saw", rig.store, (3, "m7"))
    guard.rows = ((3, "m7"),)
    messages[3] = now
    refusal = pytest.raises(DatabaseChanged, match="ids were given again")
    with refusal if now == "m8" else contextlib.nullcontext():
        rig.leader._check_row()


def test_every_connection_is_closed() -> None:
    closed: list[str] = []

    def one(name: str) -> Any:
        return SimpleNamespace(close=lambda: closed.append(name), cancel=lambda: None)

    tools = RangeTools(
        one("reader"), one("saver"), one("sink"), guard=one("guard"), dead_letters=one("letters")
    )
    tools.close()
    assert sorted(closed) == ["guard", "letters", "reader", "saver", "sink"]

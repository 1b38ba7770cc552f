"""How long a group is paused, and where slots go on, with a log that the test holds."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import group_admin as module
from marshal_py.admin.group_admin import GroupAdmin
from marshal_py.admin.operator import Make
from marshal_py.admin.positions import Change, Extent, Key, Target
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    GroupInUse,
    InvalidArgument,
    TopicMissing,
)
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import ReleaseGroup, ResumeGroup, SetLevel
from marshal_py.protocol.rationalizer import Pause
from marshal_py.protocol.slots import BY_PARTITIONS, slots_cell


class Log:
    """Stands for an `Operator`: a log that has one group."""

    def __init__(self, pause: Pause | None) -> None:
        self.pause = pause
        self.pauses: set[int] = set()
        self.world = SimpleNamespace(group=lambda _: self)
        self.written = 0

    def write_one(self, make: Make, _timeout_s: float) -> None:
        record = make((2, "operator", "i", "g", 0))
        self.written += 1
        if isinstance(record, ReleaseGroup):
            self.pause = Pause(100 + self.written, record.expires_at_ms)
            self.pauses.add(self.pause.version)
        elif isinstance(record, ResumeGroup):
            assert self.pause is not None
            assert self.pause.version == record.expected_version
            self.pause = None


class Operated(GroupAdmin):
    def __init__(self, log: Log) -> None:
        fake: Any = log
        self.group_id, self._log = "g", fake


@pytest.mark.parametrize("snapshots", [None, "elsewhere"])
def test_an_operator_is_who_and_where_was_said(
    monkeypatch: pytest.MonkeyPatch, snapshots: str | None
) -> None:
    operator = mock.Mock()
    monkeypatch.setattr(module, "Operator", operator)
    GroupAdmin(
        "nowhere:1",
        "g",
        topic="log",
        snapshot_topic=snapshots,
        client_id="ann",
        cold_start_skew_ms=None,
        connect_timeout_s=7.0,
    )
    assert operator.call_args == mock.call(
        {"bootstrap.servers": "nowhere:1"},
        "g",
        topic="log",
        snapshot_topic=snapshots or "log.snapshots",
        client_id="ann",
        cold_start_skew_ms=None,
        connect_timeout_s=7.0,
    )


def in_s(seconds: float) -> int:
    return int((time.time() + seconds) * 1000)


@pytest.mark.parametrize("before", [None, Pause(7, in_s(30)), Pause(7, in_s(3_600))])
def test_a_group_is_paused_for_as_long_as_the_block_may_take(before: Pause | None) -> None:
    log = Log(before)
    with Operated(log).while_paused(600):
        assert log.pause is not None
        assert log.pause.expires_at_ms > in_s(300)
    assert (log.pause and log.pause.expires_at_ms) == (before and before.expires_at_ms)
    assert (log.written == 0) == (before is not None and before.expires_at_ms > in_s(600))


def test_what_somebody_else_pauses_meanwhile_stays() -> None:
    log, other = Log(None), Pause(999, in_s(900))
    with Operated(log).while_paused(600):
        log.pause = other
    assert log.pause == other


class Behind(Log):
    """Somebody has paused the group since the log was read last."""

    def probe(self, _timeout_s: float) -> None:
        self.pause = Pause(7, in_s(60))


def test_a_resume_looks_first_what_stands() -> None:
    log = Behind(None)
    Operated(log).resume()
    assert (log.written, log.pause) == (1, None)


class Watched(Log):
    """A log in which clients are heard, one each time that it is read."""

    def __init__(self, *heard: str) -> None:
        super().__init__(None)
        self.alive = {"a"}  # it may have died since
        self.heard = list(heard)

    def probe(self, _timeout_s: float) -> None: ...

    def turn(self) -> None:
        self.alive.add(self.heard.pop(0))

    def is_stale(self, version: int, interval_ms: int) -> bool:
        assert (version, interval_ms) == (5, 1)
        return False


class InUse(Operated):
    """A group in which a, b and one that died hold something, and c is a member."""

    @property
    def _state(self) -> Any:
        return SimpleNamespace(members={"c": SimpleNamespace(version=5, interval_ms=0)})

    def cells(self) -> dict[Key, Any]:
        holders = ["a", None, "b", "died"]
        return {("t", n): SimpleNamespace(holder=name) for n, name in enumerate(holders)}

    def _is_stale(self, key: Key, cell: Any) -> bool:
        return bool(cell.holder == "died")


def test_who_was_heard_uses_a_group_and_the_others_are_not_waited_for() -> None:
    log = Watched("stranger", "died", "b", "a")
    assert InUse(log).in_use_by(600) == ["b"]
    assert log.heard == ["a"]


def test_of_whom_nothing_was_heard_in_time_may_use_a_group() -> None:
    assert InUse(Watched()).in_use_by(0) == ["a", "b", "c"]


class Releasing(Log):
    """A log in which a gives back what it has; that another has died is known after a probe."""

    def __init__(self) -> None:
        super().__init__(None)
        self.holders: dict[Key, str | None] = {("t", 0): "a", ("t", 1): "died"}
        self.is_known = False
        self.turns = 0

    def probe(self, _timeout_s: float) -> None:
        self.is_known = True

    def turn(self) -> None:
        self.turns += 1
        assert self.turns < 5, "it is waited for without end"
        self.holders["t", 0] = None


class Paused(Operated):
    """A group that gives back what it has."""

    def __init__(self, log: Releasing) -> None:
        super().__init__(log)
        self.log = log

    def cells(self) -> dict[Key, Any]:
        return {key: SimpleNamespace(holder=name) for key, name in self.log.holders.items()}

    def _is_stale(self, key: Key, cell: Any) -> bool:
        return self.log.is_known and bool(cell.holder == "died")


def test_releases_are_waited_for_of_the_living_alone() -> None:
    log = Releasing()
    assert Paused(log).await_released(0) == {("t", 0): "a", ("t", 1): "died"}
    assert (log.is_known, log.turns) == (False, 0)
    assert Paused(log).await_released(600) == {}
    assert log.turns == 1


class Taking(Log):
    """A log that takes positions; `timeouts`: how long it was waited for."""

    def __init__(self) -> None:
        super().__init__(None)
        self.timeouts: list[float] = []
        self.world = SimpleNamespace(version=lambda *_: 3)

    def write(self, records: dict[Key, Make], timeout_s: float) -> dict[Key, Any]:
        self.timeouts.append(timeout_s)
        return dict.fromkeys(records, mock.Mock(spec=ev.PositionSet))


def test_what_was_waited_for_until_time_is_up_is_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Taking()
    admin = Operated(log)
    monkeypatch.setattr(admin, "_held_of", lambda _: [])
    admin._set({("t", 0): 5}, time.monotonic() - 10)
    assert log.timeouts == [1.0]


def test_a_dead_holders_range_is_set_free_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module,
        "open_range",
        lambda _world, _group, topic, _p: SimpleNamespace(end=50) if topic == "range" else None,
    )
    clipped = Operated(Log(None))._clipped
    assert [clipped(("range", 0), at) for at in (49, 80)] == [49, 50]
    assert [clipped(("t", 0), at) for at in (-1, 80)] == [0, 80]


class Unread(Log):
    """The pause is in the log, and whoever wrote it was broken off before it heard of that."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(None)
        self.error, self.behind = error, list[Pause]()

    def write_one(self, make: Make, timeout_s: float) -> None:
        super().write_one(make, timeout_s)
        if self.pauses:
            self.pauses.clear()
            if not isinstance(self.error, Exception):  # it was read, and not folded yet
                assert self.pause is not None
                self.behind, self.pause = [self.pause], None
            raise self.error

    def replay(self) -> None:
        self.pause = self.behind.pop()


@pytest.mark.parametrize("error", [BrokerUnavailable("late"), KeyboardInterrupt()])
def test_a_pause_of_which_nothing_was_heard_is_ended_all_the_same(error: BaseException) -> None:
    log = Unread(error)
    with pytest.raises(type(error)), Operated(log).while_paused(600):
        pytest.fail("it is not known whether the group is paused")
    assert log.written == 2
    assert log.pause is None


class Positioned(Operated):
    """One partition, which its holder lets go of beyond where it was."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.at, self.set_to = 80, dict[Key, int]()

    def _units_of(self, key: Key) -> list[Key]:
        return [key]

    def plan(self, positions: Any) -> list[Change]:
        return [Change("t", 0, self.at, positions["t", 0], None, None)]

    def _await_settable(self, keys: list[Key], deadline: float) -> None:
        self.at = 95

    def _set(self, offsets: Any, deadline: float) -> None:
        self.set_to.update(offsets)

    def _align_kafka(self, changes: list[Change]) -> None:
        pass


def test_who_asks_for_it_is_told_what_setting_a_position_comes_to_when_all_is_let_go_of() -> None:
    log = Log(None)
    admin = Positioned(log)

    def check(changes: list[Change]) -> None:
        assert [(c.before, c.after) for c in changes] == [(95, 90)]
        assert log.pause is not None
        raise InvalidArgument("not so")

    with pytest.raises(InvalidArgument, match="not so"):
        admin.set_positions({("t", 0): 90}, check=check)
    assert (admin.set_to, log.pause) == ({}, None)
    admin.set_positions({("t", 0): 90})
    assert admin.set_to == {("t", 0): 90}


def test_what_kafka_has_committed_and_could_not_be_set_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Transactions` go on there, and so does whoever reads with a plain consumer."""
    said: list[str] = []
    admin = GroupAdmin({"bootstrap.servers": "nowhere:1"}, "g", say=said.append)
    written: list[dict[Key, int]] = []

    def write(_admin: object, _group: str, offsets: dict[Key, int], _timeout_s: float) -> None:
        written.append(offsets)
        if len(written) > 1:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "it has members"))

    monkeypatch.setattr(module, "committed_offsets", lambda *_: {("t", 0): 80})
    monkeypatch.setattr(module, "write_committed_offsets", write)
    changes = [Change("t", n, 80, 90, None, Extent(0, 100)) for n in (0, 1)]
    admin._align_kafka(changes)
    assert (written, said) == ([{("t", 0): 90}], [])
    admin._align_kafka(changes)
    assert "the positions are set" in said[0]
    assert "is not: it has members" in said[0]


def test_kafka_goes_on_where_the_last_slot_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain consumer reads whole partitions, and is to leave nothing out."""
    written: list[dict[Key, int]] = []
    monkeypatch.setattr(module, "committed_offsets", lambda *_: {("t", 0): 1, ("t", 1): 2})
    monkeypatch.setattr(
        module, "write_committed_offsets", lambda _a, _g, at, _s: written.append(at)
    )
    changes = [
        Change(slots_cell("t", p, 2), slot, 80, after, None, Extent(0, 100))
        for p, slot, after in [(0, 0, 30), (0, 1, 40), (1, 0, 60), (1, 1, 50)]
    ]
    GroupAdmin({"bootstrap.servers": "nowhere:1"}, "g")._align_kafka(changes)
    assert written == [{("t", 0): 30, ("t", 1): 50}]


class Refusing(Log):
    """A log that takes no level; `meanwhile`: what somebody else sets just before."""

    def __init__(self, reason: str, meanwhile: int) -> None:
        super().__init__(None)
        self.reason, self.meanwhile = reason, meanwhile
        self.level = 1
        self.sessions = {
            (f"c{n}", "i"): SimpleNamespace(lowest=lowest, highest=highest)
            for n, (lowest, highest) in enumerate([(1, 2), (1, 1), (2, 3), (3, 3), (1, 1), (1, 1)])
        }

    def probe(self, _timeout_s: float) -> None:
        pass

    def write_one(self, make: Make, _timeout_s: float) -> Any:
        record = make((2, "operator", "i", "g", 0))
        assert isinstance(record, SetLevel)
        assert (record.level, record.expected_level) == (2, 1)
        self.level = self.meanwhile
        return ev.Rejected(
            1, seq=0, record="SetLevel", reason=self.reason,  # type: ignore[arg-type]
            client_id="operator", instance_id="i", group_id="g", topic=None, partition=None,
            epoch=-1, version=-1, holder=None,
        )  # fmt: skip


def test_a_level_that_somebody_else_has_set_meanwhile_stands() -> None:
    with pytest.raises(GroupInUse, match="set the level of group 'g' meanwhile, to 3"):
        Operated(Refusing("stale_level", 3)).set_level(2, even_if_unknown=True)


class Raised(Refusing):
    """Somebody has set another level since the log was read last."""

    def probe(self, _timeout_s: float) -> None:
        self.level = 3

    def write_one(self, make: Make, _timeout_s: float) -> Any:
        record = make((2, "operator", "i", "g", 0))
        assert isinstance(record, SetLevel)
        assert (record.level, record.expected_level) == (2, 3)
        return mock.Mock(spec=ev.LevelSet)


def test_a_level_is_set_from_the_one_that_the_group_has_now() -> None:
    assert Operated(Raised("", 0)).set_level(2, even_if_unknown=True) == 3


def test_who_cannot_follow_a_level_is_named() -> None:
    with pytest.raises(GroupInUse) as raised:
        Operated(Refusing("cannot_follow", 1)).set_level(2, even_if_unknown=True)
    assert (
        "stays at level 1: c1 (levels 1 to 1), c3 (levels 3 to 3), c4 (levels 1 to 1) and 1 more "
        "cannot follow level 2"
    ) in str(raised.value)


@pytest.mark.parametrize("level", [0, -1, True, 1.0, 10_000])
def test_a_level_that_there_is_not_is_refused_before_the_log_is_read(level: Any) -> None:
    with pytest.raises(InvalidArgument, match="level = "):
        Operated(Log(None)).set_level(level)


class Shared(GroupAdmin):
    """Partition 0 of topic t, in slots."""

    def __init__(self, *cells: tuple[int, int] | None) -> None:
        """`cells`: position and claimed offset of each, None if it has no cell."""
        self.group_id = "g"
        self._cells = [c and SimpleNamespace(position=c[0], claimed_offset=c[1]) for c in cells]

    @property
    def world(self) -> Any:
        return SimpleNamespace(cell=lambda _group, _name, slot: self._cells[slot])

    def _agreed(self, topic: str) -> int:
        assert topic == "t"
        return len(self._cells)

    def keys_of(self, topic: str, partitions: object = None) -> list[Key]:
        return [(topic, 0)]


@pytest.mark.parametrize("slots", [2, BY_PARTITIONS])
@pytest.mark.parametrize(("claimed", "at", "again"), [(-1, 10, True), (45, 40, False)])
def test_all_go_on_where_the_last_was_or_at_most_once_where_the_first_was(
    claimed: int, at: int, again: bool, slots: int
) -> None:
    change = Shared((10, -1), (40, claimed), (25, -1))._plan_slots("t", slots)
    two = slots_cell("t", 0, 2)
    keys = [("t", 0)] if slots == BY_PARTITIONS else [(two, 0), (two, 1)]
    assert change.positions == dict.fromkeys(keys, at)
    assert (change.between, change.comes_again) == (45, again)


def test_a_slot_without_a_position_is_named() -> None:
    with pytest.raises(InvalidArgument, match="slot 1 of t/0 has no position yet"):
        Shared((10, -1), None)._plan_slots("t", 3)
    assert Shared(None, (-1, -1))._plan_slots("t", 3).positions == {}


class WithCells(GroupAdmin):
    """A group with cells of partitions 0 and 2 of topic t."""

    def __init__(self) -> None:
        self._admin, self._kafka = _no_admin, {}

    def cells(self) -> dict[Key, Any]:
        return {("t", 0): None, ("t", 2): None, ("u", 7): None}


_no_admin: Any = None


def answer(monkeypatch: pytest.MonkeyPatch, of_brokers: int | Exception) -> None:
    def partitions_of(*_: object) -> int:
        if isinstance(of_brokers, Exception):
            raise of_brokers
        return of_brokers

    monkeypatch.setattr(module, "partitions_of", partitions_of)


def test_all_partitions_are_those_in_kafka_or_of_the_cells_if_it_has_no_such_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(monkeypatch, 5)
    assert WithCells().keys_of("t") == [("t", p) for p in range(5)]
    assert WithCells().keys_of("t", [4, 1, 4]) == [("t", 1), ("t", 4)]
    answer(monkeypatch, TopicMissing("t"))
    assert WithCells().keys_of("t") == [("t", p) for p in range(3)]
    with pytest.raises(InvalidArgument, match="t: there is no partition 3; it has 3"):
        WithCells().keys_of("t", [3])
    with pytest.raises(TopicMissing):
        WithCells().keys_of("nowhere")


@pytest.mark.parametrize("why", [BrokerUnavailable("x"), AccessDenied("x")])
def test_how_many_partitions_there_are_is_not_guessed_where_brokers_do_not_tell(
    monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    """It may have more of them than there are cells."""
    answer(monkeypatch, why)
    with pytest.raises(type(why)):
        WithCells().keys_of("t")


def test_each_topic_that_is_named_must_have_been_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a name that was mistyped, its members would begin anywhere, and nobody be told."""
    committed = {("orders", 0): 7, ("gone", 0): 3, ("__marshal", 0): 9}
    monkeypatch.setattr(module, "admin_client", lambda _: None)
    monkeypatch.setattr(module, "committed_offsets", lambda *_, **__: committed)
    monkeypatch.setattr(
        module, "extents", lambda _admin, keys, _s: {k: None for k in keys if k[0] != "gone"}
    )
    admin = WithCells()
    admin.topic = "__marshal"
    assert admin.import_positions("old") == {("orders", 0): Target("committed", 7)}
    assert admin.import_positions("old", topics=["orders"]).keys() == {("orders", 0)}
    for name in ("ordres", "gone", ""):
        with pytest.raises(InvalidArgument, match=f"no offsets of '{name}'.*nothing was imported"):
            admin.import_positions("old", topics=["orders", name])
    with pytest.raises(InvalidArgument, match="no offsets of gone; check the name"):
        admin.import_positions("old", topics=["gone"])

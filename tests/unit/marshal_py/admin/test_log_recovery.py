"""Which snapshots a recovery goes by, and what it makes sure of."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import log_recovery as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.log_recovery import Recovery, Restored, recover_log
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    MalformedRecord,
    MarshalError,
)
from marshal_py.protocol.messages import (
    VERSION,
    ClaimingPartition,
    ReleaseGroup,
    ReleasingPartition,
    encode,
)
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import World


def test_the_newest_snapshot_that_can_be_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one has positions from before: what was done since would come again."""

    def found(coordinator: int, state: str | None) -> Any:
        def restore() -> str:
            if state is None:
                raise MalformedRecord("its digest differs")
            return state

        return SimpleNamespace(coordinator=coordinator, snapshot=SimpleNamespace(restore=restore))

    records = [found(0, "0, old"), found(1, "1, old"), found(0, "0, new"), found(1, None)]
    records.append(SimpleNamespace(coordinator=0, snapshot=None))
    read: list[dict[int, int]] = []

    def read_snapshots(_connection: Any, ends: dict[int, int], *, newest_only: bool) -> list[Any]:
        assert not newest_only
        read.append(ends)
        return records

    monkeypatch.setattr(module, "read_snapshots", read_snapshots)
    monkeypatch.setattr(module, "extent", lambda *_: {0: (2, 9), 1: (0, 5)})
    fakes: Any = SimpleNamespace(snapshot_topic="t.snapshots")
    states: list[Any] = list(module._newest_states(fakes, fakes, 2))
    assert states == ["0, new", "1, old"]
    assert read == [{0: 9, 1: 5}]
    assert module._newest_states(fakes, fakes, 0) == []


class Log:
    """Of a paused group. What is written is refused if somebody else wrote before."""

    def __init__(self, *, refused: bool) -> None:
        self.position = 3
        self._refused = refused
        group = SimpleNamespace(pause=None, cells={}, version=lambda _: 1)
        self.states = [SimpleNamespace(paused={"g"}, groups={"g": group})]
        cell = lambda *_: SimpleNamespace(position=self.position)  # noqa: E731
        self.reader = SimpleNamespace(world=SimpleNamespace(home=lambda _: 0, cell=cell))

    def sender(self, group_id: str) -> tuple[str, str, str, int]:
        return ("operator", "i", group_id, 0)

    def write(self, records: Any) -> None:
        for _, record in records:
            if not self._refused:
                self.position = record.next_offset


@pytest.mark.parametrize("refused", [False, True])
def test_positions_are_restored_when_they_are_seen_to_be(refused: bool) -> None:
    plan = Recovery("t", 1, 1, {}, 0, 0, [Restored("g", "orders", 0, 9, 3, "a snapshot")])
    log: Any = Log(refused=refused)
    if refused:
        with pytest.raises(BrokerUnavailable, match="the position of g orders/0 could not be set"):
            module._restore(log, plan)
    else:
        module._restore(log, plan)
        assert log.position == 9


class Writing:
    """A writer and a reader of a log, of which the record that is written first never turns up."""

    def __init__(self, *, fails: bool = False, refusal: MarshalError | None = None) -> None:
        self.refusal = refusal
        self._failures = [(0, "timed out")] if fails else []
        self._turns = 0

    def append(self, *_: object) -> None:
        pass

    def serve(self) -> None:
        self._turns += 1
        assert self._turns < 3, "it is waited for what will not come"

    def poll(self, _timeout_s: float) -> list[Any]:
        return []

    def fold(self, _messages: list[Any]) -> list[Any]:
        return []

    def take_failures(self) -> list[tuple[int, str]]:
        return self._failures


def log_of(parts: Writing) -> Any:
    log = module._Log.__new__(module._Log)
    either: Any = parts
    log._writer = log.reader = either
    log._connection = Connection.of_servers("nowhere:1", "log")
    log._who, log._seq = ("op", "i"), itertools.count()
    return log


def test_a_record_that_failed_is_told_at_once_and_not_when_the_time_is_up() -> None:
    log = log_of(Writing(fails=True))
    with pytest.raises(BrokerUnavailable, match=r"1 of 1 records .* \(timed out\): run it again"):
        log.write([(0, ReleaseGroup(VERSION, "op", "i", "g", 0, 0))])


def test_a_right_that_is_missing_for_a_recovery_is_told() -> None:
    log = log_of(Writing(refusal=AccessDenied("Write is missing")))
    with pytest.raises(AccessDenied):
        log.write([(0, ReleaseGroup(VERSION, "op", "i", "g", 0, 0))])


class Lost:
    """A log of one partition that was made anew, and is empty; and what its snapshots know."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *old: PartitionState) -> None:
        self.world = World(1)
        self.states = self.world.states
        self.reader = SimpleNamespace(world=self.world)
        self.is_closed = False
        monkeypatch.setattr(module, "_Log", lambda _: self)
        monkeypatch.setattr(module, "_count", lambda *_: 1)
        monkeypatch.setattr(module, "_newest_states", lambda *_: list(old))
        monkeypatch.setattr(module, "admin_client", lambda _: None)

    def close(self) -> None:
        self.is_closed = True


def before(position: int, *, base: int = 0) -> PartitionState:
    """A state in which t/0 stood at a position."""
    state = PartitionState(0)
    claim = ClaimingPartition(2, "a", "a1", "g", 0, "t", 0, 1_000, -1)
    apply(state, 0, encode(claim))
    apply(state, 1, encode(ReleasingPartition(2, "a", "a1", "g", 1, "t", 0, 0, position)))
    state.base = base
    return state


def plan_of(**how: Any) -> Recovery:
    return recover_log(Connection.of_servers("nowhere:1", "log"), apply=False, **how)


def test_epochs_go_on_above_those_that_snapshots_know_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that was made anew knows none of them; whoever fences by epochs does."""
    lost = Lost(monkeypatch, before(40, base=10**15))
    plan = plan_of()
    assert plan.highest_epoch == 10**15 + 2
    assert plan.base > plan.highest_epoch
    assert not plan.done
    assert lost.is_closed
    assert plan_of(above=10**15 + 99).highest_epoch == 10**15 + 99
    with pytest.raises(ConfigurationError, match="was --above mistyped"):
        plan_of(above=2**62)


def test_of_several_snapshots_the_largest_position_is_restored_and_none_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Lost(monkeypatch, before(40), before(90), before(60))
    (row,) = plan_of().positions
    assert (row.group_id, row.topic, row.partition) == ("g", "t", 0)
    assert (row.position, row.present, row.source) == (90, -1, "a snapshot")
    assert plan_of(restore_positions=False).positions == []
    lost.world.states[0] = before(95)
    assert plan_of().positions == []
    lost.world.states[0] = before(70)
    assert [(row.position, row.present) for row in plan_of().positions] == [(90, 70)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TIMED_OUT, BrokerUnavailable),
        (KafkaError.REQUEST_TIMED_OUT, BrokerUnavailable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError),
    ],
)
def test_a_topic_that_was_not_grown_says_whether_it_was_refused(
    code: int, kind: type[Exception]
) -> None:
    asked: list[float] = []

    def create_partitions(_: object, request_timeout: float) -> dict[str, Future[None]]:
        asked.append(request_timeout)
        future: Future[None] = Future()
        future.set_exception(KafkaException(KafkaError(code)))
        return {"__marshal.snapshots": future}

    admin: Any = SimpleNamespace(create_partitions=create_partitions)
    connection = Connection.of_servers("nowhere:1")
    with pytest.raises(kind, match=r"'__marshal\.snapshots' cannot be grown to 4 partitions"):
        module._grow(admin, connection, 4)
    assert asked == [connection.timeout_s]

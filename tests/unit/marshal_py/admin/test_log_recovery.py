"""Which snapshots a recovery goes by, and what it makes sure of."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec import structs

from marshal_py.admin import log_recovery as module
from marshal_py.admin.books import book_of
from marshal_py.admin.connection import Connection
from marshal_py.admin.log_recovery import Recovery, found_log, recover_log
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    MalformedRecord,
    MarshalError,
    TopicMissing,
)
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import (
    VERSION,
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    Genesis,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    SetPosition,
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


class Writing:
    """A writer and a reader of a log of 8 partitions; `comes` is what is read, turn by turn.

    Without it, the record that is written first never turns up.
    """

    def __init__(
        self,
        *comes: list[Any],
        fails: bool = False,
        refusal: MarshalError | None = None,
        truncated: int = 0,
    ) -> None:
        self.refusal = refusal
        self.is_closed = False
        self.opened = 0
        self.world = World(8)
        self._comes = list(comes)
        self._failures = [(0, "timed out")] if fails else []
        self._truncated = truncated

    def append(self, *_: object) -> None:
        pass

    def serve(self) -> None:
        pass

    def poll(self, _timeout_s: float) -> list[Any]:
        assert self._comes or self._failures or self.refusal, "it is waited for what will not come"
        return self._comes.pop(0) if self._comes else []

    def fold(self, messages: list[Any]) -> list[Any]:
        return [SimpleNamespace(events=messages)]

    def take_failures(self) -> list[tuple[int, str]]:
        return self._failures

    def open(self, _timeout_s: float) -> None:
        self.opened += 1

    def replay(self) -> None:
        if self.opened <= self._truncated:
            raise Truncated("offset 3 came again")

    def close(self) -> None:
        self.is_closed = True


def log_of(parts: Writing) -> Any:
    log = module._Log.__new__(module._Log)
    either: Any = parts
    log._writer = log.reader = either
    log._connection = Connection.of_servers("nowhere:1", "log")
    log._who, log._seq = ("op", "i"), itertools.count()
    return log


def pause(seq: int) -> ReleaseGroup:
    return ReleaseGroup(VERSION, "op", "i", "g", seq, 0)


def paused(seq: int, instance_id: str = "i") -> ev.Event:
    who = {"client_id": "op", "instance_id": instance_id, "group_id": "g", "seq": seq}
    return ev.GroupPaused(7, expires_at_ms=0, **who)  # type: ignore[arg-type]


def test_a_record_that_failed_is_told_at_once_and_not_when_the_time_is_up() -> None:
    log = log_of(Writing(fails=True))
    with pytest.raises(BrokerUnavailable, match=r"1 of 1 records .* \(timed out\): run it again"):
        log.write([(0, pause(0))])


def test_a_right_that_is_missing_for_a_recovery_is_told() -> None:
    log = log_of(Writing(refusal=AccessDenied("Write is missing")))
    with pytest.raises(AccessDenied):
        log.write([(0, pause(0))])


def test_what_was_written_is_waited_for_until_it_has_been_read() -> None:
    """Also what others wrote is read meanwhile, with sequence numbers of their own."""
    others = [
        ev.Ignored(1, "undecodable"),
        ev.MemberLeft(2, "op", "i", "g", "expired"),
        paused(4, "another"),
        paused(5, "another"),
    ]
    five, four = paused(5), paused(4)
    log = log_of(Writing([], others, [five], [], [four]))
    assert log.write([(0, pause(4)), (1, pause(5))]) == [four, five]


def test_nobody_waits_for_ever_for_a_record_of_which_nothing_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = itertools.count(100.0, 10.0)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    log = log_of(Writing([], [], [paused(0)], *[[]] * 9))
    with pytest.raises(BrokerUnavailable, match="1 of 2 records were not seen in 'log': run it"):
        log.write([(0, pause(0)), (0, pause(1))])


def test_a_log_that_is_made_anew_while_records_are_waited_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(wait_s: float) -> Any:
        raise Truncated("topic 'log' was made anew")

    parts = Writing()
    monkeypatch.setattr(parts, "poll", gone)
    with pytest.raises(BrokerUnavailable, match=r"made anew: topic 'log' lost .* run it again"):
        log_of(parts).write([(0, pause(0))])


@pytest.mark.parametrize("times", [0, 10, 11])
def test_a_log_that_is_made_anew_meanwhile_is_read_again_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    parts = Writing(truncated=times)

    def read(_: object, **how: object) -> Writing:
        assert how["compare_snapshots"] is False, "one that differs is what is recovered from"
        return parts

    monkeypatch.setattr(module, "LogReader", read)
    monkeypatch.setattr(module, "LogWriter", lambda *_, **__: parts)
    connection = Connection.of_servers("nowhere:1", "log")
    if times == 11:
        with pytest.raises(BrokerUnavailable, match="topic 'log' changes while it is read"):
            module._Log(connection)
    else:
        module._Log(connection)
    assert parts.opened == min(11, times + 1)
    assert parts.is_closed == (times == 11)


class Lost:
    """A log that was made anew, and is empty; and what its snapshots know.

    Both topics have so many `partitions`.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *old: PartitionState, partitions: int = 1
    ) -> None:
        self.world = World(partitions)
        self.states = self.world.states
        self.reader = SimpleNamespace(world=self.world)
        self.is_closed = False
        self.before_write: Callable[[Message], bool] = lambda _: True
        """Says of each record that is written whether it arrives; others may write first."""
        monkeypatch.setattr(module, "_Log", lambda _: self)
        monkeypatch.setattr(module, "_count", lambda *_: partitions)
        monkeypatch.setattr(module, "_newest_states", lambda *_: list(old))
        monkeypatch.setattr(module, "admin_client", lambda _: None)

    def sender(self, group_id: str) -> tuple[str, str, str, int]:
        return ("op", "op1", group_id, 0)

    def write(self, records: Any) -> None:
        for p, record in list(records):
            if self.before_write(record):
                put(self.states[p], record)

    def close(self) -> None:
        self.is_closed = True


def put(state: PartitionState, record: Message) -> list[ev.Event]:
    """Append a record and fold it; return what it led to."""
    events: list[ev.Event] = []
    apply(state, state.next_offset, encode(record), events)
    return events


def before(position: int, *, base: int = 0) -> PartitionState:
    """A state in which t/0 stood at a position."""
    state = PartitionState(0)
    claim = ClaimingPartition(2, "a", "a1", "g", 0, "t", 0, 1_000, -1)
    apply(state, 0, encode(claim))
    apply(state, 1, encode(ReleasingPartition(2, "a", "a1", "g", 1, "t", 0, 0, position)))
    state.base = base
    return state


def shared(*positions: int | None, at_most_once: bool = False) -> PartitionState:
    """A state in which the messages of t/0 were granted by hundreds, and done to these positions.

    None: whoever holds that range is dead.
    """
    state = PartitionState(0)
    for _ in positions:
        put(state, ClaimingRange(2, "a", "a1", "g", 0, "t", 0, 1_000, 0, 100))
    for epoch, position in enumerate(positions):
        about = (f"t/0@{100 * epoch}", 0, epoch)
        if position is not None and at_most_once:
            put(state, ClaimingMessages(2, "a", "a1", "g", 0, *about, position))
        if position is not None:
            put(state, ReleasingPartition(2, "a", "a1", "g", 0, *about, position))
    return state


def plan_of(*, apply: bool = False, **how: Any) -> Recovery:
    return recover_log(Connection.of_servers("nowhere:1", "log"), apply=apply, **how)


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
    ("old", "goes_on_at"),
    [
        (shared(100, 120, 210), 120),
        (shared(100, 200, 300), 300),
        (shared(100, None, 300), 100),
        (shared(20, 120, 210, at_most_once=True), 300),
    ],
)
def test_of_what_was_shared_by_ranges_nothing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, old: PartitionState, goes_on_at: int
) -> None:
    """The position of the partition itself is only how far it was granted.

    At most once it is the other way round: nothing that was claimed comes again.
    """
    lost = Lost(monkeypatch, old)
    (row,) = plan_of(apply=True).positions
    assert (row.topic, row.partition, row.position, row.present) == ("t", 0, goes_on_at, -1)
    assert [key for _, key, _ in lost.world.cells()] == [("g", "t", 0)]
    claim = ClaimingRange(2, "b", "b1", "g", 0, "t", 0, 1_000, 0, 100)
    granted = put(lost.world.states[0], claim)[0]
    assert isinstance(granted, ev.RangeGranted)
    assert granted.start == goes_on_at


@pytest.mark.parametrize(
    ("present", "goes_on_at"),
    [
        (shared(100, None), 250),
        (shared(None, 120), 250),
        (shared(100, 200, 260), None),
        (shared(100, 200, None), 250),
        (before(249), 250),
        (before(250), None),
    ],
)
def test_where_a_log_was_cut_off_in_the_middle_of_ranges_it_goes_on_behind_what_was_done(
    monkeypatch: pytest.MonkeyPatch, present: PartitionState, goes_on_at: int | None
) -> None:
    lost = Lost(monkeypatch, shared(100, 200, 250, 400))
    lost.world.states[0] = copy.deepcopy(present)
    rows = plan_of(apply=True).positions
    assert [row.position for row in rows] == ([] if goes_on_at is None else [goes_on_at])
    if goes_on_at is not None:
        cell = lost.world.cell("g", "t", 0)
        assert cell is not None
        assert cell.position == goes_on_at
        assert book_of(lost.world, "g", "t", 0) is None


@pytest.mark.parametrize("refused", [False, True])
def test_positions_are_restored_when_they_are_seen_to_be(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    lost = Lost(monkeypatch, before(9))
    lost.world.states[0] = before(3)
    lost.before_write = lambda record: not (refused and isinstance(record, SetPosition))
    if refused:
        with pytest.raises(BrokerUnavailable, match="the position of g t/0 could not be set"):
            plan_of(apply=True)
    else:
        assert plan_of(apply=True).done
    cell = lost.world.cell("g", "t", 0)
    assert cell is not None
    assert cell.position == (3 if refused else 9)


def test_a_position_that_was_passed_meanwhile_is_not_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Lost(monkeypatch, before(40))

    def others_first(record: Message) -> bool:
        if isinstance(record, ReleaseGroup):
            state = lost.world.states[0]
            epoch = state.base + state.next_offset
            put(state, ClaimingPartition(2, "b", "b1", "g", 0, "t", 0, 1_000, -1))
            put(state, ReleasingPartition(2, "b", "b1", "g", 0, "t", 0, epoch, 95))
        return True

    lost.before_write = others_first
    plan_of(apply=True)
    cell = lost.world.cell("g", "t", 0)
    assert cell is not None
    assert cell.position == 95


@pytest.mark.parametrize("was_paused", [False, True])
def test_a_group_is_paused_afterwards_if_it_was_before(
    monkeypatch: pytest.MonkeyPatch, was_paused: bool
) -> None:
    lost = Lost(monkeypatch, before(40))
    written: list[Message] = []
    lost.before_write = lambda record: not written.append(record)  # type: ignore[func-returns-value]
    if was_paused:
        put(lost.world.states[0], ReleaseGroup(2, "b", "b1", "g", 0, 77))
    now_ms = time.time_ns() // 1_000_000
    done = plan_of(apply=True)
    assert (done.done, done.paused) == (True, ["g"] if was_paused else [])
    pauses = [record for record in written if isinstance(record, ReleaseGroup)]
    if was_paused:
        assert lost.world.states[0].paused == {"g": 77}
        assert pauses == []
        return
    assert lost.world.states[0].paused == {}
    (pause,) = pauses
    assert 60_000 <= pause.expires_at_ms - now_ms <= 3 * 3_600_000, "it ends by itself"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokerUnavailable("not seen")])
def test_a_recovery_that_is_interrupted_leaves_no_group_paused(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Run again, it would find a pause that is nobody's, and leave it for an hour."""
    lost = Lost(monkeypatch, before(40))
    written: list[Message] = []

    def fail(record: Message) -> bool:
        written.append(record)
        if isinstance(record, SetPosition):
            raise error
        return True

    lost.before_write = fail
    with pytest.raises(type(error)):
        plan_of(apply=True)
    assert any(isinstance(record, ReleaseGroup) for record in written)
    assert lost.world.states[0].paused == {}


def test_who_founds_a_log_founds_what_has_no_genesis_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Lost(monkeypatch, partitions=3)
    first, second, third = lost.world.states
    connection = Connection.of_servers("nowhere:1", "log")
    assert found_log(connection) == [0, 1, 2]
    assert lost.is_closed
    assert first.identity
    assert {state.identity for state in lost.states} == {first.identity}
    assert {state.partitions for state in lost.states} == {3}
    founded = first.identity, first.base, first.next_offset
    first.base += 10**15  # who founded it had a clock that is ahead
    second.identity = None
    second.base = third.base = 0
    assert found_log(connection) == [1]
    assert second.identity not in (None, first.identity)
    assert second.base > first.base + first.next_offset
    assert (first.identity, first.next_offset) == (founded[0], founded[2])
    assert found_log(connection) == []


@pytest.mark.parametrize(
    ("there", "apply", "grown"),
    [(0, True, []), (1, True, [3]), (2, True, [3]), (3, True, []), (4, True, []), (1, False, [])],
)
def test_the_topic_of_snapshots_is_grown_where_there_is_one_that_is_too_small(
    monkeypatch: pytest.MonkeyPatch, there: int, apply: bool, grown: list[int]
) -> None:
    Lost(monkeypatch, partitions=3)
    asked: list[int] = []
    monkeypatch.setattr(module, "_count", lambda *_: there)
    monkeypatch.setattr(module, "_grow", lambda _admin, _connection, count: asked.append(count))
    plan = plan_of(apply=apply)
    assert (plan.partitions, plan.snapshot_partitions, plan.done) == (3, there, apply)
    assert asked == grown


def test_a_log_without_snapshots_has_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def partitions_of(_admin: Any, _kafka: Any, topic: str, *_: object) -> list[int]:
        if topic == "log.snapshots":
            raise TopicMissing("there is none")
        return [0, 1]

    monkeypatch.setattr(module, "partitions_of", partitions_of)
    nobody: Any = None
    assert module._count(nobody, Connection.of_servers("nowhere:1", "log")) == 0
    assert module._count(nobody, Connection.of_servers("nowhere:1", "other")) == 2


def test_a_recovery_gives_every_partition_a_new_identity_above_all_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = Lost(monkeypatch, partitions=2)
    found_log(Connection.of_servers("nowhere:1", "log"))
    was = lost.states[0].identity
    lost.states[1].base += 10**15
    highest = lost.states[1].base + lost.states[1].next_offset
    plan = plan_of(apply=True)
    assert plan.previous == {0: was, 1: was}
    assert plan.highest_epoch == highest
    assert all(state.base > highest for state in lost.states)
    assert plan.base == min(state.base for state in lost.states)
    (now,) = {state.identity for state in lost.states}
    assert now not in (None, was)


@pytest.mark.parametrize("partitions", [None, 8])
def test_a_genesis_that_somebody_else_was_faster_with_is_told(
    monkeypatch: pytest.MonkeyPatch, partitions: int | None
) -> None:
    lost = Lost(monkeypatch, partitions=2)
    found_log(Connection.of_servers("nowhere:1", "log"))

    def theirs_first(record: Message) -> bool:
        if isinstance(record, Genesis) and partitions is not None:
            put(lost.states[0], structs.replace(record, partitions=partitions))
        return not isinstance(record, Genesis)

    lost.before_write = theirs_first
    with pytest.raises(BrokerUnavailable, match="somebody else gave log/0 another genesis"):
        plan_of(apply=True)
    assert lost.is_closed


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

"""What a member does about ranges, round by round (`RangeClaims`): a log in memory, one clock."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from marshal_py import AcknowledgeType
from marshal_py.client.driver import _new_claimant
from marshal_py.client.marshal import driver_of
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.consumer.handlers.runner import Runner
from marshal_py.consumer.ranges import LOOK_S, TAKEN_AT_ONCE
from marshal_py.errors import InvalidArgument, NotHeld
from marshal_py.protocol import messages as m
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import decode
from marshal_py.protocol.range_choice import AHEAD_S, FIRST, OTHERS_S, SLOW_S
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import Observer, World
from marshal_py.testing import MemoryLog
from tests.support.messages import offset_of
from tests.support.spec import spec
from tests.unit.marshal_py.consumer import test_range_stream as streams
from tests.unit.marshal_py.consumer.handlers.test_runner import AtOnce

INTERVAL_S = 1.5
SOURCE = ("t", 0)


class FakeKafka(streams.FakeKafka):
    """A partition that a consumer reads, and how far it goes."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group
        self.told_end = -1

    def consume(self, most: int, _: float) -> list[Message]:
        self.end = self.group.end
        found = self.fetch(most)
        if not found and self.at == self.end != self.told_end:
            self.told_end = self.end
            error = KafkaError(KafkaError._PARTITION_EOF, "")
            found = [Message(topic="t", partition=0, offset=self.end, error=error)]
        return found

    def incremental_assign(self, where: list[Any]) -> None:
        super().incremental_assign(where)
        self.told_end = -1


class Group:
    """A coordination log, the partition t/0, and the clock of all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = MemoryLog(1)
        self.end = 0
        """t/0 has so many messages."""
        self.now_s = 1_000.0
        self.members: list[Member] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)

    def member(self, name: str, **settings: Any) -> Member:
        self.members.append(Member(self, name, **settings))
        return self.members[-1]

    def settle(self, *, but: tuple[Member, ...] = ()) -> None:
        """Let all members, but some that are dead, look until nothing more comes of it."""
        for _ in range(50):
            end = self.log.end(0)
            for member in self.members:
                if member not in but:
                    member.turn()
            if self.log.end(0) == end:
                return
        raise AssertionError("they never come to rest")

    def wait(self, seconds: float, *, but: tuple[Member, ...] = ()) -> None:
        """Let time pass, and the members look meanwhile."""
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            self.now_s = min(until_s, self.now_s + 0.01)
            self.settle(but=but)

    @property
    def state(self) -> PartitionState:
        state = PartitionState(0)
        for record in self.log.read(0):
            apply(state, record.offset, record.value)
        return state

    def open(self) -> list[tuple[int, int, str | None]]:
        """(position, end, holder) of the open ranges."""
        group = self.state.groups["g"]
        cells = [(each, group.cells[each.cell]) for each in group.open_ranges.of(SOURCE)]
        return [(cell.position, each.end, cell.holder) for each, cell in cells]

    @property
    def frontier(self) -> int:
        return self.state.groups["g"].cells[SOURCE].position

    def records(self, kind: type[Any], since: int = 0) -> list[Any]:
        """Records of one kind, from an offset of the log on."""
        found = [decode(record.value) for record in self.log.read(0, since) if record.value]
        return [record for record in found if isinstance(record, kind)]


class Member:
    """A consumer without any thread: it reads, looks, sends and works when the test says so."""

    def __init__(self, group: Group, name: str, **settings: Any) -> None:
        self.group = group
        made = Consumer(
            "127.0.0.1:1",
            group_id="g",
            client_id=name,
            topics="t",
            sharing="ranges",
            interval_ms=int(INTERVAL_S * 1_000),
            **settings,
        )
        self.consumer = made
        core: Any = made._core
        core.started = True
        core.fetcher._kafka = self.kafka = FakeKafka(group)
        core.topics.counts, core.topics.ids = {"t": 1}, {"t": b"first"}
        core.topics.ids_known.set()
        core.positions._offsets = lambda keys, which, *_: dict.fromkeys(
            keys, 0 if which == -2 else group.end
        )
        driver: Any = driver_of(core.marshal)
        driver.reader = SimpleNamespace(world=World(1), observers=[Observer()])
        driver.clock = lambda: int(group.now_s * 1e9)
        driver.claimant = _new_claimant(driver.settings, driver.reader)
        self.sent: list[bytes] = []
        driver._writer = SimpleNamespace(append=lambda _, __, value: self.sent.append(value))
        driver.started = driver.running = True
        driver.before_heartbeat.append(core.partitions.refresh_offsets)
        self.core, self.driver, self.ranges = core, driver, core.shared._ranges
        self.again_s: float | None = None
        self.woken = self.is_closing = False
        driver.observers[0].caught_up_at_offset = group.log.end(0)
        for record in group.log.read(0):
            apply(driver.world.states[0], record.offset, record.value)
        driver.observers[0].seen.note(group.log.end(0) - 1, driver.clock())
        driver.claimant.caught_up(0, driver.clock())
        core.fetcher.set_end(SOURCE, group.end)
        core.partitions._agreement.ready = lambda counts: (
            counts
        )  # what is agreed on is another matter
        self.ranges.follow(core.topics.counts)
        self._loop = core.iteration.messages(idle_timeout_s=0.0)

    def leave(self) -> None:
        """Its topic is none any more that it consumes."""
        self.core.topics.counts = {}
        self.core.wakeup.plan_due = True

    def read(self) -> None:
        """Read what is new in the log."""
        driver, now_ns = self.driver, self.driver.clock()
        state, events = driver.world.states[0], list[Event]()
        for record in self.group.log.read(0, state.next_offset):
            apply(state, record.offset, record.value, events)
            driver.observers[0].seen.note(record.offset, now_ns)
        with driver.lock:
            driver.claimant.applied(0, events, now_ns)
            self.woken |= self.ranges.is_affected_by(events)
            driver.refresh_offsets()
            driver.claimant.tick(now_ns)
            driver.carry_out()

    def look(self) -> None:
        """What the thread of the assignment does in a round."""
        for part in self.core.partitions.all():
            self.core.partitions.advance(part)
        if not self.is_closing:
            self.again_s = self.ranges.round(self.group.now_s)

    def send(self) -> list[Any]:
        """Write what it has to say into the log; return the records."""
        sent, self.sent = self.sent, []
        for value in sent:
            self.group.log.append(0, value)
        return list(map(decode, sent))

    def turn(self) -> list[Any]:
        """Read, look, fetch and send."""
        self.read()
        self.look()
        self.core.fetcher.fetch(1_000)
        return self.send()

    def messages(self, most: int) -> list[Message]:
        """Take so many messages, or those that there are: the last one is in hand then."""
        found: list[Message] = []
        while len(found) < most:
            message = next(self._loop, None)
            if message is None:
                self._loop = self.core.iteration.messages(idle_timeout_s=0.0)
                break
            found.append(message)
        return found

    def take(self, most: int) -> list[int]:
        """Take so many; return their offsets."""
        return list(map(offset_of, self.messages(most)))

    def work(self) -> list[int]:
        """Work until there is nothing more to do."""
        found: list[int] = []
        while True:
            self.group.settle()
            got = self.take(10_000)
            if not got:
                return found
            found += got

    def held(self) -> list[tuple[int, int]]:
        """(position, end) of what it holds, in order."""
        about = self.ranges._sources[SOURCE]
        return [(part.position(), part.end_offset or 0) for part in about.parts]

    def pace(self, per_s: float) -> None:
        """It gets so much done, as it has found."""
        self.ranges._measure = lambda *_: None
        self.ranges._pace = per_s


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


# Asking


def test_each_message_is_worked_on_once_and_nothing_is_left_open(group: Group) -> None:
    group.end = 100
    member = group.member("a")
    assert member.work() == list(range(100))
    assert group.frontier >= 100
    assert all(position >= 100 for position, _, _ in group.open())
    assert member.ranges.undone(SOURCE)[0] == 100


def test_two_members_share_a_partition(group: Group) -> None:
    group.end = 200
    members = group.member("a"), group.member("b")
    done: dict[str, list[int]] = {"a": [], "b": []}
    while sum(map(len, done.values())) < 200:
        group.settle()
        for name, member in zip("ab", members, strict=True):
            done[name] += member.take(7)
    assert sorted(done["a"] + done["b"]) == list(range(200))
    assert min(map(len, done.values())) > 50


def test_the_book_begins_where_the_group_starts_and_of_which_topic_it_is_is_told(
    group: Group,
) -> None:
    group.end = 30
    member = group.member("a", start="latest")
    group.settle()
    assert member.take(9) == []
    group.end = 32
    assert member.work() == [30, 31]
    (first,) = group.records(m.ClaimingPartition)
    assert (first.topic, first.partition) == SOURCE
    assert b"first" in group.state.groups["g"].cells[SOURCE].metadata


def test_an_epoch_does_not_stay_beside_a_position_that_moves_without_it(group: Group) -> None:
    """Who shares the group by partitions has told it, and would be misled by it later."""
    group.end = 30
    before = group.member("before")
    claim = before.core.marshal.want(*SOURCE)

    def exchange() -> None:
        before.send()
        before.read()

    exchange()
    claim.commit(4)
    claim.set_metadata(ClaimMetadata(topic_id=b"first", leader_epoch=3).encode(), flush=True)
    exchange()
    claim.release(wait=False)
    exchange()
    cell = group.state.groups["g"].cells[SOURCE]
    assert (cell.holder, ClaimMetadata.decode(cell.metadata).leader_epoch) == (None, 3)
    member = group.member("a")
    assert sorted(member.work() + before.work()) == list(range(4, 30))
    cell = group.state.groups["g"].cells[SOURCE]
    assert ClaimMetadata.decode(cell.metadata) == ClaimMetadata(topic_id=b"first")


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_what_kafka_has_deleted_is_crossed_with_one_range(group: Group, mode: str) -> None:
    group.end = 10_000
    member = group.member("a", mode=mode)
    group.settle()
    (part,) = member.ranges._sources[SOURCE].parts
    member.core.positions.restart_of = lambda *_: 3_000
    part.out_of_range = True
    group.settle()
    assert [record.floor for record in group.records(m.ClaimingRange)] == [0, 3_000]
    assert member.held()[0][0] == 3_000


def test_whoever_holds_the_book_is_waited_for(group: Group) -> None:
    group.end = 10
    first, second = group.member("a"), group.member("b")
    first.turn()
    second.turn()
    assert group.records(m.ClaimingRange) == []
    first.read()  # it has the book now, and dies
    first.send()
    group.wait(INTERVAL_S * 1.9, but=(first,))
    assert group.records(m.ClaimingRange) == []
    group.wait(INTERVAL_S * 0.3, but=(first,))
    assert [record.client_id for record in group.records(m.ClaimingRange)][:1] == ["b"]


def test_one_range_is_held_ahead_and_asked_for_at_its_pace(group: Group) -> None:
    group.end = 1_000
    member = group.member("a")
    member.pace(100.0)
    group.settle()
    assert member.held() == [(0, 15)]
    assert int(100 * AHEAD_S) == 15
    assert member.take(1) == [0]
    group.settle()
    assert member.held() == [(0, 15), (15, 30)]
    member.take(9)
    group.settle()
    assert member.held() == [(9, 15), (15, 30)]


def test_before_its_pace_is_known_it_asks_for_a_few(group: Group) -> None:
    group.end = 1_000
    member = group.member("a")
    group.settle()
    assert member.held() == [(0, FIRST)]


def test_its_pace_is_what_it_gets_done_in_the_time_that_it_works(group: Group) -> None:
    group.end = 1_000
    member = group.member("a")
    group.settle()
    for _ in range(FIRST):
        member.take(1)
        group.now_s += 0.01
    member.take(1)
    group.settle()
    assert member.ranges._pace == pytest.approx(100.0)


def test_what_was_refused_is_asked_for_again_but_not_at_once(group: Group) -> None:
    group.end = 10
    member, stranger = group.member("a"), group.member("stranger")
    stranger.leave()
    while not any(isinstance(decode(value), m.ClaimingRange) for value in member.sent):
        member.send()
        member.read()
        member.look()
    stranger.read()
    claim = stranger.core.marshal.want(*SOURCE)  # the whole partition, just before
    stranger.send()
    member.send()
    stranger.read()
    assert claim.held
    member.read()
    member.look()
    claim.release(wait=False)
    stranger.send()
    member.turn()
    assert len(group.records(m.ClaimingRange)) == 1
    group.wait(LOOK_S / 2)
    assert len(group.records(m.ClaimingRange)) == 1
    group.wait(LOOK_S)
    assert member.work() == list(range(10))


def test_what_counts_as_done_is_kept_until_handlers_have_had_it(group: Group) -> None:
    """At most once: what is claimed is done, and waits for a handler."""
    group.end = 100
    member = group.member("a")
    group.settle()
    work = member.core.iteration
    member.core.handlers = SimpleNamespace(
        cut=work.cut,
        next_offset=work.next_offset,
        progress=work.progress,
        busy_with=lambda part: part.first_offset == 0,
        is_loop=False,
    )
    assert member.take(FIRST + 1) == list(range(FIRST))
    group.settle()
    assert group.open()[0] == (0, FIRST, "a")
    group.now_s += 0.1  # until the last handler has done its own
    member.core.handlers.busy_with = lambda _: False
    group.settle()
    assert group.open()[0][0] == FIRST
    assert member.ranges._pace == pytest.approx(FIRST / 0.1)


# Giving back


def test_who_stands_gives_what_it_has_not_begun_to_who_is_idle(group: Group) -> None:
    slow, idle = group.member("slow"), group.member("idle")
    slow.pace(1_000.0)
    idle.pace(1_000.0)
    group.settle()
    group.end = 40
    for each in (slow, idle):
        each.core.fetcher.fetch(1_000)
    first = slow.take(1)
    done = idle.work()
    assert sorted(done + first) != list(range(40))
    group.now_s += SLOW_S / 2
    group.settle()
    assert idle.work() == []
    group.now_s += SLOW_S
    group.settle()
    done += idle.work()
    group.now_s += OTHERS_S
    done += idle.work()
    assert sorted(done + first) == list(range(40))


def test_while_nobody_is_idle_it_keeps_what_it_has(group: Group) -> None:
    group.end = 1_000
    members = group.member("a"), group.member("b")
    group.settle()
    for each in members:
        each.take(1)
    group.settle()
    held = [each.held() for each in members]
    group.wait(SLOW_S * 3)
    assert [each.held() for each in members] == held
    assert group.records(m.SplittingRange) == []


@pytest.mark.parametrize("is_told", [False, True])
def test_what_is_done_out_of_order_is_not_cut_off(group: Group, is_told: bool) -> None:
    """It is told of the range's cell alone."""
    group.end = 40
    slow = group.member("slow")
    slow.pace(1_000.0)
    group.settle()
    assert slow.take(1) == [0]
    (part,) = [part for part in slow.ranges._sources[SOURCE].parts if part.first_s]
    assert (part.end_offset or 0) > 12
    if is_told:
        part.done_before = ((10, 12),)
    idle = group.member("idle")
    idle.pace(1_000.0)
    for _ in range(10):
        idle.work()
        group.wait(SLOW_S)
    cuts = [record.at for record in group.records(m.SplittingRange) if record.topic == "t/0@0"]
    assert cuts == ([] if is_told else [1])


def test_what_waits_for_a_handler_stays_there_where_nothing_is_cut_off(group: Group) -> None:
    group.end = 40
    slow = group.member("slow")
    workers = AtOnce(lazy=True)
    runner = slow.core.handlers = Runner(
        slow.core, HandlerOptions(print, workers=1, ordering="none"), workers
    )
    workers.start(runner)
    slow.core.partitions.acknowledge_each()
    slow.pace(1_000.0)
    group.settle()

    def feed() -> None:
        runner._look_after_partitions()
        while (run := slow.core.delivery.next_run()) is not None:
            runner._accept(run)

    feed()
    with runner.lock:
        task: Any = runner.take("worker")
    end = task.part.end_offset
    assert (task.items[0].offset, end) == (0, 20)
    task.part.done_before = ((10, 12),)  # by who had the range before
    idle = group.member("idle")
    idle.pace(1_000.0)
    for _ in range(10):
        idle.work()
        group.wait(SLOW_S)
    feed()
    runner.succeeded(task)
    workers.lazy = False
    workers.wake(1)
    assert set(range(1, end)) - set(workers.handled) <= {10, 11}
    assert task.part.is_over


# Who is gone


def dies_with(group: Group, name: str, ranges: int = 2, **settings: Any) -> Member:
    """A member that has so many ranges, has begun the first of them, and is not heard of again."""
    victim = group.member(name, **settings)
    victim.pace(100.0)
    group.settle()
    victim.take(1)
    while len(victim.held()) < ranges:
        about = victim.ranges._sources[SOURCE]
        victim.ranges._ask(about, 15)
        group.settle()
    group.settle()
    return victim


def test_all_that_a_dead_member_had_is_taken_over_in_one_go(group: Group) -> None:
    group.end = 1_000
    victim = dies_with(group, "victim")
    heir = group.member("heir")
    heir.pace(100.0)
    died_s = group.now_s
    group.wait(INTERVAL_S * 1.9, but=(victim,))
    assert all(start >= 30 for start, _ in heir.held())
    offset = group.log.end(0)
    while not group.records(m.ClaimingPartition, offset):
        group.wait(0.01, but=(victim,))
        assert group.now_s < died_s + INTERVAL_S * 2.5
    assert [r.topic for r in group.records(m.ClaimingPartition, offset)] == ["t/0@0", "t/0@15"]
    assert group.open()[:2] == [(0, 15, "heir"), (15, 30, "heir")]
    assert group.records(m.SplittingRange, offset) == []
    assert heir.take(20)[:20] == list(range(20))  # before what it had itself


def test_of_very_many_ranges_some_are_taken_at_a_time(group: Group) -> None:
    group.end = 10_000
    victim = dies_with(group, "victim", TAKEN_AT_ONCE + 3)
    heir = group.member("heir")
    group.wait(INTERVAL_S * 1.99, but=(victim,))
    offset = group.log.end(0)
    sizes: list[int] = []
    while sum(sizes) < TAKEN_AT_ONCE + 3:
        group.now_s += 0.01
        sent = heir.turn()
        claims = [each for each in sent if isinstance(each, m.ClaimingPartition)]
        if claims:
            sizes.append(len(claims))
        assert group.now_s < 1_000.0 + 4 * INTERVAL_S
    assert sizes == [TAKEN_AT_ONCE, 3]
    assert len(group.records(m.ClaimingPartition, offset)) == TAKEN_AT_ONCE + 3


def test_who_is_slower_lets_it_be(group: Group) -> None:
    """Two members see that a third is gone: each range goes to one of them."""
    group.end = 1_000
    victim = dies_with(group, "victim")
    heirs = group.member("b"), group.member("c")
    group.wait(INTERVAL_S * 2.3, but=(victim,))
    holders = [holder for _, _, holder in group.open()[:2]]
    assert None not in holders
    assert "victim" not in holders
    assert all(not each.ranges._sources[SOURCE].taking for each in heirs)


def test_an_earlier_instance_is_not_waited_for(group: Group) -> None:
    group.end = 1_000
    victim = dies_with(group, "same")
    again = group.member("same")
    group.settle(but=(victim,))
    assert [start for start, _ in again.held()][:2] == [0, 15]


def killed(group: Group, times: int, **settings: Any) -> list[Member]:
    """The message 3 kills so many members, one after the other."""
    dead: list[Member] = []
    for n in range(times):
        victim = group.member(f"v{n}", **settings)
        victim.pace(100.0)
        died_s = group.now_s
        while 3 not in victim.take(1):
            group.wait(0.01, but=tuple(dead))
            assert group.now_s < died_s + 5 * INTERVAL_S
        dead.append(victim)
    return dead


@spec("C-59")
def test_what_has_ended_two_members_is_taken_in_halves_and_nothing_else_beside_it(
    group: Group,
) -> None:
    group.end = 1_000
    dead = killed(group, 2)
    ranges = [(position, end) for position, end, holder in group.open() if holder == "v1"]
    assert len(ranges) > 1
    assert ranges[0] == (0, 15)
    heir = group.member("heir")
    heir.pace(100.0)
    offset = group.log.end(0)
    while not group.records(m.SplittingRange, offset):
        group.wait(0.01, but=tuple(dead))
    group.wait(INTERVAL_S, but=tuple(dead))
    (split,) = group.records(m.SplittingRange, offset)
    assert (split.topic, split.at) == ("t/0@0", 7)
    taken = {claim.topic for claim in group.records(m.ClaimingPartition, offset)}
    assert "t/0@0" in taken
    assert f"t/0@{ranges[1][0]}" not in taken  # it waits
    assert suspects_of(group) == ["t/0@0"]
    assert heir.held()[0] == (0, 7)


def suspects_of(group: Group) -> list[str]:
    """The ranges that were granted for the third time or more, of messages that exist."""
    return [
        each.cell[0]
        for each in group.state.groups["g"].open_ranges.of(SOURCE)
        if each.granted > 2 and each.granted_at < group.end
    ]


def heir_of(group: Group, *, hears_late: bool) -> tuple[Member, int, set[type], list[Member]]:
    """Two ranges may kill, one of a member that is dead and a free one; return what is sent first.

    `hears_late`: that of the free one somebody lets go only when another was asked for.
    """
    group.end = 1_000
    dead = killed(group, 3)
    assert (0, 7, "v2") in group.open()
    assert (7, 15, None) in group.open()
    heir, offset = group.member("heir"), group.log.end(0)
    if hears_late:
        heir.ranges._grants_next = lambda _: 0
    for _ in range(45):
        group.now_s += INTERVAL_S / 20
        heir.read()
        heir.send()
    heir.look()
    return heir, offset, {type(record) for record in heir.send()}, dead


def test_of_two_that_may_kill_one_is_claimed_and_the_other_is_not_asked_for(group: Group) -> None:
    _, offset, sent, dead = heir_of(group, hears_late=False)
    assert m.ClaimingPartition in sent
    assert m.ClaimingRange not in sent
    group.settle(but=tuple(dead))
    assert "t/0@0" in suspects_of(group)
    assert not [r for r in group.records(m.ReleasingPartition, offset) if r.client_id == "heir"]


def test_of_several_partitions_what_may_kill_and_was_granted_least_often_is_asked_for(
    group: Group,
) -> None:
    member = group.member("a")
    fetcher = member.core.fetcher
    fetcher.fetch = fetcher._command = lambda *_: None  # of one partition at a time
    member.core.topics.counts = {"t": 3}
    asked: list[tuple[str, int]] = []
    group.settle()
    sources = member.ranges._sources
    grants = {("t", 0): 4, ("t", 1): 3, ("t", 2): 0}
    for about in sources.values():
        about.asked, about.parts = None, []
    member.ranges._grants_next = lambda about: grants[about.source]
    member.ranges._ask = lambda about, _: asked.append(about.source)
    member.ranges.round(group.now_s)
    assert asked == [("t", 2), ("t", 1), ("t", 0)]


def test_what_is_granted_beside_one_that_may_kill_is_given_back(group: Group) -> None:
    _, offset, sent, dead = heir_of(group, hears_late=True)
    assert sent >= {m.ClaimingPartition, m.ClaimingRange}
    group.settle(but=tuple(dead))
    found = group.state.groups["g"]
    holders = {cell: found.cells[cell, 0].holder for cell in suspects_of(group)}
    assert list(holders.values()).count("heir") == 1
    given_back = group.records(m.ReleasingPartition, offset)
    assert [record.next_offset for record in given_back if record.client_id == "heir"] == [-1]


def test_a_range_of_which_something_is_told_is_not_taken_in_pieces(group: Group) -> None:
    """What is done of it is told of its cell, and would not be told of the pieces'."""
    group.end = 1_000
    first = group.member("first", auto_ack=False)
    first.pace(100.0)
    group.settle()
    for message in first.messages(15)[1:3]:
        first.consumer.ack(message)
    group.wait(INTERVAL_S * 1.5)
    second = group.member("second", auto_ack=False)
    while second.take(1) != [0]:
        group.wait(0.05, but=(first,))
    heir = group.member("heir")
    heir.pace(100.0)
    while (0, 15) not in heir.held():
        group.wait(0.05, but=(first, second))
        assert not [record for record in group.records(m.SplittingRange) if record.at < 15]
    assert "t/0@0" in suspects_of(group)
    assert heir.take(2) == [0, 3]


@spec("C-59")
def test_of_all_partitions_one_that_may_kill_is_taken_and_what_was_only_beside_it_first(
    group: Group,
) -> None:
    group.end = 1_000
    dead: list[Member] = []
    sources = SOURCE, ("t", 1)

    def live_and_die() -> list[str]:
        """A member takes over what it may, and dies; return which of the first ranges it claimed.

        Each of its lives is under the same name: it need not wait.
        """
        member = group.member("same")
        fetcher = member.core.fetcher
        fetcher.fetch = fetcher._command = lambda *_: None  # it begins nothing
        for source in sources:
            fetcher.set_end(source, group.end)
        member.core.topics.counts = {"t": 2}
        offset = group.log.end(0)
        group.wait(LOOK_S * 3, but=tuple(dead))
        dead.append(member)
        claimed = [record.topic for record in group.records(m.ClaimingPartition, offset)]
        return [topic for topic in claimed if topic in ("t/0@0", "t/1@0")]

    assert live_and_die() == []
    assert live_and_die() == ["t/0@0", "t/1@0"]  # the first time all at once
    assert live_and_die() == ["t/0@0"]
    assert "t/0@0" not in live_and_die()  # others were granted less often


@spec("C-59")
def test_nothing_of_it_is_begun_before_the_log_has_split_it(group: Group) -> None:
    group.end = 1_000
    dead = killed(group, 2)
    heir = group.member("heir")
    while not heir.ranges._sources[SOURCE].splitting:
        group.now_s += 0.01
        heir.turn()
        assert not [start for start, _ in heir.held() if start < 15]
        assert group.now_s < 1_000.0 + 20 * INTERVAL_S
    heir.look()
    assert not [start for start, _ in heir.held() if start < 15]
    group.settle(but=tuple(dead))
    assert heir.held()[0] == (0, 7)


@pytest.mark.parametrize("most", [2, 3, 5])
def test_a_message_that_kills_is_found_and_those_beside_it_get_through(
    group: Group, most: int
) -> None:
    group.end = 60
    dead = killed(group, most, max_deliveries=most)
    last = group.member("last", max_deliveries=most)
    last.pace(100.0)
    counts: dict[int, int] = {}
    began_s = group.now_s
    while last.ranges.undone(SOURCE)[0] < group.end:
        group.wait(0.05, but=tuple(dead))
        for offset in last.take(1):
            part = last.ranges.part_of("t", 0, offset)
            assert part is not None
            counts[offset] = part.delivery_count(offset)
            if counts[offset] > most:
                assert (part.first_offset, part.end_offset) == (3, 4)
        assert group.now_s < began_s + 10 * INTERVAL_S
    assert {offset for offset, count in counts.items() if count > most} == {3}


@spec("C-59")
def test_who_dies_while_nothing_has_come_has_killed_no_message(group: Group) -> None:
    group.end = 10
    dead: list[Member] = []
    for n in range(4):  # each takes over what those before it waited with
        victim = group.member(f"v{n}", max_deliveries=2)
        died_s = group.now_s
        while victim.ranges.undone(SOURCE)[0] < 10 or len(victim.held()) <= n:
            group.wait(0.05, but=tuple(dead))
            victim.take(100)
            assert group.now_s < died_s + 5 * INTERVAL_S
        dead.append(victim)
    last = group.member("last", max_deliveries=2)
    group.wait(3 * INTERVAL_S, but=tuple(dead))
    group.end = 20
    group.settle(but=tuple(dead))
    for offset in last.take(4):
        part = last.ranges.part_of("t", 0, offset)
        assert part is not None
        assert part.delivery_count(offset) == 1
    assert last.ranges._suspect is None


def test_a_free_range_that_may_kill_is_not_asked_for_beside_another(group: Group) -> None:
    group.end = 1_000
    dead = killed(group, 2)
    heir = group.member("heir")
    heir.pace(100.0)
    while not heir.ranges._suspect:
        group.wait(0.01, but=tuple(dead))
    group.settle(but=tuple(dead))
    assert (7, 15, None) in group.open()  # what was split off
    asked, taken = len(group.records(m.ClaimingRange)), []
    while not (mine := [at for at, _ in heir.held() if 7 <= at < 15]):
        if heir.ranges._suspect:
            assert len(group.records(m.ClaimingRange)) == asked
        taken += heir.take(1)
        group.wait(0.01, but=tuple(dead))
        assert len(taken) < 100
    assert mine == [7]
    assert taken[:7] == list(range(7))


# The end


def test_who_leaves_a_topic_gives_back_what_it_has(group: Group) -> None:
    group.end = 100
    member = group.member("a")
    group.settle()
    member.take(4)
    member.leave()
    group.settle()
    member.take(100)
    group.settle()
    assert {holder for _, _, holder in group.open()} <= {None}
    assert group.open()[0][0] == 4
    assert member.kafka.at is None, "nothing more of it is fetched"


def test_what_is_acknowledged_when_its_topic_was_left_counts(group: Group) -> None:
    """Else it would hold the range for ever, and nobody could begin with the topic made anew."""
    group.end = 10
    member = group.member("a", auto_ack=False)
    group.settle()
    got = member.messages(3)
    member.leave()
    group.settle()
    assert group.open()[0][2] == "a"
    for message in got:
        member.consumer.ack(message)
    group.settle()
    assert group.open()[0] == (3, 5, None)
    assert {holder for _, _, holder in group.open()} == {None}
    member.core.topics.counts, member.core.topics.ids = {"t": 1}, {"t": b"second"}
    member.core.wakeup.plan_due, group.end = True, 4
    group.wait(LOOK_S * 3)
    again: list[int] = []
    for _ in range(4):
        group.settle()
        again += member.take(9)
    assert again == [0, 1, 2, 3]


def test_what_is_acknowledged_while_it_closes_counts(group: Group) -> None:
    group.end = 10
    member = group.member("a", auto_ack=False)
    group.settle()
    got = member.messages(3)
    member.is_closing = True
    member.ranges.close()
    for message in got[:2]:
        member.consumer.ack(message)
    assert member.ranges.part_of("t", 0, 2) is not None
    assert member.ranges.part_of("t", 0, 99) is None
    assert member.ranges.part_of("t", 1, 2) is None
    member.core.partitions.end(hurry_s=group.now_s, release=True)
    for _ in range(3):
        member.core.partitions.wind_up()
        member.turn()
    assert group.open()[0] == (2, 5, None)


def test_a_paused_partition_is_left_to_others(group: Group) -> None:
    group.end = 100
    a, b = group.member("a"), group.member("b")
    group.settle()
    a.consumer.pause("t", 0)
    assert a.consumer.paused() == [SOURCE]
    group.settle()
    assert a.held() == []
    assert b.work() == list(range(100))
    a.consumer.resume("t", 0)
    group.settle()
    assert a.held()


def test_a_released_message_comes_again_after_its_delay(group: Group) -> None:
    group.end = 6
    member = group.member("a", auto_ack=False)
    group.settle()
    got = member.messages(3)
    member.consumer.ack(got[0])
    member.consumer.ack(got[2])
    member.consumer.acknowledge(got[1], AcknowledgeType.RELEASE, delay_s=0.5)
    for _ in range(4):
        group.settle()
        for message in member.messages(9):
            member.consumer.ack(message)
    group.wait(0.45)
    assert member.take(1) == []
    group.wait(0.1)
    assert member.take(1) == [1]
    part = member.ranges.part_of("t", 0, 1)
    assert part is not None
    assert part.delivery_count(1) == 2


def test_a_topic_that_was_made_anew_is_begun_anew(group: Group) -> None:
    group.end = 100
    member = group.member("a")
    group.settle()
    member.take(5)
    member.core.topics.ids = {"t": b"second"}
    group.end = 4
    group.wait(LOOK_S * 3)
    assert member.work() == list(range(4))
    assert b"second" in group.state.groups["g"].cells[SOURCE].metadata


def test_what_was_deleted_of_a_topic_means_nothing_when_it_is_made_anew(group: Group) -> None:
    group.end = 100
    member = group.member("a")
    member.core.positions.restart_of = lambda *_: 50
    group.settle()
    (part,) = member.ranges._sources[SOURCE].parts
    part.out_of_range = True
    assert member.work() == list(range(50, 100))
    member.core.topics.ids = {"t": b"second"}
    group.end = 4
    group.wait(LOOK_S * 3)
    assert member.work() == list(range(4))


def test_in_a_group_that_is_paused_nothing_is_asked_for(group: Group) -> None:
    group.end = 100
    member = group.member("a")
    group.settle()
    group.log.append(0, m.encode(m.ReleaseGroup(2, "operator", "o1", "g", 1, 2**62)))
    group.settle()
    asked = len(group.records(m.ClaimingRange))
    group.wait(1.0)
    assert len(group.records(m.ClaimingRange)) == asked
    assert member.again_s is not None


# What it tells


def test_it_tells_where_a_partition_stands(group: Group) -> None:
    group.end = 100
    member = group.member("a")
    member.pace(100.0)
    assert member.ranges.undone(SOURCE) == (-1, None)
    assert member.ranges.lags(1.0) == {SOURCE: 100}
    group.settle()
    member.take(1)
    group.settle()
    member.take(15)
    group.settle()
    assert member.ranges.undone(SOURCE)[0] == 15
    assert member.ranges.lags(1.0) == {SOURCE: 85}
    first, second = (part.claim for part in member.ranges._sources[SOURCE].parts)
    assert member.ranges.standing_of(first) == (SOURCE, 15)
    assert member.ranges.standing_of(second) is None


def test_it_looks_up_when_something_is_free_or_somebody_idle(group: Group) -> None:
    group.end = 40
    a = group.member("a")
    a.work()
    a.woken = False
    b = group.member("b")
    group.settle()
    assert a.woken  # b has nothing but what is to come
    assert b.held() == [(position, end) for position, end in b.held() if position >= 40]


def test_it_goes_round_oftener_while_others_could_have_something(group: Group) -> None:
    group.end = 1_000
    a = group.member("a")
    a.pace(100.0)
    group.settle()
    a.take(1)
    group.settle()
    assert a.again_s == pytest.approx(0.05)
    a.work()
    group.settle()
    assert a.again_s is None


def test_what_ranges_cannot_do_is_refused_with_the_way_out(group: Group) -> None:
    member = group.member("a")
    message = Message(topic="t", partition=0, offset=0)
    with pytest.raises(InvalidArgument, match="set-position"):
        member.consumer.seek("t", 0, 1)
    with pytest.raises(InvalidArgument, match="auto_ack=False"):
        member.core.shared.release(message, 0.0)
    with pytest.raises(InvalidArgument, match="use `pause`"):
        member.core.shared.set_max_claims(3)
    with pytest.raises(NotHeld):
        member.core.shared.delivery_count(message)


def test_at_most_once_what_is_being_claimed_is_not_given_back_meanwhile(group: Group) -> None:
    """The range ended before what was claimed of it then, which the loop was told by an error."""
    group.end = 100
    member = group.member("a", mode="at_most_once")
    member.pace(100.0)
    group.settle()
    (part,) = member.ranges._sources[SOURCE].parts
    delivery, lock, was_free = member.core.delivery, member.driver.lock, list[bool]()
    may_claim_to = delivery._may_claim_to

    def meanwhile(part: Any, end: int) -> int:
        def give_back() -> None:
            was_free.append(lock.acquire(blocking=False))
            if was_free[-1]:
                member.ranges._give_back(part)
                lock.release()

        other = threading.Thread(target=give_back)
        other.start()
        other.join()
        return int(may_claim_to(part, end))

    delivery._propose_ready()  # there is room for one message
    delivery._may_claim_to, delivery._workers = meanwhile, 2
    delivery._propose_ready()
    assert was_free == [False]
    delivery._may_claim_to = may_claim_to
    member.ranges._give_back(part)
    assert (part.proposed, part.end_offset) == (2, 2)
    found = [offset for _ in range(50) for offset in member.work()]  # it waits for the log
    assert sorted(found) == list(range(100))


def test_who_leaves_a_topic_lets_go_of_the_book_that_it_was_about_to_begin(group: Group) -> None:
    """Nobody else could begin it for as long as this member lives."""
    group.end = 10
    first = group.member("a")
    first.turn()
    assert [record.topic for record in group.records(m.ClaimingPartition)] == ["t"]
    first.leave()
    group.settle()
    assert group.member("b").work() == list(range(10))


def test_a_message_of_an_earlier_claim_of_a_range_is_none_of_the_next_ones(group: Group) -> None:
    """Its work counts for nothing: the claim that it asks for would fence nobody."""
    group.end = 10
    member = group.member("a", auto_ack=False)
    group.settle()
    message, *_ = member.messages(3)
    part = member.core.shared.part_of(message)
    assert member.consumer.claim_of(message) is part.claim
    part.in_hands_before = ((0, 3),)  # as if the range had been lost since then, and come back
    assert member.core.shared.part_of(message) is None
    with pytest.raises(NotHeld):
        member.consumer.claim_of(message)
    member.consumer.ack(message)
    assert part.position() == 0

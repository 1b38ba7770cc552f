"""What is kept of a group by change is what a look at all of it would find."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marshal_py.consumer.assignor import Assignor
from marshal_py.protocol.balance import Unit, plan, weigh
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import (
    ClaimingPartition,
    ForgetGroup,
    Heartbeat,
    Message,
    MetadataEntry,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetPosition,
    encode,
)
from marshal_py.protocol.rationalizer import apply
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS, Observer, World

INTERVAL_MS: Final = 1_000
SKEW_MS: Final = 200
ME: Final = "a"
UNITS: Final[list[Unit]] = [(topic, p) for topic in "xy" for p in range(4)]
WANTS: Final = [
    Subscription(frozenset("xy")),
    Subscription(frozenset("x")),
    Subscription(frozenset("xy"), weight=2.0),
    Subscription(frozenset("xy"), by_lag=True),
    Subscription(frozenset("xy"), by_lag=True, max_claims=2),
]


class Group:
    """A log of one group, folded, with a client `ME` that reads it and plans."""

    def __init__(self, *, coordinators: int = 2) -> None:
        self.now_ns = 10**15
        self.coordinators = coordinators
        self.records: list[tuple[int, bytes, int]] = []
        self.instances = {name: f"{name}-0" for name in "abcd"}
        self.wants: dict[str, Subscription | None] = dict.fromkeys("abcd", WANTS[0])
        self.wants["d"] = None
        """A client that claims, and is no consumer."""
        self.seq = 0
        self.units = UNITS
        self.lags: dict[Unit, int] = {}
        self.read_anew()
        self.assignor = self.new_assignor()

    def read_anew(self) -> None:
        """Start with an empty world, as a client does whose log was truncated."""
        self.world = World(self.coordinators)
        self.observers = [Observer() for _ in range(self.coordinators)]
        for observer in self.observers:
            observer.caught_up_at_offset = 0
        self.records.clear()

    def new_assignor(self) -> Assignor:
        @contextlib.contextmanager
        def world() -> Iterator[World]:
            yield self.world

        group = self

        class Driver:
            def clock(self) -> int:
                return group.now_ns

            @property
            def observers(self) -> list[Observer]:
                return group.observers

        marshal: Any = SimpleNamespace(
            client_id=ME,
            group_id="g",
            instance_id=self.instances[ME],
            _driver=Driver(),
            world=world,
            settings=SimpleNamespace(cold_start_skew_ms=SKEW_MS),
        )
        return Assignor(marshal, self.wants[ME] or WANTS[0], settle_ms=100)

    def append(self, p: int, make: type[Message], name: str, *fields: Any) -> list[Event]:
        self.seq += 1
        record = make(2, name, self.instances[name], "g", self.seq, *fields)
        state, observer = self.world.states[p], self.observers[p]
        offset, events = state.next_offset, list[Event]()
        apply(state, offset, encode(record), events)
        observer.seen.note(offset, self.now_ns)
        observer.stamped.note(offset, self.now_ns // MS)
        self.assignor.is_affected_by(events)
        return events

    def claim(self, name: str, unit: Unit) -> None:
        version = self.world.version("g", *unit)
        p = self.world.home("g")
        self.append(p, ClaimingPartition, name, *unit, INTERVAL_MS, version)

    def release(self, name: str, unit: Unit) -> None:
        cell = self.world.cell("g", *unit)
        if cell is not None:
            p = self.world.home("g")
            self.append(p, ReleasingPartition, name, *unit, cell.epoch, -1)

    def beat(
        self,
        name: str,
        *,
        lag: int = 0,
        leaves: bool = False,
        claims: bool = True,
        interval_ms: int = INTERVAL_MS,
    ) -> None:
        home, wants = self.world.home("g"), self.wants[name]
        metadata = ClaimMetadata(cost=weigh(lag)).encode()
        entries = [
            MetadataEntry(cell.epoch, metadata)
            for cell in self.world.states[home].cells.values()
            if claims and cell.holder == name and cell.instance_id == self.instances[name]
        ]
        member = (2 if leaves else 1) if wants is not None else 0
        told = None if wants is None or member != 1 else wants.encode()
        if entries or member:
            self.append(home, Heartbeat, name, interval_ms, member, [], entries, told)

    def operate(self, what: str, unit: Unit) -> None:
        p = self.world.home("g")
        if what == "pause":
            self.append(p, ReleaseGroup, "d", (self.now_ns // MS) + 1_000_000)
        elif what in ("resume", "forget"):
            group = self.world.states[p].groups.get("g")
            pause = None if group is None else group.pause
            kind = ResumeGroup if what == "resume" else ForgetGroup
            self.append(p, kind, "d", -1 if pause is None else pause.version)
        elif what == "set":
            self.append(p, SetPosition, "d", *unit, 5, self.world.version("g", *unit))

    # What is there to be found

    def is_silent(self, version: int, interval_ms: int, observer: Observer) -> bool:
        seen_ns = observer.seen.at(version)
        return seen_ns is not None and self.now_ns - seen_ns > 2 * interval_ms * MS

    def look(self) -> tuple[dict[str, Subscription], dict[Unit, str | None], dict[Unit, int]]:
        """Look at everything: who lives, who holds what, and what it weighs."""
        home = self.world.home("g")
        members, observer = self.world.states[home].members, self.observers[home]
        me = members.get(("g", ME))
        subscribed, alive = set[str](), dict[str, Subscription]()
        for (_, name), member in members.items():
            wants = Subscription.decode(member.metadata)
            if wants is None:
                continue
            subscribed.add(name)
            was_dead = False
            if me is not None and me.instance_id == self.instances[ME]:
                own_ms = observer.stamped.at(me.version)
                last_ms = observer.stamped.at(member.version)
                assert own_ms is not None
                assert last_ms is not None
                was_dead = (
                    member.version < me.version and own_ms - last_ms > 2 * INTERVAL_MS + SKEW_MS
                )
            if not was_dead and not self.is_silent(member.version, member.interval_ms, observer):
                alive[name] = wants
        alive[ME] = self.assignor.subscription
        by_lag = all(wants.by_lag for wants in alive.values())
        holders, costs = dict[Unit, str | None](), dict[Unit, int]()
        for unit in self.units:
            cell, observer = self.world.cell("g", *unit), self.observers[home]
            holder = None if cell is None else cell.holder
            if cell is not None and holder not in (None, ME):
                version = self.world.version("g", *unit)
                is_silent = self.is_silent(version, cell.interval_ms, observer)
                if is_silent or (holder in subscribed and holder not in alive):
                    holder = None
            holders[unit] = holder
            published = 1 if cell is None else ClaimMetadata.decode(cell.metadata).cost
            costs[unit] = weigh(self.lags[unit]) if unit in self.lags else published
        return alive, holders, costs if by_lag else dict.fromkeys(holders, 1)

    def check(self) -> None:
        """The plan is that of a look at everything; so it is for who begins to look now."""
        alive, holders, costs = self.look()
        by_lag = all(wants.by_lag for wants in alive.values())
        expected = plan(ME, alive, holders, costs if by_lag else None)
        for assignor in (self.assignor, self.new_assignor()):
            assignor.subscription = self.assignor.subscription
            made = assignor.decide(self.units, self.lags)
            shares = assignor._view.shares
            assert (shares.members, shares.holders) == (alive, holders)
            assert shares.costs == costs
            view, held_by = assignor._view, dict[str, set[Unit]]()
            for unit, name in view._logged.items():
                held_by.setdefault(name, set()).add(unit)
            assert view._held_by == held_by, "of who holds nothing any more nothing is kept"
            assert all(view._doubted.values())
            assert made.plan == expected
            resume = [
                unit
                for unit in holders
                if (cell := self.world.cell("g", *unit)) is not None
                and cell.holder == ME
                and cell.instance_id != self.instances[ME]
            ]
            assert made.resume == tuple(sorted(resume))
            assert not assignor.is_due(), "nothing has happened since"
            now_ns = self.now_ns
            self.now_ns += int((min(assignor.due_in_s(), 100.0) - 0.0011) * 1e9)
            assert not assignor.is_due(), "nobody dies before that"
            self.now_ns = now_ns


names = st.sampled_from("abcd")
steps = st.one_of(
    st.tuples(st.just("beat"), names, st.sampled_from([0, 0, 100])),
    st.tuples(st.just("claim"), names, st.sampled_from(UNITS)),
    st.tuples(st.just("claim"), names, st.sampled_from(UNITS)),
    st.tuples(st.just("release"), names, st.sampled_from(UNITS)),
    st.tuples(st.just("wait"), st.sampled_from([300, 900, 1_100, 2_100]), st.none()),
    st.tuples(st.just("all beat"), st.none(), st.none()),
    st.tuples(st.just("member only"), names, st.none()),
    st.tuples(st.just("leave"), names, st.none()),
    st.tuples(st.just("wants"), st.sampled_from("abc"), st.sampled_from(WANTS)),
    st.tuples(st.just("restart"), st.sampled_from("bcd"), st.none()),
    st.tuples(st.just("units"), st.integers(0, 4), st.none()),
    st.tuples(
        st.just("operate"),
        st.sampled_from(["pause", "resume", "forget", "set"]),
        st.sampled_from(UNITS),
    ),
    st.tuples(st.just("lag"), st.sampled_from(UNITS), st.integers(0, 1_000)),
    st.tuples(st.just("read anew"), st.none(), st.none()),
)


def do(group: Group, what: str, one: Any, two: Any) -> None:
    if what == "beat":
        group.beat(one, lag=two)
    elif what == "claim":
        group.claim(one, two)
    elif what == "release":
        group.release(one, two)
    elif what == "wait":
        group.now_ns += one * MS
    elif what == "all beat":
        for name in "abcd":
            group.beat(name)
    elif what == "member only":
        group.beat(one, claims=False)
    elif what == "leave":
        group.beat(one, leaves=True)
    elif what == "wants":
        group.wants[one] = two
        if one == ME:
            group.assignor.subscription = two
    elif what == "restart":
        group.instances[one] += "'"
    elif what == "units":
        group.units = [unit for unit in UNITS if unit[1] < one or unit[0] == "y"]
    elif what == "operate":
        group.operate(one, two)
    elif what == "lag":
        group.lags = {one: two}
    else:
        group.read_anew()


@given(st.lists(steps, max_size=40), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_after_any_history_the_plan_is_that_of_a_look_at_everything(
    history: list[tuple[str, Any, Any]], every: int
) -> None:
    group = Group()
    for number, step in enumerate(history):
        do(group, *step)
        group.now_ns += 20 * MS
        if number % every == 0:
            group.check()
    group.check()


@pytest.mark.parametrize("seed", range(6))
def test_after_a_long_history_the_plan_is_that_of_a_look_at_everything(seed: int) -> None:
    order, group = random.Random(seed), Group(coordinators=1 + seed % 3)
    kinds = ["beat", "claim", "claim", "release", "wait", "all beat", "wants", "member only"]
    rare = ["leave", "restart", "units", "operate", "lag", "read anew"]
    for _ in range(300):
        what = order.choice(rare if order.random() < 0.2 else kinds)
        one: Any = order.choice("abcd")
        two: Any = order.choice(UNITS)
        if what == "beat":
            two = order.choice([0, 100])
        elif what == "wait":
            one = order.choice([300, 900, 1_100, 2_100])
        elif what == "wants":
            one, two = order.choice("abc"), order.choice(WANTS)
        elif what == "restart":
            one = order.choice("bcd")
        elif what == "units":
            one = order.randrange(5)
        elif what == "operate":
            one = order.choice(["pause", "resume", "forget", "set"])
        elif what == "lag":
            one, two = order.choice(UNITS), order.randrange(1_000)
        do(group, what, one, two)
        group.now_ns += 20 * MS
        group.check()


# By example: each is what a history of the kind above would meet once in a while


@pytest.mark.parametrize("skew_ms", [None, 200])
def test_a_member_that_is_silent_for_more_than_two_intervals_has_no_share(
    skew_ms: int | None,
) -> None:
    group = Group()
    group.assignor._marshal.settings.cold_start_skew_ms = skew_ms  # type: ignore[misc]
    for name in "ab":
        group.beat(name)
    group.now_ns += 2 * INTERVAL_MS * MS
    group.beat(ME)
    assert len(group.assignor.decide(UNITS).plan.claim) == 4
    assert not group.assignor.is_due()
    group.now_ns += 20 * MS
    assert group.assignor.is_due()
    assert len(group.assignor.decide(UNITS).plan.claim) == 8


def test_what_a_dead_member_held_is_free_before_its_claim_goes_stale() -> None:
    """What somebody else holds, who is no consumer, is left alone."""
    group = Group()
    for name in "ab":
        group.beat(name)
    group.now_ns += 1_500 * MS
    group.claim("b", ("x", 0))
    group.claim("d", ("x", 1))
    group.beat(ME)
    assert group.assignor.decide(UNITS).holders["x", 0] == "b"
    group.now_ns += 600 * MS
    assert group.assignor.is_due()
    made = group.assignor.decide(UNITS)
    assert (made.holders["x", 0], made.holders["x", 1]) == (None, "d")
    group.beat("b")
    assert group.assignor.is_due()
    assert group.assignor.decide(UNITS).holders["x", 0] == "b"


def test_whoever_was_dead_before_this_client_joined_has_no_share_once_it_has_joined() -> None:
    """The broker's clock tells, though this client has only just seen its last heartbeat."""
    group = Group()
    group.beat("b")
    home = group.world.home("g")
    group.now_ns += 10_000 * MS
    observer = group.observers[home] = Observer()
    observer.seen.note(0, group.now_ns)
    observer.stamped.note(0, group.now_ns // MS - 10_000)
    observer.caught_up_at_offset = 1
    assert len(group.assignor.decide(UNITS).plan.claim) == 4
    group.beat(ME)
    assert len(group.assignor.decide(UNITS).plan.claim) == 8


def test_what_others_want_is_heard_with_their_next_heartbeat() -> None:
    group = Group()
    for name in "ab":
        group.beat(name)
    assert len(group.assignor.decide(UNITS).plan.claim) == 4
    group.wants["b"] = Subscription(frozenset({"z"}))
    group.beat("b")
    assert group.assignor.is_due()
    assert len(group.assignor.decide(UNITS).plan.claim) == 8


def test_who_shortens_its_interval_is_missed_sooner() -> None:
    group = Group()
    for name in "ab":
        group.beat(name)
    group.assignor.decide(UNITS)
    group.beat("b", interval_ms=100)
    group.assignor.decide(UNITS)
    group.now_ns += 250 * MS
    assert group.assignor.is_due()
    assert len(group.assignor.decide(UNITS).plan.claim) == 8


def test_a_position_that_is_set_frees_the_unit() -> None:
    group = Group()
    for name in "ab":
        group.beat(name)
    group.claim("b", ("x", 0))
    assert group.assignor.decide(UNITS).holders["x", 0] == "b"
    group.operate("pause", ("x", 0))
    group.operate("set", ("x", 0))
    made = group.assignor.decide(UNITS)
    assert made.paused
    assert made.holders["x", 0] is None


def test_what_an_earlier_instance_holds_is_resumed_once() -> None:
    group = Group()
    group.claim(ME, ("x", 0))
    group.instances[ME] = "another"
    group.assignor = group.new_assignor()
    group.beat(ME)
    assert group.assignor.decide(UNITS).resume == (("x", 0),)
    group.claim(ME, ("x", 0))
    assert group.assignor.decide(UNITS).resume == ()


def test_costs_are_those_measured_last_and_otherwise_those_published() -> None:
    group = Group()
    group.wants[ME] = group.assignor.subscription = WANTS[3]
    group.claim(ME, ("x", 0))
    group.beat(ME, lag=100)
    shares = group.assignor._view.shares
    group.assignor.decide(UNITS, {})
    assert shares.costs["x", 0] == weigh(100)
    group.assignor.decide(UNITS, {("x", 0): 5, ("x", 1): 7})
    assert (shares.costs["x", 0], shares.costs["x", 1]) == (weigh(5), weigh(7))
    group.assignor.decide(UNITS, {("x", 0): 5})
    assert (shares.costs["x", 0], shares.costs["x", 1]) == (weigh(5), 1)
    group.assignor.decide(UNITS, {})
    assert shares.costs["x", 0] == weigh(100)


def test_a_group_that_is_forgotten_is_looked_at_anew() -> None:
    """Nobody held its cells, but what they were published to weigh is gone with them."""
    group = Group()
    group.wants[ME] = group.assignor.subscription = WANTS[3]
    group.claim(ME, ("x", 0))
    group.beat(ME, lag=100)
    group.release(ME, ("x", 0))
    group.assignor.decide(UNITS)
    group.operate("pause", ("x", 0))
    group.check()
    group.operate("forget", ("x", 0))
    assert group.world.cell("g", "x", 0) is None
    group.check()
    assert group.assignor._view.shares.costs["x", 0] == 1


def test_a_look_after_one_event_looks_at_one_unit() -> None:
    """However many there are: counted, not timed."""
    group = Group()
    units: list[Unit] = [("x", n) for n in range(1_000)]
    group.beat(ME)
    group.assignor.decide(units)
    looks: list[Unit] = []
    view = group.assignor._view
    look = view._look_at_unit

    def counted(world: World, unit: Unit, now_ns: int) -> bool:
        looks.append(unit)
        return look(world, unit, now_ns)

    view._look_at_unit = counted  # type: ignore[method-assign]
    group.claim("b", ("x", 500))
    group.assignor.decide(units)
    assert looks == [("x", 500)]
    for _ in range(10):
        group.assignor.decide(units)
        assert not group.assignor.is_due()
    assert len(looks) == 1

"""The harvester of an outbox in shards, on fakes: what it wants, gives up and stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core.actions import Finish, Start, Stop
from harvest.errors import StoreUnavailable
from harvest.runtime import harvester as module
from harvest.runtime.candidacy import Election, FairShare
from harvest.runtime.events import Event, LeaderAcquired, LeaderRevoked
from harvest.runtime.harvester import Harvester
from harvest.runtime.leadership import Leadership
from marshal_py.consumer.assignor import Decision
from marshal_py.protocol.balance import Plan, Unit

WAIT_S = 20.0


class FakeClaim:
    """A claim that the test decides on."""

    def __init__(self, held: bool) -> None:
        self.held = held
        self.epoch = 3
        self.reason: str | None = None
        self.released = 0

    remaining_ms = 1_000.0

    def wait_lost(self, timeout_s: float) -> bool:
        threading.Event().wait(timeout_s)
        return False

    def release(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        del wait, timeout_s
        self.released += 1


class FakeMarshal:
    """Makes a claim for each wish, held at once if `grants`."""

    group_id, client_id = "g", "me"
    settings = SimpleNamespace(interval_ms=100)

    def __init__(self, grants: bool) -> None:
        self.grants = grants
        self.claims: list[FakeClaim] = []

    def want(self, topic: str, partition: int) -> FakeClaim:
        del topic, partition
        self.claims.append(FakeClaim(self.grants))
        return self.claims[-1]

    def set_member_metadata(self, metadata: bytes) -> None: ...

    def listen(self, listener: object) -> Callable[[], None]:
        del listener
        return lambda: None


class FakeLeader:
    """Leads until the test lets it end; it was revoked if it had been told to stop."""

    threads = ()
    running = True
    in_flight_records = 0

    def __init__(self) -> None:
        self.scheduler = self
        self.begun, self.told = threading.Event(), threading.Event()
        self.leadership: Leadership | None = None
        self.may_end = False

    def let_go(self) -> None:
        self.may_end = True
        if self.leadership is not None:
            self.leadership.report("go on")

    def step(self, event: object) -> list[Finish]:
        if isinstance(event, Start):
            self.begun.set()
        if isinstance(event, Stop):
            self.told.set()
        return [Finish("let go")] if self.may_end else []

    def observe(self, event: object) -> None: ...

    def every_tick(self) -> None: ...

    def due_s(self) -> float:
        return time.monotonic() + 2 * WAIT_S  # longer than a test that fails waits for anything

    def close(self) -> None: ...


class FakeTools:
    """Of one shard. Connecting lasts until the test lets it end, if `slow`."""

    def __init__(self) -> None:
        self.made = FakeLeader()
        self.slow = False
        self.connecting, self.connected = threading.Event(), threading.Event()

    def connect(self) -> None:
        self.connecting.set()
        assert not self.slow or self.connected.wait(WAIT_S)

    def leader(self, leadership: Leadership) -> FakeLeader:
        self.made.leadership = leadership
        return self.made

    def close(self) -> None: ...


class Bench:
    """A harvester of `shards` shards that sees what the test shows it."""

    def __init__(self, shards: int = 1, *, grants: bool = False) -> None:
        self.units: tuple[Unit, ...] = tuple(("outbox", number) for number in range(shards))
        self.marshal = FakeMarshal(grants)
        self.tools = [FakeTools() for _ in range(shards)]
        self.leaders = [tools.made for tools in self.tools]
        self.events: list[Event] = []
        client: Any = self.marshal
        tools: Any = self.tools.__getitem__
        self.candidacy = FairShare(client, "outbox", shards)
        self.harvester = Harvester(self.candidacy, tools, on_event=self.events.append)
        self.show(Plan(claim=self.units))

    def show(self, plan: Plan, holders: dict[Unit, str | None] | None = None) -> None:
        seen = Decision(plan, (), holders or {}, paused=False, settling=False)
        assignor: Any = SimpleNamespace(decide=lambda _: seen)
        self.candidacy._assignor = assignor

    def round(self) -> None:
        self.harvester._round()

    def lead(self) -> None:
        """Until every shard has its leader at work."""
        self.round()  # wants them
        self.round()  # finds that they are held
        assert all(leader.begun.wait(WAIT_S) for leader in self.leaders)

    def end(self, number: int) -> None:
        """Let the leader of a shard end, and wait until its thread has."""
        self.leaders[number].let_go()
        thread = self.harvester._led[number].thread
        thread.join(WAIT_S)
        assert not thread.is_alive()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.harvester.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            for tools in self.tools:
                tools.connected.set()
                tools.made.let_go()
            self.harvester.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


# --- What is wanted ---


def test_a_claim_that_came_to_nothing_is_made_again() -> None:
    bench = Bench()
    bench.round()
    bench.round()
    (claim,) = bench.marshal.claims
    claim.reason = "taken over before its leader began"
    bench.round()
    assert len(bench.marshal.claims) == 2
    bench.round()
    assert len(bench.marshal.claims) == 2


def test_what_others_got_is_not_wanted_any_more() -> None:
    bench = Bench()
    bench.round()
    (claim,) = bench.marshal.claims
    elsewhere: dict[Unit, str | None] = {("outbox", 0): "somebody else"}
    bench.show(Plan(claim=bench.units), elsewhere)
    bench.round()
    assert claim.released == 0
    bench.show(Plan(), elsewhere)
    bench.round()
    assert claim.released == 1


def test_shards_that_cannot_reach_the_database_are_all_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(2, grants=True)
    bench.lead()
    for leader in bench.leaders:
        assert leader.leadership is not None
        leader.running = False
        leader.leadership.failed("%s", StoreUnavailable())
    monkeypatch.setattr(module, "_CUT_OFF_S", -1.0)
    bench.round()
    assert all(led.stopping for led in bench.harvester._led.values())
    for number in (0, 1):
        bench.end(number)
    down = True

    def connect() -> None:
        if down:
            raise StoreUnavailable

    monkeypatch.setattr(bench.tools[0], "connect", connect)
    bench.round()
    assert [claim.released for claim in bench.marshal.claims] == [1, 1]
    assert len(bench.marshal.claims) == 2, "it stands for nothing"
    down = False
    bench.harvester._tries_s = float("-inf")
    bench.round()
    assert len(bench.marshal.claims) == 4


def test_a_shard_that_could_not_reach_the_database_is_wanted_again_while_another_is_led(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no other process has it, nobody would publish its rows any more."""
    bench = Bench(2, grants=True)
    bench.lead()
    cut_off = bench.leaders[1]
    assert cut_off.leadership is not None
    cut_off.running = False
    cut_off.leadership.failed("%s", StoreUnavailable())
    monkeypatch.setattr(module, "_CUT_OFF_S", 0.0)
    bench.round()
    assert [led.stopping for led in bench.harvester._led.values()] == [False, True]
    bench.end(1)
    bench.round()
    assert [claim.released for claim in bench.marshal.claims] == [0, 1, 0]
    bench.end(0)


def test_a_shard_whose_leader_has_ended_is_given_back_and_wanted_anew() -> None:
    bench = Bench(grants=True)
    bench.lead()
    bench.marshal.grants = False
    bench.end(0)
    bench.round()
    assert [claim.released for claim in bench.marshal.claims] == [1, 0]


# --- What goes ---


def test_a_shard_that_goes_is_stopped_and_the_next_one_waits_for_it() -> None:
    bench = Bench(2, grants=True)
    bench.lead()
    for number in (1, 0):
        bench.show(Plan(give_up=bench.units[number]))
        bench.round()
    first, second = bench.leaders
    assert second.told.wait(WAIT_S)
    assert not first.told.is_set()
    assert [led.stopping for led in bench.harvester._led.values()] == [False, True]
    assert [claim.released for claim in bench.marshal.claims] == [0, 0], "not before it has ended"
    for number in (1, 0):
        bench.end(number)


def test_a_stop_finishes_what_is_in_flight_before_the_claim_is_given_back() -> None:
    bench = Bench(grants=True)
    (leader,) = bench.leaders
    with bench.running():
        assert leader.begun.wait(WAIT_S)
        bench.harvester.stop()
        assert leader.told.wait(WAIT_S)
        (claim,) = bench.marshal.claims
        assert claim.released == 0
        leader.let_go()
    assert claim.released == 1
    assert bench.events == [LeaderAcquired(3), LeaderRevoked(3)]


def test_a_stop_reaches_a_leader_that_begins_just_now() -> None:
    bench = Bench(2, grants=True)
    late, early = bench.leaders
    bench.tools[0].slow = True
    with bench.running():
        assert bench.tools[0].connecting.wait(WAIT_S)
        assert early.begun.wait(WAIT_S)
        bench.harvester.stop()
        assert early.told.wait(WAIT_S)  # and shard 0, which has no leader yet, before it
        bench.tools[0].connected.set()
        assert late.told.wait(WAIT_S)


# --- Without shards ---


def test_who_led_an_outbox_without_shards_hands_over_and_stands_again() -> None:
    client: Any = FakeMarshal(grants=True)
    election = Election(client, "outbox")
    assert election.stand([]) is None
    ((shard, _),) = election.elected()
    assert (shard, election.elected()) == (0, [])
    assert election.stand([0]) is None  # it leads: nothing to stand for
    election.resign(0)
    election.stand([])
    assert [claim.released for claim in client.claims] == [1, 0]


def test_a_leader_that_cannot_work_is_told_of_though_others_work() -> None:
    bench = Bench(2, grants=True)
    bench.lead()
    assert bench.harvester.stuck_s == 0
    bench.leaders[1].running = False
    assert bench.harvester.stuck_s > 0
    for number in range(2):
        bench.end(number)
    assert bench.harvester.stuck_s == 0

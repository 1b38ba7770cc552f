"""The claimant against everything that hypothesis thinks of: three clients, two cells, one log.

The simulator looks for the same mistakes with better faults, and faster. Here hypothesis chooses
each single step, shrinks what fails to a few lines, and keeps it.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from marshal_py.errors import MarshalError
from marshal_py.protocol.claimant import Append, ClaimState, Holding
from marshal_py.protocol.messages import ReleaseGroup, ResumeGroup
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import World
from tests.support.claimant_harness import INTERVAL_MS, MARGIN_MS, Bench, Client

NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)
cells = st.integers(0, 1)
waits_ms = st.sampled_from((10, 100, 900, INTERVAL_MS, 2 * INTERVAL_MS + 1))


class Claims(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 2))
    def start(self, partitions: int) -> None:
        self.bench = Bench(partitions)
        self.clients = {name: self._client(name, 1) for name in NAMES}
        self.numbers = dict.fromkeys(NAMES, 1)
        self.on_the_way: dict[str, list[Append]] = {name: [] for name in NAMES}
        self.holdings: dict[str, list[Holding]] = {name: [] for name in NAMES}

    def _client(self, name: str, number: int) -> Client:
        return self.bench.client(name, str(number), member=name != "c")

    def _collect(self, name: str) -> None:
        self.on_the_way[name] += self.clients[name].appends()

    # What users do

    @rule(name=names, cell=cells)
    def want(self, name: str, cell: int) -> None:
        holding = self.clients[name].want("t", cell)
        if holding not in self.holdings[name]:
            self.holdings[name].append(holding)
        self._collect(name)

    @rule(name=names, n=st.integers(0, 9))
    def release(self, name: str, n: int) -> None:
        held = self.holdings[name]
        if held:
            self.clients[name].release(held[n % len(held)])
            self._collect(name)

    @rule(name=names, n=st.integers(0, 9), offset=st.integers(0, 20), flush=st.booleans())
    def commit(self, name: str, n: int, offset: int, flush: bool) -> None:
        held = self.holdings[name]
        if held:
            client, holding = self.clients[name], held[n % len(held)]
            try:
                client.claimant.commit(holding, offset, self.bench.now_ns, flush=flush)
            except MarshalError:
                assert holding.state not in (ClaimState.HELD, ClaimState.LAPSED)
            self._collect(name)

    # What the world does

    @rule(ms=waits_ms)
    def time_passes(self, ms: int) -> None:
        self.bench.wait(ms)

    @rule(name=names)
    def run(self, name: str) -> None:
        """All is well for a moment: the process reads, sends, and reads what it sent."""
        self.arrive(name, 99)
        self.clients[name].turn()

    @rule(name=names, limit=st.sampled_from((0, 1, 2, None)))
    def turn(self, name: str, limit: int | None) -> None:
        if limit != 0:
            self.clients[name].read(limit)
        self._collect(name)

    @rule(name=names, count=st.integers(1, 5))
    def arrive(self, name: str, count: int) -> None:
        arriving, self.on_the_way[name] = (
            self.on_the_way[name][:count],
            self.on_the_way[name][count:],
        )
        self.clients[name].put(arriving)

    @precondition(lambda self: any(self.on_the_way.values()))
    @rule(name=names, written=st.booleans())
    def fail(self, name: str, written: bool) -> None:
        failing, self.on_the_way[name] = self.on_the_way[name][:1], self.on_the_way[name][1:]
        if written:
            self.clients[name].put(failing)
        self.clients[name].fail(failing)
        self._collect(name)

    @precondition(lambda self: sum(self.numbers.values()) < 6)
    @rule(name=names)
    def restart(self, name: str) -> None:
        """The process dies, with what it had sent on the way; another one starts."""
        self.numbers[name] += 1
        self.on_the_way[name] = []
        self.holdings[name] = []
        self.clients[name] = self._client(name, self.numbers[name])

    @rule(pausing=st.booleans())
    def operator(self, pausing: bool) -> None:
        home = World(len(self.bench.log.partitions)).home("g")
        if pausing:
            self.bench.paused_at = self.bench.write(ReleaseGroup(2, "op", "op.1", "g", 0, 0), home)
        else:
            self.bench.write(ResumeGroup(2, "op", "op.1", "g", 0, self.bench.paused_at), home)

    # What holds

    @invariant()
    def nobody_acts_on_what_is_not_his(self) -> None:
        if not hasattr(self, "clients"):
            return
        truth = self._truth()
        for name in NAMES:
            for holding in self.holdings[name]:
                if self.clients[name].held(holding):
                    cell = truth[holding.coordinator].cells[("g", *holding.key)]
                    assert cell.epoch == holding.epoch
                    assert cell.instance_id == self.clients[name].claimant.instance_id

    @invariant()
    def leases_are_short(self) -> None:
        if not hasattr(self, "clients"):
            return
        longest = (self.bench.now_ms + 2 * INTERVAL_MS - MARGIN_MS) * 1_000_000
        for held in self.holdings.values():
            assert all(holding.lease_until_ns <= longest for holding in held)

    def _truth(self) -> list[PartitionState]:
        states = []
        for p, partition in enumerate(self.bench.log.partitions):
            state = PartitionState(p)
            for offset, value in zip(partition.offsets, partition.values, strict=True):
                apply(state, offset, value)
            states.append(state)
        return states

    def teardown(self) -> None:
        """When everything works again, everything that is wanted is held, by one client each."""
        if not hasattr(self, "clients"):
            return
        self.operator(pausing=False)
        for name in NAMES:
            self.clients[name].put(self.on_the_way[name])
        first, *others = self.clients.values()
        first.pass_time(4 * INTERVAL_MS, *others, step_ms=100)
        wanted: dict[tuple[str, int], list[Client]] = {
            h.key: [] for c in self.clients.values() for h in c.claimant.holdings()
        }
        for client in self.clients.values():
            for holding in client.claimant.holdings():
                if client.held(holding):
                    wanted[holding.key].append(client)
        assert all(len(holders) == 1 for holders in wanted.values()), wanted


TestClaims = Claims.TestCase
TestClaims.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

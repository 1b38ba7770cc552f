"""What the program does that uses a claimant: want, act, commit, claim messages, release, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from marshal_py.errors import Closed, DuplicateClientId, NotHeld
from marshal_py.protocol.claimant import ClaimState, Holding, Notice
from marshal_py.protocol.rationalizer import Cell
from tests.simulation.common import MS, US, cell_of

if TYPE_CHECKING:
    from tests.simulation.process import Process

_HOLDERS = (ClaimState.HELD, ClaimState.LAPSED)


class Batch(NamedTuple):
    """Messages [start, stop) that are claimed for delivery at most once."""

    holding: Holding
    start: int
    stop: int
    since_ns: int


class User:
    """The user's program in one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.sim = process.sim
        self.spec = process.spec
        self.claimant = process.claimant
        self.holdings: list[Holding] = []
        """What was wanted and has not ended."""
        self.wanted_ever: set[Holding] = set()
        self.given_up: set[int] = set()
        self.batches: dict[int, Batch] = {}
        self.batch_at: dict[Holding, int] = {}
        self.stored: dict[Holding, int] = {}
        self.heard_of_twin = False
        self.failed_before_leaving: int | None = None

    @property
    def now(self) -> int:
        return self.process.clock.at(self.sim.now)

    def true_cell(self, holding: Holding) -> Cell | None:
        """What the log, not this process, knows of the cell."""
        truth = self.sim.truth[holding.coordinator]
        return cell_of(truth, self.process.group_id, holding.key)

    # Wanting and giving up

    def want_all(self) -> None:
        for key in self.spec.keys:
            self.want(key)

    def want(self, key: int) -> None:
        self.given_up.discard(key)
        topic, partition = self.sim.scenario.keys[key]
        try:
            holding = self.claimant.want(topic, partition, self.now)
        except (Closed, DuplicateClientId):
            return
        if holding not in self.wanted_ever:
            self.wanted_ever.add(holding)
            self.holdings.append(holding)

    def want_again(self, key: int) -> None:
        gone = self.process.dead or self.process.told_to_stop
        if not gone and key not in self.given_up:
            self.process.call(self.want, key)

    def release(self, key: int) -> None:
        self.given_up.add(key)
        for holding in self.holdings:
            if holding.key == self.sim.scenario.keys[key]:
                self.sim.fired[f"release_{holding.state.value}"] += 1
                self.claimant.release(holding, self.now)

    def leave(self) -> None:
        self.given_up.update(self.spec.keys)
        self.failed_before_leaving = self.process.appends_failed
        self.claimant.leave(self.now)

    # Hearing

    def hear(self, notice: Notice, now: int) -> None:
        sim, process = self.sim, self.process
        kind, holding = notice.kind, notice.holding
        sim.counts[kind] += 1
        sim.hash.update(f"{sim.now} {process.name} {kind} {holding!r}".encode())
        if sim.trace is not None and kind != "waiting":
            sim.tell(process.name, f"hears {kind} {holding!r} {notice.detail}")
        sim.checker.notice(process, notice)
        over = holding.state is ClaimState.LAPSED and not holding.paused
        if kind in ("acquired", "regained") and over:
            sim.checker.fail("held is announced", f"{process.name} {kind}, and it is over")
        if kind == "acquired":
            self.stored[holding] = holding.stored_offset
            if self.spec.work == "amo":
                self.batch_at[holding] = max(holding.next_offset, holding.claimed_offset, 0)
                self._claim_batch(holding, now)
        elif kind == "stored":
            self.stored[holding] = notice.number
        elif kind == "messages_claimed":
            batch = self.batches.pop(notice.number, None)
            if batch is not None and holding.held(now):
                sim.checker.deliver(process, notice.number, batch.start, batch.stop)
                sim.counts["batches delivered at most once"] += 1
                self.batch_at[holding] = batch.stop
        elif kind == "messages_rejected":
            batch = self.batches.pop(notice.number, None)
            if batch is not None and notice.detail in ("unknown outcome", "offset_not_ahead"):
                self.batch_at[holding] = batch.stop  # perhaps it was ours: never deliver it
        elif kind == "duplicate_client_id":
            self.heard_of_twin = True
        elif kind in ("lost", "released"):
            self._go_on(holding)

    def _go_on(self, holding: Holding) -> None:
        """A claim has ended: want it again soon, unless it was given up."""
        key = self.sim.scenario.keys.index(holding.key)
        if key not in self.given_up and not self.claimant.leaving:
            again = int((0.01 + 0.3 * self.sim.noise()) * self.spec.interval_ms * MS)
            self.sim.at(self.sim.now + again, self.want_again, key)

    # Acting

    def work(self) -> None:
        """What a consumer does from time to time: act, commit, claim messages."""
        sim, process = self.sim, self.process
        if process.dead:
            return
        sim.at(sim.now + self.spec.work_every_us * US, self.work)
        if sim.now < process.frozen_until:
            return
        now = self.now
        for holding in list(self.holdings):
            if holding.held(now):
                self._act(holding, now)
            elif holding.state not in _HOLDERS and sim.noise() < 0.1:
                self._try_what_only_holders_may(holding, now)
        process.step()

    def _act(self, holding: Holding, now: int) -> None:
        sim, process = self.sim, self.process
        sim.checker.may_act(process, holding, "acts on")
        sim.counts["actions"] += 1
        if sim.noise() < 0.15:
            self.claimant.set_metadata(holding, b"%d" % (sim.now % 997))
        is_stormy = not sim.healed
        if is_stormy and self.spec.work == "alo" and sim.noise() < 0.01 and holding.next_offset > 0:
            # Its topic was made anew: it stops acting, and claims again when that is in the log.
            self.claimant.set_position(holding, holding.next_offset // 2, now)
            return
        if self.spec.work == "alo":
            before = holding.next_offset
            at = max(before, holding.claimed_offset, 0) + int(sim.noise() * 7) - 2
            self.claimant.commit(holding, max(0, at), now, flush=sim.noise() < 0.3)
            if holding.next_offset < before:
                sim.checker.fail("commits go up", f"{process.name} {holding!r}: {before} → {at}")
        elif self.spec.work == "amo":
            self._claim_batch(holding, now)

    def _try_what_only_holders_may(self, holding: Holding, now: int) -> None:
        for attempt in ("commit", "claim_messages"):
            try:
                if attempt == "commit":
                    self.claimant.commit(holding, 1, now, flush=False)
                else:
                    self.claimant.claim_messages(holding, 1, now)
            except NotHeld:
                continue
            self.sim.checker.fail("only holders", f"{self.process.name} {attempt} {holding!r}")

    def _claim_batch(self, holding: Holding, now: int) -> None:
        start = self.batch_at.get(holding)
        if start is None or any(batch.holding is holding for batch in self.batches.values()):
            return
        stop = start + 1 + int(self.sim.noise() * 9)
        try:
            seq = self.claimant.claim_messages(holding, stop, now)
        except NotHeld:
            return
        self.batches[seq] = Batch(holding, start, stop, self.sim.now)

    def slow_act(self, span_ns: int) -> None:
        """Look, be suspended, act: what no lease can prevent, and the epoch must fence."""
        sim, process = self.sim, self.process
        if sim.now < process.frozen_until:
            return
        now = self.now
        about_to = [(h, h.epoch) for h in self.holdings if h.held(now)]
        if about_to:
            sim.fired["suspended_before_acting"] += 1
            process.freeze(span_ns)
            sim.at(process.frozen_until, self._act_late, about_to)

    def _act_late(self, about_to: list[tuple[Holding, int]]) -> None:
        sim = self.sim
        if self.process.dead:
            return
        for holding, epoch in about_to:
            cell = self.true_cell(holding)
            if cell is not None and cell.epoch != epoch:
                sim.counts["zombies"] += 1
                if epoch > cell.epoch and sim.scenario.fenced:
                    sim.checker.zombie(self.process, holding, cell)

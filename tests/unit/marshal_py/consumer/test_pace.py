"""At most once: what a crash may cost, at any pace, and from the first message on."""

from __future__ import annotations

import heapq
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.consumer import at_most_once
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim, consumer, part_of, run_of

THERE = 10**7
PACES_S = (0.000_02, 0.000_2, 0.002, 0.02, 0.05, 0.2, 1.0, 5.0)


class World:
    """A consumer of one endless partition, whose proposals are all accepted, in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer_s: float) -> None:
        self.now_s = 100.0
        self.answer_s = answer_s
        monkeypatch.setattr(at_most_once, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.claim = FakeClaim()
        self.claim._core.propose = self.propose
        self.part = part_of(self.claim)
        self.part.end = THERE
        self.part.begin = lambda run: None  # type: ignore[method-assign]
        made = consumer("at_most_once")
        self.delivery: Any = made.delivery
        made.fetcher.active[self.part.key] = self.part
        made.fetcher.fetch = self.fetch
        self.fetcher = made.fetcher
        self.next_offset = 0
        self.proposed = 0
        self.done = self.expected = 0
        monkeypatch.setattr(self.delivery, "_decided", SimpleNamespace(clear=int, wait=self.wait))
        # As a consumer begins.
        self.delivery._pace, self.delivery._proposal_size = 0.0, 1
        self.delivery._unfetched_size = 1
        self.delivery._paced = (self.now_s, 0, 0.0)

    def propose(self, end: int) -> int:
        assert end > self.proposed, "it would be rejected"
        self.proposed = end
        return end

    def wait(self, _: float) -> None:
        """The log answers."""
        self.now_s += self.answer_s
        self.claim.claimed_offset = self.claim.position = self.proposed

    def fetch(self, most: int, _: float = 0.0) -> int:
        offsets = range(self.next_offset, self.next_offset + most)
        self.next_offset += most
        self.fetcher._add(self.part, run_of(self.part, *offsets).messages)
        return most

    def next_run(self) -> Any:
        while (run := self.delivery.next_run()) is None:
            if self.delivery.is_full:
                return None
            self.fetch(self.delivery.fetch_size)
        self.delivery.began()
        offsets = [message.offset() for message in run.messages]
        assert offsets == list(range(self.expected, self.expected + len(offsets)))
        self.expected += len(offsets)
        return run


@pytest.mark.parametrize("takes_s", PACES_S)
def test_a_loop_has_no_more_claimed_than_a_crash_may_cost(
    monkeypatch: pytest.MonkeyPatch, takes_s: float
) -> None:
    world = World(monkeypatch, answer_s=0.003)
    most = 1 + 0.1 / takes_s + 1
    began_s, worked_s = world.now_s, 0.0
    while worked_s < max(0.5, 20 * takes_s):
        run = world.next_run()
        assert world.proposed - world.done <= most
        for _ in run.messages:
            world.now_s += takes_s
            worked_s += takes_s
            world.done += 1
    # And it is not kept from working: it waits for the log less than it works.
    assert world.now_s - began_s < 2 * worked_s


def test_a_few_quick_messages_at_first_are_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is kept waiting from then on has no more claimed than it has done."""
    world = World(monkeypatch, answer_s=0.003)
    while world.done < 300:
        run = world.next_run()
        assert world.proposed - world.done <= 1 + world.done + 1
        for _ in run.messages:
            world.now_s += 0.000_02
            world.done += 1


def test_a_loop_that_is_stopped_now_and_then_is_not_taken_for_as_fast_as_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine that others use, too: 20 ms of work, then 40 ms for others."""
    world = World(monkeypatch, answer_s=0.003)
    began_s, worked_s = world.now_s, 0.0
    while world.done < 3_000:
        run = world.next_run()
        if world.done >= 600:
            pace = world.done / (world.now_s - began_s)
            assert world.proposed - world.done <= 1 + 0.1 * pace + 1
        for _ in run.messages:
            world.now_s += 0.000_2
            worked_s += 0.000_2
            world.done += 1
            if world.done % 100 == 0:
                world.now_s += 0.04
    assert world.now_s - began_s < 4 * worked_s


@pytest.mark.parametrize("takes_s", PACES_S)
@pytest.mark.parametrize("workers", [1, 16])
def test_handlers_have_no_more_claimed_than_a_crash_may_cost(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, workers: int
) -> None:
    world = World(monkeypatch, answer_s=0.003)
    waiting: list[Any] = []
    running: list[float] = []
    world.delivery.serve(workers, lambda: len(waiting) + len(running))
    most = workers + workers * 0.1 / takes_s + 1
    end_s = world.now_s + max(2.0, 12 * takes_s)
    turns = 0
    while world.now_s < end_s and turns < 20_000:
        turns += 1
        while running and running[0] <= world.now_s:
            heapq.heappop(running)
            world.done += 1
            world.delivery.done(1, takes_s)
        while waiting and len(running) < workers:
            waiting.pop()
            heapq.heappush(running, world.now_s + takes_s)
        run = world.next_run() if len(waiting) < workers else None
        assert world.proposed - world.done <= most
        if run is not None:
            waiting += run.messages
        elif running:
            world.now_s = max(world.now_s, running[0])
    assert world.done > 0


def test_handlers_that_end_all_at_once_are_not_taken_for_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, answer_s=0.003)
    world.delivery.serve(16, lambda: 0)
    world.now_s += 5.0
    world.delivery.done(16, 5.0)
    world.delivery._measure_handlers()
    assert world.delivery._pace == 0, "three turns are not over"
    world.now_s += 10.0
    world.delivery.done(32, 5.0)
    world.delivery._measure_handlers()
    assert world.delivery._pace == pytest.approx(3.2)

"""At least once: what is fetched goes out, and what is stored is the lowest offset not yet done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from marshal_py.client.claim import core_of
from marshal_py.consumer.fetcher import MAX_FETCH, Fetcher
from marshal_py.consumer.held_partition import HeldPartition, Run, Stage
from marshal_py.consumer.parked import Parked
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.protocol.claimant import Notice

__all__ = ["AtLeastOnce"]


class AtLeastOnce:
    """Hands out what `fetcher` brings, while the lease stands. See `Delivery`."""

    claims_messages: Final = False
    dropped: Final = 0
    fetch_size: Final = MAX_FETCH
    awaits_log: Final = False
    is_full: Final = False
    owes: Final = False

    def __init__(self, fetcher: Fetcher, wakeup: Wakeup) -> None:
        self.is_behind = False
        self._fetcher = fetcher
        self._wakeup = wakeup
        self._ready: deque[Run] = deque()
        self._parked = Parked()
        fetcher.collect_in(self._ready)

    def next_run(self) -> Run | None:
        """Return the next run that was fetched and may be handed out."""
        if self._parked:
            self._unpark()
        ready = self._ready
        while ready:
            run = self._take()
            part = run.part
            if not self.delivers(part):
                continue
            if part.parked or part.is_paused or not part.claim.held:
                self._parked.add(run)
                # The assignment may be in a callback of the program, and see to nothing.
                self._fetcher.suspend(part, not part.claim.held)
                continue
            within = run if part.range is None else part.within(run)
            rest = None if within is None else part.without_done(within)
            if rest is not None:
                return rest
        return None

    def _take(self) -> Run:
        """Take what comes next: of a partition's ranges the lowest, what waits for longest.

        A range that was taken over, or given back by another member, goes before those ahead.
        """
        ready = self._ready
        part = ready[0].part
        if part.range is None:
            return ready.popleft()
        found = 0
        for at, run in enumerate(list(ready)):  # others may add to its end meanwhile
            if run.part.source == part.source and run.part.first_offset < part.first_offset:
                found, part = at, run.part
        run = ready[found]
        del ready[found]
        return run

    def _unpark(self) -> None:
        """Take up what was put back when leases lapsed, where they have been regained."""
        for part in self._parked.partitions():
            is_gone = core_of(part.claim).ended.is_set() or not self.delivers(part)
            if is_gone or (part.claim.held and not part.is_paused):
                if not is_gone:
                    self._ready.extendleft(reversed(part.parked))
                    self._fetcher.suspend(part, False)
                self._parked.clear(part)

    def began(self) -> None:
        """Nothing depends on it."""

    def delivers(self, part: HeldPartition) -> bool:
        """Whether `part` is not being given back."""
        return part.stage is Stage.ACTIVE

    def park(self, run: Run) -> None:
        """Keep what could not go out until the lease is regained."""
        self._parked.add_first(run)

    def take_back(self, run: Run) -> None:
        """Have what was not taken go out first."""
        self._ready.appendleft(run)

    def end(self) -> None:
        """There are no claims of messages to end."""

    def drop(self, count: int) -> None:
        """They are delivered again."""

    def close(self, in_hand: Run | None) -> None:
        """What did not go out is delivered again."""

    def serve(self, workers: int, in_hands: Callable[[], int]) -> None:
        """Nothing depends on it."""

    def done(self, count: int, took_s: float) -> None:
        """Nothing depends on it."""

    def has_claimed(self, part: HeldPartition) -> bool:  # noqa: ARG002 (see `Delivery`)
        """Never: messages are not claimed."""
        return False

    def position(self, part: HeldPartition) -> int:
        """Return the lowest offset that is not done."""
        return part.position()

    def give_up(self, part: HeldPartition) -> None:
        """What was fetched of it is passed over."""

    def on_notice(self, notice: Notice) -> None:
        """Have the assignment look at whatever happened to a claim."""
        if notice.kind != "stored":
            self._wakeup.wake()

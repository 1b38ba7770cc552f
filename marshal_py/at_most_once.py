"""At most once: messages are claimed in the log before they are handed out (PROTOCOL.md §5.11).

Runs that were fetched are gathered, and those of a partition proposed together, some ahead of the
loop, so that throughput does not pay a round trip for each. A run goes out once the log has
accepted its proposal, and while the lease stands; if its lease lapses, it is parked, and goes out,
in order, when that is regained.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from marshal_py.claims import Notice
from marshal_py.client import Marshal
from marshal_py.delivery import HeldPartition, Run, Runs, Stage
from marshal_py.errors import Closed, MarshalError, NotHeld
from marshal_py.fetching import FETCH, Fetching

__all__ = ["IDLE_WAIT_S", "AtMostOnce"]


IDLE_WAIT_S: Final = 0.02
"""An idle loop looks up so often: for new partitions, Ctrl-C, `close`, claims that came back."""

TARGET_S: Final = 0.025
"""A proposal should claim about so much work, so that a crash loses little."""

AHEAD: Final = 3
"""So many proposals' worth is gathered, being claimed, or claimed ahead, while the loop works: the
log answers in milliseconds, in which a fast loop takes thousands of messages."""

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""With so many bytes gathered or claimed ahead, as in a few large messages, nothing is added."""

MAX_PROPOSAL: Final = 2_000
MIN_PROPOSAL: Final = 10


class AtMostOnce(Fetching):
    """The part of a `Consumer` that claims messages, and knows which of them it was given."""

    def __init__(
        self,
        marshal: Marshal,
        kafka: Mapping[str, Any] | None,
        *,
        batch_size: int,
        at_most_once: bool,
    ) -> None:
        super().__init__(marshal, kafka, batch_size=batch_size)
        self.dropped = 0
        """At most once: messages that were claimed and never handed out, as the claim was lost."""
        self._amo = at_most_once
        self._proposal_size = min(100, batch_size)
        self._gathered = Runs()
        if at_most_once:
            self._ready = self._gathered
        self._proposed = Runs()
        self._message_bytes = 1024 * 1024
        """The mean size of the last messages that were fetched; as large as may be, at first."""
        self._parked: list[HeldPartition] = []
        """Of which runs were put back, as the lease had lapsed (at least once, too)."""
        self._passing: HeldPartition | None = None
        """Whose run the loop has just taken, and not begun with. If the keeper gave the partition
        back then, what was claimed would be lost."""
        self._handed: tuple[int, float] | None = None
        """How many messages the loop was given last, and when."""
        self._worked = 0
        self._worked_s = 0.0
        """How many messages the loop took since `_proposal_size` was last thought over, and how
        long that took it."""
        self._verdicts: dict[int, str] = {}
        self._decided = threading.Event()
        self._closing = threading.Event()
        self._is_ending = False
        """`run` winds up, and claims no more messages."""

    def _next_claimed(self) -> Run | None:
        """The next run that the log has given to us; keeps the one after it in flight."""
        if self._handed is not None:
            self._adapt(*self._handed)
            self._handed = None
        self._top_up()
        while self._proposed:
            run = self._proposed[0]
            verdict = self._verdict(run)
            if verdict is None:
                self._decided.clear()
                if self._verdict(run) is None:
                    self._decided.wait(IDLE_WAIT_S)
                if self._verdict(run) is None:
                    return None
                continue
            self._passing = run.part
            self._proposed.popleft()
            if not (self._proposed and self._proposed[0].seq == run.seq):
                self._verdicts.pop(run.seq, None)
            if verdict and run.part.claim.held and not run.part.parked:
                self._top_up()
                self._handed = (len(run.messages), time.monotonic())
                return run
            if verdict and not run.part.claim._ended.is_set():
                run.part.parked.append(run)  # ours; the lease may come back, or has: in order
                self._parked.append(run.part)
            elif verdict:
                self._drop(run.messages)
            self._passing = None
            self._keeper.wake()
        return None

    def _adapt(self, count: int, since_s: float) -> None:
        """Let a proposal claim about `TARGET_S` of work, judging by the last that was done.

        By a proposal's worth of it, or as much as took that long: a loop that was kept from working
        for a moment is not slow.
        """
        self._worked += count
        self._worked_s += max(time.monotonic() - since_s, 1e-6)
        if self._worked < self._proposal_size and self._worked_s < TARGET_S:
            return
        fitting = int(TARGET_S / self._worked_s * self._worked)
        most = self._batch_size if self._batch_size != FETCH else MAX_PROPOSAL
        self._proposal_size = max(
            min(fitting, 2 * self._proposal_size, most), min(MIN_PROPOSAL, most)
        )
        self._worked, self._worked_s = 0, 0.0

    def _top_up(self) -> None:
        """Have the next messages claimed while the last ones are handed out.

        In small fetches, about as much as was handed out: what is held stays level, and the garbage
        collector, which goes by growth, at rest. They are proposed when there is enough of them, or
        when what was proposed before is about to run out and none of it is under way any more.
        """
        if self._parked:
            self._unpark()
        if self._closing.is_set() or self._is_ending:
            return
        proposed, gathered, size = self._proposed, self._gathered, self._proposal_size
        while proposed.total + gathered.total < AHEAD * size:
            room = AHEAD_BYTES - proposed.total_bytes - gathered.total_bytes
            if room <= 0:
                break
            total, total_bytes = gathered.total, gathered.total_bytes
            if not self._fetch(max(1, min(FETCH, size, room // max(1, self._message_bytes)))):
                break
            if gathered.total > total:
                self._message_bytes = (gathered.total_bytes - total_bytes) // (
                    gathered.total - total
                )
        enough = gathered.total >= size or gathered.total_bytes >= AHEAD_BYTES // AHEAD
        runs_out = proposed.total < size and (
            not proposed or self._verdict(proposed[-1]) is not None
        )
        if enough or runs_out:
            self._propose_ready()

    def _propose_ready(self) -> None:
        """Propose what was gathered: one proposal for each partition.

        Order matters within a partition alone.
        """
        gathered: dict[HeldPartition, list[Run]] = {}
        while self._ready:
            run = self._ready.popleft()
            gathered.setdefault(run.part, []).append(run)
        for part, runs in gathered.items():
            if part.stage is not Stage.ACTIVE:
                continue
            if part.parked or not part.claim.held:
                part.parked.extend(runs)
                self._parked.append(part)
                continue
            runs = [run for run in runs if run.messages[0].offset() >= part.floor]
            if not runs:
                continue
            self._proposed.extend(runs)  # first: the keeper must find what is claimed somewhere
            try:
                seq = part.claim._propose(runs[-1].end)
            except (NotHeld, Closed):
                for _ in runs:
                    self._proposed.pop()
            else:
                for run in runs:
                    run.seq = seq

    def _verdict(self, run: Run) -> bool | None:
        """Whether the log has given the messages of `run` to us; None while nobody knows."""
        part = run.part
        if part.claim.claimed_offset >= run.end:
            return True
        detail = self._verdicts.get(run.seq)
        if detail is None:
            return False if part.claim._ended.is_set() else None
        # It was rejected, or nobody knows. Within one epoch nobody but us claims messages: if they
        # are claimed now, an earlier attempt of ours was accepted after all.
        with contextlib.suppress(MarshalError):
            cell = self.marshal.cell(part.topic, part.partition)
            if cell is not None and cell.held and cell.epoch == part.claim.epoch:
                if cell.claimed_offset >= run.end:
                    return True
                if detail == "unknown outcome":
                    same = [r for r in self._proposed if r.seq == run.seq] or [run]
                    seq = part.claim._propose(same[-1].end)
                    self._verdicts.pop(run.seq)
                    for other in same:
                        other.seq = seq
                    return None
        return False

    def _has_claimed(self, part: HeldPartition) -> bool:
        """At most once: whether messages of `part` were claimed and are on their way to the user.

        The loop moves runs on while the keeper looks: each place is looked at before the one that
        it leads to, and `parked` before and after, as a run may go there and come back.
        """
        return bool(
            part.parked
            or any(run.part is part for run in list(self._proposed))
            or self._passing is part
            or part.parked
        )

    def _unpark(self) -> None:
        """Take up what was put back when leases lapsed, where they have been regained."""
        for part in list(dict.fromkeys(self._parked)):
            gone = part.claim._ended.is_set() or (
                part.stage is not Stage.ACTIVE and not (self._amo and part.stage is Stage.DRAINING)
            )
            if gone or part.claim.held:
                if not gone:
                    # What the log has given to us goes out before what was proposed after it.
                    self._proposed.extendleft(r for r in reversed(part.parked) if r.seq >= 0)
                    self._ready.extendleft(r for r in reversed(part.parked) if r.seq < 0)
                elif self._amo:
                    self._drop(chain.from_iterable(run.messages for run in part.parked))
                part.parked.clear()
                self._parked = [other for other in self._parked if other is not part]

    def _drop(self, messages: Iterable[Any]) -> None:
        count = sum(1 for _ in messages)
        if count:
            self.dropped += count
            self.log.warning(
                "%s: %d messages were claimed, but the claim was lost before they were handed out; "
                "nobody will deliver them (at most once)",
                self.marshal.client_id,
                count,
            )

    def _hear(self, notice: Notice) -> None:
        """Called by the driver, under its lock, with all that happens to our claims."""
        if notice.kind == "messages_claimed":
            self._decided.set()
        elif notice.kind == "messages_rejected":
            self._verdicts[notice.number] = notice.detail
            self._decided.set()
        elif notice.kind != "stored":
            self._decided.set()
            self._keeper.wake()

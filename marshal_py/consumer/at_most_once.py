"""At most once: messages are claimed in the log before they are handed out (PROTOCOL.md §5.11).

Runs that were fetched are gathered, and those of a partition proposed together, some ahead of the
loop, so that throughput does not pay a round trip for each. A run goes out once the log has
accepted its proposal, and while the lease stands; if its lease lapses, it is parked, and goes out,
in order, when that is regained.

A proposal costs the log a record, whatever it is for. Where messages are known to wait in Kafka, it
claims some that are not fetched yet, too: what is fetched later goes out at once.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from operator import length_hint
from typing import Final

from marshal_py.client.claim import core_of
from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.fetcher import FETCH, IDLE_WAIT_S, Fetcher
from marshal_py.consumer.held_partition import HeldPartition, Run, Runs, Stage
from marshal_py.consumer.parked import Parked
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import Closed, MarshalError, NotHeld
from marshal_py.protocol.claimant import Notice

__all__ = ["AtMostOnce"]


TARGET_S: Final = 0.015
"""A proposal should claim about so much work, so that a crash loses little."""

LOSS_S: Final = 0.08
"""So much work, at the pace that was measured, is claimed and not done at a time, besides one
message for each worker: a crash may cost 0.1 s (specs/GUARANTEES.md)."""

PACE_S: Final = 0.5
"""The pace is measured over so long; that of handlers over three of their turns, at least."""

PIECES: Final = 4
"""What may be claimed of a partition is claimed in about so many pieces: when one is free, and not
as soon as a message is. A proposal costs the client's other threads as much as a thousand messages
cost the loop."""

AHEAD: Final = 3
"""So many proposals' worth is gathered, or being claimed, while the loop works: the log answers in
milliseconds, in which a fast loop takes thousands of messages."""

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""With so many bytes gathered, as in a few large messages, nothing is fetched."""

MAX_PROPOSAL: Final = 2_000
MAX_UNFETCHED: Final = 50_000
"""So many messages of a partition are claimed beyond those that were fetched, at most."""


class AtMostOnce:
    """Claims what `fetcher` brings, and hands out what the log has given to us. See `Delivery`.

    `closing`: once it is set, no more messages are claimed.
    """

    claims_messages: Final = True

    def __init__(
        self,
        marshal: Marshal,
        fetcher: Fetcher,
        log: Fields,
        wakeup: Wakeup,
        closing: threading.Event,
    ) -> None:
        self.dropped = 0
        self.is_behind = False
        self._marshal = marshal
        self._fetcher = fetcher
        self._log = log
        self._wakeup = wakeup
        self._closing = closing
        self._proposal_size = 1
        self._workers = 1
        self._in_hands: Callable[[], int] | None = None
        """Tells how many messages handlers have, or wait for them; None in a loop."""
        self._in_hand = 0
        """How many messages the loop has."""
        self._pace = 0.0
        """Messages that are done in a second, by the last measurement; 0 before the first."""
        self._done = 0
        self._done_s = 0.0
        """How many messages handlers have done, and how long that took them."""
        self._paced: tuple[float, int, float] = (time.monotonic(), 0, 0.0)
        """When the pace of handlers was measured last, and what they had done by then."""
        self._unfetched_size = self._proposal_size
        """How many messages are about `TARGET_S` of work, and may be claimed before the fetch."""
        self._gathered = Runs()
        fetcher.collect_in(self._gathered)
        self._proposed = Runs()
        self._message_bytes = 1024 * 1024
        """The mean size of the last messages that were fetched; as large as may be, at first."""
        self._parked = Parked()
        self._passing: HeldPartition | None = None
        """Whose run the loop has just taken, and not begun with. If the partition were given back
        then, what was claimed would be lost."""
        self._handed: tuple[int, float] | None = None
        """How many messages the loop was given last, and when."""
        self._worked = 0
        self._worked_s = 0.0
        """How many messages the loop took since `_proposal_size` was last thought over, and how
        long that took it."""
        self._lately = self._lately_s = 0.0
        """The same of the last `PACE_S` or so: what is longer ago counts less and less."""
        self._verdicts: dict[int, str] = {}
        self._decided = threading.Event()
        self._was_full = False
        """Whether the last fetch brought as many messages as were asked for."""
        self._is_ending = self._is_closed = False

    # For the thread that hands out

    @property
    def fetch_size(self) -> int:
        """How many messages to ask Kafka for when there is nothing to hand out."""
        return min(self._proposal_size, FETCH)

    @property
    def awaits_log(self) -> bool:
        """Whether a proposal is under way, or decided."""
        return bool(self._proposed)

    @property
    def owes(self) -> bool:
        """Whether messages were claimed, or are being, that are to be fetched or handed out."""
        return not self._is_closed and (bool(self._proposed) or self._owes_fetches())

    def _owes_fetches(self) -> bool:
        """Whether messages were claimed that are still to be fetched or sorted."""
        return any(part.is_owed for part in list(self._fetcher.active.values())) or any(
            map(_is_claimed_ahead, list(self._gathered))
        )

    def next_run(self) -> Run | None:
        """Return the next run that the log has given to us; keep the one after it in flight."""
        if self._in_hands is not None:
            self._measure_handlers()
        elif self._handed is not None:
            self._adapt(*self._handed)
        self._handed, self._in_hand = None, 0
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
            if run.seq in self._verdicts:
                self._forget_verdict(run, rejected=not verdict)
            if verdict and run.part.range is not None:
                run.part.within(run)  # what was claimed is not given back: it goes on now
            if verdict and run.part.claim.held and not run.part.parked:
                self._in_hand = len(run.messages)
                self._top_up(run)
                self._handed = (len(run.messages), time.monotonic())
                return run
            if verdict and not core_of(run.part.claim).ended.is_set():
                self._parked.add(run)  # ours; the lease may come back, or has: in order
            elif verdict:
                self.drop(len(run.messages))
            self._passing = None
            self._wakeup.wake()
        return None

    def _forget_verdict(self, run: Run, *, rejected: bool) -> None:
        """`run` is decided; what is decided with it, or fetched later, must know the same."""
        part = run.part
        if rejected:  # what is fetched later is proposed anew
            part.proposed, part.proposed_seq = max(part.claim.claimed_offset, run.end), -1
        if part.proposed_seq != run.seq and all(other.seq != run.seq for other in self._proposed):
            del self._verdicts[run.seq]

    def _adapt(self, count: int, since_s: float) -> None:
        """Let a proposal claim about `TARGET_S` of work, judging by the last that was done.

        By a proposal's worth of it, or as much as took that long: a loop that was kept from working
        for a moment is not slow.
        """
        self._worked += count
        self._worked_s += max(time.monotonic() - since_s, 1e-6)
        if self._worked < self._proposal_size and self._worked_s < TARGET_S:
            return
        pace = self._worked / self._worked_s
        self._go_at(pace)
        # A moment at first, or between two in which others have the processor, is no pace.
        kept = math.exp(-self._worked_s / PACE_S)
        self._lately = self._lately * kept + self._worked
        self._lately_s = self._lately_s * kept + self._worked_s
        self._pace = min(pace, self._lately / max(self._lately_s, LOSS_S))
        self._worked, self._worked_s = 0, 0.0

    def _measure_handlers(self) -> None:
        """Measure the pace of handlers, over some of their turns: they may end all at once."""
        now_s, done, done_s = time.monotonic(), self._done, self._done_s
        since_s, done_then, done_s_then = self._paced
        count = done - done_then
        if not count:
            return
        turn_s = (done_s - done_s_then) / count
        if now_s - since_s >= max(PACE_S, 3 * turn_s):
            self._paced = now_s, done, done_s
            self._go_at(count / (now_s - since_s))

    def _go_at(self, pace: float) -> None:
        """So many messages are done in a second: claim accordingly."""
        self._pace = pace
        fitting = int(TARGET_S * pace)
        most = self._fetcher.batch_size if self._fetcher.batch_size != FETCH else MAX_PROPOSAL
        self._proposal_size = max(1, min(fitting, 2 * self._proposal_size, most))
        most = self._fetcher.batch_size if self._fetcher.batch_size != FETCH else MAX_UNFETCHED
        self._unfetched_size = max(1, min(fitting, 2 * self._unfetched_size, most))

    @property
    def _room(self) -> int:
        """How many messages may be claimed now, so that a crash loses no more than `LOSS_S`."""
        in_hands = self._in_hand if self._in_hands is None else self._in_hands() + self._in_hand
        ahead = sum(map(_is_to_come, list(self._fetcher.active.values())))
        claimed = in_hands + self._proposed.total + ahead
        return self._workers + int(LOSS_S * self._pace) - claimed

    @property
    def _piece(self) -> int:
        """How many messages are worth a proposal, while others that were claimed wait."""
        pieces = PIECES * max(1, len(self._fetcher.active))
        return max(1, min(self._unfetched_size, int(LOSS_S * self._pace / pieces)))

    def serve(self, workers: int, in_hands: Callable[[], int]) -> None:
        """Handlers take the messages: so many at a time."""
        self._workers, self._in_hands = workers, in_hands

    def done(self, count: int, took_s: float) -> None:
        """A handler has done so many messages. Called under one lock."""
        self._done += count
        self._done_s += took_s * count

    def _top_up(self, in_hand: Run | None = None) -> None:
        """Have the next messages claimed while the last ones are handed out.

        In small fetches, about as much as was handed out: what is held stays level, and the garbage
        collector, which goes by growth, at rest. They are proposed when there is enough of them, or
        when what was proposed before is about to run out and none of it is under way any more.

        `in_hand`: what the loop is given now. Where what follows it is claimed already, that is not
        fetched before it is wanted: it goes out at once, and fewer messages stay in the caches.
        """
        if self._parked:
            self._unpark()
        if self._winds_up:
            is_owed = any(part.is_owed for part in list(self._fetcher.active.values()))
            if is_owed:
                self._fetcher.fetch(FETCH, 0.0 if self._proposed else IDLE_WAIT_S)
            self._pass_on()
            if not is_owed and not self._proposed and self.owes:  # for want of a lease
                self._decided.clear()
                self._decided.wait(IDLE_WAIT_S)
            return
        proposed, gathered, size = self._proposed, self._gathered, self._proposal_size
        self._pass_on()
        while proposed.total + gathered.total < AHEAD * size:
            last = proposed[-1] if proposed else in_hand
            if last is not None and last.part.is_owed and self._verdict(last):
                break  # it may go out, and so may what is fetched next
            room = AHEAD_BYTES - proposed.total_bytes - gathered.total_bytes
            if room <= 0:
                break
            total, total_bytes = gathered.total, gathered.total_bytes
            most = max(1, min(FETCH, size, room // max(1, self._message_bytes)))
            found = self._fetcher.fetch(most)
            self._was_full = found == most
            if not found:
                break
            if gathered.total > total:
                self._message_bytes = (gathered.total_bytes - total_bytes) // (
                    gathered.total - total
                )
            self._pass_on()
        if not gathered:
            return
        enough = gathered.total >= size or gathered.total_bytes >= AHEAD_BYTES // AHEAD
        runs_out = proposed.total < size and (
            not proposed or self._verdict(proposed[-1]) is not None
        )
        if (enough and self._room >= self._piece) or runs_out:
            self._propose_ready()

    def _pass_on(self) -> None:
        """What was claimed before it was fetched needs no proposal of its own."""
        gathered = self._gathered
        left = len(gathered)
        while left:
            left -= 1
            run = gathered[0]
            part = run.part
            is_last = self._winds_up
            if not is_last and _is_claimed_ahead(run) and run.end > part.proposed:
                count = sum(message.offset() < part.proposed for message in run.messages)
                gathered.cut(0, count)  # so much goes out, the rest is proposed
                run, left = gathered[0], left + 1
            ours = None if part.parked or not part.claim.held else _claimed_ahead(run, is_last)
            if ours is None:
                gathered.append(run)
            else:
                ours.seq = part.proposed_seq
                self._proposed.append(ours)
                part.taken = max(part.taken, ours.end)
                if self._should_claim_ahead(part, run.end):
                    with contextlib.suppress(NotHeld, Closed):
                        self._propose(part, run.end)
            gathered.popleft()  # last: it must be found somewhere, always

    def _propose(self, part: HeldPartition, end: int) -> int:
        """Propose what is below `end`, and some of what is known to wait behind it.

        Returns the number of the proposal. Raises `NotHeld`, `Closed`.
        """
        if self._was_full and part.end < end + self._unfetched_size and not self.is_behind:
            self.is_behind = True
            self._wakeup.wake()
        before = part.proposed
        part.proposed = max(before, end, self._may_claim_to(part, end))
        try:
            part.proposed_seq = core_of(part.claim).propose(part.proposed)
        except (NotHeld, Closed):
            part.proposed = before
            raise
        return part.proposed_seq

    def _should_claim_ahead(self, part: HeldPartition, end: int) -> bool:
        """Whether what was claimed beyond `end` runs out, and more is there to be claimed."""
        runs_out = part.proposed - end < self._unfetched_size and part.proposed < part.end
        if not runs_out or not part.flows or self._winds_up:
            return False
        to = self._may_claim_to(part, end)
        return to - part.proposed >= (1 if to == part.end else self._piece)

    def _may_claim_to(self, part: HeldPartition, end: int) -> int:
        """Up to where to claim messages that are there, when those below `end` were taken."""
        fits = max(part.proposed, end) + max(0, self._room)
        return min(part.end, end + 2 * self._unfetched_size, fits)

    @property
    def is_full(self) -> bool:
        """Whether no more can be claimed before handlers have done something."""
        return not self._proposed and self._room <= 0 and not self._owes_fetches()

    @property
    def _winds_up(self) -> bool:
        """Whether no more messages are to be claimed."""
        return self._is_ending or self._closing.is_set()

    def _propose_ready(self) -> None:
        """Propose what was gathered, as far as there is room: one proposal for each partition.

        Order matters within a partition alone.
        """
        gathered: dict[HeldPartition, list[Run]] = {}
        count = self._cut_gathered(self._room)
        found = list(self._gathered)[:count]
        for run in found:
            gathered.setdefault(run.part, []).append(run)
        for part, runs in gathered.items():
            is_going = part.stage is not Stage.ACTIVE
            if is_going:  # nothing more is claimed of it, but what was goes out
                runs = list(filter(None, map(_claimed_ahead, runs)))
            is_paused = part.is_paused and not is_going
            if runs and (part.parked or is_paused or not part.claim.held):
                for run in runs:
                    self._parked.add(run)
                if is_paused:  # when it was, more may have been owed, and fetching had to go on
                    self._fetcher.pause_or_resume(part)
                # The assignment may be in a callback of the program, and see to nothing.
                self._fetcher.suspend(part, not part.claim.held)
                continue
            if is_going:
                for run in runs:
                    run.seq = part.proposed_seq
                self._proposed.extend(runs)
                continue
            if part.range is None:
                self._propose_runs(part, runs)
                continue
            with driver_of(self._marshal).lock:  # nothing of it is given back meanwhile
                self._propose_runs(part, list(filter(None, map(part.below_end, runs))))
        for _ in found:  # last, for the same reason
            self._gathered.popleft()

    def _propose_runs(self, part: HeldPartition, runs: list[Run]) -> None:
        runs = [run for run in runs if run.messages[0].offset() >= part.floor]
        if not runs:
            return
        self._proposed.extend(runs)  # first: it must be found somewhere, always
        part.taken = max(part.taken, runs[-1].end)
        try:
            seq = self._propose(part, runs[-1].end)
        except (NotHeld, Closed):
            for _ in runs:
                self._proposed.pop()
        else:
            for run in runs:
                run.seq = seq

    def _cut_gathered(self, room: int) -> int:
        """Return how many of the runs that were gathered fit; cut the one that does in part."""
        for number, run in enumerate(list(self._gathered)):
            if run.part.stage is not Stage.ACTIVE:
                continue  # nothing is claimed of it any more
            if room <= 0:
                return number
            if len(run.messages) > room:
                self._gathered.cut(number, room)
                return number + 1
            room -= len(run.messages)
        return len(self._gathered)

    def _verdict(self, run: Run) -> bool | None:
        """Whether the log has given the messages of `run` to us; None while nobody knows."""
        part = run.part
        if part.claim.claimed_offset >= run.end:
            return True
        detail = self._verdicts.get(run.seq)
        if detail is None:
            return False if core_of(part.claim).ended.is_set() else None
        # It was rejected, or nobody knows. Within one epoch nobody but us claims messages: if they
        # are claimed now, an earlier attempt of ours was accepted after all.
        with contextlib.suppress(MarshalError):
            cell = self._marshal.cell(*part.key)
            if cell is not None and cell.held and cell.epoch == part.claim.epoch:
                if cell.claimed_offset >= run.end:
                    return True
                if detail == "unknown outcome":
                    same = [r for r in self._proposed if r.seq == run.seq] or [run]
                    seq = self._propose(part, same[-1].end)
                    self._verdicts.pop(run.seq)
                    for other in same:
                        other.seq = seq
                    return None
        return False

    def _unpark(self) -> None:
        """Take up what was put back when leases lapsed, where they have been regained."""
        for part in self._parked.partitions():
            is_gone = core_of(part.claim).ended.is_set() or not self.delivers(part)
            is_paused = part.is_paused and part.stage is Stage.ACTIVE
            if is_gone or (part.claim.held and not is_paused):
                if not is_gone:
                    # What the log has given to us goes out before what was proposed after it.
                    self._proposed.extendleft(r for r in reversed(part.parked) if r.seq >= 0)
                    self._gathered.extendleft(r for r in reversed(part.parked) if r.seq < 0)
                    self._fetcher.suspend(part, False)
                else:
                    self.drop(sum(len(run.messages) for run in part.parked))
                self._parked.clear(part)

    def began(self) -> None:
        """The run is found in the partition now."""
        self._passing = None

    def delivers(self, part: HeldPartition) -> bool:
        """Whether `part` is held: what was claimed goes out before it is given back."""
        return part.stage in (Stage.ACTIVE, Stage.DRAINING)

    def park(self, run: Run) -> None:
        """Keep what could not go out until the lease is regained."""
        self._parked.add_first(run)

    def take_back(self, run: Run) -> None:
        """Have what was not taken go out first."""
        self._gathered.appendleft(run)

    def end(self) -> None:
        """Claim no more messages."""
        self._is_ending = True

    def drop(self, count: int) -> None:
        """So many messages were claimed, and nobody will deliver them."""
        if count > 0:
            self.dropped += count
            self._log.warning(
                "%s: %d messages were claimed, but the claim was lost before they were handed out; "
                "nobody will deliver them (at most once)",
                self._marshal.client_id,
                count,
            )

    def close(self, in_hand: Run | None) -> None:
        """Count what was claimed and did not go out. From now on it is waited for no more."""
        self._is_closed = True
        left = [*self._proposed, *([] if in_hand is None else [in_hand])]
        claimed = sum(length_hint(run.rest) for run in left)
        claimed += sum(  # of what was gathered, most was not
            message.offset() < run.part.claim.claimed_offset
            for runs in (  # the loop may be at them still
                list(self._gathered),
                *[list(part.parked) for part in self._parked.partitions()],
            )
            for run in runs
            for message in run.messages
        )
        self.drop(claimed)

    # For the thread of the assignment, and the driver

    def has_claimed(self, part: HeldPartition) -> bool:
        """Whether messages of `part` were claimed and are on their way to the user.

        The loop moves runs on while another thread looks: each place is looked at before the one
        that it leads to, and `parked` before and after, as a run may go there and come back.
        """
        return bool(
            (part.is_owed and time.monotonic() < part.owed_until_s)
            or part.parked
            or any(run.part is part and _is_claimed_ahead(run) for run in list(self._gathered))
            or any(run.part is part for run in list(self._proposed))
            or self._passing is part
            or part.parked
        )

    def position(self, part: HeldPartition) -> int:
        """Return up to where messages were claimed."""
        return part.claim.position

    def give_up(self, part: HeldPartition) -> None:
        """What was claimed of it and not fetched will never be handed out."""
        if part.is_owed:
            self.drop(part.claim.claimed_offset - part.fetched)
            part.proposed = part.fetched

    def on_notice(self, notice: Notice) -> None:
        """Take down what the log says of a proposal; have the assignment look at all else."""
        if notice.kind == "messages_claimed":
            self._decided.set()
        elif notice.kind == "messages_rejected":
            self._verdicts[notice.number] = notice.detail
            self._decided.set()
        elif notice.kind != "stored":
            self._decided.set()
            self._wakeup.wake()


def _is_to_come(part: HeldPartition) -> int:
    """How many messages of `part`, at most, were claimed and are still to be fetched.

    Where Kafka has said that none is (aborted ones, markers), none is waited for.
    """
    behind, end = part.tail
    taken = max(part.taken, end) if 0 <= behind <= part.taken else part.taken
    return max(0, part.proposed - taken)


def _is_claimed_ahead(run: Run) -> bool:
    """Whether `run` was proposed, or some of it, before it was fetched."""
    part = run.part
    is_ours = part.floor <= run.messages[0].offset() < part.proposed
    return is_ours and part.stage in (Stage.ACTIVE, Stage.DRAINING)


def _claimed_ahead(run: Run, is_last: bool = False) -> Run | None:
    """What of `run` may go out as it was claimed ahead, None if a proposal is still to be made.

    `is_last`: none will be.
    """
    part = run.part
    if not _is_claimed_ahead(run):
        return None
    if run.end <= part.proposed:
        return run
    if is_last or part.stage is Stage.DRAINING:
        return Run(part, [message for message in run.messages if message.offset() < part.proposed])
    return None

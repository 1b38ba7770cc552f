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
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from marshal_py.client.marshal import Marshal
from marshal_py.consumer.fetcher import FETCH, Fetching
from marshal_py.consumer.held_partition import HeldPartition, Run, Runs, Stage
from marshal_py.errors import Closed, MarshalError, NotHeld
from marshal_py.protocol.claimant import Notice

__all__ = ["IDLE_WAIT_S", "AtMostOnce"]


IDLE_WAIT_S: Final = 0.02
"""An idle loop looks up so often: for new partitions, Ctrl-C, `close`, claims that came back."""

TARGET_S: Final = 0.025
"""A proposal should claim about so much work, so that a crash loses little."""

AHEAD: Final = 3
"""So many proposals' worth is gathered, or being claimed, while the loop works: the log answers in
milliseconds, in which a fast loop takes thousands of messages."""

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""With so many bytes gathered, as in a few large messages, nothing is fetched."""

MAX_PROPOSAL: Final = 2_000
MIN_PROPOSAL: Final = 10
MAX_UNFETCHED: Final = 50_000
"""So many messages of a partition are claimed beyond those that were fetched, at most."""


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
        self._unfetched_size = self._proposal_size
        """How many messages are about `TARGET_S` of work, and may be claimed before the fetch."""
        self.is_behind = False
        """Messages wait in Kafka, and how many is worth knowing: the keeper's to look up."""
        self._gathered = Runs()
        if at_most_once:
            self._ready = self._gathered
            self._kafka_config["enable.partition.eof"] = True  # tells of offsets without a message
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
        self._was_full = False
        """Whether the last fetch brought as many messages as were asked for."""
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
            if run.seq in self._verdicts:
                self._forget_verdict(run, rejected=not verdict)
            if verdict and run.part.claim.held and not run.part.parked:
                self._top_up()
                self._handed = (len(run.messages), time.monotonic())
                return run
            if verdict and not run.part.claim.core.ended.is_set():
                run.part.parked.append(run)  # ours; the lease may come back, or has: in order
                self._parked.append(run.part)
            elif verdict:
                self._drop(len(run.messages))
            self._passing = None
            self._keeper.wake()
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
        fitting = int(TARGET_S / self._worked_s * self._worked)
        most = self._batch_size if self._batch_size != FETCH else MAX_PROPOSAL
        self._proposal_size = max(
            min(fitting, 2 * self._proposal_size, most), min(MIN_PROPOSAL, most)
        )
        most = self._batch_size if self._batch_size != FETCH else MAX_UNFETCHED
        self._unfetched_size = max(1, min(fitting, 2 * self._unfetched_size, most))
        self._worked, self._worked_s = 0, 0.0

    def _top_up(self) -> None:
        """Have the next messages claimed while the last ones are handed out.

        In small fetches, about as much as was handed out: what is held stays level, and the garbage
        collector, which goes by growth, at rest. They are proposed when there is enough of them, or
        when what was proposed before is about to run out and none of it is under way any more.
        """
        if self._parked:
            self._unpark()
        if self._winds_up:
            if any(part.is_owed for part in list(self._active.values())):
                self._fetch(FETCH, 0.0 if self._proposed else IDLE_WAIT_S)
            self._pass_on()
            return
        proposed, gathered, size = self._proposed, self._gathered, self._proposal_size
        self._pass_on()
        while proposed.total + gathered.total < AHEAD * size:
            last = proposed[-1] if proposed.total >= FETCH else None
            if last is not None and last.part.is_owed and self._verdict(last):
                break  # it may go out, and so may what is fetched next
            room = AHEAD_BYTES - proposed.total_bytes - gathered.total_bytes
            if room <= 0:
                break
            total, total_bytes = gathered.total, gathered.total_bytes
            most = max(1, min(FETCH, size, room // max(1, self._message_bytes)))
            found = self._fetch(most)
            self._was_full = found == most
            if not found:
                break
            if gathered.total > total:
                self._message_bytes = (gathered.total_bytes - total_bytes) // (
                    gathered.total - total
                )
            self._pass_on()
        enough = gathered.total >= size or gathered.total_bytes >= AHEAD_BYTES // AHEAD
        runs_out = proposed.total < size and (
            not proposed or self._verdict(proposed[-1]) is not None
        )
        if enough or runs_out:
            self._propose_ready()

    def _pass_on(self) -> None:
        """What was claimed before it was fetched needs no proposal of its own."""
        gathered = self._gathered
        for _ in range(len(gathered)):
            run = gathered[0]
            part = run.part
            ours = None if part.parked or not part.claim.held else _claimed_ahead(run)
            if ours is None:
                gathered.append(run)
            else:
                ours.seq = part.proposed_seq
                self._proposed.append(ours)
                if self._should_claim_ahead(part, run.end):
                    with contextlib.suppress(NotHeld, Closed):
                        self._propose(part, run.end)
            gathered.popleft()  # last: the keeper must find it somewhere

    def _propose(self, part: HeldPartition, end: int) -> int:
        """Propose what is below `end`, and some of what is known to wait behind it.

        Returns the number of the proposal. Raises `NotHeld`, `Closed`.
        """
        if self._was_full and part.end < end + self._unfetched_size and not self.is_behind:
            self.is_behind = True
            self._keeper.wake()
        before = part.proposed
        part.proposed = max(end, min(part.end, end + 2 * self._unfetched_size), before)
        try:
            part.proposed_seq = part.claim.core.propose(part.proposed)
        except (NotHeld, Closed):
            part.proposed = before
            raise
        return part.proposed_seq

    def _should_claim_ahead(self, part: HeldPartition, end: int) -> bool:
        """Whether what was claimed beyond `end` runs out, and more is there to be claimed."""
        runs_out = part.proposed - end < self._unfetched_size and part.proposed < part.end
        return runs_out and part.stage is Stage.ACTIVE and not self._winds_up

    @property
    def _winds_up(self) -> bool:
        """Whether no more messages are to be claimed."""
        return self._is_ending or self._closing.is_set()

    def _owes(self) -> bool:
        """Whether messages were claimed, or are being, that are still to be fetched or sorted."""
        return any(part.is_owed for part in list(self._active.values())) or any(
            map(_is_claimed_ahead, list(self._gathered))
        )

    def _propose_ready(self) -> None:
        """Propose what was gathered: one proposal for each partition.

        Order matters within a partition alone.
        """
        gathered: dict[HeldPartition, list[Run]] = {}
        found = list(self._gathered)
        for run in found:
            gathered.setdefault(run.part, []).append(run)
        for part, runs in gathered.items():
            is_going = part.stage is not Stage.ACTIVE
            if is_going:  # nothing more is claimed of it, but what was goes out
                runs = list(filter(None, map(_claimed_ahead, runs)))
            if runs and (part.parked or not part.claim.held):
                part.parked.extend(runs)
                self._parked.append(part)
                continue
            if is_going:
                for run in runs:
                    run.seq = part.proposed_seq
                self._proposed.extend(runs)
                continue
            runs = [run for run in runs if run.messages[0].offset() >= part.floor]
            if not runs:
                continue
            self._proposed.extend(runs)  # first: the keeper must find what is claimed somewhere
            try:
                seq = self._propose(part, runs[-1].end)
            except (NotHeld, Closed):
                for _ in runs:
                    self._proposed.pop()
            else:
                for run in runs:
                    run.seq = seq
        for _ in found:  # last, for the same reason
            self._gathered.popleft()

    def _verdict(self, run: Run) -> bool | None:
        """Whether the log has given the messages of `run` to us; None while nobody knows."""
        part = run.part
        if part.claim.claimed_offset >= run.end:
            return True
        detail = self._verdicts.get(run.seq)
        if detail is None:
            return False if part.claim.core.ended.is_set() else None
        # It was rejected, or nobody knows. Within one epoch nobody but us claims messages: if they
        # are claimed now, an earlier attempt of ours was accepted after all.
        with contextlib.suppress(MarshalError):
            cell = self.marshal.cell(part.topic, part.partition)
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

    def _has_claimed(self, part: HeldPartition) -> bool:
        """At most once: whether messages of `part` were claimed and are on their way to the user.

        The loop moves runs on while the keeper looks: each place is looked at before the one that
        it leads to, and `parked` before and after, as a run may go there and come back.
        """
        return bool(
            (part.is_owed and time.monotonic() < part.owed_until_s)
            or part.parked
            or any(run.part is part and _is_claimed_ahead(run) for run in list(self._gathered))
            or any(run.part is part for run in list(self._proposed))
            or self._passing is part
            or part.parked
        )

    def _unpark(self) -> None:
        """Take up what was put back when leases lapsed, where they have been regained."""
        for part in list(dict.fromkeys(self._parked)):
            gone = part.claim.core.ended.is_set() or (
                part.stage is not Stage.ACTIVE and not (self._amo and part.stage is Stage.DRAINING)
            )
            if gone or part.claim.held:
                if not gone:
                    # What the log has given to us goes out before what was proposed after it.
                    self._proposed.extendleft(r for r in reversed(part.parked) if r.seq >= 0)
                    self._ready.extendleft(r for r in reversed(part.parked) if r.seq < 0)
                elif self._amo:
                    self._drop(sum(len(run.messages) for run in part.parked))
                part.parked.clear()
                self._parked = [other for other in self._parked if other is not part]

    def _drop_owed(self, part: HeldPartition) -> None:
        """`part` is given up. What was claimed of it and not fetched will never be handed out."""
        if self._amo and part.is_owed:
            self._drop(part.claim.claimed_offset - part.fetched)
            part.proposed = part.fetched

    def _drop(self, count: int) -> None:
        if count > 0:
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


def _is_claimed_ahead(run: Run) -> bool:
    """Whether `run` was proposed, or some of it, before it was fetched."""
    part = run.part
    is_ours = part.floor <= run.messages[0].offset() < part.proposed
    return is_ours and part.stage in (Stage.ACTIVE, Stage.DRAINING)


def _claimed_ahead(run: Run) -> Run | None:
    """What of `run` may go out as it was claimed ahead, None if a proposal is still to be made."""
    part = run.part
    if not _is_claimed_ahead(run):
        return None
    if run.end <= part.proposed:
        return run
    if part.stage is Stage.DRAINING:  # no proposal will be made
        return Run(part, [message for message in run.messages if message.offset() < part.proposed])
    return None

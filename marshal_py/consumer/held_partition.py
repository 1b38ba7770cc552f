"""What a consumer knows of each partition that it holds: what was handed out, what is done.

Three threads meet here without a lock, each with its own part, and rely on single reads and writes
being whole:

- the *loop*, which is whichever thread iterates: it hands out runs and finishes them;
- whoever acknowledges: `acknowledge` only ever adds to a set;
- the thread of the assignment and the client's driver, which read `position`.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from operator import itemgetter, length_hint
from typing import Any, Final

from marshal_py.client.claim import core_of
from marshal_py.client.marshal import Claim
from marshal_py.consumer.leader_epochs import LeaderEpochs
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.done_offsets import Ranges
from marshal_py.protocol.holding import RangeHolding
from marshal_py.protocol.slots import slot_of, source_of

__all__ = ["Batch", "HeldPartition", "Run", "Runs", "Stage"]

SAMPLE: Final = 16
"""About so many messages of a run are looked at for how many bytes it is."""

KEPT_IN_HANDS: Final = 100
"""Of what the program had in hand when claims ended, so many stretches are remembered: a program
that loses its claims over and over shall not fill its memory."""


class Stage(Enum):
    """The life of a partition in a consumer. It only ever goes down this list."""

    WANTED = "wanted"
    ACTIVE = "active"
    DRAINING = "draining"
    """Nothing more is handed out; what is in the user's hands is waited for."""
    RELEASING = "releasing"


class Batch(list[Any]):
    """Messages of one partition, in order: a list, and the claim that they are read under.

    Hand `claim.epoch` to whatever the work writes to.
    """

    __slots__ = ("claim",)

    def __init__(self, messages: list[Any], claim: Claim) -> None:
        super().__init__(messages)
        self.claim = claim

    @property
    def topic(self) -> str:
        """The topic of all these messages."""
        return source_of(self.claim.topic, self.claim.partition)[0]

    @property
    def partition(self) -> int:
        """The partition of all these messages."""
        return source_of(self.claim.topic, self.claim.partition)[1]


class Run:
    """Consecutive messages of one partition, which are handed out in one go.

    `rest` is an iterator over `messages`: how far it is tells what was handed out, at no cost for
    each message. `whole`: handed out as one batch, so that nothing of it is done before the loop
    comes back. The three are replaced together (`be`), for those who look without a lock.
    """

    __slots__ = ("_parts", "bytes", "end", "part", "seq")

    def __init__(self, part: HeldPartition, messages: list[Any]) -> None:
        self.part = part
        self._parts: tuple[list[Any], Iterator[Any], bool]
        self.be(messages, iter(messages))
        self.end: int = messages[-1].offset() + 1
        self.seq = -1
        """At most once: the number of the proposal that claims these messages."""
        self.bytes = -1
        """About what the values come to; −1 before anybody has asked (`Runs`)."""

    def be(self, messages: list[Any], rest: Iterator[Any], *, whole: bool = False) -> None:
        """Consist of these messages, of which `rest` have not been handed out."""
        self._parts = messages, rest, whole

    messages = property(lambda self: self._parts[0], doc="All of them.")
    rest = property(lambda self: self._parts[1], doc="Those that the loop has not taken.")
    whole = property(lambda self: self._parts[2], doc="Whether it was handed out as one batch.")

    @property
    def handed_out(self) -> int:
        """How many messages the loop has taken."""
        messages, rest, _ = self._parts
        return len(messages) - length_hint(rest)

    @property
    def left(self) -> list[Any]:
        """The messages that the loop has not taken. To take them from `rest` would say it had."""
        messages, rest, _ = self._parts
        return messages[len(messages) - length_hint(rest) :]

    def take_back(self) -> None:
        """The loop has not taken the last message after all; it is past those before it."""
        rest = self.rest
        rest.__setstate__(rest.__reduce__()[2] - 1)  # whoever iterates over it sees that, too
        self.be(self.left, rest)

    @property
    def in_hand(self) -> Any:
        """The first message that is not done as far as the loop goes: the last one it has taken."""
        messages, rest, whole = self._parts
        return messages[0 if whole else max(len(messages) - length_hint(rest) - 1, 0)]

    @property
    def next_offset(self) -> int:
        """The offset of the first message that the loop has not taken."""
        left = self.left
        return int(left[0].offset()) if left else self.end


class Runs(deque[Run]):
    """Runs in a row, which knows how many messages they are, and of about how many bytes.

    Only the loop changes it, but others may add to its end. They may copy it, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        """How many messages there are."""
        self.total_bytes = 0

    def append(self, run: Run, /) -> None:
        """Add a run at the end."""
        self._in(run)
        super().append(run)

    def appendleft(self, run: Run, /) -> None:
        """Add a run at the front."""
        self._in(run)
        super().appendleft(run)

    def extend(self, runs: Iterable[Run], /) -> None:
        """Add runs at the end."""
        for run in runs:
            self.append(run)

    def extendleft(self, runs: Iterable[Run], /) -> None:
        """Add runs at the front, each before the one that was given before it."""
        for run in runs:
            self.appendleft(run)

    def pop(self) -> Run:  # type: ignore[override]
        """Take the last run."""
        return self._out(super().pop())

    def popleft(self) -> Run:
        """Take the first run."""
        return self._out(super().popleft())

    def cut(self, number: int, count: int) -> None:
        """Make two runs of the one at `number`: the first of `count` messages."""
        run = self[number]
        head = Run(run.part, run.messages[:count])
        head.seq, head.bytes = run.seq, run.bytes * len(head.messages) // len(run.messages)
        super().insert(number, head)  # first: it must be found somewhere, always
        rest = run.messages[count:]
        run.be(rest, iter(rest))
        run.bytes -= head.bytes

    def _in(self, run: Run) -> None:
        if run.bytes < 0:
            some = run.messages[:: 1 + len(run.messages) // SAMPLE]
            run.bytes = sum(map(len, some)) * len(run.messages) // len(some)
        count = len(run.messages)  # first: another thread may come in between
        self.total += count
        self.total_bytes += run.bytes

    def _out(self, run: Run) -> Run:
        count = len(run.messages)
        self.total -= count
        self.total_bytes -= run.bytes
        return run


class HeldPartition:
    """One partition that this consumer wants, holds or gives back, under one claim.

    Or one slot of a partition (`slot`), or a range of its messages (`range`), where that is how
    they are shared: `topic` and `partition` say where its messages are, `key` names what is
    claimed.
    """

    def __init__(self, claim: Claim, *, manual: bool) -> None:
        self.claim = claim
        self.holding = core_of(claim).holding
        self.key = (claim.topic, claim.partition)
        self.slot = slot_of(*self.key)
        self.range = self.holding if isinstance(self.holding, RangeHolding) else None
        self.source = source_of(*self.key) if self.range is None else self.range.source
        self.topic, self.partition = self.source
        self.flows = False
        """It is active, and not paused: whatever the lease says, its messages go out."""
        self._stage = Stage.WANTED
        self._is_paused = False
        self._is_cut = False
        self.cut_lock = threading.Lock()
        """Held while it is decided which messages of a range are given back."""
        self.first_s = 0.0
        """When the first message of a range went out; 0: none has."""
        self.drain_at_s = math.inf
        """A range's: some of its messages were released, and are to be given back then."""
        self.handed = 0
        """How many messages of it the loop was given, those that it gave back not counted."""
        self.worked_s = 0.0
        """For how long the loop has had messages of it, those that it has now not counted."""
        self.first_offset = -1
        """A range's: the position that it was granted at."""
        self.manual = manual
        self.assigned = False
        """Whether Kafka is asked for its messages."""
        self.suspended = False
        """The lease has lapsed, and fetching pauses until it is regained."""
        self.throttled = False
        """`Consumer.run` has enough of it for now, and fetching pauses."""
        self.is_told = False
        """`on_assigned` was called, and `on_revoked` was not."""
        self.metadata = ClaimMetadata()
        """What is published with the claim."""
        self.fetched_from = b""
        """At least once: the id of the topic when its messages began to be fetched; b"": not
        known."""
        self.out_of_range = False
        """Kafka has no message at our position; the assignment finds another."""
        self.truncated_at = -1
        """Below what there were messages when Kafka said so, if it told; −1: it did not."""
        self.epochs = LeaderEpochs()
        """Of its messages, and of what came before them. Not of a range."""
        self.leader_epoch = -1
        """Of what comes before where it began; −1: not known."""
        self.no_start = ""
        """Why it is not known where to begin, as it was logged last."""
        self.chosen = False
        """Where to begin was decided under this claim."""
        self.reset_to: int | None = None
        """Its position means nothing any more, and is being set to this one."""
        self.read_to = -1
        """A slot's: what there is below was fetched, or is not to be; −1: nothing."""
        self.last_end = -1
        """One beyond the last message that was fetched; where fetching began, before the first."""
        self.tail: tuple[int, int] = (-1, -1)
        """Behind the first of these offsets, which was `last_end` then, there was no message below
        the second: only markers of transactions, or what was compacted away, or deleted."""
        self.done_before: Ranges = ()
        """Offsets that an earlier holder has done, above the position: not handed out again."""
        self.in_hands_before: Ranges = ()
        """Offsets whose messages the program had in hand when earlier claims ended."""
        self._given_again: dict[int, int] = {}
        """Those of them that were handed out under this claim, too → the message's `id`."""
        self.run: Run | None = None
        """What the loop hands out now."""
        self.raw: dict[int, tuple[Any, Any]] = {}
        """Key and value of messages as they came, while they may be rejected (`auto_ack=False`)."""
        self.parked: deque[Run] = deque()
        """Fetched, but the lease lapsed: handed out when it is regained. The loop's own."""
        self.floor = -1
        """At most once: what had been claimed when this claim began."""
        self.proposed = -1
        """At most once: messages below were proposed under this claim, fetched or not yet."""
        self.taken = -1
        """At most once: messages below were fetched and proposed, or passed on as proposed."""
        self.proposed_seq = -1
        """The number of the last proposal."""
        self.fetched = -1
        """At most once: what there is below was fetched."""
        self.end = -1
        """At most once: messages below are there to be read, by the last look; −1: unknown."""
        self.owed_until_s = math.inf
        """At most once: who gives the partition back waits until then for what is to be fetched."""
        self._handed_s = 0.0
        self._start = -1
        self._base = -1
        """Everything below is done; −1: nothing is known."""
        self._window: deque[list[int]] = deque()
        """Offsets that were handed out, in order, in lists of which the first may be part gone."""
        self._done: set[int] = set()
        self._passed_end = -1
        self._withdrawn = 0
        self._released: set[int] = set()
        self._window_lock = threading.Lock()

    @property
    def log_fields(self) -> dict[str, object]:
        """What a log record about it carries."""
        return core_of(self.claim).log_fields

    def start(self, offset: int, done_before: Ranges = (), leader_epoch: int = -1) -> None:
        """Begin at `offset`; −1 when the first message will tell.

        `done_before`: what is done above it. `leader_epoch`: of what comes before it; −1: not
        known.
        """
        self.epochs, self.leader_epoch = LeaderEpochs(), leader_epoch
        if leader_epoch >= 0:
            self.epochs.note(leader_epoch, offset - 1)
        self._start = self._base = self.last_end = self.read_to = offset
        self.tail = (-1, -1)
        self.done_before = done_before

    def read_on(self, offset: int) -> None:
        """Go on at `offset`, as there is nothing between what was fetched and that.

        What was fetched, handed out or not, stays to be done.
        """
        self.epochs, self.leader_epoch = LeaderEpochs(), -1
        fetched_to = self.last_end
        # What comes now may be others than an earlier holder has done.
        self.done_before = tuple(
            (first, min(end, fetched_to)) for first, end in self.done_before if first < fetched_to
        )
        self.read_to = offset
        if offset > fetched_to:
            self.reached(offset)

    @property
    def has_begun(self) -> bool:
        """Whether Kafka has had something where it began, or that was up to Kafka."""
        return self._start < 0 or self.last_end != self._start or self.tail != (-1, -1)

    @property
    def stage(self) -> Stage:
        """Where in its life it is."""
        return self._stage

    @stage.setter
    def stage(self, stage: Stage) -> None:
        self._stage = stage
        self._set_flow()

    @property
    def is_paused(self) -> bool:
        """The user wants none of its messages for now (`Consumer.pause`)."""
        return self._is_paused

    @is_paused.setter
    def is_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._set_flow()

    @property
    def is_settled(self) -> bool:
        """Whether it stays as it is until something happens: nothing has to be tried again."""
        if self.reset_to is not None or self.out_of_range:
            return False
        if self._stage is Stage.WANTED:
            return not self.claim.held
        return self._stage is Stage.ACTIVE and self.claim.held and not self.suspended

    def _set_flow(self) -> None:
        """It is asked for each message: kept, not derived."""
        is_stopped = self._is_paused or self._is_cut
        self.flows = self._stage is Stage.ACTIVE and not is_stopped

    # A range

    @property
    def end_offset(self) -> int | None:
        """One beyond the last of its messages; None: it has no end."""
        return None if self.range is None else self.range.end

    @property
    def number(self) -> int | None:
        """Which part of its partition it is: the number of a slot, where a range starts."""
        if self.slot is not None:
            return self.slot.number
        return None if self.range is None else self.first_offset

    @property
    def is_cut(self) -> bool:
        """What of the range is given back has just been decided: nothing of it goes out before
        whoever hands out has seen where it ends now."""
        return self._is_cut

    @is_cut.setter
    def is_cut(self, is_cut: bool) -> None:
        self._is_cut = is_cut
        self._set_flow()

    @property
    def next_offset(self) -> int:
        """The first message that was not handed out; while the loop works, a moment ago."""
        run = self.run
        if run is not None:
            return run.next_offset
        if self.manual:
            with self._window_lock:
                if self._window and self._window[-1]:
                    return int(self._window[-1][-1]) + 1
        return max(self._base, self._start)

    @property
    def started_at(self) -> int:
        """Where it began to be fetched; −1: that is up to Kafka, or it was not."""
        return self._start

    @property
    def is_over(self) -> bool:
        """Whether a range is done."""
        end = self.end_offset
        return end is not None and self.position() >= end

    def cut(self) -> int:
        """Have nothing more handed out, and return the first message that was not.

        With `cut_lock` held, which whoever hands out takes before it goes on (`within`). It looks
        whether the messages flow after having taken one, and this looks at what was taken after
        having stopped them: what is not seen here as taken does not go out.
        """
        self.is_cut = True
        at = self.next_offset
        run = self.run
        taken = 0 if run is None else run.handed_out
        if run is not None and 0 < taken <= len(run.messages):
            self.tail = (run.messages[taken - 1].offset() + 1, at)
        return at

    def within(self, run: Run) -> Run | None:
        """Return what of `run` is not given back; None for nothing. Between two messages."""
        if self._is_cut:
            with self.cut_lock:
                self.is_cut = False
        return self.below_end(run)

    def below_end(self, run: Run) -> Run | None:
        """Return what of `run` is in the range as it is now; None for nothing."""
        end = self.end_offset
        if end is None or run.end <= end:
            return run
        kept = [message for message in run.messages if message.offset() < end]
        if not kept:
            return None
        rest = Run(self, kept)
        rest.seq = run.seq
        return rest

    @property
    def wants_messages(self) -> bool:
        """Whether Kafka is to bring messages of it now."""
        is_going = self.stage is Stage.DRAINING
        is_paused = self.is_paused and not self.is_owed
        if self.suspended or is_paused or not self.assigned:
            return False
        return self.is_owed if is_going else not self.throttled

    # The loop

    def begin(self, run: Run) -> None:
        """Start to hand out a run."""
        self.handed += len(run.messages)
        self._handed_s = time.monotonic()
        if not self.first_s:
            self.first_s = self._handed_s
        before = self.in_hands_before
        if before and run.messages[0].offset() < before[-1][1]:
            self._given_again |= {
                m.offset(): id(m) for m in run.messages if _is_in(before, m.offset())
            }
        if self.manual:
            with self._window_lock:
                self._window.append([message.offset() for message in run.messages])
        elif self._done:
            self._leave_out_acknowledged(run, 0)
        self.run = run

    def finish(self, run: Run, *, returned: Any = None) -> None:
        """The loop came back. All messages of the run are done, or those before `returned`."""
        if self.manual:
            if returned is not None:
                self._unhand(returned.offset())
        else:
            self._base = run.end if returned is None else returned.offset()
            for offset in tuple(self._done):  # others may add to it meanwhile
                if offset < self._base:
                    self._done.discard(offset)
        self.run = None
        self.worked_s += time.monotonic() - self._handed_s
        if returned is not None:
            self.handed -= sum(m.offset() >= returned.offset() for m in run.messages)

    def rewind(self, run: Run) -> None:
        """The loop was left with the last message, or batch, in hand: it comes again.

        But what was acknowledged does not.
        """
        if not self.manual:
            at = 0 if run.whole else max(run.handed_out - 1, 0)
            self._leave_out_acknowledged(run, at)

    def _leave_out_acknowledged(self, run: Run, at: int) -> None:
        """Hand out `run` from the message with the number `at` on, but what is done of it."""
        rest = [m for m in run.messages[at:] if m.offset() not in self._done]
        # If all was handed out, its messages say where it ended.
        run.be([*run.messages[:at], *rest] if rest else run.messages, iter(rest))

    def without_done(self, run: Run) -> Run | None:
        """Return what of `run` is to be handed out, None if an earlier holder has done all of it.

        Called in order, for each run once.
        """
        ranges = self.done_before
        if not ranges:
            return run
        kept = [m for m in run.messages if not _is_in(ranges, m.offset())]
        if len(kept) < len(run.messages):
            # Between the messages there may be offsets without one: they count as done as well.
            self.done_before = _merged([*ranges, *_gaps(run.messages, kept, self._passed_end)])
        self._passed_end = run.end
        if len(kept) == len(run.messages):
            return run
        return Run(self, kept) if kept else None

    def _unhand(self, offset: int) -> None:
        """Forget that messages from `offset` on were to be handed out."""
        with self._window_lock:
            while self._window:
                last = self._window[-1]
                while last and last[-1] >= offset:
                    last.pop()
                if last:
                    break
                self._window.pop()
            if not self._window:
                self._base = max(self._base, offset)

    # Acknowledging

    def acknowledge(self, offset: int) -> None:
        """Say that the message at `offset` is done."""
        self.raw.pop(offset, None)
        if self.manual:
            if offset >= self._base and offset not in self._released:  # else it was before
                self._done.add(offset)
        else:
            run = self.run
            if run is None:
                if offset >= self._base:  # it was put back, unhandled: it does not come again
                    self._done.add(offset)
            elif run.messages[0].offset() <= offset < run.end:
                # In a loop that acknowledges by itself, this says it a little earlier.
                self._done.add(offset)

    @property
    def is_owed(self) -> bool:
        """At most once: whether messages were proposed ahead, and are still to be fetched."""
        return self.fetched < self.proposed

    def position(self) -> int:
        """Return the lowest offset that is not done, −1 while nothing is known."""
        position, end = self._position(), self.end_offset
        return position if end is None else min(position, end)

    def _position(self) -> int:
        if self.manual:
            return self._above(self._manual_position())
        run = self.run  # read once: the loop may finish it meanwhile, and sets the base first
        if run is None:
            return self._above(self._base)
        offset: int = run.in_hand.offset()
        if offset in self._done:
            offset += 1
        return max(offset, self._base)

    def _above(self, position: int) -> int:
        """Return `position`, moved over what an earlier holder did and where no message is."""
        for first, end in self.done_before:
            if first <= position < end:
                position = end
        behind, end = self.tail
        if position == behind and end > position:
            return end
        return position

    def reached(self, end: int) -> None:
        """Kafka has nothing below `end` that was not fetched. The loop's."""
        self.tail = (self.last_end, end)

    def done_above(self) -> tuple[int, Ranges]:
        """Return the position, or one that was, and which offsets above it are done."""
        position = max(self.position(), 0)
        before = [(max(f, position), e) for f, e in self.done_before if e > position]
        if not self.manual:
            return position, tuple(before)
        found: list[tuple[int, int]] = []
        with self._window_lock:
            done = self._done
            if done:
                first = -1
                for offsets in self._window:
                    for offset in offsets:
                        if offset in done:
                            if first < 0:
                                first = offset
                            last = offset
                        elif first >= 0:
                            found.append((first, offset))
                            first = -1
                if first >= 0:
                    found.append((first, last + 1))
        return position, _merged([*before, *found])

    def _manual_position(self) -> int:
        with self._window_lock:
            done, window = self._done, self._window
            while window:
                offsets = window[0]
                count = 0
                for offset in offsets:
                    if offset not in done:
                        break
                    done.discard(offset)
                    count += 1
                if count == len(offsets):
                    window.popleft()
                    self._base = offsets[-1] + 1
                    continue
                del offsets[:count]
                self._base = offsets[0]
                break
            else:
                done.clear()  # acknowledged, but never handed out under this claim
            return self._base

    def has_handed_out(self, offset: int) -> bool:
        """Whether the message at `offset` was handed out under this claim, and may not be done."""
        if not self.manual:
            run = self.run
            return run is not None and any(m.offset() == offset for m in run.messages)
        with self._window_lock:
            return any(offset in offsets for offsets in self._window)

    def is_of(self, message: Any) -> bool:
        """Whether a message was handed out under this claim, and not under an earlier one.

        Who still has one of those has had it all the while: no other has its `id`.
        """
        if not self.in_hands_before:
            return True
        offset: int = message.offset()
        if not _is_in(self.in_hands_before, offset):
            return True
        return self._given_again.get(offset) == id(message)

    def in_hands(self) -> Ranges:
        """Return offsets among which are those of all messages that the program has in hand."""
        if self.manual:
            first = self._manual_position()
            with self._window_lock:
                end = self._window[-1][-1] + 1 if self._window else first
        else:
            run = self.run
            first, end = (0, 0) if run is None else (run.messages[0].offset(), run.end)
        found = [*self.in_hands_before, *([(first, end)] if first < end else [])]
        return _merged(found)[-KEPT_IN_HANDS:]

    def release(self, offset: int) -> bool:
        """Say that the message at `offset` will not be done under this claim.

        Returns False for one that was not handed out, is done, or was released before.
        """
        with self._window_lock:
            is_out = any(offset in offsets for offsets in self._window)
            if not is_out or offset in self._done or offset in self._released:
                return False
            self._released.add(offset)
            return True

    def delivery_count(self, offset: int) -> int:
        """Return how often a message was claimed, this time included, as far as is known.

        0 where nothing counts that.
        """
        if self.range is None:
            return 0
        return self.range.granted + dict(self.metadata.released).get(offset, 0)

    def released(self) -> list[tuple[int, int]]:
        """Return which messages come again, and their deliveries that no grant will count."""
        told, position = dict(self.metadata.released), self.position()
        # At the same position, the next grant counts on.
        counted = self.range.granted if self.range and position == self.first_offset else 0
        with self._window_lock:
            told |= {offset: self.delivery_count(offset) - counted for offset in self._released}
        return sorted((at, count) for at, count in told.items() if at >= position and count > 0)

    def withdraw(self, count: int) -> None:
        """So many messages were handed out and will never be acknowledged under this claim."""
        self._withdrawn += count

    @property
    def ahead(self) -> int:
        """How many messages were handed out above the position, done or not (`auto_ack=False`)."""
        self._manual_position()
        with self._window_lock:
            return sum(map(len, self._window))

    @property
    def outstanding(self) -> int:
        """How many messages were handed out and are not acknowledged (`auto_ack=False`)."""
        self._manual_position()
        with self._window_lock:
            settled = self._done | self._released  # also of what is not handed out under this claim
            out = [offset for offsets in self._window for offset in offsets]
            waiting = sum(offset not in settled for offset in out) - self._withdrawn
            run = self.run
            return waiting - (0 if run is None else length_hint(run.rest))

    def __repr__(self) -> str:
        return f"<{self.key[0]}/{self.key[1]} {self.stage.value} position={self._base}>"


def _is_in(ranges: Ranges, offset: int) -> bool:
    at = bisect_right(ranges, offset, key=itemgetter(0)) - 1
    return at >= 0 and offset < ranges[at][1]


def _gaps(messages: list[Any], kept: list[Any], before: int) -> Iterator[tuple[int, int]]:
    """Yield, for messages that are not kept, all offsets since the message before each."""
    kept_offsets = {message.offset() for message in kept}
    for message in messages:
        offset = message.offset()
        if offset not in kept_offsets:
            yield (min(before, offset) if before >= 0 else offset), offset + 1
        before = offset + 1


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Return the same offsets in order, in as few ranges as there can be."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)

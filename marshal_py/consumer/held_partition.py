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
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from operator import length_hint
from typing import Any

from marshal_py.client.marshal import Claim
from marshal_py.protocol.claim_metadata import ClaimMetadata

__all__ = ["Batch", "HeldPartition", "Run", "Runs", "Stage"]


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
        return str(self.claim.topic)

    @property
    def partition(self) -> int:
        """The partition of all these messages."""
        return int(self.claim.partition)


class Run:
    """Consecutive messages of one partition, which are handed out in one go.

    `rest` is an iterator over `messages`: how far it is tells what was handed out, at no cost for
    each message.
    """

    __slots__ = ("bytes", "end", "messages", "part", "rest", "seq", "whole")

    def __init__(self, part: HeldPartition, messages: list[Any]) -> None:
        self.part = part
        self.messages = messages
        self.rest: Iterator[Any] = iter(messages)
        self.end: int = messages[-1].offset() + 1
        self.seq = -1
        """At most once: the number of the proposal that claims these messages."""
        self.whole = False
        """Handed out as one batch: nothing of it is done before the loop comes back."""
        self.bytes = -1
        """What the values come to; −1 before anybody has asked (`Runs`)."""

    @property
    def handed_out(self) -> int:
        """How many messages the loop has taken."""
        return len(self.messages) - length_hint(self.rest)


class Runs(deque[Run]):
    """Runs in a row, which knows how many messages they are, and of how many bytes.

    Only the loop changes it. Others may copy it.
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

    def _in(self, run: Run) -> None:
        if run.bytes < 0:
            run.bytes = sum(map(len, run.messages))
        self.total += len(run.messages)
        self.total_bytes += run.bytes

    def _out(self, run: Run) -> Run:
        self.total -= len(run.messages)
        self.total_bytes -= run.bytes
        return run


class HeldPartition:
    """One partition that this consumer wants, holds or gives back, under one claim."""

    def __init__(self, claim: Claim, *, manual: bool) -> None:
        self.claim = claim
        self.holding = claim.core.holding
        self.topic: str = claim.topic
        self.partition: int = claim.partition
        self.key = (self.topic, self.partition)
        self.stage = Stage.WANTED
        self.manual = manual
        self.assigned = False
        """Whether Kafka is asked for its messages."""
        self.suspended = False
        """The lease has lapsed, and fetching pauses until it is regained."""
        self.throttled = False
        """`Consumer.run` has enough of it for now, and fetching pauses."""
        self.metadata = ClaimMetadata()
        """What is published with the claim."""
        self.out_of_range = False
        """Kafka has no message at our position; the assignment finds another."""
        self.run: Run | None = None
        """What the loop hands out now."""
        self.parked: deque[Run] = deque()
        """Fetched, but the lease lapsed: handed out when it is regained. The loop's own."""
        self.floor = -1
        """At most once: what had been claimed when this claim began."""
        self.proposed = -1
        """At most once: messages below were proposed under this claim, fetched or not yet."""
        self.proposed_seq = -1
        """The number of the last proposal."""
        self.fetched = -1
        """At most once: what there is below was fetched."""
        self.end = -1
        """At most once: messages below are there to be read, by the last look; −1: unknown."""
        self.owed_until_s = math.inf
        """At most once: who gives the partition back waits until then for what is to be fetched."""
        self._base = -1
        """Everything below is done; −1: nothing is known."""
        self._window: deque[list[int]] = deque()
        """Offsets that were handed out, in order, in lists of which the first may be part gone."""
        self._done: set[int] = set()
        self._withdrawn = 0
        self._window_lock = threading.Lock()

    @property
    def log_fields(self) -> dict[str, object]:
        """What a log record about it carries."""
        return self.claim.core.log_fields

    def start(self, offset: int) -> None:
        """Begin at `offset`; −1 when the first message will tell."""
        self._base = offset

    @property
    def deliverable(self) -> bool:
        """Whether messages may be handed out, as far as the lease allows."""
        return self.stage is Stage.ACTIVE

    # The loop

    def begin(self, run: Run) -> None:
        """Start to hand out a run."""
        if self.manual:
            with self._window_lock:
                self._window.append([message.offset() for message in run.messages])
        self.run = run

    def finish(self, run: Run, *, returned: Any = None) -> None:
        """The loop came back. All messages of the run are done, or those before `returned`."""
        if self.manual:
            if returned is not None:
                self._unhand(returned.offset())
        else:
            self._base = run.end if returned is None else returned.offset()
        self.run = None

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
        if self.manual:
            self._done.add(offset)
        else:
            run = self.run
            if run is None:
                if offset >= self._base:
                    self._base = offset + 1
            elif run.messages[0].offset() <= offset < run.end:
                # In a loop that acknowledges by itself, this says it a little earlier.
                self._done.add(offset)

    @property
    def is_owed(self) -> bool:
        """At most once: whether messages were proposed ahead, and are still to be fetched."""
        return self.fetched < self.proposed

    def position(self) -> int:
        """Return the lowest offset that is not done, −1 while nothing is known."""
        if self.manual:
            return self._manual_position()
        run = self.run  # read once: the loop may finish it meanwhile, and sets the base first
        if run is None:
            return self._base
        in_hand = 0 if run.whole else max(run.handed_out - 1, 0)
        offset: int = run.messages[in_hand].offset()
        if offset in self._done:
            offset += 1
        return max(offset, self._base)

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
            waiting = sum(map(len, self._window)) - len(self._done) - self._withdrawn
            run = self.run
            return waiting - (0 if run is None else length_hint(run.rest))

    def __repr__(self) -> str:
        return f"<{self.topic}/{self.partition} {self.stage.value} position={self._base}>"

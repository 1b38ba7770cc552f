"""The thread that publishes rows to a sink: for mark and for range mode.

To a `PipelinedSink` it hands over the next rows before the last ones are acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from harvest.core.actions import LeaseLost, Open, OpenFailed
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import PipelinedSink, Settle, Sink
from harvest.core.row import Row
from harvest.errors import CheckpointError, HarvestError, SinkHangs
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.leadership import Leadership

__all__ = ["Publisher", "SinkWatch"]

HANGS_AFTER_S: Final = 120.0
"""So long a sink may ask nothing; what it does between two questions takes seconds."""


class SinkWatch:
    """Finds out that a sink hangs.

    A sink at work asks every few seconds whether the lease is held. One that asks no more is in a
    call that does not return: threads of librdkafka can come to wait for each other for ever. The
    lease would be held all the while, and nothing published.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._sign_s = 0.0
        """When the sink was last heard of."""
        self._is_called = False
        """Whether somebody is in a call of the sink that may take its time."""
        self._submitter: int | None = None
        """The thread that is in `submit`."""
        self._unsettled: deque[None] = deque()
        """One for each delivery that was submitted."""

    def may_act(self) -> bool:
        """Whether the lease is held: what the sink asks."""
        # That the sink's own thread goes on shows nothing about a `submit` that is under way.
        if self._submitter in (None, threading.get_ident()):
            self._sign_s = time.monotonic()
        return self._leadership.may_act()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around a call of the sink."""
        self._sign_s = time.monotonic()
        self._is_called = True
        try:
            yield
        finally:
            self._sign_s = time.monotonic()
            self._is_called = False

    def submit(self, sink: PipelinedSink, rows: Sequence[Row], settle: Settle) -> None:
        """See `PipelinedSink.submit`; the sink is waited for until this is settled."""

        def settled(failure: Failure | None) -> None:
            self._unsettled.popleft()
            settle(failure)

        self._submitter = threading.get_ident()
        with self.calling():  # a sign, and then what is waited for
            self._unsettled.append(None)
            sink.submit(rows, settled)
        self._submitter = None

    def check(self) -> None:
        """End the process if the sink hangs. To be called now and then, in another thread."""
        is_awaited = self._is_called or self._unsettled
        if is_awaited and time.monotonic() > self._sign_s + HANGS_AFTER_S:
            hangs = f"the sink hangs: it gave no sign of life for {HANGS_AFTER_S:.0f} s"
            self._leadership.crash(SinkHangs(hangs))


class Publisher:
    """Opens a sink and publishes to it. What waits is published together, up to `most_rows` rows.

    - `opened`: the event for the checkpoint that the sink was opened with. What it raises is a
      failure to open, but for `CheckpointError`, which ends the process: whoever goes on without
      knowing what is published repeats or loses it.
    - `checkpoint`: that of a send (of type `send`). `settled`: the event that says what became of
      sends; called from any thread.
    """

    def __init__(
        self,
        leadership: Leadership,
        sink: Sink,
        send: type,
        *,
        opened: Callable[[str | None], Any],
        checkpoint: Callable[[Any], str],
        settled: Callable[[Sequence[Any], Failure | None], Any],
        most_rows: int,
    ) -> None:
        self._leadership = leadership
        self._sink = sink
        self._pipelined = sink if isinstance(sink, PipelinedSink) else None
        self._opened = opened
        self._checkpoint = checkpoint
        self._settled = settled
        self._most_rows = most_rows
        self._told: Failure | None = None
        self._watch = SinkWatch(leadership)
        self.thread: ActionThread[Any] = ActionThread("sink", self._work, (Open, send))

    def _publish(self, sends: Sequence[Any]) -> None:
        """Publish the rows of `sends`, with one checkpoint for all; report when it is settled."""
        rows = sends[0].rows
        if len(sends) > 1:
            rows = [row for send in sends for row in send.rows]

        def settle(failure: Failure | None) -> None:
            if failure is not None and failure is not self._told:
                self._told = failure  # which may be that of several deliveries
                count = len(rows if failure.undelivered is None else failure.undelivered)
                said = "%d rows were not published: %s"
                self._leadership.log.warning(said, count, failure.reason)
            self._leadership.report(self._settled(sends, failure))

        if self._pipelined is not None:
            self._watch.submit(self._pipelined, rows, settle)
        else:
            with self._watch.calling():
                failure = self._sink.deliver(rows, self._checkpoint(sends[-1]))
            settle(failure)

    def open(self, action: Open) -> Any:
        """Open the sink, if the lease is still held after the delay; return the event for it."""
        leadership = self._leadership
        leadership.pause(action.delay_ms)
        if not leadership.may_act():
            return LeaseLost()
        try:
            with self._watch.calling():
                found = self._sink.open(self._watch.may_act)
            return self._opened(found)
        except CheckpointError:
            raise
        except HarvestError as error:
            leadership.failed("the sink could not be opened: %s", error)
            return OpenFailed()

    def check(self) -> None:
        """See `SinkWatch.check`."""
        self._watch.check()

    def close(self) -> None:
        """Let go of the sink."""
        self._sink.close()

    def _work(self, actions: Sequence[Any]) -> None:
        for sends in self._merged(actions):
            if isinstance(sends, Open):
                self._leadership.report(self.open(sends))
            else:
                self._publish(sends)

    def _merged(self, actions: Sequence[Any]) -> Iterator[Any]:
        """Sends that follow one another as lists of up to `most_rows` rows; opens as they are."""
        sends: list[Any] = []
        rows = 0
        for action in actions:
            is_open = isinstance(action, Open)
            if sends and (is_open or rows + len(action.rows) > self._most_rows):
                yield sends
                sends, rows = [], 0
            if is_open:
                yield action
                continue
            sends.append(action)
            rows += len(action.rows)
        if sends:
            yield sends

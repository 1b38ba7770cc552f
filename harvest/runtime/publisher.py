"""The thread that publishes rows to a sink: for mark and for range mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harvest.core.actions import LeaseLost, Open, OpenFailed
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import Sink
from harvest.errors import HarvestError
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.leadership import Leadership

__all__ = ["Publisher"]


class Publisher:
    """Opens a sink and publishes to it. What waits is published together, up to `most_rows` rows.

    - `opened`: the event for the checkpoint that the sink was opened with. What it raises is a
      failure to open, but for errors of the type `fatal`, which end the leadership.
    - `publish`: publishes sends (of type `send`), with `deliver`, and returns the event for it.
    """

    def __init__(
        self,
        leadership: Leadership,
        sink: Sink,
        send: type,
        *,
        opened: Callable[[str | None], Any],
        publish: Callable[[Sequence[Any]], Any],
        most_rows: int,
        fatal: type[HarvestError] | tuple[()] = (),
    ) -> None:
        self._leadership = leadership
        self._sink = sink
        self._opened = opened
        self._publish = publish
        self._most_rows = most_rows
        self._fatal = fatal
        self.thread: ActionThread[Any] = ActionThread("sink", self._work, (Open, send))

    def deliver(self, sends: Sequence[Any], checkpoint: str) -> Failure | None:
        """Deliver the rows of `sends`, with one checkpoint for all. See `Sink.deliver`."""
        rows = sends[0].rows
        if len(sends) > 1:
            rows = [row for send in sends for row in send.rows]
        failure = self._sink.deliver(rows, checkpoint)
        if failure is not None:
            self._leadership.log.warning(
                "%d rows were not published: %s", len(rows), failure.reason
            )
        return failure

    def open(self, action: Open) -> Any:
        """Open the sink, if the lease is still held after the delay; return the event for it."""
        leadership = self._leadership
        leadership.pause(action.delay_ms)
        if not leadership.may_act():
            return LeaseLost()
        try:
            return self._opened(self._sink.open(leadership.may_act))
        except self._fatal:
            raise
        except HarvestError as error:
            leadership.log.warning("the sink could not be opened: %s", error)
            return OpenFailed()

    def close(self) -> None:
        """Let go of the sink."""
        self._sink.close()

    def _work(self, actions: Sequence[Any]) -> None:
        for sends in self._merged(actions):
            event = self.open(sends) if isinstance(sends, Open) else self._publish(sends)
            self._leadership.report(event)

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

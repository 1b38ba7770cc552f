"""Where rows are published, as a harvesting algorithm sees it.

A sink is used by one thread. Its contract, for every implementation:

1. `open` fences: when it returns, no earlier writer of the same outbox can publish any more, and
   what an earlier writer had under way has been decided. It returns the checkpoint that was
   committed last.
2. `deliver` publishes rows so that rows of one topic and key come in the given order, and answers
   only when every row's fate is decided or can only be decided by `open`.
3. After a failure, every later `deliver` fails too, without publishing, until `open`.
4. With `atomic` true, the rows of one `deliver` and its checkpoint become visible together or not
   at all. With `atomic` false, checkpoints are not kept: delivery is at least once.

A sink whose deliveries need not wait for one another may be a `PipelinedSink`:

5. `submit` begins a delivery. Each is settled exactly once, in the order in which they were
   submitted, and by 3. none successfully after one that failed, until `open`. What was under way
   together when one failed may be settled with one `Failure`, which then speaks of all its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from harvest.core.failure import Failure
from harvest.core.row import Row

__all__ = ["PipelinedSink", "Settle", "Sink", "SinkFactory", "StillHeld"]

StillHeld: TypeAlias = Callable[[], bool]
Settle: TypeAlias = Callable[[Failure | None], None]


class Sink(Protocol):
    """Publishes rows."""

    @property
    def atomic(self) -> bool:
        """Whether a delivery is all or nothing, and checkpoints are kept."""

    def prepare(self) -> None:
        """Connect, without fencing anybody, so that a later `open` is quick.

        Raises `SinkUnavailable`.
        """

    def open(self, still_held: StillHeld) -> str | None:
        """Fence earlier writers; return the last committed checkpoint, None if there is none.

        `still_held` is asked before anything is published, from now on until the next `open`: the
        sink publishes nothing once it has answered False.

        Raises `SinkUnavailable` when trying again may help.
        """

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """Publish `rows`; None when all of them are, with their checkpoint. Does not raise for
        what can go wrong on the way; a `Failure` says it.

        While it waits it goes on asking whether the lease is held: one that has not for two minutes
        counts as one that hangs, and ends the process.
        """

    def close(self) -> None:
        """Let go of the broker. What is under way is given up, never completed later."""


@runtime_checkable
class PipelinedSink(Sink, Protocol):
    """Publishes rows while earlier ones are not acknowledged yet. Only without atomicity."""

    def submit(self, rows: Sequence[Row], settle: Settle) -> None:
        """Begin to publish `rows`; `settle` hears their fate, from any thread, and returns soon.

        It may hear of it before this returns. Raises nothing for what can go wrong on the way.
        It goes on asking as in `deliver`: in this thread while it waits, then from any thread until
        all is settled.
        """


SinkFactory: TypeAlias = Callable[[], Sink]

"""Where messages are sent one by one, as the relay algorithm sees it (specs/RELAYER.md §7).

To write one of your own, implement `MessageSink`, and let it pass `tests/contract/
test_destination.py`. Its contract:

1. `send` is called by many threads at once, with messages of different groups. It returns when the
   destination has the message for good, or when it is not known to have it; within about the
   time-out that was configured. It raises nothing for what can go wrong on the way.
2. A success is said only when the destination has confirmed it. Whatever is not known is a failure:
   the message is sent again, with the same `idempotency_key`.
3. After `close`, what is under way may be given up.
"""

from __future__ import annotations

from typing import Protocol

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row

__all__ = ["MessageSink"]


class MessageSink(Protocol):
    """A destination."""

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        """Send one message. `epoch` is the fencing token of the leader that sends it."""

    def close(self) -> None:
        """Let go of all connections. From any thread."""

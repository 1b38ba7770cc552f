"""Where messages are sent one by one, as the relay algorithm sees it (specs/RELAYER.md §7).

To write one of your own, implement `MessageSink`, and let it pass `tests/contract/
test_destination.py`. Its contract:

1. `send` is called by many threads at once, with messages of different groups. It returns when the
   destination has the message for good, or when it is not known to have it; within about the
   time-out that was configured. It raises nothing for what can go wrong on the way, but `SinkHangs`
   when only another process can help.
2. A success is said only when the destination has confirmed it. Whatever is not known is a failure:
   the message is sent again, with the same `idempotency_key`.
3. What `send_batch` sends is confirmed, or not, as a whole. A lasting failure makes each message be
   sent by itself.
4. After `close`, what is under way may be given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from harvest.core.dispatcher import Outcome
from harvest.core.row import Row

__all__ = ["BatchSink", "MessageSink"]


class MessageSink(Protocol):
    """A destination."""

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        """Send one message. `epoch` is the fencing token of the leader that sends it."""

    def close(self) -> None:
        """Let go of all connections. From any thread."""


@runtime_checkable
class BatchSink(MessageSink, Protocol):
    """A destination that takes several messages in one request."""

    def send_batch(self, rows: Sequence[tuple[Row, str]], epoch: int) -> Outcome:
        """Send rows with their idempotency keys; the rows of one key in their order."""

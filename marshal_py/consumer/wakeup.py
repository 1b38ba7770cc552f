"""How the other threads of a consumer reach the one that claims and gives back partitions."""

from __future__ import annotations

import threading

from marshal_py.errors import MarshalError

__all__ = ["Wakeup"]


class Wakeup:
    """Wakes the thread of `Assignment`, and knows why the loop over messages should stop."""

    def __init__(self) -> None:
        self.failure: MarshalError | None = None
        """What the loop should raise, None while all is well."""
        self.plan_due = True
        """What this member should hold may have changed."""
        self._event = threading.Event()

    def wake(self) -> None:
        """Have the thread look at every partition now."""
        self._event.set()

    def fail(self, error: MarshalError) -> None:
        """Make the loop raise `error`."""
        self.failure = error

    def wait(self, timeout_s: float) -> None:
        """Wait until somebody calls `wake`, or did since `clear`."""
        self._event.wait(timeout_s)

    def clear(self) -> None:
        """What was asked for is about to be done."""
        self._event.clear()

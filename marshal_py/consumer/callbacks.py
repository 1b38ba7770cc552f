"""`on_assigned` and `on_revoked`: the program hears which partitions it works on.

The thread of `Assignment` calls them, one at a time. `on_assigned` comes before the first message
of a partition is fetched; `on_revoked` when nothing of it is in the program's hands any more, and
before the claim is given back, so that who holds it next finds what was stored there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from marshal_py.client.marshal import Claim
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.signatures import is_coroutine_function
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import ConfigurationError, HandlerFailed
from marshal_py.printable import text_of

__all__ = ["Callbacks", "OnPartition"]

OnPartition: TypeAlias = Callable[[Claim], object]
"""What is called for each partition that comes or goes: with its claim."""

_LOOK_S: Final = 0.5
_RUNNING: Final[ContextVar[object]] = ContextVar("marshal_callback", default=None)
"""In the task of a coroutine, and in threads that it has something done in: which call it is."""


class Callbacks:
    """What the program wants to hear of its partitions. For the thread of the assignment."""

    def __init__(
        self,
        on_assigned: OnPartition | None,
        on_revoked: OnPartition | None,
        log: Fields,
        wakeup: Wakeup,
        client_id: str,
    ) -> None:
        self.event_loop: asyncio.AbstractEventLoop | None = None
        """Where those that are coroutines run."""
        self.calling: HeldPartition | None = None
        """Of which partition one of them is being called."""
        self._thread = 0
        """Which thread calls it."""
        self._running = object()
        """Which call that is, to a coroutine."""
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._log = log
        self._wakeup = wakeup
        self._client_id = client_id

    def __bool__(self) -> bool:
        return self._on_assigned is not None or self._on_revoked is not None

    @property
    def is_within(self) -> bool:
        """Whether one of them is asking: what it waits for, it would have to do itself."""
        if self.calling is None:
            return False
        return self._thread == threading.get_ident() or _RUNNING.get() is self._running

    def check(self) -> None:
        """Raise `ConfigurationError` for a coroutine where there is no event loop."""
        for name, call in (("on_assigned", self._on_assigned), ("on_revoked", self._on_revoked)):
            if call is not None and is_coroutine_function(call) and self.event_loop is None:
                raise ConfigurationError(
                    f"{name} = {call!r} is `async def`: use an AsyncConsumer, or a plain function"
                )

    def assigned(self, part: HeldPartition) -> bool:
        """Call `on_assigned`, once. Returns whether messages may come: it has not failed."""
        if part.is_told:
            return True
        if isinstance(self._wakeup.failure, HandlerFailed):
            return False
        part.is_told = True
        if self._on_assigned is None:
            return True
        try:
            self._call(self._on_assigned, part)
        except BaseException as error:  # `sys.exit` would end this thread, without a word
            failure = HandlerFailed(
                f"on_assigned failed with {part.key[0]}/{part.key[1]}: "
                f"{type(error).__name__}: {text_of(error)}"
            )
            failure.__cause__ = error
            part.is_told = False
            self._wakeup.fail(failure)
            return False
        return True

    def revoked(self, part: HeldPartition) -> None:
        """Call `on_revoked`, if `on_assigned` was. What it raises is logged, and stops nothing."""
        if not part.is_told:
            return
        part.is_told = False
        if self._on_revoked is None:
            return
        try:
            self._call(self._on_revoked, part)
        except BaseException:
            self._log.exception(
                "%s: on_revoked failed with %s/%d",
                self._client_id,
                *part.key,
                extra=part.log_fields,
            )

    def _call(self, call: Callable[[Claim], Any], part: HeldPartition) -> None:
        self._thread, self.calling = threading.get_ident(), part
        try:
            self._call_with(call, part.claim)
        finally:
            self.calling = None

    def _call_with(self, call: Callable[[Claim], Any], claim: Claim) -> None:
        loop = self.event_loop
        if not is_coroutine_function(call) or loop is None:
            call(claim)
            return
        self._running = this = object()

        async def run() -> None:
            _RUNNING.set(this)  # in the context of its task alone
            await call(claim)

        running = asyncio.run_coroutine_threadsafe(run(), loop)
        while True:  # a loop that is gone by now would never answer
            try:
                running.result(_LOOK_S)
                return
            except concurrent.futures.TimeoutError:
                if running.done():
                    raise
                if loop.is_closed():
                    raise RuntimeError("the event loop was closed") from None

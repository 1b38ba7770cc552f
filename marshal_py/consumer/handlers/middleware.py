"""Middleware: functions around a handler, and how the handler itself is called.

::

    def timed(message, call_next):
        began = time.monotonic()
        try:
            return call_next(message)
        finally:
            log.info("%s took %.3f s", message.topic(), time.monotonic() - began)

    consumer.run(handle, middleware=[timed])

The first is the outermost. What it raises counts as if the handler had raised it; if it does not
call `call_next`, the message is done without the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

__all__ = ["CallNext", "ClaimAs", "Middleware", "WholeHandler"]

ClaimAs: TypeAlias = Literal["no", "second", "keyword"]
"""Whether, and how, a handler takes the claim."""


class CallNext(Protocol):
    """What stands further in: the next middleware, or the handler."""

    def __call__(self, message: Any, /) -> Any:
        """Call it with what the handler is to be given; with asyncio, await what it returns."""


class Middleware(Protocol):
    """What stands around a handler; ``async def`` if the handler is."""

    def __call__(self, message: Any, call_next: CallNext, /) -> Any:
        """Return ``call_next(message)``, and do something before or after."""


@dataclass(frozen=True)
class WholeHandler:
    """A handler with all that is around it. Goes to other processes as it is."""

    handler: Callable[..., Any]
    claim_as: ClaimAs
    middleware: tuple[Middleware, ...] = ()

    def __call__(self, given: Any, claim: Any) -> Any:
        """Call it; of a coroutine function, return what is to be awaited."""
        if not self.middleware:
            return self._handle(claim, given)
        call_next: CallNext = partial(self._handle, claim)
        for each in reversed(self.middleware):
            call_next = partial(_around, each, call_next)
        return call_next(given)

    def _handle(self, claim: Any, given: Any) -> Any:
        if self.claim_as == "no":
            return self.handler(given)
        if self.claim_as == "second":
            return self.handler(given, claim)
        return self.handler(given, claim=claim)


def _around(each: Middleware, call_next: CallNext, given: Any) -> Any:
    return each(given, call_next)

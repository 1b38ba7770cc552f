"""How `Consumer.run` treats messages and failures: what the user may choose, checked at once."""

from __future__ import annotations

import inspect
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from marshal_py.client.claim import NO_EPOCH, Claim
from marshal_py.consumer.dead_letters import is_dead_letter_topic
from marshal_py.consumer.handlers.middleware import ClaimAs, Middleware, WholeHandler
from marshal_py.consumer.handlers.schedule import Ordering
from marshal_py.consumer.signatures import is_coroutine_function, takes
from marshal_py.errors import (
    ConfigurationError,
    DeliveriesExhausted,
    DeserializationFailed,
    NotInVersion1,
)

__all__ = [
    "ClaimSnapshot",
    "Executor",
    "Failure",
    "HandlerOptions",
    "OnFailure",
    "Retry",
    "Stuck",
    "Verdict",
]

Executor: TypeAlias = Literal["thread", "process", "asyncio"]
Verdict: TypeAlias = Literal["dead_letter", "stop", "skip", "retry"]

MAX_WORKERS: Final = 10_000


@dataclass(frozen=True)
class Retry:
    """How often, and when, a message comes again to a handler that failed with it.

    - `attempts`: how often in all, the first time included; None: for ever.
    - `backoff_ms`: the wait after the first failure; it doubles with each, up to `max_backoff_ms`.
    - `jitter`: each wait is longer or shorter by up to this part of it, at random.

    Only what must come after the message in order waits with it (its key, with ordering="key").
    Raises `ConfigurationError`.
    """

    attempts: int | None = 3
    backoff_ms: float = 500
    max_backoff_ms: float = 60_000
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise ConfigurationError(
                f"attempts = {self.attempts!r} must be 1 or more, or None for no end"
            )
        for name in ("backoff_ms", "max_backoff_ms"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 86_400_000:
                raise ConfigurationError(f"{name} = {value!r} must be 0 to 86,400,000 (a day)")
        if not isinstance(self.jitter, int | float) or not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter = {self.jitter!r} must be 0 to 1")

    def delay_s(self, failures: int, chance: float) -> float:
        """Return the wait after so many failures; `chance` is a random number from 0 to 1."""
        doubled = self.backoff_ms * 2.0 ** min(failures - 1, 64)
        wait_ms = min(doubled, self.max_backoff_ms)
        return wait_ms * (1 + self.jitter * (2 * chance - 1)) / 1000


_ONCE: Final = Retry(attempts=1)
_USUAL: Final = Retry()


@dataclass(frozen=True)
class Failure:
    """A message that a handler has failed with for the last time, given to `on_failure`."""

    message: Any
    error: BaseException
    attempts: int
    claim: Claim


OnFailure: TypeAlias = Literal["dead_letter", "stop", "skip"] | Callable[[Failure], Verdict | None]


@dataclass(frozen=True)
class Stuck:
    """A handler that does not return, given to `on_stuck`. Its claim is kept, and it is not killed.

    - `messages`: what it was given (one, unless `batch_size` was set).
    - `running_s`: for how long it has been running.
    - `worker`: the name of its thread, process or task; `stack`: where it is now, as text ("" for a
      process, into which nobody can look from here).
    """

    messages: list[Any]
    running_s: float
    worker: str
    stack: str

    def __str__(self) -> str:
        first = self.messages[0]
        more = f" and {len(self.messages) - 1} more" if len(self.messages) > 1 else ""
        return (
            f"the handler of {first.topic()}/{first.partition()} at offset {first.offset()}{more} "
            f"has been running for {self.running_s:.1f} s in {self.worker}"
        )


@dataclass(frozen=True)
class ClaimSnapshot:
    """What a handler in another process is told of its claim: it fences there all the same."""

    topic: str
    partition: int
    epoch_if_any: int | None
    """None with wire="text"."""
    lease_until_ns: int

    @property
    def epoch(self) -> int:
        """The fencing token. See `Claim.epoch`. Raises `NotInVersion1` with wire="text"."""
        if self.epoch_if_any is None:
            raise NotInVersion1(NO_EPOCH)
        return self.epoch_if_any

    @property
    def held(self) -> bool:
        """Whether the lease stood at least until now, as far as was known at the start."""
        return _now_ns() < self.lease_until_ns


_now_ns: Final[Callable[[], int]] = partial(
    time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)


@dataclass(frozen=True)
class HandlerOptions:
    """Everything that `Consumer.run` was told, checked. See there. Raises `ConfigurationError`."""

    handler: Callable[..., Any]
    workers: int = 8
    ordering: Ordering = "key"
    executor: Executor | None = None
    batch_size: int | None = None
    retry: Retry | Mapping[str, Retry] | None = None
    on_failure: OnFailure = "stop"
    not_retriable: tuple[type[BaseException], ...] = ()
    dead_letter_topic: str = "{topic}.dlq"
    max_buffered: int = 10_000
    max_buffered_bytes: int = 64 * 1024 * 1024
    max_ahead: int = 100_000
    stuck_after_s: float | None = 60.0
    on_stuck: Callable[[Stuck], None] | None = None
    drain_timeout_s: float = 30.0
    at_most_once: bool = False
    middleware: Sequence[Middleware] = ()
    filter: Callable[[Any], object] | None = None
    has_epochs: bool = True
    """Not with wire="text"."""
    whole: WholeHandler = field(init=False)
    """The handler, and the middleware around it."""

    def __post_init__(self) -> None:
        if not callable(self.handler):
            raise ConfigurationError(f"handler = {self.handler!r} must be a function")
        _whole("workers", self.workers, 1, MAX_WORKERS)
        _one_of("ordering", self.ordering, ("key", "partition", "none"))
        self._check_executor()
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, 1, 1_000_000)
        if not callable(self.on_failure):
            _one_of("on_failure", self.on_failure, ("dead_letter", "stop", "skip", "a function"))
        if not is_dead_letter_topic(self.dead_letter_topic):
            raise ConfigurationError(
                f"dead_letter_topic = {self.dead_letter_topic!r} must be the name of a topic, in "
                "which {topic} stands for that of a message"
            )
        _whole("max_buffered", self.max_buffered, 1, 10_000_000)
        _whole("max_buffered_bytes", self.max_buffered_bytes, 1_024, 1 << 40)
        _whole("max_ahead", self.max_ahead, 1, 100_000_000)
        if self.stuck_after_s is not None and not self.stuck_after_s > 0:
            raise ConfigurationError(
                f"stuck_after_s = {self.stuck_after_s!r} must be above 0, or None for no limit"
            )
        if not self.drain_timeout_s >= 0:
            raise ConfigurationError(
                f"drain_timeout_s = {self.drain_timeout_s!r} must be 0 or more"
            )
        self._check_retries()
        if isinstance(self.not_retriable, type):
            object.__setattr__(self, "not_retriable", (self.not_retriable,))
        for kind in self.not_retriable:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigurationError(f"not_retriable: {kind!r} is no type of exception")
        claim_as = _claim_as(self.handler)
        claim: dict[str, tuple[Any, ...]]
        claim = {"no": ((1,), {}), "second": ((1, 2), {}), "keyword": ((1,), {"claim": 2})}
        takes("handler", self.handler, "(message), or (message, claim)", *claim[claim_as])
        if callable(self.on_failure):
            takes("on_failure", self.on_failure, "(failure)", (1,))
        if self.on_stuck is not None:
            takes("on_stuck", self.on_stuck, "(stuck)", (1,))
        if self.filter is not None:
            takes("filter", self.filter, "(message)", (1,))
            if is_coroutine_function(self.filter):
                raise ConfigurationError(
                    f"filter = {self.filter!r} must be a plain function, and quick"
                )
        self._check_middleware()
        object.__setattr__(
            self, "whole", WholeHandler(self.handler, claim_as, tuple(self.middleware))
        )

    def _check_retries(self) -> None:
        retries = self.retry.values() if isinstance(self.retry, Mapping) else [self.retry]
        for retry in retries:
            if retry is not None and not isinstance(retry, Retry):
                raise ConfigurationError(
                    f"retry = {self.retry!r} must be a Retry, or a Retry for each topic by name"
                )
            if not self.at_most_once or retry is None or retry.attempts == 1:
                continue
            raise ConfigurationError(
                f"retry = {retry}: with mode='at_most_once' no message comes to a handler "
                "twice; leave retry out, or use mode='at_least_once'"
            )

    def _check_middleware(self) -> None:
        if callable(self.middleware) or not isinstance(self.middleware, Sequence):
            raise ConfigurationError(
                f"middleware = {self.middleware!r} must be a list of functions, outermost first"
            )
        for each in self.middleware:
            takes("middleware", each, "(message, call_next)", (1, 2))
            if is_coroutine_function(each) is not (self.executor == "asyncio"):
                raise ConfigurationError(
                    f"middleware = {each!r}: "
                    + (
                        "around an `async def` handler it must be `async def`, and await call_next"
                        if self.executor == "asyncio"
                        else "around a plain handler it must be a plain function"
                    )
                )
            if self.executor == "process":
                _check_sendable("middleware", each)

    def _check_executor(self) -> None:
        is_coroutine = is_coroutine_function(self.handler)
        if self.executor is None:
            object.__setattr__(self, "executor", "asyncio" if is_coroutine else "thread")
        _one_of("executor", self.executor, ("thread", "process", "asyncio"))
        if is_coroutine is not (self.executor == "asyncio"):
            raise ConfigurationError(
                f"executor = {self.executor!r}: "
                + (
                    "a handler that is `async def` runs in executor='asyncio'"
                    if is_coroutine
                    else "the handler must be `async def`; plain functions run in threads"
                )
            )
        if self.executor == "process":
            _check_sendable("handler", self.handler)

    def retry_of(self, topic: str) -> Retry:
        """Return what was chosen for a topic, or goes without saying."""
        if self.at_most_once:
            return _ONCE
        chosen = self.retry.get(topic) if isinstance(self.retry, Mapping) else self.retry
        return chosen or _USUAL

    def may_retry(self, topic: str, error: BaseException, failures: int) -> bool:
        """Whether a message comes again after so many failures, of which `error` was the last."""
        if isinstance(error, DeliveriesExhausted):
            return False
        cause = error.__cause__ if isinstance(error, DeserializationFailed) else None
        if isinstance(error, self.not_retriable) or isinstance(cause, self.not_retriable):
            return False
        attempts = self.retry_of(topic).attempts
        return attempts is None or failures < attempts


def _check_sendable(name: str, function: Any) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:
        raise ConfigurationError(
            f"{name} = {function!r} cannot be sent to another process ({error}): use "
            "a function at the top level of a module, or executor='thread'"
        ) from None


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigurationError(
            f"{name} = {value!r} must be a whole number from {least:,} to {most:,}"
        )


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} = {value!r} must be one of: {', '.join(choices)}")


def _claim_as(handler: Callable[..., Any]) -> ClaimAs:
    """Say how the claim is given to `handler`; its first argument is the message, however named.

    Raises `ConfigurationError` if it cannot be called with the two.
    """
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return "no"
    message, claim = object(), object()
    ways: list[tuple[ClaimAs, Callable[[], inspect.BoundArguments]]] = [
        ("keyword", lambda: signature.bind(message, claim=claim)),
        ("no", lambda: signature.bind(message)),
        ("second", lambda: signature.bind(message, claim)),
    ]
    for way, bind in ways:
        if way == "keyword" and "claim" not in signature.parameters:
            continue  # what takes any keyword did not ask for this one
        try:
            bind()
        except TypeError:
            continue
        return way
    raise ConfigurationError(
        f"handler = {getattr(handler, '__name__', handler)!r} takes {signature}: it must take the "
        "message, or the message and the claim"
    )

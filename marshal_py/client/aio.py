"""The asyncio face of claims, leader election and consumers.

::

    async with AsyncConsumer("localhost:9092", group_id="billing", topics="orders") as consumer:
        async for message in consumer:
            await handle(message)

Everything is done by the same code as in the blocking face: claims wait in the same generators
(see `marshal_py.client.waiting`), consumers fetch in a thread of their own. What a call of the
blocking face promises and raises holds here too; only what waits is a coroutine. Heartbeats come
from the client's own thread, so an event loop that is kept busy loses no claim.

A task that is cancelled while it waits leaves nothing undone behind it: messages that were on
their way come with the next iteration, and what was appended to the log takes its course.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from confluent_kafka import Message

from marshal_py.client.leader_election import Leader, Leadership, LeaderWatch
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.client.signals import StopRequests, exit_on_sigterm
from marshal_py.client.waiting import Steps, Wait, drive
from marshal_py.consumer.claim_metadata import Note
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.delivery import Batch, Run
from marshal_py.consumer.handlers.runner import RunStats
from marshal_py.errors import ClaimTimeout, Closed

__all__ = ["AsyncClaim", "AsyncConsumer", "AsyncLeaderWatch", "AsyncLeadership", "AsyncMarshal"]

T = TypeVar("T")


class AsyncClaim:
    """A `Claim` (`sync`), of which the calls that wait are coroutines."""

    def __init__(self, claim: Claim) -> None:
        self.sync: Final = claim
        """The claim itself: its hooks may be set here; they run in the client's hook thread."""

    topic = property(lambda self: self.sync.topic, doc="See `Claim.topic`.")
    partition = property(lambda self: self.sync.partition, doc="See `Claim.partition`.")
    epoch = property(lambda self: self.sync.epoch, doc="The fencing token. See `Claim.epoch`.")
    held = property(lambda self: self.sync.held, doc="Whether the holder may act now.")
    remaining_ms = property(lambda self: self.sync.remaining_ms, doc="What is left of the lease.")
    position = property(lambda self: self.sync.position, doc="See `Claim.position`.")
    next_offset = property(lambda self: self.sync.next_offset, doc="See `Claim.next_offset`.")
    stored_offset = property(lambda self: self.sync.stored_offset, doc="See `Claim.stored_offset`.")
    reason = property(lambda self: self.sync.reason, doc="Why the claim ended.")

    async def commit(
        self, next_offset: int, *, wait: bool = False, timeout_s: float = 10.0
    ) -> None:
        """See `Claim.commit`."""
        await self._drive(self.sync._commit(next_offset, wait, timeout_s))

    async def claim_messages(self, proposed_offset: int, *, timeout_s: float = 10.0) -> bool:
        """See `Claim.claim_messages`."""
        return await self._drive(self.sync._claim_messages(proposed_offset, timeout_s))

    async def release(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """See `Claim.release`."""
        await self._drive(self.sync._release(wait, timeout_s))

    async def wait_held(self, timeout_s: float | None = None) -> bool:
        """See `Claim.wait_held`."""
        return await self._drive(self.sync._wait_held(timeout_s))

    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """See `Claim.wait_lost`."""
        return await self._drive(_lost(self.sync, timeout_s))

    async def _drive(self, steps: Steps[T]) -> T:
        return await drive(self.sync._marshal._lock, steps)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ClaimTimeout):
            await self.release()

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"


def _lost(claim: Claim, timeout_s: float | None) -> Steps[bool]:
    """Wait until the right to act ends. (The blocking face does so without the client's lock.)"""
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    while claim.held:
        left_s = None if deadline is None else deadline - loop.time()
        if left_s is not None and left_s <= 0:
            return False
        lease_s = claim.remaining_ms / 1000 + 0.001
        wait_s = lease_s if left_s is None else min(lease_s, left_s)
        yield Wait(claim._changed, lambda: not claim.held, wait_s)
    return True


class AsyncLeadership:
    """A `Leadership` (`sync`), of which the calls that wait are coroutines."""

    def __init__(self, leadership: Leadership) -> None:
        self.sync: Final = leadership

    held = property(lambda self: self.sync.held, doc="Whether this client leads now.")
    epoch = property(lambda self: self.sync.epoch, doc="The fencing token.")
    remaining_ms = property(lambda self: self.sync.remaining_ms, doc="What is left of the lease.")
    reason = property(lambda self: self.sync.reason, doc="Why the leadership ended.")

    async def campaign(self, timeout_s: float | None = None) -> Self:
        """See `Leadership.campaign`."""
        await drive(self.sync._marshal._lock, self.sync._campaign(timeout_s))
        return self

    async def resign(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """See `Leadership.resign`."""
        claim = self.sync._claim
        if claim is not None:
            await AsyncClaim(claim).release(wait=wait, timeout_s=timeout_s)

    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """See `Leadership.wait_lost`."""
        claim = self.sync._claim
        return True if claim is None else await AsyncClaim(claim).wait_lost(timeout_s)

    async def __aenter__(self) -> Self:
        return await self.campaign()

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ClaimTimeout):
            await self.resign()


class AsyncLeaderWatch:
    """Iterates over the changes of who leads a name: ``async for old, new in watch``."""

    def __init__(self, marshal: Marshal, name: str) -> None:
        loop = asyncio.get_running_loop()
        changes: asyncio.Queue[tuple[Leader | None, Leader | None]] = asyncio.Queue()

        def on_change(old: Leader | None, new: Leader | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(changes.put_nowait, (old, new))

        self._changes = changes
        self._watch = LeaderWatch(marshal, name, on_change)

    @property
    def current(self) -> Leader | None:
        """The leader according to the log, None if there is none."""
        return self._watch.current

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Leader | None, Leader | None]:
        return await self._changes.get()


class AsyncMarshal:
    """A `Marshal` (`sync`), of which the calls that wait are coroutines. Arguments as there.

    ::

        async with AsyncMarshal("localhost:9092", group_id="billing") as marshal:
            async with await marshal.claim("orders", 3) as claim:
                while claim.held:
                    ...

    What does not wait (`world`, `cell`, `claims`, `listen`, ...) is called on `sync`.
    """

    def __init__(self, config: Mapping[str, Any] | str, *, group_id: str, **settings: Any) -> None:
        self._on_sigterm = settings.get("close_on_sigterm", True)
        self.sync: Final = Marshal(config, group_id=group_id, **settings)

    async def start(self) -> Self:
        """See `Marshal.start`."""
        await _in_thread(self.sync.start, undo=self.sync.close)
        if self._on_sigterm and self.sync._restore_signal is None:
            self.sync._restore_signal = exit_on_sigterm()
        return self

    async def close(self, timeout_s: float = 10.0, *, release: bool = True) -> None:
        """See `Marshal.close`."""
        restore, self.sync._restore_signal = self.sync._restore_signal, None
        try:
            await _in_thread(partial(self.sync.close, timeout_s, release=release))
        finally:
            if restore is not None:
                restore()

    async def claim(
        self, topic: str, partition: int, *, timeout_s: float | None = None
    ) -> AsyncClaim:
        """See `Marshal.claim`. Cancelled, it wants the claim no longer."""
        return (await self.claim_many([(topic, partition)], timeout_s=timeout_s))[0]

    async def claim_many(
        self, keys: Iterable[tuple[str, int]], *, timeout_s: float | None = None
    ) -> list[AsyncClaim]:
        """See `Marshal.claim_many`."""
        claims = await drive(self.sync._lock, self.sync._claim_many(keys, timeout_s))
        return [AsyncClaim(claim) for claim in claims]

    async def try_claim(
        self, topic: str, partition: int, *, timeout_s: float = 10.0
    ) -> AsyncClaim | None:
        """See `Marshal.try_claim`."""
        claim = await drive(self.sync._lock, self.sync._try_claim(topic, partition, timeout_s))
        return None if claim is None else AsyncClaim(claim)

    def leader(self, name: str) -> AsyncLeadership:
        """Stand for leader of `name`: ``async with marshal.leader(name) as leadership``."""
        return AsyncLeadership(self.sync.leader(name))

    def watch_leader(self, name: str) -> AsyncLeaderWatch:
        """Observe who leads `name`."""
        return AsyncLeaderWatch(self.sync, name)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncConsumer:
    """A `Consumer` (`sync`) for asyncio. Arguments as there; `config` may be an `AsyncMarshal`.

    One task iterates at a time. `ack`, `stats`, `claims` and `claim_of` do not wait, and are plain
    calls.
    """

    def __init__(
        self, config: Mapping[str, Any] | str | Marshal | AsyncMarshal, **settings: Any
    ) -> None:
        self._on_sigterm = settings.get("close_on_sigterm", True)
        self.sync: Final = Consumer(
            config.sync if isinstance(config, AsyncMarshal) else config, **settings
        )
        self._helper = _Helper()
        self._coming: asyncio.Future[bool] | None = None
        """The next run is on its way. It is kept when who waits for it is cancelled."""
        self._reader: asyncio.Task[Any] | None = None
        self._others_ack = False

    async def start(self) -> Self:
        """See `Consumer.start`."""
        await _in_thread(self.sync.start, undo=self.sync.close)
        self._heed_sigterm()
        return self

    def _heed_sigterm(self) -> None:
        marshal = self.sync.marshal
        if self._on_sigterm and self.sync._owns_marshal and marshal._restore_signal is None:
            marshal._restore_signal = exit_on_sigterm()

    def _take_restore(self) -> Callable[[], None] | None:
        """Return what undoes `_heed_sigterm`: in this thread, the client's own cannot."""
        if not self.sync._owns_marshal:
            return None
        marshal = self.sync.marshal
        restore, marshal._restore_signal = marshal._restore_signal, None
        return restore

    async def close(self, timeout_s: float = 10.0) -> None:
        """See `Consumer.close`. Cancelled, it goes on in the background."""
        mine = self._reader is asyncio.current_task() and not self._others_ack
        restore = self._take_restore()
        try:
            await _in_thread(partial(self.sync._close, timeout_s, mine=mine))
        finally:
            self._helper.close()
            if restore is not None:
                restore()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Hand out messages, one by one, until `close`."""
        return self.messages()

    def messages(self, *, idle_timeout_s: float | None = None) -> AsyncIterator[Message]:
        """See `Consumer.messages`."""
        return _Messages(self, idle_timeout_s)

    def batches(self, *, idle_timeout_s: float | None = None) -> AsyncIterator[Batch]:
        """See `Consumer.batches`."""
        return _Batches(self, idle_timeout_s)

    async def poll(self, timeout_s: float = 1.0) -> Message | None:
        """See `Consumer.poll`."""
        async for message in self.messages(idle_timeout_s=timeout_s):
            return message
        return None

    async def _next_run(self, idle_timeout_s: float | None) -> Run | None:
        """Wait for the next run in hand; None when closed, or after `idle_timeout_s`."""
        core = self.sync
        while core._hand is None:
            if self._coming is None:
                self._coming = self._helper.call(self._fetch)
            done, _ = await asyncio.wait([self._coming], timeout=idle_timeout_s)
            if not done:
                return None
            coming, self._coming = self._coming, None
            if not coming.result():
                return None
        return core._hand

    def _fetch(self) -> bool:
        """Take the next run in hand. Returns whether there was one, False when closed."""
        self.sync._hand = run = self.sync._next_run(None)
        return run is not None

    async def _enter(self) -> None:
        if not self.sync._started:
            await self.start()
        self._reader = asyncio.current_task()
        self.sync._enter_loop()

    def ack(self, message: Message) -> None:
        """See `Consumer.ack`."""
        if asyncio.current_task() is not self._reader:
            self._others_ack = True
        self.sync.ack(message)

    async def commit(self, timeout_s: float = 10.0) -> None:
        """See `Consumer.commit`."""
        await _in_thread(partial(self.sync.commit, timeout_s))

    async def lag(self, *, timeout_s: float = 5.0) -> dict[tuple[str, int], int]:
        """See `Consumer.lag`."""
        return await _in_thread(partial(self.sync.lag, timeout_s=timeout_s))

    async def run(self, handler: Callable[..., Any], **options: Any) -> RunStats:
        """See `Consumer.run`. Coroutines run in this event loop. Cancelled, it stops like `stop`.

        The cancellation is let through when all is wound up; a second one shortens that.
        """
        self.sync._event_loop = asyncio.get_running_loop()
        self._heed_sigterm()
        restore = self._take_restore()
        try:
            with StopRequests(self.stop, name=self.sync.marshal.client_id):
                return await self._run(partial(self.sync.run, handler, **options))
        finally:
            if restore is not None:
                restore()

    async def _run(self, run: Callable[[], RunStats]) -> RunStats:
        running = asyncio.ensure_future(_in_thread(run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            while not running.done():
                try:
                    await asyncio.wait([running])
                except asyncio.CancelledError:
                    self.stop(0.0)
            if not running.cancelled() and (error := running.exception()) is not None:
                raise error from None
            raise
        finally:
            self._helper.close()

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """See `Consumer.stop`."""
        self.sync.stop(drain_timeout_s)

    def stats(self) -> RunStats:
        """See `Consumer.stats`."""
        return self.sync.stats()

    def troubles(self) -> dict[tuple[str, int], Note]:
        """See `Consumer.troubles`."""
        return self.sync.troubles()

    def claims(self) -> list[Claim]:
        """See `Consumer.claims`."""
        return self.sync.claims()

    def claim_of(self, message: Message) -> Claim:
        """See `Consumer.claim_of`."""
        return self.sync.claim_of(message)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _Iteration(Generic[T]):
    """What messages and batches have in common."""

    def __init__(self, consumer: AsyncConsumer, idle_timeout_s: float | None) -> None:
        self._consumer = consumer
        self._idle_timeout_s = idle_timeout_s
        self._entered = False

    def __aiter__(self) -> Self:
        return self

    def __del__(self) -> None:
        if self._entered:  # the loop was left
            self._consumer.sync._looping = False

    async def _next_run(self) -> Run:
        """Return the next run. Raises `StopAsyncIteration`."""
        consumer = self._consumer
        if not self._entered:
            self._entered = True
            await consumer._enter()
        run = await consumer._next_run(self._idle_timeout_s)
        if run is None:
            consumer.sync._looping = False
            raise StopAsyncIteration
        return run


class _Messages(_Iteration[Message]):
    """Not an async generator: those are closed some time after a loop was left, not at once."""

    def __init__(self, consumer: AsyncConsumer, idle_timeout_s: float | None) -> None:
        super().__init__(consumer, idle_timeout_s)
        self._rest: Iterator[Message] = iter(())

    async def __anext__(self) -> Message:
        core = self._consumer.sync
        while True:
            for message in self._rest:
                if core._deserializers != (None, None):
                    core._deserialize(message)
                return message
            self._rest = core._hand_out(await self._next_run())


class _Batches(_Iteration[Batch]):
    async def __anext__(self) -> Batch:
        core = self._consumer.sync
        while True:
            core._settle_hand()
            batch = core._take_batch(await self._next_run())
            if batch is not None:
                return batch


class _Helper:
    """A daemon thread that makes one call after the other, started with the first."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have `function` called; the future, of the running loop, tells its outcome."""
        if self._closed:
            raise Closed("the consumer has been closed; make a new one")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="marshal-aio", daemon=True)
            self._thread.start()
        future, call = _into_future(function)
        self._calls.put(call)
        return future

    def close(self) -> None:
        """End the thread, after what it has to do still."""
        self._closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


async def _in_thread(function: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Call `function` in a thread of its own. If nobody waits any more when it returns: `undo`."""
    future, call = _into_future(function, undo)
    threading.Thread(target=call, name="marshal-aio", daemon=True).start()
    return await future


def _into_future(
    function: Callable[[], T], undo: Callable[[], object] | None = None
) -> tuple[asyncio.Future[T], Callable[[], None]]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            tell = partial(_set_result, future, function())
        except BaseException as error:
            tell = partial(_set_exception, future, error)
        else:
            if undo is not None and future.cancelled():
                undo()
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it who waited
            loop.call_soon_threadsafe(tell)

    return future, call


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        if isinstance(error, StopIteration | KeyboardInterrupt | SystemExit):
            error = RuntimeError(f"{type(error).__name__}: {error}")
        future.set_exception(error)

"""The asyncio face of consumers.

::

    async with AsyncConsumer("localhost:9092", group_id="billing", topics="orders") as consumer:
        async for message in consumer:
            await handle(message)

Everything is done by the same code as in the blocking face: consumers fetch in a thread of their
own. What a call of the blocking face promises and raises holds here too; only what waits is a
coroutine. Heartbeats come from the client's own thread, so an event loop that is kept busy loses
no claim.

A task that is cancelled while it waits leaves nothing undone behind it: messages that were on
their way come with the next iteration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, Unpack

from confluent_kafka import Message

from marshal_py.client.aio import AsyncMarshal
from marshal_py.client.aio_threads import CallThread, call_in_thread
from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.client.signals import StopRequests, hush, wake_on_signals
from marshal_py.consumer.acknowledging import AcknowledgeType, check_acknowledgement
from marshal_py.consumer.arguments import ConsumerArguments, RunArguments
from marshal_py.consumer.consumer import Consumer, core_of
from marshal_py.consumer.handlers.run_stats import RunStats
from marshal_py.consumer.held_partition import Batch, Run
from marshal_py.consumer.looking import AssignedPartition, Health
from marshal_py.consumer.typed import Decode, Handler, TypedMessage, V
from marshal_py.protocol.claim_metadata import ClaimMetadata

__all__ = ["AsyncConsumer"]

T = TypeVar("T")


class AsyncConsumer(Generic[V]):
    """A `Consumer` (`sync`) for asyncio. Arguments as there; `config` may be an `AsyncMarshal`.

    One task iterates at a time. `ack`, `stats`, `claims` and `claim_of` do not wait, and are plain
    calls.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Marshal | AsyncMarshal,
        *,
        decode: Decode[V] | None = None,
        **settings: Unpack[ConsumerArguments],
    ) -> None:
        self.sync: Final[Consumer[V]] = Consumer(
            config.sync if isinstance(config, AsyncMarshal) else config, decode=decode, **settings
        )
        self._core = core_of(self.sync)
        self._fetches = CallThread()
        self._coming: asyncio.Future[bool] | None = None
        """The next run is on its way. It is kept when who waits for it is cancelled."""
        self._reader: asyncio.Task[Any] | None = None
        self._others_ack = False
        self._sleep_through_signals: Callable[[], None] = _nothing

    async def start(self) -> Self:
        """See `Consumer.start`."""
        loop = self._core.callbacks.event_loop = asyncio.get_running_loop()
        undo = wake_on_signals(loop)
        try:
            await call_in_thread(self.sync.start, undo=self.sync.close)
        except BaseException:
            undo()
            raise
        self._sleep_through_signals()
        self._sleep_through_signals = undo
        self._handle_sigterm()
        return self

    def _handle_sigterm(self) -> None:
        if self._core.owns_marshal:
            driver_of(self.sync.marshal).handle_sigterm()

    def _take_sigterm_undo(self) -> Callable[[], None] | None:
        """Return what undoes `_handle_sigterm`: in this thread, the client's own cannot."""
        if not self._core.owns_marshal:
            return None
        return driver_of(self.sync.marshal).take_sigterm_undo()

    async def close(self, timeout_s: float = 10.0) -> None:
        """See `Consumer.close`. Cancelled, it goes on in the background."""
        handlers = self._core.handlers
        if handlers is not None and handlers.is_within:
            handlers.stop(timeout_s)
            return
        reader = self._reader
        mine = reader is not None and (reader is asyncio.current_task() or reader.done())
        mine = mine and not self._others_ack
        undo = self._take_sigterm_undo()
        try:
            await call_in_thread(partial(self._core.close, timeout_s, mine=mine))
        finally:
            self._fetches.close()
            if undo is not None:
                undo()
            self._sleep_through_signals()
            self._sleep_through_signals = _nothing

    def __aiter__(self) -> AsyncIterator[TypedMessage[V]]:
        """Hand out messages, one by one, until `close`."""
        return self.messages()

    def messages(self, *, idle_timeout_s: float | None = None) -> AsyncIterator[TypedMessage[V]]:
        """See `Consumer.messages`."""
        return _Messages(self, idle_timeout_s)  # type: ignore[return-value]

    def batches(self, *, idle_timeout_s: float | None = None) -> AsyncIterator[Batch]:
        """See `Consumer.batches`."""
        return _Batches(self, idle_timeout_s)

    async def poll(self, timeout_s: float = 1.0) -> TypedMessage[V] | None:
        """See `Consumer.poll`."""
        messages = _Messages(self, timeout_s, polls=True)
        try:
            async for message in messages:
                return message  # type: ignore[return-value]
            return None
        finally:
            messages.leave()  # an error would keep it

    async def enter(self, *, polls: bool) -> None:
        """This task iterates from now on. Starts the consumer, if need be. For iterations."""
        starts = not self._core.started
        if starts:
            await self.start()
        driver_of(self.sync.marshal).check_fork()  # the thread that fetches is the parent's
        self._reader = asyncio.current_task()
        # Closed while it started, it has nothing to hand out; closed before, it says so.
        self._core.iteration.enter(polls=polls, starts=not starts)

    async def next_run(self, idle_timeout_s: float | None) -> Run | None:
        """Wait for the next run in hand; None when closed, or after `idle_timeout_s`.

        For iterations.
        """
        iteration = self._core.iteration
        while iteration.hand is None:
            if self._coming is None:
                if self._fetches.is_closed:
                    return None
                self._coming = self._fetches.call(self._fetch)
            try:
                done, _ = await asyncio.wait([self._coming], timeout=idle_timeout_s)
            except asyncio.CancelledError as cancelled:
                hush(cancelled)
                raise
            if not done:
                return None
            coming, self._coming = self._coming, None
            if not coming.result():
                return None
        return iteration.hand

    def _fetch(self) -> bool:
        """Take the next run in hand. Returns whether there was one, False when closed."""
        iteration = self._core.iteration
        iteration.hand = run = iteration.next_run(None)
        return run is not None

    def ack(self, message: Message) -> None:
        """See `Consumer.ack`."""
        self._note_who_acknowledges()
        self.sync.ack(message)

    def _note_who_acknowledges(self) -> None:
        """See whether it is somebody else than who iterates. In any thread."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # there is no event loop in this thread
            task = None
        if task is None or task is not self._reader:
            self._others_ack = True

    async def acknowledge(
        self,
        message: Message,
        kind: AcknowledgeType = AcknowledgeType.ACCEPT,
        *,
        delay_s: float = 0.0,
        reason: str = "",
    ) -> None:
        """See `Consumer.acknowledge`. Only ``REJECT`` waits: for the dead letter."""
        check_acknowledgement(kind, delay_s)
        self._note_who_acknowledges()
        if kind is AcknowledgeType.REJECT:
            await call_in_thread(partial(self._core.reject, message, reason))
            self.sync.ack(message)
        else:
            self.sync.acknowledge(message, kind, delay_s=delay_s)

    def delivery_count(self, message: Message) -> int:
        """See `Consumer.delivery_count`."""
        return self.sync.delivery_count(message)

    async def commit(self, timeout_s: float = 10.0) -> None:
        """See `Consumer.commit`."""
        await call_in_thread(partial(self.sync.commit, timeout_s))

    def pause(self, topic: str, partition: int) -> None:
        """See `Consumer.pause`."""
        self.sync.pause(topic, partition)

    def resume(self, topic: str, partition: int) -> None:
        """See `Consumer.resume`."""
        self.sync.resume(topic, partition)

    def paused(self) -> list[tuple[str, int]]:
        """See `Consumer.paused`."""
        return self.sync.paused()

    async def seek(
        self, topic: str, partition: int, offset: int, *, timeout_s: float = 10.0
    ) -> None:
        """See `Consumer.seek`."""
        await call_in_thread(partial(self.sync.seek, topic, partition, offset, timeout_s=timeout_s))

    async def lag(self, *, timeout_s: float = 5.0) -> dict[tuple[str, int], int]:
        """See `Consumer.lag`."""
        return await call_in_thread(partial(self.sync.lag, timeout_s=timeout_s))

    async def run(self, handler: Handler[V], **options: Unpack[RunArguments]) -> RunStats:
        """See `Consumer.run`. Coroutines run in this event loop. Cancelled, it stops like `stop`.

        The cancellation is let through when all is wound up; a second one shortens that.
        """
        self._core.event_loop = asyncio.get_running_loop()
        self._core.callbacks.event_loop = self._core.event_loop
        sleep_through_signals = wake_on_signals(self._core.event_loop)
        self._handle_sigterm()
        undo = self._take_sigterm_undo()
        try:
            with StopRequests(self.stop, name=self.sync.marshal.client_id):
                return await self._run(partial(self.sync.run, handler, **options))
        finally:
            if undo is not None:
                undo()
            sleep_through_signals()

    async def _run(self, run: Callable[[], RunStats]) -> RunStats:
        running = asyncio.ensure_future(call_in_thread(run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError as cancelled:
            hush(cancelled)
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
            self._fetches.close()

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """See `Consumer.stop`."""
        self.sync.stop(drain_timeout_s)

    def stats(self) -> RunStats:
        """See `Consumer.stats`."""
        return self.sync.stats()

    def troubles(self) -> dict[tuple[str, int], ClaimMetadata]:
        """See `Consumer.troubles`."""
        return self.sync.troubles()

    def assignment(self) -> list[AssignedPartition]:
        """See `Consumer.assignment`."""
        return self.sync.assignment()

    def health(self) -> Health:
        """See `Consumer.health`."""
        return self.sync.health()

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
        if isinstance(error, asyncio.CancelledError):
            hush(error)
        await self.close()


def _nothing() -> None:
    pass


class _Iteration(Generic[T]):
    """What messages and batches have in common."""

    def __init__(
        self, consumer: AsyncConsumer[Any], idle_timeout_s: float | None, *, polls: bool = False
    ) -> None:
        self._consumer = consumer
        self._core = core_of(consumer.sync)
        self._idle_timeout_s = idle_timeout_s
        self._polls = polls
        self._entered = False

    def __aiter__(self) -> Self:
        return self

    def __del__(self) -> None:
        self.leave()  # the loop was left

    def leave(self) -> None:
        """Nobody iterates over this any more."""
        if self._entered:
            self._entered = False
            self._core.iteration.leave(polls=self._polls)

    async def _enter(self) -> None:
        if not self._entered:
            self._entered = True
            await self._consumer.enter(polls=self._polls)

    async def _next_run(self) -> Run:
        """Return the next run. Raises `StopAsyncIteration`."""
        await self._enter()
        run = await self._consumer.next_run(self._idle_timeout_s)
        if run is None:
            self._core.iteration.leave()
            raise StopAsyncIteration
        return run


class _Messages(_Iteration[Message]):
    """Not an async generator: those are closed some time after a loop was left, not at once."""

    def __init__(
        self, consumer: AsyncConsumer[Any], idle_timeout_s: float | None, *, polls: bool = False
    ) -> None:
        super().__init__(consumer, idle_timeout_s, polls=polls)
        self._rest: Iterator[Message] = iter(())

    async def __anext__(self) -> Message:
        core = self._core
        while True:
            for message in self._rest:
                return core.iteration.deserialize(message) if core.deserializers else message
            self._rest = core.iteration.hand_out(await self._next_run())


class _Batches(_Iteration[Batch]):
    async def __anext__(self) -> Batch:
        iteration = self._core.iteration
        await self._enter()
        while True:
            iteration.settle()
            batch = iteration.take_batch(await self._next_run())
            if batch is not None:
                return batch

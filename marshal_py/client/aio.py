"""The asyncio face of claims and leader election.

::

    async with AsyncMarshal("localhost:9092", group_id="billing") as marshal:
        async with await marshal.claim("orders", 3) as claim:
            while claim.held:
                ...

Everything is done by the same code as in the blocking face: claims wait in the same generators
(see `marshal_py.client.waiting`). What a call of the blocking face promises and raises holds here
too; only what waits is a coroutine. Heartbeats come from the client's own thread, so an event loop
that is kept busy loses no claim.

A task that is cancelled while it waits leaves nothing undone behind it: what was appended to the
log takes its course. Consumers: `marshal_py.consumer.aio`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from marshal_py.client.aio_threads import call_in_thread
from marshal_py.client.claim import core_of
from marshal_py.client.leader_election import Leader, Leadership, LeaderWatch
from marshal_py.client.marshal import Claim, Marshal, driver_of, registry_of
from marshal_py.client.signals import wake_on_signals
from marshal_py.client.waiting import Steps, Wait, drive
from marshal_py.errors import ClaimTimeout

__all__ = ["AsyncClaim", "AsyncLeaderWatch", "AsyncLeadership", "AsyncMarshal"]

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
        await self._drive(core_of(self.sync).commit(next_offset, wait, timeout_s))

    async def claim_messages(self, proposed_offset: int, *, timeout_s: float = 10.0) -> bool:
        """See `Claim.claim_messages`."""
        return await self._drive(core_of(self.sync).claim_messages(proposed_offset, timeout_s))

    async def release(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """See `Claim.release`."""
        await self._drive(core_of(self.sync).release(wait, timeout_s))

    async def wait_held(self, timeout_s: float | None = None) -> bool:
        """See `Claim.wait_held`."""
        return await self._drive(core_of(self.sync).wait_held(timeout_s))

    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """See `Claim.wait_lost`."""
        return await self._drive(_lost(self.sync, timeout_s))

    async def _drive(self, steps: Steps[T]) -> T:
        return await drive(core_of(self.sync).driver.lock, steps)

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
        yield Wait(core_of(claim).changed, lambda: not claim.held, wait_s)
    return True


class AsyncLeadership:
    """A `Leadership` (`sync`), of which the calls that wait are coroutines."""

    def __init__(self, leadership: Leadership, lock: AbstractContextManager[Any]) -> None:
        self.sync: Final = leadership
        self._lock: Final = lock

    held = property(lambda self: self.sync.held, doc="Whether this client leads now.")
    epoch = property(lambda self: self.sync.epoch, doc="The fencing token.")
    remaining_ms = property(lambda self: self.sync.remaining_ms, doc="What is left of the lease.")
    reason = property(lambda self: self.sync.reason, doc="Why the leadership ended.")

    async def campaign(self, timeout_s: float | None = None) -> Self:
        """See `Leadership.campaign`."""
        await drive(self._lock, self.sync.campaign_steps(timeout_s))
        return self

    async def resign(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """See `Leadership.resign`."""
        claim = self.sync.claim
        if claim is not None:
            await AsyncClaim(claim).release(wait=wait, timeout_s=timeout_s)

    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """See `Leadership.wait_lost`."""
        claim = self.sync.claim
        return True if claim is None else await AsyncClaim(claim).wait_lost(timeout_s)

    async def __aenter__(self) -> Self:
        return await self.campaign()

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ClaimTimeout):
            await self.resign()


class AsyncLeaderWatch:
    """Iterates over the changes of who leads a name: ``async for old, new in watch``.

    It ends when the watch or the client is closed, and when the client reads the log no more.
    """

    def __init__(self, marshal: Marshal, name: str) -> None:
        loop = asyncio.get_running_loop()
        changes: asyncio.Queue[tuple[Leader | None, Leader | None] | None] = asyncio.Queue()

        def say(change: tuple[Leader | None, Leader | None] | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(changes.put_nowait, change)

        self._changes = changes
        self._driver = driver_of(marshal)
        self._watch = LeaderWatch(self._driver, name, lambda old, new: say((old, new)))
        self._end = partial(say, None)
        self._driver.on_ended.append(self._end)
        if self._driver.has_ended:  # since the watch began: it may not have heard
            self._end()

    @property
    def current(self) -> Leader | None:
        """The leader according to the log, None if there is none."""
        return self._watch.current

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()
        with contextlib.suppress(ValueError):
            self._driver.on_ended.remove(self._end)
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Leader | None, Leader | None]:
        change = await self._changes.get()
        if change is None:
            self._end()  # for whoever asks again
            raise StopAsyncIteration
        return change


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
        self.sync: Final = Marshal(config, group_id=group_id, **settings)
        self._undo = contextlib.ExitStack()
        """What `start` changed in this thread."""

    async def start(self) -> Self:
        """See `Marshal.start`."""
        with contextlib.ExitStack() as undo:
            undo.callback(wake_on_signals(asyncio.get_running_loop()))
            await call_in_thread(self.sync.start, undo=self.sync.close)
            self._undo.push(undo.pop_all())
        driver_of(self.sync).handle_sigterm()  # in this thread it can be done
        return self

    async def close(self, timeout_s: float = 10.0, *, release: bool = True) -> None:
        """See `Marshal.close`."""
        restore = driver_of(self.sync).take_sigterm_undo()
        try:
            await call_in_thread(partial(self.sync.close, timeout_s, release=release))
        finally:
            restore()
            self._undo.close()

    async def claim(
        self,
        topic: str,
        partition: int,
        *,
        timeout_s: float | None = None,
        ephemeral: bool = False,
    ) -> AsyncClaim:
        """See `Marshal.claim`. Cancelled, it wants the claim no longer."""
        key = (topic, partition)
        return (await self.claim_many([key], timeout_s=timeout_s, ephemeral=ephemeral))[0]

    async def claim_many(
        self,
        keys: Iterable[tuple[str, int]],
        *,
        timeout_s: float | None = None,
        ephemeral: bool = False,
    ) -> list[AsyncClaim]:
        """See `Marshal.claim_many`."""
        registry = registry_of(self.sync)
        claims = await drive(
            driver_of(self.sync).lock, registry.claim_many(keys, timeout_s, ephemeral=ephemeral)
        )
        return [AsyncClaim(claim) for claim in claims]

    async def try_claim(
        self, topic: str, partition: int, *, timeout_s: float = 10.0, ephemeral: bool = False
    ) -> AsyncClaim | None:
        """See `Marshal.try_claim`."""
        claim = await drive(
            driver_of(self.sync).lock,
            registry_of(self.sync).try_claim(topic, partition, timeout_s, ephemeral=ephemeral),
        )
        return None if claim is None else AsyncClaim(claim)

    def leader(self, name: str) -> AsyncLeadership:
        """Stand for leader of `name`: ``async with marshal.leader(name) as leadership``."""
        return AsyncLeadership(self.sync.leader(name), driver_of(self.sync).lock)

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

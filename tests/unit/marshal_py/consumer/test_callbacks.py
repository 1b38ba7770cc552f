"""`on_assigned` and `on_revoked`, on the mock cluster."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py import AsyncConsumer, Claim, Consumer
from marshal_py.client.marshal import driver_of
from marshal_py.consumer import callbacks as callbacks_module
from marshal_py.consumer.callbacks import Callbacks
from marshal_py.consumer.consumer import core_of
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.partitions import LEFT_S
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import ConfigurationError, HandlerFailed, NotHeld
from marshal_py.testing import TestBroker
from tests.unit.marshal_py.consumer.test_decisions import FakeClaim, part_of


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Told:
    """What was heard, in order: what came, messages, what went."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: list[tuple[str, int]] = []

    def say(self, what: str, partition: int) -> None:
        with self.lock:
            self.all.append((what, partition))

    def of(self, partition: int) -> list[str]:
        with self.lock:
            return [what for what, p in self.all if p == partition]

    def assigned(self, claim: Claim) -> None:
        assert claim.held
        self.say("assigned", claim.partition)

    def revoked(self, claim: Claim) -> None:
        self.say("revoked", claim.partition)

    def handle(self, message: Any) -> None:
        self.say("message", message.partition())


def test_each_partition_is_assigned_before_its_first_message_and_revoked_after_its_last(
    mock_kafka: TestBroker,
) -> None:
    told = Told()
    for p in range(4):
        mock_kafka.send("orders", "1", "2", partition=p)
    consumer = mock_kafka.consumer("orders", on_assigned=told.assigned, on_revoked=told.revoked)
    mock_kafka.run(told.handle, consumer)
    for p in range(4):
        assert told.of(p) == ["assigned", "message", "message", "revoked"]


def test_who_comes_next_finds_what_on_revoked_left_there(mock_kafka: TestBroker) -> None:
    """A partition moves while its messages are being handled: its state moves with it."""
    for p in range(4):
        mock_kafka.send("orders", *["x"] * 20, partition=p)
    store: dict[int, int] = {}
    problems: list[str] = []
    moved = threading.Event()

    def member(name: str) -> Consumer:
        counts: dict[int, int] = {}

        def assigned(claim: Claim) -> None:
            counts[claim.partition] = store.get(claim.partition, 0)

        def revoked(claim: Claim) -> None:
            store[claim.partition] = counts.pop(claim.partition)
            moved.set()

        def handle(message: Any) -> None:
            if message.partition() not in counts:
                problems.append(f"{name}: {message.partition()} was not assigned")
            time.sleep(0.01)
            counts[message.partition()] += 1

        consumer = mock_kafka.consumer(
            "orders", client_id=name, on_assigned=assigned, on_revoked=revoked
        )
        threads.append(threading.Thread(target=consumer.run, args=(handle,), daemon=True))
        threads[-1].start()
        return consumer

    threads: list[threading.Thread] = []
    first = member("first")
    until(first.claims)
    second = member("second")
    assert moved.wait(20)
    until(lambda: first.stats().handled + second.stats().handled >= 80, 20)
    for consumer in (first, second):
        consumer.stop()
    for thread in threads:
        thread.join(20)
    assert not problems
    assert store == dict.fromkeys(range(4), 20)


def test_what_is_lost_while_it_is_handled_is_revoked_when_that_ends(mock_kafka: TestBroker) -> None:
    told, running, may_end = Told(), threading.Event(), threading.Event()
    mock_kafka.send("orders", "1", partition=0)
    consumer = mock_kafka.consumer("orders", on_assigned=told.assigned, on_revoked=told.revoked)

    def handle(_: Any) -> None:
        running.set()
        assert may_end.wait(10)
        told.say("message", 0)

    thread = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
    thread.start()
    assert running.wait(10)
    consumer.seek("orders", 0, 0)  # which ends the claim
    assert told.of(0) == ["assigned"]
    may_end.set()
    until(lambda: told.of(0)[:5] == ["assigned", "message", "revoked", "assigned", "message"])
    consumer.stop()
    thread.join(10)
    assert told.of(0) == ["assigned", "message", "revoked"] * 2  # it was not done: it came again


def test_a_loop_hears_of_its_partitions_too(mock_kafka: TestBroker) -> None:
    told = Told()
    mock_kafka.send("orders", "1", "2", partition=1)
    with mock_kafka.consumer(
        "orders", on_assigned=told.assigned, on_revoked=told.revoked
    ) as consumer:
        for message in consumer:
            told.handle(message)
            if message.offset() == 1:
                break
    assert told.of(1) == ["assigned", "message", "message", "revoked"]
    assert told.of(2) == ["assigned", "revoked"]


def test_coroutines_run_in_the_event_loop(mock_kafka: TestBroker) -> None:
    told = Told()
    mock_kafka.send("orders", "1", partition=0)

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def assigned(claim: Claim) -> None:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0.01)
            told.assigned(claim)

        async def revoked(claim: Claim) -> None:
            await asyncio.sleep(0.01)
            told.revoked(claim)

        mock_kafka.create_topic("orders")
        async with AsyncConsumer(
            mock_kafka.config,
            group_id="g",
            topics="orders",
            settle_ms=0,
            on_assigned=assigned,
            on_revoked=revoked,
        ) as consumer:
            async for message in consumer:
                told.handle(message)
                break

    asyncio.run(main())
    assert told.of(0) == ["assigned", "message", "revoked"]


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_what_on_assigned_raises_stops_the_consumer_and_on_revoked_does_not(
    mock_kafka: TestBroker, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    """Also `sys.exit`, which would end the thread that claims and gives back without a word."""
    told = Told()
    mock_kafka.send("orders", "1", partition=0)

    def broken(claim: Claim) -> None:
        raise kind("no disk")

    consumer = mock_kafka.consumer("orders", on_assigned=broken, on_revoked=told.revoked)
    why = rf"on_assigned failed with orders/\d: {kind.__name__}: no disk"
    with pytest.raises(HandlerFailed, match=why):
        mock_kafka.run(told.handle, consumer)
    assert told.all == []
    mock_kafka.run(told.handle, mock_kafka.consumer("orders", on_revoked=broken))
    assert told.all == [("message", 0)]
    assert "on_revoked failed with orders/0" in caplog.text


@pytest.mark.parametrize("raised", [None, ValueError("no"), SystemExit(1)])
def test_whatever_it_raises_a_callback_is_over_then(raised: BaseException | None) -> None:
    within: list[bool] = []

    def revoked(_: Claim) -> None:
        within.append(callbacks.is_within)
        if raised is not None:
            raise raised

    log: Any = logging.getLogger("marshal_py")
    callbacks = Callbacks(None, revoked, log, Wakeup(), "me")
    part = part_of(FakeClaim())
    part.is_told = True
    callbacks.revoked(part)
    assert within == [True]
    assert callbacks.calling is None
    assert not callbacks.is_within


def test_what_cannot_be_called_is_refused_at_once() -> None:
    async def later(claim: Claim) -> None: ...

    with pytest.raises(ConfigurationError, match=r"on_assigned .* is called with"):
        Consumer("127.0.0.1:1", group_id="g", topics="t", on_assigned=lambda: None)  # type: ignore[arg-type,misc]
    with pytest.raises(ConfigurationError, match="use an AsyncConsumer"):
        Consumer("127.0.0.1:1", group_id="g", topics="t", on_revoked=later).start()


@pytest.mark.parametrize("hook", ["on_assigned", "on_revoked"])
def test_one_of_them_may_close_the_consumer(mock_kafka: TestBroker, hook: str) -> None:
    """It would wait for itself, and what is held would be held for as long as the process lives."""
    mock_kafka.send("orders", "1", partition=0)
    closed: list[str] = []

    def close(_: Claim) -> None:
        consumer.close()
        closed.append("returned")

    consumer = mock_kafka.consumer("orders", **{hook: close})  # type: ignore[arg-type]
    with consumer:
        for message in consumer.messages(idle_timeout_s=20):
            if message.offset() == 0 and hook == "on_revoked":
                consumer.seek("orders", 0, 1)
        until(lambda: closed)
        until(lambda: not consumer.marshal.claims() and not driver_of(consumer.marshal).running)
    with mock_kafka.consumer("orders", client_id="next") as other:
        until(lambda: len(other.claims()) == 4)


def test_a_coroutine_may_close_the_consumer_and_seek_another_partition(
    mock_kafka: TestBroker,
) -> None:
    """It runs in another thread than who calls it, and what it awaits in yet another one."""
    for p in range(4):
        mock_kafka.send("orders", "1", "2", partition=p)
    came: list[int] = []
    returned: list[str] = []

    async def main() -> None:
        async def assigned(claim: Claim) -> None:
            came.append(claim.partition)
            if len(came) == 2:
                await consumer.seek("orders", came[0], 1, timeout_s=300)
                returned.append("seek")
            if came.count(claim.partition) == 2:
                await consumer.close(300)
                returned.append("close")

        consumer = AsyncConsumer(
            mock_kafka.config, group_id="g", topics="orders", settle_ms=0, on_assigned=assigned
        )
        async with consumer:
            async for _ in consumer:
                pass

    asyncio.run(asyncio.wait_for(main(), 30))
    assert returned == ["seek", "close"]
    assert came.count(came[0]) == 2


def test_a_task_that_a_coroutine_has_left_behind_is_not_within(mock_kafka: TestBroker) -> None:
    """It may wait for what the next call will do."""
    mock_kafka.create_topic("orders")
    within: list[bool] = []

    async def main() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        async def look() -> None:
            within.append(consumer._core.callbacks.is_within)
            first.set()
            await second.wait()
            within.append(consumer._core.callbacks.is_within)

        async def assigned(_: Claim) -> None:
            if not tasks:
                tasks.append(asyncio.create_task(look()))
                await first.wait()
            elif not second.is_set():
                second.set()
                await tasks[0]

        consumer = AsyncConsumer(
            mock_kafka.config, group_id="g", topics="orders", settle_ms=0, on_assigned=assigned
        )
        async with consumer:
            await asyncio.wait_for(second.wait(), 60)
            await tasks[0]

    asyncio.run(main())
    assert within == [True, False]


class OnLoop:
    """A coroutine is told of a partition, on an event loop that runs in a thread."""

    def __init__(self, assigned: Callable[[Claim], Awaitable[None]]) -> None:
        self.wakeup = Wakeup()
        self.told: list[bool] = []
        self._loop = asyncio.new_event_loop()
        self._looping = threading.Thread(target=self._loop.run_forever)
        self._looping.start()
        log: Any = logging.getLogger("test")
        self._callbacks = Callbacks(assigned, None, log, self.wakeup, "c")
        self._callbacks.event_loop = self._loop
        self.calling = threading.Thread(target=self._call, daemon=True)
        self.calling.start()

    def _call(self) -> None:
        self.told.append(self._callbacks.assigned(part_of(FakeClaim())))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._looping.join()
        self._loop.close()


def test_a_coroutine_whose_own_time_is_up_has_failed() -> None:
    """While it works, it is looked at again and again, which has a time-out of its own."""

    async def assigned(_: Claim) -> None:
        raise TimeoutError("no answer from the cache")

    on_loop = OnLoop(assigned)
    on_loop.calling.join(20)
    on_loop.close()  # who still waited would be told
    assert on_loop.told == [False]
    assert "t/0: TimeoutError: no answer from the cache" in str(on_loop.wakeup.failure)


def test_whoever_seeks_what_is_being_given_back_is_told(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "1", partition=0)
    problems: list[Exception] = []
    told = 0

    def seek(claim: Claim) -> None:
        nonlocal told
        told += 1
        try:
            consumer.seek("orders", claim.partition, 0)
        except NotHeld as problem:
            problems.append(problem)

    consumer = mock_kafka.consumer("orders", on_revoked=seek)
    mock_kafka.run(lambda _: None, consumer)
    assert len(problems) == told > 0


def test_on_assigned_may_seek_another_partition(mock_kafka: TestBroker) -> None:
    """Who would carry it out is who calls `on_assigned`: it would wait for itself."""
    came: list[int] = []
    positions: list[int] = []

    def assigned(claim: Claim) -> None:
        came.append(claim.partition)
        if len(came) == 2:
            consumer.seek("orders", came[0], 1)
        if came.count(claim.partition) == 2:
            positions.append(claim.position)

    for p in range(4):
        mock_kafka.send("orders", "1", "2", partition=p)
    consumer = mock_kafka.consumer("orders", on_assigned=assigned)
    with consumer:
        for _ in consumer:
            if positions:
                break
    assert positions == [1]
    assert came.count(came[0]) == 2


def test_whoever_does_not_return_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing more would come of a partition that was lost, and has come back."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    core: Any = core_of(Consumer("127.0.0.1:1", group_id="g", topics="t"))
    partitions, told = core.partitions, list[HeldPartition]()
    partitions._callbacks = SimpleNamespace(revoked=told.append)
    partitions._in_use = lambda _: True
    claim = FakeClaim()
    part = part_of(claim)
    claim.reason, part.is_told = "taken over", True  # type: ignore[attr-defined]
    partitions.by_key[part.key] = part
    partitions.remove(part)
    now_s += LEFT_S
    partitions.tell_of_lost()
    assert (told, partitions.wind_up()) == ([], False), "who closes waits for it, too"
    now_s += 1
    partitions.tell_of_lost()
    assert (told, partitions.wind_up()) == ([part], True)


def test_after_on_assigned_has_failed_it_is_called_for_no_other_and_nothing_is_revoked() -> None:
    """Nobody began with anything: there is nothing to end."""
    called: list[str] = []

    def fail(_: Claim) -> None:
        called.append("assigned")
        raise ValueError("no disk")

    log: Any = logging.getLogger("marshal_py")
    wakeup = Wakeup()
    callbacks = Callbacks(fail, lambda _: called.append("revoked"), log, wakeup, "me")
    first, second = part_of(FakeClaim()), part_of(FakeClaim())
    assert [callbacks.assigned(part) for part in (first, second, first)] == [False] * 3
    callbacks.revoked(first)
    callbacks.revoked(second)
    assert called == ["assigned"]
    assert isinstance(wakeup.failure, HandlerFailed)


def test_on_assigned_has_failed_also_where_its_error_has_no_text() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise AttributeError("code")

    def fail(_: Claim) -> None:
        raise Mute

    log: Any = logging.getLogger("marshal_py")
    wakeup = Wakeup()
    assert not Callbacks(fail, None, log, wakeup, "me").assigned(part_of(FakeClaim()))
    assert isinstance(wakeup.failure, HandlerFailed)
    assert "Mute: <Mute, of which no text" in str(wakeup.failure)


def test_what_is_revoked_is_revoked_once() -> None:
    called: list[str] = []
    log: Any = logging.getLogger("marshal_py")
    callbacks = Callbacks(None, lambda _: called.append("revoked"), log, Wakeup(), "me")
    part = part_of(FakeClaim())
    callbacks.revoked(part)
    assert called == [], "it was never assigned"
    assert [callbacks.assigned(part), callbacks.assigned(part)] == [True, True]
    callbacks.revoked(part)
    callbacks.revoked(part)
    assert called == ["revoked"]


def test_a_coroutine_whose_event_loop_was_closed_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the assignment would hold all partitions for ever."""
    monkeypatch.setattr(callbacks_module, "_LOOK_S", 0.01)
    began = threading.Event()

    async def assigned(_: Claim) -> None:
        task: Any = asyncio.current_task()
        task._log_destroy_pending = False
        began.set()
        await asyncio.Event().wait()

    on_loop = OnLoop(assigned)
    assert began.wait(20)
    on_loop.close()
    on_loop.calling.join(20)
    assert on_loop.told == [False]
    assert "the event loop was closed" in str(on_loop.wakeup.failure)

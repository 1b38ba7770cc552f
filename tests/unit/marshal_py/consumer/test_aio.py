"""Loops of asyncio, its own and uvloop's, on the mock cluster; some are closed by somebody else."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from confluent_kafka import Message

from marshal_py import AcknowledgeType, AsyncConsumer, AsyncMarshal
from marshal_py.consumer.consumer import core_of
from marshal_py.errors import BrokerUnavailable, Closed, HandlerFailed, TopicMissing
from marshal_py.testing import TestBroker
from tests.support.consumers import until
from tests.support.messages import value_of

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def within_a_minute(coroutine: Coroutine[Any, Any, None]) -> None:
        async def limited() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, uvloop.Loop) is (request.param is uvloop.new_event_loop)
            async with asyncio.timeout(60):
                await coroutine

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(limited())

    return within_a_minute


def consumer_of(broker: TestBroker) -> AsyncConsumer:
    broker.send("orders", "1", "2", partition=0)
    return AsyncConsumer(broker.config, group_id="g", topics="orders", settle_ms=0)


def is_busy_with(consumer: AsyncConsumer, message: Message | None) -> bool:
    """Whether the partition of the message is kept for now, as somebody works on it."""
    assert message is not None
    core = core_of(consumer.sync)
    part = core.shared.part_of(message)
    assert part is not None
    return core.busy_with(part)


def position_of(marshal: AsyncMarshal) -> int | None:
    cell = marshal.sync.cell("orders", 0)
    return None if cell is None else cell.position


def test_nothing_takes_longer_than_it_may(run: Run) -> None:
    consumer: Any = AsyncConsumer("127.0.0.1:1", group_id="g", topics="t")
    told: list[tuple[Any, ...]] = []
    consumer.sync = SimpleNamespace(
        commit=lambda timeout_s: told.append(("commit", timeout_s)),
        seek=lambda *where, timeout_s: told.append(("seek", *where, timeout_s)),
        lag=lambda timeout_s: told.append(("lag", timeout_s)),
        acknowledge=lambda *what, delay_s: told.append(("acknowledge", *what, delay_s)),
    )

    async def main() -> None:
        await consumer.commit(1.5)
        await consumer.seek("t", 3, 70, timeout_s=2.5)
        await consumer.lag(timeout_s=3.5)
        await consumer.acknowledge("m", AcknowledgeType.RELEASE, delay_s=4.5)

    run(main())
    assert told == [
        ("commit", 1.5),
        ("seek", "t", 3, 70, 2.5),
        ("lag", 3.5),
        ("acknowledge", "m", AcknowledgeType.RELEASE, 4.5),
    ]


def test_threads_may_acknowledge_what_a_loop_was_given() -> None:
    """As those that `asyncio.to_thread` uses, in which there is no event loop."""
    consumer: Any = AsyncConsumer("127.0.0.1:1", group_id="g", topics="t", auto_ack=False)
    acked: list[str] = []
    consumer.sync = SimpleNamespace(ack=acked.append)

    async def main() -> None:
        consumer._reader = asyncio.current_task()
        consumer.ack("in the loop")
        assert not consumer._others_ack
        await asyncio.to_thread(consumer.ack, "in a thread")
        assert consumer._others_ack

    asyncio.run(main())
    assert acked == ["in the loop", "in a thread"]


def test_a_loop_that_is_closed_while_it_starts_ends(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        consumer = consumer_of(mock_kafka)
        is_starting = asyncio.Event()
        start = consumer.sync.start

        def start_and_be_closed() -> object:
            started = start()
            consumer.sync.close()
            return started

        consumer.sync.start = start_and_be_closed  # type: ignore[assignment,method-assign]
        async for _ in consumer:
            is_starting.set()
        assert not is_starting.is_set()
        with pytest.raises(Closed):
            await anext(aiter(consumer))

    run(main())


def test_what_was_polled_is_in_hand_until_the_next_poll(mock_kafka: TestBroker, run: Run) -> None:
    """So its partition is not handed over, nor the consumer closed, while it is worked on."""

    async def main() -> None:
        async with consumer_of(mock_kafka) as consumer:
            for _ in range(2):
                message = await consumer.poll(30)
                assert is_busy_with(consumer, message)
            assert await consumer.poll(0.01) is None
            assert not is_busy_with(consumer, message)

    run(main())


def test_a_poll_that_is_cancelled_leaves_the_loop(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        async with consumer_of(mock_kafka) as consumer:
            iteration = core_of(consumer.sync).iteration
            assert await consumer.poll(30) is not None
            assert await consumer.poll(30) is not None
            polling = asyncio.create_task(consumer.poll(30))
            while not iteration.is_looping or iteration.hand is not None:
                await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            assert not iteration.is_looping

    run(main())


@pytest.mark.parametrize("how", ["poll", "messages"])
def test_who_closes_does_not_wait_for_a_task_that_has_ended(
    mock_kafka: TestBroker, run: Run, how: str
) -> None:
    async def main() -> None:
        consumer = consumer_of(mock_kafka)
        works = asyncio.Event()

        async def work() -> None:
            if how == "poll":
                await consumer.poll(30)
                works.set()
                await asyncio.Event().wait()
            async for _ in consumer:
                works.set()
                await asyncio.Event().wait()

        async with AsyncMarshal(mock_kafka.config, group_id="g") as looks_on:
            task = asyncio.create_task(work())
            await works.wait()
            task.cancel()
            await asyncio.wait([task])  # its error has the loop
            waits: list[float] = []
            close = consumer.sync._core.assignment.close

            def told(wait_s: float, *how: Any, **release: bool) -> None:
                waits.append(wait_s)
                close(wait_s, *how, **release)

            consumer.sync._core.assignment.close = told  # type: ignore[assignment,method-assign]
            await consumer.close(60)
            assert waits == [0.0]
            until(lambda: position_of(looks_on) == 0)

    run(main())


def test_a_loop_that_is_left_holds_nothing(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        async with consumer_of(mock_kafka) as consumer:
            async for message in consumer:
                assert is_busy_with(consumer, message)
                break
            assert not is_busy_with(consumer, message)

    run(main())


def test_a_batch_is_in_hand_until_the_next(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        async with consumer_of(mock_kafka) as consumer:
            async for batch in consumer.batches():
                assert is_busy_with(consumer, batch[-1])
                break
            assert not is_busy_with(consumer, batch[-1])

    run(main())


def test_who_closes_waits_for_what_other_tasks_acknowledge(
    mock_kafka: TestBroker, run: Run
) -> None:
    async def main() -> None:
        mock_kafka.send("orders", "1", "2", partition=0)
        consumer = AsyncConsumer(
            mock_kafka.config, group_id="g", topics="orders", settle_ms=0, auto_ack=False
        )

        async def acknowledge(message: Message, when: asyncio.Event) -> None:
            await when.wait()
            consumer.ack(message)

        at_once, closes = asyncio.Event(), asyncio.Event()
        at_once.set()
        async with AsyncMarshal(mock_kafka.config, group_id="g") as looks_on:
            tasks: list[asyncio.Task[None]] = []
            async for message in consumer:
                when = closes if tasks else at_once
                tasks.append(asyncio.create_task(acknowledge(message, when)))
                if len(tasks) == 2:
                    break
            await tasks[0]
            close = consumer.sync._core.assignment.close
            waits: list[float] = []

            def told(wait_s: float, deadline: float, *, release: bool) -> None:
                waits.append(wait_s)
                loop.call_soon_threadsafe(closes.set)
                close(wait_s, deadline, release=release)

            loop = asyncio.get_running_loop()
            consumer.sync._core.assignment.close = told  # type: ignore[method-assign]
            await consumer.close(60)
            await tasks[1]
            assert waits == [60]
            until(lambda: position_of(looks_on) == 2)

    run(main())


def test_a_loop_that_another_task_closes_ends_with_the_message_in_hand(
    mock_kafka: TestBroker, run: Run
) -> None:
    async def main() -> None:
        consumer = consumer_of(mock_kafka)
        got: list[bytes | None] = []
        works, may_go_on = asyncio.Event(), asyncio.Event()

        async def loop() -> None:
            async for message in consumer:
                got.append(message.value())
                works.set()
                await may_go_on.wait()

        task = asyncio.create_task(loop())
        await works.wait()
        await consumer.close(0.05)
        may_go_on.set()
        await task
        assert got == [b"1"]
        with pytest.raises(Closed):
            await anext(aiter(consumer))

    run(main())


def test_handlers_run_side_by_side_while_a_claim_is_held(mock_kafka: TestBroker, run: Run) -> None:
    async def main() -> None:
        in_flight = 0
        got: list[bytes] = []
        both = asyncio.Event()

        async def handle(message: Message) -> None:
            nonlocal in_flight
            in_flight += 1
            if in_flight == 2:
                both.set()
            await both.wait()
            got.append(value_of(message))
            if len(got) == 2:
                consumer.sync.stop()

        consumer = AsyncConsumer(mock_kafka.config, group_id="g", topics="orders", settle_ms=0)
        mock_kafka.send("orders", "1", partition=0)
        mock_kafka.send("orders", "2", partition=1)
        async with AsyncMarshal(mock_kafka.config, group_id="other") as marshal:
            async with await marshal.claim("x", 0) as claim, consumer:
                stats = await consumer.run(handle, workers=2)
                assert claim.held
            assert not claim.held
        assert (stats.handled, sorted(got)) == (2, [b"1", b"2"])

    run(main())


def test_a_task_that_is_cancelled_ends_at_once_and_loses_nothing(
    mock_kafka: TestBroker, run: Run
) -> None:
    async def main() -> None:
        async with consumer_of(mock_kafka) as consumer:
            got: list[bytes | None] = []
            works = asyncio.Event()

            async def loop() -> None:
                async for message in consumer:
                    got.append(message.value())
                    works.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(loop())
            await works.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for message in consumer:  # what was not finished comes again
                got.append(message.value())
                if len(got) == 3:
                    break
            assert got == [b"1", b"1", b"2"]

    run(main())


def test_a_message_that_is_rejected_is_done_when_its_dead_letter_says_why(run: Run) -> None:
    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", group_id="g", topics="t")
        message: Any = "a message"
        did: list[Any] = []
        core: Any = core_of(consumer.sync)
        core.reject = lambda *rejected: did.append(rejected)
        consumer.sync.ack = did.append  # type: ignore[assignment, method-assign]
        await consumer.acknowledge(message, AcknowledgeType.REJECT, reason="no such customer")
        assert did == [(message, "no such customer"), message]

        def fail(*_: object) -> None:
            raise BrokerUnavailable("down")

        core.reject = fail
        with pytest.raises(BrokerUnavailable):
            await consumer.acknowledge(message, AcknowledgeType.REJECT)
        assert len(did) == 2, "it comes again"

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_who_cancels_a_run_twice_waits_no_longer_and_hears_what_it_failed_with(
    run: Run, fails: bool
) -> None:
    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", group_id="g", topics="t")
        begun, over, stops = threading.Event(), threading.Event(), list[float | None]()

        def running(*_: object, **__: object) -> None:
            begun.set()
            over.wait(60)
            if fails:
                raise HandlerFailed("with t/0 at offset 7")

        consumer.sync.run = running  # type: ignore[assignment, method-assign]
        consumer.sync.stop = stops.append  # type: ignore[assignment, method-assign]
        task = asyncio.ensure_future(consumer.run(print))
        await asyncio.to_thread(begun.wait, 60)
        for count in (1, 2):
            task.cancel()
            while len(stops) < count:
                await asyncio.sleep(0)
        over.set()
        with pytest.raises(HandlerFailed if fails else asyncio.CancelledError):
            await task
        assert stops == [None, 0.0]

    run(main())


def wakeup_fd() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


@pytest.fixture
def _no_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_no_handler")
@pytest.mark.parametrize("how", ["loops", "runs", "does not start"])
def test_a_consumer_that_has_ended_leaves_signals_as_they_were(
    mock_kafka: TestBroker, how: str
) -> None:
    """Else SIGTERM would go on to be an exception, in a program that consumes nothing any more."""
    during: list[tuple[bool, bool]] = []

    def look() -> None:
        is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        during.append((is_default, wakeup_fd() == -1))

    async def main() -> None:
        consumer = consumer_of(mock_kafka)

        async def handle(_: Message) -> None:
            look()
            consumer.stop()

        if how == "loops":
            async with consumer:
                look()
        elif how == "runs":
            await consumer.run(handle)
        else:
            consumer = AsyncConsumer(mock_kafka.config, group_id="g", topics="missing")
            with pytest.raises(TopicMissing):
                await consumer.start()
        look()

    asyncio.run(main())
    assert during.pop() == (True, True)
    assert set(during) == (set() if how == "does not start" else {(False, False)})


@pytest.mark.usefixtures("_no_handler")
def test_sigterm_is_its_clients_matter_while_that_goes_on(mock_kafka: TestBroker) -> None:
    mock_kafka.send("orders", "1")

    async def main() -> None:
        async with AsyncMarshal(mock_kafka.config, group_id="g") as marshal:
            async with AsyncConsumer(marshal, topics="orders"):
                pass
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    asyncio.run(main())

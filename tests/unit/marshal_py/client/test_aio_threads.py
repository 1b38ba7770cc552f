"""Blocking calls in threads, and the event loops that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from marshal_py.client.aio_threads import CallThread, call_in_thread
from marshal_py.errors import Closed

WAIT_S = 20.0


@pytest.fixture
def uncaught(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What threads died of."""
    found: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value))
    yield found
    assert found == []


class Call:
    """A call that goes on for as long as the test wants it to."""

    def __init__(self) -> None:
        self.began, self.may_end, self.undone = (threading.Event() for _ in range(3))

    def __call__(self) -> str:
        self.began.set()
        assert self.may_end.wait(WAIT_S)
        return "done"


async def until(event: threading.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        while not event.is_set():
            await asyncio.sleep(0)


@pytest.mark.usefixtures("uncaught")
def test_what_a_call_returns_or_raises_is_told() -> None:
    async def main() -> None:
        assert await call_in_thread(lambda: 7) == 7
        with pytest.raises(ValueError, match="no"):
            await call_in_thread(lambda: int("no"))

    asyncio.run(main())


@pytest.mark.usefixtures("uncaught")
@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt])
def test_what_no_future_can_raise_is_an_error_all_the_same(kind: type[BaseException]) -> None:
    """Else whoever waits would wait for ever, or the loop would end."""

    def fail() -> None:
        raise kind("stop")

    async def main() -> None:
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: stop"):
            await asyncio.wait_for(call_in_thread(fail), WAIT_S)

    asyncio.run(main())


@pytest.mark.usefixtures("uncaught")
def test_what_nobody_waits_for_any_more_is_undone_once_it_is_done() -> None:
    async def main() -> None:
        call = Call()
        task = asyncio.create_task(call_in_thread(call, undo=call.undone.set))
        await until(call.began)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not call.undone.is_set()
        call.may_end.set()
        await until(call.undone)

    asyncio.run(main())


@pytest.mark.usefixtures("uncaught")
@pytest.mark.parametrize("is_told", [False, True])
def test_who_is_cancelled_as_it_is_done_leaves_nothing_behind_either(is_told: bool) -> None:
    """The loop had other things to do, and who waits had not been woken."""

    async def main() -> None:
        call, before = Call(), set(threading.enumerate())
        task = asyncio.create_task(call_in_thread(call, undo=call.undone.set))
        await until(call.began)
        (thread,) = set(threading.enumerate()) - before
        call.may_end.set()
        thread.join(WAIT_S)
        if is_told:  # before the task goes on
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(call.undone)

    asyncio.run(main())


@pytest.mark.usefixtures("uncaught")
def test_what_was_waited_for_is_not_undone() -> None:
    async def main() -> None:
        call = Call()
        call.may_end.set()
        assert await call_in_thread(call, undo=call.undone.set) == "done"
        assert not call.undone.is_set()

    asyncio.run(main())


def test_a_loop_that_is_gone_needs_no_answer(uncaught: list[object]) -> None:
    call = Call()
    before = set(threading.enumerate())

    async def main() -> None:
        task = asyncio.create_task(call_in_thread(call))
        await until(call.began)
        task.cancel()

    asyncio.run(main())
    (thread,) = set(threading.enumerate()) - before
    call.may_end.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert uncaught == []


@pytest.mark.usefixtures("uncaught")
def test_one_call_is_made_after_the_other_until_it_is_closed() -> None:
    calls, made = CallThread(), list[int]()

    async def main() -> None:
        futures = [calls.call(partial(made.append, n)) for n in range(5)]
        calls.close()  # what was asked for before is done
        await asyncio.wait_for(asyncio.gather(*futures), WAIT_S)
        assert made == [0, 1, 2, 3, 4]
        with pytest.raises(Closed):
            calls.call(lambda: made.append(5))

    asyncio.run(main())
    assert calls.is_closed


@pytest.mark.usefixtures("uncaught")
def test_a_call_that_was_given_up_keeps_none_from_the_next() -> None:
    calls = CallThread()

    async def main() -> None:
        call = Call()
        given_up = calls.call(call)
        await until(call.began)
        given_up.cancel()
        call.may_end.set()
        assert await asyncio.wait_for(calls.call(lambda: 7), WAIT_S) == 7
        calls.close()

    asyncio.run(main())

"""Steps that wait, carried out by a thread and by an event loop alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from marshal_py.client.waiting import ObservableCondition, Steps, Wait, block, drive

Carry = Callable[[threading.RLock, Steps[Any]], Any]


@pytest.fixture(params=["block", "drive"])
def carry(request: pytest.FixtureRequest) -> Carry:
    if request.param == "block":
        return block
    return lambda lock, steps: asyncio.run(drive(lock, steps))


class Door:
    """Opens when it is told to. `log` has what was done with the lock held, or without."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = ObservableCondition(self.lock)
        self.is_open = False
        self.log: list[str] = []

    def open(self) -> None:
        with self.lock:
            self.is_open = True
            self.changed.notify_all()

    def wait(self, timeout_s: float | None) -> Steps[str]:
        try:
            self.note("begins")
            came_true = yield Wait(self.changed, lambda: self.is_open, timeout_s)
            self.note("goes on")
            return "open" if came_true else "shut"
        finally:
            self.note("ends")

    def note(self, what: str) -> None:
        mine = self.lock._is_owned()  # type: ignore[attr-defined]
        self.log.append(what if mine else f"{what} without the lock")


def test_who_waits_goes_on_when_it_has_come_true(carry: Carry) -> None:
    door = Door()
    opener = threading.Timer(0.01, door.open)
    opener.start()
    assert carry(door.lock, door.wait(60.0)) == "open"
    opener.join()
    assert door.log == ["begins", "goes on", "ends"]
    assert carry(door.lock, door.wait(None)) == "open", "it is open already"


def test_who_waits_in_vain_is_told(carry: Carry) -> None:
    door = Door()
    assert carry(door.lock, door.wait(0.0)) == "shut"
    assert carry(door.lock, door.wait(0.01)) == "shut"


def test_what_steps_raise_comes_to_the_caller_and_the_lock_is_free(carry: Carry) -> None:
    door = Door()

    def fail() -> Steps[str]:
        yield from door.wait(0.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        carry(door.lock, fail())
    free: list[bool] = []
    other = threading.Thread(target=lambda: free.append(door.lock.acquire(blocking=False)))
    other.start()
    other.join()
    assert free == [True]


def test_a_loop_that_has_gone_on_leaves_nobody_who_watches() -> None:
    """Whoever notifies afterwards would call into a loop that is closed."""
    door = Door()
    assert asyncio.run(drive(door.lock, door.wait(0.0))) == "shut"
    assert door.changed.observers == []
    door.open()


def test_a_loop_that_was_closed_with_a_task_in_it_keeps_nobody_from_notifying() -> None:
    """The client's own thread would end by it."""
    door = Door()
    loop = asyncio.new_event_loop()
    task = loop.create_task(drive(door.lock, door.wait(None)))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    while not door.changed.observers:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    door.open()
    assert not task.done()
    del task


def test_a_task_that_is_cancelled_undoes_its_steps_under_the_lock() -> None:
    door = Door()

    async def main() -> None:
        task = asyncio.create_task(drive(door.lock, door.wait(None)))
        while not door.changed.observers:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert door.log == ["begins", "ends"], "before whoever cancelled goes on"

    asyncio.run(main())
    assert door.changed.observers == []


def test_other_tasks_run_while_one_waits() -> None:
    door = Door()

    async def main() -> None:
        task = asyncio.create_task(drive(door.lock, door.wait(None)))
        while not door.changed.observers:
            await asyncio.sleep(0)
        door.open()
        async with asyncio.timeout(20):
            assert await task == "open"

    asyncio.run(main())

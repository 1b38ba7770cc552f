"""Waiting for claims, written once, with a blocking and an asyncio face.

A call that waits is a generator. It holds the client's lock whenever it runs, changes what it has
to, and yields a `Wait`: until when. `block` drives it with a condition variable, `drive` with an
event loop; both send back whether the predicate came true in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

__all__ = ["FOR_EVER_S", "ObservableCondition", "Steps", "Wait", "block", "drive"]

T = TypeVar("T")

FOR_EVER_S: Final = 2_000_000.0
"""Three weeks: who waits without end (`math.inf`) waits so long. Threads and librdkafka cannot be
told of much more."""


class ObservableCondition(threading.Condition):
    """A condition variable that event loops can wait for, too."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.observers: list[Callable[[], None]] = []
        """Called by `notify_all`, under the lock: be quick."""

    def notify_all(self) -> None:
        """Wake whoever waits."""
        super().notify_all()
        for observer in self.observers:
            observer()


class Wait(NamedTuple):
    """Wait until `predicate` is true, asking when `condition` is notified; `timeout_s` at most."""

    condition: ObservableCondition
    predicate: Callable[[], bool]
    timeout_s: float | None


Steps: TypeAlias = Generator[Wait, bool, T]


def block(lock: Any, steps: Steps[T]) -> T:
    """Carry out `steps` in this thread, and return what they return."""
    with lock:
        try:
            wait = next(steps)
            while True:
                timeout_s = None if wait.timeout_s is None else min(wait.timeout_s, FOR_EVER_S)
                wait = steps.send(wait.condition.wait_for(wait.predicate, timeout_s))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()


async def drive(lock: Any, steps: Steps[T]) -> T:
    """Carry out `steps` in this task, and return what they return.

    Cancelled, it leaves things as they are: what was appended to the log takes its course.
    """
    loop = asyncio.get_running_loop()
    try:
        with lock:
            wait = next(steps)
        while True:
            came_true = await _until(loop, lock, wait)
            with lock:
                wait = steps.send(came_true)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        with lock:
            steps.close()


async def _until(loop: asyncio.AbstractEventLoop, lock: Any, wait: Wait) -> bool:
    changed = asyncio.Event()

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
            loop.call_soon_threadsafe(changed.set)

    deadline = None if wait.timeout_s is None else time.monotonic() + wait.timeout_s
    with lock:
        wait.condition.observers.append(notify)
    try:
        while True:
            changed.clear()
            with lock:
                if wait.predicate():
                    return True
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            try:
                async with asyncio.timeout(left_s):
                    await changed.wait()
            except TimeoutError:
                continue  # look a last time
    finally:
        with lock:
            wait.condition.observers.remove(notify)

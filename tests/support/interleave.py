"""Two threads that take turns between any two lines of the code under test, in every order.

What says "without a lock" is tested by it: a switch may come at any line, or at any bytecode
(``grain="opcode"``), and a test says what has to hold whenever it came.

    def case() -> Case:
        part = HeldPartition(...)
        return Case(lambda: part.finish(run), part.position, lambda _, read: check(read))

    explore(case, [held_partition])

A thread that waits for a lock which the other one has hands over to it, if the lock was made
within `locks`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Literal

__all__ = ["Case", "explore", "locks"]

Grain = Literal["line", "opcode"]


@dataclass(frozen=True)
class Case:
    """What two threads do, and what has to hold then of what they returned."""

    one: Callable[[], Any]
    other: Callable[[], Any]
    check: Callable[[Any, Any], None]


@dataclass(frozen=True)
class _Schedule:
    """Who begins, and after how many steps of whoever runs the other one goes on, each time.

    After the last switch whoever runs goes on to its end, and then the other one.
    """

    files: frozenset[str]
    grain: Grain
    first: int
    switches: tuple[int, ...]


def explore(
    case: Callable[[], Case],
    modules: Sequence[ModuleType],
    *,
    preemptions: Literal[1, 2] = 2,
    grain: Grain = "line",
) -> int:
    """Run a case in every order with at most so many preemptions; return how many there are.

    Steps are those in `modules`. Raises what a thread or the check raised, with the order as a
    note.
    """
    files = frozenset(str(module.__file__) for module in modules)
    count = 0
    for first in (0, 1):
        before = 0
        while _run(case, _Schedule(files, grain, first, (before,))):
            count += 1
            between = 1
            while preemptions > 1 and _run(case, _Schedule(files, grain, first, (before, between))):
                count += 1
                between += 1
            before += 1
    return count


def _run(make: Callable[[], Case], schedule: _Schedule) -> bool:
    """Return whether all its switches came; not if a thread ended before."""
    case = make()
    turns = _Turns(schedule)
    try:
        case.check(*turns.run(case.one, case.other))
    except BaseException as error:
        error.add_note(f"thread {schedule.first} first, switches after {schedule.switches} steps")
        raise
    return not turns.left


class _Turns:
    """Two threads of which one runs at a time."""

    def __init__(self, schedule: _Schedule) -> None:
        self.left = list(schedule.switches)
        """Switches that have not come."""
        self._schedule = schedule
        self._since = 0
        """Steps since the last switch."""
        self._may_run = [threading.Semaphore(0), threading.Semaphore(0)]
        self._over = [False, False]
        self._results: list[Any] = [None, None]
        self._errors: list[BaseException] = []
        self.waits = [False, False]
        """For a lock."""

    def run(self, one: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
        """Run both to their ends; return what they returned."""
        threads = [
            threading.Thread(target=self._thread, args=(me, do), daemon=True)
            for me, do in enumerate((one, other))
        ]
        for thread in threads:
            thread.start()
        self._may_run[self._schedule.first].release()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                raise TimeoutError("a thread waits for something that is no lock of `locks`")
        if self._errors:
            raise self._errors[0]
        return self._results

    def _thread(self, me: int, do: Callable[[], Any]) -> None:
        self._may_run[me].acquire()
        _local.turns, _local.me = self, me
        sys.settrace(self._trace)
        try:
            self._results[me] = do()
        except BaseException as error:
            self._errors.append(error)
        finally:
            sys.settrace(None)
            self._over[me] = True
            self._may_run[1 - me].release()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._schedule.files:
            return None
        if self._schedule.grain == "opcode":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == self._schedule.grain:
            self._step()
        return self._trace

    def _step(self) -> None:
        """Before a step: the other one's turn, or ours."""
        me = _local.me
        if self.left and self._since == self.left[0] and not self._over[1 - me]:
            self.left.pop(0)
            self._since = 0
            if not self.waits[1 - me]:
                self.hand_over()
        self._since += 1

    def hand_over(self) -> None:
        """Let the other one run until it hands over, or ends."""
        me = _local.me
        self._may_run[1 - me].release()
        self._may_run[me].acquire()

    def wait(self) -> None:
        """A lock is taken: let whoever has it go on."""
        me = _local.me
        if self._over[1 - me] or self.waits[1 - me]:
            raise RuntimeError("both threads wait: a deadlock")
        self.waits[me] = True
        self.hand_over()
        self.waits[me] = False


_local = threading.local()


class _Lock:
    """A lock whose waiters hand over. `kind`: what a thread outside of a schedule uses, too."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._lock = kind()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        turns: _Turns | None = getattr(_local, "turns", None)
        if turns is None or not blocking:
            return bool(self._lock.acquire(blocking, timeout))
        while not self._lock.acquire(blocking=False):
            turns.wait()
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def locks() -> Iterator[None]:
    """What is made inside has locks (`threading.Lock`, `RLock`) whose waiters hand over."""
    lock, rlock = threading.Lock, threading.RLock
    replaced: Any = threading
    replaced.Lock = lambda: _Lock(lock)
    replaced.RLock = lambda: _Lock(rlock)
    try:
        yield
    finally:
        replaced.Lock, replaced.RLock = lock, rlock

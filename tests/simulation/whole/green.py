"""Green threads in virtual time, with the faces of `threading`, `time` and `queue`.

One greenlet runs at a time, until it blocks in one of the primitives below; the hub then takes
whatever is due next. Which of several threads goes first, how late a woken thread runs, and where a
thread that takes a lock is put off are drawn from the hub's own random source, so one seed is one
interleaving.

A `Machine` is one operating-system process: its threads, its clock, and whether it is frozen or
dead. Threads of a dead machine are simply never resumed, at whatever instruction they stood.
"""

from __future__ import annotations

import heapq
import queue
import random
import time as real_time
import types
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Self

from greenlet import GreenletExit, getcurrent, greenlet

from marshal_py.testing import VirtualClock

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000


class Violation(Exception):
    """An invariant does not hold: its name, and what happened."""


class Hub:
    """The scheduler: one heap of what is to happen, ordered by true time."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.over = False
        self.fired: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.trace: list[tuple[int, str, str]] | None = [] if trace else None
        self.machines: list[Machine] = []
        self.current: Thread | None = None
        self.violation: tuple[str, str] | None = None
        self._heap: list[tuple[int, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._greenlet = getcurrent()

    def at(self, true_ns: int, what: Callable[..., None], *args: Any) -> None:
        """Have `what` happen at a true time; ties are broken at random."""
        self._order += 1
        entry = (max(true_ns, self.now), self.random.random(), self._order, what, args)
        heapq.heappush(self._heap, entry)

    def tell(self, who: str, text: str) -> None:
        if self.trace is not None:
            self.trace.append((self.now // 1_000, who, text))

    def fail(self, invariant: str, text: str) -> None:
        """Note the first violation; the history ends there."""
        if self.violation is None:
            self.violation = (invariant, text)
            self.tell("!", f"{invariant}: {text}")

    def run(self, until_ns: int) -> None:
        """Let everything happen that is due up to a true time, or until an invariant breaks."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns and self.violation is None:
            self.now, _, _, what, args = heapq.heappop(heap)
            try:
                what(*args)
            except Violation as problem:
                self.fail(*problem.args)
        if self.violation is None:
            self.now = max(self.now, until_ns)

    def end(self) -> None:
        """Unwind every thread that still stands somewhere, so that nothing outlives the history."""
        self.over = True
        for machine in self.machines:
            for thread in machine.threads:
                while thread.started and not thread.greenlet.dead:
                    thread.greenlet.throw(GreenletExit)

    def switch(self, thread: Thread) -> None:
        """Run `thread` until it blocks."""
        self.current = thread
        thread.greenlet.switch()
        self.current = None

    def block(self) -> None:
        """The running thread gives the processor back; returns when it is resumed."""
        if self.over:
            raise GreenletExit
        self._greenlet.switch()
        if self.over:
            raise GreenletExit


class Machine:
    """One process on a machine of its own: its clock and its threads, frozen and killed as one."""

    def __init__(self, hub: Hub, name: str, *, rate_ppm: int = 1_000_000) -> None:
        self.hub = hub
        self.name = name
        self.clock = VirtualClock(hub.random.randrange(10**15), rate_ppm=rate_ppm, true_ns=hub.now)
        self.threads: list[Thread] = []
        self.frozen_until = 0
        self.dead = False
        self.exited = False
        hub.machines.append(self)

    @property
    def now_ns(self) -> int:
        return self.clock.at(self.hub.now)

    def freeze(self, span_ns: int) -> None:
        """SIGSTOP for a while: no thread of it runs."""
        self.hub.tell(self.name, f"freezes for {span_ns / MS:.0f} ms")
        self.frozen_until = max(self.frozen_until, self.hub.now + span_ns)

    def kill(self) -> None:
        """SIGKILL."""
        self.hub.tell(self.name, "is killed")
        self.dead = True

    def run(self, target: Callable[[], None], name: str = "main") -> Thread:
        """Start a thread in it."""
        thread = Thread(target=target, name=name, machine=self)
        thread.start()
        return thread


_hub: Hub | None = None


def use(hub: Hub | None) -> None:
    """Make the primitives below belong to `hub`."""
    global _hub
    _hub = hub


def hub() -> Hub:
    assert _hub is not None
    return _hub


def machine() -> Machine:
    """The process that is running."""
    current = hub().current
    assert current is not None
    return current.machine


class Thread:
    """As `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., None] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool = True,
        machine: Machine | None = None,
    ) -> None:
        here = hub()
        self.hub = here
        self.name = name
        self.daemon = daemon
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        if machine is None:
            assert here.current is not None
            machine = here.current.machine
        self.machine: Machine = machine
        self.started = False
        self.alive = False
        self.waiting: object | None = None
        """What it waits for: a token of each single wait, so that a late wake-up finds another."""
        self.woken = False
        self._joiners: list[Callable[[], None]] = []
        self.greenlet = greenlet(self._run, parent=here._greenlet)
        self._token: object | None = None
        self.ident = 0

    def start(self) -> None:
        assert not self.started
        self.started = self.alive = True
        self.machine.threads.append(self)
        self.ident = len(self.machine.threads)
        self.hub.at(self.hub.now + _lateness(self.hub), self._resume)

    def _run(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        except (GreenletExit, SystemExit):
            pass
        except Violation as problem:
            self.hub.fail(*problem.args)
        except BaseException as error:
            if not self.hub.over:
                where = _where(error)
                self.hub.fail(
                    "nothing raises", f"{self.machine.name}.{self.name}: {error!r}{where}"
                )
        finally:
            self.alive = False
            for wake in self._joiners:
                wake()

    def _resume(self) -> None:
        if self.machine.dead:
            return
        if self.machine.frozen_until > self.hub.now:
            self.hub.at(self.machine.frozen_until, self._resume)
            return
        self.hub.switch(self)

    # Waiting

    def park(self, timeout_s: float | None) -> bool:
        """Wait to be woken, for at most `timeout_s` on the machine's clock; whether it was."""
        here = self.hub
        token = self.waiting = self._token or object()
        self._token = None
        self.woken = False
        if timeout_s is not None:
            due = self.machine.clock.when(self.machine.now_ns + max(0, int(timeout_s * 1e9)))
            here.at(due + _lateness(here), self._wake, token, False)
        here.block()
        return self.woken

    def waker(self) -> Callable[[], None]:
        """A function that wakes it from its next `park`, and does nothing after that one."""
        token = self._token = object()

        def wake() -> None:
            self.hub.at(self.hub.now + _lateness(self.hub), self._wake, token, True)

        return wake

    def _wake(self, token: object, woken: bool) -> None:
        if self.waiting is not token or self.machine.dead:
            return
        if self.machine.frozen_until > self.hub.now:
            self.hub.at(self.machine.frozen_until, self._wake, token, woken)
            return
        self.waiting = None
        self.woken = woken
        self.hub.switch(self)

    def join(self, timeout: float | None = None) -> None:
        if not self.alive:
            return
        me = current_thread()
        self._joiners.append(me.waker())
        me.park(timeout)

    def is_alive(self) -> bool:
        return self.alive


def _lateness(here: Hub) -> int:
    """How late a thread runs once it may: microseconds, now and then much longer."""
    x = here.random.random()
    if x > 0.998:
        return 20 * MS
    return int(x * 60_000)


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f" in {' > '.join(places[-4:])}"


def current_thread() -> Thread:
    here = hub()
    assert here.current is not None
    return here.current


def _wait_until(
    ready: Callable[[], bool], waiters: list[Callable[[], None]], timeout_s: float | None
) -> bool:
    me = current_thread()
    deadline = None if timeout_s is None else me.machine.now_ns + int(timeout_s * 1e9)
    while not ready():
        left = None if deadline is None else (deadline - me.machine.now_ns) / 1e9
        if left is not None and left <= 0:
            return False
        wake = me.waker()
        waiters.append(wake)
        me.park(left)
        if wake in waiters:
            waiters.remove(wake)
    return True


def _wake_all(waiters: list[Callable[[], None]]) -> None:
    for wake in list(waiters):
        wake()


class Event:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        _wake_all(self._waiters)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        me = current_thread()
        wake = me.waker()
        self._waiters.append(wake)
        woken = me.park(timeout)
        if wake in self._waiters:
            self._waiters.remove(wake)
        return woken or self._set


class Lock:
    """As `threading.Lock`. Taking it may put the thread off, as a scheduler may at any time."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._depth = 0
        self._waiters: list[Callable[[], None]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = hub()
        if here.over or here.current is None:
            return True
        me = here.current
        if self._owner is me and self.reentrant:
            self._depth += 1
            return True
        if blocking and here.random.random() < 0.02:
            me.park(here.random.random() * 0.0005)
        if not blocking and self._owner is not None:
            return False
        if not _wait_until(
            lambda: self._owner is None, self._waiters, None if timeout < 0 else timeout
        ):
            return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        here = hub()
        if here.over or here.current is None:
            return
        assert self._depth > 0
        self._depth -= 1
        if not self._depth:
            self._owner = None
            _wake_all(self._waiters)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """As `threading.RLock`."""

    reentrant = True


class Condition:
    """As `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters: list[Callable[[], None]] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, *args: Any) -> bool:
        return self._lock.acquire(*args)

    def release(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = current_thread()
        depth = self._lock._depth
        assert self._lock._owner is me
        wake = me.waker()
        self._waiters.append(wake)
        self._lock._owner, self._lock._depth = None, 0
        _wake_all(self._lock._waiters)
        woken = me.park(timeout)
        if wake in self._waiters:
            self._waiters.remove(wake)
        self._lock.acquire()
        self._lock._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        me = current_thread()
        deadline = None if timeout is None else me.machine.now_ns + int(timeout * 1e9)
        result = predicate()
        while not result:
            left = None if deadline is None else (deadline - me.machine.now_ns) / 1e9
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        for wake in self._waiters[:n]:
            wake()

    def notify_all(self) -> None:
        _wake_all(self._waiters)


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __class_getitem__(cls, _: object) -> type[Self]:
        return cls

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters: list[Callable[[], None]] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        _wake_all(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and not block:
            raise queue.Empty
        if not _wait_until(lambda: bool(self._items), self._waiters, timeout):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Local:
    """As `threading.local`."""

    def __init__(self) -> None:
        object.__setattr__(self, "_of_threads", {})

    def _mine(self) -> dict[str, Any]:
        mine: dict[str, Any] = self._of_threads.setdefault(current_thread(), {})
        return mine

    def __getattr__(self, name: str) -> Any:
        try:
            return self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value


def _monotonic_ns() -> int:
    here = hub()
    return here.now if here.current is None else here.current.machine.now_ns


def sleep(seconds: float) -> None:
    """As `time.sleep`."""
    current_thread().park(seconds)


THREADING: Final = types.SimpleNamespace(
    Thread=Thread,
    Event=Event,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    current_thread=current_thread,
    main_thread=lambda: None,
    get_ident=lambda: id(current_thread()),
    local=Local,
)
TIME: Final = types.SimpleNamespace(
    monotonic=lambda: _monotonic_ns() / 1e9,
    monotonic_ns=_monotonic_ns,
    perf_counter=lambda: _monotonic_ns() / 1e9,
    time=lambda: 1.8e9 + hub().now / 1e9,
    time_ns=lambda: 1_800_000_000 * SECOND + hub().now,
    clock_gettime_ns=lambda _: _monotonic_ns(),
    CLOCK_BOOTTIME=getattr(real_time, "CLOCK_BOOTTIME", 0),
    CLOCK_MONOTONIC=real_time.CLOCK_MONOTONIC,
    sleep=sleep,
)
QUEUE: Final = types.SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty)

"""Who runs handlers: each task comes to one end, in threads and in asyncio."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.consumer.handlers.workers import (
    AsyncWorkers,
    ProcessWorkers,
    ThreadWorkers,
    _sendable,
    _serve_process,
)
from marshal_py.errors import HandlerProcessDied

WAIT_S = 60.0


class Source:
    """A `TaskSource` with tasks that are names; writes down what becomes of each."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.is_over = self.is_stopping = False
        self.waiting: list[str] = []
        self.came_of: dict[str, list[object]] = {}
        self.crashes: list[BaseException] = []
        self.filtered: set[str] = set()

    def put(self, workers: Any, *tasks: str) -> None:
        with self.lock:
            self.waiting += tasks
            workers.wake(len(tasks))

    def take(self, worker: Any) -> Any:
        del worker
        return self.task(self.waiting.pop(0)) if self.waiting else None

    def task(self, name: str) -> Any:
        return SimpleNamespace(name=name, part=SimpleNamespace(claim=f"claim of {name}"))

    def given_to_handler(self, task: Any) -> Any:
        return None if task.name in self.filtered else task.name

    def _note(self, task: Any, what: object) -> None:
        with self.changed:
            self.came_of.setdefault(task.name, []).append(what)
            self.changed.notify_all()

    def succeeded(self, task: Any) -> None:
        self._note(task, "done")

    def failed(self, task: Any, error: BaseException) -> None:
        self._note(task, error)

    def gave_up(self, task: Any) -> None:
        self._note(task, "given up")

    def crashed(self, error: BaseException) -> None:
        with self.changed:
            self.crashes.append(error)
            self.changed.notify_all()

    def has(self, names: str) -> bool:
        return set(names) <= self.came_of.keys()

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), self.came_of

    def end(self, workers: Any, timeout_s: float = WAIT_S) -> bool:
        with self.lock:
            self.is_over = True
            workers.wake(8)
        return bool(workers.stop(timeout_s))


def options(whole: Any, workers: int = 2) -> Any:
    return SimpleNamespace(whole=whole, workers=workers)


def make(kind: str, handler: Callable[[str, str], None], workers: int = 2) -> Any:
    if kind == "threads":
        return ThreadWorkers(options(handler, workers))

    async def whole(given: str, claim: str) -> None:
        await asyncio.sleep(0)
        handler(given, claim)

    return AsyncWorkers(options(whole, workers))


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_task_comes_to_one_end(kind: str) -> None:
    errors = {"b": ValueError("b"), "d": KeyError("d")}
    seen: list[tuple[str, str]] = []

    def handler(given: str, claim: str) -> None:
        seen.append((given, claim))
        if given in errors:
            raise errors[given]

    source, workers = Source(), make(kind, handler)
    source.filtered = {"f"}
    workers.start(source)
    source.put(workers, "a", "b")
    source.until(lambda: len(source.came_of) == 2)
    source.put(workers, *"cdefg")  # when all of them rest
    source.until(lambda: len(source.came_of) == 7)
    assert source.end(workers)
    assert source.came_of == {name: [errors.get(name, "done")] for name in "abcdefg"}
    assert sorted(seen) == [(name, f"claim of {name}") for name in "abcdeg"]
    assert not source.crashes


def test_as_many_run_at_a_time_as_there_are_workers(kind: str) -> None:
    """Two meet at a barrier, which nobody passes alone."""
    if kind == "threads":
        meeting = threading.Barrier(2)
        workers: Any = ThreadWorkers(options(lambda *_: meeting.wait(WAIT_S)))
    else:
        arrived = asyncio.Barrier(2)

        async def meet(*_: object) -> None:
            async with asyncio.timeout(WAIT_S):
                await arrived.wait()

        workers = AsyncWorkers(options(meet))
    source = Source()
    workers.start(source)
    for pair in ("ab", "cd"):
        source.put(workers, *pair)
        source.until(partial(source.has, pair))
    assert source.end(workers)
    assert source.came_of == {name: ["done"] for name in "abcd"}


def worker_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("marshal-worker")}


def test_a_thread_is_started_when_there_is_something_to_do_that_no_other_is_free_for() -> None:
    meeting, others = threading.Barrier(2), worker_threads()

    def handler(given: str, claim: str) -> None:
        if given != "a":
            meeting.wait(WAIT_S)

    source, workers = Source(), ThreadWorkers(options(handler, 8))
    workers.start(source)
    assert worker_threads() == others
    source.put(workers, "a")
    source.until(lambda: source.came_of)
    assert len(worker_threads() - others) == 1
    with source.lock:  # whoever rests is woken for one of them only
        source.put(workers, "b")
        source.put(workers, "c")
    source.until(partial(source.has, "bc"))
    assert source.end(workers)
    assert source.came_of == {name: ["done"] for name in "abc"}
    assert worker_threads() <= others


def test_an_error_of_ours_ends_the_run(kind: str) -> None:
    source, workers = Source(), make(kind, lambda *_: None)
    problem = RuntimeError("ours")

    def broken(task: Any) -> None:
        raise problem

    source.succeeded = broken  # type: ignore[method-assign]
    workers.start(source)
    source.put(workers, "a")
    source.until(lambda: source.crashes)  # at once, though the other worker goes on
    assert source.end(workers)
    assert source.crashes == [problem]


def test_a_coroutine_that_cancels_itself_has_failed() -> None:
    async def handler(given: str, claim: str) -> None:
        raise asyncio.CancelledError("by itself")

    source, workers = Source(), AsyncWorkers(options(handler, 1))
    workers.start(source)
    source.put(workers, "a", "b")
    source.until(lambda: len(source.came_of) == 2)
    assert source.end(workers)
    for (error,) in source.came_of.values():
        assert isinstance(error, TimeoutError)
        assert "by itself" in str(error)


def test_what_failed_keeps_neither_the_loop_nor_its_threads_from_others() -> None:
    """A dead letter is waited for as long as the brokers do not take it."""

    async def handler(given: str, claim: str) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="of the loop"))
        raise ValueError(given)

    source, workers = Source(), AsyncWorkers(options(handler, 1))
    threads: list[threading.Thread] = []

    def failed(task: Any, error: BaseException) -> None:
        threads.append(threading.current_thread())
        source._note(task, error)

    source.failed = failed  # type: ignore[method-assign]
    workers.start(source)
    source.put(workers, "a")
    source.until(lambda: source.came_of)
    assert source.end(workers)
    [thread] = threads
    assert thread.name.startswith("marshal-failed")
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_coroutine_that_does_not_end_in_time_is_cancelled_and_handed_back() -> None:
    begun = threading.Event()

    async def handler(given: str, claim: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    source, workers = Source(), AsyncWorkers(options(handler, 1))
    workers.start(source)
    source.put(workers, "a")
    assert begun.wait(WAIT_S)
    source.end(workers, 0.1)
    source.until(lambda: source.came_of)
    assert source.came_of == {"a": ["given up"]}
    assert not source.crashes


def test_a_thread_that_does_not_return_in_time_is_told() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def handler(given: str, claim: str) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    source, workers = Source(), ThreadWorkers(options(handler, 1))
    workers.start(source)
    source.put(workers, "a")
    assert begun.wait(WAIT_S)
    assert source.end(workers, 0.0) is False
    where, trace = workers.describe(0)
    assert where.startswith("thread marshal-worker-0")
    assert "go_on.wait" in trace
    go_on.set()
    assert workers.stop(WAIT_S)
    assert source.came_of == {"a": ["done"]}


HOLDING = SimpleNamespace(topic="t", partition=0, epoch=7, lease_until_ns=1)


@pytest.mark.parametrize("is_leaving", [False, True])
def test_a_process_that_says_that_it_ends_gets_nothing_more(is_leaving: bool) -> None:
    """It is still there for a moment, and what it were sent would count as failed."""
    closed: list[bool] = []
    connection = SimpleNamespace(
        send=lambda _: None,
        recv=lambda: (None, is_leaving),
        poll=lambda: False,
        close=lambda: closed.append(True),
    )
    workers = ProcessWorkers(HandlerOptions(print, executor="process"))
    message = Message(topic="t", partition=0, offset=1, value=b"v")
    source: Any = SimpleNamespace(given_to_handler=lambda _: message, is_over=False)
    workers._source = source
    there: Any = SimpleNamespace(), connection
    workers._processes[0] = there
    workers._ready.add(0)
    task: Any = SimpleNamespace(part=SimpleNamespace(holding=HOLDING))
    workers._call(0, task)
    assert (0 in workers._processes) is not is_leaving
    assert closed == [True] * is_leaving


@pytest.mark.parametrize("has_epochs", [True, False])
def test_a_process_is_told_the_epoch_if_there_is_one(has_epochs: bool) -> None:
    sent: list[Any] = []
    connection = SimpleNamespace(send=sent.append, recv=lambda: (None, False), poll=lambda: False)
    options = HandlerOptions(print, executor="process", has_epochs=has_epochs)
    workers, there = ProcessWorkers(options), (SimpleNamespace(), connection)
    workers._processes[0] = there  # type: ignore[assignment]
    task: Any = SimpleNamespace(part=SimpleNamespace(holding=HOLDING))
    workers._ask(0, "message", task)
    ((_, claim),) = sent
    assert claim.epoch_if_any == (7 if has_epochs else None)


class Unsendable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError

    def __str__(self) -> str:
        raise AttributeError("code")


def test_an_error_that_can_neither_be_sent_nor_read_is_told_by_a_stand_in() -> None:
    error = Unsendable()
    error.add_note("In the handler's process")
    stand_in = _sendable(error)
    assert "Unsendable: <Unsendable, of which no text" in str(stand_in)
    assert stand_in.__notes__ == ["In the handler's process"]


class Processes(Source):
    """A `Source` of messages, for workers of one process, which is there; it starts none."""

    def __init__(self, recv: Callable[[], Any]) -> None:
        super().__init__()
        self.is_stopping = True
        self.killed = threading.Event()
        self.workers = ProcessWorkers(HandlerOptions(print, executor="process", workers=1))
        process = SimpleNamespace(
            is_alive=lambda: not self.killed.is_set(),
            kill=self.killed.set,
            join=lambda _: None,
            exitcode=-9,
        )
        self.sent: list[Any] = []
        connection = SimpleNamespace(
            send=self.sent.append, recv=recv, poll=lambda: False, close=lambda: None
        )
        there: Any = process, connection
        self.there = self.workers._processes[0] = there
        self.workers._ready.add(0)
        ThreadWorkers.start(self.workers, self)

    def task(self, name: str) -> Any:
        return SimpleNamespace(name=name, part=SimpleNamespace(holding=HOLDING))

    def given_to_handler(self, task: Any) -> Any:
        del task
        return Message(topic="t", partition=0, offset=1, value=b"v")


def test_a_handler_whose_process_is_killed_as_time_is_up_has_not_failed() -> None:
    called = threading.Event()

    def recv() -> Any:
        called.set()
        assert source.killed.wait(WAIT_S)
        raise EOFError

    source = Processes(recv)
    source.put(source.workers, "a")
    assert called.wait(WAIT_S)
    assert source.end(source.workers, 0.0) is False
    source.until(lambda: source.came_of)
    assert source.came_of == {"a": ["given up"]}


def test_a_handler_is_killed_when_nobody_waits_for_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = threading.Event()

    def recv() -> Any:
        called.set()
        assert source.killed.wait(WAIT_S)
        raise EOFError

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    source = Processes(recv)
    source.put(source.workers, "a")
    assert called.wait(WAIT_S)
    monkeypatch.setattr(ThreadWorkers, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        source.end(source.workers)
    assert source.killed.is_set()
    source.until(lambda: source.came_of)
    assert source.came_of == {"a": ["given up"]}


def test_a_handler_whose_process_dies_by_itself_has_failed() -> None:
    def recv() -> Any:
        raise EOFError

    source = Processes(recv)
    source.put(source.workers, "a")
    source.until(lambda: source.came_of)
    [[error]] = source.came_of.values()
    assert isinstance(error, HandlerProcessDied)
    source.end(source.workers)


def test_what_comes_when_no_process_is_started_any_more_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Processes(lambda: None)
    monkeypatch.setattr(source.workers, "_have_process", lambda _: False)
    source.put(source.workers, "a")
    source.until(lambda: source.came_of)
    assert source.came_of == {"a": ["given up"]}
    source.end(source.workers)


def test_what_comes_to_a_process_that_was_told_to_end_is_given_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that took its place was told, too, and so was the next, before it was there."""
    answers = iter([None, "ready", None, None, "ready", (None, False)])
    source, spawned = Processes(lambda: next(answers)), []

    def spawn(number: int) -> None:
        spawned.append(number)
        source.workers._processes[number] = source.there

    monkeypatch.setattr(source.workers, "_spawn", spawn)
    source.put(source.workers, "a")
    source.until(lambda: source.came_of)
    assert source.came_of == {"a": ["done"]}
    assert len(source.sent) == 3  # the first, the second, and the fourth
    assert len(spawned) == 3
    source.end(source.workers)


def test_what_a_process_said_before_it_went_is_heard() -> None:
    """The message cannot be sent any more, and was not begun."""
    ours, theirs = multiprocessing.Pipe()
    workers = ProcessWorkers(HandlerOptions(print, executor="process"))
    process: Any = SimpleNamespace()
    workers._processes[0] = process, ours
    theirs.send(None)
    theirs.close()
    task: Any = SimpleNamespace(part=SimpleNamespace(holding=HOLDING))
    assert workers._ask(0, "message", task) is None
    assert 0 not in workers._processes


def test_a_process_that_has_ended_while_idle_is_replaced_before_a_message_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Processes(lambda: "ready")
    spawned: list[int] = []

    def spawn(number: int) -> None:
        spawned.append(number)
        source.workers._processes[number] = source.there

    monkeypatch.setattr(source.workers, "_spawn", spawn)
    assert source.workers._have_process(0)
    assert spawned == []
    source.there[1].poll = lambda: True  # the end of the file, or that it was told to end
    assert source.workers._have_process(0)
    assert spawned == [0]
    source.end(source.workers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_a_signal_ends_before_it_can_say_so_is_replaced(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    answers = iter(["told", "ready"])

    def recv() -> Any:
        if (answer := next(answers)) == "told":
            raise EOFError
        return answer

    source, spawned = Processes(recv), []

    def spawn(worker: int) -> None:
        spawned.append(worker)
        source.workers._processes[worker] = source.there

    monkeypatch.setattr(source.workers, "_spawn", spawn)
    source.there[0].exitcode = -number
    source.workers._ready.clear()
    assert source.workers._have_process(0)
    assert spawned == [0]
    source.end(source.workers)


@pytest.mark.parametrize("told_in", ["recv", "send"])
def test_a_process_that_is_told_to_end_says_so(
    monkeypatch: pytest.MonkeyPatch, told_in: str
) -> None:
    """While it has nothing to do; or when it has just answered that it goes on."""
    on_signal: dict[int, Any] = {}
    monkeypatch.setattr("marshal_py.consumer.handlers.workers.signal.signal", on_signal.__setitem__)
    said: list[Any] = []

    def tell() -> None:
        on_signal[signal.SIGTERM](signal.SIGTERM, None)

    def recv() -> Any:
        if told_in == "recv":
            tell()
        return "given", "claim"

    def send(what: Any) -> None:
        said.append(what)
        if told_in == "send" and len(said) == 2:
            tell()

    connection: Any = SimpleNamespace(send=send, recv=recv)
    whole: Any = lambda *_: None  # noqa: E731
    if told_in == "recv":
        with pytest.raises(SystemExit):
            _serve_process(connection, whole)
        assert said == ["ready", None]
    else:
        _serve_process(connection, whole)
        assert said == ["ready", (None, False), None]

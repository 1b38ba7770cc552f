"""What runs handlers: threads, processes or asyncio tasks. Each takes one task after the other.

A process belongs to one thread of this process, which sends it a task and waits for the answer: a
handler that takes its process down (out of memory, a crash in C) fails alone, and is told apart
from what the others were doing. The process is then replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import pickle
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from marshal_py.consumer.handlers.message_copy import copy_of
from marshal_py.consumer.handlers.middleware import WholeHandler
from marshal_py.consumer.handlers.options import ClaimSnapshot, HandlerOptions
from marshal_py.consumer.handlers.tasks import Task, TaskSource, Workers
from marshal_py.consumer.held_partition import Batch
from marshal_py.errors import HandlerProcessDied
from marshal_py.printable import text_of

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

__all__ = ["AsyncWorkers", "ProcessWorkers", "ThreadWorkers", "workers_for"]

GRACE_S: Final = 1.0
"""Cancelled tasks and terminated processes get so long to end."""

FAILING: Final = 32
"""So many failures of coroutines are dealt with at a time, each in a thread."""


def workers_for(options: HandlerOptions, loop: asyncio.AbstractEventLoop | None = None) -> Workers:
    """Return the workers that were asked for. `loop`: run asyncio tasks there."""
    if options.executor == "asyncio":
        return AsyncWorkers(options, loop)
    if options.executor == "process":
        return ProcessWorkers(options)
    return ThreadWorkers(options)


_Answer: TypeAlias = tuple[BaseException | None, bool]
"""What the handler raised in its process, and whether the process ends now."""


class _TimeIsUp(Exception):
    """The handler's process was not let finish: its messages did not fail."""


class ThreadWorkers:
    """Handlers in threads, each started when there is something to do for it.

    They are daemons: one that never returns does not keep the process.
    """

    def __init__(self, options: HandlerOptions) -> None:
        self._options = options
        self._threads: list[threading.Thread] = []
        self._resting = 0
        """How many wait for a task, and have not been woken for one."""
        self._source: TaskSource
        self._work: threading.Condition

    def start(self, source: TaskSource) -> None:
        """Begin to take tasks."""
        self._source = source
        self._work = threading.Condition(source.lock)

    def wake(self, count: int) -> None:
        """So many tasks may be there."""
        if count <= 0:
            return
        woken = min(count, self._resting)
        self._resting -= woken
        self._work.notify(woken)
        if not self._source.is_over:
            self._start_threads(count - woken)

    def _start_threads(self, count: int) -> None:
        for number in range(len(self._threads), self._options.workers)[:count]:
            thread = threading.Thread(
                target=self._serve, args=(number,), name=f"marshal-worker-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Wait for the threads to end."""
        deadline = time.monotonic() + max(timeout_s, GRACE_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def has_caller(self) -> bool:
        """Whether the caller is one of the threads."""
        return threading.current_thread() in self._threads

    def describe(self, worker: Any) -> tuple[str, str]:
        """Return the name of the thread, and where it is."""
        thread = self._threads[worker]
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 (there is no other way)
        return f"thread {thread.name}", "".join(traceback.format_stack(frame)) if frame else ""

    def _serve(self, number: int) -> None:
        source = self._source
        try:
            while (task := self._next(number)) is not None:
                try:
                    self._call(number, task)
                except _TimeIsUp:
                    source.gave_up(task)
                except BaseException as error:
                    source.failed(task, error)
                else:
                    source.succeeded(task)
        except BaseException as error:  # ours, not the handler's
            source.crashed(error)
        finally:
            self._leave(number)

    def _next(self, number: int) -> Task | None:
        source = self._source
        with self._work:
            while not source.is_over:
                task = source.take(number)
                if task is not None:
                    return task
                self._resting += 1
                self._work.wait()
        return None

    def _call(self, number: int, task: Task) -> None:  # noqa: ARG002 (for who inherits)
        given = self._source.given_to_handler(task)
        if given is not None:
            self._options.whole(given, task.part.claim)

    def _leave(self, number: int) -> None:
        pass


class ProcessWorkers(ThreadWorkers):
    """Handlers in processes of their own, one for each thread here.

    Started with `spawn`: the handler's module is imported anew there, and nothing of this process
    (no connection to Kafka, no lock) is inherited. A process ends when this one does.
    """

    def __init__(self, options: HandlerOptions) -> None:
        super().__init__(options)
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[int, tuple[SpawnProcess, Connection]] = {}
        self._ready: set[int] = set()
        """Those of which the process has started."""
        self._is_killing = False
        """Time is up, and what still works is killed."""

    def start(self, source: TaskSource) -> None:
        """Start the processes, at once, and wait for none of them."""
        for number in range(self._options.workers):
            self._spawn(number)
        super().start(source)
        self._start_threads(self._options.workers)  # each waits for its process

    def _spawn(self, number: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve_process,
            args=(theirs, self._options.whole),
            name=f"marshal-worker-{number}",
            daemon=True,
        )
        process.start()
        theirs.close()
        self._processes[number] = process, ours

    def _next(self, number: int) -> Task | None:
        # The process first: a lease would run out while it starts. At the end, only if need be.
        if not self._source.is_stopping and not self._have_process(number):
            return None
        return super()._next(number)

    def _have_process(self, number: int) -> bool:
        """Start the worker's process if there is none. Returns False if the end came first."""
        found = self._processes.get(number)
        if found is not None and number in self._ready and found[1].poll():
            self._forget(number)  # it has ended, or was told to, while it had nothing to do
        while number not in self._ready:
            if number not in self._processes:
                self._spawn(number)
            process, connection = self._processes[number]
            try:
                was_told_to_end = connection.recv() is None
            except (EOFError, OSError):
                process.join(GRACE_S)
                if self._source.is_over:
                    return False
                # A signal that came before it could say so: all processes of a terminal have it.
                was_told_to_end = process.exitcode in (-signal.SIGINT, -signal.SIGTERM)
                if not was_told_to_end:
                    raise HandlerProcessDied(
                        f"a handler's process could not be started (exit code {process.exitcode}); "
                        "what it said is on stderr"
                    ) from None
            if was_told_to_end:
                self._forget(number)
            else:
                self._ready.add(number)
        return True

    def _call(self, number: int, task: Task) -> None:
        if not self._have_process(number):
            raise _TimeIsUp
        given = self._source.given_to_handler(task)
        if given is None:
            return
        copied = [copy_of(m) for m in given] if isinstance(given, Batch) else copy_of(given)
        while (answer := self._ask(number, copied, task)) is None:
            if self._is_killing or not self._have_process(number):
                raise _TimeIsUp
            self._source.given_to_handler(task)  # the lease may have lapsed while it started
        error, is_leaving = answer
        if is_leaving:
            self._forget(number)  # another takes its place
        if error is not None:
            raise error

    def _ask(self, number: int, copied: Any, task: Task) -> _Answer | None:
        """Return what the process answers. None: it was told to end, and has not begun."""
        process, connection = self._processes[number]
        holding = task.part.holding
        epoch = holding.epoch if self._options.has_epochs else None
        claim = ClaimSnapshot(holding.topic, holding.partition, epoch, holding.lease_until_ns)
        try:
            with contextlib.suppress(ConnectionError):  # what it said before is still to be read
                connection.send((copied, claim))
            answer: _Answer | None = connection.recv()
        except (EOFError, OSError):
            process.join(GRACE_S)
            self._forget(number)
            if self._is_killing:
                raise _TimeIsUp from None
            raise HandlerProcessDied(
                f"the handler's process ended with exit code {process.exitcode}"
            ) from None
        if answer is None:
            self._forget(number)
        return answer

    def _forget(self, number: int) -> None:
        self._processes.pop(number)[1].close()
        self._ready.discard(number)

    def stop(self, timeout_s: float) -> bool:
        """Wait for the threads to end, then kill what still works."""
        try:
            return super().stop(timeout_s)
        finally:  # also when Ctrl-C ends the wait: Python would wait for them as it exits
            self._is_killing = True
            for process, _ in list(self._processes.values()):
                if process.is_alive():
                    process.kill()

    def describe(self, worker: Any) -> tuple[str, str]:
        """Return which process it is."""
        found = self._processes.get(worker)
        return f"process {found[0].pid if found else '(none)'}", ""

    def _leave(self, number: int) -> None:
        found = self._processes.pop(number, None)
        if found is not None:
            found[1].close()  # it reads the end of the file, and ends
            found[0].join(GRACE_S)


def _serve_process(connection: Connection, handler: WholeHandler) -> None:
    """The life of a handler's process."""
    # Ctrl-C in a terminal, and SIGTERM from systemd, reach all processes: this one finishes what it
    # has. After Ctrl-C it is told to end; after SIGTERM it ends by itself, as Python's own exit
    # sends that to what is left, and waits.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_busy = is_leaving = False

    def leave(number: int, _: FrameType | None) -> None:
        nonlocal is_leaving
        is_leaving = True
        if not is_busy:
            with contextlib.suppress(OSError):
                connection.send(None)  # a message may be under way: it has not begun
            raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    with contextlib.suppress(EOFError, OSError):
        connection.send("ready")
        while not is_leaving:
            given, claim = connection.recv()
            is_busy = True
            if isinstance(given, list):
                given = Batch(given, claim)
            answer: BaseException | None = None
            try:
                handler(given, claim)
            except BaseException as error:
                error.add_note("In the handler's process:\n" + traceback.format_exc())
                answer = _sendable(error)
            connection.send((answer, is_leaving))
            is_busy = False
        connection.send(None)  # for when the last answer did not say so


def _sendable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)
    except Exception:
        stand_in = RuntimeError(f"{type(error).__name__}: {text_of(error)}")
        for note in error.__notes__:
            stand_in.add_note(note)
        return stand_in
    return error


class AsyncWorkers:
    """Handlers that are coroutines, as tasks of one event loop: the user's, or one of their own."""

    def __init__(
        self, options: HandlerOptions, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._options = options
        self._own_loop = loop is None
        self._loop: asyncio.AbstractEventLoop
        if loop is not None:
            self._loop = loop
        self._source: TaskSource
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        # Not the loop's: dead letters that cannot be written would fill it up, and handlers that
        # look up a name, or do something in a thread, would wait for them.
        self._threads = ThreadPoolExecutor(min(options.workers, FAILING), "marshal-failed")

    def start(self, source: TaskSource) -> None:
        """Begin to take tasks."""
        self._source = source
        if self._own_loop:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._run_loop, name="marshal-workers", daemon=True
            )
            self._thread.start()
        self._loop.call_soon_threadsafe(self._start_tasks)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _start_tasks(self) -> None:
        for number in range(self._options.workers):
            name = f"marshal-worker-{number}"
            task = self._loop.create_task(self._serve(number), name=name)
            task.add_done_callback(self._one_ended)
            self._tasks.append(task)
        gathered = asyncio.gather(*self._tasks, return_exceptions=True)
        gathered.add_done_callback(self._all_ended)

    def _all_ended(self, _: object) -> None:
        self._threads.shutdown(wait=False)
        self._ended.set()

    def _one_ended(self, task: asyncio.Task[None]) -> None:
        """Tell of an error of ours at once: what the others do cannot make up for it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._source.crashed(error)

    def wake(self, count: int) -> None:
        """So many tasks may be there."""
        if count > 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to wake
                self._loop.call_soon_threadsafe(self._wake, count)

    def _wake(self, count: int) -> None:
        while self._idle and count > 0:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                count -= 1

    async def _serve(self, number: int) -> None:
        source, options = self._source, self._options
        while (task := await self._next(number)) is not None:
            try:
                given = source.given_to_handler(task)
                if given is not None:
                    await options.whole(given, task.part.claim)
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    source.gave_up(task)
                    raise
                await self._in_thread(source, task, TimeoutError(f"cancelled: {error}"))
            except BaseException as error:
                await self._in_thread(source, task, error)
            else:
                source.succeeded(task)

    async def _in_thread(self, source: TaskSource, task: Task, error: BaseException) -> None:
        await self._loop.run_in_executor(self._threads, source.failed, task, error)

    async def _next(self, number: int) -> Task | None:
        source = self._source
        while True:
            with source.lock:
                if source.is_over:
                    return None
                task = source.take(number)
                if task is not None:
                    return task
                future = self._loop.create_future()
                self._idle.append(future)
            await future

    def stop(self, timeout_s: float) -> bool:
        """Wait for the tasks to end, cancel those that do not, and wait a little more."""
        ended = self._ended.wait(max(timeout_s, 0.1))
        if not ended:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._cancel)
            ended = self._ended.wait(GRACE_S)
        if self._own_loop:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if self._thread is not None:
                self._thread.join(GRACE_S)
        return ended

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def has_caller(self) -> bool:
        """Whether the caller is one of the tasks."""
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # there is no event loop in this thread
            return False

    def describe(self, worker: Any) -> tuple[str, str]:
        """Return the name of the task, and where it is."""
        task = self._tasks[worker]
        text = io.StringIO()
        with contextlib.suppress(RuntimeError):  # it runs on while we look
            task.print_stack(file=text)
        return f"task {task.get_name()}", text.getvalue()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

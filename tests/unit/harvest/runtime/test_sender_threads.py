"""Threads that send messages: how many there are, what they do with errors, how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from harvest.runtime.sender_threads import SenderThreads


class Desk:
    """Work that lasts until the test lets it go; whoever has begun says so."""

    def __init__(self, size: int, work: Callable[[int], None] | None = None) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.done: list[int] = []
        self.errors: list[BaseException] = []
        self.names: set[str] = set()
        self.threads = SenderThreads(size, work or self.work, self.errors.append)

    def work(self, number: int) -> None:
        self.names.add(threading.current_thread().name)
        self.begun.release()
        assert self.go.wait(60)
        self.done.append(number)

    def wait_begun(self, times: int) -> None:
        for _ in range(times):
            assert self.begun.acquire(timeout=60)

    def finish(self) -> None:
        self.go.set()
        assert self.threads.close(60)


def test_as_many_pieces_of_work_as_the_limit_are_done_at_once_and_no_more() -> None:
    desk = Desk(3)
    for number in range(7):
        desk.threads.put(number)
    desk.wait_begun(3)
    assert len(desk.threads._threads) == 3
    desk.finish()
    assert sorted(desk.done) == list(range(7))
    assert desk.names == {"harvest-post-0", "harvest-post-1", "harvest-post-2"}


def test_a_thread_that_is_free_is_used_again() -> None:
    desk = Desk(3)
    desk.go.set()
    for number in range(5):
        desk.threads.put(number)
        for _ in range(60_000):
            if not desk.threads._open:
                break
            threading.Event().wait(0.001)
    desk.finish()
    assert desk.names == {"harvest-post-0"}


def test_whoever_hears_of_errors_hears_of_each_and_the_thread_goes_on() -> None:
    class Killed(BaseException):
        pass

    def work(number: int) -> None:
        raise Killed(number)

    desk = Desk(1, work)
    for number in range(3):
        desk.threads.put(number)
    assert desk.threads.close(60)
    assert [error.args for error in desk.errors] == [(0,), (1,), (2,)]
    assert desk.threads._open == 0


def test_one_that_hangs_holds_up_nobody_and_is_told() -> None:
    desk = Desk(2)
    desk.threads.put(1)
    desk.wait_begun(1)
    assert all(thread.daemon for thread in desk.threads._threads)
    assert not desk.threads.close(0.0)
    desk.finish()


def test_without_work_there_is_nothing_to_wait_for() -> None:
    assert Desk(2).threads.close(0.0)

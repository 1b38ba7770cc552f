"""The threads that carry out actions."""

from __future__ import annotations

import threading

import pytest

from harvest.runtime.action_threads import ActionThread, InlineActions


def test_work_without_an_argument_is_work_all_the_same() -> None:
    """Maintenance and purges are put in as None."""
    done = threading.Event()
    thread: ActionThread[None] = ActionThread("test", lambda _: done.set())
    thread.start(lambda _: None)
    thread.put(None)
    assert done.wait(10)
    assert thread.wait_idle(10)
    assert thread.close(10)


def test_work_begins_when_what_comes_before_it_has_ended() -> None:
    """A leadership waits there while its heartbeat is late."""
    seen: list[str] = []
    thread: ActionThread[int] = ActionThread("test", lambda actions: seen.append(f"{actions}"))
    thread.start(lambda _: None, before=lambda: seen.append("before"))
    for number in (1, 2):
        thread.put(number)
        assert thread.wait_idle(10)
    assert thread.close(10)
    assert seen == ["before", "[1]", "before", "[2]"]


def test_each_action_is_carried_out_by_its_handler_and_answered() -> None:
    answers: list[object] = []
    handlers = {int: lambda number: number + 1, str: lambda text: text * 2}
    thread = ActionThread.answering("test", handlers, answers.append)
    assert thread.actions == (int, str)
    thread.start(lambda _: None)
    for action in (1, "a", 2):
        thread.put(action)
    assert thread.wait_idle(10)
    assert thread.close(10)
    assert answers == [2, "aa", 3]


def test_what_fails_before_the_work_is_told_like_the_work() -> None:
    heard: list[BaseException] = []
    told, worked = threading.Event(), threading.Event()

    def fail() -> None:
        raise KeyError("x")

    def crashed(error: BaseException) -> None:
        heard.append(error)
        told.set()

    thread: ActionThread[int] = ActionThread("test", lambda _: worked.set())
    thread.start(crashed, before=fail)
    thread.put(1)
    assert told.wait(10)
    assert isinstance(heard[0], KeyError)
    assert not worked.is_set()
    assert thread.close(10)


def test_it_is_idle_when_all_that_was_put_in_is_done_and_not_before() -> None:
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def work(_: object) -> None:
        begun.release()
        assert go_on.acquire(timeout=10)

    thread: ActionThread[int] = ActionThread("test", work)
    assert thread.wait_idle(0)
    thread.put(1)
    assert not thread.wait_idle(0), "it may not have begun"
    thread.start(lambda _: None)
    assert begun.acquire(timeout=10)
    thread.put(2)
    go_on.release()
    assert begun.acquire(timeout=10)
    assert not thread.wait_idle(0), "the second has come meanwhile"
    go_on.release()
    assert thread.wait_idle(10)
    assert thread.close(10)


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_ends_it_is_told(error: BaseException) -> None:
    """Else nobody would do its work, and nobody know."""
    heard: list[BaseException] = []
    told = threading.Event()

    def tell(found: BaseException) -> None:
        heard.append(found)
        told.set()

    def fail(_: object) -> None:
        raise error

    thread: ActionThread[int] = ActionThread("test", fail)
    thread.start(tell)
    thread.put(1)
    assert told.wait(10)
    assert heard == [error]


def test_who_hangs_is_not_waited_for_and_said_to_hang() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        begun.set()
        assert go_on.wait(10)

    thread: ActionThread[int] = ActionThread("test", hang)
    thread.start(lambda _: None)
    thread.put(1)
    assert begun.wait(10)
    assert not thread.close(0)
    go_on.set()
    assert thread.close(10)


def test_without_a_thread_an_action_is_carried_out_by_whoever_puts_it_in() -> None:
    done: list[object] = []
    inline = InlineActions({int: done.append})
    assert inline.actions == (int,)
    inline.start(lambda _: None)
    inline.put(1)
    assert done == [1]
    assert inline.wait_idle(0)
    assert inline.close(0)

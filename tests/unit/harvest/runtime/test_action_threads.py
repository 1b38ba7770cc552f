"""The threads that carry out actions."""

from __future__ import annotations

import threading

from harvest.runtime.action_threads import ActionThread


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

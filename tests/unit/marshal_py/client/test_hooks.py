"""The thread that runs hooks of the user."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest

from marshal_py.client.hooks import HookThread

WAIT_S = 60.0


@pytest.fixture
def hooks() -> HookThread:
    return HookThread(logging.LoggerAdapter(logging.getLogger("marshal_py.hooks"), {}), "me")


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_hook_that_raises_is_told_and_the_next_is_called(
    hooks: HookThread, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    """Also one that calls `sys.exit`, which would end the thread without a word."""
    called: list[str] = []

    def fail() -> None:
        raise kind("of the user's own")

    hooks.call(fail)
    hooks.call(lambda: called.append("second"))
    hooks.start()
    hooks.close(WAIT_S)
    assert called == ["second"]
    assert "me: a hook raised" in caplog.text
    assert "of the user's own" in caplog.text


def test_who_closes_waits_for_what_was_asked_for_before(hooks: HookThread) -> None:
    called: list[int] = []
    may_begin = threading.Event()
    hooks.start()

    def first() -> None:
        assert may_begin.wait(WAIT_S)
        called.append(0)

    hooks.call(first)
    for number in range(1, 4):
        hooks.call(partial(called.append, number))
    threading.Timer(0.01, may_begin.set).start()
    hooks.close(WAIT_S)
    assert called == [0, 1, 2, 3]


def test_a_hook_may_close_what_calls_it(hooks: HookThread) -> None:
    """As when the user closes the client because a claim was lost."""
    closed = threading.Event()
    errors: list[BaseException] = []

    def close() -> None:
        try:
            hooks.close(WAIT_S)
        except BaseException as error:
            errors.append(error)
        closed.set()

    hooks.start()
    hooks.call(close)
    assert closed.wait(WAIT_S)
    assert errors == []


def test_who_never_called_one_has_no_thread_to_wait_for(hooks: HookThread) -> None:
    before = threading.active_count()
    hooks.close(0.0)
    assert threading.active_count() == before


def test_who_has_closed_it_leaves_no_thread(hooks: HookThread) -> None:
    hooks.start()
    thread = hooks._thread
    assert thread is not None
    hooks.close(WAIT_S)
    assert not thread.is_alive()

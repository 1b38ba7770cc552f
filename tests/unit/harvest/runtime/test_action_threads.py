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

"""A signal wakes an event loop that sleeps, and what others have set for that is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from marshal_py.client import signals
from marshal_py.client.signals import StopRequests, exit_on_sigterm, hush, wake_on_signals


@pytest.fixture(autouse=True)
def received() -> Iterator[list[int]]:
    """The signals that a handler of the program has got; another thread receives them."""
    numbers: list[int] = []
    handler = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, handler)
    signal.set_wakeup_fd(-1)


def wakeup_fd() -> int:
    found = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(found)
    return found


def send_from_another_thread() -> None:
    """The signal is of the thread that sends it: nothing interrupts the main thread."""
    sender = threading.Thread(
        target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    )
    sender.start()
    sender.join()


async def sleep_until(happened: Callable[[], object]) -> None:
    """Sleep as the loop does, and look again when something has woken it."""
    loop = asyncio.get_running_loop()
    while not happened():
        assert loop._selector.select(60), "nothing woke it"  # type: ignore[attr-defined]
        await asyncio.sleep(0)


async def woken(received: list[int]) -> None:
    undo = wake_on_signals(asyncio.get_running_loop())
    threading.Timer(0.05, send_from_another_thread).start()
    await sleep_until(lambda: received)
    undo()


def test_a_loop_hears_of_a_signal_that_another_thread_receives(received: list[int]) -> None:
    asyncio.run(woken(received))
    assert received == [signal.SIGUSR1]
    assert wakeup_fd() == -1


def test_it_is_on_for_as_long_as_somebody_needs_it() -> None:
    async def main() -> None:
        first = wake_on_signals(asyncio.get_running_loop())
        second = wake_on_signals(asyncio.get_running_loop())
        first()
        assert wakeup_fd() != -1
        second()
        assert wakeup_fd() == -1

    asyncio.run(main())


def test_after_a_loop_that_ended_without_an_undoing_the_next_one_is_woken(
    received: list[int],
) -> None:
    async def forgets() -> None:
        wake_on_signals(asyncio.get_running_loop())

    asyncio.run(forgets())
    assert os.fstat(wakeup_fd())  # it is open: whoever sets another puts it back
    asyncio.run(woken(received))
    assert received == [signal.SIGUSR1]


def test_a_loop_that_has_let_go_of_signals_and_wants_them_again_is_woken(
    received: list[int],
) -> None:
    async def main() -> None:
        wake_on_signals(asyncio.get_running_loop())()
        await woken(received)

    asyncio.run(main())
    assert received == [signal.SIGUSR1]


def test_what_the_program_has_set_stays() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def main() -> None:
        undo = wake_on_signals(asyncio.get_running_loop())
        assert wakeup_fd() == theirs.fileno()
        undo()
        assert wakeup_fd() == theirs.fileno()

    with ours, theirs:
        signal.set_wakeup_fd(theirs.fileno())
        asyncio.run(main())
        signal.set_wakeup_fd(-1)


def test_what_the_loop_sets_meanwhile_stays() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        undo = wake_on_signals(loop)
        loop.add_signal_handler(signal.SIGUSR2, lambda: None)
        own = wakeup_fd()
        undo()
        assert wakeup_fd() == own
        loop.remove_signal_handler(signal.SIGUSR2)

    asyncio.run(main())


def test_other_threads_have_no_signals() -> None:
    async def main() -> None:
        wake_on_signals(asyncio.get_running_loop())()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert wakeup_fd() == -1


def test_ctrl_c_stops_all_that_run_and_a_second_one_waits_for_none() -> None:
    stopped: list[str] = []
    after: list[str] = []
    with (  # noqa: PT012
        pytest.raises(KeyboardInterrupt),
        StopRequests(lambda: stopped.append("outer"), name="outer"),
        StopRequests(lambda: stopped.append("inner"), name="inner"),
    ):
        signal.raise_signal(signal.SIGINT)
        after.append("first")
        signal.raise_signal(signal.SIGINT)
        after.append("second")
    assert sorted(stopped) == ["inner", "outer"]
    assert after == ["first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_end_of_one_does_not_keep_ctrl_c_from_the_others() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt), StopRequests(lambda: steps.append("stop"), name="outer"):  # noqa: PT012
        with StopRequests(lambda: steps.append("inner"), name="inner"):
            pass
        signal.raise_signal(signal.SIGINT)
        steps.append("went on")
    assert steps == ["stop", "went on"]


@pytest.mark.usefixtures("no_handler")
def test_sigterm_ends_the_program_as_shells_know_it_and_is_let_go_of() -> None:
    undo = exit_on_sigterm()
    assert undo is not None
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    undo()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("no_handler")
def test_the_end_of_one_client_does_not_keep_sigterm_from_the_others() -> None:
    """It would end the process at once, and what the others hold would be free much later."""
    first, second = exit_on_sigterm(), exit_on_sigterm()
    assert first is not None
    assert second is not None
    for _ in range(2):
        first()
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    closer = threading.Thread(target=second)  # which cannot do it
    closer.start()
    closer.join()
    third = exit_on_sigterm()
    assert third is not None
    third()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("no_handler")
def test_a_handler_of_the_programs_own_is_never_touched() -> None:
    for own in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGTERM, own)
        assert exit_on_sigterm() is None
        assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    undo = exit_on_sigterm()
    assert undo is not None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # set since then
    undo()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_what_is_no_end_by_ctrl_c_is_printed_by_the_hook_that_the_program_has_set_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(signals, "_hooks", [])
    monkeypatch.setattr(sys, "excepthook", lambda *_: told.append("first"))
    hushed, other = KeyboardInterrupt(), KeyboardInterrupt()
    hush(hushed)
    monkeypatch.setattr(sys, "excepthook", lambda *_: told.append("second"))
    hush(hushed)
    sys.excepthook(KeyboardInterrupt, hushed, None)
    assert told == []
    for error in (other, ValueError("of the program")):
        sys.excepthook(type(error), error, None)
    assert told == ["second", "second"]


def test_what_fails_while_it_is_being_stopped_is_told_and_the_program_ends_as_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(signals, "_hooks", [])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    problem = ValueError("no disk")
    with pytest.raises(SystemExit) as ended, StopRequests(lambda: None, name="me") as requests:  # noqa: PT012
        requests.take(signal.SIGTERM)
        raise problem
    assert (ended.value.code, ended.value.__cause__) == (128 + signal.SIGTERM, problem)
    assert "me: while it was being stopped: ValueError('no disk')" in caplog.text


@pytest.mark.parametrize("own", [SystemExit(3), KeyboardInterrupt()])
def test_how_the_program_ends_is_its_own_choice_though_it_was_asked_to_stop(
    caplog: pytest.LogCaptureFixture, own: BaseException
) -> None:
    with pytest.raises(type(own)) as ended, StopRequests(lambda: None, name="me") as requests:  # noqa: PT012
        requests.take(signal.SIGTERM)
        raise own
    assert ended.value is own
    assert caplog.text == ""


def test_however_often_ctrl_c_was_hushed_an_error_is_printed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(signals, "_hooks", [])
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: told.append(kind))
    for _ in range(2):
        hush(KeyboardInterrupt())
    sys.excepthook(ValueError, ValueError("of the program"), None)
    assert told == [ValueError]

"""Sockets and `select` between green threads: as much of them as a leader in wal mode waits for."""

from __future__ import annotations

import select
import types
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from tests.simulation.whole.green import current_thread


class Pollable(Protocol):
    """What a thread can wait for; `waiters` are to be called when it may have become readable."""

    waiters: list[Callable[[], None]]

    def readable(self) -> bool: ...


_open: WeakValueDictionary[int, Pollable] = WeakValueDictionary()


def file_number(what: Pollable) -> int:
    """A number for `poll`."""
    _open[id(what)] = what
    return id(what)


class _End:
    """One end of a pair."""

    def __init__(self) -> None:
        self.waiters: list[Callable[[], None]] = []
        self._received = 0
        self.peer = self

    def readable(self) -> bool:
        return self._received > 0

    def fileno(self) -> int:
        return file_number(self)

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def send(self, data: bytes) -> None:
        self.peer._received += len(data)
        for wake in list(self.peer.waiters):
            wake()

    def recv(self, size: int) -> bytes:
        if not self._received:
            raise BlockingIOError
        taken = min(size, self._received)
        self._received -= taken
        return bytes(taken)


def _socketpair() -> tuple[_End, _End]:
    one, other = _End(), _End()
    one.peer, other.peer = other, one
    return one, other


class _Poll:
    def __init__(self) -> None:
        self._files: list[int] = []

    def register(self, number: int, events: int) -> None:
        assert events == select.POLLIN
        self._files.append(number)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        its = [(number, _open[number]) for number in self._files]
        if not any(what.readable() for _, what in its):
            me = current_thread()
            wake = me.waker()
            for _, what in its:
                what.waiters.append(wake)
            me.park(timeout_ms / 1000)
            for _, what in its:
                what.waiters.remove(wake)
        return [(number, select.POLLIN) for number, what in its if what.readable()]


SELECT = types.SimpleNamespace(poll=_Poll, POLLIN=select.POLLIN)
SOCKET = types.SimpleNamespace(socketpair=_socketpair)

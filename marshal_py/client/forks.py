"""What a client is in another process: nothing.

The child of a fork has its parent's clients, but no thread of theirs: it holds nothing. To a
process that is no fork of this one (`multiprocessing` with "spawn") a client cannot be sent.

No lock of a client is in the middle of something when the process forks, so that the child does not
wait for ever for a thread that it does not have. And nothing of a client is ever freed there: the
clients of librdkafka would wait for theirs.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Final, NoReturn, Protocol

from marshal_py.errors import Forked, InvalidArgument

__all__ = ["Forkable", "OfOneProcess", "watch"]

LOCK_S: Final = 1.0
"""Nobody holds the lock of a client for so long."""


class Forkable(Protocol):
    """What must know that it is in the child of a fork."""

    @property
    def lock(self) -> threading.RLock:
        """What whoever changes it holds."""

    def forked(self, error: Forked) -> None:
        """Hold nothing any more, and raise `error` for everything. Called in the child."""


class OfOneProcess:
    """What has threads, connections or a lease, and is of no use in another process."""

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            f"{self!r} cannot be sent to another process, which would hold nothing by it: make a "
            "client there, and send what it needs to be made (and the epoch, to fence by)"
        )


_clients: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_locked: Final[list[Forkable]] = []


def watch(client: Forkable) -> None:
    """See to it that `client` knows."""
    _clients.add(client)


def _before() -> None:
    _locked.extend(client for client in list(_clients) if client.lock.acquire(timeout=LOCK_S))


def _after() -> None:
    while _locked:
        _locked.pop().lock.release()


def _in_child() -> None:
    locked = list(_locked)
    _after()
    for client in list(_clients):
        if client not in locked:  # whoever has its lock is no thread of this process
            client.lock._at_fork_reinit()  # type: ignore[attr-defined] # noqa: SLF001 - as logging does
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        client.forked(
            Forked(
                f"this client belongs to process {os.getppid()}, of which this one, {os.getpid()}, "
                "is a fork: it holds nothing here. Make a client after the fork, in the process "
                "that uses it; with multiprocessing, the start methods 'spawn' and 'forkserver' "
                "see to that"
            )
        )
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)

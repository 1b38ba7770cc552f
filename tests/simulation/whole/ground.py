"""Puts the product on simulated ground: its modules get green threads, virtual clocks, a cluster.

Every module of the two packages that has imported `threading`, `time` or `queue` finds the
simulated one under that name; nothing else of it changes.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from harvest.runtime import relay_leader as relay_leader_module
from harvest.runtime import wal_leader as wal_leader_module
from harvest.sinks.http import deadline as deadline_module
from harvest.sinks.kafka import clients as sink_clients_module
from marshal_py.client import driver as driver_module
from marshal_py.client import kafka_clients as clients_module
from marshal_py.client import marshal as client_module
from marshal_py.client import waiting
from tests.simulation.whole import green, sockets
from tests.simulation.whole.cluster import Cluster, quiet_logs

_PACKAGES = ("marshal_py", "harvest")
_ALONE = ("marshal_py.embedded", "marshal_py.spark", "marshal_py.testing", "marshal_py.cli.")


def _modules() -> list[types.ModuleType]:
    return [
        module
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in _PACKAGES and not name.startswith(_ALONE)
    ]


class _ObservableCondition(green.Condition):
    """As `waiting.ObservableCondition`, whose base was chosen when it was imported."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.observers: list[Callable[[], None]] = []

    def notify_all(self) -> None:
        super().notify_all()
        for observer in self.observers:
            observer()


class _Httpcore:
    """The module `httpcore`, or what a history has in its place."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster.httpcore, name)


class _Ground:
    """What takes the place of what; found once, put in and taken out for each history."""

    def __init__(self, hub: green.Hub, cluster: Cluster) -> None:
        self.hub, self.cluster = hub, cluster
        self._instances = 0
        self._undo: list[tuple[types.ModuleType, str, Any]] = []

    def put(self, module: types.ModuleType, name: str, value: Any) -> None:
        self._undo.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def instance_id(self) -> str:
        self._instances += 1
        return f"{green.machine().name}.{self._instances}"

    def sink_client(self, kind: Any, settings: Any) -> Any:
        return self.cluster.sink_client(kind, settings)

    def lay(self) -> None:
        connect = self.cluster.connect
        replacements: list[tuple[Any, Any]] = [
            (threading, green.THREADING),
            (time, green.TIME),
            (queue, green.QUEUE),
            (queue.SimpleQueue, green.SimpleQueue),
            (clients_module.connect, connect),
            (sink_clients_module.make_client, self.sink_client),
            (waiting.ObservableCondition, _ObservableCondition),
        ]
        random_bits = types.SimpleNamespace(randbits=self.hub.random.getrandbits)
        replacements.append((secrets, random_bits))
        random_numbers = types.SimpleNamespace(random=self.hub.random.random)
        for module in _modules():
            for name, value in list(vars(module).items()):
                for real, simulated in replacements:
                    if value is real:
                        self.put(module, name, simulated)
        self.put(client_module, "new_instance_id", self.instance_id)
        self.put(relay_leader_module, "random", random_numbers)
        self.put(deadline_module, "httpcore", _Httpcore(self.cluster))
        self.put(deadline_module, "_addresses", lambda host, *_: [host])
        self.put(wal_leader_module, "select", sockets.SELECT)
        self.put(wal_leader_module, "socket", sockets.SOCKET)
        self.put(driver_module, "atexit", types.SimpleNamespace(register=lambda *_: None))

    def clear(self) -> None:
        for module, name, value in reversed(self._undo):
            setattr(module, name, value)


@contextlib.contextmanager
def ground(hub: green.Hub, cluster: Cluster) -> Iterator[_Ground]:
    """Let the product run on `hub` and `cluster` for as long as the block lasts."""
    laid = _Ground(hub, cluster)
    green.use(hub)
    laid.lay()
    try:
        with quiet_logs():
            yield laid
            hub.end()
    finally:
        laid.clear()
        green.use(None)

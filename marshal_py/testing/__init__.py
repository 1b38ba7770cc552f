"""Test what you build on this: with a broker that takes no time, or with no broker at all.

`TestBroker` (and the pytest fixture `mock_kafka`) is a Kafka inside the test's own process, for
handlers, consumers and leaders as they are. `MemoryLog` and `VirtualClock` are for drivers of the
protocol itself. Read `broker` first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from marshal_py.testing.memory_log import MemoryLog, MemoryPartition, Record, VirtualClock

if TYPE_CHECKING:
    from marshal_py.testing.broker import TestBroker

__all__ = ["MemoryLog", "MemoryPartition", "Record", "TestBroker", "VirtualClock"]


def __getattr__(name: str) -> object:
    """Import what needs a Kafka client when it is asked for."""
    if name != "TestBroker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module("marshal_py.testing.broker").TestBroker
    globals()[name] = found
    return found

"""Publishing rows again: all that are wanted, in their order, in transactions of so many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core.row import Row
from harvest.runtime import replay as module
from harvest.runtime.replay import Replay, Replayed, replay

CONFIG: Any = SimpleNamespace(mode="range")


class Producer:
    """Notes what each transaction brought; every third record finds the queue full at first."""

    def __init__(self) -> None:
        self.transactions: list[list[bytes]] = []
        self._open: list[bytes] = []
        self._asked = 0

    def begin_transaction(self) -> None:
        self._open = []

    def produce(self, topic: str, value: bytes, key: bytes, **more: Any) -> None:
        self._asked += 1
        if self._asked % 3 == 0:
            raise BufferError
        assert (topic, key, more["headers"]) == ("into", b"k", [("harvest.replay", value)])
        self._open.append(value)

    def poll(self, timeout_s: float) -> None:
        del timeout_s

    def commit_transaction(self, timeout_s: float) -> None:
        del timeout_s
        self.transactions.append(self._open)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 9])
def test_every_row_is_in_one_transaction(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """None is left out between two of them."""
    producer = Producer()
    rows = [Row(n, "t", b"k", b"%d" % n) for n in range(count)]
    monkeypatch.setattr(module, "_BATCH", 3)
    monkeypatch.setattr(module, "_check_published", lambda *_: None)
    monkeypatch.setattr(module, "_dead_letters", lambda *_: frozenset({4}))
    monkeypatch.setattr(module, "_rows", lambda *_: iter(rows))
    monkeypatch.setattr(module, "_producer", lambda *_: producer)
    told: list[int | None] = []

    def progress(done: Replayed) -> None:
        told.append(done.last_id)

    done = replay(CONFIG, Replay(0, 9, "t", "into"), progress=progress)
    wanted = [b"%d" % n for n in range(count) if n != 4]
    assert producer.transactions == [wanted[n : n + 3] for n in range(0, len(wanted), 3)]
    assert done.rows == len(wanted)
    assert told == [int(values[-1]) for values in producer.transactions]

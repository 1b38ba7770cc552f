"""In which order a transaction asks Kafka (specs/HARVEST.md §9, "Waking up")."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.rows import Row
from harvest.sink import kafka
from harvest.sink.kafka import TransactionalSink

COMMIT_S = 0.5


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Producer:
    """Notes what it is asked for; a commit takes half a second."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[str] = []

    def begin_transaction(self) -> None:
        self.asked.append("begin")

    def produce_batch(self, topic: str, messages: list[Any]) -> int:
        self.asked.append("rows")
        return len(messages)

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.asked.append("position")

    def commit_transaction(self, timeout_s: float) -> None:
        del timeout_s
        self.clock.now_s += COMMIT_S
        self.asked.append("commit")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(kafka, "time", made)
    return made


def test_right_after_a_commit_the_position_goes_first_unless_there_are_many_rows(
    clock: Clock,
) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    sink = TransactionalSink(settings, base_config=settings, name="x", checkpoint_topic="t")
    sink._still_held = lambda: True
    producer = Producer(clock)

    def asked(rows: int, pause_s: float) -> list[str]:
        clock.now_s += pause_s
        producer.asked.clear()
        given: Any = producer
        assert sink._deliver(given, [Row(n, "t", b"k", b"v") for n in range(rows)], "c") is None
        return list(producer.asked)

    rows_first, position_first = (
        ["begin", "rows", "position", "commit"],
        ["begin", "position", "rows", "commit"],
    )
    assert asked(1, 0) == rows_first
    assert asked(1, 0) == position_first
    assert asked(1, COMMIT_S / 2) == position_first
    assert asked(1, 2 * COMMIT_S) == rows_first
    assert asked(2_000, 0) == rows_first

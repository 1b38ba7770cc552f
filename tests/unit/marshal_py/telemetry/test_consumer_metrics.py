"""What a consumer tells of itself: the first message that fails, partitions as wholes, health."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client import CollectorRegistry

from marshal_py import AssignedPartition
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.slots import slots_cell
from marshal_py.telemetry import ConsumerMetrics

COUNTED = (
    "filtered", "handled", "failures", "retries", "dead_lettered", "skipped", "handed_back",
    "buffered", "buffered_bytes", "running", "retrying", "stuck",
)  # fmt: skip


class Busy:
    """A consumer, as metrics look at one."""

    def __init__(self) -> None:
        self.marshal = SimpleNamespace(group_id="g", client_id="a")
        self.notes: dict[tuple[str, int], Any] = {}
        self.assigned: list[AssignedPartition] = []
        self.ok = True
        self.answers = True

    def stats(self) -> Any:
        numbers = {name: n for n, name in enumerate(COUNTED, 1)}
        return SimpleNamespace(**numbers, durations={}, ages={})

    def troubles(self) -> dict[tuple[str, int], Any]:
        return self.notes

    def assignment(self) -> list[AssignedPartition]:
        return self.assigned

    def lag(self, *, timeout_s: float) -> dict[tuple[str, int], int]:
        if not self.answers:
            raise BrokerUnavailable
        return {("orders", 0): 12}

    def health(self) -> Any:
        return SimpleNamespace(ok=self.ok)


@pytest.fixture
def busy() -> Busy:
    return Busy()


@pytest.fixture
def registry(busy: Busy) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    consumer: Any = busy
    with ConsumerMetrics(consumer, registry):
        yield registry


def value(registry: CollectorRegistry, name: str, partition: int | None = None) -> float | None:
    where = {} if partition is None else {"topic": "orders", "partition": str(partition)}
    return registry.get_sample_value(
        f"marshal_consumer_{name}", {"group_id": "g", "client_id": "a", **where}
    )


def note(offset: int, *, retrying: int = 0, stuck: int = 0) -> Any:
    return SimpleNamespace(offset=offset, retrying=retrying, stuck=stuck)


def test_each_number_is_told_under_its_own_name(registry: CollectorRegistry) -> None:
    for n, name in enumerate(COUNTED, 1):
        assert value(registry, f"{name}_total" if n <= 7 else name) == n


def test_of_a_partition_the_first_message_that_fails_or_is_stuck_is_told(
    busy: Busy, registry: CollectorRegistry
) -> None:
    """Its slots are looked at together."""
    cell = slots_cell("orders", 0, 4)
    busy.notes = {
        (cell, 0): note(70, retrying=1),
        (cell, 1): note(50, stuck=1),
        (cell, 2): note(60, retrying=1),
        ("orders", 1): note(5),
    }
    assert value(registry, "failing_offset", 0) == 50
    assert value(registry, "failing_offset", 1) is None, "it has failed, and does so no more"


def test_slots_that_are_held_of_a_partition_are_told_together(
    busy: Busy, registry: CollectorRegistry
) -> None:
    busy.assigned = [
        AssignedPartition("orders", 0, 7, 1, 4, 1, False),
        AssignedPartition("orders", 0, 8, 2, 5, 3, False),
        AssignedPartition("orders", 1, 9, 3, 0, 0, True),
    ]
    assert value(registry, "gaps", 0) == 4
    assert value(registry, "done_above_messages", 0) == 9
    assert value(registry, "partition_paused", 0) == 0
    assert value(registry, "partition_paused", 1) == 1


def test_where_the_brokers_do_not_answer_the_rest_is_told_all_the_same(
    busy: Busy, registry: CollectorRegistry
) -> None:
    busy.assigned = [AssignedPartition("orders", 0, 7, 1, 4, 1, False)]
    assert value(registry, "lag_messages", 0) == 12
    busy.answers = False
    assert value(registry, "lag_messages", 0) is None
    assert value(registry, "partition_paused", 0) == 0
    assert value(registry, "handled_total") == 2


def test_health_is_told(busy: Busy, registry: CollectorRegistry) -> None:
    assert value(registry, "healthy") == 1
    busy.ok = False
    assert value(registry, "healthy") == 0

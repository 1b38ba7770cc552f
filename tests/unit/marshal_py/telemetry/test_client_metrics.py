"""What a client tells of itself: of its group alone, in seconds, and the worst of its leases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client import CollectorRegistry

from marshal_py import Marshal
from marshal_py.client.marshal import driver_of
from marshal_py.errors import (
    Closed,
    DuplicateClientId,
    MarshalError,
    PartitionCountChanged,
    SnapshotMismatch,
)
from marshal_py.protocol import events as ev
from marshal_py.telemetry import MarshalMetrics

Listener = Callable[[int, list[ev.Event]], None]


class Client:
    """A started client, as metrics look at one."""

    group_id, client_id = "g", "a"

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.refused: Exception | None = None
        self.is_closed = False
        self.remaining_ms = [4_000, 1_500, 9_000]
        self.snapshot_mismatches = ["one"]
        self.listeners: list[Listener] = []

    def listen(self, listener: Listener) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    @contextmanager
    def world(self) -> Iterator[None]:
        if self.is_closed:
            raise Closed
        yield

    def claims(self) -> list[Any]:
        return [SimpleNamespace(remaining_ms=ms) for ms in self.remaining_ms]

    def bring(self, *events: Any) -> None:
        for listener in self.listeners:
            listener(0, list(events))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def registry(client: Client) -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    started: Any = client
    with MarshalMetrics(started, registry):
        yield registry


def value(registry: CollectorRegistry, name: str, **more: str) -> float | None:
    return registry.get_sample_value(f"marshal_{name}", {"group_id": "g", "client_id": "a", **more})


def claimed(group: str, client: str, previous: str | None) -> ev.Claimed:
    return ev.Claimed(0, client, f"{client}-1", group, 1, "t", 0, 7, 1_000, previous, None, -1)


def test_the_lease_that_ends_first_is_told_in_seconds(
    client: Client, registry: CollectorRegistry
) -> None:
    assert value(registry, "claims_held") == 3
    assert value(registry, "lease_remaining_seconds") == 1.5
    client.remaining_ms.clear()
    assert value(registry, "claims_held") == 0
    assert value(registry, "lease_remaining_seconds") == 0


def test_it_is_up_while_it_claims_and_is_not_refused(
    client: Client, registry: CollectorRegistry
) -> None:
    assert value(registry, "up") == 1
    client.refused = PermissionError()
    assert value(registry, "up") == 0
    client.refused, client.failure = None, RuntimeError()
    assert value(registry, "up") == 0


def test_of_a_client_that_is_closed_only_that_is_told(
    client: Client, registry: CollectorRegistry
) -> None:
    client.is_closed = True
    assert value(registry, "up") == 0
    assert value(registry, "claims_held") is None


def test_events_of_its_group_are_counted_and_of_no_other(
    client: Client, registry: CollectorRegistry
) -> None:
    client.bring(claimed("g", "b", None), claimed("g", "b", "a"), claimed("other", "b", "a"))
    assert value(registry, "events_total", event="Claimed") == 2
    assert value(registry, "takeovers_total") == 1
    assert value(registry, "snapshot_mismatches_total") == 1


def test_after_the_end_nothing_is_counted_and_the_name_is_free(client: Client) -> None:
    registry = CollectorRegistry()
    started: Any = client
    with MarshalMetrics(started, registry):
        assert len(client.listeners) == 1
    assert client.listeners == []
    assert value(registry, "up") is None


@pytest.mark.parametrize("kind", [DuplicateClientId, PartitionCountChanged, SnapshotMismatch])
def test_a_client_that_has_failed_for_good_is_down_and_tells_the_rest(
    kind: type[MarshalError],
) -> None:
    """A look at its world raises why: a scrape would fail, and nobody hear that it is down."""
    marshal, registry = Marshal("127.0.0.1:1", group_id="g", client_id="a"), CollectorRegistry()
    driver: Any = driver_of(marshal)
    driver.running = True
    driver.reader = SimpleNamespace(world=None)
    with MarshalMetrics(marshal, registry):
        assert value(registry, "up") == 1
        driver.failure = kind("no")
        driver.mismatches = ["one"]
        assert value(registry, "up") == 0
        assert value(registry, "claims_held") == 0
        assert value(registry, "snapshot_mismatches_total") == 1
    driver.hooks.close(60)

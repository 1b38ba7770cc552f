"""What a relay has sent, by destination, as Prometheus reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harvest.runtime.events import Stats

WHOSE = 'group_id="shop",outbox="orders"'


def monitor(stats: Stats) -> Any:
    return SimpleNamespace(
        harvester=SimpleNamespace(stats=stats, state="leading", in_flight=0, refusal=None),
        health=lambda: SimpleNamespace(ok=True),
        backlog=None,
        dead_letters=None,
        slot=None,
        paused=False,
        holders={},
        reachable={"kafka": True},
        labels={"group_id": "shop", "outbox": "orders"},
    )


def test_messages_are_counted_by_destination_and_outcome() -> None:
    pytest.importorskip("prometheus_client")
    from harvest.runtime.metrics import scrape

    stats = Stats(deliveries=3)
    stats.messages.update({("shop", "delivered"): 2, ("billing", "unavailable"): 1})
    lines = scrape(monitor(Stats.total([stats, stats]))).decode().splitlines()
    name = "harvest_destination_messages_total"
    assert f'{name}{{destination="shop",{WHOSE},outcome="delivered"}} 4.0' in lines
    assert f'{name}{{destination="billing",{WHOSE},outcome="unavailable"}} 2.0' in lines
    assert f"harvest_deliveries_total{{{WHOSE}}} 6.0" in lines
    assert f"harvest_kafka_reachable{{{WHOSE}}} 1.0" in lines
    assert name not in scrape(monitor(Stats())).decode()


def test_totals_add_up_and_leave_their_parts_alone() -> None:
    one, two = Stats(published=1), Stats(published=2, late=5)
    one.messages["d", "failed"] += 1
    two.messages["d", "failed"] += 2
    total = Stats.total([one, two])
    assert (total.published, total.late, total.messages) == (3, 5, {("d", "failed"): 3})
    assert (one.messages["d", "failed"], two.messages["d", "failed"]) == (1, 2)
    assert Stats.total([]) == Stats()


def test_breakers_are_shown_by_who_leads() -> None:
    pytest.importorskip("prometheus_client")
    from harvest.runtime.metrics import scrape

    stats = Stats(breakers={"a": "closed", "b": "open", "c": "gone"})
    seen = monitor(Stats.total([stats, Stats()]))
    lines = scrape(seen).decode().splitlines()
    for name, value in (("a", 0), ("b", 1), ("c", 0)):
        assert (
            f'harvest_destination_breaker_open{{destination="{name}",{WHOSE}}} {value}.0' in lines
        )
    for name, value in (("a", 0), ("b", 0), ("c", 1)):
        assert f'harvest_destination_gone{{destination="{name}",{WHOSE}}} {value}.0' in lines
    seen.harvester.state = "standing by"
    assert "breaker_open" not in scrape(seen).decode()

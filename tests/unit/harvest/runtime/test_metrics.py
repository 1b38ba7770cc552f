"""What a harvester shows Prometheus: what is zero, what is not known, and what is which."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core.interfaces.mark_store import Backlog
from harvest.core.wal_slot import SlotHealth
from harvest.runtime.events import Stats

pytest.importorskip("prometheus_client")

WHOSE = 'group_id="shop",outbox="orders"'


def shown(*, harvester: dict[str, Any] | None = None, **changes: Any) -> dict[str, float]:
    """The gauges and counters by name, and their own labels."""
    from harvest.runtime.metrics import scrape

    parts: dict[str, Any] = {"stats": Stats(), "state": "leading", "in_flight": 0, "refusal": None}
    monitor: dict[str, Any] = {
        "harvester": SimpleNamespace(**parts | (harvester or {})),
        "health": lambda: SimpleNamespace(ok=True),
        "backlog": None,
        "dead_letters": None,
        "slot": None,
        "paused": False,
        "holders": {},
        "reachable": {},
        "labels": {"group_id": "shop", "outbox": "orders"},
    }
    text = scrape(SimpleNamespace(**monitor | changes)).decode()  # type: ignore[arg-type]
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert all(label in name for label in WHOSE.split(",")), "all say whose they are"
            found[name.replace(WHOSE, "").replace("{}", "").removeprefix("harvest_")] = float(value)
    return found


def test_a_harvester_that_refuses_its_database_shows_it() -> None:
    assert shown()["refused"] == 0
    assert shown(harvester={"refusal": "another server"})["refused"] == 1


def test_how_it_is_has_a_gauge_each() -> None:
    found = shown(paused=True, reachable={"database": True, "kafka": False})
    assert (found["up"], found["leading"], found["paused"]) == (1, 1, 1)
    assert (found["database_reachable"], found["kafka_reachable"]) == (1, 0)
    ill = SimpleNamespace(ok=False)
    found = shown(harvester={"state": "standing by", "in_flight": 7}, health=lambda: ill)
    assert (found["up"], found["leading"], found["paused"]) == (0, 0, 0)
    assert found["rows_in_flight"] == 7


def test_what_was_not_counted_is_not_shown_and_nothing_is_shown_as_zero() -> None:
    """An alert on a number of rows set aside must see it go back to zero."""
    assert not {"dead_letters_waiting", "backlog_rows", "oldest_row_age_seconds"} & shown().keys()
    found = shown(dead_letters=0, backlog=Backlog(0, 0, None))
    assert found["dead_letters_waiting"] == 0
    assert (found["backlog_rows"], found["oldest_row_age_seconds"]) == (0, 0)
    found = shown(dead_letters=3, backlog=Backlog(5, 2, 1.5))
    assert found["dead_letters_waiting"] == 3
    assert (found["backlog_rows"], found["backlog_marked_rows"]) == (5, 2)
    assert found["oldest_row_age_seconds"] == 1.5


def test_a_slot_shows_what_it_costs() -> None:
    found = shown(slot=SlotHealth(True, False, True, 700, 80, 0))
    assert (found["slot_lost"], found["slot_pinned_wal_bytes"]) == (0, 700)
    assert (found["slot_behind_bytes"], found["slot_safe_wal_bytes"]) == (80, 0)
    found = shown(slot=SlotHealth(False, lost=True))
    assert found["slot_lost"] == 1
    assert "slot_safe_wal_bytes" not in found, "without a bound there is none to show"
    assert "slot_lost" not in shown()


def test_counters_are_those_that_their_names_say() -> None:
    stats = Stats(
        published=1,
        found_published=2,
        dead_lettered=3,
        late=4,
        deliveries=5,
        failed_deliveries=6,
        terms=7,
        elections=8,
        fenced=9,
        gaps=10,
    )
    found = shown(harvester={"stats": stats})
    names = (
        "published_rows found_published_rows dead_letters late_rows deliveries failed_deliveries "
        "terms elections fenced"
    )
    assert [found[f"{name}_total"] for name in names.split()] == list(range(1, 10))
    assert found["gaps"] == 10


def test_who_leads_a_shard_has_a_label() -> None:
    found = shown(holders={"harvest:orders": "a", "harvest:orders.1": "b"})
    (first, second) = (name for name in found if name.startswith("holder"))
    assert 'shard="harvest:orders"' in first
    assert 'holder="a"' in first
    assert 'shard="harvest:orders.1"' in second
    assert 'holder="b"' in second

"""The page of a reconciliation: what counts as bad, and nothing of a stranger's as HTML."""

from __future__ import annotations

import re
from typing import Any

from harvest.spark.reconcile import Reconciliation
from harvest.spark.report import render

STRANGER = "<script>alert('x')</script>"
SAMPLE = {
    "kind": "missing", "topic": STRANGER, "key": STRANGER, "id": 7, "row_at_ms": 3_600_000,
    "partition": None, "offset": None, "record_at_ms": None,
}  # fmt: skip


def reconciliation(**more: Any) -> Reconciliation:
    given: dict[str, Any] = {
        "rows": 1_500, "records": 1_400, "buckets_different": 0, "findings": {}, "pending": 3,
        "topics": {}, "samples": [], "seconds": 1.0, **more,
    }  # fmt: skip
    return Reconciliation(**given)


def tiles(page: str) -> dict[str, tuple[str, str]]:
    """Name → (class, number)."""
    found = re.findall(r'<div class="tile ([a-z]*)"><b>([\d,]+)</b>([^<]+)</div>', page)
    return {name: (kind, number) for kind, number, name in found}


def test_where_all_has_arrived_it_says_so() -> None:
    page = render(reconciliation(outstanding=2))
    assert "Everything arrived: once, unaltered, in the order of its key." in page
    found = tiles(page)
    assert (found["rows"], found["records"]) == (("", "1,500"), ("", "1,400"))
    assert (found["pending"], found["outstanding"]) == (("", "3"), ("", "2")), "no findings"
    assert found["missing"] == ("good", "0")


def test_what_differs_is_told_by_kind_topic_hour_and_key() -> None:
    page = render(
        reconciliation(
            findings={"missing": 1_200},
            topics={"orders": {"missing": 1_200}},
            hours=[{"topic": "orders", "hour_ms": 3_600_000, "kind": "missing", "count": 1_200}],
            keys=[{"topic": "orders", "key": "k", "kind": "missing", "count": 1_100}],
            samples=[SAMPLE],
        )
    )
    assert "Everything arrived" not in page
    assert tiles(page)["missing"] == ("bad", "1,200")
    assert "a committed row that is not in Kafka" in page
    assert "<td>orders</td><td>1970-01-01 01:00:00</td><td>missing</td>" in page
    assert '<td>k</td><td>missing</td><td class="n">1,100</td>' in page
    assert "The first 1 of 1,200" in page
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 2


def test_a_time_that_no_clock_here_shows_is_told_as_a_number() -> None:
    """PostgreSQL has years up to 294276."""
    far = SAMPLE | {"row_at_ms": 10**16}
    page = render(reconciliation(findings={"missing": 1}, samples=[far]))
    assert "<td>10000000000000000 ms</td>" in page

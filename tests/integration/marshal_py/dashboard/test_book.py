"""A partition that is shared by ranges, in a real Chromium: one cell, and a picture of its book."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from marshal_py.embedded import EmbeddedKafka
from marshal_py.protocol import messages as m
from marshal_py.protocol.world import coordinating_partition
from tests.integration.marshal_py.dashboard.conftest import Served
from tests.support.chromium import Page, find_chromium

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium on PATH"),
]


def test_a_book_is_one_cell_and_a_picture(
    kafka: EmbeddedKafka, made: str, serve: Callable[..., Served], page: Page
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    group = "g"
    for seq, (client, count) in enumerate((("a", 10), ("b", 20), ("a", 30))):
        record = m.ClaimingRange(2, client, "1", group, seq, "jobs", 0, 60_000, 0, count)
        producer.produce(made, m.encode(record), partition=coordinating_partition(group, 4))
    assert producer.flush(60) == 0
    page.goto(f"{serve().url}#/g/g/jobs/0")
    page.until("document.querySelectorAll('.book i.held').length === 3")
    assert page.evaluate("marshal.view().heat.row.partitions.length") == 1
    assert "3 open ranges" in page.evaluate("document.querySelector('.book').ariaLabel")
    widths = page.evaluate(
        "[...document.querySelectorAll('.book i')].map(i => i.getBoundingClientRect().width)"
    )
    assert widths[0] < widths[1] < widths[2], "as many messages, as wide"
    assert "10 – 29 · b" in page.evaluate("document.querySelector('.cell').innerText")
    assert page.errors == []

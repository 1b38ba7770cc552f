"""A process that is restarted over and over gets on, however short each of its lives is."""

from __future__ import annotations

from functools import partial

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.testing import TestBroker
from tests.support.consumers import until


def is_stored(marshal: Marshal, position: int) -> bool:
    cell = marshal.cell("orders", 0)
    return cell is not None and cell.position >= position


def test_positions_of_who_resumes_are_stored_before_an_interval_is_over(
    mock_kafka: TestBroker,
) -> None:
    """As when two processes with one client_id take all from each other, and are restarted."""
    mock_kafka.send("orders", *map(str, range(10)), partition=0)
    began_at = 0
    for life in range(3):
        with mock_kafka.consumer("orders", client_id="same", interval_ms=600_000) as consumer:
            first = consumer.poll(30)
            assert first is not None
            assert first.offset() == began_at
            assert consumer.poll(30) is not None
            if life == 0:
                consumer.commit()
            began_at += 1  # the second one is in hand
            until(partial(is_stored, consumer.marshal, began_at))
            driver_of(consumer.marshal).abandon()

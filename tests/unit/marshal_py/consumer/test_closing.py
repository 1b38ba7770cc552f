"""What `close` leaves behind when it is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py.client.marshal import driver_of
from marshal_py.testing import TestBroker
from tests.support.consumers import until


def test_who_interrupts_close_holds_nothing_for_ever(
    mock_kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a notebook, say, which lives on: a second `close` has nothing to do."""
    mock_kafka.send("orders", "a", partition=0)
    consumer = mock_kafka.consumer("orders", auto_ack=False)
    assert consumer.start().poll(20) is not None

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer._core.assignment._settled, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    consumer.close()
    assert not driver_of(consumer.marshal).running
    until(lambda: not consumer._core.assignment.is_alive, 20)
    with mock_kafka.consumer("orders", client_id="next") as other:
        assert other.poll(20) is not None

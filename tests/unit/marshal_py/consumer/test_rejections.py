"""What a program rejects, as a dead letter says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.consumer import rejections as module
from marshal_py.consumer.rejections import Rejections


class DeadLetters:
    """Keeps what is sent."""

    made: list[DeadLetters]

    def __init__(self, kafka: dict[str, Any], *, timeout_s: float) -> None:
        self.kafka, self.timeout_s = kafka, timeout_s
        self.sent: list[tuple[Any, ...]] = []
        self.is_closed = False
        DeadLetters.made.append(self)

    def send(self, topic: str, key: Any, value: Any, headers: Any) -> None:
        self.sent.append((topic, key, value, dict(headers)))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def rejections(monkeypatch: pytest.MonkeyPatch) -> Rejections:
    DeadLetters.made = []
    monkeypatch.setattr(module, "DeadLetters", DeadLetters)
    return of_wire("msgpack")


def of_wire(wire: str) -> Rejections:
    settings = SimpleNamespace(wire=wire, kafka={"k": "v"}, connect_timeout_ms=2_500)
    marshal: Any = SimpleNamespace(group_id="g", client_id="me", settings=settings)
    topics: Any = None
    return Rejections(marshal, topics, "{topic}.bad")


def reject(rejections: Rejections, *, count: int = 3, reason: str = "") -> None:
    message = SimpleNamespace(
        headers=lambda: [("trace", b"1")],
        timestamp=lambda: (1, 99),
        topic=lambda: "orders",
        partition=lambda: 4,
        offset=lambda: 17,
    )
    part: Any = SimpleNamespace(
        delivery_count=lambda offset: count if offset == 17 else -1,
        claim=SimpleNamespace(epoch=55),
    )
    rejections.write(message, (b"key", b"raw value"), part, reason)


def test_a_rejected_message_goes_out_as_it_came_with_who_rejected_it(
    rejections: Rejections,
) -> None:
    reject(rejections, reason="no such customer")
    reject(rejections, count=0)
    (letters,) = DeadLetters.made
    assert (letters.kafka, letters.timeout_s) == ({"k": "v"}, 2.5)
    (topic, key, value, headers), (_, _, _, second) = letters.sent
    assert (topic, key, value) == ("orders.bad", b"key", b"raw value")
    told = {name.rpartition("error-")[2].rpartition(".")[2]: text for name, text in headers.items()}
    assert told["trace"] == b"1"
    assert b"no such customer" in headers.values()
    for text in (b"orders", b"4", b"17", b"3", b"g", b"me", b"55"):
        assert text in headers.values()
    assert b"rejected by the program" in second.values()
    assert b"0" not in second.values(), "it was delivered once at least"
    rejections.close()
    assert letters.is_closed


def test_in_version_1_there_is_no_epoch_to_tell(rejections: Rejections) -> None:
    reject(of_wire("text"))
    ((_, _, _, headers),) = DeadLetters.made[0].sent
    assert b"55" not in headers.values()


def test_who_rejected_nothing_has_nothing_to_close(rejections: Rejections) -> None:
    rejections.close()
    assert DeadLetters.made == []

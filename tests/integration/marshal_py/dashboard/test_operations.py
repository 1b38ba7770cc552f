"""What was shown is what is done, or nothing is; and it is logged who did it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.dashboard.audit_trail import AuditTrail
from marshal_py.dashboard.dead_letters import DeadLetterTopics
from marshal_py.dashboard.operations import Action, Operations
from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import InvalidArgument

pytestmark = pytest.mark.kafka


def test_positions_are_set_as_shown_or_not_at_all(
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    caplog: pytest.LogCaptureFixture,
) -> None:
    orders = f"orders.{made}"
    kafka.create_topic(orders, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(20):
        producer.produce(orders, b"x")
    assert producer.flush(60) == 0
    member = client("a")

    def work_to(offset: int) -> None:
        claim = member.claim(orders, 0, timeout_s=60)
        claim.commit(offset, wait=True)
        claim.release()

    work_to(10)
    connection = Connection.of_servers(kafka.bootstrap_servers, made)
    operations = Operations(connection, DeadLetterTopics(connection), AuditTrail(connection))
    action = Action("set_position", "g", topic=orders, to="-4")
    shown = operations.preview(action)
    assert [(c["before"], c["after"]) for c in shown["changes"]] == [(10, 6)]
    work_to(12)
    done = operations.perform(shown["ticket"], "10.1.2.3")
    assert [(c["before"], c["after"]) for c in done["changes"]] == [(12, 6)], "not 12 - 4"
    assert f"10.1.2.3: set_position of {orders} for group g to -4: 1 position" in caplog.text

    again = operations.preview(Action("set_position", "g", topic=orders, to="+5"))
    assert [(c["before"], c["after"]) for c in again["changes"]] == [(6, 11)]
    work_to(15)
    with pytest.raises(InvalidArgument, match="was at 6, and is at 15 by now; nothing was set"):
        operations.perform(again["ticket"], "10.1.2.3")
    assert "was asked for, and failed" in caplog.text

"""Rows for topics that may not be written to are refused; the others are published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from harvest.core.interfaces.sink import Sink
from harvest.core.row import Row
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.sink import TransactionalSink
from tests.support.secure_kafka import SecureKafka, secure_kafka

pytestmark = pytest.mark.kafka

USER, PASSWORD = "harvester", "pw-of-the-harvester"
OPEN, READ_ONLY, HIDDEN = "open", "read-only", "hidden"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with secure_kafka(tmp_path_factory.mktemp("secure")) as kafka:
        topics = [NewTopic(name, 1) for name in (OPEN, READ_ONLY, HIDDEN)]
        for future in kafka.admin.create_topics(topics).values():
            future.result(60)
        kafka.add_user(USER, PASSWORD)
        kafka.allow(USER, "WRITE", OPEN)
        kafka.allow(USER, "READ", OPEN)
        kafka.allow(USER, "READ", READ_ONLY)
        for kind, operation in (
            (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
            (ResourceType.GROUP, AclOperation.READ),
        ):
            prefix = ResourcePatternType.PREFIXED
            acl = (f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
            for future in kafka.admin.create_acls(
                [AclBinding(kind, "harvest.", prefix, *acl)]
            ).values():
                future.result(60)
        yield kafka


@pytest.fixture(params=["transactional", "idempotent"])
def sink(request: pytest.FixtureRequest, secure: SecureKafka) -> Iterator[Sink]:
    config = secure.config(USER, PASSWORD)
    made: Sink
    if request.param == "idempotent":
        made = IdempotentSink(config)
    else:
        made = TransactionalSink(config, base_config=config, name="x", checkpoint_topic=OPEN)
    yield made
    made.close()


@pytest.mark.parametrize("topic", [READ_ONLY, HIDDEN])
def test_rows_of_a_topic_without_the_right_to_write_are_refused(sink: Sink, topic: str) -> None:
    good, bad = Row(1, OPEN, b"k", b"v"), Row(2, topic, b"k", b"v")
    sink.open(lambda: True)
    failure = sink.deliver([good, bad], "c")
    assert failure is not None
    if not failure.errors:  # a report may be lost, once; the row counts as undelivered
        assert failure.undelivered == frozenset({2})
        sink.open(lambda: True)
        failure = sink.deliver([good, bad], "c")
        assert failure is not None
    assert failure.refused == {2}
    assert failure.errors[2]
    sink.open(lambda: True)
    assert sink.deliver([good], "c") is None


def test_rows_are_told_by_name_whatever_the_transaction_was_doing(secure: SecureKafka) -> None:
    config = secure.config(USER, PASSWORD)
    sink = TransactionalSink(config, base_config=config, name="y", checkpoint_topic=OPEN)
    rows = [Row(1, OPEN, b"k", b"v"), Row(2, READ_ONLY, b"k", b"v")]
    for _ in range(10):  # in half of the cases the position is under way when the broker refuses
        sink.open(lambda: True)
        failure = sink.deliver(rows, "c")
        assert failure is not None
        assert failure.refused == {2}
    sink.close()

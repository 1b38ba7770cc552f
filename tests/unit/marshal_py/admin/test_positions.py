"""What is made of Kafka's answers about offsets, by an admin client that the test answers for."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin.positions import (
    Extent,
    Key,
    Target,
    offsets_at,
    resolve,
    write_committed_offsets,
)


def done(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


def test_a_commit_that_one_partition_refuses_has_failed() -> None:
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    parts = [SimpleNamespace(error=None), SimpleNamespace(error=error)]

    def alter(asked: list[Any], request_timeout: float) -> dict[str, Future[Any]]:
        (group,) = asked
        wanted = [(at.topic, at.partition, at.offset) for at in group.topic_partitions]
        assert (group.group_id, wanted) == ("g", [("t", 0, 5), ("t", 1, 7)])
        return {"g": done(SimpleNamespace(topic_partitions=parts))}

    admin: Any = SimpleNamespace(alter_consumer_group_offsets=alter)
    with pytest.raises(KafkaException) as raised:
        write_committed_offsets(admin, "g", {("t", 1): 7, ("t", 0): 5}, 60.0)
    assert raised.value.args[0] is error
    parts[1].error = None
    write_committed_offsets(admin, "g", {("t", 1): 7, ("t", 0): 5}, 60.0)


def test_after_the_last_message_there_is_none_so_young() -> None:
    def list_offsets(asked: dict[Any, Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return {at: done(SimpleNamespace(offset=-1 if at.partition else 4)) for at in asked}

    admin: Any = SimpleNamespace(list_offsets=list_offsets)
    times: dict[Key, int] = {("t", 0): 1_000, ("t", 1): 2_000}
    found = offsets_at(admin, times, 60.0)
    assert found == {("t", 0): 4, ("t", 1): None}
    ends = [resolve(key, Target("time", 1), 0, Extent(0, 9), at) for key, at in found.items()]
    assert ends == [(4, False), (9, False)]

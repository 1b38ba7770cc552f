"""Where topics end: partitions without a leader, slots, and how long anybody waits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from marshal_py.admin.connection import Connection
from marshal_py.dashboard import topic_ends as module
from marshal_py.dashboard.topic_ends import TopicEnds
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.slots import slots_cell


class Admin:
    """Knows topics of two partitions that end at 10 and 20; some have no leader."""

    def __init__(self) -> None:
        self.leaderless: set[tuple[str, int]] = set()
        self.heals = False
        self.waits_s: set[float] = set()
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        self.listed = {
            "orders": SimpleNamespace(error=None, partitions={0: 0, 1: 1}),
            "gone": SimpleNamespace(error=error, partitions={0: 0}),
        }

    def list_topics(self, timeout: float) -> Any:
        self.waits_s.add(timeout)
        if self.heals:
            self.leaderless.clear()
        return SimpleNamespace(topics=self.listed)

    def list_offsets(
        self, asked: dict[TopicPartition, Any], request_timeout: float
    ) -> dict[TopicPartition, Any]:
        self.waits_s.add(request_timeout)
        return {part: SimpleNamespace(result=lambda p=part: self.end(p)) for part in asked}

    def end(self, part: TopicPartition) -> Any:
        if (part.topic, part.partition) in self.leaderless:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return SimpleNamespace(offset=10 * (part.partition + 1))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    found = Admin()
    monkeypatch.setattr(module, "admin_client", lambda _: found)
    return found


def ends(timeout_s: float = 10.0) -> TopicEnds:
    return TopicEnds(replace(Connection.of_servers("nowhere:1"), timeout_s=timeout_s))


def test_a_partition_without_a_leader_has_no_end_and_the_others_have(admin: Admin) -> None:
    admin.leaderless.add(("orders", 0))
    assert ends().ask({"orders", "gone", "never made"}) == {"orders": {1: 20}}


def test_slots_end_where_their_partition_does(admin: Admin) -> None:
    cell = slots_cell("orders", 1, 4)
    assert ends().ask({cell})[cell] == {0: 20, 1: 20, 2: 20, 3: 20}
    admin.leaderless.add(("orders", 1))
    assert cell not in ends().ask({cell})


def test_nothing_is_asked_of_nobody(admin: Admin) -> None:
    assert ends().ask(set()) == {}
    assert admin.waits_s == set()


@pytest.mark.parametrize(("timeout_s", "wait_s"), [(2.0, 2.0), (60.0, 5.0)])
def test_nobody_is_waited_for_longer_than_five_seconds(
    admin: Admin, timeout_s: float, wait_s: float
) -> None:
    ends(timeout_s).ask({"orders"})
    assert admin.waits_s == {wait_s}


def test_a_log_is_lost_when_one_of_its_partitions_does_not_answer_twice(admin: Admin) -> None:
    ends().ask_log(3)
    admin.leaderless = {("__marshal", 1), ("__marshal", 2)}
    with pytest.raises(BrokerUnavailable, match=r"__marshal-1 and 1 other partition$"):
        ends().ask_log(3)
    admin.heals = True
    ends().ask_log(3)

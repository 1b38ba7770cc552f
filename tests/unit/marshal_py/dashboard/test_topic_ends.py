"""Where topics end: partitions without a leader, slots, and how long anybody waits."""

from __future__ import annotations

from concurrent.futures import Future
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

UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


class Admin:
    """Knows topics of two partitions that end at 10 and 20; some have no leader."""

    def __init__(self) -> None:
        self.leaderless: set[tuple[str, int]] = set()
        self.mute: set[tuple[str, int]] = set()
        """These do not answer, though they have a leader."""
        self.heals = False
        self.waits_s: set[float] = set()
        error = KafkaError(UNKNOWN)
        self.listed = {
            "gone": SimpleNamespace(error=error, partitions={0: SimpleNamespace(leader=1)}),
        }

    def list_topics(self, timeout: float) -> Any:
        self.waits_s.add(timeout)
        if self.heals:
            self.mute.clear()
        leaders = {p: SimpleNamespace(leader=self.leader("orders", p)) for p in (0, 1)}
        self.listed["orders"] = SimpleNamespace(error=None, partitions=leaders)
        return SimpleNamespace(topics=self.listed)

    def describe_topics(self, asked: Any, request_timeout: float) -> dict[str, Future[Any]]:
        self.waits_s.add(request_timeout)
        found: dict[str, Future[Any]] = {name: Future() for name in asked.topic_names}
        for name, answer in found.items():
            code = KafkaError.TOPIC_AUTHORIZATION_FAILED if name == "secret" else UNKNOWN
            answer.set_exception(KafkaException(KafkaError(code)))
        return found

    def leader(self, topic: str, partition: int) -> int:
        return -1 if (topic, partition) in self.leaderless else 1

    def list_offsets(
        self, asked: dict[TopicPartition, Any], request_timeout: float
    ) -> dict[TopicPartition, Any]:
        self.waits_s.add(request_timeout)
        """Who asks for one without a leader gets no answer about any, as from librdkafka."""
        fails = any((part.topic, part.partition) in self.leaderless for part in asked)
        return {part: SimpleNamespace(result=lambda p=part: self.end(p, fails)) for part in asked}

    def end(self, part: TopicPartition, fails: bool) -> Any:
        if fails or (part.topic, part.partition) in self.mute:
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
    asking = ends()
    assert asking.ask({"orders", "gone", "never made"}) == {"orders": {1: 20}}
    assert asking.offline == {("orders", 0)}
    admin.leaderless.add(("orders", 1))
    assert ends().ask({"orders"}) == {"orders": {}}, "it exists"


@pytest.mark.parametrize("how", ["leaderless", "mute"])
def test_a_partition_that_lost_its_leader_ends_where_it_did(admin: Admin, how: str) -> None:
    """Nothing comes to it: its lag does not go away, nor do the alerts about it."""
    asking, cell = ends(), slots_cell("orders", 1, 2)
    all_of_them = {"orders": {0: 10, 1: 20}, cell: {0: 20, 1: 20}}
    assert asking.ask({"orders", cell}) == all_of_them
    assert asking.offline == set()
    getattr(admin, how).add(("orders", 1))
    for _ in range(2):
        assert asking.ask({"orders", cell}) == all_of_them
    assert asking.offline == {("orders", 1), (cell, 0), (cell, 1)}
    asking.ask({"gone"})
    assert asking.ask({"orders"}) == {"orders": {0: 10}}, "of what is not asked nothing is kept"


def test_slots_end_where_their_partition_does(admin: Admin) -> None:
    cell = slots_cell("orders", 1, 4)
    assert ends().ask({cell})[cell] == {0: 20, 1: 20, 2: 20, 3: 20}
    admin.leaderless.add(("orders", 1))
    assert ends().ask({cell})[cell] == {}


def test_what_the_brokers_hide_is_told_from_what_does_not_exist(admin: Admin) -> None:
    asking = ends()
    asking.ask({"orders", "secret"})
    assert asking.hidden({"orders", "secret", "later", "leader:x"}) == ["secret"]
    assert asking.hidden({"orders", "leader:x"}) == []
    assert admin.waits_s == {5.0}


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
    admin.mute = {("__marshal", 1), ("__marshal", 2)}
    with pytest.raises(BrokerUnavailable, match=r"__marshal-1 and 1 other partition$"):
        ends().ask_log(3)
    admin.heals = True
    ends().ask_log(3)

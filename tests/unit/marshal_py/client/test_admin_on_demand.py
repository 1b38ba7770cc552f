"""The AdminClient that one process shares: made late, let go of early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client import admin_on_demand as module
from marshal_py.client.admin_on_demand import AdminOnDemand


class Cluster:
    """Counts the clients that were made, and what they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[dict[str, Any]] = []
        self.asked: list[str | None] = []
        self.cluster_id: str | None = "lkc-1"
        self.answers = True
        monkeypatch.setattr(module, "connect", self._connect)

    def _connect(self, _kind: Any, config: dict[str, Any]) -> Any:
        self.made.append(config)
        return SimpleNamespace(list_topics=self._list_topics)

    def _list_topics(self, topic: str | None, timeout: float) -> Any:
        assert 0 < timeout <= module.CONNECT_S
        self.asked.append(topic)
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return SimpleNamespace(cluster_id=self.cluster_id)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_there_is_one_client_however_often_it_is_asked_for(cluster: Cluster) -> None:
    admin = AdminOnDemand({"bootstrap.servers": "x:1"})
    admin.known_topic = "orders"
    assert cluster.made == []
    assert admin.open() is admin.get() is admin.get()
    assert (len(cluster.made), cluster.asked) == (1, ["orders"])
    assert admin.tells_ids


def test_who_rests_lets_go_of_it_unless_it_is_kept(cluster: Cluster) -> None:
    admin = AdminOnDemand({})
    first = admin.get()
    admin.rest()
    second = admin.get()
    assert second is not first
    assert len(cluster.made) == 2
    admin.is_kept = True
    admin.rest()
    assert admin.get() is second
    admin.close()
    assert admin.get() is not second


def test_brokers_that_do_not_answer_are_asked_with_what_there_is(cluster: Cluster) -> None:
    cluster.answers = False
    admin = AdminOnDemand({})
    assert admin.get() is not None
    assert admin.tells_ids


def test_brokers_that_do_not_say_which_cluster_they_are_may_know_ids(cluster: Cluster) -> None:
    cluster.cluster_id = None
    admin = AdminOnDemand({})
    admin.get()
    assert admin.tells_ids


def test_a_cluster_that_knows_no_ids_is_found_out(cluster: Cluster) -> None:
    """To ask it for them would wait for the time-out, each time."""
    cluster.cluster_id = "mockCluster1234"
    admin = AdminOnDemand({})
    admin.get()
    assert not admin.tells_ids


def test_statistics_of_the_users_clients_are_not_of_this_one(cluster: Cluster) -> None:
    kafka = {"bootstrap.servers": "x:1", "statistics.interval.ms": 5_000}
    AdminOnDemand(kafka).open()
    (config,) = cluster.made
    assert "statistics.interval.ms" not in config
    assert config["bootstrap.servers"] == "x:1"
    assert config["topic.metadata.refresh.interval.ms"] == -1

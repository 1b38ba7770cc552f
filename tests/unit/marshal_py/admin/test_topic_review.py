"""What is made of topics that are there already, and of those that are not."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin import topic_review as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_review import TopicReview, create_and_review
from marshal_py.client.topics import plan_topics

CONNECTION = Connection.of_servers("nowhere:1", "log")
PLANS = plan_topics(3, topic="log", snapshot_topic="log.snapshots")


class Cluster:
    """Three brokers, with both topics as they should be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans = [replace(plan, config={}, existed=True) for plan in PLANS]
        self.config = {plan.name: dict(plan.config) for plan in PLANS}
        self.asked: list[dict[str, Any]] = []
        self.founded = 0
        monkeypatch.setattr(module, "create_topics", self._create_topics)
        monkeypatch.setattr(module, "found_log", self._found_log)
        monkeypatch.setattr(module, "admin_client", lambda _: self)

    def _create_topics(self, _config: Any, **asked: Any) -> Any:
        self.asked.append(asked)
        return self.plans

    def _found_log(self, connection: Connection) -> None:
        assert connection is CONNECTION
        self.founded += 1

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        return SimpleNamespace(brokers=dict.fromkeys(range(3)))

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        (resource,) = resources
        settings = {**self.config[resource.name], "other": "1", "none": None}
        answer: Future[Any] = Future()
        answer.set_result({n: SimpleNamespace(value=v) for n, v in settings.items()})
        return {resource: answer}

    def differences(self, **asked: Any) -> list[tuple[str, str | None, str]]:
        """Of both topics: what, as it is, as it should be."""
        reviews, brokers = self.review(**asked)
        assert brokers == 3
        assert not any(review.created for review in reviews)
        return [(d.setting, d.found, d.sound) for review in reviews for d in review.differences]

    def review(
        self, partitions: int | None = None, replication_factor: int | None = None
    ) -> tuple[list[TopicReview], int]:
        return create_and_review(CONNECTION, partitions, replication_factor)

    def change(self, which: int, **changes: Any) -> None:
        self.plans[which] = replace(self.plans[which], **changes)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_topics_that_are_sound_have_no_differences(cluster: Cluster) -> None:
    assert cluster.differences() == []
    assert cluster.founded == 0
    reviews, _ = cluster.review()
    assert [review.config for review in reviews] == [plan.config for plan in PLANS]


def test_more_than_is_needed_is_no_difference(cluster: Cluster) -> None:
    cluster.change(0, replication_factor=5)
    cluster.config["log"]["min.insync.replicas"] = "3"
    cluster.config["log.snapshots"]["max.message.bytes"] = "134217728"
    cluster.config["log.snapshots"]["segment.ms"] = "60000"
    assert cluster.differences() == []


def test_less_than_is_needed_is_one(cluster: Cluster) -> None:
    cluster.change(0, replication_factor=2)
    cluster.config["log"]["min.insync.replicas"] = "1"
    cluster.config["log"]["retention.ms"] = "604800000"
    cluster.config["log.snapshots"]["max.message.bytes"] = "4194304"
    del cluster.config["log.snapshots"]["cleanup.policy"]
    assert cluster.differences() == [
        ("replication_factor", "2", "3"),
        ("min.insync.replicas", "1", "2"),
        ("retention.ms", "604800000", "-1"),
        ("cleanup.policy", None, "compact"),
        ("max.message.bytes", "4194304", str(32 * 1024 * 1024)),
    ]


def test_a_topic_has_the_partitions_that_it_has_unless_others_were_asked_for(
    cluster: Cluster,
) -> None:
    cluster.change(0, partitions=4)
    assert cluster.differences() == [("partitions", "8", "4")], "of the snapshots"
    cluster.change(1, partitions=4)
    assert cluster.differences() == []
    assert cluster.differences(partitions=6) == [("partitions", "4", "6")] * 2
    assert [asked["partitions"] for asked in cluster.asked] == [8, 8, 6]


def test_a_log_that_is_new_gets_its_genesis(cluster: Cluster) -> None:
    cluster.plans = list(PLANS)
    reviews, _ = cluster.review()
    assert cluster.founded == 1
    assert [(r.created, r.partitions, r.config) for r in reviews] == [
        (True, 8, plan.config) for plan in PLANS
    ]
    cluster.plans[0] = replace(PLANS[0], existed=True)  # the snapshots alone were missing
    cluster.review()
    assert cluster.founded == 1

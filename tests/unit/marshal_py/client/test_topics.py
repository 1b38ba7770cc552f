"""Creating topics while the cluster is not complete yet, and when it says no."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py import AccessDenied, BrokerUnavailable, ConfigurationError
from marshal_py.client import topics as admin
from marshal_py.client.topics import TopicPlan, create_topics, ensure_topics, plan_topics


class StubAdmin:
    """Answers each creation with the next of `answers`: an error code, or None for success."""

    def __init__(self, answers: list[int | None]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.waits_s: list[float] = []

    def list_topics(self, name: str | None = None, **_: Any) -> Any:
        part = type("P", (), {"leader": 0, "replicas": [0]})()  # a broker may be number 0
        topic = type("T", (), {"error": None, "partitions": dict.fromkeys(range(8), part)})()
        topics = {} if name is None else {name: topic}
        return type("M", (), {"brokers": {1: None}, "topics": topics})()

    def create_topics(
        self, topics: list[Any], *, operation_timeout: float, request_timeout: float
    ) -> dict[str, Future[None]]:
        name = topics[0].topic
        self.waits_s += [operation_timeout, request_timeout]
        self.asked.append(name)
        future: Future[None] = Future()
        code = self.answers.pop(0)
        if code is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(KafkaError(code)))
        return {name: future}


def with_answers(monkeypatch: pytest.MonkeyPatch, *answers: int | None) -> StubAdmin:
    stub = StubAdmin(list(answers))
    monkeypatch.setattr(admin, "connect", lambda *_: stub)
    return stub


def test_a_broker_that_is_still_joining_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = with_answers(
        monkeypatch, KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.NOT_CONTROLLER, None, None
    )
    plans = create_topics("x:1", topic="t")
    assert stub.asked == ["t", "t", "t", "t.snapshots"]
    assert not any(plan.existed for plan in plans)


def test_a_broker_that_never_joins_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with_answers(monkeypatch, *[KafkaError.INVALID_REPLICATION_FACTOR] * 100)
    with pytest.raises(ConfigurationError, match="the brokers refused"):
        create_topics("x:1", topic="t", timeout_s=0.2)


def test_a_topic_that_exists_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with_answers(monkeypatch, KafkaError.TOPIC_ALREADY_EXISTS, None)
    assert [plan.existed for plan in create_topics("x:1", topic="t")] == [True, False]


def test_what_cannot_work_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = with_answers(monkeypatch, KafkaError.INVALID_CONFIG)
    with pytest.raises(ConfigurationError):
        create_topics("x:1", topic="t")
    assert stub.asked == ["t"]


@pytest.mark.parametrize("last", [{}, {7: type("P", (), {"leader": -1, "replicas": [1]})()}])
def test_every_partition_is_waited_for_until_it_has_a_leader(
    monkeypatch: pytest.MonkeyPatch, last: dict[int, Any]
) -> None:
    stub = with_answers(monkeypatch, None, None)
    complete = stub.list_topics
    looks = 0

    def list_topics(name: str | None = None, **more: Any) -> Any:
        nonlocal looks
        found = complete(name, **more)
        if name == "t":
            looks += 1
            if looks < 3:
                first = {p: part for p, part in found.topics["t"].partitions.items() if p < 7}
                found.topics["t"].partitions = first | last
        return found

    monkeypatch.setattr(stub, "list_topics", list_topics)
    assert create_topics("x:1", topic="t")[0].partitions == 8
    assert looks == 3


def test_who_may_create_a_topic_and_not_see_it_is_told_which_right_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = with_answers(monkeypatch, None, None)
    complete = stub.list_topics

    def list_topics(name: str | None = None, **more: Any) -> Any:
        found = complete(name, **more)
        if name is not None:
            found.topics[name].partitions = {}
            found.topics[name].error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return found

    monkeypatch.setattr(stub, "list_topics", list_topics)
    with pytest.raises(AccessDenied, match="lacks Describe on topic 't'"):
        create_topics("x:1", topic="t", timeout_s=0.1)


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED]
)
def test_who_may_not_create_topics_is_told_which_rights_are_missing(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with_answers(monkeypatch, code)
    with pytest.raises(AccessDenied, match="lacks Create and Describe on topic 't'"):
        create_topics("x:1", topic="t")


@pytest.mark.parametrize(("snapshots", "made"), [("s", ["t", "s"]), (None, ["t"])])
def test_the_topics_that_are_missing_are_created(
    monkeypatch: pytest.MonkeyPatch, snapshots: str | None, made: list[str]
) -> None:
    stub = with_answers(monkeypatch, None, None)
    ensure_topics("x:1", topic="t", snapshot_topic=snapshots, timeout_s=5.0)
    assert stub.asked == made
    assert all(wait_s <= 5.0 for wait_s in stub.waits_s)


@pytest.mark.parametrize(("timeout_s", "least", "most"), [(30.0, 2.0, 30.0), (0.0, 1.0, 1.0)])
def test_a_creation_has_the_time_that_is_left_and_a_second_at_least(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, least: float, most: float
) -> None:
    stub = with_answers(monkeypatch, None, None)
    create_topics("x:1", topic="t", timeout_s=timeout_s)
    assert len(stub.waits_s) == 4
    assert all(least <= wait_s <= most for wait_s in stub.waits_s)


@pytest.mark.parametrize("partitions", [0, -1])
def test_a_topic_has_a_partition(partitions: int) -> None:
    with pytest.raises(ConfigurationError, match=f"partitions = {partitions} must be 1 or more"):
        plan_topics(3, partitions=partitions)


@pytest.mark.parametrize(("replicas", "brokers"), [(0, 3), (4, 3)])
def test_there_are_not_more_replicas_than_brokers(replicas: int, brokers: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{replicas} must be 1 to {brokers}, the number"):
        plan_topics(brokers, replication_factor=replicas)


def test_the_settings_of_both_topics() -> None:
    safe = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    assert plan_topics(3, topic="t", snapshot_topic="s", partitions=2, replication_factor=1) == [
        TopicPlan(
            "t",
            2,
            1,
            {
                **safe,
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "message.timestamp.type": "LogAppendTime",
            },
        ),
        TopicPlan(
            "s",
            2,
            1,
            {
                **safe,
                "cleanup.policy": "compact",
                "segment.ms": "3600000",
                "max.message.bytes": "33554432",
            },
        ),
    ]


def test_a_topic_that_is_listed_without_partitions_says_nothing_of_how_many_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = with_answers(monkeypatch, None)
    listed = stub.list_topics

    def list_topics(name: str | None = None, **more: Any) -> Any:
        found = listed(name or "t", **more)
        if name is None:
            found.topics["t"].partitions = {}
        return found

    monkeypatch.setattr(stub, "list_topics", list_topics)
    assert [plan.partitions for plan in create_topics("x:1", topic="t")] == [8, 8]


def test_snapshots_have_as_many_partitions_as_the_topic_that_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = with_answers(monkeypatch, None)
    listed, made = stub.list_topics, stub.create_topics
    asked_for: list[int] = []

    def list_topics(name: str | None = None, **more: Any) -> Any:
        found = listed(name or "t", **more)
        if name in (None, "t"):
            found.topics["t"].partitions = dict(list(found.topics["t"].partitions.items())[:3])
        return found

    def create(topics: list[Any], **more: Any) -> Any:
        asked_for.extend(topic.num_partitions for topic in topics)
        return made(topics, **more)

    monkeypatch.setattr(stub, "list_topics", list_topics)
    monkeypatch.setattr(stub, "create_topics", create)
    coordination, _ = create_topics("x:1", topic="t")
    assert (coordination.existed, coordination.partitions) == (True, 3)
    assert (stub.asked, asked_for) == (["t.snapshots"], [3])


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_one_broker_may_fail_where_there_are_three(
    brokers: int, replicas: str, in_sync: str
) -> None:
    for plan in admin.plan_topics(brokers):
        assert str(plan.replication_factor) == replicas
        assert plan.config["min.insync.replicas"] == in_sync
        assert plan.config["unclean.leader.election.enable"] == "false"


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT])
def test_brokers_that_do_not_answer_refuse_nothing(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with_answers(monkeypatch, code, code, code)
    with pytest.raises(BrokerUnavailable, match="no answer from the brokers"):
        create_topics("x:1", topic="t", timeout_s=0.0)


def test_what_was_found_is_told_with_the_settings_that_were_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_answers(monkeypatch, None, KafkaError.TOPIC_ALREADY_EXISTS)
    made, found = create_topics("x:1", topic="t")
    assert (made.existed, made.config["cleanup.policy"]) == (False, "delete")
    assert (found.existed, found.partitions, found.config) == (True, 8, {})


def test_partitions_that_get_no_leader_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = with_answers(monkeypatch, None)
    listed = stub.list_topics

    def list_topics(name: str | None = None, **more: Any) -> Any:
        found = listed(name, **more)
        for topic in found.topics.values():
            topic.partitions = {0: type("P", (), {"leader": -1, "replicas": [1]})()}
        return found

    monkeypatch.setattr(stub, "list_topics", list_topics)
    with pytest.raises(BrokerUnavailable, match="'t' has partitions without a leader"):
        create_topics("x:1", topic="t", partitions=1, with_snapshots=False, timeout_s=0.0)


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT])
def test_a_broker_that_goes_away_for_a_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As it is restarted: whoever creates topics has time until its own time-out."""
    stub = with_answers(monkeypatch, code, KafkaError.TOPIC_ALREADY_EXISTS)
    complete, fails = stub.list_topics, [code, code]

    def list_topics(name: str | None = None, **more: Any) -> Any:
        if name is not None and fails:
            raise KafkaException(KafkaError(fails.pop()))
        return complete(name, **more)

    monkeypatch.setattr(stub, "list_topics", list_topics)
    (found,) = create_topics("x:1", topic="t", with_snapshots=False)
    assert (found.partitions, stub.asked, fails) == (8, ["t", "t"], [])


def test_what_asking_again_does_not_mend_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = with_answers(monkeypatch, None)
    complete = stub.list_topics
    asked: list[str] = []

    def list_topics(name: str | None = None, **more: Any) -> Any:
        if name is not None:
            asked.append(name)
            raise KafkaException(KafkaError(KafkaError._AUTHENTICATION))
        return complete(name, **more)

    monkeypatch.setattr(stub, "list_topics", list_topics)
    with pytest.raises(ConfigurationError, match="the brokers refused"):
        create_topics("x:1", topic="t", with_snapshots=False)
    assert asked == ["t"]

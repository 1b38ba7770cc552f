"""What is made of Kafka's answers about offsets, by an admin client that the test answers for."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from marshal_py.admin.positions import (
    Extent,
    Key,
    Target,
    committed_offsets,
    offsets_at,
    partitions_of,
    resolve,
    target_of,
    write_committed_offsets,
)
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    GroupInUse,
    InvalidArgument,
    TopicMissing,
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


@pytest.mark.parametrize(
    ("to", "target"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), Target("time", 1_767_225_600_000)),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), Target("time", 0)),
        (0, Target("offset", 0)),
        (2**63 - 1, Target("offset", 2**63 - 1)),
        ("17", Target("offset", 17)),
        ("+17", Target("shift", 17)),
        ("-17", Target("shift", -17)),
        ("earliest", Target("earliest")),
        ("latest", Target("latest")),
        (Target("committed", 5), Target("committed", 5)),
    ],
)
def test_what_a_position_means(to: Any, target: Target) -> None:
    assert target_of(to) == target


@pytest.mark.parametrize(
    "to",
    [*(-1, 2**63, True, 1.5, "", "now", "+", "1e3", str(2**63), None), datetime.min],
)
def test_what_is_no_position(to: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be an offset"):
        target_of(to)


THERE = Extent(10, 20)


@pytest.mark.parametrize(
    ("target", "before", "after"),
    [
        (Target("earliest"), 15, (10, False)),
        (Target("latest"), 15, (20, False)),
        (Target("offset", 10), 15, (10, False)),
        (Target("offset", 20), 15, (20, False)),
        (Target("shift", -2), 15, (13, False)),
        (Target("shift", -9), 15, (10, True)),
        (Target("shift", 9), 15, (20, True)),
        (Target("shift", 2), -1, (12, False)),
        (Target("committed", 5), -1, (10, True)),
        (Target("committed", 99), -1, (20, True)),
    ],
)
def test_what_a_target_comes_to(target: Target, before: int, after: tuple[int, bool]) -> None:
    assert resolve(("t", 0), target, before, THERE, None) == after


@pytest.mark.parametrize("offset", [9, 21])
def test_an_offset_without_a_message_is_no_position(offset: int) -> None:
    with pytest.raises(InvalidArgument, match=r"t/0: offset .* 10 to 20"):
        resolve(("t", 0), Target("offset", offset), 15, THERE, None)


def test_of_what_is_no_topic_there_are_offsets_alone() -> None:
    assert resolve(("x", 0), Target("offset", 7), -1, None, None) == (7, False)
    for target in (Target("latest"), Target("shift", 1), Target("time", 1)):
        with pytest.raises(InvalidArgument, match="no such partition in Kafka"):
            resolve(("x", 0), target, 5, None, None)


class Silent(Future[Any]):
    """Nobody answers; nobody waits for longer than asked for."""

    def result(self, timeout: float | None = None) -> Any:
        assert timeout is not None
        assert timeout <= 1.0
        raise TimeoutError


class Groups:
    """An admin client that knows one consumer group of Kafka's."""

    def __init__(self, state: ConsumerGroupState = ConsumerGroupState.EMPTY, *who: str) -> None:
        self.about: Any = SimpleNamespace(
            state=state, members=[SimpleNamespace(client_id=name) for name in who]
        )
        self.offsets: Any = SimpleNamespace(
            topic_partitions=[
                SimpleNamespace(topic="t", partition=0, offset=0),
                SimpleNamespace(topic="t", partition=1, offset=-1001),
                SimpleNamespace(topic="t", partition=2, offset=7),
            ]
        )

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> Any:
        return {name: answered(self.about) for name in names}

    def list_consumer_group_offsets(self, asked: list[Any], request_timeout: float) -> Any:
        return {asked[0].group_id: answered(self.offsets)}

    def committed(self, timeout_s: float = 60.0, *, even_if_active: bool = False) -> Any:
        admin: Any = self
        return committed_offsets(admin, "k", timeout_s, even_if_active=even_if_active)


def answered(answer: Any) -> Future[Any]:
    if answer is None:
        return Silent()
    future = done(answer)
    if isinstance(answer, int):
        future = Future()
        future.set_exception(KafkaException(KafkaError(answer)))
    return future


def test_what_a_group_has_not_committed_is_not_where_it_is() -> None:
    assert Groups().committed() == {("t", 0): 0, ("t", 2): 7}


@pytest.mark.parametrize(
    ("state", "who"),
    [
        (ConsumerGroupState.STABLE, ("a", "b")),
        (ConsumerGroupState.PREPARING_REBALANCING, ()),
        (ConsumerGroupState.EMPTY, ("a",)),
    ],
)
def test_a_group_that_would_go_on_committing_is_in_use(
    state: ConsumerGroupState, who: tuple[str, ...]
) -> None:
    groups = Groups(state, *who)
    with pytest.raises(GroupInUse, match=", ".join(who) or "preparing_rebalancing"):
        groups.committed()
    assert len(groups.committed(even_if_active=True)) == 2


def test_a_group_that_kafka_does_not_know_has_committed_nothing() -> None:
    unknown = Groups()
    unknown.about = unknown.offsets = KafkaError.GROUP_ID_NOT_FOUND
    assert unknown.committed() == {}


def test_a_coordinator_that_does_not_answer_is_not_waited_for_for_long() -> None:
    silent = Groups()
    silent.offsets = None
    with pytest.raises(BrokerUnavailable, match="coordinator does not answer"):
        silent.committed(1.0)
    silent.offsets = KafkaError.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(BrokerUnavailable):
        silent.committed()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (None, TopicMissing),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.TOPIC_EXCEPTION, TopicMissing),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.LEADER_NOT_AVAILABLE, BrokerUnavailable),
    ],
)
def test_a_topic_that_is_hidden_is_not_missing(code: int | None, kind: type[Exception]) -> None:
    error = None if code is None else KafkaError(code)
    found = SimpleNamespace(error=error, partitions={})
    admin: Any = SimpleNamespace(list_topics=lambda *_, **__: SimpleNamespace(topics={"t": found}))
    with pytest.raises(kind):
        partitions_of(admin, {}, "t", 1.0)

"""How far groups are behind, and what is said of a partition that several members share."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import lag as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.lag import (
    PartitionLag,
    _together,
    hidden_topics,
    measure_lag,
    require_online,
    require_readable,
)
from marshal_py.errors import AccessDenied, BrokerUnavailable
from marshal_py.protocol.messages import ClaimingPartition, ClaimingRange
from marshal_py.protocol.subscription import Subscription
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat


def slot(number: int, position: int | None, lag: int | None, holder: str | None) -> PartitionLag:
    liveness = None if holder is None else "stale" if holder == "dead" else "fresh"
    return PartitionLag(
        "g", "t", 0, position, 0, 100, lag, holder, liveness, position is not None, 3, number
    )


def test_the_slowest_slot_is_what_counts() -> None:
    row = _together([slot(0, 70, 30, "b"), slot(1, 40, 60, "a"), slot(2, 90, 10, "b")])
    assert (row.position, row.lag, row.holder, row.liveness) == (40, 60, "a, b", "fresh")
    assert (row.claimed, row.slots, row.slot) == (True, 3, None)


def test_what_one_slot_does_not_tell_is_not_known() -> None:
    row = _together([slot(0, 70, 30, "a"), slot(1, None, None, "a"), slot(2, 90, 10, "a")])
    assert (row.position, row.lag, row.holder) == (None, None, "a")
    row = _together([slot(0, None, None, None), slot(1, 40, 60, None)])
    assert row.claimed, "somebody has had it"
    assert not _together([slot(0, None, None, None), slot(1, None, None, None)]).claimed


def test_a_slot_that_nobody_holds_or_a_dead_member_shows() -> None:
    row = _together([slot(0, 70, 30, "a"), slot(1, 40, 60, None), slot(2, 90, 10, "dead")])
    assert (row.position, row.lag, row.holder, row.liveness) == (40, 60, None, "stale")


class Kafka:
    """Topics t and u, each with one partition that has the messages 10 to 99 (then: to 49)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = {"t": None, "u": None, "orders-eu": None}
        self.hidden: dict[str, int] = {}
        self.offline: set[str] = set()
        self.asked: set[tuple[str, int]] = set()
        self.at_ms: int | None = None
        monkeypatch.setattr(module, "admin_client", lambda _: self)
        monkeypatch.setattr(module, "offset_ranges", self._offset_ranges)

    def _offset_ranges(
        self, _admin: Any, keys: set[tuple[str, int]], _timeout_s: float, at_ms: int | None
    ) -> dict[tuple[str, int], tuple[int, int]]:
        self.asked, self.at_ms = keys, at_ms
        return dict.fromkeys(keys, (10, 100 if at_ms is None else 50))

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        return SimpleNamespace(
            topics={
                topic: SimpleNamespace(
                    error=None,
                    partitions={0: SimpleNamespace(leader=-1 if topic in self.offline else 3)},
                )
                for topic in self.topics
            }
        )

    def describe_topics(self, asked: Any, request_timeout: float) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = {}
        for name in asked.topic_names:
            found[name] = Future()
            code = self.hidden.get(name, KafkaError.UNKNOWN_TOPIC_OR_PART)
            found[name].set_exception(KafkaException(KafkaError(code)))
        return found


CONNECTION = Connection.of_servers("nowhere:1", "log")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


def a_log(position: int | None = None, *, wants: Subscription | None = None) -> LogByHand:
    """Of a member that wants topics, and has claimed t/0 if it has a position."""
    log = LogByHand()
    wanted = b"" if wants is None else wants.encode()
    log.write(heartbeat("a", 0, instance_id="a1", membership=1, member_metadata=wanted))
    if position is not None:
        epoch = log.write(ClaimingPartition(2, "a", "a1", "g", 1, "t", 0, 1_000, -1))
        log.write(heartbeat("a", 2, {epoch: position}, instance_id="a1"))
    return log


def lag_of(log: LogByHand, **how: Any) -> list[tuple[str, int | None, int | None, bool]]:
    found = measure_lag(CONNECTION, log.view(), **how)
    return [(row.topic, row.position, row.lag, row.claimed) for row in found]


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize(
    ("position", "lag"), [(0, 90), (5, 90), (10, 90), (40, 60), (100, 0), (120, 0)]
)
def test_messages_that_were_deleted_are_waited_for_by_nobody(position: int, lag: int) -> None:
    assert lag_of(a_log(position)) == [("t", position, lag, True)]


def test_at_a_moment_what_was_deleted_since_counts(kafka: Kafka) -> None:
    view = a_log(5).view()
    view.at_ms = 1_000
    (row,) = measure_lag(CONNECTION, view)
    assert (row.next_offset, row.lag, kafka.at_ms) == (50, 45, 1_000)


@pytest.mark.usefixtures("kafka")
def test_what_is_wanted_and_was_never_claimed_has_no_lag_that_is_known() -> None:
    wants = Subscription(frozenset({"u", "no such topic"}), "orders-.*")
    assert lag_of(a_log(40, wants=wants)) == [
        ("orders-eu", None, None, False),
        ("t", 40, 60, True),
        ("u", None, None, False),
    ]
    part = Subscription(frozenset(), "orders")
    assert lag_of(a_log(wants=part)) == [], "a pattern is of the whole name"


def test_a_name_that_looks_like_a_pattern_is_a_name(kafka: Kafka) -> None:
    wants = Subscription(frozenset({"/(/", "/u/", "/.*/", "u"}))
    assert lag_of(a_log(wants=wants)) == [("u", None, None, False)]
    assert kafka.asked == {("u", 0)}


@pytest.mark.usefixtures("kafka")
def test_what_a_member_says_that_it_consumes_is_more_than_a_lock() -> None:
    t, u = measure_lag(CONNECTION, a_log(40, wants=Subscription(frozenset({"u"}))).view())
    assert (t.topic, t.wanted, u.topic, u.wanted) == ("t", False, "u", True)


def test_of_one_topic_no_other_is_asked_about(kafka: Kafka) -> None:
    log = a_log(40, wants=Subscription(frozenset({"u"})))
    assert [row[0] for row in lag_of(log, topic="u")] == ["u"]
    assert kafka.asked == {("u", 0)}


@pytest.mark.usefixtures("kafka")
def test_of_a_partition_that_is_shared_by_ranges_each_range_that_is_not_done_counts() -> None:
    log = LogByHand()
    log.write(ClaimingRange(2, "a", "a1", "g", 0, "t", 0, 1_000, 20, 10))
    log.write(ClaimingRange(2, "b", "b1", "g", 0, "t", 0, 1_000, 20, 10))
    (row,) = measure_lag(CONNECTION, log.view())
    assert (row.position, row.lag, row.open_ranges, row.holder) == (20, 80, 2, "a, b")


def test_a_partition_without_a_leader_hides_no_other(kafka: Kafka) -> None:
    kafka.offline = {"t"}
    view = a_log(40, wants=Subscription(frozenset({"u"}))).view()
    rows = t, u = measure_lag(CONNECTION, view)
    assert kafka.asked == {("u", 0)}, "of a request for both, nothing would come back"
    assert (t.offline, t.position, t.next_offset, t.lag, t.holder) == (True, 40, None, None, "a")
    assert (u.offline, u.next_offset) == (False, 100)
    with pytest.raises(BrokerUnavailable, match="no leader for t/0: how far"):
        require_online(rows)
    require_online([u])
    # Nothing comes to it meanwhile; of others, what was known earlier says nothing.
    t, u = measure_lag(CONNECTION, view, last={("t", 0): (0, 70), ("u", 0): (0, 70)})
    assert (t.offline, t.next_offset, t.lag, u.next_offset) == (True, 70, 30, 100)
    require_online([t, u])


def test_of_many_partitions_without_a_leader_the_first_are_named() -> None:
    rows = [PartitionLag("g", "t", p, 5, None, None, None, None, None, True) for p in range(7)]
    with pytest.raises(BrokerUnavailable, match="t/0, t/1, t/2, t/3, t/4 and 2 more: "):
        require_online(rows)


def test_the_ranges_of_a_partition_without_a_leader_are_told(kafka: Kafka) -> None:
    kafka.offline = {"t"}
    log = LogByHand()
    log.write(ClaimingRange(2, "a", "a1", "g", 0, "t", 0, 1_000, 20, 10))
    (row,) = measure_lag(CONNECTION, log.view())
    assert (row.position, row.lag, row.open_ranges, row.most_granted) == (20, None, 1, 1)


def test_a_topic_that_is_hidden_is_told_and_one_that_does_not_exist_yet_is_none(
    kafka: Kafka,
) -> None:
    """Its lag would be missing, and pass for none."""
    log = a_log(40, wants=Subscription(frozenset({"secret", "later"}), "se.*"))
    view = log.view()
    require_readable(CONNECTION, view)
    kafka.hidden["secret"] = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert hidden_topics(CONNECTION, view, lock=threading.Lock()) == ["secret"]
    with pytest.raises(AccessDenied, match="Describe on topic 'secret'"):
        require_readable(CONNECTION, view)
    require_readable(CONNECTION, view, topic="later")
    del kafka.topics["t"]
    kafka.hidden = {"t": KafkaError.TOPIC_AUTHORIZATION_FAILED}
    with pytest.raises(AccessDenied, match="topic 't'"):
        require_readable(CONNECTION, view, topic="t")

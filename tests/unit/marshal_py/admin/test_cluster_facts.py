"""What `marshal doctor` asks a cluster, and what it leaves there, by clients of the test."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import cluster_facts as module
from marshal_py.admin.cluster_checks import ClusterFacts, check_cluster
from marshal_py.admin.cluster_facts import gather_cluster_facts
from marshal_py.admin.connection import Connection
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    LogHole,
    PartitionCountChanged,
    SnapshotMismatch,
)
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat

REFUSED = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
SETTINGS = {"bootstrap.servers": "b:9092", "sasl.username": "app"}


def done(answer: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


class Cluster:
    """Brokers 2 and 1, with both topics; their clock goes on by 1/8 s with each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.log = LogByHand()
        self.hole: Exception | None = None
        self.errors: dict[str, KafkaException] = {}
        """By topic, instead of a description."""
        self.configs: dict[str, Any] = {
            "log": {"message.timestamp.type": "LogAppendTime", "none": None},
            "log.snapshots": {},
            "1": {"log.cleaner.enable": "true"},
        }
        self.topics: set[str] = set()
        """Those that were made."""
        self.fails_to_write = False
        self.produced = 0
        for name in ("time", "boottime_ns", "admin_client", "open_reader", "connect"):
            monkeypatch.setattr(module, name, getattr(self, name, None) or self._time())

    def _time(self) -> Any:
        def monotonic() -> float:
            self.now_s += 0.125  # whole milliseconds
            return self.now_s

        return SimpleNamespace(
            monotonic=monotonic,
            sleep=lambda _: None,
            time_ns=lambda: self.boottime_ns() + 7_000_000_000,
            CLOCK_BOOTTIME=7,
        )

    def boottime_ns(self) -> int:
        return int(self.now_s * 1e9)

    def admin_client(self, config: dict[str, Any], log: Any) -> Any:
        assert config["debug"] == "feature"
        for what in ("MsgVer2", "IdempotentProducer"):
            log.debug("b:9092/1: Enabling feature %s", what)
        return self

    def open_reader(self, _connection: Connection) -> Any:
        if self.hole is not None:
            raise self.hole
        return self.log

    def connect(self, _kind: Any, config: dict[str, Any]) -> Any:
        assert (config["acks"], config["sasl.username"]) == ("1", "app")
        return self

    # The admin client

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        return SimpleNamespace(brokers={2: None, 1: None})

    def poll(self, _timeout_s: float) -> int:
        return 0

    def describe_topics(self, asked: Any, **more: Any) -> dict[str, Any]:
        assert more["include_authorized_operations"]
        (name,) = asked.topic_names
        nodes = [SimpleNamespace(id=1), SimpleNamespace(id=2)]
        parts = [
            SimpleNamespace(id=0, leader=nodes[0], replicas=nodes, isr=nodes[:1]),
            SimpleNamespace(id=1, leader=None, replicas=nodes, isr=[]),
        ]
        read = SimpleNamespace(name="READ")
        found = SimpleNamespace(partitions=parts, authorized_operations=[read])
        return {name: done(self.errors.get(name, found))}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        (resource,) = resources
        found = self.configs[resource.name]
        if isinstance(found, dict):
            found = {name: SimpleNamespace(value=value) for name, value in found.items()}
        return {resource: done(found)}

    def create_topics(self, topics: list[Any], request_timeout: float) -> dict[str, Any]:
        (topic,) = topics
        assert topic.topic.startswith("log.doctor.")
        self.topics.add(topic.topic)
        return {topic.topic: done(None)}

    def delete_topics(self, names: list[str], request_timeout: float) -> dict[str, Any]:
        self.topics -= set(names)
        return {name: done(None) for name in names}

    # The producer

    def produce(self, _name: str, _value: bytes, *, on_delivery: Any) -> None:
        self.produced += 1
        error = KafkaError(KafkaError._MSG_TIMED_OUT) if self.fails_to_write else None
        stamp_ms = int(self.now_s * 1000) - 40
        on_delivery(error, SimpleNamespace(timestamp=lambda: (2, stamp_ms)))

    def flush(self, _timeout_s: float) -> int:
        return 0

    def facts(self, **how: Any) -> ClusterFacts:
        return gather_cluster_facts(Connection(SETTINGS, "log"), **how)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_what_is_there_is_told_as_it_is(cluster: Cluster) -> None:
    listeners = list(module._feature_log.handlers)
    facts = cluster.facts()
    assert (facts.servers, facts.brokers, facts.principal) == ("b:9092", (1, 2), "User:app")
    assert facts.features == frozenset({"MsgVer2", "IdempotentProducer"})
    assert facts.broker_config == {"log.cleaner.enable": "true"}
    assert facts.topic.config == {"message.timestamp.type": "LogAppendTime"}
    assert facts.topic.operations == frozenset({"READ"})
    told = [(p.partition, p.leader, p.replicas, p.in_sync) for p in facts.topic.partitions]
    assert told == [(0, 1, (1, 2), (1,)), (1, -1, (1, 2), ())]
    assert (facts.samples, facts.wall_ahead_ms) == ((), None), "nobody watched"
    assert cluster.log.is_closed
    assert module._feature_log.handlers == listeners, "of each look one would be left"


def test_what_may_not_be_seen_is_not_taken_for_missing(cluster: Cluster) -> None:
    cluster.configs["1"] = cluster.configs["log.snapshots"] = REFUSED
    cluster.errors["log"] = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    facts = cluster.facts(watch_s=1.0)
    assert (facts.topic.denied, facts.topic.missing) == (True, False)
    assert (facts.broker_config, facts.snapshots.config) == (None, None)
    cluster.errors["log"] = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    facts = cluster.facts(watch_s=1.0)
    assert (facts.topic.denied, facts.topic.missing) == (False, True)
    cluster.errors["log"] = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    with pytest.raises(KafkaException):
        cluster.facts()


@pytest.mark.parametrize("kind", [LogHole, BrokerUnavailable, AccessDenied, Truncated])
def test_a_log_that_cannot_be_read_is_a_finding_and_no_end_of_the_look(
    cluster: Cluster, kind: type[Exception]
) -> None:
    cluster.hole = kind("this is why")
    facts = cluster.facts()
    assert (facts.unreadable, facts.mismatches) == ("this is why", ())
    assert (len(facts.topic.partitions), facts.broker_config) == (2, {"log.cleaner.enable": "true"})
    (found,) = [check for check in check_cluster(facts) if check.name == "log"]
    assert (found.level, found.text) == ("error", "cannot be read: this is why")


def test_a_snapshot_of_another_log_is_passed_over(cluster: Cluster) -> None:
    cluster.log = Restarted()
    assert cluster.facts(watch_s=1.0).unreadable == ""
    assert cluster.log.is_closed


def test_a_log_that_was_grown_is_to_be_recovered(cluster: Cluster) -> None:
    cluster.log.partition_count_error = PartitionCountChanged("8 partitions, and were 2")
    facts = cluster.facts()
    found = [check for check in check_cluster(facts) if check.name == "partitions"]
    assert [(c.level, c.subject, c.text, c.fix) for c in found] == [
        (
            *("error", "log", "8 partitions, and were 2"),
            "marshal -b b:9092 topic recover --topic log",
        )
    ], "nor is anything said of the topic of snapshots, which it mends"
    cluster.hole = PartitionCountChanged("16, and were 2")
    facts = cluster.facts()
    assert (facts.partitions_changed, facts.unreadable) == ("16, and were 2", "")


def test_what_snapshots_say_is_told(cluster: Cluster) -> None:
    cluster.log.mismatches.append(SnapshotMismatch("w's snapshot differs"))
    cluster.log.met_other_wire = True
    facts = cluster.facts()
    assert (facts.mismatches, facts.other_wire) == (("w's snapshot differs",), True)


class Restarted(LogByHand):
    """It has to be opened twice."""

    opened = 0

    def open(self, timeout_s: float, *, until_ms: int | None = None) -> None:
        self.opened += 1
        super().open(timeout_s, until_ms=until_ms)

    def history(self, *, events: bool = True) -> Iterator[tuple[list[Any], list[Any]]]:
        if self.opened == 1:
            raise Truncated("log/0 is another log than its snapshot's")
        return super().history(events=events)


class Beating(LogByHand):
    """Each poll after the first brings a record, stamped 30 ms before it came, or `late_ms`."""

    def __init__(self, cluster: Cluster, late_ms: int = 30) -> None:
        super().__init__()
        self._cluster = cluster
        self._late_ms = [30, late_ms]

    def poll(self, timeout_s: float) -> list[Any]:
        if timeout_s:
            self._late_ms.reverse()
            stamp_ms = int(self._cluster.now_s * 1000) - self._late_ms[0]
            self.write(heartbeat("a", self.extent()[0][1], membership=1), stamp_ms)
        return super().poll(timeout_s)


def test_the_brokers_times_are_noted_while_it_watches_and_producers_are_not(
    cluster: Cluster,
) -> None:
    cluster.log = Beating(cluster)
    facts = cluster.facts(watch_s=2.0)
    assert len(facts.samples) >= 10
    assert {(sample.broker, round(sample.delay_ms)) for sample in facts.samples} == {(1, 30)}
    assert facts.wall_ahead_ms == pytest.approx(7_030, abs=1)
    cluster.log = Beating(cluster)
    cluster.configs["log"] = {"message.timestamp.type": "CreateTime"}
    assert cluster.facts(watch_s=2.0).samples == ()


def test_a_record_that_came_late_says_nothing_of_the_wall_clock(cluster: Cluster) -> None:
    cluster.log = Beating(cluster, late_ms=900)
    facts = cluster.facts(watch_s=2.0)
    assert {round(sample.delay_ms) for sample in facts.samples} == {30, 900}
    assert facts.wall_ahead_ms == pytest.approx(7_030, abs=1)


def test_a_probe_leaves_no_topic_behind(cluster: Cluster) -> None:
    cluster.log = Beating(cluster)
    facts = cluster.facts(watch_s=2.0, probe=True)
    assert {(sample.broker, round(sample.delay_ms)) for sample in facts.samples} == {(0, 40)}, (
        "the times of another broker are not compared with these"
    )
    assert cluster.produced == len(facts.samples) > 5
    assert cluster.topics == set()
    cluster.fails_to_write = True
    with pytest.raises(BrokerUnavailable, match="nothing could be written to the scratch topic"):
        cluster.facts(probe=True)
    assert cluster.topics == set()


def test_brokers_have_two_names_and_a_machine_may_have_no_clock_that_counts_its_sleep(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.facts().counts_sleep
    known = vars(cluster._time())
    without = {name: its for name, its in known.items() if name != "CLOCK_BOOTTIME"}
    monkeypatch.setattr(module, "time", SimpleNamespace(**without))
    facts = gather_cluster_facts(Connection({"metadata.broker.list": "b:9092"}, "log"))
    assert (facts.servers, facts.principal) == ("b:9092", "User:NAME")
    assert not facts.counts_sleep

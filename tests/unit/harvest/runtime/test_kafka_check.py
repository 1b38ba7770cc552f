"""What `harvest check` says of Kafka, for each thing that a cluster may say of itself."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, ConfigResource

from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.runtime import kafka_check as module
from harvest.runtime.kafka_check import check_kafka
from marshal_py.errors import BrokerUnavailable


def config(more: str = "", coordination: str = "topic: own") -> ReaperConfig:
    return parse(
        "database: host=d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\n"
        f"coordination: {{{coordination}}}\n{more}"
    )


class Future:
    """Answers with a value, or raises."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def refusal(code: int) -> KafkaException:
    return KafkaException(KafkaError(code, "refused"))


class Cluster:
    """Of three brokers. `topics`: partitions and replicas; `settings`: of each topic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics: dict[str, tuple[int, int]] = {
            "own": (1, 3),
            "own.snapshots": (1, 3),
            "orders": (2, 3),
        }
        self.hidden: set[str] = set()
        """Topics that may not be described."""
        self.leaderless: dict[str, int] = {}
        """Topics of which so many partitions have no leader."""
        self.in_sync: dict[tuple[str, int], int] = {}
        """How many replicas of a partition are, where it is not all."""
        self.settings: dict[str, str] | Exception = {"min.insync.replicas": "2"}
        self.transactions_ms: str | Exception = "900000"
        """How long the brokers let one last."""
        self.allowed: list[AclOperation] | Exception | None = [AclOperation.WRITE]
        self.own_allowed: list[AclOperation] | Exception | None = [
            AclOperation.READ,
            AclOperation.WRITE,
        ]
        self.checkpoint: str | Exception | None = None
        self.unreachable = False
        self.asked: list[str] = []
        self.closed = 0
        monkeypatch.setattr(module, "connected_admin", self._connected)
        monkeypatch.setattr(module, "make_client", self._consumer)
        monkeypatch.setattr(module, "committed_checkpoint", self._checkpoint)

    def findings(self, made: ReaperConfig | None = None, *topics: str) -> list[tuple[str, str]]:
        """Level and text of what was found, but for what is well."""
        found = check_kafka(made or config(), topics or ["orders"])
        return [(f.level, f.text) for f in found if f.level != "ok"]

    def facts(self) -> list[str]:
        return [f.text for f in check_kafka(config(), ["orders"]) if f.level == "ok"]

    def _connected(self, settings: object, timeout_s: float) -> tuple[Any, Any]:
        del settings, timeout_s
        if self.unreachable:
            raise BrokerUnavailable("localhost:1: Connection refused")
        topics = {}
        for name, (partitions, replicas) in self.topics.items():
            down = self.leaderless.get(name, 0)
            parts = {
                p: SimpleNamespace(
                    replicas=list(range(replicas)),
                    leader=-1 if p < down else 0,
                    isrs=list(range(self.in_sync.get((name, p), replicas))),
                )
                for p in reversed(range(partitions))
            }
            refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            topics[name] = (
                SimpleNamespace(error=refused, partitions={})
                if name in self.hidden
                else SimpleNamespace(error=None, partitions=parts)
            )
        return self, SimpleNamespace(brokers={1: 1, 2: 2, 3: 3}, topics=topics)

    def describe_configs(self, resources: Sequence[Any], **_: object) -> dict[Any, Future]:
        found: Any = self.settings
        if isinstance(found, dict):
            found = {name: SimpleNamespace(value=value) for name, value in found.items()}
        most: Any = self.transactions_ms
        if not isinstance(most, Exception):
            most = {"transaction.max.timeout.ms": SimpleNamespace(value=most)}
        is_topic = ConfigResource.Type.TOPIC
        return {each: Future(found if each.restype is is_topic else most) for each in resources}

    def describe_topics(self, topics: Any, **asked: object) -> dict[str, Future]:
        assert asked["include_authorized_operations"]

        def answer(found: Any) -> Future:
            if not isinstance(found, Exception):
                found = SimpleNamespace(authorized_operations=found)
            return Future(found)

        return {
            name: answer(self.allowed if name == "orders" else self.own_allowed)
            for name in topics.topic_names
        }

    def _consumer(self, _: object, settings: dict[str, Any]) -> Any:
        self.asked.append(settings["group.id"])

        def close() -> None:
            self.closed += 1

        return SimpleNamespace(close=close)

    def _checkpoint(self, *_: object) -> str | None:
        if isinstance(self.checkpoint, Exception):
            raise self.checkpoint
        return self.checkpoint


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_all_is_well(cluster: Cluster) -> None:
    assert cluster.findings() == []
    assert cluster.facts() == [
        "3 brokers answer",
        "there is none yet, in the group harvest.g.outbox",
        "orders: 2 partitions, 3 replicas, 2 in sync at least, records of up to 1000000 bytes",
    ]
    cluster.checkpoint = "text"
    assert "there is one, in the group harvest.g.outbox" in cluster.facts()


SOON = "producer: {transaction.timeout.ms: 5000, delivery.timeout.ms: 6000}"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "producer: {linger.mss: 5}",
            'Kafka settings: No such configuration property: "linger.mss"',
        ),
        ("producer: {max.in.flight: 6}\ndelivery: idempotent", "`max.in.flight` must be set <= 5"),
        (f"{SOON}\nmode: range", "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
        (f"{SOON}\nmode: wal\ndelivery: idempotent", "`transaction.timeout.ms`"),
        ("destinations: {shop: {kafka: {settings: {linger.mss: 5}}}}", "destinations.shop: Kafka"),
        (f"name: {'n' * 256}", "client_id = 'nnn"),
    ],
)
def test_a_setting_with_which_no_harvester_starts_is_told(
    cluster: Cluster, more: str, says: str
) -> None:
    [(level, text)] = cluster.findings(config(more))
    assert level == "error"
    assert says in text


@pytest.mark.parametrize(
    ("more", "allowed", "found"),
    [
        ("", "15000", ""),
        ("", "14999", "transaction.timeout.ms is 15000"),
        ("mode: range\nproducer: {delivery.timeout.ms: 900001}", "900000", "timeout.ms is 900001"),
        ("delivery: idempotent", "1", ""),
        ("", refusal(KafkaError.CLUSTER_AUTHORIZATION_FAILED), ""),
    ],
)
def test_a_transaction_that_is_to_last_longer_than_the_brokers_allow(
    cluster: Cluster, more: str, allowed: str | Exception, found: str
) -> None:
    """None would ever begin, and nothing be published."""
    cluster.transactions_ms = allowed
    told = cluster.findings(config(more))
    assert [level for level, _ in told] == ["error"] * bool(found)
    assert not found or found in told[0][1]


def test_brokers_that_do_not_answer_are_all_that_is_said(cluster: Cluster) -> None:
    cluster.unreachable = True
    assert cluster.findings() == [("error", "cannot be reached: localhost:1: Connection refused")]


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("missing", ["own", "own.snapshots"])
def test_who_does_not_make_the_topics_has_to_find_them(
    cluster: Cluster, missing: str, is_hidden: bool
) -> None:
    if is_hidden:
        cluster.hidden.add(missing)
    else:
        del cluster.topics[missing]
    text = (
        f"the coordination topic {missing} does not exist or may not be seen: run `marshal topic "
        "create`, or grant DESCRIBE on it"
    )
    assert cluster.findings() == [("error", text)]
    makes = config(coordination="topic: own, create_topics: true")
    assert cluster.findings(makes) == [("warning", text)]


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_topic_of_the_rows_that_is_missing_is_an_error(cluster: Cluster, is_hidden: bool) -> None:
    if is_hidden:
        cluster.topics["bills"] = (1, 3)
        cluster.hidden.add("bills")
    ((level, text),) = cluster.findings(None, "orders", "bills")
    assert (level, text.partition(",")[0]) == ("error", "bills")


@pytest.mark.parametrize("name", ["own", "own.snapshots", "orders"])
def test_a_topic_with_partitions_that_have_no_leader_is_not_called_well(
    cluster: Cluster, name: str
) -> None:
    cluster.leaderless = {name: 1}
    text = f"{name}: no leader for partitions 0: start the brokers that are down"
    assert cluster.findings() == [("error", text)]
    cluster.topics[name] = (12, 3)
    cluster.leaderless = {name: 9}
    ((_, text),) = cluster.findings()
    assert "partitions 0, 1, 2, 3, 4, 5, 6, 7, … (9): start" in text


@pytest.mark.parametrize(
    ("replicas", "minimum", "found"),
    [
        (1, "1", []),
        (3, "1", [("warning", "set min.insync.replicas to 2")]),
        (3, "3", []),
        (1, "2", [("error", "min.insync.replicas is 2, of 1 replicas: lower it")]),
    ],
)
def test_replicas_in_sync(
    cluster: Cluster, replicas: int, minimum: str, found: list[tuple[str, str]]
) -> None:
    cluster.topics["orders"] = (2, replicas)
    cluster.settings = {"min.insync.replicas": minimum}
    seen = cluster.findings()
    assert [
        (level, said in text) for (level, text), (_, said) in zip(seen, found, strict=True)
    ] == [(level, True) for level, _ in found]


@pytest.mark.parametrize("name", ["own", "own.snapshots", "orders"])
def test_where_too_few_are_in_sync_nothing_can_be_written_and_fewer_than_all_is_told(
    cluster: Cluster, name: str
) -> None:
    cluster.topics[name] = (2, 3)
    cluster.in_sync = {(name, 0): 2, (name, 1): 1}
    ((level, text),) = cluster.findings()
    assert (level, text.partition(",")[0]) == (
        "error",
        f"{name}: fewer than 2 replicas are in sync for partitions 1",
    )
    cluster.in_sync = {(name, 0): 2}
    ((level, text),) = cluster.findings()
    assert (level, text.partition(":")[2][:44]) == (
        "warning",
        " replicas are out of sync for partitions 0: ",
    )
    cluster.settings = refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    cluster.in_sync = {(name, 1): 1}
    assert [level for level, _ in cluster.findings()] == ["warning"], "how many suffice is hidden"
    cluster.leaderless = {name: 2}
    assert [level for level, _ in cluster.findings()] == ["error"], "told as that alone"


def test_a_coordination_topic_that_can_never_be_written_to_is_told(cluster: Cluster) -> None:
    cluster.topics["own"] = (1, 1)
    text = "own: min.insync.replicas is 2, of 1 replicas: lower it"
    assert cluster.findings() == [("error", text)]


@pytest.mark.parametrize(("value", "warned"), [("true", True), ("false", False)])
def test_an_unclean_leader_may_lose_what_was_purged(
    cluster: Cluster, value: str, warned: bool
) -> None:
    cluster.settings = {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": value,
    }
    assert [level for level, _ in cluster.findings()] == ["warning"] * warned


@pytest.mark.parametrize(
    ("sent", "taken", "warned"),
    [
        (None, "1048588", False),
        (2_000_000, "1048588", True),
        (2_000_000, "2000000", False),
        (2_000_000, "1998976", False),  # a batch has some bytes besides its records
        (2_000_000, "1998975", True),
    ],
)
def test_rows_that_the_topic_does_not_take(
    cluster: Cluster, sent: int | None, taken: str, warned: bool
) -> None:
    cluster.settings = {"min.insync.replicas": "2", "max.message.bytes": taken}
    producer = "" if sent is None else f"producer: {{message.max.bytes: {sent}}}\n"
    assert [level for level, _ in cluster.findings(config(producer))] == ["warning"] * warned


def test_what_every_client_may_send_so_may_the_producer_unless_it_has_its_own(
    cluster: Cluster,
) -> None:
    cluster.settings = {"min.insync.replicas": "2", "max.message.bytes": "1048588"}
    made = config()
    made = made.model_copy(update={"kafka": {**made.kafka, "message.max.bytes": 2_000_000}})
    assert [level for level, _ in cluster.findings(made)] == ["warning"]
    own = made.model_copy(update={"producer": {"message.max.bytes": 1_000_000}})
    assert cluster.findings(own) == []


def test_settings_that_may_not_be_asked_for_are_not_judged(cluster: Cluster) -> None:
    cluster.settings = refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert cluster.findings(config("producer: {message.max.bytes: 2000000}\n")) == []
    assert cluster.facts()[-1] == "orders: 2 partitions, 3 replicas"


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ([AclOperation.WRITE, AclOperation.READ], False),
        ([AclOperation.READ], True),
        ([], True),
        (None, False),
        (refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED), False),
    ],
)
def test_a_topic_that_may_not_be_written_to_is_an_error_where_the_brokers_say_so(
    cluster: Cluster, allowed: Any, refused: bool
) -> None:
    cluster.allowed = allowed
    found = [("error", "orders may not be written to: grant WRITE on it")] if refused else []
    assert cluster.findings() == found


@pytest.mark.parametrize(
    ("allowed", "lacking"),
    [
        ([AclOperation.READ], "WRITE"),
        ([AclOperation.DESCRIBE], "READ and WRITE"),
        (None, ""),
        (refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED), ""),
    ],
)
def test_rights_that_lack_on_the_coordination_topics_are_named_where_the_brokers_say_so(
    cluster: Cluster, allowed: Any, lacking: str
) -> None:
    cluster.own_allowed = allowed
    levels = {"own": "error", "own.snapshots": "warning"} if lacking else {}
    assert cluster.findings() == [(v, f"grant {lacking} on {n}") for n, v in levels.items()]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            "grant READ on the group harvest.g.outbox, and WRITE on the transactional.id of that "
            "name",
        ),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "cannot be read: refused"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_says_what_to_grant(
    cluster: Cluster, code: int, text: str
) -> None:
    cluster.checkpoint = refusal(code)
    assert cluster.findings() == [("error", text)]
    assert cluster.closed == 1, "the consumer is let go"


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        ("", ["harvest.g.outbox"]),
        ("delivery: idempotent\n", []),
        ("destinations: {a: {http: {uri: 'http://shop.example/'}}}\n", []),
        ("mode: wal\n", ["harvest.g.outbox"]),
        ("mode: wal\ndelivery: idempotent\n", ["harvest.g.outbox"]),
        ("mode: range\n", ["harvest.g.outbox.0"]),
        ("mode: range\nshards: 3\n", ["harvest.g.outbox.0"]),
    ],
)
def test_a_checkpoint_is_looked_at_where_there_is_one(
    cluster: Cluster, more: str, groups: list[str]
) -> None:
    cluster.findings(config(more))
    assert cluster.asked == groups
    assert cluster.closed == len(groups)

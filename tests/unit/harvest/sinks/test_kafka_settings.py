"""What a harvester adds to the settings of librdkafka, and what it does not let be changed."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.errors import ConfigurationError
from harvest.sinks.kafka.settings import connection_settings, consumer_settings, producer_settings
from marshal_py.client.kafka_clients import TRANSACTIONAL_PRODUCER

BASE: dict[str, Any] = {"bootstrap.servers": "b:1"}


def test_what_is_given_goes_before_the_defaults() -> None:
    by_default = producer_settings(BASE, None)
    assert by_default["compression.type"] == "lz4"
    given = {"compression.type": "zstd", "client.id": "mine", "retry.backoff.ms": 50}
    assert producer_settings({**BASE, **given}, None).items() >= given.items()


@pytest.mark.parametrize("name", ["delivery.timeout.ms", "message.timeout.ms"])
def test_without_transactions_a_row_is_tried_for_as_long_as_it_takes(name: str) -> None:
    assert producer_settings(BASE, None)["delivery.timeout.ms"] == 0
    settings = producer_settings({**BASE, name: 5_000}, None)
    assert settings[name] == 5_000
    assert settings.get("delivery.timeout.ms", 5_000) == 5_000, "one name of the two"


@pytest.mark.parametrize("name", ["linger.ms", "queue.buffering.max.ms"])
def test_without_transactions_nothing_waits_unless_it_was_asked_for(name: str) -> None:
    assert producer_settings(BASE, None)["linger.ms"] == 0
    settings = producer_settings({**BASE, name: 20}, None)
    assert settings[name] == 20
    assert settings.get("linger.ms", 20) == 20, "one name of the two"


def test_without_transactions_no_gap_is_left() -> None:
    settings = producer_settings(BASE, None)
    assert (settings["enable.gapless.guarantee"], settings["enable.idempotence"]) == (True, True)
    assert "transactional.id" not in settings


def test_with_transactions_quiet_connections_end() -> None:
    assert producer_settings(BASE, "harvest.x").items() >= TRANSACTIONAL_PRODUCER.items()
    given = {"connections.max.idle.ms": 60_000}
    assert producer_settings({**BASE, **given}, "harvest.x").items() >= given.items()
    assert "connections.max.idle.ms" not in producer_settings(BASE, None)


@pytest.mark.parametrize(
    ("given", "timeout_ms"),
    [
        ({}, 15_000),
        ({"message.timeout.ms": 90_000}, 90_000),
        ({"message.timeout.ms": 5_000}, 15_000),
        ({"delivery.timeout.ms": "90000"}, 90_000),
        ({"delivery.timeout.ms": 90_000, "transaction.timeout.ms": 7_000}, 7_000),
    ],
)
def test_a_transaction_may_last_as_long_as_a_row(given: dict[str, Any], timeout_ms: int) -> None:
    settings = producer_settings({**BASE, **given}, "harvest.x")
    assert settings["transaction.timeout.ms"] == timeout_ms
    assert settings["delivery.report.only.error"] is True
    assert "linger.ms" not in settings


@pytest.mark.parametrize("id", [None, "harvest.x"])
@pytest.mark.parametrize("value", ["soon", "30s", "", "-1", 1.5, True])
@pytest.mark.parametrize(
    "name", ["delivery.timeout.ms", "message.timeout.ms", "message.max.bytes", "batch.size"]
)
def test_what_a_harvester_reckons_with_is_a_number(name: str, value: Any, id: str | None) -> None:
    """Told when the file is read; it was a traceback, of the process or of `harvest check`."""
    with pytest.raises(
        ConfigurationError, match=f"{name}' is {value!r}, must be a whole number, 0 or more"
    ):
        producer_settings({**BASE, name: value}, id)
    for number in (20_000, "20000"):
        assert producer_settings({**BASE, name: number}, id)[name] == number


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", 1),
        ("request.required.acks", "0"),
        ("enable.idempotence", "false"),
        ("transactional.id", "x"),
        ("enable.gapless.guarantee", False),
        ("delivery.report.only.error", True),
        ("group.id", "x"),
        ("isolation.level", "read_uncommitted"),
        ("partitioner", "random"),
    ],
)
def test_what_would_lose_or_reorder_rows_is_refused_without_secrets(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        producer_settings({**BASE, "sasl.password": "hush", name: value}, None)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("acks", "all"), ("acks", -1), ("enable.idempotence", "True")]
)
def test_what_is_so_anyway_may_be_said(name: str, value: Any) -> None:
    producer_settings({**BASE, name: value}, None)


def test_a_key_stays_in_one_partition_the_empty_one_too() -> None:
    found = {
        name: producer_settings({**BASE, "partitioner": name}, None)["partitioner"]
        for name in ("consistent_random", "murmur2_random", "fnv1a_random", "java")
    }
    assert list(found.values()) == ["consistent", "murmur2", "fnv1a", "murmur2"]
    assert producer_settings(BASE, None)["partitioner"] == "consistent"


def test_what_says_how_to_reach_the_brokers_is_for_every_client() -> None:
    connection = {
        "bootstrap.servers": "b:1",
        "metadata.broker.list": "b:1",
        "client.rack": "r",
        "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
        "https.ca.location": "c",
        "security.protocol": "SASL_SSL",
        "sasl.password": "p",
        "ssl.ca.location": "c",
        "enable.ssl.certificate.verification": False,
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "socket.timeout.ms": 1,
        "broker.address.family": "v4",
        "reconnect.backoff.ms": 1,
    }
    given = {**connection, "linger.ms": 5, "enable.idempotence": True, "client.id": "x"}
    assert connection_settings(given) == connection
    reader = consumer_settings(given, "g")
    assert reader.items() >= connection.items()
    assert (reader["group.id"], reader["enable.auto.commit"]) == ("g", False)
    assert reader["isolation.level"] == "read_committed"


def test_who_lets_go_of_a_reader_waits_for_its_last_answer_for_seconds_and_not_a_minute() -> None:
    assert consumer_settings(BASE, "g")["socket.timeout.ms"] == 5_000

"""Which partition a key goes to, on librdkafka's in-process brokers, beside Java's partitions."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from harvest.config.load import parse
from harvest.errors import ConfigurationError
from harvest.sinks.kafka.settings import producer_settings

JAVA = (  # BuiltInPartitioner.partitionForKey of kafka-clients 4.1.0: key in hex, partition of four
    ("", 1),
    ("61", 0),
    ("6162", 2),
    ("616263", 3),
    ("61626364", 0),
    ("6162636465", 1),
    ("6b65792d31", 0),
    ("6b65792d32", 2),
    ("637573746f6d65722d3432", 1),
    ("30", 0),
    ("30303030303030302d303030302d303030302d303030302d303030303030303030303030", 1),
    ("c3bcc3b1f09f92a5", 1),
    ("00", 0),
    ("54686520717569636b2062726f776e20666f78206a756d7073206f76657220746865206c617a7920646f67", 2),
    ("20", 1),
    ("ff", 3),
    ("ffda", 3),
    ("ffdab5", 1),
    ("ffdab590", 1),
    ("ffdab5906b", 1),
    ("ffdab5906b46", 3),
)
MOCK = {"test.mock.num.brokers": 1, "bootstrap.servers": "mock"}


def partitions_of(settings: dict[str, Any], keys: list[bytes]) -> list[int | None]:
    """Where a harvester's producer puts these keys, on a topic of four partitions."""
    producer = Producer({**producer_settings({**MOCK, **settings}, None), "log_level": 0})
    found: list[int | None] = []
    for key in keys:
        producer.produce("t", b"v", key, on_delivery=lambda _, m: found.append(m.partition()))
        producer.flush(20)
    assert len(found) == len(keys)
    return found


@pytest.mark.parametrize("name", ["java", "murmur2", "murmur2_random"])
def test_javas_partitions_are_javas(name: str) -> None:
    keys = [bytes.fromhex(key) for key, _ in JAVA]
    assert partitions_of({"partitioner": name}, keys) == [partition for _, partition in JAVA]


@pytest.mark.parametrize(
    "settings", [{}, {"partitioner": "consistent_random"}, {"partitioner": "fnv1a_random"}]
)
def test_an_empty_key_has_one_partition(settings: dict[str, Any]) -> None:
    assert len(set(partitions_of(settings, [b""] * 30))) == 1


def test_other_keys_are_where_librdkafka_puts_them_by_default() -> None:
    keys = [b"a", b"b", b"key-1", b"key-2", b"customer-42"]
    found: list[int | None] = []
    producer = Producer({**MOCK, "log_level": 0})
    for key in keys:
        producer.produce("t", b"v", key, on_delivery=lambda _, m: found.append(m.partition()))
        producer.flush(20)
    assert partitions_of({}, keys) == found


def test_a_partitioner_that_scatters_keys_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'random'.*consistent.*java"):
        producer_settings({"partitioner": "random"}, None)


def test_the_configuration_names_it() -> None:
    text = "{{kafka: {{bootstrap.servers: b}}, database: d, group: g, partitioner: {}{}}}"
    for name, given in (("java", "murmur2"), ("librdkafka", "consistent")):
        settings = producer_settings(parse(text.format(name, "")).producer_config, "x")
        assert settings["partitioner"] == given
    with pytest.raises(ConfigurationError, match="partitioner is given twice"):
        parse(text.format("java", ", producer: {partitioner: murmur2}"))
    with pytest.raises(ConfigurationError, match="partitioner"):
        parse(text.format("go", ""))

"""librdkafka settings: what the user gave, what a harvester needs, and what cannot be both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from harvest.errors import ConfigurationError
from marshal_py.client.kafka_clients import TRANSACTIONAL_PRODUCER

__all__ = ["connection_settings", "consumer_settings", "producer_settings"]

_ALL: Final = frozenset({"all", "-1"})
_REQUIRED: Final[dict[str, tuple[frozenset[str], str]]] = {
    "acks": (_ALL, "a row is purged when every in-sync replica has it"),
    "request.required.acks": (_ALL, "a row is purged when every in-sync replica has it"),
    "enable.idempotence": (
        frozenset({"true"}),
        "without it, retries can reorder the rows of a key",
    ),
}
_OURS: Final = {
    "transactional.id": "it belongs to the outbox; set `delivery` to choose transactions or not",
    "delivery.report.only.error": "the harvester sets it",
    "enable.gapless.guarantee": "the harvester sets it",
    "group.id": "no consumer group is joined",
    "isolation.level": "the harvester sets it",
}
_DEFAULTS: Final[dict[str, Any]] = {
    "client.id": "harvest",
    "compression.type": "lz4",
    "socket.nagle.disable": True,  # small requests follow one another on one connection
    # While Kafka finishes a transaction it says "try again" to the next; librdkafka waits so long.
    "retry.backoff.ms": 1,  # and longer each time it says so again
}
# Rows of one key keep their order in one partition, and the empty key is a key like others, though
# librdkafka's own default (`…_random`) gives its records to random partitions.
_PARTITIONERS: Final = {
    "consistent": "consistent",
    "consistent_random": "consistent",
    "murmur2": "murmur2",
    "murmur2_random": "murmur2",
    "java": "murmur2",  # as Java's producers have it
    "fnv1a": "fnv1a",
    "fnv1a_random": "fnv1a",
}
_LINGER: Final = ("linger.ms", "queue.buffering.max.ms")
_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")
_NUMBERS: Final = (*_TIMEOUTS, "message.max.bytes", "batch.size")
"""Those with which a harvester reckons itself."""
_TRANSACTION_TIMEOUT_MS: Final = 15_000
# Letting go of a consumer takes until what it has asked for is answered, or given up.
_ANSWER_TIMEOUT_MS: Final = 5_000

# What says how to reach the brokers; the rest of a configuration is for producers or consumers.
_CONNECTION: Final = {
    "bootstrap.servers",
    "metadata.broker.list",
    "client.dns.lookup",
    "client.rack",
    "debug",
    "log_level",
}
_CONNECTION_PREFIXES: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "socket.",
    "https.",
    "broker.",
    "reconnect.",
    "enable.ssl.",
    "enable.sasl.",
)


def producer_settings(config: Mapping[str, Any], transactional_id: str | None) -> dict[str, Any]:
    """The settings of a harvester's producer. Raises `ConfigurationError`, without secrets."""
    settings = dict(config)
    for name, why in _OURS.items():
        if name in settings:
            raise ConfigurationError(f"Kafka setting {name!r} cannot be given: {why}")
    for name, (allowed, why) in _REQUIRED.items():
        if name in settings and str(settings[name]).lower() not in allowed:
            raise ConfigurationError(
                f"Kafka setting {name!r} is {settings[name]!r}, must be "
                f"{' or '.join(sorted(allowed))}: {why}; leave it out"
            )
    for name in _NUMBERS:
        if name in settings and re.fullmatch(r"[0-9]+", str(settings[name])) is None:
            raise ConfigurationError(
                f"Kafka setting {name!r} is {settings[name]!r}, must be a whole number, 0 or more"
            )
    settings = {**_DEFAULTS, **settings}
    settings |= {"enable.idempotence": True, "partitioner": _partitioner(settings)}
    if transactional_id is None:
        settings["enable.gapless.guarantee"] = True
        if not any(name in settings for name in _LINGER):
            settings["linger.ms"] = 0  # what comes while requests are under way goes together
        if not any(name in settings for name in _TIMEOUTS):
            settings["delivery.timeout.ms"] = 0  # for as long as it takes
        return settings
    settings = {**TRANSACTIONAL_PRODUCER, **settings, "transactional.id": transactional_id}
    settings["delivery.report.only.error"] = True  # the commit says that all were delivered
    if "transaction.timeout.ms" not in settings:
        # A row must not wait longer for its acknowledgement than its transaction may last.
        given = [int(settings[name]) for name in _TIMEOUTS if name in settings]
        settings["transaction.timeout.ms"] = max([_TRANSACTION_TIMEOUT_MS, *given])
    return settings


def _partitioner(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("partitioner", "consistent"))
    if name not in _PARTITIONERS:
        raise ConfigurationError(
            f"Kafka setting 'partitioner' is {name!r}, must be one of {', '.join(_PARTITIONERS)}: "
            "the rows of a key stay in one partition, which keeps their order"
        )
    return _PARTITIONERS[name]


def consumer_settings(config: Mapping[str, Any], group_id: str) -> dict[str, Any]:
    """The settings of the consumer that reads the checkpoint and never joins its group."""
    return {
        "socket.timeout.ms": _ANSWER_TIMEOUT_MS,
        **connection_settings(config),
        "client.id": "harvest",
        "group.id": group_id,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }


def connection_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the settings that says how to reach the brokers."""
    return {
        name: value
        for name, value in config.items()
        if name in _CONNECTION or name.startswith(_CONNECTION_PREFIXES)
    }

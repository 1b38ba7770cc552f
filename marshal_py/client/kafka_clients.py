"""confluent-kafka clients as the coordination log uses them: settings, errors, log lines.

An outage is worth one log line in a while; what trying again cannot mend is told as it is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import BrokerUnavailable, ConfigurationError

__all__ = [
    "FINAL",
    "OUTAGE_WARNING_S",
    "RECONNECT",
    "ConnectionErrors",
    "connect",
    "rdkafka_logger",
    "read_to_end",
]

logger = logging.getLogger("marshal_py.log")
rdkafka_logger = logging.getLogger("marshal_py.rdkafka")
rdkafka_logger.setLevel(logging.CRITICAL)  # what it says, `logger` says once; lower it to see all

OUTAGE_WARNING_S: Final = 30.0
"""An outage is worth one line in this time, not one for each attempt to connect."""

RECONNECT: Final[KafkaConfig] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1_000}

FINAL: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.UNSUPPORTED_VERSION,
}
"""Errors that trying again cannot mend."""


class ConnectionErrors:
    """Why a client gets no answer from its brokers: what TLS or SASL said last, and how often."""

    def __init__(self) -> None:
        self.last = ""
        self.count = 0
        self._logged_s = -OUTAGE_WARNING_S

    @property
    def repeated(self) -> bool:
        """Whether it came often enough to be no accident, as of a broker that is killed."""
        return self.count >= 5

    def note(self, text: str) -> None:
        """Keep it, and log it once in a while."""
        self.last, self.count = text, self.count + 1
        if time.monotonic() - self._logged_s >= OUTAGE_WARNING_S:
            self._logged_s = time.monotonic()
            logger.error("%s", text)


def connect(kind: Any, config: KafkaConfig, errors: ConnectionErrors | None = None) -> Any:
    """Make a Consumer or Producer; a setting that it refuses becomes a `ConfigurationError`."""

    last_warning_s = -OUTAGE_WARNING_S
    errors = errors or ConnectionErrors()

    def on_error(error: KafkaError) -> None:
        nonlocal last_warning_s
        if error.code() in REFUSED:
            pass  # whoever asked is told, and tells which right is missing
        elif error.fatal() or error.code() in FINAL:
            errors.note(f"{kind.__name__}: {error.str()}")
        elif time.monotonic() - last_warning_s >= OUTAGE_WARNING_S:
            last_warning_s = time.monotonic()
            logger.warning(
                "%s: %s; reconnecting for as long as it takes", kind.__name__, error.str()
            )

    try:
        return kind({"error_cb": on_error, **config}, logger=rdkafka_logger)
    except (KafkaException, TypeError, ValueError) as error:
        problem = error.args[0] if error.args else error
        text = problem.str() if isinstance(problem, KafkaError) else str(problem)
        raise ConfigurationError(f"librdkafka refuses the configuration: {text}") from None


def read_to_end(
    config: KafkaConfig,
    topic: str,
    starts: dict[int, int],
    ends: dict[int, int],
    deadline: float,
) -> Iterator[Any]:
    """Yield the records of some partitions from `starts` to below `ends`, or what is left of them.

    Raises `BrokerUnavailable` at the deadline (of `time.monotonic`), or when the brokers refuse.
    """
    # A consumer of its own: re-assigning one waits for its last fetch to come back.
    consumer = connect(
        Consumer,
        {
            **RECONNECT,
            **config,
            "group.id": "marshal",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        },
    )
    try:
        consumer.assign([TopicPartition(topic, p, at) for p, at in starts.items()])
        behind = set(starts)
        while behind:
            message = consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"no answer while reading {topic!r}")
                continue
            error = message.error()
            if error is None:
                yield message
                if message.offset() + 1 >= ends[message.partition()]:
                    behind.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                behind.discard(message.partition())
            elif error.code() in REFUSED:
                raise denied(config, topic, "Read")
            elif error.code() in FINAL:
                raise BrokerUnavailable(f"reading {topic!r}: {error.str()}")
    finally:
        consumer.close()

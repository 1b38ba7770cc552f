"""What the Spark pipelines need of Kafka: offsets, ranges of records, settings in Java's words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from marshal_py.admin.topic_offsets import NO_SUCH_TOPIC
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import FINAL, RECONNECT, connect, rdkafka_logger
from marshal_py.errors import BrokerUnavailable, ConfigurationError, LogHole, TopicMissing

__all__ = ["READER_OPTIONS", "Offsets", "java_settings", "librdkafka_settings", "read_range"]

READER_OPTIONS: Final[dict[str, str]] = {
    # 500, the default, costs more in calls than in bytes.
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    "kafka.receive.buffer.bytes": str(1024 * 1024),
    "failOnDataLoss": "true",
}
"""Options of Spark's Kafka source with which it reads twice as fast as by default."""

_SAME: Final = {
    "security.protocol",
    "client.id",
    "client.rack",
    "ssl.endpoint.identification.algorithm",
    "sasl.kerberos.service.name",
}
_LOGIN: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return librdkafka connection settings in the words of Kafka's Java client, as Spark takes it.

    Keys that begin with ``kafka.`` are the Java client's already and win. Knows brokers, security
    protocol, SASL with a password, and PEM files. Raises `ConfigurationError`, naming the setting
    and never its value, for one that has no translation here, or a file that cannot be read.
    """
    given = {name: str(value) for name, value in config.items() if not name.startswith("kafka.")}
    found: dict[str, str] = {}
    servers = given.pop("bootstrap.servers", None) or given.pop("metadata.broker.list", "")
    found["kafka.bootstrap.servers"] = servers
    mechanism = given.pop("sasl.mechanism", None) or given.pop("sasl.mechanisms", None)
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if mechanism is not None:
        found["kafka.sasl.mechanism"] = mechanism
    if user is not None and mechanism in _LOGIN:
        found["kafka.sasl.jaas.config"] = (
            f"{_LOGIN[mechanism]} required username={_quoted(user)} "
            f"password={_quoted(password or '')};"
        )
    if (authority := given.pop("ssl.ca.location", None)) is not None:
        found["kafka.ssl.truststore.type"] = "PEM"
        found["kafka.ssl.truststore.location"] = authority
    certificate = given.pop("ssl.certificate.location", None)
    key, key_password = given.pop("ssl.key.location", None), given.pop("ssl.key.password", None)
    if certificate is not None and key is not None:
        found["kafka.ssl.keystore.type"] = "PEM"
        chain = _text_of("ssl.certificate.location", certificate)
        found["kafka.ssl.keystore.certificate.chain"] = chain
        found["kafka.ssl.keystore.key"] = _text_of("ssl.key.location", key)
        if key_password is not None:
            found["kafka.ssl.key.password"] = key_password
    has_java_names = any(name.startswith(("kafka.ssl.", "kafka.sasl.")) for name in config)
    for name, value in given.items():
        if name in _SAME:
            found[f"kafka.{name}"] = value
        elif name.startswith(("ssl.", "sasl.")) and not has_java_names:
            raise ConfigurationError(
                f"{name} has no translation for Spark's Kafka client: give the Java client's own "
                "settings beside it, as kafka.NAME=VALUE"
            )
    # What else there is tunes librdkafka, and means nothing to Java.
    return found | {name: str(v) for name, v in config.items() if name.startswith("kafka.")}


def _text_of(name: str, file: str) -> str:
    try:  # what stands between the certificates are notes, in any encoding
        return Path(file).read_text("utf-8-sig", "replace")
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def librdkafka_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those that are meant for Java (``kafka.…``)."""
    return {name: value for name, value in config.items() if not name.startswith("kafka.")}


def read_range(
    config: Mapping[str, Any],
    topic: str,
    partition: int,
    start: int,
    end: int,
    timeout_s: float = 30.0,
    *,
    at_once: int = 500,
) -> Iterator[list[Message]]:
    """Yield the records of one partition from offset `start` to below `end`, in lists.

    `at_once`: the most records of a list. Longer lists are slower, for the memory that they touch.

    Raises `LogHole` if `start` is deleted by now, `AccessDenied`, and `BrokerUnavailable` after
    `timeout_s` without an answer.
    """
    consumer = connect(
        Consumer,
        {
            **RECONNECT,
            "queued.min.messages": 10_000,  # ten times as many cost half as much again
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 50,  # so late does the end of a partition show, after a marker
            **librdkafka_settings(config),
            "group.id": "marshal-reading",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        },
    )
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        answered = time.monotonic()
        while start < end:
            # A call waits for all that it asks for: never for more than there is.
            found = consumer.consume(min(at_once, end - start), _WAIT_S)
            if not found:
                if time.monotonic() - answered > timeout_s:
                    raise BrokerUnavailable(f"no answer while reading {topic}/{partition}")
                continue
            answered = time.monotonic()
            start, at_end = _check_range(config, topic, found, start, end)
            if at_end or start > end:
                found = [m for m in found if m.error() is None and (m.offset() or 0) < end]
            if found:
                yield found
            if at_end:
                return
    finally:
        consumer.close()


def _check_range(
    config: Mapping[str, Any], topic: str, found: list[Message], start: int, end: int
) -> tuple[int, bool]:
    """Return the offset after these records, and whether there are no others below `end`."""
    for message in found:
        error = message.error()
        if error is None:
            continue
        where = f"{topic}/{message.partition()}"
        # A follower, or a new leader, may not know yet that there is more.
        if error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
            return start, True
        if error.code() in REFUSED:
            raise denied(librdkafka_settings(config), topic, "Read")
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise LogHole(f"record {where}/{start} is gone: it was deleted during this run")
        if error.code() in FINAL:
            raise BrokerUnavailable(f"reading {where}: {error.str()}")
        found.remove(message)
        return _check_range(config, topic, found, start, end)
    return ((found[-1].offset() or 0) + 1 if found else start), False


_WAIT_S: Final = 0.2


class Offsets:
    """Asks the brokers where topics begin and end, now and at earlier times.

    A context manager. Methods raise `BrokerUnavailable` after `timeout_s`.
    """

    def __init__(self, config: Mapping[str, Any], timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._config = librdkafka_settings(config)
        try:
            self._consumer = Consumer(
                {
                    **self._config,
                    "group.id": "marshal-audit",  # librdkafka wants one; nothing is committed
                    "enable.auto.commit": False,
                    "allow.auto.create.topics": False,
                },
                logger=rdkafka_logger,
            )
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigurationError(f"librdkafka refuses the configuration: {error}") from None

    def __enter__(self) -> Offsets:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic. Raises `TopicMissing`, `AccessDenied`."""
        try:
            found = self._consumer.list_topics(topic, timeout=self._timeout_s).topics[topic]
        except KafkaException as error:
            raise BrokerUnavailable(f"no answer from the brokers: {error}") from None
        if found.error is not None:
            if found.error.code() in REFUSED:
                raise denied(self._config, topic, "Read")
            if found.error.code() in NO_SUCH_TOPIC:
                raise TopicMissing(f"topic {topic!r} does not exist")
            raise BrokerUnavailable(f"topic {topic!r}: {found.error.str()}")
        return sorted(found.partitions)

    def extent(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return (first offset, next offset) of every partition. Raises as `partitions`."""
        wanted = self.partitions(topic)
        first, following = (self._ask(topic, wanted, which) for which in (_EARLIEST, _LATEST))
        return {p: (first[p], following[p]) for p in wanted}

    def at(self, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
        """Return what the next offset of each partition was at a time in ms since 1970."""
        found = self._ask(topic, partitions, at_ms)
        late = [p for p, offset in found.items() if offset < 0]  # nothing was written since
        return found | (self._ask(topic, late, _LATEST) if late else {})

    def _ask(self, topic: str, partitions: Sequence[int], which: int) -> dict[int, int]:
        query = [TopicPartition(topic, p, which) for p in partitions]
        if not query:
            return {}
        try:
            answer = self._consumer.offsets_for_times(query, timeout=self._timeout_s)
        except KafkaException as error:
            raise BrokerUnavailable(f"no answer from the brokers: {error}") from None
        for part in answer:
            if part.error is not None:
                raise BrokerUnavailable(f"{topic}/{part.partition}: {part.error.str()}")
        return {part.partition: part.offset for part in answer}


_LATEST, _EARLIEST = -1, -2  # the ListOffsets protocol's special timestamps

"""Where topics begin and end, asked of the brokers."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata
from confluent_kafka.admin import OffsetSpec as _Spec

from marshal_py.admin.connection import Connection
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import BrokerUnavailable, TopicMissing

__all__ = [
    "NO_SUCH_TOPIC",
    "extent",
    "extent_of_led",
    "offset_ranges",
    "partitions_of",
]

NO_SUCH_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_EXCEPTION,  # no topic can have this name; a virtual one may
    }
)


def partitions_of(
    admin: AdminClient, config: KafkaConfig, topic: str, timeout_s: float, right: str = "Describe"
) -> list[int]:
    """Return the partitions of a topic.

    `right`: what the caller needs on it, and `AccessDenied` names. Raises `TopicMissing`,
    `BrokerUnavailable`, `AccessDenied`.
    """
    return sorted(_metadata_of(admin, config, topic, timeout_s, right).partitions)


def _metadata_of(
    admin: AdminClient, config: KafkaConfig, topic: str, timeout_s: float, right: str
) -> TopicMetadata:
    found = admin.list_topics(topic, timeout=timeout_s).topics[topic]
    if found.error is not None:
        if found.error.code() == KafkaError.TOPIC_EXCEPTION:
            raise TopicMissing(f"topic {topic!r} does not exist: Kafka allows no such name")
        if found.error.code() in NO_SUCH_TOPIC:
            raise TopicMissing(f"topic {topic!r} does not exist: run `marshal topic create`")
        if found.error.code() in REFUSED:
            raise denied(config, topic, right)
        raise BrokerUnavailable(f"topic {topic!r}: {found.error.str()}")
    return found


def extent(admin: AdminClient, topic: str, connection: Connection) -> dict[int, tuple[int, int]]:
    """Return (first offset, next offset) of each partition of `topic`.

    Raises `TopicMissing`, `BrokerUnavailable`, `AccessDenied`, `confluent_kafka.KafkaException`.
    """
    found = partitions_of(admin, connection.kafka, topic, connection.timeout_s, "Read")
    parts = {(topic, p) for p in found}
    ranges = offset_ranges(admin, parts, connection.timeout_s)
    return {p: ranges[topic, p] for _, p in sorted(parts)}


def extent_of_led(
    admin: AdminClient, topic: str, connection: Connection
) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Return what `extent` does of the partitions that have a leader, and those that have none.

    Who asks for one without a leader gets no answer about any. Raises as `extent` does.
    """
    found = _metadata_of(admin, connection.kafka, topic, connection.timeout_s, "Read").partitions
    offline = sorted(p for p, about in found.items() if about.leader < 0)
    parts = {(topic, p) for p in found if p not in offline}
    ranges = offset_ranges(admin, parts, connection.timeout_s)
    return {p: ranges[topic, p] for _, p in sorted(parts)}, offline


def offset_ranges(
    admin: AdminClient,
    partitions: set[tuple[str, int]],
    timeout_s: float,
    at_ms: int | None = None,
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return (first offset, next offset) of each (topic, partition).

    `at_ms`: the next offset is that of the first message that is later than this, ms since 1970,
    by the timestamps of the messages. Raises `confluent_kafka.KafkaException`.
    """
    if not partitions:
        return {}
    asked = [TopicPartition(t, p) for t, p in sorted(partitions)]

    def ask(spec: _Spec) -> dict[tuple[str, int], int]:
        futures = admin.list_offsets(dict.fromkeys(asked, spec), request_timeout=timeout_s)
        return {(p.topic, p.partition): f.result().offset for p, f in futures.items()}

    firsts = ask(_Spec.earliest())  # type: ignore[no-untyped-call]
    ends = ask(_Spec.latest())  # type: ignore[no-untyped-call]
    if at_ms is not None:
        # −1: no message is later.
        later = ask(_Spec.for_timestamp(at_ms + 1))
        ends |= {key: end for key, end in later.items() if end >= 0}
    return {key: (first, ends[key]) for key, first in firsts.items()}

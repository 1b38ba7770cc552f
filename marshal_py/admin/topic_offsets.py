"""Where topics begin and end, asked of the brokers."""

from __future__ import annotations

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _Spec  # type: ignore[attr-defined]

from marshal_py.admin.connection import Connection
from marshal_py.errors import BrokerUnavailable, TopicMissing

__all__ = ["extent", "partitions_of"]


def partitions_of(admin: AdminClient, topic: str, timeout_s: float) -> list[int]:
    """Return the partitions of a topic. Raises `TopicMissing`, `BrokerUnavailable`."""
    found = admin.list_topics(topic, timeout=timeout_s).topics[topic]
    if found.error is not None:
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(f"topic {topic!r} does not exist: run `marshal topic create`")
        raise BrokerUnavailable(f"topic {topic!r}: {found.error.str()}")
    return sorted(found.partitions)


def extent(admin: AdminClient, topic: str, connection: Connection) -> dict[int, tuple[int, int]]:
    """Return (first offset, next offset) of each partition of `topic`.

    Raises `TopicMissing`, `BrokerUnavailable`, `confluent_kafka.KafkaException`.
    """
    parts = [TopicPartition(topic, p) for p in partitions_of(admin, topic, connection.timeout_s)]
    answers = []
    for spec in (_Spec.earliest(), _Spec.latest()):  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(
            dict.fromkeys(parts, spec), request_timeout=connection.timeout_s
        )
        answers.append({p.partition: f.result().offset for p, f in futures.items()})
    return {p: (first, answers[1][p]) for p, first in answers[0].items()}

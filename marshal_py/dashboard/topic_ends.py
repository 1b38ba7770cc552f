"""Asking the brokers where topics end, for the lag."""

from __future__ import annotations

import contextlib
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from marshal_py.admin.connection import Connection
from marshal_py.client.topics import admin_client
from marshal_py.dashboard.lag import Ends
from marshal_py.protocol.slots import slot_of

__all__ = ["TopicEnds"]


class TopicEnds:
    """Asks for the ends of topics, with one admin client. For one thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Any = None

    def ask(self, topics: set[str]) -> Ends:
        """Return where those of the topics end that exist. Raises `KafkaException`.

        A topic may be the name of a partition's slots: they end where the partition does.
        """
        slots = {topic: slot for topic in topics if (slot := slot_of(topic, 0)) is not None}
        topics = (topics - slots.keys()) | {slot.topic for slot in slots.values()}
        timeout_s = min(5.0, self._connection.timeout_s)
        admin = self._admin = self._admin or admin_client(self._connection.kafka)
        found = admin.list_topics(timeout=timeout_s).topics
        parts = [
            TopicPartition(topic, p)
            for topic in topics
            if topic in found and found[topic].error is None
            for p in found[topic].partitions
        ]
        ends: dict[str, dict[int, int]] = {}
        if not parts:
            return ends
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        futures = admin.list_offsets(dict.fromkeys(parts, latest), request_timeout=timeout_s)
        for part, future in futures.items():
            with contextlib.suppress(KafkaException):  # a partition without a leader: no lag
                ends.setdefault(part.topic, {})[part.partition] = future.result().offset
        for name, slot in slots.items():
            end = ends.get(slot.topic, {}).get(slot.partition)
            if end is not None:
                ends[name] = dict.fromkeys(range(slot.slots), end)
        return ends

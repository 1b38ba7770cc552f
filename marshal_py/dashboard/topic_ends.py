"""Asking the brokers where topics end, for the lag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count
from marshal_py.client.topics import admin_client
from marshal_py.dashboard.lag import Ends
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.slots import slot_of

__all__ = ["TopicEnds"]


class TopicEnds:
    """Asks for the ends of topics, with one admin client. For one thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Any = None
        self._timeout_s = min(5.0, connection.timeout_s)

    def _client(self) -> Any:
        self._admin = self._admin or admin_client(self._connection.kafka)
        return self._admin

    def _latest(self, parts: Iterable[TopicPartition]) -> dict[str, dict[int, int]]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = dict.fromkeys(parts, latest)
        ends: dict[str, dict[int, int]] = {}
        if not asked:
            return ends
        futures = self._client().list_offsets(asked, request_timeout=self._timeout_s)
        for part, future in futures.items():
            with contextlib.suppress(KafkaException):  # a partition without a leader: no lag
                ends.setdefault(part.topic, {})[part.partition] = future.result().offset
        return ends

    def _unheard(self, partitions: int) -> list[int]:
        topic = self._connection.topic
        ends = self._latest(TopicPartition(topic, p) for p in range(partitions))
        return sorted(set(range(partitions)) - ends.get(topic, {}).keys())

    def ask_log(self, partitions: int) -> None:
        """Ask where each partition of the coordination log ends.

        Raises `BrokerUnavailable` when one of them has nobody who answers.
        """
        unheard = self._unheard(partitions)
        if unheard:  # librdkafka asks for ever with an old leader epoch, unless it is told anew
            self._client().list_topics(timeout=self._timeout_s)
            unheard = self._unheard(partitions)
        if unheard:
            raise BrokerUnavailable(
                f"nobody answers for {self._connection.topic}-{unheard[0]}"
                + (f" and {count(len(unheard) - 1, 'other partition')}" if unheard[1:] else "")
            )

    def ask(self, topics: set[str]) -> Ends:
        """Return where those of the topics end that exist. Raises `KafkaException`.

        A topic may be the name of a partition's slots: they end where the partition does.
        """
        slots = {topic: slot for topic in topics if (slot := slot_of(topic, 0)) is not None}
        topics = (topics - slots.keys()) | {slot.topic for slot in slots.values()}
        if not topics:
            return {}
        found = self._client().list_topics(timeout=self._timeout_s).topics
        ends = self._latest(
            TopicPartition(topic, p)
            for topic in topics
            if topic in found and found[topic].error is None
            for p in found[topic].partitions
        )
        for name, slot in slots.items():
            end = ends.get(slot.topic, {}).get(slot.partition)
            if end is not None:
                ends[name] = dict.fromkeys(range(slot.slots), end)
        return ends

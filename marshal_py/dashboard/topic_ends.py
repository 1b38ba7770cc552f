"""Asking the brokers where topics end, for the lag."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import count
from marshal_py.admin.lag import hidden_among
from marshal_py.client.topics import admin_client
from marshal_py.dashboard.lag import Ends
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.slots import slot_of

__all__ = ["TopicEnds"]


class TopicEnds:
    """Asks for the ends of topics, with one admin client. For one thread."""

    offline: Collection[tuple[str, int]] = frozenset()
    """(topic, partition) of those that `ask` was asked for and that have no leader in Kafka."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin: Any = None
        self._timeout_s = min(5.0, connection.timeout_s)
        self._last: Ends = {}
        self._listed: Collection[str] = ()
        """The topics that the brokers showed when they were asked last."""

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

        A topic may be the name of a partition's slots: they end where the partition does. One
        without a leader ends where it did when it had one, since nothing comes to it; if that is
        not known, it is left out.
        """
        slots = {topic: slot for topic in topics if (slot := slot_of(topic, 0)) is not None}
        topics = (topics - slots.keys()) | {slot.topic for slot in slots.values()}
        if not topics:
            return {}
        listed = self._client().list_topics(timeout=self._timeout_s).topics
        self._listed = listed.keys()
        found = {t: listed[t].partitions for t in topics if t in listed and listed[t].error is None}
        leaders = {(t, p): about.leader for t, parts in found.items() for p, about in parts.items()}
        # Who asks for one without a leader gets no answer about any.
        told = self._latest(TopicPartition(*part) for part, at in leaders.items() if at >= 0)
        offline = {(t, p) for t, p in leaders if p not in told.get(t, {})}
        ends = {topic: told.get(topic, {}) for topic in found}
        for topic, p in offline:
            if p in self._last.get(topic, {}):
                ends[topic][p] = self._last[topic][p]
        self._last = {topic: dict(parts) for topic, parts in ends.items()}
        for name, slot in slots.items():
            if slot.topic in ends:
                end = ends[slot.topic].get(slot.partition)
                ends[name] = {} if end is None else dict.fromkeys(range(slot.slots), end)
                if (slot.topic, slot.partition) in offline:
                    offline |= {(name, p) for p in range(slot.slots)}
        self.offline = offline
        return ends

    def hidden(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that the brokers hide for want of Describe. After `ask`.

        Raises `KafkaException`.
        """
        unseen = [topic for topic in topics if topic not in self._listed]
        return hidden_among(self._client(), unseen, self._timeout_s)

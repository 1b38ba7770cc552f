"""What Kafka knows of the database: the source, as metadata of a committed offset.

It is kept like the checkpoint, in a group of its own that no consumer joins, and without a
transaction: it is the same for every mode, and for destinations that are no Kafka. An older one of
the same database, written late, does no harm, since a database may always be ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from harvest.core.source import Source
from harvest.errors import SinkUnavailable
from harvest.sinks.kafka.clients import make_client_again
from harvest.sinks.kafka.committed_checkpoint import newest_checkpoint
from harvest.sinks.kafka.settings import consumer_settings

__all__ = ["SourceRecord"]

_TIMEOUT_S: Final = 4.0


class SourceRecord:
    """The record of the outbox `name`, for offsets of `topic`, which exists. For one thread.

    Connects when first used. Methods raise `SinkUnavailable`, and `load` also `CheckpointError`.
    """

    def __init__(self, settings: Mapping[str, Any], name: str, topic: str) -> None:
        self._settings = consumer_settings(settings, f"harvest.{name}.source")
        self._topic = topic
        self._consumer: Consumer | None = None

    def load(self) -> Source | None:
        """What was saved last; None if there is nothing."""
        try:
            found = newest_checkpoint(self._connected(), self._topic, _TIMEOUT_S)
        except KafkaException as error:
            self._consumer = None  # the next one asks any broker who the coordinator is
            text = f"what is known of the database cannot be read: {error.args[0].str()}"
            raise SinkUnavailable(text) from error
        return None if found is None else Source.decode(found)

    def save(self, source: Source, *, wait: bool = False) -> None:
        """Keep it; `wait` until the broker has it."""
        offset = TopicPartition(self._topic, 0, 0, metadata=source.encode())
        try:
            if wait:
                self._connected().commit(offsets=[offset], asynchronous=False)
            else:
                self._connected().commit(offsets=[offset], asynchronous=True)
        except KafkaException as error:
            text = f"what is known of the database was not saved: {error.args[0].str()}"
            raise SinkUnavailable(text) from error

    def close(self) -> None:
        """Let go of the brokers. The next use connects again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._consumer = make_client_again(Consumer, self._settings)
        return self._consumer

"""An AdminClient that is made when it is first needed."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from marshal_py.client.kafka_clients import connect, is_mock
from marshal_py.client.settings import KafkaConfig
from marshal_py.consumer.fetcher import CONNECT_S

__all__ = ["AdminOnDemand"]


class AdminOnDemand:
    """For any thread. A start, and an end, are the quicker without the client."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self.client: Any = None
        """The client, None before `get`."""
        self.known_topic: str | None = None
        """A topic that exists: to connect, its metadata are asked for, not those of all topics."""
        self.tells_ids = True
        """Whether the brokers know the ids of topics; `get` finds out."""
        self._kafka = kafka
        self._lock = threading.Lock()

    def get(self) -> Any:
        """Return the client."""
        with self._lock:
            if self.client is None:
                self.client = connect(AdminClient, self._kafka)
                # The first request of a client that is not connected may wait for its time-out.
                with contextlib.suppress(KafkaException):
                    found = self.client.list_topics(self.known_topic, timeout=CONNECT_S)
                    self.tells_ids = not is_mock(found)
            return self.client

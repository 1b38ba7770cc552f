"""The AdminClient of one process: made when it is first needed, and shared.

It costs four threads, and is needed for what librdkafka tells nobody else: the ids of topics.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from marshal_py.client.kafka_clients import NO_CREATION, RECONNECT, connect, is_mock
from marshal_py.client.settings import KafkaConfig

__all__ = ["AdminOnDemand"]

CONNECT_S: Final = 1.0
"""A client that has not connected by then is used as it is."""


class AdminOnDemand:
    """For any thread. A start, and an end, are the quicker without the client."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self.client: Any = None
        """The client, once it has connected (`get`)."""
        self.known_topic: str | None = None
        """A topic that exists: to connect, its metadata are asked for, not those of all topics."""
        self.tells_ids = True
        """Whether the brokers know the ids of topics; `get` finds out."""
        self.is_kept = False
        """Whether it is needed often enough to be kept: a connection costs less than threads."""
        self._config: KafkaConfig = {
            **RECONNECT,
            **NO_CREATION,
            "topic.metadata.refresh.interval.ms": -1,
        }
        self._config |= {k: v for k, v in kafka.items() if not k.startswith("statistics.")}
        self._opened: Any = None
        self._opening, self._connecting = threading.Lock(), threading.Lock()

    def open(self) -> Any:
        """Return the client, as it is: it may have to connect still. Does not wait."""
        with self._opening:
            if self._opened is None:
                self._opened = connect(AdminClient, self._config)
            return self._opened

    def get(self) -> Any:
        """Return the client. Waits until it has connected, for `CONNECT_S` at most."""
        with self._connecting:
            client = self.client
            if client is None:
                client = self.client = self.open()
                # The first request of a client that is not connected may wait for its time-out.
                with contextlib.suppress(KafkaException):
                    found = client.list_topics(self.known_topic, timeout=CONNECT_S)
                    self.tells_ids = not is_mock(found)
            return client

    def rest(self) -> None:
        """It is not needed for a while: disconnect, unless it is kept."""
        if not self.is_kept:
            self.close()

    def close(self) -> None:
        """Disconnect. Whoever waits for an answer keeps the client for so long."""
        with self._opening:
            self._opened = self.client = None

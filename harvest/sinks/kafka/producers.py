"""The producers of a sink, one after the other, and handing rows to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest.core.dead_letters import NO_KEY
from harvest.core.envelope import Envelope
from harvest.core.extra_columns import placement
from harvest.core.kafka_headers import produced_headers
from harvest.core.row import Row, named
from harvest.errors import InvalidRecord, SinkUnavailable
from harvest.sinks.kafka.clients import make_client_again, said
from harvest.sinks.kafka.refusals import RowError
from harvest.sinks.kafka.settings import producer_settings

__all__ = ["ASK_TIMEOUT_S", "Producers", "Report", "produce"]

_LOG: Final = logging.getLogger("harvest.kafka")
_OUTAGE_WARNING_S: Final = 30.0
ASK_TIMEOUT_S: Final = 4.0

Report: TypeAlias = Callable[[KafkaError | None, object], None]
"""What librdkafka calls when the fate of a record is known."""


class Producers:
    """Makes the producers of one sink. `settings` are those of the next one."""

    def __init__(self, config: Mapping[str, Any], transactional_id: str | None) -> None:
        self.settings = producer_settings(config, transactional_id)
        self._spare: Producer | None = None
        self._warned_s = float("-inf")

    def prepare(self) -> None:
        """Have one connected in advance. Raises `SinkUnavailable`."""
        self._spare = self._connected(self._spare or self._new())

    def take(self) -> Producer:
        """A producer that is connected. Raises `SinkUnavailable`."""
        producer, self._spare = self._spare or self._new(), None
        return self._connected(producer)

    def close(self) -> None:
        """Let go of the one that was connected in advance."""
        self._spare = None

    def _new(self) -> Producer:
        return make_client_again(Producer, {"error_cb": self._outage, **self.settings})

    def _connected(self, producer: Producer) -> Producer:
        """A connected producer begins in milliseconds; one that is not waits for a retry timer."""
        try:
            producer.list_topics("__consumer_offsets", timeout=ASK_TIMEOUT_S)
        except KafkaException as error:
            raise SinkUnavailable(f"Kafka cannot be reached: {said(error)}") from error
        return producer

    def _outage(self, error: KafkaError) -> None:
        if (
            error.code() == KafkaError._ALL_BROKERS_DOWN
            and time.monotonic() > self._warned_s + _OUTAGE_WARNING_S
        ):
            self._warned_s = time.monotonic()
            _LOG.warning("no broker answers; trying for as long as it takes")


def produce(
    producer: Producer,
    rows: Sequence[Row],
    report: Callable[[int], Report] | None,
    make_room: Callable[[], None],
    envelope: Envelope | None = None,
) -> None:
    """Hand rows to the producer, in their order.

    - `rows` may be plain tuples; see `harvest.core.row.Row`.
    - `report`: makes what is called with the fate of the row of an id; None: nothing is. It is
      asked before each row, also before the one that then cannot be handed over.
    - `envelope`: what is added to every record.
    - `make_room` is called when the producer's queue is full, until it is not. It may raise.

    Raises `RowError` for a row that cannot be handed over; those after it were not.
    """
    # Row by row is no slower than `produce_batch`, which knows no headers.
    send = producer.produce
    for row in rows:
        row_id, topic, key, value, names, values = row[0], row[1], row[2], row[3], row[4], row[5]
        more: dict[str, Any] = {}
        if report is not None:
            more["on_delivery"] = report(row_id)
        if key is None:
            raise RowError(row_id, NO_KEY)
        if names or values or envelope is not None:
            try:
                more["headers"] = produced_headers(names or (), values or ())
                if envelope is not None:
                    (whole,) = named((row,))
                    value, more["headers"] = envelope.wrap(whole, more["headers"])
                    if envelope.placed:
                        more["headers"], placed = placement(more["headers"])
                        more |= placed
            except InvalidRecord as error:
                raise RowError(row_id, str(error)) from None
        while True:
            try:
                send(topic, value, key, **more)
                break
            except BufferError:
                make_room()
            except KafkaException as error:
                raise RowError(row_id, said(error), error.args[0].code()) from error

"""Handing many rows to librdkafka at once: a third of the work of handing over one by one.

There are no reports of single rows: whether all were written, the commit of the transaction says.
Therefore only for transactions, and only until one fails: which rows the broker refuses is then
found out one by one. Which one librdkafka refuses is known at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest.core.row import Row
from harvest.sinks.kafka.refusals import RowError

__all__ = ["produce_in_bulk"]

_topic: Final = itemgetter(1)
_header_keys: Final = itemgetter(4)
_header_values: Final = itemgetter(5)


def produce_in_bulk(producer: Producer, rows: Sequence[Row]) -> bool:
    """Produce rows, in their order within each topic; False if that cannot be done in bulk.

    Raises `RowError` for a row that cannot be handed over, `KafkaException` if its queue is full.
    """
    if any(map(_header_keys, rows)) or any(map(_header_values, rows)):
        return False  # produce_batch knows no headers
    for topic, its in _by_topic(rows):
        messages: list[dict[str, Any]] = [{"key": row[2], "value": row[3]} for row in its]
        if producer.produce_batch(topic, messages) < len(messages):
            row, error = next(
                (row, message["_error"])
                for row, message in zip(its, messages, strict=True)
                if "_error" in message
            )
            if error.code() == KafkaError._QUEUE_FULL:
                raise KafkaException(error)
            raise RowError(row[0], f"{error.str()} ({error.name()})", error.code())
    return True


def _by_topic(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    topics = set(map(_topic, rows))
    for topic in topics:
        yield topic, rows if len(topics) == 1 else [row for row in rows if row[1] == topic]

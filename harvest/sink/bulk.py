"""Handing many rows to librdkafka at once: a third of the work of handing over one by one.

There are no reports of single rows: whether all were written, the commit of the transaction says.
Therefore only for transactions, and only until one fails: what is wrong with which row is then
found out one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest.rows import Row

__all__ = ["produce_in_bulk"]

_topic: Final = itemgetter(1)
_header_keys: Final = itemgetter(4)
_header_values: Final = itemgetter(5)


def produce_in_bulk(producer: Producer, rows: Sequence[Row]) -> bool:
    """Produce rows, in their order within each topic; False if that cannot be done in bulk.

    Raises `KafkaException` if not every row could be handed over.
    """
    if any(map(_header_keys, rows)) or any(map(_header_values, rows)):
        return False  # produce_batch knows no headers
    for topic, messages in _by_topic(rows):
        if producer.produce_batch(topic, messages) < len(messages):
            reason = next(m["_error"] for m in messages if "_error" in m)
            if not isinstance(reason, KafkaError):
                reason = KafkaError(KafkaError._FAIL, str(reason))
            raise KafkaException(reason)
    return True


def _by_topic(rows: Sequence[Row]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    topics = set(map(_topic, rows))
    for topic in topics:
        its = rows if len(topics) == 1 else [row for row in rows if row[1] == topic]
        yield topic, [{"key": row[2], "value": row[3]} for row in its]

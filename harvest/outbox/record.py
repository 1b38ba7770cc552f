"""The outbox record: what an application writes, and the columns that hold it.

The table is goharvest's, so an existing one works unchanged. `kafka_key`, `kafka_value` and the
header columns may be text or bytes. A NULL `kafka_value` is a tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from harvest.core.topic_names import is_topic
from harvest.errors import InvalidRecord

__all__ = ["Headers", "OutboxRecord"]

Headers: TypeAlias = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class OutboxRecord:
    """One record to publish.

    `key` decides the partition and the order: records of one topic and key are relayed in the
    order of their ids. `value` may be None (a tombstone). `headers` keep their order and may
    repeat a name. `id` is None until the record has been read from the table.

    Raises `InvalidRecord`, naming the field, its value and the way out.
    """

    topic: str
    key: str | bytes
    value: str | bytes | None = None
    headers: tuple[tuple[str, str | bytes], ...] = ()
    id: int | None = None

    def __init__(
        self,
        topic: str,
        key: str | bytes,
        value: str | bytes | None = None,
        headers: Headers = (),
        id: int | None = None,
    ) -> None:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        set_field = object.__setattr__
        set_field(self, "topic", topic)
        set_field(self, "key", key)
        set_field(self, "value", value)
        set_field(self, "headers", _checked_headers(pairs))
        set_field(self, "id", id)
        _check_topic(topic)
        if not isinstance(key, str | bytes):
            raise InvalidRecord(
                f"key is {key!r}: give str or bytes; the key decides the partition and the order "
                "(an empty key, '', is allowed)"
            )
        if value is not None and not isinstance(value, str | bytes):
            raise InvalidRecord(
                f"value is of type {type(value).__name__}: give str, bytes, or None (a tombstone); "
                "serialise objects first, for example with json.dumps"
            )

    @classmethod
    def json(
        cls,
        topic: str,
        key: str | bytes,
        value: Any,
        headers: Headers = (),
        *,
        default: Callable[[Any], Any] | None = None,
    ) -> OutboxRecord:
        """A record whose value is `value` as compact JSON; None becomes ``null``, no tombstone.

        `default` turns what JSON does not know (dates, decimals) into what it does, as in
        `json.dumps`. Raises `InvalidRecord` for what cannot be JSON, NaN and infinities included.
        """
        try:
            text = json.dumps(
                value,
                default=default,
                ensure_ascii=False,
                allow_nan=False,
                separators=(",", ":"),
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRecord(f"value cannot be JSON: {error}; give `default`") from None
        return cls(topic, key, text, headers)


def _check_topic(topic: Any) -> None:
    if not isinstance(topic, str) or not is_topic(topic):
        raise InvalidRecord(
            f"topic is {topic!r}: Kafka allows 1 to 249 of the characters a-z A-Z 0-9 . _ - "
            "and neither '.' nor '..'"
        )


def _checked_headers(pairs: Iterable[Any]) -> tuple[tuple[str, str | bytes], ...]:
    checked = []
    for position, pair in enumerate(pairs):
        try:
            name, value = [pair] if isinstance(pair, str) else pair  # of two letters it is no pair
        except (TypeError, ValueError):
            raise InvalidRecord(
                f"headers[{position}] is {pair!r}: give pairs (name, value) or a mapping"
            ) from None
        if not isinstance(name, str):
            raise InvalidRecord(f"headers[{position}] has the name {name!r}: give str")
        if not isinstance(value, str | bytes):
            raise InvalidRecord(
                f"headers[{position}], {name!r}, has the value {value!r}: give str or bytes "
                "(an empty value, '', is allowed; None is not, goharvest cannot read it)"
            )
        checked.append((name, value))
    return tuple(checked)

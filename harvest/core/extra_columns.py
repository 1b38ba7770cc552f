"""Columns of an outbox beyond those of its layout, as headers of its records. Pure.

A store selects them behind the columns of a `Row`, in their order, as bytes, and `with_extra` makes
headers of them, behind the row's own; NULL is no header. Two headers are not published but say
where a record goes: `PARTITION` and `TIMESTAMP` (`placement`). Being headers they go wherever a row
goes: through dead letters, messages, the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from harvest.core.kafka_headers import Headers
from harvest.errors import InvalidRecord

__all__ = ["NO_EXTRA", "PARTITION", "TIMESTAMP", "Extra", "placement", "with_extra"]

Extra = Mapping[str, str]
"""Names of headers, and the column with the value of each."""

NO_EXTRA: Final[Extra] = {}
PARTITION: Final = "harvest.partition"
TIMESTAMP: Final = "harvest.timestamp"

_HEADER_COLUMNS: Final = 4
_ROW: Final = 6
_MAX_PARTITION: Final = (1 << 31) - 1
_DIGITS: Final = 20
_MAX_TIMESTAMP_MS: Final = (1 << 63) - 1
_CACHED: Final = 1_024


def with_extra(rows: Sequence[Any], extra: Extra) -> list[Any]:
    """The rows as they were selected, with the extra columns as headers; what follows stays."""
    if not extra:
        return list(rows)
    names = tuple([name.encode() for name in extra])
    end = _ROW + len(names)
    made = []
    for row in rows:
        values = row[_ROW:end]
        given = tuple([value is not None for value in values])
        keys, its = row[_HEADER_COLUMNS:_ROW]
        if any(given):
            keys = (keys or ()) + _given(names, given)
            its = (its or ()) + tuple([value for value in values if value is not None])
        made.append((*row[:_HEADER_COLUMNS], keys, its, *row[end:]))
    return made


@lru_cache(_CACHED)
def _given(names: tuple[bytes, ...], given: tuple[bool, ...]) -> tuple[bytes, ...]:
    return tuple([name for name, there in zip(names, given, strict=True) if there])


def placement(
    headers: Iterable[tuple[str, str | bytes | None]],
) -> tuple[Headers, dict[str, int]]:
    """The headers that are published, and what the two others say: `partition`, `timestamp` (ms).

    Raises `InvalidRecord` for what is no partition, or no time.
    """
    placed: dict[str, int] = {}
    rest: Headers = []
    for name, value in headers:
        if name == PARTITION:
            placed["partition"] = _partition(value)
        elif name == TIMESTAMP:
            placed["timestamp"] = _timestamp_ms(value)
        else:
            rest.append((name, value))
    return rest, placed


def _partition(value: str | bytes | None) -> int:
    text = _text(value)
    # Of more than 4,300 digits Python makes no number.
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= _MAX_PARTITION:
        return int(text)
    raise InvalidRecord(f"the partition is {text!r}: write its number, 0 or larger, or NULL")


def _timestamp_ms(value: str | bytes | None) -> int:
    """Milliseconds since 1970, or a time in ISO 8601, which is UTC if it does not say."""
    text = _text(value)
    found = 0
    if text.isascii() and text.isdigit():
        found = int(text[:_DIGITS])
    else:
        try:
            at = datetime.fromisoformat(text)
            found = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
    if 0 < found <= _MAX_TIMESTAMP_MS:  # to the producer, 0 is no time
        return found
    raise InvalidRecord(
        f"the timestamp is {text!r}: write a time after 1970, as milliseconds or as "
        "2026-01-31T12:00:00Z, or NULL"
    )


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

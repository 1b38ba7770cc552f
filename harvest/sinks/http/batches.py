"""Several rows as the body of one request. Pure (specs/RELAYER.md §4)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Final, Literal

from harvest.core.envelope import CloudEvents, is_json
from harvest.core.row import Row
from harvest.errors import InvalidRecord

__all__ = ["batch_body", "batch_key"]

_KEY_DIGITS: Final = 32


def batch_key(rows: Sequence[tuple[Row, str]]) -> str:
    """The idempotency key of a batch: another one for other rows."""
    digest = hashlib.sha256("\n".join([key for _, key in rows]).encode()).hexdigest()
    return f"batch_{digest[:_KEY_DIGITS]}"


def batch_body(
    rows: Sequence[tuple[Row, str]],
    format: Literal["records", "values"],
    cloudevents: CloudEvents | None = None,
) -> bytes:
    """A JSON array. Values that are JSON go in as they were written.

    - ``records``: of objects ``id`` (the idempotency key of the row), ``topic``, ``key``,
      ``headers`` (an object) and ``value``; of another value than JSON, and another key than text,
      the base64 as ``value_base64`` and ``key_base64``.
    - ``values``: of the values.
    - `cloudevents`: of CloudEvents, as their JSON batch format has them.

    Raises `InvalidRecord` for a row that cannot be said so.
    """
    if cloudevents is not None:
        parts = [cloudevents.structured(row) for row, _ in rows]
    elif format == "values":
        parts = [_value(row) for row, _ in rows]
    else:
        parts = [_record(row, key) for row, key in rows]
    return b"[" + b",".join(parts) + b"]"


def _value(row: Row) -> bytes:
    if row.value is not None and not is_json(row.value):
        raise InvalidRecord("the value is no JSON, and the batch has format: values")
    return b"null" if row.value is None else row.value


def _record(row: Row, unique: str) -> bytes:
    said: dict[str, object] = {"id": unique, "topic": row.topic}
    key = row.key or b""
    try:
        said["key"] = key.decode()
    except UnicodeDecodeError:
        said["key_base64"] = base64.b64encode(key).decode()
    try:
        said["headers"] = {
            (name or b"").decode(): None if its is None else its.decode()
            for name, its in zip(row.header_keys, row.header_values, strict=True)
        }
    except UnicodeDecodeError:
        raise InvalidRecord("a header is no UTF-8, and a batch is JSON") from None
    if row.value is not None and not is_json(row.value):
        said["value_base64"] = base64.b64encode(row.value).decode()
        return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    head = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return head + b',"value":' + (b"null" if row.value is None else row.value) + b"}"

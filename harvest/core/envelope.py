"""What a record says beside its row: where the row was, or that it is a CloudEvent. Pure.

CloudEvents 1.0 in the Kafka protocol binding: *binary* has the attributes as headers ``ce_…``, and
the value as it is; *structured* has both as one JSON object. NULL stays NULL: a tombstone. A row
that has a header ``ce_specversion`` is an event already, and goes along unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from harvest.core.kafka_headers import Headers
from harvest.core.row import Row
from harvest.core.templates import Template
from harvest.errors import InvalidRecord

__all__ = ["BATCH", "STRUCTURED", "CloudEvents", "Envelope", "is_json"]

_VERSION_HEADER: Final = b"ce_specversion"
_CONTENT_TYPE: Final = "content-type"
STRUCTURED: Final = b"application/cloudevents+json; charset=UTF-8"
BATCH: Final = b"application/cloudevents-batch+json; charset=UTF-8"
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """Makes CloudEvents of rows.

    `id`, `source` and `type`: templates of the attributes; id and source together must not come
    again. `content_type`: of the values. `time`: a template, too, of what RFC 3339 calls a time.
    """

    id: Template
    source: Template
    type: Template
    mode: Literal["binary", "structured"] = "binary"
    content_type: str = "application/json"
    time: Template | None = None

    def attributes(self, row: Row) -> dict[str, str]:
        """What is said of the event, but for its data. Raises `InvalidRecord`."""
        attributes = {
            "specversion": "1.0",
            "id": self.id.render(row),
            "source": self.source.render(row),
            "type": self.type.render(row),
        }
        if self.time is not None:
            attributes["time"] = time = self.time.render(row)
            if not _TIME.fullmatch(time):
                raise InvalidRecord(
                    f"the time of the CloudEvent is {time!r}: write 2026-01-31T12:00:00Z"
                )
        return attributes

    def structured(self, row: Row) -> bytes:
        """The event as one JSON object. Raises `InvalidRecord`."""
        attributes = self.attributes(row)
        if row.value is None:
            return json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()
        attributes["datacontenttype"] = self.content_type
        return _structured(attributes, row.value)

    def wrap(self, row: Row, value: bytes | None, headers: Headers) -> tuple[bytes | None, Headers]:
        """The value and the headers of the record. Raises `InvalidRecord`."""
        if _VERSION_HEADER in (row.header_keys or ()):
            return value, headers
        attributes = self.attributes(row)
        given = any(name.lower() == _CONTENT_TYPE for name, _ in headers)
        if self.mode == "binary" or value is None:
            added: Headers = [(f"ce_{name}", its.encode()) for name, its in attributes.items()]
            if not given and value is not None:
                added.append((_CONTENT_TYPE, self.content_type.encode()))
            return value, [*headers, *added]
        attributes["datacontenttype"] = self.content_type
        others = [(name, its) for name, its in headers if name.lower() != _CONTENT_TYPE]
        return _structured(attributes, value), [*others, (_CONTENT_TYPE, STRUCTURED)]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is added to every record.

    `harvest_id`: what goes before the row's id in the header ``harvest-id``; None: no such header.
    `placed`: partition or timestamp are columns; see `harvest.core.extra_columns.placement`.
    """

    harvest_id: str | None = None
    cloudevents: CloudEvents | None = None
    placed: bool = False

    def wrap(self, row: Row, headers: Headers) -> tuple[bytes | None, Headers]:
        """The value and the headers of the record of `row`. Raises `InvalidRecord`."""
        value = row.value
        if self.cloudevents is not None:
            value, headers = self.cloudevents.wrap(row, value, headers)
        if self.harvest_id is not None:
            headers = [*headers, ("harvest-id", f"{self.harvest_id}/{row.id}".encode())]
        return value, headers


def _structured(attributes: dict[str, str], value: bytes) -> bytes:
    """The value goes in as it was written, where it is JSON: numbers keep their digits."""
    head = json.dumps(attributes, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    if attributes["datacontenttype"].partition(";")[0].strip().endswith("json") and is_json(value):
        return head + b',"data":' + value + b"}"
    return head + b',"data_base64":"' + base64.b64encode(value) + b'"}'


def is_json(value: bytes) -> bool:
    """Whether it may stand in a JSON text as it is."""
    try:
        json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")

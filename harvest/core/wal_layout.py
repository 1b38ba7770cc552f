"""Which columns of a table, or which messages, are records: the layout of an outbox. Pure.

goharvest's table is the default; `DEBEZIUM` is the one of its Outbox Event Router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["DEBEZIUM", "GOHARVEST", "Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a record.

    - `topic`: the column; with `topic_template`, what replaces ``{}`` in it.
    - `header_keys`, `header_values`: columns with arrays of one length. `headers`: further headers
      by name, and the column with the value of each; one that is NULL is left out.
    - `id`: the column to be named in errors, and that other modes order by.
    """

    topic: str = "kafka_topic"
    key: str = "kafka_key"
    value: str = "kafka_value"
    topic_template: str = "{}"
    header_keys: str | None = "kafka_header_keys"
    header_values: str | None = "kafka_header_values"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_goharvest(self) -> bool:
        """Whether it is the table of every mode, perhaps with further columns."""
        return self.header_keys is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        arrays = (self.header_keys, self.header_values)
        named = (self.topic, self.key, self.value, *arrays, *self.headers.values())
        return tuple(dict.fromkeys(name for name in named if name is not None))


GOHARVEST: Final = Layout()
DEBEZIUM: Final = Layout(
    topic="aggregatetype",
    key="aggregateid",
    value="payload",
    topic_template="outbox.event.{}",
    header_keys=None,
    header_values=None,
    headers={"id": "id"},
)

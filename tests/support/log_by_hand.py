"""A coordination log that a test writes, read as by a `LogReader`, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
)

from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import WorldView, catch_up
from marshal_py.client.log_reader import Batch
from marshal_py.errors import MarshalError
from marshal_py.protocol.messages import Message, encode
from marshal_py.protocol.text.codec import TextRecord
from marshal_py.protocol.text.codec import encode as encode_text
from marshal_py.protocol.wire import MSGPACK, Wire
from marshal_py.protocol.world import Observer

__all__ = ["LogByHand", "Record"]


class Record(NamedTuple):
    """What a consumer returns for a record."""

    where: tuple[str, int, int]
    data: bytes | None
    stamp: tuple[int, int]

    def error(self) -> None:
        """It is none."""

    def topic(self) -> str:
        return self.where[0]

    def partition(self) -> int:
        return self.where[1]

    def offset(self) -> int:
        return self.where[2]

    def value(self) -> bytes | None:
        return self.data

    def timestamp(self) -> tuple[int, int]:
        return self.stamp


class LogByHand:
    """Stands for a `LogReader`. What is written is read when it is asked for: see there."""

    def __init__(self, partitions: int = 1, wire: Wire = MSGPACK) -> None:
        self.wire = wire
        self.topic = "log"
        self.world = wire.world(lambda: 0.0)
        self.world.states[:] = [wire.state(p) for p in range(partitions)]
        self.observers = [Observer() for _ in range(partitions)]
        self.mismatches: list[MarshalError] = []
        self.met_other_wire = False
        self.newest_snapshot: dict[int, int] = {}
        self.partition_count_error: MarshalError | None = None
        self.is_closed = False
        self.until_ms: int | None = None
        """What `open` was told."""
        self._ends = [0] * partitions
        self._unread: list[Record] = []

    # Writing

    def write(
        self, record: Message | TextRecord | bytes, at_ms: int = 0, *, create_time: bool = False
    ) -> int:
        """Append a record to the coordination partition of its group; return its offset."""
        kind = TIMESTAMP_CREATE_TIME if create_time else TIMESTAMP_LOG_APPEND_TIME
        p = 0
        if isinstance(record, bytes):
            value = record
        elif isinstance(record, TextRecord):
            value, kind, at_ms = encode_text(record), TIMESTAMP_NOT_AVAILABLE, -1
        else:
            value, p = encode(record), self.world.home(record.group_id)
        offset = self._ends[p]
        self._ends[p] += 1
        self._unread.append(Record((self.topic, p, offset), value, (kind, at_ms)))
        return offset

    def view(self, *, timeout_s: float = 10.0, at_ms: int | None = None) -> WorldView:
        """Look at the log as it is now."""
        reader: Any = self
        connection = Connection({}, self.topic, timeout_s)
        return catch_up(connection, reader, at_ms=at_ms)

    # Reading, as a `LogReader`

    def open(self, _timeout_s: float, *, until_ms: int | None = None) -> None:
        self.until_ms = until_ms

    def close(self) -> None:
        self.is_closed = True

    def extent(self) -> dict[int, tuple[int, int]]:
        return {p: (0, end) for p, end in enumerate(self._ends)}

    def history(self, *, events: bool = True) -> Iterator[tuple[list[Any], list[Batch]]]:
        messages = self.poll(0)
        yield messages, list(self.fold(messages))
        for p, observer in enumerate(self.observers):
            observer.caught_up_at_offset = self._ends[p]

    def poll(self, _timeout_s: float) -> list[Any]:
        found, self._unread = self._unread, []
        return found

    def fold(self, messages: list[Any]) -> Iterator[Batch]:
        for message in messages:
            if message.topic() != self.topic:
                continue
            p, found = message.partition(), list[Any]()
            self.wire.apply(self.world.states[p], message.offset(), message.value(), found)
            yield Batch(p, found, 0)

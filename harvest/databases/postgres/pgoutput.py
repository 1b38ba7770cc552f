"""The messages of PostgreSQL's output plugin `pgoutput`, protocol version 1: bytes to rows. Pure.

In version 1 the server sends a transaction once it is committed, from its own spool if it is large
(`logical_decoding_work_mem`); so the first message of a transaction says where its commit record
is, and its rows can be passed on before the last has come.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from harvest.core.message import unpack_message
from harvest.core.row import Row, Unreadable
from harvest.core.wal import Chunk
from harvest.core.wal_layout import Layout
from harvest.databases.postgres.header_arrays import elements
from harvest.errors import SchemaError, StoreUnavailable

__all__ = ["BINARY_TYPES", "Decoder", "NotBinary", "Relation", "array_items"]

_HEADER: Final = 25  # of XLogData: 'w', start, end, time
_FIRST_COLUMN: Final = 33  # of a row
_u16: Final = struct.Struct("!H").unpack_from
_u32: Final = struct.Struct("!I").unpack_from
_u64: Final = struct.Struct("!Q").unpack_from

_BEGIN, _COMMIT, _INSERT, _RELATION, _MESSAGE = b"BCIRM"
_NO_VALUE: Final = b"nu"  # NULL, or large and unchanged
_TEXT: Final = b"{["
_ITEMS: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL).findall
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL).sub
_BINARY: Final = ord("b")
BINARY_TYPES: Final = frozenset({17, 25, 114, 1001, 1009, 1015, 1042, 1043})
"""Whose binary form is what is to be published: bytea, text, json, bpchar, varchar, and arrays."""
_BYTEA_OID: Final = 17
_BYTEA_ARRAY_OID: Final = 1001
_WIDTHS: Final = {16: 1, 20: 8, 21: 2, 23: 4, 1082: 4, 1114: 8, 1184: 8, 2950: 16}
"""Types whose values have one width in binary form: numbers, times, UUIDs."""
_MAX_TOPICS: Final = 10_000


class NotBinary(StoreUnavailable):
    """A column has come to be of a type whose binary form is not to be published."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it: before its first row, and again after a change."""

    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    """Name and type."""
    kafka: tuple[int, int, int, int, int] = (0, 0, 0, -1, -1)
    """Where topic, key, value and the arrays of headers are; -1: there are none."""
    headers: tuple[tuple[bytes, int], ...] = ()
    hexadecimal: tuple[int, ...] = ()
    """Where columns of bytes are, if the stream has them in text form."""
    hexadecimal_arrays: tuple[int, ...] = ()
    """And of arrays of bytes."""
    before: tuple[int, ...] = ()
    """Where the columns before the topic begin in a row that has them all, in binary form."""
    begin: int = 0
    """Where the topic begins in such a row, and behind it the others of `kafka`; 0: elsewhere."""


@dataclass(slots=True)
class Decoder:
    """Turns the messages of one stream into chunks of rows.

    - `layout`: the columns of its tables. The publication has the outbox and nothing else.
    - `prefix`: of the logical messages that are records.

    Feed `data` to `feed`; take what is complete from `take`.
    """

    layout: Layout
    prefix: bytes
    binary: bool = True
    """Whether the stream was asked for values in binary form."""
    binary_types: frozenset[int] = BINARY_TYPES
    """Of columns that may come so."""
    to_utf8: Callable[[bytes], bytes] | None = None
    """Of a stream in the database's own encoding, in text form; raises ValueError."""
    rows: int = 0
    """How many rows wait to be taken."""
    size_bytes: int = 0
    lsn: int = 0
    """Everything below it was read; 0: not known. Only right after a commit or a keepalive."""
    _prefix: bytes = field(init=False)
    """As it stands in a message: with a NUL behind it."""
    _relations: dict[int, Relation] = field(default_factory=dict)
    _chunks: list[Chunk] = field(default_factory=list)
    _commit_lsn: int = 0
    _first: int = 0
    _open: list[Row] = field(default_factory=list)
    _last_id: int = 0
    _topics: dict[bytes, str] = field(default_factory=dict)
    _headers: dict[bytes | None, tuple[bytes | None, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prefix = self.prefix + b"\0"

    def take(self) -> Sequence[Chunk]:
        """What was fed since the last time, with the rows of a transaction that is incomplete."""
        chunks, self._chunks = self._chunks, []
        if self._open:
            chunks.append(Chunk(self._commit_lsn, self._first, self._open, 0))
            self._first += len(self._open)
            self._open = []
        self.rows = self.size_bytes = 0
        return chunks

    def feed(self, message: bytes | memoryview) -> None:
        """One XLogData message.

        Raises `SchemaError` for a table that is no outbox, and `NotBinary`.
        """
        kind = message[_HEADER]
        if kind == _INSERT:
            relation = self._relations.get(_u32(message, 26)[0])
            if relation is not None:
                data = bytes(message)
                if not (relation.begin and self._add_plain(relation, data)):
                    self._add(self._row(relation, data))
        elif kind == _BEGIN:
            self._commit_lsn = _u64(message, 26)[0]
            self._first = self._last_id = 0
        elif kind == _COMMIT:
            self.lsn = end_lsn = _u64(message, 35)[0]
            if self._open or self._first:
                self._chunks.append(Chunk(self._commit_lsn, self._first, self._open, end_lsn))
                self._open = []
                self._first = 0
        elif kind == _MESSAGE:
            data = bytes(message)
            # flags 1: it is part of a transaction; others are nobody's records.
            if data[26] == 1 and data.startswith(self._prefix, 35):
                self._add(self._record(data, 39 + len(self._prefix)))
        elif kind == _RELATION:
            self._relation(bytes(message))

    def _add(self, row: Row) -> None:
        self._open.append(row)
        self.rows += 1
        self.size_bytes += 64 + len(row[3] or b"") + len(row[2] or b"")

    def _next_id(self, data: bytes) -> int:
        """Where the row is in the log; of rows that were written together, one after the other.

        Their record is longer than they are many, so no other row has such an id.
        """
        found = int(_u64(data, 1)[0])
        self._last_id = found if found > self._last_id else self._last_id + 1
        return self._last_id

    # --- Rows ---

    def _add_plain(self, relation: Relation, data: bytes) -> bool:
        """Add a row of goharvest's table of which nothing is NULL, as most rows are.

        The same as `_row`, in half the time; False: it is not such a row.
        """
        for at in relation.before:
            if data[at] != _BINARY:
                return False
        at = relation.begin
        if data[at] != _BINARY:
            return False
        begin = at + 5
        at = begin + _u32(data, at + 1)[0]
        name = data[begin:at]
        if data[at] != _BINARY:
            return False
        begin = at + 5
        at = begin + _u32(data, at + 1)[0]
        key = data[begin:at]
        if data[at] != _BINARY:
            return False
        begin = at + 5
        at = begin + _u32(data, at + 1)[0]
        value = data[begin:at]
        if data[at] != _BINARY:
            return False
        begin = at + 5
        at = begin + _u32(data, at + 1)[0]
        names = data[begin:at]
        if data[at] != _BINARY:
            return False
        begin = at + 5
        values = data[begin : begin + _u32(data, at + 1)[0]]
        topic = self._topics.get(name)
        row_id = _u64(data, 1)[0]
        if row_id <= self._last_id:
            row_id = self._last_id + 1
        self._last_id = row_id
        self._open.append(
            # A plain tuple: one with names takes as long as reading the row.
            (  # type: ignore[arg-type]
                row_id,
                self._topic(name) if topic is None else topic,
                key,
                value,
                self._headers.get(names) or self._names(names),
                elements(values),
            )
        )
        self.rows += 1
        self.size_bytes += 64 + len(value) + len(key)
        return True

    def _row(self, relation: Relation, data: bytes) -> Row:
        values: list[bytes | None] = []
        add = values.append
        at = _FIRST_COLUMN
        for _ in range(_u16(data, 31)[0]):
            if data[at] in _NO_VALUE:
                add(None)
                at += 1
                continue
            start = at + 5
            at = start + _u32(data, at + 1)[0]
            add(data[start:at])
        problem = self._convert(values) if self.to_utf8 is not None else None
        topic_at, key_at, value_at, names_at, values_at = relation.kafka
        if relation.hexadecimal:
            for place in relation.hexadecimal:
                values[place] = _from_hex(values[place])
        names: tuple[bytes | None, ...] = ()
        its: tuple[bytes | None, ...] = ()
        if names_at >= 0:
            names, its = self._names(values[names_at]), _array(values[values_at])
            if names_at in relation.hexadecimal_arrays:
                names = tuple(map(_from_hex, names))
            if values_at in relation.hexadecimal_arrays:
                its = tuple(map(_from_hex, its))
        for name, place in relation.headers:
            found = values[place]
            if found is not None:
                names += (name,)
                its += (found,)
        topic = self._topics.get(values[topic_at] or b"")
        if topic is None:
            topic = self._topic(values[topic_at] or b"")
        if problem is not None:
            names = Unreadable.because(problem, names)
        return Row(self._next_id(data), topic, values[key_at], values[value_at], names, its)

    def _convert(self, values: list[bytes | None]) -> str | None:
        """To UTF-8, in place, what is not; why something cannot be, which stays as it is stored."""
        assert self.to_utf8 is not None  # noqa: S101
        problem = None
        for at, value in enumerate(values):
            if value is not None and not value.isascii():
                try:
                    values[at] = self.to_utf8(value)
                except ValueError as error:
                    problem = f"the database cannot hand it over: {error}"
        return problem

    def _names(self, array: bytes | None) -> tuple[bytes | None, ...]:
        """The names of headers: of most rows the same."""
        found = self._headers.get(array)
        if found is None:
            if len(self._headers) >= _MAX_TOPICS:
                self._headers.clear()
            found = self._headers[array] = _array(array)
        return found

    def _topic(self, name: bytes) -> str:
        if len(self._topics) >= _MAX_TOPICS:
            self._topics.clear()
        text = name.decode("utf-8", "replace")
        topic = self._topics[name] = self.layout.topic_template.replace("{}", text)
        return topic

    def _record(self, data: bytes, at: int) -> Row:
        row_id = self._next_id(data) - 1  # a message says where it ends
        try:
            return (row_id, *unpack_message(data[at:]))  # type: ignore[return-value]
        except ValueError as error:
            # Not to be lost: it has no topic that Kafka allows, so it is set aside.
            text = f"a message that cannot be read: {error}"
            return Row(row_id, text, None, data[at:])

    # --- Tables ---

    def _relation(self, data: bytes) -> None:
        number = _u32(data, 26)[0]
        schema, at = _string(data, 30)
        name, at = _string(data, at)
        columns = []
        count = _u16(data, at + 1)[0]
        at += 3
        for _ in range(count):
            column, at = _string(data, at + 1)
            columns.append((column, _u32(data, at)[0]))
            at += 8
        self._relations[number] = self._bound(Relation(schema, name, tuple(columns)))

    def _bound(self, relation: Relation) -> Relation:
        """The same, with the places of the layout's columns."""
        places = {name: at for at, (name, _) in enumerate(relation.columns)}

        def place(name: str | None) -> int:
            if name is None:
                return -1
            if name not in places:
                raise SchemaError(
                    f"the table {relation.name} has no column {name} in the stream: rename it "
                    "back, or give the layout in `wal`; does the publication leave it out?"
                )
            return places[name]

        layout = self.layout
        if self.binary:
            for name in layout.columns:
                self._check_binary(relation, place(name))
        kafka = (
            place(layout.topic),
            place(layout.key),
            place(layout.value),
            place(layout.header_keys),
            place(layout.header_values),
        )
        before, begin = self._plain(relation, kafka)

        def in_text_form(wanted: int) -> tuple[int, ...]:
            if self.binary:
                return ()
            return tuple([at for at, (_, oid) in enumerate(relation.columns) if oid == wanted])

        return Relation(
            relation.schema,
            relation.name,
            relation.columns,
            kafka,
            tuple([(name.encode(), place(column)) for name, column in layout.headers.items()]),
            in_text_form(_BYTEA_OID),
            in_text_form(_BYTEA_ARRAY_OID),
            before,
            begin,
        )

    def _check_binary(self, relation: Relation, place: int) -> None:
        column, oid = relation.columns[place]
        if oid not in self.binary_types:
            text = f"the column {column} of {relation.name} has another type now (number {oid})"
            raise NotBinary(f"{text}: what follows is read in text form")

    def _plain(self, relation: Relation, kafka: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """`Relation.before` and `begin`, where `_add_plain` can be tried."""
        first, widths = kafka[0], []
        for _, oid in relation.columns[:first]:
            widths.append(_WIDTHS.get(oid, 0))
        is_plain = self.binary and self.to_utf8 is None and not self.layout.headers
        if not is_plain or not all(widths) or kafka != tuple(range(first, first + 5)):
            return (), 0
        places = [_FIRST_COLUMN]
        for width in widths:
            places.append(places[-1] + 5 + width)
        return tuple(places[:-1]), places[-1]


def array_items(text: bytes) -> tuple[bytes | None, ...]:
    """The items of an array in its text form, ``{a,"b c",NULL}``, one after the other.

    Of several dimensions ``{{a},{b}}``, and if they do not count from one ``[0:1]={a,b}``.
    """
    if text.startswith(b"["):
        text = text.partition(b"=")[2]
    return tuple(
        [
            _ESCAPED(rb"\1", quoted) if not plain else None if plain == b"NULL" else plain
            for quoted, plain in _ITEMS(text)
        ]
    )


def _array(data: bytes | None) -> tuple[bytes | None, ...]:
    """The items of an array; its text form begins with a brace or a bracket, the other does not."""
    if not data or data == b"{}":
        return ()
    return array_items(data) if data[0] in _TEXT else elements(data)


def _from_hex(value: bytes | None) -> bytes | None:
    """Bytes, of which the text form is not what is to be published."""
    if value is None or not value.startswith(b"\\x"):
        return value
    return bytes.fromhex(value[2:].decode())


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(errors="replace"), end + 1

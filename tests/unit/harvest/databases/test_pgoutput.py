"""pgoutput's messages, in text and in binary form; and records as messages."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harvest.core.message import pack_message, unpack_message
from harvest.core.wal_layout import GOHARVEST
from harvest.databases.postgres import pgoutput
from harvest.databases.postgres.pgoutput import (
    BINARY_TYPES,
    Decoder,
    NotBinary,
    array_items,
)
from harvest.errors import SchemaError

COLUMNS = (
    ("kafka_topic", 1043),
    ("kafka_key", 25),
    ("kafka_value", 17),
    ("kafka_header_keys", 1009),
    ("kafka_header_values", 1009),
)


def data(lsn: int, content: bytes) -> bytes:
    return b"w" + struct.pack("!QQQ", lsn, lsn, 0) + content


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def relation(columns: tuple[tuple[str, int], ...] = COLUMNS) -> bytes:
    head = b"R" + struct.pack("!I", 7) + text("public") + text("outbox") + b"d"
    described = [b"\0" + text(name) + struct.pack("!II", oid, 0) for name, oid in columns]
    return data(0, head + struct.pack("!H", len(columns)) + b"".join(described))


def begin(lsn: int) -> bytes:
    return data(lsn, b"B" + struct.pack("!QQI", lsn, 0, 1))


def commit(lsn: int) -> bytes:
    return data(lsn, b"C\0" + struct.pack("!QQQ", lsn, lsn + 8, 0))


def insert(lsn: int, form: bytes, *values: bytes | None) -> bytes:
    parts = [b"n" if v is None else form + struct.pack("!I", len(v)) + v for v in values]
    head = b"I" + struct.pack("!I", 7) + b"N" + struct.pack("!H", len(values))
    return data(lsn, head + b"".join(parts))


def decoder(*, binary: bool) -> Decoder:
    made = Decoder(GOHARVEST, b"harvest.outbox", binary)
    made.feed(relation())
    return made


def test_a_row_in_text_form() -> None:
    made = decoder(binary=False)
    made.feed(begin(200))
    made.feed(insert(110, b"t", b"t", b"k", b"\\x00ff", b'{a,"b c"}', b'{NULL,"x\\"y"}'))
    made.feed(insert(110, b"t", b"t", b"k", None, b"{}", b"{}"))
    made.feed(commit(200))
    (chunk,) = made.take()
    assert (chunk.commit_lsn, chunk.first, chunk.end_lsn, made.lsn) == (200, 0, 208, 208)
    assert tuple(chunk.rows[0]) == (110, "t", b"k", b"\x00\xff", (b"a", b"b c"), (None, b'x"y'))
    assert tuple(chunk.rows[1]) == (111, "t", b"k", None, (), ())


def test_a_row_in_binary_form() -> None:
    array = struct.pack("!iiI", 1, 1, 25) + struct.pack("!ii", 2, 1)
    array += struct.pack("!i", 1) + b"a" + struct.pack("!i", -1)
    made = decoder(binary=True)
    made.feed(begin(200))
    made.feed(insert(110, b"b", b"t", b"k", b"\\x00", array, struct.pack("!iiI", 0, 0, 25)))
    (part,) = made.take()
    assert part.end_lsn == 0
    assert tuple(part.rows[0]) == (110, "t", b"k", b"\\x00", (b"a", None), ())
    made.feed(commit(200))
    (rest,) = made.take()
    assert (rest.first, list(rest.rows), rest.end_lsn) == (1, [], 208)


def test_a_transaction_comes_in_as_many_parts_as_it_is_taken_in() -> None:
    """Its rows are counted through; what was taken takes no room any more."""
    made = decoder(binary=False)
    made.feed(begin(200))
    firsts = []
    for number, rows in enumerate((2, 1, 1)):
        for _ in range(rows):
            made.feed(insert(110 + number, b"t", b"t", b"k", b"v", b"{}", b"{}"))
        assert (made.rows, made.size_bytes) == (rows, rows * (64 + 2))
        (part,) = made.take()
        firsts.append((part.first, len(part.rows), part.end_lsn))
        assert (made.rows, made.size_bytes) == (0, 0)
    assert firsts == [(0, 2, 0), (2, 1, 0), (3, 1, 0)]
    made.feed(commit(200))
    (rest,) = made.take()
    assert (rest.first, rest.end_lsn) == (4, 208)


def test_what_is_kept_of_topics_and_headers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may have ever other ones, and a stream lasts for months."""
    monkeypatch.setattr(pgoutput, "_MAX_TOPICS", 3)
    made = decoder(binary=False)
    made.feed(begin(200))
    for n in range(10):
        made.feed(insert(110 + n, b"t", b"t%d" % n, b"k", b"v", b"{h%d}" % n, b"{1}"))
        assert len(made._topics) <= 3
        assert len(made._headers) <= 3
    (part,) = made.take()
    assert [(row.topic, row.header_keys) for row in part.rows] == [
        (f"t{n}", (b"h%d" % n,)) for n in range(10)
    ]


def array(items: list[bytes | None]) -> bytes:
    if not items:
        return struct.pack("!iiI", 0, 0, 25)
    made = struct.pack("!iiI", 1, 1, 25) + struct.pack("!ii", len(items), 1)
    for item in items:
        made += struct.pack("!i", -1) if item is None else struct.pack("!i", len(item)) + item
    return made


VALUE = st.none() | st.binary(max_size=9)
ITEMS = st.none() | st.lists(VALUE, max_size=3).map(array)
NUMBER = st.none() | st.just(struct.pack("!q", 5))


PLAIN = (*[struct.pack("!q", 5)] * 2, b"t", b"k", b"v", array([]), array([]), None)


@example([PLAIN, PLAIN])
@given(st.lists(st.tuples(NUMBER, NUMBER, VALUE, VALUE, VALUE, ITEMS, ITEMS, NUMBER), max_size=9))
def test_rows_without_a_null_are_read_in_a_shorter_way_and_as_all_others(
    rows: list[tuple[bytes | None, ...]],
) -> None:
    columns = (("id", 20), ("create_time", 1184), *COLUMNS, ("leader", 20))
    found = []
    for shorter in (True, False):
        made = Decoder(GOHARVEST, b"harvest.outbox")
        made.feed(relation(columns))
        assert made._relations[7].begin == 59
        if not shorter:
            made._relations[7] = replace(made._relations[7], begin=0)
        made.feed(begin(200))
        for values in rows:
            made.feed(memoryview(insert(110, b"b", *values)))
        counts = made.rows, made.size_bytes
        chunks = made.take()
        found.append((counts, [tuple(row) for chunk in chunks for row in chunk.rows]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "columns",
    [
        (("name", 25), *COLUMNS),  # of any width
        (COLUMNS[1], COLUMNS[0], *COLUMNS[2:]),
        (*COLUMNS[:4], ("more", 25), COLUMNS[4]),
    ],
)
def test_tables_with_other_columns_are_read_as_their_rows_say(
    columns: tuple[tuple[str, int], ...],
) -> None:
    made = Decoder(GOHARVEST, b"harvest.outbox")
    made.feed(relation(columns))
    made.feed(begin(200))
    values = {"kafka_topic": b"t", "kafka_key": b"k", "kafka_value": b"v"}
    empty = array([])
    made.feed(insert(110, b"b", *[values.get(name, empty) for name, _ in columns]))
    ((chunk,),) = [made.take()]
    assert tuple(chunk.rows[0]) == (110, "t", b"k", b"v", (), ())


def test_a_column_that_is_not_in_the_stream_is_told() -> None:
    with pytest.raises(SchemaError, match="no column kafka_value"):
        Decoder(GOHARVEST, b"").feed(relation(COLUMNS[:2]))


@pytest.mark.parametrize("column", range(len(COLUMNS)))
def test_a_type_that_changes_while_the_stream_goes_on_ends_one_in_binary_form(column: int) -> None:
    """The binary form of JSONB begins with its version, that of a number is no text."""
    other = [*COLUMNS]
    other[column] = (COLUMNS[column][0], 3802)
    made = decoder(binary=True)
    with pytest.raises(NotBinary, match=rf"the column {other[column][0]} .*\(number 3802\)"):
        made.feed(relation(tuple(other)))
    Decoder(GOHARVEST, b"", binary_types=BINARY_TYPES | {3802}).feed(relation(tuple(other)))
    decoder(binary=False).feed(relation((("id", 3802), *other)))
    made.feed(relation((("id", 3802), *COLUMNS)))


def message(lsn: int, prefix: str, content: bytes, flags: int = 1) -> bytes:
    head = b"M" + bytes([flags]) + struct.pack("!Q", lsn) + text(prefix)
    return data(lsn, head + struct.pack("!I", len(content)) + content)


def test_messages_of_other_outboxes_and_outside_of_transactions_are_passed_over() -> None:
    made = decoder(binary=True)
    made.feed(begin(200))
    made.feed(message(110, "harvest.other", pack_message("t", b"k", b"1")))
    made.feed(message(120, "harvest.outbox", pack_message("t", b"k", b"2"), flags=0))
    made.feed(message(130, "harvest.outbox", pack_message("t", b"k", b"3")))
    made.feed(message(140, "harvest.outbox", b"\7 no record"))
    made.feed(commit(200))
    (chunk,) = made.take()
    assert [row[3] for row in chunk.rows] == [b"3", b"\7 no record"]
    assert [row[0] for row in chunk.rows] == [129, 139], "a message says where it ends"
    assert chunk.rows[1][2] is None  # so it is set aside


OPTIONAL = st.none() | st.binary(max_size=20)


@given(
    st.text("abc", max_size=9),
    OPTIONAL,
    OPTIONAL,
    st.lists(st.tuples(st.binary(max_size=9), OPTIONAL)),
)
def test_a_record_comes_out_of_a_message_as_it_went_in(
    topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes | None]]
) -> None:
    content = pack_message(topic, key, value, headers)
    found = unpack_message(content)
    assert found[:3] == (topic, key, value)
    assert list(zip(found.header_keys, found.header_values, strict=True)) == headers
    with pytest.raises(ValueError, match="it "):
        unpack_message(content + b"x")


def test_a_key_that_is_null_is_no_empty_one() -> None:
    """A length of -1 says so: 4 bytes behind the version and the length of the topic."""
    null, empty = (pack_message("t", key, b"v") for key in (None, b""))
    assert (null[3:7], empty[3:7]) == (b"\xff\xff\xff\xff", bytes(4))
    made = decoder(binary=True)
    made.feed(begin(200))
    made.feed(message(110, "harvest.outbox", null))
    made.feed(message(120, "harvest.outbox", empty))
    made.feed(commit(200))
    (chunk,) = made.take()
    assert [row[2] for row in chunk.rows] == [None, b""]


@given(st.binary(min_size=1, max_size=60))
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"version|it "):
        unpack_message(bytes([content[0] | 2]) + content[1:])


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (b"[0:1]={a,b}", (b"a", b"b")),
        (b"[-2:-1][3:3]={{a},{NULL}}", (b"a", None)),
        (b'{{a,"b}"},{NULL,"{,"}}', (b"a", b"b}", None, b"{,")),
        (b"{=[1:1]=,NULLS}", (b"=[1:1]=", b"NULLS")),
    ],
)
def test_arrays_of_other_shapes_in_text_form(text: bytes, items: tuple[bytes | None, ...]) -> None:
    """All items, row by row, as in binary form."""
    assert array_items(text) == items


def test_headers_of_bytes_in_text_form() -> None:
    bytes_array = (*COLUMNS[:-1], ("kafka_header_values", 1001))
    made = Decoder(GOHARVEST, b"harvest.outbox", binary=False)
    made.feed(relation(bytes_array))
    made.feed(begin(200))
    values = b'{"\\\\x00ff",NULL,"\\\\x"}'
    made.feed(insert(110, b"t", b"t", b"k", b"\\x78", b"[2:4]={a,b,c}", values))
    (part,) = made.take()
    names = (b"a", b"b", b"c")
    assert tuple(part.rows[0]) == (110, "t", b"k", b"x", names, (b"\x00\xff", None, b""))


def test_of_several_dimensions_all_items_count_in_binary_form() -> None:
    head = struct.pack("!iiI", 2, 0, 25) + struct.pack("!iiii", 1, 1, 2, 1)
    both = head + b"".join(struct.pack("!i", 1) + item for item in (b"a", b"b"))
    made = decoder(binary=True)
    made.feed(begin(200))
    made.feed(insert(110, b"b", b"t", b"k", b"v", both, both))
    (part,) = made.take()
    assert tuple(part.rows[0]) == (110, "t", b"k", b"v", (b"a", b"b"), (b"a", b"b"))


def test_arrays_in_text_form() -> None:
    assert array_items(b'{a,"",NULL,"NULL","a,b","\\\\"}') == (
        b"a",
        b"",
        None,
        b"NULL",
        b"a,b",
        b"\\",
    )


@pytest.mark.parametrize("binary", [True, False])
def test_the_id_of_a_row_does_not_depend_on_what_was_committed_before(*, binary: bool) -> None:
    """It is where the row is in the log, and whoever reads it again begins elsewhere. Of two
    transactions, the one that ends first may have begun last."""
    form = b"b" if binary else b"t"
    empty = struct.pack("!iiI", 0, 0, 25) if binary else b"{}"
    made = decoder(binary=binary)
    for at, end in ((500, 600), (300, 700)):
        made.feed(begin(end))
        made.feed(insert(at, form, b"t", b"k", b"v", empty, empty))
        made.feed(commit(end))
    assert [row[0] for chunk in made.take() for row in chunk.rows] == [500, 300]

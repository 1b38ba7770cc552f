"""Outbox records, table names, terms and checkpoints."""

from __future__ import annotations

from uuid import UUID

import pytest
from confluent_kafka.serialization import IntegerSerializer, SerializationContext, StringSerializer
from hypothesis import given
from hypothesis import strategies as st

from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.table_name import TableName
from harvest.errors import CheckpointError, ConfigurationError, InvalidRecord
from harvest.outbox.record import OutboxRecord
from harvest.outbox.serializer import RecordSerializer


def test_a_record_keeps_what_it_is_given() -> None:
    headers: dict[str, str | bytes] = {"a": "1", "b": b"2"}
    record = OutboxRecord("orders", "k", b"v", headers, id=3)
    assert record.headers == (("a", "1"), ("b", b"2"))
    assert (record.topic, record.key, record.value, record.id) == ("orders", "k", b"v", 3)


def test_headers_may_repeat_and_keep_their_order() -> None:
    assert OutboxRecord("t", "k", headers=[("b", "1"), ("a", "2"), ("b", "3")]).headers == (
        ("b", "1"),
        ("a", "2"),
        ("b", "3"),
    )


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "x" * 250, "ä", None, 3])
def test_a_topic_that_kafka_refuses_is_refused(topic: object) -> None:
    with pytest.raises(InvalidRecord, match=r"topic is .*249"):
        OutboxRecord(topic, "k")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("key is None", {"key": None}),
        ("key is 3", {"key": 3}),
        ("value is of type dict", {"value": {}}),
        (r"headers\[0\] is 'ab3'", {"headers": ["ab3"]}),
        (r"headers\[0\] is 'id'", {"headers": ("id", "42")}),
        (r"headers\[1\] has the name 3", {"headers": [("a", "b"), (3, "x")]}),
        (r"headers\[0\], 'a', has the value None", {"headers": {"a": None}}),
    ],
)
def test_an_invalid_field_is_named_with_its_value(field: str, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRecord, match=field):
        OutboxRecord(**{"topic": "t", "key": "k", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "parts", "quoted"),
    [
        ("outbox", ("outbox",), '"outbox"'),
        ("Billing.OutBox", ("billing", "outbox"), '"billing"."outbox"'),
        ('"Billing".outbox', ("Billing", "outbox"), '"Billing"."outbox"'),
        ('"a.b"."c""d"', ("a.b", 'c"d'), '"a.b"."c""d"'),
        (" outbox ", ("outbox",), '"outbox"'),
        ("café", ("café",), '"café"'),
    ],
)
def test_table_names_are_read_as_sql_reads_them(
    text: str, parts: tuple[str, ...], quoted: str
) -> None:
    name = TableName.parse(text)
    assert name.parts == parts
    assert name.quoted() == quoted
    assert TableName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a;drop table x", "a.b.c", 'a"b', '"a', "a.", ".a", "1a", '""', "a--", "x" * 64],
)
def test_a_table_name_that_is_no_identifier_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="table name"):
        TableName.parse(text)


@given(st.text(min_size=1, max_size=15), st.text(min_size=1, max_size=15))
def test_any_quoted_name_round_trips(schema: str, table: str) -> None:
    name = TableName((schema, table))
    if not {"\x00", "%"} & {*schema, *table}:
        assert TableName.parse(name.quoted()) == name


@given(st.integers(0, 2**60 - 1), st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
def test_the_tags_of_a_term_are_ordered_and_lie_between_its_ends(
    entropy: int, one: int, other: int
) -> None:
    term = Term.of(entropy)
    assert term.first <= term.tag(one) <= term.last
    assert (term.tag(one) < term.tag(other)) == (one < other)
    assert UUID(str(term.tag(one))).version == 8


@given(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
def test_different_terms_have_different_tags(one: int, other: int) -> None:
    first, second = sorted((Term.of(one), Term.of(other)), key=lambda term: term.prefix)
    assert one == other or first.last < second.first


ids = st.integers(-(2**63), 2**63 - 1)


@given(ids, st.integers(0, 2**60 - 1), st.integers(0, 2**62 - 1), ids, ids)
def test_checkpoints_round_trip_and_are_short(
    epoch: int, entropy: int, batch: int, low: int, high: int
) -> None:
    checkpoint = Checkpoint(epoch, Term.of(entropy), batch, low, high)
    text = checkpoint.encode()
    assert len(text) < 200
    assert Checkpoint.decode(text) == checkpoint


@pytest.mark.parametrize("text", ["", "x", "[]", "[2,1,2,3,4,5]", '[1,1,"zz",3,4,5]', "{}", "3"])
def test_a_foreign_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.decode(text)


def test_json_is_compact_and_knows_no_tombstone() -> None:
    record = OutboxRecord.json("t", "k", {"ä": [1, None]}, {"h": "1"})
    assert (record.value, record.headers) == ('{"ä":[1,null]}', (("h", "1"),))
    assert OutboxRecord.json("t", "k", None).value == "null"
    assert OutboxRecord.json("t", "k", {1, 2}, default=sorted).value == "[1,2]"


@pytest.mark.parametrize("value", [{1}, float("nan"), object()])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidRecord, match="value cannot be JSON"):
        OutboxRecord.json("t", "k", value)


def test_serialisers_are_called_as_confluent_kafka_calls_them() -> None:
    def serialise(value: object, context: SerializationContext) -> bytes:
        assert isinstance(context.headers, list)
        context.headers.append(("schema", context.field.encode()))
        return f"{context.topic}:{value}".encode()

    record = RecordSerializer(key=serialise, value=serialise).record("t", 7, [8], {"own": "x"})
    assert (record.key, record.value) == (b"t:7", b"t:[8]")
    assert record.headers == (("own", "x"), ("schema", b"key"), ("schema", b"value"))
    assert RecordSerializer().record("t", "k", None).value is None


def test_a_serialiser_of_confluent_kafka_fits() -> None:
    records = RecordSerializer(key=StringSerializer("utf_8"), value=IntegerSerializer())
    record = records.record("t", "ä", 258)
    assert (record.key, record.value) == ("ä".encode(), b"\0\0\1\2")

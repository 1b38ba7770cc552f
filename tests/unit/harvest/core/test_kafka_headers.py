"""Headers of a row, as every producer sends them (specs/HARVEST.md §11)."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from harvest.core.dead_letters import problem
from harvest.core.kafka_headers import kafka_headers
from harvest.core.row import Row
from harvest.errors import InvalidRecord
from harvest.sinks.kafka.destination import KafkaDestination, KafkaEndpoint
from harvest.sinks.kafka.producers import produce
from harvest.sinks.kafka.refusals import RowError

BAD: list[tuple[tuple[bytes | None, ...], tuple[bytes | None, ...], str]] = [
    ((b"a", b"b"), (b"1",), "2 header keys and 1 header values"),
    ((b"a", None), (b"1", b"2"), "a header key is NULL"),
    ((b"\xff",), (b"1",), "no text"),
    ((b"a\0b",), (b"1",), "no text"),
]


def row(names: tuple[bytes | None, ...], values: tuple[bytes | None, ...]) -> Row:
    return Row(1, "t", b"k", b"v", names, values)


def test_names_and_values_go_along_as_they_are() -> None:
    names, values = ("é".encode(), b"", "é".encode()), (b"\xff\0", None, b"")
    good = row(names, values)
    assert kafka_headers(good) == [("é", b"\xff\0"), ("", None), ("é", b"")]
    assert problem(good) is None
    assert kafka_headers(row((), ())) == []


@pytest.mark.parametrize(("names", "values", "said"), BAD)
def test_what_cannot_be_sent_is_found_before_it_is(
    names: tuple[bytes | None, ...], values: tuple[bytes | None, ...], said: str
) -> None:
    bad = row(names, values)
    assert said in (problem(bad) or "")
    with pytest.raises(InvalidRecord, match=said):
        kafka_headers(bad)


@pytest.mark.parametrize(("names", "values", "said"), BAD)
def test_a_producer_is_never_given_it(
    names: tuple[bytes | None, ...], values: tuple[bytes | None, ...], said: str
) -> None:
    bad, settings = row(names, values), {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(RowError, match=said):
        produce(Producer(settings), [bad], None, lambda: None)
    outcome = KafkaDestination(KafkaEndpoint(settings)).send(bad, "1", 7)
    assert outcome.lasting
    assert said in (outcome.error or "")

"""What is added to records: the id of their row, and CloudEvents as the Kafka binding has them."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.core.envelope import Envelope
from harvest.core.kafka_headers import kafka_headers
from harvest.core.row import Row
from harvest.core.templates import Template
from harvest.errors import ConfigurationError, InvalidRecord

BASE = {"kafka": {"bootstrap.servers": "x:1"}, "database": "host=x", "group": "shop"}
NUMBER = b'{"price": 12345678901234567890.10}'


def envelope(mode: Literal["binary", "structured"] = "binary", **more: str) -> Envelope:
    events = {"source": "/shop/{topic}", "mode": mode, **more}
    made = validated(ReaperConfig, {**BASE, "cloudevents": events}, "the test").envelope()
    assert made is not None
    return made


def wrapped(made: Envelope, row: Row) -> tuple[bytes | None, dict[str, str | bytes | None]]:
    value, headers = made.wrap(row, kafka_headers(row))
    assert len(dict(headers)) == len(headers)
    return value, dict(headers)


def test_nothing_is_added_unless_it_is_asked_for() -> None:
    assert validated(ReaperConfig, BASE, "the test").envelope() is None


def test_the_id_of_a_row() -> None:
    given = {**BASE, "harvest_id": "shop-db", "outbox": "sales.outbox"}
    made = validated(ReaperConfig, given, "the test").envelope()
    assert made is not None
    row = Row(7, "orders", b"k", b"v", (b"a",), (b"1",))
    assert wrapped(made, row) == (b"v", {"a": b"1", "harvest-id": b"shop-db/sales.outbox/7"})


def test_a_binary_event() -> None:
    value, headers = wrapped(envelope(), Row(7, "orders", b"k", NUMBER, (b"a",), (b"1",)))
    assert value == NUMBER
    assert headers == {
        "a": b"1",
        "ce_specversion": b"1.0",
        "ce_id": b"shop.outbox.7",
        "ce_source": b"/shop/orders",
        "ce_type": b"orders",
        "content-type": b"application/json",
    }


def test_a_structured_event_keeps_the_digits_of_numbers() -> None:
    value, headers = wrapped(envelope("structured"), Row(7, "orders", b"k", NUMBER))
    assert value is not None
    assert json.loads(value) == {
        "specversion": "1.0",
        "id": "shop.outbox.7",
        "source": "/shop/orders",
        "type": "orders",
        "datacontenttype": "application/json",
        "data": json.loads(NUMBER),
    }
    assert b"12345678901234567890.10" in value
    assert headers == {"content-type": b"application/cloudevents+json; charset=UTF-8"}


@pytest.mark.parametrize("value", [b"\xff\xfe", b"no JSON", b"NaN", b"[" * 100_000])
def test_a_value_that_is_no_json_goes_in_as_base64(value: bytes) -> None:
    made, _ = wrapped(envelope("structured"), Row(7, "orders", b"k", value))
    assert "data" not in json.loads(made or b"")
    assert "data_base64" in json.loads(made or b"")


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_tombstone_stays_one(mode: Literal["binary", "structured"]) -> None:
    value, headers = wrapped(envelope(mode), Row(7, "orders", b"k", None))
    assert value is None
    assert headers["ce_id"] == b"shop.outbox.7"
    assert "content-type" not in headers


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_an_event_of_the_application_goes_along_unchanged(
    mode: Literal["binary", "structured"],
) -> None:
    row = Row(7, "orders", b"k", b"v", (b"ce_specversion", b"ce_id"), (b"1.0", b"mine"))
    assert wrapped(envelope(mode), row) == (b"v", {"ce_specversion": b"1.0", "ce_id": b"mine"})


def test_the_application_s_content_type_goes_before_ours() -> None:
    row = Row(7, "orders", b"k", b"v", (b"Content-Type",), (b"text/plain",))
    _, headers = wrapped(envelope(), row)
    assert headers["Content-Type"] == b"text/plain"
    assert "content-type" not in headers


def test_a_row_without_what_a_template_asks_for_is_a_bad_row() -> None:
    with pytest.raises(InvalidRecord, match=r"header\.kind"):
        wrapped(envelope(type="{header.kind}"), Row(7, "orders", b"k", b"v"))


def test_mistakes_are_told_when_the_configuration_is_read() -> None:
    events = {"source": "{no such}"}
    with pytest.raises(ConfigurationError, match=r"cloudevents\.source has a placeholder"):
        validated(ReaperConfig, {**BASE, "cloudevents": events}, "x")
    hook = {"hook": {"http": {"uri": "http://localhost/"}}}
    with pytest.raises(ConfigurationError, match="harvest_id and cloudevents"):
        validated(ReaperConfig, {**BASE, "harvest_id": "a", "destinations": hook}, "x")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/x+json"])
def test_what_its_content_type_calls_json_goes_in_as_it_is(content_type: str) -> None:
    made, _ = wrapped(envelope("structured", content_type=content_type), Row(7, "t", b"k", NUMBER))
    assert made is not None
    assert made.endswith(b',"data":' + NUMBER + b"}")


def test_a_structured_event_has_one_content_type() -> None:
    row = Row(7, "t", b"k", NUMBER, (b"Content-Type", b"more"), (b"text/plain", b"1"))
    _, headers = envelope("structured").wrap(row, kafka_headers(row))
    assert [name for name, _ in headers] == ["more", "content-type"]


@pytest.mark.parametrize("time", ["2026-01-31", "2026-01-31T12:00:00Z or so", "at noon"])
def test_a_time_that_is_none_makes_a_bad_row(time: str) -> None:
    row = Row(7, "t", b"k", NUMBER, (b"at",), (time.encode(),))
    with pytest.raises(InvalidRecord, match=f"is {time!r}: write 2026"):
        wrapped(envelope(time="{header.at}"), row)


def test_an_empty_value_is_no_tombstone_in_a_batch_of_events() -> None:
    made = envelope().cloudevents
    assert made is not None
    assert json.loads(made.structured(Row(7, "t", b"k", b"")))["data_base64"] == ""
    assert "datacontenttype" not in json.loads(made.structured(Row(7, "t", b"k", None)))


def test_of_headers_with_one_name_a_template_takes_the_last_and_an_empty_one_is_there() -> None:
    row = Row(7, "t", b"", b"1", (b"h", b"h", b"i"), (b"1", b"2", b""))
    assert Template.parse("{header.h}|{header.i}|{key}").render(row) == "2||"


def test_a_template_without_fields_of_the_row_says_the_same_of_every_row() -> None:
    assert [Template.parse(text).constant for text in ("", "a{outbox}", "a{id}b")] == [
        True, True, False,
    ]  # fmt: skip

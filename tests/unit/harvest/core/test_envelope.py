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
    with pytest.raises(ConfigurationError, match="no such"):
        validated(ReaperConfig, {**BASE, "cloudevents": events}, "x")
    hook = {"hook": {"http": {"uri": "http://localhost/"}}}
    with pytest.raises(ConfigurationError, match="harvest_id and cloudevents"):
        validated(ReaperConfig, {**BASE, "harvest_id": "a", "destinations": hook}, "x")

"""Several rows as the body of one request: what stands in it, and what the batch is known by."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from harvest.core.row import Row
from harvest.errors import InvalidRecord
from harvest.sinks.http.batches import batch_body, batch_key

EMPTY = Row(1, "t", b"k", b"")


def only(row: Row, format: Literal["records", "values"] = "records") -> Any:
    (found,) = json.loads(batch_body([(row, "a-1")], format))
    return found


def test_a_batch_of_other_rows_or_in_another_order_has_another_key() -> None:
    one, other = (EMPTY, "a-1"), (EMPTY, "a-2")
    keys = {batch_key(rows) for rows in ([one], [other], [one, other], [other, one])}
    assert len(keys) == 4
    assert batch_key([one, other]) in keys
    assert batch_key([(EMPTY, "a"), (EMPTY, "b")]) != batch_key([(EMPTY, "ab")])
    assert {len(key) for key in keys} == {len("batch_") + 32}


def test_values_keep_their_digits_and_a_tombstone_is_null() -> None:
    rows = [(Row(1, "t", b"k", b"1.50"), "a-1"), (Row(2, "t", b"k", None), "a-2")]
    assert batch_body(rows, "values") == b"[1.50,null]"
    body = batch_body(rows, "records")
    assert b'"value":1.50}' in body
    assert [record["value"] for record in json.loads(body)] == [1.5, None]


@pytest.mark.parametrize("value", [b"", b"NaN", b"{", b"\xff"])
def test_a_value_that_is_no_json_is_base64_in_records_and_a_bad_row_in_values(value: bytes) -> None:
    row = Row(1, "t", b"k", value)
    found = only(row)
    assert "value" not in found
    assert isinstance(found["value_base64"], str)
    with pytest.raises(InvalidRecord, match=r"the value is no JSON.*format: values"):
        batch_body([(row, "a-1")], "values")


def test_a_record_has_its_idempotency_key_topic_key_and_headers() -> None:
    row = Row(7, "tö", "kö".encode(), b"{}", (b"h", b"none"), ("ö".encode(), None))
    assert only(row) == {
        "id": "a-1", "topic": "tö", "key": "kö", "headers": {"h": "ö", "none": None}, "value": {},
    }  # fmt: skip


def test_a_key_that_is_no_text_is_base64_and_none_is_empty() -> None:
    assert only(Row(1, "t", b"\xff", b"1"))["key_base64"] == "/w=="
    assert "key" not in only(Row(1, "t", b"\xff", b"1"))
    assert only(Row(1, "t", None, b"1"))["key"] == ""


def test_a_header_that_is_no_text_is_a_bad_row() -> None:
    row = Row(1, "t", b"k", b"1", (b"h",), (b"\xff",))
    with pytest.raises(InvalidRecord, match="a header is no UTF-8"):
        batch_body([(row, "a-1")], "records")

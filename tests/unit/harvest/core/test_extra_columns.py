"""Columns that become headers, and the two that say where a record goes."""

from __future__ import annotations

import time

import pytest

from harvest.core.extra_columns import PARTITION, TIMESTAMP, placement, with_extra
from harvest.errors import InvalidRecord

EXTRA = {"tenant": "tenant_id", PARTITION: "p"}


def test_columns_are_headers_behind_the_rows_own_and_null_is_none() -> None:
    rows = [
        (1, "t", b"k", b"v", (b"a",), (b"1",), b"acme", b"3"),
        (2, "t", b"k", b"v", None, None, None, b"0"),
        (3, "t", b"k", b"v", None, None, None, None),
    ]
    assert with_extra(rows, EXTRA) == [
        (1, "t", b"k", b"v", (b"a", b"tenant", PARTITION.encode()), (b"1", b"acme", b"3")),
        (2, "t", b"k", b"v", (PARTITION.encode(),), (b"0",)),
        (3, "t", b"k", b"v", None, None),
    ]


def test_what_is_selected_behind_them_stays() -> None:
    (row,) = with_extra([(1, "t", b"k", None, None, None, b"x", None, 7)], EXTRA)
    assert row == (1, "t", b"k", None, (b"tenant",), (b"x",), 7)


def test_two_headers_say_where_the_record_goes_and_are_not_published() -> None:
    headers = [("a", b"1"), (PARTITION, b"3"), (TIMESTAMP, b"1767225600000")]
    assert placement(headers) == ([("a", b"1")], {"partition": 3, "timestamp": 1767225600000})
    assert placement([("a", None)]) == ([("a", None)], {})


@pytest.mark.parametrize(
    "text",
    [
        b"2026-01-01T00:00:00Z",
        b"2026-01-01 00:00:00",
        b"2026-01-01 00:00:00.000000",
        b"2026-01-01 01:00:00+01",
    ],
)
def test_a_time_is_utc_if_it_does_not_say(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    with monkeypatch.context() as there:
        there.setenv("TZ", "America/New_York")
        time.tzset()
        found = placement([(TIMESTAMP, text)])[1]
    time.tzset()
    assert found == {"timestamp": 1767225600000}


@pytest.mark.parametrize("name", [PARTITION, TIMESTAMP])
@pytest.mark.parametrize(
    "value", [b"", b"-1", b"x", b"\xff", "²".encode(), b"9" * 25, b"9" * 5_000, b"1.5", None]
)
def test_what_is_no_partition_or_time_is_refused(name: str, value: bytes | None) -> None:
    with pytest.raises(InvalidRecord, match="write"):
        placement([(name, value)])


def test_the_first_moment_is_refused_since_the_producer_takes_it_for_none() -> None:
    with pytest.raises(InvalidRecord, match="after 1970"):
        placement([(TIMESTAMP, b"0")])

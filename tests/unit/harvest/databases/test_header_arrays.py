"""Arrays in PostgreSQL's binary form, as `array_send` writes them."""

from __future__ import annotations

from struct import pack

import pytest

from harvest.core.row import Row
from harvest.databases.postgres.header_arrays import elements, with_headers

TEXT_OID = 25


def sent(*values: bytes | None, lower_bound: int = 1) -> bytes:
    """An array of one dimension."""
    has_null = int(None in values)
    found = pack(">iiiii", 1, has_null, TEXT_OID, len(values), lower_bound)
    for value in values:
        found += pack(">i", -1) if value is None else pack(">i", len(value)) + value
    return found


@pytest.mark.parametrize(
    "values",
    [
        (b"one",),
        (b"",),
        (None,),
        (b"one", b""),
        (b"", None, b"\x00\xff"),
        (None, None),
        tuple(b"%d" % n for n in range(300)),
    ],
)
@pytest.mark.parametrize("lower_bound", [1, 0, -7])
def test_elements_come_in_their_order_nulls_and_empty_ones_too(
    values: tuple[bytes | None, ...], lower_bound: int
) -> None:
    assert elements(sent(*values, lower_bound=lower_bound)) == values


def test_of_several_dimensions_all_elements_come_row_by_row() -> None:
    head = pack(">iii", 2, 1, TEXT_OID) + pack(">iiii", 2, 1, 2, 1)
    body = b"".join(pack(">i", 1) + b"%d" % n for n in range(3)) + pack(">i", -1)
    assert elements(head + body) == (b"0", b"1", b"2", None)


def test_an_array_without_dimensions_has_no_elements() -> None:
    assert elements(pack(">iii", 0, 0, TEXT_OID)) == ()


def test_rows_keep_what_is_before_and_behind_their_headers() -> None:
    names, values = sent(b"a", b"b"), sent(b"1", None)
    rows = [(1, "t", b"k", None, None, None, b"x"), (2, "t", b"k", b"v", names, values, None)]
    assert with_headers(rows) == [
        (1, "t", b"k", None, None, None, b"x"),
        (2, "t", b"k", b"v", (b"a", b"b"), (b"1", None), None),
    ]
    assert with_headers(rows[:1]) == rows[:1]


@pytest.mark.parametrize("alone", [4, 5])
def test_a_row_with_one_of_both_arrays_is_not_taken_for_one_without(alone: int) -> None:
    """What reads it then says that the two do not match."""
    row: list[object] = [1, "t", b"k", b"v", None, None]
    row[alone] = sent(b"a")
    (found,) = with_headers([tuple(row)])
    assert Row(*found)[alone] == (b"a",)
    assert Row(*found)[9 - alone] is None

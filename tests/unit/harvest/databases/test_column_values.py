"""What is in the columns of databases without arrays, as the bytes of a row."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from harvest.databases.column_values import Headers, as_bytes, headers_from_json


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        (None, None),
        (b"[]", None),
        ("[]", None),
        (b"[ ]", None),
        (b'["a", "", null, "\xc3\xa9"]', (b"a", b"", None, "é".encode())),
        ('["a"]', (b"a",)),
        (b'[1, 1.50, true, {"a": [1]}, []]', (b"1", b"1.5", b"true", b'{"a": [1]}', b"[]")),
        (b"", (None,)),
        (b'{"a": 1}', (None,)),
        (b'"a"', (None,)),
        (b'["a"', (None,)),
        (b'["\xff"]', (None,)),
        (b"[" * 100_000, (None,)),
        (7, (None,)),
    ],
)
def test_headers_are_the_strings_of_an_array(text: Any, headers: Headers) -> None:
    """What is none has a header without a name, which no sink accepts."""
    assert headers_from_json(text) == headers


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, None),
        (b"", b""),
        (b"\xff", b"\xff"),
        ("é", "é".encode()),
        ("", b""),
        (0, b"0"),
        (-7, b"-7"),
        (Decimal("1.50"), b"1.50"),
    ],
)
def test_a_key_is_what_the_column_has(value: object, found: bytes | None) -> None:
    assert as_bytes(value) == found

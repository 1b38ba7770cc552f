"""Options that several commands have."""

from __future__ import annotations

import time

import pytest

from marshal_py.cli.options import moment
from marshal_py.errors import InvalidArgument


def test_a_moment_is_in_milliseconds_and_none_if_none_was_given() -> None:
    assert moment(None) is None
    assert moment("1970-01-01T00:00:01Z") == 1_000
    now_ms = time.time_ns() // 1_000_000
    ago_ms = moment("10s")
    assert ago_ms is not None
    assert now_ms - 10_000 <= ago_ms <= time.time_ns() // 1_000_000 - 10_000


def test_what_is_to_come_has_no_state_yet() -> None:
    with pytest.raises(InvalidArgument, match="'2100-01-01' lies in the future"):
        moment("2100-01-01")

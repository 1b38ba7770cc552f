"""Commands that look at a log: what their options say reaches what looks."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

from marshal_py.cli import claims, explain, groups, lag, status, tail, top, verify
from marshal_py.cli.progress import LogProgress
from marshal_py.errors import InvalidArgument
from tests.support.marshal_command import without_brokers

AT = ("--at", "2026-01-01T00:00:00Z")
AT_MS = 1_767_225_600_000
OBSERVE = ("--observe", "2.5")
TEXT = ("--wire", "text", "--interval", "7")
BY_DEFAULT = ("msgpack", 60)
PAST = {"at_ms": AT_MS, "observe_s": 0.0, "wire": ("text", 7)}
NOW = {"at_ms": None, "observe_s": 2.5, "wire": BY_DEFAULT}
CELL = {"group": "g", "topic": "t", "partition": 3}


@pytest.mark.parametrize(
    ("module", "look", "words", "told"),
    [
        (claims, "read_world", ("claims", *AT, *TEXT), PAST),
        (claims, "read_world", ("claims", *OBSERVE), NOW),
        (groups, "read_world", ("groups", *AT, *TEXT), PAST),
        (groups, "read_world", ("groups", *OBSERVE), NOW),
        (groups, "read_world", ("members", *AT, *TEXT), PAST),
        (groups, "read_world", ("members", *OBSERVE), NOW),
        (lag, "read_world", ("lag", *AT, *TEXT), PAST),
        (lag, "read_world", ("lag",), NOW | {"observe_s": 0.0}),
        (
            status,
            "read_status",
            ("status", *OBSERVE, *TEXT),
            {"observe_s": 2.5, "wire": ("text", 7)},
        ),
        (status, "read_status", ("status",), {"observe_s": 0.0, "wire": BY_DEFAULT}),
        (top, "open_reader", ("top", *TEXT), {"wire": ("text", 7)}),
        (top, "open_reader", ("top",), {"wire": BY_DEFAULT}),
        (tail, "open_reader", ("tail", *TEXT), {"wire": ("text", 7)}),
        (tail, "open_reader", ("tail",), {"wire": BY_DEFAULT}),
        (
            *(explain, "read_cell_history", ("explain", "g", "t", "3", *AT, *TEXT)),
            CELL | {"at_ms": AT_MS, "wire": ("text", 7)},
        ),
        (
            *(explain, "read_cell_history", ("explain", "g", "t", "3")),
            CELL | {"at_ms": None, "wire": BY_DEFAULT},
        ),
        (verify, "verify_log", ("verify", *TEXT), {"text_interval_s": 7}),
        (verify, "verify_log", ("verify", "--interval", "7"), {"text_interval_s": None}),
    ],
)
def test_what_is_said_is_what_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    look: str,
    words: tuple[str, ...],
    told: dict[str, Any],
) -> None:
    seen: list[dict[str, Any]] = []
    signature = inspect.signature(getattr(module, look))

    def stop(*given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        seen.append(bound.arguments)
        raise InvalidArgument("this was all")

    monkeypatch.setattr(module, look, stop)
    monkeypatch.setattr(module, "wire_of", lambda *given: given, raising=False)
    assert "error: this was all" in without_brokers(*words).stderr
    (found,) = seen
    assert {name: found[name] for name in told} == told
    assert isinstance(found["connection"].progress, LogProgress), (
        "a long log is not read in silence"
    )

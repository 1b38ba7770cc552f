"""How a cell stood at a moment, read from records that a test writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin import cell_history as module
from marshal_py.admin.cell_history import read_cell_history
from marshal_py.admin.connection import Connection
from marshal_py.errors import InvalidArgument, LogHole
from marshal_py.protocol.messages import ClaimingPartition, encode
from marshal_py.protocol.wire import MSGPACK

CONNECTION = Connection.of_servers("a:1")
CLAIM = encode(ClaimingPartition(2, "a", "a1", "g", 0, "t", 0, 1_000, -1))


def a_log(monkeypatch: pytest.MonkeyPatch, start: int | None) -> None:
    """One partition; read from `start`, if it can be. Its one record is of 10 s."""
    state = MSGPACK.state(0)
    record = SimpleNamespace(stamp_ms=10_000, offset=start or 0, value=CLAIM)
    replay: Any = SimpleNamespace(
        wire=MSGPACK,
        partitions=1,
        starts={} if start is None else {0: start},
        bases={},
        extents={0: (5, 9)},
        state=lambda _: state,
        records=lambda _: iter([record]),
    )
    monkeypatch.setattr(module, "open_replay", lambda *_, **__: replay)


def test_a_record_of_that_very_moment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for at_ms, holder in ((10_000, "a"), (9_999, None)):
        a_log(monkeypatch, 0)
        timeline, status = read_cell_history(CONNECTION, "g", "t", 0, at_ms)
        assert status.holder == holder
        assert timeline.entries, "what came later is told all the same"


def test_before_what_is_left_of_a_log_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    a_log(monkeypatch, 5)
    with pytest.raises(InvalidArgument, match="it begins at 1970-01-01T00:00:10"):
        read_cell_history(CONNECTION, "g", "t", 0, 9_999)


def test_a_log_with_a_hole_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    a_log(monkeypatch, None)
    with pytest.raises(LogHole, match="below offset 5 of __marshal/0 are gone"):
        read_cell_history(CONNECTION, "g", "t", 0)

"""How a cell stood at a moment, read from records that a test writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin import cell_history as module
from marshal_py.admin.cell_history import read_cell_history
from marshal_py.admin.connection import Connection
from marshal_py.client.genesis import new_genesis
from marshal_py.errors import InvalidArgument, LogHole, PartitionCountChanged
from marshal_py.protocol.messages import ClaimingPartition, encode
from marshal_py.protocol.wire import MSGPACK

CONNECTION = Connection.of_servers("a:1")
CLAIM = encode(ClaimingPartition(2, "a", "a1", "g", 0, "t", 0, 1_000, -1))


def genesis(partitions: int) -> bytes:
    return encode(new_genesis(("op", "op1", "-", 0), previous="", above=0, partitions=partitions))


def a_log(
    monkeypatch: pytest.MonkeyPatch,
    start: int | None,
    value: bytes = CLAIM,
    *,
    others_tell: int = 1,
    snapshots_tell: int = 1,
) -> None:
    """One partition; read from `start`, if it can be. Its one record is of 10 s.

    The first records of others, and snapshots, tell of so many partitions.
    """
    state = MSGPACK.state(0)
    record = SimpleNamespace(stamp_ms=10_000, offset=start or 0, value=value)
    told = SimpleNamespace(snapshot=SimpleNamespace(partitions=snapshots_tell))
    monkeypatch.setattr(module, "counts_told", lambda *_: {others_tell})
    replay: Any = SimpleNamespace(
        wire=MSGPACK,
        connection=CONNECTION,
        snapshots=[SimpleNamespace(snapshot=None), told],
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


@pytest.mark.parametrize(
    "how",
    [{"value": genesis(8)}, {"others_tell": 8}, {"snapshots_tell": 8}],
)
def test_in_a_log_that_was_grown_a_cell_is_not_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    a_log(monkeypatch, 0, **how)
    with pytest.raises(PartitionCountChanged, match=r"had 8 partitions and now has 1: .* recover"):
        read_cell_history(CONNECTION, "g", "t", 0)


def test_a_log_that_was_recovered_since_it_was_grown_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The genesis of its own says so, whatever the first records of all partitions say."""
    a_log(monkeypatch, 0, genesis(1), others_tell=8, snapshots_tell=8)
    assert read_cell_history(CONNECTION, "g", "t", 0)[1].holder is None

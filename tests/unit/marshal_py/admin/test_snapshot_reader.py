"""What is made of the records of the snapshot topic."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from marshal_py.admin import snapshot_reader as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import FoundSnapshot, read_snapshots
from tests.support.snapshots import snapshot_record

CONNECTION = Connection.of_servers("nowhere:1", "log")


def found_in(
    monkeypatch: pytest.MonkeyPatch, topic: dict[int, list[bytes | None]], **how: bool
) -> list[FoundSnapshot]:
    """Read a topic that begins at offset 10 everywhere, as one that was compacted does."""

    def read_to_end(
        _config: Any, name: str, starts: dict[int, int], ends: dict[int, int], deadline: float
    ) -> Any:
        assert name == "log.snapshots"
        assert deadline > 0
        for p, start in starts.items():
            for offset in range(max(start, 10), ends[p]):
                yield Message(
                    topic=name,
                    partition=p,
                    offset=offset,
                    value=topic[p][offset - 10],
                    timestamp=(TIMESTAMP_LOG_APPEND_TIME, 1_000 * offset),
                )

    monkeypatch.setattr(module, "read_to_end", read_to_end)
    ends = {p: 10 + len(values) if values else 0 for p, values in topic.items()}
    return read_snapshots(CONNECTION, ends, **how)


def test_the_newest_of_each_partition_is_read_or_all_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic: dict[int, list[bytes | None]] = {
        0: [snapshot_record(0, n) for n in (1, 2, 3)],
        1: [],
        2: [snapshot_record(2, 7)],
    }
    newest = found_in(monkeypatch, topic)
    everything = found_in(monkeypatch, topic, newest_only=False)
    for found, expected in (
        (newest, [(0, 12, 3), (2, 10, 7)]),
        (everything, [(0, 10, 1), (0, 11, 2), (0, 12, 3), (2, 10, 7)]),
    ):
        assert [
            (f.coordinator, f.offset, f.snapshot.next_offset) for f in found if f.snapshot
        ] == expected
    assert newest[0].written_ms == 12_000
    assert newest[0].size_bytes == len(snapshot_record(0, 3))
    assert newest[0].problem is None


def test_nobody_is_asked_where_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_to_end(*_: object) -> None:
        raise AssertionError("there is nothing to read")

    monkeypatch.setattr(module, "read_to_end", read_to_end)
    assert read_snapshots(CONNECTION, {}) == []
    assert read_snapshots(CONNECTION, {0: 0, 1: 0}) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (snapshot_record(1, 7), "it is of partition 1"),
        (b"\xc1", ""),
        (b"", ""),
        (None, ""),
        (snapshot_record(0, 7)[:-1], ""),
    ],
)
def test_what_is_no_snapshot_of_its_partition_is_a_problem_and_no_snapshot(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None, problem: str
) -> None:
    bad, good = found_in(monkeypatch, {0: [value, snapshot_record(0, 3)]}, newest_only=False)
    assert bad.snapshot is None
    assert bad.problem
    assert problem in bad.problem
    assert bad.size_bytes == len(value or b"")
    assert good.snapshot is not None
    assert good.problem is None

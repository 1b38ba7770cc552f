"""The snapshot that a reader starts from: the newest that will do (§6.4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client import snapshots
from marshal_py.client.snapshots import newest_snapshots
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import Snapshot
from tests.support.snapshots import snapshot_record


def newest(
    monkeypatch: pytest.MonkeyPatch, topic: dict[int, list[bytes]], most: int = 10**9
) -> tuple[dict[int, int], int]:
    """Return partition → where its newest acceptable snapshot ends, and how many were read."""
    read: list[bytes] = []

    def read_to_end(_c: Any, _t: str, starts: dict[int, int], ends: dict[int, int], _d: Any) -> Any:
        for p, start in starts.items():
            for value in topic[p][start : ends[p]]:
                read.append(value)
                yield SimpleNamespace(partition=lambda p=p: p, value=lambda value=value: value)

    def acceptable(found: Snapshot) -> PartitionState | None:
        return found.restore() if found.next_offset <= most else None

    monkeypatch.setattr(snapshots, "read_to_end", read_to_end)
    ends = {p: len(values) for p, values in topic.items()}
    found = newest_snapshots({}, "t", ends, 0.0, acceptable)
    assert all(state.next_offset == s.next_offset for s, state in found.values())
    return {p: s.next_offset for p, (s, _) in found.items()}, len(read)


def test_the_last_record_of_each_partition_is_looked_at_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = {
        0: [snapshot_record(0, n) for n in (1, 2, 3)],
        1: [snapshot_record(1, n) for n in (4, 5)],
    }
    assert newest(monkeypatch, topic) == ({0: 3, 1: 5}, 2)


def test_all_are_looked_at_where_the_last_one_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = {
        0: [snapshot_record(0, n) for n in (1, 2, 3)] + [b"no snapshot"],
        1: [snapshot_record(1, 7)],
    }
    assert newest(monkeypatch, topic, most=2) == ({0: 2}, 1 + 4 + 1 + 1)
    assert newest(monkeypatch, topic)[0] == {0: 3, 1: 7}


def test_one_of_another_partition_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = {0: [snapshot_record(0, 1), snapshot_record(1, 9)], 1: []}
    assert newest(monkeypatch, topic)[0] == {0: 1}

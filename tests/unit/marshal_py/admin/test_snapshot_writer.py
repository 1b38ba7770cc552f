"""Snapshots that an operator has written: of what is new, and seen to be there afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin import snapshot_writer as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_writer import write_snapshots
from marshal_py.errors import AccessDenied, BrokerUnavailable, SnapshotMismatch

CONNECTION = Connection.of_servers("nowhere:1", "log")


class Log:
    """Three coordination partitions: of 0 there are no records, of 1 none since its snapshot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = SimpleNamespace(partitions=3)
        self.mismatches: list[SnapshotMismatch] = []
        self.newest_snapshot = {1: 20, 2: 20}
        self.kept = {2: 30}
        """Partition → the next offset of its newest snapshot afterwards."""
        self.was_refused = False
        self.unsent = 0
        self.written: list[tuple[int, int, int]] = []
        monkeypatch.setattr(module, "read_world", lambda _: SimpleNamespace(reader=self))
        monkeypatch.setattr(module, "LogWriter", lambda *_, **__: self)
        monkeypatch.setattr(module, "admin_client", lambda _: None)
        monkeypatch.setattr(module, "extent", lambda *_: dict.fromkeys(range(3), (0, 9)))
        monkeypatch.setattr(module, "read_snapshots", self._read_snapshots)

    def _read_snapshots(self, _connection: Any, ends: dict[int, int]) -> list[Any]:
        assert ends == {0: 9, 1: 9, 2: 9}
        good = [
            SimpleNamespace(coordinator=p, snapshot=SimpleNamespace(next_offset=at))
            for p, at in self.kept.items()
        ]
        return [*good, SimpleNamespace(coordinator=1, snapshot=None)]

    def snapshot_now(self, p: int) -> Any:
        due = {1: 20, 2: 30}.get(p)
        return None if due is None else SimpleNamespace(next_offset=due, state=b"state")

    def write_snapshot(self, due: Any, partitions: int, writer: str) -> None:
        assert writer
        self.written.append((2, due.next_offset, partitions))

    def flush(self, timeout_s: float) -> int:
        assert timeout_s > 0
        return self.unsent


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def test_one_is_written_of_each_partition_that_has_records_since(log: Log) -> None:
    _, rows = write_snapshots(CONNECTION)
    assert rows == [{"coordinator": 2, "next_offset": 30, "state_bytes": 5}]
    assert log.written == [(2, 30, 3)]
    log.newest_snapshot[2] = 30
    assert write_snapshots(CONNECTION)[1] == []


def test_what_may_be_wrong_is_not_written_down(log: Log) -> None:
    log.mismatches = [SnapshotMismatch("w's snapshot differs")]
    with pytest.raises(SnapshotMismatch):
        write_snapshots(CONNECTION)
    assert log.written == []


@pytest.mark.parametrize("kept", [{}, {2: 20}, {1: 30}])
def test_a_snapshot_that_is_not_in_the_topic_was_not_written(
    log: Log, kept: dict[int, int]
) -> None:
    log.kept = kept
    with pytest.raises(BrokerUnavailable, match=r"partition 2 was not accepted.*'log.snapshots'"):
        write_snapshots(CONNECTION)
    log.kept = {2: 31}  # a client was faster, with one that reaches further
    write_snapshots(CONNECTION)


def test_a_missing_right_and_brokers_that_do_not_answer_are_told(log: Log) -> None:
    log.unsent = 1
    with pytest.raises(BrokerUnavailable, match="not written within 10 s"):
        write_snapshots(CONNECTION)
    log.was_refused = True
    with pytest.raises(AccessDenied, match=r"log\.snapshots"):
        write_snapshots(CONNECTION)

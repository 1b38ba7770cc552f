"""Where the history of a log begins, and when a log is not well: by records of the test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from marshal_py.admin import log_replay as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.log_replay import open_replay
from marshal_py.admin.log_verification import verify_log
from marshal_py.admin.snapshot_reader import FoundSnapshot
from marshal_py.errors import AccessDenied, TopicMissing
from marshal_py.protocol.messages import encode
from marshal_py.protocol.wire import text_wire
from tests.support.messages import heartbeat
from tests.support.snapshots import found_snapshot

RECORDS = [encode(heartbeat("a", seq, membership=1)) for seq in range(6)]
CONNECTION = Connection.of_servers("nowhere:1", "log")


snapshot = partial(found_snapshot, RECORDS)


class Log:
    """One coordination partition that has lost what is below `first`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first = 0
        self.snapshots: list[FoundSnapshot] | None = []
        self.is_hidden = False
        self.deadlines_s: list[float] = []
        monkeypatch.setattr(module, "admin_client", lambda _: None)
        monkeypatch.setattr(module, "extent", self._extent)
        monkeypatch.setattr(module, "read_snapshots", lambda *_, **__: self.snapshots or [])
        monkeypatch.setattr(module, "read_to_end", self._read_to_end)

    def _extent(self, _admin: Any, topic: str, _connection: Connection) -> dict[int, Any]:
        if topic == "log":
            return {0: (self.first, len(RECORDS))}
        if self.is_hidden:
            raise AccessDenied("Read is missing")
        if self.snapshots is None:
            raise TopicMissing("no such topic")
        return {0: (0, 9)}

    def _read_to_end(
        self,
        _kafka: Any,
        _topic: str,
        starts: dict[int, int],
        ends: dict[int, int],
        deadline_s: float,
    ) -> Iterator[Any]:
        self.deadlines_s.append(deadline_s)
        for at in range(starts[0], ends[0]):
            yield SimpleNamespace(
                partition=lambda: 0,
                offset=lambda at=at: at,
                value=lambda at=at: RECORDS[at],
                timestamp=lambda at=at: (TIMESTAMP_LOG_APPEND_TIME, 1_000 * at),
            )


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def test_a_whole_log_is_read_from_its_first_record_whatever_snapshots_there_are(log: Log) -> None:
    log.snapshots = [snapshot(4)]
    replay = open_replay(CONNECTION)
    assert (replay.starts, replay.bases) == ({0: 0}, {})
    assert [record.offset for record in replay.records()] == [0, 1, 2, 3, 4, 5]
    verdict = verify_log(CONNECTION)
    assert (verdict.ok, verdict.records, verdict.snapshots) == (True, 6, 1)


def test_a_long_log_is_read_for_an_hour_and_how_far_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    log.first, log.snapshots = 3, [snapshot(4)]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    patient = replace(CONNECTION, progress=lambda *at: told.append(at))
    assert len(list(open_replay(patient).records())) == 2
    assert (log.deadlines_s, told) == ([3_700.0], [(0, 2)])


def test_a_right_on_the_snapshots_is_needed_where_the_log_was_trimmed_alone(log: Log) -> None:
    log.is_hidden = True
    assert [record.offset for record in open_replay(CONNECTION).records()] == [0, 1, 2, 3, 4, 5]
    assert not open_replay(CONNECTION).has_snapshots
    log.first = 3
    with pytest.raises(AccessDenied):
        open_replay(CONNECTION)


def test_what_is_left_is_read_from_the_oldest_snapshot_that_reaches_it(log: Log) -> None:
    """One of before would leave a hole; one of another number of partitions is no state of it."""
    log.first = 3
    log.snapshots = [snapshot(2), snapshot(3, partitions=2), snapshot(4), snapshot(5)]
    replay = open_replay(CONNECTION)
    assert replay.starts == {0: 4}
    assert replay.state(0).next_offset == 4
    assert [record.offset for record in replay.records()] == [4, 5]


@pytest.mark.parametrize("snapshots", [None, [], [snapshot(2)]])
def test_records_that_are_gone_and_that_no_snapshot_covers_are_an_error(
    log: Log, snapshots: list[FoundSnapshot] | None
) -> None:
    log.first, log.snapshots = 3, snapshots
    verdict = verify_log(CONNECTION)
    assert (verdict.ok, verdict.counts) == (False, {"log_hole": 1})
    assert verdict.findings[0].offset == 3
    assert "records 0 to 2 are gone" in verdict.findings[0].what


def test_a_damaged_snapshot_is_an_error_and_a_deleted_one_is_none(log: Log) -> None:
    log.snapshots = [FoundSnapshot(0, 7, 0, 0, None, "no snapshot")]
    assert verify_log(CONNECTION).ok, "the key was deleted"
    log.snapshots = [FoundSnapshot(0, 7, 0, 99, None, "its digest differs")]
    verdict = verify_log(CONNECTION)
    assert (verdict.ok, verdict.counts) == (False, {"snapshot_damaged": 1})
    assert "record 7 of the snapshot topic: its digest differs" in verdict.findings[0].what


def test_an_error_among_warnings_is_not_passed_over(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "RECORDS", [*RECORDS, b"no record"])
    verdict = verify_log(CONNECTION)
    assert (verdict.ok, [finding.level for finding in verdict.findings]) == (True, ["warning"])
    log.snapshots = [FoundSnapshot(0, 7, 0, 99, None, "its digest differs")]
    verdict = verify_log(CONNECTION)
    assert {finding.level for finding in verdict.findings} == {"warning", "error"}
    assert not verdict.ok


def test_a_log_of_version_1_begins_where_its_records_do(log: Log) -> None:
    log.first = 3
    replay = open_replay(CONNECTION, wire=text_wire(60))
    assert (replay.starts, replay.has_snapshots) == ({0: 3}, False)
    assert not verify_log(CONNECTION, text_interval_s=60).has_snapshots


def test_a_partition_without_records_is_not_waited_for(log: Log) -> None:
    log.first = len(RECORDS)
    log.snapshots = [snapshot(6)]
    replay = open_replay(CONNECTION)
    assert replay.starts == {0: 6}
    assert list(replay.records()) == []

"""What `marshal status` calls to attention, of logs that a test writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from marshal_py.admin import status as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import FoundSnapshot
from marshal_py.admin.status import Status, read_status
from marshal_py.errors import AccessDenied, SnapshotMismatch, TopicMissing
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.messages import (
    ClaimingPartition,
    Message,
    ReleaseGroup,
    ReleasingPartition,
)
from marshal_py.protocol.snapshots import Snapshot
from marshal_py.protocol.text.codec import CLAIMING_PARTITION, RELEASE_GROUP, TextRecord
from marshal_py.protocol.wire import MSGPACK, Wire, text_wire
from marshal_py.protocol.world import MS
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat

NOW_MS = 1_700_000_000_000
CONNECTION = Connection.of_servers("nowhere:1", "log")


def claim(who: str = "a", partition: int = 0) -> Message:
    return ClaimingPartition(2, who, f"{who}1", "g", 0, "t", partition, 1_000, -1)


class Look:
    """`read_status` of a log, and of what the topic of snapshots holds (None: there is none)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: LogByHand) -> None:
        self.log = log
        self.snapshots: list[FoundSnapshot] | None = []
        monkeypatch.setattr("time.time_ns", lambda: NOW_MS * MS)
        monkeypatch.setattr(module, "read_world", lambda *_, **__: log.view())
        monkeypatch.setattr(module, "admin_client", lambda _: None)
        monkeypatch.setattr(module, "extent", self._extent)
        monkeypatch.setattr(module, "read_snapshots", lambda *_: self.snapshots or [])

    def _extent(self, _admin: Any, topic: str, _connection: Connection) -> dict[int, Any]:
        assert topic == "log.snapshots"
        if self.snapshots is None:
            raise TopicMissing("no such topic")
        return dict.fromkeys(self.log.extent(), (0, 9))

    def status(self, wire: Wire = MSGPACK) -> Status:
        return read_status(CONNECTION, wire=wire)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    return Look(monkeypatch, LogByHand())


def found(next_offset: int | None, problem: str | None = None) -> FoundSnapshot:
    whole = None
    if next_offset is not None:
        whole = Snapshot(0, 1, next_offset, b"", b"", "w", b"")
    return FoundSnapshot(0, 5, NOW_MS - 60_000, 700, whole, problem)


def test_nothing_needs_attention_where_all_is_well(look: Look) -> None:
    look.log.write(claim(), NOW_MS - 100)
    look.snapshots = [found(1)]
    status = look.status()
    assert status.attention == []
    assert (status.records, status.next_offsets, status.newest_record_ms_ago) == (1, [1], 100)


def test_who_may_not_read_the_snapshots_is_told_all_the_same(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise AccessDenied("Read on topic log.snapshots is missing")

    look.log.write(claim(), NOW_MS - 100)
    monkeypatch.setattr(module, "extent", refuse)
    status = look.status()
    assert status.records == 1
    assert status.snapshots == []
    (text,) = status.attention
    assert "not known: Read on topic log.snapshots is missing" in text


def test_one_claim_of_a_silent_client_needs_attention(look: Look) -> None:
    look.log.write(claim(), NOW_MS - 60_000)
    assert [text[:40] for text in look.status().attention] == [
        "group g: 1 claim held by clients that ar"
    ]


@pytest.mark.parametrize(("until_ms", "expired"), [(NOW_MS, True), (NOW_MS + 1, False)])
def test_a_pause_that_nobody_ended_needs_attention(
    look: Look, until_ms: int, expired: bool
) -> None:
    version = look.log.write(ReleaseGroup(2, "op", "op1", "g", 0, until_ms), NOW_MS - 100)
    status = look.status()
    (pause,) = status.pauses
    assert (pause.version, pause.expires_ms, pause.expired) == (version, until_ms, expired)
    assert any("nobody ended it" in text for text in status.attention) == expired


@pytest.mark.parametrize(
    ("note", "says"),
    [
        (ClaimMetadata(retrying=1, offset=7, error="boom"), "at offset 7 fails again and again"),
        (ClaimMetadata(stuck=1, offset=7), "at offset 7 does not come to an end"),
        (ClaimMetadata(dead_lettered=3, offset=7), None),
        (ClaimMetadata(skipped=3, offset=7), None),
    ],
)
def test_messages_that_fail_or_do_not_end_need_attention(
    look: Look, note: ClaimMetadata, says: str | None
) -> None:
    epoch = look.log.write(claim(), NOW_MS - 100)
    look.log.write(
        heartbeat("a", 1, instance_id="a1", metadata={epoch: note.encode()}), NOW_MS - 100
    )
    status = look.status()
    (row,) = status.failing
    told = (row.retrying, row.stuck, row.dead_lettered, row.skipped, row.offset, row.holder)
    assert told == (note.retrying, note.stuck, note.dead_lettered, note.skipped, 7, "a")
    assert len(status.attention) == (says is not None)
    assert all(says in text and "see the log of a" in text for text in status.attention if says)


def test_what_a_start_has_to_replay_counts_from_the_newest_snapshot(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY_RECORDS", 2)
    for partition in range(5):
        look.log.write(claim(partition=partition), NOW_MS - 100)
    look.snapshots = [found(3)]
    status = look.status()
    (row,) = status.snapshots
    assert (row.next_offset, row.records_since, row.age_ms) == (3, 2, 60_000)
    assert (row.size_bytes, row.writer, row.problem) == (700, "w", None)
    assert status.attention == []
    look.snapshots = [found(2)]
    (text,) = look.status().attention
    assert "partition 0: 3 records since the newest snapshot" in text


def test_a_snapshot_that_cannot_be_used_and_none_at_all(look: Look) -> None:
    look.log.write(claim(), NOW_MS - 100)
    look.snapshots = [found(None, "its digest differs")]
    status = look.status()
    assert status.attention == [
        "the newest snapshot of partition 0 is not usable: its digest differs"
    ]
    assert (status.snapshots[0].next_offset, status.snapshots[0].records_since) == (None, 1)
    look.snapshots = []
    assert look.status().attention == []
    assert look.status().snapshots[0].records_since == 1
    look.snapshots = None
    (text,) = look.status().attention
    assert "there is no topic 'log.snapshots'" in text


def test_without_a_topic_of_snapshots_that_is_said_once(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY_RECORDS", 2)
    for partition in range(5):
        look.log.write(claim(partition=partition), NOW_MS - 100)
    look.snapshots = None
    (text,) = look.status().attention
    assert "every start replays the whole log" in text


def test_what_was_trimmed_counts_as_no_record_and_clocks_that_are_ahead_as_now(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[int, int]] = []
    for partition in range(5):
        look.log.write(claim(partition=partition), NOW_MS + 5_000)
    monkeypatch.setattr(look.log, "extent", lambda: {0: (2, 5)})
    ahead = replace(found(4), written_ms=NOW_MS + 700)

    def read(_: Connection, ends: dict[int, int]) -> list[FoundSnapshot]:
        asked.append(ends)
        return [ahead]

    monkeypatch.setattr(module, "read_snapshots", read)
    status = look.status()
    assert (status.records, status.first_offsets, status.next_offsets) == (3, [2], [5])
    assert (status.newest_record_ms_ago, status.snapshots[0].age_ms) == (0, 0)
    assert asked == [{0: 9}], "to the end of their topic"


def test_of_a_partition_that_nobody_holds_nothing_fails(look: Look) -> None:
    epoch = look.log.write(claim(), NOW_MS - 100)
    note = ClaimMetadata(retrying=1, offset=7).encode()
    look.log.write(heartbeat("a", 1, instance_id="a1", metadata={epoch: note}), NOW_MS - 100)
    look.log.write(ReleasingPartition(2, "a", "a1", "g", 2, "t", 0, epoch, 7), NOW_MS - 100)
    status = look.status()
    assert (status.failing, status.attention) == ([], [])


def test_snapshots_that_differ_and_records_of_the_other_version_are_told(look: Look) -> None:
    look.log.write(claim(), NOW_MS - 100)
    look.log.mismatches.append(SnapshotMismatch("w's snapshot differs"))
    look.log.met_other_wire = True
    other, mismatch = look.status().attention
    assert "`--wire text` shows what they say" in other
    assert mismatch == "w's snapshot differs"


def test_in_version_1_a_pause_that_is_over_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = text_wire(60)
    now_s = NOW_MS // 1000
    for until_s, pauses in ((now_s - 1, 0), (now_s, 0), (now_s + 60, 1)):
        log = LogByHand(wire=wire)
        log.write(TextRecord(CLAIMING_PARTITION, 1, now_s, "i", "a", "g", "t", 0))
        log.write(TextRecord(RELEASE_GROUP, 1, now_s - 9, "i", "op", "g", "", 0, until_s))
        status = Look(monkeypatch, log).status(wire)
        assert [(p.version, p.expired) for p in status.pauses] == [(-1, False)] * pauses
        assert (status.attention, status.snapshots) == ([], [])


def test_the_log_is_watched_for_as_long_as_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def read(_: Connection, **how: Any) -> None:
        asked.append(how)
        raise TopicMissing("this was all")

    monkeypatch.setattr(module, "read_world", read)
    with pytest.raises(TopicMissing):
        read_status(CONNECTION, 2.5, text_wire(7))
    (how,) = asked
    assert (how["observe_s"], how["wire"].name) == (2.5, "text")

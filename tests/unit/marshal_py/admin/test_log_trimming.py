"""Which records of the log may be deleted: those that a snapshot makes up for, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import log_trimming as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.log_trimming import Cut, delete_records, plan_cuts
from marshal_py.admin.snapshot_reader import FoundSnapshot
from marshal_py.errors import AccessDenied, SnapshotMismatch
from marshal_py.protocol.messages import encode
from tests.support.messages import heartbeat
from tests.support.snapshots import found_snapshot

RECORDS = [encode(heartbeat("a", seq, membership=1)) for seq in range(10)]
CONNECTION = Connection.of_servers("nowhere:1")


LIES = [encode(heartbeat("liar", seq, membership=1)) for seq in range(10)]


def snapshot(upto: int, *, partitions: int = 1, other: bool = False) -> FoundSnapshot:
    """Of what is below `upto`. `other`: its state is not what the records lead to."""
    return found_snapshot(RECORDS, upto, partitions=partitions, state_of=LIES if other else None)


class Cluster:
    """A log of one partition that has lost what is below `first`, and its snapshots."""

    def __init__(self, first: int, snapshots: list[FoundSnapshot]) -> None:
        self.first, self.snapshots = first, snapshots
        self.records = list(RECORDS)
        self.deadline_s = 0.0

    def extent(
        self, _admin: Any, topic: str, _connection: Connection
    ) -> dict[int, tuple[int, int]]:
        return {0: (0, 99) if topic.endswith(".snapshots") else (self.first, len(self.records))}

    def read_snapshots(self, *_: Any, newest_only: bool) -> list[FoundSnapshot]:
        assert not newest_only, "an older one is what a replay begins from"
        return self.snapshots

    def read_to_end(
        self,
        _kafka: Any,
        _topic: str,
        starts: dict[int, int],
        ends: dict[int, int],
        deadline_s: float,
    ) -> Iterator[Any]:
        self.deadline_s = deadline_s
        for offset in range(max(starts[0], self.first), ends[0]):
            value = self.records[offset]
            yield SimpleNamespace(offset=lambda at=offset: at, value=lambda v=value: v)


def plan(
    monkeypatch: pytest.MonkeyPatch,
    *snapshots: FoundSnapshot,
    first: int = 0,
    records: list[bytes] | None = None,
) -> Cut:
    cluster = Cluster(first, list(snapshots))
    cluster.records = records or cluster.records
    for name in ("extent", "read_snapshots", "read_to_end"):
        monkeypatch.setattr(module, name, getattr(cluster, name))
    nothing: Any = None
    (cut,) = plan_cuts(nothing, CONNECTION)
    return cut


def test_the_last_record_that_the_newest_snapshot_covers_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever starts from the snapshot checks that it is of this log, by that record."""
    cut = plan(monkeypatch, snapshot(4), snapshot(8))
    assert (cut.below, cut.snapshot_offset, cut.verified) == (7, 8, "verified by replay")
    assert cut.records == 7


@pytest.mark.parametrize(("timeout_s", "deadline_s"), [(10.0, 700.0), (900.0, 1_000.0)])
def test_records_are_compared_for_minutes(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, deadline_s: float
) -> None:
    """They are millions where a log is trimmed for the first time."""
    cluster = Cluster(0, [snapshot(8)])
    for name in ("extent", "read_snapshots", "read_to_end"):
        monkeypatch.setattr(module, name, getattr(cluster, name))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    nothing: Any = None
    (cut,) = plan_cuts(nothing, replace(CONNECTION, timeout_s=timeout_s))
    assert (cut.records, cluster.deadline_s) == (7, deadline_s)


def test_without_a_snapshot_nothing_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = plan(monkeypatch)
    assert (cut.below, cut.records, cut.verified) == (0, 0, "none")
    damaged = FoundSnapshot(0, 3, 0, 9, None, "its digest differs")
    cut = plan(monkeypatch, damaged, first=2)
    assert (cut.below, cut.records, cut.verified) == (2, 0, "unusable: its digest differs")


def test_a_snapshot_of_another_number_of_partitions_covers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No client would start from it: groups have other coordination partitions by now."""
    assert plan(monkeypatch, snapshot(8, partitions=2)).records == 0


def test_a_snapshot_of_another_log_covers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    anew = [encode(heartbeat("b", seq, membership=1)) for seq in range(10)]
    cut = plan(monkeypatch, snapshot(8), records=anew)
    assert cut.records == 0
    assert "another log" in cut.verified


def test_a_snapshot_that_the_records_do_not_lead_to_stops_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SnapshotMismatch, match="at offset 8 is not the state"):
        plan(monkeypatch, snapshot(8, other=True))


def test_where_records_have_gone_the_replay_begins_from_the_oldest_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = plan(monkeypatch, snapshot(4), snapshot(8), first=3)
    assert (cut.below, cut.verified) == (7, "verified by replay")
    with pytest.raises(SnapshotMismatch):
        plan(monkeypatch, snapshot(4), snapshot(8, other=True), first=3)
    cut = plan(monkeypatch, snapshot(8), first=3)
    assert (cut.below, cut.verified) == (7, "trusted: the records that led to it are gone")


def test_a_snapshot_that_reaches_beyond_the_log_covers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log was cut off at its end, or is another one."""
    assert plan(monkeypatch, snapshot(8), records=RECORDS[:6]).records == 0


def test_a_snapshot_with_which_the_log_begins_is_of_this_one_and_nothing_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record by which that is checked has gone."""
    cut = plan(monkeypatch, snapshot(3), first=3)
    assert (cut.records, cut.snapshot_offset, cut.verified) == (0, 3, "nothing below it")


class Admin:
    def __init__(self, error: int | None = None) -> None:
        self.error = error
        self.asked: list[tuple[int, int]] = []

    def delete_records(self, wanted: list[Any], *, request_timeout: float) -> dict[Any, Any]:
        assert request_timeout >= 30
        self.asked += [(where.partition, where.offset) for where in wanted]
        answer: Future[None] = Future()
        if self.error is None:
            answer.set_result(None)
        else:
            answer.set_exception(KafkaException(KafkaError(self.error)))
        return {0: answer}


def test_only_where_something_goes_is_anything_deleted() -> None:
    admin: Any = Admin()
    cuts = [Cut(0, 5, 10, 5, None, "none"), Cut(1, 0, 10, 7, 8, "verified by replay")]
    delete_records(admin, CONNECTION, cuts)
    assert admin.asked == [(1, 7)]
    delete_records(admin, CONNECTION, cuts[:1])
    assert admin.asked == [(1, 7)]


def test_who_may_not_delete_is_told_which_right_is_missing() -> None:
    cut = Cut(1, 0, 10, 7, 8, "verified by replay")
    denied: Any = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AccessDenied, match=r"(?i)delete"):
        delete_records(denied, CONNECTION, [cut])
    broken: Any = Admin(KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(KafkaException):
        delete_records(broken, CONNECTION, [cut])

"""The thread that compares snapshots with what this process made of the log (§6.5)."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message

from marshal_py.client import snapshots
from marshal_py.client.log_reader import LogReader
from marshal_py.client.snapshots import KEPT_DIGESTS, MAX_WAITING, Boundary, SnapshotDesk
from marshal_py.errors import MalformedRecord
from marshal_py.protocol.messages import VERSION, ClaimingPartition, encode
from marshal_py.protocol.rationalizer import BOUNDARY, PartitionState, apply
from marshal_py.protocol.snapshots import Snapshot, decode_snapshot, encode_snapshot
from marshal_py.protocol.state_image import image_of
from marshal_py.protocol.world import Observer


def state_of(claims: int) -> PartitionState:
    state = PartitionState(0)
    for n in range(claims):
        record = ClaimingPartition(VERSION, "a", "i", "g", n, "t", n, 1_000, -1)
        apply(state, n, encode(record))
    return state


def snapshot_of(state: PartitionState, partitions: int = 1) -> bytes:
    return encode_snapshot(
        state.encode(),
        coordinator=state.partition,
        partitions=partitions,
        next_offset=state.next_offset,
        anchor=b"\0" * 16,
        writer="w",
    )


def until(happened: Callable[[], bool]) -> None:
    tick = threading.Event()
    while not happened():
        tick.wait(0.001)


@pytest.fixture
def desk() -> Iterator[SnapshotDesk]:
    made = SnapshotDesk("__m")
    made.reset(1)
    yield made
    made.close()


@pytest.mark.parametrize("snapshot_first", [True, False])
@pytest.mark.parametrize("differs", [True, False])
def test_a_boundary_and_a_snapshot_are_compared_whichever_comes_first(
    desk: SnapshotDesk, snapshot_first: bool, differs: bool
) -> None:
    state, theirs, later = state_of(5), state_of(5), state_of(6)
    if differs:
        theirs.cells["g", "t", 0].next_offset = 7
    value, boundary = snapshot_of(theirs), Boundary(0, 5, b"\0" * 16, image_of(state), "me")
    if snapshot_first:
        desk.read(value, lambda _: later)
    desk.at_boundary(boundary)
    if not snapshot_first:
        desk.read(value, lambda _: later)
    until(lambda: 0 in desk.newest and not desk.ready.empty())
    desk.read(snapshot_of(state_of(4)), lambda _: later)  # everything before it was looked at
    desk.at_boundary(boundary._replace(next_offset=6))
    until(lambda: desk.ready.qsize() == 2)
    assert len(desk.mismatches) == differs
    p, written = desk.ready.get()
    assert (p, decode_snapshot(written).state) == (0, state.encode())


def test_a_snapshot_at_the_present_offset_is_compared_with_the_present_state(
    desk: SnapshotDesk,
) -> None:
    theirs = state_of(5)
    theirs.cells["g", "t", 0].next_offset = 7
    desk.read(snapshot_of(theirs), lambda _: state_of(5))
    until(lambda: bool(desk.mismatches))


def test_what_is_of_another_log_is_no_mismatch(
    desk: SnapshotDesk, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = state_of(5)
    theirs.identity, theirs.partitions = "another", 1
    with caplog.at_level(logging.WARNING, "marshal_py.log"):
        desk.read(snapshot_of(state_of(5), partitions=2), lambda _: state_of(5))
        desk.read(snapshot_of(theirs), lambda _: None)
        desk.read(snapshot_of(theirs), lambda _: state_of(5))
        until(lambda: "is of another log" in caplog.text)
    assert desk.mismatches == []


def test_what_was_begun_for_a_log_that_is_no_more_is_dropped(desk: SnapshotDesk) -> None:
    theirs = state_of(5)
    theirs.cells["g", "t", 0].next_offset = 7
    desk.at_boundary(Boundary(0, 5, b"\0" * 16, image_of(state_of(5))))
    desk.reset(1)
    desk.read(snapshot_of(theirs), lambda _: state_of(6))
    until(lambda: desk.newest.get(0) == 5)
    assert desk.mismatches == []


@pytest.mark.parametrize("is_boundary", [True, False])
def test_what_the_thread_is_at_is_dropped_when_the_log_is_no_more(
    desk: SnapshotDesk, monkeypatch: pytest.MonkeyPatch, is_boundary: bool
) -> None:
    begun, ended = threading.Event(), threading.Event()
    name = "canonical_bytes" if is_boundary else "decode_snapshot"
    ours = getattr(snapshots, name)

    def slow(data: bytes) -> object:
        begun.set()
        assert ended.wait(60)
        return ours(data)

    monkeypatch.setattr(snapshots, name, slow)
    if is_boundary:
        desk.at_boundary(Boundary(0, 5, b"\0" * 16, image_of(state_of(5)), "me"))
    else:
        desk.read(snapshot_of(state_of(5)), lambda _: state_of(6))
    assert begun.wait(60)
    desk.reset(2)
    ended.set()
    after = PartitionState(1)
    after.next_offset = 3
    desk.at_boundary(Boundary(1, 3, b"\0" * 16, image_of(after), "me"))
    assert desk.ready.get(timeout=60)[0] == 1  # and not 0, of before
    assert desk.newest == {}


def test_an_older_snapshot_that_comes_later_is_not_the_newest(desk: SnapshotDesk) -> None:
    for claims in (5, 4):
        desk.read(snapshot_of(state_of(claims)), lambda _: state_of(6))
    desk.at_boundary(Boundary(0, 6, b"\0" * 16, image_of(state_of(6)), "me"))
    desk.ready.get(timeout=60)  # all before it was looked at
    assert desk.newest == {0: 5}


def test_one_of_a_log_of_another_shape_is_passed_over(desk: SnapshotDesk) -> None:
    desk.read(snapshot_of(state_of(5), partitions=2), lambda _: state_of(6))
    desk.at_boundary(Boundary(0, 6, b"\0" * 16, image_of(state_of(6)), "me"))
    desk.ready.get(timeout=60)
    assert desk.newest == {}


def test_the_latest_boundaries_are_those_that_are_kept(desk: SnapshotDesk) -> None:
    for n in range(1, KEPT_DIGESTS + 2):
        desk.at_boundary(Boundary(0, n, b"\0" * 16, image_of(state_of(n)), "me"))
        desk.ready.get(timeout=60)
    for n in (1, KEPT_DIGESTS + 1):
        theirs = state_of(n)
        theirs.cells["g", "t", 0].next_offset = 7
        desk.read(snapshot_of(theirs), lambda _: state_of(KEPT_DIGESTS + 2))
    until(lambda: bool(desk.mismatches))
    assert f"at offset {KEPT_DIGESTS + 1} " in str(desk.mismatches[0])


@pytest.mark.parametrize("value", [None, b"", b"\xc1", b"\x91\x01", b"\x94\xa1x\x00\x01\x01"])
def test_what_is_no_snapshot_is_refused(desk: SnapshotDesk, value: bytes | None) -> None:
    with pytest.raises(MalformedRecord, match="no snapshot"):
        desk.read(value, lambda _: state_of(1))


def test_a_damaged_snapshot_does_not_end_the_thread(
    desk: SnapshotDesk, caplog: pytest.LogCaptureFixture
) -> None:
    value = snapshot_of(state_of(5))
    desk.read(value[:-9] + b"\0" * 9, lambda _: state_of(6))
    desk.read(value, lambda _: state_of(6))
    until(lambda: desk.newest.get(0) == 5)
    assert "__m.snapshots" in caplog.text


def test_a_snapshot_that_cannot_be_looked_at_does_not_end_the_thread(
    desk: SnapshotDesk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def fails_at_first(value: bytes) -> Snapshot:
        if next(calls) == 0:
            raise MemoryError("no room")
        return decode_snapshot(value)

    monkeypatch.setattr(snapshots, "decode_snapshot", fails_at_first)
    for claims in (5, 6):
        desk.read(snapshot_of(state_of(claims)), lambda _: state_of(7))
    until(lambda: desk.newest.get(0) == 6)
    assert "a snapshot could not be looked at" in caplog.text
    assert "no room" in caplog.text


def test_a_snapshot_that_is_written_says_what_it_is_of_and_only_those_asked_for_are(
    desk: SnapshotDesk,
) -> None:
    desk.reset(3)
    state = PartitionState(2)
    state.next_offset = 6
    boundary = Boundary(2, 6, b"anchor".ljust(16), image_of(state))
    desk.at_boundary(boundary)
    desk.at_boundary(boundary._replace(writer="me"))
    p, value = desk.ready.get(timeout=60)
    written = decode_snapshot(value)
    assert (p, written.coordinator, written.partitions, written.next_offset) == (2, 2, 3, 6)
    assert (written.anchor, written.writer) == (b"anchor".ljust(16), "me")
    assert written.restore().next_offset == 6
    assert desk.ready.empty()


def test_a_desk_that_is_closed_leaves_no_thread_and_one_without_work_has_none(
    desk: SnapshotDesk,
) -> None:
    desk.close()
    assert desk._thread is None
    desk.reset(1)
    desk.read(snapshot_of(state_of(5)), lambda _: state_of(6))
    until(lambda: desk.newest.get(0) == 5)
    thread = desk._thread
    assert thread is not None
    desk.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_reader_that_follows_for_long_does_not_grow() -> None:
    """Nobody takes the boundaries: they are looked at, or passed over, and let go."""
    reader = LogReader({"bootstrap.servers": "127.0.0.1:1"}, topic="__m", snapshot_topic="__m.s")
    try:
        reader.world.states[:] = [state_of(500)]
        reader.observers[:] = [Observer()]
        reader._last_value = [None]
        reader._partitions, reader.partitions = 1, (0,)
        reader._desk.reset(1)
        for n in range(100):
            message = Message(topic="__m", partition=0, offset=(n + 1) * BOUNDARY, value=b"x")
            assert len(list(reader.fold([message]))) == 1
            assert reader._desk._work.qsize() <= MAX_WAITING
        until(lambda: reader._desk._work.qsize() == 0)
        assert len(reader._desk._own[0]) <= 8
        assert reader.snapshots_to_write.empty()
    finally:
        reader.close()


def test_of_a_log_that_is_no_more_no_snapshot_is_the_newest(desk: SnapshotDesk) -> None:
    """What the next log has would be deleted, as if that one covered it."""
    desk.read(snapshot_of(state_of(5)), lambda _: state_of(6))
    until(lambda: desk.newest == {0: 5})
    desk.reset(1)
    assert desk.newest == {}

"""Merging the partitions' events by time, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.admin import event_stream as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.event_stream import TimedEvent, in_order, new_events, past_events
from marshal_py.protocol import events as ev
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat


def stamped(partition: int, offset: int, at_ms: int) -> TimedEvent:
    return TimedEvent(at_ms, partition, ev.Ignored(offset, "undecodable"))


class FakeReader:
    """A log of so many records in each partition; `feed` moves its world along."""

    def __init__(self, ends: list[int]) -> None:
        self.world = SimpleNamespace(states=[SimpleNamespace(next_offset=0) for _ in ends])
        self._ends = ends

    def extent(self) -> dict[int, tuple[int, int]]:
        return {p: (0, end) for p, end in enumerate(self._ends)}

    def feed(self, batches: list[list[TimedEvent]]) -> Iterator[list[TimedEvent]]:
        for batch in batches:
            for found in batch:
                self.world.states[found.coordinator].next_offset = found.event.offset + 1
            yield batch


def merge(ends: list[int], batches: list[list[TimedEvent]]) -> list[TimedEvent]:
    reader: Any = FakeReader(ends)
    return list(in_order(reader, reader.feed(batches)))


def test_an_event_waits_for_partitions_that_may_bring_an_earlier_one() -> None:
    first, second = stamped(0, 0, 20), stamped(1, 0, 10)
    assert merge([1, 1], [[first], [second]]) == [second, first]


def test_what_nobody_can_precede_does_not_wait() -> None:
    reader: Any = FakeReader([2, 1])
    early, late, other = stamped(0, 0, 10), stamped(0, 1, 30), stamped(1, 0, 20)
    merged = in_order(reader, reader.feed([[other], [early], [late]]))
    assert next(merged) == early
    assert reader.world.states[0].next_offset == 2  # the last batch was needed, and no more
    assert list(merged) == [other, late]


@given(st.data())
def test_all_come_once_and_in_order(data: st.DataObject) -> None:
    steps = st.lists(st.integers(0, 3), max_size=8)
    partitions = data.draw(st.lists(steps, min_size=1, max_size=4))
    queues = []
    for p, gaps in enumerate(partitions):
        at_ms, queue = 0, []
        for offset, gap in enumerate(gaps):
            at_ms += gap
            queue.append(stamped(p, offset, at_ms))
        queues.append(queue)
    ends, everything = [len(q) for q in queues], [found for q in queues for found in q]
    batches: list[list[TimedEvent]] = []
    while any(queues):
        p = data.draw(st.sampled_from([p for p, queue in enumerate(queues) if queue]))
        size = data.draw(st.integers(1, len(queues[p])))
        batches.append(queues[p][:size])
        del queues[p][:size]
    merged = merge(ends, batches)
    assert sorted(map(repr, merged)) == sorted(map(repr, everything))
    assert [m.stamp_ms for m in merged] == sorted(m.stamp_ms or 0 for m in merged)
    for p in range(len(ends)):
        offsets = [m.event.offset for m in merged if m.coordinator == p]
        assert offsets == sorted(offsets)


def groups_of(log: LogByHand) -> list[str]:
    """A group for each coordination partition."""
    names = [f"g{n}" for n in range(99)]
    return [next(g for g in names if log.world.home(g) == p) for p in range(log.world.partitions)]


def test_what_is_new_comes_by_time_and_without_one_first() -> None:
    log = LogByHand(3)
    for group, at_ms in zip(groups_of(log), (30, 20, -1), strict=True):
        log.write(heartbeat("a", 1, group_id=group), at_ms)
    reader: Any = log
    found = new_events(reader)
    assert [(f.stamp_ms, f.coordinator) for f in found] == [(None, 2), (20, 1), (30, 0)]


def test_heartbeats_are_left_out_where_nobody_asked_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: Any = LogByHand()
    log.write(heartbeat("a", 1), 10)
    log.write(b"nonsense", 20)
    messages = log.poll(0)
    batches = list(log.fold(messages))
    monkeypatch.setattr(module, "until_silent", lambda *_: iter([(messages, batches)]))
    (all_,) = past_events(Connection.of_servers("a:1"), log)
    (few,) = past_events(Connection.of_servers("a:1"), log, routine=False)
    assert [type(f.event) for f in few] == [ev.Ignored]
    assert few[0].stamp_ms == 20
    assert ev.Beat in [type(f.event) for f in all_]

"""The log in memory and the clocks that obey: what tests of the protocol stand on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.errors import InvalidArgument
from marshal_py.protocol.messages import Heartbeat, encode
from marshal_py.testing import MemoryLog, MemoryPartition, Record, VirtualClock


def test_records_are_read_from_where_one_wants_and_over_gaps() -> None:
    partition = MemoryPartition(first_offset=5)
    assert [partition.append(b"a", 10), partition.append(None, 11)] == [5, 6]
    partition.skip(3)
    assert partition.append(b"c", 12) == 10
    records = [Record(5, b"a", 10), Record(6, None, 11), Record(10, b"c", 12)]
    assert partition.read(0) == records
    assert partition.read(6, limit=1) == records[1:2]
    assert partition.read(7) == partition.read(10) == records[2:]
    assert partition.read(11) == partition.read(5, limit=0) == []
    assert (len(partition), partition.end) == (3, 11)


def test_what_is_lost_is_told_and_its_offsets_are_given_again() -> None:
    partition = MemoryPartition()
    for value in (b"a", b"b", b"c"):
        partition.append(value)
    partition.skip(4)
    assert partition.truncate(0) == []
    assert partition.truncations == 0
    assert [record.value for record in partition.truncate(2)] == [b"b", b"c"]
    assert (partition.end, partition.truncations) == (1, 1)
    assert partition.append(b"d") == 1
    assert [record.value for record in partition.read(0)] == [b"a", b"d"]


@pytest.mark.parametrize("records", [-1, 2])
def test_no_more_is_lost_than_there_is(records: int) -> None:
    partition = MemoryPartition()
    partition.append(b"a")
    with pytest.raises(InvalidArgument, match=f"records = {records} must be 0 to 1"):
        partition.truncate(records)
    with pytest.raises(InvalidArgument, match="offsets = -1"):
        partition.skip(-1)


def test_partitions_of_a_log_are_apart_and_messages_are_encoded() -> None:
    log = MemoryLog(2, first_offset=7)
    message = Heartbeat(2, "a", "a-1", "g", 1, 1_000, 0, [])
    assert log.append(1, message, 5) == 7
    assert log.append(1, encode(message)) == 8
    assert [record.value for record in log.read(1)] == [encode(message)] * 2
    assert (log.end(0), log.end(1), log.read(0)) == (7, 9, [])
    with pytest.raises(InvalidArgument, match="partitions = 0"):
        MemoryLog(0)


def test_a_clock_runs_at_its_rate_from_where_it_was() -> None:
    clock = VirtualClock(100, rate_ppm=2_000_000, true_ns=10)
    assert [clock.at(10), clock.at(15)] == [100, 110]
    clock.change_rate(15, 500_000)
    assert [clock.at(15), clock.at(25)] == [110, 115]
    clock.jump(25, 1_000)
    assert [clock.at(25), clock.at(27)] == [1_115, 1_116]
    with pytest.raises(InvalidArgument, match="clocks do not stop"):
        clock.change_rate(30, 0)


@given(rate_ppm=st.integers(1, 5_000_000), local_ns=st.integers(-50, 10**12))
def test_when_a_clock_shows_a_time_is_the_first_moment_that_it_does(
    rate_ppm: int, local_ns: int
) -> None:
    clock = VirtualClock(100, rate_ppm=rate_ppm, true_ns=10)
    when_ns = clock.when(local_ns)
    assert clock.at(when_ns) >= local_ns
    assert when_ns == 10 or clock.at(when_ns - 1) < local_ns

"""What an operator writes and hears, on a log that the test holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from marshal_py.admin import operator as module
from marshal_py.admin.operator import Head, Operator
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    MalformedRecord,
    MarshalError,
    PartitionCountChanged,
)
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import (
    ClaimingPartition,
    Message,
    ReleaseGroup,
    ResumeGroup,
    decode,
)
from marshal_py.protocol.world import MS
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat


class Log(LogByHand):
    """A log, and the writer of one operator: `refusing` says which appends (by number) fail."""

    def __init__(self, *, refusing: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__()
        self.appended: list[int] = []
        self.refusal: MarshalError | None = None
        self.opened = 0
        self.fails_to_open: Exception | None = None
        self.cut: list[Exception] = []
        """Raised by the next polls."""
        self.brings_nothing = 0
        """So many of the next polls."""
        self._refusing = refusing
        self._failures: list[tuple[int, str]] = []
        self._told: list[tuple[int, str]] = []
        self.flushed_s: list[float] = []
        self.asked: dict[str, Any] = {}
        """How it is read."""

    def open(self, _timeout_s: float, *, until_ms: int | None = None) -> None:
        self.opened += 1
        if self.fails_to_open is not None:
            raise self.fails_to_open

    def replay(self) -> None:
        for _ in self.fold(self.poll(0)):
            pass

    def poll(self, timeout_s: float) -> list[Any]:
        if self.cut:
            raise self.cut.pop()
        if self.brings_nothing:
            self.brings_nothing -= 1
            return []
        return super().poll(timeout_s)

    def append(self, _p: int, seq: int, value: bytes) -> None:
        self.appended.append(seq)
        if self._refusing(len(self.appended)):
            self._failures.append((seq, "timed out"))
        else:
            self.write(decode(value))

    def take_failures(self) -> list[tuple[int, str]]:
        taken, self._told = self._told, []
        return taken

    def serve(self) -> None:
        """As librdkafka, which tells of failures when it is asked to."""
        self._told += self._failures
        self._failures.clear()

    def flush(self, timeout_s: float) -> int:
        assert not self.is_closed
        self.flushed_s.append(timeout_s)
        return 0


Started = Callable[..., Operator]


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Started:
    def make(log: Log, *, skew_ms: int | None = 500) -> Operator:
        def read(_: object, **how: Any) -> Log:
            log.asked = how
            return log

        monkeypatch.setattr(module, "LogReader", read)
        monkeypatch.setattr(module, "LogWriter", lambda *_, **__: log)
        return Operator(
            {},
            "g",
            topic="log",
            snapshot_topic="log.snapshots",
            client_id="op",
            cold_start_skew_ms=skew_ms,
            connect_timeout_s=1.0,
        )

    return make


def pause(head: Head) -> Message:
    return ReleaseGroup(*head, 10**13)


def test_a_log_is_read_as_by_one_who_polls_now_and_then_and_judges_no_snapshot(
    operator: Started,
) -> None:
    """What its Kafka client has to tell would pile up; a bad snapshot is `marshal verify`'s."""
    log = Log()
    operator(log)
    assert log.asked == {
        "topic": "log",
        "snapshot_topic": "log.snapshots",
        "compare_snapshots": False,
        "is_polled": False,
    }


def test_what_is_on_its_way_is_not_written_twice(operator: Started) -> None:
    log = Log()
    log.brings_nothing = 5
    assert isinstance(operator(log).write_one(pause, 60.0), ev.GroupPaused)
    assert log.appended == [0]


def test_an_append_that_failed_is_made_again(operator: Started) -> None:
    log = Log(refusing=lambda number: number == 1)
    written = operator(log)
    answer = written.write_one(pause, 60.0)
    assert isinstance(answer, ev.GroupPaused)
    assert log.appended == [0, 1]
    assert written.pauses == {answer.offset}


def test_of_an_append_that_was_made_twice_the_one_that_was_accepted_counts(
    operator: Started,
) -> None:
    """The first was thought to have failed, and turned up behind the second."""
    log = Log(refusing=lambda number: number == 1)
    written = operator(log)
    heads: list[Head] = []

    def claim(head: Head) -> Message:
        heads.append(head)
        record = ClaimingPartition(*head, "t", 0, 1_000, -1)
        if len(heads) == 2:  # what was thought to have failed comes before it
            log.write(ClaimingPartition(*heads[0], "t", 0, 1_000, 77))
        return record

    answer = written.write_one(claim, 60.0)
    assert [head[-1] for head in heads] == [0, 1]
    assert isinstance(answer, ev.Claimed)


def test_what_is_not_seen_in_time_may_yet_turn_up(operator: Started) -> None:
    log = Log(refusing=lambda _: True)
    with pytest.raises(BrokerUnavailable, match="2 of 2 records about group 'g' were not seen"):
        operator(log).write({"a": pause, "b": pause}, 0.0)


def test_a_writer_without_the_right_says_so_at_once(operator: Started) -> None:
    log = Log(refusing=lambda _: True)
    log.refusal = AccessDenied("Write on log is missing")
    with pytest.raises(AccessDenied):
        operator(log).write_one(pause, 60.0)


def test_records_about_other_groups_are_no_answers(operator: Started) -> None:
    log = Log()
    written = operator(log)
    written.write_one(pause, 60.0)
    log.write(heartbeat("b", 0, group_id="other", membership=1))
    log.write(ReleaseGroup(2, "b", "b1", "other", 1, 10**13))
    written.turn()
    assert written.alive == set()
    assert len(written.pauses) == 1


def test_who_was_heard_is_alive_until_it_says_goodbye(operator: Started) -> None:
    log = Log()
    written = operator(log)
    for membership in (1, 0):
        log.write(heartbeat("b", 1, instance_id="b1", membership=membership))
    log.write(heartbeat("c", 1, instance_id="c1", membership=1))
    written.turn()
    assert written.alive == {"b", "c"}
    log.write(heartbeat("b", 2, instance_id="b1", membership=2))
    written.turn()
    assert written.alive == {"c"}


def test_a_log_that_lost_records_is_read_again_and_the_call_fails(operator: Started) -> None:
    log = Log()
    written = operator(log)
    written.start()
    log.cut = [Truncated("records 5 to 9 are gone")]
    with pytest.raises(BrokerUnavailable, match="lost records meanwhile; look, and run it again"):
        written.turn()
    assert log.opened == 2
    log.fails_to_open = Truncated("and again")
    with pytest.raises(BrokerUnavailable, match="'log' changes while it is read"):
        written.replay()
    assert log.opened == 5


def test_a_topic_that_has_grown_ends_the_call(operator: Started) -> None:
    log = Log()
    written = operator(log)
    log.partition_count_error = PartitionCountChanged("2, and was 1")
    with pytest.raises(PartitionCountChanged):
        written.turn()


def test_who_has_started_knows_what_was_written_before(operator: Started) -> None:
    log = Log()
    log.write(ReleaseGroup(2, "b", "b1", "g", 1, 10**13))
    written = operator(log)
    written.start()
    assert written.world.paused("g")


def test_closing_lets_go_out_what_is_on_its_way_and_disconnects(operator: Started) -> None:
    log = Log()
    written = operator(log)
    written.start()
    written.close()
    assert log.flushed_s == [5.0]
    assert log.is_closed


def test_who_cannot_start_leaves_no_connection_behind(operator: Started) -> None:
    log = Log()
    log.fails_to_open = BrokerUnavailable("nobody answers")
    written = operator(log)
    with pytest.raises(BrokerUnavailable):
        written.start()
    assert log.is_closed


def test_a_name_that_no_record_can_carry_is_refused_before_the_network() -> None:
    with pytest.raises(MalformedRecord):
        Operator(
            {},
            "g" * 10_000,
            topic="log",
            snapshot_topic="log.snapshots",
            client_id="op",
            cold_start_skew_ms=None,
            connect_timeout_s=1.0,
        )


# Who counts as dead

INTERVAL_MS = 1_000


def probed(log: Log, written: Operator, silent_ms: int) -> None:
    """Client b wrote at offset 0; the probe came so much later by the broker's clock."""
    log.write(heartbeat("b", 0, instance_id="b1", membership=1))
    written.turn()
    written.probe(60.0)
    stamped = log.observers[0].stamped
    stamped.note(0, 1_000_000)
    stamped.note(1, 1_000_000 + silent_ms)


@pytest.mark.parametrize(("beyond_ms", "dead"), [(0, False), (10, False), (11, True)])
def test_by_the_brokers_clock_the_dead_are_silent_for_two_intervals_and_the_skew(
    operator: Started, beyond_ms: int, dead: bool
) -> None:
    """Its times are known to 10 ms."""
    log = Log()
    written = operator(log)
    probed(log, written, 2 * INTERVAL_MS + 500 + beyond_ms)
    assert written.is_stale(0, INTERVAL_MS) == dead


def test_without_a_bound_of_the_skew_the_brokers_clock_says_nothing(operator: Started) -> None:
    log = Log()
    written = operator(log, skew_ms=None)
    probed(log, written, 3_600_000)
    assert not written.is_stale(0, INTERVAL_MS)


def test_a_probe_in_a_log_that_was_read_again_since_says_nothing(operator: Started) -> None:
    log = Log()
    written = operator(log)
    probed(log, written, 3_600_000)
    assert written.is_stale(0, INTERVAL_MS)
    written.replay()
    assert not written.is_stale(0, INTERVAL_MS)


def test_who_wrote_after_the_probe_is_not_judged_by_it(operator: Started) -> None:
    log = Log()
    written = operator(log)
    probed(log, written, 3_600_000)
    assert not written.is_stale(1, INTERVAL_MS)
    assert not written.is_stale(2, INTERVAL_MS)


@pytest.mark.parametrize(("silent_ms", "dead"), [(2_000, False), (2_001, True)])
def test_who_was_watched_is_dead_after_two_intervals(
    operator: Started, monkeypatch: pytest.MonkeyPatch, silent_ms: int, dead: bool
) -> None:
    log = Log()
    written = operator(log)
    log.observers[0].seen.note(0, 10 * MS)
    monkeypatch.setattr(module, "boottime_ns", lambda: (10 + silent_ms) * MS)
    assert written.is_stale(0, INTERVAL_MS) == dead


def test_resuming_needs_the_pause_that_was_seen(operator: Started) -> None:
    log = Log()
    written = operator(log)
    began = written.write_one(pause, 60.0)
    refused = written.write_one(lambda head: ResumeGroup(*head, began.offset + 1), 60.0)
    assert isinstance(refused, ev.Rejected)
    ended = written.write_one(lambda head: ResumeGroup(*head, began.offset), 60.0)
    assert isinstance(ended, ev.GroupResumed)
    assert not written.world.paused("g")

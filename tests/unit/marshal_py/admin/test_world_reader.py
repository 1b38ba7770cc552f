"""How old what the log says is, and what becomes of a look that cannot be had."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin import world_reader as module
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import (
    SilenceEstimate,
    WorldView,
    catch_up,
    read_world,
    until_silent,
)
from marshal_py.client.log_reader import Truncated
from marshal_py.errors import BrokerUnavailable, InvalidArgument, LogHole, PartitionCountChanged
from marshal_py.protocol.messages import ClaimingPartition
from marshal_py.protocol.text.codec import (
    CLAIMING_PARTITION,
    HEARTBEAT,
    RELEASE_GROUP,
    TextRecord,
)
from marshal_py.protocol.text.codec import encode as encode_text
from marshal_py.protocol.wire import text_wire
from marshal_py.protocol.world import MS, Liveness
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat

CONNECTION = Connection.of_servers("nowhere:1", "log")
INTERVAL_MS = 1_000
NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """This machine's clock, in ms."""
    now_ms = [NOW_MS]
    monkeypatch.setattr("time.time_ns", lambda: now_ms[0] * MS)
    return now_ms


def test_who_only_looks_needs_no_right_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "LogReader", lambda _, **how: made.append(how))
    module.open_reader(CONNECTION, text_wire(1))
    (how,) = made
    assert (how["needs"], how["wire"].name) == (("Read",), "text")
    assert (how["topic"], how["snapshot_topic"]) == ("log", "log.snapshots")


def claiming(who: str = "a", topic: str = "t") -> ClaimingPartition:
    return ClaimingPartition(2, who, f"{who}1", "g", 0, topic, 0, INTERVAL_MS, -1)


def silence(view: WorldView, topic: str = "t") -> SilenceEstimate:
    (found,) = [f for f in view.world.cells() if f[1][1] == topic]
    estimate = view.cell_silence(*found)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("ms", "liveness"),
    [(999, "fresh"), (1_000, "unknown"), (2_000, "unknown"), (2_001, "stale")],
)
def test_a_holder_is_stale_after_two_intervals_by_the_brokers_time(
    ms: int, liveness: Liveness
) -> None:
    log = LogByHand()
    log.write(claiming(), NOW_MS - ms)
    assert silence(log.view()) == SilenceEstimate(ms, False, liveness, "timestamps")


def test_where_the_clock_is_behind_the_newest_record_is_now() -> None:
    log = LogByHand()
    log.write(claiming(), NOW_MS + 57_000)
    log.write(heartbeat("b", 0, instance_id="b1", membership=1), NOW_MS + 60_000)
    view = log.view()
    assert view.behind_ms == 60_000
    assert silence(view).ms == 3_000
    assert silence(view).liveness == "stale"
    assert "clock is behind by 1.0 min or more" in view.explain()


def test_times_of_producers_are_called_that() -> None:
    log = LogByHand()
    log.write(claiming(), NOW_MS)
    assert "producers' clocks" not in log.view().explain()
    log.write(heartbeat("b", 0, instance_id="b1", membership=1), NOW_MS, create_time=True)
    view = log.view()
    assert not view.log_append_time
    assert "producers' clocks" in view.explain()


def test_what_lies_before_all_that_was_read_is_as_old_at_least() -> None:
    """A snapshot says who holds it, and the record itself is gone: it may be fresh for all that."""
    log = LogByHand()
    log.write(claiming(), NOW_MS - 500)
    log.view()  # read; another look begins behind that
    for seq in range(2):
        log.write(heartbeat("b", seq, instance_id="b1", membership=1), NOW_MS - 300 + 100 * seq)
    view = log.view()
    assert silence(view) == SilenceEstimate(300, True, "unknown", "timestamps")
    assert str(silence(view)) == ">300 ms"


def test_who_is_watched_for_long_enough_is_judged_by_that_alone() -> None:
    """No two clocks are compared then."""
    log = LogByHand()
    log.write(claiming(), NOW_MS - 500)
    view = log.view()
    log.observers[0].seen.note(0, 0)
    view.observed_until_ns = 1_500 * MS
    assert silence(view).basis == "timestamps", "it is not known what it does"
    view.observed_until_ns = 2_001 * MS
    assert silence(view) == SilenceEstimate(2_001, True, "stale", "observed")


def test_what_came_while_it_was_watched_is_judged_by_when_it_came() -> None:
    log = LogByHand()
    view = log.view()
    log.write(claiming(), NOW_MS - 500_000)
    ((stamp_ms, p, event),) = view.watch(0)
    assert (stamp_ms, p, event.offset) == (NOW_MS - 500_000, 0, 0)
    log.observers[0].seen.note(0, view.observed_until_ns - 700 * MS)
    assert silence(view) == SilenceEstimate(700, False, "fresh", "observed")


def test_a_view_that_stays_open_forgets_the_oldest_times_and_mixes_up_none() -> None:
    log = LogByHand()
    view = log.view()
    view.limit_timestamps(2)
    for seq in range(6):
        log.write(heartbeat("b", seq, instance_id="b1", membership=1), NOW_MS - 1_000 + seq)
    told = view.watch(0)
    assert [stamp for stamp, _, _ in told][-1] == NOW_MS - 995
    assert view.silence(0, 5, INTERVAL_MS).ms == 995
    assert view.silence(0, 0, INTERVAL_MS).at_least


def test_a_group_that_the_log_does_not_know_is_no_group_without_troubles() -> None:
    log = LogByHand()
    log.write(claiming(), NOW_MS)
    view = log.view()
    view.require_group("g")
    view.require_group(None)
    with pytest.raises(InvalidArgument, match=r"knows no group 'gg'.*'g'"):
        view.require_group("gg")
    with pytest.raises(InvalidArgument, match="knows no group 'g'"):
        LogByHand().view().require_group("g")


def test_brokers_that_send_nothing_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a look at a log whose leader has gone would never end."""
    log = LogByHand()
    seconds = itertools.count(step=0.5)
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    log.history = lambda **_: itertools.repeat(([], []), 50)  # type: ignore[method-assign]
    with pytest.raises(BrokerUnavailable, match="nothing for 5 s, before the end of 'log'"):
        log.view(timeout_s=5)


# Version 1

TEXT = text_wire(60)
NOW_S = NOW_MS // 1000


def text_claim(at_s: int) -> TextRecord:
    return TextRecord(CLAIMING_PARTITION, 1, at_s, "i", "a", "g", "t", 0)


def test_in_version_1_silence_goes_by_the_time_that_the_holder_wrote() -> None:
    log = LogByHand(wire=TEXT)
    log.write(text_claim(NOW_S - 130))
    view = log.view()
    assert silence(view) == SilenceEstimate(130_000, False, "stale", "timestamps")
    assert view.newest_ms == NOW_MS - 130_000
    log.write(TextRecord(HEARTBEAT, 1, NOW_S - 10, "i", "a", "g", "t", 0, 5))
    assert silence(log.view()).liveness == "fresh"


def test_of_a_holder_whose_clock_is_far_ahead_nothing_is_known() -> None:
    """It may be dead for as long as its clock is ahead."""
    log = LogByHand(wire=TEXT)
    log.write(text_claim(NOW_S + 3_600))
    assert silence(log.view()) == SilenceEstimate(0, True, "unknown", "timestamps")


@pytest.mark.parametrize(("at_ms", "held"), [(NOW_MS - 1, False), (NOW_MS, True)])
def test_a_look_at_the_past_of_version_1_goes_by_the_times_in_records(
    monkeypatch: pytest.MonkeyPatch, at_ms: int, held: bool
) -> None:
    logs: list[LogByHand] = []

    def open_reader(_connection: Connection, wire: Any) -> LogByHand:
        log = LogByHand(wire=wire)
        log.write(text_claim(NOW_S))
        log.write(TextRecord(RELEASE_GROUP, 1, NOW_S + 9, "i", "op", "g", "", 0, NOW_S + 99))
        logs.append(log)
        return log

    monkeypatch.setattr(module, "open_reader", open_reader)
    view = read_world(CONNECTION, at_ms=at_ms, wire=TEXT)
    cell = view.world.cell("g", "t", 0)
    assert (cell is not None and cell.held) == held
    assert view.world.states[0].next_offset == 2, "it was read to its end all the same"
    assert not view.world.states[0].paused
    assert (view.at_ms, view.taken_ms) == (at_ms, at_ms)
    assert logs[0].until_ms is None, "the broker knows no times of these records"
    assert logs[0].is_closed


def test_the_time_that_a_record_of_version_1_carries() -> None:
    assert module.own_time_ms(encode_text(text_claim(NOW_S))) == NOW_S * 1000
    assert module.own_time_ms(b"\x93no record") == -1
    assert module.own_time_ms(None) == -1


# Looks that cannot be had


class Broken(LogByHand):
    """Of 8 partitions. Raises as often as there are errors."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__(partitions=8)
        self.errors = errors

    def history(self, *, events: bool = True) -> Iterator[tuple[list[Any], list[Any]]]:
        if self.errors:
            raise self.errors.pop()
        return super().history(events=events)


def read(
    monkeypatch: pytest.MonkeyPatch, errors: list[Exception], **how: Any
) -> tuple[WorldView | Exception, list[Broken]]:
    readers: list[Broken] = []

    def open_reader(*_: object) -> Broken:
        readers.append(Broken(errors))
        return readers[-1]

    monkeypatch.setattr(module, "open_reader", open_reader)
    try:
        return read_world(CONNECTION, **how), readers
    except Exception as error:
        return error, readers


def test_a_log_that_is_cut_off_meanwhile_is_read_again_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, (reader,) = read(monkeypatch, [Truncated("cut")] * 26)
    assert isinstance(found, WorldView)
    assert reader.is_closed
    found, (reader,) = read(monkeypatch, [Truncated("cut")] * 27)
    assert isinstance(found, BrokerUnavailable)
    assert "changes while it is read" in str(found)
    assert reader.is_closed


def test_each_partition_may_have_a_snapshot_of_another_log() -> None:
    """A reader that is opened again knows which, and finds out one at a time."""
    reader: Any = Broken([Truncated("it is another log than its snapshot's")] * 8)
    assert catch_up(CONNECTION, reader).world.partitions == 8
    reader = Broken([Truncated("cut")] * 9)
    with pytest.raises(Truncated):
        catch_up(CONNECTION, reader)


def test_a_moment_before_the_log_begins_is_a_wrong_argument_and_a_hole_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = read(monkeypatch, [LogHole("gone")], at_ms=1_000)
    assert isinstance(found, InvalidArgument)
    assert "does not reach back to 1970-01-01T00:00:01.000Z" in str(found)
    found, (reader,) = read(monkeypatch, [LogHole("gone")])
    assert isinstance(found, LogHole)
    assert reader.is_closed


def test_a_log_that_was_grown_is_no_log_without_troubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its groups are not where they are looked for: nothing would be wrong with them."""

    def open_reader(*_: object) -> LogByHand:
        log = LogByHand()
        log.partition_count_error = PartitionCountChanged("8, and were 1")
        return log

    monkeypatch.setattr(module, "open_reader", open_reader)
    with pytest.raises(PartitionCountChanged, match="8, and were 1"):
        read_world(CONNECTION)
    with pytest.raises(InvalidArgument, match="had another number of partitions at 1970-01-01"):
        read_world(CONNECTION, at_ms=1_000)


def test_the_past_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    found, readers = read(monkeypatch, [], at_ms=1_000, observe_s=1.0)
    assert isinstance(found, InvalidArgument)
    assert readers == []


def test_only_brokers_that_send_nothing_for_long_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long it takes to read all that they send."""
    now_s, told = [100.0], list[tuple[int, int]]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    steps = [["a record"], [], ["a record"], [], [], []]

    def history(*, events: bool) -> Iterator[tuple[list[Any], list[Any]]]:
        assert events
        for messages in steps:
            now_s[0] += 6.0
            state.next_offset += len(messages)
            yield messages, []

    state = SimpleNamespace(next_offset=3)
    reader: Any = SimpleNamespace(
        world=SimpleNamespace(states=[state]), extent=lambda: {0: (0, 13)}, history=history
    )
    connection = Connection.of_servers("nowhere:1", "log")
    connection = replace(connection, progress=lambda done, total: told.append((done, total)))
    read: list[list[Any]] = []
    with pytest.raises(BrokerUnavailable, match="have sent nothing for 10 s"):
        read.extend(messages for messages, _ in until_silent(connection, reader))
    assert read == steps[:4]
    assert told == [(1, 10), (2, 10)]

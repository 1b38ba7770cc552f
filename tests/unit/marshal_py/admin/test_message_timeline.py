"""The history of one message in sentences, out of records that a test writes."""

from __future__ import annotations

import pytest

from marshal_py.admin.message_timeline import MessageTimeline
from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.ranges import range_cell
from marshal_py.protocol.rationalizer import PartitionState, apply

WHOLE = ("orders", 3)


class Log:
    """Writes records about orders/3, and keeps the timelines of some of its messages."""

    def __init__(self, *followed: int) -> None:
        self.state = PartitionState(0)
        self.now_ms = 1_000_000
        self.timelines = {n: self._new(n) for n in followed}

    def _new(self, message: int) -> MessageTimeline:
        timeline = MessageTimeline(("g", *WHOLE), *WHOLE, message, 0)
        timeline.begin(self.state)
        return timeline

    def write(self, record: m.Message) -> int:
        offset = self.state.next_offset
        events: list[ev.Event] = []
        apply(self.state, offset, m.encode(record), events)
        assert not any(isinstance(event, ev.Rejected) for event in events), events
        self.now_ms += 1_000
        for event in events:
            for timeline in self.timelines.values():
                timeline.feed(event, self.now_ms)
        return offset

    def who(self, client: str) -> tuple[str, str, str, int]:
        return client, f"{client}1", "g", self.state.next_offset

    def claim(self, client: str, count: int) -> int:
        return self.write(m.ClaimingRange(2, *self.who(client), *WHOLE, 500, 0, count))

    def take(self, client: str, unit: tuple[str, int]) -> int:
        version = self.state.version("g", *unit)
        return self.write(m.ClaimingPartition(2, *self.who(client), *unit, 500, version))

    def release(self, client: str, unit: tuple[str, int], epoch: int, at: int) -> None:
        self.write(m.ReleasingPartition(2, *self.who(client), *unit, epoch, at))

    def split(self, client: str, unit: tuple[str, int], epoch: int, at: int) -> None:
        self.write(m.SplittingRange(2, *self.who(client), *unit, epoch, at))

    def stands(self, message: int) -> tuple[str, str | None, int | None, int | None]:
        """(state, holder, start, end), which a look from a snapshot agrees with where it can."""
        found = self.timelines[message].status(self.now_ms)
        again = self._new(message).status(self.now_ms)
        if found.state != "given_back":  # that it was had before, a snapshot does not say
            assert (again.state, again.start) == (found.state, found.start) or found.state == "done"
        assert f"message {message} of orders/3" in found.text
        return found.state, found.holder, found.start, found.end

    def told(self, message: int) -> list[tuple[str, str]]:
        return [(entry.kind, entry.sentence) for entry in self.timelines[message].entries]


def test_a_message_that_moves_from_range_to_range() -> None:
    log = Log(5, 45, 99)
    assert log.stands(45) == ("waiting", None, None, None)
    epoch = log.claim("a", 60)
    assert log.stands(45) == ("held", "a", 0, 60)
    assert log.stands(99) == ("waiting", None, None, None)
    log.split("a", range_cell(*WHOLE, 0), epoch, 40)
    assert log.stands(5) == ("held", "a", 0, 40)
    assert log.stands(45) == ("given_back", None, 40, 60)
    second = log.claim("b", 8)  # of which the rest stays free
    assert log.stands(45) == ("held", "b", 40, 48)
    third = log.take("c", range_cell(*WHOLE, 40))
    assert third > second
    log.release("c", range_cell(*WHOLE, 40), third, 44)
    assert log.stands(45) == ("given_back", None, 40, 48)
    fourth = log.claim("d", 8)
    log.release("d", range_cell(*WHOLE, 40), fourth, 48)
    assert log.stands(45) == ("done", "d", 40, 48)
    assert log.told(45) == [
        ("claimed", "a claimed 0–59, epoch 0"),
        ("released", "a gave 40–59 back: it had begun nothing of that"),
        ("claimed", "b claimed 40–59, epoch 2"),
        ("taken_over", "c took 40–47 over from b, epoch 3"),
        ("released", "c gave it back at position 44: it was not done"),
        ("claimed", "d claimed 40–47, epoch 5"),
        ("done", "d reached position 48: it is done"),
    ]


def test_what_a_claim_cuts_off_is_not_had_by_it() -> None:
    log = Log(5, 15)
    epoch = log.claim("a", 20)
    log.release("a", range_cell(*WHOLE, 0), epoch, -1)
    log.claim("b", 10)
    assert log.stands(5) == ("held", "b", 0, 10)
    assert log.stands(15) == ("given_back", None, 10, 20)
    assert [kind for kind, _ in log.told(15)] == ["claimed", "released"]


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_position_that_is_set_begins_anew(partitioned: bool) -> None:
    log = Log(5)
    unit = WHOLE if partitioned else range_cell(*WHOLE, 0)
    epoch = log.take("a", WHOLE) if partitioned else log.claim("a", 10)
    log.release("a", unit, epoch, 10)
    start = None if partitioned else 0
    assert log.stands(5)[:3] == ("done", "a", start)
    for to, state in ((2, "waiting"), (7, "passed_over"), (5, "waiting")):
        log.write(m.ReleaseGroup(2, *log.who("op"), 10**13))
        version = log.state.version("g", *WHOLE)
        log.write(m.SetPosition(2, *log.who("op"), *WHOLE, to, version))
        found = log.timelines[5].status(log.now_ms)
        assert (found.state, found.holder, found.start) == (state, None, None)
    pause = log.state.groups["g"].pause
    assert pause is not None
    log.write(m.ResumeGroup(2, *log.who("op"), pause.version))
    log.claim("b", 10)
    assert log.stands(5) == ("held", "b", 5, 15)


def test_at_most_once_says_who_may_have_had_it() -> None:
    log = Log(5, 7)
    epoch = log.claim("a", 10)
    unit = range_cell(*WHOLE, 0)
    log.write(m.ClaimingMessages(2, *log.who("a"), *unit, epoch, 6))
    assert log.stands(5)[:2] == ("claimed", "a")
    assert log.stands(7)[:2] == ("held", "a")
    log.take("b", unit)
    assert log.timelines[5].status(log.now_ms).state == "claimed"
    assert ("claimed", "a claimed 0–5: each is delivered at most once") in log.told(5)


def test_what_was_claimed_at_most_once_is_never_called_done() -> None:
    """Whoever claimed it may have died before the message was delivered."""
    log = Log(5)
    epoch = log.claim("a", 10)
    unit = range_cell(*WHOLE, 0)
    log.write(m.ClaimingMessages(2, *log.who("a"), *unit, epoch, 6))
    log.release("a", unit, epoch, 8)
    assert log.timelines[5].status(log.now_ms).state == "claimed"


def test_the_message_at_which_a_range_is_split_is_given_back() -> None:
    log = Log(39, 40)
    epoch = log.claim("a", 60)
    log.split("a", range_cell(*WHOLE, 0), epoch, 40)
    assert log.stands(39) == ("held", "a", 0, 40)
    assert log.stands(40) == ("given_back", None, 40, 60)


def test_of_a_group_that_was_forgotten_no_range_is_left() -> None:
    log = Log(5)
    epoch = log.claim("a", 10)
    log.release("a", range_cell(*WHOLE, 0), epoch, 3)
    pause = log.write(m.ReleaseGroup(2, *log.who("op"), 10**13))
    log.write(m.ForgetGroup(2, *log.who("op"), pause))
    assert log.stands(5) == ("waiting", None, None, None)
    log.write(m.ResumeGroup(2, *log.who("op"), pause))
    log.take("b", WHOLE)
    assert log.stands(5) == ("held", "b", None, None)
    assert log.told(5)[-2:] == [
        ("forgotten", "op had the group forgotten, with all positions"),
        ("claimed", "b claimed it, epoch 5"),
    ]


def test_what_another_group_does_with_it_is_not_told() -> None:
    log = Log(5)
    log.write(m.ClaimingPartition(2, "z", "z1", "h", 0, *WHOLE, 500, -1))
    log.write(m.ReleasingPartition(2, "z", "z1", "h", 1, *WHOLE, 0, 10))
    pause = log.write(m.ReleaseGroup(2, "op", "op1", "h", 2, 10**13))
    log.write(m.ForgetGroup(2, "op", "op1", "h", 3, pause))
    timeline = log.timelines[5]
    latest_ms = log.now_ms + 7_000
    timeline.feed(ev.Ignored(9, "undecodable"), latest_ms)
    assert log.stands(5) == ("waiting", None, None, None)
    assert (log.told(5), timeline.known) == ([], False)
    assert timeline.latest_ms == latest_ms, "so far the log was read"
    log.take("a", WHOLE)
    assert timeline.known
    assert timeline.latest_ms == latest_ms, "clocks of brokers differ"


def test_what_a_snapshot_says_of_it_is_known_without_a_history() -> None:
    log = Log()
    assert not log._new(5).known
    epoch = log.take("a", WHOLE)
    held = log._new(5)
    assert (held.known, held.entries) == (True, [])
    found = held.status(log.now_ms)
    assert (found.state, found.holder, found.instance_id, found.epoch) == ("held", "a", "a1", epoch)
    assert "since before the log begins" in found.text
    log.write(m.ClaimingMessages(2, *log.who("a"), *WHOLE, epoch, 6))
    assert log._new(5).status(log.now_ms).state == "claimed"
    assert log._new(6).status(log.now_ms).state == "held", "the next to be claimed"
    log.release("a", WHOLE, epoch, 6)
    done = log._new(5)
    found = done.status(log.now_ms)
    assert (done.known, found.state, found.holder) == (True, "done", None)
    assert not log._new(6).known, "the next one that somebody will have"


def test_that_an_operator_set_the_position_is_told_with_what_it_means() -> None:
    log = Log(5)
    log.release("a", WHOLE, log.take("a", WHOLE), 10)
    log.write(m.ReleaseGroup(2, *log.who("op"), 10**13))
    for to in (5, 6):
        version = log.state.version("g", *WHOLE)
        log.write(m.SetPosition(2, *log.who("op"), *WHOLE, to, version))
    assert log.told(5)[-2:] == [
        ("position_set", "op set the position to 5: it comes, once more if it came before"),
        ("position_set", "op set the position to 6: it is left out"),
    ]

"""A preview that means something else by now is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from marshal_py.admin.connection import Connection
from marshal_py.admin.positions import Change
from marshal_py.consumer.topics import Described
from marshal_py.dashboard import operations as module
from marshal_py.dashboard.audit_trail import AuditTrail, Entry
from marshal_py.dashboard.dead_letters import DeadLetterTopics, LetterId, Replayed, Target
from marshal_py.dashboard.operations import Action, Operations, has_moved
from marshal_py.errors import BrokerUnavailable, InvalidArgument


class SlowAdmin:
    """Stands in for a `GroupAdmin` whose broker does not answer, until it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def __enter__(self) -> SlowAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def require(self) -> None:
        pass

    def held(self) -> list[object]:
        return []

    def pause(self, for_s: float) -> int:
        self.asked.set()
        assert self.answers.wait(10)
        return 1_000


class Trail(AuditTrail):
    """Keeps what is written down."""

    def ensure(self) -> None:
        self.kept: list[Entry] = []

    def _append(self, entry: Entry) -> None:
        self.kept.append(entry)


def test_a_preview_waits_for_nobody_elses_action(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection.of_servers("nowhere:1")
    operations = Operations(connection, DeadLetterTopics(connection), Trail(connection))
    admin = SlowAdmin()
    monkeypatch.setattr(operations, "_admin", lambda group: admin)
    pause = Action("pause", "g")
    ticket = operations.preview(pause)["ticket"]
    done: list[str] = []
    acting = threading.Thread(target=lambda: done.append(operations.perform(ticket)["text"]))
    acting.start()
    assert admin.asked.wait(10)
    looking = threading.Thread(target=lambda: done.append(operations.preview(pause)["text"]))
    looking.start()
    looking.join(10)
    assert "members stop" in done[0]
    admin.answers.set()
    acting.join(10)
    assert "is paused until" in done[1]


def test_what_is_done_is_done_in_the_log_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[tuple[object, ...], dict[str, object]]] = []
    monkeypatch.setattr(module, "GroupAdmin", lambda *given, **named: made.append((given, named)))
    connection = Connection({"bootstrap.servers": "nowhere:1"}, "log", 7.0)
    Operations(connection, DeadLetterTopics(connection), Trail(connection))._admin(
        Action("pause", "g")
    )
    [(given, named)] = made
    assert given == (connection.kafka, "g")
    assert named.pop("say") == module.logger.warning
    assert named == {"topic": "log", "client_id": module.CLIENT_ID, "connect_timeout_s": 7.0}


def change(before: int, after: int, partition: int = 0) -> Change:
    return Change("orders", partition, before, after, None, None)


def test_a_group_that_went_on_a_little_is_no_reason() -> None:
    assert has_moved([change(100, 90)], [change(105, 90)]) is None
    assert has_moved([change(-1, 90)], [change(-1, 90)]) is None


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ([change(85, 90)], "orders/0 was at 100, and is at 85"),
        ([change(90, 90)], "orders/0 was at 100, and is at 90"),
        ([change(100, 95)], "orders/0 has no message at offset 90"),
        ([change(100, 90), change(3, 0, 1)], "the partitions are others"),
        ([], "the partitions are others"),
    ],
)
def test_what_means_something_else_is_refused(now: list[Change], why: str) -> None:
    said = has_moved([change(100, 90)], now)
    assert said is not None
    assert said.startswith(why)


class MovingAdmin(SlowAdmin):
    """Its group works on until the partition is let go of, and is beyond the target then."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[list[Change]] = []

    def keys_of(self, topic: str, _partitions: object) -> list[tuple[str, int]]:
        return [(topic, 0)]

    def plan(self, _positions: object) -> list[Change]:
        return [change(80, 90)]

    def set_positions(
        self, _positions: object, *, timeout_s: float, check: Callable[[list[Change]], None]
    ) -> list[Change]:
        now = [change(95, 90)]
        check(now)
        self.written.append(now)
        return now


def test_what_was_reached_before_the_partition_was_let_go_of_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Connection.of_servers("nowhere:1")
    operations = Operations(connection, DeadLetterTopics(connection), Trail(connection))
    admin = MovingAdmin()
    monkeypatch.setattr(operations, "_admin", lambda _: admin)
    ticket = operations.preview(Action("set_position", "g", topic="orders", to="90"))["ticket"]
    with pytest.raises(InvalidArgument, match="was at 80, and is at 95 by now; nothing was set"):
        operations.perform(ticket)
    assert admin.written == []


# Replays


ABOUT = Described(4, b"id-of-orders")
LETTER = Target((0, 3), 17, "orders", 2, ABOUT, 100, "key")


class Letters(DeadLetterTopics):
    """Of which one is there."""

    def __init__(self) -> None:
        super().__init__(CONNECTION)
        self.found = [LETTER]
        self.replayed: list[list[Target]] = []
        self.answer = Replayed([(0, 3)], "1 of 1 replayed.", failed=False)
        self.failure: Exception | None = None

    def targets(self, topic: str, chosen: Iterable[LetterId]) -> list[Target]:
        return self.found

    def replay(self, topic: str, targets: list[Target], who: str) -> Replayed:
        if self.failure is not None:
            raise self.failure
        self.replayed.append(targets)
        return self.answer


class Kept(AuditTrail):
    """A trail in memory, which may refuse what is written."""

    def __init__(self) -> None:
        super().__init__(CONNECTION)
        self.kept: list[Entry] = []
        self.full = False

    def ensure(self) -> None:
        pass

    def _append(self, entry: Entry) -> None:
        if self.full:
            raise BrokerUnavailable("the trail took no record")
        self.kept.append(entry)

    def entries(self) -> list[Entry]:
        return self.kept


CONNECTION = Connection.of_servers("nowhere:1")
REPLAY = Action("replay", topic="orders.dlq", letters=[(0, 3)])


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def trail() -> Kept:
    return Kept()


@pytest.fixture
def operations(letters: Letters, trail: Kept) -> Operations:
    return Operations(CONNECTION, letters, trail)


def test_a_ticket_is_good_for_once(operations: Operations, letters: Letters) -> None:
    ticket = operations.preview(REPLAY)["ticket"]
    assert operations.perform(ticket, "ann")["text"] == "1 of 1 replayed."
    for used in (ticket, "made up"):
        with pytest.raises(InvalidArgument, match="too old, or was used"):
            operations.perform(used, "ann")
    assert letters.replayed == [[LETTER]]


def test_a_ticket_is_good_for_five_minutes(
    operations: Operations, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    first, second = (operations.preview(REPLAY)["ticket"] for _ in range(2))
    now_s[0] += module.TICKET_S
    operations.perform(first, "ann")
    now_s[0] += 1
    with pytest.raises(InvalidArgument, match="too old"):
        operations.perform(second, "ann")
    assert len(letters.replayed) == 1


def test_of_many_previews_the_latest_are_good(operations: Operations) -> None:
    tickets = [operations.preview(REPLAY)["ticket"] for _ in range(module.MAX_TICKETS + 1)]
    with pytest.raises(InvalidArgument, match="too old"):
        operations.perform(tickets[0], "ann")
    operations.perform(tickets[1], "ann")


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(LETTER, checksum=18), "orders.dlq/0@3 is another record by now"),
        (replace(LETTER, partition=1), "orders is not the topic that it was"),
        (replace(LETTER, about=Described(4, b"id of another")), "is not the topic that it was"),
        (replace(LETTER, about=Described(8, b"id-of-orders")), "is not the topic that it was"),
        (replace(LETTER, end=99), "is not the topic that it was"),
    ],
)
def test_what_is_not_as_it_was_shown_is_not_replayed(
    operations: Operations, letters: Letters, trail: Kept, now: Target, why: str
) -> None:
    ticket = operations.preview(REPLAY)["ticket"]
    letters.found = [now]
    with pytest.raises(InvalidArgument, match=why):
        operations.perform(ticket, "ann")
    assert letters.replayed == []
    assert [(e.phase, why in e.text) for e in trail.kept] == [("asked", False), ("failed", True)]


def test_a_topic_that_has_grown_is_still_the_one_that_was_shown(
    operations: Operations, letters: Letters
) -> None:
    ticket = operations.preview(REPLAY)["ticket"]
    letters.found = [replace(LETTER, end=105)]
    operations.perform(ticket, "ann")
    assert len(letters.replayed) == 1


def test_what_somebody_else_has_replayed_meanwhile_is_not_replayed_twice(
    operations: Operations, letters: Letters, trail: Kept
) -> None:
    ticket = operations.preview(REPLAY)["ticket"]
    operations.perform(operations.preview(REPLAY)["ticket"], "bob")
    with pytest.raises(InvalidArgument, match=r"orders\.dlq/0@3 was replayed by somebody else"):
        operations.perform(ticket, "ann")
    shown = operations.preview(REPLAY)
    assert "1 of them were replayed before" in shown["text"]
    assert shown["letters"][0]["replayed"]
    operations.perform(shown["ticket"], "ann")
    assert len(letters.replayed) == 2, "whoever has seen that may do it once more"


def test_what_cannot_be_written_down_is_not_done(
    operations: Operations, letters: Letters, trail: Kept
) -> None:
    ticket = operations.preview(REPLAY)["ticket"]
    trail.full = True
    with pytest.raises(BrokerUnavailable, match="the trail took no record"):
        operations.perform(ticket, "ann")
    assert letters.replayed == []


def test_what_fails_is_in_the_trail_by_whom_and_why(
    operations: Operations, letters: Letters, trail: Kept
) -> None:
    letters.failure = BrokerUnavailable("nobody answers")
    with pytest.raises(BrokerUnavailable):
        operations.perform(operations.preview(REPLAY)["ticket"], "ann at 10.0.0.7")
    assert [(e.who, e.what, e.phase, e.text, e.letters) for e in trail.kept] == [
        ("ann at 10.0.0.7", "replay of 1 letter of orders.dlq", "asked", "", [(0, 3)]),
        ("ann at 10.0.0.7", "replay of 1 letter of orders.dlq", "failed", "nobody answers", []),
    ]


def test_the_trail_tells_which_letters_were_replayed_and_which_were_not(
    operations: Operations, letters: Letters, trail: Kept
) -> None:
    """Those that were not may be replayed by the next one, who asks for all of them."""
    letters.found = [LETTER, replace(LETTER, letter=(0, 4))]
    letters.answer = Replayed([(0, 4)], "1 of 2 replayed; not the others.", failed=True)
    operations.perform(operations.preview(REPLAY)["ticket"], "ann")
    assert [(e.phase, e.letters) for e in trail.kept] == [
        ("asked", [(0, 3), (0, 4)]),
        ("failed", [(0, 4)]),
    ]


def test_what_was_done_is_told_although_the_trail_takes_no_end(
    operations: Operations, letters: Letters, trail: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BrokerUnavailable("the trail took no record")

    monkeypatch.setattr(trail, "end", refuse)
    done = operations.perform(operations.preview(REPLAY)["ticket"], "ann")
    assert done["text"] == "1 of 1 replayed."

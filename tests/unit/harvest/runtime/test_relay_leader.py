"""What a relay tells its scheduler of requests with several messages, and what it notes."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.core import relay as r
from harvest.core.actions import Open, OpenFailed, Start, Stop
from harvest.core.dispatcher import Message, Outcome, Policy
from harvest.core.mark_actions import Marked
from harvest.core.mark_checkpoint import Term
from harvest.core.routes import Router
from harvest.core.row import Row
from harvest.databases.postgres.attempts import Attempt
from harvest.errors import HarvestError, SchemaError, SinkHangs, StoreUnavailable
from harvest.runtime.leadership import Leadership
from harvest.runtime.relay_leader import RelayLeader, RelayTools
from tests.unit.harvest.runtime.test_range_leader import Store

WAIT_S = 60.0
DOWN = Outcome(503, "HTTP 503", unavailable=True)
BAD = Outcome(422, "HTTP 422", lasting=True)


class Destination:
    """Answers `batch` to requests with several messages; alone, it refuses the rows `bad`."""

    def __init__(self, batch: Outcome, bad: Sequence[int] = ()) -> None:
        self.batch, self.bad = batch, bad
        self.sent: list[list[int]] = []

    def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
        del idempotency_key, epoch
        self.sent.append([row.id])
        return BAD if row.id in self.bad else Outcome(200)

    def send_batch(self, rows: Sequence[tuple[Row, str]], epoch: int) -> Outcome:
        del epoch
        self.sent.append([row.id for row, _ in rows])
        return self.batch

    def close(self) -> None: ...


class Lease:
    epoch = 7
    remaining_ms = 1_000.0
    held = True


class Reporting(Leadership):
    """Keeps what the scheduler would hear; the heartbeat is never late."""

    def __init__(self) -> None:
        lease: Any = Lease()
        super().__init__(lease)
        self.reported: SimpleQueue[Any] = SimpleQueue()

    def report(self, event: Any) -> None:
        self.reported.put(event)

    def wait_for_heartbeat(self) -> None: ...


class Notes:
    """What is noted beside the table."""

    def __init__(self) -> None:
        self.there: dict[int, Attempt] = {}
        self.asked: list[str] = []
        self.fails = False

    def forget_overtaken(self) -> None:
        self.asked.append("forget overtaken")

    def load(self) -> dict[int, int]:
        return {note.id: note.retries for note in self.there.values()}

    def settled(self) -> dict[int, r.Settled]:
        if self.fails:
            raise StoreUnavailable("it is down")
        self.asked.append("settled")
        return {n.id: (n.fingerprint or 0, frozenset(n.delivered)) for n in self.there.values()}

    def record(self, attempts: Sequence[Attempt]) -> None:
        self.there |= {attempt.id: attempt for attempt in attempts}

    def forget(self, ids: Sequence[int]) -> None:
        for row_id in ids:
            self.there.pop(row_id, None)


def message(row_id: int, key: bytes) -> Message:
    return Message(Row(row_id, "t", key, b"v"), "a")


def leader_of(destination: Destination) -> tuple[RelayLeader, Reporting]:
    leadership = Reporting()
    store: Any = Store()
    tools = RelayTools(store, store, {"a": destination}, {"a": Policy()}, Router(["a"]))
    return RelayLeader(leadership, tools), leadership


def told(destination: Destination, *messages: Message) -> list[tuple[int, Outcome]]:
    """Send these in one request; return what the scheduler hears, in order."""
    leader, leadership = leader_of(destination)
    leader._post([r.Post(messages[0], messages[1:])])
    events = [leadership.reported.get(timeout=WAIT_S) for _ in messages]
    assert leader._senders.close(WAIT_S)
    return [(event.row_id, event.outcome) for event in events]


def test_a_destination_that_hangs_ends_the_process_whether_or_not_it_can_be_closed() -> None:
    class Hung(Destination):
        def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
            raise SinkHangs

    leader, leadership = leader_of(Hung(DOWN))
    leader._post([r.Post(message(1, b"x"))])
    leadership.reported.get(timeout=WAIT_S)
    assert isinstance(leadership.hangs, SinkHangs)
    assert leader._senders.close(WAIT_S)


X1, Y2, X3, Y4, Z5 = (message(n, k) for n, k in enumerate((b"x", b"y", b"x", b"y", b"z"), 1))


def test_a_request_that_was_taken_is_told_of_each_message() -> None:
    destination = Destination(Outcome(200))
    assert told(destination, X1, Y2, X3) == [(n, Outcome(200)) for n in (1, 2, 3)]
    assert destination.sent == [[1, 2, 3]]


def test_of_a_request_that_failed_the_first_of_each_key_is_told_and_the_others_wait() -> None:
    heard = told(Destination(DOWN), X1, Y2, X3, Y4, Z5)
    assert [row_id for row_id, outcome in heard if outcome.untried] == [3, 4]
    failed = {row_id: outcome for row_id, outcome in heard if not outcome.untried}
    assert {row_id: outcome.error for row_id, outcome in failed.items()} == dict.fromkeys(
        (1, 2, 5), DOWN.error
    )
    assert {row_id for row_id, outcome in failed.items() if outcome.shared} == {2, 5}
    assert [outcome.untried for _, outcome in heard] == [True, True, False, False, False]


def test_what_a_request_was_refused_for_is_found_out_one_by_one_and_its_key_waits() -> None:
    destination = Destination(BAD, bad=[1])
    heard = told(destination, X1, Y2, X3, Y4)
    assert destination.sent == [[1, 2, 3, 4], [1], [2], [4]]
    assert dict(heard)[3].untried
    assert dict(heard)[2] == dict(heard)[4] == Outcome(200)
    assert heard[-1] == (1, BAD), "told when all that waits behind it was told of"


@pytest.mark.parametrize("messages", [[X1], [X1, Y2]], ids=["one", "batch"])
def test_who_has_lost_the_lease_sends_nothing(messages: list[Message]) -> None:
    destination = Destination(Outcome(200))
    leader, leadership = leader_of(destination)
    leadership.lease.held = False  # type: ignore[misc]
    leader._post([r.Post(messages[0], tuple(messages[1:]))])
    assert leader._senders.close(WAIT_S)
    assert destination.sent == []
    assert leadership.reported.empty(), "of what was not tried there is nothing to tell"


def test_who_loses_the_lease_amid_a_request_sends_no_more_of_it() -> None:
    class Overtaken(Destination):
        def send(self, row: Row, idempotency_key: str, epoch: int) -> Outcome:
            leadership.lease.held = False  # type: ignore[misc]
            return super().send(row, idempotency_key, epoch)

    destination = Overtaken(BAD)
    leader, leadership = leader_of(destination)
    leader._post([r.Post(X1, (Y2, Z5))])
    assert leader._senders.close(WAIT_S)
    assert destination.sent == [[1, 2, 5], [1]]


def noting() -> tuple[RelayLeader, Reporting, Notes]:
    store: Any = Store()
    notes: Any = Notes()
    tools = RelayTools(store, store, {}, {"a": Policy()}, Router(["a"]), attempts=notes)
    leadership = Reporting()
    return RelayLeader(leadership, tools), leadership, notes


def test_who_takes_over_forgets_first_what_an_earlier_row_overtakes_and_only_once() -> None:
    leader, _, notes = noting()
    for _ in range(2):
        leader._open(Open(0))
    assert notes.asked == ["forget overtaken", "settled"]


def test_what_was_noted_by_this_leader_is_not_read_again_in_its_next_term() -> None:
    """It is known already, and the notes of what is delivered by now would never be forgotten: the
    more of them there are, the more memory, until nothing is marked any more."""
    leader, _, notes = noting()
    of_the_last, ours = (
        Attempt(n, "a", n, "HTTP 503", 503, False, ("b",), fingerprint=7) for n in (1, 2)
    )
    notes.there = {1: of_the_last}
    notes.fails = True
    assert isinstance(leader._open(Open(0)), OpenFailed)
    notes.fails = False
    settled = {1: (7, frozenset({"b"}))}
    for retries in ({1: 1}, {}, {}):
        event = leader._open(Open(0))
        assert isinstance(event, r.Opened)
        assert (event.retries, event.settled) == (retries, settled if retries else {})
        notes.there[2] = ours


def test_who_has_lost_the_lease_notes_nothing_that_the_next_leader_has_read() -> None:
    leader, leadership, notes = noting()
    leadership.lease.held = False  # type: ignore[misc]
    leader._note([r.Record(X1, 1, DOWN, gave_up=False)])
    assert notes.there == {}


@pytest.mark.parametrize("error", [StoreUnavailable("it is down"), SchemaError("may not write")])
def test_what_cannot_be_noted_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: HarvestError
) -> None:
    """A destination that fails is no reason to send nothing to the others."""
    leader, _, notes = noting()

    def refuse(_: object) -> None:
        raise error

    for name in ("record", "forget"):
        monkeypatch.setattr(notes, name, refuse)
    for action in (r.Record(X1, 1, DOWN, gave_up=False), r.Forget(1)):
        caplog.clear()
        leader._note([action])
        assert f"failures could not be noted: {error}" in caplog.text


def test_the_last_of_the_notes_of_a_row_counts() -> None:
    leader, _, notes = noting()
    first, second = (r.Record(X1, n, DOWN, gave_up=False) for n in (1, 2))
    leader._note([first, second])
    assert notes.there[1].retries == 2
    leader._note([r.Record(X1, 3, DOWN, gave_up=False), r.Forget(1)])
    assert notes.there == {}
    leader._note([r.Forget(1), first])
    assert notes.there[1].retries == 1
    leader._note([r.Record(Y2, 1, DOWN, gave_up=False), r.Forget(1)])
    assert list(notes.there) == [2]


def test_what_became_of_messages_is_counted_by_destination() -> None:
    leader, leadership = leader_of(Destination(DOWN))
    stats, its = leadership.stats, leader.scheduler.dispatcher.destinations["a"]
    untried = Outcome(error="an earlier one failed", untried=True)
    for number, outcome in enumerate((Outcome(200), DOWN, BAD, Outcome(200), untried)):
        leader.observe(r.Sent(number, outcome, "a"))
    assert stats.messages == {("a", "delivered"): 2, ("a", "unavailable"): 1, ("a", "failed"): 1}
    assert (stats.deliveries, stats.failed_deliveries) == (4, 2)
    assert stats.breakers == {"a": "closed"}
    its.trips = 1
    leader.observe(Stop())
    assert stats.breakers == {"a": "open"}
    its.gone = True
    leader.observe(Stop())
    assert stats.breakers == {"a": "gone"}


def test_a_row_that_can_go_nowhere_is_no_destinations_failure() -> None:
    """`harvest dead-letters retry --destination` is for what that one has refused."""
    leader, _, notes = noting()
    nowhere = X1._replace(problem="there is no route")
    leader._note([r.Record(m, 1, BAD, gave_up=True) for m in (nowhere, Y2)])
    assert [(n, note.destination) for n, note in notes.there.items()] == [(1, ""), (2, "a")]


def test_a_row_that_is_not_to_be_sent_for_thousands_of_years_ends_nothing() -> None:
    """So long nobody can wait at once; and each process in turn would end at such a row."""
    lease: Any = Lease()
    store: Any = Store()
    leadership = Leadership(lease)
    tools = RelayTools(store, store, {"a": Destination(DOWN)}, {"a": Policy()}, Router(["a"]))
    leader = RelayLeader(leadership, tools)
    never = Row(1, "t", b"k", b"v", (b"deliver_after",), (b"9999-12-31T23:59:59Z",))
    for event in (Start(), r.Opened(Term.of(1)), Marked(0, [never])):
        leader.scheduler.step(event)
    leadership.report(Stop())
    assert leadership._next(leader) == Stop()


def test_all_that_a_relay_was_connected_with_is_closed() -> None:
    closed: list[str] = []

    def part(name: str) -> Any:
        return SimpleNamespace(close=lambda: closed.append(name))

    tools = RelayTools(
        part("marker"),
        part("purger"),
        {"a": part("a"), "b": part("b")},
        {"a": Policy(), "b": Policy()},
        Router(["a", "b"]),
        dead_letters=part("dead letters"),
        attempts=part("attempts"),
        guard=part("guard"),
    )
    tools.close()
    assert closed == ["marker", "purger", "a", "b", "dead letters", "attempts", "guard"]

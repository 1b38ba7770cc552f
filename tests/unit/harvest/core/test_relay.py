"""The relay algorithm and its dispatcher, without I/O: order, backoff, breaker, takeover."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harvest.config.routes import load_route
from harvest.core import relay as r
from harvest.core.actions import Finish, Open, Start, Stop
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy
from harvest.core.dispatcher import (
    Delivered,
    Dispatcher,
    Failed,
    GivenUp,
    Message,
    Outcome,
    Policy,
    Untried,
)
from harvest.core.mark_actions import (
    AddDeadLetters,
    AddFailed,
    DeadLettersAdded,
    Mark,
    Marked,
    MarkFailed,
    Purge,
    Purged,
    PurgeFailed,
)
from harvest.core.mark_checkpoint import Term
from harvest.core.pacing import Limits
from harvest.core.routes import Router
from harvest.core.row import Row, fingerprint
from harvest.core.templates import Template
from harvest.errors import ConfigurationError, InvalidRecord, StoreUnavailable
from harvest.outbox.record import OutboxRecord
from harvest.testing.memory_table import MemoryDeadLetters, MemoryMarkStore, MemoryTable

OK = Outcome(200)
DOWN = Outcome(error="refused", unavailable=True)
WRONG = Outcome(500, "HTTP 500")
BAD = Outcome(422, "HTTP 422", lasting=True)


def message(row_id: int, key: str, to: str = "a", at_ms: float = 0.0) -> Message:
    return Message(Row(row_id, "t", key.encode(), b"v"), to, at_ms)


def dispatcher(**changes: Any) -> Dispatcher:
    return Dispatcher({"a": Policy(**changes), "b": Policy()}, random=lambda: 1.0)


def ids(messages: Sequence[Message]) -> list[int]:
    return [m.row.id for m in messages]


# --- The dispatcher ---


def test_one_of_each_group_is_under_way_and_the_others_follow() -> None:
    d = dispatcher()
    d.offer([message(1, "x"), message(2, "y"), message(3, "x")], 0)
    assert ids(d.start(0)) == [1, 2]
    assert d.start(0) == []
    assert isinstance(d.finished(1, OK, 1), Delivered)
    assert ids(d.start(1)) == [3]


def test_a_group_that_fails_waits_and_the_others_go_on() -> None:
    d = dispatcher(pauses_ms=(100, 200, 300))
    d.offer([message(1, "x"), message(2, "x"), message(3, "y")], 0)
    assert ids(d.start(0)) == [1, 3]
    due = []
    now = 0.0
    for retries in (1, 2, 3, 4):
        verdict = d.finished(1, WRONG, now)
        assert isinstance(verdict, Failed)
        assert verdict.retries == retries
        due.append(verdict.due_ms - now)
        assert d.start(verdict.due_ms - 1) == []
        now = verdict.due_ms
        assert d.due_ms() == now
        assert ids(d.start(now)) == [1]
    assert due == pytest.approx([120, 240, 360, 360])
    d.finished(3, OK, now)
    d.finished(1, OK, now)
    assert ids(d.start(now)) == [2]


def test_by_default_attempts_follow_the_schedule_of_standard_webhooks() -> None:
    """The table in its specification, "Deliverability and reliability", from the first failure."""
    d = Dispatcher({"a": Policy()}, random=lambda: 0.0)
    d.offer([message(1, "x"), message(2, "y")], 0)
    d.start(0)
    d.finished(2, OK, 0)
    now, began = 0.0, []
    while isinstance(verdict := d.finished(1, WRONG, now), Failed):
        now = verdict.due_ms
        began.append(now / 1000)
        assert ids(d.start(now)) == [1]
    table = ["00:05", "05:05", "35:05", "155:05", "455:05", "1055:05", "1895:05", "3095:05"]
    assert began == [60 * int(m) + int(s) for m, s in (t.split(":") for t in [*table, "4535:05"])]
    assert isinstance(verdict, GivenUp)
    assert verdict.retries == 10


def test_after_so_many_failures_a_message_is_given_up() -> None:
    d = dispatcher(attempts=2)
    d.remember({1: 1})
    d.offer([message(1, "x"), message(2, "x"), message(3, "y")], 0)
    d.start(0)
    d.finished(3, OK, 0)
    verdict = d.finished(1, WRONG, 0)
    assert isinstance(verdict, GivenUp)
    assert verdict.retries == 2
    assert ids(d.start(0)) == [2]
    assert isinstance(d.finished(2, BAD, 0), GivenUp)
    assert len(d) == 0


def test_a_message_that_is_put_back_is_tried_as_often_as_a_new_one() -> None:
    d = dispatcher(attempts=2)
    for now in (0.0, 1e9):
        d.offer([message(1, "x"), message(2, "y")], now)
        d.start(now)
        d.finished(2, OK, now)
        verdict = d.finished(1, WRONG, now)
        assert isinstance(verdict, Failed)
        assert ids(d.start(verdict.due_ms)) == [1]
        verdict = d.finished(1, WRONG, verdict.due_ms)
        assert isinstance(verdict, GivenUp)
        assert verdict.retries == 2


def test_nothing_is_given_up_where_nothing_can_be_set_aside() -> None:
    d = Dispatcher({"a": Policy(attempts=1)}, random=lambda: 1.0, give_up=False)
    d.offer([message(1, "x")], 0)
    d.start(0)
    assert isinstance(d.finished(1, BAD, 0), Failed)


def test_the_breaker_opens_probes_and_closes() -> None:
    d = dispatcher(breaker_failures=2, breaker_open_ms=1_000, pauses_ms=(1,), concurrency=8)
    d.offer([message(n, str(n)) for n in range(1, 5)], 0)
    assert len(d.start(0)) == 4
    d.finished(1, DOWN, 0)
    assert ids(d.start(10)) == [1]  # one failure opens nothing
    d.finished(2, DOWN, 10)
    d.finished(3, DOWN, 10)
    assert d.start(500) == []
    assert d.due_ms() == 1_010
    for row_id in (1, 4):
        d.finished(row_id, DOWN, 500)
    (probe,) = d.start(1_010)
    assert d.start(1_020) == []
    d.finished(probe.row.id, DOWN, 1_020)
    assert d.start(3_019) == []  # twice as long
    (probe,) = d.start(3_020)
    d.finished(probe.row.id, OK, 3_030)
    assert len(d.start(3_030)) == 3


def test_an_outage_gives_nothing_up() -> None:
    d = dispatcher(attempts=3, breaker_failures=2, breaker_open_ms=10, pauses_ms=(1,))
    d.offer([message(1, "x")], 0)
    now = 0.0
    for _ in range(50):
        (sent,) = d.start(now)
        verdict = d.finished(1, DOWN, now)
        assert isinstance(verdict, Failed)
        assert sent.row.id == 1
        now += 100_000
        assert verdict.retries <= 2


def test_what_became_due_after_it_was_asked_for_is_due() -> None:
    d = dispatcher(breaker_failures=1, breaker_open_ms=10, pauses_ms=(1,))
    d.offer([message(1, "x")], 0)
    d.start(0)
    d.finished(1, DOWN, 0)
    assert d.start(9.9) == []
    assert d.due_ms() == 10  # however late it is now: nobody else will wake who waits for it
    assert ids(d.start(12)) == [1]
    assert d.due_ms() is None


def test_other_destinations_are_not_affected_by_an_outage() -> None:
    d = dispatcher(breaker_failures=1)
    d.offer([message(1, "x"), message(2, "y"), message(3, "z", "b")], 0)
    d.start(0)
    d.finished(1, DOWN, 0)
    d.offer([message(4, "w", "b"), message(5, "v", "a")], 0)
    assert ids(d.start(0)) == [4]


def test_retry_after_holds_for_the_destination() -> None:
    d = dispatcher(breaker_failures=100, max_retry_after_ms=5_000, pauses_ms=(1,))
    d.offer([message(1, "x"), message(2, "y")], 0)
    d.start(0)
    busy = Outcome(503, "HTTP 503", unavailable=True, retry_after_ms=2_000)
    d.finished(1, busy, 0)
    d.finished(2, OK, 0)
    d.offer([message(3, "z")], 0)
    assert d.start(1_999) == []
    assert set(ids(d.start(2_000))) == {1, 3}
    far = Outcome(503, "HTTP 503", unavailable=True, retry_after_ms=9e9)
    d.finished(1, far, 2_000)
    d.finished(3, far, 2_000)
    assert d.start(6_999) == []
    assert len(d.start(7_000)) == 2


def test_concurrency_and_priority() -> None:
    policies = {"low": Policy(concurrency=2), "high": Policy(concurrency=3, priority=1)}
    d = Dispatcher(policies, random=lambda: 1.0, total=4)
    for n in range(10):
        d.offer([message(2 * n, f"l{n}", "low"), message(2 * n + 1, f"h{n}", "high")], 0)
    assert [m.destination for m in d.start(0)] == ["high", "high", "high", "low"]


def test_a_message_waits_for_its_time_and_its_group_for_it() -> None:
    d = dispatcher()
    d.offer([message(1, "x", at_ms=500), message(2, "x"), message(3, "y")], 0)
    assert ids(d.start(0)) == [3]
    assert d.due_ms() == 500
    assert ids(d.start(500)) == [1]


def test_what_could_not_be_asked_says_nothing_about_the_destination() -> None:
    d = dispatcher(breaker_failures=1, pauses_ms=(1,))
    d.offer([message(1, "x"), message(2, "y")], 0)
    d.start(0)
    d.finished(1, DOWN, 0)
    d.finished(2, Outcome(error="no such header", lasting=True), 0)
    assert d.start(999) == []


@pytest.mark.parametrize("status", [500, 401, 404, 301])
@pytest.mark.parametrize("groups", [1, 2, 1_000])
def test_an_hour_of_wrong_answers_sets_nothing_aside(status: int, groups: int) -> None:
    """Whatever they are, they say nothing of a message as long as none is confirmed."""
    down = Outcome(status, f"HTTP {status}")
    d = dispatcher(attempts=3, pauses_ms=(10, 1_000))
    d.offer([message(n, str(n)) for n in range(groups)], 0)
    now, sent = 0.0, 0
    while now < 3_600_000:
        for one in d.start(now):
            sent += 1
            assert isinstance(d.finished(one.row.id, down, now), Failed)
        due = d.due_ms()
        assert due is not None
        now = due
    assert len(d) == groups
    if groups > 1:
        assert sent < 200  # it is left alone, but for a probe a minute
    for _ in range(groups):
        for one in d.start(now):
            assert isinstance(d.finished(one.row.id, OK, now), Delivered)
        now = d.due_ms() or now
    assert len(d) == 0


def test_a_message_that_fails_while_others_succeed_is_given_up() -> None:
    d = dispatcher(attempts=20, pauses_ms=(10,))
    d.offer([message(1, "x"), message(2, "y")], 0)
    d.start(0)
    d.finished(2, OK, 0)
    now = 0.0
    while isinstance(verdict := d.finished(1, WRONG, now), Failed):
        now = verdict.due_ms
        assert ids(d.start(now)) == [1]  # and the breaker does not open for its sake
    assert isinstance(verdict, GivenUp)
    assert verdict.retries == 20


def test_what_is_gone_is_sent_nothing_more_and_gives_nothing_up() -> None:
    d = dispatcher(attempts=1, pauses_ms=(10,))
    d.offer([message(1, "x"), message(2, "y"), message(3, "z", "b")], 0)
    assert len(d.start(0)) == 3
    d.finished(2, OK, 0)
    verdict = d.finished(1, Outcome(410, "HTTP 410", gone=True), 0)
    assert isinstance(verdict, Failed)
    assert verdict.retries == 0
    d.offer([message(4, "w"), message(5, "v", "b")], 0)
    assert ids(d.start(0)) == [5]
    assert d.start(1e12) == []
    assert d.due_ms() is None
    assert ids(d.shed(1e12).by_destination["a"]) == [1]


GONE = Outcome(410, "HTTP 410", gone=True)


@pytest.mark.parametrize(
    "said", [GONE, Outcome(429, "HTTP 429", unavailable=True, retry_after_ms=1e6)]
)
def test_a_row_that_can_go_nowhere_waits_for_no_destination(said: Outcome) -> None:
    """It is none of any destination's: else its key, too, would wait for one that is down."""
    d = dispatcher(concurrency=1)
    d.offer([message(1, "x")], 0)
    d.start(0)
    nowhere = message(2, "y")._replace(problem="no such destination")
    d.offer([nowhere, message(3, "y", "b"), message(4, "z")], 0)
    assert ids(d.start(0)) == [2], "nor does it take a request's place"
    d.finished(1, said, 0)
    d.offer([message(5, "w")._replace(problem="no such destination")], 0)
    shed = d.shed(0)
    assert ids(shed.by_destination["a"]) == [1], "4 is kept, to probe it"
    assert shed.behind == []
    assert ids(d.start(0)) == [5]
    for row_id in (2, 5):
        wrong = Outcome(error="no such destination", lasting=True)
        assert isinstance(d.finished(row_id, wrong, 0), GivenUp)
    assert ids(d.start(0)) == [3]
    assert d.destinations["a"].under_way == 0


def test_a_rate_is_kept_evenly() -> None:
    d = dispatcher(rate_per_s=10, concurrency=50)
    d.offer([message(n, str(n)) for n in range(50)], 0)
    at: list[float] = []
    now = 1_000.0
    while len(at) < 50:
        at += [now for _ in d.start(now)]
        now = d.due_ms() or now
    assert at == [1_000.0 + 100 * n for n in range(50)]


def test_who_is_called_a_little_late_catches_up_on_a_rate() -> None:
    d = dispatcher(rate_per_s=1_000, concurrency=5_000)
    d.offer([message(n, str(n)) for n in range(5_000)], 0)
    assert sum(len(d.start(now)) for now in range(0, 1_000, 4)) == pytest.approx(1_000, abs=10)
    assert len(d.start(60_000)) <= 11


def test_what_waits_behind_a_message_that_waits_is_shed() -> None:
    d = dispatcher()
    d.offer([message(1, "x"), message(2, "x"), message(3, "y"), message(4, "y")], 0)
    d.start(0)
    assert d.shed(0).behind == []
    d.finished(1, WRONG, 0)
    assert ids(d.shed(1).behind) == [2]
    assert d.shed(1).behind == []


def test_what_is_under_way_is_not_shed_nor_what_was_sent_before_it() -> None:
    """Of a request that failed it is told message by message."""
    d = dispatcher(batch_records=4, breaker_failures=1)
    d.offer([message(n, "x") for n in range(1, 6)], 0)
    assert ids(d.start(0)) == [1, 2, 3, 4]
    d.finished(2, Outcome(error="an earlier one failed", untried=True), 0)
    d.destinations["a"].trips = 1
    assert ids(d.shed(0).by_destination["a"]) == [5]
    for row_id in (3, 4):
        d.finished(row_id, Outcome(error="an earlier one failed", untried=True), 0)
    d.finished(1, OK, 0)
    assert ids(d.start(0)) == [2, 3, 4]
    assert len(d) == 3


def test_what_was_shed_and_is_offered_again_is_not_tried_before_its_pause_is_over() -> None:
    d = dispatcher(pauses_ms=(100,), batch_records=4)
    d.offer([message(1, "x"), message(2, "y")], 0)
    d.start(0)
    for row_id in (1, 2):
        d.finished(row_id, WRONG, 0)
    d.destinations["a"].trips = 1
    assert ids(d.shed(1).by_destination["a"]) == [2]
    d.destinations["a"].trips = 0
    d.offer([message(2, "y")], 1)
    assert d.start(119) == []
    assert ids(d.start(120)) == [1, 2]


# --- Routes and templates ---


def row(**changes: Any) -> Row:
    return Row(7, "orders", b"k 1", b"v", (b"to",), (b"eu",))._replace(**changes)


def test_routes() -> None:
    assert Router(["one"]).messages(row())[0].destination == "one"
    assert Router(["orders", "b"]).messages(row())[0].destination == "orders"
    assert Router(["x-eu", "b"], "x-{header.to}").messages(row())[0].destination == "x-eu"
    assert Router(["a", "b"], "b").messages(row())[0].destination == "b"
    route = load_route("python:tests.unit.harvest.core.test_relay:by_key")
    assert Router(["a", "b"], route).messages(row())[0].destination == "b"
    assert "by_key failed" in str(Router(["a"], route).messages(row(key=b"fail"))[0].problem)
    assert "no destination 'orders'" in str(Router(["a", "b"]).messages(row())[0].problem)
    assert "key is NULL" in str(Router(["a"]).messages(row(key=None))[0].problem)
    assert "one length" in str(Router(["a"]).messages(row(header_values=()))[0].problem)
    assert Router(["{a}"]).messages(row())[0].destination == "{a}", "no template: a name"
    unique = Router(["a"], unique="{header.to}.{id}")
    assert unique.unique(row()) == "eu.7"
    (message,) = unique.messages(row(header_keys=(), header_values=()))
    assert message.problem, "and nothing that stops all others"
    for wrong in ("nowhere", "python:no.such.module:f", "python:random:nothing", "{nothing}"):
        with pytest.raises(ConfigurationError):
            Router(["a"], load_route(wrong))


def by_key(found: Row) -> str:
    if found.key == b"fail":
        raise ValueError(found.key)
    return "b"


def by_group(found: Row) -> str:
    """Two groups go to one destination; of one, every third row goes elsewhere."""
    return "u" if found.key == b"z" or (found.key == b"y" and found.id % 3 == 0) else "t"


def test_deliver_after() -> None:
    def at(value: bytes) -> Message:
        router = Router(["a"], clock=lambda: (1_000_000.0, 50.0))
        return router.messages(row(header_keys=(b"deliver_after",), header_values=(value,)))[0]

    assert at(b"1970-01-01T00:16:45Z").not_before_ms == 5_050.0
    assert at(b"1970-01-01T01:16:45+01:00").not_before_ms == 5_050.0
    for wrong in (b"tomorrow", b"2026-01-01T00:00:00", b"\xff"):
        assert "deliver_after" in str(at(wrong).problem)


def test_templates() -> None:
    assert Template.parse("{{{outbox}}}/{topic}.{id}", "o").render(row()) == "{o}/orders.7"
    assert Template.parse("{key}").render(row(), lambda s: s.replace(" ", "%20")) == "k%201"
    for missing in (row(key=b"\xff"), row(key=None)):
        with pytest.raises(InvalidRecord):
            Template.parse("{key}").render(missing)
    with pytest.raises(InvalidRecord):
        Template.parse("{header.other}").render(row())
    for wrong in ("{", "{key!r}", "{key:>5}", "{header.}", "{0}", "{}"):
        with pytest.raises(ConfigurationError):
            Template.parse(wrong)


def test_what_a_template_says_is_not_shown() -> None:
    """It may hold a secret: of a row that lacks what it asks for, the error is kept and logged."""
    template = Template.parse("Bearer hush {key}", name="the header 'X'")
    for missing in (row(key=b"\xff"), row(key=None)):
        with pytest.raises(InvalidRecord, match="the header 'X'") as caught:
            template.render(missing)
        assert "hush" not in str(caught.value)


# --- The scheduler, in a simulated world ---

KEYS = ("x", "y", "z")


@dataclass
class World:
    """A table, a receiver, and leaders that follow one another; it checks the order as it goes."""

    seed: int
    key_waits: bool = True
    now_ms: float = 0.0
    table: MemoryTable = field(default_factory=MemoryTable)
    got: list[int] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    ever_dead_letters: set[int] = field(default_factory=set)
    calm: bool = False
    down: set[str] = field(default_factory=set)
    """Destinations that do not answer."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.store = MemoryMarkStore(self.table)
        self.dead_letters = MemoryDeadLetters(self.table)
        self.rows: dict[str, list[int]] = {key: [] for key in KEYS}
        self.begin()

    def begin(self) -> None:
        policies = {
            name: Policy(concurrency=2, attempts=3, pauses_ms=(10, 20, 40), breaker_failures=2)
            for name in ("t", "u")
        }
        limits = Limits(mark_query_records=4, max_in_flight_records=9, io_error_backoff_ms=1)
        dispatcher = Dispatcher(policies, self.random.random)
        self.scheduler = r.RelayScheduler(
            1,
            dispatcher,
            Router(
                ["t", "u"], load_route("python:tests.unit.harvest.core.test_relay:by_group")
            ).messages,
            limits,
            BadRowFilter(BadRowPolicy(key_waits=self.key_waits)),
            lambda: self.now_ms,
        )
        self.lanes: dict[str, list[Any]] = {"mark": [], "purge": [], "post": []}
        self.answers: list[Any] = []
        self.finished = False
        self.step(Start())

    def step(self, event: Any) -> None:
        for action in self.scheduler.step(event):
            match action:
                case Finish():
                    self.finished = True
                case r.Post():
                    self.lanes["post"].append(action)
                case Purge():
                    self.lanes["purge"].append(action)
                case r.Record() | r.Forget():
                    pass
                case _:
                    self.lanes["mark"].append(action)

    def write(self) -> None:
        key = self.random.choice(KEYS)
        self.rows[key] += self.table.insert(OutboxRecord("t", key, "v"))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            kind = self.random.random()
            if kind < 0.08 and not self.calm:
                self.write()
            elif kind < 0.1 and not self.calm:
                self.store.fail_next = self.random.choice(["before", "after"])
            elif kind < 0.11 and not self.calm:
                self.dead_letters.fail_next = self.random.choice(["before", "after"])
            elif kind < 0.12 and not self.calm:
                self.dead_letters.retry()
            elif kind < 0.125 and not self.calm:
                self.down = set(self.random.sample(["t", "u"], self.random.choice([0, 0, 1, 2])))
            elif kind < 0.13 and not self.calm:
                for action in self.lanes["post"]:  # of a leader that is killed: done, or not
                    if self.random.random() < 0.5:
                        self.receive(action.message.row)
                self.begin()
            elif kind < 0.2:
                self.now_ms += self.random.choice([1, 20, 5_000])
                self.step(r.Tick())
            elif kind < 0.6 and self.answers:
                # Answers of one lane come in order; here each lane has at most one at a time.
                self.step(self.answers.pop(self.random.randrange(len(self.answers))))
            else:
                self.work()

    def work(self) -> None:
        lane = self.random.choice([name for name, todo in self.lanes.items() if todo] or [""])
        if not lane:
            return
        todo = self.lanes[lane]
        at = self.random.randrange(len(todo)) if lane == "post" else 0
        self.answers.append(self.done(todo.pop(at)))

    def done(self, action: Any) -> Any:
        match action:
            case Open():
                term = Term.of(self.random.getrandbits(60))
                return r.Opened(term, self.dead_letters.waiting_keys() if self.key_waits else {})
            case Mark(term, batch, limit, _):
                try:
                    return Marked(batch, self.store.mark(term, batch, limit, 1.0))
                except StoreUnavailable:
                    return MarkFailed(batch)
            case AddDeadLetters(term, rows):
                try:
                    moved = self.dead_letters.add(rows, term)
                except StoreUnavailable:
                    return AddFailed()
                finally:
                    self.ever_dead_letters |= self.table.dead_letters.keys()
                return DeadLettersAdded(
                    moved, self.dead_letters.waiting_keys() if self.key_waits else {}
                )
            case Purge(purged, tags):
                try:
                    self.store.purge(purged, tags)
                except StoreUnavailable:
                    return PurgeFailed()
                assert set(purged) <= self.confirmed
                return Purged()
            case r.Post(posted):
                return self.post(posted.row)
        raise AssertionError(action)

    def post(self, sent: Row) -> r.Sent:
        if by_group(sent) in self.down:
            return r.Sent(sent.id, DOWN)
        kind = 0.0 if self.calm else self.random.random()
        if kind < 0.7:
            self.receive(sent)
            self.confirmed.add(sent.id)
            return r.Sent(sent.id, OK)
        if kind < 0.8:
            if self.random.random() < 0.5:
                self.receive(sent)  # and the answer was lost
            return r.Sent(sent.id, DOWN)
        return r.Sent(sent.id, WRONG if kind < 0.99 else BAD)

    def receive(self, sent: Row) -> None:
        assert sent.key is not None
        for earlier in self.rows[sent.key.decode()]:
            if earlier >= sent.id:
                break
            # Before a row, its group's earlier ones are delivered, or were given up (and may have
            # been retried since, by somebody who knows that they come late).
            if self.key_waits:
                assert earlier in self.confirmed or (
                    earlier in self.ever_dead_letters and earlier not in self.table.dead_letters
                ), f"{sent.id} before {earlier}"
        self.got.append(sent.id)

    def assert_order(self) -> None:
        """Whatever was repeated, the last time that rows came was in order."""
        last = {row_id: at for at, row_id in enumerate(self.got)}
        for group in self.rows.values():
            if self.ever_dead_letters.isdisjoint(group):
                times = [last[row_id] for row_id in group]
                assert times == sorted(times)

    def settle(self) -> None:
        self.calm = True
        self.down = set()
        for _ in range(400):
            self.run(20)
            if not self.table.committed and not self.scheduler.in_flight_records:
                return
        raise AssertionError(f"left: {sorted(self.table.committed)}")


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(1_447)  # a purge of an earlier term is under way when a term begins
@example(2_377_791_161)
def test_order_holds_and_nothing_is_lost(seed: int) -> None:
    world = World(seed)
    world.run(400)
    world.settle()
    everything = {row_id for group in world.rows.values() for row_id in group}
    assert everything == world.confirmed | world.table.dead_letters.keys()
    world.assert_order()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nothing_is_lost_where_groups_go_on(seed: int) -> None:
    world = World(seed, key_waits=False)
    world.run(400)
    world.settle()
    everything = {row_id for group in world.rows.values() for row_id in group}
    assert everything == world.confirmed | world.table.dead_letters.keys()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_it_stops_when_what_is_under_way_has_come_back(seed: int) -> None:
    world = World(seed)
    world.run(200)
    world.calm = True
    world.step(Stop())
    for _ in range(200):
        if world.finished:
            break
        world.run(1)
        while world.answers:
            world.step(world.answers.pop(0))
    assert world.finished
    assert not world.lanes["post"]


def test_while_there_is_no_room_no_row_is_asked_for() -> None:
    """Nothing can be shed, as all that waits can be sent; and that is looked for now and then."""
    world = World(1)
    for _ in range(30):
        world.write()
    while world.lanes["mark"]:
        world.step(world.done(world.lanes["mark"].pop(0)))
    assert world.lanes["post"]
    for _ in range(4):
        world.now_ms += 40
        world.step(r.Tick())
        assert world.lanes["mark"] == []


class _AnsweringStore(MemoryMarkStore):
    """No mark is carried out whose answer is lost: a term looks at the database before its first
    mark, and ends where it went back."""

    def mark(self, term: Term, batch: int, limit: int, valid_ms: float) -> list[Row]:
        self.fail_next = self.fail_next and "before"
        return super().mark(term, batch, limit, valid_ms)


class _RewoundWorld(World):
    """A database that goes back in time: ids come again, so every row has a value of its own."""

    inserted = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = _AnsweringStore(self.table)
        self.failed: set[int] = set()
        self.save()

    def write(self) -> None:
        self.inserted += 1
        record = OutboxRecord("t", self.random.choice(KEYS), f"{self.inserted}")
        self.table.insert(record)

    def receive(self, sent: Row) -> None:
        assert sent.value is not None
        self.got.append(int(sent.value))

    def post(self, sent: Row) -> r.Sent:
        answer = super().post(sent)
        if answer.outcome.error is not None:
            self.failed.add(int(sent.value or b""))
        return answer

    def save(self) -> None:
        self.backup = copy.deepcopy(self.table.committed), self.table.next_id

    def rewind(self) -> None:
        self.table.committed, self.table.next_id = self.backup
        self.store.fail_next = "before"
        self.save()

    def done(self, action: Any) -> Any:
        before = {} if not isinstance(action, Purge) else dict(self.table.committed)
        answer = super().done(action)
        gone = [
            stored.row for row_id, stored in before.items() if row_id not in self.table.committed
        ]
        assert {int(row.value or b"") for row in gone} <= set(self.got)
        for row, bad in self.table.dead_letters.values():
            assert bad.waits or int(row.value or b"") in self.failed
        return answer


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(44)  # only a purge hears of it
@example(31)
@example(1_756_167_986)  # a purge of an earlier term is under way when a term begins
@example(3_518_792_266)
def test_everything_is_delivered_when_the_database_goes_back(seed: int) -> None:
    world = _RewoundWorld(seed)
    for _ in range(60):
        world.run(5)
        roll = world.random.random()
        if roll < 0.1:
            world.save()
        elif roll < 0.2:
            world.rewind()
    world.settle()


def test_a_row_that_came_under_the_id_of_a_delivered_one_is_not_purged() -> None:
    """TRUNCATE … RESTART IDENTITY: a purge names ids and tags, and its tag is that of a third."""
    scheduler = r.RelayScheduler(
        1, Dispatcher({"t": Policy(concurrency=9)}, lambda: 0.5), Router(["t"]).messages
    )
    scheduler.step(Start())
    scheduler.step(r.Opened(Term.of(1), {}))
    old, third = Row(2, "t", b"x", b"old"), Row(1, "t", b"y", b"third")
    scheduler.step(Marked(0, [old]))
    scheduler.step(Marked(1, [third, old._replace(value=b"new")]))
    purges = [
        action
        for row_id in (2, 1)
        for action in scheduler.step(r.Sent(row_id, OK))
        if isinstance(action, Purge)
    ]
    assert [purge.ids for purge in purges] == [(1,)]
    opened = [scheduler.step(Purged()), scheduler.step(Marked(2, []))]
    assert any(isinstance(action, Open) for actions in opened for action in actions)


def test_a_row_that_came_under_the_id_of_a_refused_one_is_no_dead_letter() -> None:
    scheduler = r.RelayScheduler(
        1, Dispatcher({"t": Policy(concurrency=9)}, lambda: 0.5), Router(["t"]).messages
    )
    scheduler.step(Start())
    scheduler.step(r.Opened(Term.of(1), {}))
    old = Row(2, "t", b"x", b"old")
    scheduler.step(Marked(0, [old]))
    actions = [
        *scheduler.step(r.Sent(2, BAD)),  # the mark under way finds another row in its place
        *scheduler.step(Marked(1, [old._replace(value=b"new")])),
    ]
    assert not any(isinstance(action, AddDeadLetters) for action in actions)
    assert any(isinstance(action, Open) for action in actions)


def test_a_term_marks_nothing_while_a_purge_of_an_earlier_one_is_under_way() -> None:
    """A mark may tag anew only the first rows that the purge names: the later ones would go."""
    dispatch = Dispatcher({"t": Policy()}, lambda: 0.5)
    scheduler = r.RelayScheduler(1, dispatch, Router(["t"]).messages)
    scheduler.step(Start())
    scheduler.step(r.Opened(Term.of(1), {}))
    scheduler.step(Marked(0, [Row(1, "t", b"x", b"v")]))
    sent = scheduler.step(r.Sent(1, OK))
    assert any(isinstance(action, Purge) for action in sent)
    scheduler.step(MarkFailed(1))
    opened = scheduler.step(r.Opened(Term.of(2), {}))
    assert not any(isinstance(action, Mark) for action in opened)
    assert any(isinstance(action, Mark) for action in scheduler.step(Purged()))


def test_after_a_failure_it_works_when_rows_were_marked() -> None:
    """To be opened is not enough: who may not mark a row opens, and fails, again and again."""
    dispatch = Dispatcher({"t": Policy()}, lambda: 0.5)
    scheduler = r.RelayScheduler(1, dispatch, Router(["t"]).messages)
    scheduler.step(Start())
    scheduler.step(r.Opened(Term.of(1), {}))
    assert scheduler.running
    scheduler.step(MarkFailed(0))
    scheduler.step(r.Opened(Term.of(2), {}))
    assert not scheduler.running
    scheduler.step(Marked(0, [Row(1, "t", b"x", b"v")]))
    assert scheduler.running


@pytest.mark.parametrize("seed", range(5))
def test_a_destination_that_is_down_does_not_fill_the_room_of_the_others(seed: int) -> None:
    world = World(seed)
    world.calm, world.down = True, {"t"}
    for _ in range(40):
        world.rows["x"] += world.table.insert(OutboxRecord("t", "x", "v"))
        world.rows["y"] += world.table.insert(OutboxRecord("t", "y", "v"))
    for _ in range(20):
        world.rows["z"] += world.table.insert(OutboxRecord("t", "z", "v"))
    world.run(3_000)
    assert world.confirmed == set(world.rows["z"])
    world.settle()
    assert not world.table.dead_letters
    assert world.confirmed == {i for group in world.rows.values() for i in group}
    world.assert_order()


class _DrivenWorld(World):
    """Nothing happens but what the scheduler asked for, and time goes on while it thinks."""

    retry_after_ms = 0.0

    def begin(self) -> None:
        super().begin()
        self.scheduler.now = self.tick

    def tick(self) -> float:
        self.now_ms += self.random.choice([0.0, 0.1, 3.0])
        return self.now_ms

    def post(self, sent: Row) -> r.Sent:
        answer = super().post(sent)
        if answer.outcome.error is None:
            return answer
        outcome = replace(answer.outcome, retry_after_ms=self.retry_after_ms)
        return r.Sent(sent.id, outcome, by_group(sent))

    def next(self) -> None:
        if self.answers:
            self.step(self.answers.pop(0))
        elif any(self.lanes.values()):
            self.work()
        else:
            due_ms = self.scheduler.due_ms()
            assert due_ms is not None, "nothing is under way, and nothing will be"
            self.now_ms = max(self.now_ms, due_ms)
            self.step(r.Tick())


@pytest.mark.parametrize("retry_after_ms", [0.0, 3_600_000.0])
@pytest.mark.parametrize("seed", range(20))
def test_who_waits_is_woken(seed: int, retry_after_ms: float) -> None:
    world = _DrivenWorld(seed)
    world.retry_after_ms = retry_after_ms
    world.calm, world.down = True, {"t"}
    for _ in range(20):
        for key in KEYS:
            world.rows[key] += world.table.insert(OutboxRecord("t", key, "v"))
    while world.confirmed != set(world.rows["z"]):
        world.next()
        assert world.now_ms < 100_000, "the others waited for what is down"
    for _ in range(1_000):
        world.next()
    world.down = set()
    world.now_ms += retry_after_ms
    for _ in range(10_000):
        world.next()
        if not world.table.committed and not world.scheduler.in_flight_records:
            break
    assert not world.table.committed
    world.assert_order()


class _HoursWorld(World):
    """One destination and many keys; hours pass, as far as the scheduler wants to wait."""

    policy = Policy()
    bad: dict[int, Outcome]
    not_before_ms: dict[int, float]

    def __post_init__(self) -> None:
        self.bad, self.not_before_ms = {}, {}
        self.posts: list[tuple[float, int]] = []
        self.opened = 0
        super().__post_init__()

    def begin(self) -> None:
        super().begin()
        self.scheduler.dispatcher = Dispatcher({"t": self.policy}, lambda: 0.0)
        self.scheduler.route = lambda row: [Message(row, "t", self.not_before_ms.get(row.id, 0.0))]

    def insert(self, rows: int) -> None:
        for _ in range(rows):
            self.table.insert(OutboxRecord("t", f"k{self.table.next_id}", "v"))

    def post(self, sent: Row) -> r.Sent:
        self.posts.append((self.now_ms, sent.id))
        outcome = DOWN if "t" in self.down else self.bad.get(sent.id, OK)
        if outcome is OK:
            self.confirmed.add(sent.id)
        return r.Sent(sent.id, outcome)

    def done(self, action: Any) -> Any:
        self.opened += isinstance(action, Open)
        return super().done(action)

    def run_until(self, until_ms: float) -> None:
        while self.now_ms < until_ms:
            due_ms = self.scheduler.due_ms()
            todo = self.lanes["post"] or self.lanes["purge"] or self.lanes["mark"]
            wait_ms = getattr(todo[0], "delay_ms", 0) if todo else until_ms
            if due_ms is not None and due_ms < self.now_ms + wait_ms:
                self.now_ms = max(self.now_ms, due_ms)
                self.step(r.Tick())
            else:
                self.now_ms += wait_ms
                self.step(self.done(todo.pop(0)) if todo else r.Tick())


@pytest.mark.parametrize("why", ["long_pause", "always_500", "deliver_after"])
def test_a_message_that_waits_or_fails_is_not_what_probes_a_destination(why: str) -> None:
    world = _HoursWorld(1)
    if why == "always_500":
        world.policy = Policy(attempts=1_000, pauses_ms=(60_000,))
    world.begin()
    world.insert(8)
    if why == "deliver_after":
        world.not_before_ms[1] = 86_400_000.0
    else:
        world.bad[1] = WRONG
    world.run_until(10_000)
    world.insert(2)
    world.run_until(400_000)
    world.insert(2)
    world.run_until(2_300_000)
    assert world.table.committed.keys() == {1}
    world.down = {"t"}
    world.insert(60)
    world.run_until(2_420_000)
    world.down = set()
    world.run_until(2_420_000 + world.policy.max_breaker_open_ms)
    assert world.table.committed.keys() == {1}


def test_what_was_shed_is_offered_anew_where_the_probe_fails_for_its_own_sake() -> None:
    world = _HoursWorld(1)
    world.down = {"t"}
    world.insert(60)
    world.run_until(120_000)
    world.down = set()
    _, probe = world.posts[-1]
    world.bad[probe] = WRONG
    world.run_until(600_000)
    assert world.table.committed.keys() == {probe}


def test_in_a_long_outage_the_table_is_marked_anew_now_and_then_only() -> None:
    world = _HoursWorld(1)
    world.down = {"t"}
    world.insert(60)
    world.run_until(3_600_000)
    assert 4 < world.opened < 8
    world.down = set()
    world.run_until(world.now_ms + world.policy.max_breaker_open_ms + 10_000)
    assert not world.table.committed


def test_where_no_dead_letter_can_be_written_a_refused_message_is_sent_less_often() -> None:
    class NoDeadLetters(_HoursWorld):
        def done(self, action: Any) -> Any:
            return AddFailed() if isinstance(action, AddDeadLetters) else super().done(action)

    world = NoDeadLetters(1)
    world.bad[1] = BAD
    world.insert(5)
    world.run_until(30_000)
    world.insert(5)
    world.run_until(60_000)
    assert world.table.committed.keys() == {1}
    times = [at_ms for at_ms, row_id in world.posts if row_id == 1]
    assert 5 < len(times) < 20
    assert times[-1] - times[-2] >= Limits().max_io_error_backoff_ms / 2


# --- Batches, and rows that go to several destinations ---


def batches(posts: Sequence[Message]) -> list[list[int]]:
    found: list[list[int]] = []
    for posted in posts:
        if posted.joined:
            found[-1].append(posted.row.id)
        else:
            found.append([posted.row.id])
    return found


def test_a_batch_takes_messages_of_other_groups_and_those_that_follow() -> None:
    d = dispatcher(batch_records=3, concurrency=2)
    d.offer([message(1, "x"), message(2, "x"), message(3, "y"), message(4, "y")], 0)
    d.offer([message(5, "z"), message(6, "z"), message(7, "z"), message(8, "w")], 0)
    assert batches(d.start(0)) == [[1, 2, 3], [5, 6, 7]]  # 4 would overtake 3
    assert d.start(0) == []
    for row_id in (1, 2, 3):
        assert isinstance(d.finished(row_id, OK, 1), Delivered)
    assert batches(d.start(1)) == [[8, 4]]


def test_a_batch_is_bounded_in_bytes() -> None:
    d = dispatcher(batch_records=9, batch_bytes=2, concurrency=9)
    d.offer([message(n, f"k{n}") for n in range(1, 6)], 0)
    assert batches(d.start(0)) == [[1, 2], [3, 4], [5]]


def test_what_failed_in_a_batch_is_sent_alone_and_its_followers_wait() -> None:
    d = dispatcher(batch_records=4, pauses_ms=(100,), breaker_failures=1, breaker_open_ms=10)
    d.offer([message(1, "x"), message(2, "x"), message(3, "y"), message(4, "z")], 0)
    assert batches(d.start(0)) == [[1, 2, 3, 4]]
    untried = d.finished(2, Outcome(error="not sent", untried=True), 0)
    assert isinstance(untried, Untried)
    for row_id, shared in ((1, False), (3, True), (4, True)):
        outcome = Outcome(500, "HTTP 500", shared=shared)
        assert isinstance(d.finished(row_id, outcome, 0), Failed)
    assert d.destinations["a"].trips == 0  # one request failed: it may be one of the messages
    assert d.destinations["a"].under_way == 0
    assert batches(d.start(120)) == [[1], [3], [4]]
    d.finished(1, OK, 120)
    assert batches(d.start(121)) == [[2]]


def test_what_failed_under_an_earlier_leader_follows_nobody() -> None:
    d = dispatcher(batch_records=4)
    d.remember({2: 1})
    d.offer([message(1, "x"), message(2, "x"), message(3, "y")], 0)
    assert batches(d.start(0)) == [[1, 3]]
    d.finished(1, OK, 0)
    assert batches(d.start(0)) == [[2]]


def test_a_message_whose_time_has_not_come_follows_nobody() -> None:
    d = dispatcher(batch_records=4)
    d.offer([message(1, "x"), message(2, "x", at_ms=100)], 0)
    assert batches(d.start(0)) == [[1]]
    d.finished(1, OK, 1)
    assert d.start(99) == []
    assert batches(d.start(100)) == [[2]]


def test_while_the_breaker_is_open_one_message_probes() -> None:
    d = dispatcher(batch_records=9, breaker_failures=1, breaker_open_ms=10, pauses_ms=(1,))
    d.offer([message(n, f"k{n}") for n in range(1, 6)], 0)
    assert batches(d.start(0)) == [[1, 2, 3, 4, 5]]
    for row_id in range(1, 6):
        d.finished(row_id, Outcome(503, "HTTP 503", unavailable=True, shared=row_id > 1), 0)
    d.offer([message(6, "k6"), message(7, "k7")], 10)
    assert len(d.start(10)) == 1


class Several(World):
    """Every row goes to both destinations, in batches."""

    def __post_init__(self) -> None:
        self.places: dict[str, list[int]] = {"t": [], "u": []}
        self.has: dict[str, set[int]] = {"t": set(), "u": set()}
        self.notes: dict[int, r.Settled] = {}
        super().__post_init__()

    def begin(self) -> None:
        super().begin()
        policy = Policy(
            concurrency=2,
            attempts=3,
            pauses_ms=(10, 20, 40),
            breaker_failures=2,
            batch_records=3,
        )
        self.scheduler.dispatcher = Dispatcher({"t": policy, "u": policy}, self.random.random)
        self.scheduler.route = Router(["t", "u"], ["t", "u"]).messages

    def step(self, event: Any) -> None:
        many = event if isinstance(event, list) else [event]
        for one in many:
            super().step(one)

    def done(self, action: Any) -> Any:
        if isinstance(action, r.Post):
            return self.post_all([action.message, *action.more])
        return super().done(action)

    def post_all(self, posts: Sequence[Message]) -> list[r.Sent]:
        (name,) = {posted.destination for posted in posts}
        kind = 0.0 if self.calm else self.random.random()
        if name in self.down or kind >= 0.8:
            outcome = DOWN if name in self.down else self.random.choice([WRONG, WRONG, BAD])
            firsts = {posted.group: posted for posted in reversed(posts)}
            late = [p for p in posts if firsts[p.group] is not p]
            untried = Outcome(error="not sent", untried=True)
            answers = [r.Sent(p.row.id, untried, name, p.lane) for p in late]
            return answers + [r.Sent(p.row.id, outcome, name, p.lane) for p in firsts.values()]
        for posted in posts:
            self.arrive(name, posted.row, {one.row.id for one in posts})
        if kind > 0.7:  # and the answer was lost
            return self.post_lost(posts)
        self.has[name] |= {posted.row.id for posted in posts}
        self.confirmed = self.has["t"] & self.has["u"]
        return [r.Sent(p.row.id, OK, name, p.lane) for p in posts]

    def post_lost(self, posts: Sequence[Message]) -> list[r.Sent]:
        firsts = {posted.group: posted for posted in reversed(posts)}
        untried = Outcome(error="not sent", untried=True)
        late = [p for p in posts if firsts[p.group] is not p]
        answers = [r.Sent(p.row.id, untried, p.destination, p.lane) for p in late]
        return answers + [r.Sent(p.row.id, DOWN, p.lane, p.lane) for p in firsts.values()]

    def arrive(self, name: str, sent: Row, together: set[int]) -> None:
        assert sent.key is not None
        for earlier in self.rows[sent.key.decode()]:
            if earlier >= sent.id:
                break
            if self.key_waits:
                assert earlier in self.has[name] | together | self.ever_dead_letters
        self.places[name].append(sent.id)

    def receive(self, sent: Row) -> None:
        """Of a leader that is killed: nothing of what was under way arrives."""

    def assert_order(self) -> None:
        for got in self.places.values():
            self.got = got
            super().assert_order()


@settings(max_examples=80, deadline=None)
@example(124)  # given up at one destination, left alone at the other, whose room others needed
@given(seed=st.integers(0, 2**32))
def test_to_several_destinations_order_holds_at_each_and_nothing_is_lost(seed: int) -> None:
    world = Several(seed)
    world.run(400)
    world.settle()
    everything = {row_id for group in world.rows.values() for row_id in group}
    assert everything == world.confirmed | world.table.dead_letters.keys()
    world.assert_order()


def several(
    policy: Policy | None = None, limits: Limits | None = None
) -> tuple[r.RelayScheduler, list[float]]:
    clock = [0.0]
    policies = {"a": policy or Policy(pauses_ms=(1,), breaker_failures=1), "b": Policy()}
    scheduler = r.RelayScheduler(
        1,
        Dispatcher(policies, lambda: 0.0),
        Router(["a", "b"], ["a", "b"]).messages,
        limits or Limits(),
        now=lambda: clock[0],
    )
    scheduler.step(Start())
    scheduler.step(r.Opened(Term.of(1), {}))
    return scheduler, clock


def posted(actions: Sequence[Any]) -> list[tuple[int, str]]:
    return [
        (m.row.id, m.destination)
        for a in actions
        if isinstance(a, r.Post)
        for m in (a.message, *a.more)
    ]


def rows_of(*row_ids: int) -> list[Row]:
    return [Row(n, "t", b"k%d" % n, b"v") for n in row_ids]


def test_a_row_is_purged_when_each_of_its_destinations_has_it() -> None:
    scheduler, _ = several()
    assert posted(scheduler.step(Marked(0, rows_of(1)))) == [(1, "a"), (1, "b")]
    assert not any(isinstance(a, Purge) for a in scheduler.step(r.Sent(1, OK, "b", "b")))
    assert any(isinstance(a, Purge) for a in scheduler.step(r.Sent(1, OK, "a", "a")))


def test_behind_a_row_that_can_go_nowhere_its_key_waits_at_each_destination() -> None:
    """Until it is set aside, and what waits behind it is, too."""
    scheduler, _ = several()
    good, wrong, later = (Row(n, "t", b"k", b"v", (b"a",) * (n == 2)) for n in (1, 2, 3))
    assert posted(scheduler.step(Marked(0, [good, wrong, later]))) == [(1, "a"), (1, "b")]
    assert posted(scheduler.step(r.Sent(1, OK, "b", "b"))) == [(2, "b")]
    assert posted(scheduler.step(r.Sent(2, BAD, "b", "b"))) == []
    assert posted(scheduler.step(r.Sent(1, OK, "a", "a"))) == [(2, "a")]
    scheduler.step(r.Sent(2, BAD, "a", "a"))
    actions = scheduler.step(Marked(1, []))  # dead letters are added when no mark is under way
    (add,) = (a for a in actions if isinstance(a, AddDeadLetters))
    assert [(bad.id, bad.waits) for bad in add.rows] == [(2, False), (3, True)]


def test_a_row_that_can_go_nowhere_is_no_sign_of_a_destination_that_was_shed() -> None:
    """Each of them would have the whole table marked anew."""
    limits = Limits(max_in_flight_records=2)
    router = Router(["a", "b"])
    work = Dispatcher({"a": Policy(), "b": Policy()}, lambda: 0.0)
    clock = [0.0]
    scheduler = r.RelayScheduler(1, work, router.messages, limits, now=lambda: clock[0])
    for event in (
        Start(),
        r.Opened(Term.of(1), {}),
        Marked(0, [Row(n, "a", b"%d" % n, b"v") for n in (1, 2)]),
        r.Sent(1, GONE, "a"),
        r.Sent(2, GONE, "a"),
    ):
        scheduler.step(event)
    clock[0] = 1_000
    assert any(isinstance(action, Mark) for action in scheduler.step(r.Tick())), "one was shed"
    nowhere = Row(3, "c", b"3", b"v")
    assert posted(scheduler.step(Marked(1, [nowhere]))) == [(3, "a")]
    actions = scheduler.step(r.Sent(3, Outcome(error="nowhere", lasting=True), "a"))
    assert [[bad.id for bad in a.rows] for a in actions if isinstance(a, AddDeadLetters)] == [[3]]
    actions = scheduler.step(DeadLettersAdded(frozenset({3}), {}))
    assert not any(isinstance(action, Open) for action in actions)


def test_the_same_row_under_an_id_that_is_given_again_is_sent_again() -> None:
    scheduler, _ = several()
    for batch in (0, 1):
        both = scheduler.step(Marked(batch, rows_of(1)))
        assert posted(both) == [(1, "a"), (1, "b")]
        for name in ("a", "b"):
            actions = scheduler.step(r.Sent(1, OK, name, name))
        assert any(isinstance(a, Purge) for a in actions)
        scheduler.step(Purged())


def test_while_one_destination_is_down_the_other_gets_every_row_once() -> None:
    scheduler, clock = several(limits=Limits(mark_query_records=2, max_in_flight_records=2))
    got: list[int] = []
    batch, todo = 0, list(range(1, 9))
    actions = scheduler.step(Marked(0, rows_of(todo.pop(0), todo.pop(0))))
    noted: dict[int, tuple[str, ...]] = {}
    for _ in range(200):
        if not actions and not todo:
            break
        clock[0] += 1_000
        following: list[Any] = []
        for action in actions:
            match action:
                case r.Post(message):
                    down = message.destination == "a"
                    got += [] if down else [message.row.id]
                    sent = r.Sent(message.row.id, DOWN if down else OK, "", message.lane)
                    following += scheduler.step(sent)
                case Mark(_, batch, limit, _):
                    new, todo = todo[:limit], todo[limit:]
                    following += scheduler.step(Marked(batch, rows_of(*new))) if new else []
                case r.Record():
                    noted[action.message.row.id] = action.delivered
        actions = following or scheduler.step(r.Tick())
    assert got == list(range(1, 9))
    assert [row_id for row_id, names in sorted(noted.items()) if names == ("b",)] == got


def test_what_is_left_alone_keeps_what_was_noted_of_its_attempts() -> None:
    """The next leader goes on counting from there."""
    limits = Limits(mark_query_records=2, max_in_flight_records=2, max_in_flight_batches=2)
    scheduler, clock = several(limits=limits)
    actions = scheduler.step(Marked(0, rows_of(1, 2)))
    assert len(posted(actions)) == 4
    for name, outcome in (("b", OK), ("a", DOWN)):
        for row_id in (1, 2):
            actions += scheduler.step(r.Sent(row_id, outcome, name, name))
    clock[0] += 500  # it is down for a second
    actions += scheduler.step(r.Tick())
    assert any(isinstance(action, Mark) for action in actions), "there is room for another row"
    noted = [(a.message.row.id, a.outcome.error) for a in actions if isinstance(a, r.Record)]
    assert noted == [(1, "refused"), (2, "refused")]


def test_what_was_noted_is_not_sent_again_by_the_next_leader_unless_the_row_is_another() -> None:
    scheduler, _ = several()
    (one, two) = rows_of(1, 2)
    settled = {n: (fingerprint(one), frozenset(["b"])) for n in (1, 2)}
    scheduler.step(MarkFailed(0))
    scheduler.step(r.Opened(Term.of(2), {}, {}, settled))
    assert posted(scheduler.step(Marked(0, [one, two]))) == [(1, "a"), (2, "a"), (2, "b")]


def test_what_one_destination_refuses_is_set_aside_when_the_other_has_it() -> None:
    scheduler, _ = several()
    scheduler.step(Marked(0, [*rows_of(1), Row(2, "t", b"k1", b"later")]))
    refused = scheduler.step(r.Sent(1, BAD, "a", "a"))
    assert not any(isinstance(a, AddDeadLetters) for a in refused)
    assert posted(refused) == []  # what is behind it waits, there
    assert posted(scheduler.step(r.Sent(1, OK, "b", "b"))) == [(2, "b")]  # and here it does not
    scheduler.step(r.Sent(2, OK, "b", "b"))
    scheduler.step(Marked(1, rows_of(9)))  # dead letters are added when no mark is under way
    assert set(scheduler.row_filter.waiting) == {("t", b"k1")}


def refused_at_b(limits: Limits | None = None) -> tuple[r.RelayScheduler, list[float]]:
    """Row 1 is refused at one destination, and the other one is down."""
    scheduler, clock = several(limits=limits)
    scheduler.step(Marked(0, rows_of(1)))
    scheduler.step(r.Sent(1, DOWN, "a", "a"))
    scheduler.step(r.Sent(1, BAD, "b", "b"))
    return scheduler, clock


def test_what_waits_for_a_row_that_is_undecided_is_set_aside_behind_it() -> None:
    scheduler, clock = refused_at_b()
    actions = scheduler.step(Marked(1, [Row(2, "t", b"k1", b"v")]))
    assert not any(isinstance(a, AddDeadLetters | Open | r.Post) for a in actions)
    assert any(isinstance(a, Mark) for a in actions)
    clock[0] += 10_000
    assert posted(scheduler.step(r.Tick())) == [(1, "a")]
    scheduler.step(r.Sent(1, OK, "a", "a"))
    actions = scheduler.step(Marked(2, []))
    (add,) = (a for a in actions if isinstance(a, AddDeadLetters))
    assert [(bad.id, bad.waits) for bad in add.rows] == [(1, False), (2, True)]
    actions = scheduler.step(DeadLettersAdded(frozenset([1, 2]), {("t", b"k1"): 1}))
    assert not any(isinstance(a, Open) for a in actions)
    assert scheduler.in_flight_records == 0


def test_what_waits_for_a_row_that_is_undecided_does_not_fill_the_room_of_others() -> None:
    scheduler, clock = refused_at_b(Limits(mark_query_records=2, max_in_flight_records=3))
    actions = scheduler.step(Marked(1, [Row(n, "t", b"k1", b"v") for n in (2, 3)]))
    assert any(isinstance(a, Mark) for a in actions)
    assert scheduler.in_flight_records == 1
    clock[0] += 10_000
    assert posted(scheduler.step(r.Tick())) == [(1, "a")]
    scheduler.step(r.Sent(1, OK, "a", "a"))
    actions = scheduler.step(Marked(2, []))
    assert [a.rows[0].id for a in actions if isinstance(a, AddDeadLetters)] == [1]
    actions = scheduler.step(DeadLettersAdded(frozenset([1]), {("t", b"k1"): 1}))
    assert any(isinstance(a, Open) for a in actions)  # the others are marked anew, and wait


def test_routes_to_several_destinations() -> None:
    router = Router(["orders", "audit", "eu"], ["{topic}", "audit", "audit"])
    assert [m.destination for m in router.messages(row())] == ["orders", "audit"]
    assert [m.lane for m in router.messages(row())] == ["orders", "audit"]
    nowhere = Router(["a"], [lambda _: ""]).messages(row())
    assert [m.problem for m in nowhere] == ["no route gives a destination for it"]
    lost = Router(["a", "b"], ["a", "b"]).messages(row(key=None))
    assert [(m.lane, m.problem is None) for m in lost] == [("a", False), ("b", False)]
    with pytest.raises(ConfigurationError, match="no such destination"):
        Router(["a"], ["a", "b"])


def test_who_stops_at_bad_rows_sets_none_aside_behind_those_of_earlier_days() -> None:
    """As in the other modes: `on_bad_row: stop` moves no row to another table."""
    row = Row(7, "t", b"k", b"v")
    for on_bad_row, waits in (("dead_letter", True), ("stop", False)):
        policy = BadRowPolicy(on_bad_row)  # type: ignore[arg-type]
        assert BadRowFilter(policy, {("t", b"k"): 3}).waits(row) is waits

"""When a handler that a `TestBroker` runs has done all that there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py import Consumer
from marshal_py.errors import BrokerUnavailable, ClaimTimeout, Closed, InvalidArgument
from marshal_py.protocol.slots import slot_of, slots_cell
from marshal_py.testing import broker

SLOTS = slots_cell("t", 0, 3)
OTHER = slots_cell("t", 1, 3)


def consumer_of(held: list[int], others: list[tuple[str, int]], partitions: int = 1) -> Any:
    """A consumer without lag that holds these slots of t/0; another one has `others`."""
    parts = {
        (SLOTS, n): SimpleNamespace(key=(SLOTS, n), slot=slot_of(SLOTS, n), source=("t", 0))
        for n in held
    }
    marshal = SimpleNamespace(
        client_id="a",
        cell=lambda topic, n: SimpleNamespace(
            holder="a" if (topic, n) in parts else "b" if (topic, n) in others else None
        ),
    )
    return SimpleNamespace(
        stats=lambda: SimpleNamespace(buffered=0, running=0),
        lag=lambda timeout_s: {("t", 0): 0},
        closing=False,
        marshal=marshal,
        _core=SimpleNamespace(
            fetcher=SimpleNamespace(active=parts), topics=SimpleNamespace(counts={"t": partitions})
        ),
    )


@pytest.mark.parametrize(
    ("held", "others", "is_done"),
    [([0, 1, 2], [], True), ([0, 1], [2], True), ([0, 1], [], False), ([0], [2], False)],
)
def test_all_is_done_when_no_slot_of_a_partition_is_without_a_holder(
    held: list[int], others: list[int], is_done: bool
) -> None:
    """A slot that was not claimed yet has messages, though the lag that is told is 0."""
    assert broker._is_done(consumer_of(held, [(SLOTS, n) for n in others])) is is_done


@pytest.mark.parametrize(("others", "is_done"), [([0, 1, 2], True), ([0, 1], False)])
def test_a_partition_of_which_others_have_every_slot_is_theirs(
    others: list[int], is_done: bool
) -> None:
    found = consumer_of([0, 1, 2], [(OTHER, n) for n in others], partitions=2)
    assert broker._is_done(found) is is_done


def test_what_a_topic_does_not_take_is_an_error(mock_kafka: broker.TestBroker) -> None:
    too_much: list[dict[str, Any]] = [
        {"partition": broker.PARTITIONS},
        {"key": b"k" * 2_000_000},
    ]
    for what in too_much:
        with pytest.raises(InvalidArgument, match="did not take a message"):
            mock_kafka.send("t", b"1", **what)
    assert mock_kafka.messages("t") == []


class Silent:
    """A producer, or a consumer, of brokers that do not answer any more."""

    def list_topics(self, topic: str, timeout: float) -> Any:
        del timeout
        there = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={topic: there})

    def produce(self, *about: Any, **more: Any) -> None: ...

    def flush(self, timeout_s: float) -> int:
        del timeout_s
        return 2

    def assign(self, places: list[Any]) -> None: ...

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        del count, timeout_s
        return []

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Full(Silent):
    """A producer whose queue holds one message, which it writes when it is asked to."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.written: list[bytes] = []

    def produce(self, *about: Any, **more: Any) -> None:
        if self.waiting:
            raise BufferError
        self.waiting.append(about[1])

    def poll(self, timeout_s: float) -> int:
        self.written += self.waiting
        count, self.waiting = len(self.waiting) if timeout_s else 0, []
        return count

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return 0


def test_more_messages_than_the_producers_queue_holds_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = broker.TestBroker("127.0.0.1:1")
    asked._producer = producer = Full()
    monkeypatch.setattr(asked, "create_topic", lambda topic: topic)
    asked.send("t", *[b"1", b"2", b"3"])
    assert producer.written == [b"1", b"2", b"3"]
    monkeypatch.setattr(broker, "_ANSWER_S", 0.0)
    with pytest.raises(ClaimTimeout, match="topic 't': no answer"):
        asked.send("t", *[b"1", b"2", b"3"])


def test_what_was_not_written_or_read_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_ANSWER_S", 0.0)
    consumer = Silent()
    monkeypatch.setattr(broker, "connect", lambda *_: consumer)
    asked = broker.TestBroker("127.0.0.1:1")
    asked._producer = Silent()
    monkeypatch.setattr(asked, "create_topic", lambda topic: topic)
    with pytest.raises(ClaimTimeout, match="2 messages were not there"):
        asked.send("t", b"1", b"2")
    with pytest.raises(ClaimTimeout, match="was not read"):
        asked.messages("t")
    assert consumer.is_closed


def test_a_start_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def create(config: dict[str, Any]) -> None:
        made.append(config["bootstrap.servers"])
        if len(made) == 1:
            raise BrokerUnavailable("nobody answers")

    monkeypatch.setattr(broker, "create_topics", create)
    tried = broker.TestBroker({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerUnavailable):
        tried.start()
    with tried:
        assert made == ["127.0.0.1:1"] * 2


def test_what_is_started_anew_has_nothing_of_what_was_before() -> None:
    again = broker.TestBroker()
    with again:
        again.send("t", b"1")
    with again:
        assert again.messages("t") == []
        again.send("t", b"2")


class Running(Consumer):
    """Runs until it is stopped, or until its handler fails."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self.drains: list[float | None] = []

    def start(self) -> Running:
        return self

    def run(self, handler: Callable[[], None], **_: Any) -> Any:  # type: ignore[override]
        handler()
        assert self.is_stopped.wait(30), "nobody stops it"

    def stop(self, drain_timeout_s: float | None = None) -> None:
        self.drains.append(drain_timeout_s)
        self.is_stopped.set()


@pytest.mark.parametrize("error", [BrokerUnavailable("for now"), Closed("by its handler")])
def test_a_run_ends_though_it_could_not_be_asked_once_what_is_left(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answers: list[Exception | bool] = [error, False, True]

    def is_done(_: object) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(broker, "_is_done", is_done)
    consumer = Running()
    broker.TestBroker("nowhere:1").run(lambda: None, consumer, timeout_s=600)
    assert consumer.drains == [None], "what is in hand is finished"


@pytest.mark.parametrize("error", [None, BrokerUnavailable("for good")])
def test_what_is_in_hand_when_time_is_up_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def is_done(_: object) -> bool:
        if error is not None:
            raise error
        return False

    monkeypatch.setattr(broker, "_is_done", is_done)
    consumer = Running()
    with pytest.raises(ClaimTimeout, match="not all messages were done"):
        broker.TestBroker("nowhere:1").run(lambda: None, consumer, timeout_s=0.02)
    assert consumer.drains == [0.0]


def test_nobody_looks_any_more_when_a_handler_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_is_done", lambda _: False)

    def fail() -> None:
        raise ValueError("no such customer")

    consumer = Running()
    with pytest.raises(ValueError, match="no such customer"):
        broker.TestBroker("nowhere:1").run(fail, consumer, timeout_s=5)
    assert consumer.drains == [None], "time is not up"


@pytest.mark.parametrize(("holder", "is_done"), [("b", True), ("a", False), (None, False)])
def test_a_partition_that_is_not_worked_on_yet_is_not_done_unless_it_is_anothers(
    holder: str | None, is_done: bool
) -> None:
    """What is claimed here and not fetched yet has no lag to tell."""
    found = consumer_of([], [])
    found.lag = lambda timeout_s: {}
    found.marshal.cell = lambda *_: SimpleNamespace(holder=holder)
    assert broker._is_done(found) is is_done


def test_messages_that_came_while_it_was_asked_what_is_left_are_not_done() -> None:
    found = consumer_of([0, 1, 2], [])
    counts = iter([(0, 0), (1, 0), (0, 0), (0, 1)])

    def stats() -> Any:
        buffered, running = next(counts)
        return SimpleNamespace(buffered=buffered, running=running)

    found.stats = stats
    assert not broker._is_done(found)
    assert not broker._is_done(found)


@pytest.mark.parametrize("value", ["text", b"bytes"])
def test_headers_go_along(mock_kafka: broker.TestBroker, value: Any) -> None:
    mock_kafka.send("t", b"1", headers={"trace": value, "more": b""})
    (message,) = mock_kafka.messages("t")
    expected = value.encode() if isinstance(value, str) else value
    assert message.headers() == [("trace", expected), ("more", b"")]

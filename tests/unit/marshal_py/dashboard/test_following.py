"""The follower from start to end, on the mock cluster: what a page is told, and that it goes on."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.client.log_reader import Truncated
from marshal_py.dashboard import log_follower as module
from marshal_py.dashboard.log_follower import LogFollower
from marshal_py.dashboard.subscribers import Subscriber
from marshal_py.dashboard.topic_ends import TopicEnds
from marshal_py.errors import BrokerUnavailable, PartitionCountChanged
from marshal_py.testing import TestBroker

WAIT_S = 30.0


class Page(Subscriber):
    """Keeps what it is sent, as one document."""

    def __init__(self) -> None:
        self.overrun = False
        self.items: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self.wholes = 0
        self.shown: dict[str, Any] = {}

    def put(self, item: tuple[str, bytes] | None) -> None:
        self.items.put(item)

    def until(self, what: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Read on until the page shows it."""
        while not what(self.shown):
            item = self.items.get(timeout=WAIT_S)
            assert item is not None, "the stream has ended"
            kind, data = item
            self.wholes += kind == "state"
            self.shown |= json.loads(data)
        return self.shown

    def end(self) -> None:
        """Read on until the stream ends."""
        while self.items.get(timeout=WAIT_S) is not None:
            pass


def told(words: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the activity that came last has these words."""
    return lambda shown: any(words in line["text"] for line in shown.get("activity", ()))


def is_live(shown: dict[str, Any]) -> bool:
    return bool(shown.get("phase") == "live")


class Ends(TopicEnds):
    """Knows where topics end; counts how often it was asked of which."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[set[str]] = queue.SimpleQueue()
        self.are_gone = False

    def ask_log(self, partitions: int) -> None:
        assert partitions == 4

    def ask(self, topics: set[str]) -> dict[str, dict[int, int]]:
        self.asked.put(topics)
        return {} if self.are_gone else {topic: {0: 10} for topic in topics}

    def hidden(self, topics: Iterable[str]) -> list[str]:
        assert not self.are_gone or set(topics) == {"t"}
        return []


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def follower(
    mock_kafka: TestBroker, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LogFollower]:
    """One that was not started."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "SEND_S", 0.01)
    made = LogFollower(Connection(mock_kafka.config), ends=ends, lag_every_s=0.05)
    yield made
    made.close()


@pytest.fixture
def client(mock_kafka: TestBroker) -> Iterator[Marshal]:
    with Marshal(mock_kafka.config, group_id="g", client_id="a", interval_ms=500) as marshal:
        yield marshal


def open_page(follower: LogFollower) -> Page:
    page = Page()
    follower.subscribe(page)
    return page


def test_a_page_is_told_what_clients_do_and_where_their_topics_end(
    follower: LogFollower, client: Marshal, ends: Ends
) -> None:
    claim = client.claim("t", 0, timeout_s=WAIT_S)
    follower.start()
    page = open_page(follower)
    assert page.until(is_live)["topic"] == "__marshal"
    page.until(told("claimed t/0 by a"))
    while "t" not in ends.asked.get(timeout=WAIT_S):
        pass
    claim.commit(7, wait=True)
    live = follower.live
    assert live is not None
    while live.lags.of("g", "t", 0) != 3:
        ends.asked.get(timeout=WAIT_S)
    claim.release()
    page.until(told("released"))
    latecomer = open_page(follower)
    assert latecomer.until(told("released"))["phase"] == "live"
    assert latecomer.wholes == 1
    follower.unsubscribe(latecomer)
    client.claim("t", 1, timeout_s=WAIT_S)
    page.until(told("claimed t/1 by a"))
    follower.close()
    page.end()
    assert latecomer.items.empty()
    assert not any(thread.is_alive() for thread in follower._threads)


def test_of_topics_that_are_all_gone_no_lag_is_known(
    follower: LogFollower, client: Marshal, ends: Ends
) -> None:
    claim = client.claim("t", 0, timeout_s=WAIT_S)
    claim.commit(10, wait=True)
    follower.start()
    open_page(follower).until(is_live)
    live = follower.live
    assert live is not None
    while live.lags.of("g", "t", 0) != 0:
        ends.asked.get(timeout=WAIT_S)
    ends.are_gone = True
    while not ends.asked.empty():
        ends.asked.get()
    for _ in range(3):  # the first may have been asked before
        ends.asked.get(timeout=WAIT_S)
    assert live.lags.of("g", "t", 0) is None


def test_what_was_written_before_is_known_and_told_to_a_page_that_waits_for_it(
    follower: LogFollower, client: Marshal, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.claim("t", 0, timeout_s=WAIT_S)
    may_read = threading.Event()
    replay = follower._replay

    def later() -> None:
        assert may_read.wait(WAIT_S)
        replay()

    monkeypatch.setattr(follower, "_replay", later)
    follower.start()
    page = open_page(follower)
    shown = page.until(lambda shown: "phase" in shown)
    assert (shown["phase"], shown["progress"], "activity" in shown) == ("reading", 0.0, False)
    may_read.set()
    page.until(told("claimed t/0 by a"))
    assert (page.shown["phase"], page.shown["progress"], page.wholes) == ("live", 1.0, 2)


@pytest.mark.parametrize(
    ("problem", "words", "is_closed"),
    [
        (Truncated("offset 3 came again"), "the log lost records", False),
        (BrokerUnavailable("nobody answers"), "nobody answers", True),
        (PartitionCountChanged("there are 8 now"), "there are 8 now", True),
        (ValueError("a bug"), "ValueError: see the log of the dashboard", True),
    ],
)
def test_after_a_fault_the_page_is_told_and_the_log_read_anew(
    follower: LogFollower,
    client: Marshal,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    words: str,
    is_closed: bool,
) -> None:
    """A reader that has met a truncation knows which snapshots not to trust: it is used again."""
    follower.start()
    page = open_page(follower)
    page.until(is_live)
    reader, before = follower._reader, follower.live
    assert reader is not None
    poll, faults = reader.poll, [problem]

    def failing(timeout_s: float) -> list[Any]:
        if faults:
            raise faults.pop()
        return poll(timeout_s)

    monkeypatch.setattr(reader, "poll", failing)
    page.until(lambda shown: shown["phase"] == "lost")
    assert words in page.shown["trouble"]
    page.until(is_live)
    assert page.shown["trouble"] == ""
    assert follower.live is not before
    assert (follower._reader is reader) != is_closed
    client.claim("t", 0, timeout_s=WAIT_S)
    page.until(told("claimed t/0 by a"))


def test_brokers_that_are_gone_at_the_start_are_told_to_who_starts(
    follower: LogFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []
    close = module._Reader.close

    def note(reader: Any) -> None:
        closed.append(reader)
        close(reader)

    monkeypatch.setattr(module._Reader, "close", note)

    def refuse(*_: object, **__: object) -> None:
        raise BrokerUnavailable("nobody answers")

    monkeypatch.setattr(module._Reader, "open", refuse)
    with pytest.raises(BrokerUnavailable, match="nobody answers"):
        follower.start()
    assert len(closed) == 1
    assert follower._reader is None
    assert follower._threads == []


def test_a_history_that_takes_too_long_is_read_from_a_later_moment(
    follower: LogFollower,
    client: Marshal,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That is no fault."""
    slow = [True]

    def check_pace(_: float) -> None:
        if slow and slow.pop():
            follower.history_s = 60.0
            raise module._ReadingTooLong

    monkeypatch.setattr(follower, "_check_pace", check_pace)
    follower.start()
    opened_from = follower.history_from_ms
    page = open_page(follower)
    page.until(is_live)
    assert follower.history_from_ms > opened_from + 3_000_000
    assert "the dashboard stumbled" not in caplog.text
    client.claim("t", 0, timeout_s=WAIT_S)
    page.until(told("claimed t/0 by a"))


def test_a_snapshot_that_differs_is_an_alert_once(follower: LogFollower, client: Marshal) -> None:
    follower.start()
    page = open_page(follower)
    page.until(is_live)
    reader: Any = follower._reader
    reader.mismatches.append("the snapshot of x differs")
    page.until(lambda shown: any("snapshot of x" in a["text"] for a in shown.get("alerts", ())))
    client.claim("t", 0, timeout_s=WAIT_S)
    page.until(told("claimed t/0 by a"))
    assert follower._mismatches == 1, "and no more with each look"


def test_a_changed_number_of_partitions_is_told(follower: LogFollower, client: Marshal) -> None:
    follower.start()
    page = open_page(follower)
    page.until(is_live)
    reader: Any = follower._reader
    reader.partition_count_error = PartitionCountChanged("there are 8 now")
    page.until(lambda shown: "there are 8 now" in shown["trouble"])
    page.until(is_live)
    assert follower._reader is not reader

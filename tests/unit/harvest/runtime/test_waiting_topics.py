"""When rows that wait for a topic are put back (specs/HARVEST.md §11)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.config.load import parse
from harvest.core.interfaces.dead_letter_store import Selection
from harvest.runtime.waiting_topics import WaitingTopics


class Missing:
    """Rows that wait, by topic."""

    def __init__(self, **rows: int) -> None:
        self.rows = rows
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def missing_topics(self) -> set[str]:
        return set(self.rows)

    def retry(self, selection: Selection, *, mode: str) -> int:
        assert mode == "range"
        assert selection == Selection(topic=selection.topic)
        return self.rows.pop(selection.topic or "")


def watch(dead_letters: Missing, existing: set[str]) -> WaitingTopics:
    given: Any = dead_letters
    return WaitingTopics(given, lambda: existing, mode="range", leading=lambda: True)


def test_rows_come_back_when_their_topic_exists_and_not_before() -> None:
    dead_letters, existing = Missing(a=2, b=3), {"other"}
    topics = watch(dead_letters, existing)
    assert [topics.check() for _ in range(3)] == [0, 0, 0]
    existing.add("b")
    assert topics.check() == 3
    assert dead_letters.rows == {"a": 2}


def test_a_topic_is_looked_for_from_the_second_look_on() -> None:
    dead_letters = Missing(a=2)
    topics = watch(dead_letters, {"a"})
    assert topics.check() == 0
    assert topics.check() == 2


@pytest.mark.parametrize("started", [True, False])
def test_who_stops_looking_lets_go_of_the_database(started: bool) -> None:
    dead_letters = Missing()
    topics = watch(dead_letters, set())
    if started:
        topics.start()
    topics.close()
    assert dead_letters.closed


def test_nobody_is_asked_while_nothing_waits() -> None:
    given: Any = Missing()
    topics = WaitingTopics(given, lambda: 1 / 0, mode="range", leading=lambda: True)  # type: ignore[arg-type, return-value]
    assert topics.check() == topics.check() == 0


def test_keys_wait_behind_rows_that_wait_for_a_topic() -> None:
    text = "kafka: {bootstrap.servers: x}\ndatabase: d\ngroup: g\nbad_rows: {key_waits: false"
    assert not parse(text + "}").bad_rows.policy().key_waits
    assert parse(text + ", unknown_topic: wait}").bad_rows.policy().key_waits


class Looks:
    """Has the thread look without a pause, until rows were put back; counts its looks."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        existing: Callable[[], set[str]],
        leads: Callable[[int], bool] = lambda _: True,
    ) -> None:
        monkeypatch.setattr("harvest.runtime.waiting_topics._CHECK_EVERY_S", 0.0)
        self.number = 0
        self.back_at = 0
        self._back = threading.Event()
        self._leads = leads
        given: Any = self
        self._topics = WaitingTopics(given, existing, mode="range", leading=self._leading)

    def run(self) -> int:
        """Return at which look rows were put back."""
        self._topics.start()
        assert self._back.wait(60)
        self._topics.close()
        return self.back_at

    def _leading(self) -> bool:
        self.number += 1
        return self._leads(self.number)

    def missing_topics(self) -> set[str]:
        return set() if self.back_at else {"a"}

    def retry(self, selection: Selection, *, mode: str) -> int:
        self.back_at = self.number
        self._back.set()
        return 1

    def close(self) -> None: ...


def test_a_broker_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[set[str] | None] = [None, None, {"a"}]

    def existing() -> set[str]:
        answer = answers.pop(0)
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return answer

    assert Looks(monkeypatch, existing).run() == 4


def test_what_was_seen_before_another_led_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another checkpoint that must have passed the rows now."""
    assert Looks(monkeypatch, lambda: {"a"}, lambda number: number != 2).run() == 4


def test_a_topic_that_is_gone_again_is_missed_once_more_before_its_rows_come_back() -> None:
    dead_letters = Missing(a=2)
    topics = watch(dead_letters, {"a"})
    assert [topics.check() for _ in range(3)] == [0, 2, 0]
    dead_letters.rows["a"] = 1
    assert [topics.check() for _ in range(2)] == [0, 1]

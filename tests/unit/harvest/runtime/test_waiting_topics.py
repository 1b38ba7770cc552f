"""When rows that wait for a topic are put back (specs/HARVEST.md §11)."""

from __future__ import annotations

from typing import Any

from harvest.config.load import parse
from harvest.core.interfaces.dead_letter_store import Selection
from harvest.runtime.waiting_topics import WaitingTopics


class Missing:
    """Rows that wait, by topic."""

    def __init__(self, **rows: int) -> None:
        self.rows = rows

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


def test_nobody_is_asked_while_nothing_waits() -> None:
    given: Any = Missing()
    topics = WaitingTopics(given, lambda: 1 / 0, mode="range", leading=lambda: True)  # type: ignore[arg-type, return-value]
    assert topics.check() == topics.check() == 0


def test_keys_wait_behind_rows_that_wait_for_a_topic() -> None:
    text = "kafka: {bootstrap.servers: x}\ndatabase: d\ngroup: g\nbad_rows: {key_waits: false"
    assert not parse(text + "}").bad_rows.policy().key_waits
    assert parse(text + ", unknown_topic: wait}").bad_rows.policy().key_waits

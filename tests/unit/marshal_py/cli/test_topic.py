"""`marshal topic create`: what it says of topics that it made, and of those that it found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_review import Difference, TopicReview
from marshal_py.cli import topic as module
from tests.support.marshal_command import without_brokers

MADE = TopicReview("__marshal", True, 32, 1, {"retention.ms": "-1"})
FOUND = replace(MADE, created=False)
UNSOUND = replace(FOUND, differences=[Difference("retention.ms", "1000", "-1", "records would go")])


def give(monkeypatch: pytest.MonkeyPatch, *reviews: TopicReview) -> None:
    monkeypatch.setattr(module, "create_and_review", lambda *_: (list(reviews), 1))


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_settings_that_are_not_sound_are_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    for reviews, code in (([MADE, FOUND], 0), ([FOUND, UNSOUND], 1), ([UNSOUND, FOUND], 1)):
        give(monkeypatch, *reviews)
        done = without_brokers("topic", "create", *more)
        assert done.exit_code == code
        if more:
            assert [t["topic"] for t in json.loads(done.stdout)] == ["__marshal"] * 2


def test_what_was_made_is_told_from_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, MADE)
    text = without_brokers("topic", "create").stdout
    assert "created __marshal" in text
    assert "1 broker in the cluster: a single disk holds the log" in text
    give(monkeypatch, FOUND)
    text = without_brokers("topic", "create").stdout
    assert "created" not in text
    assert "its settings are sound" in text
    give(monkeypatch, UNSOUND)
    rows = [line.split() for line in without_brokers("topic", "create").stdout.splitlines()]
    assert ["retention.ms", "1000", "-1", "records", "would", "go"] in rows


def test_so_many_partitions_and_replicas_are_made_as_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int | None, int | None]] = []

    def create_and_review(
        connection: Connection, partitions: int | None, replication_factor: int | None
    ) -> tuple[list[TopicReview], int]:
        asked.append((connection.topic, partitions, replication_factor))
        return [replace(MADE, replication_factor=3)], 3

    monkeypatch.setattr(module, "create_and_review", create_and_review)
    text = without_brokers("topic", "create", "-p", "4", "-r", "3", "--topic", "mine").stdout
    without_brokers("topic", "create")
    assert asked == [("mine", 4, 3), ("__marshal", None, None)]
    assert "3 brokers in the cluster" in text
    assert "a single disk" not in text
    assert without_brokers("topic", "create", "--partitions", "0").exit_code == 2
    assert len(asked) == 2

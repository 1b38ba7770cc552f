"""`marshal topic create`: what it says of topics that it made, and of those that it found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

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

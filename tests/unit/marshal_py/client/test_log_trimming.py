"""What a client deletes of the log by itself: what a snapshot of its own covers, once."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client import log_trimming
from marshal_py.client.log_trimming import LogTrimmer


class Admin:
    """Stands for the AdminClient: takes down what is to be deleted, and below what."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, int, int]] = []
        self.error: Exception | None = None

    def delete_records(self, parts: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        assert request_timeout > 0
        (part,) = parts
        self.deleted.append((part.topic, part.partition, part.offset))
        answer: Future[Any] = Future()
        if self.error is None:
            answer.set_result(None)
        else:
            answer.set_exception(self.error)
        return {part: answer}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(log_trimming, "connect", lambda *_: made)
    return made


def test_what_a_snapshot_covers_that_was_read_back_is_deleted_once_but_for_its_anchor(
    admin: Admin,
) -> None:
    trimmer = LogTrimmer({}, "log")
    trimmer.written(0, 100)
    trimmer.written(1, 70)
    trimmer.read({})
    trimmer.read({0: 99, 1: 69})
    assert admin.deleted == [], "it may have been lost on its way"
    for _ in range(2):
        trimmer.read({0: 100, 1: 69})
    assert admin.deleted == [("log", 0, 99)]
    trimmer.read({0: 300, 1: 300})
    assert admin.deleted[1:] == [("log", 1, 69)], "and of others' snapshots nothing"
    trimmer.written(0, 400)
    trimmer.start_over()
    trimmer.read({0: 500})
    assert len(admin.deleted) == 2, "it was of another log"


def test_why_it_cannot_be_deleted_is_told_and_the_next_snapshot_brings_another_attempt(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    trimmer = LogTrimmer({"bootstrap.servers": "b:1"}, "log")
    admin.error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    trimmer.written(0, 100)
    trimmer.read({0: 100})
    assert "log/0 could not be trimmed: " in caplog.text
    assert "--operation Delete --topic log" in caplog.text
    admin.error = None
    trimmer.written(0, 200)
    with caplog.at_level(logging.INFO, "marshal_py.log"):
        trimmer.read({0: 200})
    assert admin.deleted == [("log", 0, 99), ("log", 0, 199)]
    assert "log/0: records below offset 199 were deleted" in caplog.text

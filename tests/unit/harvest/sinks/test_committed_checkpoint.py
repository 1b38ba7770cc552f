"""The checkpoint is read in spite of a coordinator that is on its way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from harvest.sinks.kafka.committed_checkpoint import committed_checkpoint

MOVED = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
DENIED = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))


class Reader:
    """Answers as it is told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def committed(self, where: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout == 60
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, SimpleNamespace):
            return [answer]  # type: ignore[list-item]
        return [TopicPartition(where[0].topic, where[0].partition, *answer)]


def read(reader: Reader, **options: Any) -> str | None:
    return committed_checkpoint(reader, "t", 60, **options)  # type: ignore[arg-type]


def test_a_moving_coordinator_is_asked_again() -> None:
    reader = Reader(MOVED, MOVED, (0, "here"))
    assert read(reader) == "here"
    assert not reader.answers


def test_nothing_was_committed() -> None:
    assert read(Reader((-1001,))) is None


def test_what_will_not_change_is_raised_at_once() -> None:
    with pytest.raises(KafkaException):
        read(Reader(DENIED))


@pytest.mark.parametrize("lasting", [False, True])
def test_a_position_that_comes_with_an_error_is_not_none(lasting: bool) -> None:
    """Whoever took it for none would publish everything again."""
    error = (DENIED if lasting else MOVED).args[0]
    answered = SimpleNamespace(error=error, offset=-1001, metadata="")
    reader = Reader(answered, (0, "here"))
    if lasting:
        with pytest.raises(KafkaException):
            read(reader)
    else:
        assert read(reader) == "here"


def test_nobody_waits_without_a_point_in_it() -> None:
    with pytest.raises(KafkaException):
        read(Reader(MOVED), still=lambda: False)

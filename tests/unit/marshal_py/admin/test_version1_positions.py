"""What Go clients have committed to Kafka, as far as it may be read."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import version1_positions as module
from marshal_py.admin.version1_positions import committed_position


def position(monkeypatch: pytest.MonkeyPatch, answer: int) -> int:
    """`answer`: the offset, or the code of an error."""

    def committed_offset(*_: object) -> int:
        if answer in OFFSETS:
            return answer
        raise KafkaException(KafkaError(answer))

    monkeypatch.setattr(module, "committed_offset", committed_offset)
    return committed_position({}, "g", "t", 3, 1.0)


OFFSETS = (-1001, 0, 1_234_567)


@pytest.mark.parametrize(("committed", "found"), [(-1001, -1), (0, -1), (1_234_567, 1_234_567)])
def test_zero_is_no_position_as_for_go(
    monkeypatch: pytest.MonkeyPatch, committed: int, found: int
) -> None:
    assert position(monkeypatch, committed) == found


@pytest.mark.parametrize(
    ("code", "warns"),
    [
        (KafkaError.GROUP_ID_NOT_FOUND, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
    ],
)
def test_a_group_that_is_unknown_or_hidden_has_no_position(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, warns: bool
) -> None:
    assert position(monkeypatch, code) == -1
    assert ("offsets of t/3 that Go clients of 'g'" in caplog.text) == warns


def test_brokers_that_do_not_answer_are_no_group_without_a_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would begin at the first message, and hand out all of them again."""
    with pytest.raises(KafkaException):
        position(monkeypatch, KafkaError._TIMED_OUT)

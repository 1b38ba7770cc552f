"""What a group of Kafka's has committed, asked by a consumer that the test answers for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from marshal_py.client import committed as module
from marshal_py.client.committed import ask_again, committed_offset


class Consumer:
    """Answers with the next of `answers`, which are offsets and errors; the last one stays.

    `told`: the code of what `poll` brings.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *answers: int | KafkaError, told: int = 0
    ) -> None:
        self.answers = list(answers)
        self.told = told
        self.in_the_partition = False
        """Whether errors are those of the partition."""
        self.now_s = 100.0
        self.is_closed = False
        self.config: dict[str, Any] = {}
        monkeypatch.setattr(module, "connect", self._connect)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def _connect(self, _kind: Any, config: dict[str, Any]) -> Consumer:
        self.config = config
        return self

    def committed(self, _where: list[Any], timeout_s: float) -> list[Any]:
        assert timeout_s > 0
        self.now_s += timeout_s
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return [SimpleNamespace(offset=answer, error=None)]
        if self.in_the_partition:
            return [SimpleNamespace(offset=-1001, error=answer)]
        raise KafkaException(answer)

    def poll(self, _timeout_s: float) -> Any:
        if not self.told:
            return None
        return SimpleNamespace(error=lambda: KafkaError(self.told))

    def close(self) -> None:
        self.is_closed = True

    def ask(self, timeout_s: float = 5.0) -> int:
        """Ask; afterwards it is closed, whatever came of it."""
        kafka = {"bootstrap.servers": "x:1", "group.id": "y", "statistics.interval.ms": 1}
        try:
            return committed_offset(kafka, "g", "t", 3, timeout_s)
        finally:
            assert self.is_closed

    def refusal(self, timeout_s: float = 5.0) -> int:
        with pytest.raises(KafkaException) as raised:
            self.ask(timeout_s)
        code: int = raised.value.args[0].code()
        return code


LATE = KafkaError(KafkaError._TIMED_OUT)
BROKEN = KafkaError(KafkaError._STATE)


@pytest.mark.parametrize("offset", [0, 7, -1001])
def test_what_was_committed_is_told(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    consumer = Consumer(monkeypatch, offset)
    assert consumer.ask() == offset
    assert consumer.config["group.id"] == "g"
    assert consumer.config["isolation.level"] == "read_uncommitted", "it waits for no transaction"
    assert consumer.config["enable.auto.commit"] is False
    assert "statistics.interval.ms" not in consumer.config


@pytest.mark.parametrize(
    "silence",
    [
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    ],
)
def test_a_coordinator_that_comes_late_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, silence: int
) -> None:
    late = KafkaError(silence)
    assert Consumer(monkeypatch, late, late, 7).ask() == 7


def test_nobody_waits_for_longer_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(monkeypatch, LATE)
    assert consumer.refusal(5.0) == LATE.code()
    assert consumer.now_s <= 106


def test_who_may_not_see_the_group_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka tries on until the time is up, and tells the cause elsewhere."""
    refused = KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer = Consumer(monkeypatch, LATE, told=refused)
    assert consumer.refusal(600.0) == refused
    assert consumer.now_s < 101


def test_another_error_is_no_reason_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(monkeypatch, BROKEN)
    assert consumer.refusal(600.0) == BROKEN.code()
    assert consumer.now_s < 101


def test_an_error_of_the_partition_is_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer(monkeypatch, BROKEN)
    consumer.in_the_partition = True
    assert consumer.refusal() == BROKEN.code()


FOUND = TopicPartition("t", 3, 7)


class Asking:
    """Answers a question that is asked again: with the next of `answers`; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int | TopicPartition) -> None:
        self.answers = list(answers)
        self.now_s = 100.0
        self.asked = 0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        monkeypatch.setattr(module, "time", clock)

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds < 1
        self.now_s += seconds

    def __call__(self) -> TopicPartition | None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, TopicPartition):
            return answer
        if not answer:
            return None
        raise KafkaException(KafkaError(answer))

    def refusal(self, **how: Any) -> int:
        with pytest.raises(KafkaException) as raised:
            ask_again(self, 5.0, **how)
        code: int = raised.value.args[0].code()
        return code


@pytest.mark.parametrize(
    "moves",
    [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        0,
    ],
)
def test_a_coordinator_that_moves_is_asked_again_until_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    assert ask_again(Asking(monkeypatch, moves, moves, FOUND), 5.0) is FOUND
    asking = Asking(monkeypatch, moves)
    assert asking.refusal() == (moves or KafkaError._TIMED_OUT)
    assert 105 < asking.now_s < 106
    asking = Asking(monkeypatch, moves)
    assert asking.refusal(still=lambda: asking.asked < 3) == (moves or KafkaError._TIMED_OUT)
    assert asking.asked == 3, "there was no point in it any more"


def test_what_is_no_move_of_the_coordinator_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = Asking(monkeypatch, KafkaError.GROUP_AUTHORIZATION_FAILED, FOUND)
    assert asking.refusal() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert asking.asked == 1

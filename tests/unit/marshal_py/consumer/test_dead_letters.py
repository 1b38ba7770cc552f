"""A dead letter counts when all replicas have it, and not before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as KafkaMessage

from marshal_py.client.kafka_clients import CONNECT_AGAIN_S
from marshal_py.consumer import dead_letters
from marshal_py.consumer.dead_letters import (
    PREFIX,
    REPLAYED,
    DeadLetters,
    check_dead_letter_topics,
    headers_of,
)
from marshal_py.consumer.handlers.retries import Retries
from marshal_py.errors import (
    AccessDenied,
    BrokerUnavailable,
    ConfigurationError,
    DeadLetterFailed,
    DeserializationFailed,
    TopicMissing,
)
from marshal_py.testing import TestBroker


class SlowProducer:
    """Reports come after so many polls; a flush is never long enough."""

    def __init__(self, polls: int, error: KafkaError | None = None) -> None:
        self.polls, self.error = polls, error
        self.report: Callable[[], None] | None = None
        self.reported = False

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        def report() -> None:
            self.reported = True
            on_delivery(self.error, None)

        self.report = report

    def poll(self, _: float) -> int:
        self.polls -= 1
        if self.polls == 0 and self.report is not None:
            self.report()
        return 0

    def flush(self, _: float) -> int:
        return 0 if self.reported else 1


def letters(monkeypatch: pytest.MonkeyPatch, producer: SlowProducer) -> DeadLetters:
    monkeypatch.setattr(dead_letters, "connect", lambda *_: producer)
    return DeadLetters({}, timeout_s=1.0)


def test_a_dead_letter_is_awaited_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SlowProducer(polls=1_000)
    letters(monkeypatch, producer).send("t.dlq", b"k", b"v", [])
    assert producer.reported


def test_a_dead_letter_that_timed_out_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SlowProducer(polls=3, error=KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(BrokerUnavailable, match=r"t\.dlq"):
        letters(monkeypatch, producer).send("t.dlq", b"k", b"v", [])


def test_what_is_not_written_at_the_end_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = SlowProducer(polls=10)
    with caplog.at_level(logging.ERROR, logger="marshal_py.consumer"):
        letters(monkeypatch, producer).close()
    assert "1 dead letters were not written" in caplog.text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, DeadLetterFailed),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, DeadLetterFailed),
        (KafkaError._UNKNOWN_TOPIC, DeadLetterFailed),
        (KafkaError._UNKNOWN_PARTITION, DeadLetterFailed),
        (KafkaError.TOPIC_EXCEPTION, DeadLetterFailed),
        (KafkaError.RECORD_LIST_TOO_LARGE, DeadLetterFailed),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.NOT_ENOUGH_REPLICAS, BrokerUnavailable),
        (KafkaError._ALL_BROKERS_DOWN, BrokerUnavailable),
    ],
)
def test_what_trying_again_does_not_mend_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    producer = SlowProducer(polls=1, error=KafkaError(code))
    with pytest.raises(kind, match=r"t\.dlq") as raised:
        letters(monkeypatch, producer).send("t.dlq", b"k", b"v", [])
    assert type(raised.value) is kind


class FullProducer(SlowProducer):
    """Takes nothing."""

    def __init__(self, error: Exception) -> None:
        super().__init__(polls=1)
        self.raised = error

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        raise self.raised


def test_a_full_queue_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = FullProducer(BufferError())
    with pytest.raises(BrokerUnavailable, match="too many"):
        letters(monkeypatch, producer).send("t.dlq", b"k", b"v", [])
    assert producer.polls == 0, "it made room first"


def test_what_the_producer_refuses_at_once_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(DeadLetterFailed):
        letters(monkeypatch, FullProducer(error)).send("t.dlq", b"k", b"v", [])


class FailedProducer(SlowProducer):
    """Failed for good: whatever is asked of it says so."""

    def __init__(self, error: Exception, *, accepts: bool) -> None:
        super().__init__(0)
        self._failure, self._accepts = error, accepts

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        if not self._accepts:
            raise self._failure

    def poll(self, _: float) -> int:
        raise self._failure

    def flush(self, _: float) -> int:
        raise self._failure

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    "error", [KafkaException(KafkaError(KafkaError._FATAL)), SystemError("returned")]
)
def test_a_producer_that_failed_for_good_keeps_nothing_else_from_being_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    letters(monkeypatch, FailedProducer(error, accepts=True)).close()
    assert "2 dead letters were not written" in caplog.text


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize(
    "error",
    [KafkaException(KafkaError(KafkaError._FATAL, "out of order")), SystemError("returned")],
)
def test_a_producer_that_failed_for_good_is_replaced(
    monkeypatch: pytest.MonkeyPatch, error: Exception, accepts: bool
) -> None:
    """Else the message would never get any further, nor any that fails after it."""
    producers = [FailedProducer(error, accepts=accepts), SlowProducer(1)]
    monkeypatch.setattr(dead_letters, "connect", lambda *_: producers.pop(0))
    made = DeadLetters({}, timeout_s=1)
    with pytest.raises(BrokerUnavailable, match="took no dead letter"):
        made.send("t.dlq", b"k", b"v", [])
    made.send("t.dlq", b"k", b"v", [])
    assert producers == []


def test_a_producer_that_cannot_be_replaced_now_is_replaced_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While a certificate is being replaced."""
    failed = FailedProducer(KafkaException(KafkaError(KafkaError._FATAL)), accepts=False)
    torn = ConfigurationError("ssl.key.location failed")
    answers: list[Any] = [failed, torn, SlowProducer(1)]

    def connect(*_: object) -> Any:
        answer = answers.pop(0)
        if answer is torn:
            raise torn
        return answer

    monkeypatch.setattr(dead_letters, "connect", connect)
    waits: list[float] = []
    monkeypatch.setattr("marshal_py.consumer.dead_letters.time.sleep", waits.append)
    made = DeadLetters({}, timeout_s=1)
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="took no dead letter"):
            made.send("t.dlq", b"k", b"v", [])
    made.send("t.dlq", b"k", b"v", [])
    assert waits == [CONNECT_AGAIN_S]
    assert "ssl.key.location failed" in caplog.text


def test_a_first_producer_that_cannot_be_made_now_is_made_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an `on_failure` that decides for each message, it is made for the first dead letter."""
    settings = SimpleNamespace(kafka={}, connect_timeout_ms=1)
    core: Any = SimpleNamespace(marshal=SimpleNamespace(settings=settings), topics=None)
    no_options: Any = SimpleNamespace()
    tasks: Any = SimpleNamespace(lock=threading.Lock())
    made = Retries(core, no_options, tasks, no_options)
    waits: list[float] = []
    monkeypatch.setattr("marshal_py.consumer.handlers.retries.time.sleep", waits.append)

    def fail(*_: object) -> None:
        raise ConfigurationError("ssl.key.location failed")

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "connect", fail)
        with pytest.raises(BrokerUnavailable, match="ssl"):
            made._open_dead_letters()
    assert waits == [CONNECT_AGAIN_S]
    monkeypatch.setattr(dead_letters, "connect", lambda *_: SlowProducer(1))
    assert made._open_dead_letters() is made._open_dead_letters()


def test_all_replicas_are_waited_for_whatever_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def client(_: object, config: dict[str, Any]) -> SlowProducer:
        seen.append(config)
        return SlowProducer(polls=1)

    monkeypatch.setattr(dead_letters, "connect", client)
    DeadLetters({"acks": "0", "enable.idempotence": False}, timeout_s=1.0)
    assert (seen[0]["acks"], seen[0]["enable.idempotence"]) == ("all", True)
    assert (seen[0]["delivery.timeout.ms"], seen[0]["linger.ms"]) == (10_000, 0)


def test_what_its_topic_takes_becomes_a_dead_letter_however_large(mock_kafka: TestBroker) -> None:
    """Brokers, and Java's producers, take more by default than librdkafka's producers do."""
    topic, value = mock_kafka.create_topic("t.dlq"), bytes(1_040_000)
    limited = DeadLetters(mock_kafka.config | {"message.max.bytes": 1_039_000}, timeout_s=10)
    with pytest.raises(DeadLetterFailed, match="too large"):
        limited.send(topic, b"k", value, [])
    DeadLetters(mock_kafka.config, timeout_s=10).send(topic, b"k", value, [])
    assert [message.value() for message in mock_kafka.messages(topic)] == [value]


class KnowingProducer(SlowProducer):
    """Knows one topic, or nobody answers."""

    def __init__(self, down: KafkaException | None = None) -> None:
        super().__init__(polls=1)
        self.down = down

    def list_topics(self, *, timeout: float) -> Any:
        assert timeout == 1.0
        if self.down is not None:
            raise self.down
        return type("Found", (), {"topics": {"t.dlq": None}})


def test_topics_are_looked_for_before_anything_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = letters(monkeypatch, KnowingProducer())
    made.check({"t.dlq"})
    with pytest.raises(TopicMissing, match=r"'u\.dlq', does not exist, or is hidden .* grant"):
        made.check({"t.dlq", "u.dlq"})
    down = KnowingProducer(KafkaException(KafkaError(KafkaError._TRANSPORT)))
    with pytest.raises(BrokerUnavailable, match="within 1 s"):
        letters(monkeypatch, down).check({"t.dlq"})


def test_nothing_is_said_when_all_was_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    producer = SlowProducer(polls=1)
    producer.reported = True
    with caplog.at_level(logging.DEBUG, logger="marshal_py.consumer"):
        letters(monkeypatch, producer).close()
    assert caplog.text == ""


def test_headers_say_what_where_and_by_whom() -> None:
    own: list[tuple[str, str | bytes | None]] = [("trace", b"7"), (f"{PREFIX}offset", b"1")]
    message = KafkaMessage(
        topic="t", partition=2, offset=9, key=b"k", value=b"v", headers=own, timestamp=(1, 5_000)
    )
    error = ValueError("no " * 1_000)
    found = headers_of(message, error, attempts=3, group_id="g", client_id="c", epoch=77)
    assert [value for name, value in found if name == "trace"] == [b"7"]
    assert len({name for name, _ in found}) == len(found), "what it had of these names is replaced"
    told = {name.removeprefix(PREFIX): value.decode() for name, value in found}
    del told["trace"]
    assert int(told.pop("failed-at")) > 1_700_000_000_000
    assert told.pop("error-message") == str(error)[:1_000]
    assert told == {
        "error-class": "builtins.ValueError",
        "topic": "t",
        "partition": "2",
        "offset": "9",
        "timestamp": "5000",
        "attempts": "3",
        "group-id": "g",
        "client-id": "c",
        "epoch": "77",
    }


def test_a_dead_letter_that_was_put_back_and_failed_again_says_from_where() -> None:
    before: list[tuple[str, str | bytes | None]] = [
        (f"{REPLAYED}from", b"t.dlq/0/3"),
        (f"{PREFIX}offset", b"4"),
        ("trace", b"7"),
    ]
    message = KafkaMessage(topic="t", partition=2, offset=9, headers=before)
    found = headers_of(message, ValueError(), attempts=3, group_id="g", client_id="c", epoch=1)
    kept = [(name, value) for name, value in found if name in dict(before)]
    assert kept == [before[0], before[2], (f"{PREFIX}offset", b"9")]


@pytest.mark.parametrize("none", [(0, -1), (1, -1)])  # as librdkafka has it, and as brokers may
def test_headers_leave_out_what_is_not_known_and_name_the_cause_of_what_cannot_be_read(
    none: tuple[int, int],
) -> None:
    message = KafkaMessage(topic="t", partition=0, offset=0, value=b"v", timestamp=none)
    error = DeserializationFailed(message, "value", ValueError())
    error.__cause__ = KeyError("schema")
    who = {"attempts": 1, "group_id": "g", "client_id": "c", "epoch": None}
    told = dict(headers_of(message, error, **who))  # type: ignore[arg-type]
    assert told[f"{PREFIX}error-class"] == b"builtins.KeyError"
    assert not {f"{PREFIX}epoch", f"{PREFIX}timestamp"} & told.keys()
    error.__cause__ = None
    told = dict(headers_of(message, error, **who))  # type: ignore[arg-type]
    assert told[f"{PREFIX}error-class"] == b"marshal_py.errors.DeserializationFailed"


def test_dead_letters_do_not_go_where_they_will_be_read_again() -> None:
    """Nor to a topic that a pattern will find when the first of them has made it."""
    looked_for: list[set[str]] = []
    letters: Any = SimpleNamespace(check=looked_for.append)
    topics: Any = SimpleNamespace(counts={"orders": 4}, wants=lambda name: "orders" in name[:6])
    with pytest.raises(ConfigurationError, match=r"'orders.dlq' is among the topics"):
        check_dead_letter_topics(letters, topics, "{topic}.dlq")
    assert looked_for == []
    check_dead_letter_topics(letters, topics, "dead.{topic}")
    assert looked_for == [{"dead.orders"}]


def test_an_error_without_a_text_becomes_a_dead_letter_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise AttributeError("code")

    message = KafkaMessage(topic="t", partition=2, offset=9)
    found = headers_of(message, Mute(), attempts=1, group_id="g", client_id="c", epoch=None)
    assert b"Mute, of which no text" in dict(found)[f"{PREFIX}error-message"]


def test_whatever_an_error_says_can_be_written() -> None:
    """As what `os.fsdecode` makes of a name that is no text."""
    message = KafkaMessage(topic="t", partition=2, offset=9)
    error = ValueError("no file \udcff")
    found = headers_of(message, error, attempts=1, group_id="g", client_id="c", epoch=None)
    assert dict(found)[f"{PREFIX}error-message"] == b"no file ?"

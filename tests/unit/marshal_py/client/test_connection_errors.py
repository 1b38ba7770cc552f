"""What is said when no broker can be used: at once, with host, port and cause."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py import AuthenticationFailed, BrokerUnavailable, Consumer, Marshal
from marshal_py.client.kafka_clients import ConnectionErrors, connect, patience
from marshal_py.errors import ConfigurationError
from tests.support.hanging_up import hanging_up

NOT_YET_S = 0.8


def start(kind: str, config: dict[str, Any]) -> None:
    """Start a client that gives up within a second."""
    timeout_ms = int(NOT_YET_S * 1000)
    if kind == "Marshal":
        Marshal(config, group_id="g", connect_timeout_ms=timeout_ms).start()
    else:
        Consumer(config, group_id="g", topics="t", connect_timeout_ms=timeout_ms).start()


@pytest.fixture
def hangs_up() -> Iterator[str]:
    with hanging_up() as where:
        yield where


@pytest.mark.parametrize("kind", ["Marshal", "Consumer"])
@pytest.mark.parametrize(
    ("where", "cause"),
    [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid:9092", "Failed to resolve")],
)
def test_who_cannot_be_reached_is_told_with_the_cause(
    kind: str, where: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BrokerUnavailable, match=cause) as refused:
        start(kind, {"bootstrap.servers": where})
    assert where in str(refused.value)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert where in warnings[0]
    assert cause in warnings[0]


@pytest.mark.parametrize("kind", ["Marshal", "Consumer"])
def test_tls_against_plaintext_is_told_as_what_it_is(
    kind: str, hangs_up: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AuthenticationFailed, match="PLAINTEXT broker listener") as refused:
        start(kind, {"bootstrap.servers": hangs_up, "security.protocol": "SSL"})
    assert hangs_up in str(refused.value)
    assert not isinstance(refused.value, BrokerUnavailable)
    assert "PLAINTEXT broker listener" in caplog.text


def test_one_refusal_may_be_an_accident_and_several_are_none() -> None:
    errors = ConnectionErrors()
    for _ in range(3):
        errors.note(KafkaError._AUTHENTICATION, "broker:1: wrong password")
    assert not errors.repeated
    errors.note(KafkaError._AUTHENTICATION, "broker:1: wrong password")
    assert errors.repeated


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Disconnected (after 1ms in state APIVERSION_QUERY)", "a TLS listener"),
        (
            "Disconnected: connection reset by peer (after 0ms in state SSL_HANDSHAKE)",
            "a PLAINTEXT broker listener",
        ),
    ],
)
def test_who_is_hung_up_on_by_a_reset_is_told_of_the_other_protocol(line: str, cause: str) -> None:
    errors = ConnectionErrors()
    errors.log(logging.ERROR, "FAIL [rdkafka#producer-1] [thrd:b:1]: b:1: " + line)
    found = errors.failure(KafkaError(KafkaError._TIMED_OUT))
    assert isinstance(found, AuthenticationFailed)
    assert f"connecting to {cause}?" in str(found)


def test_a_certificate_that_is_refused_is_no_mismatch_of_protocols() -> None:
    errors = ConnectionErrors()
    why = "SSL handshake failed: certificate verify failed (after 3ms in state SSL_HANDSHAKE)"
    errors.log(logging.ERROR, "FAIL [rdkafka#producer-1] [thrd:b:1]: b:1: " + why)
    assert isinstance(errors.failure(KafkaError(KafkaError._TIMED_OUT)), BrokerUnavailable)


def test_a_broker_that_is_gone_is_no_mismatch_of_protocols() -> None:
    errors = ConnectionErrors()
    timed_out = KafkaError(KafkaError._TIMED_OUT)
    errors.note_outage(KafkaError._TRANSPORT, "b:1: hung up: connecting to a TLS listener?")
    assert isinstance(errors.failure(timed_out), AuthenticationFailed)
    errors.note_outage(KafkaError._TRANSPORT, "b:1: Connection refused (in state CONNECT)")
    assert isinstance(errors.failure(timed_out), BrokerUnavailable)


@pytest.mark.parametrize("package", ["marshal_py", "harvest"])
def test_without_logging_configured_warnings_reach_standard_error(package: str) -> None:
    program = (
        f"import logging, {package}\n"
        f"logging.getLogger('{package}.somewhere').info('not this')\n"
        f"logging.getLogger('{package}.somewhere').warning('three messages are lost')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "three messages are lost\n"


@pytest.mark.parametrize(
    ("error", "said", "is_refused"),
    [
        (KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "lost", fatal=True), "lost", False),
        (KafkaError(KafkaError._SSL, "certificate"), "certificate", False),
        (KafkaError(KafkaError._TRANSPORT, "down"), "", False),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"), "", True),
    ],
)
def test_what_cannot_be_mended_is_kept_apart_from_outages(
    error: KafkaError, said: str, is_refused: bool
) -> None:
    errors = ConnectionErrors()
    settings: dict[str, Any] = {}

    def made(config: dict[str, Any], logger: Any) -> str:
        settings.update(config)
        assert logger is errors
        return "client"

    assert connect(made, {"bootstrap.servers": "b"}, errors) == "client"
    settings["error_cb"](error)
    assert (errors.last, errors.count, errors.was_refused) == (said, int(said != ""), is_refused)


def test_that_all_brokers_are_down_does_not_hide_why() -> None:
    """librdkafka says it right behind what was wrong with the last of them."""
    errors = ConnectionErrors()
    errors.note_outage(KafkaError._TRANSPORT, "b:9092: Connection refused")
    errors.note_outage(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    assert errors.nobody_answers
    assert "b:9092: Connection refused" in str(errors.failure(KafkaError(KafkaError._TIMED_OUT)))


def test_a_right_that_was_missing_stays_missing_whatever_is_said_after() -> None:
    errors = ConnectionErrors()
    errors.log(3, "%s: %s", "b:9092/1", "Topic authorization failed")
    errors.log(3, "b:9092/1: disconnected")
    assert errors.was_refused
    assert errors.last == ""


def test_first_answers_are_awaited_briefly_and_none_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two attempts librdkafka tells what is wrong: who waits for long hears nothing."""
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    waits = patience(160.0)
    found = [next(waits) for _ in range(7)]
    assert found == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    now_s[0] = 158.0
    assert next(waits) == 2.0
    now_s[0] = 170.0
    assert next(waits) == 0.1


def test_a_program_that_hears_of_errors_itself_takes_them_from_nobody() -> None:
    """Who gives up at a wrong password, and not when the time is up, has to hear of it, too."""
    errors, told, settings = ConnectionErrors(), list[KafkaError](), dict[str, Any]()

    def made(config: dict[str, Any], logger: Any) -> str:
        assert logger is errors
        settings.update(config)
        return "client"

    connect(made, {"error_cb": told.append}, errors)
    error = KafkaError(KafkaError._AUTHENTICATION, "wrong password")
    settings["error_cb"](error)
    assert told == [error]
    assert errors.last == "wrong password"
    with pytest.raises(ConfigurationError, match="error_cb"):
        connect(made, {"error_cb": "no function"}, errors)


@pytest.mark.parametrize(
    "error",
    [
        KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such property")),
        TypeError("no such property"),
        ValueError("no such property"),
    ],
)
def test_whatever_a_setting_is_refused_with_is_an_error_of_the_configuration(
    error: Exception,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    with pytest.raises(ConfigurationError, match=r"librdkafka refuses .*: no such property"):
        connect(refuse, {})


def test_what_is_to_hear_of_errors_must_be_a_function() -> None:
    with pytest.raises(ConfigurationError, match="config 'error_cb' = 5 must be a function"):
        connect(lambda *_, **__: None, {"error_cb": 5})

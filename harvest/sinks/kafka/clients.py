"""Kafka clients that log where we say, and what is said when they do not reach a broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from harvest.errors import ConfigurationError, SinkUnavailable
from marshal_py.client.kafka_clients import NO_CREATION, ConnectionErrors, connect, patience

__all__ = ["connected_admin", "make_client", "make_client_again", "said"]

Client = TypeVar("Client")

_RDKAFKA_LOG: Final = logging.getLogger("harvest.rdkafka")
_RDKAFKA_LOG.setLevel(logging.CRITICAL + 1)  # what matters of it, we say once; lower it to see all


def make_client(kind: Callable[..., Client], settings: Mapping[str, Any]) -> Client:
    """A client that logs where we say; without a logger, librdkafka writes to standard error.

    To ask an AdminClient for a topic does not make it, unless the settings say so.
    Raises `ConfigurationError`.
    """
    if kind is AdminClient:
        settings = {**NO_CREATION, **settings}
    try:
        return kind(settings, logger=_RDKAFKA_LOG)
    except (KafkaException, TypeError, ValueError) as error:
        text = said(error) if isinstance(error, KafkaException) else str(error)
        raise ConfigurationError(f"Kafka settings: {text}") from None


def make_client_again(kind: Callable[..., Client], settings: Mapping[str, Any]) -> Client:
    """The same for settings that were tried when the process began (`runtime.parts`).

    What is refused now is a file that is being replaced, as a certificate and its key are, one
    after the other. Raises `SinkUnavailable`.
    """
    try:
        return make_client(kind, settings)
    except ConfigurationError as error:
        raise SinkUnavailable(str(error)) from None


def connected_admin(settings: Mapping[str, Any], timeout_s: float) -> tuple[AdminClient, Any]:
    """An admin client, and the cluster's metadata, which show that brokers answer.

    Raises `marshal_py.errors.AuthenticationFailed` or `BrokerUnavailable`, which say which broker
    and why: soon when every broker was tried, else after `timeout_s`. And `ConfigurationError` (of
    marshal_py) for settings that librdkafka refuses.
    """
    errors = ConnectionErrors()
    admin = connect(AdminClient, dict(settings), errors)
    deadline = time.monotonic() + timeout_s
    for wait_s in patience(deadline):
        try:
            return admin, admin.list_topics(timeout=wait_s)
        except KafkaException as error:
            admin.poll(0)  # to hear why
            if errors.nobody_answers or errors.repeated or time.monotonic() >= deadline:
                raise errors.failure(error.args[0]) from None
    raise AssertionError  # `patience` has no end


def said(error: KafkaException) -> str:
    """What went wrong, with the name of the error."""
    detail = error.args[0]
    return f"{detail.str()} ({detail.name()})" if isinstance(detail, KafkaError) else str(detail)

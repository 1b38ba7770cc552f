"""confluent-kafka clients as the coordination log uses them: settings, errors, log lines.

An outage is worth one log line in a while; what trying again cannot mend is told as it is.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    ConfigurationError,
    MarshalError,
)

__all__ = [
    "ANY_SIZE",
    "CLOSE_S",
    "CONNECT_AGAIN_S",
    "FINAL",
    "NO_CREATION",
    "OUTAGE_WARNING_S",
    "PRODUCER_FAILED",
    "RECONNECT",
    "TRANSACTIONAL_PRODUCER",
    "ConnectionErrors",
    "close_consumer",
    "connect",
    "failure_of",
    "give_up",
    "is_fatal",
    "is_mock",
    "no_answer",
    "patience",
    "problem_of",
    "rdkafka_logger",
    "read_to_end",
]

logger = logging.getLogger("marshal_py.log")
rdkafka_logger = logging.getLogger("marshal_py.rdkafka")
rdkafka_logger.setLevel(logging.CRITICAL)  # what it says, `logger` says once; lower it to see all

OUTAGE_WARNING_S: Final = 30.0
"""An outage is worth one line in this time, not one for each attempt to connect."""

CONNECT_AGAIN_S: Final = 1.0
"""A client that could not be made is tried again so much later."""

RECONNECT: Final[KafkaConfig] = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1_000}

TRANSACTIONAL_PRODUCER: Final[KafkaConfig] = {"connections.max.idle.ms": 5_000}
"""`send_offsets_to_transaction` knows no time-out while the group's coordinator is a broker that
has stopped: it waits until some connection begins or ends (confluentinc/librdkafka#5456, #5511).
After a rolling restart that may be never; so quiet connections end."""

NO_CREATION: Final[KafkaConfig] = {"allow.auto.create.topics": False}
"""By what AdminClients and producers ask of a topic, brokers would make it, with their defaults; by
a consumer's questions only where its settings say so."""

ANY_SIZE: Final[KafkaConfig] = {"message.max.bytes": 1_000_000_000}
"""How large a message may be, its topic says. Without it, librdkafka's producers take no message
that is larger than 1,000,000 bytes: less than brokers, and Java's producers, take by default."""

FINAL: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.UNSUPPORTED_VERSION,
}
"""Errors that trying again cannot mend."""


_MUTUAL: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}
"""Those of them by which brokers and client do not accept each other."""


def patience(deadline: float) -> Iterator[float]:
    """Yield for how many seconds to wait for each answer, until `deadline` (`time.monotonic`).

    librdkafka tells what is wrong between two attempts only: so the first ones are short.
    """
    wait_s = 0.25
    while True:
        yield max(0.1, min(wait_s, deadline - time.monotonic()))
        wait_s = min(5.0, 2 * wait_s)


class ConnectionErrors:
    """Why a client gets no answer from its brokers: what was said last, and how often.

    What TLS or SASL said counts most: trying again does not mend it.
    """

    def __init__(self) -> None:
        self.last = ""
        self.count = 0
        self.was_refused = False
        """Whether a right was missing."""
        self.nobody_answers = False
        """Whether every broker was tried, and none could be used."""
        self._code = 0
        self._unreachable = ""
        self._mismatch = ""
        """How librdkafka says that one side speaks TLS and the other does not."""
        self._logged_s = self._warned_s = -OUTAGE_WARNING_S

    @property
    def repeated(self) -> bool:
        """Whether it came often enough to be no accident, as of a broker that is killed."""
        return self.count >= 4

    def note(self, code: int, text: str) -> None:
        """Keep what trying again cannot mend, and log it once in a while."""
        self.last, self.count, self._code = text, self.count + 1, code
        if time.monotonic() - self._logged_s >= OUTAGE_WARNING_S:
            self._logged_s = time.monotonic()
            logger.error("the brokers cannot be used: %s", text)

    def note_outage(self, code: int, text: str) -> None:
        """Keep why a broker cannot be reached, and log it once in a while."""
        self.nobody_answers |= code == KafkaError._ALL_BROKERS_DOWN
        if code == KafkaError._ALL_BROKERS_DOWN and time.monotonic() - self._warned_s < 1:
            return  # it follows what was said of the last of them
        self._unreachable = text
        if "listener?" in text:
            self._mismatch = text
        elif "in state CONNECT" in text:
            self._mismatch = ""
        if time.monotonic() - self._warned_s >= OUTAGE_WARNING_S:
            self._warned_s = time.monotonic()
            logger.warning("no connection: %s; trying on", text)

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Take a line of librdkafka's own log: of some problems it tells nowhere else."""
        rdkafka_logger.log(level, text, *arguments)
        line = text % arguments if arguments else text
        self.was_refused |= "authorization failed" in line  # of a producer that failed for good
        if "FAIL" not in line:
            return
        what = line.rpartition("]: ")[2]
        if "in state APIVERSION_QUERY" in what and "listener?" not in what:
            what += ": connecting to a TLS listener? See security.protocol"
        if "Disconnected" in what and "in state SSL_HANDSHAKE" in what and "listener?" not in what:
            what += ": connecting to a PLAINTEXT broker listener? See security.protocol"
        if "listener?" in what:
            self.note_outage(KafkaError._TRANSPORT, what)

    def failure(self, error: KafkaError) -> MarshalError:
        """Return what to raise when giving up after `error`: it says which broker, and why."""
        if self._code in _MUTUAL or error.code() in _MUTUAL or self._mismatch:
            return AuthenticationFailed(self.last or self._mismatch or error.str())
        return BrokerUnavailable(
            f"no answer from the brokers: {self.last or self._unreachable or error.str()}"
        )


def no_answer(error: KafkaException) -> BrokerUnavailable:
    """Return what to raise where the brokers did not answer one question."""
    return BrokerUnavailable(f"no answer from the brokers: {error.args[0].str()}")


def is_mock(cluster: Any) -> bool:
    """Whether these are the metadata of librdkafka's mock cluster.

    It does not tell a topic's id (a request for it would wait for its time-out), and a record that
    arrives does not wake a fetch that waits.
    """
    return (cluster.cluster_id or "").startswith("mockCluster")


def connect(kind: Any, config: KafkaConfig, errors: ConnectionErrors | None = None) -> Any:
    """Make a Consumer or Producer; a setting that it refuses becomes a `ConfigurationError`.

    A program's own `error_cb` hears of errors, too.
    """
    errors = errors or ConnectionErrors()
    tell_program = config.get("error_cb")
    if tell_program is not None and not callable(tell_program):
        raise ConfigurationError(f"config 'error_cb' = {tell_program!r} must be a function")

    def on_error(error: KafkaError) -> None:
        if error.code() in REFUSED:
            errors.was_refused = True  # whoever asked is told, and tells which right is missing
        elif error.fatal() or error.code() in FINAL:
            errors.note(error.code(), error.str())
        else:
            errors.note_outage(error.code(), error.str())
        if tell_program is not None:
            tell_program(error)

    try:
        return kind({**config, "error_cb": on_error}, logger=errors)
    except (KafkaException, TypeError, ValueError) as error:
        problem = error.args[0] if error.args else error
        text = problem.str() if isinstance(problem, KafkaError) else str(problem)
        raise ConfigurationError(f"librdkafka refuses the configuration: {text}") from None


Problem = TypeVar("Problem", bound=Exception)

PRODUCER_FAILED: Final = (KafkaException, SystemError)
"""What polling a producer raises once it has failed for good, and only then. (SystemError is
confluent-kafka's own mishap when it raises while a callback of ours runs.)"""


def problem_of(
    kinds: tuple[type[Problem], ...], operation: Callable[..., object], *arguments: object
) -> Problem | None:
    """Do it; return what it raised, if that is of `kinds`, without its traceback; None if nothing.

    Where confluent-kafka raises an exception (2.13 to 2.16) while another one is handled, it never
    frees that one, nor what its frames have: clients with their threads, whole batches. So what
    may raise is not called in an `except` or a `finally`; what was raised before is carried on.
    """
    try:
        operation(*arguments)
    except kinds as error:
        link: BaseException | None = error
        while link is not None:
            link.__traceback__ = None
            link = link.__cause__ or link.__context__
        return error
    return None


def give_up(producer: Any) -> None:
    """Give up what a producer still has; the callbacks of it run.

    Its threads and connections go with the last reference to it. An exception that was raised on
    the way has one, by its traceback: nobody may keep it beyond its handling.
    """
    with contextlib.suppress(*PRODUCER_FAILED):  # it may say once more that it has failed
        producer.purge()
        producer.poll(0)


CLOSE_S: Final = 5.0
"""A consumer that has not closed by then never does."""


def close_consumer(consumer: Any, timeout_s: float = CLOSE_S) -> None:
    """Close a consumer, or leave it behind if that takes longer than `timeout_s`.

    Where two of librdkafka's threads wait for each other (its issue 5476: the leader of a partition
    goes, and the next one), whoever closes it waits for ever, as does who lets go of it.
    """
    closing = threading.Thread(target=consumer.close, name="marshal-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:  # Python 3.12 starts no thread while it ends
        consumer.close()
        return
    closing.join(timeout_s)
    if closing.is_alive():
        logger.error("a Kafka client does not close within %g s; it is left behind", timeout_s)


def failure_of(error: KafkaException | SystemError) -> KafkaError:
    """Return why a producer failed, of what it raised."""
    if isinstance(error, KafkaException):
        problem: KafkaError = error.args[0]
        return problem
    return KafkaError(KafkaError._FATAL, str(error))


def is_fatal(error: KafkaError) -> bool:
    """Whether the producer of which this is said will never send again.

    What `produce` raises over such a one has a code of its own, and is not marked as fatal.
    """
    return bool(error.fatal()) or error.code() == KafkaError._FATAL


def read_to_end(
    config: KafkaConfig,
    topic: str,
    starts: dict[int, int],
    ends: dict[int, int],
    deadline: float,
    *,
    whole: bool = False,
) -> Iterator[Any]:
    """Yield the records of some partitions from `starts` to below `ends`, or what is left of them.

    `whole`: a replica that does not know yet that there is more is waited for. Not for ends that
    take no account of transactions: what is behind an open one does not come.

    Raises `BrokerUnavailable` at the deadline (of `time.monotonic`), or when the brokers refuse.
    """
    # A consumer of its own: re-assigning one waits for its last fetch to come back.
    consumer = connect(
        Consumer,
        {
            **RECONNECT,
            **config,
            **NO_CREATION,
            "group.id": "marshal",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        },
    )
    try:
        consumer.assign([TopicPartition(topic, p, at) for p, at in starts.items()])
        behind = set(starts)
        while behind:
            message = consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"no answer while reading {topic!r}")
                continue
            error = message.error()
            if error is None:
                yield message
                if message.offset() + 1 >= ends[message.partition()]:
                    behind.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                if not whole or message.offset() >= ends[message.partition()]:
                    behind.discard(message.partition())
            elif error.code() in REFUSED:
                raise denied(config, topic, "Read")
            elif error.code() in FINAL:
                raise BrokerUnavailable(f"reading {topic!r}: {error.str()}")
    finally:
        close_consumer(consumer)

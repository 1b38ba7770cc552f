"""A Kafka for tests inside the test's own process: librdkafka's mock cluster. No Java, no server.

::

    def test_an_order_is_billed(mock_kafka: TestBroker) -> None:
        mock_kafka.send("orders", b'{"total": 7}', key="customer-1")
        stats = mock_kafka.run(bill, "orders")
        assert stats.handled == 1
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from marshal_py.client.kafka_clients import connect, rdkafka_logger
from marshal_py.client.settings import DEFAULT_TOPIC, kafka_config
from marshal_py.client.topics import admin_client, create_topics
from marshal_py.consumer.consumer import Consumer, core_of
from marshal_py.consumer.handlers.run_stats import RunStats
from marshal_py.errors import ClaimTimeout, InvalidArgument, MarshalError
from marshal_py.protocol.slots import slots_cell

__all__ = ["TestBroker"]

PARTITIONS: Final = 4
"""The mock cluster makes every topic with so many."""

_ANSWER_S: Final = 10.0
_LOOK_S: Final = 0.005

_QUICK: Final[Mapping[str, Any]] = {"interval_ms": 500, "settle_ms": 0, "close_on_sigterm": False}


class TestBroker:
    """A broker of the test's own, with the coordination topics in it.

    ::

        with TestBroker() as broker:
            broker.send("orders", b"1", b"2")
            stats = broker.run(handle, "orders")

    `config`: a Kafka that runs already, to run the same tests against; None: librdkafka's mock
    cluster, in this process (others may connect, too). What the mock cluster does otherwise than
    Kafka: each topic has 4 partitions and appears when it is first written to; there are no admin
    operations, no retention and no compaction; what a transaction aborted can be read; timestamps
    are the producer's; a topic has no id, so that one made anew is not noticed.
    """

    __test__ = False  # for pytest: the name begins as those of tests do

    def __init__(self, config: Mapping[str, Any] | str | None = None) -> None:
        self.is_mock: Final = config is None
        """Whether it is the mock cluster."""
        self._given = None if config is None else kafka_config(config)
        self._config: dict[str, Any] = {}
        self._cluster: Producer | None = None
        self._producer: Any = None

    # Life

    def start(self) -> Self:
        """Start, and make the coordination topics. Once is enough."""
        if self._producer is not None:
            return self
        if self._given is None:
            self._cluster = Producer(
                {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0},
                logger=rdkafka_logger,
            )
            brokers = self._cluster.list_topics(timeout=_ANSWER_S).brokers.values()
            servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
            # A fetch that waits is not woken by a record that arrives.
            self._config = {"bootstrap.servers": servers, "fetch.wait.max.ms": 10}
        else:
            self._config = dict(self._given)
        self._producer = connect(Producer, {**self._config, "linger.ms": 0})
        try:
            if self.is_mock:
                for topic in (DEFAULT_TOPIC, f"{DEFAULT_TOPIC}.snapshots"):
                    self.create_topic(topic)
            else:
                create_topics(self._config)
        except BaseException:
            self.close()  # the next start makes the topics
            raise
        return self

    def close(self) -> None:
        """Stop. What is in it is gone."""
        self._producer = self._cluster = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def config(self) -> dict[str, Any]:
        """What a `Consumer`, a `Marshal` or any confluent-kafka client connects with."""
        self.start()
        return dict(self._config)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses."""
        return str(self.config["bootstrap.servers"])

    # Topics and messages

    def create_topic(self, topic: str) -> str:
        """Make a topic of 4 partitions, if there is none; return its name. `send` does so, too."""
        self.start()
        deadline = time.monotonic() + _ANSWER_S
        if not self.is_mock:
            from confluent_kafka.admin import NewTopic

            admin = admin_client(self._config)
            if topic not in admin.list_topics(timeout=_ANSWER_S).topics:
                admin.create_topics([NewTopic(topic, PARTITIONS, -1)])[topic].result(_ANSWER_S)
        while True:  # the mock cluster makes what a producer asks for
            found = self._producer.list_topics(topic, timeout=_ANSWER_S).topics[topic]
            if found.error is None and found.partitions:
                return topic
            if time.monotonic() > deadline:
                raise ClaimTimeout(f"topic {topic!r} was not made within {_ANSWER_S:g} s")
            time.sleep(_LOOK_S)

    def send(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | str] | None = None,
    ) -> None:
        """Write messages to a topic, in this order, and wait until they are there.

        There may be more of them than a producer's queue holds. Raises `InvalidArgument` for what
        the topic does not take, `ClaimTimeout`.
        """
        self.create_topic(topic)
        problems: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                problems.append(error)

        where = {} if partition is None else {"partition": partition}
        for value in values:
            try:
                while not self._has_taken(
                    topic,
                    value,
                    key=key,
                    headers=None if headers is None else list(headers.items()),
                    on_delivery=on_delivery,
                    **where,
                ):
                    if not self._producer.poll(_ANSWER_S):  # which makes room
                        raise ClaimTimeout(f"topic {topic!r}: no answer within {_ANSWER_S:g} s")
            except KafkaException as error:  # librdkafka knows by itself
                problems.append(error.args[0])
        left = self._producer.flush(_ANSWER_S)
        if left:
            raise ClaimTimeout(
                f"topic {topic!r}: {left} messages were not there within {_ANSWER_S:g} s"
            )
        if problems:
            raise InvalidArgument(f"topic {topic!r} did not take a message: {problems[0].str()}")

    def _has_taken(self, *message: Any, **more: Any) -> bool:
        """Whether the producer's queue had room."""
        try:
            self._producer.produce(*message, **more)
        except BufferError:
            return False
        return True

    def messages(self, topic: str) -> list[Message]:
        """Return all that is in a topic now, partition by partition: what a handler has sent.

        Raises `ClaimTimeout`.
        """
        self.create_topic(topic)
        consumer: Any = connect(
            KafkaConsumer,
            {**self._config, "group.id": "test", "enable.partition.eof": True},
        )
        try:
            parts = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
            consumer.assign([TopicPartition(topic, p, 0) for p in parts])
            found: dict[int, list[Message]] = {p: [] for p in parts}
            left, deadline = set(parts), time.monotonic() + _ANSWER_S
            while left and time.monotonic() < deadline:
                for message in consumer.consume(1_000, 0.01):
                    error = message.error()
                    if error is None:
                        found[message.partition()].append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition())
            if left:
                raise ClaimTimeout(f"topic {topic!r} was not read within {_ANSWER_S:g} s")
            return [message for p in sorted(found) for message in found[p]]
        finally:
            consumer.close()

    # Consumers

    def consumer(
        self, topics: str | Iterable[str], *, group_id: str = "test", **settings: Any
    ) -> Consumer:
        """Return a `Consumer` of these topics, with short intervals. `settings` as it takes them.

        Topics that do not exist are made.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            self.create_topic(name)
        return Consumer(self.config, topics=names, group_id=group_id, **{**_QUICK, **settings})

    def run(
        self,
        handler: Callable[..., Any],
        topics: str | Iterable[str] | Consumer,
        *,
        timeout_s: float = 10.0,
        **options: Any,
    ) -> RunStats:
        """Run a handler until all that is there for this consumer is done; return what was done.

        `topics`: or a `Consumer` of your own (of `consumer`, for other settings). `options` as
        `Consumer.run` takes them; raises what it raises. Raises `ClaimTimeout` when something is
        left after `timeout_s`.
        """
        consumer = topics if isinstance(topics, Consumer) else self.consumer(topics)
        consumer.start()
        over, late = threading.Event(), threading.Event()

        def watch() -> None:
            deadline = time.monotonic() + timeout_s
            while not over.wait(_LOOK_S):
                # Of brokers that do not answer, or a consumer that has failed, `run` tells.
                with contextlib.suppress(MarshalError):
                    if _is_done(consumer):
                        break
                if time.monotonic() > deadline:
                    late.set()
                    break
            consumer.stop(0.0 if late.is_set() else None)

        watcher = threading.Thread(target=watch, name="marshal-test-watch", daemon=True)
        watcher.start()
        try:
            stats = consumer.run(handler, **options)
        finally:
            over.set()
            watcher.join()
        if late.is_set():
            raise ClaimTimeout(
                f"not all messages were done within {timeout_s:g} s: {stats}. Does a handler wait, "
                "or a retry? `timeout_s` makes it longer"
            )
        return stats


def _is_done(consumer: Consumer) -> bool:
    """Whether nothing is left to do for this consumer, and others hold what it does not."""
    stats = consumer.stats()
    if stats.buffered or stats.running:
        return False
    held = list(core_of(consumer).fetcher.active.values())  # first: of all these the lag is told
    lag = consumer.lag(timeout_s=_ANSWER_S)
    if any(lag.values()) or consumer.closing:
        return consumer.closing
    # By keys, a partition's lag is that of its slots that are held here: each has to have a holder.
    slots = next((part.slot.slots for part in held if part.slot is not None), 0)
    here = {part.key for part in held} if slots else lag.keys()
    for topic, count in core_of(consumer).topics.counts.items():
        for p in range(count):
            units = [(slots_cell(topic, p, slots), n) for n in range(slots)] or [(topic, p)]
            if any(u not in here and not _held_elsewhere(consumer, *u) for u in units):
                return False
    stats = consumer.stats()
    return not (stats.buffered or stats.running)


def _held_elsewhere(consumer: Consumer, topic: str, partition: int) -> bool:
    cell = consumer.marshal.cell(topic, partition)
    return cell is not None and cell.holder not in (None, consumer.marshal.client_id)

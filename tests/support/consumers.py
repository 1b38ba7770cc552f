"""What the tests of consumers share: topics with numbered messages, consumers as processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, Producer, TopicPartition

from marshal_py.client.topics import create_topics
from marshal_py.consumer.consumer import Consumer
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.messages import number_of, offset_of, partition_of

INTERVAL_MS = 1_000
Make = Callable[..., Consumer]
_topics = itertools.count()


def new_coordination_topic(kafka: EmbeddedKafka, *, partitions: int = 1) -> str:
    """A coordination topic of its own for a test."""
    kafka.start()
    name = f"__marshal.consumers.{pid_suffix()}.{next(_topics)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=partitions)
    return name


@contextlib.contextmanager
def consumers(kafka: EmbeddedKafka, **defaults: Any) -> Iterator[Make]:
    """Have consumers of group g made by their client_ids, with these settings; close them all."""
    made: list[Consumer] = []

    def make(client_id: str, **settings: Any) -> Consumer:
        given = {"group_id": "g", "interval_ms": INTERVAL_MS, **defaults, **settings}
        made.append(Consumer(kafka.bootstrap_servers, client_id=client_id, **given))
        return made[-1]

    try:
        yield make
    finally:
        for consumer in made:
            consumer.close(timeout_s=2)


def fill(servers: str, topic: str, count: int, *, partitions: int, start: int = 0) -> None:
    """Produce `count` messages, number n to partition n % partitions, with the number as value."""
    # Idempotent: brokers are killed meanwhile; what comes twice must not be of our making.
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True})
    for n in range(start, start + count):
        while True:
            try:
                producer.produce(
                    topic, str(n).encode(), key=str(n % 7).encode(), partition=n % partitions
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def read_messages(kafka: EmbeddedKafka, topic: str, count: int) -> list[Message]:
    """Read the first messages of partition 0."""
    consumer = KafkaConsumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "fetch.wait.max.ms": 20}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found: list[Message] = []
        until(lambda: found.extend(consumer.consume(count, 0.2)) or len(found) >= count)  # type: ignore[func-returns-value]
        return found
    finally:
        consumer.close()


def until(condition: Callable[[], bool], timeout_s: float = 120, what: str = "") -> None:
    """Wait until something that no event tells of is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what or "it never became true"
        time.sleep(0.01)


class Loop:
    """A consumer that is iterated in a thread, and what it was given."""

    def __init__(self, consumer: Consumer, handle: Callable[[Any], None] | None = None) -> None:
        self.consumer = consumer
        self.got: list[tuple[int, int, int]] = []
        """(partition, offset, number)"""
        self.error: BaseException | None = None
        self._handle = handle
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self.consumer:
                self.got.append((partition_of(message), offset_of(message), number_of(message)))
                if self._handle is not None:
                    self._handle(message)
        except BaseException as error:
            self.error = error

    @property
    def numbers(self) -> list[int]:
        return [number for _, _, number in list(self.got)]

    @property
    def partitions(self) -> set[int]:
        return {claim.partition for claim in self.consumer.claims()}

    def close(self) -> None:
        self.consumer.close(timeout_s=5)
        self._thread.join(60)
        assert not self._thread.is_alive()


CHILD = """
import json, os, sys, time
from marshal_py.consumer.consumer import Consumer

settings = json.loads(sys.argv[1])
log = os.open(settings.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pause_s = settings.pop("pause_s")
with Consumer(settings.pop("servers"), **settings) as consumer:
    for message in consumer:
        line = [time.clock_gettime_ns(time.CLOCK_BOOTTIME), message.partition(), message.offset(),
                int(message.value()), consumer.claim_of(message).epoch]
        os.write(log, (json.dumps(line) + "\\n").encode())
        if pause_s:
            time.sleep(pause_s)
"""


@dataclass
class Process:
    """A consumer in a process of its own, which writes down each delivery before it goes on."""

    servers: str
    folder: Path
    name: str
    settings: dict[str, Any]
    pause_s: float = 0.0
    starts: int = 0
    child: str = CHILD
    _popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.starts += 1
        arguments = {
            "servers": self.servers,
            "client_id": self.name,
            "log": str(self.log(self.starts)),
            "pause_s": self.pause_s,
            **self.settings,
        }
        self._popen = subprocess.Popen([sys.executable, "-c", self.child, json.dumps(arguments)])

    def log(self, start: int) -> Path:
        return self.folder / f"{self.name}.{start}.jsonl"

    def signal(self, number: int) -> None:
        assert self._popen is not None
        self._popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._popen is not None
        self._popen.wait()

    def stop(self) -> int:
        """SIGTERM, as an init system does. Returns the exit code."""
        assert self._popen is not None
        self.signal(signal.SIGTERM)
        return self._popen.wait(60)

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._popen is None else self._popen.poll()

    def deliveries(self) -> list[tuple[int, int, int, int, int]]:
        """(time in ns, partition, offset, number, epoch) of everything that was delivered."""
        found = []
        for start in range(1, self.starts + 1):
            with contextlib.suppress(FileNotFoundError):
                for line in self.log(start).read_text().splitlines():
                    with contextlib.suppress(json.JSONDecodeError):  # cut short by SIGKILL
                        found.append(tuple(json.loads(line)))
        return found


@contextlib.contextmanager
def processes(*started: Process) -> Iterator[None]:
    """End the processes, whatever the test did to them."""
    try:
        yield
    finally:
        for process in started:
            if process.running:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(signal.SIGCONT)
                process.kill()


def delivered(*found: Process) -> Counter[int]:
    """How often each number was delivered."""
    return Counter(line[3] for process in found for line in process.deliveries())


def pid_suffix() -> str:
    return f"{os.getpid()}"

"""`Consumer.run` on a real broker: order, parallelism, failures, dead letters, stopping."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from prometheus_client import CollectorRegistry

from marshal_py import (
    Batch,
    Claim,
    ConfigurationError,
    Consumer,
    DeadLetterFailed,
    Failure,
    HandlerFailed,
    HandlerProcessDied,
    Retry,
    Stuck,
    TopicMissing,
)
from marshal_py.admin.connection import Connection
from marshal_py.admin.status import read_status
from marshal_py.client.topics import create_topics
from marshal_py.consumer.handlers.schedule import Item, Schedule
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.telemetry.consumer_metrics import ConsumerMetrics
from tests.support import handlers
from tests.support.consumers import INTERVAL_MS, fill, pid_suffix, read_messages, until
from tests.support.messages import number_of, offset_of, partition_of

pytestmark = pytest.mark.kafka

_names = itertools.count()
Make = Callable[..., Consumer]
FAST = Retry(attempts=3, backoff_ms=20, jitter=0)


@pytest.fixture(scope="module")
def coordination(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__marshal.run.{pid_suffix()}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=4)
    return name


@pytest.fixture
def make(kafka: EmbeddedKafka, coordination: str) -> Iterator[Make]:
    """Make consumers of a group of the test's own, which are closed after the test."""
    made: list[Consumer] = []
    group = f"g{next(_names)}"

    def make(client_id: str, topic: str | None = None, **settings: Any) -> Consumer:
        settings = {
            "group_id": group,
            "interval_ms": INTERVAL_MS,
            "topic": coordination,
            "settle_ms": 50,
            **({"topics": [topic]} if topic else {}),
            **settings,
        }
        made.append(Consumer(kafka.bootstrap_servers, client_id=client_id, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close(timeout_s=2)


class Running:
    """`consumer.run` in a thread."""

    def __init__(self, consumer: Consumer, handler: Callable[..., Any], **options: Any) -> None:
        self.consumer = consumer
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(handler, options), daemon=True)
        self._thread.start()

    def _run(self, handler: Callable[..., Any], options: dict[str, Any]) -> None:
        try:
            self.consumer.run(handler, **options)
        except BaseException as error:
            self.error = error

    def stop(self, drain_timeout_s: float | None = None) -> None:
        self.consumer.stop(drain_timeout_s)
        self.join()

    def join(self, timeout_s: float = 120) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "run does not return"

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()


class Handled:
    """A handler that writes down what it is given, and notices what should not happen."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.offsets: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
        self.numbers: list[int] = []
        self.most_at_a_time = 0
        self.overlaps: list[Any] = []
        self._now: set[tuple[int, bytes | None]] = set()
        self._lock = threading.Lock()
        self._work_s = work_s

    def __call__(self, message: Message) -> None:
        lane = (partition_of(message), message.key())
        with self._lock:
            if lane in self._now:
                self.overlaps.append(lane)
            self._now.add(lane)
            self.most_at_a_time = max(self.most_at_a_time, len(self._now))
        if self._work_s:
            time.sleep(self._work_s)
        with self._lock:
            self._now.discard(lane)
            self.offsets[lane].append(offset_of(message))
            self.numbers.append(number_of(message))

    def check_order(self) -> None:
        assert self.overlaps == []
        for lane, offsets in self.offsets.items():
            assert offsets == sorted(offsets), lane


def stored(make: Make, topic: str) -> int:
    """Return where another member of the group would begin in partition 0."""
    successor = make("successor", topic).start()
    until(lambda: any(c.partition == 0 for c in successor.claims()))
    position = next(c.position for c in successor.claims() if c.partition == 0)
    successor.close()
    return position


# Order and parallelism


def test_keys_run_side_by_side_and_each_in_order(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 700, partitions=1)  # seven keys
    handled = Handled(0.001)
    running = Running(make("a", topic), handled, workers=10)
    until(lambda: len(handled.numbers) == 700)
    running.stop()
    handled.check_order()
    assert 2 <= handled.most_at_a_time <= 7
    assert sorted(handled.numbers) == list(range(700))
    assert stored(make, topic) == 700
    stats = running.consumer.stats()
    assert (stats.handled, stats.buffered, stats.running) == (700, 0, 0)


def test_a_partition_in_order(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2)
    fill(kafka.bootstrap_servers, topic, 200, partitions=2)
    seen: dict[int, list[int]] = defaultdict(list)
    consumer = make("a", topic)

    def handler(message: Message) -> None:
        seen[partition_of(message)].append(offset_of(message))
        if sum(map(len, seen.values())) == 200:
            consumer.stop()

    assert consumer.run(handler, workers=8, ordering="partition").handled == 200
    assert seen == {0: list(range(100)), 1: list(range(100))}


def test_asyncio_handlers(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 70, partitions=1)
    at_work, most, seen = 0, 0, defaultdict(list)
    consumer = make("a", topic)

    async def handler(message: Message, claim: Claim) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.002)
        at_work -= 1
        assert claim.held
        assert claim.epoch >= 0
        seen[message.key()].append(number_of(message))
        if sum(map(len, seen.values())) == 70:
            consumer.stop()

    assert consumer.run(handler, workers=5).handled == 70
    assert most == 5
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_processes_are_given_the_message_and_the_epoch(
    kafka: EmbeddedKafka,
    make: Make,
    kafka_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message that takes its process down is told apart from those that are beside it."""
    topic = kafka_topic(partitions=1)
    kafka_topic(name=f"{topic}.dlq", partitions=1)
    log = tmp_path / "log"
    monkeypatch.setenv(handlers.LOG, str(log))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(12):
        producer.produce(topic, str(n), key=f"k{n}", headers=[("n", str(n))])
    producer.flush(60)
    consumer = make("a", topic)
    running = Running(
        consumer,
        handlers.die_of_poison,
        workers=2,
        executor="process",
        retry=Retry(attempts=2, backoff_ms=1),
        on_failure="dead_letter",
    )
    until(lambda: consumer.stats().handled + consumer.stats().dead_lettered == 12)
    epoch = consumer.claims()[0].epoch
    running.stop()
    assert running.error is None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    survived = [line for line in lines if line["value"] != "3"]
    assert sorted(int(line["value"]) for line in survived) == [
        n for n in range(12) if n not in (3, 5)
    ]
    for line in lines:
        assert line["key"] == "k" + line["value"]
        assert line["headers"] == [["n", line["value"]]]
        assert (line["topic"], line["partition"]) == (topic, 0)
        assert line["timestamp"]
        assert line["error"] is None
        assert (line["epoch"], line["held"]) == (epoch, True)
    died = {line["pid"] for line in lines if line["value"] == "3"}
    assert len(died) == 2, "a process for each attempt"
    assert len({line["pid"] for line in lines}) <= 4, "two, and one in place of each that died"
    dead: dict[Any, dict[str, Any]]
    dead = {m.value(): dict(m.headers() or ()) for m in read_messages(kafka, f"{topic}.dlq", 2)}
    assert dead[b"3"]["dlq-error-class"].endswith(b"HandlerProcessDied")
    assert b"exit code 9" in dead[b"3"]["dlq-error-message"]
    assert b"five" in dead[b"5"]["dlq-error-message"]
    assert consumer.stats().failures == 4


def test_a_process_that_is_sent_sigterm_finishes_what_it_has(
    kafka: EmbeddedKafka,
    make: Make,
    kafka_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As systemd does when it stops a service: all of its processes are sent one."""
    topic = kafka_topic(partitions=1)
    log = tmp_path / "log"
    monkeypatch.setenv(handlers.LOG, str(log))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(3):
        producer.produce(topic, str(n), key="k", headers=[("n", str(n))])
    producer.flush(60)
    consumer = make("a", topic)
    running = Running(consumer, handlers.write_down_slowly, workers=1, executor="process")
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    os.kill(json.loads(log.read_text().splitlines()[0])["pid"], signal.SIGTERM)
    until(lambda: consumer.stats().handled == 3)
    running.stop()
    assert running.error is None
    assert consumer.stats().failures == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["value"] for line in lines] == ["0", "0", "1", "1", "2", "2"]
    assert len({line["pid"] for line in lines[:2]}) == 1
    assert lines[2]["pid"] != lines[0]["pid"], "another has taken its place"


def test_processes_that_cannot_start_end_run(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    with pytest.raises(HandlerProcessDied, match="could not be started"):
        make("a", kafka_topic(partitions=1)).run(
            handlers.CannotStart(), workers=1, executor="process"
        )


def test_batches(kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]) -> None:
    """A batch with a poison message: the others are handled all the same, in order."""
    topic = kafka_topic(partitions=2)
    fill(kafka.bootstrap_servers, topic, 400, partitions=2)
    sizes, seen = [], defaultdict(list)
    consumer = make("a", topic)
    lock = threading.Lock()

    def handler(batch: Batch) -> None:
        assert batch.claim.held
        if any(m.value() == b"123" for m in batch):
            raise ValueError("poison")
        with lock:
            sizes.append(len(batch))
            for m in batch:
                assert m.partition() == batch.partition
                seen[m.partition(), m.key()].append(int(m.value()))

    options: dict[str, Any] = {"batch_size": 50, "on_failure": "skip", "retry": FAST}
    running = Running(consumer, handler, workers=3, **options)
    until(lambda: sum(map(len, seen.values())) == 399 and consumer.stats().skipped == 1)
    running.stop()
    assert max(sizes) > 1
    assert max(sizes) <= 50
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert stored(make, topic) == 200


# Failures


def test_retries_keep_the_order_of_the_key_and_hold_up_nobody_else(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 70, partitions=1)
    tried: list[int] = []
    lock = threading.Lock()
    consumer = make("a", topic)
    others_done = threading.Event()

    def handler(message: Message) -> None:
        number = number_of(message)
        with lock:
            tried.append(number)
            if len({n for n in tried if n % 7 != 3}) == 60:
                others_done.set()
        if number == 3 and not others_done.is_set():
            raise ConnectionError("not yet")

    running = Running(
        consumer, handler, workers=4, retry=Retry(attempts=None, backoff_ms=5, max_backoff_ms=20)
    )
    until(lambda: consumer.stats().handled == 70)
    running.stop()
    assert running.error is None
    of_the_key = [n for n in tried if n % 7 == 3]
    first = of_the_key.index(10)
    assert set(of_the_key[:first]) == {3}
    assert first > 1, "it was tried again"
    assert of_the_key[first:] == list(range(10, 70, 7))
    assert consumer.stats().retries == first - 1
    assert stored(make, topic) == 70


def test_a_dead_letter_is_the_message_and_why(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    dead = kafka_topic(name=f"{topic}.dlq", partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    headers: list[tuple[str, str | bytes | None]]
    headers = [("trace", b"\x00\xff"), ("trace", b"2"), ("empty", None), ("dlq-attempts", b"99")]
    producer.produce(topic, b"\xff\x00", b"\x01", 0, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(topic, None, None, 0)
    producer.produce(topic, b"fine", b"\x01", 0)
    producer.flush(60)
    consumer = make("a", topic)
    fine: list[int] = []

    def handler(message: Message) -> None:
        if message.value() != b"fine":
            raise ValueError("cannot read " + "ä" * 5_000)
        fine.append(offset_of(message))

    running = Running(consumer, handler, retry=FAST, on_failure="dead_letter")
    until(lambda: fine == [2] and consumer.stats().dead_lettered == 2)
    note = consumer.troubles()[topic, 0]
    assert (note.dead_lettered, note.error) == (2, "ValueError")
    epoch = consumer.claims()[0].epoch
    running.stop()
    found = {m.value(): m for m in read_messages(kafka, dead, 2)}
    first = found[b"\xff\x00"]
    assert first.key() == b"\x01"
    kept: Any = first.headers() or []
    assert kept[:3] == headers[:3], "its own headers, in order"
    why = dict(kept[3:])
    assert len(kept) == 3 + len(why), "each once"
    assert why["dlq-error-class"] == b"builtins.ValueError"
    assert why["dlq-error-message"].decode() == ("cannot read " + "ä" * 5_000)[:1_000]
    assert why["dlq-topic"] == topic.encode()
    assert (why["dlq-partition"], why["dlq-offset"]) == (b"0", b"0")
    assert why["dlq-timestamp"] == b"1700000000123"
    assert why["dlq-attempts"] == b"3"
    assert why["dlq-group-id"] == consumer.marshal.group_id.encode()
    assert why["dlq-client-id"] == b"a"
    assert why["dlq-epoch"] == str(epoch).encode()
    assert abs(int(why["dlq-failed-at"]) - time.time() * 1000) < 60_000
    assert found[None].key() is None
    assert stored(make, topic) == 3


def test_failing_for_good_stops_run_and_what_failed_is_not_done(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 50, partitions=1)

    def handler(message: Message) -> None:
        if message.value() == b"20":
            raise KeyError("customer")

    with pytest.raises(HandlerFailed, match=r"offset 20 \(attempts: 3\): KeyError") as raised:
        make("a", topic).run(handler, workers=4, retry=FAST)
    assert isinstance(raised.value.__cause__, KeyError)
    assert stored(make, topic) == 20


def test_some_errors_are_not_worth_another_attempt_and_a_function_decides(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    dead = kafka_topic(name=f"{topic}.failed", partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    failures: list[Failure] = []
    consumer = make("a", topic)

    def handler(message: Message) -> None:
        number = number_of(message)
        if number == 4:
            raise ValueError("four")
        if number in (5, 6):
            raise OSError(str(number))

    def decide(failure: Failure) -> Any:
        assert failure.claim.held
        failures.append(failure)
        if failure.message.value() == b"6" and failure.attempts < 5:
            return "retry"
        return "dead_letter" if isinstance(failure.error, ValueError) else None

    running = Running(
        consumer,
        handler,
        retry=FAST,
        not_retriable=ValueError,
        on_failure=decide,
        dead_letter_topic="{topic}.failed",
    )
    until(lambda: consumer.stats().handled == 7 and consumer.stats().skipped == 2)
    running.stop()
    assert running.error is None
    attempts = {f.message.value(): f.attempts for f in failures}
    assert attempts == {b"4": 1, b"5": 3, b"6": 5}
    assert read_messages(kafka, dead, 1)[0].value() == b"4"
    assert stored(make, topic) == 10


def test_a_deserializer_that_fails_makes_a_dead_letter_of_the_bytes_as_they_came(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    dead = kafka_topic(name=f"{topic}.dlq", partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b'{"n": 1}', b"k")
    producer.produce(topic, b"{", b"k")
    producer.flush(60)
    seen: list[Any] = []
    attempts: list[int] = []

    def handler(message: Message) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("again")  # the value must not be deserialized twice
        seen.append(message.value())

    consumer = make("a", topic, value_deserializer=lambda data, _: json.loads(data))
    running = Running(consumer, handler, retry=FAST, on_failure="dead_letter")
    until(lambda: consumer.stats().dead_lettered == 1)
    running.stop()
    assert seen == [{"n": 1}]
    letter = read_messages(kafka, dead, 1)[0]
    assert (letter.value(), letter.key()) == (b"{", b"k")
    assert dict(letter.headers() or ())["dlq-error-class"] == b"json.decoder.JSONDecodeError"


def test_a_missing_dead_letter_topic_is_told_at_the_start_or_stops(
    make: Make, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    with pytest.raises(TopicMissing, match=f"'{topic}.dlq', does not exist"):
        make("a", topic).run(print, on_failure="dead_letter")
    kafka_topic(name=f"{topic}.dlq", partitions=1)
    with pytest.raises(ConfigurationError, match="would come again for ever"):
        make("b", pattern=f"{topic}.*").run(print, on_failure="dead_letter")
    # Too large with its headers: nothing but a person can mend that.
    small = kafka_topic(name=f"{topic}.small", partitions=1, config={"max.message.bytes": "200"})
    fill(kafka.bootstrap_servers, topic, 1, partitions=1)
    with pytest.raises(DeadLetterFailed, match=small):
        make("c", topic).run(
            lambda _: 1 / 0, retry=FAST, on_failure="dead_letter", dead_letter_topic=small
        )
    assert stored(make, topic) <= 0


# Stopping, losing, waiting


def test_stopped_under_load_nothing_comes_twice(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=3)
    fill(kafka.bootstrap_servers, topic, 3_000, partitions=3)
    first, second = Handled(0.001), Handled()
    running = Running(make("a", topic), first, workers=8)
    until(lambda: len(first.numbers) > 300)
    running.stop()
    assert running.error is None
    assert len(first.numbers) < 3_000
    assert running.consumer.stats().handed_back > 0
    successor = Running(make("b", topic), second, workers=8)
    until(lambda: len(first.numbers) + len(second.numbers) >= 3_000)
    successor.stop()
    first.check_order()
    second.check_order()
    assert sorted(first.numbers + second.numbers) == list(range(3_000))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_in_the_middle_of_the_books_is_a_request_to_stop(
    kafka: EmbeddedKafka,
    make: Make,
    kafka_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    number: int,
    error: type[BaseException],
) -> None:
    topic = kafka_topic(partitions=2)
    fill(kafka.bootstrap_servers, topic, 2_000, partitions=2)
    before = signal.getsignal(number)
    add, calls = Schedule.add, itertools.count(1)

    def add_and_signal(self: Schedule, item: Item, key: Hashable) -> bool:
        if next(calls) == 150:  # taken from what was fetched, and queued in part
            signal.raise_signal(number)
        return add(self, item, key)

    first, second = Handled(0.001), Handled()
    consumer = make("a", topic, mode=mode)
    monkeypatch.setattr(Schedule, "add", add_and_signal)
    with pytest.raises(error):
        consumer.run(first, workers=8)
    assert signal.getsignal(number) == before
    assert consumer.closing
    assert consumer.dropped == 0
    successor = Running(make("b", topic, mode=mode), second, workers=8)
    until(lambda: len(first.numbers) + len(second.numbers) >= 2_000)
    successor.stop()
    assert sorted(first.numbers + second.numbers) == list(range(2_000))


def test_a_second_signal_is_let_through_at_once(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 1, partitions=1)
    ended = threading.Event()

    def handle(_: Message) -> None:
        pid = os.getpid()
        os.kill(pid, signal.SIGINT)
        until(lambda: consumer._stop_asked is not None)
        os.kill(pid, signal.SIGINT)
        ended.wait(60)

    consumer = make("a", topic)
    with pytest.raises(KeyboardInterrupt):
        consumer.run(handle, drain_timeout_s=60)
    assert consumer.stats().handled == 0, "it was not waited for"
    ended.set()


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_partitions_move_to_a_new_member_and_nothing_comes_twice(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str], mode: str
) -> None:
    topic = kafka_topic(partitions=4)
    fill(kafka.bootstrap_servers, topic, 4_000, partitions=4)
    first, second = Handled(0.002), Handled(0.002)
    one = Running(make("a", topic, mode=mode), first, workers=6)
    until(lambda: len(first.numbers) > 200)
    two = Running(make("b", topic, mode=mode), second, workers=6)
    until(lambda: len(two.consumer.claims()) == 2)
    fill(kafka.bootstrap_servers, topic, 1_000, partitions=4, start=4_000)  # for both
    until(lambda: len(first.numbers) + len(second.numbers) >= 5_000)
    for running in (one, two):
        running.stop()
        assert running.error is None
        assert running.consumer.dropped == 0
    first.check_order()
    second.check_order()
    assert sorted(first.numbers + second.numbers) == list(range(5_000))
    assert len(second.numbers) >= 500


def test_a_stop_that_comes_too_early_is_not_forgotten(
    make: Make, kafka_topic: Callable[..., str]
) -> None:
    consumer = make("a", kafka_topic(partitions=1))
    consumer.stop()
    assert consumer.run(print).handled == 0


def test_close_from_another_thread_ends_run(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 500, partitions=1)
    handled = Handled(0.005)
    running = Running(make("a", topic), handled)
    until(lambda: len(handled.numbers) > 20)
    running.consumer.close()
    running.join()
    assert running.error is None
    assert stored(make, topic) == len(handled.numbers)


def test_a_lost_claim_drops_what_waits_and_ignores_what_runs(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 70, partitions=1)
    inside, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(offset_of(message))
        if len(seen) == 3:
            inside.set()
        assert go_on.wait(200)

    consumer = make("a", topic)
    running = Running(consumer, handler, workers=3)
    assert inside.wait(60)
    other, other_got = make("b", topic), Handled()
    with consumer.marshal._driver.lock:  # as if the process were suspended: no heartbeat
        taking_over = Running(other, other_got)
        until(lambda: len(other_got.numbers) == 70)
    until(lambda: not consumer._core.partitions.by_key, what="it does not notice")
    go_on.set()
    until(lambda: consumer.stats().running == 0)
    assert len(seen) == 3, "nothing more was started"
    until(lambda: consumer.stats().handed_back == 67)
    taking_over.stop()
    assert sorted(other_got.numbers) == list(range(70))
    running.stop()
    assert running.error is None


def test_slow_handlers_lose_no_claim_and_stuck_ones_are_reported(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 14, partitions=1)
    go_on = threading.Event()
    reports: list[Stuck] = []
    done: list[int] = []

    def a_slow_one(message: Message) -> None:
        if message.value() == b"0":
            assert go_on.wait(200)
        done.append(number_of(message))

    consumer = make("a", topic)
    running = Running(consumer, a_slow_one, workers=2, stuck_after_s=0.2, on_stuck=reports.append)
    until(lambda: len(done) == 12)  # 7 has the same key as 0
    epoch = consumer.claims()[0].epoch
    lease_s = 2 * INTERVAL_MS / 1000
    until(
        lambda: bool(reports) and reports[-1].running_s > lease_s, what="reported again and again"
    )
    assert consumer.stats().stuck == 1
    assert consumer.troubles()[topic, 0].stuck == 1
    assert consumer.troubles()[topic, 0].offset == 0
    assert reports[0].messages[0].offset() == 0
    assert "a_slow_one" in reports[0].stack
    assert "marshal-worker-" in str(reports[0])
    assert len(reports) >= 3, "each time for twice as long"
    assert [c.epoch for c in consumer.claims()] == [epoch]
    go_on.set()
    until(lambda: len(done) == 14)
    assert done[-2:] == [0, 7]
    until(lambda: consumer.stats().stuck == 0)
    running.stop()


@pytest.mark.parametrize("executor", ["thread", "process", "asyncio"])
def test_a_handler_that_does_not_return_is_handed_back(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str], executor: str
) -> None:
    topic = kafka_topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n, work_s in enumerate([0.0, 25.0, 0.0]):
        producer.produce(topic, str(work_s), key=str(n))
    producer.flush(60)

    async def sleep(message: Message) -> None:
        await asyncio.sleep(float(message.value()))  # type: ignore[arg-type]

    handler = sleep if executor == "asyncio" else handlers.sleep
    consumer = make("a", topic)
    running = Running(consumer, handler, workers=2, executor=executor)
    until(lambda: consumer.stats().handled == 2)
    running.stop(drain_timeout_s=0.2)
    assert running.error is None
    assert stored(make, topic) == 1


def test_a_hot_key_neither_fills_memory_nor_stops_other_partitions(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for _ in range(3_000):
        producer.produce(topic, bytes(1_000), key="hot", partition=0)
    producer.flush(60)
    go_on = threading.Event()
    done: list[int] = []
    most = [0]
    consumer = make("a", topic)

    def handler(message: Message) -> None:
        most[0] = max(most[0], consumer.stats().buffered_bytes)
        if message.partition() == 0:
            go_on.wait(60)
        done.append(partition_of(message))

    running = Running(consumer, handler, workers=4, max_buffered_bytes=400_000)
    until(lambda: consumer.stats().buffered > 100)
    for _ in range(3_000):
        producer.produce(topic, bytes(1_000), partition=1)
    producer.flush(60)
    until(lambda: len(done) == 3_000, what="the other partition stands still")
    assert set(done) == {1}
    go_on.set()
    until(lambda: len(done) == 6_000)
    running.stop()
    assert most[0] <= 400_000 + 1_300_000, "the bound, and what one fetch brings"
    assert running.error is None


def test_how_far_it_runs_ahead_of_a_message_that_fails_is_bounded(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 20_000, partitions=1)
    healthy = threading.Event()
    consumer = make("a", topic)

    def handler(message: Message) -> None:
        if message.offset() == 5 and not healthy.is_set():
            raise OSError("for as long as the test wants")

    retry = Retry(attempts=None, backoff_ms=20, max_backoff_ms=20)
    running = Running(consumer, handler, retry=retry, max_ahead=2_000, max_buffered=50_000)
    part = None
    until(lambda: consumer.stats().handled > 1_000)
    part = next(iter(consumer._core.partitions.by_key.values()))
    until(lambda: part.throttled)
    assert part.position() == 5
    before = consumer.stats().retries
    until(lambda: consumer.stats().retries > before + 5)
    assert consumer.stats().handled <= 2_000 + 1_000
    healthy.set()
    until(lambda: consumer.stats().handled == 20_000)
    running.stop()


def test_a_lapsed_lease_starts_nothing_until_it_is_regained(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 1_000, partitions=1)
    wrong: list[int] = []
    done: list[int] = []
    consumer = make("a", topic)

    def handler(message: Message, *, claim: Claim) -> None:
        if not claim.held:
            wrong.append(offset_of(message))
        time.sleep(0.02)  # for much longer than the lease, in all
        done.append(offset_of(message))

    running = Running(consumer, handler, workers=4)
    until(lambda: len(done) > 50)
    with consumer.marshal._driver.lock:  # no heartbeat, and nobody else is there to take over
        until(lambda: not any(p.claim.held for p in consumer._core.partitions.by_key.values()))
        seen = len(done)
        assert seen < 1_000, "something is left to start"
        time.sleep(0.3)
        assert len(done) <= seen + 4
    until(lambda: len(done) == 1_000)
    running.stop()
    assert len(wrong) <= 4, "started in the very moment that the lease ended"
    assert sorted(done) == list(range(1_000))


def test_status_and_metrics_show_where_messages_fail(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str], coordination: str
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 20, partitions=1)
    healthy = threading.Event()

    def handler(message: Message) -> None:
        if message.value() == b"2":
            raise ValueError("for good")
        if message.value() == b"4" and not healthy.is_set():
            raise OSError("for now")

    def on_failure(failure: Failure) -> Any:
        return "skip" if isinstance(failure.error, ValueError) else "retry"

    consumer = make("a", topic)
    registry = CollectorRegistry()
    running = Running(consumer, handler, retry=FAST, on_failure=on_failure)
    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers}, coordination)

    def told() -> list[Any]:
        group = consumer.marshal.group_id
        return [f for f in read_status(connection).failing if f.group == group]

    def value(name: str, **labels: str) -> float | None:
        who = {"group_id": consumer.marshal.group_id, "client_id": "a"}
        return registry.get_sample_value(f"marshal_consumer_{name}", {**who, **labels})

    with ConsumerMetrics(consumer, registry):
        until(lambda: any(f.retrying and f.skipped for f in told()))
        (failing,) = told()
        assert (failing.topic, failing.partition, failing.holder) == (topic, 0, "a")
        assert (failing.skipped, failing.dead_lettered, failing.stuck) == (1, 0, 0)
        assert (failing.offset, failing.error) == (4, "OSError")
        attention = " ".join(read_status(connection).attention)
        assert f"{topic}/0 at offset 4 fails again and again (OSError)" in attention
        assert value("skipped_total") == 1
        assert value("failing_offset", topic=topic, partition="0") == 4
        healthy.set()
        until(lambda: [(f.retrying, f.offset) for f in told()] == [(0, 2)])
        assert value("handled_total") == 19
        assert value("retrying") == 0
    running.stop()
    assert told() == [], "it goes with the claim"


# At most once, and wrong settings


def test_at_most_once_nothing_is_tried_again(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    dead = kafka_topic(name=f"{topic}.dlq", partitions=1)
    fill(kafka.bootstrap_servers, topic, 100, partitions=1)
    tried: list[int] = []
    consumer = make("a", topic, mode="at_most_once")

    def handler(message: Message) -> None:
        tried.append(number_of(message))
        if len(tried) == 10:
            raise ValueError("no")

    running = Running(consumer, handler, workers=4, on_failure="dead_letter")
    until(lambda: consumer.stats().handled == 99)
    running.stop()
    assert sorted(tried) == list(range(100))
    assert read_messages(kafka, dead, 1)[0].value() == str(tried[9]).encode()
    with pytest.raises(ConfigurationError, match="at_most_once"):
        make("b", topic, mode="at_most_once").run(handler, retry=FAST)


async def _coroutine(message: Message) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "text"),
    [
        ("print", {}, "handler = 'print' must be a function"),
        (print, {"workers": 0}, "workers = 0"),
        (print, {"ordering": "keys"}, "ordering = 'keys' must be one of: key, partition, none"),
        (print, {"executor": "threads"}, "executor = 'threads' must be one of"),
        (print, {"executor": "asyncio"}, "must be `async def`"),
        (_coroutine, {"executor": "thread"}, "runs in executor='asyncio'"),
        (lambda _: 1, {"executor": "process"}, "cannot be sent to another process"),
        (print, {"on_failure": "ignore"}, "on_failure = 'ignore'"),
        (print, {"not_retriable": ("ValueError",)}, "not_retriable: 'ValueError' is no type"),
        (print, {"max_buffered_bytes": 5}, "max_buffered_bytes = 5"),
        (print, {"stuck_after_s": 0}, "stuck_after_s = 0"),
        (print, {"drain_timeout_s": -1}, "drain_timeout_s = -1"),
        (print, {"batch_size": 0}, "batch_size = 0"),
    ],
)
def test_wrong_options_are_told_before_anything_is_connected(
    handler: Any, options: dict[str, Any], text: str
) -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics="t", close_on_sigterm=False)
    with pytest.raises(ConfigurationError, match=text):
        consumer.run(handler, **options)

"""One history: a topic, what becomes of it, a group that consumes it, and what that must keep to.

What there is to be delivered is read from Kafka itself, at the end, by a plain consumer. What was
delivered is written down by the program that got it. A crash is a client that is abandoned: nothing
more is written, and nothing that it hands out is written down. A truncation is a stored position
beyond the end, as an unclean election leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from marshal_py import Consumer, Marshal
from marshal_py.client.topics import create_topics
from marshal_py.consumer.aio import AsyncConsumer
from marshal_py.consumer.topics import describe
from marshal_py.errors import MarshalError
from marshal_py.protocol.claim_metadata import ClaimMetadata

__all__ = [
    "BROKER",
    "INTERVAL_MS",
    "KINDS",
    "MODES",
    "STYLES",
    "Outcome",
    "case_of",
    "quiet",
    "run",
]

BROKER: Final = {"log.cleaner.backoff.ms": 100}
"""What the broker must have: a cleaner that compacts soon."""

INTERVAL_MS: Final = 400
KINDS: Final = ("anew", "trimmed", "truncated", "grown", "transactional", "compacted")
STYLES: Final = ("for", "batches", "run", "async")
MODES: Final = ("at_least_once", "at_most_once")
WORKERS: Final = 4
PATIENCE_S: Final = 30.0
"""What has not come after so long is lost."""

SLACK_S: Final = 0.6
"""A heartbeat may be late by so much: other histories run beside this one."""

GONE: Final = 10_000
"""How far beyond its end the position of a truncated partition lies."""


@dataclass
class Outcome:
    """What a history was: `problems` is empty for a good one."""

    seed: int
    kind: str
    mode: str
    style: str
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def case_of(seed: int) -> tuple[str, str, str]:
    """Return kind, mode and style: consecutive seeds go through all of them."""
    kind = KINDS[seed % len(KINDS)]
    rest = seed // len(KINDS)
    return kind, MODES[rest % len(MODES)], STYLES[rest // len(MODES) % len(STYLES)]


def quiet() -> None:
    """What becomes of topics is told as an error: here that is what is wanted."""
    logging.getLogger("marshal_py").setLevel(logging.CRITICAL)


def run(servers: str, seed: int) -> Outcome:
    """Run the history of a seed on a broker with `BROKER`."""
    history = History(servers, seed)
    began = time.monotonic()
    try:
        history.run()
    except Exception as error:
        history.outcome.problems.append(f"it ended with {error!r}")
    finally:
        history.end()
    history.outcome.seconds = round(time.monotonic() - began, 1)
    return history.outcome


class Session:
    """A member of the group from its start to its end, and what its program was given."""

    def __init__(self, history: History, client_id: str) -> None:
        self.history = history
        self.style = history.outcome.style
        self.batch_size = history.random.choice((300, 7))
        settings: dict[str, Any] = {
            "group_id": history.name,
            "client_id": client_id,
            "topics": history.name,
            "topic": history.coordination,
            "mode": history.outcome.mode,
            "interval_ms": INTERVAL_MS,
            "discovery_interval_s": 0.5,
            "batch_size": self.batch_size,
            "close_on_sigterm": False,
        }
        self.asynchronous = AsyncConsumer(history.servers, **settings)
        self.consumer: Consumer = self.asynchronous.sync
        self.got: list[tuple[str, float]] = []
        """(value, when)"""
        self.ended_s = 0.0
        self.crashed = self.over = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        work: dict[str, Callable[[], None]] = {
            "for": self._messages,
            "batches": self._batches,
            "run": self._run,
            "async": lambda: asyncio.run(self._async()),
        }
        self._thread = threading.Thread(target=self._guard, args=(work[self.style],), daemon=True)
        self._thread.start()

    # The program

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error

    def _take(self, message: Any) -> bool:
        """Work on a message and write it down; False once this process is dead."""
        time.sleep(self.history.work_s)
        return self._taken(message)

    def _taken(self, message: Any) -> bool:
        with self._lock:
            if not self.over:
                self.got.append((message.value().decode(), time.monotonic()))
            return not self.over

    def _messages(self) -> None:
        for message in self.consumer:
            if not self._take(message):
                return

    def _batches(self) -> None:
        for batch in self.consumer.batches():
            for message in batch:
                self._take(message)
            if self.over:
                return

    def _run(self) -> None:
        self.consumer.run(self._take, workers=WORKERS)

    async def _async(self) -> None:
        async for message in self.asynchronous:
            await asyncio.sleep(self.history.work_s)
            if not self._taken(message):
                break
        await self.asynchronous.close(5.0)

    # Its life

    def wait_for(self, count: int) -> None:
        """Wait until it was given so many, or nothing came for a while."""
        seen, since_s = -1, time.monotonic()
        while len(self.got) < count and self.error is None:
            if len(self.got) != seen:
                seen, since_s = len(self.got), time.monotonic()
            if time.monotonic() - since_s > (1.0 if seen > 0 else 3.0):
                return
            time.sleep(0.005)

    def end(self, how: str) -> None:
        """Close it, or have it crash."""
        if how == "crash":
            with self._lock:
                self.over = self.crashed = True
            self.ended_s = time.monotonic()
            self.consumer.marshal._driver.abandon()
            self.consumer.stop(0.0)
            self.consumer.close(0.1)
        elif self.style == "run":
            self.consumer.stop()
        else:
            self.consumer.close()
        self._thread.join(30)
        self.ended_s = self.ended_s or time.monotonic()
        if self._thread.is_alive():
            self.history.outcome.problems.append(f"a session does not end ({how})")
        if self.error is not None and not self.crashed:
            self.history.outcome.problems.append(f"a session ended with {self.error!r}")

    @property
    def in_flight(self) -> int:
        """How many messages may be in its hands, as far as the library is concerned."""
        return {"run": WORKERS, "batches": self.batch_size}.get(self.style, 1)

    @property
    def bound(self) -> int:
        """At most once: so many messages may be lost with it."""
        workers = WORKERS if self.style == "run" else 1
        in_hand = self.batch_size if self.style == "batches" else workers
        return in_hand + int(0.1 * workers / self.history.work_s) + 1


class History:
    """One history."""

    def __init__(self, servers: str, seed: int) -> None:
        self.servers = servers
        self.random = random.Random(f"topics {seed}")
        self.outcome = Outcome(seed, *case_of(seed))
        self.work_s = self.random.choice((0.000_5, 0.002, 0.01))
        self.name = f"topics.{seed}.{self.random.getrandbits(32):x}"
        self.coordination = f"__marshal.{self.name}"
        self.admin = AdminClient({"bootstrap.servers": servers})
        transactions: dict[str, Any] = {
            "transactional.id": self.name,
            "transaction.timeout.ms": 60_000,
        }
        self.transactional = self.outcome.kind == "transactional"
        self.settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "linger.ms": 2,
            "enable.idempotence": True,
        }
        self.settings |= transactions if self.transactional else {}
        self.producer = Producer(self.settings)
        self.partitions = self.random.choice((1, 2, 3))
        self.incarnation = 0
        self.written = 0
        self.sessions: list[Session] = []
        self.session: Session | None = None
        self.may_repeat: set[int] = set()
        """Incarnations that began while somebody consumed."""

    def run(self) -> None:
        """From an empty topic to one of which nothing is left to do; then judge."""
        create_topics(self.servers, topic=self.coordination, partitions=1)
        self.create()
        if self.transactional:
            self.producer.init_transactions(30)
        rounds = self.random.choice((2, 2, 3))
        for number in range(rounds):
            count = self.random.choice((5, 40, 150))
            self.write(count)
            session = self.start()
            session.wait_for(len(session.got) + int(count * self.random.random()))
            is_last = number == rounds - 1
            if not is_last or self.random.random() < 0.5:
                self.stop_or_go_on()
            self.event()
            if self.random.random() < 0.4:
                self.write(self.random.choice((1, 20)))
        self.finish()

    # What happens to the topic

    def create(self) -> None:
        """Create the topic, when the broker has forgotten the one before."""
        config = {}
        if self.outcome.kind == "compacted":
            config = {
                "cleanup.policy": "compact",
                "segment.ms": "50",
                "min.cleanable.dirty.ratio": "0.001",
                "delete.retention.ms": "0",
            }
        deadline = time.monotonic() + PATIENCE_S
        while True:
            new = NewTopic(self.name, self.partitions, 1, config=config)
            try:
                self.admin.create_topics([new])[self.name].result(10)
            except KafkaException as error:
                is_there = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
                if not is_there or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                break
        while len(self.metadata()) != self.partitions:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def metadata(self) -> Any:
        found = self.admin.list_topics(self.name, timeout=10).topics[self.name]
        return [] if found.error else [p for p in found.partitions.values() if p.leader >= 0]

    def write(self, count: int) -> None:
        """Write messages, each to a partition by its number."""
        self.outcome.counts["written"] += count
        aborted = self.random.random() < 0.7
        if self.transactional:
            self.producer.begin_transaction()
            self._write(count)
            self.producer.commit_transaction(30)
            if aborted:
                self.producer.begin_transaction()
                self._write(self.random.choice((1, 30)))
                self.producer.flush(30)
                self.producer.abort_transaction(30)
        else:
            self._write(count)
        assert self.producer.flush(30) == 0

    def _write(self, count: int) -> None:
        failures: list[str] = []

        def delivered(error: Any, _: object) -> None:
            if error is not None:
                failures.append(error.str())

        for _ in range(count):
            n = self.written = self.written + 1
            self.producer.produce(
                self.name,
                f"{self.incarnation}.{n}",
                key=str(n % 5),
                partition=n % self.partitions,
                on_delivery=delivered,
            )
        self.producer.flush(30)
        if failures and not self.transactional:
            raise AssertionError(f"{len(failures)} messages could not be written: {failures[0]}")

    def event(self) -> None:
        """What the kind of history is about happens, perhaps while somebody consumes."""
        running = self.session is not None
        self.outcome.counts["events"] += 1
        self.outcome.counts["events while it is consumed"] += running
        match self.outcome.kind:
            case "anew":
                self._anew()
            case "trimmed":
                ends = self.ends()
                where = [
                    TopicPartition(self.name, p, self.random.randint(0, end))
                    for p, end in ends.items()
                    if end
                ]
                for future in self.admin.delete_records(where).values() if where else ():
                    future.result(10)
            case "truncated":
                self._truncate()
            case "grown":
                self.partitions += 1
                new = [NewPartitions(self.name, self.partitions)]
                self.admin.create_partitions(new)[self.name].result(10)
                self._wait_for_leaders()
                self.producer = Producer(self.settings)  # the old one does not know yet
                self.write(self.random.choice((5, 40)))
            case "transactional":
                self.write(self.random.choice((1, 40)))
            case _:
                self._compact()

    def _wait_for_leaders(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.metadata()) != self.partitions:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _anew(self) -> None:
        if self.session is not None:
            self.may_repeat.add(self.incarnation + 1)
        self.admin.delete_topics([self.name])[self.name].result(30)
        self.incarnation += 1
        self.create()
        self.producer = Producer(self.settings)  # the old one goes on where it was in the old topic
        if self.session is not None and self.outcome.mode == "at_most_once":
            self._wait_until_seen()  # (specs/GUARANTEES.md, "What does not hold")
        if self.random.random() < 0.8:
            self.write(self.random.choice((3, 60, 400)))

    def _wait_until_seen(self) -> None:
        """Wait until the running consumer goes on in the new topic."""
        assert self.session is not None
        core = self.session.consumer._core
        deadline = time.monotonic() + PATIENCE_S
        while True:
            about = describe(self.admin, [self.name], 5.0).get(self.name)
            held = core.partitions.all()
            if len(held) == self.partitions and all(
                about is not None
                and ClaimMetadata.decode(part.claim.metadata).topic_id == about.topic_id
                for part in held
            ):
                return
            assert self.session.error is None, repr(self.session.error)
            assert time.monotonic() < deadline, f"nobody has seen that it is anew: {held}"
            time.sleep(0.05)

    def _truncate(self) -> None:
        """Nothing is left to do, and the stored position lies beyond the end all the same."""
        if self.session is None:
            self.start()
        self.drain()
        self.stop("close")
        ends = self.ends()
        with Marshal(
            self.servers, group_id=self.name, client_id="operator", topic=self.coordination,
            interval_ms=INTERVAL_MS, member=False, close_on_sigterm=False,
        ) as marshal:  # fmt: skip
            for p, end in ends.items():
                claim = marshal.claim(self.name, p, timeout_s=10)
                claim.commit(end + GONE, wait=True)
                claim.release()
        session = self.start()
        deadline = time.monotonic() + PATIENCE_S
        while True:  # what is written before it has looked would be left out
            positions = {c.partition: c.position for c in session.consumer.claims()}
            if positions == ends:
                break
            assert time.monotonic() < deadline, f"positions {positions}, ends {ends}"
            time.sleep(0.02)
        if self.random.random() < 0.5:
            self.stop("close")
        self.write(self.random.choice((1, 40)))

    def _compact(self) -> None:
        """Have most of what is there go, as far as the broker does it within a second."""
        before = len(self.readable())
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            time.sleep(0.1)
            self.write(1)  # a segment that is written to is not compacted
            if len(self.readable()) < before:
                self.outcome.counts["compactions"] += 1
                return

    # Who consumes it

    def start(self) -> Session:
        """Return who consumes; somebody new, who has started, if there is nobody."""
        if self.session is None:
            self.session = session = Session(self, self.random.choice(("a", "a", "b")))
            self.sessions.append(session)
            while not session.consumer._core.started and session.error is None:
                time.sleep(0.005)
        return self.session

    def stop(self, how: str) -> None:
        """End who consumes."""
        if self.session is not None:
            self.session.end(how)
            self.outcome.counts[how] += 1
            self.session = None

    def stop_or_go_on(self) -> None:
        how = self.random.choice(("close", "crash", "crash", "go on"))
        if how != "go on":
            self.stop(how)

    def delivered(self) -> Counter[str]:
        return Counter(value for session in self.sessions for value, _ in list(session.got))

    def outstanding(self) -> int:
        return len(set(self.readable()) - set(self.delivered()))

    def drain(self) -> None:
        """Wait until nothing is left to do, and the lag says so."""
        session = self.session
        assert session is not None
        deadline = time.monotonic() + PATIENCE_S
        lags: dict[tuple[str, int], int] = {}
        while time.monotonic() < deadline and session.error is None:
            try:
                lags = session.consumer.lag()
            except MarshalError:
                lags = {}
            if len(lags) == self.partitions and not any(lags.values()):
                break
            time.sleep(0.05)
        else:
            self.outcome.problems.append(f"the lag does not become 0: {lags}")
        if self.outcome.mode == "at_least_once":
            while self.outstanding() and time.monotonic() < deadline:
                time.sleep(0.05)
        else:
            session.wait_for(1 << 30)

    def finish(self) -> None:
        """Somebody does what is left; then judge."""
        session = self.start()
        self.drain()
        self.stop("close")
        assert session is self.sessions[-1]
        readable, delivered = self.readable(), self.delivered()
        self.outcome.counts["delivered"] += delivered.total()
        missing = [value for value in readable if value not in delivered]
        if self.outcome.mode == "at_least_once":
            if missing:
                self.problem(f"{len(missing)} of {len(readable)} never came, from {missing[0]}")
            self._judge_repeats()
            return
        again = [value for value, times in delivered.items() if times > 1]
        if again:
            self.problem(f"{len(again)} came twice, from {again[0]}")
        self.outcome.counts["lost"] += len(missing)
        allowed = sum(
            session.bound if session.crashed else session.consumer.dropped
            for session in self.sessions
        )
        if len(missing) > allowed:
            self.problem(f"{len(missing)} lost, from {missing[0]}; {allowed} may be")
        for session in self.sessions:
            if not session.crashed and session.consumer.dropped > session.bound:
                self.problem(f"{session.consumer.dropped} dropped, {session.bound} may be")

    def problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    def _judge_repeats(self) -> None:
        """What comes again was in flight, or done within an interval, when its session crashed."""
        last: dict[str, tuple[Session, float]] = {}
        for session in self.sessions:
            for value, when_s in session.got:
                before = last.get(value)
                last[value] = (session, when_s)
                if before is None or int(value.split(".")[0]) in self.may_repeat:
                    continue
                self.outcome.counts["came again"] += 1
                earlier, then_s = before
                age_s = earlier.ended_s - then_s
                most_s = 1.5 * INTERVAL_MS / 1000 + SLACK_S
                if earlier is session:
                    self.problem(f"{value} came twice to one member")
                elif not earlier.crashed:
                    self.problem(f"{value} came again after a member that closed")
                elif age_s > most_s + earlier.in_flight * self.work_s:
                    self.problem(f"{value} came again, done {age_s:.1f} s before the crash")

    # Kafka's own word

    def ends(self) -> dict[int, int]:
        """Return where each partition ends, for a reader of what is committed."""
        reader = self._reader()
        try:
            return {
                p: reader.get_watermark_offsets(TopicPartition(self.name, p), 10)[1]
                for p in range(self.partitions)
            }
        finally:
            reader.close()

    def _reader(self) -> KafkaConsumer:
        return KafkaConsumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 5,
            }
        )

    def readable(self) -> list[str]:
        """Return the values of all messages that there are."""
        reader = self._reader()
        try:
            where = [TopicPartition(self.name, p, OFFSET_BEGINNING) for p in range(self.partitions)]
            reader.assign(where)
            found: list[str] = []
            ended: set[int] = set()
            deadline = time.monotonic() + PATIENCE_S
            while len(ended) < self.partitions:
                assert time.monotonic() < deadline, "the topic cannot be read"
                message = reader.poll(1)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    found.append((message.value() or b"").decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
            return found
        finally:
            reader.close()

    def end(self) -> None:
        """Leave nothing behind."""
        if self.session is not None:
            self.session.end("crash")
        names = [self.name, self.coordination, f"{self.coordination}.snapshots"]
        for future in self.admin.delete_topics(names).values():
            # It was never made, or goes later: the next history has topics of its own.
            with contextlib.suppress(KafkaException, TimeoutError):
                future.result(10)

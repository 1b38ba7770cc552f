"""The client processes: `python -m tests.chaos.workers CONFIG NAME`. They use the public API only.

Each records what it does and when, and judges nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import signal
import sys
import threading
import time
import uuid
import zlib
from typing import Any

from confluent_kafka import KafkaException, Producer

from harvest import OutboxRecord, Stasher
from harvest.databases.mysql.table import connect_arguments
from marshal_py import (
    BrokerUnavailable,
    Claim,
    ClaimTimeout,
    Closed,
    Consumer,
    Marshal,
    NotHeld,
    Retry,
)
from marshal_py.client.kafka_clients import is_fatal
from marshal_py.consumer.consumer import Mode
from marshal_py.protocol.claimant import Claimant
from marshal_py.protocol.messages import LEVEL
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.wire import WireName
from tests.chaos import sabotage
from tests.chaos.checker import ATTEMPTS, MESSAGES
from tests.chaos.config import ChaosConfig, client_of
from tests.chaos.recorder import Recorder, now_ns

__all__ = ["main"]

_stop = threading.Event()


class _Watched:
    """A claim, and the recording of what it said and when."""

    def __init__(self, claim: Claim, recorder: Recorder) -> None:
        self.claim = claim
        self._recorder = recorder

    def look(self) -> list[Any] | None:
        """Ask whether we may act: [before, after, topic, partition, epoch, until], or None.

        `until` is a time that the lease reaches at least, by the client's own words.
        """
        claim = self.claim
        epoch, before = claim.epoch, now_ns()
        remaining_ms = claim.remaining_ms
        after = now_ns()
        if remaining_ms <= 0 or claim.epoch != epoch:
            return None
        until = before + int(remaining_ms * 1e6)
        return [before, after, claim.topic, claim.partition, epoch, until]

    def release(self) -> None:
        """Record first, then release: from the record on nobody may count on this lease."""
        claim = self.claim
        self._recorder.write("release", now_ns(), claim.topic, claim.partition, claim.epoch)
        claim.release(wait=False)


class _Worker:
    def __init__(self, config: ChaosConfig, name: str, topic: str, count: int, mine: int) -> None:
        self.config, self.name, self.topic, self.count = config, name, topic, count
        self.mine = mine
        """The most that it wants to hold at once."""
        self.quiet = False
        self.recorder = Recorder(config.history(name))
        self.random = random.Random(f"{config.seed}-{name}-{now_ns()}")
        self.claims: dict[int, _Watched] = {}
        self.kafka = {"bootstrap.servers": config.bootstrap[config.network(name)]}
        self.marshal = Marshal(
            self.kafka,
            group_id=name.partition("-")[0],
            client_id=client_of(name),
            resume=not name.endswith("~"),
            interval_ms=config.interval_ms,
            topic=config.log_of(name),
            connect_timeout_ms=600_000,
            snapshot_every=2_000,
        )

    def run(self) -> None:
        """Work until SIGTERM."""
        self.recorder.write("start", now_ns(), self.marshal.instance_id)
        self.marshal.start()
        self.recorder.write("ready", now_ns(), self.marshal.instance_id)
        share_ns = 0
        while not _stop.is_set():
            if now_ns() >= share_ns:
                try:
                    self.share()
                except Closed as error:  # it cannot follow the level of its group
                    self.recorder.write("refused", now_ns(), str(error))
                    break
                share_ns = now_ns() + 100_000_000
            self.turn()
        record_world(self.recorder, self.marshal)
        self.recorder.write("closing", now_ns())
        self.marshal.close(timeout_s=10)
        self.recorder.write("end", now_ns(), self.marshal.instance_id)

    def share(self) -> None:
        """Forget what ended, want some cells (in the end all), and now and then give one up."""
        if not self.quiet and self.config.quiet_path.exists():
            self.quiet, self.mine = True, self.count
        for p, watched in list(self.claims.items()):
            if watched.claim.reason is not None:
                del self.claims[p]
        if self.claims and not self.quiet and self.random.random() < 0.01:
            p = self.random.choice(list(self.claims))
            self.before_release(p)
            self.claims.pop(p).release()
        order = list(range(self.count))
        self.random.shuffle(order)
        for p in order:
            if len(self.claims) < self.mine and p not in self.claims and self.random.random() < 0.3:
                self.claims[p] = _Watched(self.marshal.want(self.topic, p), self.recorder)

    def before_release(self, p: int) -> None:
        """Stop acting on p."""

    def turn(self) -> None:
        """Do a piece of work."""
        raise NotImplementedError


def record_world(recorder: Recorder, marshal: Marshal) -> None:
    """What this client believes the state to be, at which offsets."""
    with marshal.world() as world:
        for state in world.states:
            cells = [
                [*key, c.holder, c.instance_id, c.epoch, state.version(*key), *_offsets(c)]
                for key, c in state.cells.items()
            ]
            recorder.write("world", now_ns(), state.partition, state.next_offset, cells)


def _offsets(cell: Cell) -> tuple[int, int]:
    return cell.next_offset, cell.claimed_offset


class Claimer(_Worker):
    """Holds cells and acts on them, for a moment each."""

    def turn(self) -> None:
        for watched in list(self.claims.values()):
            seen = watched.look()
            if seen is not None:
                time.sleep(self.random.choice((0, 0, 0.001, 0.005)))  # the action
                self.recorder.write("act", *seen, now_ns())
        _stop.wait(0.01)


class ConsumerWorker:
    """A `Consumer`, at least or at most once. A delivery is a line in the history."""

    def __init__(
        self, config: ChaosConfig, name: str, mode: Mode, wire: WireName = "msgpack"
    ) -> None:
        self.config, self.mode = config, mode
        self.recorder = Recorder(config.history(name))
        self.random = random.Random(f"{config.seed}-{name}-{now_ns()}")
        kind = name.partition("-")[0]
        self.claims: dict[tuple[str, int], Claim] = {}
        self.consumer = Consumer(
            {"bootstrap.servers": config.bootstrap[config.network(name)]},
            topics=kind,
            group_id=kind,
            client_id=name,
            mode=mode,
            batch_size=config.batch,
            kafka={"fetch.wait.max.ms": 50},
            interval_ms=config.interval_ms,
            topic=config.log_of(name),
            connect_timeout_ms=600_000,
            snapshot_every=2_000,
            close_on_sigterm=False,
            wire=wire,
        )

    def run(self) -> None:
        """Consume until SIGTERM, one by one or in batches, with pauses for work."""
        marshal = self.consumer.marshal
        self.recorder.write("start", now_ns(), marshal.instance_id)
        self.begin()
        self.recorder.write("ready", now_ns(), marshal.instance_id)
        one_by_one = self.random.random() < 0.5
        while not _stop.is_set():
            asked = now_ns()
            if one_by_one:
                for message in self.consumer.messages(idle_timeout_s=0.5):
                    self.deliver(asked, self.claim_of(message), [message])
                    if _stop.is_set():
                        break
                    asked = now_ns()
            else:
                for batch in self.consumer.batches(idle_timeout_s=0.5):
                    self.deliver(asked, batch.claim, batch)
                    if _stop.is_set():
                        break
                    asked = now_ns()
        self.record_world()
        self.recorder.write("closing", now_ns())
        self.consumer.close(timeout_s=10)
        self.recorder.write("end", now_ns(), marshal.instance_id)

    def begin(self) -> None:
        """Start, however long the servers take."""
        while not _stop.is_set():
            try:
                self.consumer.start()
                return
            except BrokerUnavailable:
                _stop.wait(0.5)

    def claim_of(self, message: Any) -> Claim:
        """The claim of a message that was handed out, also when it has just been lost."""
        key = (message.topic(), message.partition())
        with contextlib.suppress(NotHeld):
            self.claims[key] = self.consumer.claim_of(message)
        return self.claims[key]

    def record_world(self) -> None:
        """What this client believes the state to be."""
        record_world(self.recorder, self.consumer.marshal)

    def deliver(self, asked: int, claim: Claim, messages: list[Any]) -> None:
        """Handle what the consumer gave us after it was `asked`: all of it, for it counts as done.

        The lease may be over by now, if the process was suspended in between. Then all that is
        known is that the consumer looked at it after it was asked.
        """
        topic, p, epoch, now = claim.topic, claim.partition, claim.epoch, now_ns()
        seen: list[Any] = [now, now, topic, p, epoch, now]
        if self.mode == "at_least_once":
            look = _Watched(claim, self.recorder).look()
            if look is not None and look[4] == epoch:
                seen = look
            else:
                seen = [asked, now, topic, p, epoch, asked]
        for message in messages:
            self.recorder.write("deliver", *seen, message.offset(), now_ns())
            if self.random.random() < 0.05:
                time.sleep(self.random.choice((0.001, 0.02)))


class TextWorker(ConsumerWorker):
    """A consumer of version 1, where no claim has an epoch: each is numbered as it is seen."""

    def __init__(self, config: ChaosConfig, name: str) -> None:
        super().__init__(config, name, "at_least_once", "text")
        self._numbers: dict[Claim, int] = {}

    def record_world(self) -> None:
        """The judge has no fold of version 1."""

    def deliver(self, asked: int, claim: Claim, messages: list[Any]) -> None:
        """Handle messages, and say whether the claim was held when they had been given to us."""
        number = self._numbers.setdefault(claim, len(self._numbers))
        before = now_ns()
        held = claim.held
        look = before, now_ns(), claim.partition, number, held
        for message in messages:
            self.recorder.write("text", *look, message.offset(), now_ns())
            if self.random.random() < 0.05:
                time.sleep(self.random.choice((0.001, 0.02)))


class Runner:
    """A consumer by `run`: handlers that fail, retries, dead letters; the messages say which.

    What a handler was called with, and what came of it, is a line in the history.
    """

    def __init__(self, config: ChaosConfig, name: str) -> None:
        self.config = config
        self.recorder = Recorder(config.history(name))
        self._tried: set[tuple[int, int]] = set()
        self.consumer = Consumer(
            {"bootstrap.servers": config.bootstrap[config.network(name)]},
            topics="run",
            group_id="run",
            client_id=name,
            kafka={"fetch.wait.max.ms": 50},
            interval_ms=config.interval_ms,
            topic=config.log,
            connect_timeout_ms=600_000,
            snapshot_every=2_000,
            close_on_sigterm=False,
        )

    def run(self) -> None:
        """Handle messages until SIGTERM, which `run` answers by itself once it has begun."""
        marshal = self.consumer.marshal
        self.recorder.write("start", now_ns(), marshal.instance_id)
        while not _stop.is_set():
            try:
                self.consumer.start()
                break
            except BrokerUnavailable:
                _stop.wait(0.5)
        self.recorder.write("ready", now_ns(), marshal.instance_id)
        threading.Thread(target=self._watch, daemon=True).start()
        self.consumer.run(
            self.handle,
            workers=4,
            ordering="key",
            retry=Retry(attempts=ATTEMPTS, backoff_ms=100),
            on_failure="dead_letter",
            drain_timeout_s=15,
        )
        self.recorder.write("end", now_ns(), marshal.instance_id)

    def _watch(self) -> None:
        _stop.wait()
        self.consumer.stop()

    def handle(self, message: Any, claim: Claim) -> None:
        """Work for a moment, and fail as the message says."""
        place = message.partition(), message.offset()
        began, fails = now_ns(), failures_of(message.value())
        look = _Watched(claim, self.recorder).look()
        # The lease may be over by now, if the process was suspended after `run` had looked.
        seen = look or [began, began, message.topic(), place[0], claim.epoch, began]
        first = place not in self._tried
        self._tried.add(place)
        time.sleep(random.choice((0, 0.001, 0.01)))
        failed = fails == ALWAYS or (fails == FIRST and first)
        key = message.key().decode()
        outcome = "failed" if failed else "done"
        self.recorder.write("handle", *seen, place[1], key, outcome, bool(look), now_ns())
        if failed:
            raise ValueError(f"the message at {place} is to fail")


ALWAYS, FIRST = 2, 1


def failures_of(value: bytes) -> int:
    """How a handler fails with a message: ALWAYS, the FIRST time in a process, or never (0)."""
    return {0: ALWAYS, 1: FIRST, 2: FIRST}.get(zlib.crc32(value) % 40, 0)


class MessageWriter:
    """Writes messages to the topics at a steady rate."""

    def __init__(self, config: ChaosConfig) -> None:
        self._config = config
        self._recorder = Recorder(config.history("writer"))
        self._producer = self._connect()

    def _connect(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._config.bootstrap[self._config.network("writer")],
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Write until SIGTERM."""
        number, run = 0, uuid.uuid4().hex[:8]
        while not _stop.wait(2 / self._config.messages_per_s):
            for topic in MESSAGES:
                number += 1
                try:
                    self._producer.produce(
                        topic,
                        f"{run}-{number}".encode(),
                        str(number % 23),
                        partition=number // len(MESSAGES) % self._config.partitions,
                        on_delivery=self._acknowledged,
                    )
                except BufferError:
                    pass
                except KafkaException as error:
                    # A broker that forgot what it had acknowledged (power loss, an unclean
                    # election) knows another sequence: the producer is of no use any more.
                    if not is_fatal(error.args[0]):
                        raise
                    self._producer = self._connect()
            self._producer.poll(0)
        self._producer.flush(60)

    def _acknowledged(self, error: Any, message: Any) -> None:
        if error is None:
            self._recorder.write(
                "acknowledged",
                message.topic(),
                message.partition(),
                message.offset(),
                message.value().decode(),
            )


class RowWriter:
    """Business transactions with outbox rows; some are rolled back, some meet a dead database."""

    def __init__(self, config: ChaosConfig) -> None:
        self._config = config
        self._recorder = Recorder(config.history("rows"))
        self._random = random.Random(f"{config.seed}-rows")

    def run(self) -> None:
        """Write until SIGTERM, and reconnect for as long as it takes."""
        import psycopg

        while not _stop.is_set():
            try:
                with psycopg.connect(self._config.dsn, connect_timeout=3) as connection:
                    while not _stop.wait(2 / self._config.rows_per_s):
                        self._transaction(connection)
            except psycopg.Error:
                self._recorder.write("failed", now_ns())
                _stop.wait(0.2)

    def _transaction(self, connection: Any) -> None:
        from psycopg.errors import RaiseException

        dice = self._random
        connection.execute("SET LOCAL statement_timeout = '5s'")
        for key in sorted({dice.randrange(20) for _ in range(dice.randint(1, 3))}):
            (seq,) = connection.execute(
                "UPDATE keys SET seq = seq + 1 WHERE key = %s RETURNING seq", (key,)
            ).fetchone()
            row = uuid.uuid4().hex
            connection.execute("INSERT INTO truth VALUES (%s, %s, %s)", (row, key, seq))
            for table, topic in OUTBOXES:
                connection.execute(
                    f"INSERT INTO {table} (kafka_topic, kafka_key, kafka_value, create_time, "
                    "kafka_header_keys, kafka_header_values) VALUES (%s, %s, %s, now(), %s, %s)",
                    (topic, str(key), json.dumps({"row": row, "seq": seq}), [], []),
                )
        if dice.random() < 0.1:
            _stop.wait(dice.uniform(0.01, 0.05))
        if dice.random() < 0.15:
            connection.rollback()
            return
        if dice.random() < 0.1:
            connection.execute("SET LOCAL chaos.veto = 'on'")
        try:
            connection.commit()
        except RaiseException:
            self._recorder.write("vetoed", now_ns())


OUTBOXES = (("outbox", "rows"), ("ranged", "ranged"), ("logged", "logged"), ("posted", "posted"))
"""Each transaction writes the same rows to all of them: (table, topic)."""


class MariaWriter:
    """The same in MariaDB, whose outbox a `Stasher` writes to."""

    def __init__(self, config: ChaosConfig) -> None:
        self._config = config
        self._recorder = Recorder(config.history("rows-maria"))
        self._random = random.Random(f"{config.seed}-rows-maria")
        self._stasher = Stasher()

    def run(self) -> None:
        """Write until SIGTERM, and reconnect for as long as it takes."""
        import pymysql

        arguments = connect_arguments(self._config.maria_dsn)
        while not _stop.is_set():
            try:
                connection = pymysql.connect(**arguments, connect_timeout=3, read_timeout=5)
                with contextlib.closing(connection):
                    while not _stop.wait(2 / self._config.rows_per_s):
                        self._transaction(connection)
            except pymysql.Error:
                self._recorder.write("failed", now_ns())
                _stop.wait(0.2)

    def _transaction(self, connection: Any) -> None:
        dice = self._random
        with connection.cursor() as cursor:
            for name in sorted({dice.randrange(20) for _ in range(dice.randint(1, 3))}):
                cursor.execute("UPDATE ledger SET seq = seq + 1 WHERE name = %s", (name,))
                cursor.execute("SELECT seq FROM ledger WHERE name = %s", (name,))
                ((seq,),) = cursor.fetchall()
                row = uuid.uuid4().hex
                cursor.execute("INSERT INTO truth VALUES (%s, %s, %s)", (row, name, seq))
                value = json.dumps({"row": row, "seq": seq})
                self._stasher.stash(connection, OutboxRecord("maria", str(name), value))
        if dice.random() < 0.1:
            _stop.wait(dice.uniform(0.01, 0.05))
        if dice.random() < 0.15:
            connection.rollback()
        else:
            connection.commit()


def _be_of_the_next_version() -> None:
    """Follow one level more than this version does."""
    init = Claimant.__init__

    def follow(self: Claimant, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options, levels=(LEVEL, LEVEL + 1))

    Claimant.__init__ = follow  # type: ignore[method-assign]


def main() -> None:
    """Run one process until SIGTERM."""
    config, name = ChaosConfig.load(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    sabotage.apply(config.sabotage)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("marshal_py").setLevel(logging.INFO)
    kind = name.partition("-")[0]
    worker: Any
    if kind == "claimer":
        if client_of(name) not in config.older_names:
            _be_of_the_next_version()
        # One more than its share, so that some wait for what others hold.
        worker = Claimer(config, name, "cells", config.cells, config.cells // config.claimers + 1)
    elif kind in ("alo", "amo"):
        worker = ConsumerWorker(config, name, "at_least_once" if kind == "alo" else "at_most_once")
    elif kind == "run":
        worker = Runner(config, name)
    elif kind == "text":
        worker = TextWorker(config, name)
    elif name == "rows-maria":
        worker = MariaWriter(config)
    elif kind == "writer":
        worker = MessageWriter(config)
    else:
        worker = RowWriter(config)
    with contextlib.suppress(ClaimTimeout):
        worker.run()


if __name__ == "__main__":
    main()

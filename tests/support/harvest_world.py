"""Writers, harvester processes and a checker that knows every committed row, on real servers."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import psycopg
import pymysql

from harvest import OutboxRecord, Stasher
from harvest.databases.mysql.table import connect_arguments
from marshal_py.embedded import EmbeddedKafka
from tests.support.kafka_reader import TopicCounter, read_topic

WAIT_S = 120.0  # a bound: a machine may be busy with other tests
INTERVAL_MS = 1_000


class Harvester:
    """One `harvest reap` process and its log."""

    def __init__(self, config: Path, log: Path, *options: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harvest.cli", "reap", "--config", str(config), *options],
                stdout=output,
                stderr=output,
            )

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def said(self, words: str) -> int:
        return self.log.read_text().count(words)

    def wait_said(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.said(words) >= times, f"{words!r} in {self.log}", self.log)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(WAIT_S)


def wait_until(
    condition: object, what: str, log: Path | None = None, timeout_s: float = WAIT_S
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            tail = log.read_text()[-3000:] if log is not None else ""
            raise AssertionError(f"not within {timeout_s} s: {what}\n{tail}")
        time.sleep(0.01)


class _HasTable(Protocol):
    """A store of any mode and database."""

    def init(self) -> object: ...

    def close(self) -> None: ...


def forget(kafka: EmbeddedKafka, topic: str) -> None:
    """Delete the coordination topics of what harvested into `topic`."""
    for name in (f"{topic}.marshal", f"{topic}.marshal.snapshots"):
        kafka.delete_topic(name)


class World:
    """One outbox, one topic, any number of writers and harvesters."""

    outages: tuple[type[Exception], ...] = (psycopg.OperationalError,)
    """What the driver raises when the server is down."""

    def __init__(
        self,
        folder: Path,
        servers: str,
        database: str,
        topic: str,
        delivery: str = "transactional",
        seed: int = 0,
        *,
        mode: str = "mark",
        shards: int = 1,
        interval_ms: int = INTERVAL_MS,
        more: str = "",
    ) -> None:
        self.topic = topic
        self.mode = mode
        self.servers = servers
        self.database = database
        self._folder = folder
        self._random = random.Random(seed)
        self._harvesters: list[Harvester] = []
        self._counter: TopicCounter | None = None
        self._lock = threading.Lock()
        self.committed: dict[str, list[str]] = defaultdict(list)
        self.rolled_back: set[str] = set()
        self.uncertain: set[str] = set()
        """Committed or not: the server went away before it said."""
        self.config = folder / "reaper.yaml"
        self.config.write_text(
            f"kafka: {{bootstrap.servers: '{servers}'}}\n"
            f"database: {database}\n"
            f"group: {topic}\n"
            f"delivery: {delivery}\n"
            f"mode: {mode}\n"
            f"shards: {shards}\n"
            "coordination:\n"
            f"  topic: {topic}.marshal\n"
            f"  interval_ms: {interval_ms}\n"
            "  create_topics: true\n"
            f"{more}"
        )
        self.stasher = Stasher(mode="message") if "source: message" in more else Stasher()

    def harvester(self, *options: str) -> Harvester:
        """Start a process."""
        log = self._folder / f"harvester-{len(self._harvesters)}.log"
        self._harvesters.append(Harvester(self.config, log, *options))
        return self._harvesters[-1]

    def leader(self) -> Harvester:
        """The live process that began to lead last, once there is one."""
        found: list[Harvester] = []

        def look() -> bool:
            leading = [
                (h.log.stat().st_mtime, h)
                for h in self._harvesters
                if h.process.poll() is None
                and h.said("leader acquired") > h.said("leader revoked") + h.said("leader fenced")
            ]
            found[:] = [h for _, h in sorted(leading, key=lambda pair: pair[0])][-1:]
            return bool(found)

        wait_until(look, "a leader")
        return found[0]

    @contextmanager
    def writing(self, writers: int = 3, pause_s: float = 0.002) -> Iterator[None]:
        """Transactions all the while. A writer has keys of its own, so their order is known."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._write, args=(f"w{n}", stop, pause_s), daemon=True)
            for n in range(writers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_S)

    def _write(self, name: str, stop: threading.Event, pause_s: float) -> None:
        choose = random.Random(name)
        stasher = self.stasher
        count = 0
        while not stop.is_set():
            try:
                with closing(self._connect()) as connection:
                    while not stop.wait(pause_s * choose.random()):
                        count += 1
                        self._transaction(connection, stasher, choose, f"{name}.{count}")
            except self.outages:
                time.sleep(0.05)  # the server is down; what was under way may have been committed

    def _transaction(
        self,
        connection: Any,
        stasher: Stasher,
        choose: random.Random,
        name: str,
    ) -> None:
        writer = name.partition(".")[0]
        values = [f"{name}.{n}" for n in range(choose.randint(1, 5))]
        keys = [f"{writer}-{choose.randrange(5)}" for _ in values]
        stasher.stash_many(
            connection,
            [OutboxRecord(self.topic, k, v, {"n": v}) for k, v in zip(keys, values, strict=True)],
        )
        if choose.random() < 0.2:
            connection.rollback()
            self.rolled_back.update(values)
            return
        try:
            connection.commit()
        except self.outages:
            self.uncertain.update(values)
            raise
        with self._lock:
            for key, value in zip(keys, values, strict=True):
                self.committed[key].append(value)

    def _connect(self) -> Any:
        """A connection of the application."""
        return psycopg.connect(self.database, prepare_threshold=None)  # perhaps through a pooler

    def connected(self) -> closing[Any]:
        """A connection of the application, closed at the end."""
        return closing(self._connect())

    def rows_left(self) -> int:
        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("SELECT count(*) FROM outbox")
            ((count,),) = cursor.fetchall()
            return int(count)

    def wait_drained(self) -> None:
        logs = self._harvesters[-1].log if self._harvesters else None
        if "source: message" in self.config.read_text():
            count = sum(len(values) for values in self.committed.values())
            wait_until(lambda: self.published_count() >= count, "all published", logs)
        elif self.mode in ("mark", "wal"):
            wait_until(lambda: self.rows_left() == 0, "an empty outbox", logs)
        else:
            wait_until(lambda: self.published_count() >= self.rows_left(), "all published", logs)

    def assert_exactly_once(self) -> None:
        """Wait until all is published: each committed row once, in its order, and nothing else."""
        self.wait_drained()
        published = self.published()
        everything = {value for values in published.values() for value in values}
        assert not everything & self.rolled_back
        if not self.uncertain:
            assert published == self.committed
            return
        for key, values in published.items():
            assert [v for v in values if v not in self.uncertain] == self.committed[key]
            assert len(set(values)) == len(values)

    def wait_published(self, more_than: int) -> None:
        wait_until(lambda: self.published_count() > more_than, "records in Kafka")

    def published_count(self) -> int:
        if self._counter is None:
            self._counter = TopicCounter(self.servers, self.topic)
        return self._counter.count()

    def published(self) -> dict[str, list[str]]:
        """What a read_committed reader sees, by key."""
        found: dict[str, list[str]] = defaultdict(list)
        for key, value, headers in read_topic(self.servers, self.topic):
            assert key is not None
            assert value is not None
            assert headers == [("n", value)]
            found[key.decode()].append(value.decode())
        return found

    def close(self) -> None:
        for harvester in self._harvesters:
            harvester.kill()
        if self._counter is not None:
            self._counter.close()
            self._counter = None

    @contextmanager
    def opened(self, kafka: EmbeddedKafka, store: _HasTable) -> Iterator[Self]:
        """With the table, which `store` makes; in the end nothing runs, or is left in Kafka."""
        with closing(store):
            store.init()
        try:
            yield self
        finally:
            self.close()
            forget(kafka, self.topic)


class SqliteWorld(World):
    """The same on an SQLite file."""

    outages = (sqlite3.OperationalError,)

    def _connect(self) -> Any:
        return sqlite3.connect(self.database.removeprefix("sqlite:///"), timeout=WAIT_S)


class MariadbWorld(World):
    """The same on MariaDB."""

    outages = (pymysql.OperationalError, pymysql.InterfaceError)

    def _connect(self) -> Any:
        return pymysql.connect(**connect_arguments(self.database))

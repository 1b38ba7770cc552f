"""What is recorded: some processes around a coordination topic of their own, and what breaks.

Everything begins well. After 50 s it breaks; what is scraped from the minute on shows that.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, Self

import psycopg
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import make_conninfo

from harvest import OutboxRecord, Stasher
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from marshal_py.embedded.ports import free_ports
from tests.alerts import logger
from tests.alerts.scraping import Recording
from tests.support.secure_kafka import SecureKafka, secure_kafka

__all__ = ["WORLDS", "Servers"]

BREAKS_S: Final = 50.0
INTERVAL_MS: Final = 5_000
"""Of harvesters: their default of 1 s is for machines that are not full of other work."""
SLOW_CLOCK: Final = """
import time
_ns = time.time_ns
time.time_ns = lambda: _ns() - 120 * 10**9
time.time = lambda: time.time_ns() / 1e9
"""
SLOW_MESSAGES: Final = 40_000


class Servers:
    """The servers that several worlds share."""

    def __init__(self, kafka: EmbeddedKafka, postgres: EmbeddedPostgres, folder: Path) -> None:
        self.kafka, self.postgres, self.folder = kafka, postgres, folder


class World:
    """Processes around one coordination topic, and who watches them."""

    def __init__(
        self,
        name: str,
        kafka: dict[str, Any],
        servers: Servers,
        admin: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.kafka = name, kafka
        self.admin = admin or kafka
        """Whose rights everything has that is not about rights."""
        self.topic = f"__marshal.{name}"
        self._folder = servers.folder / name
        self._folder.mkdir()
        self._postgres = servers.postgres
        self._urls: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._supervisors: list[threading.Thread] = []
        self._stop = threading.Event()
        self.producer = Producer(self.admin)
        create_topics(self.admin, topic=self.topic, partitions=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for supervisor in self._supervisors:
            supervisor.join()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _start(self, command: Sequence[str], port: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._processes.append(process)
        self._urls.append(f"http://127.0.0.1:{port}/metrics")
        return process

    def exporter(
        self, before: str = "", kafka: dict[str, Any] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `marshal metrics serve`; `before` is run first, in the same process."""
        (self._exporter_port,) = free_ports(1)
        self._exporter_kafka = kafka or self.admin
        return self._start(self._exporter(before), self._exporter_port)

    def replace_exporter(self, before: str) -> None:
        """Start another one where a killed one was: the same target, to whoever scrapes."""
        self._processes.append(subprocess.Popen(self._exporter(before)))

    def _exporter(self, before: str) -> list[str]:
        main = f"{before}\nfrom marshal_py.cli.app import main; main()"
        options = [f"-X{key}={value}" for key, value in self._exporter_kafka.items()]
        where = ["--coordination-topic", self.topic]
        listen = ["--listen", f"127.0.0.1:{self._exporter_port}"]
        return [sys.executable, "-c", main, "metrics", "serve", *options, *where, *listen]

    def members(
        self,
        groups: dict[str, list[str]],
        kafka: dict[str, Any] | None = None,
        sharing: str = "partitions",
        *,
        restart: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a process with consumers: group → its members here. Each group has a topic.

        `restart`: whenever it ends it is started anew, as a supervisor does.
        """
        (port,) = free_ports(1)
        settings = {
            "kafka": kafka or self.kafka,
            "topic": self.topic,
            "port": port,
            "sharing": sharing,
            "groups": [[group, self.topic_of(group), names] for group, names in groups.items()],
        }
        command = [sys.executable, "-m", "tests.alerts.members", json.dumps(settings)]
        process = self._start(command, port)
        if restart:
            supervisor = threading.Thread(target=self._restart, args=(command, process))
            self._supervisors.append(supervisor)
            supervisor.start()
        return process

    def _restart(self, command: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        while not self._stop.wait(0.5):
            if process.poll() is not None:
                process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                self._processes.append(process)

    def topic_of(self, group: str) -> str:
        return f"{self.name}.{group}"

    def make_topics(self, *groups: str) -> None:
        """Create the topics that groups consume, with those of their dead letters."""
        names = [self.topic_of(group) for group in groups]
        names += [f"{name}.dlq" for name in names]
        admin = AdminClient(self.admin)
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
            future.result(60)

    def produce(self, group: str, text: str, count: int = 1) -> None:
        for n in range(count):
            while True:
                try:
                    self.producer.produce(self.topic_of(group), text, partition=n % 2)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        self.producer.poll(0)

    def keep_producing(self, group: str, text: str = "0.01", per_s: float = 2.0) -> None:
        """Messages all the while, in a thread."""

        def run() -> None:
            while not self._stop.wait(1 / per_s):
                self.produce(group, text, 2)

        threading.Thread(target=run, daemon=True).start()

    # Harvesters

    def outbox(self, group: str, table: str, mode: str = "mark", shards: int = 1) -> Path:
        """Make an outbox in a database of its own group; return the file for its harvesters."""
        database = f"{self.name}_{group}".replace("-", "_").replace(".", "_")
        with closing(psycopg.connect(self._postgres.dsn, autocommit=True)) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database])
            if not found.fetchone():
                connection.execute(f'CREATE DATABASE "{database}"')
        path = self._folder / f"{group}-{table}.yaml"
        document = {
            "kafka": self.admin,
            "database": self._postgres.dsn_of(database),
            "outbox": table,
            "group": group,
            "mode": mode,
            "shards": shards,
            "coordination": {"topic": self.topic, "interval_ms": INTERVAL_MS},
        }
        path.write_text(yaml.safe_dump(document))
        init = [sys.executable, "-m", "harvest.cli", "init", "--config", str(path)]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL)
        return path

    def harvester(self, config: Path, **changes: Any) -> subprocess.Popen[bytes]:
        """Start `harvest reap`."""
        (port,) = free_ports(1)
        if changes:
            document = yaml.safe_load(config.read_text()) | changes
            config = config.with_name(f"{len(self._processes)}-{config.name}")
            config.write_text(yaml.safe_dump(document))
        command = [sys.executable, "-m", "harvest.cli", "reap", "--config", str(config)]
        return self._start([*command, "--listen", f"127.0.0.1:{port}"], port)

    def keep_writing(self, config: Path, group: str) -> None:
        """Rows all the while, in a thread."""
        document = yaml.safe_load(config.read_text())
        topic, stasher = self.topic_of(group), Stasher(document["outbox"])

        def run() -> None:
            with closing(psycopg.connect(document["database"])) as connection:
                n = 0
                while not self._stop.wait(0.5):
                    n += 1
                    stasher.stash(connection, OutboxRecord(topic, f"k{n % 20}", f"v{n}"))
                    connection.commit()

        threading.Thread(target=run, daemon=True).start()

    # Time

    def begin(self) -> None:
        """Wait until everything is there and has settled, then record."""
        deadline = time.monotonic() + 300
        for url in self._urls:
            while not Recording([url]).scrape(url):
                ended = any(process.poll() is not None for process in self._processes)
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name}: {url} shows nothing: see {self._folder}")
                time.sleep(0.5)
        time.sleep(30)  # leaders are elected, partitions shared: all that is no failure
        self.recording = Recording(self._urls)
        self.recording.start()

    def at(self, seconds: float) -> None:
        """Wait until so long after the beginning."""
        time.sleep(max(0.0, self.recording.began_s + seconds - time.monotonic()))
        logger.warning("%s: %.0f s", self.name, seconds)

    def end(self, seconds: float) -> Recording:
        """Record until then."""
        self.at(seconds)
        self.recording.stop()
        return self.recording


def groups(servers: Servers, to: Path) -> None:
    """What happens to single groups, all of them at once."""
    kafka = {"bootstrap.servers": servers.kafka.bootstrap_servers}
    with World("groups", kafka, servers) as world:
        consumers = ("well", "stuck", "letters", "lagging", "gone")
        harvesting = ("one-gone", "all-gone", "one-shard", "two-outboxes", "pinned")
        world.make_topics(*consumers, *harvesting)
        for group in consumers:
            world.keep_producing(group)
        stay = {"well": ["a", "b"], "stuck": ["a"], "letters": ["a"], "lagging": ["a"]}
        world.members(stay)
        gone = world.members({"gone": ["a", "b"]})
        files = {group: world.outbox(group, "outbox") for group in ("one-gone", "all-gone")}
        files["one-shard"] = world.outbox("one-shard", "outbox", "range", 2)
        files["two-outboxes"] = world.outbox("two-outboxes", "outbox")
        audit = world.outbox("two-outboxes", "audit")
        files["pinned"] = world.outbox("pinned", "outbox", "wal")
        for group, file in [*files.items(), ("two-outboxes", audit)]:
            world.keep_writing(file, group)
        killed = [world.harvester(files[group]) for group in ("one-gone", "all-gone", "all-gone")]
        world.harvester(files["one-gone"])
        world.harvester(files["two-outboxes"])
        killed.append(world.harvester(audit))
        world.harvester(files["pinned"])
        world.harvester(files["one-shard"])
        with closing(psycopg.connect(_database(files["one-shard"]), autocommit=True)) as connection:
            connection.execute("CREATE ROLE weak LOGIN SUPERUSER")
        world.harvester(
            files["one-shard"], database=make_conninfo(_database(files["one-shard"]), user="weak")
        )
        world.exporter()
        world.begin()
        world.at(BREAKS_S)
        gone.kill()
        for process in killed:
            process.kill()
        world.produce("stuck", "wait", 2)
        world.produce("letters", "fail", 2)
        world.produce("lagging", "0.2", SLOW_MESSAGES)
        with ExitStack() as stack:
            shard = stack.enter_context(
                closing(psycopg.connect(_database(files["one-shard"]), autocommit=True))
            )
            shard.execute("ALTER ROLE weak NOSUPERUSER")
            _pin(stack, _database(files["pinned"]))
            for n in range(1, 45):
                world.at(BREAKS_S + 10 * n)
                world.produce("letters", "fail")
            world.end(540).write(to / "groups.yaml")


def _database(config: Path) -> str:
    return str(yaml.safe_load(config.read_text())["database"])


def _pin(stack: ExitStack, database: str) -> None:
    """A transaction that stays open, and then five GiB of the log, nearly all of it empty."""
    opened = stack.enter_context(closing(psycopg.connect(database)))
    Stasher("outbox").stash(opened, OutboxRecord("never", "k", "v"))
    busy = stack.enter_context(closing(psycopg.connect(database, autocommit=True)))
    for _ in range(5 * 64):
        busy.execute("SELECT pg_logical_emit_message(false, 'alerts', 'x')")
        busy.execute("SELECT pg_switch_wal()")


def broker(servers: Servers, to: Path) -> None:
    """A broker that stands still for ten minutes, is well again, and then dies."""
    with (
        EmbeddedKafka() as kafka,
        World("broker", {"bootstrap.servers": kafka.bootstrap_servers}, servers) as world,
    ):
        _usual(world)
        world.begin()
        world.at(BREAKS_S)
        kafka.pause()
        world.at(BREAKS_S + 600)
        kafka.resume()
        world.at(830)
        kafka.kill()
        recording = world.end(1_080)
        recording.write(to / "broker-paused.yaml", 0, 55)
        recording.write(to / "broker-down.yaml", 52)


def offline(servers: Servers, to: Path) -> None:
    """One of three brokers dies, the only one that has a partition."""
    with (
        EmbeddedKafka(brokers=3) as kafka,
        World("offline", {"bootstrap.servers": kafka.bootstrap_servers}, servers) as world,
    ):
        topic = world.topic_of("mail")
        assigned = [NewTopic(topic, 2, replica_assignment=[[1], [3]]), NewTopic(f"{topic}.dlq", 2)]
        admin = kafka.admin()
        for future in admin.create_topics(assigned).values():
            future.result(60)
        world.keep_producing("mail")
        world.members({"mail": ["a", "b"]})
        world.exporter()
        world.begin()
        world.at(BREAKS_S)
        kafka.kill(2)
        world.end(255).write(to / "partition-offline.yaml")


def slow(servers: Servers, to: Path) -> None:
    """A broker that works for a twentieth of the time."""
    with (
        EmbeddedKafka() as kafka,
        World("slow", {"bootstrap.servers": kafka.bootstrap_servers}, servers) as world,
    ):
        _usual(world)
        world.begin()
        world.at(BREAKS_S)
        ended = threading.Event()

        def hold() -> None:
            while not ended.is_set():
                kafka.pause()
                ended.wait(3.8)
                kafka.resume()
                ended.wait(0.2)

        holding = threading.Thread(target=hold)
        holding.start()
        recording = world.end(330)
        ended.set()
        holding.join()
        recording.write(to / "broker-slow.yaml")


def _usual(world: World) -> subprocess.Popen[bytes]:
    """Two consumers, two harvesters, and an exporter, which is returned."""
    shop = (
        f"{world.name}-shop"  # transactional ids are of a group: all worlds of a broker share them
    )
    world.make_topics("mail", shop)
    world.keep_producing("mail")
    file = world.outbox(shop, "outbox")
    world.keep_writing(file, shop)
    world.members({"mail": ["a", "b"]})
    for _ in range(2):
        world.harvester(file)
    return world.exporter()


def exporter_gone(servers: Servers, to: Path) -> None:
    """The exporter is killed."""
    kafka = {"bootstrap.servers": servers.kafka.bootstrap_servers}
    with World("exporter", kafka, servers) as world:
        exporter = _usual(world)
        world.begin()
        world.at(BREAKS_S)
        exporter.kill()
        world.end(330).write(to / "exporter-gone.yaml")


def remade(servers: Servers, to: Path) -> None:
    """The coordination topic is deleted and made anew."""
    kafka: dict[str, Any] = {"bootstrap.servers": servers.kafka.bootstrap_servers}
    with World("remade", kafka, servers) as world:
        _usual(world)
        world.begin()
        world.at(BREAKS_S)
        admin = AdminClient(kafka)
        names = [world.topic, f"{world.topic}.snapshots"]
        for future in admin.delete_topics(names).values():
            future.result(60)
        while set(names) & set(admin.list_topics(timeout=60).topics):
            time.sleep(0.2)
        create_topics(kafka, topic=world.topic, partitions=2)
        world.end(330).write(to / "topic-remade.yaml")


def ranges(servers: Servers, to: Path) -> None:
    """A message ends each process that handles it, in a group that shares by ranges."""
    kafka = {"bootstrap.servers": servers.kafka.bootstrap_servers}
    with World("ranges", kafka, servers) as world:
        world.make_topics("thumbnails")
        world.keep_producing("thumbnails")
        for name in "ab":
            world.members({"thumbnails": [name]}, sharing="ranges", restart=True)
        world.exporter()
        world.begin()
        world.at(BREAKS_S)
        world.produce("thumbnails", "kill")
        world.end(255).write(to / "message-kills.yaml")


def skewed(servers: Servers, to: Path) -> None:
    """The exporter's clock is two minutes late: it is started anew with one that is."""
    kafka = {"bootstrap.servers": servers.kafka.bootstrap_servers}
    with World("skewed", kafka, servers) as world:
        exporter = _usual(world)
        world.begin()
        world.at(BREAKS_S)
        exporter.kill()
        world.replace_exporter(SLOW_CLOCK)
        world.end(330).write(to / "clock-skewed.yaml")


def refused(servers: Servers, to: Path) -> None:
    """The right to write into the coordination topic is taken from one of two consumers."""
    folder = servers.folder / "secure"
    folder.mkdir()
    with secure_kafka(folder) as secure:
        _refused(secure, servers, to)


def _refused(secure: SecureKafka, servers: Servers, to: Path) -> None:
    admin = secure.config("admin", "pw-of-the-admin", mechanism="PLAIN")
    with World("refused", admin, servers) as world:
        world.make_topics("mail")
        world.keep_producing("mail")
        for user in ("anna", "bert"):
            secure.add_user(user, f"pw-of-{user}")
            for topic in (world.topic, f"{world.topic}.snapshots"):
                secure.allow(user, "Read", topic)
                secure.allow(user, "Write", topic)
            secure.allow(user, "Read", world.topic_of("mail"))
            secure.allow(user, "Write", f"{world.topic_of('mail')}.dlq")
            world.members({"mail": [user]}, secure.config(user, f"pw-of-{user}"))
        world.exporter()
        world.begin()
        world.at(BREAKS_S)
        secure.forbid("anna", "Write", world.topic)
        world.end(330).write(to / "right-removed.yaml")


def hidden(servers: Servers, to: Path) -> None:
    """The right to Describe the topic that a group consumes is taken from the exporter."""
    folder = servers.folder / "hiding"
    folder.mkdir()
    with secure_kafka(folder) as secure:
        admin = secure.config("admin", "pw-of-the-admin", mechanism="PLAIN")
        with World("hidden", admin, servers) as world:
            world.make_topics("mail")
            world.keep_producing("mail")
            world.members({"mail": ["a", "b"]})
            secure.add_user("exporter", "pw-of-exporter")
            for topic in (world.topic, f"{world.topic}.snapshots"):
                secure.allow("exporter", "Read", topic)
            secure.allow("exporter", "Describe", world.topic_of("mail"))
            world.exporter(kafka=secure.config("exporter", "pw-of-exporter"))
            world.begin()
            world.at(BREAKS_S)
            secure.forbid("exporter", "Describe", world.topic_of("mail"))
            world.end(330).write(to / "topic-hidden.yaml")


WORLDS: Final[dict[str, Callable[[Servers, Path], None]]] = {
    "groups": groups,
    "broker": broker,
    "offline": offline,
    "slow": slow,
    "exporter": exporter_gone,
    "remade": remade,
    "skewed": skewed,
    "refused": refused,
    "hidden": hidden,
    "ranges": ranges,
}

"""Servers, links and client processes of one run."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
import pymysql
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from harvest.databases.mysql.table import connect_arguments
from marshal_py.admin.group_admin import GroupAdmin
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka, EmbeddedMariaDB, EmbeddedPostgres
from marshal_py.embedded.errors import BinariesNotFound, NotRunning, ServerFailed
from marshal_py.embedded.ports import free_ports
from marshal_py.embedded.process import Guard, ServerProcess, tail
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.messages import Heartbeat, encode
from marshal_py.protocol.rationalizer import BOUNDARY
from marshal_py.protocol.world import coordinating_partition
from tests.chaos.checker import STALL, Era
from tests.chaos.clocks import WallClocks, build
from tests.chaos.config import BETWEEN, NETWORKS, QUORUM, ChaosConfig, client_of, group_of
from tests.chaos.disks import SmallDisk, possible
from tests.chaos.network import Network
from tests.chaos.rawlog import read_topic
from tests.chaos.receiver import Receiver
from tests.chaos.recorder import Recorder, now_ns, read
from tests.support.paths import ROOT

__all__ = ["Stage", "open_stage", "wait_until", "watch_for_stalls"]

_HOST: Final = "127.0.0.1"
_ROOT: Final = ROOT

_TABLES: Final = """
CREATE TABLE keys (key INT PRIMARY KEY, seq BIGINT NOT NULL);
INSERT INTO keys SELECT n, 0 FROM generate_series(0, 19) AS n;
CREATE TABLE truth (row_id TEXT PRIMARY KEY, key INT NOT NULL, seq BIGINT NOT NULL);
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
    IF current_setting(''chaos.veto'', true) = ''on'' THEN RAISE ''vetoed''$ END IF$
    RETURN NULL$
END';
CREATE CONSTRAINT TRIGGER veto AFTER INSERT ON truth DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION veto();
"""
"""The trigger makes a COMMIT fail, when everything before it went well."""

_MARIA_TABLES: Final = (
    "CREATE TABLE ledger (name INT PRIMARY KEY, seq BIGINT NOT NULL)",
    "INSERT INTO ledger VALUES " + ", ".join(f"({n}, 0)" for n in range(20)),
    "CREATE TABLE truth (row_id VARCHAR(32) PRIMARY KEY, name INT NOT NULL, seq BIGINT NOT NULL)",
)

_READY_S: Final = 180.0
"""For a broker to come back: a machine may be busy, and the quorum may have to be found first."""

_FROM_SNAPSHOT: Final = "records replayed, from snapshots"
"""What a client says when it has started."""

_BEFORE_BOUNDARY: Final = 15
"""So few records are missing until a snapshot is due, when the clients begin."""

_PULSE_S: Final = 0.05
_STALL_S: Final = 0.25

_MARIA: Final = "shop"
"""Its database."""

_DISK_MB: Final = {"broker": 192, "postgres": 320}


class Stage:
    """What faults are done to. Processes are started, killed, paused and woken by name."""

    def __init__(
        self,
        config: ChaosConfig,
        kafka: EmbeddedKafka,
        postgres: EmbeddedPostgres,
        maria: EmbeddedMariaDB | None,
        receiver: Receiver,
        network: Network,
        guard: Guard,
    ) -> None:
        self.config, self.kafka, self.postgres, self.network = config, kafka, postgres, network
        self.maria = maria
        """None where it is not installed."""
        self.receiver = receiver
        self.interval_s = config.interval_ms / 1000
        self.record = Recorder(config.history("director"))
        self.names = [*config.writer_names, *config.claimer_names, *config.alo_names]
        self.names += [*config.amo_names, *config.runner_names, *config.text_names]
        self.names += config.harvester_names
        self.hurry = threading.Event()
        """Ends all waiting."""
        self.disks: dict[str, SmallDisk] = {}
        """ "broker" (the last one's) and "postgres", where mounting is allowed."""
        library = build(Path(config.folder))
        self.clocks = None if library is None else WallClocks(Path(config.folder), library)
        """None where there is no C compiler."""
        self.links_lock = threading.Lock()
        """Held by who breaks links between clients and brokers, and counts on how they are."""
        self.lost: list[Era] = []
        """What became of the claimers' log, each time that it lost records."""
        self.stalls = 0
        self.snapshots = 0
        """How many the log had in the end."""
        self._guard = guard
        self._processes: dict[str, ServerProcess] = {}
        self._down: set[str] = set()
        self._busy = {name: threading.Lock() for name in [*self.names, *config.twin_names]}

    def wait(self, seconds: float) -> None:
        """Let time pass, unless the run ends."""
        self.hurry.wait(seconds)

    def up(self, broker: int | None = None) -> None:
        """Bring up a broker, or all. Those that give up are started again, as by systemd.

        A broker ends by itself when it finds no majority of controllers, or none that takes it in,
        for a minute; and may hang while it ends.
        """
        for _ in range(3):
            try:
                self.kafka.start(broker)
            except ServerFailed:
                for one in range(3) if broker is None else (broker,):
                    with contextlib.suppress(NotRunning):
                        self.kafka.kill(one)
            if all(map(self.kafka.running, range(3))):
                return
            broker = None  # another one gave up meanwhile
        self.kafka.start()

    def start(self, name: str) -> None:
        """Start a process, or start it again."""
        module = ["tests.chaos.workers", str(self.config.path), name]
        if name.startswith("harvester"):
            module = ["harvest.cli", "reap", "--config", self._reaper_yaml(name)]
        clock = self.clocks.environment(client_of(name)) if self.clocks else {}
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        self._processes[name] = self._guard.spawn(
            [sys.executable, "-m", *module],
            env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", **clock},
            cwd=Path(self.config.folder),
            log=Path(self.config.folder) / f"{name}.log",
        )
        self._down.discard(name)

    def _reaper_yaml(self, name: str) -> str:
        config, path = self.config, Path(self.config.folder) / f"{name}.yaml"
        content: dict[str, Any] = {
            "kafka": {"bootstrap.servers": config.bootstrap[config.network(name)]},
            "database": config.dsn,
            "group": "rows",
            "name": name,
            "coordination": {"topic": config.log, "interval_ms": config.interval_ms},
        }
        if name.startswith("harvester-range"):
            ranged = {"mode": "range", "shards": config.shards, "outbox": "ranged"}
            content |= ranged | {"group": "ranged"}
        if name.startswith("harvester-wal"):
            content |= {"mode": "wal", "outbox": "logged", "group": "logged"}
        if name.startswith("harvester-relay"):
            there: dict[str, Any] = {"http": {"uri": f"{config.destination}/{{key}}"}}
            there["http"]["timeout_ms"] = 4_000
            there |= {"attempts": 1_000, "backoff_ms": 50, "max_backoff_ms": 500}
            there |= {"breaker_open_ms": 100, "max_breaker_open_ms": 1_000}
            content |= {"outbox": "posted", "group": "posted", "destinations": {"there": there}}
        if name.startswith("harvester-maria"):
            content |= {"database": config.maria_dsn, "group": "maria"}
        path.write_text(yaml.safe_dump(content))
        return str(path)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for the end. Nobody but `start` brings it back."""
        with self._busy[name]:
            self._down.add(name)
            process = self._processes[name]
            if process.poll() is None:
                process.signal(signal.SIGKILL)
                process.wait(10)
        self.record.write("dead", now_ns(), name)

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self._processes[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._processes[name].signal(signal.SIGCONT)

    def refused(self, name: str, since_ns: int, timeout_s: float) -> bool:
        """Wait until a process says that it may take no part in its group, and ends."""

        def is_so() -> bool:
            lines = read(self.config.history(name))
            said = any(line[0] == "refused" and line[1] >= since_ns for line in lines)
            return said and self._processes[name].poll() == 0

        return wait_until(is_so, timeout_s)

    def await_ready(self, names: list[str]) -> bool:
        """Wait until processes have begun to take part since they were started last."""

        def are() -> bool:
            begun = [read(self.config.history(name))[::-1] for name in names]
            last = [next(li[0] for li in lines if li[0] in ("start", "ready")) for lines in begun]
            return all(what == "ready" for what in last)

        return wait_until(are, 60)

    def threads(self) -> dict[str, int]:
        """Of each process that runs, how many threads it has, librdkafka's included."""
        return {
            name: len(os.listdir(f"/proc/{process.pid}/task"))
            for name, process in self._processes.items()
            if process.poll() is None
        }

    def running(self) -> dict[str, bool]:
        """Which processes run. One that ended by itself is a finding."""
        return {name: p.poll() is None for name, p in self._processes.items()}

    def supervise(self) -> int:
        """Start harvesters again that gave up because a server was down when they began.

        That is what they say they do (exit code 3), and what a supervisor is for. (Code 2: a link
        takes a connection, and no broker is behind it; that looks like TLS against plaintext.)
        """
        again = 0
        for name in self.config.harvester_names:
            process = self._processes[name]
            with self._busy[name]:
                if name not in self._down and process.poll() in (2, 3):
                    self.start(name)
                    again += 1
        return again

    def finish(self, names: list[str], timeout_s: float = 20.0) -> list[str]:
        """Ask processes to end, and return those that did not, or not in good order."""
        bad = []
        for name in names:
            self._processes[name].signal(signal.SIGCONT)
            self._processes[name].signal(signal.SIGTERM)
        for name in names:
            if not self._processes[name].wait(timeout_s):
                self.tell_threads(name)
                self._processes[name].wait(10)
                bad.append(f"{name} did not end\n{self.said(name, lines=200)}")
            elif self._processes[name].poll() != 0:
                code = self._processes[name].poll()
                bad.append(f"{name} ended with {code}\n{self.said(name)}")
        return bad

    def tell_threads(self, name: str) -> None:
        """Have it written into a process's log where its threads are; it ends."""
        process = self._processes[name]
        if shutil.which("gdb"):  # those of librdkafka, too
            ask = ["gdb", "-p", str(process.pid), "-batch", "-ex", "thread apply all bt"]
            with (Path(self.config.folder) / f"{name}.threads").open("w") as file:
                subprocess.run(ask, stdout=file, stderr=subprocess.STDOUT, timeout=60, check=False)
        process.signal(signal.SIGABRT)

    def said(self, name: str, lines: int = 12) -> str:
        """The end of a process's log."""
        return tail(Path(self.config.folder) / f"{name}.log", lines=lines)

    def started_from_snapshots(self) -> int:
        """How often a client began from a snapshot, by its own log."""
        logs = Path(self.config.folder).glob("*.log")
        return sum(log.read_text(errors="replace").count(_FROM_SNAPSHOT) for log in logs)

    def elect_preferred(self) -> None:
        """Let the preferred brokers lead again."""
        from confluent_kafka import ElectionType

        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        with contextlib.suppress(Exception):  # nothing to elect is an error too
            admin.elect_leaders(ElectionType.PREFERRED).result(10)

    def replicas(self, wanted: set[int], timeout_s: float = 60.0) -> None:
        """Wait until these are the in-sync replicas of every partition. Raises `TimeoutError`."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})

        def are() -> bool:
            topics = admin.list_topics(timeout=5).topics.values()
            parts = [part for topic in topics for part in topic.partitions.values()]
            return all(set(part.isrs) == wanted & set(part.replicas) for part in parts)

        if not wait_until(are, timeout_s):
            raise TimeoutError(f"the replicas in sync were not {wanted} within {timeout_s:g} s")

    def cut_off(self) -> None:
        """Let no client reach any broker. The caller holds `links_lock`."""
        for network, broker in itertools.product(NETWORKS, range(3)):
            self.network.set(f"{network}-{broker}", "cut")

    def let_in(self) -> None:
        """Let all clients reach all brokers again."""
        for network, broker in itertools.product(NETWORKS, range(3)):
            self.network.set(f"{network}-{broker}", "open")

    def keep_claims(self, kind: str) -> None:
        """Remember the claimers' log as it is, to judge what was before; nobody can write to it."""
        log = read_topic(self.config.direct, self.config.claims_log)
        self.lost.append(Era(kind, now_ns(), log))

    def alter_claims_log(self, settings: dict[str, str]) -> None:
        """Set settings of the claimers' log."""
        from confluent_kafka.admin import (
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        change = AlterConfigOpType.SET
        entries = [
            ConfigEntry(name, value, incremental_operation=change)
            for name, value in settings.items()
        ]
        log = ConfigResource(
            ResourceType.TOPIC, self.config.claims_log, incremental_configs=entries
        )

        def alter() -> bool:
            admin = self.kafka.admin()  # has to live until there is an answer
            (future,) = admin.incremental_alter_configs([log]).values()
            future.result(20)
            return True

        if not wait_until(alter, 60):  # a broker may be going down, and its requests with it
            raise TimeoutError(f"{self.config.claims_log} could not be altered within 60 s")

    def _claims_partitions(self) -> dict[int, Any]:
        name = self.config.claims_log
        found = self.kafka.admin().list_topics(name, timeout=5).topics[name].partitions
        return dict(found)

    @property
    def _home(self) -> Any:
        """The partition that the claimers write to, as the brokers describe it."""
        config = self.config
        home = coordinating_partition("claimer", config.coordination_partitions)
        return self._claims_partitions()[home]

    def leader_of_claims(self) -> int:
        """The node that leads the partition that the claimers write to; −1: none."""
        return int(self._home.leader)

    def is_left_alone(self, node: int) -> bool:
        """Wait until a broker is the only one in sync of that partition; False if it leads no more.

        Of others to which nobody writes, those that cannot read are in sync all the same. Raises
        `TimeoutError`.
        """

        def is_over() -> bool:
            home = self._home
            return bool(home.isrs == [node] or home.leader != node)

        if not wait_until(is_over, 60):
            raise TimeoutError(f"broker {node} was not left alone within 60 s")
        return bool(self._home.isrs == [node])

    def await_leaders(self, dead: int) -> None:
        """Wait until others than that broker lead the claimers' log. Raises `TimeoutError`."""

        def do() -> bool:
            leaders = {part.leader for part in self._claims_partitions().values()}
            return not leaders & {dead, -1}

        if not wait_until(do, 60):
            raise TimeoutError(f"nobody leads in place of broker {dead} after 60 s")

    def lost_of_claims(self) -> int:
        """How many records of the claimers' log, as it was kept last, are not there any more."""
        log = read_topic(self.config.direct, self.config.claims_log)
        there = {(p, record.offset, record.value) for p in log for record in log[p]}
        old = self.lost[-1].log
        return sum((p, r.offset, r.value) not in there for p in old for r in old[p])

    def make_claims_log(self) -> None:
        """Make the claimers' log, as soon as the brokers have forgotten one of the same name."""

        def made() -> bool:
            count = self.config.coordination_partitions
            plans = create_topics(
                self.config.direct, topic=self.config.claims_log, partitions=count
            )
            return not plans[0].existed

        if not wait_until(made, 60):
            raise TimeoutError(f"{self.config.claims_log} could not be made within 60 s")

    def set_level(self, level: int) -> None:
        """Set the level of the claimers' group, as an operator does. Raises `GroupInUse`."""
        config = self.config
        for is_last in (False, False, True):
            try:
                with GroupAdmin(config.direct, "claimer", topic=config.claims_log) as admin:
                    admin.set_level(level, even_if_unknown=True)
            except BrokerUnavailable:
                if is_last:
                    raise
            else:
                return

    def data_of(self, broker: int) -> Path:
        """The folder of a broker's partitions."""
        return self.kafka._broker(broker).folder / "data"

    @property
    def maria_statements(self) -> Path | None:
        """What MariaDB was asked, by whom and when; None without a MariaDB."""
        here = None if self.maria is None else self.maria._state
        return None if here is None else here.data / STATEMENTS

    def disconnect(self) -> int:
        """End all other sessions of PostgreSQL; return how many there were."""
        with contextlib.suppress(psycopg.Error), self.database() as connection:
            query = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            row = connection.execute(query).fetchone()
            return int(row[0]) if row else 0
        return 0

    def database(self) -> psycopg.Connection[Any]:
        """A session that no link can break."""
        return psycopg.connect(self.postgres.dsn, connect_timeout=5, autocommit=True)

    def ask_maria(self, query: str) -> list[tuple[Any, ...]]:
        """Ask MariaDB, past its link; [] where there is none."""
        if self.maria is None:
            return []
        url = self.maria.dsn_of(_MARIA)
        with pymysql.connect(**connect_arguments(url), connect_timeout=5) as connection:
            return _execute(connection, query)


@contextlib.contextmanager
def open_stage(
    seed: int, *, folder: Path | None = None, sabotage: str = "", interval_ms: int = 1_000
) -> Iterator[Stage]:
    """Start servers and links, make topics and tables; remove everything in the end.

    `folder` keeps the histories and logs; None for a temporary one.
    """
    with contextlib.ExitStack() as stack:
        here = folder or Path(tempfile.mkdtemp(prefix="marshal-chaos-"))
        here.mkdir(parents=True, exist_ok=True)
        network = Network()
        stack.callback(network.close)
        ways = [*NETWORKS, BETWEEN]
        pairs = [(way, broker) for way in ways for broker in range(3)]
        between = [(a, b) for a in range(3) for b in range(3) if a != b]
        others = ("postgres", "destination", "maria")
        # In one go: of two, the second may find free what the first has found.
        ports = iter(free_ports(2 * len(pairs) + len(between) + len(others)))
        inner = dict(zip(pairs, ports, strict=False))
        outer = dict(zip(pairs, ports, strict=False))
        votes = dict(zip(between, ports, strict=False))
        ways_in = dict(zip(others, ports, strict=False))

        def properties(broker: int, defaults: Mapping[str, object]) -> dict[str, object]:
            own = str(defaults["listeners"])
            plain = own.split(",")[0]
            listeners = ",".join(f"{n}://{_HOST}:{inner[n, broker]}" for n in ways)
            advertised = ",".join(f"{n}://{_HOST}:{outer[n, broker]}" for n in ways)
            names = ",".join(f"{n}:PLAINTEXT" for n in ways)
            voters = str(defaults["controller.quorum.voters"]).split(",")
            for other, voter in enumerate(voters):
                if other != broker:  # each controller reaches each other one by a way of its own
                    port = votes[broker, other]
                    if f"{QUORUM}-{broker}-{other}" not in network.links:
                        target = int(voter.rpartition(":")[2])
                        network.add(f"{QUORUM}-{broker}-{other}", port, target)
                    voters[other] = f"{other + 1}@{_HOST}:{port}"
            return {
                "listeners": f"{own},{listeners}",
                "advertised.listeners": f"{plain},{advertised}",
                "listener.security.protocol.map": f"{defaults['listener.security.protocol.map']},"
                + names,
                "controller.quorum.voters": ",".join(voters),
                "inter.broker.listener.name": BETWEEN,
                "auto.leader.rebalance.enable": "false",
                "controlled.shutdown.enable": "true",
                "replica.lag.time.max.ms": "5000",
            }

        raft = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.raft=info"
        kafka = EmbeddedKafka(
            3,
            properties=properties,
            jvm_options=(raft,),
            log_dir=here,
            timeout_s=_READY_S,
            progress=None,
        )
        postgres = EmbeddedPostgres(log_dir=None)
        stack.callback(kafka.close)
        stack.callback(postgres.close)
        for (name, broker), port in outer.items():
            network.add(f"{name}-{broker}", port, inner[name, broker])
        postgres.start()
        kafka.start()
        receiver = stack.enter_context(Receiver())
        maria = _maria(stack, here)
        network.add("postgres", ways_in["postgres"], postgres.port)
        network.add("destination", ways_in["destination"], receiver.port)
        if maria is not None:
            network.add("maria", ways_in["maria"], maria.port)
        config = ChaosConfig(
            folder=str(here),
            seed=seed,
            bootstrap={n: ",".join(f"{_HOST}:{outer[n, b]}" for b in range(3)) for n in NETWORKS},
            direct=kafka.bootstrap_servers,
            dsn=postgres.dsn.replace(f":{postgres.port}/", f":{ways_in['postgres']}/"),
            destination=f"http://{_HOST}:{ways_in['destination']}",
            maria_dsn=f"mysql://root@{_HOST}:{ways_in['maria']}/{_MARIA}" if maria else "",
            interval_ms=interval_ms,
            sabotage=sabotage,
        )
        config.save()
        _prepare(config, kafka, postgres)
        guard = Guard(here / "guard")
        stack.callback(guard.close)
        stage = Stage(config, kafka, postgres, maria, receiver, network, guard)
        stage.make_claims_log()
        if possible():
            _small_disks(stage, stack)
        yield stage


def _small_disks(stage: Stage, stack: contextlib.ExitStack) -> None:
    """Give the last broker and the database disks of their own, which can be filled."""
    homes = {
        "broker": stage.data_of(2),
        "postgres": stage.postgres._installation.data,
    }
    stage.kafka.stop(2)
    stage.postgres.stop()
    for name, home in homes.items():
        stage.disks[name] = SmallDisk(home, _DISK_MB[name])
        stack.callback(stage.disks[name].close)
    stage.postgres.start()
    stage.kafka.start(2)


STATEMENTS: Final = "statements.log"
"""What MariaDB was asked: in the folder of its data, which is gone with it."""


def _maria(stack: contextlib.ExitStack, folder: Path) -> EmbeddedMariaDB | None:
    """A MariaDB with an outbox, and the books of what was committed; None where it is not found."""
    from harvest.databases.mysql.mark import MysqlMarkStore

    try:
        asked = {"general-log": 1, "general-log-file": STATEMENTS}
        maria = stack.enter_context(EmbeddedMariaDB(log_dir=folder, settings=asked))
    except BinariesNotFound:
        return None
    url = maria.create_database(_MARIA)
    with pymysql.connect(**connect_arguments(url), autocommit=True) as connection:
        for statement in _MARIA_TABLES:
            _execute(connection, statement)
    with contextlib.closing(MysqlMarkStore(url, "outbox")) as store:
        store.init()
    return maria


def _execute(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _prepare(config: ChaosConfig, kafka: EmbeddedKafka, postgres: EmbeddedPostgres) -> None:
    from harvest.databases.postgres.mark import PostgresMarkStore
    from harvest.databases.postgres.range import PostgresRangeStore
    from harvest.databases.postgres.wal import PostgresWalSource

    create_topics(
        kafka.bootstrap_servers, topic=config.log, partitions=config.coordination_partitions
    )
    create_topics(
        kafka.bootstrap_servers,
        topic=config.text_log,
        partitions=config.coordination_partitions,
        with_snapshots=False,
    )
    _fill_to_boundary(config)
    for topic in ("alo", "amo", "run", "run.dlq", "text", "rows", "ranged", "logged", "maria"):
        kafka.create_topic(topic, config.partitions)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for statement in _TABLES.split(";"):
            if statement.strip():
                connection.execute(statement.replace("$", ";"))
    for store in (
        PostgresMarkStore(postgres.dsn, "outbox"),
        PostgresMarkStore(postgres.dsn, "posted"),
        PostgresRangeStore(postgres.dsn, "ranged", shards=config.shards),
        PostgresWalSource(postgres.dsn, "logged"),
    ):
        with contextlib.closing(store):
            store.init()


def _fill_to_boundary(config: ChaosConfig) -> None:
    """Snapshots are due at multiples of 4,096: heartbeats of nobody bring the log close to one."""
    producer = Producer({"bootstrap.servers": config.direct, "enable.idempotence": True})
    for p in range(config.coordination_partitions):
        group = group_of(p, config.coordination_partitions)
        for seq in range(BOUNDARY - _BEFORE_BOUNDARY):
            record = Heartbeat(2, "filler", "filler.1", group, seq, config.interval_ms)
            producer.produce(config.log, encode(record), partition=p)
        if producer.flush(60):
            raise RuntimeError("the log could not be filled")


def watch_for_stalls(stage: Stage, ended: threading.Event) -> None:
    """Record when this machine stood still, as everything on it must have then."""
    before = now_ns()
    while not ended.wait(_PULSE_S):
        after = now_ns()
        if after - before > _STALL_S * 1e9:
            stage.record.write("fault", STALL, before, after, "this machine")
            stage.stalls += 1
        before = after


def wait_until(question: Any, timeout_s: float, pause_s: float = 0.3) -> bool:
    """Ask until the answer is true; False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            if question():
                return True
        time.sleep(pause_s)
    return False

"""A real Apache Kafka (KRaft) for tests and demos, from registry packages alone."""

from __future__ import annotations

import importlib.util
import signal
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .errors import InvalidArgument, MissingExtra, NotRunning, PortTaken, ServerFailed
from .image import KafkaImage, java_environment, kafka_image, random_id
from .jars import DEFAULT_VERSION
from .java import find_java
from .ports import HOST, free_ports
from .process import Guard, Progress, ServerProcess, tail, to_stderr

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_START_ATTEMPTS = 5
_POLL_INTERVAL_S = 0.02
_HEAP_MB = {1: 512, 3: 320}


class EmbeddedKafka:
    """One or three brokers of a real Apache Kafka on free ports of 127.0.0.1.

    ::

        with EmbeddedKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    Brokers can be killed, paused, stopped and started again one by one; each keeps its port and its
    data. Everything is removed on `close`, and also when this process ends in any way, SIGKILL
    included. The first use of a version downloads 43 MB into a per-user cache (see `kafka_home`).

    - `brokers`: 1 or 3 (each is a controller too: a quorum of 1 or 3).
    - `version`: of Apache Kafka, 3.9.1 or newer.
    - `properties`: broker settings over the defaults, which suit tests: replication factors fit the
      number of brokers, no rebalance delay, no automatic topics, a broker counts as dead after 1 s (one broker) or 3 s (three).
    - `log_dir`: folder for the brokers' own logs, kept afterwards; None puts them into the
      temporary folder. When a start fails, the error shows their end in any case.
    - `java`: see `find_java`; `jars_from`: see `way` of `kafka_home`.
    - `jvm_options`: more flags for the JVM, such as `-Xmx1g` (default heap: 512 MB for one broker,
      320 MB each for three) or `-XX:TieredStopAtLevel=4` for throughput.
    - `timeout_s`: for a start.
    - `progress`: called with a line of text when something takes long; None for silence.

    Instances are not thread-safe, except that `kill`, `pause` and `resume` may come from any thread.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = DEFAULT_VERSION,
        properties: Mapping[str, object] | None = None,
        log_dir: Path | str | None = None,
        java: str | None = None,
        jars_from: str | None = None,
        jvm_options: Sequence[str] = (),
        timeout_s: float = 60.0,
        progress: Progress | None = to_stderr,
    ) -> None:
        if brokers not in _HEAP_MB:
            raise InvalidArgument(f"brokers={brokers!r} must be 1 or 3")
        self._count = brokers
        self._version = version
        self._properties = dict(properties or {})
        self._log_dir = Path(log_dir).absolute() if log_dir is not None else None
        self._java = java
        self._jars_from = jars_from
        self._jvm_options = tuple(jvm_options)
        self._timeout_s = timeout_s
        self._progress = progress or (lambda _: None)
        self._guard: Guard | None = None
        self._image: KafkaImage | None = None
        self._folder = Path()
        self._cluster_id = ""
        self._ports: list[int] = []
        self._controller_ports: list[int] = []
        self._servers: list[ServerProcess | None] = [None] * brokers
        self._log_starts = [0] * brokers

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every broker, joined by commas. The same over restarts."""
        if not self._ports:
            raise NotRunning("EmbeddedKafka was not started: use `with`, or call start()")
        return ",".join(f"{HOST}:{port}" for port in self._ports)

    @property
    def brokers(self) -> int:
        """The number of brokers."""
        return self._count

    @property
    def version(self) -> str:
        """The version of Apache Kafka."""
        return self._version

    def port(self, broker: int = 0) -> int:
        """The port of a broker, counted from 0 (its node id is one more)."""
        self._check(broker)
        if not self._ports:
            raise NotRunning("EmbeddedKafka was not started: use `with`, or call start()")
        return self._ports[broker]

    def running(self, broker: int = 0) -> bool:
        """Whether the process of a broker exists (a paused one does)."""
        self._check(broker)
        server = self._servers[broker]
        return server is not None and server.poll() is None

    def log_path(self, broker: int = 0) -> Path:
        """The file with everything that a broker wrote to its log, over all its restarts."""
        self._check(broker)
        return (self._log_dir or self._folder) / f"broker-{broker}.log"

    def start(self, broker: int | None = None) -> None:
        """Start one broker, or all that are not running, and wait until they serve requests.

        A broker starts on its old port with its old data. Raises `ServerFailed`, with the end of
        the log, when one ends or is not ready within `timeout_s`; `PortTaken` when another process
        has its port meanwhile.
        """
        if self._guard is None:
            self._create()
            return
        wanted = range(self._count) if broker is None else [broker]
        started = [i for i in wanted if not self.running(i)]
        for index in started:
            self._spawn(index)
        self._wait_ready(started)

    def stop(self, broker: int | None = None) -> None:
        """Stop one broker, or all, in good order. Data and ports stay for a later `start`."""
        wanted = range(self._count) if broker is None else [broker]
        running = [(i, server) for i in wanted if (server := self._servers[i]) and self.running(i)]
        for _, server in running:
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGTERM)
        for index, server in running:
            # without a majority of controllers a broker cannot leave in good order
            if not server.wait(10 if self._majority() else 1):
                server.signal(signal.SIGKILL)
                server.wait(10)
            self._servers[index] = None

    def kill(self, broker: int = 0) -> None:
        """Kill a broker with SIGKILL and wait for its end. `start` brings it back with its data."""
        server = self._server(broker)
        server.signal(signal.SIGKILL)
        server.wait(10)

    def pause(self, broker: int = 0) -> None:
        """Freeze a broker (SIGSTOP): connections stay open, nothing answers."""
        self._server(broker).signal(signal.SIGSTOP)

    def resume(self, broker: int = 0) -> None:
        """Wake a frozen broker (SIGCONT)."""
        self._server(broker).signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill everything that runs and remove the temporary folder. Idempotent."""
        guard, self._guard = self._guard, None
        self._servers = [None] * self._count
        self._ports = []
        if guard is not None:
            guard.close()

    def admin(self, **settings: Any) -> AdminClient:
        """A new `confluent_kafka` AdminClient, silent about brokers that are down."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(
            {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **settings}
        )

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> str:
        """Create a topic, wait until each partition has a leader, and return its name.

        Without a name it gets a random one. The replication factor is the number of brokers unless
        given. Raises `confluent_kafka.KafkaException` when the cluster refuses.
        """
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        admin = self.admin()
        topic = NewTopic(
            name, partitions, replication_factor or self._count, config=dict(config or {})
        )
        admin.create_topics([topic], operation_timeout=timeout_s)[name].result(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            found = admin.list_topics(name, timeout=timeout_s).topics[name].partitions
            if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
                return name
            if time.monotonic() > deadline:
                raise ServerFailed(f"Topic {name!r} has no leaders after {timeout_s:g} s")
            time.sleep(_POLL_INTERVAL_S)

    def delete_topic(self, name: str, *, timeout_s: float = 30.0) -> None:
        """Delete a topic; fine if it does not exist."""
        from confluent_kafka import KafkaError, KafkaException

        admin = self.admin()  # the future ends in an error when its client goes away
        future = admin.delete_topics([name], operation_timeout=timeout_s)[name]
        try:
            future.result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    def _check(self, broker: int) -> None:
        if broker not in range(self._count):
            raise InvalidArgument(f"broker={broker!r} must be 0 to {self._count - 1}")

    def _server(self, broker: int) -> ServerProcess:
        self._check(broker)
        server = self._servers[broker]
        if server is None or server.poll() is not None:
            raise NotRunning(f"Broker {broker} is not running; start({broker}) starts it.")
        return server

    def _majority(self) -> bool:
        return 2 * sum(map(self.running, range(self._count))) > self._count

    def _create(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise MissingExtra("confluent-kafka is missing: run `pip install marshal-py`.")
        self._image = kafka_image(
            self._version, find_java(self._java), way=self._jars_from, progress=self._progress
        )
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._create_on_new_ports(self._image)
                return
            except PortTaken:
                self.close()
                if attempt == _START_ATTEMPTS:
                    raise
            except BaseException:
                self.close()
                raise

    def _create_on_new_ports(self, image: KafkaImage) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="marshal-kafka-"))
        self._guard = Guard(self._folder)
        self._cluster_id = random_id()
        ports = free_ports(2 * self._count)
        self._ports, self._controller_ports = ports[: self._count], ports[self._count :]
        if self._log_dir:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        for index in range(self._count):
            folder = self._folder / f"broker-{index}"
            image.format(folder / "data", cluster_id=self._cluster_id, node_id=index + 1)
            (folder / "tmp").mkdir()
            (folder / "server.properties").write_text(
                "".join(f"{k}={v}\n" for k, v in self._settings(index, folder).items())
            )
            self._spawn(index)
        self._wait_ready(range(self._count))

    def _settings(self, index: int, folder: Path) -> dict[str, object]:
        count = self._count
        voters = (f"{i + 1}@{HOST}:{port}" for i, port in enumerate(self._controller_ports))
        defaults: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": index + 1,
            "listeners": f"PLAINTEXT://{HOST}:{self._ports[index]},"
            f"CONTROLLER://{HOST}:{self._controller_ports[index]}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(voters),
            "log.dirs": folder / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": count,
            "min.insync.replicas": 1 if count == 1 else 2,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 500,
            # A dead broker loses its partitions, and a killed one may come back, after this time,
            # which is 9 s by default. A single broker has nobody to be slower than.
            "broker.session.timeout.ms": 1000 if count == 1 else 3000,
            "broker.heartbeat.interval.ms": 200 if count == 1 else 500,
            # small, for a small heap and a fast start
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            "num.network.threads": 2,
            "num.io.threads": 4,
        }
        for topic in ("offsets.topic", "transaction.state.log"):
            defaults[f"{topic}.replication.factor"] = count
            defaults[f"{topic}.num.partitions"] = 4
        defaults["transaction.state.log.min.isr"] = 1 if count == 1 else 2
        if not self._version.startswith("3."):
            defaults["share.coordinator.state.topic.replication.factor"] = count
            defaults["share.coordinator.state.topic.min.isr"] = 1 if count == 1 else 2
            defaults["share.coordinator.state.topic.num.partitions"] = 4
        return {**defaults, **self._properties}

    def _spawn(self, index: int) -> None:
        assert self._guard is not None
        assert self._image is not None
        self._check(index)
        folder = self._folder / f"broker-{index}"
        log = self.log_path(index)
        self._log_starts[index] = log.stat().st_size if log.exists() else 0
        flags = (
            f"-Xmx{_HEAP_MB[self._count]}m",
            f"-Djava.io.tmpdir={folder / 'tmp'}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            *self._jvm_options,
        )
        self._servers[index] = self._guard.spawn(
            self._image.command("kafka.Kafka", str(folder / "server.properties"), flags=flags),
            env=java_environment(),
            cwd=folder,
            log=log,
        )

    def _wait_ready(self, brokers: Sequence[int]) -> None:
        """Until each of these brokers says that the cluster holds it and all that run."""
        deadline = time.monotonic() + self._timeout_s
        for index in brokers:
            server = self._server(index)
            admin = self.admin(
                **{
                    "bootstrap.servers": f"{HOST}:{self._ports[index]}",
                    "reconnect.backoff.ms": 10,
                    "reconnect.backoff.max.ms": 50,
                }
            )
            while not self._serves(index, admin):
                if server.poll() is not None:
                    self._raise_failed(index, f"ended with code {server.poll()}")
                if time.monotonic() > deadline:
                    self._raise_failed(index, f"was not ready within {self._timeout_s:g} s")
                time.sleep(_POLL_INTERVAL_S)

    def _serves(self, index: int, admin: AdminClient) -> bool:
        from confluent_kafka import KafkaException

        try:
            metadata = admin.list_topics(timeout=1)
        except KafkaException:
            return False
        running = {i + 1 for i in range(self._count) if self.running(i)}
        return metadata.cluster_id == self._cluster_id and running <= set(metadata.brokers)

    def _raise_failed(self, index: int, what: str) -> None:
        log = tail(self.log_path(index), start=self._log_starts[index])
        kind = PortTaken if "Address already in use" in log else ServerFailed
        raise kind(f"Kafka broker {index} {what}. The end of its log:\n{log}")

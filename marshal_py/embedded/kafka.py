"""A real Apache Kafka (KRaft) for tests and demos, from registry packages alone."""

from __future__ import annotations

import importlib.util
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from . import broker_settings
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
_STOP_TIMEOUT_S = 10.0
_STOP_ALONE_TIMEOUT_S = 1.0
_HEAP_MB = {1: 512, 3: 320}
_LOG_FLAGS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


PropertiesOf = Callable[[int, Mapping[str, object]], Mapping[str, object]]


@dataclass
class _Broker:
    """One broker of a cluster, over all its restarts."""

    index: int
    port: int
    folder: Path
    log: Path
    process: ServerProcess | None = None
    log_start: int = 0
    """Size of the log when the current process started."""

    @property
    def node_id(self) -> int:
        return self.index + 1

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class _Cluster:
    """What exists between `start` and `close`."""

    image: KafkaImage
    folder: Path
    guard: Guard
    cluster_id: str = field(default_factory=random_id)
    brokers: list[_Broker] = field(default_factory=list)


class EmbeddedKafka:
    """One or three brokers of a real Apache Kafka on free ports of 127.0.0.1.

    ::

        with EmbeddedKafka() as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    Brokers can be killed, paused, stopped and started again one by one; each keeps its port and its
    data. Everything is removed on `close`, and also when this process ends in any way, SIGKILL
    included. The first use of a version downloads 43 MB into a per-user cache (see `kafka_home`).

    - `brokers`: 1 or 3. Each is a controller too, so they make a quorum of 1 or 3.
    - `version`: of Apache Kafka, 3.9.1 or newer.
    - `properties`: broker settings over the defaults, which suit tests: replication factors fit the
      number of brokers, no rebalance delay, no automatic topics. A broker counts as dead after 6 s
      (three: 3 s); for so long a killed one has to wait before it is let in again.
      A function (broker, defaults) -> settings gives each broker its own.
    - `client_config`: librdkafka settings that a client needs because of these `properties`, such
      as those for SASL; for the readiness check and for `admin`.
    - `log_dir`: folder for the brokers' own logs, kept afterwards; None puts them into the
      temporary folder. When a start fails, the error shows their end in any case.
    - `java`: see `find_java`. `jars_from`: see `way` of `kafka_home`.
    - `jvm_options`: more flags for the JVM, such as `-Xmx1g` (the heap has 512 MB, or 320 MB each
      with three brokers).
    - `timeout_s`: for a start.
    - `progress`: called with a line of text when something takes long; None for silence.

    `kill`, `pause` and `resume` may come from any thread; everything else from one at a time.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = DEFAULT_VERSION,
        properties: Mapping[str, object] | PropertiesOf | None = None,
        client_config: Mapping[str, Any] | None = None,
        log_dir: Path | str | None = None,
        java: str | None = None,
        jars_from: str | None = None,
        jvm_options: Sequence[str] = (),
        timeout_s: float = 120.0,
        progress: Progress | None = to_stderr,
    ) -> None:
        if brokers not in _HEAP_MB:
            raise InvalidArgument(f"brokers={brokers!r} must be 1 or 3")
        self.brokers = brokers
        self.version = version
        self._properties = properties if callable(properties) else dict(properties or {})
        self._client_config = dict(client_config or {})
        self._log_dir = Path(log_dir).absolute() if log_dir is not None else None
        self._java = java
        self._jars_from = jars_from
        self._jvm_options = tuple(jvm_options)
        self._timeout_s = timeout_s
        self._progress = progress or (lambda _: None)
        self._state: _Cluster | None = None

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
        return ",".join(f"{HOST}:{broker.port}" for broker in self._cluster.brokers)

    def port(self, broker: int = 0) -> int:
        """The port of a broker, counted from 0 (its node id is one more)."""
        return self._broker(broker).port

    def pid(self, broker: int = 0) -> int:
        """The process id of a running broker."""
        return self._process(broker).pid

    def running(self, broker: int = 0) -> bool:
        """Whether the process of a broker exists (a paused one does)."""
        return self._state is not None and self._broker(broker).running

    def log_path(self, broker: int = 0) -> Path:
        """The file with all that a broker logged, over all its restarts."""
        return self._broker(broker).log

    def start(self, broker: int | None = None, *, wait: bool = True) -> None:
        """Bring up one broker, or all, and wait until the cluster serves them.

        A dead one starts on its old port with its old data, a paused one is resumed. With
        `wait=False` a later `start` waits: brokers of a cluster that lost its majority are only
        ready together. Raises `ServerFailed`, with the end of the log, when one ends or is not
        ready within `timeout_s`; `PortTaken` when another process has its port meanwhile.
        """
        if self._state is None:
            self._create()
            return
        wanted = self._cluster.brokers if broker is None else [self._broker(broker)]
        for one in wanted:
            if one.process is not None and one.running:
                one.process.signal(signal.SIGCONT)
            else:
                self._spawn(one)
        if wait:
            self._wait_ready(wanted)

    def stop(self, broker: int | None = None) -> None:
        """Stop one broker, or all, in good order. Data and ports stay for a later `start`.

        One that does not manage it, as without a majority of controllers, is killed after a while.
        """
        wanted = self._cluster.brokers if broker is None else [self._broker(broker)]
        stopping = [one.process for one in wanted if one.process is not None and one.running]
        for process in stopping:
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while stopping := [process for process in stopping if process.poll() is None]:
            majority = 2 * sum(one.running for one in self._cluster.brokers) > self.brokers
            if not majority:  # nobody left to take leave of
                deadline = min(deadline, time.monotonic() + _STOP_ALONE_TIMEOUT_S)
            if time.monotonic() > deadline:
                for process in stopping:
                    process.signal(signal.SIGKILL)
            time.sleep(_POLL_INTERVAL_S)

    def kill(self, broker: int = 0) -> None:
        """Kill a broker with SIGKILL and wait for its end. `start` brings it back with its data."""
        process = self._process(broker)
        process.signal(signal.SIGKILL)
        process.wait(10)

    def pause(self, broker: int = 0) -> None:
        """Freeze a broker (SIGSTOP): connections stay open, nothing answers any more."""
        self._process(broker).signal(signal.SIGSTOP)

    def resume(self, broker: int = 0) -> None:
        """Wake a frozen broker (SIGCONT)."""
        self._process(broker).signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill what runs and remove the temporary folder. Idempotent."""
        cluster, self._state = self._state, None
        if cluster is not None:
            cluster.guard.close()

    def admin(self, **settings: Any) -> AdminClient:
        """A new `confluent_kafka` AdminClient, silent about brokers that are down.

        Settings are librdkafka's, with `_` for `.` in their names.
        """
        from confluent_kafka.admin import AdminClient

        given = {name.replace("_", "."): value for name, value in settings.items()}
        base: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        return AdminClient(base | self._client_config | given)

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Create a topic, wait until each partition has a leader, and return its name.

        Without a name it gets a random one. The replication factor is the number of brokers unless
        given. Raises `confluent_kafka.KafkaException` when the cluster refuses.
        """
        from confluent_kafka.admin import NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        admin = self.admin()
        topic = NewTopic(
            name, partitions, replication_factor or self.brokers, config=dict(config or {})
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

    def delete_topic(self, name: str, *, timeout_s: float = 60.0) -> None:
        """Delete a topic; fine if it does not exist."""
        from confluent_kafka import KafkaError, KafkaException

        admin = self.admin()  # the future ends in an error when its client goes away
        future = admin.delete_topics([name], operation_timeout=timeout_s)[name]
        try:
            future.result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    @property
    def _cluster(self) -> _Cluster:
        if self._state is None:
            raise NotRunning("EmbeddedKafka is not started: use `with`, or call start().")
        return self._state

    def _broker(self, index: int) -> _Broker:
        if index not in range(self.brokers):
            raise InvalidArgument(f"broker={index!r} must be 0 to {self.brokers - 1}")
        return self._cluster.brokers[index]

    def _process(self, index: int) -> ServerProcess:
        process = self._broker(index).process
        if process is None or process.poll() is not None:
            raise NotRunning(f"Broker {index} is not running; start({index}) starts it.")
        return process

    def _create(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise MissingExtra("confluent-kafka is missing: run `pip install marshal-py`.")
        image = kafka_image(
            self.version, find_java(self._java), way=self._jars_from, progress=self._progress
        )
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._create_on_new_ports(image)
                return
            except PortTaken:
                self.close()
                if attempt == _START_ATTEMPTS:
                    raise
            except BaseException:
                self.close()
                raise

    def _create_on_new_ports(self, image: KafkaImage) -> None:
        folder = Path(tempfile.mkdtemp(prefix="marshal-kafka-"))
        cluster = self._state = _Cluster(image, folder, Guard(folder))
        logs = self._log_dir or folder
        ports = free_ports(2 * self.brokers)
        controller_ports = ports[self.brokers :]
        for index, port in enumerate(ports[: self.brokers]):
            own = folder / f"broker-{index}"
            broker = _Broker(index, port, own, cluster.guard.own_log(logs, f"broker-{index}"))
            image.format(own / "data", cluster_id=cluster.cluster_id, node_id=broker.node_id)
            (own / "tmp").mkdir()
            settings = broker_settings.listeners(broker.node_id, port, controller_ports)
            settings |= {"log.dirs": own / "data"}
            settings |= broker_settings.defaults_for_tests(self.version, self.brokers)
            given = self._properties
            settings |= given(index, settings) if callable(given) else given
            broker_settings.write(own / "server.properties", settings)
            cluster.brokers.append(broker)
            self._spawn(broker)
        self._wait_ready(cluster.brokers)

    def _spawn(self, broker: _Broker) -> None:
        flags = (
            f"-Xmx{_HEAP_MB[self.brokers]}m",
            f"-Djava.io.tmpdir={broker.folder / 'tmp'}",
            *_LOG_FLAGS,
            *self._jvm_options,
        )
        properties = str(broker.folder / "server.properties")
        broker.log_start = broker.log.stat().st_size if broker.log.exists() else 0
        broker.process = self._cluster.guard.spawn(
            self._cluster.image.command("kafka.Kafka", properties, flags=flags),
            env=java_environment(),
            cwd=broker.folder,
            log=broker.log,
        )

    def _wait_ready(self, brokers: Collection[_Broker]) -> None:
        """Until each of these brokers says that all of them are in the cluster."""
        deadline = time.monotonic() + self._timeout_s
        expected = {broker.node_id for broker in brokers}
        for broker in brokers:
            admin = self.admin(
                bootstrap_servers=f"{HOST}:{broker.port}",
                reconnect_backoff_ms=10,
                reconnect_backoff_max_ms=50,
            )
            while not self._knows(admin, expected):
                for one in brokers:
                    if not one.running:
                        self._raise_failed(one, "ended")
                if time.monotonic() > deadline:
                    self._raise_failed(broker, f"was not ready within {self._timeout_s:g} s")
                time.sleep(_POLL_INTERVAL_S)

    def _knows(self, admin: AdminClient, expected: set[int]) -> bool:
        from confluent_kafka import KafkaException

        try:
            metadata = admin.list_topics(timeout=1)
        except KafkaException:
            return False
        ours = metadata.cluster_id == self._cluster.cluster_id  # not another one on the same port
        return ours and expected <= set(metadata.brokers)

    def _raise_failed(self, broker: _Broker, what: str) -> NoReturn:
        log = tail(broker.log, start=broker.log_start)
        kind = PortTaken if "Address already in use" in log else ServerFailed
        raise kind(f"Kafka broker {broker.index} {what}. The end of its log:\n{log}")

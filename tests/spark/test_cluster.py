"""Every job on a standalone cluster whose two workers are hosts of their own, with a bare Python.

The executors' Python comes with each job, packed as docs/deploy/spark.md says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from marshal_py.embedded import EmbeddedKafka
from marshal_py.spark.lake.tables import Lake
from marshal_py.spark.watch import TIMEOUT_SETTING
from tests.spark import cluster_app
from tests.spark.lake_world import OUTBOX, Traffic
from tests.spark.logs import write
from tests.spark.test_reconcile import World
from tests.support.hosts import Hosts, HostsMissing, hosts
from tests.support.paths import DOCS, ROOT
from tests.support.spark_cluster import (
    SPARK_HOME,
    WITH_DELTA,
    SparkCluster,
    environment_for_driver,
    executor_of,
    kafka_for,
    pack,
    postgres_for,
    spark_cluster,
)
from tests.support.spark_commands import QUICK_JAVA
from tests.unit.marshal_py.protocol.history.test_partition_history import Script, life

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PATIENCE_S = 150.0
_JAVA = f"{QUICK_JAVA} -XX:+UseSerialGC"
FOR_TESTS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "900m",
    # Short jobs on few cores.
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "2",
    "spark.ui.enabled": "false",
}
NEEDED = ("marshal_py", "harvest", "confluent_kafka", "msgspec", "mmh3", "pyarrow", "numpy")
"""What executors need, and workers do not have."""


@pytest.fixture(scope="module")
def places() -> Iterator[Hosts]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(hosts(2))
        except HostsMissing as error:
            pytest.fail(str(error), pytrace=False)
        yield made


@pytest.fixture(scope="module")
def cluster(places: Hosts) -> Iterator[SparkCluster]:
    with spark_cluster(places) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka_and_servers(places: Hosts) -> Iterator[tuple[EmbeddedKafka, str]]:
    with kafka_for(places) as found:
        yield found


@pytest.fixture(scope="module")
def kafka(kafka_and_servers: tuple[EmbeddedKafka, str]) -> EmbeddedKafka:
    return kafka_and_servers[0]


@pytest.fixture(scope="module")
def servers(kafka_and_servers: tuple[EmbeddedKafka, str]) -> str:
    """The brokers' address for every host."""
    return kafka_and_servers[1]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packed environment."""
    folder = tmp_path_factory.mktemp("packed")
    pack(NEEDED, folder)
    return folder


def pack_by_the_recipe(folder: Path) -> None:
    """As docs/deploy/spark.md says, of this very source."""
    page = (DOCS / "deploy" / "spark.md").read_text()
    recipe = page.split("```console\n")[1].split("```")[0]
    script = "\n".join(re.findall(r"^\$ (.*)$", recipe, re.MULTILINE))
    script = re.sub(r"\bpython3\b", sys.executable, script.replace("marshal-py[", f"{ROOT}["))
    done = subprocess.run(["sh", "-ec", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)


class Driver:
    """Starts `spark-submit` where the packed environment is."""

    def __init__(self, cluster: SparkCluster, packed: Path) -> None:
        self.cluster, self.packed = cluster, packed

    def command(self, *arguments: str, **settings: str) -> list[str]:
        more = {**FOR_TESTS, **settings}
        given = [word for name, value in more.items() for word in ("--conf", f"{name}={value}")]
        sent = ["--archives", "env.tar.gz#env"]
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.cluster.master]
        return [*submit, *sent, *given, *arguments]

    def start(self, *arguments: str, log: Path, **settings: str) -> subprocess.Popen[bytes]:
        self.cluster.start()  # if the test before has killed it
        environment = environment_for_driver(self.cluster)
        path = os.environ.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path, str(ROOT))))
        with log.open("wb") as file:
            return subprocess.Popen(
                self.command(*arguments, **settings),
                cwd=self.packed,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )

    def run(self, *arguments: str, log: Path) -> tuple[int, str]:
        """The exit code, and what was printed."""
        process = self.start(*arguments, log=log)
        try:
            printed, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            kill(process)
        return process.returncode, printed.decode()

    def said(self, log: Path) -> str:
        return f"{log.read_text()[-3000:]}\n{self.cluster.logs()}"


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def driver(cluster: SparkCluster, packed: Path) -> Driver:
    return Driver(cluster, packed)


def printed_by(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_the_workers_are_other_hosts_and_have_nothing(cluster: SparkCluster) -> None:
    look = f"import importlib.util as u; print([n for n in {NEEDED} if u.find_spec(n)])"
    for n, address in enumerate(cluster.hosts.addresses):
        assert cluster.on_worker(n, "python3", "-c", look) == "[]\n"
        found = json.loads(cluster.on_worker(n, "ip", "-json", "-4", "address"))
        assert [a["local"] for d in found for a in d["addr_info"]] == ["127.0.0.1", address]


class Application:
    """`cluster_app` on the cluster."""

    def __init__(self, driver: Driver, folder: Path, **settings: str) -> None:
        self.driver, self.folder, self.log = driver, folder, folder / "log"
        address = str(folder / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            listener.settimeout(1)
            jars = ("--jars", printed_by("marshal_py.spark.connector", "delta"))
            words = (*WITH_DELTA, *jars, str(cluster_app.__file__), address)
            self.process = driver.start(*words, log=self.log, **settings)
            self._connection = self._accept(listener)
        self._connection.settimeout(PATIENCE_S)
        self._line = self._connection.makefile("rw")

    def _accept(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                return listener.accept()[0]
        pytest.fail(self.said())

    def said(self) -> str:
        return self.driver.said(self.log)

    def begin(self, name: str, options: dict[str, str], *standing: int, **settings: str) -> Path:
        """Start a query in a folder of that name, and return the folder."""
        folder = self.folder / name
        order: dict[str, Any] = {"folder": str(folder), "options": options}
        order |= {"standing": standing, "settings": settings}
        print(json.dumps(order), file=self._line, flush=True)
        return folder

    def command(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run `marshal` or `harvest`: the exit code, and the JSON that it prints."""
        print(json.dumps(words), file=self._line, flush=True)
        code, printed, error = self.answer()
        if not printed:
            print(error, self.said(), sep="\n")  # a JVM tells its whole life: the end says why
            pytest.fail(error[-1000:])
        return code, json.loads(printed)

    def answer(self) -> Any:
        """The numbers that are in the query's table when it has ended, or how it failed."""
        try:
            return json.loads(self._line.readline())
        except (TimeoutError, ValueError):
            pytest.fail(self.said())

    def run(self, name: str, options: dict[str, str]) -> Any:
        self.begin(name, options)
        return self.answer()

    def standing(self, folder: Path, count: int) -> list[int]:
        """Wait until so many tasks stand still, and return their processes."""
        working = folder / "working"
        deadline = time.monotonic() + PATIENCE_S
        while len(found := sorted(working.glob("*")) if working.exists() else []) < count:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)  # another process writes files: there is nothing to wait on
        return [int(path.name.partition("-")[2]) for path in found]

    def leave(self) -> int:
        """Tell it to end, and return its exit code."""
        self._line.close()
        self._connection.close()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self._connection.close()
        kill(self.process)


@pytest.fixture(scope="module")
def application(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """One with speculation, that has a copy of a task that lasts for longer than another."""
    settings = {"": "true", ".interval": "100ms", ".minTaskRuntime": "100ms"}
    settings |= {".quantile": "0.5", ".multiplier": "1.01"}
    application = Application(
        driver,
        tmp_path_factory.mktemp("application"),
        **{f"spark.speculation{name}": value for name, value in settings.items()},
    )
    yield application
    application.close()


class Topic:
    """A topic of two partitions with numbers, and the options of a query that reads it."""

    def __init__(self, kafka: EmbeddedKafka, servers: str) -> None:
        name = kafka.create_topic(partitions=2)
        self.options = {
            "kafka.bootstrap.servers": servers,
            "groupId": "g",
            "topics": name,
            "coordinationTopic": f"{name}.marshal",
        }
        self._name = name
        self._producer = Producer({"bootstrap.servers": servers})

    def produce(self, numbers: range) -> None:
        for n in numbers:
            self._producer.produce(self._name, str(n), partition=n % 2)
        assert self._producer.flush(60) == 0


@pytest.fixture
def topic(kafka: EmbeddedKafka, servers: str) -> Topic:
    topic = Topic(kafka, servers)
    topic.produce(range(20))
    return topic


def audited(kafka: EmbeddedKafka, servers: str) -> tuple[str, int]:
    """A coordination log, and how many records it has."""
    topic = kafka.create_topic(partitions=2, config={"retention.ms": "-1"})
    script = Script()
    life(script)
    write(servers, topic, [(0, value, at) for _, value, at in script.records])
    return topic, len(script.records)


def audit_of(topic: str, servers: str, out: Path) -> list[str]:
    allowed = ("--allow", "create_time", "--allow", "wrong_partition", "--json")
    return ["audit", "-b", servers, "--topic", topic, "--out", str(out), *allowed]


@contextlib.contextmanager
def reconciled(places: Hosts, kafka: EmbeddedKafka, servers: str) -> Iterator[list[str]]:
    """An outbox of which a row was not published, and another one twice; the command's words."""
    with postgres_for(places) as create_database:
        world = World(create_database(), servers, [kafka.create_topic(partitions=2)])
        rows = world.rows(300)
        world.commit(rows)
        world.publish([row for row in rows if row[0] != 123] + rows[7:8])
        yield ["reconcile", "-d", world.dsn, "-b", servers, "--json"]


def check_reconciled(found: dict[str, Any]) -> None:
    assert found["findings"] == {"missing": 1, "duplicated": 1}
    assert {(s["kind"], s["id"]) for s in found["samples"]} == {("missing", 123), ("duplicated", 8)}


def test_the_audit(
    application: Application, kafka: EmbeddedKafka, servers: str, tmp_path: Path
) -> None:
    topic, records = audited(kafka, servers)
    code, found = application.command("marshal", *audit_of(topic, servers, tmp_path))
    assert (code, found["new"]["records"]) == (0, records)


def test_the_reconciliation(
    application: Application, places: Hosts, kafka: EmbeddedKafka, servers: str
) -> None:
    with reconciled(places, kafka, servers) as words:
        code, found = application.command("harvest", *words)
    assert code == 1
    check_reconciled(found)


def a_day(kafka: EmbeddedKafka, servers: str, at: Path) -> Traffic:
    """A takeover, and 40 rows of an outbox: 7 is not published, 8 twice, 9 after 14 of its key, and
    39 a day late."""
    forever = {"retention.ms": "-1"}
    log, topic = (kafka.create_topic(partitions=1, config=forever) for _ in range(2))
    kafka.create_topic(f"{log}.snapshots", 1)
    traffic = Traffic(servers, log, topic, at)
    script = Script()
    life(script)
    traffic.coordinate(script)
    traffic.archive(range(40))
    traffic.publish(*range(7), 8, *range(10, 30), 8, 9, *range(30, 39))
    traffic.publish(39, days_later=1)
    return traffic


def test_the_lake(
    application: Application, kafka: EmbeddedKafka, servers: str, tmp_path: Path
) -> None:
    traffic = a_day(kafka, servers, tmp_path)
    archived = ["--parquet", str(tmp_path / "archive"), "--outbox", OUTBOX, "--json"]
    code, found = application.command("harvest", "lake", "--lake", traffic.lake.place, *archived)
    assert (code, found["added"]) == (0, 40)
    code, found = application.command("marshal", *traffic.command(), "--json")
    assert code == 1
    assert found["published"] == 40
    assert unmet(found) == {"lost": 1, "duplicated": 1, "disordered": 1}
    code, again = application.command("marshal", *traffic.command(), "--json")
    assert (code, again["records"], again["published"]) == (1, 0, 0)
    assert unmet(again) == unmet(found)


def unmet(found: dict[str, Any]) -> dict[str, int]:
    """The kinds of findings that were not expected, and how many there are."""
    prefix = "findings: "
    return {
        e["name"].removeprefix(prefix): e["found"] for e in found["expectations"] if not e["met"]
    }


def test_at_most_once_refuses_speculation(
    application: Application, topic: Topic, kafka: EmbeddedKafka
) -> None:
    said = application.run("refused", {**topic.options, "delivery": "at-most-once"})
    assert "set spark.speculation=false" in said
    # No client has come that far: nothing was claimed.
    assert topic.options["coordinationTopic"] not in kafka.admin().list_topics(timeout=30).topics


def test_a_copy_of_a_task_counts_once(application: Application, topic: Topic) -> None:
    folder = application.begin("copied", topic.options, 1)
    assert application.answer() == list(range(20))
    # The first attempt had its records, and stood still for ever.
    seen = [path.read_text().split() for path in (folder / "seen").iterdir()]
    assert sorted(map(len, seen)) == [10, 10, 10]


def test_an_executor_is_lost_and_the_checkpoint_goes_on(
    application: Application, topic: Topic
) -> None:
    folder = application.begin("lost", topic.options, 0, 1)
    killed, _ = application.standing(folder, 2)
    os.kill(executor_of(killed), signal.SIGKILL)
    (folder / "go").touch()
    assert application.answer() == list(range(20))
    topic.produce(range(20, 30))
    assert application.run("lost", topic.options) == list(range(30))


def test_a_driver_whose_cluster_is_gone_ends(application: Application, topic: Topic) -> None:
    folder = application.begin("gone", topic.options, 0, 1, **{TIMEOUT_SETTING: "2"})
    application.standing(folder, 2)
    application.driver.cluster.kill()
    assert application.answer().startswith("ClusterLost: no executor for 2 s: the cluster is gone")
    assert application.leave() == 0


@pytest.fixture
def other(driver: Driver, tmp_path: Path) -> Iterator[Callable[[str], Application]]:
    """Starts applications of a test's own, without speculation."""
    with ExitStack() as stack:

        def start(name: str) -> Application:
            folder = tmp_path / name
            folder.mkdir()
            application = Application(driver, folder)
            stack.callback(application.close)
            return application

        yield start


@pytest.mark.campaign
def test_at_most_once_nothing_comes_twice_when_an_executor_is_lost(
    other: Callable[[str], Application], topic: Topic
) -> None:
    application = other("a")
    options = {**topic.options, "delivery": "at-most-once"}
    folder = application.begin("lost", options, 0, 1)
    killed, _ = application.standing(folder, 2)
    os.kill(executor_of(killed), signal.SIGKILL)
    (folder / "go").touch()
    kept = application.answer()
    assert kept in ([*range(0, 20, 2)], [*range(1, 20, 2)])  # the other task's partition
    seen = [int(n) for path in (folder / "seen").iterdir() for n in path.read_text().split()]
    assert sorted(seen) == list(range(20))
    topic.produce(range(20, 30))
    assert application.run("lost", options) == [*kept, *range(20, 30)]


@pytest.mark.campaign
def test_a_driver_is_killed_and_another_goes_on_from_its_checkpoint(
    other: Callable[[str], Application], topic: Topic
) -> None:
    first = other("a")
    assert first.run("table", topic.options) == list(range(20))
    topic.produce(range(20, 30))
    folder = first.begin("table", topic.options, 0, 1)
    first.standing(folder, 2)
    first.close()
    second = other("b")
    second.folder = first.folder
    assert second.run("table", topic.options) == list(range(30))


@pytest.mark.campaign
def test_the_lines_of_the_page(
    cluster: SparkCluster,
    places: Hosts,
    kafka: EmbeddedKafka,
    servers: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Packed by its recipe, started by its commands."""
    pack_by_the_recipe(tmp_path)
    driver = Driver(cluster, tmp_path)
    topic, records = audited(kafka, servers)
    log = tmp_path / "log"
    submitted = printed_by("marshal_py.cli.spark_submit")
    code, printed = driver.run(submitted, *audit_of(topic, servers, tmp_path / "audit"), log=log)
    assert code == 0, driver.said(log)
    assert json.loads(printed)["new"]["records"] == records
    traffic = a_day(kafka, servers, tmp_path)
    check_lake(driver, traffic, tmp_path)
    check_gold(spark, traffic.lake)
    submitted = printed_by("harvest.cli.spark_submit")
    jars = ("--jars", printed_by("marshal_py.spark.connector"))
    with reconciled(places, kafka, servers) as words:
        code, printed = driver.run(*jars, submitted, *words, log=log)
    assert code == 1, driver.said(log)
    check_reconciled(json.loads(printed))


def check_lake(driver: Driver, traffic: Traffic, folder: Path) -> None:
    """A day of which the first driver is killed at work, and that is then run twice."""
    jars = (*WITH_DELTA, "--jars", printed_by("marshal_py.spark.connector", "delta"))
    rows = ["lake", "--lake", traffic.lake.place, "--outbox", OUTBOX]
    rows += ["--parquet", str(folder / "archive"), "--json"]
    log = folder / "log"
    code, printed = driver.run(*jars, printed_by("harvest.cli.spark_submit"), *rows, log=log)
    assert (code, json.loads(printed)["added"]) == (0, 40), driver.said(log)

    run = (*jars, printed_by("marshal_py.cli.spark_submit"), *traffic.command(), "--json")
    killed = driver.start(*run, log=log)
    deadline = time.monotonic() + PATIENCE_S
    while not list(Path(traffic.lake.place).glob("silver/**/*.parquet")):
        assert killed.poll() is None, driver.said(log)
        assert time.monotonic() < deadline, driver.said(log)
        time.sleep(0.02)  # another process writes files: there is nothing to wait on
    kill(killed)
    for again in (False, True):
        code, printed = driver.run(*run, log=log)
        # Spark writes a Python driver's standard error, and so its progress, to standard output.
        found = json.loads(printed[printed.index("{") :])
        assert (code, unmet(found)) == (1, {"lost": 1, "duplicated": 1, "disordered": 1})
        if again:
            assert (found["records"], found["published"]) == (0, 0)


def check_gold(spark: SparkSession, lake: Lake) -> None:
    """What the tables say of `a_day`."""

    def rows(table: str, *columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        found = lake.frame(spark, table).filter(where).select(*columns).collect()
        return sorted(tuple(row) for row in found)

    counts = ("rows", "delivered", "records", "lost", "duplicated", "disordered", "altered")
    assert rows("gold.outboxes", "outbox", *counts) == [(OUTBOX, 40, 39, 40, 1, 1, 1, 0)]
    assert rows("gold.findings", "kind", "id", where="outbox IS NOT NULL") == [
        ("disordered", 9),
        ("duplicated", 8),
        ("lost", 7),
    ]
    late = rows("silver.deliveries", "status", "latency_ms", where="id = 39")
    assert late == [("delivered", 86_400_005)]
    assert rows("gold.groups", "group_id", "claims", "takeovers") == [("g", 3, 1)]

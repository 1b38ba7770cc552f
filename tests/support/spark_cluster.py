"""A Spark standalone cluster: a master here, each worker on a host of its own.

A worker has Spark, Java and a bare Python: no package of this project, and none that it needs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyspark

from marshal_py.embedded.java import find_java
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.embedded.ports import free_ports
from marshal_py.embedded.postgres import EmbeddedPostgres
from marshal_py.embedded.process import Guard, ServerProcess, tail
from tests.support.hosts import Hosts
from tests.support.spark_commands import EXECUTOR

__all__ = [
    "SPARK_HOME",
    "WITH_DELTA",
    "SparkCluster",
    "environment_for_driver",
    "executor_of",
    "kafka_for",
    "pack",
    "postgres_for",
    "spark_cluster",
]

SPARK_HOME: Final = Path(pyspark.__file__).parent
WITH_DELTA: Final = (
    "--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "--conf", "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
)  # fmt: skip
"""Words of `spark-submit` beside Delta's jars."""
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 60.0


class SparkCluster:
    """`master`: what `--master` takes. Workers have one core and 1 GB each."""

    def __init__(self, hosts: Hosts, guard: Guard, folder: Path) -> None:
        self.hosts, self._guard, self._folder = hosts, guard, folder
        java = find_java().executable.resolve().parents[1]
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True
        )
        self.environment = {
            "HOME": str(folder),
            "JAVA_HOME": str(java),
            "PATH": f"{folder / 'bare' / 'bin'}:/usr/bin:/bin",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",  # what Spark's scripts find out
        }
        """What a worker has; its executors get it, too."""
        if "MUTANT" in os.environ:  # a planted bug is in every process (tests.mutation.guarantees)
            self.environment |= {name: os.environ[name] for name in ("MUTANT", "PYTHONPATH")}
        self._port = free_ports(1)[0]
        self._processes: list[ServerProcess] = []

    @property
    def master(self) -> str:
        """The cluster's URL."""
        return f"spark://{self.hosts.here}:{self._port}"

    def start(self) -> None:
        """Start what does not run, and wait until every worker is known to the master."""
        if self._processes and all(p.poll() is None for p in self._processes):
            return
        self.kill()
        here, port = self.hosts.here, str(self._port)
        self._processes = [self._spawn([], "master", "--host", here, "--port", port)]
        for n, address in enumerate(self.hosts.addresses):
            on = self.hosts.command(n)
            resources = ("--cores", "1", "--memory", "1g")
            name = f"worker-{n}"
            self._processes.append(
                self._spawn(on, name, "--host", address, *resources, self.master)
            )
        for n, address in enumerate(self.hosts.addresses):
            self._await(n + 1, f"Registering worker {address}:")

    def _spawn(self, on: list[str], name: str, *arguments: str) -> ServerProcess:
        kind = name.partition("-")[0]
        own = self._folder / name
        own.mkdir(exist_ok=True)
        log = self._folder / f"{name}.log"
        log.unlink(missing_ok=True)
        argv = [
            *on,
            f"{self.environment['JAVA_HOME']}/bin/java",
            *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", f"{SPARK_HOME}/jars/*"),
            f"org.apache.spark.deploy.{kind}.{kind.capitalize()}",
            *("--webui-port", "0"),
            *arguments,
        ]
        address = arguments[1]
        environment = {**self.environment, "SPARK_LOCAL_IP": address}
        environment |= {"SPARK_WORKER_DIR": str(own), "SPARK_LOCAL_DIRS": str(own)}
        return self._guard.spawn(argv, env=environment, cwd=own, log=log)

    def _await(self, worker: int, text: str) -> None:
        master = self._processes[0].log
        deadline = time.monotonic() + _PATIENCE_S
        while text not in master.read_text(errors="replace"):
            for process in (self._processes[0], self._processes[worker]):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Spark did not start:\n{tail(process.log)}")
            time.sleep(_LOOK_S)

    def on_worker(self, n: int, *argv: str) -> str:
        """Run a program as a worker would, and return what it prints."""
        command = self.hosts.command(n, *argv)
        done = subprocess.run(
            command, env=self.environment, cwd=self._folder, capture_output=True, check=True
        )
        return done.stdout.decode()

    def kill(self) -> None:
        """Kill the master, the workers and their executors."""
        for process in self._processes:
            process.signal(signal.SIGKILL, tree=True)

    def logs(self) -> str:
        """The ends of the executors' logs, for a failed test."""
        found = sorted(self._folder.glob("worker-*/app-*/*/stderr"))
        return "\n".join(f"== {path}\n{tail(path, 15)}" for path in found[-4:])


def executor_of(pid: int) -> int:
    """The executor whose Python worker this process is."""
    while EXECUTOR not in Path("/proc", str(pid), "cmdline").read_bytes():
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _folder_for_all(name: str) -> Path:
    """A temporary folder that other users can look into: PostgreSQL does not run as root."""
    folder = Path(tempfile.mkdtemp(prefix=name))
    folder.chmod(0o755)
    return folder


@contextlib.contextmanager
def spark_cluster(hosts: Hosts) -> Iterator[SparkCluster]:
    """Start it; at its end nothing of it is left, also if this process is killed."""
    folder = _folder_for_all("marshal-spark-")
    guard = Guard(folder)
    try:
        cluster = SparkCluster(hosts, guard, folder)
        cluster.start()
        yield cluster
    finally:
        guard.close()


@contextlib.contextmanager
def kafka_for(hosts: Hosts) -> Iterator[tuple[EmbeddedKafka, str]]:
    """A broker with a second listener, which advertises the address that the hosts know."""
    servers = []

    def listeners(_: int, defaults: Mapping[str, object]) -> dict[str, object]:
        servers.append(f"{hosts.here}:{free_ports(1)[0]}")
        protocols = "listener.security.protocol.map"
        return {
            "listeners": f"{defaults['listeners']},HOSTS://{servers[-1]}",
            protocols: f"{defaults[protocols]},HOSTS:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    with EmbeddedKafka(properties=listeners, progress=None) as kafka:
        yield kafka, servers[-1]


def pack(packages: Sequence[str], folder: Path) -> None:
    """Make FOLDER/env.tar.gz of packages that are installed here: in seconds, not compressed.

    FOLDER/env is the environment of this process, for what Spark starts beside the driver.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "made")], check=True
    )
    (site,) = (folder / "made" / "lib").glob("python*/site-packages")
    inside = site.relative_to(folder / "made")
    with tarfile.open(folder / "env.tar.gz", "w:gz", compresslevel=0) as archive:
        archive.add(folder / "made", ".")
        for name in packages:
            spec = importlib.util.find_spec(name)
            module = Path(str(spec and spec.origin))
            found = module.parent if module.name == "__init__.py" else module
            for path in (found, found.with_name(f"{name}.libs")):
                if path.exists():
                    archive.add(path, str(inside / path.name), filter=_wanted)
    (folder / "env").symlink_to(sys.prefix)


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts
    left_out = any(word in parts[-1] for word in ("flight", "_s3"))  # large, not used
    return None if left_out or {"include", "tests"} & set(parts) else entry


@contextlib.contextmanager
def postgres_for(hosts: Hosts) -> Iterator[Callable[[], str]]:
    """A PostgreSQL that the hosts reach: what makes an empty database and returns its URL."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marshal-hba-")))
        folder.chmod(0o755)
        rules = folder / "pg_hba.conf"
        rules.write_text("local all all trust\nhost all all samenet trust\n")
        settings = {"listen_addresses": f"127.0.0.1,{hosts.here}", "hba_file": rules}
        server = stack.enter_context(EmbeddedPostgres(settings=settings))
        yield lambda: server.create_database().replace("127.0.0.1", hosts.here)


def environment_for_driver(cluster: SparkCluster) -> dict[str, str]:
    """What `spark-submit` is started with: the executors' Python comes with what is sent along."""
    return {
        **os.environ,
        "JAVA_HOME": cluster.environment["JAVA_HOME"],
        "PYSPARK_PYTHON": "./env/bin/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": cluster.hosts.here,
    }

"""A Kafka that is ready to start: jars, formatted storage, and an archive of its classes.

Two things that would cost each start a slow JVM are made once and kept in the cache folder:

- `bootstrap.checkpoint`, the only part of a formatted storage folder that needs Kafka's own code.
  It holds the feature levels of the version and nothing of a particular cluster.
- a class data archive for each Java runtime, which halves the start-up time and its CPU time.
  Without it everything works, only slower.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import broker_settings
from .errors import ServerFailed
from .jars import jars, kafka_home, locked
from .java import Java
from .ports import free_ports
from .process import Guard, Progress, tail

_CHECKPOINT = "bootstrap.checkpoint"
_TIMEOUT_S = 120
# Quick to start and cheap to run; measured, an optimizing compiler gains a broker nothing within
# the first million records.
BASE_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def random_id() -> str:
    """A random identifier in Kafka's notation."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # Kafka's tools refuse those
            return text


def java_environment() -> dict[str, str]:
    """The environment for a JVM: the caller's, without what would change its class path."""
    drop = {"CLASSPATH", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"}
    return {name: value for name, value in os.environ.items() if name not in drop}


@dataclass(frozen=True)
class KafkaImage:
    """One Kafka version on one Java runtime."""

    version: str
    home: Path
    java: Java

    @property
    def class_path(self) -> str:
        return os.pathsep.join(map(str, jars(self.home)))

    @property
    def archive(self) -> Path:
        build = f"{self.java.executable.resolve()}\n{self.java.version}"
        digest = hashlib.sha256(build.encode()).hexdigest()[:12]
        return self.home / f"classes-{self.java.major}-{digest}.jsa"

    def command(self, main: str, *arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
        """The command line of one of Kafka's main classes."""
        archive = [f"-XX:SharedArchiveFile={self.archive}"] if self.archive.exists() else []
        return [
            str(self.java.executable),
            *BASE_FLAGS,
            "-Xshare:auto",
            *archive,
            "-XX:-UsePerfData",  # its file in /tmp would outlive a kill
            "-Djava.awt.headless=true",
            *flags,
            "-cp",
            self.class_path,
            main,
            *arguments,
        ]

    def format(self, folder: Path, *, cluster_id: str, node_id: int) -> None:
        """Make a storage folder that a broker of this version accepts as its own."""
        folder.mkdir(parents=True)
        (folder / "meta.properties").write_text(
            f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={random_id()}\n"
        )
        shutil.copyfile(self.home / _CHECKPOINT, folder / _CHECKPOINT)


def kafka_image(
    version: str, java: Java, *, way: str | None = None, progress: Progress
) -> KafkaImage:
    """The image of a version, made now if it is not in the cache (see `kafka_home`)."""
    image = KafkaImage(version, kafka_home(version, way=way, progress=progress), java)
    if not ((image.home / _CHECKPOINT).exists() and image.archive.exists()):
        with locked(image.home, progress):
            if not (image.home / _CHECKPOINT).exists():
                _make_checkpoint(image)
            if not image.archive.exists():
                progress(f"preparing a class archive for Java {java.major} (once)")
                _make_archive(image)
    return image


def _run(argv: list[str], cwd: Path) -> str:
    result = subprocess.run(
        argv,
        cwd=cwd,
        env=java_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if result.returncode:
        raise ServerFailed(f"{argv[0]} … {argv[-1]} failed:\n{result.stdout[-2000:]}")
    return result.stdout


def _write_properties(path: Path, folder: Path, port: int, controller_port: int) -> None:
    settings = broker_settings.listeners(1, port, [controller_port])
    broker_settings.write(path, settings | {"log.dirs": folder / "data"})


def _make_checkpoint(image: KafkaImage) -> None:
    with tempfile.TemporaryDirectory(prefix="marshal-format-") as name:
        folder = Path(name)
        properties = folder / "server.properties"
        _write_properties(properties, folder, 1, 2)
        arguments = ["format", "-t", random_id(), "-c", str(properties)]
        _run(image.command("kafka.tools.StorageTool", *arguments), folder)
        partial = image.home / f"{_CHECKPOINT}.partial"
        shutil.copyfile(folder / "data" / _CHECKPOINT, partial)
        partial.rename(image.home / _CHECKPOINT)


def _make_archive(image: KafkaImage) -> None:
    """Start a broker once to learn its classes, then archive them.

    A failure leaves an empty file, which Java ignores: the archive only saves time, and to try
    again would cost time at each start.
    """
    partial = image.archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="marshal-archive-") as name:
        folder = Path(name)
        try:
            _record_classes(image, folder)
            _run(
                [
                    str(image.java.executable),
                    *BASE_FLAGS,
                    "-Xshare:dump",
                    f"-XX:SharedClassListFile={folder / 'classes'}",
                    f"-XX:SharedArchiveFile={partial}",
                    "-cp",
                    image.class_path,
                ],
                folder,
            )
        except (ServerFailed, OSError, subprocess.SubprocessError):
            partial.write_bytes(b"")
    partial.rename(image.archive)


def _record_classes(image: KafkaImage, folder: Path) -> None:
    properties = folder / "server.properties"
    _write_properties(properties, folder, *free_ports(2))
    image.format(folder / "data", cluster_id=random_id(), node_id=1)
    flags = ("-Xmx256m", "-Xshare:off", f"-XX:DumpLoadedClassList={folder / 'classes'}")
    guard = Guard(folder / "data")
    try:
        broker = guard.spawn(
            image.command("kafka.Kafka", str(properties), flags=flags),
            env=java_environment(),
            cwd=folder,
            log=folder / "log",
        )
        deadline = time.monotonic() + _TIMEOUT_S
        while "Kafka Server started" not in tail(broker.log):
            if broker.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed("The broker for the class archive did not start.")
            time.sleep(0.05)
        broker.signal(signal.SIGTERM)
        broker.wait(30)  # it writes the list of classes as it ends
    finally:
        guard.close()

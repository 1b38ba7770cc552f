"""Debezium's PostgreSQL connector with its event router, in a Kafka Connect of its own.

Maven fetches it. Its settings are the quickest that we found (by default it polls twice a second).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from marshal_py.embedded.java import find_java
from marshal_py.embedded.ports import free_ports

__all__ = ["DEBEZIUM", "debezium", "prepare", "program"]

DEBEZIUM = "3.7.0.Final"
_READY_S = 120.0
_NAME = "debezium"
_JARS = {  # each with its own dependencies, as Connect loads plugins
    "connect": (
        ("org.apache.kafka", "connect-runtime", "4.1.0"),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    "debezium": (("io.debezium", "debezium-connector-postgres", DEBEZIUM),),
}
_DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
_WORKER = """\
bootstrap.servers={servers}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=1000
plugin.path={plugins}
listeners=HTTP://127.0.0.1:{port}
producer.linger.ms=0
producer.compression.type=lz4
"""
_CONNECTOR = """\
name={name}
connector.class=io.debezium.connector.postgresql.PostgresConnector
tasks.max=1
database.hostname={host}
database.port={port}
database.user={user}
database.password={password}
database.dbname={dbname}
topic.prefix={name}
plugin.name=pgoutput
slot.name={name}
publication.name={name}
publication.autocreate.mode=disabled
snapshot.mode=no_data
table.include.list=public.outbox
tombstones.on.delete=false
poll.interval.ms=1
max.batch.size=8192
max.queue.size=65536
transforms=outbox
transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
transforms.outbox.table.field.event.id=id
transforms.outbox.table.field.event.key=kafka_key
transforms.outbox.table.field.event.payload=kafka_value
transforms.outbox.route.by.field=kafka_topic
transforms.outbox.route.topic.replacement=${{routedByValue}}
"""


def program(folder: Path) -> Path | None:
    """Fetch the jars into a folder; None without Maven."""
    if shutil.which("mvn") is None:
        return None
    for name, wanted in _JARS.items():
        home = folder / name
        home.mkdir()
        pom = home / "pom.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>"
            f"<artifactId>{name}</artifactId><version>1</version><dependencies>"
            + "".join(_DEPENDENCY.format(*each) for each in wanted)
            + "</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", f"--file={pom}", "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={home}"], check=True, stdout=sys.stderr)
    return folder


def prepare(dsn: str) -> None:
    """Make the publication and the slot: what is committed from now on is read."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        publication = f"CREATE PUBLICATION {_NAME} FOR TABLE outbox WITH (publish = 'insert')"
        connection.execute(publication.encode())
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_NAME,))


@contextmanager
def debezium(jars: Path, servers: str, dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run it until the block ends; begins when it reads the slot, which is gone afterwards."""
    given = {"password": "", "port": "5432", **conninfo_to_dict(dsn)}
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        worker, connector = folder / "worker.properties", folder / "connector.properties"
        worker.write_text(_WORKER.format(servers=servers, folder=folder, port=port, plugins=jars))
        connector.write_text(_CONNECTOR.format(name=_NAME, **given))
        java = [str(find_java().executable), "-Xmx1g", "-cp", f"{jars / 'connect'}/*"]
        standalone = "org.apache.kafka.connect.cli.ConnectStandalone"
        log = folder / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                [*java, standalone, str(worker), str(connector)],
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                _wait_until_it_reads(connection, process, log)
                yield process
                process.terminate()
                process.wait(60)
                connection.execute("SELECT pg_drop_replication_slot(%s)", (_NAME,))
        finally:
            process.kill()
            process.wait()


def _wait_until_it_reads(
    connection: psycopg.Connection, process: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + _READY_S
    active = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
    while connection.execute(active, (_NAME,)).fetchone() is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Debezium does not read its slot: {log.read_text()[-3000:]}")
        time.sleep(0.1)

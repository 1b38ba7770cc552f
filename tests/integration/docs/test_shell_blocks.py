"""The commands in the documentation's shell blocks, run: on groups, an outbox and their servers.

Left out is what runs until it is stopped (other tests start it), and what begins from another state
than that of healthy groups; both are listed. Moments and addresses are replaced by ours.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app as harvest
from marshal_py import Marshal
from marshal_py.cli.app import app as marshal
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.unit.docs.test_docs import PAGES, commands

pytestmark = pytest.mark.kafka

RUNS_ON: Final = re.compile(
    r"marshal (run|top\b|metrics serve|dashboard|demo|tail.* -f)|harvest reap|.*spark|\w+ lake"
)
"""They go on until they are stopped, or need Spark; other tests start them."""

ELSEWHERE: Final = re.compile(
    r"marshal (doctor --config|audit|topic recover|group (migrate|import))|harvest (switch|slot"
    r"|reconcile|replay|checkpoint|range|partitions|bench|dead-letters retry)"
)
"""They begin from a topic made anew, a group of version 1, another mode or a lost database."""

FINDINGS: Final = (0, 1)
"""Exit codes of a command that did what it is for: 1 tells of a finding."""

LAST: Final = re.compile(r"group (forget|pause|resume|set-position|slots)|trim|init")
"""They change what the others look at."""


def lines() -> list[str]:
    """The commands, each once, in an order in which none spoils it for the next."""
    found: set[str] = set()
    for page in PAGES:
        for line in commands(page)[0]:
            line = re.sub(r"\s+#.*| > \S+| -b localhost:9092", "", line)
            line = re.sub(r"postgresql://localhost/shop|\"\$DSN\"", "$DSN", line)
            found |= set(re.sub(r"--at \S+", "--at 0s", line).split(" && "))
    wanted = [line for line in found if not RUNS_ON.match(line) and not ELSEWHERE.match(line)]
    return sorted(wanted, key=lambda line: (bool(LAST.search(line)), line))


LINES: Final = lines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where commands run: with the files that they name, and servers in the environment."""
    folder = tmp_path_factory.mktemp("shell")
    with (
        EmbeddedKafka() as kafka,
        EmbeddedPostgres() as postgres,
        pytest.MonkeyPatch.context() as set_,
    ):
        servers = kafka.bootstrap_servers
        create_topics(servers)
        kafka.create_topic("orders", 8)
        producer = Producer({"bootstrap.servers": servers})
        for n in range(16_000):
            producer.produce("orders", b"x", partition=n % 8)
        assert producer.flush(60) == 0
        old = KafkaConsumer({"bootstrap.servers": servers, "group.id": "billing-old"})
        old.commit(
            offsets=[TopicPartition("orders", p, 1_500) for p in range(8)], asynchronous=False
        )
        old.close()
        (folder / "reaper.yaml").write_text(
            f"kafka: {{bootstrap.servers: '{servers}'}}\ndatabase: {postgres.dsn}\ngroup: shop\n"
        )
        (folder / "exporter.properties").write_text(f"bootstrap.servers={servers}\n")
        set_.setenv("MARSHAL_BOOTSTRAP_SERVERS", servers)
        set_.setenv("DSN", postgres.dsn)
        set_.chdir(folder)
        made = CliRunner().invoke(harvest, ["init", "--config", "reaper.yaml"])
        assert made.exit_code == 0, made.output
        with closing(psycopg.connect(postgres.dsn)) as connection:
            Stasher("outbox").stash(connection, OutboxRecord("orders", "k", "v"))
            connection.commit()
        for group, leadership in (
            ("billing-old", ""),
            ("shop", "harvest:outbox"),
            ("beat", "schedule"),
        ):
            with Marshal(servers, group_id=group, client_id=f"{group}-1") as member:
                if leadership:
                    member.leader(leadership).campaign(60)
                else:
                    member.claim("orders", 0, timeout_s=60).release()
        with Marshal(servers, group_id="billing", client_id="billing-1") as member:
            for claim in member.claim_many([("orders", p) for p in range(8)], timeout_s=60):
                claim.commit(1_500, wait=True)
        yield folder


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_documentation_runs(folder: Path, line: str) -> None:
    program, *arguments = shlex.split(os.path.expandvars(line))
    done = CliRunner().invoke({"marshal": marshal, "harvest": harvest}[program], arguments)
    assert done.exit_code in FINDINGS, f"{line}\n{done.output}\n{done.stderr}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception


def test_there_are_commands_to_run() -> None:
    assert len(LINES) > 30

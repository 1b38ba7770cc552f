"""What the tests of the command line share: a coordination topic, `marshal` on it, and clients."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from marshal_py import Marshal
from marshal_py.cli.app import app
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka
from tests.support.marshal_command import Cli, cli_environment

INTERVAL_MS = 1_000
_topics = iter(range(10_000))


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    """The name of a coordination topic that does not exist yet."""
    kafka.start()
    return f"__marshal.cli.{os.getpid()}.{next(_topics)}"


@pytest.fixture
def made(kafka: EmbeddedKafka, topic: str) -> str:
    """A coordination topic."""
    create_topics(kafka.bootstrap_servers, topic=topic, partitions=4)
    return topic


@pytest.fixture
def cli(kafka: EmbeddedKafka, topic: str) -> Cli:
    """Run `marshal` on the broker and the topic of this test."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "marshal_py.cli", *arguments],
            env=cli_environment(kafka.bootstrap_servers, topic) | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def run(kafka: EmbeddedKafka, topic: str) -> Cli:
    """As `cli`, in this process: quicker."""

    def invoke(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(
            app, list(arguments), env=cli_environment(kafka.bootstrap_servers, topic) | environment
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return invoke


@pytest.fixture
def client(kafka: EmbeddedKafka, made: str) -> Iterator[Callable[..., Marshal]]:
    started: list[Marshal] = []

    def start(client_id: str, group_id: str = "g", **settings: Any) -> Marshal:
        marshal = Marshal(
            kafka.bootstrap_servers,
            group_id=group_id,
            client_id=client_id,
            topic=made,
            **{"interval_ms": INTERVAL_MS, **settings},
        ).start()
        started.append(marshal)
        return marshal

    yield start
    for marshal in started:
        marshal.close()

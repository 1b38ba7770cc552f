"""The Python examples in the guides run, on a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from harvest.databases.postgres.mark import PostgresMarkStore
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka
from tests.support.paths import DOCS

pytestmark = pytest.mark.kafka

EXAMPLES = [
    (page.name, textwrap.dedent(block))
    for page in sorted(DOCS.rglob("*.md"))
    if page.name != "recipes.md"  # which has a test of its own
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.fixture
def dsn(page: str, request: pytest.FixtureRequest) -> str:
    """A database with an outbox, for the pages that have one."""
    if page != "outbox.md":
        return ""
    database: str = request.getfixturevalue("postgres_database")
    store = PostgresMarkStore(database, "outbox")
    store.init()
    store.close()
    return database


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_an_example_runs(
    kafka: EmbeddedKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    page: str,
    code: str,
    dsn: str,
) -> None:
    kafka.start()
    create_topics(kafka.bootstrap_servers)
    create_topics(kafka.bootstrap_servers, topic="__marshal.go", with_snapshots=False)
    for topic in ("orders", "orders.dlq", "payments"):
        request.addfinalizer(partial(kafka.delete_topic, topic))
        kafka.create_topic(topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", b"the value", key=b"k")
    assert producer.flush(60) == 0
    code = code.replace("localhost:9092", kafka.bootstrap_servers)
    code = code.replace("idle_timeout_s=3", "idle_timeout_s=20")  # a busy machine starts slowly
    done = subprocess.run(
        [sys.executable, "-c", code],
        text=True,
        capture_output=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "DSN": dsn},
    )
    assert done.returncode == 0, done.stderr
    if re.search(r"print\(.*message\.value\(\)", code):
        assert "the value" in done.stdout
    elif re.search(r"^print\(|^    +print\(\"", code, re.MULTILINE):
        assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4

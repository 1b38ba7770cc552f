"""The examples of the README and the tutorial run: every Python block, and the harvest commands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer

from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.paths import DOCS, ROOT

pytestmark = pytest.mark.kafka

PAGES = [ROOT / "README.md", *sorted((DOCS / "tutorial").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]
OUTBOX = (DOCS / "tutorial" / "outbox.md").read_text(encoding="utf-8")


def for_servers(text: str, kafka: EmbeddedKafka) -> str:
    return text.replace("localhost:9092", kafka.bootstrap_servers)


def harvest(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from harvest.cli.__main__ import main; main()", *arguments]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_python_block_runs(kafka: EmbeddedKafka, postgres_database: str, block: str) -> None:
    kafka.start()
    create_topics(kafka.bootstrap_servers)
    environment = {**os.environ, "DSN": postgres_database}
    init = harvest("init", "--database", postgres_database)
    subprocess.run(init, check=True, env=environment, capture_output=True)
    with orders(kafka):
        code = for_servers(block, kafka)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            text=True,
            capture_output=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    if "Consumer" in block:
        assert "order 4" in done.stdout or "5 handled" in done.stdout


@contextlib.contextmanager
def orders(kafka: EmbeddedKafka) -> Iterator[None]:
    """The topic that the examples consume, with five messages, and the one for dead letters."""
    for topic in ("orders", "orders.dlq"):
        kafka.create_topic(topic, partitions=2)
    fill = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(5):
        fill.produce("orders", f"order {n}", key=str(n))
    fill.flush(60)
    try:
        yield
    finally:
        for topic in ("orders", "orders.dlq"):
            kafka.delete_topic(topic)


def test_the_tutorial_of_the_outbox_publishes_the_row(
    kafka: EmbeddedKafka, postgres_database: str, tmp_path: Path
) -> None:
    kafka.start()
    create_topics(kafka.bootstrap_servers)
    environment = {**os.environ, "DSN": postgres_database}
    init = harvest("init", "--database", postgres_database)
    subprocess.run(init, check=True, env=environment, capture_output=True)
    (stash,) = re.findall(r"```python\n(.*?)```", OUTBOX, re.DOTALL)
    (settings,) = re.findall(r"```yaml\n(.*?)```", OUTBOX, re.DOTALL)
    subprocess.run([sys.executable, "-c", stash], check=True, env=environment)

    kafka.create_topic("invoices", partitions=3)
    config = tmp_path / "reaper.yaml"
    config.write_text(for_servers(settings, kafka))
    reaper = subprocess.Popen(harvest("reap", "--config", str(config)), env=environment)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "readme",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["invoices"])
        message = consumer.poll(60)
        while message is not None and message.error() is not None:
            message = consumer.poll(60)
        assert message is not None
        assert message.key() == b"customer-12"
        assert message.value() == b'{"invoice": 7, "total": 120}'
        reaper.send_signal(signal.SIGTERM)
        assert reaper.wait(60) == 0
        with psycopg.connect(postgres_database) as connection:
            assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    finally:
        consumer.close()
        reaper.kill()
        reaper.wait()
        kafka.delete_topic("invoices")

"""The Python examples in the guides run, on a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

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


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_an_example_runs(
    kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest, page: str, code: str
) -> None:
    kafka.start()
    create_topics(kafka.bootstrap_servers)
    create_topics(kafka.bootstrap_servers, topic="__marshal.go", with_snapshots=False)
    request.addfinalizer(partial(kafka.delete_topic, "orders"))
    kafka.create_topic("orders", partitions=2)
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
    )
    assert done.returncode == 0, done.stderr
    if "message.value()" in code:
        assert "the value" in done.stdout
    elif "print(" in code:
        assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4

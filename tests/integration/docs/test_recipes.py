"""The recipes run, and the SQL fence stops a holder that wakes too late."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from marshal_py import Marshal, NotHeld
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import fill, pid_suffix
from tests.support.paths import DOCS

pytestmark = pytest.mark.kafka

TEXT = (DOCS / "how-to" / "recipes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
(SCHEMA,) = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
HANDLED = (
    "CREATE TABLE handled (partition int, at bigint, value bytea, PRIMARY KEY (partition, at))"
)


@pytest.fixture
def database(postgres_database: str) -> str:
    with psycopg.connect(postgres_database) as connection:
        connection.execute(SCHEMA)
        connection.execute(HANDLED)
    return postgres_database


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_recipe_runs(kafka: EmbeddedKafka, database: str, tmp_path: Path, number: int) -> None:
    kafka.start()
    topic = f"__marshal.recipes.{pid_suffix()}.{number}"
    create_topics(kafka.bootstrap_servers, topic=topic, partitions=4)
    orders, taxed = (kafka.create_topic(f"{name}-{number}", partitions=2) for name in "ot")
    fill(kafka.bootstrap_servers, orders, 20, partitions=2)
    code = BLOCKS[number].replace("localhost:9092", kafka.bootstrap_servers)
    code = code.replace('topics="orders"', f'topics="{orders}", topic="{topic}"')
    code = code.replace('"taxed"', f'"{taxed}"')
    code = code.replace('group_id="jobs"', f'group_id="jobs", topic="{topic}"')
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DSN": database},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    if "raise_fence" in code:
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT count(*) FROM handled").fetchone() == (20,)


class _Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"x"


class _Batch(list[Any]):
    claim: Any = None


def test_the_fence_stops_a_holder_that_wakes_too_late(kafka: EmbeddedKafka, database: str) -> None:
    kafka.start()
    topic = f"__marshal.recipes.{pid_suffix()}.fence"
    create_topics(kafka.bootstrap_servers, topic=topic, partitions=1)
    recipe: dict[str, Any] = {"__name__": "recipe"}
    exec(next(block for block in BLOCKS if "raise_fence" in block), recipe)
    common: dict[str, Any] = {"group_id": "g", "topic": topic, "interval_ms": 1_000}

    def work(connection: Any, claim: Any, offset: int) -> None:
        batch = _Batch([_Message(offset)])
        batch.claim = claim
        recipe["work_off"](connection, batch)

    with (
        psycopg.connect(database, autocommit=True) as connection,
        Marshal(kafka.bootstrap_servers, client_id="a", **common) as old,
        Marshal(kafka.bootstrap_servers, client_id="b", **common) as new,
    ):
        late = old.claim("t", 0, timeout_s=60)
        work(connection, late, 0)
        assert late.held  # it looks, and then it is suspended ...
        old._driver._stop.set()
        successor = new.claim("t", 0, timeout_s=60)
        work(connection, successor, 1)
        with pytest.raises(NotHeld, match="taken over"):  # ... until now
            work(connection, late, 2)
        work(connection, successor, 3)
        found = connection.execute("SELECT at FROM handled ORDER BY at").fetchall()
    assert found == [(0,), (1,), (3,)]

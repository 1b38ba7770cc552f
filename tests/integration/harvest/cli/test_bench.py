"""`harvest bench` measures, sends nothing elsewhere, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from harvest.cli.app import app
from marshal_py.embedded import EmbeddedKafka
from tests.support.harvest_world import wait_until

pytestmark = pytest.mark.kafka


def test_a_small_bench_of_each_mode(
    tmp_path: Path, kafka: EmbeddedKafka, postgres_database: str
) -> None:
    kafka.start()
    config = tmp_path / "reaper.yaml"
    config.write_text(
        f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
        f"database: {postgres_database}\ngroup: g\n"
        "destinations: {live: {http: {uri: 'http://127.0.0.1:1/'}}}\n"
        "columns: {headers: {h: live}}\n"
    )
    before = set(kafka.admin().list_topics(timeout=120).topics)
    result = CliRunner().invoke(app, ["bench", "-c", str(config), "--rows", "300", "--json"])
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)["results"]
    assert [r["mode"] for r in results] == ["mark, exactly once", "range, exactly once"]
    assert all(r["rows"] == 300 and r["drain_rows_per_s"] > 0 for r in results)

    def left() -> set[str]:
        after = set(kafka.admin().list_topics(timeout=120).topics)
        return {t for t in after - before if not t.startswith("__")}

    wait_until(lambda: not left(), "the scratch topics are gone")  # brokers learn of it late
    with psycopg.connect(postgres_database) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'harvest_bench%'"
        ).fetchall()
    assert tables == []


def test_a_bench_that_cannot_begin_says_why(tmp_path: Path) -> None:
    config = tmp_path / "reaper.yaml"
    config.write_text(
        "kafka: {bootstrap.servers: '127.0.0.1:1'}\n"
        "database: host=127.0.0.1 port=1 password=hush\ngroup: g\n"
    )
    result = CliRunner().invoke(app, ["bench", "-c", str(config)])
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr
    assert "hush" not in result.output

"""`harvest check`: what it finds on real servers, and what it says to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from harvest import OutboxRecord, Stasher
from harvest.cli.app import app
from marshal_py.client.topics import create_topics
from marshal_py.embedded import EmbeddedKafka

pytestmark = pytest.mark.kafka


def check(config: Path, code: int) -> dict[str, list[tuple[str, str]]]:
    result = CliRunner().invoke(app, ["check", "-c", str(config), "--json"])
    assert result.exit_code == code, result.output
    findings: dict[str, list[tuple[str, str]]] = {}
    for finding in json.loads(result.stdout)["findings"]:
        findings.setdefault(finding["subject"], []).append((finding["level"], finding["text"]))
    return findings


def test_kafka_and_the_topics_of_the_rows(
    tmp_path: Path, kafka: EmbeddedKafka, kafka_topic: Callable[..., Any], postgres_database: str
) -> None:
    small = kafka_topic(partitions=2, config={"max.message.bytes": "5000"})
    own = f"{small}.marshal"
    config = tmp_path / "reaper.yaml"
    config.write_text(
        f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\n"
        f"database: {postgres_database}\ngroup: {small}\ncoordination: {{topic: {own}}}\n"
    )
    CliRunner().invoke(app, ["init", "-c", str(config), "--notify"])
    with psycopg.connect(postgres_database) as connection:
        records = [OutboxRecord(topic, "k", "v") for topic in (small, small, "not-there")]
        Stasher().stash_many(connection, records)

    found = check(config, 1)
    assert found["wake-up"] == [("ok", "the trigger tells of new rows")]
    assert found["clock"][0][0] == "ok"
    topics = {(level, text.split()[0]) for level, text in found["topic"]}
    assert topics == {
        ("error", "the"),
        ("error", "not-there,"),
        ("ok", f"{small}:"),
        ("warning", f"{small}:"),
    }
    assert any("run `marshal topic create`" in text for _, text in found["topic"])
    assert any("2 partitions, 1 replicas" in text for _, text in found["topic"])

    create_topics(kafka.bootstrap_servers, topic=own, partitions=1)
    with psycopg.connect(postgres_database) as connection:
        connection.execute("DELETE FROM outbox WHERE kafka_topic = 'not-there'")
    found = check(config, 0)
    assert found["checkpoint"][0][0] == "ok"
    assert "there is none yet" in found["checkpoint"][0][1]
    longer = tmp_path / "longer.yaml"
    longer.write_text(f"{config.read_text()}producer: {{transaction.timeout.ms: 900001}}\n")
    assert "the brokers allow 900000" in check(longer, 1)["kafka"][-1][1]
    for name in (own, f"{own}.snapshots"):
        kafka.delete_topic(name)


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., Any],
    postgres_database: str,
    mode: str,
) -> None:
    topic = kafka_topic(partitions=1)
    own = f"{topic}.marshal"
    create_topics(kafka.bootstrap_servers, topic=own, partitions=1)
    config = tmp_path / "reaper.yaml"
    shards = "shards: 2\n" if mode == "range" else ""
    config.write_text(
        f"kafka: {{bootstrap.servers: '{kafka.bootstrap_servers}'}}\nmode: {mode}\n{shards}"
        f"database: {postgres_database}\ngroup: {topic}\ncoordination: {{topic: {own}}}\n"
    )
    CliRunner().invoke(app, ["init", "-c", str(config)])
    with psycopg.connect(postgres_database) as connection:
        keys = ["plain", "a\u202e\x1b[2J", *map(str, range(9))]
        Stasher().stash_many(connection, [OutboxRecord(topic, key, "v") for key in keys])
        connection.commit()
        select = "SELECT outbox::text FROM outbox ORDER BY id"
        before = connection.execute(select).fetchall()
        result = CliRunner().invoke(app, ["reap", "--dry-run", "-c", str(config)])
        assert result.exit_code == 0, result.output
        assert connection.execute(select).fetchall() == before
        assert connection.execute("SELECT count(*) FROM outbox_registration").fetchone() == (0,)
    said = [line.split(maxsplit=2)[1:] for line in result.output.splitlines()]
    rows = [text for subject, text in said if subject == "row"]
    assert rows[0] == f"id 1: topic {topic!r}, key 'plain'"
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert len(rows) == 5
    positions = [text for subject, text in said if subject == "position"]
    if mode == "mark":
        assert positions == ["the first row: what is published is deleted"]
    else:
        assert positions == ["shard 0: the first row", "shard 1: the first row"]
    assert [said[-1][0], said[-1][1].split()[0]] == ["backlog", "11"]
    kafka.delete_topic(own)
    result = CliRunner().invoke(app, ["reap", "--dry-run", "-c", str(config)])
    assert result.exit_code == 1
    assert "the coordination topic" in result.output
    kafka.delete_topic(f"{own}.snapshots")


def test_a_kafka_that_does_not_answer(
    tmp_path: Path, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvest.runtime.kafka_check._TIMEOUT_S", 0.5)
    config = tmp_path / "reaper.yaml"
    config.write_text(
        f"kafka: {{bootstrap.servers: '127.0.0.1:1'}}\ndatabase: {postgres_database}\ngroup: g\n"
    )
    CliRunner().invoke(app, ["init", "-c", str(config)])
    ((level, text),) = check(config, 1)["kafka"]
    assert level == "error"
    assert text.startswith("cannot be reached")

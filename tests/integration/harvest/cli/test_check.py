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
    for name in (own, f"{own}.snapshots"):
        kafka.delete_topic(name)


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

"""The pytest fixtures of `marshal_py.embedded.pytest_plugin`, used as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres


def produce_and_read(server: EmbeddedKafka, topic: str) -> bytes | None:
    servers = server.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    producer.produce(topic, b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


@pytest.mark.kafka
def test_a_record_goes_through_the_broker(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    assert produce_and_read(kafka, kafka_topic()) == b"hello"


@pytest.mark.kafka
def test_topics_are_fresh_and_as_asked(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    first, second = kafka_topic(partitions=6), kafka_topic(config={"cleanup.policy": "compact"})
    topics = kafka.admin().list_topics(timeout=120).topics
    assert len(topics[first].partitions) == 6
    assert len(topics[second].partitions) == 1


def test_each_database_is_empty(postgres: EmbeddedPostgres, postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as connection:
        tables = connection.execute(
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
        ).fetchone()
    assert tables == (0,)
    assert postgres_database != postgres.dsn


@pytest.mark.kafka
@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_a_harmed_broker_is_whole_for_the_next_test(
    harm: str, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    assert produce_and_read(kafka, kafka_topic()) == b"hello"
    getattr(kafka, harm)()


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_a_harmed_database_is_whole_for_the_next_test(
    harm: str, postgres: EmbeddedPostgres, postgres_database: str
) -> None:
    with psycopg.connect(postgres_database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    getattr(postgres, harm)()


def test_the_plugin_starts_and_imports_nothing_of_its_own() -> None:
    code = (
        "import sys, marshal_py; before = set(sys.modules)\n"
        "import marshal_py.embedded.pytest_plugin\n"
        "print(*[m for m in set(sys.modules) - before if m.startswith('marshal_py')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert set(output.split()) == {"marshal_py.embedded", "marshal_py.embedded.pytest_plugin"}


USES_POSTGRES = """
import sys
sys.modules["psycopg"] = None

def test(postgres):
    pass
"""


def test_a_fixture_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(USES_POSTGRES)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 1
    assert "needs psycopg: run `pip install 'marshal-py[embedded]'`" in result.stdout

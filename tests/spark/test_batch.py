"""Claimed batches: what they read and store, and two jobs that share a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from marshal_py import Marshal, NotHeld
from marshal_py.admin.group_admin import GroupAdmin
from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import ConfigurationError, MessagesMissing
from marshal_py.spark.batch import claimed_batch
from marshal_py.spark.source import MarshalSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.kafka


def produce(kafka: EmbeddedKafka, topic: str, partition: int, *values: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition, headers=[("h", b"1")])
    assert producer.flush(60) == 0


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in frame.collect())


def failing(job: Any) -> list[str]:
    """What a batch gives whose block ends with an exception."""
    found: list[str] = []

    def work() -> None:
        with job as batch:
            found.extend(values(batch.frame))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    return found


@pytest.fixture
def job(
    spark: SparkSession, kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> tuple[str, Callable[..., Any]]:
    topic = kafka_topic(partitions=2)

    def start(**more: Any) -> Any:
        given = {
            "group_id": "jobs",
            "topics": [topic],
            "interval_ms": 1_000,
            "coordination_topic": f"{topic}.marshal",
            **more,
        }
        return claimed_batch(spark, kafka.bootstrap_servers, **given)

    return topic, start


def test_a_batch_that_ends_well_is_stored_and_one_that_fails_comes_again(
    kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]]
) -> None:
    topic, start = job
    produce(kafka, topic, 0, "a", "b")
    produce(kafka, topic, 1, "c")
    assert failing(start()) == ["a", "b", "c"]
    with start() as batch:
        assert values(batch.frame) == ["a", "b", "c"]
        assert batch.frame.columns[-1] == "headers"
        assert batch.records == 3
    produce(kafka, topic, 1, "d")
    with start() as batch:
        assert values(batch.frame) == ["d"]
        assert [(r.partition, r.begin, r.end) for r in batch.ranges] == [(1, 1, 2)]
    with start() as batch:
        assert batch.ranges == ()
        assert values(batch.frame) == []


def test_a_topic_that_was_made_anew_is_told_until_the_position_is_set(
    kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]]
) -> None:
    topic, start = job
    produce(kafka, topic, 0, "a", "b")
    with start() as batch:
        assert batch.records == 2
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 2)
    produce(kafka, topic, 0, "c", "d", "e")
    with pytest.raises(MessagesMissing, match=f"{topic}/0, .* was made anew: "), start():
        pass
    with GroupAdmin(kafka.bootstrap_servers, "jobs", topic=f"{topic}.marshal") as admin:
        admin.set_positions({(topic, 0): "earliest"})
    with start() as batch:
        assert values(batch.frame) == ["c", "d", "e"]


def test_two_jobs_at_once_never_have_the_same_partition(
    kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]]
) -> None:
    topic, start = job
    produce(kafka, topic, 0, "a")
    produce(kafka, topic, 1, "b")
    with start(max_partitions=1) as one, start() as other, start() as third:
        assert values(one.frame) + values(other.frame) == ["a", "b"]
        assert third.ranges == ()


def test_at_most_once_a_failed_batch_does_not_come_again(
    kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]]
) -> None:
    topic, start = job
    produce(kafka, topic, 0, "a")
    assert failing(start(delivery="at-most-once")) == ["a"]
    produce(kafka, topic, 0, "b")
    with start(delivery="at-most-once") as batch:
        assert values(batch.frame) == ["b"]


def test_a_claim_that_was_lost_meanwhile_is_told(
    kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]]
) -> None:
    topic, start = job
    produce(kafka, topic, 0, "a")
    produce(kafka, topic, 1, "b")
    thief = Marshal(
        kafka.bootstrap_servers,
        group_id="jobs",
        client_id="the-job",
        topic=f"{topic}.marshal",
        close_on_sigterm=False,
    )
    lost = pytest.raises(NotHeld, match=f"{topic}/0 from 0 to 1")
    with lost, start(client_id="the-job"), thief:
        # A second process under the same name resumes the claim: the one mistake that can do it.
        assert thief.claim(topic, 0, timeout_s=60).held
    with start() as batch:
        assert "a" in values(batch.frame)


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_a_start_at_the_end_and_a_limit(
    kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]], delivery: str
) -> None:
    topic, start = job
    given = {"starting": "latest", "delivery": delivery}
    produce(kafka, topic, 0, "old")
    with start(**given) as batch:
        assert batch.ranges == ()
    produce(kafka, topic, 0, "a", "b", "c")
    with start(**given, max_records=2, topics=[topic]) as batch:
        assert values(batch.frame) == ["a"]  # half of two for each of the two partitions
    with start(**given) as batch:
        assert values(batch.frame) == ["b", "c"]


def test_read_shows_what_is_not_committed_and_claims_nothing(
    spark: SparkSession, kafka: EmbeddedKafka, job: tuple[str, Callable[..., Any]]
) -> None:
    topic, start = job
    spark.dataSource.register(MarshalSource)
    produce(kafka, topic, 0, "a", "b")

    def look(**options: str) -> DataFrame:
        reader = spark.read.format("marshal").option("groupId", "jobs").option("topics", topic)
        reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        reader = reader.option("coordinationTopic", f"{topic}.marshal")
        return reader.options(**options).load()

    assert values(look()) == values(look()) == ["a", "b"]
    with start() as batch:
        assert batch.records == 2
    produce(kafka, topic, 1, "c")
    assert values(look()) == ["c"]
    with pytest.raises(Exception, match="claimed_batch"):
        look(delivery="at-most-once").collect()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"topics": "orders"}, "topics = 'orders'"),
        ({"topics": []}, "topics = "),
        ({"delivery": "exactly-once"}, "delivery = 'exactly-once'"),
        ({"starting": "yesterday"}, "starting = 'yesterday'"),
        ({"max_records": 0}, "max_records = 0"),
        ({"max_partitions": -1}, "max_partitions = -1"),
    ],
)
def test_wrong_arguments_are_named(
    job: tuple[str, Callable[..., Any]], wrong: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named), job[1](**wrong):
        pass

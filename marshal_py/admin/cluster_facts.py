"""What `marshal doctor` asks the brokers: facts, for `cluster_checks` to judge."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from marshal_py.admin.cluster_checks import ClockSample, ClusterFacts, PartitionFacts, TopicFacts
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import catch_up, open_reader
from marshal_py.client.acl import REFUSED
from marshal_py.client.kafka_clients import connect
from marshal_py.client.log_reader import LogReader, Truncated, boottime_ns
from marshal_py.client.topics import admin_client
from marshal_py.errors import BrokerUnavailable, MarshalError, PartitionCountChanged

__all__ = ["gather_cluster_facts"]

PROBE_EVERY_S: Final = 0.1
_FEATURE: Final = re.compile(r"Enabling feature (\w+)")


def gather_cluster_facts(
    connection: Connection, *, watch_s: float = 0.0, probe: bool = False
) -> ClusterFacts:
    """Ask the brokers for everything.

    `watch_s`: for so long, note when records come. `probe`: write to a scratch topic, too. Raises
    `BrokerUnavailable`, `ConfigurationError`.
    """
    with _features() as seen:
        admin = admin_client({**connection.kafka, "debug": "feature"}, log=_feature_log)
        metadata = admin.list_topics(timeout=connection.timeout_s)
        topic = _topic(admin, connection, connection.topic)
        snapshots = _topic(admin, connection, connection.snapshot_topic)
        for _ in range(5):  # librdkafka's log lines are delivered by `poll`
            admin.poll(0.1)
        features = frozenset(seen) or None
    brokers = tuple(sorted(metadata.brokers))
    samples: list[ClockSample] = []
    mismatches: tuple[str, ...] = ()
    unreadable = partitions_changed = ""
    wall_ms: float | None = None
    other_wire = False
    if not topic.missing and not topic.denied:
        leaders = {p.partition: p.leader for p in topic.partitions}
        stamped = (topic.config or {}).get("message.timestamp.type") == "LogAppendTime"
        try:
            reader = open_reader(connection)
            try:
                watched = _watch(connection, reader, watch_s if stamped else 0.0, leaders)
                samples += watched
                mismatches = tuple(map(str, reader.mismatches))
                other_wire = reader.met_other_wire
                partitions_changed = str(reader.partition_count_error or "")
            finally:
                reader.close()
        except PartitionCountChanged as error:
            partitions_changed = str(error)
        except (MarshalError, Truncated) as error:
            unreadable = str(error)
    if probe:
        samples = _probe(admin, connection)
    if samples:
        offset_ms = time.time_ns() / 1e6 - boottime_ns() / 1e6
        wall_ms = min(s.delay_ms for s in samples) + offset_ms
    kafka = connection.kafka
    user = kafka.get("sasl.username")
    return ClusterFacts(
        servers=str(kafka.get("bootstrap.servers", kafka.get("metadata.broker.list"))),
        brokers=brokers,
        topic=topic,
        snapshots=snapshots,
        broker_config=_broker_config(admin, brokers, connection.timeout_s),
        features=features,
        samples=tuple(samples),
        wall_ahead_ms=wall_ms,
        counts_sleep=hasattr(time, "CLOCK_BOOTTIME"),
        mismatches=mismatches,
        unreadable=unreadable,
        partitions_changed=partitions_changed,
        other_wire=other_wire,
        principal=f"User:{user}" if user else "User:NAME",
    )


# What librdkafka found out about the brokers is told in its debug log, and nowhere else.

_feature_log: Final = logging.getLogger("marshal_py.doctor.features")
_feature_log.propagate = False


@contextmanager
def _features() -> Iterator[set[str]]:
    seen: set[str] = set()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = _FEATURE.search(record.getMessage())
            if found is not None:
                seen.add(found[1])

    listener = Listener()
    _feature_log.setLevel(logging.DEBUG)
    _feature_log.addHandler(listener)
    try:
        yield seen
    finally:
        _feature_log.removeHandler(listener)


def _topic(admin: AdminClient, connection: Connection, name: str) -> TopicFacts:
    asked: Any = admin.describe_topics(
        TopicCollection([name]),
        include_authorized_operations=True,
        request_timeout=connection.timeout_s,
    )
    try:
        found = asked[name].result()
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicFacts(name, missing=True)
        if code in REFUSED:
            return TopicFacts(name, denied=True)
        raise
    operations = found.authorized_operations
    return TopicFacts(
        name,
        tuple(
            PartitionFacts(
                p.id,
                -1 if p.leader is None else p.leader.id,
                tuple(node.id for node in p.replicas),
                tuple(node.id for node in p.isr),
            )
            for p in found.partitions
        ),
        _config(admin, ConfigResource(ResourceType.TOPIC, name), connection.timeout_s),
        None if operations is None else frozenset(o.name for o in operations),
    )


def _config(admin: AdminClient, resource: Any, timeout_s: float) -> dict[str, str] | None:
    try:
        entries: Any = admin.describe_configs([resource], request_timeout=timeout_s)[resource]
        return {n: e.value for n, e in entries.result().items() if e.value is not None}
    except KafkaException as error:
        if error.args[0].code() in REFUSED:
            return None
        raise


def _broker_config(
    admin: AdminClient, brokers: tuple[int, ...], timeout_s: float
) -> dict[str, str] | None:
    if not brokers:
        return None
    return _config(admin, ConfigResource(ResourceType.BROKER, str(brokers[0])), timeout_s)


def _watch(
    connection: Connection, reader: LogReader, watch_s: float, leaders: dict[int, int]
) -> list[ClockSample]:
    """Read the log to its end; then note when its records come."""
    catch_up(connection, reader)
    samples = []
    end_s = time.monotonic() + watch_s
    while (left_s := end_s - time.monotonic()) > 0:
        messages = reader.poll(min(0.1, left_s))
        now_ms = boottime_ns() / 1e6
        for _ in reader.fold(messages):
            pass
        for message in messages:
            if message.error() is None and message.topic() == reader.topic:
                stamp = message.timestamp()[1]
                leader = leaders.get(message.partition(), -1)
                samples.append(ClockSample(leader, stamp, now_ms))
    return samples


def _probe(admin: AdminClient, connection: Connection, seconds: float = 3.0) -> list[ClockSample]:
    """Write to a scratch topic for some seconds; note when each timestamp came back."""
    name = f"{connection.topic}.doctor.{os.urandom(4).hex()}"
    config = {"message.timestamp.type": "LogAppendTime", "retention.ms": "60000"}
    made = admin.create_topics(
        [NewTopic(name, 1, 1, config=config)], request_timeout=connection.timeout_s
    )
    made[name].result()
    samples: list[ClockSample] = []
    try:
        producer: Producer = connect(Producer, {**connection.kafka, "acks": "1", "linger.ms": 0})

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                samples.append(ClockSample(0, message.timestamp()[1], boottime_ns() / 1e6))

        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            producer.produce(name, b"", on_delivery=delivered)
            producer.flush(connection.timeout_s)
            time.sleep(PROBE_EVERY_S)  # a rate shows in samples that are far apart
        if not samples:
            raise BrokerUnavailable(f"nothing could be written to the scratch topic {name!r}")
    finally:
        admin.delete_topics([name], request_timeout=connection.timeout_s)[name].result()
    return samples

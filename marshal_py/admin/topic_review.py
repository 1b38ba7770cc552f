"""Creating the coordination topics, and comparing those that exist with what we would choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ResourceType,
)

from marshal_py.admin.connection import Connection
from marshal_py.admin.log_recovery import found_log
from marshal_py.client.topics import (
    DEFAULT_PARTITIONS,
    TopicPlan,
    admin_client,
    create_topics,
    plan_topics,
)

__all__ = ["WHY", "Difference", "TopicReview", "create_and_review"]

WHY = {
    "replication_factor": "one replica on each of up to three brokers",
    "min.insync.replicas": "so many brokers have a record before it counts",
    "unclean.leader.election.enable": "a broker that lags must not roll the log back",
    "cleanup.policy": "",
    "retention.ms": "records go when `marshal topic trim` says so, not by age",
    "retention.bytes": "records go when `marshal topic trim` says so, not by size",
    "message.timestamp.type": "one clock stamps all records: needed for a fast cold start",
    "segment.ms": "old snapshots are compacted away within the hour",
    "max.message.bytes": "a snapshot is one record",
}
"""Why a setting has its value, in a few words."""


@dataclass
class Difference:
    """A setting of a topic that exists and is not what we would choose."""

    setting: str
    found: str | None
    sound: str
    why: str


@dataclass
class TopicReview:
    """What `create` made or found."""

    topic: str
    created: bool
    partitions: int
    replication_factor: int
    config: dict[str, str]
    differences: list[Difference] = field(default_factory=list)


def create_and_review(
    connection: Connection, partitions: int | None, replication_factor: int | None
) -> tuple[list[TopicReview], int]:
    """Create what is missing; return what there is then, and how many brokers the cluster has.

    A log that is new gets its genesis in every coordination partition (§7.4).

    None: what is sound for this cluster. Raises as `create_topics` does.
    """
    made = create_topics(
        connection.kafka,
        timeout_s=connection.timeout_s,
        topic=connection.topic,
        snapshot_topic=connection.snapshot_topic,
        partitions=DEFAULT_PARTITIONS if partitions is None else partitions,
        replication_factor=replication_factor,
    )
    if not made[0].existed:
        found_log(connection)
    admin = admin_client(connection.kafka)
    brokers = len(admin.list_topics(timeout=connection.timeout_s).brokers)
    sound = plan_topics(
        brokers,
        topic=connection.topic,
        snapshot_topic=connection.snapshot_topic,
        partitions=made[0].partitions if partitions is None else partitions,
        replication_factor=replication_factor,
    )
    results = [
        _review(admin, plan, want, connection.timeout_s)
        for plan, want in zip(made, sound, strict=True)
    ]
    return results, brokers


def _review(admin: AdminClient, plan: TopicPlan, sound: TopicPlan, timeout_s: float) -> TopicReview:
    if not plan.existed:
        return TopicReview(plan.name, True, plan.partitions, plan.replication_factor, plan.config)
    config = _config(admin, plan.name, timeout_s)
    return TopicReview(
        plan.name,
        False,
        plan.partitions,
        plan.replication_factor,
        {name: config[name] for name in sound.config if name in config},
        _differences(plan, config, sound),
    )


def _differences(found: TopicPlan, config: dict[str, str], sound: TopicPlan) -> list[Difference]:
    """Return in what a topic that exists differs from the sound choice."""
    differences = []
    if found.partitions != sound.partitions:
        why = "it cannot be changed while the topic is in use"
        if found.name.endswith(".snapshots"):
            why = "the coordination topic has so many"
        differences.append(
            Difference("partitions", str(found.partitions), str(sound.partitions), why)
        )
    if found.replication_factor < sound.replication_factor:
        differences.append(
            Difference(
                "replication_factor",
                str(found.replication_factor),
                str(sound.replication_factor),
                WHY["replication_factor"],
            )
        )
    for name, value in sound.config.items():
        have = config.get(name)
        if have == value or (name in _AT_LEAST and have is not None and int(have) >= int(value)):
            continue
        if name == "segment.ms":
            continue  # a matter of taste: compaction is only later
        differences.append(Difference(name, have, value, WHY.get(name, "")))
    return differences


_AT_LEAST = ("min.insync.replicas", "max.message.bytes")


def _config(admin: AdminClient, topic: str, timeout_s: float) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries: dict[str, Any] = admin.describe_configs([resource], request_timeout=timeout_s)[
        resource
    ].result()
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}

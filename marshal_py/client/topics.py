"""What operators do to the topics (specs/PROTOCOL.md §2): create them with sound settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import (
    NO_CREATION,
    ConnectionErrors,
    connect,
    patience,
    rdkafka_logger,
)
from marshal_py.client.settings import DEFAULT_TOPIC, kafka_config
from marshal_py.errors import BrokerUnavailable, ConfigurationError

__all__ = ["DEFAULT_PARTITIONS", "TopicPlan", "create_topics", "ensure_topics", "plan_topics"]

DEFAULT_PARTITIONS: Final = 8
"""Enough for thousands of claims: partitions only spread the coordination log over brokers."""


@dataclass(frozen=True)
class TopicPlan:
    """One topic as it is to be made, or was found. `config` holds the settings chosen."""

    name: str
    partitions: int
    replication_factor: int
    config: dict[str, str] = field(default_factory=dict)
    existed: bool = False


def admin_client(
    config: Mapping[str, Any] | str, log: logging.Logger = rdkafka_logger
) -> AdminClient:
    """Return an AdminClient for librdkafka settings, or just brokers; librdkafka writes to `log`.

    To ask for a topic does not make it, unless the settings say so. Raises `ConfigurationError`.
    """
    try:
        return AdminClient({**NO_CREATION, **kafka_config(config)}, logger=log)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigurationError(f"librdkafka refuses the configuration: {error}") from None


def plan_topics(
    brokers: int,
    *,
    topic: str = DEFAULT_TOPIC,
    snapshot_topic: str | None = None,
    partitions: int = DEFAULT_PARTITIONS,
    replication_factor: int | None = None,
    with_snapshots: bool = True,
) -> list[TopicPlan]:
    """Choose the settings of both topics for a cluster of so many brokers (§2.3).

    Three replicas where there are three brokers, of which two must be in sync for a record to be
    accepted: one broker may fail without losing a claim or stopping the world. Never an unclean
    leader election, which would roll the log back. `with_snapshots=False` leaves the second topic
    out: version 1 (wire="text") has none.
    """
    if partitions < 1:
        raise ConfigurationError(f"partitions = {partitions} must be 1 or more")
    replicas = min(3, brokers) if replication_factor is None else replication_factor
    if not 1 <= replicas <= brokers:
        raise ConfigurationError(
            f"replication_factor = {replicas} must be 1 to {brokers}, the number of brokers"
        )
    safe = {
        "min.insync.replicas": str(max(1, replicas - 1)),
        "unclean.leader.election.enable": "false",
    }
    plans = [
        TopicPlan(
            topic,
            partitions,
            replicas,
            {
                **safe,
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "message.timestamp.type": "LogAppendTime",
            },
        ),
        TopicPlan(
            snapshot_topic or f"{topic}.snapshots",
            partitions,
            replicas,
            {
                **safe,
                "cleanup.policy": "compact",
                "segment.ms": "3600000",
                "max.message.bytes": str(32 * 1024 * 1024),
            },
        ),
    ]
    return plans if with_snapshots else plans[:1]


def create_topics(
    config: Mapping[str, Any] | str, *, timeout_s: float = 30.0, **choices: Any
) -> list[TopicPlan]:
    """Create the coordination topic and its snapshot topic; return what was chosen, or found.

    `choices` are those of `plan_topics`. A topic that exists is left as it is and returned with
    `existed`. Returns once every partition has a leader. Raises `ConfigurationError`,
    `AuthenticationFailed`, `AccessDenied`, `BrokerUnavailable`.
    """
    errors = ConnectionErrors()
    admin = connect(AdminClient, kafka_config(config), errors)
    deadline = time.monotonic() + timeout_s
    try:
        found = _all_topics(admin, errors, deadline)
        there = found.topics.get(choices.get("topic", DEFAULT_TOPIC))
        if there is not None and there.partitions:  # the snapshot topic has to have as many
            choices["partitions"] = len(there.partitions)
        plans = plan_topics(len(found.brokers), **choices)
        done = [
            TopicPlan(plan.name, 0, 0, existed=True)
            if plan.name in found.topics
            else _create(admin, config, plan, deadline)
            for plan in plans
        ]
        return [_await_leaders(admin, config, plan, deadline) for plan in done]
    except KafkaException as error:
        problem = error.args[0]
        if problem.code() in _NO_ANSWER:
            raise BrokerUnavailable(f"no answer from the brokers: {problem.str()}") from None
        raise ConfigurationError(f"the brokers refused: {problem.str()}") from None


def _all_topics(admin: AdminClient, errors: ConnectionErrors, deadline: float) -> Any:
    for wait_s in patience(deadline):
        try:
            return admin.list_topics(timeout=wait_s)
        except KafkaException as error:
            admin.poll(0)  # to hear what TLS, SASL and the network have said
            if errors.repeated or time.monotonic() >= deadline:
                raise errors.failure(error.args[0]) from None
    raise AssertionError  # `patience` has no end


def ensure_topics(
    config: Mapping[str, Any] | str,
    *,
    topic: str,
    snapshot_topic: str | None,
    timeout_s: float = 30.0,
) -> None:
    """Create the topics that are missing, with the settings of `plan_topics`.

    With `snapshot_topic=None`, the coordination topic alone. Raises as `create_topics` does.
    """
    create_topics(
        config,
        timeout_s=timeout_s,
        topic=topic,
        snapshot_topic=snapshot_topic,
        with_snapshots=snapshot_topic is not None,
    )


_NO_ANSWER: Final = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
_NOT_YET: Final = {
    *_NO_ANSWER,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.REQUEST_TIMED_OUT,
}
"""What comes while brokers that the cluster has already named are still joining it, or restart."""


def _create(
    admin: AdminClient, config: Mapping[str, Any] | str, plan: TopicPlan, deadline: float
) -> TopicPlan:
    while True:
        left_s = max(1.0, deadline - time.monotonic())
        topic = NewTopic(
            plan.name,
            num_partitions=plan.partitions,
            replication_factor=plan.replication_factor,
            config=plan.config,
        )
        try:
            admin.create_topics([topic], operation_timeout=left_s, request_timeout=left_s)[
                plan.name
            ].result()
            return plan
        except KafkaException as error:
            code = error.args[0].code()
            if code in REFUSED:
                raise denied(kafka_config(config), plan.name, "Create", "Describe") from None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return TopicPlan(plan.name, 0, 0, existed=True)
            if code not in _NOT_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.1)  # a cluster tells nobody when it is complete


def _await_leaders(
    admin: AdminClient, config: Mapping[str, Any] | str, plan: TopicPlan, deadline: float
) -> TopicPlan:
    """Wait until the metadata show every partition with a leader."""
    while True:
        wait_s = max(1.0, min(10.0, deadline - time.monotonic()))
        try:
            found = admin.list_topics(plan.name, timeout=wait_s).topics[plan.name]
        except KafkaException as error:
            if error.args[0].code() not in _NO_ANSWER or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        parts = found.partitions
        if found.error is not None and found.error.code() in REFUSED:
            raise denied(kafka_config(config), plan.name, "Describe")
        if (
            found.error is None
            and len(parts) >= max(1, plan.partitions)
            and all(part.leader >= 0 for part in parts.values())
        ):
            replicas = len(next(iter(parts.values())).replicas)
            return TopicPlan(plan.name, len(parts), replicas, plan.config, plan.existed)
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"topic {plan.name!r} has partitions without a leader")
        time.sleep(0.02)  # Kafka tells nobody when metadata have spread: asking is the only way

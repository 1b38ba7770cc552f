"""What the brokers refuse, said so that an administrator can act on it: the ACL, and the command.

A client needs Read and Write on the coordination topic and on its snapshot topic (each implies
Describe), and Create on both only to make them. It needs no right on a consumer group, and none on
the cluster (Write on a topic is enough for idempotence since Kafka 2.8).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from marshal_py.errors import AccessDenied

__all__ = ["REFUSED", "denied", "denied_on"]

REFUSED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)
"""Errors of brokers that mean a missing ACL, for what this client does."""


def denied(config: Mapping[str, Any], topic: str, *operations: str) -> AccessDenied:
    """Return the error that names what is missing on `topic`, and the command that grants it."""
    return denied_on(config, f"topic {topic!r}", ("--topic", topic), *operations)


def denied_on(
    config: Mapping[str, Any], what: str, resource: tuple[str, ...], *operations: str
) -> AccessDenied:
    """Return the error for whatever is missed `what` on; `resource` are the command's arguments."""
    user = config.get("sasl.username", config.get("sasl.user.name"))
    who = f"User:{user}" if user else "this client's principal"
    principal = f"User:{user}" if user else "User:NAME"
    servers = str(config.get("bootstrap.servers", config.get("metadata.broker.list", "HOST:PORT")))
    command = ["kafka-acls.sh", "--bootstrap-server", servers, "--add"]
    command += ["--allow-principal", principal]
    for operation in operations:
        command += ["--operation", operation]
    command += resource
    return AccessDenied(
        f"{who} lacks {' and '.join(operations)} on {what}. An administrator grants it "
        f"with: {shlex.join(command)}"
    )

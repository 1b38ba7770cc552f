"""What `harvest check` says of Kafka: the cluster, the topics, and what this user may do there.

It changes nothing and fences nobody. Hence one right is not tried: Write on the transactional.id,
since using it would stop a leader that is at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
)

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.mark_store import Finding
from harvest.errors import ConfigurationError
from harvest.runtime.parts import check_clients
from harvest.runtime.process import make_marshal
from harvest.sinks.kafka.clients import connected_admin, make_client
from harvest.sinks.kafka.committed_checkpoint import committed_checkpoint
from harvest.sinks.kafka.settings import (
    connection_settings,
    consumer_settings,
    producer_settings,
)
from marshal_py.errors import MarshalError

__all__ = ["check_kafka"]

_TIMEOUT_S: Final = 8.0
_OWN_RIGHTS: Final = frozenset({AclOperation.READ, AclOperation.WRITE})
_MESSAGE_MAX_BYTES: Final = 1_000_000  # librdkafka's default
_BATCH_OVERHEAD_BYTES: Final = 1024


def check_kafka(config: ReaperConfig, topics: Sequence[str]) -> list[Finding]:
    """Look at the cluster, the coordination topics, the checkpoint, and the outbox's `topics`.

    And first at the settings, of what a harvester makes: a client of the group, and producers.
    """
    try:
        check_clients(config)
        make_marshal(config)
    except (ConfigurationError, MarshalError) as error:
        return [Finding("kafka", "error", str(error))]
    settings = connection_settings(config.kafka)
    try:
        admin, metadata = connected_admin(settings, _TIMEOUT_S)
    except MarshalError as error:
        return [Finding("kafka", "error", f"cannot be reached: {error}")]
    findings = [Finding("kafka", "ok", f"{len(metadata.brokers)} brokers answer")]
    own = (config.coordination.topic, f"{config.coordination.topic}.snapshots")
    for topic in own:
        if not _is_there(metadata, topic):
            level = "warning" if config.coordination.create_topics else "error"
            text = (
                f"the coordination topic {topic} does not exist or may not be seen: run `marshal "
                "topic create`, or grant DESCRIBE on it"
            )
            findings.append(Finding("topic", level, text))  # type: ignore[arg-type]
    has_checkpoint = config.delivery == "transactional" or config.mode == "wal"
    if has_checkpoint and not config.destinations:
        findings.append(_check_group(config))
        findings += _check_transactions(config, admin, min(metadata.brokers))
    known = [name for name in topics if _is_there(metadata, name)]
    missing = [name for name in topics if name not in known]
    findings += [
        Finding(
            "topic",
            "error",
            f"{name}, named by rows of the outbox, does not exist or may not be seen: create it, "
            "or grant DESCRIBE on it",
        )
        for name in missing
    ]
    findings += _leaderless(metadata, [*own, *known])
    there = [name for name in dict.fromkeys([*own, *known]) if _is_there(metadata, name)]
    settings_of = _settings_of(admin, there)
    for name in there:
        findings += _check_in_sync(name, metadata.topics[name].partitions, settings_of.get(name))
    rights = _rights(admin, there)
    for name in own:
        lacking = _OWN_RIGHTS - rights.get(name, _OWN_RIGHTS)
        if lacking:  # without snapshots, a log that was never trimmed can be read all the same
            level = "error" if name == config.coordination.topic else "warning"
            text = f"grant {' and '.join(sorted(right.name for right in lacking))} on {name}"
            findings.append(Finding("topic", level, text))  # type: ignore[arg-type]
    if known:
        writable = {name: AclOperation.WRITE in found for name, found in rights.items()}
        for name in known:
            replicas = len(next(iter(metadata.topics[name].partitions.values())).replicas)
            partitions = len(metadata.topics[name].partitions)
            about = settings_of.get(name, {})
            findings += _check_topic(config, name, partitions, replicas, about)
            if name in writable and not writable[name]:
                text = f"{name} may not be written to: grant WRITE on it"
                findings.append(Finding("topic", "error", text))
    return findings


def _is_there(metadata: Any, name: str) -> bool:
    """Whether it can be seen."""
    found = metadata.topics.get(name)
    return found is not None and found.error is None


def _leaderless(metadata: Any, names: Sequence[str]) -> Iterator[Finding]:
    """Topics with partitions that can be neither written nor read now."""
    for name in names:
        found = metadata.topics.get(name)
        down = (
            [p for p, part in sorted(found.partitions.items()) if part.leader < 0] if found else []
        )
        if down:
            text = (
                f"{name}: no leader for partitions {_shown(down)}: start the brokers that are down"
            )
            yield Finding("topic", "error", text)


def _check_in_sync(
    name: str, partitions: Mapping[int, Any], about: Mapping[str, str] | None
) -> Iterator[Finding]:
    """Whether there are replicas enough for writing; of partitions that have a leader."""
    least = None if about is None else int(about.get("min.insync.replicas", 1))
    led = {p: part for p, part in sorted(partitions.items()) if part.leader >= 0}
    replicas = min((len(part.replicas) for part in led.values()), default=0)
    stuck = [p for p, part in led.items() if least is not None and len(part.isrs) < least]
    behind = [p for p, part in led.items() if len(part.isrs) < len(part.replicas)]
    if least is not None and led and least > replicas:
        text = f"{name}: min.insync.replicas is {least}, of {replicas} replicas: lower it"
        yield Finding("topic", "error", text)
    elif stuck:
        text = (
            f"{name}: fewer than {least} replicas are in sync for partitions {_shown(stuck)}, so "
            "nothing can be written there: start the brokers that are down"
        )
        yield Finding("topic", "error", text)
    elif behind:
        text = (
            f"{name}: replicas are out of sync for partitions {_shown(behind)}: one more failure "
            "may stop what is written there"
        )
        yield Finding("topic", "warning", text)


def _shown(partitions: Sequence[int]) -> str:
    more = f", … ({len(partitions)})" if partitions[8:] else ""
    return ", ".join(map(str, partitions[:8])) + more


def _check_topic(
    config: ReaperConfig, name: str, partitions: int, replicas: int, about: Mapping[str, str]
) -> Iterator[Finding]:
    facts = f"{name}: {partitions} partitions, {replicas} replicas"
    if not about:  # we may not ask: what the settings are is not known
        yield Finding("topic", "ok", facts)
        return
    minimum = int(about.get("min.insync.replicas", 1))
    largest = int(about.get("max.message.bytes", _MESSAGE_MAX_BYTES))
    facts += f", {minimum} in sync at least, records of up to {largest} bytes"
    yield Finding("topic", "ok", facts)
    if replicas > 1 and minimum < 2:
        text = f"{name}: set min.insync.replicas to 2, or one broken disk may lose what was purged"
        yield Finding("topic", "warning", text)
    if about.get("unclean.leader.election.enable") == "true":
        text = f"{name}: set unclean.leader.election.enable to false: it may lose what was purged"
        yield Finding("topic", "warning", text)
    sent = int(config.producer_config.get("message.max.bytes", _MESSAGE_MAX_BYTES))
    if sent > largest + _BATCH_OVERHEAD_BYTES:
        text = (
            f"{name}: the producer's message.max.bytes is {sent}, the topic takes {largest}: "
            "larger rows will be set aside"
        )
        yield Finding("topic", "warning", text)


def _check_group(config: ReaperConfig) -> Finding:
    # Of several shards, the first: the rights are those of all groups whose names begin so.
    name = config.shard_sink_name(0) if config.mode == "range" else config.sink_name
    group = f"harvest.{name}"
    consumer = make_client(Consumer, consumer_settings(config.kafka, group))
    try:
        found = committed_checkpoint(consumer, config.coordination.topic, _TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            text = (
                f"grant READ on the group {group}, and WRITE on the transactional.id of that name"
            )
            return Finding("checkpoint", "error", text)
        return Finding("checkpoint", "error", f"cannot be read: {_said(error)}")
    finally:
        consumer.close()
    there = "there is one" if found is not None else "there is none yet"
    return Finding("checkpoint", "ok", f"{there}, in the group {group}")


def _check_transactions(config: ReaperConfig, admin: AdminClient, broker: int) -> Iterator[Finding]:
    """Whether transactions may last as long as they are to: else none is begun."""
    settings = producer_settings(config.producer_config, config.sink_name)
    lasts_ms = int(settings["transaction.timeout.ms"])
    name = str(broker)
    about = _settings_of(admin, [name], ConfigResource.Type.BROKER).get(name, {})
    most_ms = int(about.get("transaction.max.timeout.ms", lasts_ms))
    if lasts_ms > most_ms:
        text = (
            f"transaction.timeout.ms is {lasts_ms}, by itself or for delivery.timeout.ms: the "
            f"brokers allow {most_ms} (transaction.max.timeout.ms)"
        )
        yield Finding("kafka", "error", text)


def _settings_of(
    admin: AdminClient, names: Sequence[str], kind: Any = ConfigResource.Type.TOPIC
) -> dict[str, dict[str, str]]:
    """Settings of topics, or brokers: of those that we may ask about."""
    resources = [ConfigResource(kind, name) for name in names]
    found = {}
    for resource, future in admin.describe_configs(resources, request_timeout=_TIMEOUT_S).items():
        try:
            entries = future.result()
        except KafkaException:
            continue  # DESCRIBE_CONFIGS is not needed for the work
        found[resource.name] = {name: entry.value for name, entry in entries.items()}
    return found


def _rights(admin: AdminClient, topics: Sequence[str]) -> dict[str, frozenset[AclOperation]]:
    """What we may do with topics, as far as the brokers say."""
    if not topics:
        return {}
    answers: dict[str, Any] = admin.describe_topics(
        TopicCollection(list(topics)),
        include_authorized_operations=True,
        request_timeout=_TIMEOUT_S,
    )
    found = {}
    for name, future in answers.items():
        try:
            operations = future.result().authorized_operations
        except KafkaException:
            continue
        if operations is not None:
            found[name] = frozenset(operations)
    return found


def _said(error: KafkaException) -> str:
    detail = error.args[0]
    return detail.str() if isinstance(detail, KafkaError) else str(detail)

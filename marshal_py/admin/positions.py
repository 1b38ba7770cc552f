"""Where a group should go on: targets in words and numbers, and what they come to in Kafka.

A `Target` says what is wanted ("the end", "ten minutes ago", "100 back"); `resolve` turns it into
an offset, given where the group is and which messages there are. Offsets name the next message, in
Kafka's committed offsets as in ours, so nothing has to be converted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from marshal_py.admin.topic_offsets import NO_SUCH_TOPIC
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import no_answer
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import BrokerUnavailable, GroupInUse, InvalidArgument, TopicMissing

__all__ = [
    "Change",
    "Extent",
    "Key",
    "Target",
    "committed_offsets",
    "extents",
    "partitions_of",
    "resolve",
    "target_of",
    "write_committed_offsets",
]

Key: TypeAlias = tuple[str, int]
"""(topic, partition)"""

EARLIEST: Final = -2
LATEST: Final = -1
MAX_OFFSET: Final = 2**63 - 1


class Target(NamedTuple):
    """Where to go on. `value` is an offset, a number of messages, or milliseconds since 1970.

    ``committed`` is an offset that another group had committed: it may lie outside of what is left
    of the messages, and is moved to the nearest one that there is.
    """

    kind: Literal["earliest", "latest", "offset", "shift", "time", "committed"]
    value: int = 0


class Extent(NamedTuple):
    """The messages that there are: from `first` to below `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Change:
    """What setting a position comes to. `before` is −1 where there was none."""

    topic: str
    partition: int
    before: int
    after: int
    holder: str | None
    extent: Extent | None
    """None: there is no such topic in Kafka; the claim is about something else."""
    moved_into_range: bool = False
    """The target lay outside of the messages that there are."""

    @property
    def key(self) -> Key:
        """(topic, partition)"""
        return (self.topic, self.partition)


_SHIFT: Final = re.compile(r"[+-]\d{1,18}")


def target_of(to: Target | str | int | datetime) -> Target:
    """Return the target that `to` stands for.

    An int is an offset, ``"+100"`` and ``"-100"`` are numbers of messages from the present position
    on, a `datetime` is the first message at or after that time, and there are ``"earliest"`` and
    ``"latest"``. Raises `InvalidArgument`.
    """
    if isinstance(to, Target):
        return to
    if isinstance(to, datetime):
        with suppress(ValueError, OverflowError):  # by the local time zone outside years 1 to 9999
            # Below 0 are words of Kafka's: -1 is the end.
            return Target("time", max(0, int(to.timestamp() * 1000)))
    if type(to) is int and 0 <= to <= MAX_OFFSET:
        return Target("offset", to)
    if to == "earliest" or to == "latest":
        return Target("earliest" if to == "earliest" else "latest")
    if isinstance(to, str) and _SHIFT.fullmatch(to):
        return Target("shift", int(to))
    if isinstance(to, str) and to.isdecimal() and int(to) <= MAX_OFFSET:
        return Target("offset", int(to))
    raise InvalidArgument(
        f"position {to!r} must be an offset of 0 or more, 'earliest', 'latest', '+100' or '-100' "
        "(messages from the present position on), or a datetime"
    )


def resolve(
    key: Key, target: Target, before: int, extent: Extent | None, at_time: int | None
) -> tuple[int, bool]:
    """Return (offset, whether it was moved into the range of the messages that there are).

    `before` is the present position, −1 for none; `at_time` the first offset at the target's time,
    None where there is no message so young. Raises `InvalidArgument`.
    """
    name = f"{key[0]}/{key[1]}"
    if extent is None:
        if target.kind != "offset":
            raise InvalidArgument(
                f"{name}: there is no such partition in Kafka, so {target.kind!r} has no meaning; "
                "give an offset"
            )
        return target.value, False
    if target.kind == "earliest":
        return extent.first, False
    if target.kind == "latest":
        return extent.end, False
    if target.kind == "time":
        return (extent.end if at_time is None else at_time), False
    if target.kind == "offset":
        if not extent.first <= target.value <= extent.end:
            raise InvalidArgument(
                f"{name}: offset {target.value} lies outside of the messages that there are, "
                f"{extent.first} to {extent.end}; 'earliest' and 'latest' name the ends"
            )
        return target.value, False
    wanted = target.value
    if target.kind == "shift":
        # Without a position a consumer begins at its `start`: the earliest, if nothing else is set.
        wanted += before if before >= 0 else extent.first
    inside = min(max(wanted, extent.first), extent.end)
    return inside, inside != wanted


# What Kafka knows


def partitions_of(admin: AdminClient, config: KafkaConfig, topic: str, timeout_s: float) -> int:
    """Return the number of partitions of a topic.

    Raises `TopicMissing`, `AccessDenied` if it is hidden, `BrokerUnavailable`.
    """
    try:
        found = admin.list_topics(topic, timeout=timeout_s).topics[topic]
    except KafkaException as error:
        raise no_answer(error) from None
    if found.error is not None and found.error.code() in REFUSED:
        raise denied(config, topic, "Describe")
    if found.error is not None and found.error.code() not in NO_SUCH_TOPIC:
        raise BrokerUnavailable(f"topic {topic!r}: {found.error.str()}")
    if not found.partitions:
        raise TopicMissing(f"topic {topic!r} does not exist")
    return len(found.partitions)


def extents(admin: AdminClient, keys: Iterable[Key], timeout_s: float) -> dict[Key, Extent]:
    """Return what there is of each partition; those that Kafka does not have are left out.

    Raises `BrokerUnavailable`.
    """
    keys = set(keys)
    try:
        topics = admin.list_topics(timeout=timeout_s).topics
        there = [
            key for key in sorted(keys) if key[0] in topics and key[1] in topics[key[0]].partitions
        ]
        first, end = (_list(admin, there, which, timeout_s) for which in (EARLIEST, LATEST))
    except KafkaException as error:
        raise no_answer(error) from None
    return {key: Extent(first[key], end[key]) for key in there}


def offsets_at(
    admin: AdminClient, times_ms: Mapping[Key, int], timeout_s: float
) -> dict[Key, int | None]:
    """Return the first offset at or after a time; None where there is no message so young.

    Raises `BrokerUnavailable`.
    """
    found: dict[Key, int | None] = {}
    try:
        for moment in set(times_ms.values()):
            keys = [key for key, at in times_ms.items() if at == moment]
            for key, offset in _list(admin, keys, moment, timeout_s).items():
                found[key] = None if offset < 0 else offset
    except KafkaException as error:
        raise no_answer(error) from None
    return found


def _list(admin: AdminClient, keys: list[Key], which: int, timeout_s: float) -> dict[Key, int]:
    if not keys:
        return {}
    specs: Any = kafka_admin.OffsetSpec
    special = {EARLIEST: specs.earliest, LATEST: specs.latest}
    query = special[which]() if which in special else specs.for_timestamp(which)
    futures = admin.list_offsets(
        {TopicPartition(*key): query for key in keys}, request_timeout=timeout_s
    )
    return {(at.topic, at.partition): future.result().offset for at, future in futures.items()}


# Kafka's own consumer groups


def committed_offsets(
    admin: AdminClient, kafka_group: str, timeout_s: float, *, even_if_active: bool = True
) -> dict[Key, int]:
    """Return what a Kafka consumer group has committed. After an error, make another `admin`.

    Raises `GroupInUse` if it has members that would go on committing (unless `even_if_active`), and
    `BrokerUnavailable`. A group that does not exist has committed nothing.
    """
    try:
        if not even_if_active:
            _refuse_active(admin, kafka_group, timeout_s)
        (answer,) = _answers(
            admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(kafka_group)], request_timeout=_NEVER_S
            ),
            timeout_s,
        )
        found = answer.topic_partitions or []
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}
        raise no_answer(error) from None
    return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}


def _refuse_active(admin: AdminClient, kafka_group: str, timeout_s: float) -> None:
    futures = admin.describe_consumer_groups([kafka_group], request_timeout=_NEVER_S)
    try:
        (found,) = _answers(futures, timeout_s)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:  # as new brokers say it
            return
        raise
    if found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD) and not found.members:
        return
    who = ", ".join(sorted({m.client_id for m in found.members})[:3]) or found.state.name.lower()
    raise GroupInUse(
        f"Kafka consumer group {kafka_group!r} has {len(found.members)} active members ({who}): "
        "what they do after the import would be done again. Stop them first, or say that it is "
        "meant (--even-if-active)"
    )


def write_committed_offsets(
    admin: AdminClient, kafka_group: str, offsets: Mapping[Key, int], timeout_s: float
) -> None:
    """Commit offsets in the name of a Kafka consumer group that has no members.

    After an error, make another `admin`. Raises `confluent_kafka.KafkaException`; Kafka refuses if
    the group has members of its own.
    """
    if not offsets:
        return
    wanted = [TopicPartition(*key, offset) for key, offset in sorted(offsets.items())]
    futures = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(kafka_group, wanted)], request_timeout=_NEVER_S
    )
    (answer,) = _answers(futures, timeout_s)
    for written in answer.topic_partitions or []:
        if written.error is not None:
            raise KafkaException(written.error)


_NEVER_S: Final = 3_600.0
"""The longest that librdkafka may be given for an answer."""


def _answers(futures: Mapping[str, Any], timeout_s: float) -> list[Any]:
    """Return what a group's coordinator answers. Raises `KafkaException`.

    Where it does not answer within the time that librdkafka was given, an assertion of librdkafka's
    ends the whole process (confluentinc/librdkafka#4605). So librdkafka waits as long as it may,
    and who gives up earlier leaves the question open in an `admin` that is used no more. What is
    asked of one partition, a consumer asks instead (`client.committed`).
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        return [each.result(max(0.0, deadline_s - time.monotonic())) for each in futures.values()]
    except TimeoutError:
        raise KafkaException(
            KafkaError(KafkaError._TIMED_OUT, "the group's coordinator does not answer")
        ) from None

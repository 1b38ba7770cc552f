"""What an operator may write to a version 1 log: pauses and positions (specs/INTEROP.md §4.9).

Only clients that understand `ReleaseGroup` heed a pause: ours, and Go Marshal before its pull
request 94 (May 2017). **Later Go versions read the record as invalid, and one that starts up while
the record is the first it meets believes to have read the whole log.** Use it where there are none.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException

from marshal_py.admin.positions import committed_offsets, write_committed_offsets
from marshal_py.client.claim import core_of
from marshal_py.client.kafka_clients import no_answer
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.client.settings import DEFAULT_TOPIC, kafka_config, new_instance_id
from marshal_py.client.topics import admin_client
from marshal_py.errors import BrokerUnavailable, ClaimTimeout, InvalidArgument, TopicMissing
from marshal_py.protocol.text.claimant import TextClaimant
from marshal_py.protocol.text.codec import RELEASE_GROUP, TextRecord, encode

__all__ = ["pause_group", "resume_group", "set_positions"]

ADMIN: str = "marshal-admin"
TIMEOUT_S = 30.0


def pause_group(
    config: Mapping[str, Any] | str,
    group_id: str,
    *,
    for_s: float,
    topic: str = DEFAULT_TOPIC,
    client_id: str = ADMIN,
) -> int:
    """Pause a group for `for_s` seconds; return until when, in seconds since 1970.

    Holders stop and release; nobody of the group claims until the time has come, by its own clock.
    Raises `TopicMissing`, `BrokerUnavailable`, and `MalformedRecord` for names with a slash.
    """
    if not for_s > 0:
        raise InvalidArgument(f"for_s = {for_s!r} must be above 0")
    until_s = math.ceil(time.time() + for_s)
    _write_pause(config, group_id, until_s, topic, client_id)
    return until_s


def resume_group(
    config: Mapping[str, Any] | str,
    group_id: str,
    *,
    topic: str = DEFAULT_TOPIC,
    client_id: str = ADMIN,
) -> None:
    """End the pause of a group now, by one that is over. Raises as `pause_group` does."""
    _write_pause(config, group_id, int(time.time()), topic, client_id)


def set_positions(
    config: Mapping[str, Any] | str,
    group_id: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    interval_ms: int = 60_000,
    timeout_s: float = 180.0,
    topic: str = DEFAULT_TOPIC,
    client_id: str = ADMIN,
) -> None:
    """Set the next offsets of (topic, partition)s, back or forth, as Go's admin does.

    Pauses the group, claims each partition when its holder has released it (or has been silent for
    two intervals), releases it with the new offset, and ends the pause. Raises `ClaimTimeout` after
    `timeout_s`: then somebody does not heed the pause, and nothing was set. `BrokerUnavailable`
    says how many were set where one of the releases was not seen.

    In version 1 an offset of 0 means that there is no position, and whoever comes next begins at
    what was committed to Kafka. So for 0 what was committed there is set to 0 as well, which asks
    for the right to commit for the group; `BrokerUnavailable` says that this failed.
    """
    for key, offset in offsets.items():
        if type(offset) is not int or not 0 <= offset < 2**63:
            raise InvalidArgument(f"offset of {key[0]}/{key[1]} = {offset!r} must be 0 or more")
    pause_group(config, group_id, for_s=timeout_s, topic=topic, client_id=client_id)
    try:
        with Marshal(
            config,
            group_id=group_id,
            client_id=client_id,
            topic=topic,
            interval_ms=interval_ms,
            wire="text",
            close_on_sigterm=False,
        ) as marshal:
            claimant = driver_of(marshal).claimant
            assert isinstance(claimant, TextClaimant)  # noqa: S101
            claimant.heeds_pauses = False
            try:
                claims = marshal.claim_many(offsets, timeout_s=timeout_s)
            except ClaimTimeout as error:
                raise ClaimTimeout(f"{error}; no position was changed") from None
            for done, claim in enumerate(claims):
                with driver_of(marshal).lock:
                    core_of(claim).holding.next_offset = offsets[claim.topic, claim.partition]
                with contextlib.suppress(ClaimTimeout):
                    claim.release(timeout_s=TIMEOUT_S)
                if claim.reason != "released":  # it was lost, or nothing is known
                    raise BrokerUnavailable(
                        f"{done} of {len(claims)} positions were set; that of {claim.topic}/"
                        f"{claim.partition} was not seen to be "
                        f"({claim.reason or 'no answer'}): run it again"
                    )
            _forget_committed(kafka_config(config), group_id, offsets)
    finally:
        resume_group(config, group_id, topic=topic, client_id=client_id)


def _forget_committed(
    kafka: dict[str, Any], group_id: str, offsets: Mapping[tuple[str, int], int]
) -> None:
    wanted = {key for key, offset in offsets.items() if offset == 0}
    if not wanted:
        return
    admin = admin_client(kafka)
    committed = committed_offsets(admin, group_id, TIMEOUT_S)
    beginnings = {key: 0 for key in wanted if committed.get(key, 0) > 0}
    try:
        write_committed_offsets(admin, group_id, beginnings, TIMEOUT_S)
    except KafkaException as error:
        raise BrokerUnavailable(
            f"what group {group_id!r} committed to Kafka could not be set to 0, so Go clients "
            f"begin there and not at the first message: {error.args[0].str()}"
        ) from None


def _write_pause(
    config: Mapping[str, Any] | str, group_id: str, until_s: int, topic: str, client_id: str
) -> None:
    kafka = kafka_config(config)
    try:
        found = admin_client(kafka).list_topics(timeout=TIMEOUT_S).topics.get(topic)
    except KafkaException as error:
        raise no_answer(error) from None
    if found is None or not found.partitions:
        raise TopicMissing(f"coordination topic {topic!r} does not exist")
    record = TextRecord(
        RELEASE_GROUP,
        0,
        int(time.time()),
        new_instance_id()[:8],
        client_id,
        group_id,
        "",
        0,
        until_s,
    )
    value = encode(record)
    writer = LogWriter(kafka, topic=topic, snapshot_topic=topic, timeout_ms=int(TIMEOUT_S * 1000))
    for partition in range(len(found.partitions)):
        writer.append(partition, partition, value)
    unsent = writer.flush(TIMEOUT_S)
    for partition, why in writer.take_failures():
        raise BrokerUnavailable(f"{topic}/{partition}: the pause was not written: {why}")
    if unsent:
        raise BrokerUnavailable(
            f"{topic!r}: the pause was not written to {unsent} of {len(found.partitions)} "
            f"partitions within {TIMEOUT_S:g} s; it may yet turn up"
        )

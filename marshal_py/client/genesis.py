"""The genesis of a log: it gives it an identity, and its epochs a base (specs/PROTOCOL.md §7.4)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Final

from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import MalformedRecord, PartitionCountChanged
from marshal_py.protocol.messages import MAX_BASE, VERSION, Genesis, decode

__all__ = ["count_changed", "counts_told", "new_genesis", "new_identity"]

LOOKED_AT: Final = 1_000
"""So many of the first records of a coordination partition may be others' before its genesis."""


def new_identity() -> str:
    """Return an identity that no log has: 32 random hex digits."""
    return f"{secrets.randbits(128):032x}"


def new_genesis(
    sender: tuple[str, str, str, int],
    *,
    previous: str,
    above: int,
    partitions: int,
    identity: str | None = None,
) -> Genesis:
    """Return a genesis with a fresh identity, of a log of so many coordination partitions.

    `sender` is (client_id, instance_id, group_id, seq). The base comes from this machine's clock,
    in microseconds since 1970, so that it is larger than any epoch of an earlier log under the same
    name; or it is larger than `above`, the largest epoch that is known, where that is more.
    """
    now_ns = time.time_ns()
    base = min(MAX_BASE, max(now_ns // 1_000, above + 1))
    made_ms = now_ns // 1_000_000
    client_id, instance_id, _, seq = sender
    return Genesis(
        VERSION,
        client_id,
        instance_id,
        _NO_GROUP,
        seq,
        identity or new_identity(),
        previous,
        base,
        partitions,
        made_ms,
    )


_NO_GROUP: Final = "-"
"""A genesis belongs to no group (§3.10)."""


def count_changed(topic: str, was: int, count: int) -> PartitionCountChanged:
    """Return what to raise where the log was written to `was` partitions, and there are `count`."""
    return PartitionCountChanged(
        f"topic {topic!r} had {was} partitions and now has {count}: claims would be decided in two "
        "places. Stop all clients, run `marshal topic recover`, and start them again"
    )


def counts_told(
    config: KafkaConfig,
    topic: str,
    extents: Mapping[int, tuple[int, int]],
    deadline: float,
) -> set[int]:
    """Return the numbers of partitions that the log was made with, as far as it tells.

    `extents` has (first offset, next offset) of each coordination partition; those whose first
    records were deleted are passed over. Raises `BrokerUnavailable`.
    """
    told: set[int] = set()
    starts = {p: 0 for p, (first, end) in extents.items() if first == 0 < end}
    ends = {p: min(extents[p][1], LOOKED_AT) for p in starts}
    if not starts:
        return told
    for message in read_to_end(config, topic, starts, ends, deadline):
        try:
            record = decode(message.value())
        except MalformedRecord:
            continue
        if isinstance(record, Genesis):
            told.add(record.partitions)
    return told

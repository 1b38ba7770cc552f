"""Coordination logs for the tests and benchmarks of the audit, written straight into Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from confluent_kafka import Producer

from marshal_py.protocol.messages import ClaimingPartition, Heartbeat, encode
from tests.benchmarks._servers import one_group_each

Record = tuple[int, bytes | None, int | None]
"""(coordination partition, value, timestamp in ms or None for now)"""


def write(servers: str, topic: str, records: Iterable[Record]) -> int:
    """Append records in their order; return how many."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 500_000,
            "linger.ms": 5,
        }
    )
    count = 0
    for partition, value, at_ms in records:
        while True:
            try:
                producer.produce(topic, value, partition=partition, timestamp=at_ms or 0)
                break
            except BufferError:
                producer.poll(0.05)
        count += 1
    if producer.flush(120):
        raise RuntimeError("the log could not be written")
    return count


def busy(
    count: int, *, clients: int = 100, cells: int = 1_000, partitions: int = 8
) -> list[Record]:
    """A log of so many records: claims, and then heartbeats, each with the progress of one claim.

    One group in each coordination partition.
    """
    records: list[Record] = []
    groups = one_group_each(partitions)
    seqs: dict[tuple[int, str], int] = {}
    offsets = [0] * partitions
    epochs = []

    def put(p: int, value: bytes) -> None:
        records.append((p, value, None))
        offsets[p] += 1

    def head(cell: int) -> tuple[Literal[2], str, str, str, int]:
        client, group = cell % clients, groups[cell % partitions]
        seq = seqs[client, group] = seqs.get((client, group), -1) + 1
        return (2, f"client-{client}", f"{client:016x}", group, seq)

    for n in range(cells):
        p = n % partitions
        epochs.append(offsets[p])
        put(p, encode(ClaimingPartition(*head(n), "data", n, 5_000, -1)))
    for n in range(count - cells):
        cell = n % cells
        beat = Heartbeat(*head(cell), 5_000, 0, [epochs[cell], n])
        put(cell % partitions, encode(beat))
    return records

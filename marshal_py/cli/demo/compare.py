"""The comparison at the end: database, Kafka and consumers, side by side. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from marshal_py.cli.demo.deliveries import Delivery

__all__ = ["Comparison", "Entry", "Record", "compare"]


class Entry(NamedTuple):
    """One committed outbox row, as the ledger has it: written in the same transaction."""

    row_id: str
    key: str
    seq: int


class Record(NamedTuple):
    """One record of the topic, as a read_committed consumer reads it."""

    partition: int
    offset: int
    key: str
    seq: int
    row_id: str


@dataclass
class Comparison:
    """What was found. Counts of rows or records; each of the first group has to be 0."""

    missing_in_kafka: int = 0
    """Committed rows that are not in the topic."""
    missing_at_consumers: int = 0
    """Committed rows in the topic that no consumer has handled."""
    from_rolled_back: int = 0
    """Records whose row was never committed."""
    altered: int = 0
    """Records that say something else than the committed row of the same id."""
    order_violations_in_kafka: int = 0
    """Rows of a key whose first record comes after one of a later row, or in another partition."""
    order_violations_at_consumers: int = 0
    """Messages of a partition that were first handled after a later one."""
    business_mismatches: int = 0
    """Accounts whose own count of rows differs from the ledger's."""

    committed: int = 0
    records: int = 0
    delivered: int = 0
    """Committed rows that are in the topic and were handled by a consumer."""
    duplicates: int = 0
    """Records of a row that is in the topic already."""
    old_after_new: int = 0
    """Of the duplicates, those that come after a later row of their key."""
    deliveries: int = 0
    redeliveries: int = 0
    """Deliveries of a message that some consumer had handled before."""
    under_old_epoch: int = 0
    """Deliveries under an epoch after one under a later epoch of the same partition."""

    @property
    def missing(self) -> int:
        """Committed rows that did not make it all the way."""
        return self.missing_in_kafka + self.missing_at_consumers

    @property
    def order_violations(self) -> int:
        """Violations of the order of a key, in the topic or at the consumers."""
        return self.order_violations_in_kafka + self.order_violations_at_consumers

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, altered, out of order or from a rolled-back transaction."""
        return not (
            self.missing
            or self.from_rolled_back
            or self.altered
            or self.order_violations
            or self.business_mismatches
        )


def compare(
    ledger: Iterable[Entry],
    accounts: Mapping[str, int],
    records: Sequence[Record],
    deliveries: Iterable[Delivery],
) -> Comparison:
    """Compare what was committed with what is in the topic and what the consumers did.

    `accounts` is key → number of committed rows, as the business table has it. `records` come in
    the order of each partition; deliveries in any.
    """
    result = Comparison()
    committed = {entry.row_id: entry for entry in ledger}
    result.committed = len(committed)
    _business(result, committed.values(), accounts)
    published = _kafka(result, committed, records)
    handled = _consumers(result, deliveries)
    result.missing_in_kafka = len(committed.keys() - published)
    result.missing_at_consumers = len((committed.keys() & published) - handled)
    result.delivered = len(committed.keys() & published & handled)
    return result


def _business(result: Comparison, entries: Iterable[Entry], accounts: Mapping[str, int]) -> None:
    count: dict[str, int] = {}
    for entry in entries:
        count[entry.key] = count.get(entry.key, 0) + 1
    result.business_mismatches = sum(
        accounts.get(key, 0) != count.get(key, 0) for key in accounts.keys() | count.keys()
    )


def _kafka(
    result: Comparison, committed: Mapping[str, Entry], records: Sequence[Record]
) -> set[str]:
    """Check the topic; return the rows that are in it."""
    published: set[str] = set()
    newest: dict[str, int] = {}
    home: dict[str, int] = {}
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        result.records += 1
        entry = committed.get(record.row_id)
        if entry is None:
            result.from_rolled_back += 1
            continue
        if (record.key, record.seq) != (entry.key, entry.seq):
            result.altered += 1
        key, seq = record.key, record.seq
        if record.row_id in published:
            result.duplicates += 1
            result.old_after_new += seq < newest.get(key, seq)
        elif seq < newest.get(key, seq) or home.get(key, record.partition) != record.partition:
            result.order_violations_in_kafka += 1
        published.add(record.row_id)
        newest[key] = max(seq, newest.get(key, seq))
        home.setdefault(key, record.partition)
    return published


def _consumers(result: Comparison, deliveries: Iterable[Delivery]) -> set[str]:
    """Check what the consumers did; return the rows that they handled."""
    handled: set[str] = set()
    seen: set[tuple[int, int]] = set()
    reached: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for delivery in sorted(deliveries):
        result.deliveries += 1
        partition, offset = delivery.partition, delivery.offset
        if (partition, offset) in seen:
            result.redeliveries += 1
        elif offset < reached.get(partition, offset):
            result.order_violations_at_consumers += 1
        result.under_old_epoch += delivery.epoch < epochs.get(partition, delivery.epoch)
        seen.add((partition, offset))
        handled.add(delivery.row_id)
        reached[partition] = max(offset, reached.get(partition, offset))
        epochs[partition] = max(delivery.epoch, epochs.get(partition, delivery.epoch))
    return handled

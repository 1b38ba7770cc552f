"""The demo's comparison finds what it is there to find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marshal_py.cli.demo.compare import Comparison, Entry, Record, compare
from marshal_py.cli.demo.deliveries import Delivery

LEDGER = [Entry(f"a{n}", "a", n) for n in (1, 2, 3)] + [Entry("b1", "b", 1)]
ACCOUNTS = {"a": 3, "b": 1, "c": 0}
RECORDS = [
    Record(0, 0, "a", 1, "a1"),
    Record(0, 1, "a", 2, "a2"),
    Record(0, 2, "a", 3, "a3"),
    Record(1, 0, "b", 1, "b1"),
]


def handle(records: Sequence[Record], epoch: int = 1, start_ns: int = 0) -> list[Delivery]:
    return [
        Delivery(start_ns + n, "c", r.partition, r.offset, epoch, r.key, r.seq, r.row_id)
        for n, r in enumerate(records)
    ]


def check(records: Sequence[Record], deliveries: Sequence[Delivery] | None = None) -> Comparison:
    given = handle(records) if deliveries is None else deliveries
    return compare(LEDGER, ACCOUNTS, records, given)


def test_all_is_well() -> None:
    result = check(RECORDS)
    assert result.sound
    assert (result.committed, result.records, result.delivered) == (4, 4, 4)
    assert (result.missing, result.duplicates, result.redeliveries) == (0, 0, 0)


def test_a_row_that_is_not_in_kafka() -> None:
    result = check(RECORDS[1:])
    assert (result.missing_in_kafka, result.missing_at_consumers) == (1, 0)
    assert result.delivered == 3
    assert not result.sound


def test_a_row_that_no_consumer_handled() -> None:
    result = check(RECORDS, handle(RECORDS[:-1]))
    assert (result.missing_in_kafka, result.missing_at_consumers) == (0, 1)
    assert (result.missing, result.delivered) == (1, 3)
    assert not result.sound


def test_a_row_of_a_rolled_back_transaction() -> None:
    result = check([*RECORDS, Record(0, 3, "a", 4, "never committed")])
    assert result.from_rolled_back == 1
    assert not result.sound


def test_a_record_that_was_changed() -> None:
    result = check([Record(0, 0, "a", 9, "a1"), *RECORDS[1:]])
    assert result.altered == 1
    assert not result.sound


def test_two_rows_of_a_key_in_the_wrong_order() -> None:
    swapped = [Record(0, 0, "a", 2, "a2"), Record(0, 1, "a", 1, "a1"), *RECORDS[2:]]
    result = check(swapped)
    assert result.order_violations_in_kafka == 1
    assert not result.sound


def test_a_key_in_two_partitions() -> None:
    result = check([*RECORDS[:2], Record(2, 0, "a", 3, "a3"), RECORDS[3]])
    assert result.order_violations_in_kafka == 1


def test_duplicates_are_counted_and_do_not_hide_the_order() -> None:
    again = [*RECORDS[:3], Record(0, 3, "a", 1, "a1"), Record(0, 4, "a", 3, "a3"), RECORDS[3]]
    result = check(again)
    assert (result.duplicates, result.old_after_new) == (2, 1)
    assert result.order_violations == 0
    assert result.sound


def test_redeliveries_and_old_epochs_are_counted() -> None:
    first = handle(RECORDS, epoch=1)
    successor = handle(RECORDS[1:3], epoch=5, start_ns=100)
    zombie = handle(RECORDS[2:3], epoch=1, start_ns=200)
    result = check(RECORDS, [*zombie, *successor, *first])
    assert (result.deliveries, result.redeliveries, result.under_old_epoch) == (7, 3, 1)
    assert result.order_violations_at_consumers == 0
    assert result.sound


def test_a_message_first_handled_after_a_later_one() -> None:
    result = check(RECORDS, handle([RECORDS[1], RECORDS[0], *RECORDS[2:]]))
    assert result.order_violations_at_consumers == 1
    assert not result.sound


@pytest.mark.parametrize("accounts", [{"a": 2, "b": 1}, {"a": 3}, {"a": 3, "b": 1, "d": 1}])
def test_the_business_table_must_agree_with_the_ledger(accounts: dict[str, int]) -> None:
    result = compare(LEDGER, accounts, RECORDS, handle(RECORDS))
    assert result.business_mismatches == 1
    assert not result.sound

"""`marshal lag`: what is too far behind, and what it says of partitions that nobody holds."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from marshal_py.admin.lag import PartitionLag
from marshal_py.cli import lag as module
from marshal_py.errors import AccessDenied
from tests.support.marshal_command import without_brokers

ROW = PartitionLag("g", "orders", 0, 60, 10, 100, 40, "a", "fresh", claimed=True)
UNTOUCHED = replace(ROW, partition=1, position=None, lag=None, holder=None, claimed=False)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> list[PartitionLag]:
    """What is measured: a test changes it."""
    found = [ROW]
    view = SimpleNamespace(require_group=lambda _: None, at_ms=None)
    monkeypatch.setattr(module, "read_world", lambda *_, **__: view)
    monkeypatch.setattr(module, "measure_lag", lambda *_, **__: found)
    monkeypatch.setattr(module, "require_readable", lambda *_, **__: None)
    return found


@pytest.mark.parametrize(("most", "code"), [("39", 1), ("40", 0)])
def test_above_the_maximum_is_exit_code_1(most: str, code: int) -> None:
    assert without_brokers("lag", "--max", most).exit_code == code
    assert without_brokers("lag", "--max", most, "--json").exit_code == code
    assert without_brokers("lag").exit_code == 0


@pytest.mark.parametrize(("most", "code"), [("89", 1), ("90", 0)])
def test_where_no_position_was_stored_all_that_there_is_counts(
    rows: list[PartitionLag], most: str, code: int
) -> None:
    rows.append(UNTOUCHED)
    assert without_brokers("lag", "--max", most).exit_code == code


def test_what_nobody_holds_is_told(rows: list[PartitionLag]) -> None:
    rows += [UNTOUCHED, replace(ROW, partition=2, holder=None)]
    done = without_brokers("lag")
    assert "(never claimed)" in done.stdout
    assert "(nobody)" in done.stdout
    assert "3 partitions, 80 messages behind altogether; 2 partitions held by nobody" in done.stderr
    assert [row["lag"] for row in json.loads(without_brokers("lag", "--json").stdout)] == [
        40, None, 40,
    ]  # fmt: skip


def test_a_topic_that_no_group_consumes_is_no_lag_of_0(rows: list[PartitionLag]) -> None:
    rows.clear()
    done = without_brokers("lag", "--topic", "ordres")
    assert done.exit_code == 2
    assert "no group consumes a topic 'ordres' that exists" in done.stderr
    assert without_brokers("lag").exit_code == 0


def test_what_is_behind_where_kafka_has_no_leader_is_not_known(rows: list[PartitionLag]) -> None:
    offline = replace(ROW, partition=1, first_offset=None, next_offset=None, lag=None, offline=True)
    rows.append(offline)
    for options in ([], ["--max", "0"], ["--json"]):
        done = without_brokers("lag", *options)
        assert done.exit_code == 3
        assert "Kafka has no leader for orders/1" in done.stderr
        assert "orders" in done.stdout
    shown = without_brokers("lag")
    assert "40 messages behind altogether; 1 partition without a leader" in shown.stderr


def test_what_the_brokers_hide_is_an_error_after_what_they_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AccessDenied("no right to Describe secret")

    monkeypatch.setattr(module, "require_readable", refuse)
    done = without_brokers("lag", "--max", "0")
    assert done.exit_code == 2
    assert "orders" in done.stdout
    assert "no right to Describe secret" in done.stderr


def test_the_names_of_strangers_are_shown_as_they_are(rows: list[PartitionLag]) -> None:
    stranger = "[/bold] [red]x[/red]"
    rows[:] = [replace(ROW, group=stranger, topic=stranger, holder=stranger)]
    assert without_brokers("lag").stdout.count(stranger) == 3

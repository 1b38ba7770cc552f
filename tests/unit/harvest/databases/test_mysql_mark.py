"""Marks in MariaDB or MySQL: until when they are good, by the server's clock."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.core.mark_checkpoint import Term
from harvest.databases.mysql import mark as module
from harvest.databases.mysql.mark import MysqlMarkStore
from tests.unit.harvest.databases.test_mysql_table import URL, Driver, driver

__all__ = ["driver"]


def test_tags_are_quoted_by_the_rules_of_the_server(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyMySQL 1.1 quotes bytes in a list with backslashes in any case. A server for which they are
    characters like others (NO_BACKSLASH_ESCAPES) found no such tag, and nothing was purged."""
    seen: list[tuple[str, Any]] = []

    def note(statement: str, parameters: Any = None) -> int:
        seen.append((statement, parameters))
        return 1

    monkeypatch.setattr(driver, "execute", note)
    store, tags = MysqlMarkStore(URL, "outbox"), [Term.of(1).tag(batch) for batch in (0, 1)]
    store.purge([1, 2, 5], tags)
    statement, given = seen[-1]
    assert statement.endswith(" AND leader_id IN (%s, %s)")
    assert list(given) == [tag.bytes for tag in tags]


def test_a_new_connection_may_lead_to_a_server_with_another_clock(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first mark, too, would be good for longer than the lease."""
    clock_s = 5_000.0
    until_s: list[float] = []
    execute = driver.execute

    def note(statement: str, parameters: Any = None) -> int:
        if "SET leader_id" in statement:
            until_s.append(parameters[-1])
        return execute(statement, parameters)

    def answer() -> Any:
        asked = driver.executed[-1]
        if "CONNECTION_ID" in asked:
            return ((7, b"10.11.6-MariaDB"),)
        if "SELECT UNIX_TIMESTAMP" in asked:
            return ((clock_s,),)
        return ((1,),) if "SELECT id FROM" in asked else ()

    monkeypatch.setattr(driver, "execute", note)
    monkeypatch.setattr(driver, "fetchall", answer)
    monkeypatch.setattr(module, "boottime_s", lambda: 100.0)
    store = MysqlMarkStore(URL, "outbox")
    for batch in range(2):
        store.mark(Term.of(1), batch, 10, 2_000.0)
    store.close()
    clock_s = 3_000.0
    store.mark(Term.of(1), 2, 10, 2_000.0)
    assert until_s == [5_002.0, 5_002.0, 3_002.0]

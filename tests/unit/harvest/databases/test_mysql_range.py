"""Copies of positions in MariaDB or MySQL: what becomes of them when the server breaks off."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.core.range_checkpoint import Position
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.errors import StoreUnavailable
from tests.unit.harvest.databases.test_mysql_table import URL, Driver, driver, pymysql

__all__ = ["driver"]


def test_no_part_of_a_rewrite_is_tried_again_by_itself(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock has undone those before it, and ended the transaction."""
    execute = driver.execute

    def deadlock(statement: str, parameters: object = None) -> int:
        if "last_id" in statement:
            driver.failures = [pymysql.OperationalError(1213, "Deadlock")]
        return execute(statement, parameters)

    monkeypatch.setattr(driver, "execute", deadlock)
    store = MysqlRangeStore(URL, "outbox")
    with pytest.raises(StoreUnavailable, match="Deadlock"):
        store.rewrite(1, [Position(1, 0, 1, 5)])
    assert sum("last_id" in statement for statement in driver.executed) == 1
    assert "COMMIT" not in driver.executed
    assert driver.closed == 1


def test_the_ids_that_are_drawn_are_looked_at_before_those_who_hold_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever draws one in between is seen by no look: his gap would be taken for dead, and his row
    be lost."""
    drawn = 7

    def answer() -> Any:
        nonlocal drawn
        asked = driver.executed[-1]
        if "auto_increment - 1" in asked:
            return ((drawn,),)
        if "processlist" in asked:
            drawn += 1
            return ()
        if "innodb_trx" in asked:
            return ((1, 7, b"now", 0, 1, 1),)
        return ((7, b"10.11.6-MariaDB"),) if "CONNECTION_ID" in asked else ((b"MariaDB",),)

    monkeypatch.setattr(driver, "fetchall", answer)
    assert MysqlRangeStore(URL, "outbox").holders().drawn == 7

"""Copies of positions in MariaDB or MySQL: what becomes of them when the server breaks off."""

from __future__ import annotations

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

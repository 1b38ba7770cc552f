"""Copies of positions in MariaDB or MySQL: what becomes of them when the server breaks off."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.core.range_checkpoint import Position
from harvest.databases.mysql import range as range_module
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


class Looked:
    """A server in which an id is drawn while its statements are looked at.

    `mark`: whether its list of transactions is that of this moment.
    """

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch, mark: int = 1) -> None:
        self.drawn = 7
        self.executed = driver.executed
        self.mark = mark
        monkeypatch.setattr(driver, "fetchall", self._answer)

    def _answer(self) -> Any:
        asked = self.executed[-1]
        if "auto_increment - 1" in asked:
            return ((self.drawn,),)
        if "processlist" in asked:
            self.drawn += 1
            return ()
        if "innodb_trx" in asked:
            return ((1, 7, b"now", 0, 1, self.mark),)
        return ((7, b"10.11.6-MariaDB"),) if "CONNECTION_ID" in asked else ((b"MariaDB",),)


def test_the_ids_that_are_drawn_are_looked_at_before_those_who_hold_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever draws one in between is seen by no look: his gap would be taken for dead, and his row
    be lost."""
    Looked(driver, monkeypatch)
    assert MysqlRangeStore(URL, "outbox").holders().drawn == 7


def test_statements_are_looked_at_before_transactions(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who begins his in between is on the second list; the other way round he was on neither."""
    server = Looked(driver, monkeypatch)
    MysqlRangeStore(URL, "outbox").holders()
    looks = [said for said in server.executed if "processlist" in said or "innodb_trx" in said]
    assert ["processlist" in said for said in looks] == [True, False]


def test_a_list_of_transactions_that_is_never_renewed_is_not_believed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_module, "_CACHED_S", 0.0)
    server = Looked(driver, monkeypatch, mark=0)
    with pytest.raises(StoreUnavailable, match="more than ten times a second by others"):
        MysqlRangeStore(URL, "outbox").holders()
    assert sum("innodb_trx" in said for said in server.executed) == range_module._LOOKS

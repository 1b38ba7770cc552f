"""A connection to MariaDB or MySQL: its URL, its conditions, and what its errors mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from harvest.databases.mysql.table import MysqlTable, connect_arguments, within
from harvest.errors import (
    ConfigurationError,
    HarvestError,
    SchemaError,
    StoreUnavailable,
    TableMissing,
)

pymysql = pytest.importorskip("pymysql")
URL = "mysql://app:hush@db:3307/shop"


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        (
            URL,
            {"host": "db", "port": 3307, "user": "app", "password": "hush", "database": "shop"},
        ),
        (
            "mysql://a%40b:p%2F%3Aw@db/my%20shop",
            {"host": "db", "port": 3306, "user": "a@b", "password": "p/:w", "database": "my shop"},
        ),
        (
            "mariadb:///shop?unix_socket=/run/x.sock&connect_timeout=3&ssl_ca=ca.pem",
            {
                "host": "localhost",
                "port": 3306,
                "user": None,
                "password": "",
                "database": "shop",
                "unix_socket": "/run/x.sock",
                "connect_timeout": 3,
                "ssl_ca": "ca.pem",
            },
        ),
    ],
)
def test_a_url_is_what_the_driver_takes(url: str, arguments: dict[str, Any]) -> None:
    assert connect_arguments(url) == arguments


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://app:hush@db", "names no database"),
        ("mysql://app:hush@db/", "names no database"),
        ("mysql://app:hush@db/a/b", "names no database"),
        ("mysql://app:hush@db:port/shop", "cannot be read"),
        ("mysql://app:hush@db/shop?connect_timeout=soon", "cannot be read"),
        ("mysql://app:hush@db/shop?charset=utf8", "unknown parameter 'charset'; known: unix_soc"),
    ],
)
def test_a_url_that_cannot_be_used_is_not_shown(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        connect_arguments(url)
    assert "hush" not in str(caught.value)


def test_a_column_is_the_same_in_whatever_case_it_was_written() -> None:
    class Written(MysqlTable):
        def _execute(self, *_: object) -> Any:
            return (
                (b"ID", b"BIGINT(20)", b"NO", b"AUTO_INCREMENT", None),
                (b"Kafka_Key", b"text", b"YES", b"", b"utf8mb4"),
            )

    assert Written(URL, "outbox")._types() == {
        "id": ("bigint(20)", True, True, None),
        "kafka_key": ("text", False, False, "utf8mb4"),
    }


def test_conditions_are_of_ranges_and_of_single_ids() -> None:
    assert list(within([])) == []
    assert list(within([(7, 7)])) == ["(id IN (7))"]
    assert list(within([(1, 3), (7, 7), (9, 10), (-4, -4)])) == [
        "(id BETWEEN 1 AND 3 OR id BETWEEN 9 AND 10 OR id IN (7, -4))"
    ]


def test_a_condition_is_no_longer_than_the_optimizer_bears() -> None:
    parts = list(within([(n, n) for n in range(0, 5002, 2)]))
    assert [part.count(",") + 1 for part in parts] == [1000, 1000, 501]
    ids = itertools.chain.from_iterable(part[8:-2].split(", ") for part in parts)
    assert [int(id) for id in ids] == list(range(0, 5002, 2))


class Driver:
    """A server that fails as it is told. One connection after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures: list[Exception] = []
        self.executed: list[str] = []
        self.connected = self.closed = 0
        self.given: dict[str, Any] = {}
        self.open = True
        monkeypatch.setattr(pymysql, "connect", self._connect)

    def _connect(self, **given: Any) -> Any:
        self.given = given
        self.connected += 1
        self.open = True
        return self

    def cursor(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, statement: str, parameters: object = None) -> int:
        del parameters
        self.executed.append(statement)
        if not statement.startswith(("SET", "SELECT CONNECTION_ID")) and self.failures:
            raise self.failures.pop(0)
        return 3

    def fetchall(self) -> Any:
        return ((7, b"10.11.6-MariaDB"),)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


class Table(MysqlTable):
    """What stores do with it, in public."""

    def change(self) -> int:
        return self._change("UPDATE outbox SET x = 1")


@pytest.fixture
def table() -> Table:
    return Table(URL, "outbox")


def test_a_connection_gives_up_and_counts_in_utc(driver: Driver, table: Table) -> None:
    table.ping()
    given = driver.given
    assert (given["host"], given["port"], given["database"]) == ("db", 3307, "shop")
    assert (given["connect_timeout"], given["read_timeout"], given["write_timeout"]) == (10, 30, 30)
    assert given["autocommit"] is True
    assert "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED" in driver.executed
    assert any("time_zone = '+00:00'" in statement for statement in driver.executed)
    Table(f"{URL}?connect_timeout=2", "outbox").ping()
    assert driver.given["connect_timeout"] == 2


def test_a_deadlock_is_tried_again_but_not_for_ever(driver: Driver, table: Table) -> None:
    driver.failures = [pymysql.OperationalError(1213, "Deadlock")] * 4
    assert table.change() == 3
    assert driver.connected == 1
    driver.failures = [pymysql.OperationalError(1213, "Deadlock")] * 9
    with pytest.raises(StoreUnavailable, match="1213 Deadlock"):
        table.change()
    assert len(driver.failures) == 4


def test_what_is_no_deadlock_is_not_tried_again(driver: Driver, table: Table) -> None:
    driver.failures = [pymysql.OperationalError(1205, "Lock wait timeout exceeded")] * 2
    with pytest.raises(StoreUnavailable, match="1205"):
        table.change()
    assert len(driver.failures) == 1
    assert driver.closed == 0, "the connection is good"


@pytest.mark.parametrize(
    ("failure", "kind", "said", "closed"),
    [
        (lambda: pymysql.ProgrammingError(1146, "no such"), TableMissing, "harvest init", False),
        (lambda: pymysql.OperationalError(1142, "denied"), SchemaError, "harvest check", False),
        (lambda: pymysql.OperationalError(1054, "column"), SchemaError, "harvest check", False),
        (lambda: pymysql.OperationalError(2013, "lost"), StoreUnavailable, "lost", True),
        (lambda: pymysql.OperationalError(2006, "gone"), StoreUnavailable, "gone", True),
        (lambda: pymysql.InterfaceError(0, ""), StoreUnavailable, "broke off", True),
        (lambda: pymysql.OperationalError(1290, "--read-only"), StoreUnavailable, "is read", True),
        (lambda: pymysql.InternalError(1792, "READ ONLY"), StoreUnavailable, "is read-only", True),
        (lambda: pymysql.OperationalError(1836, "mode"), StoreUnavailable, "is read-only", True),
        (lambda: TimeoutError("timed out"), StoreUnavailable, "does not answer", True),
    ],
)
@pytest.mark.parametrize("use", [Table.ping, Table.change])
def test_an_error_says_what_to_do_and_a_broken_connection_is_replaced(
    driver: Driver,
    table: Table,
    failure: Callable[[], Exception],
    kind: type[HarvestError],
    said: str,
    closed: bool,
    use: Callable[[Table], object],
) -> None:
    table.ping()
    driver.failures = [failure()]
    with pytest.raises(kind, match=said) as caught:
        use(table)
    assert type(caught.value) is kind
    assert driver.closed == int(closed)
    use(table)
    assert driver.connected == 1 + int(closed)


def test_a_connection_that_the_driver_has_closed_is_replaced(driver: Driver, table: Table) -> None:
    table.ping()
    driver.failures = [pymysql.OperationalError(1317, "interrupted")]
    driver.open = False
    with pytest.raises(StoreUnavailable):
        table.ping()
    table.ping()
    assert driver.connected == 2


def test_a_server_that_cannot_be_reached_says_so_without_the_password(
    monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    def refuse(**_: object) -> None:
        raise pymysql.OperationalError(2003, "Can't connect to MySQL server on 'db'")

    monkeypatch.setattr(pymysql, "connect", refuse)
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*'db'") as caught:
        table.ping()
    assert "hush" not in str(caught.value)


def test_a_statement_is_broken_off_on_another_connection(driver: Driver, table: Table) -> None:
    table.cancel()
    assert driver.connected == 0, "there is none"
    table.ping()
    table.cancel()
    assert driver.executed[-1] == "KILL QUERY 7"
    assert driver.connected == 2


def test_a_lock_is_waited_for_as_long_as_elsewhere(driver: Driver, table: Table) -> None:
    table.ping()
    assert any("innodb_lock_wait_timeout = 10" in statement for statement in driver.executed)


@pytest.mark.parametrize(("version", "is_asked"), [(b"8.4.3", True), (b"10.11.6-MariaDB", False)])
def test_mysql_tells_how_many_ids_are_drawn_now(
    driver: Driver, table: Table, monkeypatch: pytest.MonkeyPatch, version: bytes, is_asked: bool
) -> None:
    """It would tell how many there were a day ago."""
    monkeypatch.setattr(driver, "fetchall", lambda: ((7, version),))
    table.ping()
    asked = "SET SESSION information_schema_stats_expiry = 0" in driver.executed
    assert asked is is_asked

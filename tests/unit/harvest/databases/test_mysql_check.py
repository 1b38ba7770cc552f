"""What `harvest check` says of a table in MariaDB or MySQL, and for what it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest

from harvest.core.interfaces.mark_store import Finding
from harvest.databases.mysql.dead_letters import MysqlDeadLetters
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.errors import SchemaError

pytest.importorskip("pymysql")

COLUMNS: dict[str, tuple[str, str, str]] = {
    "id": ("bigint(20)", "NO", "auto_increment"),
    "create_time": ("timestamp(6)", "NO", ""),
    "kafka_topic": ("varchar(249)", "NO", ""),
    "kafka_key": ("mediumtext", "NO", ""),
    "kafka_value": ("mediumtext", "YES", ""),
    "kafka_header_keys": ("mediumtext", "NO", ""),
    "kafka_header_values": ("mediumtext", "NO", ""),
    "leader_id": ("binary(16)", "YES", ""),
}
PRIMARY = (b"outbox", 0, b"PRIMARY", 1, b"id")


class Answers:
    """What a server says of itself and of the table."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.columns = dict(COLUMNS)
        self.indexes = [PRIMARY]
        self.version = b"10.11.6-MariaDB"
        self.engine = b"InnoDB"
        self.flush, self.packet = 1, 16 << 20
        self.drawn = (1, 1)
        self.denied: str | None = None

    def _connected(self) -> Any: ...

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        del parameters
        if self.denied is not None and self.denied in statement:
            raise SchemaError("denied")
        answers: dict[str, Any] = {
            "SELECT VERSION": ((self.version,),),
            "information_schema.columns": [
                (name.encode(), *[text.encode() for text in its], None)
                for name, its in self.columns.items()
            ],
            "SELECT engine": ((self.engine,),),
            "SHOW INDEX": self.indexes,
            "innodb_flush_log_at_trx_commit": ((self.flush, self.packet),),
            "auto_increment_increment": (self.drawn,),
            "SELECT 1 FROM": ((1,),),
        }
        return next((found for text, found in answers.items() if text in statement), ())


class Mark(Answers, MysqlMarkStore):
    def wrong(self) -> list[Finding]:
        return [finding for finding in self.check() if finding.level != "ok"]


class Ranges(Answers, MysqlRangeStore): ...


@pytest.fixture
def server() -> Mark:
    return Mark("mysql://h/shop", "outbox")


def test_what_init_makes_is_well(server: Mark) -> None:
    assert server.wrong() == []
    server.connect()


@pytest.mark.parametrize(
    ("column", "its", "said"),
    [
        ("id", ("bigint unsigned", "NO", "auto_increment"), None),
        ("id", ("int(10) unsigned", "NO", "auto_increment"), None),
        ("id", ("varchar(36)", "NO", ""), "id is varchar(36): make it BIGINT AUTO_INCREMENT"),
        ("id", ("bigint(20)", "NO", ""), "id is not AUTO_INCREMENT"),
        ("create_time", ("datetime", "YES", ""), None),
        ("create_time", ("bigint(20)", "NO", ""), "create_time is bigint(20): make it TIMESTAMP"),
        ("leader_id", ("uuid", "YES", ""), None),
        ("leader_id", ("binary(16)", "NO", ""), "leader_id is binary(16): make it BINARY(16) NULL"),
        ("leader_id", ("char(36)", "YES", ""), "leader_id is char(36): make it BINARY(16) NULL"),
        ("kafka_value", None, "kafka_value is missing"),
    ],
)
def test_a_column_that_cannot_be_used_is_named_with_the_way_out(
    server: Mark, column: str, its: tuple[str, str, str] | None, said: str | None
) -> None:
    del server.columns[column]
    if its is not None:
        server.columns[column] = its
    if said is None:
        assert server.wrong() == []
        server.connect()
        return
    (wrong,) = server.wrong()
    assert (wrong.level, said in wrong.text) == ("error", True)
    with pytest.raises(SchemaError, match="cannot be harvested"):
        server.connect()


@pytest.mark.parametrize(
    "indexes",
    [
        [],
        [(b"outbox", 0, b"PRIMARY", 1, b"tenant"), (b"outbox", 0, b"by_id", 1, b"id")],
    ],
)
def test_without_a_primary_key_that_begins_with_id_it_is_not_well(
    server: Mark, indexes: list[Any]
) -> None:
    server.indexes = indexes
    (wrong,) = server.wrong()
    assert (wrong.level, wrong.text.endswith("ADD PRIMARY KEY (id)")) == ("error", True)


@pytest.mark.parametrize(
    ("flush", "packet", "said"),
    [
        (0, 4 << 20, ["innodb_flush_log_at_trx_commit is 0"]),
        (2, 4 << 20, ["innodb_flush_log_at_trx_commit is 2"]),
        (1, (4 << 20) - 1, ["max_allowed_packet is 4194303 bytes: larger rows cannot be read"]),
    ],
)
def test_settings_that_may_lose_what_was_done_are_warned_of(
    server: Mark, flush: int, packet: int, said: list[str]
) -> None:
    server.flush, server.packet = flush, packet
    assert [
        found.text[: len(text)] for found, text in zip(server.wrong(), said, strict=True)
    ] == said
    assert {found.level for found in server.wrong()} == {"warning"}


@pytest.mark.parametrize(
    ("version", "oldest"),
    [
        (b"10.6.0-MariaDB-log", None),
        (b"10.5.29-MariaDB", "10.6"),
        (b"8.0.11", None),
        (b"5.7.44-log", "8.0"),
    ],
)
def test_a_server_that_is_too_old_is_told(server: Mark, version: bytes, oldest: str | None) -> None:
    server.version = version
    said = [f"{oldest} is the oldest that is supported"] if oldest else []
    assert [found.text.rpartition(": ")[2] for found in server.wrong()] == said


def test_an_engine_without_transactions_is_refused(server: Mark) -> None:
    server.engine = b"Aria"
    with pytest.raises(SchemaError, match="the engine is Aria, without transactions"):
        server.connect()


@pytest.mark.parametrize("privilege", ["UPDATE", "DELETE"])
def test_a_privilege_that_is_missing_is_named(server: Mark, privilege: str) -> None:
    server.denied = f"EXPLAIN {privilege}"
    (wrong,) = server.wrong()
    assert wrong.text.startswith(f"GRANT {privilege}")


@pytest.mark.parametrize("drawn", [(2, 1), (1, 2), (2, 2)])
def test_ids_of_several_servers_are_in_no_order(drawn: tuple[int, int]) -> None:
    """Of two servers each draws every other one."""
    server = Ranges("mysql://h/shop", "outbox")
    server.connect()
    server.drawn = drawn
    with pytest.raises(SchemaError, match=r"auto_increment_increment is \d and .* must be 1"):
        server.connect()


class Letters(MysqlDeadLetters):
    """Of an outbox whose columns are written as its owner liked."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "outbox")
        self.asked: list[tuple[str, Sequence[Any]]] = []

    def _connected(self) -> Any:
        return MagicMock()

    def _types(self) -> Any:
        return COLUMNS

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        self.asked.append((statement, parameters))
        if "information_schema.columns" in statement:
            names = (b"ID", b"Create_Time", b"Kafka_Topic", b"LEADER_ID", b"Tenant")
            return [(name, b"bigint(20)") for name in names]
        return ((1,),) if "GET_LOCK" in statement else ()


def test_a_column_is_copied_once_however_it_is_written() -> None:
    letters = Letters("mysql://h/shop")
    letters.create()
    made = letters.asked[-1][0]
    assert "AS SELECT id, `Create_Time`, `Kafka_Topic`, `Tenant` FROM `outbox`" in made


def test_who_moves_rows_of_one_database_waits_for_nobody_in_another() -> None:
    locks = set()
    for name in ("shop", "bank", "shop"):
        letters = Letters(f"mysql://h/{name}")
        with letters._moving():
            pass
        locks.add(next(given[0] for said, given in letters.asked if "GET_LOCK" in said))
    assert len(locks) == 2

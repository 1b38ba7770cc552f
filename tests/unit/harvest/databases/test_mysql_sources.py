"""What MariaDB or MySQL is called, and which table it is: on servers of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harvest.core.source import Registration, Source
from harvest.databases.mysql.sources import MysqlSources
from harvest.errors import SchemaError, StoreUnavailable, TableMissing


class Server(MysqlSources):
    """Knows some of what it is asked; `marked`: for mark mode."""

    def __init__(self, *known: tuple[str, object], marked: bool) -> None:
        super().__init__("mysql://h/shop", "outbox")
        self.known = dict(known)
        self._marked = marked
        self.asked: list[str] = []
        self.changed: list[str] = []
        self.silent: str | None = None

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        self.asked.append(statement)
        if self.silent is not None and self.silent in statement:
            raise StoreUnavailable("no answer")
        for text, answer in self.known.items():
            if text in statement:
                return () if answer is None else ((answer,),)
        raise SchemaError(f"unknown: {statement} {parameters}")

    def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        self.changed.append(statement % tuple(map(repr, parameters)) if parameters else statement)
        if len(self.changed) == 1:
            raise TableMissing("no table of registrations")
        return 1


@pytest.mark.parametrize(
    ("known", "name"),
    [
        (("@@server_uuid", b"mysql's"), "mysql's"),
        (("@@server_uid", b"MariaDB's"), "MariaDB's"),
        (("@@hostname", "host:3306"), "host:3306"),
        (("@@nothing", b""), ""),
    ],
)
def test_a_server_has_the_first_name_that_it_knows(known: tuple[str, object], name: str) -> None:
    server = Server(known, marked=True)
    assert server.facts() == Source(server=name)


def test_what_a_server_does_not_know_is_asked_once() -> None:
    """Each time would be an error in its log, every few seconds."""
    server = Server(("@@server_uid", b"u"), marked=True)
    server.facts()
    server.asked.clear()
    assert server.facts().server == "u"
    assert server.asked == ["SELECT @@server_uid"]


def test_where_the_number_of_a_table_is_not_is_asked_once() -> None:
    server = Server(("@@server_uuid", b"u"), ("innodb_sys_tables", 7), marked=False)
    assert server.facts().sequence == "7"
    server.asked.clear()
    assert server.facts().sequence == "7"
    assert [text for text in server.asked if "innodb_tables" in text] == []


def test_a_server_that_does_not_answer_is_not_one_without_a_name() -> None:
    """It was taken for one, that was written down, and all that came after was another server."""
    server = Server(("@@server_uid", b"u"), ("@@hostname", "host:3306"), marked=True)
    server.silent = "@@server_uid"
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            server.facts()
        server.silent = "nothing"
        assert server.facts().server == "u"
        server.silent = "SELECT"


def test_a_server_that_does_not_answer_has_no_other_table() -> None:
    server = Server(("@@server_uuid", b"u"), ("innodb_sys_tables", 7), marked=False)
    server.silent = "innodb_tables"
    with pytest.raises(StoreUnavailable):
        server.facts()


@pytest.mark.parametrize(
    ("known", "number"),
    [
        (("innodb_tables", 1041), "1041"),
        (("innodb_sys_tables", 7), "7"),
        (("innodb_tables", None), ""),
        (("nothing", 1), ""),
    ],
)
def test_where_ids_are_the_position_a_table_has_a_number(
    known: tuple[str, object], number: str
) -> None:
    assert Server(known, ("@@server_uuid", b"u"), marked=False).facts().sequence == number
    assert Server(known, ("@@server_uuid", b"u"), marked=True).facts().sequence == "", (
        "in mark mode ids may begin anew"
    )


def test_of_two_who_register_at_once_neither_fails() -> None:
    server = Server(("SELECT cluster", None), marked=True)
    with pytest.raises(StoreUnavailable, match="could not be written"):
        server.register(Registration("c", "t", "g", "mark"))
    tried, create, insert = server.changed
    assert tried == insert
    assert "CREATE TABLE IF NOT EXISTS `outbox_registration`" in create
    assert create.rstrip().endswith("ENGINE = InnoDB DEFAULT CHARSET = utf8mb4")
    assert insert.startswith("INSERT IGNORE INTO `outbox_registration` ")
    assert "'c', 't', 'g', 'mark'" in insert

"""What MariaDB or MySQL says about itself: the server, and InnoDB's number of the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from harvest.core.source import Source
from harvest.core.table_name import TableName
from harvest.databases.mysql.table import MysqlTable
from harvest.databases.registrations import CREATE_REGISTRATION, INSERT_REGISTRATION, Registrations
from harvest.errors import SchemaError

__all__ = ["MysqlSources"]

# What a server is called: MySQL has the first, new versions of MariaDB the second, all the third.
_SERVER: Final = (
    "SELECT @@server_uuid",
    "SELECT @@server_uid",
    "SELECT CONCAT(@@hostname, ':', @@port)",
)
_TABLE: Final = tuple(
    f"SELECT table_id FROM information_schema.{name} WHERE name = %s"  # noqa: S608
    for name in ("innodb_tables", "innodb_sys_tables")
)

_IN_NO_FILE_NAME: Final = re.compile(r"[^\w]", re.ASCII)


class MysqlSources(MysqlTable, Registrations):
    """A connection to MariaDB or MySQL as a source of rows. Implements `SourceStore`."""

    _insert = INSERT_REGISTRATION.replace("INSERT", "INSERT IGNORE", 1)
    _create = CREATE_REGISTRATION + " ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"

    def __init__(self, url: str, table: str | TableName) -> None:
        super().__init__(url, table)
        self._understood: dict[tuple[str, ...], str] = {}
        """Of several questions, the one that the server understands."""

    def facts(self) -> Source:
        """See `Registrations.facts`."""
        return Source(server=self._answer(_SERVER), sequence=self._table_number())

    def _table_number(self) -> str:
        """TRUNCATE, which begins ids anew, and every statement that rebuilds it, changes it."""
        if self._marked:
            return ""  # ids may begin anew
        schema, table = self._where
        names = (schema or self._arguments["database"], table)
        return self._answer(_TABLE, ("/".join(map(_file_name, names)),))

    def _answer(self, questions: tuple[str, ...], parameters: Sequence[Any] = ()) -> str:
        """What the server says to the first question that it understands; empty if to none.

        The others are not asked again: each time would be an error in its log, every few seconds.
        """
        understood = self._understood.get(questions)
        for question in questions if understood is None else (understood,):
            try:
                found = self._execute(question, parameters)
            except SchemaError:  # it does not know that; no answer says nothing
                continue
            self._understood[questions] = question
            value = found[0][0] if found else ""
            return value.decode() if isinstance(value, bytes) else str(value)
        return ""

    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        statement = template.format(registration=self.registration_table.quoted("`"))
        if statement.lstrip().startswith("SELECT"):
            return list(self._execute(statement, parameters))
        self._change(statement, parameters)
        return []


def _file_name(name: str) -> str:
    """As InnoDB lists a name: that of a file. (Accented letters have signs of their own in it.)"""
    return _IN_NO_FILE_NAME.sub(lambda found: f"@{ord(found[0]):04x}", name)

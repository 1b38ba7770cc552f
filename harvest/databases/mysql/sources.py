"""What MariaDB or MySQL says about itself: the server, and InnoDB's number of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from harvest.core.source import Source
from harvest.databases.mysql.table import MysqlTable
from harvest.databases.registrations import CREATE_REGISTRATION, INSERT_REGISTRATION, Registrations
from harvest.errors import SchemaError

__all__ = ["MysqlSources"]

# What a server is called: MySQL has the first, new versions of MariaDB the second, all the third.
_SERVERS: Final = ("@@server_uuid", "@@server_uid", "CONCAT(@@hostname, ':', @@port)")
_TABLES: Final = ("innodb_tables", "innodb_sys_tables")


class MysqlSources(MysqlTable, Registrations):
    """A connection to MariaDB or MySQL as a source of rows. Implements `SourceStore`."""

    _insert = INSERT_REGISTRATION.replace("INSERT", "INSERT IGNORE", 1)
    _create = CREATE_REGISTRATION + " ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"
    _server_sql: str | None = None

    def facts(self) -> Source:
        """See `Registrations.facts`."""
        return Source(server=self._first(_SERVERS), sequence=self._table_number())

    def _first(self, expressions: Sequence[str]) -> str:
        for expression in expressions if self._server_sql is None else (self._server_sql,):
            try:
                ((name,),) = self._execute(f"SELECT {expression}")
            except SchemaError:  # it does not know that; no answer says nothing
                continue
            self._server_sql = expression
            return name.decode() if isinstance(name, bytes) else str(name)
        return ""

    def _table_number(self) -> str:
        """TRUNCATE, which begins ids anew, and every statement that rebuilds it, changes it."""
        if self._marked:
            return ""  # ids may begin anew
        schema, table = self._where
        for name in _TABLES:
            try:
                found = self._execute(
                    f"SELECT table_id FROM information_schema.{name} "  # noqa: S608
                    "WHERE name = CONCAT(COALESCE(%s, DATABASE()), '/', %s)",
                    (schema, table),
                )
            except SchemaError:
                continue
            return str(found[0][0]) if found else ""
        return ""

    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        statement = template.format(registration=self.registration_table.quoted("`"))
        if statement.lstrip().startswith("SELECT"):
            return list(self._execute(statement, parameters))
        self._change(statement, parameters)
        return []

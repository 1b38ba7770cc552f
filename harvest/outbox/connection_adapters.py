"""What the Stasher can write to: one small adapter for each kind of connection.

No driver is imported here; a connection is recognised by the module that its class comes from, so
that a subclass is recognised too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from harvest.errors import NoTransaction, UnsupportedConnection

__all__ = ["Adapter", "adapt", "adapt_async"]

_MYSQL: Final = {"pymysql", "MySQLdb", "mysql", "mariadb"}
_ASYNC: Final = {
    "AsyncConnection",
    "AsyncCursor",
    "AsyncServerCursor",
    "AsyncSession",
    "async_scoped_session",
}
_IDLE: Final = 0  # libpq's PQTRANS_IDLE, in psycopg 3 and psycopg2 alike

_IN_TRANSACTION: Final = 1  # MySQL's SERVER_STATUS_IN_TRANS


class Adapter:
    """A DB-API connection or cursor, seen as: execute this, in that parameter style."""

    def __init__(self, target: Any, paramstyle: str, dialect: str) -> None:
        self._target = target
        self._paramstyle = paramstyle
        self.arrays = dialect == "postgresql"
        self.quote = "`" if dialect == "mysql" else '"'

    def placeholders(self, position: int) -> str:
        """The placeholder of the parameter at `position`, counted from 0."""
        match self._paramstyle:
            case "format" | "pyformat":
                return "%s"
            case "qmark":
                return "?"
            case "numeric":
                return f":{position + 1}"
            case "numeric_dollar":
                return f"${position + 1}"
            case _:  # "named"
                return f":p{position}"

    def parameters(self, values: Sequence[Any]) -> Any:
        """`values` in the container that the style asks for."""
        if self._paramstyle == "named":
            return {f"p{position}": value for position, value in enumerate(values)}
        return tuple(values)

    def require_transaction(self) -> None:
        """Raise `NoTransaction` if the row would be committed at once, on its own."""
        connection = _connection_of(self._target)
        if _commits_by_itself(connection):
            raise NoTransaction(
                f"the {_root(connection)} connection is in autocommit mode, with no transaction: "
                "the row would be published whatever becomes of your other changes. Begin a "
                "transaction (psycopg: `with connection.transaction():`), then stash"
            )

    def execute(self, statement: str, values: Sequence[Any]) -> None:
        """Run `statement` on the caller's transaction."""
        self._run(statement, self.parameters(values), close=True)

    def rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """What `statement` returns, as tuples, whatever the caller's own rows are made as. Raises
        `UnsupportedConnection` for what is none of psycopg 3."""
        if "psycopg" not in _roots(self._target):
            raise _unsupported(self._target, "psycopg 3 connection or cursor")
        with _connection_of(self._target).cursor(row_factory=lambda _: tuple) as cursor:
            found: list[tuple[Any, ...]] = cursor.execute(statement, values).fetchall()
        return found

    def columns(self, statement: str) -> list[Any]:
        """The type codes of the columns of a query that returns no row."""
        cursor = self._run(statement, None, close=False)
        cursor.fetchall()  # in psycopg's pipeline mode this is what waits for the answer
        codes = [column[1] for column in cursor.description]
        if cursor is not self._target:
            cursor.close()
        return codes

    async def aexecute(self, statement: str, values: Sequence[Any]) -> None:
        """`execute`, awaited."""
        raise NotImplementedError

    async def acolumns(self, statement: str) -> list[Any]:
        """`columns`, awaited."""
        raise NotImplementedError

    def _run(self, statement: str, parameters: Any, *, close: bool) -> Any:
        opened = None if _is_cursor(self._target) else self._target.cursor()
        cursor = self._target if opened is None else opened
        try:
            if parameters is None:
                cursor.execute(statement)
            else:
                cursor.execute(statement, parameters)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        if opened is not None and close:
            opened.close()
        return cursor


class _PsycopgAsync(Adapter):
    async def aexecute(self, statement: str, values: Sequence[Any]) -> None:
        await self._target.execute(statement, self.parameters(values))

    async def acolumns(self, statement: str) -> list[Any]:
        cursor = await self._target.execute(statement)
        await cursor.fetchall()
        return [column.type_code for column in cursor.description]


class _SqlAlchemy(Adapter):
    """A SQLAlchemy Connection, sync or async; its driver's own SQL, parameters and transaction."""

    def require_transaction(self) -> None:
        # SQLAlchemy begins by itself; only an isolation level, or its driver, escapes that.
        connection = getattr(self._target, "sync_connection", self._target)
        level = connection.get_execution_options().get("isolation_level") or getattr(
            connection.dialect, "_on_connect_isolation_level", None
        )
        if str(level).upper() == "AUTOCOMMIT":  # SQLAlchemy takes it in small letters, too
            raise NoTransaction(
                "the SQLAlchemy connection has the isolation level AUTOCOMMIT: "
                "the row would be published whatever becomes of your other changes"
            )
        driver = connection.connection.dbapi_connection
        # SQLite: a hook may send its BEGIN as soon as SQLAlchemy begins, so it is asked after that.
        is_told = connection.in_transaction() or _root(driver) != "sqlite3"
        if is_told and _commits_by_itself(driver):
            raise NoTransaction(
                "the driver of the SQLAlchemy connection is in autocommit mode: "
                "the row would be published whatever becomes of your other changes"
            )

    def execute(self, statement: str, values: Sequence[Any]) -> None:
        self._target.exec_driver_sql(statement, self.parameters(values)).close()

    def columns(self, statement: str) -> list[Any]:
        result = self._target.exec_driver_sql(statement)
        codes = [column[1] for column in result.cursor.description]
        result.close()
        return codes

    async def aexecute(self, statement: str, values: Sequence[Any]) -> None:
        await self._target.exec_driver_sql(statement, self.parameters(values))

    async def acolumns(self, statement: str) -> list[Any]:
        def probe(connection: Any) -> list[Any]:
            return _SqlAlchemy(connection, self._paramstyle, "").columns(statement)

        codes: list[Any] = await self._target.run_sync(probe)
        return codes


def adapt(connection: Any, paramstyle: str | None = None) -> Adapter:
    """The adapter for a synchronous connection, cursor or session.

    Raises `UnsupportedConnection`.
    """
    if _is_async(connection):
        raise UnsupportedConnection(
            f"{type(connection).__name__} is asynchronous: use astash or astash_many"
        )
    if "sqlalchemy" in _roots(connection):
        if hasattr(connection, "get_bind"):  # a Session, or what wraps one
            connection = connection.connection()
        return _sqlalchemy(connection, paramstyle)
    if not hasattr(connection, "cursor") and not _is_cursor(connection):
        raise _unsupported(connection)
    dialect = _dialect(connection)
    return Adapter(connection, paramstyle or _paramstyle(connection), dialect)


async def adapt_async(connection: Any, paramstyle: str | None = None) -> Adapter:
    """The adapter for an asynchronous connection, cursor or session.

    Raises `UnsupportedConnection`.
    """
    if not _is_async(connection):
        raise UnsupportedConnection(
            f"{type(connection).__name__} is not asynchronous: use stash or stash_many"
        )
    if "sqlalchemy" in _roots(connection):
        if hasattr(connection, "get_bind"):
            connection = await connection.connection()
        return _sqlalchemy(connection, paramstyle)
    if "psycopg" not in _roots(connection):
        raise _unsupported(connection)
    return _PsycopgAsync(connection, paramstyle or "format", "postgresql")


def _sqlalchemy(connection: Any, paramstyle: str | None) -> Adapter:
    if not hasattr(connection, "exec_driver_sql"):
        raise _unsupported(connection)
    dialect = connection.dialect
    return _SqlAlchemy(connection, paramstyle or dialect.paramstyle, _family(dialect.name))


def _unsupported(
    connection: Any,
    wanted: str = "psycopg 3 or DB-API connection or cursor, a SQLAlchemy Connection or Session, "
    "or django.db.connection",
) -> UnsupportedConnection:
    return UnsupportedConnection(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no connection that the "
        f"Stasher knows: give a {wanted}"
    )


def _roots(thing: Any) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in type(thing).__mro__}


def _root(connection: Any) -> str:
    """The driver's package, seen through subclasses defined elsewhere."""
    for cls in type(connection).__mro__:
        root = cls.__module__.partition(".")[0]
        if hasattr(sys.modules.get(root), "paramstyle") or root == "django":
            return root
    return type(connection).__module__.partition(".")[0]


def _is_async(connection: Any) -> bool:
    return any(cls.__name__ in _ASYNC for cls in type(connection).__mro__)


def _is_cursor(target: Any) -> bool:
    return hasattr(target, "execute") and hasattr(target, "fetchone")


def _connection_of(target: Any) -> Any:
    if not _is_cursor(target):
        return target
    wrapper = getattr(target, "db", None)  # Django's cursor
    return wrapper if wrapper is not None else getattr(target, "connection", target)


def _paramstyle(connection: Any) -> str:
    root = _root(connection)
    if root == "django":
        return "format"
    style = getattr(sys.modules.get(root), "paramstyle", None)
    if style is None:
        raise UnsupportedConnection(
            f"the module {root!r} does not say its paramstyle: "
            "give it, as in Stasher(table, paramstyle='qmark')"
        )
    return str(style)


def _dialect(connection: Any) -> str:
    root = _root(connection)
    if root == "django":
        return _family(str(_connection_of(connection).vendor))
    return "sqlite" if root == "sqlite3" else "mysql" if root in _MYSQL else "postgresql"


def _family(name: str) -> str:
    return "mysql" if name in ("mysql", "mariadb") else name


def _commits_by_itself(connection: Any) -> bool:
    match _root(connection):
        case "psycopg":
            return bool(connection.autocommit) and connection.info.transaction_status == _IDLE
        case "psycopg2":
            return bool(connection.autocommit) and connection.get_transaction_status() == _IDLE
        case "sqlite3":
            manual = connection.isolation_level is None or _is_on(connection, "autocommit")
            return manual and not connection.in_transaction
        case "pymysql":
            open_one = connection.server_status & _IN_TRANSACTION
            return bool(connection.get_autocommit()) and not open_one
        case "django":
            return bool(connection.get_autocommit())
        case _:
            # In a transaction already? mysql.connector, pg8000 and mariadb say so; who cannot say
            # is not believed to be.
            if _is_on(connection, "in_transaction") or _is_on(connection, "_in_transaction"):
                return False
            status = getattr(connection, "server_status", 0)
            if isinstance(status, int) and status & _IN_TRANSACTION:
                return False
            return _is_on(connection, "autocommit")


def _is_on(connection: Any, name: str) -> bool:
    """Whether the attribute is True: some drivers have a method of that name, or a number."""
    return getattr(connection, name, None) is True

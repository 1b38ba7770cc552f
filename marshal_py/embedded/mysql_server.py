"""What EmbeddedMariaDB and EmbeddedMySQL have in common."""

from __future__ import annotations

import importlib.util
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

from .errors import MissingExtra
from .ports import HOST
from .process import tail
from .server import DatabaseServer, Installation

__all__ = ["MysqlServer"]

_USER: Final = "root"

Programs = TypeVar("Programs")


class MysqlServer(DatabaseServer[Programs]):
    """A server that speaks MySQL's protocol. The user is `root`, without a password."""

    _stop_signal: ClassVar = signal.SIGTERM
    _hidden: ClassVar = ("MYSQL", "MARIADB")

    def dsn_of(self, database: str) -> str:
        """The URL of a database."""
        return f"mysql://{_USER}@{HOST}:{self.port}/{database}"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, by default with a random name, and return its URL."""
        name = name or f"test_{uuid.uuid4().hex[:12]}"
        with self._cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name.replace('`', '``')}`")
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, once nobody uses its tables; fine if it does not exist."""
        with self._cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS `{name.replace('`', '``')}`")

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        if importlib.util.find_spec("pymysql") is None:
            raise MissingExtra("PyMySQL is missing: run `pip install 'marshal-py[mysql]'`.")
        import pymysql

        connection = pymysql.connect(host=HOST, port=self.port, user=_USER, autocommit=True)
        with connection, connection.cursor() as cursor:
            yield cursor

    def _settings(self, here: Installation[Programs]) -> dict[str, object]:
        """Options of the server by name."""
        return {
            "datadir": here.data,
            "port": here.port,
            "bind-address": HOST,
            "socket": here.folder / "socket",
            "pid-file": here.folder / "pid",
            "tmpdir": here.folder,
            "character-set-server": "utf8mb4",
            "innodb-flush-log-at-trx-commit": 1,
            "innodb-flush-method": "fsync" if self._durable else "nosync",
            "innodb-buffer-pool-size": "128M",
        }

    def _options(self, here: Installation[Programs]) -> list[str]:
        settings = self._settings(here) | self._extra_settings
        return ["--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]

    def _ready(self, here: Installation[Programs]) -> bool:
        return "ready for connections" in tail(here.log, start=here.log_start)

"""A real MariaDB for tests and demos, from the system's packages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from .errors import BinariesNotFound, MissingExtra
from .ports import HOST
from .process import tail
from .server import DatabaseServer, Installation

__all__ = ["EmbeddedMariaDB"]

_FOLDERS: Final = (
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
)
_USER: Final = "root"


class _Programs(NamedTuple):
    server: str
    installer: str


class EmbeddedMariaDB(DatabaseServer[_Programs]):
    """A MariaDB server on a free port of 127.0.0.1, with its data in a temporary folder.

        with EmbeddedMariaDB() as mariadb:
            url = mariadb.create_database()

    `start` returns when the server answers; `close` (the end of the `with` block) kills it and
    removes its folder. Both also happen when this process dies. It may be killed, paused and
    restarted meanwhile; its port and its data stay.

    `durable` False (the default) survives every end of the server's process, and not that of the
    machine. `settings` are options of the server, such as ``{"max_connections": 50}``. `log_dir`
    keeps the log there, also after `close`; without it, it is in the temporary folder.

    The user is `root`, without a password. As the system's root, the server runs as the user
    `postgres` or `nobody`. Raises `BinariesNotFound` when MariaDB is not installed.
    """

    _name: ClassVar = "MariaDB"
    _stop_signal: ClassVar = signal.SIGTERM
    _hidden: ClassVar = ("MYSQL", "MARIADB")

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, object] | None = None,
        log_dir: Path | str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__(durable=durable, settings=settings, log_dir=log_dir, timeout_s=timeout_s)

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

    def _find(self) -> _Programs:
        return _Programs(_program("mariadbd"), _program("mariadb-install-db"))

    def _install(self, here: Installation[_Programs]) -> None:
        argv = [here.programs.installer, "--no-defaults", f"--datadir={here.data}"]
        argv += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        # It makes temporary files under names that another installer may take at that moment.
        environment = {**self._environment(), "TMPDIR": str(here.folder)}
        here.run([*argv, f"--tmpdir={here.folder}", "--skip-name-resolve"], environment)

    def _settings(self, here: Installation[_Programs]) -> dict[str, object]:
        return {
            "datadir": here.data,
            "port": here.port,
            "bind-address": HOST,
            "socket": here.folder / "socket",
            "pid-file": here.folder / "pid",
            "tmpdir": here.folder,
            "skip-name-resolve": 1,
            "character-set-server": "utf8mb4",
            "innodb-flush-log-at-trx-commit": 1,
            "innodb-flush-method": "fsync" if self._durable else "nosync",
            "innodb-buffer-pool-size": "128M",
        } | self._extra_settings

    def _argv(self, here: Installation[_Programs]) -> list[str]:
        options = (f"--{name}={value}" for name, value in self._settings(here).items())
        return [here.programs.server, "--no-defaults", *options]

    def _ready(self, here: Installation[_Programs]) -> bool:
        return "ready for connections" in tail(here.log, start=here.log_start)


def _program(name: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS))
    found = shutil.which(name, path=path)
    if found is None:
        raise BinariesNotFound(
            f"{name} was not found: install MariaDB 10.6 or newer from the system's packages "
            "(Debian: `apt-get install mariadb-server`)."
        )
    return found

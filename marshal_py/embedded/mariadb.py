"""A real MariaDB for tests and demos, from the system's packages."""

from __future__ import annotations

import os
import shutil
from typing import ClassVar, Final, NamedTuple

from .errors import BinariesNotFound
from .mysql_server import MysqlServer
from .server import Installation

__all__ = ["EmbeddedMariaDB"]

_FOLDERS: Final = (
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
)


class _Programs(NamedTuple):
    server: str
    installer: str


class EmbeddedMariaDB(MysqlServer[_Programs]):
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

    def _find(self) -> _Programs:
        return _Programs(_program("mariadbd"), _program("mariadb-install-db"))

    def _install(self, here: Installation[_Programs]) -> None:
        argv = [here.programs.installer, "--no-defaults", f"--datadir={here.data}"]
        argv += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        # It makes temporary files under names that another installer may take at that moment.
        environment = {**self._environment(), "TMPDIR": str(here.folder)}
        here.run([*argv, f"--tmpdir={here.folder}", "--skip-name-resolve"], environment)

    def _settings(self, here: Installation[_Programs]) -> dict[str, object]:
        return super()._settings(here) | {"skip-name-resolve": 1}

    def _argv(self, here: Installation[_Programs]) -> list[str]:
        return [here.programs.server, *self._options(here)]


def _program(name: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS))
    found = shutil.which(name, path=path)
    if found is None:
        raise BinariesNotFound(
            f"{name} was not found: install MariaDB 10.6 or newer from the system's packages "
            "(Debian: `apt-get install mariadb-server`)."
        )
    return found

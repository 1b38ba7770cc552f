"""A real PostgreSQL for tests and demos, from a wheel or from the system's packages."""

from __future__ import annotations

import importlib.util
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from .binaries import Binaries, find_binaries, reachable
from .errors import MissingExtra
from .ports import HOST
from .server import DatabaseServer, Installation

if TYPE_CHECKING:
    import psycopg

__all__ = ["EmbeddedPostgres"]

_USER: Final = "postgres"


class EmbeddedPostgres(DatabaseServer[Binaries]):
    """A PostgreSQL server on a free port of 127.0.0.1 and a Unix socket.

    ::

        with EmbeddedPostgres() as postgres:
            connection = psycopg.connect(postgres.dsn)

    It can be killed, paused, stopped and started again, and keeps its port and its data. Everything
    is removed on `close`, and also when this process ends in any way, SIGKILL included.

    - `binaries`: see `find_binaries`. The wheel holds PostgreSQL 18.
    - `durable`: with False, the default, commits go to the system but do not wait for the disk: a
      killed *server* loses nothing, a killed *machine* may. With True all is as in production.
    - `settings`: server settings over the defaults (`wal_level=logical`, 200 connections).
    - `log_dir`: folder for the server's log, kept afterwards; None: the temporary folder.
    - `timeout_s`: for a start.

    The only user is the superuser `postgres`, who needs no password. As root, the server runs as
    the system's user `postgres` or `nobody`, for PostgreSQL refuses to run as root.
    """

    _name: ClassVar = "PostgreSQL"
    _stop_signal: ClassVar = signal.SIGINT
    _hidden: ClassVar = ("PG",)
    _pid_file: ClassVar[str] = "postmaster.pid"

    def __init__(
        self,
        *,
        binaries: str | Path | None = None,
        durable: bool = False,
        settings: Mapping[str, object] | None = None,
        log_dir: Path | str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__(durable=durable, settings=settings, log_dir=log_dir, timeout_s=timeout_s)
        self._choice = binaries

    @property
    def dsn(self) -> str:
        """The URL of the database `postgres` over TCP. The same over restarts."""
        return self.dsn_of("postgres")

    @property
    def socket_dsn(self) -> str:
        """The URL of the database `postgres` over the Unix socket."""
        here = self._installation
        return f"postgresql://{_USER}@/postgres?host={here.folder}&port={here.port}"

    @property
    def major_version(self) -> int:
        """The major version of the server: 18, 15, …"""
        return self._installation.programs.major

    def dsn_of(self, database: str) -> str:
        """The URL of a database over TCP."""
        return f"postgresql://{_USER}@{HOST}:{self.port}/{quote(database)}"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, by default with a random name, and return its URL."""
        name = name or f"test_{uuid.uuid4().hex[:12]}"
        with self._connect() as connection:
            from psycopg import sql

            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, with the connections to it; fine if it does not exist."""
        with self._connect() as connection:
            from psycopg import sql

            query = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(query.format(sql.Identifier(name)))

    def _connect(self) -> psycopg.Connection[Any]:
        if importlib.util.find_spec("psycopg") is None:
            raise MissingExtra("psycopg is missing: run `pip install 'marshal-py[embedded]'`.")
        import psycopg

        return psycopg.connect(self.dsn, autocommit=True)

    def _find(self) -> Binaries:
        return find_binaries(self._choice)

    def _install(self, here: Installation[Binaries]) -> None:
        here.programs = reachable(here.programs, here.user, here.folder)
        argv = [str(here.programs.folder / "initdb"), "--pgdata", str(here.data)]
        argv += ["--username", _USER, "--auth=trust", "--encoding=UTF8", "--locale=C"]
        here.run([*argv, "--no-sync", "--no-instructions"], self._environment())

    def _settings(self, here: Installation[Binaries]) -> dict[str, object]:
        settings: dict[str, object] = {
            "listen_addresses": HOST,
            "port": here.port,
            "unix_socket_directories": here.folder,
            # its files in /dev/shm would outlive a kill; those in the data folder do not
            "dynamic_shared_memory_type": "mmap",
            "max_connections": 200,
            "wal_level": "logical",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if not self._durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        return settings | self._extra_settings

    def _argv(self, here: Installation[Binaries]) -> list[str]:
        argv = [str(here.programs.folder / "postgres"), "-D", str(here.data)]
        for name, value in self._settings(here).items():
            argv += ["-c", f"{name}={value}"]
        return argv

    def _ready(self, here: Installation[Binaries]) -> bool:
        """What the server itself says, in the file that pg_ctl waits for."""
        try:
            lines = (here.data / self._pid_file).read_text().splitlines()
        except OSError:
            return False
        pid = here.process.pid if here.process else None
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

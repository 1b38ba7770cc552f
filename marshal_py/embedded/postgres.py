"""A real PostgreSQL for tests and demos, from a wheel or from the system's packages."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote

from .binaries import Binaries, ServerUser, find_binaries, reachable, server_user, temporary_folder
from .errors import MissingExtra, NotRunning, PortTaken, ServerFailed
from .ports import HOST, free_ports
from .process import Guard, ServerProcess, tail

if TYPE_CHECKING:
    import psycopg

_START_ATTEMPTS = 5
_POLL_INTERVAL_S = 0.01
_USER = "postgres"


@dataclass
class _Installation:
    """What exists between `start` and `close`."""

    folder: Path
    guard: Guard
    binaries: Binaries
    user: ServerUser | None
    log: Path
    port: int = 0
    process: ServerProcess | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ready(self, pid: int) -> bool:
        """What the server itself says, in the file that pg_ctl waits for."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


class EmbeddedPostgres:
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

    def __init__(
        self,
        *,
        binaries: str | Path | None = None,
        durable: bool = False,
        settings: Mapping[str, object] | None = None,
        log_dir: Path | str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self._choice = binaries
        self._durable = durable
        self._extra_settings = dict(settings or {})
        self._log_dir = Path(log_dir).absolute() if log_dir is not None else None
        self._timeout_s = timeout_s
        self._state: _Installation | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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
    def port(self) -> int:
        """The TCP port on 127.0.0.1. The same over restarts."""
        return self._installation.port

    @property
    def major_version(self) -> int:
        """The major version of the server: 18, 15, …"""
        return self._installation.binaries.major

    @property
    def pid(self) -> int:
        """The process id of the running server (its first process, the postmaster)."""
        return self._process().pid

    @property
    def running(self) -> bool:
        """Whether the server process exists (a paused one does)."""
        return self._state is not None and self._state.running

    @property
    def log_path(self) -> Path:
        """The file with all that the server logged, over all its restarts."""
        return self._installation.log

    def dsn_of(self, database: str) -> str:
        """The URL of a database over TCP."""
        return f"postgresql://{_USER}@{HOST}:{self.port}/{quote(database)}"

    def start(self) -> None:
        """Bring up the server, on its old port with its old data after a `stop` or `kill`.

        A paused one is resumed. Raises `ServerFailed`, with the end of the log, when it ends or is
        not ready within `timeout_s`; `PortTaken` when another process has its port meanwhile.
        """
        if self._state is None:
            self._create()
        elif self.running:
            self.resume()
        else:
            self._spawn()

    def stop(self) -> None:
        """Stop in good order; open connections are closed. Data and port stay for a `start`."""
        if not self.running:
            return
        process = self._process()
        process.signal(signal.SIGCONT, tree=True)
        process.signal(signal.SIGINT)  # "fast shutdown"
        if not process.wait(30):
            process.signal(signal.SIGKILL, tree=True)

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL, as a crash, and wait for their end."""
        self._process().signal(signal.SIGKILL, tree=True)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, nothing answers any more."""
        self._process().signal(signal.SIGSTOP, tree=True)

    def resume(self) -> None:
        """Wake a frozen server (SIGCONT)."""
        self._process().signal(signal.SIGCONT, tree=True)

    def close(self) -> None:
        """Kill the server if it runs and remove the temporary folder. Idempotent."""
        here, self._state = self._state, None
        if here is not None:
            here.guard.close()

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

    @property
    def _installation(self) -> _Installation:
        if self._state is None:
            raise NotRunning("EmbeddedPostgres is not started: use `with`, or call start().")
        return self._state

    def _process(self) -> ServerProcess:
        process = self._installation.process
        if process is None or process.poll() is not None:
            raise NotRunning("The PostgreSQL server is not running; start() starts it.")
        return process

    def _create(self) -> None:
        found = find_binaries(self._choice)
        user = server_user()
        folder = temporary_folder(user)
        logs = self._log_dir or folder
        logs.mkdir(parents=True, exist_ok=True)
        here = _Installation(folder, Guard(folder), found, user, logs / "postgres.log")
        self._state = here
        try:
            here.binaries = reachable(found, user, folder)
            _init(here)
            for attempt in range(1, _START_ATTEMPTS + 1):
                (here.port,) = free_ports(1)
                try:
                    self._spawn()
                    return
                except PortTaken:
                    if attempt == _START_ATTEMPTS:
                        raise
        except BaseException:
            self.close()
            raise

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "listen_addresses": HOST,
            "port": self._installation.port,
            "unix_socket_directories": self._installation.folder,
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

    def _spawn(self) -> None:
        here = self._installation
        argv = [str(here.binaries.folder / "postgres"), "-D", str(here.data)]
        for name, value in self._settings().items():
            argv += ["-c", f"{name}={value}"]
        log_start = here.log.stat().st_size if here.log.exists() else 0
        process = here.process = here.guard.spawn(
            argv,
            env=_environment(),
            cwd=here.folder,
            log=here.log,
            user=(here.user.uid, here.user.gid) if here.user else None,
            postmaster_pid=here.data / "postmaster.pid",
        )
        deadline = time.monotonic() + self._timeout_s
        while not here.ready(process.pid):
            code = process.poll()
            if code is not None:
                _raise_failed(f"ended with code {code}", here.log, log_start)
            if time.monotonic() > deadline:
                process.signal(signal.SIGKILL, tree=True)
                _raise_failed(f"was not ready within {self._timeout_s:g} s", here.log, log_start)
            time.sleep(_POLL_INTERVAL_S)


def _init(here: _Installation) -> None:
    argv = [str(here.binaries.folder / "initdb"), "--pgdata", str(here.data), "--username", _USER]
    argv += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    identity: dict[str, Any] = {}
    if here.user:
        identity = {"user": here.user.uid, "group": here.user.gid, "extra_groups": []}
    result = subprocess.run(
        argv,
        env=_environment(),
        cwd=here.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        **identity,
    )
    if result.returncode:
        raise ServerFailed(f"initdb failed:\n{result.stdout}{result.stderr}")


def _raise_failed(what: str, path: Path, log_start: int) -> NoReturn:
    log = tail(path, start=log_start)
    kind = PortTaken if "Address already in use" in log else ServerFailed
    raise kind(f"The PostgreSQL server {what}. The end of its log:\n{log}")


def _environment() -> dict[str, str]:
    """The caller's environment without what would configure PostgreSQL behind our back."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return {**env, "LC_ALL": "C"}

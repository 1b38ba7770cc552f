"""A real MariaDB for tests and demos, from the system's packages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from .binaries import ServerUser, server_user, temporary_folder
from .errors import BinariesNotFound, MissingExtra, NotRunning, PortTaken, ServerFailed
from .ports import HOST, free_ports
from .process import Guard, ServerProcess, tail

__all__ = ["EmbeddedMariaDB"]

_START_ATTEMPTS = 5
_POLL_INTERVAL_S = 0.01
_FOLDERS = ("/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
_USER = "root"


@dataclass
class _Installation:
    """What exists between `start` and `close`."""

    folder: Path
    guard: Guard
    server: str
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


class EmbeddedMariaDB:
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

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, object] | None = None,
        log_dir: Path | str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
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
    def port(self) -> int:
        """The TCP port on 127.0.0.1. The same over restarts."""
        return self._installation.port

    @property
    def pid(self) -> int:
        """The process id of the running server."""
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
        """The URL of a database."""
        return f"mysql://{_USER}@{HOST}:{self.port}/{database}"

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
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGTERM)
        if not process.wait(30):
            process.signal(signal.SIGKILL)

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a crash, and wait for its end."""
        process = self._process()
        process.signal(signal.SIGKILL)
        process.wait(30)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, nothing answers any more."""
        self._process().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Wake a frozen server (SIGCONT)."""
        self._process().signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the server if it runs and remove the temporary folder. Idempotent."""
        here, self._state = self._state, None
        if here is not None:
            here.guard.close()

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

    @property
    def _installation(self) -> _Installation:
        if self._state is None:
            raise NotRunning("EmbeddedMariaDB is not started: use `with`, or call start().")
        return self._state

    def _process(self) -> ServerProcess:
        process = self._installation.process
        if process is None or process.poll() is not None:
            raise NotRunning("The MariaDB server is not running; start() starts it.")
        return process

    def _create(self) -> None:
        server, installer = _program("mariadbd"), _program("mariadb-install-db")
        user = server_user()
        folder = temporary_folder(user)
        logs = self._log_dir or folder
        logs.mkdir(parents=True, exist_ok=True)
        here = self._state = _Installation(
            folder, Guard(folder), server, user, logs / "mariadb.log"
        )
        try:
            _install(here, installer)
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
        here = self._installation
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

    def _spawn(self) -> None:
        here = self._installation
        argv = [here.server, "--no-defaults"]
        argv += [f"--{name}={value}" for name, value in self._settings().items()]
        log_start = here.log.stat().st_size if here.log.exists() else 0
        process = here.process = here.guard.spawn(
            argv,
            env=_environment(),
            cwd=here.folder,
            log=here.log,
            user=(here.user.uid, here.user.gid) if here.user else None,
        )
        deadline = time.monotonic() + self._timeout_s
        while "ready for connections" not in tail(here.log, start=log_start):
            code = process.poll()
            if code is not None:
                _raise_failed(f"ended with code {code}", here.log, log_start)
            if time.monotonic() > deadline:
                process.signal(signal.SIGKILL)
                _raise_failed(f"was not ready within {self._timeout_s:g} s", here.log, log_start)
            time.sleep(_POLL_INTERVAL_S)


def _program(name: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS))
    found = shutil.which(name, path=path)
    if found is None:
        raise BinariesNotFound(
            f"{name} was not found: install MariaDB 10.6 or newer from the system's packages "
            "(Debian: `apt-get install mariadb-server`)."
        )
    return found


def _install(here: _Installation, installer: str) -> None:
    identity: dict[str, Any] = {}
    if here.user:
        identity = {"user": here.user.uid, "group": here.user.gid, "extra_groups": []}
    result = subprocess.run(
        [
            installer,
            "--no-defaults",
            f"--datadir={here.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ],
        env=_environment(),
        cwd=here.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        **identity,
    )
    if result.returncode:
        raise ServerFailed(f"mariadb-install-db failed:\n{result.stdout}{result.stderr}")


def _raise_failed(what: str, path: Path, log_start: int) -> NoReturn:
    log = tail(path, start=log_start)
    kind = PortTaken if "Address already in use" in log else ServerFailed
    raise kind(f"The MariaDB server {what}. The end of its log:\n{log}")


def _environment() -> dict[str, str]:
    """The caller's environment without what would configure MariaDB behind our back."""
    hidden = ("MYSQL", "MARIADB", "LC_", "LANG")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(hidden)}, "LC_ALL": "C"}

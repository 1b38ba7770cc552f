"""The life of a database server in a temporary folder: what all kinds have in common."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

from .binaries import ServerUser, server_user, temporary_folder
from .errors import NotRunning, PortTaken, ServerFailed
from .ports import free_ports
from .process import Guard, ServerProcess, tail

__all__ = ["DatabaseServer", "Installation"]

_START_ATTEMPTS = 5
_POLL_INTERVAL_S = 0.01
_STOP_TIMEOUT_S = 30.0

Programs = TypeVar("Programs")


@dataclass
class Installation(Generic[Programs]):
    """What exists between `start` and `close`."""

    folder: Path
    guard: Guard
    programs: Programs
    user: ServerUser | None
    log: Path
    port: int = 0
    process: ServerProcess | None = None
    log_start: int = 0
    """Where the log of `process` begins: the file has that of its predecessors, too."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Run a program that prepares the data, as the server's user. Raises `ServerFailed`."""
        identity: dict[str, Any] = {}
        if self.user:
            identity = {"user": self.user.uid, "group": self.user.gid, "extra_groups": []}
        result = subprocess.run(
            argv,
            env=env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **identity,
        )
        if result.returncode:
            name = Path(argv[0]).name
            raise ServerFailed(f"{name} failed:\n{result.stdout}{result.stderr}")


class DatabaseServer(ABC, Generic[Programs]):
    """A server on a free port of 127.0.0.1 with its data in a temporary folder."""

    _name: ClassVar[str]
    """As its makers write it."""
    _stop_signal: ClassVar[signal.Signals]
    """Ends it in good order, and its connections at once."""
    _hidden: ClassVar[tuple[str, ...]]
    """How the names of environment variables begin that would configure it behind our back."""
    _pid_file: ClassVar[str | None] = None
    """In the data folder, if it tells of shared memory that outlives a kill."""

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
        self._state: Installation[Programs] | None = None

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
        """The process id of the running server (of its first process)."""
        return self._process().pid

    @property
    def running(self) -> bool:
        """Whether the server process exists (a paused one does)."""
        return self._state is not None and self._state.running

    @property
    def log_path(self) -> Path:
        """The file with all that the server logged, over all its restarts."""
        return self._installation.log

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
        process.signal(self._stop_signal)
        if not process.wait(_STOP_TIMEOUT_S):
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

    @abstractmethod
    def _find(self) -> Programs:
        """The server's programs. Raises `BinariesNotFound`."""

    def _user(self) -> ServerUser | None:
        """Whom the server runs as, if not as this process."""
        return server_user()

    @abstractmethod
    def _install(self, here: Installation[Programs]) -> None:
        """Make the data folder."""

    @abstractmethod
    def _argv(self, here: Installation[Programs]) -> list[str]:
        """The command line of the server."""

    @abstractmethod
    def _ready(self, here: Installation[Programs]) -> bool:
        """Whether the process that runs says that it serves clients."""

    @property
    def _installation(self) -> Installation[Programs]:
        if self._state is None:
            kind = type(self).__name__
            raise NotRunning(f"{kind} is not started: use `with`, or call start().")
        return self._state

    def _process(self) -> ServerProcess:
        process = self._installation.process
        if process is None or process.poll() is not None:
            raise NotRunning(f"The {self._name} server is not running; start() starts it.")
        return process

    def _create(self) -> None:
        programs = self._find()
        user = self._user()
        folder = temporary_folder(user)
        guard = Guard(folder)
        try:
            log = guard.own_log(self._log_dir or folder, self._name.lower())
        except OSError:
            guard.close()
            raise
        here = self._state = Installation(folder, guard, programs, user, log)
        try:
            self._install(here)
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

    def _spawn(self) -> None:
        here = self._installation
        here.log_start = here.log.stat().st_size if here.log.exists() else 0
        process = here.process = here.guard.spawn(
            self._argv(here),
            env=self._environment(),
            cwd=here.folder,
            log=here.log,
            user=(here.user.uid, here.user.gid) if here.user else None,
            postmaster_pid=here.data / self._pid_file if self._pid_file else None,
        )
        deadline = time.monotonic() + self._timeout_s
        while not self._ready(here):
            code = process.poll()
            if code is not None:
                self._raise_failed(f"ended with code {code}")
            if time.monotonic() > deadline:
                process.signal(signal.SIGKILL, tree=True)
                self._raise_failed(f"was not ready within {self._timeout_s:g} s")
            time.sleep(_POLL_INTERVAL_S)

    def _raise_failed(self, what: str) -> NoReturn:
        here = self._installation
        log = tail(here.log, start=here.log_start)
        kind = PortTaken if "Address already in use" in log else ServerFailed
        raise kind(f"The {self._name} server {what}. The end of its log:\n{log}")

    def _environment(self) -> dict[str, str]:
        hidden = (*self._hidden, "LC_", "LANG")
        return {k: v for k, v in os.environ.items() if not k.startswith(hidden)} | {"LC_ALL": "C"}

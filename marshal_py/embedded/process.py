"""Server processes that cannot outlive the test process (see `_guard.py` for how)."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from . import _guard
from .errors import ServerFailed

Progress = Callable[[str], None]

POLL_INTERVAL_S = 0.01


def to_stderr(message: str) -> None:
    """The default progress callback: one line on standard error."""
    print(f"marshal_py.embedded: {message}", file=sys.stderr, flush=True)


def tail(path: Path, lines: int = 40, *, start: int = 0) -> str:
    """The last lines of a log file after the byte `start`; empty when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


class Guard:
    """Starts servers, and ends them and removes `folder` when this process ends. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._folder = folder
        self._logs: list[IO[bytes]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _guard.__file__, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is not for the servers
        )
        self._commands = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)

    @property
    def pid(self) -> int:
        """The process id of the guard."""
        return self._process.pid

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one command and return its answer; `ServerFailed` when the guard is gone."""
        reply: dict[str, Any] = {}
        with self._lock:
            self._asked += 1
            request["number"] = self._asked
            try:
                self._commands.write(json.dumps(request).encode() + b"\n")
                self._commands.flush()
                while reply.get("number") != self._asked:  # or to who was interrupted before
                    line = self._replies.readline()
                    if not line:
                        raise ServerFailed(
                            "The guard process of the servers is gone: it was killed"
                        )
                    reply = json.loads(line)
            except (OSError, ValueError) as error:
                raise ServerFailed(f"The guard process of the servers is gone: {error}") from error
        del reply["number"]
        if "error" in reply:
            raise ServerFailed(f"The guard process could not {request['op']}: {reply['error']}")
        return reply

    def own_log(self, folder: Path, name: str) -> Path:
        """Return a log file in `folder`, which is made, that is no other living server's.

        It is called `name`, and `name`-2 and so on where others write meanwhile, in this process or
        another: each is known to be ready by what it logs.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / f"{name}{'' if number == 1 else f'-{number}'}.log"
            file = path.open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            self._logs.append(file)
            break
        return path

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        user: tuple[int, int] | None = None,
        postmaster_pid: Path | None = None,
    ) -> ServerProcess:
        """Start a server with its output appended to `log`, as `user` (uid, gid) if given."""
        reply = self.ask(
            op="spawn",
            argv=list(argv),
            env=dict(env),
            cwd=str(cwd),
            log=str(log),
            user=user[0] if user else None,
            group=user[1] if user else None,
            postmaster_pid=str(postmaster_pid) if postmaster_pid else None,
        )
        return ServerProcess(self, reply["pid"], log)

    def close(self) -> None:
        """Kill every server, remove the folder, and wait until both are done."""
        with self._lock:
            with contextlib.suppress(BrokenPipeError):
                self._commands.close()
            self._process.wait()
            self._replies.close()
        for file in self._logs:
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # in case somebody killed the guard


class ServerProcess:
    """One server process, started through a `Guard`."""

    def __init__(self, guard: Guard, pid: int, log: Path) -> None:
        self._guard = guard
        self.pid = pid
        self.log = log

    def poll(self) -> int | None:
        """The exit code (minus the signal's number when a signal ended it), or None if alive."""
        code: int | None = self._guard.ask(op="poll", pid=self.pid)["code"]
        return code

    def signal(self, number: signal.Signals, *, tree: bool = False) -> None:
        """Send a signal to the process, and with `tree` to all its children; no-op once ended."""
        self._guard.ask(op="signal", pid=self.pid, signal=int(number), tree=tree)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end. False when it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True

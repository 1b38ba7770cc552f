"""The guard: a small process that owns the server processes and their temporary folder.

Theory of operation. The servers are children of the guard, not of the test process. The guard takes
commands (JSON lines) on its standard input and answers each with one line, under its number. It
ends when its input closes or when the test process is gone, whichever comes first, and then it
kills every server and removes the folder. So nothing is left behind however the test process ends,
SIGKILL included, and no signal can hit a reused pid: only the guard reaps its children.

Runs as a script under `python -I -S`: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PARENT_CHECK_INTERVAL_S = 1.0
_IPC_RMID = 0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)


def processes() -> list[tuple[int, int, str]]:
    """(pid, parent pid, state letter) of every process."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True
        ).stdout
        return [(int(p), int(pp), s[0]) for p, pp, s in map(str.split, listing.splitlines())]
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile
                text = (entry / "stat").read_text("utf-8", "replace")  # names are any bytes
                state, parent = text.rpartition(")")[2].split()[:2]
                found.append((int(entry.name), int(parent), state))
    return found


def descendants(root: int) -> list[int]:
    """The live children, grandchildren, … of a process."""
    children: dict[int, list[int]] = {}
    for pid, parent, state in processes():
        if state != "Z":
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    stack = [root]
    while stack:
        below = children.get(stack.pop(), [])
        found += below
        stack += below
    return found


def signal_tree(root: subprocess.Popen[bytes], number: int) -> None:
    """Signal a server and its children: PostgreSQL's have sessions of their own, so no killpg."""
    if number == signal.SIGKILL:  # frozen before: what it starts as it is killed nobody would kill
        root.send_signal(signal.SIGSTOP)
        wait_until_frozen({root.pid})
    below = descendants(root.pid)
    root.send_signal(number)  # the root first, so that it starts no further child
    for _ in range(10):
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        known = set(below)
        if number == signal.SIGKILL or not (set(below := descendants(root.pid)) - known):
            break
    if number == signal.SIGKILL:
        root.wait()
        wait_for_orphans(set(below))
    if number == signal.SIGSTOP:
        wait_until_frozen({root.pid, *below})


def wait_until_frozen(pids: set[int]) -> None:
    """Until processes that were sent SIGSTOP have stopped, which takes a moment; at most 10 s."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not any(pid in pids and state not in "TtZ" for pid, _, state in processes()):
            return
        time.sleep(0.002)


def process_control(option: int, value: int) -> None:
    """prctl(2), where there is one."""
    with contextlib.suppress(AttributeError):
        _LIBC.prctl(option, value, 0, 0, 0)


def die_with_guard() -> None:
    """In a new server: ask to be killed if even the guard is killed. The guard has one thread."""
    process_control(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_orphans(pids: set[int]) -> None:
    """Until killed processes that had another parent are gone, at most 10 s."""
    deadline = time.monotonic() + 10
    while pids and time.monotonic() < deadline:
        alive = {pid for pid, _, state in processes() if state != "Z"}
        for pid in list(pids):
            with contextlib.suppress(ChildProcessError):  # not adopted: then somebody else reaps it
                if os.waitpid(pid, os.WNOHANG)[0]:
                    pids.discard(pid)
                continue
            if pid not in alive:
                pids.discard(pid)
        if pids:
            time.sleep(0.005)


def release_shared_memory(postmaster_pid: Path) -> None:
    """Remove the System V segment that a killed PostgreSQL leaves behind."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        identifier = int(postmaster_pid.read_text().splitlines()[6].split()[1])
        _LIBC.shmctl(identifier, _IPC_RMID, None)


class Guard:
    """The servers of one test process, and the folder that goes away with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.postmaster_pids: set[Path] = set()

    def spawn(self, request: dict[str, Any]) -> dict[str, Any]:
        identity: dict[str, Any] = {}
        if request.get("user") is not None:
            identity = {"user": request["user"], "group": request["group"], "extra_groups": []}
        if request.get("postmaster_pid"):
            self.postmaster_pids.add(Path(request["postmaster_pid"]))
        with open(request["log"], "ab") as log:
            server = subprocess.Popen(
                request["argv"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_guard,
                **identity,
            )
        self.servers[server.pid] = server
        return {"pid": server.pid}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "spawn":
            return self.spawn(request)
        server = self.servers[request["pid"]]
        if request["op"] == "signal" and server.poll() is None:
            if request["tree"]:
                signal_tree(server, request["signal"])
            else:
                server.send_signal(request["signal"])
                if request["signal"] == signal.SIGSTOP:
                    wait_until_frozen({server.pid})
        return {"code": server.poll()}

    def clean_up(self) -> None:
        for server in self.servers.values():
            if server.poll() is None:
                with contextlib.suppress(Exception):
                    signal_tree(server, signal.SIGKILL)
        for path in self.postmaster_pids:
            release_shared_memory(path)
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(guard: Guard, parent: int) -> None:
    """Answer until the input closes or the parent is gone."""
    buffer = b""
    while os.getppid() == parent:  # a fork of the parent may hold the pipe open for longer
        if not select.select([0], [], [], _PARENT_CHECK_INTERVAL_S)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            try:
                reply = guard.answer(request)
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            reply["number"] = request.get("number")
            os.write(1, json.dumps(reply).encode() + b"\n")


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited by the servers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    process_control(_PR_SET_CHILD_SUBREAPER, 1)  # to reap the orphans of a killed server
    guard = Guard(Path(sys.argv[1]))
    try:
        serve(guard, int(sys.argv[2]))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        guard.clean_up()


if __name__ == "__main__":
    main()

"""Nothing outlives the process that started the servers, however that process ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marshal_py.embedded._guard import release_shared_memory
from tests.support.paths import ROOT

pytestmark = pytest.mark.kafka

OWNER = """
import os, sys, signal, psycopg
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests under nohup ignores it
kafka, postgres = EmbeddedKafka(), EmbeddedPostgres()
kafka.start()
postgres.start()
connection = psycopg.connect(postgres.dsn)
guards = [server._state.guard.pid for server in (kafka, postgres)]
folders = [str(server._state.folder) for server in (kafka, postgres)]
if sys.argv[1] == "paused":
    kafka.pause()
    postgres.pause()
if sys.argv[1] == "dead":
    kafka.kill()
    postgres.kill()
    print(*guards, *folders, flush=True)
else:
    print(*guards, kafka.pid(), postgres.pid, connection.info.backend_pid, *folders, flush=True)
if sys.argv[1] == "forked" and os.fork() == 0:  # the child keeps the pipe to the guards open
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.pause()
if sys.argv[1] == "exit":
    sys.exit()
signal.pause()
"""


def eventually_gone(pids: list[int], folders: list[Path]) -> bool:
    """Whether the processes end and the folders vanish; generous, for busy machines."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if not any(map(alive, pids)) and not any(folder.exists() for folder in folders):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def owner(how: str) -> Iterator[tuple[subprocess.Popen[str], list[int], list[Path]]]:
    """A process that owns servers, the processes of these (guards first), and their folders."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        pids = [int(word) for word in words if word.isdigit()]
        yield process, pids, [Path(word) for word in words if not word.isdigit()]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.mark.parametrize("how", ["running", "paused", "dead", "forked"])
def test_a_killed_owner_leaves_nothing(how: str) -> None:
    with owner(how) as (process, pids, folders):
        assert len(folders) == 2
        assert all(map(alive, pids))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert eventually_gone(pids, folders)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_owner_that_ends_by_a_signal_leaves_nothing(number: signal.Signals) -> None:
    with owner("running") as (process, pids, folders):
        os.killpg(process.pid, number)  # as a terminal does: to the whole group
        process.wait()
        assert eventually_gone(pids, folders)


def test_an_owner_that_forgets_to_close_leaves_nothing() -> None:
    with owner("exit") as (process, pids, folders):
        process.wait()
        assert eventually_gone(pids, folders)


def test_servers_end_even_when_their_guards_are_killed() -> None:
    with owner("running") as (_, pids, folders):
        for guard in pids[:2]:
            os.kill(guard, signal.SIGKILL)
        assert eventually_gone(pids, [])
        for folder in folders:  # nobody is left who could remove what is not a process
            release_shared_memory(folder / "data" / "postmaster.pid")
            shutil.rmtree(folder)

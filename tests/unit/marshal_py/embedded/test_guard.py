"""The guard of servers: what it does is answered, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.embedded import ServerFailed, _guard
from marshal_py.embedded.process import Guard, ServerProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.fixture
def guard(folder: Path) -> Iterator[Guard]:
    made = Guard(folder)
    yield made
    made.close()


def spawn(guard: Guard, folder: Path, script: str) -> ServerProcess:
    return guard.spawn(
        ["/bin/sh", "-c", script], env=dict(os.environ), cwd=folder, log=folder.parent / "log"
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def children_of(log: Path, count: int) -> list[int]:
    until(lambda: log.exists() and len(log.read_text().split()) >= count)
    return [int(word) for word in log.read_text().split()]


def test_a_process_may_have_any_name() -> None:
    """Somebody else's on the machine; it was a traceback instead of the end of a server."""
    script = (
        "import sys; open('/proc/self/comm', 'wb').write(b'\\xff) (x'); print(flush=True); "
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = {pid: parent for pid, parent, _ in _guard.processes()}
        process.communicate()
    assert found[process.pid] == os.getpid()


def test_what_cannot_be_done_is_answered_and_the_guard_goes_on(guard: Guard, folder: Path) -> None:
    with pytest.raises(ServerFailed, match="could not signal: KeyError: 1"):
        guard.ask(op="signal", pid=1, signal=0, tree=False)
    assert spawn(guard, folder, "exit 3").wait(60)


def test_the_answer_to_who_was_interrupted_is_nobody_elses(guard: Guard, folder: Path) -> None:
    """As by Ctrl-C, or by the time-out of a test: the servers of the others go on."""
    server = spawn(guard, folder, "sleep 600")
    replies: Any = guard._replies

    class Interrupted:
        def readline(self) -> bytes:
            guard._replies = replies
            raise KeyboardInterrupt

    interrupted: Any = Interrupted()
    guard._replies = interrupted
    with pytest.raises(KeyboardInterrupt):
        server.poll()
    another = spawn(guard, folder, "exit 3")
    assert another.wait(60)
    assert (another.poll(), server.poll()) == (3, None)


def test_a_long_command_arrives_whole(guard: Guard, folder: Path) -> None:
    """A pipe hands it over in pieces."""
    server = spawn(guard, folder, f"test ${{#0}} -gt 0; : {'x' * 100_000}; exit 7")
    assert server.wait(60)
    assert server.poll() == 7


def test_how_a_process_ended_is_told(guard: Guard, folder: Path) -> None:
    server = spawn(guard, folder, "sleep 600")
    assert server.poll() is None
    assert not server.wait(0.05)
    server.signal(signal.SIGKILL)
    assert server.wait(60)
    assert server.poll() == -signal.SIGKILL
    server.signal(signal.SIGTERM)  # to nobody


@pytest.mark.parametrize("apart", ["", "setsid "])
def test_a_tree_is_killed_with_those_that_have_sessions_of_their_own(
    guard: Guard, folder: Path, apart: str
) -> None:
    server = spawn(guard, folder, f"{apart}sleep 600 & echo $! $$; wait")
    pids = children_of(folder.parent / "log", 2)
    server.signal(signal.SIGKILL, tree=True)
    assert all(map(gone, pids))


def test_who_is_killed_starts_nobody_while_its_children_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is missed keeps PostgreSQL's shared memory, and the next start fails."""
    found: list[str] = []
    look = _guard.descendants

    def descendants(pid: int) -> list[int]:
        found.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        return look(pid)

    monkeypatch.setattr(_guard, "descendants", descendants)
    root = subprocess.Popen(["sleep", "600"])
    _guard.signal_tree(root, signal.SIGKILL)
    assert root.returncode == -signal.SIGKILL
    assert found == ["T"]


def test_who_was_started_while_a_tree_was_signalled_is_signalled_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signalled: list[int] = []
    looks = [[7], [7, 8], [7, 8], [7, 8, 9]]
    monkeypatch.setattr(_guard, "descendants", lambda _: looks.pop(0))
    monkeypatch.setattr(os, "kill", lambda pid, _: signalled.append(pid))
    root: Any = SimpleNamespace(pid=6, send_signal=lambda _: signalled.append(6))
    _guard.signal_tree(root, signal.SIGTERM)
    assert signalled == [6, 7, 7, 8]


def test_a_frozen_tree_is_frozen_when_that_is_answered(guard: Guard, folder: Path) -> None:
    server = spawn(guard, folder, "sleep 600 & echo $! $$; wait")
    pids = children_of(folder.parent / "log", 2)
    server.signal(signal.SIGSTOP, tree=True)
    for pid in pids:
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_after_the_end_there_is_neither_a_process_nor_the_folder(folder: Path) -> None:
    guard = Guard(folder)
    spawn(guard, folder, "sleep 600 & echo $! $$; wait")
    pids = children_of(folder.parent / "log", 2)
    guard.close()
    assert all(map(gone, pids))
    assert not folder.exists()


def test_a_guard_that_is_killed_takes_its_servers_along(folder: Path) -> None:
    guard = Guard(folder)
    server = spawn(guard, folder, "echo $$; exec sleep 600")
    (pid,) = children_of(folder.parent / "log", 1)
    os.kill(guard.pid, signal.SIGKILL)
    until(lambda: gone(pid))
    with pytest.raises(ServerFailed, match="guard process of the servers is gone"):
        server.poll()
    guard.close()
    assert not folder.exists()


def test_a_process_that_is_killed_leaves_neither_servers_nor_their_folder(folder: Path) -> None:
    """Nor does a child that has its pipes open."""
    code = (
        "import subprocess, sys; from pathlib import Path\n"
        "from marshal_py.embedded.process import Guard\n"
        f"folder = Path({str(folder)!r}); guard = Guard(folder)\n"
        "argv = ['/bin/sh', '-c', 'echo $$; exec sleep 600']\n"
        "guard.spawn(argv, env={'PATH': '/bin:/usr/bin'}, cwd=folder, log=folder.parent / 'log')\n"
        "print(guard.pid, flush=True)\n"
        "if subprocess.os.fork() == 0: import time; time.sleep(600)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            guard_pid = int(process.stdout.readline())
            (pid,) = children_of(folder.parent / "log", 1)
            process.kill()
            until(lambda: gone(pid) and gone(guard_pid))
            assert not folder.exists()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_ctrl_c_in_the_terminal_is_not_for_the_servers(guard: Guard, folder: Path) -> None:
    server = spawn(guard, folder, "exec sleep 600")
    os.kill(guard.pid, signal.SIGINT)
    assert guard.ask(op="poll", pid=server.pid) == {"code": None}


def test_a_guard_that_cleans_up_is_not_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who ends it may do so twice."""
    did: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *what: did.append(what))
    monkeypatch.setattr(_guard, "process_control", lambda *_: None)
    monkeypatch.setattr(_guard.Guard, "clean_up", lambda _: did.append("clean up"))
    monkeypatch.setattr(sys, "argv", ["_guard.py", "/no/folder", "1"])

    def serve(*_: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(_guard, "serve", serve)
    with pytest.raises(SystemExit):
        _guard.main()
    assert did[-2:] == [(signal.SIGTERM, signal.SIG_IGN), "clean up"]


def test_shared_memory_of_a_killed_postgresql_goes_with_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives the process, and its file tells which it is."""
    released: list[Path] = []

    def release(path: Path) -> None:
        assert path.exists(), "before the folder goes"
        released.append(path)

    monkeypatch.setattr(_guard, "release_shared_memory", release)
    made = _guard.Guard(folder)
    told = {
        "argv": ["/bin/sleep", "600"],
        "env": {},
        "cwd": str(folder),
        "log": str(folder / "log"),
    }
    for name in ("postmaster.pid", None):
        if name is not None:
            (folder / name).touch()
        made.spawn({**told, "postmaster_pid": name and str(folder / name)})
    made.clean_up()
    assert released == [folder / "postmaster.pid"]
    assert all(server.poll() == -signal.SIGKILL for server in made.servers.values())
    assert not folder.exists()

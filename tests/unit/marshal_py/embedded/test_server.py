"""The life of a database server, with a shell script for a server."""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import mkdtemp
from typing import ClassVar

import pytest

from marshal_py.embedded import NotRunning, PortTaken, ServerFailed, server
from marshal_py.embedded.binaries import ServerUser
from marshal_py.embedded.process import tail
from marshal_py.embedded.server import DatabaseServer, Installation

SERVES = "trap 'echo bye; exit 0' INT; echo serving; while :; do sleep 0.05; done"


class Script(DatabaseServer[str]):
    """A server of which the test says what it does."""

    _name: ClassVar = "Script"
    _stop_signal: ClassVar = signal.SIGINT
    _hidden: ClassVar = ("SCRIPT",)
    script = SERVES
    installer = "exit 0"

    def _user(self) -> ServerUser | None:
        return None

    def _find(self) -> str:
        return "/bin/sh"

    def _install(self, here: Installation[str]) -> None:
        here.run([here.programs, "-c", self.installer], self._environment())

    def _argv(self, here: Installation[str]) -> list[str]:
        return [here.programs, "-c", self.script.replace("PORT", str(here.port))]

    def _ready(self, here: Installation[str]) -> bool:
        return "serving" in tail(here.log, start=here.log_start)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers' folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(server, "temporary_folder", lambda _: Path(mkdtemp(dir=folder)))
    return folder


def test_it_serves_from_start_to_stop_and_again(temporary: Path) -> None:
    with Script() as found:
        port, pid = found.port, found.pid
        found.start()
        assert found.pid == pid, "one that runs is left alone"
        found.stop()
        assert not found.running
        assert found.log_path.read_text() == "serving\nbye\n"
        found.stop()
        with pytest.raises(NotRunning, match=r"The Script server is not running; start\(\)"):
            found.kill()
        found.start()
        assert (found.port, found.running) == (port, True)
        assert found.pid != pid
    assert not found.running
    assert list(temporary.iterdir()) == []


def test_a_frozen_server_can_be_stopped_and_started() -> None:
    with Script() as found:
        found.pause()
        found.start()
        found.pause()
        found.stop()
        assert found.log_path.read_text() == "serving\nbye\n"


def test_one_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STOP_TIMEOUT_S", 0.05)
    found = Script()
    found.script = SERVES.replace("echo bye; exit 0", "")
    with found:
        found.stop()
        assert not found.running


def test_one_that_ends_at_once_is_told_with_its_code_and_log(temporary: Path) -> None:
    found = Script()
    found.script = "echo no disk >&2; exit 7"
    with pytest.raises(ServerFailed, match=r"(?s)ended with code 7.*no disk"):
        found.start()
    assert not found.running
    assert list(temporary.iterdir()) == []


def test_one_that_is_not_ready_in_time_is_told_and_does_not_go_on(temporary: Path) -> None:
    found = Script(timeout_s=0.05, log_dir=temporary / "logs")
    found.script = "echo $$; sleep 600"
    with pytest.raises(ServerFailed, match=r"was not ready within 0\.05 s"):
        found.start()
    pid = int((temporary / "logs/script.log").read_text())
    assert not Path(f"/proc/{pid}").exists()
    assert [path.name for path in temporary.iterdir()] == ["logs"], "which is kept"


def test_servers_with_one_folder_for_logs_have_a_log_each(temporary: Path) -> None:
    """One is ready when it says so itself, and not when another does."""
    logs = temporary / "logs"
    with Script(log_dir=logs) as first, Script(log_dir=logs) as second:
        assert [server.log_path.name for server in (first, second)] == [
            "script.log",
            "script-2.log",
        ]
        first.stop()
        first.start()
        assert second.log_path.read_text() == "serving\n"
    with Script(log_dir=logs) as third:
        assert third.log_path == logs / "script.log", "nobody writes to it any more"


def test_logs_that_cannot_be_kept_leave_nothing_behind(temporary: Path) -> None:
    (temporary.parent / "file").touch()
    with pytest.raises(FileExistsError):
        Script(log_dir=temporary.parent / "file").start()
    assert list(temporary.iterdir()) == []


def test_a_restart_that_fails_tells_of_its_own_log_alone() -> None:
    with Script() as found:
        found.kill()
        found.script = "echo another word; exit 1"
        with pytest.raises(ServerFailed) as failed:
            found.start()
    assert "another word" in str(failed.value)
    assert "serving" not in str(failed.value)


def test_a_restart_is_ready_when_it_says_so_itself() -> None:
    """What its predecessor has said is no word of its own."""
    with Script(timeout_s=0.05) as found:
        found.kill()
        found.script = "sleep 600"
        with pytest.raises(ServerFailed, match="was not ready"):
            found.start()


def test_a_port_that_somebody_takes_is_replaced_and_another_failure_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def choose(_: int) -> list[int]:
        tried.append(len(tried))
        return [tried[-1]]

    monkeypatch.setattr(server, "free_ports", choose)
    found = Script()
    found.script = f"test PORT -lt 2 && {{ echo Address already in use; exit 1; }}; {SERVES}"
    with found:
        assert (found.port, tried) == (2, [0, 1, 2])
    tried.clear()
    found.script = "echo Address already in use; exit 1"
    with pytest.raises(PortTaken):
        found.start()
    assert len(tried) == 5
    tried.clear()
    found.script = "exit 1"
    with pytest.raises(ServerFailed):
        found.start()
    assert len(tried) == 1


def test_an_installer_that_fails_is_told_with_what_it_said(temporary: Path) -> None:
    found = Script()
    found.installer = "echo out; echo err >&2; exit 1"
    with pytest.raises(ServerFailed, match=r"(?s)sh failed:\nout\nerr"):
        found.start()
    assert list(temporary.iterdir()) == []


def test_nothing_of_the_callers_environment_configures_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SCRIPT_HOME", "LC_TIME", "LANG", "LANGUAGE", "KEPT"):
        monkeypatch.setenv(name, "x")
    found = Script()
    found.script = f"env; {SERVES}"
    with found:
        given = dict(line.split("=", 1) for line in found.log_path.read_text().splitlines()[:-1])
    assert not {"SCRIPT_HOME", "LC_TIME", "LANG", "LANGUAGE"} & given.keys()
    assert (given["LC_ALL"], given["KEPT"]) == ("C", "x")


def test_its_folder_goes_when_its_data_cannot_be_made(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Script, "_install", interrupt)
    found = Script()
    with pytest.raises(KeyboardInterrupt):
        found.start()
    assert list(temporary.iterdir()) == []
    assert not found.running

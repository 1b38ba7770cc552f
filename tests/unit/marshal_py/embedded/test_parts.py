"""Ports, broker settings, the choice of PostgreSQL binaries, and the guard's usage errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from marshal_py.embedded import (
    BinariesNotFound,
    EmbeddedKafka,
    EmbeddedPostgres,
    NotRunning,
    ServerFailed,
    binaries,
    broker_settings,
    find_binaries,
    ports,
)
from marshal_py.embedded.binaries import ServerUser
from marshal_py.embedded.process import Guard, tail
from marshal_py.errors import InvalidArgument


def test_ports_are_distinct_free_and_not_ephemeral() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < ports._first_ephemeral_port()
    for port in found:
        with socket.socket() as probe:
            probe.bind((ports.HOST, port))


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        (port,) = ports.free_ports(1)
        taken.bind((ports.HOST, port))
        choices = iter([port, port, *ports.free_ports(1)])
        monkeypatch.setattr("random.randrange", lambda *_: next(choices))
        assert ports.free_ports(1) != [port]


def test_the_system_chooses_where_nearly_all_ports_are_ephemeral(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert len(set(ports.free_ports(3))) == 3


@pytest.mark.parametrize(("brokers", "enough"), [(1, 1), (3, 2)])
def test_replication_fits_the_number_of_brokers(brokers: int, enough: int) -> None:
    settings = broker_settings.defaults_for_tests("4.1.0", brokers)
    assert settings["default.replication.factor"] == brokers
    assert settings["min.insync.replicas"] == enough
    assert all(v == brokers for k, v in settings.items() if k.endswith("replication.factor"))
    assert all(v == enough for k, v in settings.items() if k.endswith("min.isr"))


def test_old_versions_get_no_settings_they_do_not_know() -> None:
    names = broker_settings.defaults_for_tests("3.9.1", 1)
    assert not [name for name in names if name.startswith("share.")]


def test_backslashes_in_properties_are_escaped(tmp_path: Path) -> None:
    broker_settings.write(tmp_path / "p", {"a": "b\\c", "n": 1})
    assert (tmp_path / "p").read_text() == "a=b\\\\c\nn=1\n"


def fake_postgres(folder: Path, version: str) -> None:
    folder.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def no_system_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(binaries, "_SYSTEM_FOLDERS", (str(tmp_path / "postgresql"),))
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + "/bin:/usr/bin")
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.delenv("MARSHAL_POSTGRES", raising=False)
    return tmp_path


def test_the_wheel_has_the_newest() -> None:
    assert find_binaries("wheel").major >= 18


def test_the_newest_of_the_system_is_chosen(no_system_folders: Path) -> None:
    for version in ("9", "15", "14"):
        fake_postgres(no_system_folders / "postgresql" / version / "bin", f"{version}.3")
    assert find_binaries("system").major == 15


def test_the_environment_chooses_binaries(
    no_system_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_postgres(no_system_folders / "mine", "12.1")
    monkeypatch.setenv("MARSHAL_POSTGRES", str(no_system_folders / "mine"))
    assert find_binaries().major == 12


def test_absent_binaries_say_what_to_do(no_system_folders: Path) -> None:
    with pytest.raises(BinariesNotFound, match=r"pip install 'marshal-py\[embedded\]'"):
        find_binaries("system")


def test_a_wrong_choice_of_binaries_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="binaries='docker'"):
        find_binaries("docker")


def test_a_user_may_not_search_somebody_elses_private_folder(tmp_path: Path) -> None:
    private = tmp_path / "private" / "below"
    private.mkdir(parents=True)
    private.parent.chmod(0o700)
    stranger = ServerUser(os.getuid() + 12345, os.getgid() + 12345)
    assert not stranger.may_search(private)
    assert stranger.may_search(Path("/usr"))


@pytest.mark.parametrize("brokers", [0, 2, 4])
def test_a_cluster_has_one_or_three_brokers(brokers: int) -> None:
    with pytest.raises(InvalidArgument, match=f"brokers={brokers} must be 1 or 3"):
        EmbeddedKafka(brokers=brokers)


def test_a_server_that_was_not_started_says_so() -> None:
    with pytest.raises(NotRunning, match="call start"):
        _ = EmbeddedKafka().bootstrap_servers
    with pytest.raises(NotRunning, match="call start"):
        _ = EmbeddedPostgres().dsn


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    guard = Guard(folder)
    try:
        with pytest.raises(ServerFailed, match="no-such-program"):
            guard.spawn(["/no-such-program"], env={}, cwd=folder, log=folder / "log")
    finally:
        guard.close()
    assert not folder.exists()


def test_the_output_of_a_server_is_in_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    guard = Guard(folder)
    try:
        argv = ["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]
        server = guard.spawn(argv, env={}, cwd=folder, log=tmp_path / "log")
        assert server.wait(30)
        assert server.poll() == 3
    finally:
        guard.close()
    assert tail(tmp_path / "log") == "out\nerr"
    assert tail(tmp_path / "log", start=4) == "err"
    assert tail(tmp_path / "absent") == ""


def test_the_plugin_starts_and_imports_nothing_of_its_own() -> None:
    code = (
        "import sys, marshal_py; before = set(sys.modules)\n"
        "import marshal_py.embedded.pytest_plugin\n"
        "print(*[m for m in set(sys.modules) - before if m.startswith('marshal_py')])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert set(output.split()) == {"marshal_py.embedded", "marshal_py.embedded.pytest_plugin"}


USES_POSTGRES = """
import sys
sys.modules["psycopg"] = None

def test(postgres):
    pass
"""


def test_a_fixture_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(USES_POSTGRES)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 1
    assert "needs psycopg: run `pip install 'marshal-py[embedded]'`" in result.stdout

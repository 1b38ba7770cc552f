"""`EmbeddedPostgres` does what it promises, with the wheel's binaries and with the system's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from marshal_py.embedded import (
    BinariesNotFound,
    EmbeddedPostgres,
    NotRunning,
    PortTaken,
    ServerFailed,
    find_binaries,
    server,
)
from marshal_py.embedded.ports import free_ports
from tests.support.paths import ROOT


@pytest.fixture(scope="module", params=["wheel", "system"])
def own_postgres(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """A server that these tests may hurt, of each origin."""
    try:
        find_binaries(request.param)
    except BinariesNotFound:
        pytest.skip(f"no {request.param} binaries")
    with EmbeddedPostgres(binaries=request.param) as server:
        yield server


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM t").fetchone()
        assert row is not None
        return int(row[0])


def table(server: EmbeddedPostgres) -> str:
    dsn = server.create_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    return dsn


def test_the_version_is_the_one_of_the_server(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(own_postgres.dsn) as connection:
        assert connection.info.server_version // 10000 == own_postgres.major_version


def test_both_addresses_lead_to_the_server(own_postgres: EmbeddedPostgres) -> None:
    dsn = table(own_postgres)
    database = dsn.rpartition("/")[2]
    assert count(dsn) == 1
    assert count(own_postgres.socket_dsn.replace("/postgres?", f"/{database}?")) == 1


def test_committed_rows_survive_a_kill(own_postgres: EmbeddedPostgres) -> None:
    dsn, pid = table(own_postgres), own_postgres.pid
    with psycopg.connect(dsn) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()
        connection.execute("INSERT INTO t VALUES (3)")
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        connection.close()
    assert not own_postgres.running
    with pytest.raises(NotRunning, match=r"start\(\)"):
        own_postgres.kill()
    own_postgres.start()
    assert own_postgres.pid != pid
    assert count(dsn) == 2


def test_a_stopped_server_comes_back(own_postgres: EmbeddedPostgres) -> None:
    dsn = table(own_postgres)
    own_postgres.stop()
    own_postgres.stop()
    assert not own_postgres.running
    own_postgres.start()
    own_postgres.start()
    assert count(dsn) == 1


def states(pid: int) -> dict[int, str]:
    """The state letters of a process and its children."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if pid in (int(stat.parent.name), int(parent)):
            found[int(stat.parent.name)] = state
    return found


def test_a_paused_server_is_frozen_with_its_backends(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(own_postgres.dsn) as connection:
        own_postgres.pause()
        frozen = states(own_postgres.pid)
        assert connection.info.backend_pid in frozen
        assert set(frozen.values()) == {"T"}
        own_postgres.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_paused_server_can_be_stopped_and_killed(own_postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(own_postgres.dsn):
        own_postgres.pause()
        own_postgres.stop()
        assert not own_postgres.running
        own_postgres.start()
        own_postgres.pause()
        children = set(states(own_postgres.pid))
        own_postgres.kill()
        assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
        own_postgres.start()


def test_a_database_can_be_dropped_while_in_use(own_postgres: EmbeddedPostgres) -> None:
    dsn = own_postgres.create_database('a "name" to quote')
    with psycopg.connect(dsn) as connection:
        own_postgres.drop_database('a "name" to quote')
        own_postgres.drop_database('a "name" to quote')
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize(("durable", "fsync"), [(False, "off"), (True, "on")])
def test_durability_and_settings_can_be_chosen(durable: bool, fsync: str) -> None:
    names = ("fsync", "full_page_writes", "synchronous_commit", "work_mem")
    with (
        EmbeddedPostgres(durable=durable, settings={"work_mem": "7MB"}) as server,
        psycopg.connect(server.dsn) as connection,
    ):
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in names]
    assert shown == [(fsync,), (fsync,), ("on",), ("7MB",)]


def shared_memory() -> set[str]:
    path = Path("/proc/sysvipc/shm")
    segments = (
        {line.split()[1] for line in path.read_text().splitlines()[1:]} if path.exists() else set()
    )
    return segments | {str(p) for p in Path("/dev/shm").glob("PostgreSQL.*")}


def mapped(pid: int) -> set[str]:
    """What a process has mapped, by path, and by number where the system has no path for it."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {entry[4] for entry in maps} | {entry[5] for entry in maps if len(entry) > 5}


@pytest.mark.parametrize("kill_first", [False, True])
def test_nothing_is_left_after_close(
    kill_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = Path("/tmp") / f"embedded-{os.getpid()}"
    short.mkdir()
    short.chmod(0o755)
    try:
        monkeypatch.setattr("tempfile.tempdir", str(short))
        with EmbeddedPostgres() as server:
            processes = set(states(server.pid))
            during = shared_memory() & mapped(server.pid)
            assert during
            assert list(short.iterdir())
            if kill_first:
                server.kill()
        assert not list(short.iterdir())
        assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
        assert not during & shared_memory()
        server.close()
    finally:
        short.rmdir()


def test_a_failed_start_shows_the_log() -> None:
    server = EmbeddedPostgres(settings={"shared_buffers": "many"})
    with pytest.raises(ServerFailed, match=r"(?s)ended with code 1.*shared_buffers.*many"):
        server.start()
    assert not server.running


def test_logs_are_kept_where_the_caller_wants_them(tmp_path: Path) -> None:
    with EmbeddedPostgres(log_dir=tmp_path / "logs") as server:
        path = server.log_path
    assert "ready to accept connections" in path.read_text()


def test_a_port_taken_between_choice_and_use_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedPostgres() as first:
        choices = [[first.port], free_ports(1)]
        monkeypatch.setattr(server, "free_ports", lambda _: choices.pop(0))
        with EmbeddedPostgres() as second:
            assert not choices
            assert second.port != first.port


def test_a_port_taken_during_a_restart_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedPostgres() as first:
        first.stop()
        monkeypatch.setattr(server, "free_ports", lambda _: [first.port])
        with EmbeddedPostgres(), pytest.raises(PortTaken, match="Address already in use"):
            first.start()


def test_a_temporary_folder_with_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with EmbeddedPostgres() as server, psycopg.connect(server.socket_dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another user to run as")


@root_only
def test_root_runs_it_as_somebody_else() -> None:
    with EmbeddedPostgres() as server:
        owner = Path(f"/proc/{server.pid}").stat().st_uid
    assert pwd.getpwuid(owner).pw_name in ("postgres", "nobody")


@root_only
def test_root_may_have_the_binaries_in_a_private_folder(tmp_path: Path) -> None:
    installation = find_binaries("wheel").folder.parent
    private = tmp_path / "private"
    site = private / "site"
    shutil.copytree(installation, site / installation.parent.name / installation.name)
    libraries = f"{installation.parent.name}.libs"
    shutil.copytree(installation.parent.parent / libraries, site / libraries)
    private.chmod(0o700)
    folder = site / installation.parent.name / installation.name / "bin"
    with EmbeddedPostgres(binaries=folder) as server:
        assert count(table(server)) == 1
        assert not Path(os.readlink(f"/proc/{server.pid}/exe")).is_relative_to(private)


AS_A_USER = """
import os, psycopg
from marshal_py.embedded import EmbeddedPostgres
with EmbeddedPostgres() as server:
    with psycopg.connect(server.dsn) as connection:
        print(os.geteuid(), os.stat(f"/proc/{server.pid}").st_uid)
"""


@root_only
def test_an_ordinary_user_runs_it_as_himself(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    try:
        subprocess.run([sys.executable, "-c", ""], user=nobody.pw_uid, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this Python is not for other users")
    output = subprocess.run(
        [sys.executable, "-c", AS_A_USER],
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        env={**os.environ, "HOME": "/nonexistent"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.split() == [str(nobody.pw_uid)] * 2

"""What database servers are started with: what the caller says wins, and durable means durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marshal_py.embedded import EmbeddedMariaDB, EmbeddedMySQL, EmbeddedPostgres
from marshal_py.embedded.binaries import Binaries
from marshal_py.embedded.mariadb import _Programs as MariaDBPrograms
from marshal_py.embedded.mysql import _Programs as MySQLPrograms
from marshal_py.embedded.server import Installation

HERE = Path("/here")
Given = Callable[..., dict[str, str]]


def postgres(**settings: Any) -> dict[str, str]:
    server = EmbeddedPostgres(**settings)
    here = Installation(HERE, Any, Binaries(Path("/bin"), 18), None, HERE / "log", 5432)  # type: ignore[arg-type]
    argv = server._argv(here)
    assert argv[:3] == ["/bin/postgres", "-D", "/here/data"]
    return dict(each.split("=", 1) for each in argv[4::2])


def mariadb(**settings: Any) -> dict[str, str]:
    server = EmbeddedMariaDB(**settings)
    programs = MariaDBPrograms("/bin/mariadbd", "/bin/install")
    here = Installation(HERE, Any, programs, None, HERE / "log", 3306)  # type: ignore[arg-type]
    argv = server._argv(here)
    assert argv[:2] == ["/bin/mariadbd", "--no-defaults"]
    return dict(each.removeprefix("--").split("=", 1) for each in argv[2:])


def mysql(**settings: Any) -> dict[str, str]:
    server = EmbeddedMySQL(**settings)
    programs = MySQLPrograms(("/lib/ld.so", "/bin/mysqld"), Path("/base"))
    here = Installation(HERE, Any, programs, None, HERE / "log", 3306)  # type: ignore[arg-type]
    argv = server._argv(here)
    assert argv[:3] == ["/lib/ld.so", "/bin/mysqld", "--no-defaults"]
    return dict(each.removeprefix("--").split("=", 1) for each in argv[3:])


@pytest.mark.parametrize(
    ("given", "name", "default"),
    [
        (postgres, "max_connections", "200"),
        (postgres, "wal_level", "logical"),
        (mariadb, "innodb-buffer-pool-size", "128M"),
        (mysql, "innodb-redo-log-capacity", "32M"),
    ],
)
def test_what_the_caller_says_wins(given: Given, name: str, default: str) -> None:
    assert given()[name] == default
    assert given(settings={name: "mine", "more": 1})[name] == "mine"
    assert given(settings={name: "mine", "more": 1})["more"] == "1"


def test_only_what_is_not_durable_saves_the_disks_time() -> None:
    assert postgres().items() >= {"fsync": "off", "full_page_writes": "off"}.items()
    assert not {"fsync", "full_page_writes"} & postgres(durable=True).keys()
    for given in (mariadb, mysql):
        assert given()["innodb-flush-method"] == "nosync"
        assert given(durable=True)["innodb-flush-method"] == "fsync"
        assert given()["innodb-flush-log-at-trx-commit"] == "1", "a killed server loses nothing"
    assert (mysql()["sync-binlog"], mysql(durable=True)["sync-binlog"]) == ("0", "1")


@pytest.mark.parametrize("given", [postgres, mariadb, mysql])
def test_it_serves_this_machine_alone(given: Given) -> None:
    found = given()
    assert found.get("listen_addresses", found.get("bind-address")) == "127.0.0.1"


@pytest.mark.parametrize(("uid", "user"), [(0, "root"), (1000, None)])
def test_mysql_runs_as_root_only_when_told(
    monkeypatch: pytest.MonkeyPatch, uid: int, user: str | None
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert mysql().get("user") == user
    assert mysql()["basedir"] == "/base"


class Served(EmbeddedPostgres):
    """As if it was started."""

    port = 5432


def test_the_url_of_a_database_has_its_name_quoted() -> None:
    assert Served().dsn_of("a/b c") == "postgresql://postgres@127.0.0.1:5432/a/b%20c"
    assert Served().dsn == "postgresql://postgres@127.0.0.1:5432/postgres"


def test_postgres_is_ready_when_the_process_that_runs_says_so(tmp_path: Path) -> None:
    """A killed one leaves its file behind."""

    class Process:
        pid = 17

    data = tmp_path / "data"
    data.mkdir()
    process: Any = Process()
    nothing: Any = None
    here = Installation(tmp_path, nothing, Binaries(tmp_path, 18), None, tmp_path / "log", 5432)
    here.process = process
    server = EmbeddedPostgres()
    assert not server._ready(here)
    for pid, state, ready in (
        (17, "ready", True),
        (17, "starting", False),
        (16, "ready", False),
    ):
        lines = [str(pid), *["x"] * 6, f"{state}  "]
        (data / "postmaster.pid").write_text("\n".join(lines))
        assert server._ready(here) == ready
    (data / "postmaster.pid").write_text("17\n")
    assert not server._ready(here)


def test_mysql_is_ready_when_the_process_that_runs_says_so(tmp_path: Path) -> None:
    """The log has that of its predecessors, too."""
    nothing: Any = None
    log = tmp_path / "log"
    here = Installation(tmp_path, nothing, MySQLPrograms(("mysqld",), None), None, log, 3306)
    server = EmbeddedMySQL()
    assert not server._ready(here)
    log.write_text("mysqld: ready for connections.\n")
    assert server._ready(here)
    here.log_start = log.stat().st_size
    assert not server._ready(here)

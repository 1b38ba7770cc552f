"""Embedded servers before they run: what is refused, and how their processes are watched."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from marshal_py.embedded import (
    EmbeddedKafka,
    EmbeddedMariaDB,
    EmbeddedPostgres,
    NotRunning,
    ServerFailed,
)
from marshal_py.embedded.process import Guard, tail
from marshal_py.errors import InvalidArgument


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


def test_two_installers_of_mariadb_share_no_temporary_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, they would take files of one another."""
    with tempfile.TemporaryDirectory() as name:  # which other users may read
        folder = Path(name)
        folder.chmod(0o755)
        for program in ("mariadbd", "mariadb-install-db"):
            (folder / program).write_text('#!/bin/sh\necho "in <$TMPDIR>" "$@" >&2; exit 1\n')
            (folder / program).chmod(0o755)
        monkeypatch.setenv("PATH", f"{name}:{os.environ['PATH']}")
        said = set()
        for _ in range(2):
            with pytest.raises(ServerFailed) as failed, EmbeddedMariaDB():
                pass
            (where,) = re.findall(r"in <(/[^>]+)>", str(failed.value))
            assert f"--tmpdir={where}" in str(failed.value)
            said.add(where)
        assert len(said) == 2

"""Which of PostgreSQL's binaries are chosen, and what is said when there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marshal_py.embedded import BinariesNotFound, binaries, find_binaries
from marshal_py.embedded.binaries import ServerUser
from marshal_py.errors import InvalidArgument


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

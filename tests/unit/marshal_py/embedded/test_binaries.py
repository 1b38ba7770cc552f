"""Which of PostgreSQL's binaries are chosen, and what is said when there are none."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from marshal_py.embedded import BinariesNotFound, EmbeddedError, binaries, find_binaries
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


def test_a_folder_that_is_named_is_the_one(no_system_folders: Path) -> None:
    fake_postgres(no_system_folders / "postgresql" / "15" / "bin", "15.3")
    fake_postgres(no_system_folders / "mine", "12.1")
    assert find_binaries(no_system_folders / "mine").folder == no_system_folders / "mine"
    with pytest.raises(BinariesNotFound, match="elsewhere"):
        find_binaries(no_system_folders / "elsewhere")


def test_where_the_wheel_is_wanted_the_systems_are_not_taken(
    no_system_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_postgres(no_system_folders / "postgresql" / "15" / "bin", "15.3")
    monkeypatch.setattr(binaries, "_WHEEL", "no_such_package")
    assert find_binaries().major == 15
    with pytest.raises(BinariesNotFound):
        find_binaries("wheel")


def test_programs_that_do_not_run_are_none(no_system_folders: Path) -> None:
    broken, without_initdb = (no_system_folders / "postgresql" / v / "bin" for v in ("18", "17"))
    fake_postgres(broken, "18.0")
    (broken / "postgres").write_text("#!/bin/sh\necho postgres 18.0; exit 1\n")
    fake_postgres(without_initdb, "17.0")
    (without_initdb / "initdb").unlink()
    fake_postgres(no_system_folders / "postgresql" / "15" / "bin", "15.3")
    assert find_binaries("system").major == 15


@pytest.mark.parametrize(
    ("mode", "own", "group", "may"),
    [
        (0o700, True, True, True), (0o077, True, True, False), (0o710, False, True, True),
        (0o701, False, True, False), (0o701, False, False, True), (0o710, False, False, False),
    ],
)  # fmt: skip
def test_the_first_of_owner_group_and_others_that_one_is_decides(
    mode: int, own: bool, group: bool, may: bool
) -> None:
    """As the system decides it."""
    with tempfile.TemporaryDirectory() as name:  # below folders that everybody may search
        folder = Path(name)
        status = folder.stat()
        user = ServerUser(status.st_uid + (not own), status.st_gid + (not group))
        folder.chmod(mode)
        assert user.may_search(folder) == may
        folder.chmod(0o700)


def test_programs_that_a_server_may_not_reach_are_copied_with_their_libraries(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    installation = home / "site" / "package" / "pginstall"
    fake_postgres(installation / "bin", "18.0")
    (installation / "bin" / "postgres").chmod(0o700)
    (installation / "include").mkdir()
    (home / "site" / "package.libs").mkdir()
    (home / "site" / "package.libs" / "libpq.so").touch(0o600)
    home.chmod(0o700)
    stranger = ServerUser(os.getuid() + 12345, os.getgid() + 12345)
    folder = tmp_path / "folder"
    folder.mkdir()
    theirs = binaries.Binaries(installation / "bin", 18)
    found = binaries.reachable(theirs, stranger, folder)
    assert found == binaries.Binaries(folder / "site" / "package" / "pginstall" / "bin", 18)
    library = folder / "site" / "package.libs" / "libpq.so"
    for path in (found.folder / "postgres", found.folder, library, folder / "site"):
        assert path.stat().st_mode & 0o005 == 0o005, path
    assert not (found.folder.parent / "include").exists()
    assert binaries.reachable(theirs, None, folder) is theirs


def test_root_runs_servers_as_an_account_that_owns_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"postgres": (70, 71), "nobody": (65_534, 65_533)}

    def getpwnam(name: str) -> SimpleNamespace:
        uid, gid = known[name]
        return SimpleNamespace(pw_uid=uid, pw_gid=gid)

    monkeypatch.setattr("pwd.getpwnam", getpwnam)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert binaries.server_user() is None
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert binaries.server_user() == ServerUser(70, 71)
    known["postgres"] = (0, 0)
    assert binaries.server_user() == ServerUser(65_534, 65_533)
    known.clear()
    with pytest.raises(EmbeddedError, match="no user 'postgres' or 'nobody'"):
        binaries.server_user()

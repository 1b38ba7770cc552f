"""Where the programs of EmbeddedMySQL come from, and what is said when there are none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marshal_py.embedded import BinariesNotFound, EmbeddedMySQL
from marshal_py.embedded import mysql as module

SAYS = "#!/bin/sh\necho '{}'\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and an empty cache folder."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_ELSEWHERE", ())
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: DEBIAN)
    return path


DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}


def program(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


def test_a_mysqld_that_is_mariadb_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(folder / "mysqld", SAYS.format("mysqld  Ver 10.11.19-MariaDB"))
    assert module._in_system() is None
    other = folder.parent / "sbin"
    other.mkdir()
    monkeypatch.setattr(module, "_ELSEWHERE", (str(folder.parent / "nowhere"), str(other)))
    program(other / "mysqld", SAYS.format("mysqld  Ver 8.4.6 for Linux"))
    found = module._in_system()
    assert found is not None
    assert found.command == (str(other / "mysqld"),)


@pytest.mark.parametrize(
    ("system", "apt", "said"),
    [
        ({"ID": "fedora"}, None, "no Debian"),
        (DEBIAN, None, "apt-get"),
        (DEBIAN, "echo 'bookworm contrib mirror'", "name no mirror"),
        (DEBIAN, "echo 'E: no network' >&2; exit 100", "no network"),
    ],
)
def test_where_it_cannot_be_had_the_error_says_the_way_out(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: dict[str, str],
    apt: str | None,
    said: str,
) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: system)
    if apt is not None:
        program(folder / "apt-get", f"#!/bin/sh\n{apt}\n")
    with pytest.raises(BinariesNotFound, match=said) as caught:
        EmbeddedMySQL().start()
    assert "Install MySQL 8.0 or newer so that its mysqld is on PATH" in str(caught.value)
    cache = folder.parent / "cache/marshal-py"
    assert [path.name for path in cache.iterdir()] == ["mysql.lock"]


def test_packages_that_do_not_come_are_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(folder / "apt-get", "#!/bin/sh\nexec /bin/sleep 600\n")
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.05)
    with pytest.raises(BinariesNotFound, match=r"timed out after 0\.05 seconds"):
        module._in_packages(lambda _: None)


def test_who_waited_for_a_download_uses_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def lock_late(home: Path, _progress: Any) -> Iterator[None]:
        home.mkdir(parents=True)
        yield

    monkeypatch.setattr(module, "locked", lock_late)
    with pytest.raises(BinariesNotFound, match="delete it"):  # and not that there is no apt-get
        module._in_packages(lambda _: None)


def test_packages_are_fetched_once_from_the_systems_mirror_and_unpacked_beside_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = folder.parent / "asked"
    program(
        folder / "apt-get",
        f"""#!{sys.executable}
import pathlib, sys
arguments = sys.argv[1:]
with open({str(asked)!r}, "a") as file:
    print(*arguments, file=file)
if arguments[0] == "indextargets":
    print("bookworm-security main http://security.test/")
    print("bookworm main http://mirror.test/debian/")
    sys.exit()
options = dict(a[2:].split("=", 1) for a in arguments if a.startswith("-o"))
sources = pathlib.Path(options["Dir::Etc::sourcelist"]).read_text()
assert sources == "deb http://mirror.test/debian/ sid main\\n", sources
if "install" in arguments:
    for name in ("libc6", "mysql-server-core", "perl-base"):
        pathlib.Path(options["Dir::Cache"], "archives", name + "_1.deb").touch()
""",
    )
    program(
        folder / "dpkg-deb",
        f"""#!{sys.executable}
import pathlib, platform, sys
assert "perl" not in sys.argv[2]
base = pathlib.Path(sys.argv[3], "usr")
files = ["sbin/mysqld"]
if "libc6" in sys.argv[2]:
    files = ["lib64/ld-linux-x86-64.so.2", f"lib/{{platform.machine()}}-linux-gnu/libc.so.6"]
for file in files:
    (base / file).parent.mkdir(parents=True, exist_ok=True)
    (base / file).touch()
""",
    )
    left = folder.parent / "cache/marshal-py/.mysql.killed"
    left.mkdir(parents=True)
    for _ in range(2):
        programs = EmbeddedMySQL()._find()
        base = folder.parent / "cache/marshal-py/mysql/usr"
        assert programs.base == base
        assert programs.command[0] == str(base / "lib64/ld-linux-x86-64.so.2")
        assert programs.command[-1] == str(base / "sbin/mysqld")
    assert len(asked.read_text().splitlines()) == 3
    assert not left.exists(), "what a download left that was killed"
    assert capfd.readouterr().err.count("downloading") == 1
    (base / "sbin/mysqld").unlink()
    with pytest.raises(BinariesNotFound, match="delete it"):
        EmbeddedMySQL()._find()

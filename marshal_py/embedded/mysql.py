"""A real MySQL for tests: the system's own, or Debian's packages in the cache folder."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from .binaries import ServerUser
from .errors import BinariesNotFound, DownloadFailed
from .jars import cache_root, locked
from .mysql_server import MysqlServer
from .process import Progress, to_stderr
from .server import Installation

__all__ = ["EmbeddedMySQL"]

_PACKAGE: Final = "mysql-server-core"
_SUITE: Final = "sid"  # Debian's stable releases have MariaDB only
_ELSEWHERE: Final = ("/usr/sbin", "/usr/libexec", "/usr/local/mysql/bin", "/opt/homebrew/bin")
_UNNEEDED: Final = ("perl", "libperl", "libc-gconv")
"""How packages begin that the server depends on, and never uses."""
_TIMEOUT_S: Final = 600


class _Programs(NamedTuple):
    command: tuple[str, ...]
    """The server, where need be under a loader of its own."""
    base: Path | None
    """What the server takes for /usr, if not the system's."""


class EmbeddedMySQL(MysqlServer[_Programs]):
    """A MySQL server on a free port of 127.0.0.1, with its data in a temporary folder.

        with EmbeddedMySQL() as mysql:
            url = mysql.create_database()

    It has the interface of `EmbeddedMariaDB`. Its programs are the first MySQL on PATH or in the
    usual folders. On a Debian without one, `mysql-server-core` of Debian's unstable suite and the
    libraries it needs are fetched by apt, from the mirror that the system's sources name (60 MB,
    once), and unpacked in the cache folder; nothing is installed. To renew it, delete the folder
    `mysql` there.

    The user is `root`, without a password. As the system's root, the server runs as root, for it
    may lie in a home folder. Raises `BinariesNotFound` when MySQL is not there and cannot be had.
    """

    _name: ClassVar = "MySQL"

    def _user(self) -> ServerUser | None:
        return None

    def _find(self) -> _Programs:
        return _in_system() or _in_packages(to_stderr)

    def _install(self, here: Installation[_Programs]) -> None:
        environment = {**self._environment(), "TMPDIR": str(here.folder)}
        here.run([*self._argv(here), "--initialize-insecure"], environment)

    def _settings(self, here: Installation[_Programs]) -> dict[str, object]:
        settings = super()._settings(here) | {
            "mysqlx": "OFF",  # which would take another port
            "secure-file-priv": "",  # the default is a folder that only an installation has
            "innodb-redo-log-capacity": "32M",
            "sync-binlog": 1 if self._durable else 0,
        }
        if here.programs.base is not None:
            settings["basedir"] = here.programs.base
        if os.geteuid() == 0:
            settings["user"] = "root"
        return settings

    def _argv(self, here: Installation[_Programs]) -> list[str]:
        return [*here.programs.command, *self._options(here)]


def _in_system() -> _Programs | None:
    for folder in (*os.environ.get("PATH", os.defpath).split(os.pathsep), *_ELSEWHERE):
        found = shutil.which("mysqld", path=folder)
        if found is None:
            continue
        said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if said and "mariadb" not in said.lower():  # which has a program of that name, too
            return _Programs((found,), None)
    return None


def _in_packages(progress: Progress) -> _Programs:
    home = cache_root() / "mysql"
    try:
        if not home.exists():
            with locked(home, progress):
                if not home.exists():  # another process may have done it meanwhile
                    _fill(home, progress)
    except DownloadFailed as error:
        raise BinariesNotFound(
            "No MySQL was found on PATH (a mysqld that is MariaDB does not count), and Debian's "
            f"packages could not be fetched: {error}\n"
            "Install MySQL 8.0 or newer so that its mysqld is on PATH."
        ) from error
    return _unpacked(home)


def _unpacked(home: Path) -> _Programs:
    base = home / "usr"
    loaders = sorted(base.glob("lib*/ld-linux*.so.*"))
    libraries = sorted(base.glob(f"lib/{platform.machine()}-linux-gnu"))
    if not loaders or not libraries or not (base / "sbin/mysqld").exists():
        raise BinariesNotFound(f"What {home} holds cannot be run: delete it, and try again.")
    server = (str(loaders[0]), "--library-path", str(libraries[0]), str(base / "sbin/mysqld"))
    return _Programs(server, base)


def _fill(home: Path, progress: Progress) -> None:
    """Fetch and unpack, with state of apt's in a temporary folder. Under the lock."""
    for leftover in home.parent.glob(f".{home.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        for name in ("lists/partial", "archives/partial", "root"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(f"deb {_mirror()} {_SUITE} main\n")
        settings = {
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": folder,
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "APT::Sandbox::User": "",  # it may not enter a home folder
            "Acquire::Languages": "none",
        }
        apt = ["apt-get", *(f"-o{name}={value}" for name, value in settings.items())]
        progress("downloading MySQL from Debian's packages (60 MB, once)")
        _run([*apt, "update"])
        install = ["install", "--yes", "--download-only", "--no-install-recommends", _PACKAGE]
        _run([*apt, *install])
        for package in sorted((folder / "archives").glob("*.deb")):
            if not package.name.startswith(_UNNEEDED):
                _run(["dpkg-deb", "--extract", str(package), str(folder / "root")])
        _unpacked(folder / "root")
        (folder / "root").rename(home)
        progress(f"MySQL is in {home}")
    except BinariesNotFound as error:
        raise DownloadFailed(
            f"Debian's packages for {platform.machine()} hold no server"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mirror() -> str:
    """Where the system's own packages come from, if it is a Debian."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    if system.get("ID") != "debian":
        raise DownloadFailed("this is no Debian.")
    columns = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    suites = {system.get("VERSION_CODENAME"), "stable", "testing", "unstable", _SUITE}
    targets = _run(["apt-get", "indextargets", "--format", columns, "Created-By: Packages"])
    for line in targets.splitlines():
        suite, component, uri = line.split(" ", 2)
        if suite in suites and component == "main":
            return uri
    raise DownloadFailed("apt's sources name no mirror of Debian's `main`.")


def _run(argv: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadFailed(str(error)) from error
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines()[-5:]
        raise DownloadFailed("\n".join(lines) or f"{argv[0]} ended with {result.returncode}")
    return result.stdout

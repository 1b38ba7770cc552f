"""Jars that Spark needs besides its own, into the per-user cache: for Kafka, PostgreSQL, Delta, S3.

`spark.jars.packages` would resolve them anew at every start, with a Java that may not trust the
machine's certificates. This fetches each once, and works off line from then on.
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
from typing import Final, NamedTuple

from marshal_py.embedded.errors import DownloadFailed
from marshal_py.embedded.jar_hashes import check_jars
from marshal_py.embedded.jars import cache_root, locked
from marshal_py.embedded.process import Progress, to_stderr

__all__ = [
    "CONDITIONAL_PUT",
    "COORDINATES",
    "DELTA",
    "S3",
    "SPARK_VERSION",
    "connector_jars",
    "delta_jars",
    "s3_jars",
]

SPARK_VERSION: Final = "4.2.0"
_DELTA_VERSION: Final = "4.4.0"

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

DELTA: Final = (
    f"io.delta:delta-spark_4.2_2.13:{_DELTA_VERSION}",
    f"io.delta:delta-storage:{_DELTA_VERSION}",
)
"""What the lake needs as well: ``python -m marshal_py.spark.connector delta`` prints both kinds."""


_HADOOP_VERSION: Final = "3.5.0"  # that of pyspark's own jars
_AWS_VERSION: Final = "2.35.4"  # that Hadoop's was built with

_OF_AWS: Final = """
annotations apache-client arns auth aws-core aws-query-protocol aws-xml-protocol checksums
checksums-spi crt-core endpoints-spi http-auth http-auth-aws http-auth-aws-eventstream http-auth-spi
http-client-spi identity-spi json-utils metrics-spi netty-nio-client profiles protocol-core regions
retries retries-spi s3 s3-transfer-manager sdk-core sts third-party-jackson-core utils utils-lite
"""  # what S3 needs of a kit that has 600 MB as one jar

S3: Final = (
    f"org.apache.hadoop:hadoop-aws:{_HADOOP_VERSION}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    "org.reactivestreams:reactive-streams:1.0.4",
    *(f"software.amazon.awssdk:{name}:{_AWS_VERSION}" for name in _OF_AWS.split()),
    "software.amazon.eventstream:eventstream:1.0.1",
)
"""What a lake at s3a:// needs as well: ``python -m marshal_py.spark.connector delta s3``."""

CONDITIONAL_PUT: Final = Path(__file__).parent / "jvm" / "conditional-put.jar"
"""Makes Delta's commits, and Spark's checkpoints, decide by S3's conditional put
(``python -m tests.spark.build_jar``)."""


class _Bundle(NamedTuple):
    """Jars that are fetched together."""

    home: str
    """The name of their folder in the cache."""
    what: str
    coordinates: tuple[str, ...]


_KAFKA: Final = _Bundle(
    f"spark-kafka-{SPARK_VERSION}", f"Spark's Kafka connector {SPARK_VERSION} (11 MB)", COORDINATES
)
_DELTA: Final = _Bundle(
    f"spark-delta-{_DELTA_VERSION}", f"Delta Lake {_DELTA_VERSION} (10 MB)", DELTA
)
_S3: Final = _Bundle(f"spark-s3-{_HADOOP_VERSION}", f"Hadoop's S3A {_HADOOP_VERSION} (13 MB)", S3)

_TIMEOUT_S: Final = 600


def connector_jars(*, progress: Progress = to_stderr) -> list[Path]:
    """Return the jars of the Kafka connector, downloading them if need be (once; 11 MB).

    Safe among processes. Jars whose SHA-256 is not the pinned one are refused. Raises
    `DownloadFailed`, which says what was tried.
    """
    return _jars(_KAFKA, progress)


def delta_jars(*, progress: Progress = to_stderr) -> list[Path]:
    """Return the jars of Delta Lake, as `connector_jars` does (once; 10 MB)."""
    return _jars(_DELTA, progress)


def s3_jars(*, progress: Progress = to_stderr) -> list[Path]:
    """Return the jars with which Spark and Delta use S3, as `connector_jars` does (once; 13 MB)."""
    return [*_jars(_S3, progress), CONDITIONAL_PUT]


def _jars(bundle: _Bundle, progress: Progress) -> list[Path]:
    home = cache_root() / bundle.home
    wanted = [home / _file_name(coordinate) for coordinate in bundle.coordinates]
    if not all(jar.exists() for jar in wanted):
        with locked(home, progress):
            if not all(jar.exists() for jar in wanted):
                _fill(bundle, home, progress)
    return wanted


def _file_name(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _fill(bundle: _Bundle, home: Path, progress: Progress) -> None:
    progress(f"downloading {bundle.what}, once")
    shutil.rmtree(home, ignore_errors=True)
    failures = []
    for way in (_with_python, _with_mvn):
        folder = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
        try:
            way(bundle, folder)
            _check(bundle, folder)
            folder.chmod(0o755)
            folder.rename(home)
            return
        except DownloadFailed as error:
            failures.append(str(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    tried = "".join(f"\n- {failure}" for failure in failures)
    raise DownloadFailed(
        f"{bundle.what} could not be fetched:{tried}\nGive its jars yourself: "
        "spark-submit --packages, or the setting spark.jars."
    )


def _check(bundle: _Bundle, folder: Path) -> None:
    for coordinate in bundle.coordinates:
        jar = folder / _file_name(coordinate)
        try:
            with zipfile.ZipFile(jar) as archive:
                broken = archive.testzip()
        except (OSError, zipfile.BadZipFile) as error:
            raise DownloadFailed(f"{jar.name} is missing or damaged: {error}.") from error
        if broken:
            raise DownloadFailed(f"{jar.name} is damaged at {broken}.")
    check_jars(bundle.home, [folder / _file_name(c) for c in bundle.coordinates])


def _with_python(bundle: _Bundle, folder: Path) -> None:
    if importlib.util.find_spec("jgo") is None:
        raise DownloadFailed("no jgo; `pip install 'marshal-py[spark]'` brings it.")
    env = dict(os.environ)
    if "SSL_CERT_FILE" in env:  # `requests` knows the machine's bundle under another name only
        env.setdefault("REQUESTS_CA_BUNDLE", env["SSL_CERT_FILE"])
    argv = [sys.executable, "-m", "marshal_py.spark.connector", "fetch", str(folder)]
    _run([*argv, *bundle.coordinates], env, folder)


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


def _with_mvn(bundle: _Bundle, folder: Path) -> None:
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
        f"{''.join(one.format(*c.split(':')) for c in bundle.coordinates)}</dependencies></project>"
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
    if sys.argv[1:2] == ["fetch"]:
        _fetch(Path(sys.argv[2]), sys.argv[3:])
    else:
        jars = connector_jars()
        jars += delta_jars() if "delta" in sys.argv[1:] else []
        jars += s3_jars() if "s3" in sys.argv[1:] else []
        print(",".join(str(jar) for jar in jars))

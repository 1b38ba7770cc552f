"""Fetch Maven artifacts and what they need at run time, in Python alone. Run as a process.

    python -m marshal_py.embedded._maven FOLDER GROUP:ARTIFACT:VERSION...

A process of its own, because the resolver takes the certificate bundle from the environment and has
to be stoppable.
"""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_DOWNLOADS_AT_ONCE = 8
_TIMEOUT_S = 30


def main(folder: Path, coordinates: list[str]) -> None:
    import requests
    from jgo.maven import MavenContext, PythonResolver

    # The resolver makes a connection for each of its 250 requests: seconds become a minute.
    session = requests.Session()
    session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=_DOWNLOADS_AT_ONCE))
    requests.request = session.request

    context = MavenContext(
        resolver=PythonResolver(), repo_cache=folder / "repository", timeout=_TIMEOUT_S
    )
    wanted = [context.create_dependency(coordinate) for coordinate in coordinates]
    direct, transitive = context.resolver.resolve(wanted)
    needed = [*direct, *(d for d in transitive if d.scope in ("compile", "runtime"))]

    def fetch(dependency: Any) -> None:
        jar = dependency.artifact.resolve()
        shutil.move(jar, folder / jar.name)

    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        list(pool.map(fetch, needed))
    shutil.rmtree(folder / "repository")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

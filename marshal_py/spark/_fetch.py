"""Fetch Maven artifacts alone: `python -m … FOLDER GROUP:ARTIFACT:VERSION…`.

A process of its own: the resolver takes the certificate bundle from the environment. What the
artifacts depend on is not fetched.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def main(folder: Path, coordinates: list[str]) -> None:
    from jgo.maven import MavenContext, PythonResolver

    repository = folder / "repository"
    context = MavenContext(resolver=PythonResolver(), repo_cache=repository, timeout=30)
    for coordinate in coordinates:
        jar = context.create_dependency(coordinate).artifact.resolve()
        shutil.copy(jar, folder / jar.name)
    shutil.rmtree(repository, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""The tasks of whoever works on this: `nox --list` shows them, `nox` runs the fast ones.

Nothing is installed here (but by `pythons`, `lowest`, `airflow`, `object_store`): run it from the
environment that has the extra `dev`, CONTRIBUTING.md says how.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["fast"]

ROOT = Path(__file__).parent
QUICK = "not slow and not campaign and not kafka"
NOTHING_COLLECTED = 5
"""Pytest's exit code when the markers left nothing to run."""


@nox.session
def fast(session: nox.Session) -> None:
    """Within a minute, before each commit: lint, layers, types, unit tests of what changed."""
    _lint(session)
    tests = sorted({test for path in _changed() for test in unit_tests_of(path)})
    if tests:
        codes = [0, NOTHING_COLLECTED]
        _python(session, "-m", "pytest", "-q", "-n", "2", "-m", QUICK, *tests, success_codes=codes)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, layers (.importlinter) and types."""
    _lint(session)


@nox.session
def unit(session: nox.Session) -> None:
    """All tests that start no server. What follows `--` is for pytest."""
    _python(session, "-m", "pytest", "-q", "-n", "2", "tests/unit", *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13", "3.14"], venv_backend="venv", reuse_venv=True)
def pythons(session: nox.Session) -> None:
    """The unit and contract tests with every Python that is found. What follows `--`: for pytest.

    Each Python gets an environment of its own, in .nox.
    """
    session.install("-e", ".[test]")
    tests = session.posargs or ["-n", "2", "tests/unit", "tests/contract"]
    session.run("python", "-m", "pytest", "-q", *tests)


@nox.session(venv_backend="venv", reuse_venv=True)
def airflow(session: nox.Session) -> None:
    """The DAG of docs/deploy, run by Airflow. Installs Airflow, in .nox."""
    session.install("apache-airflow>=3")
    session.run("python", "-m", "tests.lake_dag")


@nox.session(venv_backend="venv", reuse_venv=True)
def object_store(session: nox.Session) -> None:
    """The lake and the audit in a store that speaks S3. Installs moto, in .nox."""
    session.install("-e", ".[test,object-store]", "moto[server,s3]")
    tests = ("tests/spark/test_lake_s3.py", "tests/unit/marshal_py/spark/test_audit_store.py")
    session.run("python", "-m", "pytest", "-q", "-m", "campaign", *tests)


IN_CONTAINER = "archive dashboard harvest http metrics mysql nats object-store otel"
LOCK = "docs/deploy/requirements.lock"


@nox.session
def lock(session: nox.Session) -> None:
    """Renew what the container installs, and write its list of parts: sbom.cdx.json (CycloneDX)."""
    _compile(session, LOCK, "docs/deploy/requirements.in", "--upgrade", "--generate-hashes",
             "--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28",
             *(f"--extra={name}" for name in IN_CONTAINER.split()))  # fmt: skip
    _python(session, "-m", "cyclonedx_py", "requirements", LOCK, "-o", "sbom.cdx.json")


@nox.session(venv_backend="venv")
def lowest(session: nox.Session) -> None:
    """The unit and contract tests with the lowest versions that pyproject.toml allows."""
    wanted = Path(session.create_tmp()) / "lowest.txt"
    _compile(session, str(wanted), "--resolution", "lowest-direct", "--extra=test")
    session.install("-r", str(wanted))
    session.install("--no-deps", "-e", ".")
    tests = session.posargs or ["-n", "2", "tests/unit", "tests/contract"]
    session.run("python", "-m", "pytest", "-q", *tests)


def _compile(session: nox.Session, to: str, *options: str) -> None:
    kept = ("--no-annotate", "--no-header", "--quiet", "--output-file", to)
    _python(session, "-m", "uv", "pip", "compile", "pyproject.toml", *kept, *options)


@nox.session
def area(session: nox.Session) -> None:
    """Unit and integration tests of one area: `nox -s area -- consumer`, or `-- harvest/core`."""
    if not session.posargs:
        session.error("which one? nox -s area -- consumer")
    name, *rest = session.posargs
    folders = folders_of(name)
    if not folders:
        session.error(f"there is no folder {name} in tests/")
    _python(session, "-m", "pytest", "-q", *folders, *rest)


@nox.session(name="all")
def everything(session: nox.Session) -> None:
    """What CI does, in a .venv that it makes: .ci/run."""
    session.run(str(ROOT / ".ci" / "run"))


@nox.session
def docs(session: nox.Session) -> None:
    """The pages and the API reference as a site: site/index.html."""
    _python(session, "docs/build_site.py", "site")


@nox.session
def bench(session: nox.Session) -> None:
    """Benchmarks by name: `nox -s bench -- claim --quick`."""
    _python(session, "-m", "tests.benchmarks", *session.posargs)


def _lint(session: nox.Session) -> None:
    _python(session, "-m", "ruff", "check", ".")
    _python(session, "-m", "ruff", "format", "--check", ".")
    session.run(str(Path(sys.executable).with_name("lint-imports")))
    _python(session, "-m", "mypy")


def _python(session: nox.Session, *arguments: str, success_codes: Sequence[int] = (0,)) -> None:
    session.run(sys.executable, *arguments, success_codes=success_codes)


def _changed() -> list[str]:
    """Files that differ from where this branch left main, commits and work in progress alike."""
    base = "HEAD"
    for main in ("origin/main", "main"):
        found = _git("merge-base", "HEAD", main)
        if found:
            base = found[0]
            break
    return _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()


def unit_tests_of(path: str) -> list[str]:
    """The unit tests of a file: tests/unit mirrors the packages. The nearest folder there is."""
    file = Path(path)
    if file.suffix == ".md" or file.parts[0] == "docs":
        return ["tests/unit/docs"]
    if file.parts[:2] == ("tests", "unit"):
        return [path] if file.name.startswith("test_") and (ROOT / file).exists() else []
    if file.parts[0] not in ("marshal_py", "harvest"):
        return []
    folder = Path("tests/unit") / file.parent
    named = sorted((ROOT / folder).glob(f"test_{file.stem}*.py"))
    if named:
        return [str(test.relative_to(ROOT)) for test in named]
    while not (ROOT / folder).exists():
        folder = folder.parent
    return [str(folder)]


def folders_of(name: str) -> list[str]:
    """The folders of tests whose path ends with `name`, but for those inside of another of them."""
    wanted = Path(name.strip("/")).parts
    found: list[Path] = []
    for folder in sorted(ROOT.glob("tests/**/")):
        inside = folder.relative_to(ROOT)
        if inside.parts[-len(wanted) :] == wanted and not any(f in inside.parents for f in found):
            found.append(inside)
    return [str(folder) for folder in found]

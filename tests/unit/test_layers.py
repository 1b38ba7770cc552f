"""The contracts of .importlinter, and what they do not see: clocks that need no import."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grimp
import pytest

from tests.support.paths import ROOT

IMPURE: Final = re.compile(
    r"(.*\.)?(open|input|print|(datetime|date)\.(now|utcnow|today)|uuid[14]|read_text|write_text)"
)
SAYS_SO: Final = ("Pure", "No I/O")

MAP = configparser.ConfigParser()
MAP.read(ROOT / ".importlinter", encoding="utf-8")
CONTRACTS: Final = [MAP[f"importlinter:contract:{name}"] for name in ("pure", "pure-modules")]
PURE: Final = [module for contract in CONTRACTS for module in contract["source_modules"].split()]


def files(module: str) -> list[Path]:
    path = ROOT / module.replace(".", "/")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def impure(source: str) -> Iterator[str]:
    """The calls in `source` that bring a time, a random number or a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and IMPURE.fullmatch(called := ast.unparse(node.func)):
            yield f"line {node.lineno}: {called}()"


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_asks_nobody_for_the_time_or_for_chance(module: str) -> None:
    for file in files(module):
        assert not list(impure(file.read_text(encoding="utf-8"))), file


@pytest.mark.parametrize(
    "source",
    ["dt.datetime.now(dt.UTC)", "date.today()", "uuid.uuid4()", "uuid4()", "open('x')"],
)
def test_the_check_can_fail(source: str) -> None:
    assert list(impure(source))


def test_whatever_says_that_it_is_pure_is_held_to_it() -> None:
    held = {file for module in PURE for file in files(module)}
    for package in ("marshal_py", "harvest"):
        for file in sorted((ROOT / package).rglob("*.py")):
            said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            if any(word in said.partition("\n")[0] for word in SAYS_SO):
                assert file in held, f"{file} is missing in .importlinter"


def test_only_a_command_imports_the_public_face_of_its_own_package() -> None:
    graph = grimp.build_graph("marshal_py", "harvest", cache_dir=None)
    for package in ("marshal_py", "harvest"):
        for module in graph.find_modules_that_directly_import(package):
            assert not module.startswith(f"{package}.") or module.startswith(f"{package}.cli.")


def test_pure_is_the_same_everywhere() -> None:
    lists = [contract["forbidden_modules"].split() for contract in CONTRACTS]
    assert lists[0] == lists[1] == sorted(set(lists[0]))


@pytest.mark.parametrize(("line", "code"), [("import json", 0), ("import time", 1)])
def test_the_contracts_see_the_standard_library(tmp_path: Path, line: str, code: int) -> None:
    package = f"house_{code}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "helper.py").write_text(f"{line}\n")
    (tmp_path / package / "pure.py").write_text(f"from {package} import helper\n")
    config = tmp_path / "contracts.ini"
    config.write_text(
        f"[importlinter]\nroot_package = {package}\ninclude_external_packages = True\n"
        "[importlinter:contract:pure]\nname = pure\ntype = forbidden\n"
        f"source_modules = {package}.pure\nforbidden_modules = time\n"
    )
    # In a process of its own: the tool sets up logging, and switches existing loggers off.
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--config", str(config), "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("BROKEN" in done.stdout) == bool(code)

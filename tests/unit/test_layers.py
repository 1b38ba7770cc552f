"""What .importlinter cannot see: clocks, randomness and files without an import of their own."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.paths import ROOT

IMPURE: Final = re.compile(
    r"(.*\.)?(open|input|print|(datetime|date)\.(now|utcnow|today)|uuid[14]|read_text|write_text)"
)
SAYS_SO: Final = ("Pure", "No I/O")

MAP = configparser.ConfigParser()
MAP.read(ROOT / ".importlinter", encoding="utf-8")
PURE: Final = [
    module
    for contract in ("pure", "pure-modules")
    for module in MAP[f"importlinter:contract:{contract}"]["source_modules"].split()
]


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

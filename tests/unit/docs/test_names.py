"""What is named is there: files by any page, modules and functions by the explanations."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.paths import DOCS, ROOT, SPECS

PACKAGES: Final = ("marshal_py", "harvest")
PARTS: Final = {
    part.name
    for package in PACKAGES
    for part in pkgutil.iter_modules(importlib.import_module(package).__path__)
    if part.ispkg
}
PAGES: Final = [*sorted((DOCS / "explain").glob("*.md")), ROOT / "CONTRIBUTING.md"]
QUOTED: Final = re.compile(r"`([^`\n]+)`")
DOTTED: Final = re.compile(r"([a-z_]+)(\.\w+)+")
ALL_PAGES: Final = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted(SPECS.glob("*.md")),
]
MOVED: Final = "### What moved"
"""From here on the changelog names what is no more."""
FOLDERS: Final = ("marshal_py/", "harvest/", "tests/", "specs/", "docs/", ".ci/", ".github/")


def names(page: Path) -> list[str]:
    """The dotted names of ours: whole, or without the package, as `client.marshal`."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    quoted = (name.removesuffix("()") for name in QUOTED.findall(text))
    return [
        name
        for name in quoted
        if (found := DOTTED.fullmatch(name))
        and not name.endswith((".md", ".yaml", ".toml"))
        and found[1] in {*PACKAGES, *PARTS}
    ]


def files(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8").partition(MOVED)[0]
    return [
        name.partition("::")[0]
        for name in QUOTED.findall(text)
        if name.startswith(FOLDERS) and " " not in name
    ]


def resolves(name: str) -> bool:
    whole = [name] if name.split(".")[0] in PACKAGES else [f"{p}.{name}" for p in PACKAGES]
    return any(_is_there(n) for n in whole)


def _is_there(name: str) -> bool:
    module, _, rest = name, "", ""
    while True:
        try:
            found: object = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
    for attribute in filter(None, rest.split(".")):
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_what_a_page_names_is_there(page: Path) -> None:
    for name in names(page):
        assert resolves(name), f"{page.name}: {name}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    for file in files(page):
        assert list(ROOT.glob(file)), f"{page.name}: {file}"


def test_there_are_names_to_check() -> None:
    assert sum(len(names(page)) for page in PAGES) > 40
    assert sum(len(files(page)) for page in ALL_PAGES) > 50


@pytest.mark.parametrize(
    "name", ["client.marshall", "client.marshal.Marshal.clam", "harvest.nothing", "core.marks"]
)
def test_the_check_can_fail(name: str) -> None:
    assert not resolves(name)

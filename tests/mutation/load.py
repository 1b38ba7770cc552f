"""Load a module of the product with a change in it, before anybody has imported it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType


class DoesNotApply(Exception):
    """The product has changed: the text that the mutant replaces is not there exactly once."""


@dataclass(frozen=True)
class Edit:
    """In `function` (``Class.method``, a name, or empty: the whole module), replace `old`, found
    exactly once, by `new`."""

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A guard left out: what it guards, and the edits that remove it."""

    name: str
    module: str
    edits: tuple[Edit, ...]
    campaign: str = "protocol"
    """Which histories should notice: those of `tests.simulation`, or a kind of its `whole`."""

    def source(self) -> str:
        """Return the changed source of the module. Raises `DoesNotApply`."""
        text = path_of(self.module).read_text("utf-8")
        for edit in self.edits:
            start, end = _extent(text, edit.function)
            body = text[start:end]
            if body.count(edit.old) != 1:
                raise DoesNotApply(
                    f"{self.name}: {edit.old!r} is {body.count(edit.old)} times in "
                    f"{self.module}.{edit.function}"
                )
            text = text[:start] + body.replace(edit.old, edit.new) + text[end:]
        return text

    def code(self) -> CodeType:
        """Compile the changed module. Raises `DoesNotApply`."""
        try:
            return compile(self.source(), str(path_of(self.module)), "exec")
        except SyntaxError as error:
            raise DoesNotApply(f"{self.name}: {error}") from error


def path_of(module: str) -> Path:
    """Return where a module of the product lies, without importing it."""
    package, *folders, name = module.split(".")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], *folders, f"{name}.py")


def _extent(text: str, function: str) -> tuple[int, int]:
    """Return where a function begins and ends in the text of its module."""
    if not function:
        return 0, len(text)
    body: list[ast.stmt] = ast.parse(text).body
    found: ast.stmt | None = None
    for name in function.split("."):
        found = next(
            (
                node
                for node in body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.name == name
            ),
            None,
        )
        if found is None:
            raise DoesNotApply(f"there is no function {function}")
        body = getattr(found, "body", [])
    assert found is not None
    assert found.end_lineno is not None
    lines = text.splitlines(keepends=True)
    return (
        sum(map(len, lines[: found.lineno - 1])),
        sum(map(len, lines[: found.end_lineno])),
    )


def install(module: str, code: CodeType) -> None:
    """Make the next import of `module` run `code`."""
    if module in sys.modules:
        raise RuntimeError(f"{module} is imported already")
    sys.meta_path.insert(0, _Finder(module, code))


class _Finder(MetaPathFinder, Loader):
    def __init__(self, module: str, code: CodeType) -> None:
        self.module = module
        self.made = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=str(path_of(fullname)))
        if spec is not None:
            spec.has_location = True  # some look for files beside themselves
        return spec

    def exec_module(self, module: ModuleType) -> None:
        exec(self.made, module.__dict__)

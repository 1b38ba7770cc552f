"""The link between specs/PROTOCOL.md and the tests: the mark `@spec`, and the table made of it.

``@spec("F-12")`` on a test says that it checks the sentence of that identifier.
`tests/unit/docs/test_spec_sentences.py` keeps the two in step. A developer's command, for when a
marked test has moved: `python -m tests.support.spec` writes the table at the end of the
specification.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from typing import TypeVar

from tests.support.paths import SPECS, TESTS

SPECIFICATION = SPECS / "PROTOCOL.md"
TABLE_STARTS = "<!-- table -->"

_IDENTIFIER = re.compile(r"\[([A-Z]-\d+)\]")

Test = TypeVar("Test", bound=Callable[..., object])


def spec(*identifiers: str) -> Callable[[Test], Test]:
    """Mark a test as the check of these sentences of specs/PROTOCOL.md."""

    def mark(test: Test) -> Test:
        known: tuple[str, ...] = getattr(test, "spec_sentences", ())
        test.spec_sentences = known + identifiers  # type: ignore[attr-defined]
        return test

    return mark


def sentences() -> list[str]:
    """The identifiers of the specification's sentences, in order; twice if used twice."""
    text, _ = SPECIFICATION.read_text("utf-8").split(TABLE_STARTS)
    return _IDENTIFIER.findall(text)


@functools.cache
def marked_tests() -> dict[str, list[str]]:
    """Identifier → the tests that pytest collects and that are marked with it."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body if "\n@spec(" in text else ():
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            for identifier in _marks(node):
                name = f"{path.relative_to(TESTS).as_posix()}::{node.name}"
                found.setdefault(identifier, []).append(name)
    return found


def _marks(node: ast.FunctionDef) -> list[str]:
    return [
        argument.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "spec"
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def table() -> str:
    """The table of sentences and tests."""
    tests = marked_tests()
    rows = ["| sentence | tests (in `tests/`) |", "|---|---|"]
    for identifier in dict.fromkeys(sentences()):
        rows.append(f"| {identifier} | {', '.join(f'`{t}`' for t in tests.get(identifier, []))} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the table into the specification."""
    text, _ = SPECIFICATION.read_text("utf-8").split(TABLE_STARTS)
    SPECIFICATION.write_text(f"{text}{TABLE_STARTS}\n\n{table()}", "utf-8")


if __name__ == "__main__":
    main()

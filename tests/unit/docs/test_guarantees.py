"""Every test that specs/GUARANTEES.md names exists, and every guarantee names one."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import SPECS, TESTS

_PAGE = (SPECS / "GUARANTEES.md").read_text()
_NAMED = sorted(set(re.findall(r"`([a-z_0-9/]+\.py)::(test_[a-z_0-9]+)`", _PAGE)))
_LINES = re.findall(r"^\| ([GHS]\d+) \|(.*)$", _PAGE, re.MULTILINE)


def test_there_are_guarantees() -> None:
    assert len(_LINES) > 15
    assert len(_NAMED) > 20
    assert len({name for name, _ in _LINES}) == len(_LINES)


@pytest.mark.parametrize(("file", "function"), _NAMED, ids=[f"{f}::{t}" for f, t in _NAMED])
def test_the_named_test_exists(file: str, function: str) -> None:
    tree = ast.parse((TESTS / file).read_text())
    assert function in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize(("name", "line"), _LINES, ids=[name for name, _ in _LINES])
def test_every_guarantee_names_a_test(name: str, line: str) -> None:
    assert "::test_" in line


def test_assumptions_that_are_named_exist() -> None:
    given = set(re.findall(r"^\| (A\d+) \|", _PAGE, re.MULTILINE))
    assert set(re.findall(r"\bA\d+\b", _PAGE)) <= given

"""A bug with the one test that has to notice it."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutation.load import Edit, Mutant

__all__ = ["Noticed", "noticed"]


class Noticed(NamedTuple):
    """A bug, and the test that fails with it: below ``tests``."""

    mutant: Mutant
    test: str


def noticed(name: str, module: str, test: str, *edits: tuple[str, str, str]) -> Noticed:
    """Return a bug: each edit is (what is changed, the text there, what stands in its place)."""
    changes = tuple(Edit(*edit) for edit in edits)
    return Noticed(Mutant(f"module: {name}", module, changes, "modules"), test)

"""Find a mutant by its name."""

from __future__ import annotations

from tests.mutation.load import Mutant
from tests.mutation.mutants import MUTANTS


def find(name: str) -> Mutant:
    """Return the mutant of that name. Raises `LookupError`."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise LookupError(f"there is no mutant {name!r}")

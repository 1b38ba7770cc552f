"""Find a mutant by its name, and plant it."""

from __future__ import annotations

import os
from types import CodeType
from typing import Protocol

from tests.mutation.load import install
from tests.mutation.mutants import MUTANTS
from tests.mutation.mutants.modules import MODULES
from tests.mutation.mutants.promises import PROMISES
from tests.mutation.mutants.systematic import systematic


class AnyMutant(Protocol):
    """What a mutant is to whoever runs it."""

    @property
    def name(self) -> str: ...

    @property
    def module(self) -> str: ...

    @property
    def campaign(self) -> str: ...

    def code(self) -> CodeType:
        """Compile the changed module."""


def find(name: str) -> AnyMutant:
    """Return the mutant of that name. Raises `LookupError`."""
    for mutant in (*MUTANTS, *PROMISES, *[noticed.mutant for noticed in MODULES]):
        if mutant.name == name:
            return mutant
    if "#" in name:
        for other in systematic(name.split("#")[0]):
            if other.name.split(":")[0] == name.split(":")[0]:
                return other
    raise LookupError(f"there is no mutant {name!r}")


def plant() -> None:
    """Have this process import the mutant that MUTANT names, if it names one."""
    if name := os.environ["MUTANT"]:
        mutant = find(name)
        install(mutant.module, mutant.code())

"""Bugs in `harvest`, each with its test (see `modules`)."""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed

__all__ = ["HARVESTERS"]

HARVESTERS: tuple[Noticed, ...] = ()

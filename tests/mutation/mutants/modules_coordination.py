"""Bugs in clients, consumers and operators' tools, each with its test (see `modules`)."""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed

__all__ = ["COORDINATION"]

COORDINATION: tuple[Noticed, ...] = ()

"""Bugs in commands, dashboard, telemetry and started servers, each with a test (see `modules`)."""

from __future__ import annotations

from tests.mutation.mutants.noticed import Noticed

__all__ = ["COMMANDS"]

COMMANDS: tuple[Noticed, ...] = ()

"""The mutants, by what they change. Each name says which guard is missing.

All but the `systematic` ones, of which there are thousands, are in `MUTANTS`.
"""

from __future__ import annotations

from tests.mutation.load import Mutant
from tests.mutation.mutants.by_ranges import BY_RANGES
from tests.mutation.mutants.clients import CLIENTS
from tests.mutation.mutants.dead_letters import DEAD_LETTERS
from tests.mutation.mutants.handlers import HANDLERS
from tests.mutation.mutants.input_output import INPUT_OUTPUT
from tests.mutation.mutants.planted import PLANTED
from tests.mutation.mutants.protocol import PROTOCOL
from tests.mutation.mutants.range_mode import RANGE_MODE
from tests.mutation.mutants.shell import SHELL
from tests.mutation.mutants.sinks import SINKS
from tests.mutation.mutants.wal_mode import WAL_MODE

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = (
    *PROTOCOL,
    *CLIENTS,
    *BY_RANGES,
    *RANGE_MODE,
    *WAL_MODE,
    *DEAD_LETTERS,
    *HANDLERS,
    *INPUT_OUTPUT,
    *PLANTED,
    *SHELL,
    *SINKS,
)

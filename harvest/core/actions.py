"""Events, actions and states that every harvesting algorithm has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finish", "LeaseLost", "Open", "OpenFailed", "Start", "State", "Stop", "Tick"]

# --- Events ---


@dataclass(frozen=True, slots=True)
class Start:
    """Leadership was won."""


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The sink could not be opened; trying again may help."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """We lead no more. Nothing may be published from now on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Finish what is in flight, then end."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: what was put off is due."""


# --- Actions ---


@dataclass(frozen=True, slots=True)
class Open:
    """After `delay_ms`, open the sink afresh; answer Opened or OpenFailed."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The end. Nothing more will be asked for."""

    reason: str


# --- States ---


class State(Enum):
    """Where a scheduler is."""

    NEW = "new"
    OPENING = "opening"  # the sink is being opened, what was left is being looked at
    RUNNING = "running"
    RECOVERING = "recovering"  # something failed: waiting for everything to come back
    STOPPING = "stopping"
    DONE = "done"

"""The commands of both programs, and the words that each of them knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typer.main import get_command

from harvest.cli.app import app as harvest_cli
from harvest.errors import HarvestError
from marshal_py.cli.app import app as marshal_cli
from marshal_py.errors import MarshalError

__all__ = ["COMMANDS", "PROGRAMS", "VALUES"]

PROGRAMS: Final[tuple[tuple[Any, tuple[type[Exception], ...]], ...]] = (
    (get_command(marshal_cli), ()),
    (get_command(harvest_cli), (MarshalError, HarvestError)),  # printed by its `main`
)
"""Each with what may be raised by it. Made once: that takes longer than most command lines."""

VALUES: Final = ["-1", "0", "1e9", "NaN", "=", "a=b", "1:2", "02:13", "-1h", "sqlite:///", "ü", ""]


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[list[str], list[str]]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))
    if words:
        options = [word for parameter in command.params for word in parameter.opts]
        yield [*words], [word for word in options if word.startswith("-")]


COMMANDS: Final = [found for program, _ in PROGRAMS for found in _commands(program)]
"""The words of each command, and its options."""

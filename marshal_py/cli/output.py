"""What commands print: tables, notes, JSON.

Standard output is for what was asked; notes and errors go to standard error.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table

from marshal_py.admin.formatting import safe

__all__ = ["console", "note", "prepare_output", "print_json", "show", "table"]

_WIDE: Final = 10_000


def prepare_output() -> None:
    """Let a character that the terminal lacks be written as an escape: it is no failure."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False, wide: bool = True) -> Console:
    """Return a console with colours on a terminal only.

    `wide`: long lines are left to the terminal, so that no name is ever cut. Otherwise what is
    printed on a terminal is fitted to it.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = _WIDE if wide or not stream.isatty() else None
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=width)


def show(out: Console, *renderables: RenderableType) -> None:
    """Print tables, without the blanks at the ends of lines where nobody would see them."""
    if out.is_terminal:
        out.print(*renderables, sep="\n")
        return
    with out.capture() as captured:
        out.print(*renderables, sep="\n")
    for line in captured.get().splitlines():
        out.out(line.rstrip(), highlight=False)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without a frame; the columns in `right` hold numbers."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    return made


def note(text: str) -> None:
    """Say something about the answer, on standard error."""
    console(stderr=True).print(safe(text), style="dim")


def print_json(document: object, *, indent: int | None = 2) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()

"""What commands print: tables, notes, JSON.

Standard output is for what was asked; notes and errors go to standard error. All that commands
print leaves by one of these functions, and none lets a control character of a stranger's through
(`marshal_py.printable`): `say` and `note` take a line of plain text, `console` rich's markup, in
which what strangers wrote must be `safe`, so that it is no markup and starts no line of its own.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from marshal_py.admin.formatting import safe
from marshal_py.printable import LineFormatter, printable, printable_json

__all__ = [
    "console",
    "discard",
    "log_to_stderr",
    "note",
    "prepare_output",
    "print_json",
    "say",
    "show",
    "table",
]

_WIDE: Final = 10_000
_LONG: Final = 1_000
"""Rows; more are printed without colours, and in JSON one a line."""
_CHUNK: Final = 1_000
"""Lines that are written at once."""


def log_to_stderr(fmt: str | None = None, *, name: str | None = None) -> None:
    """Let logs go to standard error, unless the program has set up its own; or one logger's."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter() if fmt is None else LineFormatter(fmt))
    if name is None:
        logging.basicConfig(handlers=[handler])
    elif not logging.getLogger().handlers:
        logging.getLogger(name).addHandler(handler)


def discard(stream: Any) -> None:
    """Let what is written from here on go nowhere: the reader of its pipe has gone.

    So does what is left of it: the interpreter would fail with that when it ends.
    """
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


class _Console(Console):
    """Lets no control character through that is not rich's own."""

    def on_broken_pipe(self) -> None:
        """Leave it to `errors_as_exit_codes`; an answer whose notes nobody reads goes on."""
        if not self.stderr:
            raise  # rich calls this where it has caught it
        discard(sys.stderr)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of what is printed."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, lines=True), segment.style)


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
    return _Console(stderr=stderr, highlight=False, soft_wrap=True, width=width, emoji=False)


def show(out: Console, *renderables: RenderableType) -> None:
    """Print tables, without the blanks at the ends of lines where nobody would see them."""
    for renderable in renderables:
        if isinstance(renderable, _Rows) and len(renderable.waiting) > _LONG:
            _show_long(out, renderable)
        elif out.is_terminal:
            out.print(renderable)
        else:
            with out.capture() as captured:
                out.print(renderable)
            for line in captured.get().splitlines():
                out.out(line.rstrip(), highlight=False)


class _Rows(Table):
    """A table whose rows become rich's when rich asks for them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.waiting: list[tuple[str, ...]] = []

    def add_row(self, *cells: Any, **style: Any) -> None:
        """See `Table.add_row`; a row with a style of its own is rich's at once."""
        if style:
            self._fill()
            super().add_row(*cells, **style)
        else:
            self.waiting.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._fill()
        return super().__rich_console__(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        self._fill()
        return super().__rich_measure__(console, options)

    def _fill(self) -> None:
        for cells in self.waiting:
            super().add_row(*cells)
        self.waiting.clear()


def _show_long(out: Console, made: _Rows) -> None:
    """Print a table that has many rows: rich takes a millisecond for each, with colours.

    The lines are those that rich would print.
    """
    heads = [column.header for column in made.columns]
    columns = [[_plain(cell) for cell in cells] for cells in zip(heads, *made.waiting, strict=True)]
    widths = [max(map(_width, texts)) for texts in columns]
    right = [column.justify == "right" for column in made.columns]

    def lines() -> Iterator[str]:
        for at in range(0, len(columns[0]), _CHUNK):
            some = (texts[at : at + _CHUNK] for texts in columns)
            for line in zip(*map(_padded, some, widths, right), strict=True):
                yield "  ".join(line).rstrip()

    _write_lines(out.file, lines())


def _padded(texts: Sequence[str], width: int, right: bool) -> list[str]:
    if right:
        return [" " * (width - _width(text)) + text for text in texts]
    return [text + " " * (width - _width(text)) for text in texts]


def _write_lines(stream: IO[str], lines: Iterable[str]) -> None:
    """Many at once: a stream may hand each piece on by itself."""
    waiting = iter(lines)
    while some := list(itertools.islice(waiting, _CHUNK)):
        stream.write("\n".join(some) + "\n")


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _plain(cell: RenderableType) -> str:
    """What a cell says: markup without it."""
    assert isinstance(cell, str)  # noqa: S101 - as `table` is filled
    return printable(_without_markup(cell) if "[" in cell else cell)


@functools.lru_cache(4096)  # a table says few things in colour, each many times
def _without_markup(text: str) -> str:
    return Text.from_markup(text, emoji=False).plain


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without a frame; the columns in `right` hold numbers."""
    made = _Rows(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    return made


def say(text: str, *, stderr: bool = False) -> None:
    """Print one line of plain text; whoever wrote it, it stays one line."""
    stream: Any = sys.stderr if stderr else sys.stdout
    try:
        stream.write(printable(text) + "\n")
        stream.flush()
    except BrokenPipeError:
        if not stderr:
            raise
        discard(stream)


def note(text: str) -> None:
    """Say something about the answer, on standard error."""
    console(stderr=True).print(safe(text), style="dim")


def print_json(document: object, *, indent: int | None = 2) -> None:
    """Print one JSON document; of a list of many, each in a line of its own."""
    if isinstance(document, list) and len(document) > _LONG:
        encode = json.JSONEncoder(ensure_ascii=False).encode
        rows = (printable_json(encode(each)) for each in document)
        last = len(document) - 1
        lines = (row if at == last else row + "," for at, row in enumerate(rows))
        _write_lines(sys.stdout, itertools.chain(["["], lines, ["]"]))
    else:
        text = json.dumps(document, indent=indent, ensure_ascii=False)
        sys.stdout.write(printable_json(text) + "\n")
    sys.stdout.flush()

"""The one way to print what strangers wrote: names, keys, errors, metadata of other processes.

A control character (C0, C1), a bidirectional override, a line break or half a character in a name
would move the cursor, forge a line or turn one around. `printable` writes each as an escape, as
Python does. What programs print goes through it: the commands of both (`marshal_py.cli.output`),
their JSON (`printable_json`: the same text, once parsed), and the logs (`escape_logs`).
Pure, but for the settings of loggers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

__all__ = ["LineFormatter", "escape_logs", "printable", "printable_json", "text_of"]

_SUSPECT: Final = re.compile(r"[^ -~]")
_PLAIN: Final = (int, float, bool, type(None))


def printable(text: str, *, lines: bool = False) -> str:
    """Return text of which every character can be seen; the others are escapes such as \\x1b.

    With `lines`, it may have several: line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    return _SUSPECT.sub(lambda m: m[0] if lines and m[0] in "\n\t" else _escape(m[0]), text)


def printable_json(document: str) -> str:
    """Return a JSON document that says the same in characters that can be seen (and line feeds)."""
    return _SUSPECT.sub(lambda m: m[0] if m[0] in "\n\t" else _json_escape(m[0]), document)


def text_of(stranger: object, text: Callable[[Any], str] = str) -> str:
    """Return what an object of somebody else says of itself, `repr` of it for one.

    An exception whose own `__str__` raises would hide what it is of, and end whoever tells of it.
    """
    try:
        return text(stranger)
    except Exception as problem:
        return (
            f"<{type(stranger).__name__}, of which no text can be made: {type(problem).__name__}>"
        )


def escape_logs(names: Iterable[str]) -> None:
    """Let the loggers of these names write no raw control character, whoever handles it.

    Only arguments are changed that have one; templates are ours. Tracebacks are the handler's to
    format: see `LineFormatter`.
    """
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(found, _Escaping) for found in logger.filters):
            logger.addFilter(_Escaping())


class LineFormatter(logging.Formatter):
    """What the programs write into their logs: nothing raw, tracebacks included."""

    def __init__(self, fmt: str = "%(asctime)s %(levelname)-7s %(name)s: %(message)s") -> None:
        super().__init__(fmt)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text; of its parts, only a traceback has several lines."""
        return printable(super().format(record), lines=True)


class _Escaping(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, Mapping):
            record.args = {name: _clean(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_clean, record.args))
        elif isinstance(record.msg, str):
            record.msg = printable(record.msg, lines=True)
        return True


def _clean(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    text = text_of(value)
    return value if text.isprintable() else printable(text)


def _escape(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


def _json_escape(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

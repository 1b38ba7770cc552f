"""Text with placeholders that a row fills in: URIs, subjects, destinations, idempotency keys. Pure.

``{topic}``, ``{key}``, ``{id}`` and ``{header.NAME}`` of the row; ``{outbox}``, the name that all
processes of one outbox share. A brace that is meant is written twice.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from harvest.core.row import Row
from harvest.errors import ConfigurationError, InvalidRecord

__all__ = ["Template", "header"]

_FIELDS: Final = ("topic", "key", "id", "outbox")
_HEADER: Final = "header."


def header(row: Row, name: str) -> bytes | None:
    """The last value of a header; None if the row has none of the name."""
    wanted = name.encode()
    for found, value in zip(reversed(row.header_keys), reversed(row.header_values), strict=False):
        if found == wanted:
            return value
    return None


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders, read once.

    `name`: what errors call it. None of them shows the text: it may hold a secret.
    """

    text: str
    outbox: str
    parts: tuple[tuple[str, str | None], ...]
    """Literal text, and the field that follows it."""
    name: str

    @classmethod
    def parse(cls, text: str, outbox: str = "", name: str = "the template") -> Template:
        """Read `text`. Raises `ConfigurationError`."""
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigurationError(
                f"{name} cannot be read: {error}; write a brace that is meant twice"
            ) from None
        for _, found, form, conversion in parsed:
            if found is None:
                continue
            known = found in _FIELDS or (found.startswith(_HEADER) and len(found) > len(_HEADER))
            if not known or form or conversion:
                raise ConfigurationError(
                    f"{name} has a placeholder that is not known: known are {{topic}}, {{key}}, "
                    "{id}, {outbox} and {header.NAME}; write a brace that is meant twice"
                )
        parts = tuple([(literal, found) for literal, found, _, _ in parsed])
        return cls(text, outbox, parts, name)

    @property
    def constant(self) -> bool:
        """Whether it says the same of every row."""
        return all(name is None or name == "outbox" for _, name in self.parts)

    def render(self, row: Row, quote: Callable[[str], str] = str) -> str:
        """The text for `row`; `quote` is applied to what the row fills in.

        Raises `InvalidRecord` when the row has no such field, or one that is no text.
        """
        return "".join(
            [
                literal if name is None else literal + quote(self._field(row, name))
                for literal, name in self.parts
            ]
        )

    def _field(self, row: Row, name: str) -> str:
        if name == "topic":
            return row.topic
        if name == "id":
            return str(row.id)
        if name == "outbox":
            return self.outbox
        value = row.key if name == "key" else header(row, name.removeprefix(_HEADER))
        if value is None:
            raise InvalidRecord(f"the row has no {name}, which {self.name} asks for")
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidRecord(f"{name} is no text, and {self.name} asks for it") from None

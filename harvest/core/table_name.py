"""Names of tables, read as SQL reads them and quoted so that no name can become code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from harvest.errors import ConfigurationError

__all__ = ["TableName"]

_PART: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))\s*')
_MAX_BYTES: Final = 63  # PostgreSQL cuts longer names, silently; the others allow at most 64


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, with its schema or without: ``parts`` is ``(table,)`` or ``(schema, table)``."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``outbox``, ``billing.outbox`` or ``"Odd Schema"."Out.box"``.

        A part without quotes is folded to lower case, as PostgreSQL does (and as goharvest, which
        pastes the name into its statements, therefore does too). Anything else must be quoted.

        Raises `ConfigurationError`.
        """
        parts: list[str] = []
        at = 0
        while True:
            match = _PART.match(text, at)
            if match is None:
                break
            quoted, plain = match.groups()
            parts.append(plain.lower() if quoted is None else quoted.replace('""', '"'))
            at = match.end()
            if at == len(text) or text[at] != ".":
                break
            at += 1
        if at != len(text) or not 1 <= len(parts) <= 2 or text.endswith("."):
            raise ConfigurationError(
                f"table name {text!r} cannot be read: write table or schema.table, "
                'and put a part that is not a plain identifier in double quotes, as in "Out-Box"'
            )
        for part in parts:
            # Drivers take a % for the beginning of a parameter, but in statements without any.
            if "\x00" in part or "%" in part or len(part.encode()) > _MAX_BYTES:
                raise ConfigurationError(
                    f"table name {text!r}: the part {part!r} is longer than {_MAX_BYTES} bytes "
                    "or holds a NUL or a %; use a shorter, printable name"
                )
        return cls(tuple(parts))

    @property
    def table(self) -> str:
        """The name without its schema."""
        return self.parts[-1]

    def beside(self, suffix: str) -> TableName:
        """The table whose name is longer by `_suffix`. Raises `ConfigurationError` if too long."""
        *schema, table = self.parts
        return TableName.parse(TableName((*schema, f"{table}_{suffix}")).quoted())

    def quoted(self, quote: str = '"') -> str:
        """The name as SQL text, every part quoted with `quote` (a backtick for MySQL)."""
        return ".".join(quote + part.replace(quote, quote * 2) + quote for part in self.parts)

    def __str__(self) -> str:
        plain = re.compile(r"[a-z_][a-z0-9_]*")
        return ".".join(p if plain.fullmatch(p) else TableName((p,)).quoted() for p in self.parts)

"""What a stranger may write to harm whoever looks: one text with all that moves or turns a line."""

from __future__ import annotations

from typing import Final

CONTROLS: Final = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
BIDI: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
BREAKS: Final = "\u2028\u2029\ufeff\u200b\u00ad"
HOSTILE: Final = CONTROLS + BIDI + BREAKS + "\x1b]0;owned\x07[red]x[/red][/] :smile: <b> \\"


def raw_characters(text: str, *, allowed: str = "") -> set[str]:
    """The characters of `text` that do something to a terminal."""
    return {c for c in text if not c.isprintable() and c not in allowed}

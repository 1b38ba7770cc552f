"""What may have been meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """Return the end of an error's sentence, naming up to `most` that are close; maybe empty."""
    import difflib  # here: nobody needs it who makes no mistake

    close = difflib.get_close_matches(name, list(known), n=most)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""

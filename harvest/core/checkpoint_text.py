"""Reading the text of a checkpoint of either mode: a JSON array, its version first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harvest.errors import CheckpointError

__all__ = ["reading"]


@contextmanager
def reading(text: str, version: int) -> Iterator[list[Any]]:
    """The fields of `text` behind its version; also what is read from them may fail.

    Raises `CheckpointError` for what is no checkpoint of this `version`.
    """
    try:
        found, *fields = json.loads(text)
        if found != version:
            raise ValueError(f"version {found}")
        yield fields
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"the checkpoint {text[:200]!r} cannot be read ({error}): another program, or a "
            "newer version, commits offsets to the same group; give this outbox its own group"
        ) from None

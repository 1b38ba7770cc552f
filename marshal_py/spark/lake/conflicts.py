"""What Delta and Spark say where somebody else wrote the same at the same moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from marshal_py.errors import ConfigurationError

__all__ = ["OTHERS_FIRST", "conflicts_told"]

OTHERS_FIRST: Final = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
"""Delta's conditions: the commit of another was first, and this one may be tried again."""

_OF_STREAMS: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
)


@contextlib.contextmanager
def conflicts_told() -> Iterator[None]:
    """Raise `ConfigurationError` for what one of two writers ends with; for use as a decorator."""
    try:
        yield
    except Exception as error:  # most are Java's, which Spark does not translate
        said = str(error)
        if not any(name in said for name in (*OTHERS_FIRST, *_OF_STREAMS)):
            raise
        raise ConfigurationError(
            "another run has written to the lake at the same moment, and was first; nothing is "
            "lost: start this one again"
        ) from error

"""Which shard a row belongs to: the same in SQL and in Python.

The first 28 bits of the MD5 of the key's bytes (UTF-8 for text; a NULL key counts as empty), modulo
the number of shards. Every database has MD5; nothing secret depends on it.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["HEX_DIGITS", "shard_of"]

HEX_DIGITS: Final = 7
"""How many hexadecimal digits of the MD5 are used: as many as fit into a positive int."""


def shard_of(key: bytes | None, shards: int) -> int:
    """The shard of a key, from 0 to `shards` − 1."""
    if shards == 1:
        return 0
    digest = hashlib.md5(key or b"", usedforsecurity=False).hexdigest()
    return int(digest[:HEX_DIGITS], 16) % shards

"""The genesis of a log: it gives it an identity, and its epochs a base (specs/PROTOCOL.md §7.4)."""

from __future__ import annotations

import time
import uuid

from marshal_py.protocol.messages import MAX_BASE, VERSION, Genesis

__all__ = ["new_genesis"]


def new_genesis(
    sender: tuple[str, str, str, int], *, previous: str, above: int, partitions: int
) -> Genesis:
    """Return a genesis with a fresh identity, of a log of so many coordination partitions.

    `sender` is (client_id, instance_id, group_id, seq). The base comes from this machine's clock,
    in microseconds since 1970, so that it is larger than any epoch of an earlier log under the same
    name; or it is larger than `above`, the largest epoch that is known, where that is more.
    """
    base = max(time.time_ns() // 1_000, above + 1)
    return Genesis(
        VERSION,
        *sender,
        uuid.uuid4().hex,
        previous,
        min(base, MAX_BASE),
        partitions,
        time.time_ns() // 1_000_000,
    )

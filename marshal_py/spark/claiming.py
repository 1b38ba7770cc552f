"""Whether a partition can be had now: asked before the source and claimed batches claim it."""

from __future__ import annotations

from marshal_py.client.marshal import Marshal

__all__ = ["is_open"]


def is_open(marshal: Marshal, topic: str, partition: int) -> bool:
    """Whether nobody holds it, its holder is silent, or the holder is this very client."""
    cell = marshal.cell(topic, partition)
    if cell is None or cell.holder in (None, marshal.client_id):
        return True
    return marshal.liveness(topic, partition) == "stale"

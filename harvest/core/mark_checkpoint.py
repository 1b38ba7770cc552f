"""Terms, tags and checkpoints: how a leader knows which marked rows have been published.

A *term* is one uninterrupted run of a harvester, from opening the sink to the first failure. Its
marks are numbered: the rows of the n-th mark carry the *tag* (term, n) in their `leader_id`, a UUID
whose upper half is the term and whose lower half is n. All tags of a term therefore form one
interval of UUIDs, and "not mine" is two comparisons. To goharvest a tag is a leader id like any
other.

A *checkpoint* is committed to Kafka in the same transaction as the rows. It says: every row that
carries a tag of `term` up to `batch` is published. Whoever opens the sink next reads it, deletes
those rows, and then publishes what is left. (specs/HARVEST.md §4)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from harvest.core.checkpoint_text import reading

__all__ = ["Checkpoint", "Term"]

_VERSION: Final = 1
_UUID_V8: Final = 0x8000  # RFC 9562, version 8: custom content
_VARIANT: Final = 0b10 << 62
_MAX_BATCH: Final = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Term:
    """The upper half of every tag of one term: 64 bits, 60 of them random."""

    prefix: int

    @classmethod
    def of(cls, entropy: int) -> Term:
        """The term made from 60 random bits. The same bits give the same term."""
        high, low = divmod(entropy % (1 << 60), 1 << 12)
        return cls(high << 16 | _UUID_V8 | low)

    def tag(self, batch: int) -> UUID:
        """The tag of mark number `batch`, counted from 0."""
        if not 0 <= batch <= _MAX_BATCH:
            raise ValueError(f"batch is {batch}: must be from 0 to {_MAX_BATCH}")
        return UUID(int=self.prefix << 64 | _VARIANT | batch)

    @property
    def first(self) -> UUID:
        """The lowest tag of the term."""
        return self.tag(0)

    @property
    def last(self) -> UUID:
        """The highest tag of the term."""
        return self.tag(_MAX_BATCH)

    def __str__(self) -> str:
        return f"{self.prefix:016x}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every row tagged by `term` up to mark `batch` is published.

    All of them that may still be in the table have ids from `low_id` to `high_id`. `epoch` is the
    fencing token of the leader that wrote it. `log` is how far the database's log had come, in
    `timeline`, when they were seen (0: not known; see `harvest.core.source`).
    """

    epoch: int
    term: Term
    batch: int
    low_id: int
    high_id: int
    timeline: int = 0
    log: int = 0

    def encode(self) -> str:
        """The checkpoint as text of less than 200 characters."""
        ids = [str(self.term), self.batch, self.low_id, self.high_id]
        fields = [_VERSION, self.epoch, *ids, self.timeline, self.log]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Checkpoint:
        """The reverse of `encode`. Raises `CheckpointError`."""
        with reading(text, _VERSION) as fields:
            epoch, term, batch, low_id, high_id, timeline, log = fields
            ids = int(batch), int(low_id), int(high_id)
            return cls(int(epoch), Term(int(term, 16)), *ids, int(timeline), int(log))

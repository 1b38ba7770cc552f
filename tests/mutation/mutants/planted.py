"""Bugs that were planted after everything else was written, to see who notices.

None of them leaves out a guard as the others do: each does the right thing slightly wrong.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["PLANTED"]

PLANTED: tuple[Mutant, ...] = (
    Mutant(
        "planted: a release of an earlier epoch ends the claim that came after it",
        "marshal_py.protocol.claimant",
        (
            Edit(
                "Claimant._on_released",
                "if current is not None and current.epoch == event.epoch:",
                "if current is not None:",
            ),
        ),
    ),
    Mutant(
        "planted: a claim starts where the position is, not where messages were claimed to",
        "marshal_py.protocol.claimant",
        (
            Edit(
                "Claimant._on_claimed",
                "holding.claimed_offset = cell.claimed_offset",
                "holding.claimed_offset = min(cell.claimed_offset, cell.next_offset)",
            ),
        ),
    ),
    Mutant(
        "planted: a snapshot forgets that a group is paused",
        "marshal_py.protocol.rationalizer",
        (
            Edit(
                "PartitionState.decode",
                "group.level, group.pause = level, pause",
                "group.level = level",
            ),
        ),
    ),
    Mutant(
        "planted: whoever resumes a group ends any pause but the newest",
        "marshal_py.protocol.rationalizer",
        (
            Edit(
                "_resume_group",
                "pause.version != record.expected_version",
                "pause.version < record.expected_version",
            ),
        ),
    ),
    Mutant(
        "planted: what was put back is done but for its first message",
        "marshal_py.consumer.held_partition",
        (
            Edit(
                "HeldPartition.finish",
                "run.end if returned is None else returned.offset()",
                "run.end if returned is None else returned.offset() + 1",
            ),
        ),
        "consumers",
    ),
    Mutant(
        "planted: messages count as claimed one early",
        "marshal_py.consumer.at_most_once",
        (
            Edit(
                "AtMostOnce._verdict",
                "if part.claim.claimed_offset >= run.end:",
                "if part.claim.claimed_offset >= run.end - 1:",
            ),
        ),
        "consumers",
    ),
    Mutant(
        "planted: what was settled during a purge is forgotten with it",
        "harvest.core.mark",
        (
            Edit(
                "MarkScheduler._purged",
                "for number, tags in self._purging.items():",
                "for number, tags in [(n, len(b.tags)) for n, b in self._batches.items() "
                "if b.published_ids]:",
            ),
        ),
        "harvesters",
    ),
    Mutant(
        "planted: a distance of 128 in a checkpoint is written as two numbers",
        "harvest.core.range_checkpoint",
        (Edit("_put", "while number >= 0x80:", "while number > 0x80:"),),
        "ranges",
    ),
    Mutant(
        "planted: a gap loses its last id when a row below it appears",
        "harvest.core.gaps",
        (Edit("subtract", "if low <= high:", "if low < high:"),),
        "ranges",
    ),
)

"""How far the write-ahead log is published: the checkpoint of wal mode (specs/HARVEST.md §18).

A place in the log is an *LSN*, a number that only grows. As text a position is JSON,
``[3, epoch, "system", timeline, "lsn", "row_lsn", "part_lsn", part_rows]``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from harvest.core.checkpoint_text import reading

__all__ = ["WalPosition", "format_lsn", "parse_lsn"]

_VERSION: Final = 3
_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@dataclass(frozen=True, slots=True)
class WalPosition:
    """Every row of a transaction whose commit record begins below `lsn` is published.

    - `epoch`: the fencing token of the leader that wrote it.
    - `system`, `timeline`: of the database server, as it names itself.
    - `row_lsn`: where the last transaction with rows ended. Behind it `lsn` has only passed what is
      none of ours.
    - `part_lsn`, `part_rows`: of the transaction whose commit record begins at `part_lsn`, so many
      rows are published, too: the first ones. Of others, none.
    """

    epoch: int
    system: str
    timeline: int
    lsn: int
    row_lsn: int = 0
    part_lsn: int = 0
    part_rows: int = 0

    def encode(self) -> str:
        """The position as text."""
        lsns = [format_lsn(lsn) for lsn in (self.lsn, self.row_lsn, self.part_lsn)]
        fields = [_VERSION, self.epoch, self.system, self.timeline, *lsns, self.part_rows]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> WalPosition:
        """The reverse of `encode`. Raises `CheckpointError`."""
        with reading(text, _VERSION) as fields:
            epoch, system, timeline, lsn, row_lsn, part_lsn, part_rows = fields
            return cls(
                int(epoch),
                str(system),
                int(timeline),
                parse_lsn(lsn),
                parse_lsn(row_lsn),
                parse_lsn(part_lsn),
                int(part_rows),
            )

    def passed(self, lsn: int) -> WalPosition:
        """The same, when everything below `lsn` was read and none of it is ours."""
        return self if self.part_rows or lsn <= self.lsn else replace(self, lsn=lsn)

    def covers(self, other: WalPosition) -> bool:
        """Whether at least as much is published as `other` says."""
        return self._order >= other._order

    @property
    def _order(self) -> tuple[int, int, int]:
        return self.lsn, self.part_lsn, self.part_rows


def format_lsn(lsn: int) -> str:
    """As PostgreSQL writes it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The reverse of `format_lsn`. Raises `ValueError`."""
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no LSN: two hexadecimal numbers, as 16/B374D848")
    return int(match[1], 16) << 32 | int(match[2], 16)

"""Which database an outbox is in, how far it had come, and who harvests it (specs/HARVEST.md §20).

A database can come to be another one while nobody looks: a replica that lacked the last commits is
promoted, a backup is restored, a table is emptied and its ids begin again. What is published then
says nothing about what is in the table. So a `Source` is kept in Kafka, and is compared with what
the database says when a term begins, after every reconnection, and while idle.

A *visit* is a number in the database, beside the outbox, that a leader raises when a term begins
and every few seconds while it publishes, with random text of its own. Kafka hears of it afterwards.
So a database that knows a lower visit than Kafka, or another text for it, has gone back in time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Final

from harvest.core.checkpoint_text import reading

__all__ = ["Registration", "Source", "differences", "registration_problem", "visit_problem"]

_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class Source:
    """A database with an outbox, as it was at a moment. What a database does not have is empty.

    - `server`: what no other server has, and what its replicas share: PostgreSQL's system
      identifier, MySQL's server_uuid.
    - `timeline`, `log`: PostgreSQL's timeline, and how far its write-ahead log had come.
    - `table`: what another table of the same name would not have.
    - `sequence`: the same of what gives ids, where ids are the position (range mode).
    - `visit`, `token`: the last visit, and its random text.
    - `row_id`, `row`: in range mode, a row that was seen, and the checksum of its contents.
    """

    server: str = ""
    timeline: int = 0
    log: int = 0
    table: str = ""
    sequence: str = ""
    visit: int = 0
    token: str = ""
    row_id: int = 0
    row: str = ""

    def encode(self) -> str:
        """The source as text of less than 250 characters."""
        values = [getattr(self, field.name) for field in fields(self)]
        return json.dumps([_VERSION, *values], separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Source:
        """The reverse of `encode`. Raises `CheckpointError`."""
        with reading(text, _VERSION) as values:
            server, timeline, log, table, sequence, visit, token, row_id, row = values
            texts = str(table), str(sequence)
            last = int(visit), str(token), int(row_id), str(row)
            return cls(str(server), int(timeline), int(log), *texts, *last)


@dataclass(frozen=True, slots=True)
class Registration:
    """Who harvests an outbox: one row beside it, the first who came.

    - `cluster`, `topic`: Kafka's cluster id, and the coordination topic where leaders are elected.
    - `group`: the group of the configuration. `mode`: mark, relay, range or wal.
    """

    cluster: str
    topic: str
    group: str
    mode: str


def registration_problem(found: Registration, ours: Registration) -> str | None:
    """What differs; None if it is the same configuration. An empty cluster of ours fits any."""
    differing = [
        f"{name} {theirs!r} and not {mine!r}"
        for name, theirs, mine in (
            ("mode", found.mode, ours.mode),
            ("group", found.group, ours.group),
            ("coordination topic", found.topic, ours.topic),
            ("Kafka cluster", found.cluster, ours.cluster or found.cluster),
        )
        if theirs != mine
    ]
    return None if not differing else f"it is harvested with {', '.join(differing)}"


def differences(before: Source, now: Source, *, promoted_at: int | None = None) -> str | None:
    """Why `now` does not go on from `before`; None if it does.

    `promoted_at`: how far the log of the server's earlier timelines goes, which it has in full:
    where it was promoted. None: not known.
    """
    if before.server and before.server != now.server:
        return f"it is another server: {now.server or 'unknown'} and not {before.server}"
    gone_back = visit_problem(before, now)
    if gone_back is not None:
        return gone_back
    if now.timeline < before.timeline:
        return f"it has gone back in time, from timeline {before.timeline} to {now.timeline}"
    if now.timeline > before.timeline:
        if now.timeline > before.timeline + 1:  # `promoted_at` tells of the last promotion only
            return (
                f"replicas were promoted more than once (timeline {now.timeline} after "
                f"{before.timeline}), and what the first of them had of the log is not known: "
                "commits may be lost, and their ids given again"
            )
        if promoted_at is None or promoted_at < before.log:
            upto = "an unknown position" if promoted_at is None else _lsn(promoted_at)
            return (
                f"a replica was promoted (timeline {now.timeline} after {before.timeline}) that "
                f"had the log up to {upto}, and rows were harvested up to {_lsn(before.log)}: "
                "commits may be lost, and their ids given again"
            )
    elif now.log < before.log:
        return (
            f"it has gone back in time: its log ends at {_lsn(now.log)}, and rows were harvested "
            f"up to {_lsn(before.log)}; an old copy was restored"
        )
    if before.table != now.table:
        return f"the table was made anew: it is number {now.table}, and was {before.table}"
    if before.sequence and now.sequence and before.sequence != now.sequence:
        return (
            "its ids were begun anew (TRUNCATE … RESTART IDENTITY, ALTER SEQUENCE, or a table that "
            f"was rebuilt): their source is number {now.sequence}, and was {before.sequence}"
        )
    return None


def visit_problem(before: Source, now: Source) -> str | None:
    """Why `now` lacks the last visit of `before`; None if it does not."""
    if now.visit < before.visit or (now.visit == before.visit and now.token != before.token):
        return (
            f"it has gone back in time: its last visit is number {now.visit}, and Kafka knows "
            f"number {before.visit}; it lost commits, or a backup was restored"
        )
    return None


def _lsn(position: int) -> str:
    """As PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"

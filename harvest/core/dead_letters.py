"""Rows that cannot be published, and who waits behind them. Pure: no thread, clock or I/O.

Kafka refuses some rows however often they are sent: the topic's name is invalid, the topic does not
exist or may not be written, the record is too large, the header arrays do not match, there is no
key. One such row must not hold up the table. It is *set aside*: it becomes a *dead
letter*, a row of another table, with its error, and everything else goes on (specs/HARVEST.md §11).

How an algorithm uses a `BadRowFilter`:

- `find_bad` among the rows that were read, before they are sent. What it names must be among the
  dead letters before any row of the same reading is sent, for a checkpoint speaks about all of
  them.
- After a failed delivery, `find_refused` says which rows it was for. They are set aside before the
  sink is opened again; then the others are sent again, without them.
- `waiting` has, of each key with a dead letter, the lowest id that is one: rows after it wait. It
  is loaded from the store when harvesting begins and whenever rows were set aside. It may be out of
  date, when somebody retries rows. Therefore a row that only waits is set aside by the store if an
  earlier row of its key really is. If the store did not, those are back in the table: begin anew,
  and read in the order of the ids.

Mark mode moves a row from one table to the other in one statement. Range mode, which deletes
nothing, copies it and passes over its id; the rest is the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from harvest.core.interfaces.sink import Failure
from harvest.core.row import Row, named
from harvest.sinks.kafka.headers import header_problem

__all__ = [
    "MISSING_TOPIC",
    "BadRow",
    "BadRowFilter",
    "BadRowPolicy",
    "Key",
    "missing_topic_pattern",
    "problem",
]

Key: TypeAlias = tuple[str, bytes | None]

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MAX_TOPICS: Final = 10_000

MISSING_TOPIC: Final = "the topic {!r} does not exist: create it"
"""How the error of a row begins whose topic is missing; see `missing_topic_pattern`."""


@dataclass(frozen=True, slots=True)
class BadRowPolicy:
    """What becomes of a row that cannot be published.

    - `on_bad_row`: ``dead_letter`` sets it aside. ``stop`` keeps it, names it in the log, and
      publishes nothing that comes after it until somebody corrects or deletes it.
    - `key_waits`: whether later rows of the same topic and key are set aside behind it, so that the
      key keeps its order; otherwise they are published.
    - `unknown_topic`: ``dead_letter``, or ``wait``: set aside until the topic exists, and later
      rows of the key behind it, whatever `key_waits` says. With ``stop``, everything waits for it.
    """

    on_bad_row: Literal["dead_letter", "stop"] = "dead_letter"
    key_waits: bool = True
    unknown_topic: Literal["dead_letter", "wait"] = "dead_letter"


class BadRow(NamedTuple):
    """A row to be set aside, and why. `waits`: for nothing but an earlier row of its key."""

    id: int
    error: str
    waits: bool = False


def missing_topic_pattern() -> str:
    """What such errors are like, for SQL."""
    return MISSING_TOPIC.replace("{!r}", "%") + "%"


def problem(row: Row) -> str | None:
    """What is wrong with the row itself, whatever the broker says; None if nothing is."""
    if not _TOPIC.fullmatch(row.topic) or row.topic in (".", ".."):
        return (
            f"the topic {row.topic!r} is no name that Kafka allows: 1 to 249 of the characters "
            "a-z A-Z 0-9 . _ -"
        )
    if row.key is None:
        return "the key is NULL: it decides the partition and the order; an empty key is allowed"
    return header_problem(row)


@dataclass(slots=True)
class BadRowFilter:
    """Parts the rows that can be sent from those that are set aside."""

    policy: BadRowPolicy = field(default_factory=BadRowPolicy)
    waiting: dict[Key, int] = field(default_factory=dict)
    _good_topics: set[str] = field(default_factory=set)

    def find_bad(self, rows: Sequence[Row]) -> list[BadRow]:
        """Which of `rows`, in the order of their ids, are to be set aside before the others go.

        They may be plain tuples; see `harvest.core.row.Row`.
        """
        if self.policy.on_bad_row == "stop":
            return []
        good_topics = self._good_topics
        errors: dict[int, str] = {}
        for row in rows:
            topic = row[1]
            if topic in good_topics and row[2] is not None and not row[4] and not row[5]:
                continue
            (row,) = named((row,))
            error = problem(row)
            if error is not None:
                errors[row.id] = error
            elif topic not in good_topics:
                if len(good_topics) >= _MAX_TOPICS:
                    good_topics.clear()
                good_topics.add(topic)
        if not errors and not self.waiting:
            return []
        bad_rows = []
        for row in named(rows):
            if row.id in errors:
                bad_rows.append(BadRow(row.id, errors[row.id]))
                self._wait(row)
            elif row.id > self.waiting.get((row.topic, row.key), row.id):
                bad_rows.append(
                    BadRow(row.id, "an earlier row of its key is set aside", waits=True)
                )
        return bad_rows

    def find_refused(self, rows: Sequence[Row], failure: Failure) -> list[BadRow]:
        """Which of `rows` are to be set aside, since they are what the delivery failed for."""
        if self.policy.on_bad_row == "stop" or not failure.refused:
            return []
        refused = []
        for row in named(rows):
            if row.id in failure.refused:
                refused.append(BadRow(row.id, failure.errors.get(row.id, failure.reason)))
                self._wait(row)
        return refused

    def _wait(self, row: Row) -> None:
        if self.policy.key_waits:
            key = (row.topic, row.key)
            self.waiting[key] = min(row.id, self.waiting.get(key, row.id))

"""Rows that cannot be published, and who waits behind them. Pure: no thread, clock or I/O.

Kafka refuses some rows however often they are sent: the topic's name is invalid, the topic does not
exist or may not be written, the record is too large, the header arrays do not match, there is no
key, the database itself cannot hand the row over. One such row must not hold up the table. It is
*set aside*: it becomes a *dead letter*, a row of another table, with its error, and everything else
goes on (specs/HARVEST.md §11).

One design for every mode: the scheduler decides, and asks its leader for `AddDeadLetters`.

- Mark and range mode `find_bad` among the rows that they have read. These must be dead letters
  before any other row of the same reading is sent, for a checkpoint speaks about all of them. So
  the others are held until the answer, and nothing is read meanwhile.
- After a failed delivery, `find_refused` says which rows it was for. When everything has drained,
  they are added, before the sink is opened again; then the others are sent again, without them.
- The relay adds a message that is given up before anything behind it in its group is sent.
- `waiting` has, of each key with a dead letter, the lowest id that is one: rows after it wait. It
  is loaded from the store when harvesting begins and whenever dead letters were added. It may be
  out of date, when somebody retries rows. Therefore a row that only waits is added by the store if
  an earlier row of its key really is a dead letter. If the store did not, what differs is which id
  the earlier row has: in mark mode and the relay its old one, and it is in the table again: begin
  anew, and read in the order of the ids. In range mode a new one: the row that waited goes first.

Mark mode and the relay move a row from one table to the other in one statement, and only one that
carries a tag of the leader's own term. Range mode, which deletes nothing, and wal mode copy it, and
leave it out of what is sent: the checkpoint passes its id. Until it does, whoever comes next reads
the row again, and `copied` keeps it from being published beside its copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from harvest.core.failure import Failure
from harvest.core.kafka_headers import header_problem, headers_fit
from harvest.core.mark_checkpoint import Term
from harvest.core.row import Row, Unreadable, named
from harvest.core.topic_names import is_topic

__all__ = [
    "MISSING_TOPIC",
    "NO_KEY",
    "AddDeadLetters",
    "AddFailed",
    "BadRow",
    "BadRowFilter",
    "BadRowPolicy",
    "DeadLettersAdded",
    "Key",
    "missing_topic_pattern",
    "problem",
    "waiting_row",
]

Key: TypeAlias = tuple[str, bytes | None]

_MAX_TOPICS: Final = 10_000

MISSING_TOPIC: Final = "the topic {!r} does not exist: create it"
"""How the error of a row begins whose topic is missing; see `missing_topic_pattern`."""
NO_KEY: Final = "the key is NULL: it decides the partition and the order; an empty key is allowed"


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
    if isinstance(row.header_keys, Unreadable):
        return row.header_keys.why
    if not is_topic(row.topic):
        return (
            f"the topic {row.topic!r} is no name that Kafka allows: 1 to 249 of the characters "
            "a-z A-Z 0-9 . _ -"
        )
    if row.key is None:
        return NO_KEY
    return header_problem(row)


@dataclass(frozen=True, slots=True)
class AddDeadLetters:
    """An action: make rows dead letters; answer DeadLettersAdded or AddFailed.

    `term`: move those that carry a tag of it. None, in range mode: copy them.
    """

    term: Term | None
    rows: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class DeadLettersAdded:
    """Of the rows of the last `AddDeadLetters`, `ids` are dead letters now.

    No row waits for the others. `waiting`: the keys that have a dead letter, and the lowest id of
    each, read afterwards.
    """

    ids: frozenset[int]
    waiting: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddFailed:
    """The database did not answer, or refused; the rows may be dead letters or not."""


@dataclass(slots=True)
class BadRowFilter:
    """Tells the rows that are not to be sent from the others. One for each leadership."""

    policy: BadRowPolicy = field(default_factory=BadRowPolicy)
    waiting: dict[Key, int] = field(default_factory=dict)
    """The lowest id that is a dead letter, or about to be, of each key that has one."""
    _good_topics: set[str] = field(default_factory=set)

    def find_bad(self, rows: Sequence[Row], *, copied: bool = False) -> list[BadRow]:
        """Which of `rows`, in the order of their ids, must be dead letters before the others go.

        They may be plain tuples; see `harvest.core.row.Row`. `copied`: a row that is set aside
        stays where it is read, so it may be read again; it is named again, and not published.
        """
        if self.policy.on_bad_row == "stop":
            return []
        good_topics = self._good_topics
        errors: dict[int, str] = {}
        for row in rows:
            topic = row[1]
            if topic in good_topics and row[2] is not None and headers_fit(row[4], row[5]):
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
                self.hold_back((row.topic, row.key), row.id)
            elif self.waits(row) or (copied and self._is_aside(row)):
                bad_rows.append(waiting_row(row))
        return bad_rows

    def find_refused(self, rows: Sequence[Row], failure: Failure) -> list[BadRow]:
        """Which of `rows` must be dead letters, since they are what the delivery failed for."""
        if self.policy.on_bad_row == "stop" or not failure.refused:
            return []
        refused = []
        for row in named(rows):
            if row.id in failure.refused:
                refused.append(BadRow(row.id, failure.errors.get(row.id, failure.reason)))
                self.hold_back((row.topic, row.key), row.id)
        return refused

    def waits(self, row: Row) -> bool:
        """Whether an earlier row of its key is a dead letter, or about to be, and rows are set
        aside."""
        if self.policy.on_bad_row == "stop":
            return False
        return row.id > self.waiting.get((row.topic, row.key), row.id)

    def _is_aside(self, row: Row) -> bool:
        """Whether it is the first dead letter of its key itself: whoever copied it died, or was
        stopped, before a checkpoint passed it."""
        return row.id == self.waiting.get((row.topic, row.key))

    def hold_back(self, key: Key, row_id: int) -> None:
        """The row is about to be a dead letter: later ones of its key wait, if keys do."""
        if self.policy.key_waits:
            self.waiting[key] = min(row_id, self.waiting.get(key, row_id))


def waiting_row(row: Row) -> BadRow:
    """A row for which nothing is wrong but that an earlier one of its key is a dead letter."""
    return BadRow(row.id, "an earlier row of its key is set aside", waits=True)

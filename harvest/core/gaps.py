"""Ids that were drawn and are not to be seen: ranges of them, and who may still commit them.

A *range* is a pair (low, high), both included. A list of ranges is sorted and disjoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "Cohort",
    "Gaps",
    "Holders",
    "Range",
    "bridged",
    "clip",
    "count_ids",
    "first_ids",
    "missing",
    "subtract",
    "union",
]

Range: TypeAlias = tuple[int, int]
_FAR: Final = 1 << 64
_FUTURE: Final = frozenset({"whoever will draw it"})


def missing(after: int, ids: Sequence[int]) -> list[Range]:
    """The ranges between `after` and the last of `ids` (ascending, all above `after`) that are not
    in `ids`."""
    if not ids or ids[-1] - after == len(ids):
        return []
    found = []
    before = after
    for id in ids:
        if id != before + 1:
            found.append((before + 1, id - 1))
        before = id
    return found


def subtract(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """`ranges` without what is in `others`."""
    left = []
    highs = [high for _, high in others]
    for low, high in ranges:
        at = bisect_left(highs, low)
        while at < len(others) and others[at][0] <= high:
            if low < others[at][0]:
                left.append((low, others[at][0] - 1))
            low = others[at][1] + 1
            at += 1
        if low <= high:
            left.append((low, high))
    return left


def first_ids(ranges: Sequence[Range], limit: int) -> list[Range]:
    """The lowest `limit` ids of `ranges`."""
    taken = []
    for low, high in ranges:
        if limit <= 0:
            break
        high = min(high, low + limit - 1)
        taken.append((low, high))
        limit -= high - low + 1
    return taken


def clip(ranges: Iterable[Range], low: int, high: int) -> list[Range]:
    """The part of `ranges` from `low` to `high`."""
    return [(max(a, low), min(b, high)) for a, b in ranges if a <= high and b >= low]


def union(ranges: Iterable[Range]) -> list[Range]:
    """The ids that are in any of `ranges`, which may come in any order and overlap."""
    joined: list[Range] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def bridged(ranges: Sequence[Range], fillers: Iterable[Range]) -> list[Range]:
    """`ranges`, and what of `fillers` joins them or lies next to them: never more ranges."""
    lows = [low for low, _ in ranges]
    joined = []
    for low, high in union((*ranges, *fillers)):
        at = bisect_left(lows, low)
        if at < len(lows) and lows[at] <= high:
            joined.append((low, high))
    return joined


def count_ids(ranges: Iterable[Range]) -> int:
    """How many ids the ranges hold."""
    return sum(high - low + 1 for low, high in ranges)


class Holders(NamedTuple):
    """The transactions that may hold ids that nobody sees yet, at one moment.

    - `running`: their names; no two transactions ever have the same.
    - `nameless`: those that may be the continuation of a transaction of another name, as a prepared
      transaction of PostgreSQL is. Each of them is a suspect of every gap.
    - `drawn`: the highest id that was drawn before the transactions were looked at. A gap above it
      (somebody inserted a row under an id of his own choice) waits until its ids are drawn.
    """

    running: frozenset[str] = frozenset()
    nameless: frozenset[str] = frozenset()
    drawn: int = _FAR


@dataclass(frozen=True, slots=True)
class Cohort:
    """Gaps with the same evidence.

    - `suspects`: whoever may still commit one of them is among these; None: not known yet.
    - `remaining`: those that had not ended when they were last judged.
    """

    ranges: Sequence[Range]
    suspects: frozenset[str] | None = None
    remaining: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Gaps:
    """All open gaps; a value, every change makes a new one.

    A gap may be closed for two reasons only: its row was seen, or it is *dead*: every suspect had
    ended before a look that did not find it. `judged` and `looked` are those two steps, and come
    in this order: the look begins after the judgement.
    """

    cohorts: tuple[Cohort, ...] = ()
    dead_ids: int = 0
    """How many were found dead, ever."""
    due: bool = False
    """After a judgement: whether a look is needed. A row can only have appeared if a suspect has
    ended. The look must then be at all gaps at once, or it could show a later row of a transaction
    and not an earlier one."""

    def __bool__(self) -> bool:
        return bool(self.cohorts)

    def __len__(self) -> int:
        return sum([len(cohort.ranges) for cohort in self.cohorts])

    @property
    def ranges(self) -> list[Range]:
        """All of them."""
        return union(r for cohort in self.cohorts for r in cohort.ranges)

    def plus(self, ranges: Sequence[Range]) -> Gaps:
        """New gaps. Who may commit them is for the next judgement to say."""
        if not ranges:
            return self
        return replace(self, cohorts=(*self.cohorts, Cohort(tuple(ranges))))

    def upto(self, id: int) -> Gaps:
        """Without those above an id."""
        return self._with([replace(c, ranges=clip(c.ranges, -_FAR, id)) for c in self.cohorts])

    def judged(self, holders: Holders) -> Gaps:
        """Compare the suspects with those who hold now.

        `holders` was taken after every gap was last looked for.
        """
        running, nameless, drawn = holders
        judged, due = [], False
        for cohort in self._split(drawn):
            suspects = cohort.suspects
            if suspects is _FUTURE:
                remaining, due = _FUTURE, True
            elif suspects is None:
                remaining, due = running | nameless, True
            else:
                remaining = suspects & running | nameless
                due = due or not suspects <= remaining
            judged.append(replace(cohort, remaining=remaining))
        return replace(self._with(judged), due=due)

    def looked(self, visible: Sequence[Range]) -> Gaps:
        """All gaps were looked for at one moment after the judgement, and these ids are there."""
        by_suspects: dict[frozenset[str], list[Range]] = {}
        dead = self.dead_ids
        for cohort in self.cohorts:
            ranges = subtract(cohort.ranges, visible)
            if cohort.remaining:
                by_suspects.setdefault(cohort.remaining, []).extend(ranges)
            else:
                dead += count_ids(ranges)
        left = [Cohort(union(ranges), suspects) for suspects, ranges in by_suspects.items()]
        return replace(self._with(left), dead_ids=dead, due=False)

    def _split(self, drawn: int) -> Iterator[Cohort]:
        """The cohorts, with what is not drawn yet apart from what is."""
        for cohort in self.cohorts:
            future = clip(cohort.ranges, drawn + 1, _FAR)
            if future or cohort.suspects is _FUTURE:
                yield Cohort(future, _FUTURE)
                known = None if cohort.suspects is _FUTURE else cohort.suspects
                yield Cohort(clip(cohort.ranges, -_FAR, drawn), known)
            else:
                yield cohort

    def _with(self, cohorts: Iterable[Cohort]) -> Gaps:
        return replace(self, cohorts=tuple([cohort for cohort in cohorts if cohort.ranges]))

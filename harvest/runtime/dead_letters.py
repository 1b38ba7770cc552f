"""What carries out `AddDeadLetters`: for every mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harvest.core.actions import LeaseLost
from harvest.core.dead_letters import (
    AddDeadLetters,
    AddFailed,
    BadRow,
    BadRowPolicy,
    DeadLettersAdded,
    Key,
)
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.wal import AddRows
from harvest.errors import HarvestError
from harvest.runtime.leadership import Leadership

__all__ = ["DeadLetterWriter"]


class DeadLetterWriter:
    """Writes dead letters under a lease, and counts and logs them.

    `policy`: what becomes of bad rows; without a `store`, they stop the harvest.
    """

    def __init__(
        self, leadership: Leadership, store: DeadLetterStore | None, policy: BadRowPolicy
    ) -> None:
        self._leadership = leadership
        self._store = store
        self.policy = BadRowPolicy(on_bad_row="stop") if store is None else policy

    def add(self, action: AddDeadLetters) -> DeadLettersAdded | AddFailed | LeaseLost:
        """Make rows dead letters; return the event."""
        store = self._store
        assert store is not None  # noqa: S101 - with "stop" there are none
        still_held = self._leadership.may_act
        return self._add(action.rows, lambda: store.add(action.rows, action.term, still_held))

    def add_rows(self, action: AddRows) -> DeadLettersAdded | AddFailed | LeaseLost:
        """The same, with the contents of the rows, for wal mode."""
        store: Any = self._store  # a RowDeadLetterStore
        still_held = self._leadership.may_act
        bad_rows = [bad for _, bad in action.rows]
        return self._add(bad_rows, lambda: store.add_rows(action.rows, still_held))

    def _add(
        self, rows: Sequence[BadRow], add: Callable[[], frozenset[int]]
    ) -> DeadLettersAdded | AddFailed | LeaseLost:
        leadership = self._leadership
        if not leadership.may_act():
            return LeaseLost()
        try:
            ids = add()
            waiting = self.waiting_keys()
        except HarvestError as error:
            leadership.failed("rows that cannot be published could not be set aside: %s", error)
            return AddFailed()
        for row in rows:
            if row.id in ids:
                level = logging.DEBUG if row.waits else logging.WARNING
                leadership.log.log(level, "row %d is set aside: %s", row.id, row.error)
        leadership.stats.dead_lettered += len(ids)
        return DeadLettersAdded(ids, waiting)

    def waiting_keys(self) -> Mapping[Key, int]:
        """The keys whose rows wait behind dead letters, if any do. Raises `HarvestError`."""
        if self._store is None or not self.policy.key_waits:
            return {}
        return self._store.waiting_keys()

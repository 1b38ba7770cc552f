"""A sink that sets aside what it cannot publish: for range mode (specs/HARVEST.md §11).

Range mode deletes nothing: a bad row is copied to the table of rows set aside, and the checkpoint
passes its id. So the decision can be made where rows are published, and the scheduler knows nothing
of it: to it, a row that is set aside is one that was published.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from harvest.core.dead_letters import BadRow, BadRowFilter, BadRowPolicy
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.sink import Failure, Sink, StillHeld
from harvest.core.row import Row
from harvest.errors import HarvestError
from harvest.runtime.events import Stats

__all__ = ["DeadLetterSink"]

_LOG: Final = logging.getLogger("harvest")


class DeadLetterSink:
    """Publishes to `sink` what can be published, and copies the rest with `dead_letters`.

    Implements `Sink`. A refused row is copied when its delivery has failed, and left out of the
    deliveries after the next `open`. Between the two, a takeover sends it again, in vain.
    """

    def __init__(
        self, sink: Sink, dead_letters: DeadLetterStore, policy: BadRowPolicy, stats: Stats
    ) -> None:
        self._sink = sink
        self._dead_letters = dead_letters
        self._filter = BadRowFilter(policy)
        self._stats = stats
        self._refused: set[int] = set()

    @property
    def atomic(self) -> bool:
        """See `Sink.atomic`."""
        return self._sink.atomic

    def prepare(self) -> None:
        """See `Sink.prepare`."""
        self._sink.prepare()

    def open(self, still_held: StillHeld) -> str | None:
        """See `Sink.open`. Raises what the store raises, too."""
        checkpoint = self._sink.open(still_held)
        self._learn()
        return checkpoint

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """See `Sink.deliver`."""
        bad_rows = self._filter.find_bad(rows)
        left_out = self._refused
        if bad_rows:
            done = self._set_aside(bad_rows)
            if done is None:
                self._sink.close()  # what follows would let the checkpoint pass these rows
                return Failure("rows that cannot be published could not be set aside")
            left_out = left_out | done
        sent = rows
        if left_out:
            sent = [row for row in rows if row[0] not in left_out]
        failure = self._sink.deliver(sent, checkpoint)
        if failure is None:
            self._stats.published -= len(rows) - len(sent)  # they count as published otherwise
        elif blamed := self._filter.find_refused(sent, failure):
            self._refused |= self._set_aside(blamed) or set()
        return failure

    def close(self) -> None:
        """See `Sink.close`."""
        self._sink.close()

    def _set_aside(self, bad_rows: Sequence[BadRow]) -> frozenset[int] | None:
        try:
            done = self._dead_letters.add(bad_rows, None)
            self._learn()
        except HarvestError as error:
            _LOG.warning("rows that cannot be published could not be set aside: %s", error)
            return None
        for row in bad_rows:
            if row.id in done:
                level = logging.DEBUG if row.waits else logging.WARNING
                _LOG.log(level, "row %d is set aside: %s", row.id, row.error)
        self._stats.dead_lettered += len(done)
        return done

    def _learn(self) -> None:
        policy = self._filter.policy
        if policy.key_waits and policy.on_bad_row == "dead_letter":
            self._filter.waiting = dict(self._dead_letters.waiting_keys())

"""What happened in a version 1 log, as rows: claims and rejections (specs/INTEROP.md §3). No I/O.

As `marshal_py.protocol.history.history.History`, without the checks of what only version 2 has:
sequence numbers, epochs, members, one declared interval a claim.
`marshal_py.protocol.history.text_verifier` has those of version 1.
"""

from __future__ import annotations

from typing import Any

from marshal_py.protocol import events as ev
from marshal_py.protocol.history.history import History
from marshal_py.protocol.history.ledger import Track, known

__all__ = ["TextHistory"]


class TextHistory(History):
    """The history of one coordination partition of a version 1 log; `state` is a `TextState`.

    Times are those that the records carry, where the broker has none.
    """

    # What version 1 has nothing to check by.

    def _sender(self, event: Any) -> None:
        pass

    def _foreign(self, track: Track, event: Any) -> None:
        pass

    def _check_back(self, track: Track, event: ev.Renewed) -> None:
        pass

    def _check_place(self, event: Any) -> None:
        pass

    def _stepped_back(self, offset: int, now: int) -> None:
        pass

    # What it has, in its own way.

    def _slow(self, track: Track, event: Any, gap: int) -> None:
        if gap > 2 * track.interval_ms:
            self._late(track, event, gap)

    def _refused(self, event: ev.Rejected) -> None:
        place = (event.topic, event.partition)
        sender = (event.group_id, event.client_id, event.instance_id)
        why = (event.record, event.reason)
        row = (event.offset, self._now, *sender, *why, *place, event.holder)
        self._row("rejections", (*row, None, known(event.version)))


TextHistory.handlers = {
    **History.handlers,
    ev.Beat: TextHistory._sender,
    ev.Rejected: TextHistory._refused,
}

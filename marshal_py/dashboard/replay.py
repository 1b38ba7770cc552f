"""The past, replayed from the log: the grid at a moment, and the timeline of one cell.

Both read the coordination log anew, so they are exact and reach as far back as the log does. One
replay at a time: it is work for this machine and the brokers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any, Final

import msgspec

from marshal_py.admin.books import seen_as, shown_of
from marshal_py.admin.cell_history import read_cell_history
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import read_world
from marshal_py.dashboard.cell_grid import CellGrid, liveness_code
from marshal_py.dashboard.groups import groups_document, leaders_document, members_document
from marshal_py.protocol.rationalizer import CellKey
from marshal_py.protocol.slots import agreement_of
from marshal_py.protocol.wire import MSGPACK, Wire

__all__ = ["Replay"]

MAX_ENTRIES: Final = 1_000
_SETTLED_MS: Final = 60_000
"""So long after a moment, by our clock, brokers stamp no more records with it."""
KEPT: Final = 8
"""Moments that are kept, for a page that goes to and fro."""


class Replay:
    """Answers for moments that are over. For any thread."""

    def __init__(self, connection: Connection, wire: Wire = MSGPACK) -> None:
        self._connection = connection
        self._wire = wire
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def at(self, at_ms: int) -> bytes:
        """Return the grid at `at_ms`, as JSON, in the form in which a live page gets it.

        Liveness is judged by the broker's timestamps.

        Raises `InvalidArgument` if the log does not reach back so far, and as `read_world` does.
        """
        with self._lock:
            if at_ms not in self._kept:
                found = msgspec.json.encode(self._replay(at_ms))
                if at_ms > time.time() * 1000 - _SETTLED_MS:
                    return found  # more may come of it
                self._kept[at_ms] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(at_ms)
            return self._kept[at_ms]

    def timeline(self, key: CellKey, at_ms: int | None) -> dict[str, Any]:
        """Return the whole history of one cell in sentences, as `marshal explain` tells it.

        Raises `InvalidArgument` if the log does not reach back to `at_ms`, and `LogHole`.
        """
        with self._lock:
            timeline, status = read_cell_history(self._connection, *key, at_ms, wire=self._wire)
        return {
            "standing": status.text,
            "entries": [
                {"at": entry.at_ms, "kind": entry.kind, "sentence": entry.sentence}
                for entry in timeline.entries[-MAX_ENTRIES:]
            ],
        }

    def _replay(self, at_ms: int) -> dict[str, Any]:
        view = read_world(self._connection, at_ms=at_ms, wire=self._wire)
        grid = CellGrid()
        for p, key, cell in sorted(view.world.cells(), key=lambda cell: cell[1]):
            if agreement_of(key[1]) is not None or seen_as(view.world, key) != key:
                continue
            shown = shown_of(view.world, key) or (key, cell)
            row, slot = grid.put(*key, shown[1])
            silence = view.cell_silence(p, *shown)
            if silence is not None:
                row.set_live(slot, liveness_code(silence.liveness))
        return {
            "topic": self._connection.topic,
            "coordinators": view.world.partitions,
            "phase": "past",
            "now": at_ms,
            "groups": groups_document(view.world, grid.groups(), at_ms),
            "members": members_document(view.world),
            "leaders": leaders_document(view.world, grid.rows.values()),
            **grid.document(),
        }

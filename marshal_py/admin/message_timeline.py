"""The history of one message in sentences: who had it, when, and who was done with it. No I/O.

`MessageTimeline` is fed as `CellTimeline` is. What it follows is the cell whose holder the message
is delivered to: its partition, or a slot of it; or the range that it lies in (§5.18), which changes
when ranges are granted and split. The log tells positions with heartbeats: a message is done at the
latest when its holder's position was seen beyond it, and who held it before may have begun it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from marshal_py.admin.cell_timeline import Kind, TimelineEntry
from marshal_py.admin.formatting import clock_time
from marshal_py.protocol import events as ev
from marshal_py.protocol.ranges import range_cell
from marshal_py.protocol.rationalizer import Cell, CellKey, PartitionState

__all__ = ["MessageState", "MessageStatus", "MessageTimeline"]

MessageState = Literal["waiting", "held", "given_back", "done", "claimed", "passed_over"]
"""Nobody had it yet; somebody has it; somebody had it, and did not do it; done; claimed by at most
once, so that nobody gets it again; an operator had it left out."""


@dataclass
class MessageStatus:
    """How the message stood at one moment.

    The holder is who has it; of one that is done, who did it; else None. `start` and `end` are
    those of its range; None where it is not shared by ranges.
    """

    at_ms: int
    state: MessageState
    holder: str | None
    instance_id: str | None
    epoch: int | None
    since_ms: int | None
    start: int | None
    end: int | None
    text: str


@dataclass
class MessageTimeline:
    """Listens to one coordination partition on behalf of one message.

    `key` is the cell of its partition or its slot; `topic` and `partition` are Kafka's.
    """

    key: CellKey
    topic: str
    partition: int
    message: int
    coordinator: int
    entries: list[TimelineEntry] = field(default_factory=list)
    latest_ms: int = 0
    _unit: tuple[str, int] = ("", 0)
    _range: tuple[int, int] | None = None
    _holder: tuple[str, str] | None = None
    _epoch: int | None = None
    _since_ms: int | None = None
    _state: MessageState = "waiting"

    @property
    def name(self) -> str:
        """message N of topic/partition."""
        return f"message {self.message} of {self.topic}/{self.partition}"

    @property
    def known(self) -> bool:
        """Whether the log says anything of it."""
        return bool(self.entries) or self._state != "waiting" or self._holder is not None

    def begin(self, state: PartitionState) -> None:
        """Start from a state that a snapshot holds: what came before is not known."""
        self._whole()
        group = state.groups.get(self.key[0])
        if group is None:
            return
        cell = group.cells.get(self._unit)
        for found in group.open_ranges.of(self._unit):
            if found.start <= self.message < found.end:
                self._within(found.start, found.end)
                cell = group.cells[found.cell]
        self._begin_at(cell)

    def _begin_at(self, cell: Cell | None) -> None:
        if cell is None:
            return
        if cell.next_offset > self.message:
            self._state = "done"
        elif cell.claimed_offset > self.message:
            self._state = "claimed"
        elif cell.holder is not None and cell.instance_id is not None:
            self._state = "held"
        if cell.holder is not None and cell.instance_id is not None:
            self._holder, self._epoch = (cell.holder, cell.instance_id), cell.epoch

    def feed(self, event: ev.Event, at_ms: int) -> None:
        """Take the next event of the coordination partition."""
        self.latest_ms = max(self.latest_ms, at_ms)
        if isinstance(event, ev.Ignored) or event.group_id != self.key[0]:
            return
        match event:
            case ev.GroupForgotten():
                self._whole()
                self._free("waiting")
                self._add(event, at_ms, "forgotten", "had the group forgotten, with all positions")
            case ev.PositionSet() if (event.topic, event.partition) == self.key[1:]:
                self._whole()
                comes = event.next_offset <= self.message
                self._free("waiting" if comes else "passed_over")
                text = f"set the position to {event.next_offset}"
                why = "it comes, once more if it came before" if comes else "it is left out"
                self._add(event, at_ms, "position_set", text, why)
            case _ if self._state in ("done", "passed_over"):
                pass  # who holds what from here on has nothing to do with it
            case ev.RangeGranted() if self._has(event.start, event.end, event):
                self._within(event.start, event.end)
            case ev.RangeSplit() if self._has(event.start, event.end, event):
                self._split(event, at_ms)
            case (
                ev.Claimed()
                | ev.Renewed()
                | ev.Released()
                | ev.MessagesClaimed()
                | ev.PositionSet()
            ) if (event.topic, event.partition) == self._unit:
                self._of_cell(event, at_ms)
            case _:
                pass

    def finish(self) -> None:
        """Say what can only be said at the end: nothing, here."""

    def status(self, at_ms: int, *, now: bool = False) -> MessageStatus:
        """Return how it stands, after what was fed so far."""
        moment = "Now" if now else f"At {clock_time(at_ms, date=True)}"
        start, end = self._range or (None, None)
        who, instance_id = self._holder or (None, None)
        since = "" if self._since_ms is None else f" {clock_time(self._since_ms, date=True)}"
        by = f" by {who}{self._at_epoch}" if who is not None else ""
        where = "" if self._range is None else f", in its range {start}–{(end or 0) - 1}"
        said = {
            "waiting": "nobody has had it yet",
            "held": f"{who} has it{where}, since{since or ' before the log begins'}"
            f"{self._at_epoch}; its position has not been seen beyond it",
            "given_back": f"nobody has it: it was given back{since}, not done{where}",
            "done": f"it is done{by}{where}, at the latest{since or ' where the log begins'}",
            "claimed": f"it was claimed{by}, to be delivered at most once{since and ','}{since}",
            "passed_over": f"it is left out: the position was set beyond it{since}",
        }[self._state]
        text = f"{moment}, of group {self.key[0]}, {self.name}: {said}."
        return MessageStatus(
            *(at_ms, self._state, who, instance_id, self._epoch, self._since_ms),
            *(start, end, text),
        )

    # What happens to it

    @property
    def _at_epoch(self) -> str:
        return "" if self._epoch is None or self._epoch < 0 else f", epoch {self._epoch}"

    def _has(self, start: int, end: int, event: ev.RangeGranted | ev.RangeSplit) -> bool:
        """Whether the message lies in such a range of its partition."""
        return (event.topic, event.partition) == self.key[1:] and start <= self.message < end

    def _whole(self) -> None:
        """It belongs to its partition, or slot, as long as it lies in no range."""
        self._unit, self._range = self.key[1:], None

    def _within(self, start: int, end: int) -> None:
        self._unit = range_cell(self.topic, self.partition, start)
        self._range = (start, end)

    def _free(self, state: MessageState) -> None:
        self._holder = self._epoch = self._since_ms = None
        self._state = state

    def _split(self, event: ev.RangeSplit, at_ms: int) -> None:
        if self.message < event.at:
            self._within(event.start, event.at)
            return
        self._within(event.at, event.end)
        last = self.entries[-1] if self.entries else None
        if last is not None and last.offset == event.offset:
            # Cut off by the very claim that took what is before it.
            self.entries.pop()
            self._free("given_back" if self.entries else "waiting")
            self._since_ms = None if not self.entries else self.entries[-1].at_ms
            return
        rest = f"{event.at}–{event.end - 1}"
        self._free("given_back")
        self._since_ms = at_ms
        self._add(event, at_ms, "released", f"gave {rest} back", "it had begun nothing of that")

    def _of_cell(
        self,
        event: ev.Claimed | ev.Renewed | ev.Released | ev.MessagesClaimed | ev.PositionSet,
        at_ms: int,
    ) -> None:
        match event:
            case ev.Claimed():
                self._claimed(event, at_ms)
            case ev.MessagesClaimed():
                if event.from_offset <= self.message < event.to_offset:
                    self._state, self._since_ms = "claimed", at_ms
                    text = f"claimed {max(0, event.from_offset)}–{event.to_offset - 1}"
                    self._add(event, at_ms, "claimed", text, "each is delivered at most once")
            case _ if event.next_offset > self.message:
                self._done(event, at_ms)
            case ev.Released() | ev.PositionSet():
                if self._state == "held":
                    self._free("given_back")
                    self._since_ms = at_ms
                    at = f" at position {event.next_offset}" if event.next_offset >= 0 else ""
                    done = "gave it back" if isinstance(event, ev.Released) else "had it set free"
                    self._add(event, at_ms, "released", f"{done}{at}", "it was not done")
                elif isinstance(event, ev.Released):
                    self._holder = None
            case _:
                pass

    def _claimed(self, event: ev.Claimed, at_ms: int) -> None:
        holder = (event.client_id, event.instance_id)
        if self._state != "claimed":
            self._state, self._since_ms = "held", at_ms
        self._holder, self._epoch = holder, event.epoch
        what = "" if self._range is None else f" {self._range[0]}–{self._range[1] - 1}"
        kind: Kind = "claimed"
        text = f"claimed{what or ' it'}, epoch {event.epoch}"
        if event.previous_holder == event.client_id:
            kind, text = "resumed", f"took{what or ' it'} back, epoch {event.epoch}"
        elif event.previous_holder is not None:
            kind = "taken_over"
            text = f"took{what or ' it'} over from {event.previous_holder}, epoch {event.epoch}"
        self._add(event, at_ms, kind, text)

    def _done(self, event: ev.Renewed | ev.Released | ev.PositionSet, at_ms: int) -> None:
        if self._state == "claimed":
            return
        by_operator = isinstance(event, ev.PositionSet)
        self._state = "passed_over" if by_operator else "done"
        self._since_ms = at_ms
        self._add(
            *(event, at_ms),
            "position_set" if by_operator else "done",
            f"{'set' if by_operator else 'reached'} position {event.next_offset}",
            "it is left out" if by_operator else "it is done",
        )

    def _add(self, event: ev.Sent, at_ms: int, kind: Kind, text: str, why: str = "") -> None:
        self.entries.append(TimelineEntry.of(event, at_ms, kind, text, why, epoch=self._epoch))

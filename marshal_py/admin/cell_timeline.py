"""The history of one cell in sentences: who held it, when, and why it changed. No I/O.

`CellTimeline` is fed with the events of the coordination partition that decides about the cell, in
order, with the broker's timestamps. Heartbeats are counted, not told one by one: each renews all
that its session holds (in version 1, one cell).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from marshal_py.admin.formatting import age, clock_time, count
from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import Cell, CellKey
from marshal_py.protocol.world import Liveness

__all__ = ["CellStatus", "CellTimeline", "Kind", "TimelineEntry"]

Kind = Literal[
    "claimed",
    "resumed",
    "taken_over",
    "held",
    "released",
    "done",
    "position_set",
    "refused",
    "paused",
    "resumed_group",
    "forgotten",
]

Who = tuple[str, str]
"""(client_id, instance_id)"""

_REFUSED_CLAIM: Final = "tried to claim it and was refused"
_FENCES: Final = "; the epoch fences what it may still write"
_TEXT_REASONS: Final = {
    "still_held": "whose last heartbeat is less than two intervals old",
    "in_doubt": (
        "but by its own clock the sender may have read its claim as granted: whoever holds it "
        "stops until that is settled (specs/INTEROP.md §3)"
    ),
}
"""Why version 1 refuses a claim."""


@dataclass
class TimelineEntry:
    """One thing that happened. `times` counts refusals of the same kind in a row.

    `epoch` is None where it does not matter, and in a log of version 1.
    """

    at_ms: int
    offset: int
    kind: Kind
    client_id: str
    instance_id: str
    epoch: int | None
    text: str
    why: str = ""
    silence_ms: int | None = None
    times: int = 1
    until_ms: int | None = None

    @classmethod
    def of(
        cls,
        event: ev.Sent,
        at_ms: int,
        kind: Kind,
        text: str,
        why: str = "",
        *,
        epoch: int | None = None,
    ) -> TimelineEntry:
        """Return what `event` did, as a sentence whose subject is its sender."""
        who = (event.client_id, event.instance_id)
        return cls(at_ms, event.offset, kind, *who, epoch, f"{event.client_id} {text}", why)

    @property
    def sentence(self) -> str:
        """What happened, and why."""
        more = ""
        if self.times > 1 and self.until_ms is not None:
            more = f" ({self.times} times, the last at {clock_time(self.until_ms)})"
        return f"{self.text}{more}{': ' if self.why else ''}{self.why}"


@dataclass
class CellStatus:
    """How the cell stood at one moment. `epoch` is the last holder's where nobody held it."""

    at_ms: int
    holder: str | None
    instance_id: str | None
    epoch: int | None
    since_ms: int | None
    interval_ms: int | None
    silence_ms: int | None
    liveness: Liveness | None
    position: int | None
    paused: bool
    text: str


@dataclass
class _OpenClaim:
    """A claim that stands."""

    who: Who
    epoch: int
    interval_ms: int
    from_ms: int | None
    last_ms: int | None
    beats: int = 0
    longest_gap_ms: int = 0
    batches: int = 0
    first_position: int = -1


@dataclass
class CellTimeline:
    """Listens to one coordination partition on behalf of one cell."""

    key: CellKey
    coordinator: int
    has_sessions: bool = True
    """False in a log of version 1."""
    entries: list[TimelineEntry] = field(default_factory=list)
    latest_ms: int = 0
    _claim: _OpenClaim | None = None
    _epoch: int | None = None
    """Of the last claim, whether it stands or not."""
    _position: int = -1
    _free_since_ms: int | None = None
    _free_why: str = "nobody has ever claimed it"
    _paused: bool = False
    _pause_ends_ms: int | None = None
    """In version 1, where a pause ends by itself."""
    _heard: dict[Who, int] = field(default_factory=dict)
    """When each instance was last heard of in this coordination partition."""
    _takeovers: list[tuple[TimelineEntry, Who]] = field(default_factory=list)
    _lost: dict[Who, int] = field(default_factory=dict)
    """When an instance lost the cell without having given it back."""

    @property
    def name(self) -> str:
        """topic/partition."""
        return f"{self.key[1]}/{self.key[2]}"

    def begin(self, cell: Cell | None, *, paused: bool) -> None:
        """Start from a state that a snapshot holds: what came before is not known."""
        self._paused = paused
        if cell is None:
            return
        self._position, self._epoch = cell.position, cell.epoch
        if cell.holder is not None and cell.instance_id is not None:
            self._claim = _OpenClaim(
                (cell.holder, cell.instance_id), cell.epoch, cell.interval_ms, None, None
            )
        else:
            self._free_why = "it was free where the log begins"

    def feed(self, event: ev.Event, at_ms: int) -> None:
        """Take the next event of the coordination partition."""
        self.latest_ms = max(self.latest_ms, at_ms)
        if isinstance(event, ev.Ignored) or event.group_id != self.key[0]:
            return
        # A goodbye, or being dropped from the members, is written by others as well.
        if not isinstance(event, ev.MemberLeft):
            self._heard[event.client_id, event.instance_id] = at_ms
        match event:
            case ev.GroupPaused():
                self._paused = True
                self._pause_ends_ms = None if self.has_sessions else event.expires_at_ms
                text = f"paused the group until {clock_time(event.expires_at_ms, date=True)}"
                why = "no claim is accepted until it resumes"
                self.entries.append(TimelineEntry.of(event, at_ms, "paused", text, why))
            case ev.GroupResumed():
                self._paused = False
                text = "resumed the group"
                self.entries.append(TimelineEntry.of(event, at_ms, "resumed_group", text))
            case ev.GroupForgotten():
                self._claim, self._position, self._epoch = None, -1, None
                self._free_since_ms = at_ms
                self._free_why = f"{event.client_id} had the group forgotten"
                text = "had the group forgotten, with this cell"
                self.entries.append(TimelineEntry.of(event, at_ms, "forgotten", text))
            case ev.Beat():
                if self.has_sessions and event.cells and self._holds(event):
                    self._beat(at_ms)
            case ev.Claimed() if self._mine(event):
                self._claimed(event, at_ms)
            case ev.Renewed() if self._mine(event):
                self._renewed(event, at_ms)
            case ev.MessagesClaimed() if self._mine(event):
                self._messages(event, at_ms)
            case ev.Released() if self._mine(event):
                self._released(event, at_ms)
            case ev.PositionSet() if self._mine(event):
                self._position_set(event, at_ms)
            case ev.Rejected() if self._mine(event):
                self._refused(event, at_ms, *self._why_refused(event, at_ms))
            case ev.Rejected(record="Heartbeat", reason="not_held"):
                self._beats_in_vain(event, at_ms)
            case _:
                pass

    def finish(self) -> None:
        """Say of everybody who lost the cell whether they were heard of again."""
        for entry, who in self._takeovers:
            heard_ms = self._heard.get(who, -1)
            again = (
                f"; {who[0]} was heard of again until {clock_time(heard_ms)}: it had been paused, "
                "cut off or too slow, not dead"
                if heard_ms > entry.at_ms
                else f"; {who[0]} (instance {who[1]}) has not been heard of again in coordination "
                f"partition {self.coordinator}: it died, or was cut off for good"
            )
            entry.why += again
        self._takeovers.clear()

    def status(self, at_ms: int, *, now: bool = False) -> CellStatus:
        """Say how the cell stands at `at_ms`, which is after all that was fed, and may be now."""
        claim, name = self._claim, self.name
        group = self.key[0]
        moment = "Now" if now else f"At {clock_time(at_ms, date=True)}"
        holds, was = ("holds", "is") if now else ("held", "was")
        position = None if self._position < 0 else self._position
        ends_ms = self._pause_ends_ms
        paused = self._paused and (ends_ms is None or at_ms < ends_ms)
        pause = f" The group {was} paused." if paused else ""
        if claim is None:
            since = ""
            if self._free_since_ms is not None:
                ago = "ago" if now else "before"
                since = f" {age(max(0, at_ms - self._free_since_ms))} {ago}"
            text = f"{moment} nobody {holds} {name} of {group}: {self._free_why}{since}.{pause}"
            return CellStatus(
                *(at_ms, None, None, self._epoch, self._free_since_ms, None, None, None),
                position,
                paused,
                text,
            )
        silence_ms = None if claim.last_ms is None else max(0, at_ms - claim.last_ms)
        liveness = _liveness(silence_ms, claim.interval_ms)
        since = (
            "since before the log begins"
            if claim.from_ms is None
            else f"since {clock_time(claim.from_ms, date=True)}"
        )
        text = f"{moment} {claim.who[0]} {holds} {name} of {group}, {since}{_epoch(claim.epoch)}"
        text += "" if position is None else f", at position {position}"
        if silence_ms is None:
            text += ". When it was last heard of is not in the log any more."
        else:
            heard = "was last heard of" if now else "had last been heard of"
            text += f". It {heard} {age(silence_ms)} {'ago' if now else 'before'}: {liveness}"
            text += (
                f" (its interval is {age(claim.interval_ms)}), so its lease has lapsed and "
                "anyone may take over."
                if liveness == "stale"
                else "."
            )
        return CellStatus(
            at_ms,
            *claim.who,
            _known(claim.epoch),
            claim.from_ms,
            claim.interval_ms,
            silence_ms,
            liveness,
            position,
            paused,
            text + pause,
        )

    # What happens to the cell

    def _mine(
        self,
        event: ev.Claimed
        | ev.Renewed
        | ev.Released
        | ev.MessagesClaimed
        | ev.PositionSet
        | ev.Rejected,
    ) -> bool:
        return (event.topic, event.partition) == self.key[1:]

    def _claimed(self, event: ev.Claimed, at_ms: int) -> None:
        who = (event.client_id, event.instance_id)
        before = self._claim
        kind: Kind = "claimed"
        silence_ms: int | None = None
        taken_from: Who | None = None
        if event.previous_holder is None:
            text, why = "claimed it", self._free_why
            if self._free_since_ms is not None:
                why += f" {age(max(0, at_ms - self._free_since_ms))} before"
        else:
            previous = (event.previous_holder, event.previous_instance_id or "?")
            if before is not None and before.last_ms is not None:
                silence_ms = max(0, at_ms - before.last_ms)
            interval_ms = 0 if before is None else before.interval_ms
            if event.previous_holder == event.client_id:
                kind, text = "resumed", "took its own claim back"
                why = "a new instance of the same client need not wait"
                if previous == who:
                    why = "it claimed again what it held"
            else:
                kind, text = "taken_over", f"took it over from {event.previous_holder}"
                why = _why_taken(event.previous_holder, silence_ms, interval_ms)
                taken_from = previous
            self._lost[previous] = at_ms
            self._sum_up_claim(at_ms, event.offset)
        self._lost.pop(who, None)
        entry = TimelineEntry(
            at_ms,
            event.offset,
            kind,
            *who,
            _known(event.epoch),
            f"{event.client_id} {text}{_epoch(event.epoch)}, interval {age(event.interval_ms)}",
            why,
            silence_ms,
        )
        self.entries.append(entry)
        if taken_from is not None:
            self._takeovers.append((entry, taken_from))
        self._claim = _OpenClaim(
            who, event.epoch, event.interval_ms, at_ms, at_ms, first_position=self._position
        )
        self._epoch, self._free_since_ms = _known(event.epoch), None

    def _holds(self, event: ev.Beat) -> bool:
        return self._claim is not None and self._claim.who == (event.client_id, event.instance_id)

    def _come_to(self, next_offset: int) -> None:
        """Note what a holder says of its position: in version 1, it may go back."""
        self._position = max(self._position, next_offset) if self.has_sessions else next_offset

    def _renewed(self, event: ev.Renewed, at_ms: int) -> None:
        self._come_to(event.next_offset)
        if not self.has_sessions:
            self._beat(at_ms)

    def _beat(self, at_ms: int) -> None:
        claim = self._claim
        if claim is not None:
            if claim.last_ms is not None:
                claim.longest_gap_ms = max(claim.longest_gap_ms, at_ms - claim.last_ms)
            claim.beats += 1
            claim.last_ms = at_ms

    def _messages(self, event: ev.MessagesClaimed, at_ms: int) -> None:
        self._position = max(self._position, event.to_offset)
        if self._claim is not None:
            self._claim.batches += 1
            self._claim.last_ms = at_ms

    def _released(self, event: ev.Released, at_ms: int) -> None:
        self._come_to(event.next_offset)
        self._sum_up_claim(at_ms, event.offset)
        at = "" if event.next_offset < 0 else f" at position {event.next_offset}"
        text = f"gave it back{at}{', and ended it' if event.ended else ''}"
        epoch = _known(event.epoch)
        self.entries.append(TimelineEntry.of(event, at_ms, "released", text, epoch=epoch))
        self._claim, self._free_since_ms = None, at_ms
        self._free_why = f"{event.client_id} had given it back"
        if event.ended:
            self._position, self._epoch = -1, None
            self._free_why = f"{event.client_id} had ended it"

    def _position_set(self, event: ev.PositionSet, at_ms: int) -> None:
        before = self._position
        self._sum_up_claim(at_ms, event.offset)
        self._claim, self._position = None, event.next_offset
        self._free_since_ms = at_ms
        self._free_why = f"{event.client_id} had set its position"
        moved = "" if before < 0 else f" (it was {before})"
        text = f"set the position to {event.next_offset}{moved}"
        self.entries.append(TimelineEntry.of(event, at_ms, "position_set", text))

    def _beats_in_vain(self, event: ev.Rejected, at_ms: int) -> None:
        """A heartbeat tells of a claim that its session does not hold; this one it had lost."""
        lost_ms = self._lost.get((event.client_id, event.instance_id))
        if lost_ms is None:
            return
        claim = self._claim
        now = "nobody holds it"
        if claim is not None:
            now = f"{claim.who[0]} holds it{_epoch(claim.epoch)}"
        text = f"{event.client_id}'s heartbeat told of a claim that is not its own any more"
        why = f"it had lost this one {age(max(0, at_ms - lost_ms))} before ({now}){_FENCES}"
        self._refused(event, at_ms, text, why)

    def _refused(self, event: ev.Rejected, at_ms: int, text: str, why: str) -> None:
        who = (event.client_id, event.instance_id)
        last = self.entries[-1] if self.entries else None
        if (
            last is not None
            and last.kind == "refused"
            and (last.client_id, last.instance_id) == who
            and last.text == text
        ):
            last.times += 1
            last.until_ms = at_ms
            return
        self.entries.append(TimelineEntry(at_ms, event.offset, "refused", *who, None, text, why))

    def _why_refused(self, event: ev.Rejected, at_ms: int) -> tuple[str, str]:
        client, holder = event.client_id, event.holder
        now = "nobody holds it" if holder is None else f"{holder} holds it{_epoch(event.epoch)}"
        if event.record == "ClaimingPartition":
            if event.reason == "group_paused":
                return f"{client} {_REFUSED_CLAIM}", "the group is paused"
            if event.reason in _TEXT_REASONS:
                return f"{client} {_REFUSED_CLAIM}", f"{now}, {_TEXT_REASONS[event.reason]}"
            return (
                f"{client} {_REFUSED_CLAIM}",
                f"the cell had changed after {client} looked at it ({now}); somebody was faster",
            )
        if event.reason in ("wrong_epoch", "not_held"):
            what = {
                "Heartbeat": "heartbeat",
                "ReleasingPartition": "release",
                "ClaimingMessages": "claim of messages",
            }.get(event.record, event.record)
            lost_ms = self._lost.get((client, event.instance_id))
            over = "its claim is over"
            if lost_ms is not None:
                over = f"it had lost the claim {age(max(0, at_ms - lost_ms))} before"
            return (
                f"{client}'s {what} was refused",
                f"{over} ({now}){_FENCES if event.epoch >= 0 else ''}",
            )
        if event.reason == "offset_not_ahead":
            return (
                f"{client}'s claim of messages was refused",
                "they had been claimed before: nobody is handed them twice",
            )
        reason = {
            "not_paused": "the group was not paused",
            "stale_version": "the cell had changed meanwhile",
        }.get(event.reason, event.reason.replace("_", " "))
        return f"{client}'s {event.record} was refused", reason

    def _sum_up_claim(self, at_ms: int, offset: int) -> None:
        """Sum up the claim that ends here."""
        claim = self._claim
        if claim is None:
            return
        parts = []
        if claim.from_ms is not None:
            parts.append(f"{claim.who[0]} held it for {age(max(0, at_ms - claim.from_ms))}")
        else:
            parts.append(f"{claim.who[0]} had held it since before the log begins")
        if claim.beats:
            parts.append(f"{count(claim.beats, 'heartbeat')}")
            if claim.longest_gap_ms > 2 * claim.interval_ms:
                parts.append(f"once silent for {age(claim.longest_gap_ms)}")
        if claim.batches:
            parts.append(f"{claim.batches:,} batches claimed at most once")
        if self._position >= 0:
            start = "" if claim.first_position < 0 else f"{claim.first_position} → "
            parts.append(f"position {start}{self._position}")
        if claim.last_ms is not None:
            parts.append(f"last heard of at {clock_time(claim.last_ms)}")
        self.entries.append(
            TimelineEntry(at_ms, offset, "held", *claim.who, _known(claim.epoch), "; ".join(parts))
        )


def _known(epoch: int) -> int | None:
    """Return the epoch; None for −1, as records of version 1 have none."""
    return None if epoch < 0 else epoch


def _epoch(epoch: int) -> str:
    """Return the epoch as a part of a sentence."""
    return "" if epoch < 0 else f", epoch {epoch}"


def _why_taken(holder: str, silence_ms: int | None, interval_ms: int) -> str:
    if silence_ms is None:
        return f"how long {holder} had been silent is not in the log any more"
    why = f"{holder} had been silent for {age(silence_ms)}"
    if silence_ms >= 2 * interval_ms - interval_ms // 10 - 1:
        return f"{why}, over two of its intervals of {age(interval_ms)}"
    return (
        f"{why}, which is less than two of its intervals of {age(interval_ms)}: no correct client "
        "does that, see `marshal verify`"
    )


def _liveness(silence_ms: int | None, interval_ms: int) -> Liveness:
    if silence_ms is None:
        return "unknown"
    if silence_ms < interval_ms:
        return "fresh"
    return "unknown" if silence_ms <= 2 * interval_ms else "stale"

"""What must hold of any coordination log, checked beside the fold. No I/O.

`Invariants` keeps its own small account of every cell and session, built from what the fold
*reports*, and says where a report breaks a rule of specs/PROTOCOL.md §4, or where the fold's state
is not what its reports add up to. A correct fold never makes it speak, whatever peers write; a fold
that was changed, miscompiled or fed from a damaged log does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import LEVEL, ClaimingPartition, Message, SetPosition, decode
from marshal_py.protocol.ranges import MAX_OPEN_RANGES, range_cell, range_of
from marshal_py.protocol.rationalizer import CellKey, PartitionState

__all__ = ["Invariants"]


_NOTHING: Final[tuple[str, ...]] = ()

SessionKey: TypeAlias = tuple[str, str, str]
"""(group_id, client_id, instance_id)"""


@dataclass(slots=True)
class _Account:
    """What the reports say of one cell. `version` is its own, without its holder's heartbeats."""

    holder: str | None = None
    instance_id: str | None = None
    epoch: int = -1
    version: int = -1
    next_offset: int = -1
    claimed_offset: int = -1


@dataclass(slots=True)
class _Session:
    """What the reports say of one instance that holds something."""

    held: int = 0
    version: int = -1


class Invariants:
    """The checks of one coordination partition; `state` is what the history begins from."""

    def __init__(self, state: PartitionState) -> None:
        self._cells: dict[CellKey, _Account] = {}
        self._sessions: dict[SessionKey, _Session] = {}
        self._ranges: dict[tuple[str, str, int], dict[int, int]] = {}
        """(group_id, topic, partition) → start → end of its open ranges."""
        self._pauses: dict[str, int] = {}
        self._levels: dict[str, int] = {}
        for name, group in state.groups.items():
            for unit, c in group.cells.items():
                account = _Account(
                    c.holder, c.instance_id, c.epoch, c.version, c.next_offset, c.claimed_offset
                )
                self._cells[name, *unit] = account
            for who, session in group.sessions.items():
                if session.claims:
                    found = _Session(len(session.claims), session.version)
                    self._sessions[name, *who] = found
            for span in group.open_ranges.of_cell.values():
                self._ranges.setdefault((name, *span.source), {})[span.start] = span.end
            if group.pause is not None:
                self._pauses[name] = group.pause.version
            if group.level != LEVEL:
                self._levels[name] = group.level
        self._identity, self._base = state.identity, state.base
        self._offset = state.next_offset - 1

    def check(self, event: ev.Event, value: bytes | None) -> Sequence[str]:
        """Return what is wrong with an event of the record `value`: nothing, usually."""
        if type(event) is ev.Renewed and event.offset >= self._offset:
            # Most events by far are renewals as they should be: the rest of this finds nothing.
            account = self._cells.get((event.group_id, event.topic, event.partition))
            if (
                account is not None
                and account.epoch == event.epoch
                and account.next_offset <= event.next_offset
                and account.holder == event.client_id
                and account.instance_id == event.instance_id
            ):
                account.next_offset = event.next_offset
                self._offset = event.offset
                return _NOTHING
        wrong: list[str] = []
        if isinstance(event, ev.Ignored):
            return wrong
        if event.offset < self._offset:
            wrong.append(f"offset {event.offset} was applied after offset {self._offset}")
        self._offset = max(self._offset, event.offset)
        match event:
            case ev.Beat():
                self._beat(event, wrong)
            case ev.Claimed():
                self._claimed(event, value, wrong)
            case ev.Renewed() | ev.Released():
                account = self._held(event, wrong)
                if event.next_offset < account.next_offset:
                    wrong.append(
                        f"the position goes back from {account.next_offset} to {event.next_offset}"
                    )
                account.next_offset = event.next_offset
                if isinstance(event, ev.Released):
                    self._vacate(event.group_id, account, event.offset)
                    if event.ended:
                        self._cells.pop((event.group_id, event.topic, event.partition), None)
                        self._range_done(event, account, wrong)
                elif (account.holder, account.instance_id) != (event.client_id, event.instance_id):
                    wrong.append(f"renewed by {event.client_id}; {account.holder} holds it")
            case ev.MessagesClaimed():
                account = self._held(event, wrong)
                if event.to_offset <= account.claimed_offset:
                    wrong.append(
                        f"messages below {event.to_offset} are handed out, and those below "
                        f"{account.claimed_offset} were before"
                    )
                account.claimed_offset = event.to_offset
                account.version = event.offset
            case ev.PositionSet():
                self._position_set(event, value, wrong)
            case ev.GroupPaused():
                self._pauses[event.group_id] = event.offset
            case ev.GroupResumed():
                self._resumed(event, value, wrong)
            case ev.GroupForgotten():
                self._forgotten(event, wrong)
            case ev.Founded():
                self._founded(event, wrong)
            case ev.RangeGranted():
                self._granted(event, wrong)
            case ev.RangeSplit():
                self._split(event, wrong)
            case ev.LevelSet():
                if event.previous != self._levels.get(event.group_id, LEVEL):
                    wrong.append("the level before is not what the group had")
                self._levels[event.group_id] = event.level
            case _:
                pass
        return wrong

    def finish(self, state: PartitionState) -> list[tuple[CellKey, str]]:
        """Compare the account with the fold's state; return (cell, what differs)."""
        wrong = []
        for key in sorted(self._cells.keys() | state.cells.keys()):
            account, cell = self._cells.get(key), state.cells.get(key)
            if account is None or cell is None:
                wrong.append((key, "the state has it" if account is None else "the state lacks it"))
                continue
            names = ("holder", "instance_id", "epoch", "version", "next_offset", "claimed_offset")
            for name in names:
                mine, found = getattr(account, name), getattr(cell, name)
                if mine != found:
                    wrong.append((key, f"the state says {name} = {found}, the events {mine}"))
            mine, found = self._version(key[0], account), state.version(*key)
            if mine != found:
                wrong.append((key, f"the state says it was renewed at {found}, the events {mine}"))
            if found >= state.next_offset:
                wrong.append((key, f"version {found} lies beyond the end of the log"))
        ranges = {
            (name, *found.source, found.start): found.end
            for name, group in state.groups.items()
            for found in group.open_ranges.of_cell.values()
        }
        mine_ranges = {
            (*k, start): end for k, b in self._ranges.items() for start, end in b.items()
        }
        for where in sorted(ranges.keys() | mine_ranges.keys()):
            if ranges.get(where) != mine_ranges.get(where):
                what = f"its range from {where[3]} is not what the events say"
                wrong.append((where[:3], what))
        pauses = {name: g.pause.version for name, g in state.groups.items() if g.pause is not None}
        for group in sorted(self._pauses.keys() | pauses.keys()):
            if self._pauses.get(group) != pauses.get(group):
                wrong.append(((group, "", -1), "its pause is not what the events say"))
        levels = {name: group.level for name, group in state.groups.items()}
        for group in sorted(self._levels.keys() | levels.keys()):
            if self._levels.get(group, LEVEL) != levels.get(group, LEVEL):
                wrong.append(((group, "", -1), "its level is not what the events say"))
        if (self._identity, self._base) != (state.identity, state.base):
            wrong.append((("", "", -1), "the log's identity is not what the events say"))
        return wrong

    def _account(self, event: Any) -> _Account:
        return self._cells.setdefault((event.group_id, event.topic, event.partition), _Account())

    def _version(self, group_id: str, account: _Account) -> int:
        """The larger of the cell's version and its holder's session's (§4.2)."""
        session = self._session_of(group_id, account)
        return account.version if session is None else max(account.version, session.version)

    def _session_of(self, group_id: str, account: _Account) -> _Session | None:
        if account.holder is None or account.instance_id is None:
            return None
        return self._sessions.get((group_id, account.holder, account.instance_id))

    def _vacate(self, group_id: str, account: _Account, offset: int) -> None:
        session = self._session_of(group_id, account)
        if session is not None:
            session.held -= 1
            if not session.held:
                del self._sessions[group_id, account.holder or "", account.instance_id or ""]
        account.holder = account.instance_id = None
        account.version = offset

    def _beat(self, event: ev.Beat, wrong: list[str]) -> None:
        session = self._sessions.get((event.group_id, event.client_id, event.instance_id))
        held = 0 if session is None else session.held
        if event.cells != held:
            wrong.append(f"a heartbeat renews {event.cells} cells; its session holds {held}")
        if session is not None:
            session.version = event.offset

    def _held(
        self, event: ev.Renewed | ev.Released | ev.MessagesClaimed, wrong: list[str]
    ) -> _Account:
        account = self._account(event)
        if account.holder is None:
            wrong.append("accepted for a cell that nobody holds")
        if event.epoch != account.epoch:
            wrong.append(f"accepted under epoch {event.epoch}; the cell's is {account.epoch}")
        return account

    def _granted(self, event: ev.RangeGranted, wrong: list[str]) -> None:
        """A free range, or new messages: those that no other open range has."""
        key = (event.group_id, event.topic, event.partition)
        ranges = self._ranges.setdefault(key, {})
        if event.start in ranges:
            if ranges[event.start] != event.end:
                wrong.append(f"a range up to {ranges[event.start]} is granted up to {event.end}")
            return
        book = self._account(event)
        if max(book.next_offset, book.claimed_offset) > event.start:
            wrong.append(f"messages from {event.start} on are granted; the frontier is beyond")
        if book.holder is not None:
            wrong.append(f"a range is granted of what {book.holder} holds")
        if len(ranges) >= MAX_OPEN_RANGES:
            wrong.append(f"more than {MAX_OPEN_RANGES} ranges are open")
        book.next_offset, book.version = event.end, event.offset
        ranges[event.start] = event.end
        self._cells[event.group_id, *range_cell(*key[1:], event.start)] = _Account(
            next_offset=event.start
        )

    def _split(self, event: ev.RangeSplit, wrong: list[str]) -> None:
        key = (event.group_id, event.topic, event.partition)
        ranges = self._ranges.setdefault(key, {})
        if ranges.get(event.start) != event.end or not event.start < event.at < event.end:
            wrong.append(f"a range from {event.start} to {event.end} is split at {event.at}")
        account = self._cells.get((event.group_id, *range_cell(*key[1:], event.start)), _Account())
        if account.holder is None or max(account.next_offset, account.claimed_offset) >= event.at:
            wrong.append(f"what is given back from {event.at} on was begun, or nobody's")
        account.version = event.offset
        ranges[event.start], ranges[event.at] = event.at, event.end
        self._cells[event.group_id, *range_cell(*key[1:], event.at)] = _Account(
            version=event.offset, next_offset=event.at
        )

    def _range_done(self, event: ev.Released, account: _Account, wrong: list[str]) -> None:
        name = range_of(event.topic, event.partition)
        if name is None:
            return
        ranges = self._ranges.get((event.group_id, name.topic, name.partition), {})
        end = ranges.pop(name.start, None)
        position = max(account.next_offset, account.claimed_offset)
        if end is not None and position < end:
            wrong.append(f"a range up to {end} ended at {position}")

    def _claimed(self, event: ev.Claimed, value: bytes | None, wrong: list[str]) -> None:
        account = self._account(event)
        if event.group_id in self._pauses:
            wrong.append("a claim was accepted while the group was paused")
        self._expect(event.group_id, account, value, wrong)
        if event.epoch != self._base + event.offset or event.epoch <= account.epoch:
            wrong.append(
                f"the claim at offset {event.offset} has epoch {event.epoch}, and the one before "
                f"had {account.epoch}: epochs are the log's base ({self._base}) and the offset, "
                "and only grow"
            )
        if (event.previous_holder, event.previous_instance_id) != (
            account.holder,
            account.instance_id,
        ):
            wrong.append(f"taken from {event.previous_holder}, though {account.holder} held it")
        key = (event.group_id, event.client_id, event.instance_id)
        session = self._sessions.setdefault(key, _Session())
        session.held += 1  # before the old holder's goes: it may be the same session
        if account.holder is not None:
            self._vacate(event.group_id, account, event.offset)
        account.holder, account.instance_id = event.client_id, event.instance_id
        account.epoch, account.version = event.epoch, event.offset

    def _position_set(self, event: ev.PositionSet, value: bytes | None, wrong: list[str]) -> None:
        account = self._account(event)
        if event.group_id not in self._pauses and account.holder != event.client_id:
            wrong.append("a position was set while the group was not paused, and by no holder")
        self._expect(event.group_id, account, value, wrong)
        self._vacate(event.group_id, account, event.offset)
        for start in self._ranges.pop((event.group_id, event.topic, event.partition), {}):
            cell = (event.group_id, *range_cell(event.topic, event.partition, start))
            if self._cells.pop(cell, _Account()).holder is not None:
                wrong.append(f"the range from {start} was closed while it was held")
        account.next_offset = account.claimed_offset = event.next_offset

    def _resumed(self, event: ev.GroupResumed, value: bytes | None, wrong: list[str]) -> None:
        began = self._pauses.pop(event.group_id, None)
        if began is None:
            wrong.append("a group is resumed that was not paused")
            return
        expected = getattr(_record(value), "expected_version", None)
        if expected != began:
            wrong.append(f"the pause that began at {began} is ended; the record means {expected}")

    def _forgotten(self, event: ev.GroupForgotten, wrong: list[str]) -> None:
        if event.group_id not in self._pauses:
            wrong.append("a group was forgotten that was not paused")
        self._levels.pop(event.group_id, None)
        for book in [key for key in self._ranges if key[0] == event.group_id]:
            del self._ranges[book]
        for key in [key for key in self._cells if key[0] == event.group_id]:
            if self._cells.pop(key).holder is not None:
                wrong.append(f"{key[1]}/{key[2]} was forgotten while it was held")

    def _founded(self, event: ev.Founded, wrong: list[str]) -> None:
        if event.previous != (self._identity or ""):
            wrong.append(f"log {event.previous!r} is replaced; this one is {self._identity!r}")
        if event.base < self._base:
            wrong.append(f"epochs begin at {event.base}, below those that were: {self._base}")
        self._identity, self._base = event.identity, event.base

    def _expect(
        self, group_id: str, account: _Account, value: bytes | None, wrong: list[str]
    ) -> None:
        """The compare-and-swap: the record names the version that the cell had."""
        record = _record(value)
        if record is None:
            wrong.append("accepted, though its bytes are no record")
            return
        version = self._version(group_id, account)
        if (
            isinstance(record, ClaimingPartition | SetPosition)
            and record.expected_version != version
        ):
            wrong.append(
                f"accepted for version {record.expected_version}; the cell was at {version}"
            )


def _record(value: bytes | None) -> Message | None:
    try:
        return decode(value)
    except MalformedRecord:
        return None

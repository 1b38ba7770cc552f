"""What must hold of any coordination log, checked beside the fold. No I/O.

`Invariants` keeps its own small account of every cell, built from what the fold *reports*, and says
where a report breaks a rule of specs/PROTOCOL.md §4, or where the fold's state is not what its
reports add up to. A correct fold never makes it speak, whatever peers write; a fold that was
changed, miscompiled or fed from a damaged log does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import ClaimingPartition, SetPosition, decode
from marshal_py.protocol.rationalizer import CellKey, PartitionState

__all__ = ["Invariants"]


@dataclass(slots=True)
class _Account:
    """What the reports say of one cell."""

    holder: str | None = None
    epoch: int = -1
    version: int = -1
    next_offset: int = -1
    claimed_offset: int = -1


class Invariants:
    """The checks of one coordination partition; `state` is what the history begins from."""

    def __init__(self, state: PartitionState) -> None:
        self._cells: dict[CellKey, _Account] = {
            key: _Account(c.holder, c.epoch, c.version, c.next_offset, c.claimed_offset)
            for key, c in state.cells.items()
        }
        self._paused = set(state.paused)
        self._offset = state.next_offset - 1

    def check(self, event: ev.Event, value: bytes | None) -> list[str]:
        """Return what is wrong with an event of the record `value`: nothing, usually."""
        wrong: list[str] = []
        if isinstance(event, ev.Ignored):
            return wrong
        if event.offset < self._offset:
            wrong.append(f"offset {event.offset} was applied after offset {self._offset}")
        self._offset = max(self._offset, event.offset)
        match event:
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
                    account.holder = None
            case ev.MessagesClaimed():
                account = self._held(event, wrong)
                if event.to_offset <= account.claimed_offset:
                    wrong.append(
                        f"messages below {event.to_offset} are handed out, and those below "
                        f"{account.claimed_offset} were before"
                    )
                account.claimed_offset = event.to_offset
            case ev.PositionSet():
                self._position_set(event, value, wrong)
            case ev.GroupPaused():
                self._paused.add(event.group_id)
            case ev.GroupResumed():
                if event.group_id not in self._paused:
                    wrong.append("a group is resumed that was not paused")
                self._paused.discard(event.group_id)
            case ev.GroupForgotten():
                self._forgotten(event, wrong)
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
            for name in ("holder", "epoch", "version", "next_offset", "claimed_offset"):
                mine, found = getattr(account, name), getattr(cell, name)
                if mine != found:
                    wrong.append((key, f"the state says {name} = {found}, the events {mine}"))
            if cell.version >= state.next_offset:
                wrong.append((key, f"version {cell.version} lies beyond the end of the log"))
        wrong += [
            ((group, "", -1), "its pause is not what the events say")
            for group in sorted(self._paused ^ state.paused.keys())
        ]
        return wrong

    def _account(self, event: Any) -> _Account:
        return self._cells.setdefault((event.group_id, event.topic, event.partition), _Account())

    def _held(
        self, event: ev.Renewed | ev.Released | ev.MessagesClaimed, wrong: list[str]
    ) -> _Account:
        account = self._account(event)
        if account.holder is None:
            wrong.append("accepted for a cell that nobody holds")
        if event.epoch != account.epoch:
            wrong.append(f"accepted under epoch {event.epoch}; the cell's is {account.epoch}")
        account.version = event.offset
        return account

    def _claimed(self, event: ev.Claimed, value: bytes | None, wrong: list[str]) -> None:
        account = self._account(event)
        if event.group_id in self._paused:
            wrong.append("a claim was accepted while the group was paused")
        self._expect(account, value, wrong)
        if event.epoch != event.offset or event.epoch <= account.epoch:
            wrong.append(
                f"the claim at offset {event.offset} has epoch {event.epoch}, and the one before "
                f"had {account.epoch}: epochs are offsets, and only grow"
            )
        if event.previous_holder != account.holder:
            wrong.append(f"taken from {event.previous_holder}, though {account.holder} held it")
        account.holder, account.epoch, account.version = event.client_id, event.epoch, event.offset

    def _position_set(self, event: ev.PositionSet, value: bytes | None, wrong: list[str]) -> None:
        account = self._account(event)
        if event.group_id not in self._paused and account.holder != event.client_id:
            wrong.append("a position was set while the group was not paused, and by no holder")
        self._expect(account, value, wrong)
        account.holder, account.version = None, event.offset
        account.next_offset = account.claimed_offset = event.next_offset

    def _forgotten(self, event: ev.GroupForgotten, wrong: list[str]) -> None:
        if event.group_id not in self._paused:
            wrong.append("a group was forgotten that was not paused")
        for key in [key for key in self._cells if key[0] == event.group_id]:
            if self._cells.pop(key).holder is not None:
                wrong.append(f"{key[1]}/{key[2]} was forgotten while it was held")

    def _expect(self, account: _Account, value: bytes | None, wrong: list[str]) -> None:
        """The compare-and-swap: the record names the version that the cell had."""
        try:
            record = decode(value)
        except MalformedRecord:
            wrong.append("accepted, though its bytes are no record")
            return
        if (
            isinstance(record, ClaimingPartition | SetPosition)
            and record.expected_version != account.version
        ):
            wrong.append(
                f"accepted for version {record.expected_version}; the cell was at {account.version}"
            )

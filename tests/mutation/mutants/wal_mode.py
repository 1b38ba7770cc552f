"""Mutants of wal mode: its scheduler, what refuses a slot, and the leader.

The histories of `tests.simulation.whole.wals` must notice them, or those of
`tests/unit/harvest/core/test_wal.py`.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["WAL_MODE"]


def _wal(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"wal: {name}", f"harvest.core.{module}", (Edit(function, old, new),), "wals")


def _scheduler(name: str, function: str, old: str, new: str) -> Mutant:
    return _wal("wal", name, f"WalScheduler.{function}", old, new)


def _leader(name: str, function: str, old: str, new: str) -> Mutant:
    edit = Edit(f"WalLeader.{function}", old, new)
    return Mutant(f"wal: {name}", "harvest.runtime.wal_leader", (edit,), "wals")


WAL_MODE: tuple[Mutant, ...] = (
    _scheduler("what is below the position is skipped", "_new_rows", "commit_lsn < lsn", "False"),
    _scheduler(
        "a leader whose rows fail again and again is not well",
        "_settled",
        'self._failing.add("deliver" if had_rows else "save")',
        'self._failing.add("save")',
    ),
    _scheduler(
        "what failed is still to come",
        "_read",
        "if position.lsn >= self._failed_lsn:",
        "if True:",
    ),
    _scheduler(
        "nothing is left of what failed",
        "_read",
        "if position.lsn >= self._failed_lsn:",
        "if False:",
    ),
    _scheduler(
        "what could not be saved is saved as soon as it is open again",
        "_stream_opened",
        'or "save" in self._failing',
        "",
    ),
    _scheduler(
        "a leader whose position cannot be saved is not well",
        "step",
        'self._failing.add("save")',
        "pass",
    ),
    _scheduler(
        "a leader that can set nothing aside is not well",
        "step",
        'self._failing.add("set aside")',
        "pass",
    ),
    _scheduler(
        "a leader whose stream ends again and again is not well",
        "step",
        'self._failing.add("read")',
        "pass",
    ),
    _scheduler(
        "the first rows of a part are skipped",
        "_new_rows",
        "skip = part_rows - first",
        "skip = 0",
    ),
    _scheduler(
        "a part says how many rows are published",
        "_new_rows",
        "part_lsn, part_rows = commit_lsn, max(first + len(its), skip + first)",
        "pass",
    ),
    _scheduler(
        "sends count up to the first that is not settled",
        "_settled",
        "if not self._sends[number].is_settled:",
        "if False:",
    ),
    _scheduler(
        "after a failure nothing behind it counts", "_settled", "self._broken = True", "pass"
    ),
    _scheduler(
        "after a failure less is in flight",
        "_settled",
        "self._pace.failed(self.in_flight_records)",
        "pass",
    ),
    _scheduler(
        "after success as much is read as ever", "_settled", "self._pace.succeeded()", "pass"
    ),
    _scheduler("what is refused makes nothing smaller", "_settled", "and not failure.refused", ""),
    _scheduler(
        "a new sink says what is published",
        "_opened",
        "self.settled = found",
        "pass",
    ),
    _scheduler(
        "the first checkpoint is saved at once",
        "_stream_opened",
        "self.saved is None or",
        "",
    ),
    _scheduler(
        "a reading is for the rows there is room for", "_read_if_room", "room <= 0", "False"
    ),
    _scheduler("a failure ends the reading", "_fail", "self._reading = False", "pass"),
    _scheduler(
        "what is refused is set aside before the sink is opened",
        "_continue",
        "if self._refused and self.state in (State.RECOVERING, State.STOPPING):",
        "if False:",
    ),
    _scheduler(
        "what is a dead letter is not sent again",
        "_dead_letters_added",
        "self._left_out.update({one.bad.id: one.end_lsn for one in aside})",
        "pass",
    ),
    _scheduler(
        "a stopped leader saves its checkpoint", "_finish", "settled != saved", "settled == None"
    ),
    _scheduler(
        "the server is told when it asks", "_read", "if self._asked else []", "if 0 else []"
    ),
    _scheduler(
        "a busy database moves the checkpoint",
        "_refresh",
        "is_far = settled.lsn >= saved.lsn + _IDLE_BYTES",
        "is_far = False",
    ),
    _wal(
        "wal_slot",
        "a slot ahead of the checkpoint is refused",
        "starting_position",
        "if confirmed > found.lsn:",
        "if False:",
    ),
    _wal("wal_slot", "a lost slot is refused", "starting_position", "if slot.lost:", "if False:"),
    _wal(
        "wal_slot",
        "another server is refused",
        "_on_this_timeline",
        "if found.system != server.system:",
        "if False:",
    ),
    _wal(
        "wal_slot",
        "a replica without what is published is refused",
        "_on_this_timeline",
        "found.row_lsn > end",
        "False",
    ),
    _wal(
        "wal_slot",
        "behind the last rows, the position goes back to where the timelines parted",
        "_on_this_timeline",
        "lsn=min(found.lsn, max(end, found.row_lsn))",
        "lsn=found.lsn",
    ),
    _leader(
        "rows that were not acknowledged are not settled",
        "_send",
        "leadership.report(w.Settled((action.number,), failure))",
        "leadership.report(w.Settled((action.number,), None))",
    ),
    _leader(
        "a delivery that failed is none",
        "_settled",
        "tuple([send.number for send in sends]), failure)",
        "tuple([send.number for send in sends]), None)",
    ),
    _leader("a save that failed is none", "_saved", "if failure is None else w.SaveFailed()", ""),
    _leader(
        "all merged sends are settled",
        "_settled",
        "tuple([send.number for send in sends])",
        "(sends[-1].number,)",
    ),
    _leader(
        "it begins at the checkpoint",
        "_opened",
        "None if found is None else WalPosition.decode(found)",
        "None",
    ),
    _leader(
        "a stream that breaks off when it is told how far we are is opened anew",
        "_confirm",
        "self._events.append(w.StreamFailed())",
        "pass",
    ),
    _leader(
        "a stream that breaks off when it is read is opened anew",
        "wait",
        "return w.StreamFailed()",
        "return None",
    ),
    _scheduler(
        "rows that are not behind the checkpoint stay in the table",
        "purgeable_lsn",
        "if no_rows else saved.lsn",
        "",
    ),
)

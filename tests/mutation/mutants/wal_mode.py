"""Mutants of wal mode: its scheduler, and what refuses a slot.

The simulated histories of `tests/unit/harvest/core/test_wal.py` must notice them.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["WAL_MODE"]


def _wal(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"wal: {name}", f"harvest.core.{module}", (Edit(function, old, new),), "wal")


def _scheduler(name: str, function: str, old: str, new: str) -> Mutant:
    return _wal("wal", name, f"WalScheduler.{function}", old, new)


WAL_MODE: tuple[Mutant, ...] = (
    _scheduler("what is below the position is skipped", "_new_rows", "commit_lsn < lsn", "False"),
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
        "return self._save_now() if self.saved is None else []",
        "return []",
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
        "self._left_out |= ids",
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
)

"""Mutants of what sets rows aside, and of who leads which shard.

The histories of kinds `dead_letters` and `shards` of `tests.simulation.whole` must notice them.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["DEAD_LETTERS"]


def _dead_letters(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"dead letters: {name}", f"harvest.{module}", edits, "dead_letters")


def _shards(name: str, function: str, old: str, new: str) -> Mutant:
    module = "candidacy" if function.startswith("FairShare") else "harvester"
    edits = (Edit(function, old, new),)
    return Mutant(f"shards: {name}", f"harvest.runtime.{module}", edits, "shards")


_FILTER = [
    _dead_letters(
        "core.dead_letters",
        "a bad row is set aside",
        "BadRowFilter.find_bad",
        "if error is not None:",
        "if 0:",
    ),
    _dead_letters(
        "core.dead_letters",
        "behind a row that is aside, its key waits",
        "BadRowFilter.find_bad",
        "elif self.waits(row) or (",
        "elif (",
    ),
    _dead_letters(
        "core.dead_letters",
        "behind a bad row of the same reading, its key waits",
        "BadRowFilter.find_bad",
        "self.hold_back((row.topic, row.key), row.id)",
        "pass",
    ),
    _dead_letters(
        "core.dead_letters",
        "what comes before a row that is aside does not wait",
        "BadRowFilter.waits",
        "row.id > self.waiting.get((row.topic, row.key), row.id)",
        "(row.topic, row.key) in self.waiting",
    ),
    _dead_letters(
        "core.dead_letters",
        "what the sink refuses is set aside",
        "BadRowFilter.find_refused",
        "if row.id in failure.refused:",
        "if False:",
    ),
    _dead_letters(
        "core.dead_letters",
        "only what is refused is blamed",
        "BadRowFilter.find_refused",
        "if row.id in failure.refused:",
        "if True:",
    ),
    _dead_letters(
        "core.dead_letters",
        "without key_waits, nothing waits",
        "BadRowFilter.hold_back",
        "if self.policy.key_waits:",
        "if True:",
    ),
]

_MARKING = [
    _dead_letters(
        "core.mark",
        "what waits is loaded when a term begins",
        "MarkScheduler._opened",
        "self.row_filter.waiting = dict(event.waiting)",
        "pass",
    ),
    _dead_letters(
        "core.mark",
        "what waits is loaded when rows were set aside",
        "MarkScheduler._dead_letters_added",
        "self.row_filter.waiting = dict(event.waiting)",
        "pass",
    ),
    _dead_letters(
        "core.mark",
        "a row that need not wait any more is marked again",
        "MarkScheduler._dead_letters_added",
        "if any(a.waits and a.id not in event.ids for a in self._held_bad_rows):",
        "if False:",
    ),
    _dead_letters(
        "core.mark",
        "what is aside is not sent",
        "MarkScheduler._dead_letters_added",
        "out = {a.id for a in self._held_bad_rows}",
        "out = set()",
    ),
    _dead_letters(
        "core.mark",
        "what was refused is set aside before the sink is opened again",
        "MarkScheduler._continue",
        "if refused:",
        "if False:",
    ),
    _dead_letters(
        "core.mark",
        "nothing is marked while rows are being set aside",
        "MarkScheduler._mark_if_room",
        "self._marking or self._adding",
        "self._marking",
    ),
]

_RANGES = [
    _dead_letters(
        "core.range",
        "what is aside is not published",
        "RangeScheduler._dead_letters_added",
        "rows = [row for row in held.rows if row[0] not in ids]",
        "rows = held.rows",
    ),
    _dead_letters(
        "core.range",
        "what could not be set aside stops the delivery",
        "RangeScheduler.step",
        "self._adding, self._held = False, None\n                self._fail()",
        "self._adding, self._held = False, None",
    ),
    _dead_letters(
        "core.range",
        "what was refused and is aside is left out",
        "RangeScheduler._dead_letters_added",
        "self._left_out |= ids",
        "pass",
    ),
    _dead_letters(
        "core.range",
        "what could not be set aside is not left out",
        "RangeScheduler._continue",
        "self._adding = True\n",
        "self._adding = True\n                self._left_out |= {row.id for row in refused}\n",
    ),
    _dead_letters(
        "core.range",
        "what waits is loaded when the sink is opened",
        "RangeScheduler._opened",
        "self.row_filter.waiting = dict(waiting)",
        "pass",
    ),
    _dead_letters(
        "core.range",
        "what waits in a range is loaded when rows were set aside",
        "RangeScheduler._dead_letters_added",
        "self.row_filter.waiting = dict(waiting)",
        "pass",
    ),
    _dead_letters(
        "core.range",
        "what was refused in a range is set aside before the sink is opened again",
        "RangeScheduler._continue",
        "if refused:",
        "if False:",
    ),
    _dead_letters(
        "core.range",
        "nothing is read while rows are being set aside",
        "RangeScheduler._ask",
        "self._asking or self._adding",
        "self._asking",
    ),
    _dead_letters(
        "core.range",
        "no checkpoint is written while rows are being set aside",
        "RangeScheduler.step",
        "not (self._sends or self._adding)",
        "not self._sends",
    ),
    _dead_letters(
        "core.range",
        "the sink is not opened while rows are being set aside",
        "RangeScheduler._continue",
        "self._asking or self._opening or self._adding",
        "self._asking or self._opening",
    ),
    _dead_letters(
        "runtime.dead_letters",
        "without key_waits, nothing is loaded",
        "DeadLetterWriter.waiting_keys",
        "if self._store is None or not self.policy.key_waits:",
        "if self._store is None:",
    ),
]

_SHARDS = [
    _shards(
        "a shard whose leader has ended is given back",
        "Harvester._round",
        "if led.is_over:",
        "if False:",
    ),
    _shards(
        "a claim that came to nothing is forgotten",
        "FairShare.elected",
        "self.resign(shard)",
        "pass",
    ),
    _shards(
        "too much is given up",
        "FairShare.stand",
        "return self._give_up_one(decision, leading)",
        "return None",
    ),
    _shards(
        "what others got is not wanted any more",
        "FairShare.stand",
        "self._resign_what_others_hold(decision, wanted)",
        "pass",
    ),
    _shards("a shard that goes is stopped", "Harvester._round", "led.stop()", "pass"),
    _shards(
        "a stop finishes what is in flight",
        "Harvester._end",
        "            led.stop()\n",
        "            pass\n",
    ),
    _shards(
        "a stop reaches a leader that begins just now",
        "Harvester._harvest",
        "if led.stopping or self._stopping:",
        "if False:",
    ),
]

DEAD_LETTERS: tuple[Mutant, ...] = (*_FILTER, *_MARKING, *_RANGES, *_SHARDS)

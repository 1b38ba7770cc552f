"""Mutants of the harvester in range mode: its scheduler, its gaps, and what carries them out.

The histories of `tests.simulation.whole.ranges` must notice them, or the unit tests.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["RANGE_MODE"]


def _range(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"range: {name}", f"harvest.{module}", (Edit(function, old, new),), "ranges")


def _scheduler(name: str, function: str, old: str, new: str) -> Mutant:
    return _range("core.range", name, f"RangeScheduler.{function}", old, new)


def _gaps(name: str, function: str, old: str, new: str) -> Mutant:
    return _range("core.gaps", name, f"Gaps.{function}", old, new)


def _leader(name: str, function: str, old: str, new: str) -> Mutant:
    return _range("runtime.range_leader", name, f"RangeLeader.{function}", old, new)


_EVIDENCE = [
    _gaps(
        "whoever holds is a suspect of a new gap",
        "judged",
        "remaining, due = running | nameless, True",
        "remaining, due = nameless, True",
    ),
    _gaps(
        "who is nameless is a suspect of a new gap",
        "judged",
        "remaining, due = running | nameless, True",
        "remaining, due = running, True",
    ),
    _gaps(
        "who is nameless is a suspect of every gap",
        "judged",
        "suspects & running | nameless",
        "suspects & running",
    ),
    _gaps(
        "who began later is no suspect",
        "judged",
        "suspects & running | nameless",
        "running | nameless",
    ),
    _gaps(
        "a suspect that ended is reason to look",
        "judged",
        "due = due or not suspects <= remaining",
        "pass",
    ),
    _gaps(
        "a gap of which one suspect is left is not dead",
        "looked",
        "if cohort.remaining:",
        "if cohort.suspects is None:",
    ),
    _gaps("what nobody can commit is dead", "looked", "if cohort.remaining:", "if True:"),
    _gaps(
        "what was seen is no gap any more",
        "looked",
        "ranges = subtract(cohort.ranges, visible)",
        "ranges = list(cohort.ranges)",
    ),
    _gaps(
        "what is not drawn is not dead",
        "_split",
        "if future or cohort.suspects is _FUTURE:",
        "if False:",
    ),
]

_CYCLE = [
    _scheduler("what a window misses is a gap", "_answered", ".plus(window.missing)", ""),
    _scheduler(
        "gaps are asked about before the window is sent",
        "_answered",
        "self._question = _Question.HOLDERS\n                    return []",
        "pass",
    ),
    _scheduler(
        "what appeared is looked up before the window is sent",
        "_answered",
        "self._question = _Question.LOOKUP\n                    return []",
        "pass",
    ),
    _scheduler(
        "what was found is fetched",
        "_answered",
        "self._late = union((*self._late, *ids))",
        "pass",
    ),
    _scheduler(
        "late rows and the window go in the order of their ids",
        "_advance",
        "here = sorted((*late, *here), key=_id)",
        "here = [*here, *late]",
    ),
    _scheduler(
        "the window does not pass a late row that is not fetched yet",
        "_answered",
        "return self._advance(upto, rows)",
        "return self._advance(self._window.last_id, rows)",
    ),
    _scheduler(
        "what was sent of a window is not sent again",
        "_advance",
        "self._window = self._window._replace(rows=window[len(here) :])",
        "pass",
    ),
    _scheduler(
        "where the gaps do not fit, the window is cut off",
        "_advance",
        "else window[: _count(window, reach)]",
        "else window",
    ),
    _scheduler(
        "where the gaps do not fit, what is behind is read again",
        "_advance",
        "self.gaps = self.gaps.upto(self.last_id)",
        "pass",
    ),
    _scheduler(
        "a checkpoint is as large as Kafka takes", "_reach", "if self._fits(upto):", "if 1:"
    ),
]

_POSITION = [
    _scheduler(
        "it goes on behind the committed position",
        "_opened",
        "self.last_id = position.last_id",
        "pass",
    ),
    _scheduler(
        "the gaps of the committed position are open",
        "_opened",
        "self.gaps = self.gaps.plus(position.gaps)",
        "pass",
    ),
    _scheduler(
        "what was found before a failure is forgotten",
        "_opened",
        "self._late = ()",
        "pass",
    ),
    _scheduler(
        "the position never goes back to the first id",
        "step",
        "max(self.last_id, bounds.first - 1)",
        "bounds.first - 1",
    ),
    _scheduler(
        "gaps are in the checkpoint",
        "_position",
        "union((*self.gaps.ranges, *late))",
        "union(late)",
    ),
    _scheduler(
        "what was found and is not sent is in the checkpoint",
        "_position",
        "union((*self.gaps.ranges, *late))",
        "self.gaps.ranges",
    ),
    _scheduler(
        "the position covers what was sent",
        "_send",
        "self._position(self.last_id, self._late)",
        "self._position(self.last_id - 1, self._late)",
    ),
    _scheduler(
        "the position covers nothing that was not sent",
        "_send",
        "self._position(self.last_id, self._late)",
        "self._position(self.last_id + 1, self._late)",
    ),
    _scheduler(
        "nothing is refreshed while something is in flight",
        "step",
        "self._sends or self._adding",
        "self._adding",
    ),
    _range(
        "runtime.publisher",
        "the checkpoint is that of the last send",
        "Publisher._publish",
        "self._checkpoint(sends[-1])",
        "self._checkpoint(sends[0])",
    ),
    _leader(
        "all merged sends are settled",
        "_settled",
        "tuple([send.number for send in sends])",
        "(sends[0].number,)",
    ),
]

_FAILURE = [
    _scheduler("a failure stops everything", "_fail", "self.state = State.RECOVERING", "pass"),
    _scheduler(
        "before the sink is opened again, all sends have come back",
        "_continue",
        "not (self._sends or self._asking",
        "not (self._asking",
    ),
    _scheduler(
        "before the sink is opened again, the table has answered",
        "_continue",
        "not (self._sends or self._asking",
        "not (self._sends",
    ),
    _scheduler(
        "an answer that came too late changes nothing",
        "step",
        "if self.state is State.RUNNING:\n                    actions = self._answered(event)",
        "actions = self._answered(event)",
    ),
    _scheduler(
        "a question without an answer is a failure",
        "step",
        "self._asking = False\n                    self._fail()",
        "self._asking = False",
    ),
    _scheduler(
        "a send that failed is a failure",
        "_settled",
        "else:\n            self._fail()",
        "else:\n            pass",
    ),
    _scheduler(
        "losing the lease ends it",
        "step",
        'self.state = State.DONE\n                return [Finish("the lease is lost")]',
        "return []",
    ),
    _scheduler("a stop ends it", "_continue", 'return [Finish("stopped")]', "return []"),
    _range(
        "runtime.publisher",
        "who does not lead does not open",
        "Publisher.open",
        "if not leadership.may_act():",
        "if False:",
    ),
    _range(
        "runtime.publisher",
        "the sink asks whether the lease is held",
        "Publisher.open",
        "self._sink.open(self._watch.may_act)",
        "self._sink.open(lambda: True)",
    ),
]

RANGE_MODE: tuple[Mutant, ...] = (*_EVIDENCE, *_CYCLE, *_POSITION, *_FAILURE)

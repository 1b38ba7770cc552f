"""Mutants of whole clients: `Consumer` and its parts, and the harvester in mark mode.

The histories of `tests.simulation.whole` must notice them.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["CLIENTS"]


def _consumers(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"consumer: {name}", f"marshal_py.{module}", edits, "consumers")


def _iteration(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.iteration", name, f"Iteration.{function}", old, new)


def _alo(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.at_least_once", name, f"AtLeastOnce.{function}", old, new)


def _amo(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.at_most_once", name, f"AtMostOnce.{function}", old, new)


def _held_partition(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.held_partition", name, f"HeldPartition.{function}", old, new)


def _partitions(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.partitions", name, f"Partitions.{function}", old, new)


def _fetcher(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.fetcher", name, f"Fetcher.{function}", old, new)


def _positions(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.positions", name, f"Positions.{function}", old, new)


def _planned(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.partition_claims", name, f"PartitionClaims.{function}", old, new)


def _view(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("consumer.group_view", name, f"GroupView.{function}", old, new)


def _shares(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("protocol.shares", name, f"Shares.{function}", old, new)


def _balance(name: str, function: str, old: str, new: str) -> Mutant:
    return _consumers("protocol.balance", name, function, old, new)


def _keys(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"keys: {name}", f"marshal_py.{module}", edits, "keys")


def _harvest(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"harvest: {name}", f"harvest.{module}", edits, "harvesters")


def _mark(name: str, function: str, old: str, new: str) -> Mutant:
    return _harvest("core.mark", name, f"MarkScheduler.{function}", old, new)


def _leader(name: str, function: str, old: str, new: str) -> Mutant:
    return _harvest("runtime.mark_leader", name, f"MarkLeader.{function}", old, new)


_HANDING_OUT = [
    _iteration(
        "the lease is looked at for every message",
        "hand_out",
        "left_s <= 0 or not part.flows",
        "not part.flows",
    ),
    _iteration(
        "a lease that changed is looked at",
        "hand_out",
        "or holding.lease_until_ns is not until_ns ",
        "",
    ),
    _iteration(
        "the stage is looked at for every message",
        "hand_out",
        " is not until_ns or not part.flows:",
        " is not until_ns:",
    ),
    _iteration(
        "the stage is looked at before the lease counts",
        "hand_out",
        "(left_s <= 0 or not part.flows)",
        "left_s <= 0",
    ),
    _iteration(
        "nothing goes out without a lease",
        "_may_hand_out",
        "if not part.claim.held:\n            return False",
        "pass",
    ),
    _consumers(
        "consumer.parked",
        "what was not handed out is kept",
        "Parked.add_first",
        "run.part.parked.appendleft(run)",
        "pass",
    ),
    _consumers(
        "consumer.parked",
        "what was put back comes again",
        "Parked.add_first",
        "self._parts.append(run.part)",
        "pass",
    ),
    _iteration(
        "what was put back is not done",
        "_put_back",
        "part.finish(run, returned=rest[0])",
        "part.finish(run)",
    ),
    _alo(
        "what is fetched waits for the lease",
        "next_run",
        "if part.parked or part.is_paused or not part.claim.held:",
        "if False:",
    ),
    _alo(
        "what is fetched waits for what is parked",
        "next_run",
        "if part.parked or part.is_paused or not part.claim.held:",
        "if part.is_paused or not part.claim.held:",
    ),
    _alo(
        "parked messages keep their order",
        "_unpark",
        "self._ready.extendleft(reversed(part.parked))",
        "self._ready.extend(part.parked)",
    ),
    _iteration(
        "a batch in hand is not done",
        "take_batch",
        "run.be(run.messages, iter(()), whole=True)",
        "run.be(run.messages, iter(()))",
    ),
    _partitions(
        "positions go with heartbeats",
        "refresh_offsets",
        "driver_of(self._marshal).claimant.advance(holding, position)",
        "pass",
    ),
    _partitions(
        "at most once, a position passes what no message is in",
        "refresh_offsets",
        "position = end if behind <= part.claim.position < end else -1",
        "position = -1",
    ),
    _held_partition(
        "a position passes what no message is in",
        "_above",
        "if position == behind and end > position:",
        "if False:",
    ),
    _held_partition(
        "and nothing that was fetched and is not done",
        "_above",
        "if position == behind and end > position:",
        "if end > position:",
    ),
    _held_partition(
        "what an earlier holder has done is passed over",
        "without_done",
        "if not _is_in(ranges, m.offset())",
        "",
    ),
    _held_partition(
        "an acknowledgement between two runs moves nothing past what is unhandled",
        "acknowledge",
        "self._done.add(offset)\n            elif",
        "self._base = offset + 1\n            elif",
    ),
    _held_partition(
        "a loop that is left has its last message again",
        "rewind",
        "max(run.handed_out - 1, 0)",
        "run.handed_out",
    ),
    _held_partition(
        "what was acknowledged does not come again",
        "_leave_out_acknowledged",
        "if m.offset() not in self._done",
        "",
    ),
    _consumers(
        "consumer.positions",
        "another id is another topic",
        "judge",
        "if is_known and topic_id != known_id:",
        "if False:",
    ),
    _consumers(
        "consumer.positions",
        "what was deleted lies below the first message",
        "judge",
        "if position < first:",
        "if position <= first:",
    ),
    _consumers(
        "consumer.positions",
        "what was truncated lies beyond the end",
        "judge",
        "if position > end:",
        "if position >= end:",
    ),
    _consumers(
        "consumer.positions",
        "of an unknown topic nobody knows what was truncated",
        "judge",
        'return "truncated" if is_known else "unknown"',
        'return "truncated"',
    ),
    _amo(
        "no more is claimed than a crash may cost",
        "_room",
        "self._workers + int(LOSS_S * self._pace) - claimed",
        "MAX_UNFETCHED",
    ),
    _amo(
        "what handlers have counts",
        "_room",
        "self._in_hands() + self._in_hand",
        "0",
    ),
    _amo(
        "the pace of handlers is measured over some of their turns",
        "_measure_handlers",
        "max(PACE_S, 3 * turn_s)",
        "0",
    ),
    _fetcher(
        "who fetches from a consumer that was closed finds nothing",
        "fetch",
        "if self._is_closed:",
        "if False:",
    ),
    _consumers(
        "client.driver",
        "positions are refreshed for heartbeats that are due",
        "Driver._turn",
        "self.refresh_offsets()",
        "pass",
    ),
    _consumers(
        "client.marshal",
        "positions are refreshed when metadata is told",
        "Marshal.set_member_metadata",
        "self._driver.refresh_offsets()",
        "pass",
    ),
    _consumers(
        "client.claim",
        "positions are refreshed when what goes with a claim is flushed",
        "Claim.set_metadata",
        "driver.refresh_offsets()",
        "pass",
    ),
    Mutant(
        "consumer: a message in hand is not done",
        "marshal_py.consumer.held_partition",
        (
            Edit(
                "Run.in_hand",
                "max(len(messages) - length_hint(rest) - 1, 0)",
                "min(len(messages) - length_hint(rest), len(messages) - 1)",
            ),
        ),
        "consumers",
    ),
    _held_partition(
        "what was put back counts as not done",
        "finish",
        "run.end if returned is None else returned.offset()",
        "run.end",
    ),
    _held_partition(
        "acknowledgements have gaps",
        "_manual_position",
        "if offset not in done:\n                        break",
        "pass",
    ),
    _held_partition(
        "acknowledgements count",
        "acknowledge",
        "if offset >= self._base and offset not in self._released:",
        "if False:",
    ),
    _held_partition("what was put back is not waited for", "_unhand", "last.pop()", "break"),
]

_AT_MOST_ONCE = [
    _amo(
        "messages are claimed before they go out",
        "_verdict",
        "if part.claim.claimed_offset >= run.end:",
        "if True:",
    ),
    _amo(
        "no answer is no",
        "_verdict",
        "return False if core_of(part.claim).ended.is_set() else None",
        "return True",
    ),
    _amo(
        "a rejection is one",
        "_verdict",
        "                    return None\n        return False",
        "                    return None\n        return True",
    ),
    _amo(
        "of unknown outcome is asked again",
        "_verdict",
        'if detail == "unknown outcome":',
        "if False:",
    ),
    _amo(
        "claimed messages wait for the lease",
        "next_run",
        "if verdict and run.part.claim.held and not run.part.parked:",
        "if verdict and not run.part.parked:",
    ),
    _amo(
        "claimed messages keep their order",
        "next_run",
        " and not run.part.parked:",
        ":",
    ),
    _amo(
        "claimed messages come before what was proposed later",
        "_unpark",
        "self._proposed.extendleft(r for r in reversed(part.parked) if r.seq >= 0)",
        "self._proposed.extend(r for r in part.parked if r.seq >= 0)",
    ),
    _amo(
        "what is claimed ahead is there",
        "_may_claim_to",
        "return min(part.end, ",
        "return min(",
    ),
    _amo(
        "what was claimed ahead is fetched before the partition goes",
        "has_claimed",
        "(part.is_owed and time.monotonic() < part.owed_until_s)",
        "False",
    ),
    _amo(
        "what was claimed ahead and fetched goes out before the partition goes",
        "has_claimed",
        "run.part is part and _is_claimed_ahead(run)",
        "False",
    ),
    _amo(
        "who ends claims no more",
        "_should_claim_ahead",
        " or self._winds_up",
        "",
    ),
    _amo(
        "who ends fetches what was claimed",
        "_owes_fetches",
        "return any(part.is_owed for part in list(self._fetcher.active.values())) or any(",
        "return any(",
    ),
    _amo(
        "what was rejected is claimed anew",
        "_forget_verdict",
        "if rejected:",
        "if False:",
    ),
    _amo(
        "what an unknown outcome left is claimed anew, all of it",
        "_propose",
        "part.proposed_seq = core_of(part.claim)",
        "return part.claim",
    ),
    _amo(
        "a verdict is for all that was proposed together",
        "_forget_verdict",
        "part.proposed_seq != run.seq and all(",
        "True or all(",
    ),
    _consumers(
        "consumer.at_most_once",
        "what somebody else claimed does not go out",
        "_is_claimed_ahead",
        "part.floor <= run.messages[0].offset() < part.proposed",
        "run.messages[0].offset() < part.proposed",
    ),
    _consumers(
        "consumer.at_most_once",
        "of what was fetched, only what was claimed goes out in the end",
        "_claimed_ahead",
        "    if is_last or part.stage is Stage.DRAINING:",
        "    if False:",
    ),
    _consumers(
        "consumer.fetcher",
        "offsets without a message are not waited for",
        "Fetcher._on_error",
        "part.fetched = max(part.fetched, message.offset())",
        "pass",
    ),
    Mutant(
        "consumer: a claim of messages that turns up late is known",
        "marshal_py.protocol.claimant",
        (
            Edit(
                "Claimant._on_messages",
                "            holding.claimed_offset = event.to_offset\n        sent =",
                "            pass\n        sent =",
            ),
        ),
        "consumers",
    ),
]

_ASSIGNMENT = [
    _positions(
        "a partition starts at its position",
        "start_of",
        "return part.claim.position",
        "return -1",
    ),
    _positions(
        "at most once, it starts behind what was claimed",
        "start_of",
        "return part.claim.position",
        "return part.claim.next_offset",
    ),
    _partitions(
        "a pause stops the holder", "advance", "self.drain(part)\n        if", "pass\n        if"
    ),
    _partitions("what is in hand is waited for", "_is_drained", "self._busy_with(part) or ", ""),
    _partitions(
        "a partition that is given back is released",
        "_give_back",
        "claim.release(wait=False)",
        "pass",
    ),
    _partitions(
        "the position is stored before the release", "_give_back", "claim.commit(position)", "pass"
    ),
    _fetcher(
        "a pause of fetching does not outlive the assignment",
        "unassign",
        "self._kafka.resume(where)",
        "pass",
    ),
    _partitions(
        "fetching resumes with the lease",
        "advance",
        "self._fetcher.suspend(part, not part.claim.held)",
        "self._fetcher.suspend(part, part.suspended or not part.claim.held)",
    ),
    _planned("what others got is not wanted any more", "_plan", "self._cancel(decision)", "pass"),
    _planned("too much is given up", "_plan", "self._give_up_one(decision, now_s)", "pass"),
    _planned(
        "what is free is claimed", "_plan", "for unit in decision.plan.claim:", "for unit in ():"
    ),
    _consumers(
        "consumer.positions",
        "a partition that was cut off has grown again",
        "Positions.restart_of",
        "end_now if part.truncated_at < 0 else min(end_now, part.truncated_at)",
        "end_now",
    ),
    _planned(
        "what a handler has is kept while something else can go",
        "_next_to_give",
        "if not self._partitions.is_busy(part)",
        "",
    ),
    _planned(
        "no more than is to go is on its way",
        "_next_to_give",
        ">= plan.surplus",
        ">= len(units)",
    ),
    _planned(
        "one handler keeps nothing else from going",
        "_give_up_one",
        "if now_s - since_s < interval_s:",
        "if True:",
    ),
    _planned(
        "what came back to its giver blocks nothing",
        "_give_up_one",
        "given is not None and given.stage is not Stage.ACTIVE",
        "given is not None",
    ),
    _partitions(
        "a claim that ended is off the list",
        "remove",
        "self.by_key.pop(part.key, None)",
        "pass",
    ),
    _view(
        "the dead have no share",
        "_look_at_member",
        "is_alive = now_ns <= silent_ns and not self._was_dead(member, me, observer)",
        "is_alive = True",
    ),
    _view(
        "who was dead before has no share",
        "_look_at_member",
        " and not self._was_dead(member, me, observer)",
        "",
    ),
    _view(
        "who was there before is looked at again when this client has joined",
        "_hear_beat",
        "self._members_due.update(self._unheard)",
        "pass",
    ),
    _view(
        "a heartbeat may tell something else", "_hear_beat", "self._members_due.add(name)", "pass"
    ),
    _view(
        "who comes back to life holds what it held",
        "_hear_beat",
        "self._units_due.update(doubted)",
        "pass",
    ),
    _view(
        "silence makes a member due",
        "_look_at_member",
        "self._set_timer(silent_ns, (name, _MEMBER))",
        "pass",
    ),
    _view("silence makes a unit due", "_who_holds", "self._set_timer(silent_ns, unit)", "pass"),
    _view(
        "the earliest timer counts",
        "_set_timer",
        "pending_ns is None or at_ns < pending_ns",
        "pending_ns is None",
    ),
    _view(
        "a timer that went off can be set again",
        "_take_timers",
        "del self._timer_of[key]",
        "pass",
    ),
    _view(
        "what the dead held is free",
        "_who_holds",
        "self._is_alive.get(cell.holder) is False",
        "False",
    ),
    _view("what is silent is free", "_who_holds", "now_ns > silent_ns or ", ""),
    _view(
        "what somebody held is looked at when it dies or comes back",
        "_look_at_member",
        "self._units_due.update(self._held_by.get(name, ()))",
        "pass",
    ),
    _view("a claim is heard", "hear", "Claimed | Released", "Released"),
    _view("a release is heard", "hear", "Claimed | Released", "Claimed"),
    _view("a position that is set is heard", "hear", " | PositionSet", ""),
    _view("a group that is forgotten is heard", "hear", "self._all_due = True", "pass"),
    _view(
        "a cost that is published is heard",
        "hear",
        "self._units_due.add((event.topic, event.partition))\n            return False",
        "return False",
    ),
    _view(
        "another world is looked at from the start",
        "refresh",
        "self._all_due or not _are_same(self._states, world.states)",
        "self._all_due",
    ),
    _view(
        "who is not in another world is dropped",
        "_begin_anew",
        "self._members_due.update(self._is_alive)",
        "pass",
    ),
    _view(
        "units that are no more are dropped",
        "refresh",
        "exist ^ self._exist",
        "exist - self._exist",
    ),
    _view(
        "costs count once all want them",
        "refresh",
        "self._units_due.update(self._exist)",
        "pass",
    ),
    _view(
        "lags that are not measured any more do not count",
        "refresh",
        "self._units_due.update(lags, self._lags)",
        "self._units_due.update(lags)",
    ),
    _view(
        "what was resumed is not resumed again",
        "_look_at_unit",
        "self.to_resume.discard(unit)",
        "pass",
    ),
    _consumers(
        "consumer.assignor",
        "a plan is made again when something changed",
        "Assignor.decide",
        "if self._target_of != (view.shares.version, view.by_lag):",
        "if self._target_of is None:",
    ),
    _shares(
        "a unit has one holder", "set_unit", "units.discard(unit, before, cost_before)", "pass"
    ),
    _shares(
        "a unit that weighs something else is a change",
        "set_unit",
        " and cost_before == cost",
        "",
    ),
    _shares("a change is told", "set_unit", "self.version += 1", "pass"),
    _shares("a change of members is told", "set_member", "self.version += 1", "pass"),
    _shares("a unit that goes is a change", "remove_unit", "self.version += 1", "pass"),
    _shares(
        "who wants what nobody wanted may hold it",
        "_change_kind",
        "is_new or (old is not None and old not in kinds)",
        "old is not None and old not in kinds",
    ),
    _shares(
        "what nobody wants any more is nobody's",
        "_change_kind",
        "is_new or (old is not None and old not in kinds)",
        "is_new",
    ),
    _shares(
        "who wants as another does may hold the same",
        "_change_kind",
        "insort(units.members, name)",
        "pass",
    ),
    _shares(
        "who wants something else may not hold it",
        "_change_kind",
        "_remove(units.members, name)",
        "pass",
    ),
    _shares(
        "classes come in the order of their members",
        "classes",
        "sorted((u for u in found if u.members), key=lambda units: units.members)",
        "[u for u in found if u.members]",
    ),
    Mutant(
        "consumer: what a holder gives up is off its load",
        "marshal_py.protocol.shares",
        (Edit("UnitClass.discard", "self.load[holder] -= cost", "pass"),),
        "consumers",
    ),
    _balance("shares are evened out", "_by_count", "counts.even_out()", "pass"),
    _balance(
        "a limit is kept",
        "_cap",
        "_NO_LIMIT if subscription.max_claims is None else subscription.max_claims",
        "_NO_LIMIT",
    ),
    _balance(
        "a weight counts for who takes",
        "_Counts.least",
        "(total[name] + 1) / weight[name]",
        "(total[name] + 1)",
    ),
    _balance(
        "a weight counts for who has taken",
        "_Counts.above",
        "(self.total[name] + 1) / self.weight[name]",
        "(self.total[name] + 1)",
    ),
    _balance(
        "a weight counts for who gives",
        "_Counts.level",
        "self.total[name] / self.weight[name]",
        "self.total[name]",
    ),
    _balance(
        "a weight counts where much is free",
        "_Counts._fill_up",
        "int(surface * self.weight[name]",
        "int(surface",
    ),
    _balance(
        "a limit counts where much is free",
        "_Counts._fill_up",
        "min(max(share, 0), self.cap[name] - self.total[name])",
        "max(share, 0)",
    ),
    _balance(
        "who has most gets nothing of what is free",
        "_Counts._fill_up",
        "if len(below) < len(rising):",
        "if False:",
    ),
    _balance(
        "units go along chains",
        "_Counts.even_out",
        "while (chain := self._best_chain()) is not None:",
        "while (chain := None) is not None:",
    ),
    _balance(
        "by lag, a weight counts for who takes what is free",
        "_Loads.taker",
        "(self.total[name] + cost) / wants.weight",
        "self.level(name) + cost",
    ),
    _balance(
        "by lag, a weight counts for who takes from another",
        "_Loads.best_move",
        "1 / weight + 1 / wants.weight",
        "1 / weight + 1",
    ),
    _balance(
        "by lag, a weight counts for who gives",
        "_Loads.best_move",
        "1 / weight + 1 / wants.weight",
        "1 + 1 / wants.weight",
    ),
    _balance(
        "by lag, a weight counts for what somebody has",
        "_Loads.level",
        "self.total[name] / self.members[name].weight",
        "self.total[name]",
    ),
    _balance(
        "by lag, a unit does not come back",
        "_Loads.best_move",
        "high = min(high, gap * wants.weight * (1 - _ROUNDING))",
        "pass",
    ),
    _balance(
        "by lag, who has much more weight is another kind of member",
        "_alike",
        "wants.weight, wants.prefer",
        "1.0, wants.prefer",
    ),
    _balance(
        "by lag, what is out of date is passed over",
        "_Loads.least",
        "heap[0][0] == self.total[heap[0][1][1]] and ",
        "",
    ),
]


def _source(name: str, old: str, new: str, function: str = "differences") -> Mutant:
    return _harvest("core.source", f"database: {name}", function, old, new)


def _guard(name: str, function: str, old: str, new: str) -> Mutant:
    function = f"SourceGuard.{function}"
    return _harvest("runtime.source_guard", f"database: {name}", function, old, new)


_SOURCE = [
    _guard(
        "rows under ids given again do not hide the one before",
        "saw",
        "self._unchecked = self._unchecked or row",
        "self._unchecked = row",
    ),
    _guard(
        "Kafka hears of the row that was not compared",
        "_save",
        "self._unchecked or self.row",
        "self.row",
    ),
    _guard(
        "a term compares what the one before has not", "begin", "self._unchecked = self.row", "pass"
    ),
    _guard("a row that was compared is done with", "rows_fit", "self._unchecked = None", "pass"),
    _source("the server", "before.server != now.server", "False"),
    _source("a lower visit", "now.visit < before.visit or", "False or", "visit_problem"),
    _source("another text for a visit", "now.token != before.token", "False", "visit_problem"),
    _source("a timeline that went back", "now.timeline < before.timeline", "False"),
    _source("a replica that was promoted", "if now.timeline > before.timeline:", "if False:"),
    _source("where it was promoted is not known", "promoted_at is None or", "False and"),
    _source("it had all that was harvested", "promoted_at < before.log", "False"),
    _source("the end of the log", "elif now.log < before.log:", "elif False:"),
    _source("the table", "before.table != now.table", "False"),
    _source("what gives ids", "before.sequence != now.sequence", "False"),
    _guard("the registration when a term begins", "begin", "if problem is not None:", "if False:"),
    _guard("the source when a term begins", "begin", "self._compare(before, now)", "pass"),
    _guard("what the checkpoint rests on", "begin", "log=checkpoint[1]", "log=before.log"),
    _guard("the registration later", "look", "if problem is not None:", "if False:"),
    _guard("it is time to look", "look", "now_s < self._looked_s + _LOOK_S", "True"),
    _guard("a visit while rows are seen", "saw", "self._busy = True", "pass"),
    _guard("the log while rows are seen", "saw", "store.log_end())", "0)"),
    _guard("Kafka hears of a visit", "_visit", "self._save(source)", "pass"),
    _guard("no copy before the term", "fits", "return False", "return True"),
    _guard("no copy into another database", "fits", "return same and", "return True or"),
]


_MARK = [
    _mark(
        "a row that is under way is not sent again",
        "_marked",
        "if not self._known.isdisjoint([row.id for row in rows]):",
        "if False:",
    ),
    _mark(
        "of a failed delivery nothing is purged",
        "_published",
        "self._broken_keys.update((row.topic, row.key) for row in rows)\n            return []",
        "return [row.id for row in rows]",
    ),
    _mark(
        "what was not delivered is not purged",
        "_published",
        "if row.id in undelivered:",
        "if False:",
    ),
    _mark(
        "behind a failed row, its key waits",
        "_published",
        "self._broken_keys.add(key)",
        "pass",
    ),
    _mark("one purge at a time", "_purge", "if self._purging:\n            return []", "pass"),
    _mark(
        "what the checkpoint names is deleted",
        "_opened",
        "return [Clear(event.checkpoint)]",
        "self._opening = False; self.state = State.RUNNING; return []",
    ),
    _mark("a failure stops everything", "_fail", "self.state = State.RECOVERING", "pass"),
    _mark(
        "a failure is waited out",
        "_continue",
        "not (self._batches or busy)",
        "not busy",
    ),
    _mark("a new term has no broken keys", "_opened", "self._broken_keys.clear()", "pass"),
    _mark(
        "a mark of unknown outcome is a failure",
        "step",
        "self._marking = False\n                self._fail()",
        "self._marking = False",
    ),
    _mark(
        "a failed purge is made again",
        "_purge_failed",
        "return self._purge(self._pace.backoff_ms())",
        "return []",
    ),
    _mark("a purge that failed ends the term", "_purge_failed", "self._fail()", "pass"),
    _mark("what is purged is forgotten", "_purged", "self._forget(number)", "pass"),
    _mark(
        "another row of a known id is no repetition",
        "_marked_again",
        "row != sent for row, sent, _ in again",
        "row.id != sent.id for row, sent, _ in again",
    ),
    _mark(
        "a purge names every tag of its rows",
        "_purge",
        "for tag in self._batches[n].tags]",
        "for tag in self._batches[n].tags[:1]]",
    ),
    _mark(
        "a row that got another tag during its purge is purged again",
        "_purged",
        "if len(self._batches[number].tags) == tags:",
        "if True:",
    ),
    _mark(
        "the checkpoint names no batch too many",
        "_checkpoint",
        "Checkpoint(self.epoch, self._term, batch, low, high)",
        "Checkpoint(self.epoch, self._term, batch + 1, low, high)",
    ),
    _mark(
        "the checkpoint names no batch too few",
        "_checkpoint",
        "Checkpoint(self.epoch, self._term, batch, low, high)",
        "Checkpoint(self.epoch, self._term, max(0, batch - 1), low, high)",
    ),
    _mark(
        "the checkpoint reaches down to the first row",
        "_checkpoint",
        "low = min(",
        "low = max(",
    ),
    _mark(
        "the checkpoint reaches up to the last row",
        "_checkpoint",
        "high = max(",
        "high = min(",
    ),
    _mark(
        "losing the lease ends it",
        "step",
        'self.state = State.DONE\n                return [Finish("the lease is lost")]',
        "return []",
    ),
    _mark("a stop ends it", "_continue", 'return [Finish("stopped")]', "return []"),
    _harvest(
        "runtime.marked_rows",
        "a mark is good for the lease only",
        "MarkedRows.mark",
        "action.batch, action.limit, valid_ms)",
        "action.batch, action.limit, 1e9)",
    ),
    _harvest(
        "runtime.publisher",
        "the sink asks whether the lease is held",
        "Publisher.open",
        "self._sink.open(self._watch.may_act)",
        "self._sink.open(lambda: True)",
    ),
    _harvest(
        "runtime.publisher",
        "who does not lead does not open",
        "Publisher.open",
        "if not leadership.may_act():",
        "if False:",
    ),
    _harvest(
        "core.pacing",
        "after a delivery that failed the next is smaller",
        "Pace.failed",
        "max(1, self._failed_rows // _SMALLER)",
        "self._failed_rows",
    ),
    _harvest(
        "core.pacing",
        "what is in flight counts, for it is delivered together",
        "Pace.room",
        "room = most - records",
        "room = limits.max_in_flight_records - records",
    ),
    _harvest(
        "core.mark",
        "what fails late makes nothing larger",
        "MarkScheduler._settled",
        "self.state is State.RUNNING and not event.failure.refused",
        "False",
    ),
    _harvest(
        "runtime.publisher",
        "the checkpoint is that of the last batch",
        "Publisher._publish",
        "self._checkpoint(sends[-1])",
        "self._checkpoint(sends[0])",
    ),
    _harvest(
        "runtime.mark_leader",
        "all merged batches are settled",
        "_settled",
        "tuple([send.batch for send in sends])",
        "(sends[0].batch,)",
    ),
    _harvest(
        "runtime.leadership",
        "the end of the lease is told",
        "Leadership._watch",
        "self.report(LeaseLost())",
        "pass",
    ),
    _harvest(
        "runtime.candidacy",
        "who is done hands over",
        "Election.resign",
        "_release(claim, wait=wait)",
        "pass",
    ),
    _harvest(
        "core.mark_checkpoint",
        "a checkpoint keeps its batch",
        "Checkpoint.decode",
        "int(batch)",
        "int(batch) + 1",
    ),
]

_SLOTS = [
    _keys(
        "consumer.slot_stream",
        "what a slot has had is passed over",
        "SlotStream.sort",
        "mine[0].offset() < part.read_to",
        "False",
    ),
    _keys(
        "consumer.slot_stream",
        "a slot that starts lower has Kafka go back",
        "SlotStream.follow",
        "not 0 <= first - self._at <= LEAP",
        "first - self._at > LEAP",
    ),
    _keys(
        "consumer.slot_stream",
        "who wants nothing now is not waited for",
        "SlotStream.follow",
        "[part for part in parts if part.wants_messages]",
        "list(parts)",
    ),
    _keys(
        "consumer.slot_stream",
        "the position follows where a slot has no messages",
        "SlotStream.passed",
        "part.reached(end)",
        "pass",
    ),
    _keys(
        "consumer.slot_stream",
        "what was read is not read for a slot again",
        "SlotStream.passed",
        "part.read_to = end",
        "pass",
    ),
    _keys(
        "consumer.slot_stream",
        "what Kafka lost is asked for again",
        "SlotStream.follow",
        "self._at is None or self.is_lost or",
        "self._at is None or",
    ),
    _keys(
        "consumer.slot_stream",
        "a message belongs to the slot of its key",
        "SlotStream.sort",
        "of(key, 0, False)",
        "of(key, 1, False)",
    ),
    _keys(
        "consumer.partitions",
        "whether a slot may be worked on is asked",
        "Partitions._activate",
        "if not self._agreement.allows(part):",
        "if False:",
    ),
    _keys(
        "consumer.agreement",
        "who differs does not work",
        "Agreement._agrees",
        "if cell.position != self._slots:",
        "if False:",
    ),
    _keys(
        "consumer.agreement",
        "partitions that are in use are not shared by keys",
        "Agreement._refuse_if_shared_by_partitions",
        "cell.held or is_used",
        "False",
    ),
    _keys(
        "consumer.agreement",
        "an agreement that somebody is about to set is waited for",
        "Agreement.allows",
        "(about.position < 0 and not about.held)",
        "about.position < 0",
    ),
    _keys(
        "protocol.subscription",
        "a member wants slots of its own number alone",
        "Subscription.claims",
        "slot.slots == self.slots and",
        "True and",
    ),
    _keys(
        "consumer.shared",
        "a partition stands where the lowest of its slots does",
        "BySlots.standing_of",
        "at = min(",
        "at = max(",
    ),
    _keys(
        "consumer.shared",
        "the first slot tells where a partition stands",
        "BySlots.standing_of",
        "slot is None or slot.number",
        "slot is None",
    ),
    _keys(
        "consumer.shared",
        "a key that was deserialized does not tell the slot",
        "BySlots.part_of",
        "if not self._deserializers.changes_keys:",
        "if True:",
    ),
    _keys(
        "consumer.slot_stream",
        "messages without a key are dealt out in turn",
        "SlotStream.sort",
        "message.offset() if key is None",
        "0 if key is None",
    ),
]

CLIENTS: tuple[Mutant, ...] = (
    *_HANDING_OUT,
    *_AT_MOST_ONCE,
    *_ASSIGNMENT,
    *_SLOTS,
    *_SOURCE,
    *_MARK,
)

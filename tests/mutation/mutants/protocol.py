"""Mutants of the protocol: one for every guard of the fold, the claimant, the measuring of silence.

Each name says which guard is missing. Three kinds come at the end: mistakes that the simulation
found in this project once, and the known bugs of Go Marshal, made again with this code.
"""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["PROTOCOL"]

FOLD = "marshal_py.protocol.rationalizer"
CLAIMS = "marshal_py.protocol.claimant"
COLD_START = "marshal_py.protocol.cold_start"
HEARTBEATS = "marshal_py.protocol.heartbeat_schedule"
HOLDING = "marshal_py.protocol.holding"
UNREAD = "marshal_py.protocol.unread_appends"
WORLD = "marshal_py.protocol.world"

_TOUCHED = "                touched[event.topic, event.partition] = None"


def _fold(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"fold: {name}", FOLD, (Edit(function, old, new),))


def _claimant(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"claimant: {name}", CLAIMS, (Edit(f"Claimant.{function}", old, new),))


def _part(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"claimant: {name}", module, (Edit(function, old, new),))


def _world(name: str, function: str, old: str, new: str) -> Mutant:
    return Mutant(f"silence: {name}", WORLD, (Edit(function, old, new),))


_THE_FOLD = [
    _fold("offsets that come again", "apply", "if offset < state.next_offset:", "if False:"),
    _fold(
        "its own position", "apply", "state.next_offset = offset + 1", "state.next_offset = offset"
    ),
    _fold("dead members go", "apply", "_drop_dead_members(state, offset, events)", "pass"),
    _fold(
        "dead members go only at boundaries",
        "apply",
        "if offset // SWEEP_EVERY != (state.next_offset - 1) // SWEEP_EVERY:",
        "if True:",
    ),
    _fold("foreign records are skipped", "apply", "if record is None:", "if False:"),
    _fold("heartbeat: the epoch", "_heartbeat", " or cell.epoch != entry.epoch", ""),
    _fold("heartbeat: the cell is held", "_heartbeat", " or cell.holder is None", ""),
    _fold("heartbeat: the version moves", "_heartbeat", "cell.version = offset", "pass"),
    _fold("heartbeat: the metadata", "_heartbeat", "cell.metadata = entry.metadata", "pass"),
    _fold(
        "heartbeat: the position goes up only",
        "_heartbeat",
        "if entry.next_offset > cell.next_offset:",
        "if True:",
    ),
    _fold(
        "heartbeat: the position is stored",
        "_heartbeat",
        "cell.next_offset = entry.next_offset",
        "pass",
    ),
    _fold(
        "heartbeat: it makes no holder (version 1 did)",
        "_heartbeat",
        "cell.version = offset",
        "cell.version = offset; cell.holder = record.client_id; "
        "cell.instance_id = record.instance_id",
    ),
    _fold(
        "heartbeat: an entry that is rejected rejects only itself",
        "_heartbeat",
        "            continue\n",
        "            break\n",
    ),
    _fold(
        "goodbye: only of the instance that is known",
        "_membership",
        "if known is None or known.instance_id != record.instance_id:\n            return",
        "if known is None:\n            return",
    ),
    _fold("goodbye: the member goes", "_membership", "del state.members[key]", "pass"),
    _fold(
        "claim: not in a paused group", "_claim", "if record.group_id in state.paused:", "if False:"
    ),
    _fold(
        "claim: compare and swap",
        "_claim",
        "elif record.expected_version != (NO_OFFSET if cell is None else cell.version):",
        "elif False:",
    ),
    _fold(
        "claim: compare and swap on the epoch is not enough",
        "_claim",
        "NO_OFFSET if cell is None else cell.version",
        "NO_OFFSET if cell is None else cell.epoch",
    ),
    _fold(
        "claim: compare and swap, older is not enough",
        "_claim",
        "record.expected_version != (",
        "record.expected_version < (",
    ),
    _fold(
        "claim: positions are kept",
        "_claim",
        "if cell is None:\n        cell = state.cells[key] = Cell()\n    if",
        "cell = state.cells[key] = Cell()\n    if",
    ),
    _fold("claim: the holder", "_claim", "cell.holder = record.client_id", "pass"),
    _fold("claim: the instance", "_claim", "cell.instance_id = record.instance_id", "pass"),
    _fold(
        "claim: a new epoch",
        "_claim",
        "cell.epoch = cell.version = offset",
        "cell.version = offset; cell.epoch = max(cell.epoch, 0)",
    ),
    _fold(
        "claim: a new version",
        "_claim",
        "cell.epoch = cell.version = offset",
        "cell.epoch = offset",
    ),
    _fold(
        "claim: the interval of the holder",
        "_claim",
        "cell.interval_ms = record.interval_ms",
        "cell.interval_ms = cell.interval_ms or record.interval_ms",
    ),
    _fold("release, messages: the epoch", "_held_cell", " and cell.epoch == record.epoch", ""),
    _fold("release, messages: the cell is held", "_held_cell", " and cell.held and", " and"),
    _fold(
        "release: the cell is free", "_release", "_vacate(cell, offset)", "cell.version = offset"
    ),
    _fold(
        "release: the position goes up only",
        "_release",
        "if record.next_offset > cell.next_offset:",
        "if True:",
    ),
    _fold(
        "release: the position is stored",
        "_release",
        "cell.next_offset = record.next_offset",
        "pass",
    ),
    _fold(
        "messages: only beyond what was claimed",
        "_claim_messages",
        "if record.proposed_offset <= cell.claimed_offset:",
        "if False:",
    ),
    _fold(
        "messages: not the same again",
        "_claim_messages",
        "record.proposed_offset <= cell.claimed_offset",
        "record.proposed_offset < cell.claimed_offset",
    ),
    _fold(
        "messages: what was claimed is kept",
        "_claim_messages",
        "cell.claimed_offset = record.proposed_offset",
        "pass",
    ),
    _fold("messages: the version moves", "_claim_messages", "cell.version = offset", "pass"),
    _fold(
        "pause: it pauses",
        "_pause_group",
        "state.paused[record.group_id] = record.expires_at_ms",
        "pass",
    ),
    _fold(
        "resume: it resumes",
        "_resume_group",
        "state.paused.pop(record.group_id, None)",
        "state.paused.get(record.group_id)",
    ),
    _fold(
        "position: only in a paused group",
        "_set_position",
        "if record.group_id not in state.paused and not is_holder:",
        "if False:",
    ),
    _fold(
        "position: compare and swap",
        "_set_position",
        "elif record.expected_version != (NO_OFFSET if cell is None else cell.version):",
        "elif False:",
    ),
    _fold(
        "position: nobody holds the cell then",
        "_set_position",
        "_vacate(cell, offset)",
        "cell.version = offset",
    ),
    _fold(
        "position: messages may be claimed again",
        "_set_position",
        "cell.next_offset = cell.claimed_offset = record.next_offset",
        "cell.next_offset = record.next_offset",
    ),
    _fold(
        "forget: only a paused group", "_forget_group", "if group not in state.paused:", "if False:"
    ),
    _fold(
        "forget: nothing that is held",
        "_forget_group",
        "elif any(key[0] == group and cell.held for key, cell in state.cells.items()):",
        "elif False:",
    ),
    _fold(
        "forget: only this group",
        "_forget_group",
        "gone = [key for key in state.cells if key[0] == group]",
        "gone = list(state.cells)",
    ),
    _fold("forget: the cells go", "_forget_group", "del state.cells[key]", "pass"),
    _fold("forget: the members go", "_forget_group", "del state.members[member]", "pass"),
    _fold(
        "a cell without holder has no instance",
        "_vacate",
        "cell.holder = cell.instance_id = None",
        "cell.holder = None",
    ),
    _fold("a cell that is given up has a new version", "_vacate", "cell.version = offset", "pass"),
    _fold("position: the metadata goes", "_set_position", 'cell.metadata = b""', "pass"),
    _fold(
        "position: a holder is its instance, too",
        "_set_position",
        "(cell.holder, cell.instance_id) == (record.client_id, record.instance_id)",
        "cell.holder == record.client_id",
    ),
    _fold(
        "position: a pause makes no holder",
        "_set_position",
        " and not is_holder:",
        ":",
    ),
    _fold(
        "members: the horizon",
        "_drop_dead_members",
        "offset - m.version > MEMBER_HORIZON",
        "offset - m.version > MEMBER_HORIZON // 2",
    ),
    _fold(
        "position of a cell: what was claimed counts",
        "Cell.position",
        "return max(self.next_offset, self.claimed_offset)",
        "return self.next_offset",
    ),
]

_THE_LEASE = [
    _claimant(
        "lease: the margin", "__init__", "(2 * interval_ms - margin_ms)", "(2 * interval_ms)"
    ),
    _claimant(
        "lease: two intervals, not three",
        "__init__",
        "(2 * interval_ms - margin_ms)",
        "(3 * interval_ms - margin_ms)",
    ),
    Mutant(
        "claimant: lease: it ends",
        HOLDING,
        (
            Edit(
                "Holding.held",
                "self.state is ClaimState.HELD and now_ns < self.lease_until_ns",
                "self.state in (ClaimState.HELD, ClaimState.LAPSED)",
            ),
        ),
    ),
    _claimant(
        "lease: measured from before the sending of a heartbeat",
        "_on_heartbeat",
        "return sent.t_send_ns",
        "return now_ns",
    ),
    _claimant(
        "lease: measured from before the sending of the claim",
        "_on_claimed",
        "self._extend_lease(holding, sent.t_send_ns, now_ns)",
        "self._extend_lease(holding, now_ns, now_ns)",
    ),
    _claimant(
        "lease: it never gets shorter",
        "_extend_lease",
        "self.silent or until_ns <= holding.lease_until_ns",
        "self.silent",
    ),
    _claimant(
        "lease: what is read too late renews nothing",
        "_extend_lease",
        "and now_ns < until_ns ",
        "",
    ),
    _claimant(
        "lease: the user hears of a lapse",
        "_let_lapse",
        'self._notices.append(Notice("lapsed", holding))',
        "pass",
    ),
    _claimant(
        "lease: a lapse is noticed", "_let_lapse", "holding.on(ClaimEvent.LEASE_OVER)", "pass"
    ),
    _claimant(
        "lease: the next lapse is watched for",
        "_let_lapse",
        'self._timers.set(earliest_ns, "lapse", coordinator)',
        "pass",
    ),
    _claimant(
        "lease: the first lapse is watched for",
        "_extend_lease",
        'self._timers.set(until_ns, "lapse", holding.coordinator)',
        "pass",
    ),
    _claimant(
        "renewal: only by its own epoch", "_on_renewed", " or holding.epoch != event.epoch", ""
    ),
    _claimant(
        "renewal: only by accepted entries (a rejected one renewed)",
        "_on_rejected",
        'self._end(holding, ClaimEvent.LOST, "the log says that it is not ours")',
        "self._extend_lease(holding, now_ns, now_ns)",
    ),
    _claimant(
        "renewal: by heartbeats of this instance",
        "_on_heartbeat",
        "if event.instance_id != self.instance_id or event.client_id != self.client_id:",
        "if event.client_id != self.client_id:",
    ),
    _claimant(
        "renewal: by heartbeats of this client",
        "_on_heartbeat",
        "if event.instance_id != self.instance_id or event.client_id != self.client_id:",
        "if event.instance_id != self.instance_id:",
    ),
    Mutant(
        "claimant: renewal: nobody else's heartbeat renews",
        CLAIMS,
        (
            Edit(
                "Claimant.applied",
                "if renewed_at_ns is not None and event.instance_id == self.instance_id:",
                "if True:",
            ),
            Edit("Claimant.applied", "event, renewed_at_ns, now_ns)", "event, now_ns, now_ns)"),
        ),
    ),
    _claimant(
        "renewal: what nobody sent renews nothing",
        "_on_heartbeat",
        "if sent is None:\n            return None",
        "if sent is None:\n            return now_ns",
    ),
    _claimant(
        "renewal: heartbeats go on",
        "_send_heartbeats",
        "self._heartbeats.arrange(coordinator, now_ns + self.interval_ms * MS)",
        "pass",
    ),
    _claimant(
        "renewal: once an interval",
        "_send_heartbeats",
        "now_ns + self.interval_ms * MS",
        "now_ns + 2 * self.interval_ms * MS",
    ),
    _claimant(
        "renewal: while lapsed, too",
        "_send_heartbeats",
        "if h.renewable]",
        "if h.state is ClaimState.HELD]",
    ),
    _part(
        HEARTBEATS,
        "renewal: heartbeats do not pile up",
        "HeartbeatSchedule.hold_back",
        "self.unread[coordinator] < MAX_UNREAD_HEARTBEATS",
        "True",
    ),
    _claimant(
        "renewal: the first heartbeat at once",
        "_on_claimed",
        "        self._heartbeats.arrange(coordinator, now_ns)\n",
        "        self._heartbeats.arrange(coordinator, now_ns + self.interval_ms * MS)\n",
    ),
]

_CLAIMING = [
    _claimant(
        "claiming: not before it has caught up",
        "_consider",
        "observer.caught_up_at_offset is None or self.leaving",
        "self.leaving",
    ),
    _claimant(
        "claiming: not when leaving",
        "_consider",
        "observer.caught_up_at_offset is None or self.leaving",
        "observer.caught_up_at_offset is None",
    ),
    _claimant("claiming: nothing is wanted when leaving", "want", "if self.leaving:", "if False:"),
    _claimant(
        "claiming: not in a paused group",
        "_consider",
        "if self.group_id in state.paused:",
        "if False:",
    ),
    _claimant(
        "claiming: not while its own release is on the way",
        "_consider",
        "if holding.key in self._releasing:",
        "if False:",
    ),
    _claimant(
        "claiming: a held cell only when it may",
        "_consider",
        "if not self._may_take(cell, observer, holding.coordinator, now_ns):",
        "if False:",
    ),
    _claimant(
        "claiming: the wait of two intervals",
        "_may_take",
        "silence_ns > 2 * cell.interval_ms * MS",
        "silence_ns > cell.interval_ms * MS",
    ),
    _claimant(
        "claiming: the wait, nearly two intervals",
        "_may_take",
        "silence_ns > 2 * cell.interval_ms * MS",
        "silence_ns > 2 * cell.interval_ms * MS * 19 // 20",
    ),
    _claimant(
        "claiming: the interval of the holder, not its own",
        "_may_take",
        "silence_ns > 2 * cell.interval_ms * MS",
        "silence_ns > 2 * self.interval_ms * MS",
    ),
    _claimant(
        "claiming: silence must have been observed",
        "_may_take",
        "if silence_ns is not None and silence_ns",
        "if silence_ns is None or silence_ns",
    ),
    _claimant(
        "claiming: it looks again in time",
        "_consider",
        "now_ns + 2 * cell.interval_ms * MS - silence_ns + 1",
        "now_ns + 20 * cell.interval_ms * MS - silence_ns + 1",
    ),
    _claimant(
        "claiming: it looks again",
        "_consider",
        "self._check_at(holding, now_ns + 2 * cell.interval_ms * MS - silence_ns + 1)",
        "pass",
    ),
    _claimant(
        "claiming: with the version that it saw",
        "_consider",
        "NO_OFFSET if cell is None else cell.version,",
        "state.next_offset,",
    ),
    _claimant(
        "claiming: on after a rejection",
        "_on_rejected",
        "holding.on(ClaimEvent.CLAIM_REJECTED)\n                self._consider(holding, now_ns)",
        "pass",
    ),
    _claimant(
        "claiming: on after a failed append",
        "append_failed",
        "self._check_at(holding, now_ns + RETRY_NS)",
        "pass",
    ),
    _claimant(
        "claiming: on after a release",
        "applied",
        "self._on_released(coordinator, event)\n" + _TOUCHED,
        "self._on_released(coordinator, event)",
    ),
    _claimant(
        "claiming: on after a pause",
        "applied",
        "elif kind is ev.GroupResumed or kind is ev.GroupForgotten:",
        "elif kind is ev.GroupForgotten:",
    ),
    _claimant(
        "claiming: on after a loss that nobody was told of",
        "applied",
        "self._on_claimed(coordinator, event, now_ns)\n" + _TOUCHED,
        "self._on_claimed(coordinator, event, now_ns)",
    ),
    _claimant("claiming: at the start", "caught_up", "self._consider(holding, now_ns)", "pass"),
    _claimant(
        "claiming: what nobody wants any more is given back",
        "_on_claimed",
        "self._give_back(key, coordinator, event.epoch, now_ns)\n            return",
        "return",
    ),
    _claimant(
        "claiming: the position of the cell",
        "_on_claimed",
        "holding.next_offset = holding.stored_offset = cell.next_offset",
        "pass",
    ),
    _claimant(
        "claiming: what was claimed of the messages",
        "_on_claimed",
        "holding.claimed_offset = cell.claimed_offset",
        "pass",
    ),
    _claimant("claiming: the epoch", "_on_claimed", "holding.epoch = event.epoch\n", "pass\n"),
    _claimant(
        "claiming: another's claim ends its own",
        "_on_claimed",
        "self._lose(current, event)",
        "pass",
    ),
    _claimant(
        "claiming: another's claim is not its own",
        "_on_claimed",
        "if event.instance_id != self.instance_id or event.client_id != self.client_id:",
        "if event.client_id != self.client_id:",
    ),
    _claimant(
        "resume: only its own name", "_may_take", "if cell.holder == self.client_id:", "if True:"
    ),
    _claimant(
        "resume: only what was claimed before it caught up",
        "_may_take",
        " and cell.epoch < caught_up_at",
        "",
    ),
    _claimant("resume: only when asked for", "_may_take", "self.resume and ", ""),
    _claimant("resume: it does", "_may_take", "if self.resume and", "if False and"),
    _claimant(
        "twin: the loser knows", "_meet_twin", "self.duplicate_instance_id = instance_id", "pass"
    ),
    _claimant(
        "twin: the loser says so",
        "_meet_twin",
        'self._notices.append(Notice("duplicate_client_id", holding, self._duplicate_text()))',
        "pass",
    ),
    _claimant(
        "twin: the loser forgets what it wanted",
        "_meet_twin",
        "self._end(other, ClaimEvent.CANCELLED, self._duplicate_text())",
        "pass",
    ),
    _claimant(
        "twin: the loser wants nothing new",
        "want",
        "if self.duplicate_instance_id is not None:",
        "if False:",
    ),
    _claimant(
        "twin: only losses to its own name", "_lose", " and event.client_id == self.client_id", ""
    ),
    _part(
        COLD_START,
        "cold start: can be switched off",
        "ColdStart.__init__",
        "self.skew_ms = skew_ms",
        "self.skew_ms = skew_ms or 0",
    ),
    _part(
        COLD_START,
        "cold start: two intervals",
        "ColdStart.is_stale",
        "2 * cell.interval_ms + self.skew_ms",
        "self.skew_ms",
    ),
    _part(
        COLD_START,
        "cold start: the skew",
        "ColdStart.is_stale",
        "2 * cell.interval_ms + self.skew_ms",
        "2 * cell.interval_ms",
    ),
    _part(
        COLD_START,
        "cold start: the resolution of the timeline",
        "ColdStart.is_stale",
        "own_ms -= observer.stamped.resolution",
        "pass",
    ),
    _claimant(
        "cold start: the interval of the holder",
        "_may_take",
        "is_stale(cell, ",
        "is_stale(__import__('msgspec').structs.replace(cell, interval_ms=self.interval_ms), ",
    ),
    _claimant(
        "cold start: one probe that was read",
        "applied",
        "if renewed_at_ns is not None and self._cold_start.read(",
        "if self._cold_start.read(",
    ),
    _claimant(
        "cold start: it probes",
        "_may_take",
        "self._heartbeats.arrange(coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "cold start: a failed probe is made again",
        "append_failed",
        "self._cold_start.failed(sent.coordinator)",
        "pass",
    ),
]

_ENDING = [
    _claimant(
        "release: its record is sent",
        "_start_release",
        "self._send_release(holding, now_ns)",
        "pass",
    ),
    Mutant(
        "claimant: release: nobody acts any more",
        CLAIMS,
        (
            Edit(
                "Claimant._start_release",
                "holding.lease_until_ns = 0",
                "Holding.held = lambda self, now_ns: ("
                "self.state in (ClaimState.HELD, ClaimState.RELEASING)"
                " and now_ns < self.lease_until_ns)",
            ),
        ),
    ),
    Mutant(
        "claimant: release: nothing renews any more",
        CLAIMS,
        (
            Edit(
                "Claimant._start_release",
                "self._drop(holding)",
                "self._wanted.pop(holding.key, None)",
            ),
            Edit(
                "Claimant._extend_lease",
                "holding.state is ClaimState.LAPSED and",
                "holding.state in (ClaimState.LAPSED, ClaimState.RELEASING) and",
            ),
        ),
    ),
    _claimant(
        "release: again after a failed append",
        "append_failed",
        "self._release_at(holding, now_ns + RETRY_NS)",
        "pass",
    ),
    _claimant(
        "release: it is over when it was read",
        "_on_released",
        "if releasing is not None and releasing.epoch == event.epoch:",
        "if False:",
    ),
    _claimant(
        "release: it is over when it was rejected",
        "_on_rejected",
        'self._end(sent.holding, ClaimEvent.RELEASE_READ, "it was not ours any more")',
        "pass",
    ),
    _claimant(
        "release: a waiting claim is cancelled",
        "release",
        'self._end(holding, ClaimEvent.CANCELLED, "cancelled")',
        "pass",
    ),
    _claimant("release: with the position", "_send_release", "holding.next_offset,", "-1,"),
    _claimant("pause: the holder stops", "applied", "self._on_paused(coordinator, now_ns)", "pass"),
    _claimant(
        "pause: the holder stops at once", "_on_paused", "holding.on(ClaimEvent.PAUSED)", "pass"
    ),
    _claimant(
        "position set: nothing renews from the decision on",
        "set_position",
        "holding.repositioned, holding.lease_until_ns = True, 0",
        "pass",
    ),
    _claimant(
        "position set: what is refused is given back",
        "set_position",
        "self._release_at(holding, max(now_ns, holding.lease_until_ns))",
        "pass",
    ),
    _claimant(
        "claiming: what was published is published on",
        "_on_claimed",
        "holding.metadata = holding.metadata or cell.metadata",
        "pass",
    ),
    _claimant("pause: nothing renews", "_send_heartbeats", "if h.renewable]", "]"),
    _claimant(
        "pause: a heartbeat in flight does not bring it back",
        "_extend_lease",
        " and holding.renewable",
        "",
    ),
    _claimant(
        "pause: the release waits for the lease",
        "_on_paused",
        "max(now_ns, holding.lease_until_ns)",
        "now_ns",
    ),
    _claimant(
        "pause: the release comes",
        "_on_paused",
        "self._release_at(holding, max(now_ns, holding.lease_until_ns))",
        "holding.release_at_ns = max(now_ns, holding.lease_until_ns)",
    ),
    _claimant(
        "pause: the user hears of it",
        "_on_paused",
        'self._notices.append(Notice("paused", holding))',
        "pass",
    ),
    _claimant(
        "position set: the holder has lost it",
        "applied",
        "self._lose(self._ours[coordinator].get((event.topic, event.partition)), event)",
        "pass",
    ),
    _claimant("end: told", "_end", "self._notices.append(Notice(kind, holding, reason))", "pass"),
    _claimant(
        "end: told once",
        "_end",
        "if holding.state is ClaimState.ENDED:\n            return",
        "pass",
    ),
    _claimant("end: off the lists", "_end", "self._drop(holding)", "pass"),
    _claimant("leaving: releases", "leave", "self.release(holding, now_ns)", "pass"),
    _claimant(
        "leaving: says goodbye", "leave", "self._send_heartbeat(self.home, [], 2, now_ns)", "pass"
    ),
    _claimant(
        "leaving: waits for its releases", "settled", "not self._releasing\n            and ", ""
    ),
    _claimant(
        "leaving: waits for its claims in flight",
        "settled",
        "sent.holding.state is ClaimState.ENDED",
        "False",
    ),
    _claimant(
        "truncation: leases are dropped",
        "truncated",
        "if holding.state in _PENDING:",
        "if True:",
    ),
    _part(
        HEARTBEATS,
        "truncation: heartbeats start anew",
        "HeartbeatSchedule.clear",
        "self.unread[p] = 0",
        "pass",
    ),
    _claimant(
        "truncation: claims in flight are forgotten",
        "truncated",
        "holding.on(ClaimEvent.TRUNCATED)",
        "pass",
    ),
    _claimant(
        "partition count changed: silence",
        "stop_claiming",
        "self.leaving = self.silent = True",
        "self.leaving = True",
    ),
    _claimant(
        "partition count changed: no claims",
        "stop_claiming",
        "self._end(holding, ClaimEvent.CANCELLED, reason)",
        "pass",
    ),
    _claimant("commit: only what is held", "commit", "if holding.state not in _OURS:", "if False:"),
    _claimant(
        "commit: goes up only", "commit", "max(holding.next_offset, next_offset)", "next_offset"
    ),
    _claimant(
        "commit: at once, when asked",
        "commit",
        "self._heartbeats.arrange(holding.coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "commit: told when stored",
        "_on_renewed",
        'self._notices.append(Notice("stored", holding, "", event.next_offset))',
        "pass",
    ),
    _claimant(
        "messages: only what is held",
        "claim_messages",
        "if holding.state not in _OURS:",
        "if False:",
    ),
    _claimant(
        "messages: accepted is told",
        "_on_messages",
        'self._notices.append(Notice("messages_claimed", sent.holding, "", event.seq))',
        "pass",
    ),
    _claimant(
        "messages: rejected is not accepted",
        "_on_rejected",
        '"messages_rejected", sent.holding',
        '"messages_claimed", sent.holding',
    ),
    _claimant(
        "messages: of unknown outcome are not accepted",
        "append_failed",
        '"messages_rejected", holding, "unknown outcome", seq',
        '"messages_claimed", holding, "", seq',
    ),
    _claimant(
        "messages: claims under its epoch",
        "claim_messages",
        "holding.epoch, proposed_offset",
        "self.world.cell(self.group_id, *holding.key).epoch, proposed_offset",
    ),
    _claimant(
        "membership: only at home", "_send_heartbeats", "coordinator == self.home and", "True and"
    ),
    _claimant(
        "membership: heartbeats begin",
        "caught_up",
        "self._heartbeats.arrange(coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "memory: what is settled is forgotten",
        "_on_heartbeat",
        "self._sent.pop(event.seq)",
        "self._sent.get(event.seq)",
    ),
    _part(
        UNREAD,
        "memory: what nobody answers is forgotten",
        "UnreadAppends.add",
        "while len(order) > MAX_UNREAD:",
        "while False:",
    ),
]

_SILENCE = [
    _world(
        "the last time of a tick, not the first", "Timeline.note", "times[-1] = time\n", "pass\n"
    ),
    _world(
        "the time at which it had been seen",
        "Timeline.at",
        "self._times[index]",
        "self._times[max(0, index - 1)]",
    ),
    _world("times never decrease", "Timeline.note", "time = max(time, times[-1])", "pass"),
    _world(
        "what was not seen has no time",
        "Timeline.at",
        "if index < len(self._times) else None",
        "if index < len(self._times) else self._times[0]",
    ),
    _world("old points go", "Timeline.note", "del times[:keep], offsets[:keep]", "pass"),
    _world(
        "a longer interval needs a longer memory",
        "Observer.allow",
        "if 4 * interval_ms * MS > self.seen.horizon:",
        "if False:",
    ),
    _world(
        "unknown before catching up",
        "Observer.silence_ns",
        "None if seen_at is None else max(0, now_ns - seen_at)",
        "max(0, now_ns - (seen_at or 0))",
    ),
    _world(
        "stale only beyond two intervals",
        "Observer.liveness",
        "silence <= 2 * interval",
        "silence <= interval",
    ),
    _world(
        "unknown while not observed",
        "Observer.liveness",
        'if silence is None:\n            return "unknown"',
        'if silence is None:\n            return "stale"',
    ),
    _world(
        "the coordinating partition",
        "coordinating_partition",
        'topic.encode() + partition.to_bytes(4, "big")',
        "topic.encode()",
    ),
]

_FOUND = [
    _claimant(
        "found: an end takes a later claim of the cell off the lists",
        "_drop",
        "if holdings.get(holding.key) is holding:",
        "if holding.key in holdings:",
    ),
    _claimant(
        "found: a failed claim keeps a client from leaving",
        "append_failed",
        "self._sent.disown(seq)",
        "pass",
    ),
    _claimant(
        "found: a pause of what nobody was told of",
        "_on_paused",
        "if not holding.acquired:",
        "if False:",
    ),
    _claimant(
        "found: a fenced instance that had not been told claims on",
        "_lose",
        "if not holding.acquired and self.duplicate_instance_id is None:",
        "if not holding.acquired:",
    ),
    _claimant(
        "found: timers look ahead of what was heard",
        "applied",
        "self._on_claimed(coordinator, event, now_ns)\n",
        "self.tick(now_ns); self._on_claimed(coordinator, event, now_ns)\n",
    ),
    _claimant(
        "found: a forgotten heartbeat is in flight for ever",
        "_append",
        "self._heartbeats.settled(coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "found: what is never answered is waited for",
        "_fail_overdue",
        "self.append_failed(seq, now_ns)",
        "pass",
    ),
    _claimant(
        "found: nobody watches for answers that do not come",
        "_append",
        "self._watch_sent()",
        "pass",
    ),
    _claimant(
        "found: who reads too late keeps the others out",
        "_on_renewed",
        "if holding.late_renewals == MAX_LATE_RENEWALS and holding.renewable and not self.silent:",
        "if False:",
    ),
    _claimant(
        "found: one long pause is taken for slow reading",
        "_on_renewed",
        "holding.late_renewals = 0\n",
        "pass\n",
    ),
    _claimant("found: a kept claim comes back", "_extend_lease", "self.silent or ", ""),
]

_GO_MARSHAL = [
    _part(
        HEARTBEATS,
        "Go Marshal #55, deadlock: who waits for an answer is not woken by it",
        "HeartbeatSchedule.settled",
        "self.arrange(coordinator, now_ns)",
        "pass",
    ),
    Mutant(
        "claimant: Go Marshal #57, split brain: who lost a claim goes on",
        CLAIMS,
        (
            Edit(
                "Claimant._on_claimed",
                "self._lose(current, event)",
                "Holding.held = lambda self, _: self.state in _OURS",
            ),
            Edit(
                "Claimant._on_rejected",
                'self._end(holding, ClaimEvent.LOST, "the log says that it is not ours")',
                "pass",
            ),
        ),
    ),
    _claimant(
        "Go Marshal #61, dropped partition: a waiting claim is not looked at again",
        "tick",
        "if holding.check_at_ns == due_ns and holding.state is ClaimState.WAITING:",
        "if False:",
    ),
    _claimant(
        "Go Marshal #88, wedged claim: a failed append leaves it between two states",
        "append_failed",
        "holding.on(ClaimEvent.CLAIM_FAILED)\n",
        "pass\n",
    ),
    _claimant(
        "Go Marshal #91, deadlock on termination: an answer that never comes is waited for",
        "append_failed",
        "if holding.state is ClaimState.RELEASING:",
        "if False:",
    ),
]

PROTOCOL: tuple[Mutant, ...] = (
    *_THE_FOLD,
    *_THE_LEASE,
    *_CLAIMING,
    *_ENDING,
    *_SILENCE,
    *_FOUND,
    *_GO_MARSHAL,
)

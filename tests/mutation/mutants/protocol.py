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
    _fold("foreign records are skipped", "apply", "if record is None:", "if False:"),
    _fold("what was forgotten is freed", "apply", "if state.forgotten:\n", "if False:\n"),
    _fold(
        "what was forgotten is freed a few at a time",
        "_free",
        "min(_FREED_AT_ONCE, len(pieces))",
        "len(pieces)",
    ),
]

_VERSIONS = [
    _fold(
        "version: that of the session",
        "GroupState.version",
        "if session is not None and session.version > cell.version:",
        "if False:",
    ),
    _fold(
        "version: that of the cell",
        "GroupState.version",
        "if session is not None and session.version > cell.version:",
        "if session is not None:",
    ),
    _fold(
        "version: of its holder's session, of this instance",
        "GroupState.version",
        "session = self.sessions.get((cell.holder, cell.instance_id))  # type: ignore[arg-type]",
        "session = max((s for (c, _), s in self.sessions.items() if c == cell.holder),"
        " key=lambda s: s.version, default=None)",
    ),
    _fold(
        "version: the session counts only while the cell is held",
        "GroupState.version",
        "if cell.holder is not None:\n"
        "            session = self.sessions.get((cell.holder, cell.instance_id))"
        "  # type: ignore[arg-type]",
        "if self.sessions:\n            session = max(self.sessions.values(),"
        " key=lambda s: s.version if (cell.holder, cell.instance_id) in self.sessions or"
        " cell.holder is None else -1)",
    ),
]

_HEARTBEATS = [
    _fold(
        "heartbeat: only of those who can follow",
        "_heartbeat",
        "if not record.lowest <= level <= record.highest:",
        "if False:",
    ),
    _fold(
        "heartbeat: who follows only later levels cannot follow",
        "_heartbeat",
        "if not record.lowest <= level <= record.highest:",
        "if not level <= record.highest:",
    ),
    _fold(
        "heartbeat: who follows only earlier levels cannot follow",
        "_heartbeat",
        "if not record.lowest <= level <= record.highest:",
        "if not record.lowest <= level:",
    ),
    _fold(
        "heartbeat: only of its own instance",
        "_heartbeat",
        "session = None if group is None else group.sessions.get(key)",
        "session = None if group is None else (group.sessions.get(key) or next("
        "(s for (c, _), s in group.sessions.items() if c == client_id), None))",
    ),
    _fold("heartbeat: the version moves", "_heartbeat", "session.version = offset\n", "pass\n"),
    _fold(
        "heartbeat: the interval of the session",
        "_heartbeat",
        "session.interval_ms = record.interval_ms",
        "session.interval_ms = session.interval_ms or record.interval_ms",
    ),
    _fold(
        "heartbeat: a session only for a member",
        "_heartbeat",
        "if record.membership != 1:",
        "if record.membership == 2:",
    ),
    _fold(
        "heartbeat: who says goodbye has no session",
        "_heartbeat",
        "if record.membership != 1:",
        "if record.membership == 0:",
    ),
    _fold(
        "heartbeat: what the member says of itself",
        "_heartbeat",
        "session.metadata = record.member_metadata",
        "pass",
    ),
    _fold(
        "heartbeat: what the member does not say again stays",
        "_heartbeat",
        "        session.metadata = record.member_metadata\n",
        "        session.metadata = record.member_metadata\n"
        '    else:\n        session.metadata = b""\n',
    ),
    _fold(
        "heartbeat: its levels move",
        "_heartbeat",
        "session.lowest, session.highest = record.lowest, record.highest",
        "pass",
    ),
    _fold(
        "heartbeat: its levels are counted out",
        "_heartbeat",
        "group.count(session, -1)\n        session.lowest",
        "session.lowest",
    ),
    _fold(
        "heartbeat: a new session's levels are counted",
        "_heartbeat",
        "group.count(session, +1)\n    session.version",
        "pass\n    session.version",
    ),
    _fold(
        "heartbeat: a member was heard",
        "_drop_silent_members",
        "if session.version > version:",
        "if False:",
    ),
    _fold(
        "heartbeat: epochs are counted from the base",
        "_changes",
        "cell = claims.get(base + claimed_at)",
        "cell = claims.get(claimed_at)",
    ),
    _fold(
        "heartbeat: epochs are counted from the base, of metadata too",
        "_changes",
        "cell = claims.get(base + entry.claimed_at)",
        "cell = claims.get(entry.claimed_at)",
    ),
    _fold(
        "heartbeat: only what its session holds",
        "_changes",
        "cell = claims.get(base + claimed_at)",
        "cell = next((c for g in state.groups.values() for s in g.sessions.values()"
        " for e, c in s.claims.items()"
        " if e == base + claimed_at), None)",
    ),
    _fold(
        "heartbeat: metadata only of what its session holds",
        "_changes",
        "cell = claims.get(base + entry.claimed_at)",
        "cell = next((c for g in state.groups.values() for s in g.sessions.values()"
        " for e, c in s.claims.items()"
        " if e == base + entry.claimed_at), None)",
    ),
    _fold("heartbeat: the metadata", "_changes", "cell.metadata = entry.metadata", "pass"),
    _fold(
        "heartbeat: the position goes up only",
        "_changes",
        "if next_offset > cell.next_offset:",
        "if True:",
    ),
    _fold(
        "heartbeat: the position is stored",
        "_changes",
        "cell.next_offset = next_offset",
        "pass",
    ),
    _fold(
        "heartbeat: a position that is rejected rejects only itself",
        "_changes",
        "            continue\n        if",
        "            break\n        if",
    ),
    _fold(
        "heartbeat: metadata that are rejected reject only themselves",
        "_changes",
        "            continue\n        cell.metadata",
        "            break\n        cell.metadata",
    ),
    _fold(
        "heartbeat: it makes no holder (version 1 did)",
        "_heartbeat",
        "if record.positions or record.metadata:",
        "for cell in group.cells.values():\n"
        "        if cell.holder is None and record.positions:\n"
        "            cell.holder, cell.instance_id = key\n"
        "            session.claims[cell.epoch] = cell\n"
        "            group.held += 1\n"
        "    if record.positions or record.metadata:",
    ),
]

_MEMBERS = [
    _fold(
        "goodbye: only of the instance that is known",
        "_membership",
        "        if not session.member:\n            return\n"
        "        _no_member(state, group, name, client_id, session)",
        "        session = group.members.get(client_id, session)\n"
        "        if not session.member:\n            return\n"
        "        _no_member(state, group, name, client_id, session)",
    ),
    _fold(
        "goodbye: the member goes",
        "_membership",
        "_no_member(state, group, name, client_id, session)",
        "pass",
    ),
    _fold(
        "members: a new instance takes the place of the old",
        "_membership",
        "_no_member(state, group, name, client_id, before)",
        "pass",
    ),
    _fold(
        "members: who joins was heard",
        "_membership",
        "_await(state, name, client_id, session)",
        "pass",
    ),
    _fold(
        "members: the longest silent is the first",
        "_await",
        "heappush(state.silent, (session.version, who, session))",
        "state.silent.append((session.version, who, session))",
    ),
    _fold(
        "members: each is waited for once",
        "_await",
        "if not session.awaited:",
        "if True:",
    ),
    _fold(
        "sessions: without cells and membership they end",
        "_no_member",
        "_end_if_idle(state, group, name, client_id, session)",
        "pass",
    ),
    _fold(
        "sessions: who holds stays without membership",
        "_end_if_idle",
        "if session.claims:",
        "if False:",
    ),
    _fold(
        "sessions: one that ends counts for no level",
        "_end_if_idle",
        "group.count(session, -1)",
        "pass",
    ),
    _fold(
        "groups: one of which nothing is left goes",
        "_end_if_idle",
        "if group.empty:",
        "if False:",
    ),
    _fold(
        "groups: one whose level was raised stays",
        "GroupState.empty",
        " or self.level != LEVEL",
        "",
    ),
    _fold("groups: one that is paused stays", "GroupState.empty", " or self.pause", ""),
    _fold("members: the silent go", "apply", "if offset >= state.sweep_at:", "if False:"),
    _fold(
        "members: the horizon",
        "_drop_silent_members",
        "offset - silent[0][0] > MEMBER_HORIZON:",
        "offset - silent[0][0] > MEMBER_HORIZON // 2:",
    ),
    _fold(
        "members: the horizon, to the offset",
        "_drop_silent_members",
        "offset - silent[0][0] > MEMBER_HORIZON:",
        "offset - silent[0][0] >= MEMBER_HORIZON:",
    ),
    _fold(
        "members: who holds cells stays",
        "_drop_silent_members",
        "elif not session.claims:",
        "else:",
    ),
    _fold(
        "members: the silent of a forgotten group",
        "_drop_silent_members",
        "if state.session(*who) is not session:",
        "if False:",
    ),
    _fold(
        "members: the next look at the silent, not later",
        "_drop_silent_members",
        "oldest + MEMBER_HORIZON + 1",
        "oldest + MEMBER_HORIZON + 2",
    ),
    _fold(
        "members: whoever gave up its cells may be silent for too long",
        "_vacate",
        "_await(state, name, client_id, session)",
        "pass",
    ),
    _fold(
        "members: whoever is waited for no more may be again",
        "_drop_silent_members",
        "session.awaited = False",
        "pass",
    ),
    _fold(
        "members: whoever gave up its cells is looked at with the next record",
        "_await",
        "state.sweep_at = min(state.sweep_at, session.version + MEMBER_HORIZON + 1)",
        "pass",
    ),
    _fold(
        "members: several go in the order of their silence",
        "_drop_silent_members",
        "in dropped:",
        "in reversed(dropped):",
    ),
]

_CLAIMS = [
    _fold(
        "claim: not in a paused group",
        "_claim",
        "if group is not None and group.pause is not None:",
        "if False:",
    ),
    _fold(
        "claim: compare and swap",
        "_claim",
        "elif record.expected_version != (NO_OFFSET if group is None else group.version(cell)):",
        "elif False:",
    ),
    _fold(
        "claim: compare and swap on the epoch is not enough",
        "_claim",
        "NO_OFFSET if group is None else group.version(cell)",
        "NO_OFFSET if cell is None else cell.epoch - state.base",
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
        "if cell is None:\n        cell = group.cells[unit] = Cell(unit)\n",
        "if cell is None or cell.holder is None:\n        cell = group.cells[unit] = Cell(unit)\n",
    ),
    _fold("claim: the holder", "_take", "cell.holder = _same(record.client_id)", "pass"),
    _fold("claim: the instance", "_take", "cell.instance_id = session.instance_id", "pass"),
    _fold(
        "claim: a new epoch", "_take", "cell.epoch = epoch\n", "cell.epoch = max(cell.epoch, 0)\n"
    ),
    _fold("claim: the epoch counts from the base", "_take", "state.base + offset", "offset"),
    _fold("claim: a new version", "_take", "    cell.version = offset\n", "    pass\n"),
    _fold(
        "claim: the interval of the holder",
        "_take",
        "cell.interval_ms = _same(record.interval_ms)",
        "cell.interval_ms = cell.interval_ms or record.interval_ms",
    ),
    _fold(
        "claim: it renews nothing else of its session",
        "_take",
        "session.add(epoch, cell)",
        "session.version = offset; session.add(epoch, cell)",
    ),
    _fold(
        "claim: a session of its own",
        "_take",
        "    if session is None:\n        session =",
        "    if session is None:\n        session = next((s for (c, _), s in"
        " group.sessions.items() if c == record.client_id), None)\n"
        "    if session is None:\n        session =",
    ),
    _fold(
        "claim: a new session follows the level of the group",
        "_take",
        "group.level, group.level, {}",
        "1, 1, {}",
    ),
    _fold(
        "claim: a new session is counted",
        "_take",
        "        group.count(session, +1)\n",
        "        pass\n",
    ),
    _fold(
        "claim: whoever held it before holds it no longer",
        "_take",
        "_vacate(state, group, name, cell, offset)",
        "group.held -= 1",
    ),
    _fold(
        "claim: again by the same session, which does not end",
        "_take",
        "    session.add(epoch, cell)  # before the old holder's goes: it may be the same session\n"
        "    if cell.holder is not None:\n"
        "        _vacate(state, group, name, cell, offset)\n",
        "    if cell.holder is not None:\n"
        "        _vacate(state, group, name, cell, offset)\n"
        "    session.add(epoch, cell)\n",
    ),
    _fold("claim: what is held is counted", "_take", "group.held += 1", "pass"),
    _fold("release, messages: the epoch", "_held_cell", " and cell.epoch == record.epoch", ""),
    _fold(
        "release, messages: the cell is held",
        "_held_cell",
        " and cell.holder is not None and",
        " and",
    ),
    _fold(
        "release: the cell is free",
        "_release",
        "_vacate(state, group, record.group_id, cell, offset)",
        "cell.version = offset",
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
        "release: one that ends ends the cell",
        "_release",
        "if ends:\n        del",
        "if False:\n        del",
    ),
    _fold(
        "release: only one that ends ends the cell",
        "_release",
        "ends = record.ends == 1",
        "ends = True",
    ),
    _fold(
        "release: the cell is gone before its group is looked at",
        "_release",
        "    if ends:\n"
        "        del group.cells[unit]\n"
        "    _vacate(state, group, record.group_id, cell, offset)",
        "    _vacate(state, group, record.group_id, cell, offset)\n"
        "    if ends:\n"
        "        del group.cells[unit]",
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
        "a cell without holder has no instance",
        "_vacate",
        "cell.holder = cell.instance_id = None",
        "cell.holder = None",
    ),
    _fold("a cell that is given up has a new version", "_vacate", "cell.version = offset", "pass"),
    _fold(
        "a session does not hold what was given up",
        "Session.remove",
        "del claims[epoch]",
        "pass",
    ),
    _fold("what is given up is counted", "_vacate", "group.held -= 1", "pass"),
    _fold(
        "a session that is no member ends with its last cell",
        "_vacate",
        "_end_if_idle(state, group, name, client_id, session)",
        "pass",
    ),
    _fold(
        "position of a cell: what was claimed counts",
        "Cell.position",
        "return max(self.next_offset, self.claimed_offset)",
        "return self.next_offset",
    ),
]

_GROUPS = [
    _fold(
        "pause: it pauses",
        "_pause_group",
        "group.pause = Pause(offset, record.expires_at_ms)",
        "pass",
    ),
    _fold(
        "pause: the last one counts",
        "_pause_group",
        "group.pause = Pause(",
        "group.pause = group.pause or Pause(",
    ),
    _fold("resume: it resumes", "_resume_group", "group.pause = None", "pass"),
    _fold(
        "resume: only the pause that it means",
        "_resume_group",
        " or pause.version != record.expected_version:",
        ":",
    ),
    _fold(
        "resume: a group of which nothing is left goes",
        "_resume_group",
        "if group.empty:",
        "if False:",
    ),
    _fold(
        "position: only in a paused group",
        "_set_position",
        "if group is None or (group.pause is None and not is_holder):",
        "if group is None:",
    ),
    _fold(
        "position: a pause makes no holder",
        "_set_position",
        "(group.pause is None and not is_holder)",
        "group.pause is None",
    ),
    _fold(
        "position: a holder needs no pause, others do",
        "_set_position",
        "(group.pause is None and not is_holder)",
        "not is_holder",
    ),
    _fold(
        "position: compare and swap",
        "_set_position",
        "elif record.expected_version != group.version(cell):",
        "elif False:",
    ),
    _fold(
        "position: nobody holds the cell then",
        "_set_position",
        "_vacate(state, group, record.group_id, cell, offset)",
        "pass",
    ),
    _fold(
        "position: the version moves",
        "_set_position",
        "    cell.version = offset\n",
        "    pass\n",
    ),
    _fold(
        "position: messages may be claimed again",
        "_set_position",
        "cell.next_offset = cell.claimed_offset = record.next_offset",
        "cell.next_offset = record.next_offset",
    ),
    _fold("position: the metadata goes", "_set_position", 'cell.metadata = b""', "pass"),
    _fold(
        "position: a holder is its instance, too",
        "_set_position",
        "(cell.holder, cell.instance_id) == (record.client_id, record.instance_id)",
        "cell.holder == record.client_id",
    ),
    _fold(
        "ranges: a partition with open ranges is nobody's",
        "_claim",
        "open_ranges.count(unit)",
        "held < 0",
    ),
    _fold(
        "ranges: not in a paused group",
        "_claim_range",
        "group is not None and group.pause is not None",
        "False",
    ),
    _fold(
        "ranges: not while the partition is held",
        "_claim_range",
        "book is not None and book.held",
        "False",
    ),
    _fold("ranges: not of a range", "_claim_range", "source in group.open_ranges.of_cell", "False"),
    _fold(
        "ranges: so many, and no more",
        "_claim_range",
        "group.open_ranges.count(source) >= MAX_OPEN_RANGES",
        "False",
    ),
    _fold(
        "ranges: what is free goes first",
        "_claim_range",
        "group.open_ranges.lowest_free(source)",
        "None",
    ),
    _fold("ranges: the frontier moves", "_claim_range", "end = book.next_offset =", "end ="),
    _fold("ranges: the book's version moves", "_claim_range", "book.version = offset", "pass"),
    _fold(
        "ranges: not below what the client saw",
        "_claim_range",
        "max(record.floor, NO_OFFSET if book is None else book.position)",
        "max(0, NO_OFFSET if book is None else book.position)",
    ),
    _fold(
        "ranges: no more than was asked for",
        "_claim_range",
        "if _why_whole(group, free, cell, at) is None:",
        "if False:",
    ),
    _fold("ranges: a grant is counted", "_take", "found.grant(cell.position)", "pass"),
    _fold("ranges: what is granted is not free", "_take", "group.open_ranges.hold(found)", "pass"),
    _fold("ranges: a split moves the version", "_split_range", "cell.version = offset", "pass"),
    _fold(
        "ranges: a split leaves something on both sides",
        "_why_whole",
        "cell.position < at < found.end",
        "cell.position <= at <= found.end",
    ),
    _fold(
        "ranges: a split beyond the most there may be",
        "_why_whole",
        "group.open_ranges.count(found.source) >= MAX_OPEN_RANGES",
        "False",
    ),
    _fold(
        "ranges: the rest of a split begins where it was cut",
        "_split",
        "next_offset=at",
        "next_offset=found.start",
    ),
    _fold(
        "ranges: one that is done is closed",
        "_release",
        "ends = cell.position >= found.end",
        "ends = False",
    ),
    _fold(
        "ranges: one that is not done stays",
        "_release",
        "ends = cell.position >= found.end",
        "ends = True",
    ),
    _fold(
        "ranges: one that is given back is free",
        "_release",
        "group.open_ranges.free(found)",
        "pass",
    ),
    _fold("ranges: what was not begun counts for nothing", "_release", "found.take_back()", "pass"),
    _fold(
        "ranges: messages are claimed inside",
        "_claim_messages",
        "found is not None and record.proposed_offset > found.end",
        "False",
    ),
    _fold(
        "ranges: a position lies inside",
        "_set_position",
        "found is not None and not found.start <= record.next_offset <= found.end",
        "False",
    ),
    _fold(
        "ranges: no position of a partition with held ranges",
        "_set_position",
        "group.open_ranges.held(unit)",
        "False",
    ),
    _fold(
        "ranges: a new position closes what is open",
        "_set_position",
        "for closed in group.open_ranges.of(unit):",
        "for closed in ():",
    ),
    _fold(
        "forget: only a paused group",
        "_forget_group",
        "group is None or pause is None or pause.version != record.expected_version or group.held",
        "group is None or pause is not None and pause.version != record.expected_version"
        " or group.held",
    ),
    _fold(
        "forget: only under the pause that is meant",
        "_forget_group",
        "pause.version != record.expected_version or group.held",
        "group.held",
    ),
    _fold(
        "forget: nothing that is held",
        "_forget_group",
        "pause.version != record.expected_version or group.held",
        "pause.version != record.expected_version",
    ),
    _fold(
        "forget: the cells go",
        "_forget_group",
        "left.pause = pause",
        "left.pause = pause; left.cells = dict(group.cells)",
    ),
    _fold(
        "forget: the members go",
        "_forget_group",
        "left.pause = pause",
        "left.pause, left.sessions, left.members, left.ranges = pause,"
        " dict(group.sessions), group.members, group.ranges",
    ),
    _fold(
        "forget: the pause stays",
        "_forget_group",
        "left.pause = pause",
        "pass",
    ),
    _fold(
        "forget: the level goes",
        "_forget_group",
        "left.pause = pause",
        "left.pause, left.level = pause, group.level",
    ),
]

_THE_LOG = [
    _fold(
        "genesis: compare and swap",
        "_genesis",
        'if record.previous != (state.identity or ""):',
        "if False:",
    ),
    _fold(
        "genesis: only the first needs no previous one",
        "_genesis",
        'if record.previous != (state.identity or ""):',
        'if record.previous not in ("", state.identity or ""):',
    ),
    _fold(
        "genesis: the base goes up",
        "_genesis",
        "elif record.base <= state.base and not (state.identity is None and record.base == 0):",
        "elif False:",
    ),
    _fold(
        "genesis: the base does not stay",
        "_genesis",
        "elif record.base <= state.base and",
        "elif record.base < state.base and",
    ),
    _fold(
        "genesis: the first may have the base 0",
        "_genesis",
        " and not (state.identity is None and record.base == 0):",
        ":",
    ),
    _fold(
        "genesis: a later one may not have the base 0",
        "_genesis",
        "not (state.identity is None and record.base == 0)",
        "record.base != 0",
    ),
    _fold(
        "genesis: the identity",
        "_genesis",
        "state.identity, state.base, state.partitions = record.identity, record.base,"
        " record.partitions",
        "state.base, state.partitions = record.base, record.partitions",
    ),
    _fold(
        "genesis: the base",
        "_genesis",
        "state.identity, state.base, state.partitions = record.identity, record.base,"
        " record.partitions",
        "state.identity, state.partitions = record.identity, record.partitions",
    ),
    _fold(
        "genesis: the partitions",
        "_genesis",
        "state.identity, state.base, state.partitions = record.identity, record.base,"
        " record.partitions",
        "state.identity, state.base, state.partitions = record.identity, record.base, 1",
    ),
    _fold(
        "level: compare and swap",
        "_set_level",
        "if record.expected_level != level:",
        "if False:",
    ),
    _fold(
        "level: everybody can follow",
        "_set_level",
        "elif group is not None and not all(",
        "elif False and not all(",
    ),
    _fold(
        "level: everybody, not somebody, can follow",
        "_set_level",
        "not all(",
        "not any(",
    ),
    _fold(
        "level: nobody follows only later levels",
        "_set_level",
        "lowest <= record.level <= highest",
        "record.level <= highest",
    ),
    _fold(
        "level: nobody follows only earlier levels",
        "_set_level",
        "lowest <= record.level <= highest",
        "lowest <= record.level",
    ),
    _fold("level: it is set", "_set_level", "group.level = record.level", "pass"),
    _fold(
        "level: a group of which nothing is left goes",
        "_set_level",
        "if group.empty:",
        "if False:",
    ),
]


def _decodes(name: str, old: str, new: str = "pass") -> Mutant:
    return _fold(f"snapshot: {name}", "PartitionState.decode", old, new)


def _refuses(name: str, check: str) -> Mutant:
    return _fold(f"snapshot: {name} is refused", "_check", check, "pass")


def _refuses_a_cell(name: str, check: str, instead: str = "False") -> Mutant:
    return _fold(f"snapshot: {name} is refused", "_check_cells", check, instead)


_SNAPSHOTS = [
    _decodes("the level", "group.level, group.pause = level, pause", "group.pause = pause"),
    _decodes("the levels of sessions", "group.count(session, +1)"),
    _decodes("members", "group.members[client_id] = session"),
    _decodes("what a session holds", "session.add(cell.epoch, cell)"),
    _decodes("how much is held", "group.held += 1"),
    _decodes("who may be silent for too long", "_await(state, name, client_id, session)"),
    _decodes(
        "a holder without a session is refused",
        '_require(key in group.sessions, "the holder of a cell has no session")',
        "pass",
    ),
    _decodes(
        "a group that comes twice is refused",
        '_require(len(groups) == len(state.groups), "a group comes twice")',
    ),
    _decodes(
        "an identity without partitions is refused",
        '_require((identity is None) == (partitions == 0), "an identity without its partitions")',
    ),
    _refuses("a name that no record can carry", "check_names(group_id=name)"),
    _refuses("an empty group", '_require(not group.empty, f"group {name!r} is empty")'),
    _refuses(
        "a session that comes twice",
        '_require(len(group.sessions) == sessions, f"a session of {name!r} comes twice")',
    ),
    _refuses(
        "a cell that comes twice",
        '_require(len(group.cells) == cells, f"a cell of {name!r} comes twice")',
    ),
    _refuses(
        "a level out of range",
        '_require(1 <= group.level <= MAX_LEVEL, f"the level of {name!r}")',
    ),
    _refuses("a base out of range", '_require(0 <= state.base <= MAX_BASE, "its base")'),
    _refuses(
        "a pause of the future",
        '_require(0 <= group.pause.version < end, f"the pause of {name!r} is of the future")',
    ),
    _refuses(
        "a pause that ended before all time",
        '_require(group.pause.expires_at_ms >= 0, f"the pause of {name!r}")',
    ),
    _refuses(
        "a client that no record can name",
        "check_names(client_id=client_id, instance_id=instance_id)",
    ),
    _refuses(
        "a session of the future",
        '_require(0 <= session.version < end, f"the session of {client_id!r} is of the future")',
    ),
    _refuses(
        "an interval out of range of a session",
        '_require(0 <= session.interval_ms <= MAX_INTERVAL_MS, f"the interval of {client_id!r}")',
    ),
    _refuses(
        "half a membership",
        '_require(session.member in (0, 1), f"the membership of {client_id!r}")',
    ),
    _refuses(
        "a session that holds nothing",
        '_require(bool(session.member or session.claims), f"{client_id!r} holds nothing")',
    ),
    _refuses(
        "too much metadata of a member",
        '_require(len(session.metadata) <= MAX_MEMBER_METADATA_BYTES, "a member\'s metadata")',
    ),
    _refuses(
        "levels out of range",
        "_require(\n"
        "            1 <= session.lowest <= MAX_LEVEL and 1 <= session.highest <= MAX_LEVEL,\n"
        '            f"the levels of {client_id!r}",\n'
        "        )",
    ),
    _refuses(
        "a client that is a member twice",
        '_require(members == len(group.members), f"a client of {name!r} is a member twice")',
    ),
    _refuses_a_cell("a topic that no record can name", "check_names(topic=topic)", "pass"),
    _refuses_a_cell("a partition out of range", "not 0 <= partition <= MAX_PARTITION"),
    _refuses_a_cell("half a holder", "(cell.holder is None) != (cell.instance_id is None)"),
    _refuses_a_cell("a version of the future", "not 0 <= cell.version < end"),
    _refuses_a_cell("an epoch of the future", "not NO_OFFSET <= cell.epoch < epochs_end"),
    _refuses_a_cell("a claim under no epoch", "cell.holder is not None and cell.epoch < 0"),
    _refuses_a_cell(
        "an interval out of range of a cell", "not 0 <= cell.interval_ms <= MAX_INTERVAL_MS"
    ),
    _refuses_a_cell("a position below none", "cell.next_offset < NO_OFFSET"),
    _refuses_a_cell("a claimed position below none", "cell.claimed_offset < NO_OFFSET"),
    _refuses_a_cell("too much metadata of a cell", "len(cell.metadata) > MAX_METADATA_BYTES"),
    _refuses(
        "an epoch under which two cells are held",
        '_require(held == group.held, f"two cells of {name!r} are held under one epoch")',
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
        "renewal: only what is stored under its own epoch is told",
        "_on_stored",
        " or holding.epoch != event.epoch",
        "",
    ),
    _claimant(
        "renewal: only by accepted heartbeats (a rejected one renewed)",
        "_on_rejected",
        "self._on_heartbeat(coordinator, event, now_ns)\n            self._can_follow(coordinator)",
        "self._renew_all(coordinator, self._on_heartbeat(coordinator, event, now_ns) or 0, now_ns)",
    ),
    _claimant(
        "renewal: a rejected heartbeat is not in flight any more",
        "_on_rejected",
        "self._on_heartbeat(coordinator, event, now_ns)\n",
        "pass\n",
    ),
    _claimant(
        "renewal: it does",
        "applied",
        "self._renew_all(coordinator, t_send_ns, now_ns)",
        "pass",
    ),
    _claimant(
        "renewal: not what is paused, or whose position is being set",
        "_renew_all",
        "if holding.renewable:",
        "if True:",
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
            Edit("Claimant.applied", "if t_send_ns is not None:", "if True:"),
            Edit(
                "Claimant.applied",
                "coordinator, t_send_ns, now_ns)",
                "coordinator, now_ns, now_ns)",
            ),
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
        "any(holding.renewable for",
        "any(holding.state is ClaimState.HELD for",
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
        "now_ns + is_range * self.interval_ms * MS",
        "now_ns + self.interval_ms * MS",
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
    _claimant(
        "claiming: nothing is wanted when leaving",
        "_check_wanting",
        "if self.leaving:",
        "if False:",
    ),
    _claimant(
        "claiming: not in a paused group",
        "_consider",
        "if group is not None and group.pause is not None:",
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
        "if not self._may_take(cell, version, holding.coordinator, now_ns):",
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
        "            version,\n        )",
        "            state.next_offset,\n        )",
    ),
    _claimant(
        "claiming: on after a rejection",
        "_on_rejected",
        "holding.on(ClaimEvent.CLAIM_REJECTED)\n        elif",
        "pass\n        elif",
    ),
    _claimant(
        "claiming: what was refused is looked at again",
        "applied",
        "if event.instance_id == self.instance_id and event.topic is not None:",
        "if False:",
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
        "elif kind is ev.GroupResumed:",
        "elif False:",
    ),
    _claimant(
        "claiming: on after a loss that nobody was told of",
        "applied",
        "self._granted = None\n" + _TOUCHED,
        "self._granted = None",
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
        " and cell.epoch < self._past_epochs_end:",
        ":",
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
        "_check_wanting",
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
        "2 * interval_ms + self.skew_ms",
        "self.skew_ms",
    ),
    _part(
        COLD_START,
        "cold start: the skew",
        "ColdStart.is_stale",
        "2 * interval_ms + self.skew_ms",
        "2 * interval_ms",
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
        "is_stale(version, cell.interval_ms, ",
        "is_stale(version, self.interval_ms, ",
    ),
    _claimant(
        "cold start: one probe that was read",
        "applied",
        "                    if self._cold_start.read(coordinator, event.offset):\n"
        "                        reconsider_all = True",
        "                if self._cold_start.read(coordinator, event.offset):\n"
        "                    reconsider_all = True",
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

_RECONCILING = [
    _claimant(
        "reconcile: when the log was read again",
        "caught_up",
        "self._reconcile(coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "reconcile: it does",
        "_send_heartbeats",
        "self._reconcile(coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "reconcile: what the log has taken is lost",
        "_reconcile",
        'self._end(holding, ClaimEvent.LOST, "the log says that it is not ours")',
        "pass",
    ),
    _claimant(
        "reconcile: what nobody wants is given back",
        "_reconcile",
        "self._give_back(unit, coordinator, epoch, now_ns)",
        "pass",
    ),
    _claimant(
        "reconcile: not what is being released",
        "_reconcile",
        "unknown -= {holding.epoch for holding in self._releasing.values()}",
        "pass",
    ),
    _claimant(
        "reconcile: not what is being claimed",
        "_reconcile",
        "if wanted is None or wanted.state is not ClaimState.CLAIMING:",
        "if True:",
    ),
    _claimant(
        "reconcile: only what nobody is claiming",
        "_reconcile",
        "if wanted is None or wanted.state is not ClaimState.CLAIMING:",
        "if wanted is None:",
    ),
]

_CHANGES = [
    _claimant(
        "changes: not of what is paused",
        "_changes",
        "if not holding.renewable or ",
        "if ",
    ),
    _claimant(
        "changes: only of what is ours",
        "_changes",
        " or self._ours[coordinator].get(key) is not holding:",
        ":",
    ),
    _claimant(
        "changes: only a position that moved",
        "_changes",
        "if holding.next_offset > holding.stored_offset:",
        "if True:",
    ),
    _claimant(
        "changes: only metadata that differ",
        "_changes",
        "if holding.metadata != holding.stored_metadata:",
        "if True:",
    ),
    _claimant(
        "changes: epochs are counted from the base",
        "_changes",
        "claimed_at = holding.epoch - base",
        "claimed_at = holding.epoch",
    ),
    _claimant(
        "changes: not of claims of before the last genesis",
        "_changes",
        "if claimed_at < 0:",
        "if False:",
    ),
    _claimant(
        "changes: no more positions than a record may carry",
        "_changes",
        "len(positions) == 2 * MAX_ENTRIES or ",
        "",
    ),
    _claimant(
        "changes: as many positions as a record may carry",
        "_changes",
        "len(positions) == 2 * MAX_ENTRIES or ",
        "len(positions) == MAX_ENTRIES or ",
    ),
    _claimant(
        "changes: no more metadata than a record may carry",
        "_changes",
        " or size > MAX_METADATA_AT_ONCE",
        "",
    ),
    _claimant(
        "changes: metadata are counted by their size",
        "_changes",
        "size += 16 + len(holding.metadata)",
        "size += 1",
    ),
    _claimant(
        "changes: the rest goes with another heartbeat",
        "_changes",
        "positions, metadata, size = [], [], 0",
        "return",
    ),
    _claimant(
        "changes: nothing goes twice",
        "_changes",
        "positions, metadata, size = [], [], 0",
        "size = 0",
    ),
    _claimant(
        "changes: a heartbeat says that it is a member once",
        "_send_heartbeats",
        "            membership = 0\n",
        "            pass\n",
    ),
    _claimant(
        "changes: a position that moved is one",
        "advance",
        "self._changed[holding.key] = holding",
        "pass",
    ),
    _claimant(
        "changes: metadata that are set are one",
        "set_metadata",
        "self._changed[holding.key] = holding",
        "pass",
    ),
    _claimant(
        "changes: what a claim brings with it",
        "_on_claimed",
        "self._changed[key] = holding",
        "pass",
    ),
    _claimant(
        "changes: the metadata of the cell are known",
        "_on_claimed",
        "holding.stored_metadata = cell.metadata",
        "pass",
    ),
    _claimant(
        "changes: what the log has is none any more",
        "_on_stored",
        "self._changed.pop(key, None)",
        "pass",
    ),
    _claimant(
        "changes: what the log does not have stays one, position",
        "_on_stored",
        "if holding.stored_offset < holding.next_offset or (",
        "if (",
    ),
    _claimant(
        "changes: what the log does not have stays one, metadata",
        "_on_stored",
        "holding.stored_metadata != holding.metadata\n",
        "False\n",
    ),
    _claimant(
        "changes: the metadata in the log are known",
        "_on_stored",
        "each.stored_metadata = each.sent_metadata = cell.metadata",
        "pass",
    ),
    _claimant(
        "changes: of what ended there are none",
        "_drop",
        "del self._changed[holding.key]",
        "pass",
    ),
    _claimant(
        "changes: after a truncation there are none",
        "truncated",
        "self._changed.clear()",
        "pass",
    ),
    _claimant(
        "changes: what the member says of itself only when it differs",
        "_send_heartbeat",
        "None if known or membership != 1 else self.member_metadata",
        "self.member_metadata",
    ),
    _claimant(
        "changes: what the member says of itself is compared with the log",
        "_send_heartbeat",
        "session is not None and session.metadata == self.member_metadata",
        "session is not None",
    ),
]

_THE_LOG_ITSELF = [
    _claimant(
        "recovery: no lease is certain",
        "_on_founded",
        'self._end(holding, ClaimEvent.LOST, "the coordination log was recovered")',
        "pass",
    ),
    _claimant(
        "recovery: what was held is given back",
        "_on_founded",
        "self._give_back(holding.key, coordinator, holding.epoch, now_ns, holding.next_offset)",
        "pass",
    ),
    _claimant(
        "recovery: it is heard of",
        "applied",
        "self._on_founded(coordinator, event, now_ns)",
        "pass",
    ),
    _claimant(
        "resume: epochs count, not offsets",
        "caught_up",
        "self._past_epochs_end = self.world.states[coordinator].base + caught_up_at",
        "self._past_epochs_end = caught_up_at",
    ),
    _claimant(
        "resume: the base at the start",
        "_may_take",
        "cell.epoch < self._past_epochs_end:",
        "cell.epoch < self.world.states[coordinator].base + self._past_epochs_end:",
    ),
    _claimant(
        "level: looked at when it has caught up",
        "caught_up",
        "if not self._can_follow(coordinator):",
        "if False:",
    ),
    _claimant(
        "level: looked at when it is set",
        "applied",
        "LevelSet:\n                self._can_follow(coordinator)",
        "LevelSet:\n                pass",
    ),
    _claimant(
        "level: looked at when the group is forgotten",
        "applied",
        "reconsider_all = self._can_follow(coordinator)",
        "reconsider_all = True",
    ),
    _claimant(
        "level: looked at when a heartbeat is refused",
        "_on_rejected",
        "            self._can_follow(coordinator)\n",
        "            pass\n",
    ),
    _claimant(
        "level: one that is too high",
        "_can_follow",
        "if self._lowest <= level <= self._highest:",
        "if self._lowest <= level:",
    ),
    _claimant(
        "level: one that is too low",
        "_can_follow",
        "if self._lowest <= level <= self._highest:",
        "if level <= self._highest:",
    ),
    _claimant(
        "level: who cannot follow stops", "_can_follow", "self.stop_claiming(self.refusal)", "pass"
    ),
    _claimant(
        "level: who cannot follow says why",
        "_check_wanting",
        'self.refusal or "the client is closing; make a new one"',
        '"the client is closing; make a new one"',
    ),
    _claimant(
        "level: its own are told",
        "_send_heartbeat",
        "            self._lowest,\n            self._highest,\n",
        "            1,\n            1,\n",
    ),
    _claimant(
        "pause: one that is over is ended",
        "end_expired_pause",
        "self._appends.append(Append(self.home, seq, encode(record)))",
        "pass",
    ),
    _claimant(
        "pause: one that is not over is not ended",
        "end_expired_pause",
        "if group.pause.expires_at_ms <= now_ms:",
        "if True:",
    ),
    _claimant(
        "pause: ended is the one that was seen",
        "end_expired_pause",
        "group.pause.version)",
        "group.pause.version + 1)",
    ),
    _claimant(
        "pause: who leaves does not end it",
        "end_expired_pause",
        "if self.leaving or ",
        "if ",
    ),
    _claimant(
        "end: a cell that ends goes with its release",
        "_send_release",
        "1 if holding.ephemeral else 0",
        "0",
    ),
    _claimant(
        "end: only a cell that ends goes with its release",
        "_send_release",
        "1 if holding.ephemeral else 0",
        "1",
    ),
    _claimant(
        "end: a cell that ends is asked for",
        "want",
        "holding.ephemeral = ephemeral",
        "pass",
    ),
]

_ENDING = [
    _claimant(
        "release: its record is sent",
        "_release",
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
        "            if holding.state is ClaimState.RELEASING:\n                self._release_at",
        "            if False:\n                self._release_at",
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
    _claimant("release: with the position", "_send_release", "holding.next_offset if", "-1 if"),
    _claimant("pause: the holder stops", "applied", "self._on_paused(coordinator, now_ns)", "pass"),
    _claimant(
        "pause: the holder stops at once", "_on_paused", "holding.on(ClaimEvent.PAUSED)", "pass"
    ),
    _claimant(
        "position set: nothing renews from the decision on",
        "set_position",
        "holding.reposition_to, holding.lease_until_ns = next_offset, 0",
        "holding.reposition_to = next_offset if holding.paused else NO_OFFSET",
    ),
    _claimant(
        "position set: what is refused is given back",
        "_position_refused",
        "self._start_release(holding, now_ns)",
        "pass",
    ),
    _claimant(
        "position set: what was on its way hinders nothing",
        "_position_refused",
        'if reason == "stale_version":',
        "if False:",
    ),
    _claimant(
        "position set: a release does not hinder it",
        "release",
        "elif holding.state in _OURS and not holding.repositioned:",
        "elif holding.state in _OURS:",
    ),
    _claimant(
        "position set: a pause does not hinder it",
        "_on_paused",
        "if holding.paused or holding.repositioned:",
        "if holding.paused:",
    ),
    _claimant(
        "position set: what got lost is sent again",
        "append_failed",
        "            if holding.state in _OURS:\n                self._release_at",
        "            if False:\n                self._release_at",
    ),
    _claimant(
        "claiming: what was published is published on",
        "_on_claimed",
        "holding.metadata = holding.metadata or cell.metadata",
        "pass",
    ),
    Mutant(
        "claimant: pause: nothing renews",
        CLAIMS,
        (
            Edit("Claimant._send_heartbeats", "any(holding.renewable for", "any(True for"),
            Edit("Claimant._renew_all", "if holding.renewable:", "if True:"),
        ),
    ),
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
        "leaving: says goodbye",
        "leave",
        "self._send_heartbeat(self.home, [], [], 2, now_ns)",
        "pass",
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
        "truncation: nothing is sent before the log was read anew",
        "truncated",
        "observer.caught_up_at_offset = None",
        "pass",
    ),
    _claimant("truncation: what was due is forgotten", "truncated", "self._timers.clear()", "pass"),
    _claimant(
        "truncation: answers are watched for anew",
        "truncated",
        "self._watches_sent = False",
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
        "commit: goes up only", "advance", "if next_offset > holding.next_offset:", "if True:"
    ),
    _claimant(
        "commit: at once, when asked",
        "commit",
        "self._heartbeats.arrange(holding.coordinator, now_ns)",
        "pass",
    ),
    _claimant(
        "commit: told when stored",
        "_on_stored",
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
        "if index == len(self._offsets):\n            return None",
        "if index == len(self._offsets):\n            return self._times[-1] if index else None",
    ),
    _world("old points go", "Timeline.note", "del times[:keep], offsets[:keep]", "pass"),
    _world(
        "long silences are remembered",
        "Timeline.note",
        "self.coarser.note(offsets[-1], times[-1])",
        "pass",
    ),
    _world(
        "long silences are looked up",
        "Timeline.at",
        "return min(coarse, self._times[0])",
        "return self._times[0]",
    ),
    _world(
        "what is coarse is never later than what is finer",
        "Timeline.at",
        "return min(coarse, self._times[0])",
        "return coarse",
    ),
    _world(
        "a silence of ten hours is measured",
        "_timeline",
        "Timeline(1_000 * ms, 600 * minute, coarsest)",
        "coarsest",
    ),
    _world(
        "a silence of ten days is measured",
        "_timeline",
        "600 * minute, coarsest)",
        "600 * minute)",
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
        "group_id.encode()",
        'b""',
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
        "_wait_on",
        "if self.duplicate_instance_id is not None:",
        "if False:",
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
        "_renewed",
        "if holding.late_renewals == MAX_LATE_RENEWALS and not self.silent:",
        "if False:",
    ),
    _claimant(
        "found: one long pause is taken for slow reading",
        "_renewed",
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
                "Claimant._reconcile",
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
    *_VERSIONS,
    *_HEARTBEATS,
    *_MEMBERS,
    *_CLAIMS,
    *_GROUPS,
    *_THE_LOG,
    *_SNAPSHOTS,
    *_THE_LEASE,
    *_CLAIMING,
    *_RECONCILING,
    *_CHANGES,
    *_THE_LOG_ITSELF,
    *_ENDING,
    *_SILENCE,
    *_FOUND,
    *_GO_MARSHAL,
)

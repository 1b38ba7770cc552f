"""Mutants of members that share by ranges: the claimant's part of it, and what they choose."""

from __future__ import annotations

from tests.mutation.load import Edit, Mutant

__all__ = ["BY_RANGES"]


def _by_ranges(module: str, name: str, function: str, old: str, new: str) -> Mutant:
    edits = (Edit(function, old, new),)
    return Mutant(f"by ranges: {name}", f"marshal_py.{module}", edits, "messages")


def _claimant(name: str, function: str, old: str, new: str) -> Mutant:
    return _by_ranges("protocol.claimant", name, f"Claimant.{function}", old, new)


def _choice(name: str, function: str, old: str, new: str) -> Mutant:
    return _by_ranges("protocol.range_choice", name, function, old, new)


BY_RANGES: tuple[Mutant, ...] = (
    _claimant("who leaves asks for nothing", "want_range", "self._check_wanting()", "pass"),
    _claimant(
        "nothing is asked of a log that is being read",
        "want_range",
        "self.observers[place].caught_up_at_offset is None",
        "False",
    ),
    _claimant("what is over is not split", "split", "holding.state not in _OURS", "False"),
    _claimant(
        "a split lies behind the position", "split", "not position < at", "not position <= at"
    ),
    _claimant("a split lies before the end", "split", "at < holding.end:", "at <= holding.end:"),
    _claimant("what is split off is not ours", "split", "holding.end = at", "pass"),
    _claimant("what is ours is not stale", "is_stale", " or key in self._wanted", ""),
    _claimant("what is free is not stale", "is_stale", "not cell.held or", ""),
    _claimant(
        "who waited for a range that was granted waits no more",
        "_granted_to",
        'self._end(wanted, ClaimEvent.CANCELLED, "granted to this client")',
        "pass",
    ),
    _claimant(
        "a range that is done is claimed by nobody",
        "_consider",
        "isinstance(holding, RangeHolding) and not is_open",
        "False",
    ),
    _claimant(
        "a release says whether anything was begun",
        "_send_release",
        "not isinstance(holding, RangeHolding) or holding.begun",
        "True",
    ),
    _claimant(
        "no message beyond the end is claimed",
        "claim_messages",
        "isinstance(holding, RangeHolding) and proposed_offset > holding.end",
        "False",
    ),
    _choice("who stands gives back", "choose", "view.standing_s >= SLOW_S", "False"),
    _choice(
        "nothing is given back while nobody is idle",
        "choose",
        "_give_back(view) if view.idle else []",
        "_give_back(view)",
    ),
    _choice("one range is asked for at a time", "choose", "if view.asked:", "if False:"),
    _choice(
        "one range is held ahead",
        "choose",
        "any(own.next < view.log_end and not own.begun for own in unbegun)",
        "False",
    ),
    _choice("what is free beyond the end can wait", "choose", " if start < reach]", "]"),
    _choice("what is free goes round", "choose", "is_next else []", "True else []"),
    _choice("nobody is left out for long", "choose", " or view.free_s >= OTHERS_S", ""),
    _choice(
        "who is idle holds one range",
        "choose",
        "any(own.end > view.log_end for own in unbegun)",
        "False",
    ),
    _choice("the last goes back first", "_give_back", "reversed(view.own)", "view.own"),
    _choice("what is begun stays", "_give_back", " if own.next < own.end]", "]"),
    _choice("no more than its part", "_count", "at_its_pace, its_part, MOST", "at_its_pace, MOST"),
    _choice("no more than it can do", "_count", "at_its_pace, its_part, MOST", "its_part, MOST"),
    _choice(
        "no more than the most", "_count", "at_its_pace, its_part, MOST", "at_its_pace, its_part"
    ),
    _choice(
        "message by message at last",
        "piece",
        "max_deliveries is not None and granted >= max_deliveries",
        "False",
    ),
    _choice("halves", "piece", "count >> (granted - _wholes", "count >> (granted + 1 - _wholes"),
    _by_ranges(
        "consumer.at_most_once",
        "what was claimed goes out though the range is cut",
        "AtMostOnce.next_run",
        "if verdict and run.part.range is not None:",
        "if False:",
    ),
    _by_ranges(
        "consumer.partitions",
        "where no message is, a range is done all the same",
        "Partitions._say_whether_begun",
        "max(at, part.position())",
        "at",
    ),
    _by_ranges(
        "consumer.ranges",
        "what is acknowledged while it closes counts",
        "RangeClaims.part_of",
        "*self._leaving]:",
        "*()]:",
    ),
    _by_ranges(
        "consumer.ranges",
        "what the log has claimed is not cut",
        "RangeClaims._give_back",
        "part.claim.position, ",
        "",
    ),
    _by_ranges(
        "consumer.ranges",
        "ranges of the dead are taken over",
        "RangeClaims._take_over",
        "for each in group.open_ranges.of(about.source):",
        "for each in ():",
    ),
    _by_ranges(
        "consumer.range_stream",
        "what a range was given it is not given again",
        "RangeStream._read",
        "part.read_to = end",
        "pass",
    ),
    _by_ranges(
        "consumer.range_stream",
        "a range is read as far as Kafka is",
        "RangeStream.passed",
        "self._read(part, min(end, part.end_offset or 0))",
        "self._read(part, part.end_offset or 0)",
    ),
    _by_ranges(
        "consumer.ranges",
        "of ranges that may kill one is worked on at a time",
        "RangeClaims._granted",
        "if self._suspect is not None and self._suspect is not claim:",
        "if False:",
    ),
    _by_ranges(
        "consumer.ranges",
        "of ranges that may kill one is taken over at a time",
        "RangeClaims._take_over",
        "                        suspects.append((each.grants(cell.position), each.cell, about))\n"
        "                        continue\n",
        "                        pass\n",
    ),
    _by_ranges(
        "consumer.ranges",
        "what is only beside a message that kills goes first",
        "RangeClaims._take_over",
        "min(suspects",
        "max(suspects",
    ),
    _by_ranges(
        "consumer.ranges",
        "of ranges that may kill one is asked for at a time",
        "RangeClaims._ask",
        "if may_kill and self._suspect is not None:",
        "if False:",
    ),
    _by_ranges(
        "consumer.ranges",
        "all that a dead member had is taken in one go",
        "RangeClaims._take_over",
        "if len(about.taking) == TAKEN_AT_ONCE:",
        "if about.taking:",
    ),
    _by_ranges(
        "consumer.ranges",
        "nothing is begun before the log has split it",
        "RangeClaims._take_up",
        "elif _range_of(claim) in self._split and claim.held:",
        "elif claim.held:",
    ),
    _by_ranges(
        "consumer.ranges",
        "what is done of a range is told of it alone",
        "RangeClaims._granted",
        "if ClaimMetadata.decode(claim.metadata).done:",
        "if False:",
    ),
    _by_ranges(
        "consumer.ranges",
        "a book is of the topic that is there now",
        "RangeClaims._is_open",
        "is_right = not (known and now and known != now)",
        "is_right = True",
    ),
    _by_ranges(
        "consumer.ranges",
        "what was refused is not asked for at once",
        "RangeClaims._take_up",
        "about.ask_after_s = now_s + LOOK_S",
        "pass",
    ),
    _by_ranges(
        "consumer.ranges",
        "a delay is waited for",
        "RangeClaims.release",
        "time.monotonic() + delay_s",
        "time.monotonic()",
    ),
    _by_ranges(
        "consumer.ranges",
        "somebody who is idle is news",
        "RangeClaims.is_affected_by",
        "is_news &= event.start >=",
        "is_news &= event.start >= 2**63 + 0 *",
    ),
    _by_ranges(
        "consumer.ranges",
        "a partition stands at its first open range",
        "RangeClaims.undone",
        "for each in group.open_ranges.of(source):",
        "for each in ():",
    ),
    _by_ranges(
        "consumer.ranges",
        "what is acknowledged out of order is not cut off",
        "RangeClaims._give_back",
        "any(done_to > begun_to for _, done_to in part.done_before)",
        "False",
    ),
    _by_ranges(
        "consumer.by_ranges",
        "who pauses lets others have it",
        "ByRanges.pause",
        "True",
        "False",
    ),
    _by_ranges(
        "consumer.by_ranges",
        "a message is released where it is acknowledged alone",
        "ByRanges.release",
        "if not self._releases:",
        "if False:",
    ),
    _by_ranges(
        "consumer.at_least_once",
        "what waits for longest goes first",
        "AtLeastOnce._take",
        "run.part.first_offset < part.first_offset",
        "False",
    ),
    _by_ranges(
        "consumer.range_stream",
        "Kafka begins where there is something",
        "RangeStream._seek",
        "first = min(first, self.end)",
        "pass",
    ),
    _by_ranges(
        "consumer.range_stream",
        "what is not kept any more is asked for again",
        "RangeStream._keep",
        "self._kept_from = self._kept[gone - 1].offset() + 1",
        "pass",
    ),
    _by_ranges(
        "consumer.range_stream",
        "what another range was given is asked for again",
        "RangeStream._is_there",
        "return following == len(self._given) or self._given[following][0] >= end",
        "return True",
    ),
    _by_ranges(
        "protocol.ranges",
        "a count begins anew where somebody got further",
        "Range.grants",
        " if position == self.granted_at else 1",
        "",
    ),
    _by_ranges(
        "protocol.ranges",
        "of what is split off this grant has begun nothing",
        "Range.split",
        "max(0, self.granted - 1)",
        "self.granted",
    ),
    _by_ranges(
        "protocol.ranges",
        "what is given back is free in its place",
        "Ranges.free",
        "insort(free, found.start)",
        "free.append(found.start)",
    ),
    _by_ranges(
        "consumer.ranges",
        "what counts as done is kept until handlers have had it",
        "RangeClaims._is_busy_with",
        " or self._work().busy_with(part)",
        "",
    ),
    _by_ranges(
        "consumer.ranges",
        "who dies while nothing has come has killed no message",
        "RangeClaims._granted",
        "held.granted = 1",
        "pass",
    ),
)

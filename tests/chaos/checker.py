"""Judges the histories of a run. Shares no code with the product.

Times are nanoseconds since boot, the same for all processes of the machine. An observation is
[before, after, topic, partition, epoch, until]: at some moment between `before` and `after` the
process was told that it may act, for a lease that by its own words reaches `until` at least.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.config import network_of
from tests.chaos.rawlog import Fold, Record, coordinator
from tests.chaos.receiver import Received

__all__ = ["MESSAGES", "Case", "Era", "Verdict", "judge", "left_to_handle"]

Cell = tuple[str, str, int]
"""(group, topic, partition)."""

MESSAGES = ("alo", "amo", "run", "text")
"""The topics that messages are written to."""
NEVER = 2**63
GRACE_NS = 5 * 10**9
"""How long after a fault things may still be slow."""
ATTEMPTS = 3
"""How often a handler is tried before a message becomes a dead letter."""
MOST_THREADS = 70
"""Of a process when all is well again: one that leads has some 50, with five clients of Kafka."""
KILLS = ("kill", "kill_holders", "calm_kill")
STALL = "stall"
"""The machine stood still: a thread that wanted to sleep for a moment slept for longer."""

OF_THE_CLUSTER = {
    *("broker_kill", "broker_pause", "rolling_restart", "all_brokers_kill", "controller_kill"),
    *("leader_moves", "broker_apart", "controllers_apart", "broker_disk_full", "power_loss"),
    *("topic_made_anew", "unclean_election", STALL),
}
"""They keep everybody from the log, for a while."""
BETWEEN_CLIENT_AND_LOG = OF_THE_CLUSTER | {
    *("stop", "stop_holders", "machine_moves", "hiccup", "duplicate_client"),
    *("link_cut", "link_hole", "link_one_way", "link_slow", "link_lossy"),
}
EXPLAINED: dict[str, set[str]] = {
    "late_heartbeat": BETWEEN_CLIENT_AND_LOG,
    "clock_drift": BETWEEN_CLIENT_AND_LOG,
    "appended_twice": BETWEEN_CLIENT_AND_LOG,
    "zombie": BETWEEN_CLIENT_AND_LOG,
    "flapping": BETWEEN_CLIENT_AND_LOG | {*KILLS, "group_pause"},
    "duplicate_client_id": {"duplicate_client"},
    "level": {"level_change"},
    # Clients that begin together each send one (§5.16); a link may keep it back.
    "second_genesis": BETWEEN_CLIENT_AND_LOG,
}
"""What `verify` may find, and the faults of which one has to have been made shortly before.
Whatever else it finds is an anomaly."""
OF_ANOTHER_LOG: dict[str, set[str]] = {
    "impossible_version": {"topic_made_anew", "unclean_election"},
    "impossible_epoch": {"topic_made_anew", "unclean_election"},
}
"""What it may find where records were lost before: those that were on their way then arrive in the
log that goes on (§7.4). In any other these are the traces of a client that folds another log."""
LEASE_INTERVALS = 1.95
"""So long is a holder silent before somebody takes what it held (§5.2, §5.4): two intervals, less
what clocks may differ."""
EXPLAINED_NS = 30 * 10**9
"""How long after a fault its traces may come: a producer goes on trying for so long."""


@dataclass
class Era:
    """The claimers' log, between two losses of records."""

    lost_by: str
    """The fault that ended it; "" for the last one."""
    end_ns: int
    """When nobody could write to it any more."""
    log: dict[int, list[Record]]


@dataclass
class Case:
    """All that was recorded, as plain data."""

    interval_ms: int
    histories: dict[str, list[list[Any]]]
    """Process → its lines, over all its restarts."""
    director: list[list[Any]]
    log: dict[int, list[Record]]
    """The coordination topic."""
    topics: dict[str, dict[int, list[Record]]] = field(default_factory=dict)
    """The message topics, the dead letters of "run" ("run.dlq"), and what was relayed from the
    outboxes of mark mode ("rows"), of range mode ("ranged"), of wal mode ("logged") and of MariaDB
    ("maria"), as a reader of committed records has it."""
    received: list[Received] | None = None
    """What was relayed to the destination, in order."""
    truth: list[tuple[str, int, int]] = field(default_factory=list)
    """(row, key, seq) of every committed transaction."""
    maria_truth: list[tuple[str, int, int]] = field(default_factory=list)
    """The same of MariaDB."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """What `marshal verify --strict` found in the log."""
    claims: list[Era] = field(default_factory=list)
    """The log of the claimers, if they have one of their own, at the end of each era."""
    claims_findings: list[dict[str, Any]] = field(default_factory=list)
    """What `marshal verify --strict` found in the last of these."""
    log_before: dict[int, list[Record]] = field(default_factory=dict)
    """What was lost, of which records that were on their way may have arrived in this one, and
    processes that stood still may tell."""
    text_log: dict[int, list[Record]] = field(default_factory=dict)
    """The coordination topic of version 1."""
    quiet_bound_s: float = 30.0
    takeover_slack_s: float = 1.0


@dataclass
class Verdict:
    """What was found. No anomaly means that everything held."""

    anomalies: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> None:
        """Note one anomaly; those beyond 50 only count."""
        self.figures["anomalies"] = self.figures.get("anomalies", 0) + 1
        if len(self.anomalies) < 50:
            self.anomalies.append(f"{kind}: {text}")


@dataclass
class _Tenure:
    """What one process said and did under one epoch."""

    process: str
    epoch: int
    instance: str
    first: int = NEVER
    """The earliest moment by which it had been told that it may act."""
    looks: list[tuple[int, int]] = field(default_factory=list)
    """(before, until)."""
    actions: list[tuple[int, int]] = field(default_factory=list)
    """(before, end)."""
    ended: int = NEVER
    """When it gave the claim up, closed or died: from then on its lease excludes nobody."""


def judge(case: Case) -> Verdict:
    """Check everything."""
    verdict = _judge(case) if not case.claims else _judge_eras(case)
    _levels(case, verdict)
    _left_behind(case, verdict)
    return verdict


def _judge_eras(case: Case) -> Verdict:
    """Check everything, the claimers by each of their logs."""
    verdict = _judge(_without_claimers(case))
    verdict.figures["epochs_given_again"] = 0
    epochs: dict[Cell, tuple[int, int]] = {}
    for number in range(len(case.claims)):
        part = _era(case, number)
        found = _judge(part)
        for text in found.anomalies:
            verdict.add(f"era {number}: {text.partition(': ')[0]}", text.partition(": ")[2])
        _given_again(case, number, part, epochs, verdict)
        found.figures.pop("anomalies")  # they were counted as they were added
        for name, value in found.figures.items():
            verdict.figures[name] = _together(name, verdict.figures.get(name), value)
    verdict.figures["eras_of_the_claims"] = len(case.claims)
    return verdict


def _together(name: str, one: Any, other: Any) -> Any:
    """A figure of two parts of a run."""
    if one is None or name.endswith("median_s"):
        return other
    if isinstance(one, dict):
        return {key: one.get(key, 0) + other.get(key, 0) for key in sorted({*one, *other})}
    if name.startswith("shortest"):
        return min(one, other)
    return max(one, other) if name.endswith("_s") else one + other


def _levels(case: Case, verdict: Verdict) -> None:
    """Whoever cannot follow the level of the group does not act while it works by that (G28)."""
    changes = [line[1:] for line in case.director if line[0] == "level"]
    for begin, end, older in changes:
        for process in older:
            for line in case.histories.get(process, []):
                if line[0] == "act" and begin <= line[1] < end:
                    verdict.add("acts beyond its level", f"{process} at {line[1]}: {line[3:6]}")
    verdict.figures["levels_changed"] = len(changes)


def _left_behind(case: Case, verdict: Verdict) -> None:
    """Clients that failed are gone, with their threads, when all is well again."""
    for line in case.director:
        if line[0] == "threads":
            verdict.figures["most_threads"] = max(line[2].values(), default=0)
            for process, threads in line[2].items():
                if threads > MOST_THREADS:
                    verdict.add("clients left behind", f"{process} has {threads} threads")


def _is_claimer(process: str) -> bool:
    return process.startswith("claimer")


def _without_claimers(case: Case) -> Case:
    """The rest of a run: all that is not about the claimers' log."""
    histories = {name: lines for name, lines in case.histories.items() if not _is_claimer(name)}
    director = [_quiet_of(line, cells=False) for line in case.director]
    return replace(case, histories=histories, director=director, claims=[], claims_findings=[])


def _quiet_of(line: list[Any], *, cells: bool) -> list[Any]:
    if line[0] != "quiet":
        return line
    return [*line[:2], {name: n for name, n in line[2].items() if (name == "cells") is cells}]


def _era(case: Case, number: int) -> Case:
    """What was of one of the claimers' logs.

    Nobody holds a claim of the log before for longer than a lease: from then on, all that is acted
    upon is in this one. Until then there may be two holders (A1).
    """
    lease_ns = 2 * case.interval_ms * 1_000_000
    begin = case.claims[number - 1].end_ns + lease_ns if number else 0
    is_last = number == len(case.claims) - 1
    end = NEVER if is_last else case.claims[number].end_ns
    histories = {
        name: [line for line in lines if line[0] == "start" or begin <= line[1] < end]
        for name, lines in case.histories.items()
        if _is_claimer(name)
    }
    director = [
        _quiet_of(line, cells=True)
        for line in case.director
        if is_last or line[0] not in ("quiet", "dead") or line[1] < end
    ]
    director = [line for line in director if line[0] != "dead" or line[1] >= begin]
    return Case(
        case.interval_ms,
        histories,
        [line for line in director if is_last or line[0] != "quiet"],
        case.claims[number].log,
        findings=case.claims_findings if is_last else [],
        log_before=case.claims[number - 1].log if number else {},
        quiet_bound_s=case.quiet_bound_s,
        takeover_slack_s=case.takeover_slack_s,
    )


def _given_again(
    case: Case, number: int, part: Case, epochs: dict[Cell, tuple[int, int]], verdict: Verdict
) -> None:
    """No epoch under which somebody acted is smaller than one of an earlier era (G12).

    But for those that are given before a client that has seen the larger ones writes its genesis;
    or, where none of these clients could reach the log, before the log was lost again.

    `epochs`: of each cell, the largest one so far and when the log was lost that had it.
    """
    offset_ns = _clock_offset_ns(case)
    began_ns = case.claims[number - 1].end_ns if number else 0
    fold = Fold(home := coordinator("claimer", len(part.log)))
    for record in part.log[home]:
        fold.apply(record)
    largest = dict(epochs)
    for cell, by_epoch in _tenures(part).items():
        before, lost_ns = epochs.get(cell, (-1, 0))
        for epoch, tenure in by_epoch.items():
            if 0 <= epoch <= before:
                claim = fold.claims.get(epoch)
                soon_ms = 2 * part.interval_ms
                if claim is not None and (
                    any(
                        base > before and claim.at_ms <= at_ms <= claim.at_ms + soon_ms
                        for at_ms, base in fold.geneses
                    )
                    or not _witnesses(
                        case, lost_ns, began_ns, (claim.at_ms + soon_ms) * 1_000_000 + offset_ns
                    )
                ):
                    verdict.figures["epochs_given_again"] += 1
                else:
                    verdict.add(
                        f"era {number}: epoch given again", f"{tenure.process}, {cell}, {epoch}"
                    )
            if epoch > largest.get(cell, (-1, 0))[0]:
                largest[cell] = epoch, case.claims[number].end_ns
    epochs.update(largest)


def _witnesses(case: Case, lost_ns: int, began_ns: int, until_ns: int) -> set[str]:
    """The claimers that had read a log before it was lost, and could write to the one that began.

    They ran all the time between, and nothing kept them from that one for two intervals in a row.
    """
    found = set()
    for process, lines in case.histories.items():
        begun = [line for line in lines if line[0] in ("start", "ready") and line[1] <= until_ns]
        if not _is_claimer(process) or not begun or begun[-1][0] != "ready":
            continue
        ready_ns = begun[-1][1]
        died = any(
            line[0] == "dead" and line[2] == process and ready_ns < line[1] <= until_ns
            for line in case.director
        )
        if ready_ns <= lost_ns and not died:
            free_ns = _free_ns(case, process, began_ns, until_ns)
            if free_ns >= 2 * case.interval_ms * 1_000_000:
                found.add(process)
    return found


def _free_ns(case: Case, process: str, since_ns: int, until_ns: int) -> int:
    """The longest time in which a process was not stopped, no link of it broken, and the cluster
    well."""
    links = tuple(f"{network_of(process)}-{broker}" for broker in range(3))
    longest, free_since = 0, since_ns
    for line in sorted((li for li in case.director if li[0] == "fault"), key=lambda li: li[2]):
        _, name, began, ended, whom = line
        named = {each for word in whom.split() for each in word.split(",")}
        if name in OF_THE_CLUSTER or (name in BETWEEN_CLIENT_AND_LOG and named & {process, *links}):
            longest = max(longest, min(began, until_ns) - free_since)
            free_since = max(free_since, ended)
    return max(longest, until_ns - free_since)


def _judge(case: Case) -> Verdict:
    verdict = Verdict()
    folds = _fold(case, verdict)
    tenures = _tenures(case)
    for cell, by_epoch in tenures.items():
        released = folds[coordinator(cell[0], len(case.log))].released
        for t in by_epoch.values():
            if t.epoch in released and t.looks:  # it gave the claim up after it had last looked
                t.ended = min(t.ended, t.looks[-1][0])
    _leases_in_the_log(case, folds, verdict)
    _verified(case, verdict)
    _epochs_are_in_the_log(case, tenures, folds, verdict)
    _exclusion(tenures, verdict)
    _worlds_agree(case, verdict)
    _at_most_once(case, folds, verdict)
    _at_least_once(case, folds, verdict)
    _handled(case, verdict)
    _version_1(case, verdict)
    _takeovers(case, tenures, verdict)
    _quiet(case, tenures, verdict)
    for topic in ("rows", "ranged", "logged", "maria"):
        _rows(case, topic, verdict)
    _posted(case, verdict)
    _acknowledged(case, verdict)
    verdict.figures.setdefault("anomalies", 0)
    return verdict


def _fold(case: Case, verdict: Verdict) -> dict[int, Fold]:
    folds = {}
    for p, records in case.log.items():
        fold = folds[p] = Fold(p)
        for record in records:
            fold.apply(record)
        for offset in fold.strange:
            verdict.add("strange record", f"partition {p}, offset {offset}")
        for epoch, claim in fold.claims.items():
            if coordinator(claim.key[0], len(case.log)) != p:
                verdict.add("wrong coordination partition", f"{claim.key} at {p}/{epoch}")
    verdict.figures["coordination_records"] = sum(len(r) for r in case.log.values())
    verdict.figures["claims_accepted"] = sum(len(f.claims) for f in folds.values())
    verdict.figures["rejected"] = sum(f.rejected for f in folds.values())
    return folds


def _leases_in_the_log(case: Case, folds: dict[int, Fold], verdict: Verdict) -> None:
    """By the intervals and the broker's times alone: nobody took what another still held.

    But for a claim that was on its way when records were lost, and names one of those: by chance
    the log that went on may have such a version, too (§9).
    """
    silences = []
    for p, fold in folds.items():
        for taken in fold.taken:
            is_early = taken.silence < LEASE_INTERVALS
            if is_early and _was_another(case, p, taken.named):
                verdict.figures["taken_by_chance"] = verdict.figures.get("taken_by_chance", 0) + 1
                continue
            silences.append(taken.silence)
            if is_early:
                verdict.add("taken too early", taken.text)
    verdict.figures["takeovers_in_the_log"] = sum(len(fold.taken) for fold in folds.values())
    if silences:
        verdict.figures["shortest_silence_intervals"] = round(min(silences), 3)


def _was_another(case: Case, p: int, offset: int) -> bool:
    """Whether the log before had another record there."""
    before, now = (
        next((r for r in log.get(p, []) if r.offset == offset), None)
        for log in (case.log_before, case.log)
    )
    return before is not None and before != now


def _clock_offset_ns(case: Case) -> int:
    """What to add to a broker's time to have that of the histories."""
    return next((line[1] - line[2] for line in case.director if line[0] == "clock"), 0)


def _verified(case: Case, verdict: Verdict) -> None:
    """Everything that `marshal verify --strict` found is the trace of a fault that was made."""
    counts: dict[str, int] = defaultdict(int)
    offset_ns = _clock_offset_ns(case)
    faults = [line for line in case.director if line[0] == "fault"]
    explained = EXPLAINED | OF_ANOTHER_LOG if case.log_before else EXPLAINED
    for finding in case.findings:
        kind, at = finding["kind"], finding["at_ms"] * 1_000_000 + offset_ns
        counts[kind] += 1
        causes = explained.get(kind, set())
        if not any(f[1] in causes and f[2] <= at <= f[3] + EXPLAINED_NS for f in faults):
            where = f"{finding['coordinator']}@{finding['offset']}"
            said = f"{finding['what']}; {finding.get('record')}"
            verdict.add("verify", f"{kind}, {where}: {said}")
    verdict.figures["verify_findings"] = dict(sorted(counts.items()))


def _tenures(case: Case) -> dict[Cell, dict[int, _Tenure]]:
    """Cell → epoch → tenure."""
    deaths = defaultdict(list)
    for line in case.director:
        if line[0] == "dead":
            deaths[line[2]].append(line[1])
    found: dict[Cell, dict[int, _Tenure]] = defaultdict(dict)
    for process, lines in case.histories.items():
        instance, group = "", process.partition("-")[0]
        mine: list[_Tenure] = []
        for line in lines:
            if line[0] == "start":
                died = [t for t in deaths[process] if t <= line[1]]
                for tenure in mine:
                    tenure.ended = min(tenure.ended, max(died, default=NEVER))
                instance, mine = line[2], []
            elif line[0] in ("act", "deliver") or (line[0] == "handle" and line[10]):
                before, after, topic, partition, epoch, until = line[1:7]
                cell = found[group, topic, partition]
                if epoch not in cell:
                    cell[epoch] = _Tenure(process, epoch, instance)
                    mine.append(cell[epoch])
                tenure = cell[epoch]
                if tenure.process == process and tenure.instance == instance:
                    tenure.first = min(tenure.first, after)
                    tenure.looks.append((before, until))
                    tenure.actions.append((before, line[-1]))
                else:
                    # Two instances under one epoch: make that visible as a tenure of its own.
                    cell[-1 - len(cell)] = _Tenure(process, epoch, instance, after)
            elif line[0] == "release":
                given_up = found[group, line[2], line[3]].get(line[4])
                if given_up is not None and given_up.process == process:
                    given_up.ended = min(given_up.ended, line[1])
            elif line[0] == "closing":
                for tenure in mine:
                    tenure.ended = min(tenure.ended, line[1])
        last = [t for t in deaths[process] if not lines or t >= lines[-1][1]]
        for tenure in mine:
            tenure.ended = min(tenure.ended, min(last, default=NEVER))
    return found


def _epochs_are_in_the_log(
    case: Case, tenures: dict[Cell, dict[int, _Tenure]], folds: dict[int, Fold], verdict: Verdict
) -> None:
    for cell, by_epoch in tenures.items():
        p = coordinator(cell[0], len(case.log))
        for t in by_epoch.values():
            claim = folds[p].claims.get(t.epoch)
            if claim is None or claim.key != cell:
                verdict.add("no such claim", f"{t.process} acted on {cell} under epoch {t.epoch}")
            elif (claim.client, claim.instance) != (t.process.rstrip("~"), t.instance):
                verdict.add("another's claim", f"{t.process} on {cell} under epoch {t.epoch}")


def _exclusion(tenures: dict[Cell, dict[int, _Tenure]], verdict: Verdict) -> None:
    """Nobody is told that it may act once somebody with a higher epoch was told so.

    Consumers at most once act by what the log says, not by the lease: not for them.
    """
    looks = zombies = 0
    for cell, by_epoch in tenures.items():
        if cell[0] == "amo":
            continue
        order = sorted(by_epoch.values(), key=lambda t: t.epoch)
        limit, who = NEVER, ""
        for t in reversed(order):
            looks += len(t.looks)
            for before, until in t.looks:
                if before > limit:
                    verdict.add(
                        "two holders",
                        f"{t.process} was told that it holds {cell} under epoch {t.epoch} "
                        f"{(before - limit) / 1e6:.1f} ms after {who} had been told so",
                    )
                    break
                if until > limit and t.ended > limit:
                    verdict.add(
                        "two leases",
                        f"the lease of {t.process} on {cell} under epoch {t.epoch} reached "
                        f"{(until - limit) / 1e6:.1f} ms beyond the moment at which {who} held it",
                    )
                    break
            zombies += sum(before <= limit < end for before, end in t.actions)
            if t.first < limit:
                limit, who = t.first, f"{t.process} (epoch {t.epoch})"
    verdict.figures["actions"] = looks
    verdict.figures["tenures"] = sum(len(by_epoch) for by_epoch in tenures.values())
    verdict.figures["actions_overtaken_while_suspended"] = zombies


def _worlds_agree(case: Case, verdict: Verdict) -> None:
    """Every process that told its state had the one that the log leads to, at that offset."""
    wanted = defaultdict(list)
    for process, lines in case.histories.items():
        for line in lines:
            if line[0] == "world":
                wanted[line[2]].append((line[3], process, sorted(line[4])))
    compared = 0
    for p, told in wanted.items():
        fold, records = Fold(p), iter(case.log.get(p, []))
        upcoming = next(records, None)
        for next_offset, process, cells in sorted(told):
            while upcoming is not None and upcoming.offset < next_offset:
                fold.apply(upcoming)
                upcoming = next(records, None)
            compared += 1
            if fold.state() != cells and _state_at(case.log_before, p, next_offset) != cells:
                verdict.add("states differ", f"{process}, partition {p}, at offset {next_offset}")
    verdict.figures["states_compared"] = compared


def _state_at(log: dict[int, list[Record]], p: int, next_offset: int) -> list[list[Any]] | None:
    """The state of a partition of the log before, of which a process may not know yet (§7.4)."""
    if not log:
        return None
    fold = Fold(p)
    for record in log.get(p, []):
        if record.offset < next_offset:
            fold.apply(record)
    return fold.state()


def _deliveries(case: Case, kind: str) -> dict[int, list[tuple[int, int, int, str]]]:
    """Partition → (offset, epoch, before, process)."""
    found = defaultdict(list)
    for process, lines in case.histories.items():
        if process.startswith(f"{kind}-"):
            for line in lines:
                if line[0] == "deliver":
                    found[line[4]].append((line[7], line[5], line[1], process))
    return found


def _at_most_once(case: Case, folds: dict[int, Fold], verdict: Verdict) -> None:
    delivered = lost = 0
    deliveries = _deliveries(case, "amo")
    for p, records in case.topics.get("amo", {}).items():
        ranges = folds[coordinator("amo", len(case.log))].ranges
        seen: dict[int, str] = {}
        for offset, epoch, _, process in deliveries.get(p, []):
            who = f"{process} (epoch {epoch})"
            if offset in seen:
                verdict.add("delivered twice", f"amo/{p}/{offset}: {seen[offset]} and {who}")
            if epoch not in ranges or not ranges[epoch].covers(offset):
                verdict.add("delivered unclaimed", f"amo/{p}/{offset} by {who}")
            seen[offset] = who
        delivered += len(seen)
        lost += len({record.offset for record in records} - set(seen))
    verdict.figures["amo_delivered"] = delivered
    verdict.figures["amo_lost"] = lost


def _at_least_once(case: Case, folds: dict[int, Fold], verdict: Verdict) -> None:
    delivered = again = 0
    window_ns = 2 * case.interval_ms * 1_000_000
    deliveries = _deliveries(case, "alo")
    for p, records in case.topics.get("alo", {}).items():
        claims = folds[coordinator("alo", len(case.log))].claims
        by_epoch: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for offset, epoch, before, _ in deliveries.get(p, []):
            by_epoch[epoch].append((offset, before))
        seen: set[int] = set()
        movable: set[int] = set()
        """What may come again: delivered shortly before its holder ended."""
        for epoch in sorted(by_epoch):
            offsets = [offset for offset, _ in by_epoch[epoch]]
            start = max(0, claims[epoch].position) if epoch in claims else offsets[0]
            if offsets != list(range(start, start + len(offsets))):
                at = next((n for n, o in enumerate(offsets) if o != start + n), 0)
                verdict.add(
                    "not in order",
                    f"alo/{p} under epoch {epoch}: {start + at} was due, {offsets[at]} came",
                )
            repeated = seen & set(offsets)
            again += len(repeated)
            if not repeated <= movable:
                verdict.add(
                    "came again too late",
                    f"alo/{p} under epoch {epoch}: {sorted(repeated - movable)}",
                )
            seen |= set(offsets)
            _note_movable(by_epoch[epoch], window_ns, movable)
        _all_delivered(f"alo/{p}", records, seen, verdict)
        delivered += len(seen)
    verdict.figures["alo_delivered"] = delivered
    verdict.figures["alo_delivered_again"] = again


def _all_delivered(where: str, records: list[Record], seen: set[int], verdict: Verdict) -> None:
    missing = sorted({record.offset for record in records} - seen)
    if missing:
        verdict.add("never delivered", f"{where}: {len(missing)} messages, from {missing[:5]}")


def _note_movable(deliveries: list[tuple[int, int]], window_ns: int, movable: set[int]) -> None:
    """Say which of a holder's deliveries, (offset, before), may come again elsewhere.

    Each was stored before the next delivery began, and each heartbeat carries what was stored since
    the one before; the lease at the last delivery came of a heartbeat that was sent within two
    intervals.
    """
    last = deliveries[-1][1]
    stored = [before for _, before in deliveries[1:]] + [NEVER]
    for (offset, _), at in zip(deliveries, stored, strict=True):
        if at >= last - window_ns:
            movable.add(offset)
        else:
            movable.discard(offset)


def left_to_handle(
    messages: dict[int, list[Record]],
    dead: dict[int, list[Record]],
    histories: dict[str, list[list[Any]]],
) -> set[tuple[int, int]]:
    """What was neither handled nor became a dead letter: (partition, offset)."""
    values = {record.value for records in dead.values() for record in records}
    done = {
        (line[4], line[7])
        for lines in histories.values()
        for line in lines
        if line[0] == "handle" and line[9] == "done"
    }
    return {
        (p, record.offset)
        for p, records in messages.items()
        for record in records
        if record.value not in values and (p, record.offset) not in done
    }


def _handled(case: Case, verdict: Verdict) -> None:
    """Each message was handled or is a dead letter, and under one claim a key's came in order.

    A message that failed comes again before the next of its key, which waits for its end.
    """
    if "run" not in case.topics:
        return
    messages, dead = case.topics["run"], case.topics["run.dlq"]
    for p, offset in sorted(left_to_handle(messages, dead, case.histories)):
        verdict.add("never handled", f"run/{p}/{offset}: {_tried(case, p, offset)}")
    places: dict[Any, list[tuple[int, int]]] = defaultdict(list)  # several, if appended twice
    for p, records in messages.items():
        for record in records:
            places[record.value].append((p, record.offset))
    letters = {record.value for records in dead.values() for record in records}
    for value in letters - places.keys():
        verdict.add("dead letter of nothing", repr(value))
    failed: dict[tuple[int, int], int] = defaultdict(int)
    lanes: dict[tuple[int, int, str], list[tuple[int, int, int, str]]] = defaultdict(list)
    handled = 0
    for process, lines in case.histories.items():
        for line in lines:
            if line[0] == "handle" and process.startswith("run-"):
                began, _, _, p, epoch, _, offset, key, outcome, _, ended = line[1:]
                lanes[p, epoch, key].append((began, ended, offset, outcome))
                handled += outcome == "done"
                failed[p, offset] += outcome == "failed"
    given_up = set()
    for value in letters & places.keys():
        often = {place for place in places[value] if failed[place] >= ATTEMPTS}
        given_up |= often or set(places[value])
        if not often:
            tried = ", ".join(f"run/{p}/{o}: {failed[p, o]} times" for p, o in places[value])
            verdict.add("given up too early", f"failed {tried}")
    for (p, epoch, key), calls in lanes.items():
        last, free_at, outcome_before, where = -1, 0, "", f"run/{p} under epoch {epoch}, key {key}"
        for began, ended, offset, outcome in sorted(calls):
            if began < free_at:
                verdict.add("two handlers of a key", f"{where}: {offset} before {last} ended")
            if offset < last or (offset == last and outcome_before == "done"):
                verdict.add("order of a key", f"{where}: {offset} after {last}")
            elif offset > last >= 0 and outcome_before == "failed" and (p, last) not in given_up:
                verdict.add("a failed message is passed over", f"{where}: {last}, then {offset}")
            last, free_at, outcome_before = offset, max(free_at, ended), outcome
    verdict.figures["run_handled"] = handled
    verdict.figures["run_retried"] = sum(count > 0 for count in failed.values())
    verdict.figures["run_dead_letters"] = len(letters)


def _tried(case: Case, p: int, offset: int) -> str:
    """Who tried to handle a message, and what came after it in its partition, for who looks."""
    tries, after = [], []
    for process, lines in case.histories.items():
        for line in lines:
            if line[0] == "handle" and process.startswith("run-") and line[4] == p:
                if line[7] == offset:
                    tries.append((line[1], f"{line[9]} by {process} under epoch {line[5]}"))
                elif line[7] > offset:
                    after.append((line[7], f"{line[7]} under epoch {line[5]}"))
    told = [text for _, text in sorted(tries)] or ["nobody tried"]
    return f"{', '.join(told)}; the last after it: {max(after, default=(0, 'none'))[1]}"


@dataclass
class _TextClaim:
    """A claim of version 1, as its holder saw it."""

    process: str
    first: int = NEVER
    """When it had been told that it may act."""
    last: int = -1
    """When it asked for the last time, of those at which it was told so."""
    deliveries: list[tuple[int, int]] = field(default_factory=list)
    """(offset, before)."""


def _version_1(case: Case, verdict: Verdict) -> None:
    """Nobody holds what another holds, nothing is left out, and little comes again.

    There are no epochs: a claim is what its holder took for one.
    """
    if "text" not in case.topics:
        return
    claims: dict[int, dict[tuple[str, int, int], _TextClaim]] = defaultdict(dict)
    for process, lines in case.histories.items():
        starts = 0
        for line in lines:
            if line[0] == "start":
                starts += 1
            elif line[0] == "text":
                before, after, p, number, held, offset, _ = line[1:]
                claim = claims[p].setdefault((process, starts, number), _TextClaim(process))
                claim.deliveries.append((offset, before))
                if held:
                    claim.first, claim.last = min(claim.first, after), before
    delivered = again = 0
    window_ns = 2 * case.interval_ms * 1_000_000
    brought_back = _brought_back(case.text_log)
    for p, records in case.topics["text"].items():
        seen: set[int] = set()
        movable: set[int] = set()
        latest = _TextClaim("")
        for claim in sorted(claims[p].values(), key=lambda c: c.deliveries[0][1]):
            if claim.first < latest.last:
                both = f"{latest.process} and {claim.process}"
                verdict.add("two holders", f"text/{p}: {both} at {claim.first}")
            if claim.last > latest.last:
                latest = claim
            offsets = [offset for offset, _ in claim.deliveries]
            if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                verdict.add("not in order", f"text/{p}, {claim.process} from {offsets[0]} on")
            repeated = seen & set(offsets)
            again += len(repeated)
            if not repeated <= movable and offsets[0] not in brought_back[p]:
                late = sorted(repeated - movable)
                verdict.add("came again too late", f"text/{p}, {claim.process}: {late}")
            seen |= set(offsets)
            _note_movable(claim.deliveries, window_ns, movable)
        _all_delivered(f"text/{p}", records, seen, verdict)
        delivered += len(seen)
    verdict.figures["text_delivered"] = delivered
    verdict.figures["text_delivered_again"] = again
    verdict.figures["text_claims"] = sum(map(len, claims.values()))


def _brought_back(log: dict[int, list[Record]]) -> dict[int, set[int]]:
    """Positions to which a client set a partition back that another one had got further in.

    Its heartbeat was late, and its clock ahead, so that it counted (INTEROP.md §5, 6).
    """
    found: dict[int, set[int]] = defaultdict(set)
    furthest: dict[int, tuple[int, str]] = {}
    for records in log.values():
        for record in records:
            if not (record.value or b"").startswith(b"Heartbeat/"):
                continue
            *_, client, _, topic, p, offset = record.value.decode().split("/")
            if topic != "text":
                continue
            position, (most, who) = int(offset), furthest.get(int(p), (-1, ""))
            if position < most and client != who:
                found[int(p)].add(position)
            if position >= most:
                furthest[int(p)] = position, client
    return found


def _takeovers(case: Case, tenures: dict[Cell, dict[int, _Tenure]], verdict: Verdict) -> None:
    """How long the cells of a killed claimer were without a holder.

    There is a bound where no other fault fell into the time, and the machine did not stand still.
    """
    bound_s = 2 * case.interval_ms / 1000 + case.takeover_slack_s
    times: list[float] = []
    judged: list[float] = []
    faults = [line for line in case.director if line[0] == "fault"]
    for line in case.director:
        if line[0] != "dead":
            continue
        at, process = line[1], line[2]
        for cell, by_epoch in tenures.items():
            if cell[0] != "claimer":
                continue
            old = [t for t in by_epoch.values() if t.process == process and t.ended == at]
            if not old or old[-1].looks[-1][1] < at:
                continue  # it held nothing when it died
            later = [t.first for t in by_epoch.values() if t.epoch > old[-1].epoch]
            end = min(later, default=NEVER)
            wait_s = (end - at) / 1e9
            times.append(wait_s)
            window_end = min(end, at + int(bound_s * 1e9))
            if all(f[2] >= window_end or f[3] <= at - GRACE_NS or f[1] in KILLS for f in faults):
                judged.append(wait_s)
                if wait_s > bound_s and window_end < case.director[-1][1]:
                    verdict.add("not free in time", f"{cell} of {process}, {wait_s:.1f} s")
    finite = [t for t in times if t < 1e6]
    verdict.figures["takeovers_after_kill"] = len(times)
    verdict.figures["takeovers_with_bound"] = len(judged)
    if judged:
        verdict.figures["takeover_with_bound_max_s"] = round(max(judged), 3)
    if finite:
        verdict.figures["takeover_median_s"] = round(statistics.median(finite), 3)
        verdict.figures["takeover_max_s"] = round(max(finite), 3)


def _quiet(case: Case, tenures: dict[Cell, dict[int, _Tenure]], verdict: Verdict) -> None:
    """Once the faults are over, every cell is held within a stated time."""
    quiet = next((line for line in case.director if line[0] == "quiet"), None)
    if quiet is None:
        return
    _, at, cells = quiet
    latest_s = 0.0
    for topic, count in cells.items():
        group = "claimer" if topic == "cells" else topic
        for p in range(count):
            looks = [
                before
                for t in tenures.get((group, topic, p), {}).values()
                for before, _ in t.looks
                if before >= at
            ]
            wait_s = (min(looks) - at) / 1e9 if looks else float("inf")
            latest_s = max(latest_s, wait_s)
            if wait_s > case.quiet_bound_s:
                verdict.add("not held when quiet", f"{topic}/{p}: {wait_s:.1f} s")
    verdict.figures["all_held_after_s"] = round(latest_s, 3)


def _rows(case: Case, topic: str, verdict: Verdict) -> None:
    """Every committed row once, in the order of its key, and none that was rolled back.

    The same rows are in the outboxes of all modes.
    """
    if topic not in case.topics:
        return
    truth = case.maria_truth if topic == "maria" else case.truth
    committed = {row: (key, seq) for row, key, seq in truth}
    relayed: dict[str, int] = defaultdict(int)
    for p, records in case.topics[topic].items():
        last: dict[str, int] = defaultdict(int)
        for offset, key, value, _ in records:
            content = json.loads(value)
            row, seq, name = content["row"], content["seq"], key.decode()
            relayed[row] += 1
            if row not in committed:
                verdict.add("rolled back, but relayed", f"{topic}/{p}/{offset}: {row}")
            elif relayed[row] > 1:
                verdict.add("relayed twice", f"{topic}/{p}/{offset}: key {name}, seq {seq}")
            elif seq != last[name] + 1:
                verdict.add("order of a key", f"{topic}/{p}/{offset}: {name}: {last[name]}, {seq}")
            last[name] = max(last[name], seq)
    missing = len(set(committed) - set(relayed))
    if missing:
        verdict.add("not relayed", f"{topic}: {missing} of {len(committed)} committed rows")
    verdict.figures[f"{topic}_committed"] = len(committed)
    vetoed = sum(line[0] == "vetoed" for line in case.histories.get("rows", []))
    verdict.figures["commits_failed"] = vetoed
    verdict.figures[f"{topic}_relayed"] = sum(relayed.values())


def _posted(case: Case, verdict: Verdict) -> None:
    """To a destination: every committed row, under one key, and none that was rolled back.

    The first time that each came, and the last time, they are in the order of their keys.
    """
    if case.received is None:
        return
    committed = {row: (str(key), seq) for row, key, seq in case.truth}
    names: dict[str, str] = {}
    first: dict[str, list[int]] = defaultdict(list)
    last: dict[str, dict[int, None]] = defaultdict(dict)
    for received in case.received:
        content = json.loads(received.body)
        row, seq = content["row"], content["seq"]
        if committed.get(row) != (received.key, seq):
            verdict.add("rolled back, but relayed", f"to the destination: {row}")
            continue
        if names.setdefault(row, received.idempotency_key) != received.idempotency_key:
            verdict.add("another idempotency key", f"{row}: {received.idempotency_key}")
        if seq not in last[received.key]:
            first[received.key].append(seq)
        last[received.key].pop(seq, None)
        last[received.key][seq] = None
    for key, order in first.items():
        if order != sorted(order) or list(last[key]) != sorted(order):
            verdict.add("order of a key", f"to the destination: {key}")
    if len(set(names.values())) != len(names):
        verdict.add("another idempotency key", "two rows came under one")
    missing = len(set(committed) - set(names))
    if missing:
        verdict.add("not relayed", f"to the destination: {missing} of {len(committed)} rows")
    verdict.figures["posted"] = len(names)
    verdict.figures["posted_again"] = len(case.received) - len(names)


def _acknowledged(case: Case, verdict: Verdict) -> None:
    """The stage itself: what Kafka acknowledged is there."""
    there = {
        (topic, p, value.decode()): offset
        for topic in MESSAGES
        for p, records in case.topics.get(topic, {}).items()
        for offset, _, value, _ in records
    }
    for line in case.histories.get("writer", []):
        if line[0] == "acknowledged":
            # The offset is unknown where only a repetition was acknowledged.
            found = there.get((line[1], line[2], line[4]))
            if found is None or line[3] not in (None, found):
                verdict.add("Kafka lost a record", f"{line[1]}/{line[2]}/{line[3]}")

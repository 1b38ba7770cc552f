"""What `marshal doctor` thinks of a cluster: facts in, checks out. No I/O.

A check that fails names the fact, the guarantee that it endangers, and the command that mends it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from marshal_py.client.topics import TopicPlan, plan_topics

__all__ = [
    "Check",
    "ClockSample",
    "ClusterFacts",
    "Level",
    "PartitionFacts",
    "TopicFacts",
    "check_cluster",
    "measure_clock_rate",
]

Level = Literal["ok", "note", "skipped", "warning", "error"]

NEEDED_FEATURES: Final = {
    "MsgVer2": "records with a timestamp of the broker's and a producer's number (Kafka 0.11)",
    "IdempotentProducer": "an idempotent producer (Kafka 0.11)",
}
RATE_LIMIT: Final = 0.025
"""The default margin, a tenth of the interval, is used up by two clocks whose rates differ by 5 %
(specs/PROTOCOL.md §5.4). Against the brokers' half of that: another client may err the other way.
"""

SAMPLES_PER_END: Final = 5
"""The quickest of so many timestamps is taken, at the beginning and at the end."""

SKEW_LIMIT_MS: Final = 1_000
"""The default of `cold_start_skew_ms` (specs/PROTOCOL.md §5.3)."""

MANY_PARTITIONS: Final = 64

_ERROR_IF_WRONG: Final = {
    "unclean.leader.election.enable": "acknowledged claims could vanish: two holders at once",
    "min.insync.replicas": "a record that one broker has counts as written, and can be lost with "
    "it: two holders at once",
    "cleanup.policy": "records go that nobody has read: the state of the world is lost",
    "retention.ms": "records go by age: once no snapshot covers them, no client can start",
    "retention.bytes": "records go by size: once no snapshot covers them, no client can start",
    "replication_factor": "a single disk's failure loses the log",
}
_WARNING_IF_WRONG: Final = {
    "message.timestamp.type": "a client that starts cannot tell by timestamps that a holder is "
    "dead: it waits two intervals; and the audit judges by the senders' clocks",
    "max.message.bytes": "a snapshot of a large world is refused: starts become slow",
    "segment.ms": "old snapshots stay longer",
}


@dataclass(frozen=True)
class PartitionFacts:
    """Of one partition: broker ids; `leader` is −1 where there is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True)
class TopicFacts:
    """Of one topic. `config` and `operations` are None where the brokers do not tell."""

    name: str
    partitions: tuple[PartitionFacts, ...] = ()
    config: dict[str, str] | None = None
    operations: frozenset[str] | None = None
    missing: bool = False
    denied: bool = False


@dataclass(frozen=True)
class ClockSample:
    """A broker's timestamp, and by when, on this machine's monotonic clock, it had been taken."""

    broker: int
    stamp_ms: int
    seen_ms: float

    @property
    def delay_ms(self) -> float:
        """The difference of the clocks, and how long the timestamp was on its way."""
        return self.seen_ms - self.stamp_ms


@dataclass(frozen=True)
class ClusterFacts:
    """Everything that is known."""

    servers: str
    brokers: tuple[int, ...]
    topic: TopicFacts
    snapshots: TopicFacts
    broker_config: dict[str, str] | None = None
    features: frozenset[str] | None = None
    samples: tuple[ClockSample, ...] = ()
    wall_ahead_ms: float | None = None
    """By how much this machine's wall clock is ahead of the broker's, at most."""
    counts_sleep: bool = True
    mismatches: tuple[str, ...] = ()
    unreadable: str = ""
    """Why the log could not be read to its end; empty: it could."""
    partitions_changed: str = ""
    """What was said of another number of partitions than the log was made with; empty: nothing."""
    other_wire: bool = False
    principal: str = "User:NAME"


@dataclass
class Check:
    """What was looked at, and what came of it. `fix` is a command, or what to do."""

    name: str
    level: Level
    subject: str
    text: str
    why: str = ""
    fix: str | None = None


@dataclass
class _Report:
    facts: ClusterFacts
    checks: list[Check] = field(default_factory=list)

    def add(
        self, name: str, level: Level, subject: str, text: str, why: str = "", fix: str = ""
    ) -> None:
        self.checks.append(Check(name, level, subject, text, why, fix or None))


def check_cluster(facts: ClusterFacts) -> list[Check]:
    """Return every check, in the order in which to read them."""
    report = _Report(facts)
    _check_brokers(report)
    plans = _recommended_plans(facts)
    for topic, plan in zip((facts.topic, facts.snapshots), plans, strict=True):
        if topic.missing:
            report.add(
                *("topic", "error", topic.name, "does not exist"),
                "without it nobody can claim"
                if topic is facts.topic
                else "every start replays the whole log",
                f"marshal -b {facts.servers} topic create --topic {shlex.quote(facts.topic.name)}",
            )
            continue
        _check_acl(report, topic)
        if topic.partitions:
            _check_partition_count(report, topic)
            _check_in_sync_replicas(report, topic)
            _check_replication_factor(report, topic, plan)
            _check_topic_config(report, topic, plan)
    _check_broker_config(report)
    _check_clocks(report)
    _check_records(report)
    return report.checks


def _recommended_plans(facts: ClusterFacts) -> list[TopicPlan]:
    return plan_topics(
        max(1, len(facts.brokers)),
        topic=facts.topic.name,
        snapshot_topic=facts.snapshots.name,
        partitions=max(1, len(facts.topic.partitions)),
    )


def _check_brokers(report: _Report) -> None:
    facts = report.facts
    number = len(facts.brokers)
    level: Level = "ok" if number >= 3 else "note"
    text = f"{number} broker{'s' if number != 1 else ''}"
    why = "" if number >= 3 else "with three, one may fail without stopping anything"
    report.add("brokers", level, facts.servers, text, why)
    if facts.features is None:
        report.add("version", "skipped", facts.servers, "what the brokers can do is not known")
        return
    lacking = [f"{what}" for name, what in NEEDED_FEATURES.items() if name not in facts.features]
    if lacking:
        report.add(
            *("version", "error", facts.servers, f"the brokers lack {' and '.join(lacking)}"),
            "claims could be written twice",
            "upgrade the brokers; Kafka 2.8 or later is best (no right on the cluster is needed)",
        )
    else:
        report.add("version", "ok", facts.servers, "idempotent producers, brokers' timestamps")


def _check_acl(report: _Report, topic: TopicFacts) -> None:
    needed = ("READ", "WRITE")
    if topic.operations is None and not topic.denied:
        report.add("acl", "skipped", topic.name, "the brokers do not tell what this client may do")
        return
    lacking = [o for o in needed if topic.denied or o not in (topic.operations or ())]
    if not lacking:
        report.add("acl", "ok", topic.name, "this client may read and write")
        return
    names = [operation.capitalize() for operation in lacking]
    command = ["kafka-acls.sh", "--bootstrap-server", report.facts.servers, "--add"]
    command += ["--allow-principal", report.facts.principal]
    for name in names:
        command += ["--operation", name]
    report.add(
        *("acl", "error", topic.name, f"this client lacks {' and '.join(names)}"),
        "it can neither claim nor hold",
        shlex.join([*command, "--topic", topic.name]),
    )


def _check_partition_count(report: _Report, topic: TopicFacts) -> None:
    facts, number = report.facts, len(topic.partitions)
    if facts.partitions_changed:
        if topic is facts.topic:  # it mends the topic of snapshots, too
            fix = f"marshal -b {facts.servers} topic recover --topic {shlex.quote(topic.name)}"
            report.add("partitions", "error", topic.name, facts.partitions_changed, "", fix)
        return
    if topic is facts.snapshots:
        wanted = len(facts.topic.partitions)
        if wanted and number != wanted:
            report.add(
                *("partitions", "error", topic.name, f"{number}, and {facts.topic.name} has"),
                f"{wanted}: some partitions have no place for their snapshots",
                _command(
                    facts, "kafka-topics.sh", "--alter", topic.name, "--partitions", str(wanted)
                )
                if number < wanted
                else f"delete {topic.name}, then `marshal topic create`: snapshots come again",
            )
            return
    if number > MANY_PARTITIONS:
        report.add(
            *("partitions", "note", topic.name, f"{number} partitions"),
            "every client reads all of them; 8 are enough for thousands of claims",
        )
    else:
        report.add("partitions", "ok", topic.name, f"{number}, fixed for the topic's life")


def _check_in_sync_replicas(report: _Report, topic: TopicFacts) -> None:
    least = int((topic.config or {}).get("min.insync.replicas", "1"))
    down = [p.partition for p in topic.partitions if p.leader < 0]
    stuck = [p.partition for p in topic.partitions if p.leader >= 0 and len(p.in_sync) < least]
    behind = [p.partition for p in topic.partitions if len(p.in_sync) < len(p.replicas)]
    if down or stuck:
        report.add(
            *("replicas", "error", topic.name, f"partitions {_numbers(down or stuck)}"),
            "have no leader"
            if down
            else f"have fewer than {least} replicas in sync: nothing can "
            "be claimed or renewed there",
            "start the brokers that are down; "
            + _command(report.facts, "kafka-topics.sh", "--describe", topic.name),
        )
    elif behind:
        report.add(
            *("replicas", "warning", topic.name, f"partitions {_numbers(behind)}"),
            "have replicas out of sync: one more failure may stop claims",
            _command(report.facts, "kafka-topics.sh", "--describe", topic.name),
        )
    else:
        report.add("replicas", "ok", topic.name, "all in sync")


def _check_replication_factor(report: _Report, topic: TopicFacts, plan: TopicPlan) -> None:
    have = min(len(p.replicas) for p in topic.partitions)
    if have >= plan.replication_factor:
        report.add("replication factor", "ok", topic.name, str(have))
        return
    brokers = report.facts.brokers
    moves = [
        {
            "topic": topic.name,
            "partition": p.partition,
            "replicas": list(_more_replicas(p.replicas, brokers, plan.replication_factor)),
        }
        for p in topic.partitions
    ]
    document = shlex.quote(json.dumps({"version": 1, "partitions": moves}))
    report.add(
        *("replication factor", "error", topic.name, f"{have} on {len(brokers)} brokers"),
        _ERROR_IF_WRONG["replication_factor"],
        f"echo {document} > grow.json && kafka-reassign-partitions.sh --bootstrap-server "
        f"{report.facts.servers} --reassignment-json-file grow.json --execute",
    )


def _more_replicas(have: Sequence[int], brokers: Sequence[int], number: int) -> Iterable[int]:
    others = [b for b in brokers if b not in have]
    turn = have[0] % max(1, len(others)) if others else 0
    return [*have, *others[turn:], *others[:turn]][:number]


def _check_topic_config(report: _Report, topic: TopicFacts, plan: TopicPlan) -> None:
    if topic.config is None:
        report.add(
            *("settings", "skipped", topic.name, "the brokers do not show them to this client"),
            "run it as an administrator, or allow DescribeConfigs",
        )
        return
    have_replicas = min(len(p.replicas) for p in topic.partitions)
    for name, value in plan.config.items():
        found = topic.config.get(name)
        if name == "segment.ms" or found is None:
            continue
        at_least = name in ("min.insync.replicas", "max.message.bytes")
        if found == value or (at_least and int(found) >= int(value)):
            report.add(name, "ok", topic.name, found)
            continue
        if name == "min.insync.replicas" and have_replicas < plan.replication_factor:
            continue  # the replicas come first
        level: Level = "error" if name in _ERROR_IF_WRONG else "warning"
        fix = ["kafka-configs.sh", "--bootstrap-server", report.facts.servers, "--alter"]
        fix += ["--entity-type", "topics", "--entity-name", topic.name]
        fix += ["--add-config", f"{name}={value}"]
        why = _ERROR_IF_WRONG.get(name) or _WARNING_IF_WRONG.get(name, "")
        report.add(name, level, topic.name, f"{found}, not {value}", why, shlex.join(fix))
    least = int(topic.config.get("min.insync.replicas", "1"))
    if have_replicas > 1 and least >= have_replicas:
        report.add(
            *("min.insync.replicas", "warning", topic.name, f"{least} of {have_replicas} replicas"),
            "one broker that restarts stops every claim and heartbeat",
            f"set it to {have_replicas - 1}",
        )


def _check_broker_config(report: _Report) -> None:
    config, brokers = report.facts.broker_config, len(report.facts.brokers)
    if config is None:
        report.add(
            *("brokers' settings", "skipped", report.facts.servers, "not shown to this client"),
            "run it as an administrator, or allow DescribeConfigs on the cluster",
        )
        return
    if config.get("log.cleaner.enable") == "false":
        report.add(
            *("log.cleaner.enable", "warning", report.facts.servers, "false"),
            f"{report.facts.snapshots.name} grows for ever",
            "set log.cleaner.enable=true in server.properties",
        )
    replicas = int(config.get("transaction.state.log.replication.factor", "3"))
    if replicas < min(3, brokers):
        report.add(
            *("transaction log", "warning", report.facts.servers, f"replication factor {replicas}"),
            "for `harvest`: with the broker that has it, exactly-once delivery stops",
            "set transaction.state.log.replication.factor=3 before the first transaction; later, "
            "reassign __transaction_state",
        )


def measure_clock_rate(samples: Sequence[ClockSample]) -> float | None:
    """Return by what part the brokers' clock runs faster than this machine's; None: unknown.

    The quickest of the first and of the last third of the samples are compared, so that a slow
    answer does not count; samples of one broker only, and a second apart at least.
    """
    best: tuple[float, float] | None = None
    for broker in {s.broker for s in samples}:
        mine = sorted((s for s in samples if s.broker == broker), key=lambda s: s.seen_ms)
        third = len(mine) // 3
        if third < SAMPLES_PER_END:
            continue
        first = min(mine[:third], key=lambda s: s.delay_ms)
        last = min(mine[-third:], key=lambda s: s.delay_ms)
        span_ms = last.seen_ms - first.seen_ms
        if span_ms >= 1_000 and (best is None or span_ms > best[0]):
            best = span_ms, (first.delay_ms - last.delay_ms) / span_ms
    return None if best is None else best[1]


def _check_clocks(report: _Report) -> None:
    facts = report.facts
    if not facts.counts_sleep:
        report.add(
            *("clock", "warning", "this machine", "no clock that counts while it sleeps"),
            "a machine that was suspended may believe that its lease still stands",
            "run on Linux; never suspend a machine that holds claims",
        )
    rate = measure_clock_rate(facts.samples)
    if rate is None:
        report.add(
            *("clock rate", "skipped", "this machine", "too few records came while it watched"),
            "--probe measures it with a scratch topic",
        )
    elif abs(rate) > RATE_LIMIT:
        report.add(
            *("clock rate", "error", "this machine", f"{-rate:+.1%} against the brokers'"),
            "leases count on rates that differ by less than 5 % between any two clients: two "
            "holders at once",
            "look after the machine's clock source (a virtual machine that is starved of CPU?)",
        )
    else:
        report.add("clock rate", "ok", "this machine", f"{-rate:+.2%} against the brokers'")
    ahead: dict[int, float] = {}
    for sample in facts.samples:
        delay = sample.delay_ms
        ahead[sample.broker] = min(delay, ahead.get(sample.broker, delay))
    if len(ahead) > 1 and max(ahead.values()) - min(ahead.values()) > SKEW_LIMIT_MS:
        spread = max(ahead.values()) - min(ahead.values())
        report.add(
            *("brokers' clocks", "warning", facts.servers, f"differ by {spread / 1000:.1f} s"),
            "a fast cold start trusts them to within cold_start_skew_ms (1,000 by default)",
            "run a time daemon on the brokers, or pass cold_start_skew_ms=None",
        )
    if facts.wall_ahead_ms is not None and abs(facts.wall_ahead_ms) > 2 * SKEW_LIMIT_MS:
        report.add(
            *("wall clock", "note", "this machine"),
            f"{facts.wall_ahead_ms / 1000:+.1f} s against the brokers'",
            "no guarantee depends on it; silences are shown wrong by so much",
        )


def _check_records(report: _Report) -> None:
    facts = report.facts
    if facts.unreadable:
        report.add("log", "error", facts.topic.name, f"cannot be read: {facts.unreadable}")
    for text in facts.mismatches:
        report.add("snapshots", "error", facts.topic.name, text, "", "marshal verify")
    if facts.other_wire:
        report.add(
            *("records", "warning", facts.topic.name, "holds records of Go Marshal (version 1)"),
            "clients of version 2 skip them: the two do not see each other's claims",
            "marshal group migrate --help",
        )


def _command(facts: ClusterFacts, tool: str, what: str, topic: str, *more: str) -> str:
    return shlex.join([tool, "--bootstrap-server", facts.servers, what, "--topic", topic, *more])


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, … ({len(numbers)})"

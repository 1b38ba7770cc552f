"""Replaying the whole log and judging it: every rule of the protocol, every snapshot."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from marshal_py.admin.connection import Connection
from marshal_py.admin.log_replay import LogReplay, open_replay
from marshal_py.admin.world_reader import wire_of
from marshal_py.protocol.history.anomalies import MEANING
from marshal_py.protocol.history.text_verifier import TextVerifier
from marshal_py.protocol.history.verifier import Finding, Verifier

__all__ = ["Verdict", "verify_log"]


@dataclass
class Verdict:
    """What `marshal verify --json` prints."""

    topic: str
    partitions: int
    records: int = 0
    snapshots: int = 0
    seconds: float = 0.0
    ok: bool = True
    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    has_snapshots: bool = True
    """False in a log of version 1."""


def verify_log(connection: Connection, text_interval_s: int | None = None) -> Verdict:
    """Read all there is and judge it. Raises `TopicMissing`, `BrokerUnavailable`.

    `text_interval_s`: it is a log of version 1, and this is its clients' interval.
    """
    began_s = time.monotonic()
    if text_interval_s is not None:
        replay = open_replay(connection, wire=wire_of("text", text_interval_s))
    else:
        replay = open_replay(connection)
    verdict = Verdict(connection.topic, replay.partitions)
    verdict.has_snapshots = text_interval_s is None
    _holes(replay, verdict)
    _damaged(replay, verdict)
    verifiers: dict[int, Verifier | TextVerifier] = {
        p: TextVerifier(p, replay.partitions, text_interval_s)
        if text_interval_s is not None
        else Verifier(
            p,
            replay.partitions,
            replay.state(p),
            [
                (f.snapshot, f.offset, f.written_ms)
                for f in replay.snapshots
                if f.coordinator == p and f.snapshot is not None
            ],
        )
        for p in replay.starts
    }
    for record in replay.records():
        verifiers[record.coordinator].feed(
            record.offset, record.value, record.stamp_ms, create_time=record.create_time
        )
    for verifier in verifiers.values():
        verdict.findings += verifier.finish()
        verdict.records += verifier.records
        verdict.snapshots += verifier.snapshots
    verdict.counts = dict(Counter(f.kind for f in verdict.findings).most_common())
    verdict.ok = not any(f.level == "error" for f in verdict.findings)
    verdict.seconds = time.monotonic() - began_s
    return verdict


def _holes(replay: LogReplay, verdict: Verdict) -> None:
    """Note where the log has lost records. In version 1 the positions in Kafka make up for that."""
    for p, (first, _) in replay.extents.items():
        if p not in replay.starts:
            verdict.findings.append(
                _finding("log_hole", p, first, f"records 0 to {first - 1} are gone, no snapshot "
                         "covers them: no client can start (set retention.ms=-1)")
            )  # fmt: skip


def _damaged(replay: LogReplay, verdict: Verdict) -> None:
    for f in replay.snapshots:
        if f.snapshot is None and f.size_bytes > 0:
            what = f"record {f.offset} of the snapshot topic: {f.problem}"
            verdict.findings.append(
                _finding("snapshot_damaged", f.coordinator, f.offset, what, f.written_ms)
            )


def _finding(kind: str, p: int, offset: int, what: str, at_ms: int = 0) -> Finding:
    return Finding("error", kind, p, offset, at_ms, what, MEANING[kind])

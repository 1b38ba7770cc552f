"""`marshal verify`: replay the log, check every rule and every snapshot."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import clock_time, count, iso_utc, safe
from marshal_py.admin.log_replay import LogReplay, open_replay
from marshal_py.admin.world_reader import wire_of
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.options import Interval, JsonFlag, WireFlag
from marshal_py.cli.output import console, note, print_json, table
from marshal_py.cli.output import show as show_tables
from marshal_py.protocol.history.anomalies import MEANING
from marshal_py.protocol.history.text_verifier import TextVerifier
from marshal_py.protocol.history.verifier import Finding, Verifier

__all__ = ["Verdict", "verify", "verify_log"]

SHOWN: Final = 50


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


@command()
def verify(
    connection: Connection,
    strict: Annotated[
        bool, typer.Option("--strict", help="Warnings count as findings, too.")
    ] = False,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """Replay the log; check every rule of the protocol and every snapshot; say what is wrong.

    Nothing is written. Errors break a rule: a client that does not follow the protocol, two
    processes under one name, a damaged snapshot, lost records. Warnings tell of trouble that the
    protocol withstands: processes that were paused, slow clocks, foreign bytes. Exit code 1 if
    there is an error.

    A log of version 1 (--wire text) has neither epochs nor snapshots: there it is checked who took
    what from whom, whether it was free by then, and what the clients' clocks show.

    [bold]Examples[/]

      marshal verify -b localhost:9092

      marshal verify --strict --json | jq '.findings[] | [.kind, .coordinator, .offset, .what]'

      marshal verify --wire text     (a log shared with Go Marshal)
    """
    verdict = verify_log(connection, interval_s if wire == "text" else None)
    if as_json:
        document = asdict(verdict)
        for finding in document["findings"]:
            finding["time"] = iso_utc(finding["at_ms"])
        print_json(document)
    else:
        _print(verdict)
    if not verdict.ok or (strict and verdict.findings):
        raise typer.Exit(FINDING)


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


def _print(verdict: Verdict) -> None:
    out = console()
    shown = sorted(verdict.findings, key=lambda f: (f.level, f.at_ms))[:SHOWN]
    if shown:
        made = table("", "WHERE", "TIME", "KIND", "WHAT", right=("WHERE",))
        for f in shown:
            colour = "red" if f.level == "error" else "yellow"
            cell = "" if not f.topic else f"{f.topic}/{f.partition} of {f.group}: "
            who = "" if f.client_id is None or f.client_id in f.what else f"{f.client_id}: "
            made.add_row(
                f"[{colour}]{f.level}[/]",
                f"{f.coordinator}@{f.offset}",
                clock_time(f.at_ms, date=True) if f.at_ms > 0 else "",
                f.kind,
                safe(f"{cell}{who}{f.what}"),
            )
        show_tables(out, made)
        if len(verdict.findings) > SHOWN:
            note(f"and {len(verdict.findings) - SHOWN:,} more; --json shows all")
        kinds: dict[str, Any] = {f.kind: f.meaning for f in verdict.findings}
        for kind, meaning in kinds.items():
            note(f"{kind}: {meaning}")
    compared = f"{count(verdict.snapshots, 'snapshot')} compared, " if verdict.has_snapshots else ""
    summary = (
        f"{count(verdict.records, 'record')} in {count(verdict.partitions, 'partition')} replayed, "
        f"{compared}in {verdict.seconds:.1f} s: "
    )
    if not verdict.findings:
        out.print(f"{summary}[green]nothing is wrong[/]")
        return
    levels = Counter(f.level for f in verdict.findings)
    told = [count(levels[level], level) for level in ("error", "warning") if levels[level]]
    out.print(f"{summary}[{'yellow' if verdict.ok else 'red'}]{', '.join(told)}[/]")

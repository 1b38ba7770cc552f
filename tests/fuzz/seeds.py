"""Good inputs, for a fuzzer to start from."""

from __future__ import annotations

from typing import Final

from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.range_checkpoint import Position
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.messages import (
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ForgetGroup,
    Genesis,
    Heartbeat,
    MetadataEntry,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetLevel,
    SetPosition,
    SplittingRange,
    encode,
)
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.snapshots import anchor_of, encode_snapshot
from marshal_py.protocol.subscription import Subscription
from tests.fuzz.command_lines import COMMANDS, VALUES

__all__ = ["SEEDS", "WORDS"]

_HEAD: Final = (2, "c", "i", "g", 1)
RECORDS: Final = [
    encode(record)
    for record in (
        ClaimingPartition(*_HEAD, "t", 0, 1_000, -1),
        Heartbeat(*_HEAD, 1_000, 1, [0, 5], [MetadataEntry(0, b"m")], b"x"),
        ClaimingMessages(*_HEAD, "t", 0, 0, 9),
        ReleasingPartition(*_HEAD, "t", 0, 0, 7),
        ReleaseGroup(*_HEAD, 5),
        SetPosition(*_HEAD, "t", 0, 3, 3),
        ForgetGroup(*_HEAD, 4),
        ResumeGroup(*_HEAD, 4),
        Genesis(*_HEAD, "a1", "", 1_000, 1, 5),
        SetLevel(*_HEAD, 1, 1),
        ClaimingRange(*_HEAD, "u", 0, 1_000, 5, 10),
        SplittingRange(*_HEAD, "u/0@5", 0, 10, 9),
    )
]


def _snapshot() -> bytes:
    state = PartitionState(0)
    for offset, value in enumerate(RECORDS[:3]):
        apply(state, offset, value)
    return encode_snapshot(
        state.encode(),
        coordinator=0,
        partitions=1,
        next_offset=3,
        anchor=anchor_of(RECORDS[2]),
        writer="c",
    )


SEEDS: Final[dict[str, list[bytes]]] = {
    "record": RECORDS,
    "log": [b"".join(len(r).to_bytes(2, "big") + r for r in RECORDS)],
    "snapshot": [_snapshot()],
    "subscription": [
        Subscription(frozenset({"t"}), "o(r|d).*", labels={"a": "b"}, prefer=("t/*",)).encode(),
        Subscription(frozenset({"t"}), weight=2.0, sharing="keys", slots=8).encode(),
        ClaimMetadata(cost=3, stuck=1).with_done(5, ((7, 9),)).encode(),
    ],
    "version_1": [b"Heartbeat/1500000000/c/g/topic/0/5", b"ClaimingPartition/1/2/i/c/g/t/0"],
    "properties": [b"bootstrap.servers=a:1\n# x\nsasl.password=y\n"],
    "yaml": [b"bootstrap:\n  servers: a:1\nssl: {ca: {location: /x}}\n"],
    "setting": [b"acks=all"],
    "reaper_yaml": [
        b"kafka: {bootstrap.servers: 'a:1'}\ndatabase: host=x password=y\ngroup: g\n",
        b"{bootstrap.servers: a}\n  leaderTopic: x\n  leaderGroupID: y\n  dataSource: host=x\n",
    ],
    "connection_string": [
        b"host=x password='a b' dbname=y",
        b"postgres://u:p@[::1/d?a=b",
        b"1m100ms",
    ],
    "table_name": [b'public."Out Box"', b"outbox"],
    "answer": [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 120\r\nConnection: close\r\n\r\nlater",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.0 429 x\r\nretry-after: Wed, 21 Oct 2026 07:28:00 GMT\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    ],
    "row": [
        b"\x05topic\x01k\x02vv",
        b"\x01t\x01k\xff\x01a\x01b\x01c\x01d",
        b"\x02..\xff\xff\xff\xff",
    ],
    "headers": [b'["a", "b"]', b'[null, 1, {"a": [2.5]}, "\\ud800"]', b"[]"],
    "checkpoint": [
        Checkpoint(7, Term.of(5), 3, 10, 20).encode().encode(),
        Position(7, 0, 1, 90, ((3, 5), (80, 80))).encode().encode(),
    ],
    "command_line": [
        b"status\n--json",
        b"dead-letters\nretry\n--id\n3\n--config\n/nowhere",
        b"topic\n-X\na=b",
        *("\n".join([*words, *options[-1:]]).encode() for words, options in COMMANDS),
    ],
}

WORDS: Final[dict[str, list[str]]] = {
    "command_line": sorted(
        {word for words, options in COMMANDS for word in (*words, *options)} | {*VALUES}
    ),
}
"""What a fuzzer would not guess, put in whole."""

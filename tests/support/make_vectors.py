"""Write specs/vectors/*.json: `python -m tests.support.make_vectors`.

The histories below are the readable source. What they must lead to comes from `reference_fold`,
which was written from the specification's text and shares no code with `marshal_py`; the tests
then hold `marshal_py` against the files, and the files against this script.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import msgpack

from tests.support import reference_fold as fold
from tests.support.paths import SPECS

FOLDER = SPECS / "vectors"

Step = tuple[int | None, Any]
"""(offset, or None for the next one; the record's array, or its bytes, or None for a null value)"""

HISTORIES: dict[str, list[tuple[str, str, list[Step]]]] = {}
"""file → [(name, what it shows, steps)]"""


def history(file: str, name: str, says: str, *steps: Any) -> None:
    """Add a history. A step is a value, or (offset, value) with an offset out of the row."""
    global _seq
    _seq = 0
    normal = [step if isinstance(step, tuple) else (None, step) for step in steps]
    HISTORIES.setdefault(file, []).append((name, says, normal))


def pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value, use_bin_type=True))


# ------------------------------------------------------------------ records, tersely

_seq = 0


def common(number: int, client: str, group: str = "g") -> list[Any]:
    """The first six elements; client "a2" is client "a", instance "a2"."""
    global _seq
    _seq += 1
    return [number, 2, client[0], client + "-instance", group, _seq]


def claim(
    client: str,
    expected_version: int,
    interval_ms: int = 5000,
    topic: str = "t",
    partition: int = 0,
    group: str = "g",
) -> list[Any]:
    return [*common(1, client, group), topic, partition, interval_ms, expected_version]


def beat(
    client: str,
    *said: tuple[int, int] | tuple[int, bytes],
    group: str = "g",
    membership: int = 0,
    interval_ms: int = 5000,
    member_metadata: bytes | None = None,
    levels: tuple[int, int] = (1, 1),
) -> list[Any]:
    """A heartbeat; `said` are (claimed_at, next_offset) and (claimed_at, metadata)."""
    positions = [number for pair in said if isinstance(pair[1], int) for number in pair]
    metadata = [list(pair) for pair in said if isinstance(pair[1], bytes)]
    says = [interval_ms, membership, positions, metadata, member_metadata, *levels]
    return [*common(2, client, group), *says]


def member(
    client: str,
    interval_ms: int = 5000,
    metadata: bytes | None = None,
    group: str = "g",
    levels: tuple[int, int] = (1, 1),
) -> list[Any]:
    return beat(
        client,
        group=group,
        membership=1,
        interval_ms=interval_ms,
        member_metadata=metadata,
        levels=levels,
    )


def leave(client: str, group: str = "g") -> list[Any]:
    return beat(client, group=group, membership=2)


def release(
    client: str,
    epoch: int,
    next_offset: int = -1,
    topic: str = "t",
    group: str = "g",
    ends: int = 0,
) -> list[Any]:
    return [*common(3, client, group), topic, 0, epoch, next_offset, ends]


def messages(client: str, epoch: int, proposed_offset: int, topic: str = "t") -> list[Any]:
    return [*common(4, client), topic, 0, epoch, proposed_offset]


def pause(client: str = "o", expires_at_ms: int = 1_800_000_000_000, group: str = "g") -> list[Any]:
    return [*common(5, client, group), expires_at_ms]


def resume(expected_version: int, client: str = "o", group: str = "g") -> list[Any]:
    return [*common(6, client, group), expected_version]


def position(
    next_offset: int, expected_version: int, topic: str = "t", group: str = "g", client: str = "o"
) -> list[Any]:
    return [*common(7, client, group), topic, 0, next_offset, expected_version]


def forget(expected_version: int, client: str = "o", group: str = "g") -> list[Any]:
    return [*common(8, client, group), expected_version]


def genesis(identity: str, previous: str, base: int, partitions: int = 8) -> list[Any]:
    made_ms = 1_790_000_000_000
    return [*common(9, "o", "-"), identity, previous, base, partitions, made_ms]


def set_level(level: int, expected_level: int, group: str = "g") -> list[Any]:
    return [*common(10, "o", group), level, expected_level]


def claim_range(
    client: str,
    count: int,
    floor: int = 0,
    interval_ms: int = 5000,
    topic: str = "t",
    partition: int = 0,
) -> list[Any]:
    return [*common(11, client), topic, partition, interval_ms, floor, count]


def split_range(client: str, start: int, epoch: int, at: int) -> list[Any]:
    return [*common(12, client), f"t/0@{start}", 0, epoch, at]


def release_range(client: str, start: int, epoch: int, next_offset: int) -> list[Any]:
    return release(client, epoch, next_offset, topic=f"t/0@{start}")


# ------------------------------------------------------------------ ClaimingPartition


history(
    "claiming_partition",
    "first claim",
    "A cell that was never touched has version -1; the claim makes it.",
    claim("a", -1),
)
history(
    "claiming_partition",
    "two race for a free cell",
    "Both saw version -1. The earlier record wins, the later one is stale.",
    claim("a", -1),
    claim("b", -1),
)
history(
    "claiming_partition",
    "takeover",
    "Whoever names the current version takes the cell, held or not: the fold knows no time. "
    "Offsets and metadata stay, the epoch is the offset of the new claim.",
    claim("a", -1),
    beat("a", (0, 40), (0, b"\x01")),
    messages("a", 0, 55),
    claim("b", 2, interval_ms=1000),
)
history(
    "claiming_partition",
    "a heartbeat beats a challenger",
    "The challenger's claim names the version it saw; a heartbeat came in between.",
    claim("a", -1),
    beat("a"),
    claim("b", 0),
    claim("b", 1),
)
history(
    "claiming_partition",
    "one heartbeat renews all",
    "The session's version is that of each cell that it holds, and of no other's.",
    claim("a", -1),
    claim("a", -1, partition=1),
    claim("b", -1, partition=2),
    beat("a"),
    claim("c", 0),
    claim("c", 1, partition=1),
    claim("c", 3, partition=2),
    claim("c", 2, partition=2),
    claim("c", 3, partition=1),
    beat("a"),
    claim("d", 9),
)
history(
    "claiming_partition",
    "stale in both directions",
    "An expected version above the cell's is refused like one below it.",
    claim("a", -1),
    claim("b", 1),
    claim("b", 7),
    claim("c", -1, partition=1),
    claim("c", 0, partition=2),
)
history(
    "claiming_partition",
    "restart",
    "The same client_id with a new instance: an ordinary takeover to the fold, which reports both "
    "instances. What the old one still sends is refused.",
    claim("a", -1),
    claim("a2", 0),
    beat("a", (0, 3)),
    beat("a2", (1, 4)),
)
history(
    "claiming_partition",
    "claim of one's own cell",
    "A holder may claim again; it gets a new epoch and its own old one is refused.",
    claim("a", -1),
    claim("a", 0),
    beat("a", (0, 1)),
    beat("a", (1, 1)),
)
history(
    "claiming_partition",
    "paused",
    "In a paused group every claim is refused, and for that reason even when the version is wrong "
    "too; other groups go on.",
    claim("a", -1),
    pause(),
    claim("b", 0),
    claim("b", 9),
    claim("b", -1, partition=5),
    claim("b", -1, group="h"),
    resume(1),
    claim("b", 0),
)
history(
    "claiming_partition",
    "cells are apart",
    "Cells differ by group, topic and partition.",
    claim("a", -1),
    claim("b", -1, group="h"),
    claim("c", -1, topic="u"),
    claim("d", -1, partition=2**31 - 1),
    claim("e", -1, topic="leader:mail"),
)

# ------------------------------------------------------------------ Heartbeat

history(
    "heartbeat",
    "renewal",
    "Each one moves the session's version; next_offset only goes up; metadata is replaced.",
    claim("a", -1),
    beat("a", (0, 10), (0, b"\x01\x02")),
    beat("a", (0, 7), (0, b"")),
    beat("a", (0, -1)),
    beat("a", (0, 11)),
    beat("a"),
)
history(
    "heartbeat",
    "a holder that woke up",
    "After a takeover its heartbeat renews nothing: nothing is stolen back.",
    claim("a", -1),
    claim("b", 0),
    beat("a", (0, 99)),
    claim("c", 1),
)
history(
    "heartbeat",
    "not held",
    "There is no cell, or nobody holds it, or another epoch does.",
    beat("a", (0, 5)),
    claim("a", -1),
    beat("a", (0, 5)),
    release("a", 1),
    beat("a", (1, 5), (1, b"m")),
)
history(
    "heartbeat",
    "judged one by one",
    "One is accepted, one is of another session, one of no claim; a claim named twice counts "
    "twice. An odd last number says nothing.",
    claim("a", -1),
    claim("b", -1, partition=1),
    beat("a", (0, 5), (1, 6), (9, 7), (0, 8), (0, b"x"), (1, b"y"), (0, b"z")),
    [*common(2, "a"), 5000, 0, [0, 12, 0]],
)
history(
    "heartbeat",
    "of another session",
    "Neither another client nor another instance renews or changes what a session holds.",
    claim("a", -1),
    member("b"),
    member("a2"),
    beat("b", (0, 12), (0, b"b")),
    beat("a2", (0, 12), (0, b"a2")),
    claim("c", 0),
)
history(
    "heartbeat",
    "empty",
    "Whoever holds nothing and is no member renews nothing, and leaves nothing behind.",
    beat("a"),
)
history(
    "heartbeat",
    "paused group",
    "Heartbeats, messages claims and releases count in a paused group.",
    claim("a", -1),
    pause(),
    beat("a", (0, 4)),
    messages("a", 0, 6),
    member("a"),
    release("a", 0, 5),
)
history(
    "heartbeat",
    "short form",
    "All elements after the interval may be missing.",
    claim("a", -1),
    [2, 2, "a", "a-instance", "g", 50, 700],
    [2, 2, "a", "a-instance", "g", 51, 700, 1],
    [2, 2, "a", "a-instance", "g", 52, 700, 1, [0, 3]],
    [2, 2, "a", "a-instance", "g", 53, 0, 1, [], [[0, b"m"]]],
    [2, 2, "a", "a-instance", "g", 54, 700, 1, [], [], b"member"],
    [2, 2, "a", "a-instance", "g", 55, 700, 1, [], [], None],
)

# ------------------------------------------------------------------ levels

history(
    "levels",
    "up and down",
    "A level is set when every session can follow, and refused otherwise; ForgetGroup ends it.",
    set_level(2, 1),
    set_level(3, 1),
    member("a", levels=(1, 2)),
    set_level(3, 2),
    member("a", levels=(1, 3)),
    set_level(3, 2),
    member("b", levels=(1, 2)),
    claim("c", -1),
    set_level(2, 3),
    beat("c", levels=(1, 3)),
    set_level(2, 3),
    set_level(1, 2),
    set_level(2, 1),
    leave("a"),
    release("c", 7),
    pause(),
    forget(15),
)
history(
    "levels",
    "who cannot follow is not heard",
    "Nothing of its heartbeat counts. Other groups have levels of their own.",
    set_level(2, 1),
    claim("a", -1),
    beat("a", (1, 5)),
    member("a", levels=(3, 9)),
    member("a", levels=(2, 1)),
    member("a", group="h"),
    beat("a", (1, 5), membership=1, levels=(2, 2)),
    set_level(1, 2),
    beat("a", membership=2, levels=(1, 2)),
    set_level(1, 2),
    member("a"),
)

# ------------------------------------------------------------------ genesis

history(
    "genesis",
    "first and next",
    "Epochs are counted from the base. Another genesis names the identity that it replaces, and "
    "its base is larger; claims stay, under their epochs.",
    genesis("one", "", 1000),
    claim("a", -1),
    beat("a", (1, 7)),
    genesis("two", "", 5000),
    genesis("two", "other", 5000),
    genesis("two", "one", 1000),
    genesis("two", "one", 999),
    genesis("two", "one", 1001, partitions=4),
    claim("b", -1, partition=1),
    beat("a", (0, 8)),
    release("a", 1001),
    claim("a", 10),
    beat("a", (11, 9)),
)
history(
    "genesis",
    "in a log that has records",
    "Until there is one, epochs are counted from 0; the first one may have the base 0.",
    claim("a", -1),
    genesis("one", "", 0),
    claim("b", -1, partition=1),
    genesis("two", "one", 0),
    genesis("two", "one", 2**62),
    claim("c", -1, partition=2),
)

# ------------------------------------------------------------------ membership

history(
    "membership",
    "join, stay, leave",
    "The first heartbeat of an instance joins, later ones renew, a goodbye ends it. Its metadata "
    "stays until it says another.",
    member("a", metadata=b"host"),
    member("a", interval_ms=9000),
    member("b"),
    member("a", metadata=b""),
    leave("a"),
    leave("a"),
)
history(
    "membership",
    "a new instance",
    "Another instance of the client joins in its place; the late goodbye of the old one is void. "
    "An old one that still holds something has a session, but is no member.",
    member("a"),
    claim("a", -1),
    member("a2"),
    leave("a"),
    beat("a", (1, 4)),
    claim("a2", 4),
    leave("a2"),
    member("a"),
)
history(
    "membership",
    "after the rest",
    "What a heartbeat says of claims comes first, then its membership.",
    claim("a", -1),
    beat("a", (0, 2), membership=1),
    beat("a", (0, 3), (5, 2), membership=2),
)
history(
    "membership",
    "sessions end",
    "A session is there as long as it holds something or is a member, however it loses the one "
    "and the other.",
    claim("a", -1),
    release("a", 0),
    claim("a", 1),
    claim("b", 2),
    pause(),
    position(5, 3),
    resume(4),
    member("c"),
    claim("c", -1, partition=3),
    leave("c"),
    [*common(3, "c"), "t", 3, 8, -1],
)
history(
    "membership",
    "sweep",
    "Before any record, members without cells go whose session lies more than 65536 offsets back, "
    "the longest silent first.",
    (0, member("b")),
    (1, member("a")),
    (2, member("a", group="f")),
    (3, member("c")),
    (65_535, b""),
    (65_536, b""),
    (65_537, b""),
    (65_541, b"junk"),
)
history(
    "membership",
    "who holds something stays",
    "However silent it is; with its last cell it goes, at the next record.",
    (0, member("a")),
    (1, claim("a", -1)),
    (2, member("b")),
    (200_000, b""),
    (200_001, claim("b", 1)),
    (200_002, b""),
    (300_000, beat("b")),
    (400_000, release("b", 200_001)),
)
history(
    "membership",
    "sweep and return",
    "A member that is swept by its own record joins again with it.",
    (1, member("a", metadata=b"old")),
    (70_000, member("a")),
)

# ------------------------------------------------------------------ ReleasingPartition

history(
    "releasing_partition",
    "release and claim",
    "The cell is free at once; the epoch stays, and the next claim names the new version.",
    claim("a", -1),
    beat("a", (0, 10), (0, b"m")),
    release("a", 0, 12),
    claim("b", 2),
)
history(
    "releasing_partition",
    "the cell goes as well",
    "Nothing is left of it; a later claim starts from version -1, with a higher epoch.",
    claim("a", -1),
    beat("a", (0, 10)),
    release("b", 5, ends=1),
    release("a", 0, 12, ends=1),
    release("a", 0, ends=1),
    claim("b", 3),
    claim("b", -1),
)
history(
    "releasing_partition",
    "a smaller offset",
    "A release never moves next_offset back.",
    claim("a", -1),
    beat("a", (0, 10)),
    release("a", 0, 4),
)
history(
    "releasing_partition",
    "refused",
    "No cell; nobody holds it; another epoch.",
    release("a", 0),
    claim("a", -1),
    release("b", 0),
    release("a", 1),
    release("a", 1),
    claim("b", 3),
    release("a", 1),
)

# ------------------------------------------------------------------ ClaimingMessages

history(
    "claiming_messages",
    "ranges follow each other",
    "Each accepted claim starts where the last one ended.",
    claim("a", -1),
    messages("a", 0, 0),
    messages("a", 0, 10),
    messages("a", 0, 25),
)
history(
    "claiming_messages",
    "not ahead",
    "A proposal at or below the claimed offset is refused, so no message is claimed twice.",
    claim("a", -1),
    messages("a", 0, 10),
    messages("a", 0, 10),
    messages("a", 0, 9),
    messages("a", 0, 11),
)
history(
    "claiming_messages",
    "two holders",
    "The old holder's proposal comes after the takeover and is refused, whatever it proposes.",
    claim("a", -1),
    messages("a", 0, 10),
    claim("b", 1),
    messages("a", 0, 20),
    messages("b", 2, 20),
)
history(
    "claiming_messages",
    "refused",
    "No cell; nobody holds it; a wrong epoch comes before an offset that is not ahead.",
    messages("a", 0, 5),
    claim("a", -1),
    messages("a", 1, 5),
    messages("a", 0, 5),
    release("a", 1),
    messages("a", 1, 9),
)
history(
    "claiming_messages",
    "apart from next_offset",
    "claimed_offset and next_offset do not move each other.",
    claim("a", -1),
    beat("a", (0, 100)),
    messages("a", 0, 50),
    beat("a", (0, 101)),
)

# ------------------------------------------------------------------ groups

history(
    "groups",
    "pause and resume",
    "A second pause takes the place of the first. A resume ends the pause that it names; without "
    "one it is refused.",
    pause(expires_at_ms=5),
    pause(expires_at_ms=3),
    resume(0),
    resume(-1),
    resume(1),
    resume(1),
    pause(group="h"),
    resume(6),
    resume(6, group="h"),
)
history(
    "groups",
    "nobody's claim ends by decree",
    "A pause leaves holders as they are.",
    claim("a", -1),
    pause(),
    beat("a", (0, 1)),
    resume(1),
    beat("a", (0, 2)),
)
history(
    "groups",
    "set position",
    "In a paused group the position may go back; the holder is put out, the epoch stays.",
    claim("a", -1),
    beat("a", (0, 500), (0, b"m")),
    messages("a", 0, 600),
    pause(),
    beat("a"),
    position(100, 2),
    position(100, 4),
    beat("a", (0, 700)),
    resume(3),
    claim("b", 6),
)
history(
    "groups",
    "a holder sets its own position",
    "Without a pause; others may not, nor another instance of the same client.",
    claim("a", -1),
    beat("a", (0, 500), (0, b"m")),
    messages("a", 0, 600),
    position(100, 2),
    [*common(7, "a"), "t", 0, 100, 1],
    [*common(7, "a"), "t", 0, 100, 2],
    claim("a", 5),
)
history(
    "groups",
    "set position of an untouched cell",
    "Expected version -1 makes the cell, held by nobody, with epoch -1.",
    pause(),
    position(42, -1),
    resume(0),
    claim("a", 1),
)
history(
    "groups",
    "set position refused",
    "Not paused comes before a stale version; cells that exist and cells that do not.",
    position(1, -1),
    claim("a", -1),
    position(1, 1),
    position(1, 0),
    pause(),
    position(1, -1),
    position(1, 4),
    position(1, 0, topic="u"),
    position(0, 1),
)
history(
    "groups",
    "forget",
    "Cells and members of the group go; the pause and other groups stay. A claim in a forgotten "
    "cell starts from version -1, and its epoch is higher than any before.",
    claim("a", -1),
    claim("b", -1, partition=1),
    claim("c", -1, group="h"),
    member("a"),
    member("c", group="h"),
    release("a", 0),
    pause(),
    [*common(3, "b"), "t", 1, 1, -1],
    forget(6),
    resume(6),
    claim("a", -1),
)
history(
    "groups",
    "forget refused",
    "Not paused comes before another pause, which comes before held; one held cell is enough. What "
    "was sent under one pause does nothing under the next.",
    forget(-1),
    claim("a", -1),
    forget(1),
    claim("b", -1, partition=1),
    release("a", 1),
    pause(),
    forget(-1),
    forget(5),
    [*common(3, "b"), "t", 1, 3, 7],
    forget(4),
    pause(),
    forget(5),
    resume(10),
    forget(10),
    pause(),
    forget(14),
    forget(14),
)

# ------------------------------------------------------------------ foreign records

history(
    "foreign",
    "no record at all",
    "Null values, empty values, text, other formats: counted and skipped.",
    None,
    b"",
    b"Heartbeat/2/1/client/group/topic/0/17",
    b'{"type": "ClaimingPartition"}',
    b"\xc1",
    b"\x80",
    b"\x90",
    b"\x91\x01",
    claim("a", -1),
)
history(
    "foreign",
    "other versions and types",
    "The first two elements decide what a foreign record is called, whatever follows them.",
    [1, 1, "a"],
    [1, 3, "a", "a-instance", "g", 1, "t", 0, 5000, -1],
    [99, 3],
    b"\x92\x01\x03 and whatever follows",
    [13, 2, "a", "a-instance", "g", 1],
    [9, 2, "a", "a-instance", "g", 1],
    [15, 2],
    [0, 2],
    [-1, 2],
    b"\x95\x0d\x02\xc1",
    [1, 2.0],
    [True, 2],
    ["1", 2],
    [1, 2],
)
history(
    "foreign",
    "values out of range",
    "One field is wrong, so the record is none: no partial effect.",
    claim("a", -1),
    [1, 2, "", "i", "g", 1, "t", 0, 5000, 0],
    [1, 2, "x" * 256, "i", "g", 1, "t", 0, 5000, 0],
    [1, 2, "b", "i", "g", -1, "t", 0, 5000, 0],
    [1, 2, "b", "i", "g", 2**63, "t", 0, 5000, 0],
    [1, 2, "b", "i", "g", 1, "t", -1, 5000, 0],
    [1, 2, "b", "i", "g", 1, "t", 2**31, 5000, 0],
    [1, 2, "b", "i", "g", 1, "t", 0, 0, 0],
    [1, 2, "b", "i", "g", 1, "t", 0, 86_400_001, 0],
    [1, 2, "b", "i", "g", 1, "t", 0, 5000, -2],
    [1, 2, "b", "i", "g", 1, "t", 0, 5000.0, 0],
    [1, 2, "b", "i", "g", 1, b"t", 0, 5000, 0],
    [1, 2, "b", "i", "g", 1, "t", 0, 5000],
    [2, 2, "a", "i", "g", 1, -1, 0],
    [2, 2, "a", "i", "g", 1, 86_400_001, 0],
    [2, 2, "a", "i", "g", 1, 5000, 3],
    [2, 2, "a", "i", "g", 1, 5000, 0, [0, 5, 0, -2]],
    [2, 2, "a", "i", "g", 1, 5000, 0, [0, "5"]],
    [2, 2, "a", "i", "g", 1, 5000, 0, {}],
    [2, 2, "a", "i", "g", 1, 5000, 0, [], [[0, "text"]]],
    [2, 2, "a", "i", "g", 1, 5000, 0, [], [[-1, b""]]],
    [2, 2, "a", "i", "g", 1, 5000, 0, [], [[0]]],
    [2, 2, "a", "i", "g", 1, 5000, 0, [], [], "m"],
    [2, 2, "a", "i", "g", 1, 5000, 0, [], [], None, 0],
    [2, 2, "a", "i", "g", 1, 5000, 0, [], [], None, 1, 256],
    [3, 2, "a", "i", "g", 1, "t", 0, 0, 0, 2],
    [6, 2, "a", "i", "g", 1],
    [6, 2, "a", "i", "g", 1, -2],
    [9, 2, "o", "i", "-", 1, "", "", 1, 1, 1],
    [9, 2, "o", "i", "-", 1, "one", "x" * 256, 1, 1, 1],
    [9, 2, "o", "i", "-", 1, "one", "", 2**62 + 1, 1, 1],
    [9, 2, "o", "i", "-", 1, "one", "", 1, 0, 1],
    [10, 2, "o", "i", "g", 1, 0, 1],
    [10, 2, "o", "i", "g", 1, 1, 256],
    [4, 2, "a", "i", "g", 1, "t", 0, 0, -1],
    pack([8, 2, "a", "i", "g", 1, 0]) + b"\x00",
    pack([8, 2, "a", "i", "g", 1, 0])[:-1],
    b"\x97\x08\x02\xa1\xff" + pack([8, 2, "a", "i", "g", 1, 0])[5:],
)
history(
    "foreign",
    "unknown elements",
    "What a newer writer adds at the end of a record or of a metadata entry is skipped; the record "
    "counts.",
    [*claim("a", -1), "new", {1: [None]}],
    [*common(2, "a"), 5000, 1, [0, 3], [[0, b"m", b"new", 1.5]], b"m", 1, 1, [[[]]]],
    [*messages("a", 0, 4), None],
    [*release("a", 0, 5), msgpack.ExtType(5, b"\x00")],
    [*pause(), 0],
    [*position(1, 3), 0],
    [*forget(4), 0],
    [*resume(4), b"\xff"],
    [*genesis("one", "", 1), 0],
    [*set_level(2, 1), 0],
    b"\x97" + pack([5, 2, "o", "i", "g", 90, 7])[1:-1] + b"\x07",
    b"\x98" + pack([5, 2, "o", "i", "g", 91, 7])[1:] + b"\xa1\xff",
    b"\x98" + pack([8, 2, "o", "i", "g", 92, 7])[1:] + b"\xc7\x05\xff\x01\x02\x03\x04\x05",
)
history(
    "foreign",
    "nesting",
    "Arrays and maps may lie 32 deep in each other, the record's own array included, no deeper.",
    b"\x98" + pack([5, 2, "o", "i", "g", 1, 7])[1:] + b"\x91" * 31 + b"\xc0",
    b"\x98" + pack([8, 2, "o", "i", "g", 2, 7])[1:] + b"\x91" * 32 + b"\xc0",
    b"\x98" + pack([8, 2, "o", "i", "g", 3, 7])[1:] + b"\x81\xc0" * 32 + b"\xc0",
    b"\x98" + pack([8, 2, "o", "i", "g", 4, 7])[1:] + b"\x91" * 2000 + b"\xc0",
    b"\x98" + pack([8, 2, "o", "i", "g", 5, 7])[1:] + b"\x81\xc0" * 31 + b"\xc0",
)
history(
    "foreign",
    "longer forms",
    "Numbers, strings and headers may be written longer than needed.",
    b"\xdc\x00\x07\xcc\x05\xcd\x00\x02\xd9\x01o\xda\x00\x01i\xdb\x00\x00\x00\x01g\xce\x00\x00\x00\x01"
    b"\xcf\x00\x00\x00\x00\x00\x00\x00\x07",
    b"\xdd\x00\x00\x00\x06\xd0\x08\xd1\x00\x02\xa1o\xa1i\xa1g\xd3\x00\x00\x00\x00\x00\x00\x00\x02",
)

# ------------------------------------------------------------------ position in the log

history(
    "position",
    "gaps",
    "Offsets may be missing (transaction markers, for one). Epoch and version are true offsets.",
    (7, claim("a", -1)),
    (9, beat("a", (7, 1))),
    (1000, claim("b", 9)),
)
history(
    "position",
    "repeated offsets",
    "What lies below the next offset is reported and changes nothing, whatever it is.",
    (3, claim("a", -1)),
    (3, release("a", 3)),
    (0, claim("b", 3)),
    (2, None),
    (4, beat("a", (3, 1))),
)
history(
    "position",
    "foreign records move the position",
    "The next offset moves past every record, and any record sweeps.",
    (1, member("a")),
    (4095, b""),
    (70_000, None),
    (70_001, [1, 3]),
)
history(
    "position",
    "the ends of the range",
    "The largest offsets and numbers that a record can carry.",
    (2**63 - 3, claim("a", -1, interval_ms=86_400_000, partition=2**31 - 1)),
    (
        2**63 - 2,
        beat("a", (2**63 - 3, 2**63 - 1), (2**63 - 3, b"\xff" * 256)),
    ),
)
history(
    "position",
    "names are any text",
    "Slashes, spaces, non-Latin letters, 255 code points beyond the basic plane; rows are sorted "
    "by code points.",
    [1, 2, "a/b c", "ß", "группа", 1, "主题", 0, 1, -1],
    [1, 2, "\U0001f600" * 255, "i", "группа", 2, "\uffff", 0, 1, -1],
    [1, 2, "z", "i", "группа", 3, "\U00010000", 0, 1, -1],
    [1, 2, "z", "i", "Z", 4, "t", 10, 1, -1],
    [1, 2, "z", "i", "Z", 5, "t", 9, 1, -1],
)


# ------------------------------------------------------------------ what the files hold


# ------------------------------------------------------------------ ranges


history(
    "ranges",
    "the log allocates",
    "Who asks gets the next messages; two that ask at once get different ones. The position of the "
    "partition's own cell is the frontier.",
    claim_range("a", 10),
    claim_range("b", 20),
    claim_range("a", 1, floor=100),
    claim_range("a", 5, partition=1, floor=7),
    beat("a", (0, 4), (2, 101)),
)
history(
    "ranges",
    "a range is done when its release says so",
    "With its position at its end, a range goes, whatever `ends` says; else it is free.",
    claim_range("a", 10),
    claim_range("a", 10),
    claim_range("a", 10),
    release_range("a", 0, 0, 10),
    release("a", 1, 15, topic="t/0@10", ends=1),
    beat("a", (2, 30)),
    release_range("a", 20, 2, 25),
    release_range("a", 20, 2, 25),
)
history(
    "ranges",
    "what is free comes first",
    "The lowest free range is granted before new messages, and cut to what was asked for. The rest "
    "is as it was before.",
    claim_range("a", 10),
    claim_range("a", 10),
    release_range("a", 10, 1, 12),
    release_range("a", 0, 0, 3),
    claim_range("b", 4, floor=50),
    claim_range("b", 4),
    claim_range("b", 100),
    claim_range("b", 100),
)
history(
    "ranges",
    "what tells something of its messages is granted whole",
    "Whatever was asked for: cut off, they would have no cell that tells it.",
    claim_range("a", 10),
    beat("a", (0, 3), (0, b"done")),
    release_range("a", 0, 0, 3),
    claim_range("b", 2),
    beat("b", (3, b"")),
    release_range("b", 0, 3, 3),
    claim_range("c", 2),
)
history(
    "ranges",
    "a range is taken over as any cell",
    "By its version. Each grant at the same position is counted.",
    claim_range("a", 10),
    claim("b", 0, topic="t/0@0"),
    claim("c", 1, topic="t/0@0"),
    claim("c", 1, topic="t/0@0"),
    beat("c", (2, 5)),
    claim("a", 4, topic="t/0@0"),
    claim("b", 5, topic="t/0@0"),
)
history(
    "ranges",
    "a release that says nothing takes its grant back",
    "What was never begun was not delivered.",
    claim_range("a", 10),
    release_range("a", 0, 0, -1),
    claim_range("a", 10),
    release_range("a", 0, 2, 0),
    claim_range("a", 10),
    release_range("a", 0, 4, -1),
    claim_range("b", 3),
)
history(
    "ranges",
    "a split gives back what was not begun",
    "Above the position and below the end, under the epoch.",
    claim_range("a", 10),
    beat("a", (0, 4)),
    split_range("a", 0, 0, 4),
    split_range("a", 0, 0, 10),
    split_range("a", 0, 1, 6),
    split_range("a", 3, 0, 6),
    split_range("a", 0, 0, 9),
    split_range("a", 0, 0, 5),
    claim_range("b", 10),
    claim_range("c", 10),
    split_range("b", 5, 8, 6),
    release_range("a", 0, 0, 5),
    split_range("a", 0, 0, 4),
)
history(
    "ranges",
    "a split is about ranges only",
    "Another cell has no end.",
    claim("a", -1),
    [*common(12, "a"), "t", 0, 0, 5],
)
history(
    "ranges",
    "a partition with ranges is nobody's",
    "It cannot be claimed while a range is open, and has no ranges while it is held.",
    claim_range("a", 10),
    claim("b", 0),
    claim("b", -1),
    release_range("a", 0, 0, 10),
    claim("b", 0),
    claim_range("a", 10),
    release("b", 4, 12),
    claim_range("a", 10),
)
history(
    "ranges",
    "a paused group grants no ranges",
    "As it accepts no claims.",
    pause(),
    claim_range("a", 10),
    resume(0),
    claim_range("a", 10),
)
history(
    "ranges",
    "messages of a range",
    "At most once, up to the end of the range.",
    claim_range("a", 10),
    messages("a", 0, 5, topic="t/0@0"),
    messages("a", 0, 11, topic="t/0@0"),
    messages("a", 0, 5, topic="t/0@0"),
    split_range("a", 0, 0, 5),
    split_range("a", 0, 0, 6),
    messages("a", 0, 7, topic="t/0@0"),
    messages("a", 0, 6, topic="t/0@0"),
    claim("b", 7, topic="t/0@0"),
    release_range("b", 0, 8, -1),
)
history(
    "ranges",
    "setting the position closes the book",
    "When no range is held; that of a range stays within it.",
    claim_range("a", 10),
    claim_range("b", 10),
    release_range("b", 10, 1, 12),
    pause(),
    position(0, 1),
    position(11, 0, topic="t/0@0"),
    position(2, 2, topic="t/0@10"),
    position(10, 0, topic="t/0@0"),
    position(5, 1),
    resume(3),
    claim_range("a", 3),
)
history(
    "ranges",
    "the position of a range is set by its holder",
    "It is free then.",
    claim_range("a", 10),
    beat("a", (0, 5)),
    position(3, 1, topic="t/0@0", client="a"),
    claim_range("b", 10),
)
history(
    "ranges",
    "a claim of the same name is in the way",
    "A cell that is no range keeps its name.",
    claim("x", -1, topic="t/0@0"),
    claim_range("a", 10),
    claim_range("a", 10, floor=5),
    claim("x", -1, topic="t/0@8"),
    split_range("a", 5, 2, 8),
    split_range("a", 5, 2, 7),
    claim_range("b", 1),
    claim_range("b", 7),
    claim_range("b", 7, topic="t/0@5"),
)
history(
    "ranges",
    "a range of a range",
    "There is none.",
    claim_range("a", 10),
    claim_range("b", 10, topic="t/0@0"),
    release_range("a", 0, 0, -1),
    claim_range("b", 10, topic="t/0@0"),
)
history(
    "ranges",
    "the last offset",
    "There is nothing beyond it.",
    claim_range("a", 2, floor=2**63 - 2),
    claim_range("a", 1, floor=2**63 - 2),
    claim_range("a", 1),
)
history(
    "ranges",
    "a forgotten group has no ranges",
    "A held one is in the way, as any cell is.",
    claim_range("a", 10),
    pause(),
    forget(1),
    release_range("a", 0, 0, 5),
    forget(1),
    resume(1),
    claim_range("a", 10),
)


def play(steps: list[Step]) -> list[dict[str, Any]]:
    """The steps with what the reference makes of them."""
    state = fold.new_state()
    played = []
    for offset, value in steps:
        if offset is None:
            offset = state["next_offset"]
        data = pack(value) if isinstance(value, list) else value
        events = fold.apply(state, offset, data)
        try:
            read: Any = fold.read_record(data)
        except fold.Foreign as foreign:
            read = foreign.args[0]
        played.append(
            {
                "offset": offset,
                "value": None if data is None else data.hex(),
                "record": read,
                "events": events,
                "state": copy.deepcopy(state),
                "digest": fold.digest(state),
            }
        )
    return played


def hashes() -> dict[str, Any]:
    """Vectors of §2.2."""
    groups = ["g", "group", "my.team.group", "группа", "x" * 255, "leader", "a", "b", "1", "-"]
    counts = [1, 2, 8, 10, 64, 1000]
    return {
        "coordinating_partition": [
            {
                "group_id": group,
                "hash": fold.murmur3_32(group.encode()),
                "of": {str(n): fold.murmur3_32(group.encode()) % n for n in counts},
            }
            for group in groups
        ],
    }


def slots() -> dict[str, Any]:
    """Vectors of §5.17."""
    names: list[tuple[str, int, list[Any] | None]] = [
        ("orders/0#1", 0, ["orders", 0, 0, 1]),
        ("orders/2#16", 3, ["orders", 2, 3, 16]),
        ("orders/2#16", 15, ["orders", 2, 15, 16]),
        ("orders/2#16", 16, None),
        ("orders/02#16", 3, None),
        ("orders/2#016", 3, None),
        ("orders/2#0", 0, None),
        ("orders/2#1024", 1023, ["orders", 2, 1023, 1024]),
        ("orders/2#1025", 0, None),
        ("a.b_c-d/2147483647#2", 1, ["a.b_c-d", 2147483647, 1, 2]),
        ("orders/2147483648#2", 1, None),
        ("orders", 3, None),
        ("orders#slots", 0, None),
        ("or/ders/2#16", 3, None),
        ("leader:x/2#16", 3, None),
        ("/2#16", 3, None),
        ("orders/2#16 ", 3, None),
    ]
    keys = [b"", b"a", b"customer-4711", b"\0", bytes(4), b"\xff" * 7, "Zürich".encode()]
    keys.append(bytes(range(64)))
    counts = [1, 2, 3, 16, 1024]
    return {
        "names": [
            {"cell_topic": topic, "cell_partition": partition, "slot": slot}
            for topic, partition, slot in names
        ],
        "messages": [
            *(
                {"key": None, "offset": offset, "slots": n, "slot": offset % n}
                for offset in (0, 17, 2**62 + 5)
                for n in counts
            ),
            *(
                {"key": key.hex(), "offset": 99, "slots": n, "slot": fold.murmur3_32(key) % n}
                for key in keys
                for n in counts
            ),
        ],
    }


def decodings() -> list[dict[str, Any]]:
    """Every value of the histories, once: its bytes, and the record or the kind of foreign."""
    seen: dict[str, dict[str, Any]] = {}
    for histories in HISTORIES.values():
        for _, _, steps in histories:
            for step in play(steps):
                if step["value"] is not None:
                    seen[step["value"]] = {"value": step["value"], "record": step["record"]}
    return sorted(seen.values(), key=lambda row: (len(row["value"]), row["value"]))


def in_words(played: list[dict[str, Any]]) -> list[str]:
    """The steps of a history as lines of text."""
    lines = []
    for step in played:
        record = step["record"]
        what = f"no record: {record}" if isinstance(record, str) else _words(record, "record")
        lines.append(f"  {step['offset']:>6}  {what}")
        lines += [f"          -> {_words(event, 'event')}" for event in step["events"]]
    return lines


def _words(data: dict[str, Any], title: str) -> str:
    sender = ("offset", "seq", "group_id") if title == "event" else ("offset", "seq", "instance_id")
    words = [data[title]]
    for name, value in data.items():
        if name == "metadata" and isinstance(value, list):
            words += [f"[{' '.join(map(str, entry.values()))}]" for entry in value]
        elif name not in (title, *sender):
            text = str(value)
            words.append(f"{name}={text if len(text) <= 60 else f'{text[:9]}...({len(text)})'}")
    return " ".join(words)


def files() -> dict[str, str]:
    """File name → its text."""
    texts: dict[str, str] = {}
    words: list[str] = [
        "The histories of this folder in words. Written by tests/support/make_vectors.py."
    ]
    for file, histories in HISTORIES.items():
        rows: list[dict[str, Any]] = [
            {"name": name, "says": says, "steps": play(steps)} for name, says, steps in histories
        ]
        texts[f"{file}.json"] = _histories_text(rows)
        for row in rows:
            words += ["", f"{file}: {row['name']}", f"  {row['says']}"]
            words += in_words(row["steps"])
    texts["histories.txt"] = "\n".join(words) + "\n"
    texts["hashes.json"] = json.dumps(hashes(), indent=1) + "\n"
    texts["slots.json"] = json.dumps(slots(), indent=1) + "\n"
    texts["decoding.json"] = "[\n" + ",\n".join(json.dumps(row) for row in decodings()) + "\n]\n"
    return texts


def _histories_text(histories: list[dict[str, Any]]) -> str:
    """JSON with one line for each record, event, cell and member."""
    one_line = json.dumps

    def block(rows: list[Any], indent: str) -> str:
        inner = ",\n".join(f"{indent} {one_line(row)}" for row in rows)
        return f"[\n{inner}\n{indent}]" if rows else "[]"

    texts = []
    for played in histories:
        steps = []
        for step in played["steps"]:
            state = step["state"]
            rows = ",\n".join(
                f'    "{name}": {block(state[name], "    ")}'
                for name in ("cells", "sessions", "pauses", "levels", "ranges")
            )
            steps.append(
                f'  {{"offset": {step["offset"]},\n'
                f'   "value": {one_line(step["value"])},\n'
                f'   "record": {one_line(step["record"])},\n'
                f'   "events": {block(step["events"], "   ")},\n'
                f'   "state": {{"partition": {state["partition"]},'
                f' "next_offset": {state["next_offset"]},\n'
                f'    "identity": {one_line(state["identity"])}, "base": {state["base"]},'
                f' "partitions": {state["partitions"]},\n{rows}}},\n'
                f'   "digest": {one_line(step["digest"])}}}'
            )
        texts.append(
            f'{{"name": {one_line(played["name"])},\n "says": {one_line(played["says"])},\n'
            ' "steps": [\n' + ",\n".join(steps) + "\n ]}"
        )
    return "[\n" + ",\n".join(texts) + "\n]\n"


def main() -> None:
    """Write the files, and remove those that have no source any more."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = files()
    for old in FOLDER.iterdir():
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()

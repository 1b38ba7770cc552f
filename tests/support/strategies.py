"""Hypothesis strategies for records, near-records, junk and histories, shared by the unit tests.

Names come from tiny alphabets and offsets from small ranges, so that records meet in the same cells
and the transitions are really taken. How many examples are run: tests/conftest.py.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
from hypothesis import strategies as st

from marshal_py.protocol import messages as m
from marshal_py.protocol.rationalizer import Cell, PartitionState, apply

INT64_MAX = 2**63 - 1

# ------------------------------------------------------------------ colliding records

clients = st.sampled_from(["c1", "c2"])
instances = st.sampled_from(["i1", "i2", "i3"])
groups = st.sampled_from(["g1", "g1", "g1", "g2"])
topics = st.sampled_from(["t1", "t1", "t2"])
partitions = st.sampled_from([0, 0, 0, 1])
seqs = st.integers(0, 99)
small_offsets = st.integers(-1, 40)
log_offsets = st.integers(0, 40)
intervals = st.sampled_from([1, 500, 60_000])
metadata = st.sampled_from([b"", b"x", b"\x00" * 256])

metadata_entries = st.builds(m.MetadataEntry, log_offsets, metadata)
levels = st.sampled_from([1, 1, 1, 2, 3])

_common = (st.just(2), clients, instances, groups, seqs)
_place = (topics, partitions)

claims = st.builds(m.ClaimingPartition, *_common, *_place, intervals, small_offsets)
heartbeats = st.builds(
    m.Heartbeat,
    *_common,
    st.sampled_from([0, 1000]),
    st.sampled_from([0, 1, 1, 2]),
    st.lists(small_offsets, max_size=5),
    st.lists(metadata_entries, max_size=3),
    st.none() | metadata,
    levels,
    levels,
)
ends = st.sampled_from([0, 0, 1])
releases = st.builds(m.ReleasingPartition, *_common, *_place, log_offsets, small_offsets, ends)
messages_claims = st.builds(m.ClaimingMessages, *_common, *_place, log_offsets, log_offsets)
pauses = st.builds(m.ReleaseGroup, *_common, st.integers(0, 10))
resumes = st.builds(m.ResumeGroup, *_common, small_offsets)
positions = st.builds(m.SetPosition, *_common, *_place, log_offsets, small_offsets)
forgets = st.builds(m.ForgetGroup, *_common, small_offsets)
identities = st.sampled_from(["one", "two"])
geneses = st.builds(
    m.Genesis,
    *_common,
    identities,
    identities | st.just(""),
    st.sampled_from([0, 1, 40, 1000]),
    st.sampled_from([1, 8]),
    log_offsets,
)
range_topics = st.sampled_from(["t1/0@0", "t1/0@3", "t1/0@4", "t2/0@0", "t1"])
counts = st.sampled_from([1, 3, 4, 10])
range_claims = st.builds(m.ClaimingRange, *_common, *_place, intervals, log_offsets, counts)
splits = st.builds(m.SplittingRange, *_common, range_topics, st.just(0), log_offsets, log_offsets)
set_levels = st.builds(m.SetLevel, *_common, levels, levels)

records: st.SearchStrategy[m.Message] = st.one_of(
    claims,
    heartbeats,
    releases,
    messages_claims,
    pauses,
    resumes,
    positions,
    forgets,
    geneses,
    set_levels,
    range_claims,
    splits,
)
"""Records over few names and offsets."""

# ------------------------------------------------------------------ the whole range of each field

text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
ids = text | st.sampled_from(["x" * 255, "\U0001f600" * 255, "\x00", "é", "/"])
any_topics = text | st.sampled_from(["t" * 249, "\U0001f600" * 249, "leader:x"])
any_partitions = st.integers(0, 2**31 - 1)
any_log_offsets = st.integers(0, INT64_MAX)
any_offsets = st.integers(-1, INT64_MAX)
any_intervals = st.integers(1, 86_400_000)

any_metadata = st.builds(m.MetadataEntry, any_log_offsets, st.binary(max_size=256))
any_levels = st.integers(1, 255)
_any_common = (st.just(2), ids, ids, ids, any_log_offsets)
_any_place = (any_topics, any_partitions)

any_records: st.SearchStrategy[m.Message] = st.one_of(
    st.builds(m.ClaimingPartition, *_any_common, *_any_place, any_intervals, any_offsets),
    st.builds(
        m.Heartbeat,
        *_any_common,
        st.integers(0, 86_400_000),
        st.sampled_from([0, 1, 2]),
        st.lists(any_offsets, max_size=7),
        st.lists(any_metadata, max_size=5),
        st.none() | st.binary(max_size=300) | st.just(b"\xff" * 4096),
        any_levels,
        any_levels,
    ),
    st.builds(m.ReleasingPartition, *_any_common, *_any_place, any_log_offsets, any_offsets, ends),
    st.builds(m.ClaimingMessages, *_any_common, *_any_place, any_log_offsets, any_log_offsets),
    st.builds(m.ReleaseGroup, *_any_common, any_log_offsets),
    st.builds(m.ResumeGroup, *_any_common, any_offsets),
    st.builds(m.SetPosition, *_any_common, *_any_place, any_log_offsets, any_offsets),
    st.builds(m.ForgetGroup, *_any_common, any_offsets),
    st.builds(
        m.Genesis,
        *_any_common,
        ids,
        ids | st.just(""),
        st.integers(0, 2**62),
        st.integers(1, 2**31 - 1),
        any_log_offsets,
    ),
    st.builds(m.SetLevel, *_any_common, any_levels, any_levels),
    st.builds(
        m.ClaimingRange,
        *_any_common,
        text,
        any_partitions,
        any_intervals,
        any_log_offsets,
        st.integers(1, 2**31 - 1),
    ),
    st.builds(m.SplittingRange, *_any_common, *_any_place, any_log_offsets, any_log_offsets),
)
"""Records over everything that their fields may hold."""

# ------------------------------------------------------------------ near-records and junk

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from(
        [0, 1, 2, 3, -1, -2, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 86_400_000, 86_400_001]
    ),
    st.floats(),
    st.sampled_from(["", "g1", "c1", "t1", "x" * 255, "x" * 256, "t" * 249, "t" * 250]),
    st.text(max_size=5),
    st.sampled_from([b"", b"x" * 256, b"x" * 257, b"x" * 4096, b"x" * 4097]),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=5)),
    st.builds(msgpack.Timestamp, st.integers(0, 2**33), st.just(0)),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Anything that msgpack can say."""


def fields(message: m.Message) -> list[Any]:
    """The msgpack array of a record, as Python lists."""
    array: list[Any] = msgpack.unpackb(m.encode(message))
    return array


def pack(value: Any) -> bytes:
    """The usual msgpack bytes of a value."""
    return bytes(msgpack.packb(value, use_bin_type=True))


@st.composite
def near_records(draw: st.DrawFn) -> bytes:
    """A record with one field replaced, removed or added, at the top or in an entry."""
    array = fields(draw(records))
    target = array
    if array[0] == 2 and (array[8] or array[9]) and draw(st.booleans()):
        target = draw(st.sampled_from([array[8], *array[9]]))
    action = draw(st.sampled_from(["replace", "replace", "remove", "add", "add two"]))
    if action in ("replace", "remove") and not target:
        return pack(array)
    if action == "replace":
        target[draw(st.integers(0, len(target) - 1))] = draw(values)
    elif action == "remove":
        del target[draw(st.integers(0, len(target) - 1)) :]
    else:
        target.extend(draw(st.lists(values, min_size=1, max_size=2)))
    return pack(array)


@st.composite
def nested_records(draw: st.DrawFn) -> bytes:
    """A record whose added element is nested, near the limit of the depth or far beyond it."""
    array = fields(draw(records))
    depth = draw(st.sampled_from([1, 28, 29, 30, 31, 32, 33, 500, 3000]))
    opener = draw(
        st.sampled_from([b"\x91", b"\x81\xc0", b"\xdc\x00\x01", b"\x92\xc0", b"\xde\x00\x01\xa1x"])
    )
    deep = opener * depth + b"\xc0"
    if array[0] == 2 and array[9] and draw(st.booleans()):
        entry = array[9][0]
        cut = pack([*array[:9], [[*entry, None]], *array[10:]])
        # put the nested element where the added nil of the entry is
        marker = pack([*entry, None])
        return cut.replace(marker, marker[:-1] + deep, 1)
    return pack([*array, None])[:-1] + deep


@st.composite
def mutated_records(draw: st.DrawFn) -> bytes:
    """The bytes of a record with some bytes changed, cut off, doubled or appended."""
    data = bytearray(m.encode(draw(records)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(["set", "insert", "cut", "delete"]))
        if action == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif action == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=3))
        elif action == "cut":
            del data[at:]
        else:
            del data[at : at + 1]
    return bytes(data)


raw_values: st.SearchStrategy[bytes | None] = st.one_of(
    records.map(m.encode),
    records.map(m.encode),
    records.map(m.encode),
    near_records(),
    nested_records(),
    mutated_records(),
    values.map(pack),
    st.lists(st.integers(-2, 12), max_size=4).map(pack),
    st.binary(max_size=60),
    st.none(),
    st.sampled_from([b"Heartbeat/1/2/client/group/topic/0/17", b'{"type": 1}', b"\x92\x01\x03"]),
)
"""What may lie on the topic: mostly records, and everything else."""

# ------------------------------------------------------------------ histories

Log = list[tuple[int, bytes | None]]


@st.composite
def _strides(draw: st.DrawFn, max_size: int, source: st.SearchStrategy[bytes | None]) -> Log:
    log: Log = []
    offset = draw(st.sampled_from([0, 0, 0, 3, 4090, 65_530]))
    for value in draw(st.lists(source, min_size=1, max_size=max_size)):
        log.append((offset, value))
        offset += draw(st.sampled_from([1, 1, 1, 1, 1, 1, 1, 2, 4096, 40_000, -2, 0]))
        offset = max(offset, 0)
    return log


def lively_log(rng: Random, size: int, first: m.Message | None = None) -> Log:
    """A log in which many records are accepted, mixed with junk, gaps and repeated offsets.

    It begins with `first`, if that is given. A plain random generator makes it, since hypothesis's
    own choices crowd at the edges of their ranges: most of what they write is rejected.
    """
    state = PartitionState(0)
    log: Log = []
    offset = rng.choice([0, 0, 3, 4090, 65_530])
    for number in range(size):
        value = m.encode(first if first and number == 0 else _fitting(rng, state))
        if rng.random() < 0.05 and (number or not first):
            value = _broken(rng, value)
        log.append((offset, value))
        apply(state, offset, value)
        offset = max(0, offset + rng.choice([1] * 20 + [2, 4096, 40_000, -2, 0]))
    return log


def _fitting(rng: Random, state: PartitionState) -> m.Message:
    """A record made with the state in sight: mostly of a cell that is there, with its version or
    epoch, or one nearby.
    """
    held = [key for key, cell in state.cells.items() if cell.held]
    there = held if held and rng.random() < 0.8 else list(state.cells)
    anywhere = ("g2" if rng.random() < 0.2 else "g1", rng.choice("tu"), rng.randrange(3))
    key = rng.choice(there) if there and rng.random() < 0.8 else anywhere
    group, topic, partition = key
    cell = state.cells.get(key, Cell(key[1:]))
    version = state.version(*key)
    version = version if rng.random() < 0.85 else version + rng.choice([1, -1, 40])
    epoch = cell.epoch if rng.random() < 0.85 else cell.epoch + rng.choice([1, -1, 40])
    version, epoch = max(-1, version), max(0, epoch)
    client = rng.choice("abc")
    sender = (client, client + rng.choice("123"), group, rng.randrange(99))
    if cell.holder is not None and rng.random() < 0.7:
        sender = (cell.holder, str(cell.instance_id), group, rng.randrange(99))
    near = max(0, cell.position + rng.randrange(-3, 10))
    paused = group in state.paused
    kinds = {"claim": 20, "beat": 20, "member": 8, "release": 6, "messages": 12, "pause": 3}
    kinds |= {"resume": 8 * paused + 1, "position": 12 * paused + 1, "forget": 4 * paused + 1}
    kinds |= {"genesis": 1, "level": 2, "range": 16}
    found = None if group not in state.groups else state.groups[group].open_ranges
    span = None if found is None else found.of_cell.get((topic, partition))
    if span is not None:
        kinds |= {"split": 12, "release": 14}
        near = max(0, rng.choice([cell.position + rng.randrange(-1, 4), span.end]))
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    level = state.level(group)
    place = (topic, partition)
    match kind:
        case "claim":
            return m.ClaimingPartition(2, *sender, *place, rng.choice([1, 500]), version)
        case "beat" | "member":
            others = [k for k in state.cells if k[0] == group and rng.random() < 0.5]
            at = [max(0, epoch - state.base)] if there else []
            at += [max(0, state.cells[k].epoch - state.base) for k in others]
            positions = [number for claimed_at in at for number in (claimed_at, near)]
            said = [m.MetadataEntry(a, rng.choice([b"", b"x"])) for a in at if rng.random() < 0.5]
            ends_at = rng.choice([level, level, level + 1, 3])
            follows = (1 if rng.random() < 0.9 else 2, max(1, ends_at))
            says: m.Membership = 0
            if kind == "member":
                says = 1 if rng.random() < 0.7 else 2
            about = rng.choice([None, b"", b"m"])
            return m.Heartbeat(2, *sender, 500, says, positions, said, about, *follows)
        case "range":
            source = (topic, partition) if span is None else span.source
            floor = rng.choice([0, 0, 0, near])
            return m.ClaimingRange(2, *sender, *source, 500, floor, rng.choice([1, 3, 8]))
        case "split":
            return m.SplittingRange(2, *sender, *place, epoch, near)
        case "release":
            near = -1 if span is not None and rng.random() < 0.2 else near
            return m.ReleasingPartition(2, *sender, *place, epoch, near, rng.choice([0, 0, 0, 1]))
        case "messages":
            return m.ClaimingMessages(2, *sender, *place, epoch, near)
        case "pause":
            return m.ReleaseGroup(2, *sender, rng.randrange(9))
        case "resume" | "forget":
            its = state.groups.get(group)
            pause = -1 if its is None or its.pause is None else its.pause.version
            ends = m.ResumeGroup if kind == "resume" else m.ForgetGroup
            return ends(2, *sender, pause if rng.random() < 0.8 else version)
        case "position":
            return m.SetPosition(2, *sender, *place, near, version)
        case "genesis":
            previous = rng.choice([state.identity or "", "one"])
            base = max(0, state.base + rng.choice([0, 1, 100]))
            return m.Genesis(2, *sender, rng.choice(["one", "two"]), previous, base, 8, 0)
        case "level":
            return m.SetLevel(2, *sender, rng.choice([1, 2, 3]), max(1, rng.choice([level, 1])))
        case _:
            raise AssertionError(kind)


def _broken(rng: Random, value: bytes) -> bytes:
    at = rng.randrange(len(value))
    octet = bytes([rng.randrange(256)])
    return rng.choice([value[:at], value[:at] + octet + value[at + 1 :], value + octet, octet])


lively_logs: st.SearchStrategy[Log] = st.builds(
    lambda seed, size: lively_log(Random(seed), size),
    st.integers(0, 2**64),
    st.sampled_from([3, 15, 40, 80]),
)
"""Logs in which every transition is really taken, by seed."""

logs: st.SearchStrategy[Log] = st.one_of(lively_logs, _strides(25, raw_values))
"""Histories of every kind: (offset, value) in the order in which a reader meets them."""

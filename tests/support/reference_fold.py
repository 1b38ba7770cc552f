"""A second fold, written from specs/PROTOCOL.md alone: slow, plain, and sharing no code with the
first. The golden histories take their expected states and events from here, and the property
tests compare the two on records of every kind.

States and events are plain dictionaries, in the readable form that specs/vectors use: bytes as
hex, absent values as None.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack

State = dict[str, Any]
Event = dict[str, Any]

INT64_MAX = 2**63 - 1
FIRST_SIX = 6
NAMES = {
    1: "ClaimingPartition",
    2: "Heartbeat",
    3: "ReleasingPartition",
    4: "ClaimingMessages",
    5: "ReleaseGroup",
    6: "ResumeGroup",
    7: "SetPosition",
    8: "ForgetGroup",
}


class Foreign(Exception):
    """The value is no record; `args[0]` is the kind of foreign record (§4.3)."""


# ---------------------------------------------------------------- §3.1 msgpack, by hand


def element_end(data: bytes, at: int, level: int) -> int:
    """Where the msgpack value at `at` ends; `level` arrays and maps are open around it."""
    if at >= len(data):
        raise Foreign("undecodable")
    byte = data[at]
    at += 1

    def number(size: int) -> int:
        if at + size > len(data):
            raise Foreign("undecodable")
        return int.from_bytes(data[at : at + size], "big")

    children = None
    if byte < 0x80 or byte >= 0xE0 or byte in (0xC0, 0xC2, 0xC3):
        end = at
    elif byte < 0x90:
        end, children = at, 2 * (byte - 0x80)
    elif byte < 0xA0:
        end, children = at, byte - 0x90
    elif byte < 0xC0:
        end = at + byte - 0xA0
    elif byte in (0xC4, 0xD9):
        end = at + 1 + number(1)
    elif byte in (0xC5, 0xDA):
        end = at + 2 + number(2)
    elif byte in (0xC6, 0xDB):
        end = at + 4 + number(4)
    elif byte == 0xC7:
        end = at + 1 + 1 + number(1)
    elif byte == 0xC8:
        end = at + 2 + 1 + number(2)
    elif byte == 0xC9:
        end = at + 4 + 1 + number(4)
    elif byte in (0xCC, 0xD0):
        end = at + 1
    elif byte in (0xCD, 0xD1):
        end = at + 2
    elif byte in (0xCA, 0xCE, 0xD2):
        end = at + 4
    elif byte in (0xCB, 0xCF, 0xD3):
        end = at + 8
    elif 0xD4 <= byte <= 0xD8:
        end = at + 1 + 2 ** (byte - 0xD4)
    elif byte == 0xDC:
        end, children = at + 2, number(2)
    elif byte == 0xDD:
        end, children = at + 4, number(4)
    elif byte == 0xDE:
        end, children = at + 2, 2 * number(2)
    elif byte == 0xDF:
        end, children = at + 4, 2 * number(4)
    else:
        raise Foreign("undecodable")  # 0xc1
    if children is not None:
        if level + 1 > 32:
            raise Foreign("undecodable")
        for _ in range(children):
            end = element_end(data, end, level + 1)
    if end > len(data):
        raise Foreign("undecodable")
    return end


def array_start(data: bytes, at: int) -> tuple[int, int]:
    """The number of elements of the array at `at`, and where the first one is."""
    if at < len(data):
        if 0x90 <= data[at] <= 0x9F:
            return data[at] - 0x90, at + 1
        if data[at] == 0xDC and at + 3 <= len(data):
            return int.from_bytes(data[at + 1 : at + 3], "big"), at + 3
        if data[at] == 0xDD and at + 5 <= len(data):
            return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise Foreign("undecodable")


def array_elements(data: bytes, at: int, level: int) -> list[bytes]:
    """The bytes of each element of the array that fills `data` from `at` to its end."""
    count, at = array_start(data, at)
    elements = []
    for _ in range(count):
        end = element_end(data, at, level)
        elements.append(data[at:end])
        at = end
    if at != len(data):
        raise Foreign("undecodable")
    return elements


# ---------------------------------------------------------------- §3 the fields


def value_of(element: bytes) -> Any:
    try:
        return msgpack.unpackb(element, strict_map_key=False)
    except Exception:
        raise Foreign("undecodable") from None


def integer(element: bytes, low: int, high: int) -> int:
    value = value_of(element)
    if type(value) is not int or not low <= value <= high:
        raise Foreign("undecodable")
    return value


def string(element: bytes, longest: int) -> str:
    value = value_of(element)
    if type(value) is not str or not 1 <= len(value) <= longest:
        raise Foreign("undecodable")
    return value


def binary(element: bytes, longest: int) -> str:
    value = value_of(element)
    if type(value) is not bytes or len(value) > longest:
        raise Foreign("undecodable")
    return value.hex()


def read_entry(data: bytes) -> dict[str, Any]:
    fields = array_elements(data, 0, 3)
    if len(fields) < 4:
        raise Foreign("undecodable")
    return {
        "topic": string(fields[0], 249),
        "partition": integer(fields[1], 0, 2**31 - 1),
        "epoch": integer(fields[2], 0, INT64_MAX),
        "next_offset": integer(fields[3], -1, INT64_MAX),
        "metadata": binary(fields[4], 256) if len(fields) > 4 else "",
    }


def kind_of_foreign(data: bytes) -> str:
    """§4.3: the first two elements alone decide."""
    try:
        count, at = array_start(data, 0)
        if count < 2:
            return "undecodable"
        end = element_end(data, at, 1)
        type_number = value_of(data[at:end])
        version = value_of(data[end : element_end(data, end, 1)])
    except Foreign:
        return "undecodable"
    if type(type_number) is not int or type(version) is not int:
        return "undecodable"
    if version != 2:
        return "unknown_version"
    if type_number not in NAMES:
        return "unknown_type"
    return "undecodable"


def read_record(data: bytes | None) -> dict[str, Any]:
    """The record in `data`, or raise `Foreign`."""
    if data is None:
        raise Foreign("undecodable")
    try:
        return read_known_record(data)
    except Foreign:
        raise Foreign(kind_of_foreign(data)) from None


def read_known_record(data: bytes) -> dict[str, Any]:
    elements = array_elements(data, 0, 1)
    if len(elements) < FIRST_SIX:
        raise Foreign("undecodable")
    number = integer(elements[0], 1, 8)
    integer(elements[1], 2, 2)
    record: dict[str, Any] = {
        "record": NAMES[number],
        "client_id": string(elements[2], 255),
        "instance_id": string(elements[3], 255),
        "group_id": string(elements[4], 255),
        "seq": integer(elements[5], 0, INT64_MAX),
    }
    rest = elements[6:]
    needed = {1: 4, 2: 1, 3: 4, 4: 4, 5: 1, 6: 0, 7: 4, 8: 0}[number]
    if len(rest) < needed:
        raise Foreign("undecodable")
    if number in (1, 3, 4, 7):
        record["topic"] = string(rest[0], 249)
        record["partition"] = integer(rest[1], 0, 2**31 - 1)
    if number == 1:
        record["interval_ms"] = integer(rest[2], 1, 86_400_000)
        record["expected_version"] = integer(rest[3], -1, INT64_MAX)
    elif number == 2:
        entries = array_elements(rest[0], 0, 2)
        if len(entries) > 8192:
            raise Foreign("undecodable")
        record["entries"] = [read_entry(entry) for entry in entries]
        record["membership"] = integer(rest[1], 0, 2) if len(rest) > 1 else 0
        record["interval_ms"] = integer(rest[2], 0, 86_400_000) if len(rest) > 2 else 0
        record["member_metadata"] = binary(rest[3], 4096) if len(rest) > 3 else ""
    elif number == 3:
        record["epoch"] = integer(rest[2], 0, INT64_MAX)
        record["next_offset"] = integer(rest[3], -1, INT64_MAX)
    elif number == 4:
        record["epoch"] = integer(rest[2], 0, INT64_MAX)
        record["proposed_offset"] = integer(rest[3], 0, INT64_MAX)
    elif number == 5:
        record["expires_at_ms"] = integer(rest[0], 0, INT64_MAX)
    elif number == 7:
        record["next_offset"] = integer(rest[2], 0, INT64_MAX)
        record["expected_version"] = integer(rest[3], -1, INT64_MAX)
    return record


# ---------------------------------------------------------------- §4 the fold


def new_state(partition: int = 0) -> State:
    return {"partition": partition, "next_offset": 0, "cells": [], "members": [], "paused": []}


def find(rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any] | None:
    for row in rows:
        if all(row[name] == value for name, value in fields.items()):
            return row
    return None


def apply(state: State, offset: int, value: bytes | None) -> list[Event]:
    """Apply the record at `offset` to `state`, in place, and return the events."""
    events: list[Event] = []
    if offset < state["next_offset"]:
        return [{"event": "Ignored", "offset": offset, "why": "offset_repeated"}]

    # §4.6: the sweep, before the record
    last = state["next_offset"] - 1
    if any(boundary % 4096 == 0 for boundary in boundaries_between(last, offset)):
        silent = [m for m in state["members"] if offset - m["version"] > 65536]
        for member in sorted(silent, key=lambda m: (m["group_id"], m["client_id"])):
            state["members"].remove(member)
            events.append(left(offset, member, "expired"))

    state["next_offset"] = offset + 1
    try:
        record = read_record(value)
    except Foreign as foreign:
        return [*events, {"event": "Ignored", "offset": offset, "why": foreign.args[0]}]
    return events + TRANSITIONS[record["record"]](state, offset, record)


def boundaries_between(last: int, offset: int) -> list[int]:
    """The multiples of 4096 above `last`, up to `offset`."""
    first = (last // 4096 + 1) * 4096
    return [first] if first <= offset else []


def left(offset: int, member: dict[str, Any], why: str) -> Event:
    return {
        "event": "MemberLeft",
        "offset": offset,
        "client_id": member["client_id"],
        "instance_id": member["instance_id"],
        "group_id": member["group_id"],
        "why": why,
    }


def event(name: str, offset: int, source: dict[str, Any], /, **fields: Any) -> Event:
    sender = {key: source[key] for key in ("client_id", "instance_id", "group_id", "seq")}
    return {"event": name, "offset": offset, **sender, **fields}


def rejected(
    offset: int,
    record: dict[str, Any],
    reason: str,
    place: dict[str, Any] | None = None,
    cell: dict[str, Any] | None = None,
) -> list[Event]:
    return [
        event(
            "Rejected",
            offset,
            record,
            record=record["record"],
            reason=reason,
            topic=place["topic"] if place else None,
            partition=place["partition"] if place else None,
            epoch=cell["epoch"] if cell else -1,
            version=cell["version"] if cell else -1,
            holder=cell["holder"] if cell else None,
        )
    ]


def cell_of(state: State, record: dict[str, Any], place: dict[str, Any]) -> dict[str, Any] | None:
    return find(
        state["cells"],
        group_id=record["group_id"],
        topic=place["topic"],
        partition=place["partition"],
    )


def new_cell(state: State, record: dict[str, Any]) -> dict[str, Any]:
    cell = {
        "group_id": record["group_id"],
        "topic": record["topic"],
        "partition": record["partition"],
        "holder": None,
        "instance_id": None,
        "epoch": -1,
        "version": -1,
        "interval_ms": 0,
        "next_offset": -1,
        "claimed_offset": -1,
        "metadata": "",
    }
    state["cells"].append(cell)
    state["cells"].sort(key=lambda c: (c["group_id"], c["topic"], c["partition"]))
    return cell


def is_paused(state: State, record: dict[str, Any]) -> bool:
    return find(state["paused"], group_id=record["group_id"]) is not None


def claiming_partition(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    if is_paused(state, record):
        return rejected(offset, record, "group_paused", record, cell)
    if record["expected_version"] != (cell["version"] if cell else -1):
        return rejected(offset, record, "stale_version", record, cell)
    if cell is None:
        cell = new_cell(state, record)
    claimed = event(
        "Claimed",
        offset,
        record,
        topic=record["topic"],
        partition=record["partition"],
        epoch=offset,
        interval_ms=record["interval_ms"],
        previous_holder=cell["holder"],
        previous_instance_id=cell["instance_id"],
        previous_epoch=cell["epoch"],
    )
    cell["holder"] = record["client_id"]
    cell["instance_id"] = record["instance_id"]
    cell["epoch"] = offset
    cell["version"] = offset
    cell["interval_ms"] = record["interval_ms"]
    return [claimed]


def why_not_holder(cell: dict[str, Any] | None, epoch: int) -> str | None:
    if cell is None or cell["holder"] is None:
        return "not_held"
    if cell["epoch"] != epoch:
        return "wrong_epoch"
    return None


def heartbeat(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    events = [
        event(
            "Beat",
            offset,
            record,
            entries=len(record["entries"]),
            membership=record["membership"],
        )
    ]
    for entry in record["entries"]:
        cell = cell_of(state, record, entry)
        reason = why_not_holder(cell, entry["epoch"])
        if cell is None or reason is not None:
            events += rejected(offset, record, str(reason), entry, cell)
            continue
        cell["version"] = offset
        cell["metadata"] = entry["metadata"]
        cell["next_offset"] = max(cell["next_offset"], entry["next_offset"])
        events.append(of_cell("Renewed", offset, record, entry, cell))
    member = find(state["members"], group_id=record["group_id"], client_id=record["client_id"])
    same_instance = member is not None and member["instance_id"] == record["instance_id"]
    if record["membership"] == 2 and member is not None and same_instance:
        state["members"].remove(member)
        events.append(left(offset, member, "left"))
    if record["membership"] == 1:
        if member is not None:
            state["members"].remove(member)
        state["members"].append(
            {
                "group_id": record["group_id"],
                "client_id": record["client_id"],
                "instance_id": record["instance_id"],
                "version": offset,
                "interval_ms": record["interval_ms"],
                "metadata": record["member_metadata"],
            }
        )
        state["members"].sort(key=lambda m: (m["group_id"], m["client_id"]))
        if not same_instance:
            events.append(event("MemberJoined", offset, record, interval_ms=record["interval_ms"]))
    return events


def of_cell(
    name: str, offset: int, record: dict[str, Any], place: dict[str, Any], cell: dict[str, Any]
) -> Event:
    return event(
        name,
        offset,
        record,
        topic=place["topic"],
        partition=place["partition"],
        epoch=place["epoch"],
        next_offset=cell["next_offset"],
    )


def vacate(cell: dict[str, Any], offset: int) -> None:
    cell["holder"] = None
    cell["instance_id"] = None
    cell["version"] = offset


def releasing_partition(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    reason = why_not_holder(cell, record["epoch"])
    if cell is None or reason is not None:
        return rejected(offset, record, str(reason), record, cell)
    vacate(cell, offset)
    cell["next_offset"] = max(cell["next_offset"], record["next_offset"])
    return [of_cell("Released", offset, record, record, cell)]


def claiming_messages(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    reason = why_not_holder(cell, record["epoch"])
    if cell is None or reason is not None:
        return rejected(offset, record, str(reason), record, cell)
    if record["proposed_offset"] <= cell["claimed_offset"]:
        return rejected(offset, record, "offset_not_ahead", record, cell)
    claimed = event(
        "MessagesClaimed",
        offset,
        record,
        topic=record["topic"],
        partition=record["partition"],
        epoch=record["epoch"],
        from_offset=cell["claimed_offset"],
        to_offset=record["proposed_offset"],
    )
    cell["claimed_offset"] = record["proposed_offset"]
    cell["version"] = offset
    return [claimed]


def release_group(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    pause = find(state["paused"], group_id=record["group_id"])
    if pause is not None:
        state["paused"].remove(pause)
    state["paused"].append(
        {"group_id": record["group_id"], "expires_at_ms": record["expires_at_ms"]}
    )
    state["paused"].sort(key=lambda p: p["group_id"])
    return [event("GroupPaused", offset, record, expires_at_ms=record["expires_at_ms"])]


def resume_group(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    pause = find(state["paused"], group_id=record["group_id"])
    if pause is None:
        return rejected(offset, record, "not_paused")
    state["paused"].remove(pause)
    return [event("GroupResumed", offset, record)]


def set_position(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    sender = (record["client_id"], record["instance_id"])
    is_holder = cell is not None and (cell["holder"], cell["instance_id"]) == sender
    if not is_paused(state, record) and not is_holder:
        return rejected(offset, record, "not_paused", record, cell)
    if record["expected_version"] != (cell["version"] if cell else -1):
        return rejected(offset, record, "stale_version", record, cell)
    if cell is None:
        cell = new_cell(state, record)
    vacate(cell, offset)
    cell["next_offset"] = record["next_offset"]
    cell["claimed_offset"] = record["next_offset"]
    cell["metadata"] = ""
    return [
        event(
            "PositionSet",
            offset,
            record,
            topic=record["topic"],
            partition=record["partition"],
            next_offset=record["next_offset"],
        )
    ]


def forget_group(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    group = record["group_id"]
    mine = [c for c in state["cells"] if c["group_id"] == group]
    if not is_paused(state, record):
        return rejected(offset, record, "not_paused")
    if any(c["holder"] is not None for c in mine):
        return rejected(offset, record, "still_held")
    state["cells"] = [c for c in state["cells"] if c["group_id"] != group]
    state["members"] = [m for m in state["members"] if m["group_id"] != group]
    return [event("GroupForgotten", offset, record, cells=len(mine))]


TRANSITIONS = {
    "ClaimingPartition": claiming_partition,
    "Heartbeat": heartbeat,
    "ReleasingPartition": releasing_partition,
    "ClaimingMessages": claiming_messages,
    "ReleaseGroup": release_group,
    "ResumeGroup": resume_group,
    "SetPosition": set_position,
    "ForgetGroup": forget_group,
}


# ---------------------------------------------------------------- §6.1 canonical bytes


def canonical(state: State) -> bytes:
    """The canonical bytes of a state."""
    return bytes(
        msgpack.packb(
            [
                state["partition"],
                state["next_offset"],
                [
                    [
                        [c["group_id"], c["topic"], c["partition"]],
                        [
                            c["holder"],
                            c["instance_id"],
                            c["epoch"],
                            c["version"],
                            c["interval_ms"],
                            c["next_offset"],
                            c["claimed_offset"],
                            bytes.fromhex(c["metadata"]),
                        ],
                    ]
                    for c in state["cells"]
                ],
                [
                    [
                        [m["group_id"], m["client_id"]],
                        [
                            m["instance_id"],
                            m["version"],
                            m["interval_ms"],
                            bytes.fromhex(m["metadata"]),
                        ],
                    ]
                    for m in state["members"]
                ],
                [[p["group_id"], p["expires_at_ms"]] for p in state["paused"]],
            ],
            use_bin_type=True,
        )
    )


def digest(state: State) -> str:
    """The digest of a state, in hex."""
    return hashlib.blake2b(canonical(state), digest_size=16).hexdigest()


# ---------------------------------------------------------------- §2.2 hashes


def murmur3_32(data: bytes) -> int:
    """MurmurHash3, x86, 32 bit, seed 0, as its author describes it."""
    mask = 0xFFFFFFFF

    def scramble(k: int) -> int:
        k = k * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        return k * 0x1B873593 & mask

    h = 0
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        h ^= scramble(int.from_bytes(data[at : at + 4], "little"))
        h = (h << 13 | h >> 19) & mask
        h = (h * 5 + 0xE6546B64) & mask
    if whole < len(data):
        h ^= scramble(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h ^= h >> 16
    h = h * 0x85EBCA6B & mask
    h ^= h >> 13
    h = h * 0xC2B2AE35 & mask
    return h ^ h >> 16

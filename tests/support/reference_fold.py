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
    9: "Genesis",
    10: "SetLevel",
    11: "ClaimingRange",
    12: "SplittingRange",
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


def short_string(element: bytes, longest: int) -> str:
    value = value_of(element)
    if type(value) is not str or len(value) > longest:
        raise Foreign("undecodable")
    return value


def read_metadata(data: bytes) -> dict[str, Any]:
    fields = array_elements(data, 0, 3)
    if len(fields) < 2:
        raise Foreign("undecodable")
    return {"claimed_at": integer(fields[0], 0, INT64_MAX), "metadata": binary(fields[1], 256)}


def read_heartbeat(rest: list[bytes]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "interval_ms": integer(rest[0], 0, 86_400_000),
        "membership": 0,
        "positions": [],
        "metadata": [],
        "member_metadata": None,
        "lowest": 1,
        "highest": 1,
    }
    if len(rest) > 1:
        record["membership"] = integer(rest[1], 0, 2)
    if len(rest) > 2:
        positions = array_elements(rest[2], 0, 2)
        if len(positions) > 16384:
            raise Foreign("undecodable")
        record["positions"] = [integer(number, -1, INT64_MAX) for number in positions]
    if len(rest) > 3:
        entries = array_elements(rest[3], 0, 2)
        if len(entries) > 8192:
            raise Foreign("undecodable")
        record["metadata"] = [read_metadata(entry) for entry in entries]
    if len(rest) > 4 and value_of(rest[4]) is not None:
        record["member_metadata"] = binary(rest[4], 4096)
    if len(rest) > 5:
        record["lowest"] = integer(rest[5], 1, 255)
    if len(rest) > 6:
        record["highest"] = integer(rest[6], 1, 255)
    return record


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
    number = integer(elements[0], 1, 12)
    integer(elements[1], 2, 2)
    record: dict[str, Any] = {
        "record": NAMES[number],
        "client_id": string(elements[2], 255),
        "instance_id": string(elements[3], 255),
        "group_id": string(elements[4], 255),
        "seq": integer(elements[5], 0, INT64_MAX),
    }
    rest = elements[6:]
    needed = {1: 4, 2: 1, 3: 4, 4: 4, 5: 1, 6: 1, 7: 4, 8: 1, 9: 5, 10: 2, 11: 5, 12: 4}[number]
    if len(rest) < needed:
        raise Foreign("undecodable")
    if number in (1, 3, 4, 7, 11, 12):
        record["topic"] = string(rest[0], 218 if number == 11 else 249)
        record["partition"] = integer(rest[1], 0, 2**31 - 1)
    if number == 1:
        record["interval_ms"] = integer(rest[2], 1, 86_400_000)
        record["expected_version"] = integer(rest[3], -1, INT64_MAX)
    elif number == 2:
        record |= read_heartbeat(rest)
    elif number == 3:
        record["epoch"] = integer(rest[2], 0, INT64_MAX)
        record["next_offset"] = integer(rest[3], -1, INT64_MAX)
        record["ends"] = integer(rest[4], 0, 1) if len(rest) > 4 else 0
    elif number == 4:
        record["epoch"] = integer(rest[2], 0, INT64_MAX)
        record["proposed_offset"] = integer(rest[3], 0, INT64_MAX)
    elif number == 5:
        record["expires_at_ms"] = integer(rest[0], 0, INT64_MAX)
    elif number in (6, 8):
        record["expected_version"] = integer(rest[0], -1, INT64_MAX)
    elif number == 7:
        record["next_offset"] = integer(rest[2], 0, INT64_MAX)
        record["expected_version"] = integer(rest[3], -1, INT64_MAX)
    elif number == 9:
        record["identity"] = string(rest[0], 255)
        record["previous"] = short_string(rest[1], 255)
        record["base"] = integer(rest[2], 0, 2**62)
        record["partitions"] = integer(rest[3], 1, 2**31 - 1)
        record["made_ms"] = integer(rest[4], 0, INT64_MAX)
    elif number == 10:
        record["level"] = integer(rest[0], 1, 255)
        record["expected_level"] = integer(rest[1], 1, 255)
    elif number == 11:
        record["interval_ms"] = integer(rest[2], 1, 86_400_000)
        record["floor"] = integer(rest[3], 0, INT64_MAX)
        record["count"] = integer(rest[4], 1, 2**31 - 1)
    elif number == 12:
        record["epoch"] = integer(rest[2], 0, INT64_MAX)
        record["at"] = integer(rest[3], 0, INT64_MAX)
    return record


# ---------------------------------------------------------------- §4 the fold


def new_state(partition: int = 0) -> State:
    return {
        "partition": partition,
        "next_offset": 0,
        "identity": None,
        "base": 0,
        "partitions": 0,
        "cells": [],
        "sessions": [],
        "pauses": [],
        "levels": [],
        "ranges": [],
    }


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
    silent = [
        session
        for session in state["sessions"]
        if session["member"]
        and not cells_of(state, session)
        and offset - session["version"] > 65536
    ]
    for session in sorted(silent, key=lambda one: one["version"]):
        state["sessions"].remove(session)
        events.append(left(offset, session, "expired"))

    state["next_offset"] = offset + 1
    try:
        record = read_record(value)
    except Foreign as foreign:
        return [*events, {"event": "Ignored", "offset": offset, "why": foreign.args[0]}]
    events += TRANSITIONS[record["record"]](state, offset, record)
    # §4.1: a session exists as long as it holds a cell or is a member
    state["sessions"] = [s for s in state["sessions"] if s["member"] or cells_of(state, s)]
    return events


def cells_of(state: State, session: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that a session holds."""
    return [
        cell
        for cell in state["cells"]
        if cell["group_id"] == session["group_id"]
        and cell["holder"] == session["client_id"]
        and cell["instance_id"] == session["instance_id"]
    ]


def session_of(state: State, group_id: str, client_id: Any, instance_id: Any) -> Any:
    return find(state["sessions"], group_id=group_id, client_id=client_id, instance_id=instance_id)


def version_of(state: State, cell: dict[str, Any] | None) -> int:
    """§4.2: its own, or its holder's session's."""
    if cell is None:
        return -1
    session = session_of(state, cell["group_id"], cell["holder"], cell["instance_id"])
    return int(max(cell["version"], session["version"] if session else -1))


def level_of(state: State, group_id: str) -> int:
    row = find(state["levels"], group_id=group_id)
    return int(row["level"]) if row else 1


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
    version: int = -1,
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
            version=version,
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
    return find(state["pauses"], group_id=record["group_id"]) is not None


def claiming_partition(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    version = version_of(state, cell)
    if is_paused(state, record):
        return rejected(offset, record, "group_paused", record, cell, version)
    if ranges_in(state, record["group_id"], record["topic"], record["partition"]):
        return rejected(offset, record, "has_ranges", record, cell, version)
    if record["expected_version"] != version:
        return rejected(offset, record, "stale_version", record, cell, version)
    if cell is None:
        cell = new_cell(state, record)
    return grant(state, offset, record, cell)


def grant(state: State, offset: int, record: dict[str, Any], cell: dict[str, Any]) -> list[Event]:
    """The sender of an accepted claim gets the cell."""
    events = []
    found = range_with_cell(state, cell)
    if found is not None:
        again = position_of(cell) == found["granted_at"]
        found["granted"] = found["granted"] + 1 if again else 1
        found["granted_at"] = position_of(cell)
        says = {key: found[key] for key in ("topic", "partition", "start", "end", "granted")}
        events.append(event("RangeGranted", offset, record, **says))
    claimed = event(
        "Claimed",
        offset,
        record,
        topic=cell["topic"],
        partition=cell["partition"],
        epoch=state["base"] + offset,
        interval_ms=record["interval_ms"],
        previous_holder=cell["holder"],
        previous_instance_id=cell["instance_id"],
        previous_epoch=cell["epoch"],
    )
    cell["holder"] = record["client_id"]
    cell["instance_id"] = record["instance_id"]
    cell["epoch"] = state["base"] + offset
    cell["version"] = offset
    cell["interval_ms"] = record["interval_ms"]
    if session_of(state, record["group_id"], record["client_id"], record["instance_id"]) is None:
        level = level_of(state, record["group_id"])
        add_session(state, offset, record, level, level)
    return [*events, claimed]


def position_of(cell: dict[str, Any]) -> int:
    return int(max(cell["next_offset"], cell["claimed_offset"]))


# ---------------------------------------------------------------- §5.18 ranges


def name_of(found: dict[str, Any]) -> str:
    return f"{found['topic']}/{found['partition']}@{found['start']}"


def cell_with_range(state: State, found: dict[str, Any]) -> dict[str, Any]:
    cell = find(state["cells"], group_id=found["group_id"], topic=name_of(found), partition=0)
    assert cell is not None
    return cell


def range_with_cell(state: State, cell: dict[str, Any] | None) -> dict[str, Any] | None:
    for found in state["ranges"]:
        if cell is not None and (cell["group_id"], cell["topic"], cell["partition"]) == (
            found["group_id"],
            name_of(found),
            0,
        ):
            row: dict[str, Any] = found
            return row
    return None


def ranges_in(state: State, group_id: str, topic: str, partition: int) -> list[dict[str, Any]]:
    """The open ranges of a partition, the lowest first."""
    return [
        found
        for found in state["ranges"]
        if (found["group_id"], found["topic"], found["partition"]) == (group_id, topic, partition)
    ]


def open_range(
    state: State, record: dict[str, Any], place: dict[str, Any], start: int, end: int, **more: int
) -> dict[str, Any]:
    """Open a range, and return its new cell."""
    found = {
        "group_id": record["group_id"],
        "topic": place["topic"],
        "partition": place["partition"],
        "start": start,
        "end": end,
        **more,
    }
    state["ranges"].append(found)
    state["ranges"].sort(key=lambda r: (r["group_id"], r["topic"], r["partition"], r["start"]))
    cell = new_cell(state, {**record, "topic": name_of(found), "partition": 0})
    cell["next_offset"] = start
    return cell


def cell_named(state: State, record: dict[str, Any], place: dict[str, Any], start: int) -> Any:
    name = f"{place['topic']}/{place['partition']}@{start}"
    return cell_of(state, record, {"topic": name, "partition": 0})


def split(
    state: State, offset: int, record: dict[str, Any], found: dict[str, Any], at: int
) -> list[Event]:
    end, found["end"] = found["end"], at
    before = max(0, found["granted"] - 1)
    rest = open_range(state, record, found, at, end, granted=before, granted_at=at)
    rest["version"] = offset
    says = {key: found[key] for key in ("topic", "partition", "start")}
    return [event("RangeSplit", offset, record, **says, at=at, end=end)]


def claiming_range(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    book = cell_of(state, record, record)
    ranges = ranges_in(state, record["group_id"], record["topic"], record["partition"])

    def no(reason: str) -> list[Event]:
        return rejected(offset, record, reason, record, book, version_of(state, book))

    if is_paused(state, record):
        return no("group_paused")
    if range_with_cell(state, book) is not None:
        return no("cell_exists")
    if book is not None and book["holder"] is not None:
        return no("still_held")
    for found in ranges:
        cell = cell_with_range(state, found)
        if cell["holder"] is not None:
            continue
        events = grant(state, offset, record, cell)
        at = position_of(cell) + record["count"]
        if cell["metadata"] == "" and why_not_split(state, found, cell, at) is None:
            events += split(state, offset, record, found, at)
        return events
    start = max(record["floor"], position_of(book) if book else -1)
    end = start + record["count"]
    if end > INT64_MAX:
        return no("outside_range")
    if len(ranges) >= 4096:
        return no("too_many_ranges")
    if cell_named(state, record, record, start) is not None:
        return no("cell_exists")
    if book is None:
        book = new_cell(state, record)
    book["next_offset"] = end
    book["version"] = offset
    cell = open_range(state, record, record, start, end, granted=0, granted_at=-1)
    return grant(state, offset, record, cell)


def splitting_range(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    version = version_of(state, cell)
    reason = why_not_holder(cell, record["epoch"])
    if cell is None or reason is not None:
        return rejected(offset, record, str(reason), record, cell, version)
    found = range_with_cell(state, cell)
    if found is None:
        return rejected(offset, record, "outside_range", record, cell, version)
    reason = why_not_split(state, found, cell, record["at"])
    if reason is not None:
        return rejected(offset, record, reason, record, cell, version)
    cell["version"] = offset
    return split(state, offset, record, found, record["at"])


def why_not_split(state: State, found: dict[str, Any], cell: dict[str, Any], at: int) -> str | None:
    if at <= position_of(cell) or at >= found["end"]:
        return "outside_range"
    if len(ranges_in(state, found["group_id"], found["topic"], found["partition"])) >= 4096:
        return "too_many_ranges"
    if cell_named(state, cell, found, at) is not None:
        return "cell_exists"
    return None


def add_session(
    state: State, offset: int, record: dict[str, Any], lowest: int, highest: int
) -> dict[str, Any]:
    session = {
        "group_id": record["group_id"],
        "client_id": record["client_id"],
        "instance_id": record["instance_id"],
        "version": offset,
        "interval_ms": record["interval_ms"],
        "metadata": "",
        "member": 0,
        "lowest": lowest,
        "highest": highest,
    }
    state["sessions"].append(session)
    state["sessions"].sort(key=lambda s: (s["group_id"], s["client_id"], s["instance_id"]))
    return session


def why_not_holder(cell: dict[str, Any] | None, epoch: int) -> str | None:
    if cell is None or cell["holder"] is None:
        return "not_held"
    if cell["epoch"] != epoch:
        return "wrong_epoch"
    return None


def heartbeat(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    if not record["lowest"] <= level_of(state, record["group_id"]) <= record["highest"]:
        return rejected(offset, record, "cannot_follow")
    session = session_of(state, record["group_id"], record["client_id"], record["instance_id"])
    mine = cells_of(state, session) if session else []
    events = [
        event(
            "Beat",
            offset,
            record,
            cells=len(mine),
            entries=len(record["positions"]) // 2 + len(record["metadata"]),
            membership=record["membership"],
        )
    ]
    if session is None and record["membership"] == 1:
        session = add_session(state, offset, record, record["lowest"], record["highest"])
    if session is not None:
        session["version"] = offset
        for name in ("interval_ms", "lowest", "highest"):
            session[name] = record[name]
        if record["member_metadata"] is not None:
            session["metadata"] = record["member_metadata"]
    said: list[tuple[int, str, Any]] = []
    numbers = record["positions"]
    for at in range(0, len(numbers) - 1, 2):
        said.append((numbers[at], "next_offset", numbers[at + 1]))
    said += [(entry["claimed_at"], "metadata", entry["metadata"]) for entry in record["metadata"]]
    for claimed_at, name, value in said:
        cell = find(mine, epoch=state["base"] + claimed_at)
        if cell is None:
            events += rejected(offset, record, "not_held")
            continue
        cell[name] = max(cell[name], value) if name == "next_offset" else value
        events.append(of_cell("Renewed", offset, record, cell, cell))
    if record["membership"] == 1 and session is not None and not session["member"]:
        for other in state["sessions"]:
            if (other["group_id"], other["client_id"]) == (record["group_id"], record["client_id"]):
                other["member"] = 0
        session["member"] = 1
        events.append(event("MemberJoined", offset, record, interval_ms=record["interval_ms"]))
    if record["membership"] == 2 and session is not None and session["member"]:
        session["member"] = 0
        events.append(left(offset, session, "left"))
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
        return rejected(offset, record, str(reason), record, cell, version_of(state, cell))
    vacate(cell, offset)
    cell["next_offset"] = max(cell["next_offset"], record["next_offset"])
    ends = record["ends"] == 1
    found = range_with_cell(state, cell)
    if found is not None:
        ends = position_of(cell) >= found["end"]
        if ends:
            state["ranges"].remove(found)
        elif record["next_offset"] == -1 and found["granted"] > 0:
            found["granted"] -= 1
    if ends:
        state["cells"].remove(cell)
    return [of_cell("Released", offset, record, record, cell) | {"ended": ends}]


def claiming_messages(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    reason = why_not_holder(cell, record["epoch"])
    if cell is None or reason is not None:
        return rejected(offset, record, str(reason), record, cell, version_of(state, cell))
    if record["proposed_offset"] <= cell["claimed_offset"]:
        return rejected(offset, record, "offset_not_ahead", record, cell, version_of(state, cell))
    found = range_with_cell(state, cell)
    if found is not None and record["proposed_offset"] > found["end"]:
        return rejected(offset, record, "outside_range", record, cell, version_of(state, cell))
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
    state["pauses"] = [p for p in state["pauses"] if p["group_id"] != record["group_id"]]
    state["pauses"].append(
        {
            "group_id": record["group_id"],
            "version": offset,
            "expires_at_ms": record["expires_at_ms"],
        }
    )
    state["pauses"].sort(key=lambda p: p["group_id"])
    return [event("GroupPaused", offset, record, expires_at_ms=record["expires_at_ms"])]


def resume_group(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    pause = find(state["pauses"], group_id=record["group_id"])
    if pause is None:
        return rejected(offset, record, "not_paused")
    if pause["version"] != record["expected_version"]:
        return rejected(offset, record, "stale_version", version=pause["version"])
    state["pauses"].remove(pause)
    return [event("GroupResumed", offset, record)]


def genesis(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    if record["previous"] != (state["identity"] or ""):
        return rejected(offset, record, "wrong_identity")
    first = state["identity"] is None and record["base"] == 0
    if record["base"] <= state["base"] and not first:
        return rejected(offset, record, "base_too_low")
    fields = {name: record[name] for name in ("identity", "base", "partitions")}
    state.update(fields)
    return [event("Founded", offset, record, previous=record["previous"], **fields)]


def set_level(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    group, level = record["group_id"], record["level"]
    before = level_of(state, group)
    if record["expected_level"] != before:
        return rejected(offset, record, "stale_level")
    for session in state["sessions"]:
        if session["group_id"] == group and not session["lowest"] <= level <= session["highest"]:
            return rejected(offset, record, "cannot_follow")
    state["levels"] = [row for row in state["levels"] if row["group_id"] != group]
    if level != 1:
        state["levels"].append({"group_id": group, "level": level})
        state["levels"].sort(key=lambda row: row["group_id"])
    return [event("LevelSet", offset, record, level=level, previous=before)]


def set_position(state: State, offset: int, record: dict[str, Any]) -> list[Event]:
    cell = cell_of(state, record, record)
    version = version_of(state, cell)
    sender = (record["client_id"], record["instance_id"])
    is_holder = cell is not None and (cell["holder"], cell["instance_id"]) == sender
    if not is_paused(state, record) and not is_holder:
        return rejected(offset, record, "not_paused", record, cell, version)
    if record["expected_version"] != version:
        return rejected(offset, record, "stale_version", record, cell, version)
    found = range_with_cell(state, cell)
    if found is not None and not found["start"] <= record["next_offset"] <= found["end"]:
        return rejected(offset, record, "outside_range", record, cell, version)
    ranges = ranges_in(state, record["group_id"], record["topic"], record["partition"])
    if any(cell_with_range(state, one)["holder"] is not None for one in ranges):
        return rejected(offset, record, "still_held", record, cell, version)
    for one in ranges:
        state["cells"].remove(cell_with_range(state, one))
        state["ranges"].remove(one)
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
    pause = find(state["pauses"], group_id=group)
    if pause is None:
        return rejected(offset, record, "not_paused")
    if pause["version"] != record["expected_version"]:
        return rejected(offset, record, "stale_version", version=pause["version"])
    if any(c["holder"] is not None for c in mine):
        return rejected(offset, record, "still_held", version=pause["version"])
    state["cells"] = [c for c in state["cells"] if c["group_id"] != group]
    state["ranges"] = [one for one in state["ranges"] if one["group_id"] != group]
    state["sessions"] = [one for one in state["sessions"] if one["group_id"] != group]
    state["levels"] = [row for row in state["levels"] if row["group_id"] != group]
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
    "Genesis": genesis,
    "SetLevel": set_level,
    "ClaimingRange": claiming_range,
    "SplittingRange": splitting_range,
}


# ---------------------------------------------------------------- §6.1 canonical bytes


def canonical(state: State) -> bytes:
    """The canonical bytes of a state."""
    names: set[str] = set()
    for part in ("cells", "sessions", "pauses", "levels"):
        names |= {row["group_id"] for row in state[part]}
    return bytes(
        msgpack.packb(
            [
                state["partition"],
                state["next_offset"],
                state["identity"],
                state["base"],
                state["partitions"],
                [canonical_group(state, name) for name in sorted(names)],
            ],
            use_bin_type=True,
        )
    )


def canonical_group(state: State, group_id: str) -> list[Any]:
    pause = find(state["pauses"], group_id=group_id)
    ranges = [
        [r["topic"], r["partition"], r["start"], r["end"], r["granted"], r["granted_at"]]
        for r in state["ranges"]
        if r["group_id"] == group_id
    ]
    return [
        group_id,
        level_of(state, group_id),
        [pause["version"], pause["expires_at_ms"]] if pause else None,
        [
            [
                s["client_id"],
                s["instance_id"],
                s["version"],
                s["interval_ms"],
                bytes.fromhex(s["metadata"]),
                s["member"],
                s["lowest"],
                s["highest"],
            ]
            for s in state["sessions"]
            if s["group_id"] == group_id
        ],
        [
            [
                [c["topic"], c["partition"]],
                c["holder"],
                c["instance_id"],
                c["epoch"],
                c["version"],
                c["interval_ms"],
                c["next_offset"],
                c["claimed_offset"],
                bytes.fromhex(c["metadata"]),
            ]
            for c in state["cells"]
            if c["group_id"] == group_id
        ],
        *([ranges] if ranges else []),
    ]


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

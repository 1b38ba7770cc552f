"""Groups, members and leaders of a world, as the page reads them. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from marshal_py.admin.world_summary import paused_until_ms
from marshal_py.dashboard.cell_grid import GridRow
from marshal_py.printable import printable
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.text.rationalizer import TextCell, TextWorld
from marshal_py.protocol.world import World

__all__ = ["groups_document", "leaders_document", "members_document", "metadata_text"]


def groups_document(world: World, with_cells: Iterable[str], now_ms: int) -> list[dict[str, Any]]:
    """Return each group, and until when it is paused; `with_cells` are known already.

    A pause of version 1 ends by itself, one of version 2 when somebody resumes the group. `level`
    is what the group works by.
    """
    ends_by_itself = isinstance(world, TextWorld)
    names = set(with_cells)
    for state in world.states:
        names.update(key[0] for key in state.members)
        names.update(state.paused)
    found = []
    for group in sorted(names):
        until_ms = paused_until_ms(world, group)
        if ends_by_itself and until_ms is not None and until_ms <= now_ms:
            until_ms = None
        level = world.states[world.home(group)].level(group)
        found.append({"group": group, "paused_until_ms": until_ms, "level": level})
    return found


def members_document(world: World) -> list[dict[str, Any]]:
    """Return each member, and what it says of itself."""
    found = []
    for view in world.members():
        member = view.member
        found.append(
            {
                "group": view.group_id,
                "client": view.client_id,
                "instance": member.instance_id,
                "interval_ms": member.interval_ms,
                "says": _subscription(member.metadata),
            }
        )
    return sorted(found, key=lambda m: (m["group"], m["client"]))


def _subscription(metadata: bytes) -> str:
    wanted = Subscription.decode(metadata) if metadata else None
    if wanted is None:
        return metadata_text(metadata)
    parts = [", ".join(sorted(wanted.topics))] if wanted.topics else []
    if wanted.pattern is not None:
        parts.append(f"matching {wanted.pattern}")
    if wanted.max_claims is not None:
        parts.append(f"at most {wanted.max_claims}")
    if wanted.weight != 1:
        parts.append(f"weight {wanted.weight:g}")
    parts += [f"{name}={value}" for name, value in sorted(wanted.labels.items())]
    return " · ".join(parts)


def leaders_document(world: World, rows: Iterable[GridRow]) -> list[dict[str, Any]]:
    """Return who leads what: elections, and the shards of harvesters.

    Both are cells of virtual topics, whose names have a colon, as Kafka's cannot. With what the
    holder published along with its claim.
    """
    found = []
    for row in rows:
        kind, colon, name = row.topic.partition(":")
        for partition in row.partitions if colon else ():
            cell = world.cell(row.group, row.topic, partition)
            if cell is not None:
                found.append(
                    {
                        "group": row.group,
                        "topic": row.topic,
                        "partition": partition,
                        "kind": kind,
                        "name": name if kind == "leader" else f"{name} {partition}",
                        "client": cell.holder,
                        "instance": cell.instance_id,
                        "epoch": NO_OFFSET if isinstance(cell, TextCell) else cell.epoch,
                        "interval_ms": cell.interval_ms,
                        "says": metadata_text(cell.metadata),
                    }
                )
    return sorted(found, key=lambda x: (x["group"], x["topic"], x["partition"]))


def metadata_text(metadata: bytes) -> str:
    """Return a holder's metadata as text: a msgpack or JSON document, text, or hex; never raises.

    Nothing here knows what programs publish: a map is shown as ``key value`` pairs.
    """
    if not metadata:
        return ""
    for decode in (json.loads, msgspec.msgpack.decode):
        try:
            found = decode(metadata)
            if isinstance(found, dict):
                text = " · ".join(f"{key} {value}" for key, value in found.items())
                return printable(text)[:2_000]  # half a character is none in UTF-8
        except (ValueError, RecursionError, msgspec.MsgspecError):
            continue
    try:
        text = metadata.decode()
    except UnicodeDecodeError:
        return metadata.hex()
    return text if text.isprintable() else metadata.hex()

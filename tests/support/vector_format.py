"""States and events of `marshal_py` in the readable form of specs/vectors."""

from __future__ import annotations

from typing import Any

import msgspec

from marshal_py.protocol.events import Event
from marshal_py.protocol.rationalizer import PartitionState


def state(state: PartitionState) -> dict[str, Any]:
    """A state as plain data: rows sorted by key, bytes as hex."""
    return {
        "partition": state.partition,
        "next_offset": state.next_offset,
        "cells": [
            {
                "group_id": group,
                "topic": topic,
                "partition": partition,
                "holder": cell.holder,
                "instance_id": cell.instance_id,
                "epoch": cell.epoch,
                "version": cell.version,
                "interval_ms": cell.interval_ms,
                "next_offset": cell.next_offset,
                "claimed_offset": cell.claimed_offset,
                "metadata": cell.metadata.hex(),
            }
            for (group, topic, partition), cell in sorted(state.cells.items())
        ],
        "identity": state.identity,
        "base": state.base,
        "partitions": state.partitions,
        "sessions": [
            {
                "group_id": name,
                "client_id": client,
                "instance_id": instance,
                "version": session.version,
                "interval_ms": session.interval_ms,
                "metadata": session.metadata.hex(),
                "member": session.member,
                "lowest": session.lowest,
                "highest": session.highest,
            }
            for name, group in sorted(state.groups.items())
            for (client, instance), session in sorted(group.sessions.items(), key=_by_key)
        ],
        "pauses": [
            {
                "group_id": name,
                "version": group.pause.version,
                "expires_at_ms": group.pause.expires_at_ms,
            }
            for name, group in sorted(state.groups.items())
            if group.pause is not None
        ],
        "levels": [
            {"group_id": name, "level": group.level}
            for name, group in sorted(state.groups.items())
            if group.level != 1
        ],
        "ranges": [
            {
                "group_id": name,
                "topic": found.topic,
                "partition": found.partition,
                "start": found.start,
                "end": found.end,
                "granted": found.granted,
                "granted_at": found.granted_at,
            }
            for name, group in sorted(state.groups.items())
            for found in sorted(
                group.open_ranges.of_cell.values(), key=lambda r: (r.topic, r.partition, r.start)
            )
        ],
    }


def _by_key(item: tuple[Any, Any]) -> Any:
    return item[0]


def event(event: Event) -> dict[str, Any]:
    """An event as plain data."""
    data: dict[str, Any] = msgspec.to_builtins(event)
    return data

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
        "members": [
            {
                "group_id": group,
                "client_id": client,
                "instance_id": member.instance_id,
                "version": member.version,
                "interval_ms": member.interval_ms,
                "metadata": member.metadata.hex(),
            }
            for (group, client), member in sorted(state.members.items())
        ],
        "paused": [
            {"group_id": group, "expires_at_ms": expires}
            for group, expires in sorted(state.paused.items())
        ],
    }


def event(event: Event) -> dict[str, Any]:
    """An event as plain data."""
    data: dict[str, Any] = msgspec.to_builtins(event)
    return data

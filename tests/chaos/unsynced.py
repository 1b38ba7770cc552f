"""What a power loss takes from a broker that is down: an end of each log that was not synced."""

from __future__ import annotations

import random
import struct
from pathlib import Path

__all__ = ["cut"]

_METADATA = "__cluster_metadata-0"
"""The controllers' own log, which is synced before anything is acknowledged."""

_HEAD = struct.Struct(">qi")
"""Of a batch: its first offset, and the length of what follows these twelve bytes."""


def cut(data: Path, dice: random.Random) -> int:
    """Cut the end off every log, somewhere behind what was synced; return of how many."""
    synced = _synced(data / "recovery-point-offset-checkpoint")
    shortened = 0
    for folder in sorted(data.iterdir()):
        logs = sorted(folder.glob("*.log")) if folder.is_dir() else []
        if not logs or folder.name == _METADATA:
            continue
        begin, end = _behind(logs[-1], synced.get(folder.name, 0)), logs[-1].stat().st_size
        if begin < end:  # in the middle of a batch, mostly
            with logs[-1].open("r+b") as file:
                file.truncate(dice.randint(max(begin, end - 4_096), end - 1))
            shortened += 1
    return shortened


def _synced(checkpoint: Path) -> dict[str, int]:
    """Folder of a partition → the offset before which all is durable."""
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    parts = [line.rsplit(" ", 2) for line in lines]
    return {f"{topic}-{p}": int(offset) for topic, p, offset in parts}


def _behind(log: Path, offset: int) -> int:
    """Where in a segment the batches begin that are not all before an offset."""
    at = 0
    content = log.read_bytes()
    while at + _HEAD.size <= len(content):
        first, length = _HEAD.unpack_from(content, at)
        if first >= offset or length <= 0:
            break
        at += _HEAD.size + length
    return min(at, len(content))

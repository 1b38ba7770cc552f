"""Append-only histories: one JSON array per line, written at once, so that SIGKILL loses none."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["Recorder", "now_ns", "read"]

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Return the time since boot, which all processes of one machine share."""
    return time.clock_gettime_ns(_CLOCK)


class Recorder:
    """Appends to one file. For any thread; each line is one `write`, so it is whole or absent."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def write(self, *line: Any) -> None:
        """Append one line."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            os.write(self._file, data)


def read(path: Path) -> list[list[Any]]:
    """Return the lines of a history; a line that is not whole raises `ValueError`."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines()]

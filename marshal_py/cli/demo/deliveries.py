"""What the consumers did: an append-only file each, a line for each message that was handled."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["Deliveries", "Delivery", "DeliveryLog"]

_SUFFIX = ".deliveries"


class Delivery(NamedTuple):
    """One message handled by one consumer. `at_ns` is the machine's monotonic clock."""

    at_ns: int
    consumer: str
    partition: int
    offset: int
    epoch: int
    key: str
    seq: int
    row_id: str


class DeliveryLog:
    """Appends to a consumer's file, a system call a line: a killed process loses nothing."""

    def __init__(self, folder: Path, consumer: str) -> None:
        path = folder / f"{consumer}.{os.getpid()}{_SUFFIX}"
        self._consumer = consumer
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(
        self, partition: int, offset: int, epoch: int, key: str, seq: int, row_id: str
    ) -> None:
        """Note that a message is handled."""
        fields = (time.monotonic_ns(), self._consumer, partition, offset, epoch, key, seq, row_id)
        os.write(self._file, ("\t".join(map(str, fields)) + "\n").encode())


class Deliveries:
    """Reads the files of all consumers as they grow."""

    def __init__(self, folder: Path) -> None:
        self.all: list[Delivery] = []
        self.rows: set[str] = set()
        """Every row that some consumer has handled."""
        self.by_consumer: dict[str, int] = {}
        self._folder = folder
        self._read: dict[Path, int] = {}

    def refresh(self) -> None:
        """Read what has been added."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                added = file.read()
            complete = added.rfind(b"\n") + 1
            self._read[path] = start + complete
            for line in added[:complete].decode().splitlines():
                self._add(line)

    def _add(self, line: str) -> None:
        at_ns, consumer, partition, offset, epoch, key, seq, row_id = line.split("\t")
        found = Delivery(
            int(at_ns), consumer, int(partition), int(offset), int(epoch), key, int(seq), row_id
        )
        self.all.append(found)
        self.rows.add(row_id)
        self.by_consumer[consumer] = self.by_consumer.get(consumer, 0) + 1

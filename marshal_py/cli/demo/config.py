"""What all processes of one demo have in common; passed to them as a file, for it has passwords."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

__all__ = ["CONSUMERS", "HARVESTERS", "PARTITIONS", "DemoConfig"]

HARVESTERS: Final = tuple(f"harvester-{n}" for n in (1, 2, 3))
CONSUMERS: Final = tuple(f"consumer-{n}" for n in (1, 2, 3))
PARTITIONS: Final = 6


class DemoConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run. `rate` is in committed rows per second."""

    kafka: dict[str, Any]
    dsn: str
    schema: str
    topic: str
    coordination_topic: str
    folder: str
    seed: int
    rate: float
    interval_ms: int
    harvest_group: str
    consumer_group: str
    keys: int = 40
    writers: int = 3
    rollback_share: float = 0.15

    @property
    def outbox(self) -> str:
        """The outbox table, with its schema."""
        return f"{self.schema}.outbox"

    @property
    def archive(self) -> str:
        """A copy of every committed row of the outbox, which is emptied as it is published."""
        return f"{self.schema}.outbox_archive"

    @property
    def path(self) -> Path:
        """The file that the processes read this from."""
        return Path(self.folder) / "demo.json"

    @property
    def writer_stats(self) -> Path:
        """Where the writer says how far it is."""
        return Path(self.folder) / "writer.json"

    def save(self) -> None:
        """Write the file, readable by this user only."""
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: str) -> DemoConfig:
        """Read what `save` wrote."""
        return msgspec.json.decode(Path(path).read_bytes(), type=cls)

    def reaper_yaml(self, name: str) -> dict[str, Any]:
        """The configuration of one harvester, for `harvest reap`."""
        return {
            "kafka": self.kafka,
            "database": self.dsn,
            "outbox": self.outbox,
            "group": self.harvest_group,
            "name": name,
            "coordination": {
                "topic": self.coordination_topic,
                "interval_ms": self.interval_ms,
            },
        }

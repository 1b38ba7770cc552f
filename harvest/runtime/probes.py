"""The questions of the monitor to real servers. Implements `harvest.runtime.monitor.Probes`."""

from __future__ import annotations

import json
from typing import Final

from confluent_kafka.admin import AdminClient

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.mark_store import Backlog, MarkStore
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.wal_slot import SlotHealth
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.runtime.parts import make_dead_letters
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.settings import connection_settings
from marshal_py import Marshal

__all__ = ["ServerProbes"]

_ASK_TIMEOUT_S: Final = 4.0


class ServerProbes:
    """Asks on connections of its own; `marshal` is the client that stands for election."""

    def __init__(
        self,
        config: ReaperConfig,
        marshal: Marshal,
        store: MarkStore | RangeStore | PostgresWalSource,
    ) -> None:
        self._marshal = marshal
        self._topic = config.coordination.topic
        self._store = store
        self._dead_letters = make_dead_letters(config)
        self._admin = make_client(AdminClient, connection_settings(config.kafka))

    def database(self) -> None:
        """See `Probes.database`."""
        self._store.connect()
        self._store.ping()

    def kafka(self) -> None:
        """See `Probes.kafka`."""
        failure = self._marshal.failure
        if failure is not None:
            raise failure
        self._admin.list_topics(self._topic, timeout=_ASK_TIMEOUT_S)

    def backlog(self) -> Backlog | None:
        """See `Probes.backlog`."""
        return self._store.backlog()

    def slot(self) -> SlotHealth | None:
        """See `Probes.slot`."""
        return self._store.health() if isinstance(self._store, PostgresWalSource) else None

    def dead_letters(self) -> int:
        """See `Probes.dead_letters`."""
        return self._dead_letters.count()

    def holders(self) -> dict[str, str]:
        """See `Probes.holders`."""
        with self._marshal.world() as world:
            return {
                topic.removeprefix("leader:") + (f".{partition}" if partition else ""): cell.holder
                for _, (_, topic, partition), cell in world.cells(self._marshal.group_id)
                if cell.holder is not None
            }

    def paused(self) -> bool:
        """See `Probes.paused`."""
        with self._marshal.world() as world:
            return world.paused(self._marshal.group_id)

    def publish(self, facts: dict[str, float]) -> None:
        """See `Probes.publish`: as metadata of the claims, a JSON object."""
        for claim in self._marshal.claims():
            claim.set_metadata(json.dumps(facts, separators=(",", ":")).encode())

    def close(self) -> None:
        """See `Probes.close`."""
        self._store.close()
        self._dead_letters.close()

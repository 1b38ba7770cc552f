"""Histories of whole harvesters with the real sinks, transactional and idempotent.

What the harvesters of `dead_letters` do with a simulated sink, these do with the real ones, over a
producer whose answers are late, lost, or never come (`kafka`). Whatever becomes of them, what is
purged from the table is in Kafka; and with transactions each row comes once, in its key's order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

from harvest.core.interfaces.sink import Sink
from harvest.outbox.record import OutboxRecord
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.sink import TransactionalSink
from harvest.testing.memory_table import MemoryTransaction
from tests.simulation.whole import dead_letters, harvesters
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.dead_letters import DeadLetterHarvester
from tests.simulation.whole.green import MS, SECOND, Hub
from tests.simulation.whole.kafka import Kafka

_BAD_BYTES: Final = 60
_LONG_OUTAGE_S: Final = 8


@dataclass
class Scenario(dead_letters.Scenario):
    """As of harvesters with bad rows, with the settings of the producer."""

    settings: dict[str, Any] = field(default_factory=dict)


def generate(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(f"sinks {seed}")
    made = Scenario(**vars(dead_letters.generate(seed)))
    settings = made.settings
    if rng.random() < 0.3:
        settings["queue.buffering.max.messages"] = rng.choice((1, 3, 20))
    if rng.random() < 0.3:
        settings["delivery.timeout.ms"] = rng.choice((150, 500, 2_000))
    if made.atomic and rng.random() < 0.3:
        shortest = settings.get("delivery.timeout.ms", 0)
        settings["transaction.timeout.ms"] = max(shortest, rng.choice((300, 1_000, 3_000)))
    if rng.random() < 0.2:
        at = int(rng.uniform(made.interval_ms * MS, made.heal_ns / 2))
        made.incidents.append((at, "broker_down", 0, (_LONG_OUTAGE_S * SECOND,)))
        made.incidents.sort()
    return made


class SinkHarvester(DeadLetterHarvester):
    """One process of ``harvest reap``, with a sink as its users have it."""

    world: World

    def sink(self) -> Sink:
        settings = {"bootstrap.servers": "simulated:9092", **self.world.scenario.settings}
        if self.world.scenario.atomic:
            return TransactionalSink(
                settings, base_config={}, name="outbox", checkpoint_topic="checkpoints"
            )
        return IdempotentSink(settings)


class World(dead_letters.World):
    """One history."""

    process = SinkHarvester
    brokers = Kafka
    scenario: Scenario
    broker: Kafka

    def __init__(self, hub: Hub, cluster: Cluster, scenario: Scenario) -> None:
        super().__init__(hub, cluster, scenario)
        self.ids: dict[bytes | None, int] = {}
        self.broker.identify = self.ids.__getitem__
        self.broker.serve(cluster)

    def insert(self, transaction: harvesters.Transaction, record: OutboxRecord) -> int:
        row_id = super().insert(transaction, record)
        assert isinstance(transaction, MemoryTransaction)
        row = transaction._rows[-1]
        value = b"%s%d" % (row.key, row_id)
        if row_id in self.refused:
            value = value.ljust(_BAD_BYTES + row_id % 2, b".")
        transaction._rows[-1] = row._replace(value=value)
        self.ids[value] = row_id
        return row_id


_NOT_HERE: Final = ("row_refused",)
REQUIRED: Final = (
    *(name for name in dead_letters.REQUIRED if name not in _NOT_HERE),
    "abortable_error",
    "broker_cut_off",
    "commit timed out",
    "delivery_timeout",
    "delivery_timeout_in_flight",
    "fatal_error",
    "init timed out",
    "past_coordinator",
    "purged_in_flight",
    "queue_full",
    "report_lost",
    "request_timeout",
    "send offsets timed out",
    "transaction_aborted_by_successor",
)
REQUIRED_COUNTS: Final = (*dead_letters.REQUIRED_COUNTS, "sent again, written once")

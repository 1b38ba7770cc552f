"""Prometheus metrics of every group, as one reader of the log sees them; extra `metrics`.

`marshal metrics serve` serves them. It takes no part in any group: it goes on telling when all
clients of a group are dead, which is when somebody must be woken.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator

from confluent_kafka import KafkaException
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from marshal_py.admin.connection import Connection
from marshal_py.admin.event_text import kinds_of
from marshal_py.admin.lag import PartitionLag, measure_lag
from marshal_py.admin.world_reader import WorldView
from marshal_py.admin.world_summary import summarize
from marshal_py.errors import MarshalError
from marshal_py.protocol import events as ev

__all__ = ["GroupMetrics"]

logger = logging.getLogger("marshal_py.metrics")


class GroupMetrics(Collector):
    """What `view`, which somebody keeps up to date under `lock`, shows of all groups.

    Gauges by ``group_id``: ``marshal_group_members``, ``_claims_held``, ``_claims_stale`` (held by
    somebody who has been silent for over two intervals), ``_claims_free``, ``_paused``; by
    ``topic`` and ``partition`` as well: ``marshal_group_lag_messages`` and
    ``marshal_group_partition_held``. Counters: ``marshal_group_events_total`` by ``event``,
    ``marshal_coordination_records_total``, ``marshal_coordination_snapshot_mismatches_total``.
    """

    def __init__(self, connection: Connection, view: WorldView, lock: threading.Lock) -> None:
        self._connection, self.view, self._lock = connection, view, lock
        self._events: Counter[tuple[str, str]] = Counter()

    def count(self, event: ev.Event) -> None:
        """Count an event that the log brought. The caller holds the lock."""
        for kind in kinds_of(event):
            self._events[getattr(event, "group_id", ""), kind] += 1

    def describe(self) -> Iterator[Metric]:
        """Nothing: the values are known only when the metrics are collected."""
        return iter(())

    def _lag(self) -> list[PartitionLag]:
        """The lag; nothing while the brokers do not answer: the rest is worth telling."""
        try:
            return measure_lag(self._connection, self.view)
        except (KafkaException, MarshalError) as error:
            logger.warning("the brokers do not tell the ends of topics: %s", error)
            return []

    def collect(self) -> Iterator[Metric]:
        """Look at the world now; ask the brokers for the ends of the topics."""
        with self._lock:
            summary = summarize(self.view)
            rows = self._lag()
            events = dict(self._events)
            records = sum(state.next_offset for state in self.view.world.states)
            mismatches = len(self.view.reader.mismatches)
        for name, text, field in (
            ("members", "Members of the group, dead ones included for a while.", "members"),
            ("claims_held", "Claims that somebody holds.", "held"),
            ("claims_stale", "Claims whose holder is silent for over two intervals.", "stale"),
            ("claims_free", "Claims that nobody holds.", "free"),
            ("paused", "Whether an operator paused the group.", "paused"),
        ):
            gauge = GaugeMetricFamily(f"marshal_group_{name}", text, labels=["group_id"])
            for group in summary.groups:
                gauge.add_metric([group.group], getattr(group, field))
            yield gauge
        labels = ["group_id", "topic", "partition"]
        lag = GaugeMetricFamily("marshal_group_lag_messages", "Offsets behind.", labels=labels)
        held = GaugeMetricFamily(
            "marshal_group_partition_held", "Whether somebody holds it.", labels=labels
        )
        for row in rows:
            where = [row.group, row.topic, str(row.partition)]
            held.add_metric(where, row.holder is not None)
            if row.lag is not None:
                lag.add_metric(where, row.lag)
        yield lag
        yield held
        counter = CounterMetricFamily(
            "marshal_group_events", "What the log brought.", labels=["group_id", "event"]
        )
        for (name, kind), number in sorted(events.items()):
            counter.add_metric([name, kind], number)
        yield counter
        for name, text, value in (
            ("records", "Records of the coordination topic so far.", records),
            ("snapshot_mismatches", "Snapshots that differ from the log.", mismatches),
        ):
            yield CounterMetricFamily(f"marshal_coordination_{name}", text, value=value)

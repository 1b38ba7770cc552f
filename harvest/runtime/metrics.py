"""Prometheus metrics of a harvesting process; needs the extra `metrics`.

An adapter outside the core: it looks at counters and at what the monitor found when it is scraped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harvest.runtime.monitor import Monitor

__all__ = ["HarvestMetrics", "scrape"]

_BACKLOG: Final = "Rows that wait in the table; beyond 100,000, estimated by their ids."
_COUNTERS: Final = (
    ("published_rows", "published", "Rows published."),
    ("found_published_rows", "found_published", "Rows found published by a leader before."),
    ("dead_letters", "dead_lettered", "Rows set aside."),
    ("late_rows", "late", "Rows published after higher ids, since they committed late."),
    ("deliveries", "deliveries", "Deliveries to Kafka, or messages to destinations."),
    ("failed_deliveries", "failed_deliveries", "Deliveries that failed."),
    ("terms", "terms", "Times that harvesting began, or began anew."),
    ("elections", "elections", "Elections won."),
    ("fenced", "fenced", "Leaderships that ended by losing the lease."),
)


class HarvestMetrics(Collector):
    """The metrics, all beginning with ``harvest_``, with the labels ``group_id`` and ``outbox``.

    Counters: ``published_rows_total`` and others, see above, and of a relay
    ``destination_messages_total{destination,outcome}``, while it leads also the gauges
    ``destination_breaker_open{destination}`` and ``destination_gone{destination}``. Gauges:
    ``up`` (1 if healthy), ``database_reachable``, ``kafka_reachable``, ``leading``, ``refused``,
    ``paused``, ``rows_in_flight``, ``gaps``, ``backlog_rows``, ``backlog_marked_rows``,
    ``oldest_row_age_seconds`` (0 for an empty table), ``dead_letters_waiting``, and
    ``holder{shard,holder}`` with the value 1 for each shard that somebody leads.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known only when the metrics are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Look now."""
        for family in self._families():
            for sample in family.samples:
                sample.labels.update(self._monitor.labels)
            yield family

    def _families(self) -> Iterator[Metric]:
        monitor, harvester = self._monitor, self._monitor.harvester
        for name, field, text in _COUNTERS:
            counter = CounterMetricFamily(f"harvest_{name}", text)
            counter.add_metric([], getattr(harvester.stats, field))
            yield counter

        messages = list(harvester.stats.messages.items())
        if messages:
            sent = CounterMetricFamily(
                "harvest_destination_messages",
                "Attempts to send a message: delivered, failed, unavailable.",
                labels=["destination", "outcome"],
            )
            for labels, count in sorted(messages):
                sent.add_metric(labels, count)
            yield sent
        yield from self._breakers()

        def gauge(name: str, text: str, value: float) -> Metric:
            return GaugeMetricFamily(f"harvest_{name}", text, value=value)

        yield gauge("up", "Whether it is healthy.", monitor.health().ok)
        for server, answers in monitor.reachable.items():
            # harvest_database_reachable, harvest_kafka_reachable
            yield gauge(f"{server}_reachable", f"Whether the {server} answers.", answers)
        yield gauge("leading", "Whether it leads.", harvester.state == "leading")
        yield gauge(
            "refused",
            "Whether it publishes nothing, since the database is not the one that it was.",
            harvester.refusal is not None,
        )
        yield gauge("paused", "Whether the outbox is paused.", monitor.paused)
        yield gauge("rows_in_flight", "Rows that are not settled.", harvester.in_flight)
        yield gauge("gaps", "Ranges of missing ids that may still appear.", harvester.stats.gaps)
        backlog = monitor.backlog
        if backlog is not None:
            yield gauge("backlog_rows", _BACKLOG, backlog.rows)
            yield gauge("backlog_marked_rows", "Of these, marked.", backlog.tagged_rows)
            age_s = backlog.oldest_age_s or 0.0
            yield gauge("oldest_row_age_seconds", "Age of the oldest row that waits.", age_s)
        if monitor.slot is not None:
            slot = monitor.slot
            yield gauge("slot_lost", "Whether the replication slot is gone or lost.", slot.lost)
            kept = "Bytes of log that the server keeps for the slot."
            yield gauge("slot_pinned_wal_bytes", kept, slot.pinned_bytes)
            behind = "Bytes of log that are not harvested."
            yield gauge("slot_behind_bytes", behind, slot.behind_bytes)
            if slot.safe_bytes is not None:
                safe = "Bytes that may be written before the slot is lost."
                yield gauge("slot_safe_wal_bytes", safe, slot.safe_bytes)
        if monitor.dead_letters is not None:
            yield gauge("dead_letters_waiting", "Rows that are set aside.", monitor.dead_letters)
        holders = GaugeMetricFamily(
            "harvest_holder", "Who leads a shard.", labels=["shard", "holder"]
        )
        for shard, holder in sorted(monitor.holders.items()):
            holders.add_metric([shard, holder], 1)
        yield holders

    def _breakers(self) -> Iterator[Metric]:
        harvester = self._monitor.harvester
        states = harvester.stats.breakers if harvester.state == "leading" else {}
        for state, name, text in (
            ("open", "breaker_open", "Whether nothing but probes is sent there."),
            ("gone", "gone", "Whether nothing is sent there, since it answered 410."),
        ):
            gauge = GaugeMetricFamily(f"harvest_destination_{name}", text, labels=["destination"])
            for destination, now in sorted(states.items()):
                gauge.add_metric([destination], now == state)
            if states:
                yield gauge


def scrape(monitor: Monitor) -> bytes:
    """The metrics as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(HarvestMetrics(monitor))
    return generate_latest(registry)

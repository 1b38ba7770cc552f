"""Prometheus metrics of `Consumer.run`; needs the extra `metrics`.

::

    from marshal_py.telemetry import ConsumerMetrics

    consumer = Consumer(...)
    with ConsumerMetrics(consumer):
        consumer.run(handle)

An adapter outside the core: it looks when it is scraped. `MarshalMetrics` has those of the claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, Self

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.handlers.histograms import Histogram
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.slots import source_of

__all__ = ["ConsumerMetrics"]

_LABELS: Final = ["group_id", "client_id"]
_COUNTERS: Final = {
    "filtered": "Messages that the filter left out.",
    "handled": "Messages that a handler has done.",
    "failures": "Attempts of handlers that failed.",
    "retries": "Failed attempts that were followed by another.",
    "dead_lettered": "Messages written to a dead-letter topic.",
    "skipped": "Messages that failed for good and were skipped.",
    "handed_back": "Messages fetched, and left to others.",
}
_LAG_TIMEOUT_S: Final = 2.0
_GAUGES: Final = {
    "buffered": "Messages that wait or run.",
    "buffered_bytes": "Bytes of the messages that wait or run.",
    "running": "Messages in the hands of handlers.",
    "retrying": "Messages that wait for another attempt.",
    "stuck": "Handlers that have been running for too long.",
}


class ConsumerMetrics(Collector):
    """Registers the metrics of one consumer with `registry`, until `close`.

    All names begin with ``marshal_consumer_``. Counters: ``handled``, ``filtered``, ``failures``,
    ``retries``, ``dead_lettered``, ``skipped``, ``handed_back`` (each ``_total``); gauges:
    ``buffered``, ``buffered_bytes``, ``running``, ``retrying``, ``stuck``; by ``topic`` and
    ``partition``, ``failing_offset``: the first message that fails or is stuck now;
    ``lag_messages``: offsets behind the end, if the brokers answer within 2 s; ``gaps`` and
    ``done_above_messages``: see `AssignedPartition`; ``partition_paused``. Histograms, by
    ``topic``: ``handler_duration_seconds`` of each attempt, ``message_age_seconds`` when a handler
    first got it. ``healthy``: see `Consumer.health`.
    """

    def __init__(self, consumer: Consumer, registry: CollectorRegistry = REGISTRY) -> None:
        self._consumer = consumer
        self._registry = registry
        registry.register(self)

    def close(self) -> None:
        """Leave the registry."""
        self._registry.unregister(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> Iterator[Metric]:
        """Nothing: the values are known only when the metrics are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Look at the consumer now."""
        consumer = self._consumer
        who = [consumer.marshal.group_id, consumer.marshal.client_id]
        stats = consumer.stats()
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"marshal_consumer_{name}", text, labels=_LABELS)
            counter.add_metric(who, getattr(stats, name))
            yield counter
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"marshal_consumer_{name}", text, labels=_LABELS)
            gauge.add_metric(who, getattr(stats, name))
            yield gauge
        failing = GaugeMetricFamily(
            "marshal_consumer_failing_offset",
            "The first message that fails or is stuck now.",
            labels=[*_LABELS, "topic", "partition"],
        )
        first_failing: dict[tuple[str, int], int] = {}
        for unit, note in consumer.troubles().items():
            if note.retrying or note.stuck:
                key = source_of(*unit)
                first_failing[key] = min(note.offset, first_failing.get(key, note.offset))
        for (topic, partition), offset in first_failing.items():
            failing.add_metric([*who, topic, str(partition)], offset)
        yield failing
        yield from self._partitions(who)
        yield _histograms(
            "handler_duration_seconds", "How long attempts of handlers took.", who, stats.durations
        )
        yield _histograms(
            "message_age_seconds", "How old messages were at their handler.", who, stats.ages
        )
        healthy = GaugeMetricFamily(
            "marshal_consumer_healthy", "Whether all is well.", labels=_LABELS
        )
        healthy.add_metric(who, consumer.health().ok)
        yield healthy

    def _partitions(self, who: list[str]) -> Iterator[Metric]:
        labels = [*_LABELS, "topic", "partition"]
        assigned = self._consumer.assignment()
        try:
            lags = self._consumer.lag(timeout_s=_LAG_TIMEOUT_S) if assigned else {}
        except BrokerUnavailable:
            lags = {}
        lag = GaugeMetricFamily("marshal_consumer_lag_messages", "Offsets behind.", labels=labels)
        for (topic, partition), behind in lags.items():
            lag.add_metric([*who, topic, str(partition)], behind)
        yield lag
        for name, text, field in (
            ("gaps", "Stretches of what is done above what is not.", "gaps"),
            ("done_above_messages", "Offsets done above one that is not.", "done_above"),
            ("partition_paused", "Whether the program paused it.", "paused"),
        ):
            gauge = GaugeMetricFamily(f"marshal_consumer_{name}", text, labels=labels)
            found: dict[tuple[str, int], int] = {}
            for each in assigned:  # of slots, all that are held of a partition together
                key = (each.topic, each.partition)
                found[key] = found.get(key, 0) + getattr(each, field)
            for (topic, partition), value in found.items():
                gauge.add_metric([*who, topic, str(partition)], value)
            yield gauge


def _histograms(name: str, text: str, who: list[str], found: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(f"marshal_consumer_{name}", text, labels=[*_LABELS, "topic"])
    for topic, histogram in found.items():
        bounds = [*map(str, histogram.bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        family.add_metric([*who, topic], buckets, histogram.sum_s)
    return family

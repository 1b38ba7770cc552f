"""Prometheus metrics of `Consumer.run`; needs the extra `metrics`.

::

    from marshal_py.telemetry import ConsumerMetrics

    consumer = Consumer(...)
    with ConsumerMetrics(consumer):
        consumer.run(handle)

An adapter outside the core: it looks when it is scraped. `MarshalMetrics` has those of the claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from marshal_py.consumer.consumer import Consumer

__all__ = ["ConsumerMetrics"]

_LABELS: Final = ["group_id", "client_id"]
_COUNTERS: Final = {
    "handled": "Messages that a handler has done.",
    "failures": "Attempts of handlers that failed.",
    "retries": "Failed attempts that were followed by another.",
    "dead_lettered": "Messages written to a dead-letter topic.",
    "skipped": "Messages that failed for good and were skipped.",
    "handed_back": "Messages fetched, and left to others.",
}
_GAUGES: Final = {
    "buffered": "Messages that wait or run.",
    "buffered_bytes": "Bytes of the messages that wait or run.",
    "running": "Messages in the hands of handlers.",
    "retrying": "Messages that wait for another attempt.",
    "stuck": "Handlers that have been running for too long.",
}


class ConsumerMetrics(Collector):
    """Registers the metrics of one consumer with `registry`, until `close`.

    All names begin with ``marshal_consumer_``. Counters: ``handled``, ``failures``, ``retries``,
    ``dead_lettered``, ``skipped``, ``handed_back`` (each ``_total``); gauges: ``buffered``,
    ``buffered_bytes``, ``running``, ``retrying``, ``stuck``; by ``topic`` and
    ``partition``, ``failing_offset``: the first message that fails or is stuck now.
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
        for (topic, partition), note in consumer.troubles().items():
            if note.retrying or note.stuck:
                failing.add_metric([*who, topic, str(partition)], note.offset)
        yield failing

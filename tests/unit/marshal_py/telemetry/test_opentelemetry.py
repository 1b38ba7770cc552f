"""What instruments say of a collector of Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, Counter, Summary
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from marshal_py.telemetry.opentelemetry import export_metrics


class Two(Collector):
    """Of two outboxes, with a value of its own each."""

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily("harvest_lag_seconds", "doc", labels=["outbox"])
        counter = CounterMetricFamily("harvest_rows", "doc", labels=["outbox"])
        histogram = HistogramMetricFamily("harvest_delay_seconds", "doc", labels=["outbox"])
        for outbox, factor in (("a", 1), ("b", 10)):
            gauge.add_metric([outbox], 2 * factor)
            counter.add_metric([outbox], 3 * factor)
            buckets = [("1", 4.0 * factor), ("+Inf", 5.0 * factor)]
            histogram.add_metric([outbox], buckets, sum_value=7.5 * factor)
        yield from (gauge, counter, histogram)


def said(reader: InMemoryMetricReader) -> dict[tuple[str, str, str], float]:
    """(instrument, unit, outbox) → value."""
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    assert isinstance(point, NumberDataPoint)
                    (outbox,) = (point.attributes or {}).values()
                    key = (metric.name, metric.unit or "", str(outbox))
                    assert key not in found
                    found[key] = float(point.value)
    return found


def test_each_number_has_an_instrument_of_its_own_until_the_block_ends() -> None:
    reader = InMemoryMetricReader()
    with export_metrics(Two(), meter=MeterProvider([reader]).get_meter("test")):
        assert said(reader) == {
            (name, unit, outbox): value * factor
            for outbox, factor in (("a", 1), ("b", 10))
            for name, unit, value in (
                ("harvest.lag_seconds", "s", 2),
                ("harvest.rows", "1", 3),
                ("harvest.delay_seconds.count", "1", 5),
                ("harvest.delay_seconds.sum", "s", 7.5),
            )
        }
    assert said(reader) == {}


def test_when_a_counter_was_made_and_quantiles_are_not_taken_for_its_value() -> None:
    registry = CollectorRegistry()
    Counter("harvest_rows", "doc", ["outbox"], registry=registry).labels("a").inc(3)
    summary = Summary("harvest_delay_seconds", "doc", ["outbox"], registry=registry).labels("a")
    for seconds in (2.0, 5.0):
        summary.observe(seconds)
    reader = InMemoryMetricReader()
    with export_metrics(registry, meter=MeterProvider([reader]).get_meter("test")):
        assert said(reader) == {
            ("harvest.rows", "1", "a"): 3,
            ("harvest.delay_seconds.count", "1", "a"): 2,
            ("harvest.delay_seconds.sum", "s", "a"): 7,
        }

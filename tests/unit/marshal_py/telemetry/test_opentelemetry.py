"""What instruments say of a collector of Prometheus metrics, and spans of a message."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import weakref
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from marshal_py.client.marshal import Marshal
from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.telemetry.opentelemetry import (
    _default_meter,
    export_metrics,
    message_span,
    traced,
)
from tests.support.unreadable import make_unreadable


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


class One(Collector):
    """Of one outbox: what all of them have, and something of its own."""

    def __init__(self, outbox: str, value: float) -> None:
        self.outbox, self.value = outbox, value

    def collect(self) -> Iterator[Metric]:
        for name in ("rows", f"of_{self.outbox}"):
            counter = CounterMetricFamily(f"harvest_{name}", "doc", labels=["outbox"])
            counter.add_metric([self.outbox], self.value)
            yield counter


def of_one(outbox: str, value: float) -> dict[tuple[str, str, str], float]:
    return {(f"harvest.{name}", "1", outbox): value for name in ("rows", f"of_{outbox}")}


def test_each_of_several_is_shown_while_its_block_lasts_and_let_go_then() -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    first = One("a", 1)
    gone = weakref.ref(first)
    with export_metrics(One("b", 2), meter=meter):
        with export_metrics(first, meter=meter):
            assert said(reader) == of_one("a", 1) | of_one("b", 2)
        assert said(reader) == of_one("b", 2)
    del first
    gc.collect()
    assert gone() is None
    with export_metrics(One("a", 3), meter=meter):  # made anew
        assert said(reader) == of_one("a", 3)
    assert said(reader) == {}


def test_a_client_is_listened_to_while_the_block_lasts() -> None:
    """A program may show a client for a while, again and again."""
    listeners: list[object] = []

    def listen(listener: object) -> Callable[[], None]:
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    marshal = Marshal("nowhere:1", group_id="g", client_id="c")
    marshal.listen = listen  # type: ignore[assignment, method-assign]
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    with export_metrics(marshal, meter=meter):
        assert len(listeners) == 1
    assert listeners == []


def test_several_are_shown_that_began_before_a_provider_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, proxies = InMemoryMetricReader(), _ProxyMeterProvider()
    monkeypatch.setattr("opentelemetry.metrics.get_meter", proxies.get_meter)
    monkeypatch.setattr(
        "marshal_py.telemetry.opentelemetry._default_meter",
        functools.cache(_default_meter.__wrapped__),
    )
    with export_metrics(One("a", 1)), export_metrics(One("b", 2)):
        proxies.on_set_meter_provider(MeterProvider([reader]))
        with export_metrics(One("c", 3)):
            assert said(reader) == of_one("a", 1) | of_one("b", 2) | of_one("c", 3)


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


class Message:
    """As Kafka's clients give one."""

    def __init__(self, headers: list[tuple[str, bytes | None]] | None, key: bytes | None) -> None:
        self._headers, self._key = headers, key

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 17

    def key(self) -> bytes | None:
        return self._key

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What was traced."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return exporter


TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_a_message_whose_headers_are_no_text_begins_a_trace(spans: InMemorySpanExporter) -> None:
    """One that came by another way than our consumers."""
    with message_span(make_unreadable(Message(None, None))):
        pass
    (span,) = spans.get_finished_spans()
    assert span.parent is None


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_a_span_goes_on_in_the_trace_of_the_message(spans: InMemorySpanExporter, name: str) -> None:
    headers = [("other", None), (name, f"00-{TRACE}-b7ad6b7169203331-01".encode())]
    with message_span(Message(headers, b"\xffcustomer"), group_id="billing"):
        assert spans.get_finished_spans() == ()
    (span,) = spans.get_finished_spans()
    assert span.name == "process orders"
    assert span.kind is SpanKind.CONSUMER
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.attributes is not None
    assert {
        name.removeprefix("messaging."): value for name, value in span.attributes.items()
    } == {
        "system": "kafka", "operation.name": "process", "operation.type": "process",
        "destination.name": "orders", "destination.partition.id": "3", "kafka.offset": 17,
        "kafka.message.key": "�customer", "consumer.group.name": "billing",
    }  # fmt: skip


def test_what_a_handler_raises_is_in_its_span_and_goes_on(spans: InMemorySpanExporter) -> None:
    @traced
    def handle(message: Message) -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        handle(Message(None, None))
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_the_span_of_a_coroutine_lasts_as_long_as_it(spans: InMemorySpanExporter) -> None:
    @traced
    async def handle(message: Message, more: int) -> int:
        await asyncio.sleep(0)
        assert spans.get_finished_spans() == ()
        return more

    assert inspect.iscoroutinefunction(handle)
    assert asyncio.run(handle(Message(None, None), 7)) == 7
    assert len(spans.get_finished_spans()) == 1


class Awaited:
    """A handler that is an object; takes the claim by its name."""

    async def __call__(self, message: Message, *, claim: str) -> str:
        await asyncio.sleep(0)
        return claim


def test_a_traced_handler_is_given_the_claim_as_without_the_span(
    spans: InMemorySpanExporter,
) -> None:
    @traced
    def handle(message: Message, claim: str) -> str:
        return claim

    @traced
    async def handle_later(message: Message, claim: str) -> str:
        return claim

    message = Message(None, None)
    assert HandlerOptions(handle).whole(message, "the claim") == "the claim"
    for handler in (handle_later, traced(Awaited())):
        options = HandlerOptions(handler)
        assert options.executor == "asyncio"
        assert asyncio.run(options.whole(message, "the claim")) == "the claim"
    assert len(spans.get_finished_spans()) == 3


def test_what_has_changed_since_the_instruments_were_made_is_told_at_once() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("harvest_waiting", "doc", ["outbox"], registry=registry).labels("a")
    gauge.set(1)
    reader = InMemoryMetricReader()
    with export_metrics(registry, meter=MeterProvider([reader]).get_meter("test")):
        gauge.set(2)
        assert said(reader) == {("harvest.waiting", "1", "a"): 2}

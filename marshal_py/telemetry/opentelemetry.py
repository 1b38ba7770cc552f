"""OpenTelemetry: spans around handlers, and the metrics as instruments. Needs the extra `otel`.

::

    from marshal_py.telemetry import export_metrics, traced

    @traced
    def handle(message): ...

    with Consumer(...) as consumer, export_metrics(consumer):
        consumer.run(handle)

An adapter outside the core. It uses the OpenTelemetry API alone: without an SDK that the program
configures, everything here does nothing, and costs little.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from marshal_py.client.headers import make_headers_readable
from marshal_py.client.marshal import Marshal
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.signatures import is_coroutine_function
from marshal_py.telemetry.client_metrics import MarshalMetrics
from marshal_py.telemetry.consumer_metrics import ConsumerMetrics

__all__ = ["export_metrics", "message_span", "traced"]

_NAME: Final = "marshal_py"
_LOOK_S: Final = 0.5
"""Instruments that are read within this time share one look at the client."""

_UNITS: Final = {"_seconds": "s", "_bytes": "By", "_messages": "{message}"}

Handler = TypeVar("Handler", bound=Callable[..., Any])


# Tracing


class _Headers(Getter[Any]):
    """Reads a Kafka message's headers: a list of (name, bytes), names may repeat."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        found = [
            value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            for name, value in carrier.headers() or ()
            if name.lower() == key.lower() and value is not None
        ]
        return found or None

    def keys(self, carrier: Any) -> list[str]:
        return [name for name, _ in carrier.headers() or ()]


_headers: Final = _Headers()


@contextmanager
def message_span(message: Any, *, group_id: str | None = None) -> Iterator[Span]:
    """Run the block in a span that continues the trace in the message's headers.

    The span is of kind CONSUMER, named ``process TOPIC``, with the messaging attributes of
    OpenTelemetry's conventions. An exception is recorded, makes the span an error, and goes on.
    """
    make_headers_readable([message])  # it may come from another consumer than ours
    topic, key = message.topic(), message.key()
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic or "",
        "messaging.destination.partition.id": str(message.partition()),
        "messaging.kafka.offset": message.offset() or 0,
    }
    if isinstance(key, bytes | str) and key:
        attributes["messaging.kafka.message.key"] = (
            key.decode(errors="replace") if isinstance(key, bytes) else key
        )
    if group_id is not None:
        attributes["messaging.consumer.group.name"] = group_id
    with trace.get_tracer(_NAME).start_as_current_span(
        f"process {topic}",
        context=propagate.extract(message, getter=_headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
    ) as span:
        yield span


def traced(handler: Handler, *, group_id: str | None = None) -> Handler:
    """Return a handler for `Consumer.run` that works inside of `message_span`.

    For functions and coroutine functions whose first argument is a message.
    """
    if is_coroutine_function(handler):

        @functools.wraps(handler)
        async def handle_later(message: Any, *rest: Any, **named: Any) -> Any:
            with message_span(message, group_id=group_id):
                return await handler(message, *rest, **named)

        return handle_later  # type: ignore[return-value]

    @functools.wraps(handler)
    def handle(message: Any, *rest: Any, **named: Any) -> Any:
        with message_span(message, group_id=group_id):
            return handler(message, *rest, **named)

    return handle  # type: ignore[return-value]


# Metrics


@contextmanager
def export_metrics(
    source: Marshal | Consumer | Collector, *, meter: metrics.Meter | None = None
) -> Iterator[None]:
    """Show a client's, a consumer's or any Prometheus collector's metrics as instruments.

    Names are those of `MarshalMetrics` with dots (``marshal.claims_held``),
    labels become attributes, units are UCUM's. A `Consumer` brings its client's along. They are
    read when the SDK exports; after the block they show nothing more. Of several sources, at a time
    or one after the other, each shows its own.
    """
    own: list[MarshalMetrics | ConsumerMetrics] = []
    registry = CollectorRegistry()
    if isinstance(source, Consumer):
        own.append(ConsumerMetrics(source, registry))
        source = source.marshal
    if isinstance(source, Marshal):
        own.append(MarshalMetrics(source, registry))
    looks = [_Look(collector) for collector in own] or [_Look(source)]
    meter = meter or _default_meter()
    shown = _shown_by(meter)
    try:
        for look in looks:
            shown.add(look, meter)
        yield
    finally:
        for look in looks:
            shown.remove(look)
        for collector in own:
            collector.close()


@functools.cache
def _default_meter() -> metrics.Meter:
    """Return always the same: until a provider is set, the API makes one for each that asks."""
    return metrics.get_meter(_NAME)


class _Shown:
    """What one meter shows: each instrument is made once, and asks all that are there.

    An SDK keeps the first instrument of a name, and ignores the callbacks of a second one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: tuple[_Look, ...] = ()
        self._names: set[str] = set()

    def add(self, look: _Look, meter: metrics.Meter) -> None:
        """Show what a collector says, and make the instruments that it needs and are not there."""
        said = look.look()
        with self._lock:
            for metric in said.values():
                self._make(metric, meter)
            self._looks += (look,)
        look.forget()  # what was so when they were made is not what is exported first

    def remove(self, look: _Look) -> None:
        """Say nothing more of it, and let it go."""
        with self._lock:
            self._looks = tuple(each for each in self._looks if each is not look)

    def _make(self, metric: Metric, meter: metrics.Meter) -> None:
        unit = next((u for suffix, u in _UNITS.items() if metric.name.endswith(suffix)), "1")
        create = (
            meter.create_observable_counter
            if metric.type == "counter"
            else meter.create_observable_gauge
        )
        if metric.type in ("histogram", "summary"):  # no observable instrument is like them
            parts = {"_count": "1", "_sum": unit}
            create = meter.create_observable_counter
        else:
            parts = {"": unit}
        for suffix, its_unit in parts.items():
            name = otel_name(metric.name) + suffix.replace("_", ".")
            if name not in self._names:
                create(
                    name,
                    callbacks=[functools.partial(self._observe, metric.name, suffix)],
                    unit=its_unit,
                    description=metric.documentation,
                )
                self._names.add(name)

    def _observe(self, name: str, suffix: str, _: CallbackOptions) -> Iterable[Observation]:
        for look in self._looks:
            metric = look.look().get(name)
            for sample in metric.samples if metric is not None else ():
                if suffix and sample.name != name + suffix:
                    continue
                if sample.name == name + "_created":  # when a counter was made
                    continue
                yield Observation(sample.value, dict(sample.labels))


_shown: Final[weakref.WeakKeyDictionary[metrics.Meter, _Shown]] = weakref.WeakKeyDictionary()
_shown_lock: Final = threading.Lock()


def _shown_by(meter: metrics.Meter) -> _Shown:
    with _shown_lock:
        return _shown.setdefault(meter, _Shown())


class _Look:
    """One collector; the instruments share what it said last."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._said: dict[str, Metric] = {}
        self._said_s = -_LOOK_S

    def forget(self) -> None:
        """Ask anew the next time."""
        self._said_s = -_LOOK_S

    def look(self) -> dict[str, Metric]:
        """Return what the collector says, or said just now, by name."""
        with self._lock:
            if time.monotonic() - self._said_s >= _LOOK_S:
                self._said = {metric.name: metric for metric in self._collector.collect()}
                self._said_s = time.monotonic()
            return self._said


def otel_name(name: str) -> str:
    """Return an instrument's name: ``marshal.consumer.handled`` of ``marshal_consumer_handled``."""
    for prefix in ("marshal_consumer_", "marshal_group_", "marshal_", "harvest_"):
        if name.startswith(prefix):
            return prefix.replace("_", ".") + name.removeprefix(prefix)
    return name

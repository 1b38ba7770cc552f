"""Prometheus metrics of a client; needs the extra `metrics`.

::

    from prometheus_client import start_http_server
    from marshal_py.telemetry import MarshalMetrics

    with Marshal(...) as marshal, MarshalMetrics(marshal):
        start_http_server(9100)

What is true of its whole group, one exporter tells: `marshal metrics serve`.

An adapter outside the core: it listens to what the log brings and looks at the world when it is
scraped. Several clients of one process may be registered; the label `client_id` tells them apart.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Self

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from marshal_py.client.marshal import Marshal
from marshal_py.errors import Closed, MarshalError
from marshal_py.protocol import events as ev

__all__ = ["MarshalMetrics"]

_LABELS = ["group_id", "client_id"]


class MarshalMetrics(Collector):
    """Registers the metrics of one started client with `registry`, until `close`.

    Gauges: ``marshal_up`` (1, or 0 once the client has stopped claiming, and while the brokers
    refuse what it writes), ``marshal_claims_held``
    (claims under a lease that stands), ``marshal_lease_remaining_seconds`` (of the claim that has
    the least). Counters, since the client started to listen:
    ``marshal_events_total`` by event, of the group; ``marshal_takeovers_total``, claims of a cell
    that was held; ``marshal_rejections_total`` by reason; ``marshal_snapshot_mismatches_total``.
    """

    def __init__(self, marshal: Marshal, registry: CollectorRegistry = REGISTRY) -> None:
        self._marshal = marshal
        self._registry = registry
        self._lock = threading.Lock()
        self._events: Counter[str] = Counter()
        self._rejections: Counter[str] = Counter()
        self._takeovers = 0
        self._stop = marshal.listen(self._count)
        registry.register(self)

    def close(self) -> None:
        """Stop counting and leave the registry."""
        self._stop()
        self._registry.unregister(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> Iterator[Metric]:
        """Nothing: the names are known only when the metrics are collected."""
        return iter(())

    def _count(self, _: int, events: list[ev.Event]) -> None:
        group = self._marshal.group_id
        with self._lock:
            for event in events:
                if isinstance(event, ev.Ignored):
                    self._events["Ignored"] += 1
                elif event.group_id == group:
                    self._events[type(event).__name__] += 1
                    if isinstance(event, ev.Rejected):
                        self._rejections[event.reason] += 1
                    elif isinstance(event, ev.Claimed) and event.previous_holder is not None:
                        self._takeovers += 1

    def collect(self) -> Iterator[Metric]:
        """Look at the client now."""
        marshal = self._marshal
        who = [marshal.group_id, marshal.client_id]

        def gauge(name: str, text: str, value: float) -> Metric:
            family = GaugeMetricFamily(f"marshal_{name}", text, labels=_LABELS)
            family.add_metric(who, value)
            return family

        def counter(name: str, text: str, label: str, counts: Counter[str]) -> Metric:
            family = CounterMetricFamily(f"marshal_{name}", text, labels=[*_LABELS, label])
            for value, count in sorted(counts.items()):
                family.add_metric([*who, value], count)
            return family

        try:
            with marshal.world():  # raises once it is closed
                claims = marshal.claims()
        except Closed:
            yield gauge("up", "Whether the client claims.", 0)
            return
        except MarshalError:  # it has failed for good; what it holds lapses
            claims = marshal.claims()
        up = marshal.failure is None and marshal.refused is None
        yield gauge("up", "Whether the client claims.", up)
        yield gauge("claims_held", "Claims of this client whose lease stands.", len(claims))
        yield gauge(
            "lease_remaining_seconds",
            "What is left of the lease that ends first.",
            min((claim.remaining_ms for claim in claims), default=0) / 1000,
        )
        with self._lock:
            events, rejections = Counter(self._events), Counter(self._rejections)
            takeovers = self._takeovers
        yield counter("events", "What the log brought of the group.", "event", events)
        yield counter("rejections", "Records that were not accepted.", "reason", rejections)
        family = CounterMetricFamily(
            "marshal_takeovers", "Claims of a cell that was held.", labels=_LABELS
        )
        family.add_metric(who, takeovers)
        yield family
        family = CounterMetricFamily(
            "marshal_snapshot_mismatches", "Snapshots that differ from the log.", labels=_LABELS
        )
        family.add_metric(who, len(marshal.snapshot_mismatches))
        yield family

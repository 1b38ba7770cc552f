"""Metrics, traces, logs, and the files that go with them: a Grafana dashboard, Prometheus alerts.

In: a `Marshal`, a `Consumer`, or the log of all groups. Out: Prometheus metrics (extra `metrics`),
OpenTelemetry instruments and spans (extra `otel`), log records as JSON. The import needs no extra:
what does is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marshal_py.client.structured_logs import JsonFormatter
    from marshal_py.telemetry.client_metrics import MarshalMetrics
    from marshal_py.telemetry.consumer_metrics import ConsumerMetrics
    from marshal_py.telemetry.group_metrics import GroupMetrics
    from marshal_py.telemetry.opentelemetry import export_metrics, message_span, traced
    from marshal_py.telemetry.status_server import serve_status

__all__ = [
    "ConsumerMetrics",
    "GroupMetrics",
    "JsonFormatter",
    "MarshalMetrics",
    "export_metrics",
    "message_span",
    "serve_status",
    "traced",
]

_MODULES = {
    "ConsumerMetrics": "telemetry.consumer_metrics",
    "GroupMetrics": "telemetry.group_metrics",
    "JsonFormatter": "client.structured_logs",
    "MarshalMetrics": "telemetry.client_metrics",
    "export_metrics": "telemetry.opentelemetry",
    "message_span": "telemetry.opentelemetry",
    "serve_status": "telemetry.status_server",
    "traced": "telemetry.opentelemetry",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"marshal_py.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

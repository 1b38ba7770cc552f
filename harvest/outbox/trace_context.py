"""OpenTelemetry: trace context from the inserting transaction into the record's headers.

::

    stasher = Stasher("outbox", prepare=with_trace_context)

Needs the extra `otel`. The consumer's side is `marshal_py.telemetry.traced`.
"""

from __future__ import annotations

from opentelemetry import propagate

from harvest.outbox.record import OutboxRecord

__all__ = ["with_trace_context"]


def with_trace_context(record: OutboxRecord) -> OutboxRecord:
    """Return the record with the current trace context in its headers (W3C: ``traceparent``).

    The configured propagator writes it. A record that has such headers already keeps them; outside
    of any span the record is returned as it is.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    had = {name for name, _ in record.headers}
    headers = [(name, value) for name, value in carrier.items() if name not in had]
    if not headers:
        return record
    return OutboxRecord(
        record.topic, record.key, record.value, [*record.headers, *headers], record.id
    )

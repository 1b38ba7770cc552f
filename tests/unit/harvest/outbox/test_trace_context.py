"""Trace context goes from the inserting transaction into the record's headers."""

from __future__ import annotations

import pytest

from harvest.outbox.record import OutboxRecord

trace = pytest.importorskip("opentelemetry.trace")

PARENT = "00-" + "0" * 31 + "1-" + "0" * 15 + "2-01"


def inside(record: OutboxRecord) -> OutboxRecord:
    """The record as it is made inside of a span."""
    from harvest.outbox.trace_context import with_trace_context

    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        return with_trace_context(record)


def test_the_span_is_a_header_behind_those_that_are_there() -> None:
    record = OutboxRecord("t", b"k", None, [("a", "1"), ("a", b"2")], id=3)
    headers = (("a", "1"), ("a", b"2"), ("traceparent", PARENT))
    assert inside(record) == OutboxRecord("t", b"k", None, headers, id=3)


def test_a_context_that_the_application_has_given_stays() -> None:
    record = OutboxRecord("t", "k", "v", {"traceparent": "ours"})
    assert inside(record) is record


def test_outside_of_any_span_a_record_stays_as_it_is() -> None:
    from harvest.outbox.trace_context import with_trace_context

    record = OutboxRecord("t", "k", "v")
    assert with_trace_context(record) is record

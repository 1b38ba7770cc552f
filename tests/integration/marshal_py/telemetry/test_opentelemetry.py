"""Metrics of groups, OpenTelemetry and trace context, on real servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message, Producer
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from harvest import OutboxRecord, Stasher
from harvest.databases.postgres.mark import PostgresMarkStore
from harvest.outbox.trace_context import with_trace_context
from marshal_py import Consumer, Marshal
from marshal_py.embedded import EmbeddedKafka
from marshal_py.telemetry.opentelemetry import export_metrics, message_span, otel_name, traced
from tests.support.marshal_command import cli_environment
from tests.unit.marshal_py.telemetry.test_grafana_and_alerts import expressions

pytestmark = pytest.mark.kafka

SPANS = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def tracing() -> None:
    """The tracer provider can be set once in a process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def no_spans() -> None:
    SPANS.clear()


def span(name: str) -> ReadableSpan:
    return next(s for s in SPANS.get_finished_spans() if s.name == name)


def test_a_trace_goes_from_the_inserting_transaction_to_the_handler(
    kafka: EmbeddedKafka, made: str, postgres_database: str, kafka_topic: Callable[..., str]
) -> None:
    from harvest.core.table_name import TableName

    topic = kafka_topic(partitions=1)
    store = PostgresMarkStore(postgres_database, TableName.parse("outbox"))
    store.init(value_type="text")
    stasher = Stasher("outbox", prepare=with_trace_context)
    with (
        trace.get_tracer("app").start_as_current_span("place order") as inserting,
        psycopg.connect(postgres_database) as connection,
    ):
        stasher.stash(connection, OutboxRecord(topic, "k", "v", {"shop": "1"}))
    store.close()

    config = f"""
kafka: {{bootstrap.servers: "{kafka.bootstrap_servers}"}}
database: "{postgres_database}"
group: traced
coordination: {{topic: {made}}}
"""
    reaper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from harvest.cli.__main__ import main; main()",
            "reap",
            "-c",
            "/dev/stdin",
        ],
        stdin=subprocess.PIPE,
        text=True,
    )
    assert reaper.stdin is not None
    reaper.stdin.write(config)
    reaper.stdin.close()
    seen: list[Any] = []

    @traced
    def handle(message: Message) -> None:
        seen.append(message.headers())
        trace.get_tracer("app").start_span("in the handler").end()
        consumer.stop()

    try:
        with Consumer(
            kafka.bootstrap_servers, group_id="g", topics=[topic], topic=made, interval_ms=500
        ) as consumer:
            consumer.run(handle)
    finally:
        reaper.send_signal(signal.SIGTERM)
        reaper.wait(60)
    assert [name for name, _ in seen[0]][:2] == ["shop", "traceparent"]
    handled, inner = span(f"process {topic}"), span("in the handler")
    assert handled.context.trace_id == inserting.get_span_context().trace_id
    assert handled.parent is not None
    assert handled.parent.span_id == inserting.get_span_context().span_id
    assert inner.parent is not None
    assert inner.parent.span_id == handled.context.span_id
    assert dict(handled.attributes or {})["messaging.destination.name"] == topic


class Plain:
    """As much of a message as a span needs."""

    def __init__(self, headers: Any = None) -> None:
        self._headers = headers

    topic = staticmethod(lambda: "t")
    partition = staticmethod(lambda: 3)
    offset = staticmethod(lambda: 41)
    key = staticmethod(lambda: b"k\xff")

    def headers(self) -> Any:
        return self._headers


def test_a_message_without_headers_begins_a_trace_and_an_error_marks_it() -> None:
    with pytest.raises(ValueError, match="no"), message_span(Plain(), group_id="g"):
        raise ValueError("no")
    found = span("process t")
    assert found.parent is None
    assert found.status.status_code is StatusCode.ERROR
    attributes = dict(found.attributes or {})
    assert attributes["messaging.consumer.group.name"] == "g"
    assert attributes["messaging.kafka.offset"] == 41


def test_a_coroutine_function_stays_one() -> None:
    import asyncio
    import inspect

    @traced
    async def handle(message: Any) -> str:
        return str(message.topic())

    assert inspect.iscoroutinefunction(handle)
    header = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    assert asyncio.run(handle(Plain(header))) == "t"
    assert f"{span('process t').context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


def test_headers_that_are_there_are_kept_and_without_a_span_nothing_is_added() -> None:
    record = OutboxRecord("t", "k", "v", {"traceparent": "mine"})
    with trace.get_tracer("app").start_as_current_span("x"):
        assert with_trace_context(record) is record
    plain = OutboxRecord("t", "k", "v")
    assert with_trace_context(plain) is plain


def test_otel_instruments_say_what_prometheus_says(
    kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal]
) -> None:
    marshal = client("a")
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    with export_metrics(marshal, meter=meter):
        marshal.claim_many([("t", 0), ("t", 1)], timeout_s=60)
        data = reader.get_metrics_data()
        assert data is not None
        found = {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        points: list[Any] = list(found["marshal.claims_held"].data.data_points)
        assert [(p.value, dict(p.attributes or {})) for p in points] == [
            (2, {"group_id": "g", "client_id": "a"})
        ]
        assert found["marshal.lease_remaining_seconds"].unit == "s"
        assert "marshal.takeovers" in found
    after = reader.get_metrics_data()
    assert after is None or not after.resource_metrics


def test_names_of_instruments() -> None:
    assert otel_name("marshal_consumer_handled") == "marshal.consumer.handled"
    assert otel_name("marshal_claims_held") == "marshal.claims_held"
    assert otel_name("other") == "other"


def test_the_exporter_tells_of_all_groups_and_has_what_the_dashboard_shows(
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    kafka_topic: Callable[..., str],
) -> None:
    orders = kafka_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(5):
        producer.produce(orders, b"x", partition=1)
    assert producer.flush(60) == 0
    claim = client("a").claim(orders, 1, timeout_s=60)
    claim.commit(2, wait=True)
    with subprocess.Popen(
        [sys.executable, "-m", "marshal_py.cli", "metrics", "serve", "--listen", "127.0.0.1:0"],
        env=os.environ | cli_environment(kafka.bootstrap_servers, made),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        client("b").claim("elsewhere", 0, timeout_s=60)
        text = urllib.request.urlopen(url, timeout=120).read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    where = f'group_id="g",partition="1",topic="{orders}"'
    assert f"marshal_group_lag_messages{{{where}}} 3.0" in text
    assert f"marshal_group_partition_held{{{where}}} 1.0" in text
    assert 'marshal_group_claims_stale{group_id="g"} 0.0' in text
    assert re.search(r"^marshal_coordination_records_total [1-9]", text, re.MULTILINE)
    shown = {
        name
        for _, expression in expressions()
        for name in re.findall(r"\b(marshal_(?:group|coordination)_[a-z_]+)", expression)
    }
    assert shown <= set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))

"""goharvest's own `reaper.yaml`, turned into our configuration.

Every key of goharvest is accepted, and two of ours beside them: `delivery` and `mode`. Those
without a counterpart here (they tune a pipeline that is built differently) are checked and
otherwise unused; `unused` in the log line says which.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from harvest.config.model import KafkaValue, LoggingConfig, ReaperConfig
from harvest.config.validation import StrictModel, validated
from harvest.core.pacing import Limits
from harvest.databases.postgres.conninfo import libpq_conninfo

__all__ = ["convert", "parse_duration_ms"]

_LOG: Final = logging.getLogger("harvest")
_UNIT_MS: Final = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,  # both signs for micro, as in Go
    "μs": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "m": 60e3,
    "h": 3600e3,
}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST_DURATION: Final = 100
_DEFAULT_SOURCE: Final = (
    "host=localhost port=5432 user=postgres password= dbname=postgres sslmode=disable"
)


def parse_duration_ms(value: object) -> float:
    """A Go duration ("1s", "1m30s", "100ms"; a bare number counts nanoseconds) in milliseconds.

    Raises ValueError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 2**63:  # as a Go duration has to be
            return value * 1e-6
    elif isinstance(value, str) and len(value) <= _LONGEST_DURATION:
        text = value.strip()
        parts = _PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return float(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))
        if text == "0":
            return 0.0
    raise ValueError('not a Go duration: write "500ms", "1s" or "1m30s"')


GoDuration = Annotated[float, BeforeValidator(parse_duration_ms), Field(ge=0)]


class _GoLimits(StrictModel):
    io_error_backoff: GoDuration | None = Field(default=None, alias="ioErrorBackoff")
    poll_duration: GoDuration | None = Field(default=None, alias="pollDuration")
    min_poll_interval: GoDuration | None = Field(default=None, alias="minPollInterval")
    max_poll_interval: GoDuration | None = Field(default=None, alias="maxPollInterval")
    heartbeat_timeout: GoDuration | None = Field(default=None, alias="heartbeatTimeout")
    drain_interval: GoDuration | None = Field(default=None, alias="drainInterval")
    queue_timeout: GoDuration | None = Field(default=None, alias="queueTimeout")
    mark_backoff: GoDuration | None = Field(default=None, alias="markBackoff")
    max_in_flight_records: int | None = Field(default=None, alias="maxInFlightRecords", ge=1)
    send_concurrency: int | None = Field(default=None, alias="sendConcurrency", ge=1)
    send_buffer: int | None = Field(default=None, alias="sendBuffer", ge=0)
    mark_query_records: int | None = Field(default=None, alias="markQueryRecords", ge=1)
    min_metrics_interval: GoDuration | None = Field(default=None, alias="minMetricsInterval")


class _GoHarvest(StrictModel):
    base_kafka_config: dict[str, KafkaValue] | None = Field(default=None, alias="baseKafkaConfig")
    producer_kafka_config: dict[str, KafkaValue] | None = Field(
        default=None, alias="producerKafkaConfig"
    )
    leader_topic: str | None = Field(default=None, alias="leaderTopic")
    leader_group_id: str | None = Field(default=None, alias="leaderGroupID")
    data_source: str | None = Field(default=None, alias="dataSource")
    outbox_table: str | None = Field(default=None, alias="outboxTable")
    limits: _GoLimits | None = None
    name: str | None = None
    # Ours: a file that goharvest shall still read leaves them out.
    delivery: str | None = None
    mode: str | None = None


class _GoFile(StrictModel):
    harvest: _GoHarvest | None = None
    logging: LoggingConfig | None = None


# Of goharvest's settings, those that tune its election (ours has one interval) and its threads.
_UNUSED: Final = (
    ("leaderTopic", "leader_topic"),
    ("pollDuration", "poll_duration"),
    ("minPollInterval", "min_poll_interval"),
    ("maxPollInterval", "max_poll_interval"),
    ("drainInterval", "drain_interval"),
    ("queueTimeout", "queue_timeout"),
    ("sendConcurrency", "send_concurrency"),
    ("sendBuffer", "send_buffer"),
    ("minMetricsInterval", "min_metrics_interval"),
)


def convert(content: Mapping[str, Any], source: str) -> ReaperConfig:
    """Our configuration from goharvest's. Raises `ConfigurationError`."""
    file = validated(_GoFile, content, source)
    go = file.harvest or _GoHarvest.model_validate({})
    limits = go.limits or _GoLimits.model_validate({})
    given = go.model_fields_set | limits.model_fields_set
    unused = [alias for alias, name in _UNUSED if name in given]
    if unused:
        _LOG.info("%s: accepted, and without effect here: %s", source, ", ".join(unused))
    ours: dict[str, Any] = {
        "kafka": {"bootstrap.servers": "localhost:9092", **(go.base_kafka_config or {})},
        "producer": go.producer_kafka_config or {},
        "database": libpq_conninfo(go.data_source or _DEFAULT_SOURCE),
        "outbox": go.outbox_table or "outbox",
        "group": go.leader_group_id or go.leader_topic or "reaper",
        "name": go.name,
        "limits": _converted_limits(limits),
        "logging": file.logging or LoggingConfig(level="debug"),
    }
    ours |= {key: value for key in ("delivery", "mode") if (value := getattr(go, key)) is not None}
    if limits.heartbeat_timeout:
        # goharvest gives a silent leader up after this time; ours is replaced after two intervals.
        ours["coordination"] = {"interval_ms": max(20, round(limits.heartbeat_timeout / 2))}
    return validated(ReaperConfig, ours, source)


def _converted_limits(go: _GoLimits) -> dict[str, int]:
    ours: dict[str, int] = {}
    if go.max_in_flight_records is not None:
        ours["max_in_flight_records"] = go.max_in_flight_records
    if go.mark_query_records is not None:
        ours["mark_query_records"] = go.mark_query_records
    if go.io_error_backoff is not None:
        ours["io_error_backoff_ms"] = max(1, round(go.io_error_backoff))
    if go.mark_backoff is not None:
        ours["max_poll_interval_ms"] = max(1, round(go.mark_backoff))
        ours["min_poll_interval_ms"] = min(Limits().min_poll_interval_ms, round(go.mark_backoff))
    return ours

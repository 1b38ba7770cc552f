"""`destinations` in the configuration: endpoints, and how each is treated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from harvest.config.validation import StrictModel
from harvest.core.dispatcher import Policy
from harvest.core.envelope import CloudEvents
from harvest.core.interfaces.message_sink import MessageSink
from harvest.core.templates import Template
from harvest.errors import ConfigurationError

__all__ = [
    "BatchConfig",
    "CloudEventsConfig",
    "DestinationConfig",
    "HttpConfig",
    "KafkaConfig",
    "NatsConfig",
]

_STATUSES: Final = re.compile(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?")
_POLICY: Final = Policy()


def _parse_statuses(value: object) -> object:
    """``204``, ``200-299``, or a list of such."""
    if value is None:
        return frozenset()
    found: set[int] = set()
    for part in value if isinstance(value, list) else [value]:
        match = _STATUSES.fullmatch(str(part).strip())
        if match is None:
            raise ValueError(f"{part!r} is no status: write 204, or 200-299, or a list of such")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise ValueError(f"{part!r} has no status in it: write {high}-{low}")
        found.update(range(low, high + 1))
    return frozenset(found)


Statuses = Annotated[frozenset[int], BeforeValidator(_parse_statuses)]


def _parse_secrets(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Secret = Annotated[str, Field(min_length=1)]
Secrets = Annotated[tuple[Secret, ...], BeforeValidator(_parse_secrets)]


class BatchConfig(StrictModel):
    """Several rows in one request, at most so many `records` and `bytes` of their values.

    `format`: ``records`` (a JSON array of objects that say id, topic, key, headers and value) or
    ``values`` (a JSON array of the values). With `cloudevents`, it is a batch of these.
    """

    records: int = Field(default=100, ge=2, le=10_000)
    bytes: int = Field(default=1 << 20, ge=1)
    format: Literal["records", "values"] = "records"


class CloudEventsConfig(StrictModel):
    """Records or requests as CloudEvents 1.0; see `harvest.core.envelope.CloudEvents`.

    `source`, `type` and `time` are templates of a row. The id is what `idempotency_key` says.
    """

    source: str = Field(min_length=1)
    type: str = Field(default="{topic}", min_length=1)
    time: str | None = Field(default=None, min_length=1)
    mode: Literal["binary", "structured"] = "binary"
    content_type: str = Field(default="application/json", min_length=1)

    def cloudevents(self, unique: str, outbox: str) -> CloudEvents:
        """What makes them; `unique`: the template of the id. Raises `ConfigurationError`."""
        return CloudEvents(
            Template.parse(unique, outbox, "idempotency_key"),
            Template.parse(self.source, outbox, "cloudevents.source"),
            Template.parse(self.type, outbox, "cloudevents.type"),
            self.mode,
            self.content_type,
            None if self.time is None else Template.parse(self.time, outbox, "cloudevents.time"),
        )


class HttpConfig(StrictModel):
    """An HTTP endpoint; see `harvest.sinks.http.endpoint.HttpEndpoint`.

    - `sign`: the secret, or several while receivers change from one to the next.
    - `batch`: several rows in a request. `cloudevents`: each row as one.
    """

    uri: str = Field(min_length=1, repr=False)
    method: str = "POST"
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    forward_headers: bool = True
    timeout_ms: int = Field(default=10_000, ge=1)
    expect: Statuses = frozenset(range(200, 300))
    refuse: Statuses = frozenset({400, 413, 414, 415, 422})
    idempotency_header: str = "Idempotency-Key"
    sign: Secrets = Field(default=(), repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    batch: BatchConfig | None = None
    cloudevents: CloudEventsConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> HttpConfig:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigurationError(
                f"key_file is {self.key_file!r}, and there is no cert_file that it is the key of: "
                "give that, too, or leave key_file out"
            )
        return self


class NatsConfig(StrictModel):
    """A NATS JetStream; see `harvest.sinks.nats.NatsEndpoint`."""

    servers: list[str] = Field(min_length=1, repr=False)
    subject: str = Field(default="{topic}", min_length=1)
    stream: str | None = None
    forward_headers: bool = True
    timeout_ms: int = Field(default=10_000, ge=1)
    credentials_file: str | None = None
    ca_file: str | None = None


class KafkaConfig(StrictModel):
    """A Kafka topic; see `harvest.sinks.kafka.destination.KafkaEndpoint`.

    `settings`: of the producer, over those of `kafka` and `producer` of the whole file.
    """

    topic: str = Field(default="{topic}", min_length=1)
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    forward_headers: bool = True
    timeout_ms: int = Field(default=10_000, ge=1)


class DestinationConfig(StrictModel):
    """Where messages are sent, and how it is treated; see `harvest.core.dispatcher.Policy`.

    `backoff_ms`, doubled up to `max_backoff_ms`, instead of `pauses_ms`.
    """

    http: HttpConfig | None = None
    nats: NatsConfig | None = None
    kafka: KafkaConfig | None = None
    concurrency: int = Field(default=_POLICY.concurrency, ge=1, le=256)
    priority: int = _POLICY.priority
    rate_per_s: float | None = Field(default=_POLICY.rate_per_s, gt=0, allow_inf_nan=False)
    attempts: int = Field(default=_POLICY.attempts, ge=1)
    pauses_ms: tuple[Annotated[int, Field(ge=1)], ...] = Field(_POLICY.pauses_ms, min_length=1)
    backoff_ms: int | None = Field(default=None, ge=1)
    max_backoff_ms: int = Field(default=60_000, ge=1)
    breaker_failures: int = Field(default=_POLICY.breaker_failures, ge=1)
    breaker_open_ms: int = Field(default=_POLICY.breaker_open_ms, ge=1)
    max_breaker_open_ms: int = Field(default=_POLICY.max_breaker_open_ms, ge=1)
    max_retry_after_ms: int = Field(default=_POLICY.max_retry_after_ms, ge=0)

    @model_validator(mode="after")
    def _one_kind(self) -> DestinationConfig:
        if [self.http, self.nats, self.kafka].count(None) != 2:
            raise ConfigurationError("a destination needs one kind: give http, nats or kafka")
        if self.backoff_ms is not None and "pauses_ms" in self.model_fields_set:
            raise ConfigurationError("backoff_ms and pauses_ms say two things: give one of them")
        if self.backoff_ms is None and "max_backoff_ms" in self.model_fields_set:
            raise ConfigurationError("max_backoff_ms bounds a backoff_ms: give that, too")
        return self

    def policy(self) -> Policy:
        """As the dispatcher takes it."""
        given = self.model_dump(exclude={"http", "nats", "kafka", "backoff_ms", "max_backoff_ms"})
        if self.backoff_ms is not None:
            given["pauses_ms"] = _doubled(self.backoff_ms, self.max_backoff_ms)
        batch = None if self.http is None else self.http.batch
        if batch is not None:
            given.update(batch_records=batch.records, batch_bytes=batch.bytes)
        return Policy(**given)

    def sink(self, outbox: str, kafka: Mapping[str, Any], unique: str) -> MessageSink:
        """What sends there; connects when it is first used. `kafka`: the producer's settings;
        `unique`: the template of idempotency keys.

        Raises `ConfigurationError`.
        """
        if self.kafka is not None:
            return _kafka_sink(self.kafka, outbox, kafka)
        try:
            if self.http is not None:
                return _http_sink(self.http, outbox, unique)
            assert self.nats is not None  # noqa: S101 - validated
            return _nats_sink(self.nats, outbox)
        except ModuleNotFoundError as error:
            extra = "http" if self.http is not None else "nats"
            raise ConfigurationError(
                f"{error.name} is missing: run `pip install 'marshal-py[{extra}]'`"
            ) from None


def _doubled(backoff_ms: int, most_ms: int) -> tuple[int, ...]:
    pauses_ms = [min(backoff_ms, most_ms)]
    while pauses_ms[-1] < most_ms:
        pauses_ms.append(min(2 * pauses_ms[-1], most_ms))
    return tuple(pauses_ms)


def _http_sink(config: HttpConfig, outbox: str, unique: str) -> MessageSink:
    from harvest.sinks.http.endpoint import HttpEndpoint, HttpSink, Signature

    events = config.cloudevents
    given = config.model_dump(
        exclude={"headers", "expect", "refuse", "sign", "batch", "cloudevents"}
    )
    return HttpSink(
        HttpEndpoint(
            **given,
            headers=tuple(config.headers.items()),
            expected=config.expect,
            refused=config.refuse,
            signature=Signature(config.sign) if config.sign else None,
            batch=None if config.batch is None else config.batch.format,
            cloudevents=None if events is None else events.cloudevents(unique, outbox),
        ),
        outbox,
    )


def _nats_sink(config: NatsConfig, outbox: str) -> MessageSink:
    from harvest.sinks.nats import NatsEndpoint, NatsSink

    given = config.model_dump(exclude={"servers"})
    return NatsSink(NatsEndpoint(servers=tuple(config.servers), **given), outbox)


def _kafka_sink(config: KafkaConfig, outbox: str, settings: Mapping[str, Any]) -> MessageSink:
    from harvest.sinks.kafka.destination import KafkaDestination, KafkaEndpoint

    given = config.model_dump(exclude={"settings"})
    return KafkaDestination(KafkaEndpoint({**settings, **config.settings}, **given), outbox)

"""The configuration of one harvester: its keys, their defaults, and what fits together.

Unknown keys are errors, with a suggestion. Secrets never appear in errors or in a repr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from harvest.config.destinations import CloudEventsConfig, DestinationConfig
from harvest.config.routes import load_routes
from harvest.config.validation import StrictModel
from harvest.core.dead_letters import BadRowPolicy
from harvest.core.envelope import Envelope
from harvest.core.extra_columns import PARTITION, TIMESTAMP
from harvest.core.interfaces.dead_letter_store import RetryMode
from harvest.core.interfaces.message_sink import MessageSink
from harvest.core.pacing import Limits
from harvest.core.routes import Router
from harvest.core.source import Registration
from harvest.core.table_name import TableName
from harvest.core.wal_layout import DEBEZIUM, GOHARVEST
from harvest.core.wal_options import WalOptions
from harvest.errors import ConfigurationError
from harvest.maintenance.partitions import PartitionPolicy
from harvest.sinks.kafka.settings import producer_settings
from marshal_py.client.leader_election import leader_topic

__all__ = [
    "MAX_RETAIN_HOURS",
    "BadRowsConfig",
    "CloudEventsConfig",
    "ColumnsConfig",
    "CoordinationConfig",
    "LimitsConfig",
    "LoggingConfig",
    "Mode",
    "PartitionsConfig",
    "PrimaryConfig",
    "ReaperConfig",
    "WalConfig",
]

KafkaValue = str | int | float | bool

Mode = RetryMode
"""How rows are harvested: tagged, published and deleted; only read, up to a position; or read from
the write-ahead log."""

MAX_RETAIN_HOURS: Final = 1_000_000
"""A century: more than databases reckon with, and not forever, which they do not know."""
_DEFAULTS: Final = Limits()
_PARTITIONERS: Final = {"librdkafka": "consistent", "java": "murmur2"}


RouteText = Annotated[str, Field(min_length=1)]
ColumnName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_$]{0,62}$")]
HeaderName = Annotated[str, Field(pattern=r"^[^\x00]{1,200}$")]


def _is_other_database(source: str) -> bool:
    return source.partition("://")[0] in ("sqlite", "mysql", "mariadb")


class LimitsConfig(StrictModel):
    """Bounds of a harvester; see `harvest.core.mark.Limits`.

    `max_row_age_ms`: `/healthz` says that it is ill while the oldest row that waits is older.
    """

    mark_query_records: int = Field(default=_DEFAULTS.mark_query_records, ge=1)
    max_in_flight_records: int = Field(default=_DEFAULTS.max_in_flight_records, ge=1)
    max_in_flight_bytes: int = Field(default=_DEFAULTS.max_in_flight_bytes, ge=1)
    max_in_flight_batches: int = Field(default=_DEFAULTS.max_in_flight_batches, ge=1)
    min_poll_interval_ms: int = Field(default=_DEFAULTS.min_poll_interval_ms, ge=0)
    max_poll_interval_ms: int = Field(default=_DEFAULTS.max_poll_interval_ms, ge=1)
    notified_poll_interval_ms: int = Field(default=_DEFAULTS.notified_poll_interval_ms, ge=1)
    io_error_backoff_ms: int = Field(default=_DEFAULTS.io_error_backoff_ms, ge=1)
    max_io_error_backoff_ms: int = Field(default=_DEFAULTS.max_io_error_backoff_ms, ge=1)
    drain_timeout_ms: int = Field(default=10_000, ge=0)
    max_row_age_ms: int | None = Field(default=None, ge=1)

    def limits(self) -> Limits:
        """As the scheduler takes them."""
        return Limits(**self.model_dump(exclude={"drain_timeout_ms", "max_row_age_ms"}))


class BadRowsConfig(StrictModel):
    """What becomes of rows that Kafka refuses; see `harvest.core.dead_letters.BadRowPolicy`."""

    on_bad_row: Literal["dead_letter", "stop"] = "dead_letter"
    key_waits: bool = True
    unknown_topic: Literal["dead_letter", "wait"] = "dead_letter"

    def policy(self) -> BadRowPolicy:
        """As the schedulers take it."""
        waits = self.key_waits or self.unknown_topic == "wait"
        return BadRowPolicy(self.on_bad_row, waits, self.unknown_topic)


class CoordinationConfig(StrictModel):
    """How the leader is elected: a claim on the coordination topic of marshal_py."""

    topic: str = "__marshal"
    interval_ms: int = Field(default=1_000, ge=20)
    create_topics: bool = False


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class LoggingConfig(StrictModel):
    """How much is logged, to standard error."""

    level: Annotated[
        Literal["trace", "debug", "info", "warn", "warning", "error"], BeforeValidator(_lower_case)
    ] = "info"

    def python_level(self) -> int:
        """The level as `logging` counts."""
        levels = {"trace": 10, "debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40}
        return levels[self.level]


class PartitionsConfig(StrictModel):
    """Range partitions, in range mode, and in wal mode with `purge: partitions`.

    `automatic`: they are looked after while harvesting.

    `archive`: a folder where the rows of a partition are kept as a Parquet file before it is
    dropped (`harvest.maintenance.archive`).
    """

    automatic: bool = True
    rows: int = Field(default=1_000_000, ge=1)
    ahead: int = Field(default=4, ge=1, le=1_000)
    retain_hours: float = Field(default=24.0, ge=0, le=MAX_RETAIN_HOURS)
    archive: str | None = Field(default=None, min_length=1)

    def policy(self) -> PartitionPolicy:
        """As the plan takes it."""
        return PartitionPolicy(self.rows, self.ahead, self.retain_hours * 3600)


class ColumnsConfig(StrictModel):
    """Further columns of the outbox (specs/HARVEST.md §1). NULL: as if there were no column.

    - `partition`: of the number of the partition. `timestamp`: of the record's time.
    - `headers`: headers by name, and the column with the value of each, in its text form.
    """

    partition: ColumnName | None = None
    timestamp: ColumnName | None = None
    headers: dict[HeaderName, ColumnName] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> ColumnsConfig:
        for name in (PARTITION, TIMESTAMP):
            if name in self.headers:
                key = name.partition(".")[2]
                raise ConfigurationError(f"headers: {name} is not published: write `{key}: COLUMN`")
        return self

    def extra(self) -> dict[str, str]:
        """As the stores take them."""
        placed = {PARTITION: self.partition, TIMESTAMP: self.timestamp}
        given = {name: column for name, column in placed.items() if column is not None}
        return {**self.headers, **given}

    @property
    def placed(self) -> bool:
        """Whether partition or time are columns."""
        return self.partition is not None or self.timestamp is not None


class PrimaryConfig(StrictModel):
    """The application's database, when the payloads are in another one (specs/RELAYER.md §8).

    - `database`: a libpq connection string. `replica`: of a replica, for reading the ids.
    - `ids`: the table with `id` and `message_id`.
    """

    database: str = Field(repr=False, min_length=1)
    replica: str | None = Field(default=None, repr=False, min_length=1)
    ids: str = "outbox_ids"


class WalConfig(StrictModel):
    """What is read in wal mode (specs/HARVEST.md §18).

    - `source`: rows of the ``table``, or logical ``message`` (an outbox without a table).
    - `slot`, `publication`, `prefix`: other names than those that are made of the outbox's.
    - `layout`: the table's columns: ``goharvest``, or ``debezium`` (of its Outbox Event Router).
    - `topic`: for debezium, the topic, ``{}`` being the `aggregatetype`.
    - `headers`: for debezium, headers by name, and the column of each.
    - `purge`: published rows are deleted (``delete``, the default for goharvest's layout), dropped
      with their ``partitions``, or left (``keep``).
    - `standby`: a libpq connection string of a replica that is read instead (PostgreSQL 16).
    """

    source: Literal["table", "message"] = "table"
    slot: str | None = Field(default=None, pattern=r"^[a-z0-9_]{1,63}$")
    publication: str | None = Field(default=None, min_length=1, max_length=63)
    prefix: str | None = Field(default=None, min_length=1, max_length=200)
    layout: Literal["goharvest", "debezium"] = "goharvest"
    topic: str = Field(default=DEBEZIUM.topic_template, min_length=2)
    headers: dict[str, str] = Field(default_factory=lambda: dict(DEBEZIUM.headers))
    purge: Literal["delete", "partitions", "keep"] | None = None
    standby: str | None = Field(default=None, repr=False, min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> WalConfig:
        if self.layout == "goharvest" and {"topic", "headers"} & self.model_fields_set:
            raise ConfigurationError(
                "topic and headers are for layout: debezium; goharvest's has columns for them"
            )
        if self.source == "message" and self.purge in ("delete", "partitions"):
            raise ConfigurationError(
                f"purge is {self.purge}: messages are in no table; leave it out"
            )
        if self.layout == "debezium" and self.purge == "partitions":
            raise ConfigurationError(
                "purge is partitions, which are ranges of goharvest's ids, and layout is debezium: "
                "write keep, and drop partitions of your own behind `harvest slot show`"
            )
        if "{}" not in self.topic:
            raise ConfigurationError("topic has no '{}', where the aggregatetype goes: add it")
        return self

    def options(self, extra: Mapping[str, str] | None = None) -> WalOptions:
        """As the source takes them; `extra`: further headers, and their columns."""
        layout = GOHARVEST
        if self.layout == "debezium":
            layout = replace(DEBEZIUM, topic_template=self.topic, headers=self.headers)
        if extra:
            layout = replace(layout, headers={**layout.headers, **extra})
        purge = self.purge or ("delete" if self.layout == "goharvest" else "keep")
        return WalOptions(
            self.source, self.slot, self.publication, self.prefix, layout, purge, self.standby
        )


class ReaperConfig(StrictModel):
    """One outbox and everything that is needed to harvest it.

    - `kafka`: librdkafka settings of every client, at least `bootstrap.servers`.
    - `producer`: settings of the producer, over `kafka`.
    - `database`: a libpq connection string, key=value or URL; ``sqlite:///path``;
      ``mysql://user:password@host/database``.
    - `partitioner`: which partition a key goes to: as librdkafka's producers have it (CRC32, the
      default), or Java's (murmur2). `producer` may name another one of librdkafka's.
    - `direct_database`: the same database past a pooler (pgbouncer) that `database` goes through,
      for notifications of new rows, which a pooler does not pass on.
    - `outbox`: the table, with its schema or without.
    - `group`: the same for all processes that share this outbox, and for no others.
    - `name`: of this process, unique in its group; a fresh one by default.
    - `delivery`: ``transactional`` (exactly once for read_committed readers) or ``idempotent``
      (at least once).
    - `mode`: ``mark`` (rows are tagged, published, deleted), ``range`` (rows are only read) or
      ``wal`` (rows are read from the write-ahead log; PostgreSQL). `wal`: what is read there.
    - `shards`: in range mode, how many processes can work at once; keys are divided among them.
    - `primary`: the application's database, if `database` has only the payloads; in range mode.
    - `columns`: further columns of the table that are headers, partition or time of the record.
    - `destinations`: by name, where messages are sent instead of Kafka, at least once; in mark
      mode. `route`: which of them a row goes to, or a list: to each (`harvest.core.routes`).
    - `harvest_id`: a name for the database. Every record gets a header ``harvest-id``:
      NAME/OUTBOX/ID, by which consumers recognise a row that comes again, and find it.
    - `cloudevents`: publish CloudEvents.
    - `idempotency_key`: the template of what the receiver knows a repeated message by.
    """

    kafka: dict[str, KafkaValue] = Field(repr=False)
    database: str = Field(repr=False, min_length=1)
    group: str = Field(min_length=1, max_length=200)
    direct_database: str | None = Field(default=None, repr=False, min_length=1)
    producer: dict[str, KafkaValue] = Field(default_factory=dict, repr=False)
    partitioner: Literal["librdkafka", "java"] | None = None
    outbox: str = "outbox"
    name: str | None = Field(default=None, min_length=1)
    delivery: Literal["transactional", "idempotent"] = "transactional"
    mode: Mode = "mark"
    shards: int = Field(default=1, ge=1, le=1_000)
    destinations: dict[str, DestinationConfig] = Field(default_factory=dict)
    route: RouteText | Annotated[tuple[RouteText, ...], Field(min_length=1)] | None = None
    idempotency_key: str = Field(default="{outbox}.{id}", min_length=1)
    harvest_id: str | None = Field(default=None, min_length=1, max_length=200)
    cloudevents: CloudEventsConfig | None = None
    columns: ColumnsConfig = ColumnsConfig()
    primary: PrimaryConfig | None = None
    partitions: PartitionsConfig = PartitionsConfig()
    wal: WalConfig = WalConfig()
    coordination: CoordinationConfig = CoordinationConfig()
    limits: LimitsConfig = LimitsConfig()
    bad_rows: BadRowsConfig = BadRowsConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> ReaperConfig:
        if not self.kafka.get("bootstrap.servers", self.kafka.get("metadata.broker.list")):
            raise ConfigurationError("kafka: 'bootstrap.servers' is missing: give host:port")
        TableName.parse(self.outbox)
        if self.mode == "range" and self.delivery != "transactional":
            raise ConfigurationError(
                f"delivery is {self.delivery}, must be transactional in range mode: the position "
                "is committed with the rows; leave it out, or use mode: mark"
            )
        if self.mode != "range" and self.shards > 1:
            raise ConfigurationError(
                f"shards is {self.shards}, must be 1 in {self.mode} mode: write mode: range, or "
                "leave it out"
            )
        if self.mode == "wal":
            if _is_other_database(self.database):
                raise ConfigurationError("mode: wal is for PostgreSQL: write mode: mark or range")
        elif "wal" in self.model_fields_set:
            raise ConfigurationError(f"wal: this is for mode: wal, and mode is {self.mode}")
        if self.direct_database is not None and _is_other_database(self.database):
            raise ConfigurationError("direct_database: only PostgreSQL has poolers: leave it out")
        if self.partitioner is not None and "partitioner" in {**self.kafka, **self.producer}:
            raise ConfigurationError(
                "partitioner is given twice: leave it out in `kafka` and `producer`"
            )
        producer_settings(self.producer_config, None)
        self._consistent_columns()
        if self.envelope() is not None and self.destinations:
            raise ConfigurationError(
                "harvest_id and cloudevents are for Kafka without destinations, which send an "
                "idempotency key of their own: leave them out (an http destination has cloudevents "
                "of its own)"
            )
        self._consistent_destinations()
        self._consistent_primary()
        return self

    def _consistent_columns(self) -> None:
        if not self.columns.extra():
            return
        problem = None
        if self.primary is not None:
            problem = "with `primary` rows have no further columns"
        elif self.mode == "wal" and self.wal.source == "message":
            problem = "messages have no columns"
        elif self.partitions.archive is not None:
            problem = "partitions.archive does not keep further columns"
        elif self.destinations and self.columns.placed:
            problem = "partition and timestamp are Kafka's, and there are destinations"
        if problem is not None:
            raise ConfigurationError(f"columns: {problem}: leave one of the two out")

    def _consistent_destinations(self) -> None:
        if not self.destinations:
            if self.route is not None:
                raise ConfigurationError("route: there are no destinations; give at least one")
            return
        if self.mode != "mark":
            raise ConfigurationError(
                "destinations need mode: mark: the position of the other modes is committed to "
                "Kafka"
            )
        self.router()
        for name in self.destinations:
            try:
                self.destination_sink(name).close()
            except ConfigurationError as error:
                raise ConfigurationError(f"destinations.{name}: {error}") from None

    def _consistent_primary(self) -> None:
        if self.primary is None:
            return
        TableName.parse(self.primary.ids)
        if self.mode != "range" or self.shards > 1:
            raise ConfigurationError("primary: two databases need mode: range and one shard")
        for source in (self.database, self.primary.database, self.primary.replica or ""):
            if _is_other_database(source):
                raise ConfigurationError("primary: both databases must be PostgreSQL")

    @property
    def table(self) -> TableName:
        """The outbox table."""
        return TableName.parse(self.outbox)

    @property
    def producer_config(self) -> dict[str, KafkaValue]:
        """The settings of the producer: its own over those of every client."""
        settings = {**self.kafka, **self.producer}
        if self.partitioner is not None:
            settings["partitioner"] = _PARTITIONERS[self.partitioner]
        return settings

    @property
    def election_name(self) -> str:
        """What the processes of the group compete for."""
        return f"harvest:{self.table}"

    def shard_units(self, shards: int | None = None) -> list[tuple[str, int]]:
        """The claims of the leaders of so many shards, by default as many as are configured."""
        shards = shards or self.shards
        if shards == 1:
            return [(leader_topic(self.election_name), 0)]
        return [(self.election_name, shard) for shard in range(shards)]

    @property
    def sink_name(self) -> str:
        """What the transactional.id and the checkpoint's group are made of."""
        return f"{self.group}.{self.table}"

    def envelope(self) -> Envelope | None:
        """What is added to every record; None for nothing. Raises `ConfigurationError`."""
        placed = self.columns.placed
        if self.harvest_id is None and self.cloudevents is None and not placed:
            return None
        made, name = None, self.sink_name
        if self.cloudevents is not None:
            made = self.cloudevents.cloudevents(self.idempotency_key, name)
        prefix = None if self.harvest_id is None else f"{self.harvest_id}/{self.table}"
        return Envelope(prefix, made, placed)

    @property
    def listened_database(self) -> str:
        """Where notifications are heard."""
        return self.direct_database or self.database

    def registration(self, cluster: str = "") -> Registration:
        """Who harvests, as it is kept beside the outbox; `cluster`: Kafka's id of itself."""
        mode = "relay" if self.destinations else self.mode
        return Registration(cluster, self.coordination.topic, self.group, mode)

    def destination_sink(self, name: str) -> MessageSink:
        """What sends to a destination. Raises `ConfigurationError`."""
        given = self.destinations[name]
        return given.sink(self.sink_name, self.producer_config, self.idempotency_key)

    def router(self, clock: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)) -> Router:
        """What finds the destination of a row. Raises `ConfigurationError`."""
        return Router(
            self.destinations,
            load_routes(self.route),
            outbox=self.sink_name,
            unique=self.idempotency_key,
            clock=clock,
        )

    def shard_sink_name(self, shard: int) -> str:
        """The same for a shard in range mode."""
        return f"{self.sink_name}.{shard}"

"""The parts of a harvesting process, made from a configuration. They connect when first used."""

from __future__ import annotations

import time
from functools import partial
from typing import TypeAlias

from confluent_kafka import Producer

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.dead_letter_store import DeadLetterTable
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.interfaces.sink import Sink
from harvest.core.interfaces.source_store import SourceStore
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.postgres.two_databases import PostgresIds, TwoDatabasesStore
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.databases.registry import database
from harvest.errors import ConfigurationError, SinkUnavailable
from harvest.runtime.leadership import Tools
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.partition_upkeep import maintain_partitions_and_tell
from harvest.runtime.range_leader import RangeTools
from harvest.runtime.relay_leader import RelayTools
from harvest.runtime.source_guard import SourceGuard, WalGuard
from harvest.runtime.wal_leader import WalTools
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.destination import KafkaDestination
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.settings import producer_settings
from harvest.sinks.kafka.sink import TransactionalSink
from harvest.sinks.kafka.source_record import SourceRecord

AnyStore: TypeAlias = MarkStore | RangeStore

__all__ = [
    "AnyStore",
    "check_clients",
    "make_any_store",
    "make_dead_letters",
    "make_mark_tools",
    "make_range_store",
    "make_record",
    "make_relay_tools",
    "make_sink",
    "make_store",
    "make_tools",
    "make_wal_source",
    "make_wal_tools",
]


def check_clients(config: ReaperConfig) -> None:
    """Make each producer that a leader makes, without waiting for a broker.

    Raises `ConfigurationError` for a setting that librdkafka refuses: leaders try again for ever.
    """
    for name in config.destinations:
        sink = config.destination_sink(name)
        if isinstance(sink, KafkaDestination):
            try:
                sink.check()
            except ConfigurationError as error:
                raise ConfigurationError(f"destinations.{name}: {error}") from None
    if config.destinations:
        return
    if config.delivery == "transactional" or config.mode == "wal":  # there, of the position
        transactional_id = f"harvest.{config.sink_name}"  # which fences nobody yet
        make_client(Producer, producer_settings(config.producer_config, transactional_id))
    if config.delivery == "idempotent":
        make_client(Producer, producer_settings(config.producer_config, None))


def make_tools(config: ReaperConfig, shard: int = 0) -> Tools:
    """What a leadership of a shard works with, in the mode of `config`."""
    if config.mode == "range":
        tools = _range_tools(config, shard)
        if shard == 0 and config.partitions.automatic and config.primary is None:
            tools.maintain = partial(maintain_partitions_and_tell, config)
        return tools
    if config.mode == "wal":
        wal_tools = make_wal_tools(config)
        if config.wal.purge == "partitions" and config.partitions.automatic:
            wal_tools.maintain = partial(maintain_partitions_and_tell, config)
        return wal_tools
    if config.destinations:
        return make_relay_tools(config)
    return make_mark_tools(config)


def make_mark_tools(config: ReaperConfig) -> MarkTools:
    """What a leadership in mark mode works with."""
    marker = make_store(config)
    return MarkTools(
        marker,
        make_store(config),
        make_sink(config),
        config.limits.limits(),
        database(config.database).dead_letters(config.table),
        config.bad_rows.policy(),
        _guard(config, marker, exact=config.delivery == "transactional"),
    )


def _range_tools(config: ReaperConfig, shard: int) -> RangeTools:
    """What a leadership of a shard in range mode works with."""
    # With two databases the ids are the primary's, and say nothing about the outbound table.
    has_dead_letters = config.primary is None
    reader = make_range_store(config, shard)
    return RangeTools(
        reader,
        make_range_store(config, shard),
        make_sink(config, config.shard_sink_name(shard)),
        config.limits.limits(),
        shard,
        config.shards,
        dead_letters=database(config.database).dead_letters(config.table)
        if has_dead_letters
        else None,
        bad_rows=config.bad_rows.policy(),
        guard=_guard(config, reader, exact=True),
        message_of=reader.message_of if isinstance(reader, TwoDatabasesStore) else None,
    )


def make_relay_tools(config: ReaperConfig) -> RelayTools:
    """What a leadership that sends to destinations works with. Raises `SinkUnavailable`."""
    tables = database(config.database)
    marker = make_store(config)
    try:
        sinks = {name: config.destination_sink(name) for name in config.destinations}
    except ConfigurationError as error:  # it was well when it was read: files are being replaced
        raise SinkUnavailable(f"a destination: {error}") from None
    return RelayTools(
        marker,
        make_store(config),
        sinks,
        {name: d.policy() for name, d in config.destinations.items()},
        config.router(lambda: (time.time() * 1000, time.monotonic() * 1000)),
        config.limits.limits(),
        tables.dead_letters(config.table),
        tables.attempts(config.table),
        config.bad_rows.policy(),
        _guard(config, marker, exact=False),
    )


def make_wal_tools(config: ReaperConfig) -> WalTools:
    """What a leadership in wal mode works with."""
    at_least_once = config.delivery == "idempotent"
    waits, envelope = _waits_for_topics(config), config.envelope()
    source = make_wal_source(config)
    return WalTools(
        source,
        make_wal_source(config),
        make_sink(config),
        IdempotentSink(config.producer_config, wait_for_topics=waits, envelope=envelope)
        if at_least_once
        else None,
        config.limits.limits(),
        database(config.database).wal_dead_letters(config.table, config.wal.options()),
        config.bad_rows.policy(),
        guard=WalGuard(source, make_record(config), config.registration()),
    )


def make_wal_source(config: ReaperConfig) -> PostgresWalSource:
    """The slot of `config`."""
    return database(config.database).wal_source(
        config.table, config.wal.options(config.columns.extra())
    )


def make_dead_letters(config: ReaperConfig) -> DeadLetterTable:
    """The dead letters of `config`."""
    tables = database(config.database)
    if config.mode == "wal":
        return tables.wal_dead_letters(config.table, config.wal.options())
    return tables.dead_letters(config.table)


def _guard(config: ReaperConfig, store: SourceStore, *, exact: bool) -> SourceGuard:
    """What looks whether the database is the one whose rows were published."""
    return SourceGuard(store, make_record(config), config.registration(), exact=exact)


def make_record(config: ReaperConfig) -> SourceRecord:
    """What Kafka knows of the database."""
    return SourceRecord(config.kafka, config.sink_name, config.coordination.topic)


def make_store(config: ReaperConfig) -> MarkStore:
    """The outbox table of `config`."""
    durable = config.delivery == "transactional"
    return database(config.database).mark_store(
        config.table, durable=durable, extra=config.columns.extra()
    )


def make_any_store(config: ReaperConfig) -> AnyStore:
    """The outbox table of `config`, in its mode."""
    return make_range_store(config) if config.mode == "range" else make_store(config)


def make_range_store(config: ReaperConfig, shard: int = 0) -> RangeStore:
    """The outbox table of `config` for a shard, in range mode."""
    tables = database(config.database)
    if config.primary is None:
        extra = config.columns.extra()
        return tables.range_store(config.table, shard=shard, shards=config.shards, extra=extra)
    primary = config.primary
    if config.shards > 1:
        raise ConfigurationError("two databases are harvested in one shard")
    replica = (
        None if primary.replica is None else PostgresIds(primary.replica, primary.ids, standby=True)
    )
    ids = PostgresIds(primary.database, primary.ids)
    return TwoDatabasesStore(ids, PostgresRangeStore(config.database, config.table), replica)


def make_sink(config: ReaperConfig, name: str | None = None) -> Sink:
    """The sink of `config`; `name` is that of the outbox, or of a shard of it."""
    waits, envelope = _waits_for_topics(config), config.envelope()
    if config.delivery == "idempotent" and config.mode == "mark":
        return IdempotentSink(config.producer_config, wait_for_topics=waits, envelope=envelope)
    return TransactionalSink(
        config.producer_config,
        base_config=config.kafka,
        name=name or config.sink_name,
        checkpoint_topic=config.coordination.topic,
        wait_for_topics=waits,
        envelope=envelope,
    )


def _waits_for_topics(config: ReaperConfig) -> bool:
    """Whether everything waits for a missing topic; otherwise its rows are set aside."""
    policy = config.bad_rows
    return policy.unknown_topic == "wait" and policy.on_bad_row == "stop"

"""A harvesting process from a configuration: the parts of `harvest reap`, put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.mark_store import MarkStore
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.interfaces.sink import Sink
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.databases.registry import database
from harvest.databases.two_databases import PostgresIds, TwoDatabasesStore
from harvest.errors import ConfigurationError
from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import PartitionPlan, carry_out, plan
from harvest.runtime.candidacy import Election, FairShare
from harvest.runtime.checkpoints import Checkpoints
from harvest.runtime.events import Event
from harvest.runtime.harvester import Harvester
from harvest.runtime.leadership import Tools
from harvest.runtime.mark_leader import MarkTools
from harvest.runtime.probes import ServerProbes
from harvest.runtime.range_leader import RangeTools, check_layout
from harvest.runtime.relay_leader import RelayTools
from harvest.runtime.waiting_topics import WaitingTopics, topics_of
from harvest.sinks.kafka.settings import connection_settings
from harvest.sinks.kafka.sink import IdempotentSink, TransactionalSink
from marshal_py import Marshal

__all__ = [
    "Process",
    "look_after_partitions",
    "make_archive",
    "make_range_store",
    "make_range_tools",
    "make_relay_tools",
    "make_sink",
    "make_store",
    "process",
]

_LOG: Final = logging.getLogger("harvest")


@dataclass(frozen=True, slots=True)
class Process:
    """A harvester that is ready to `run`, and what it stands on."""

    config: ReaperConfig
    marshal: Marshal
    harvester: Harvester

    def probes(self) -> ServerProbes:
        """Questions to its servers, on connections of their own."""
        ranges = self.config.mode == "range"
        store = make_range_store(self.config) if ranges else make_store(self.config)
        return ServerProbes(self.config, self.marshal, store)


def make_store(config: ReaperConfig) -> MarkStore:
    """The outbox table of `config`; connects when it is first used."""
    durable = config.delivery == "transactional"
    return database(config.database).mark_store(config.table, durable=durable)


def make_sink(config: ReaperConfig) -> Sink:
    """The sink of `config`; connects when it is first used."""
    if config.delivery == "idempotent":
        return IdempotentSink(config.producer_config, wait_for_topics=_waits_for_topics(config))
    return _transactional(config, config.sink_name)


def make_range_store(config: ReaperConfig, shard: int = 0) -> RangeStore:
    """The outbox table of `config` for a shard, in range mode; connects when it is first used."""
    tables = database(config.database)
    if config.primary is None:
        return tables.range_store(config.table, shard=shard, shards=config.shards)
    primary = config.primary
    if config.shards > 1:
        raise ConfigurationError("two databases are harvested in one shard")
    replica = None if primary.replica is None else PostgresIds(primary.replica, primary.ids)
    ids = PostgresIds(primary.database, primary.ids)
    return TwoDatabasesStore(ids, PostgresRangeStore(config.database, config.table), replica)


def make_range_tools(config: ReaperConfig, shard: int) -> RangeTools:
    """What a leadership of a shard works with; connects when it is first used."""
    return RangeTools(
        make_range_store(config, shard),
        make_range_store(config, shard),
        _transactional(config, config.shard_sink_name(shard)),
        config.limits.limits(),
        shard,
        config.shards,
        None,
        # With two databases the ids are the primary's, and say nothing about the outbound table.
        None if config.primary else database(config.database).dead_letters(config.table),
        config.bad_rows.policy(),
    )


def _waits_for_topics(config: ReaperConfig) -> bool:
    """Whether everything waits for a missing topic; otherwise its rows are set aside."""
    return config.bad_rows.unknown_topic == "wait" and config.bad_rows.on_bad_row == "stop"


@contextmanager
def _watching_topics(config: ReaperConfig, harvester: Harvester) -> Iterator[None]:
    """Rows that wait for topics are put back in time, if they are to wait."""
    policy = config.bad_rows
    dead_letters_are_used = policy.on_bad_row == "dead_letter" and config.primary is None
    if policy.unknown_topic != "wait" or config.destinations or not dead_letters_are_used:
        yield
        return
    admin = AdminClient(connection_settings(config.kafka))
    topics = WaitingTopics(
        database(config.database).dead_letters(config.table),
        lambda: topics_of(admin),
        mode=config.mode,
        leading=lambda: harvester.state == "leading",
    )
    topics.start()
    try:
        yield
    finally:
        topics.close()


def _transactional(config: ReaperConfig, name: str) -> TransactionalSink:
    return TransactionalSink(
        config.producer_config,
        base_config=config.kafka,
        name=name,
        checkpoint_topic=config.coordination.topic,
        wait_for_topics=_waits_for_topics(config),
    )


def _tools(config: ReaperConfig, shard: int = 0) -> Tools:
    if config.mode == "range":
        tools = make_range_tools(config, shard)
        if shard == 0 and config.partitions.automatic and config.primary is None:
            tools.maintain = _keeper(config)
        return tools
    if config.destinations:
        return make_relay_tools(config)
    return MarkTools(
        make_store(config),
        make_store(config),
        make_sink(config),
        config.limits.limits(),
        database(config.database).dead_letters(config.table),
        config.bad_rows.policy(),
    )


def make_relay_tools(config: ReaperConfig) -> RelayTools:
    """What a leadership that sends to destinations works with."""
    tables = database(config.database)
    return RelayTools(
        make_store(config),
        make_store(config),
        {
            name: d.sink(config.sink_name, config.producer_config)
            for name, d in config.destinations.items()
        },
        {name: d.policy() for name, d in config.destinations.items()},
        config.router(lambda: (time.time() * 1000, time.monotonic() * 1000)),
        config.limits.limits(),
        tables.dead_letters(config.table),
        tables.attempts(config.table),
        config.bad_rows.policy(),
    )


def look_after_partitions(config: ReaperConfig, *, dry_run: bool = False) -> PartitionPlan:
    """Create, drop and delete what is due; return what was done, or would be.

    Raises `HarvestError`.
    """
    if config.primary is not None:
        raise ConfigurationError(
            "partitions are not dropped where there are two databases: the positions are ids of "
            "the primary, and the partitions are of the outbound table"
        )
    store = database(config.database).partitions(config.table)
    archive = make_archive(config)
    try:
        checkpoints = Checkpoints(config)
        positions = [checkpoints.read(shard) for shard in range(config.shards)]
        todo = plan(store.inventory(), positions, config.partitions.policy())
        return todo if dry_run else carry_out(todo, store, config.partitions.policy(), archive)
    finally:
        store.close()


def make_archive(config: ReaperConfig) -> ParquetArchive | None:
    """The archive of `config`, if there is one. Raises `ConfigurationError`."""
    folder = config.partitions.archive
    return None if folder is None else ParquetArchive(folder, str(config.table))


def _keeper(config: ReaperConfig) -> Callable[[], None]:
    def keep() -> None:
        done = look_after_partitions(config)
        for low, high in done.create:
            _LOG.info("a partition for ids from %d to %d is ready", low, high - 1)
        for partition in done.drop:
            _LOG.info("the partition %s is dropped: all published", partition.name)
        for partition, why in done.unarchived:
            _LOG.error("the partition %s is not dropped: %s", partition.name, why)
        if done.swept:
            _LOG.info("%d rows are deleted: published, and old enough", done.swept)

    return keep


@contextmanager
def process(
    config: ReaperConfig, on_event: Callable[[Event], None] | None = None
) -> Iterator[Process]:
    """A process that is ready to `run`, with its own connection to the coordination topic.

    Raises what `marshal_py.Marshal` and `MarkStore.connect` raise.
    """
    # A missing table is found before anything is written to Kafka.
    if config.mode == "range":
        ranges = make_range_store(config)
        ranges.connect()
        check_layout(ranges, config.shards)
        ranges.close()
    else:
        store = make_store(config)
        store.connect()
        store.close()
    marshal = Marshal(
        connection_settings(config.kafka),
        group_id=config.group,
        client_id=config.name,
        interval_ms=config.coordination.interval_ms,
        topic=config.coordination.topic,
        create_topics=config.coordination.create_topics,
        close_on_sigterm=False,  # what is in flight is finished first
    )
    shards = config.shards
    with marshal:
        harvester = Harvester(
            FairShare(marshal, config.election_name, shards)
            if shards > 1
            else Election(marshal, config.election_name),
            lambda shard: _tools(config, shard),
            warm_standby=shards == 1,
            on_event=on_event,
            listener=None if config.primary else database(config.database).listener(config.table),
            drain_timeout_s=config.limits.drain_timeout_ms / 1000,
            fields={
                "group_id": marshal.group_id,
                "client_id": marshal.client_id,
                "topic": config.election_name,
            },
        )
        with _watching_topics(config, harvester):
            yield Process(config, marshal, harvester)

"""A harvesting process from a configuration: `harvest reap`, and `harvest.Harvest`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.listener import Listener
from harvest.databases.registry import database
from harvest.runtime.candidacy import Candidacy, Election, FairShare
from harvest.runtime.events import Event
from harvest.runtime.harvester import Harvester
from harvest.runtime.parts import (
    check_clients,
    make_any_store,
    make_dead_letters,
    make_range_store,
    make_store,
    make_tools,
    make_wal_source,
)
from harvest.runtime.probes import ServerProbes
from harvest.runtime.range_leader import check_layout
from harvest.runtime.registration import check_registration
from harvest.runtime.waiting_topics import WaitingTopics, topics_of
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.settings import connection_settings
from marshal_py import Marshal

__all__ = ["Process", "make_marshal", "process"]


@dataclass(frozen=True, slots=True)
class Process:
    """A harvester that is ready to `run`, and what it stands on."""

    config: ReaperConfig
    marshal: Marshal
    harvester: Harvester

    @property
    def max_age_s(self) -> float | None:
        """How old the oldest row that waits may be, where that counts as health."""
        limit_ms = self.config.limits.max_row_age_ms
        return None if limit_ms is None else limit_ms / 1000

    @property
    def labels(self) -> dict[str, str]:
        """Which outbox this is, of which group: the labels of all its metrics."""
        return {"group_id": self.config.group, "outbox": str(self.config.table)}

    def probes(self) -> ServerProbes:
        """Questions to its servers, on connections of their own."""
        config = self.config
        if config.mode == "wal":
            return ServerProbes(config, self.marshal, make_wal_source(config))
        return ServerProbes(config, self.marshal, make_any_store(config))


@contextmanager
def process(
    config: ReaperConfig, on_event: Callable[[Event], None] | None = None
) -> Iterator[Process]:
    """A process that is ready to `run`, with its own connection to the coordination topic.

    Raises what `check_clients`, `marshal_py.Marshal` and `MarkStore.connect` raise.
    """
    check_clients(config)
    _check_table(config)  # before anything is written to Kafka
    with make_marshal(config) as marshal:
        with closing(make_any_store(config)) as store:
            check_registration(config, store)
        harvester = Harvester(
            _make_candidacy(config, marshal),
            lambda shard: make_tools(config, shard),
            warm_standby=config.shards == 1,
            on_event=on_event,
            listener=_make_listener(config),
            drain_timeout_s=config.limits.drain_timeout_ms / 1000,
            fields={
                "group_id": marshal.group_id,
                "client_id": marshal.client_id,
                "topic": config.election_name,
            },
        )
        with _retrying_missing_topics(config, harvester):
            yield Process(config, marshal, harvester)


def _check_table(config: ReaperConfig) -> None:
    """Raises `TableMissing`, and `ConfigurationError` for another number of shards."""
    if config.mode == "wal":
        with closing(make_wal_source(config)) as source:
            source.connect()
    elif config.mode == "range":
        with closing(make_range_store(config)) as ranges:
            ranges.connect()
            check_layout(ranges, config.shards)
    else:
        with closing(make_store(config)) as store:
            store.connect()


def make_marshal(config: ReaperConfig) -> Marshal:
    """The client that stands for election, not started. Raises `marshal_py.ConfigurationError`."""
    return Marshal(
        connection_settings(config.kafka),
        group_id=config.group,
        client_id=config.name,
        interval_ms=config.coordination.interval_ms,
        topic=config.coordination.topic,
        create_topics=config.coordination.create_topics,
        close_on_sigterm=False,  # what is in flight is finished first
    )


def _make_listener(config: ReaperConfig) -> Listener | None:
    if config.primary is not None or config.mode == "wal":
        return None
    return database(config.listened_database).listener(config.table)


def _make_candidacy(config: ReaperConfig, marshal: Marshal) -> Candidacy:
    if config.shards > 1:
        return FairShare(marshal, config.election_name, config.shards)
    return Election(marshal, config.election_name)


@contextmanager
def _retrying_missing_topics(config: ReaperConfig, harvester: Harvester) -> Iterator[None]:
    """Rows that wait for missing topics are put back when those exist, if they are to wait."""
    policy = config.bad_rows
    dead_letters_are_used = policy.on_bad_row == "dead_letter" and config.primary is None
    if policy.unknown_topic != "wait" or config.destinations or not dead_letters_are_used:
        yield
        return
    admin = make_client(AdminClient, connection_settings(config.kafka))
    topics = WaitingTopics(
        make_dead_letters(config),
        lambda: topics_of(admin),
        mode=config.mode,
        leading=lambda: harvester.state == "leading",
    )
    topics.start()
    try:
        yield
    finally:
        topics.close()

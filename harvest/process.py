"""A harvesting process from a configuration: the parts of `harvest reap`, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harvest.config import ReaperConfig
from harvest.events import Event
from harvest.marshal import MarshalCandidate
from harvest.reaper import Reaper
from harvest.sink.base import Sink
from harvest.sink.kafka import IdempotentSink, TransactionalSink
from harvest.sink.settings import connection_settings
from harvest.store.notify import PostgresListener
from harvest.store.postgres import PostgresMarkStore
from marshal_py import Marshal

__all__ = ["make_sink", "make_store", "reaper"]


def make_store(config: ReaperConfig) -> PostgresMarkStore:
    """The outbox table of `config`; connects when it is first used."""
    durable = config.delivery == "transactional"
    return PostgresMarkStore(config.database, config.table, durable=durable)


def make_sink(config: ReaperConfig) -> Sink:
    """The sink of `config`; connects when it is first used."""
    if config.delivery == "idempotent":
        return IdempotentSink(config.producer_config)
    return TransactionalSink(
        config.producer_config,
        base_config=config.kafka,
        name=config.sink_name,
        checkpoint_topic=config.coordination.topic,
    )


@contextmanager
def reaper(
    config: ReaperConfig, on_event: Callable[[Event], None] | None = None
) -> Iterator[Reaper]:
    """A reaper that is ready to `run`, with its own connection to the coordination topic.

    Raises what `marshal_py.Marshal` and `MarkStore.connect` raise.
    """
    store = make_store(config)
    store.connect()  # a missing table is found before anything is written to Kafka
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
    with marshal, MarshalCandidate(marshal, config.election_name) as candidate:
        yield Reaper(
            candidate=candidate,
            stores=lambda: make_store(config),
            sinks=lambda: make_sink(config),
            limits=config.limits.limits(),
            on_event=on_event,
            listener=PostgresListener(store.conninfo, config.table),
            drain_timeout_s=config.limits.drain_timeout_ms / 1000,
        )

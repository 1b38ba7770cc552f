"""How fast an outbox is drained on given servers, for `harvest bench`.

Everything has scratch names of its own: a table, a topic, a coordination topic, a group. They are
removed at the end, also after a failure or Ctrl-C; nothing is read from or sent to anywhere else.
"""

from __future__ import annotations

import contextlib
import resource
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

from harvest.config.model import CoordinationConfig, Mode, ReaperConfig
from harvest.errors import ConfigurationError, SinkUnavailable, StoreUnavailable
from harvest.runtime.embedding import Harvest
from harvest.runtime.events import Event, LeaderRefreshed
from harvest.runtime.parts import make_range_store, make_store
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.settings import connection_settings

__all__ = ["BenchResult", "Work", "check_reachable", "drain_benchmark", "scratch_config"]

_TIMEOUT_S: Final = 20.0
_FILL_ROWS: Final = 50_000
_FILL: Final = """
INSERT INTO {table} (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys,
  kafka_header_values)
SELECT now(), {topic}, 'key-' || (n %% %(keys)s), repeat('x', %(value_bytes)s), '{{}}', '{{}}'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
_SCRATCH: Final = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
  AND relkind IN ('r', 'p') AND starts_with(relname, %s)
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What is drained."""

    rows: int = 100_000
    value_bytes: int = 256
    keys: int = 10_000
    partitions: int = 6


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What came out. CPU is of the harvester, in this process; so is the memory, at its peak."""

    mode: str
    rows: int
    fill_rows_per_s: float
    drain_rows_per_s: float
    cpu_s_per_100k: float
    peak_mb: float


def drain_benchmark(
    config: ReaperConfig, mode: Mode, work: Work, *, timeout_s: float = 600
) -> BenchResult:
    """Fill a scratch outbox and drain it, with the settings of `config`.

    Raises what a start of `Harvest` raises, and `SinkUnavailable` if it takes longer than
    `timeout_s`.
    """
    name = f"harvest_bench_{secrets.token_hex(4)}"
    scratch = scratch_config(config, mode, name)
    with _topic(scratch, name, work), _table(scratch, name):
        started_s = time.monotonic()
        _fill(scratch, name, work)
        filled_s = time.monotonic() - started_s
        drained_s, cpu_s = _drain(scratch, work, timeout_s)
    return BenchResult(
        f"{mode}, {'exactly once' if scratch.delivery == 'transactional' else 'at least once'}",
        work.rows,
        work.rows / filled_s,
        work.rows / drained_s,
        cpu_s * 100_000 / work.rows,
        _peak_mb(),
    )


def scratch_config(config: ReaperConfig, mode: Mode, name: str) -> ReaperConfig:
    """The configuration that is measured: an outbox and a group `name`, to Kafka, in one shard.

    Of `config` it has the servers, clients' settings and bounds, and in mark mode the delivery.
    Whatever says where rows come from or go to, or what they are made of, is left out.
    """
    return ReaperConfig(
        kafka=config.kafka,
        producer=config.producer,
        partitioner=config.partitioner,
        database=config.database,
        direct_database=config.direct_database,
        outbox=name,
        group=name,
        mode=mode,
        delivery=config.delivery if mode == "mark" else "transactional",
        coordination=CoordinationConfig(
            topic=f"{name}.marshal",
            interval_ms=config.coordination.interval_ms,
            create_topics=True,
        ),
        limits=config.limits,
        harvest_id=config.harvest_id,
    )


def _drain(config: ReaperConfig, work: Work, timeout_s: float) -> tuple[float, float]:
    """Seconds of time and of CPU from the first mark or read to the last settled row."""
    began = threading.Event()

    def hear(event: Event) -> None:
        if isinstance(event, LeaderRefreshed):
            began.set()

    with Harvest(config, on_event=hear, meter_interval_s=60) as harvest:
        deadline = time.monotonic() + timeout_s
        started_s, cpu_s = time.monotonic(), time.process_time()
        while harvest.stats.published < work.rows:
            if not began.is_set():  # how long an election takes is not measured
                started_s, cpu_s = time.monotonic(), time.process_time()
            if time.monotonic() > deadline:
                raise SinkUnavailable(
                    f"{harvest.stats.published} of {work.rows} rows were published within "
                    f"{timeout_s:.0f} s; the log says why, or take fewer --rows"
                )
            if harvest.await_(0.005):
                break
        return time.monotonic() - started_s, time.process_time() - cpu_s


def _fill(config: ReaperConfig, name: str, work: Work) -> None:
    statement = sql.SQL(_FILL).format(table=sql.Identifier(name), topic=sql.Literal(name))
    with psycopg.connect(config.database, autocommit=True) as connection:
        for first in range(1, work.rows + 1, _FILL_ROWS):
            last = min(work.rows, first + _FILL_ROWS - 1)
            given = {"keys": work.keys, "value_bytes": work.value_bytes}
            connection.execute(statement, {**given, "first": first, "last": last})
        connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(name)))


@contextlib.contextmanager
def _table(config: ReaperConfig, name: str) -> Iterator[None]:
    store = make_range_store(config) if config.mode == "range" else make_store(config)
    try:
        with contextlib.closing(store):
            store.init()
        yield
    finally:
        with psycopg.connect(config.database, autocommit=True) as connection:
            for (table,) in connection.execute(_SCRATCH, (name,)).fetchall():
                drop = sql.SQL("DROP TABLE IF EXISTS {} CASCADE")
                connection.execute(drop.format(sql.Identifier(table)))


@contextlib.contextmanager
def _topic(config: ReaperConfig, name: str, work: Work) -> Iterator[None]:
    admin = make_client(AdminClient, connection_settings(config.kafka))
    try:
        made = admin.create_topics([NewTopic(name, work.partitions)], request_timeout=_TIMEOUT_S)
        made[name].result()
    except KafkaException as error:
        raise SinkUnavailable(f"the scratch topic {name} cannot be made: {error}") from error
    try:
        yield
    finally:
        coordination = config.coordination.topic
        for topic in (name, coordination, f"{coordination}.snapshots"):
            with contextlib.suppress(KafkaException):
                admin.delete_topics([topic], request_timeout=_TIMEOUT_S)[topic].result()
        for group in (f"harvest.{config.sink_name}", f"harvest.{config.shard_sink_name(0)}"):
            with contextlib.suppress(KafkaException, TimeoutError):
                admin.delete_consumer_groups([group])[group].result(_TIMEOUT_S)


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def check_reachable(config: ReaperConfig) -> None:
    """Raise early, before anything is made: `StoreUnavailable`, or `ConfigurationError`."""
    scheme = config.database.partition("://")[0]
    if "://" in config.database and scheme not in ("postgresql", "postgres"):
        raise ConfigurationError(f"bench fills a PostgreSQL database, not {scheme}://…")
    try:
        psycopg.connect(config.database, connect_timeout=10).close()
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        raise StoreUnavailable(f"the database cannot be reached: {text}") from error

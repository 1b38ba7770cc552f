"""The fixtures: what is skipped, what fails, and when the database of a test comes and goes."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py.embedded import BinariesNotFound, ServerFailed, pytest_plugin


class Server:
    """Keeps what is done with it."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.done: list[str] = []
        self.failure = failure

    def start(self) -> None:
        self.done.append("start")
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("close")

    def create_database(self) -> str:
        self.done.append("create")
        return "mysql://root@127.0.0.1:3306/test_1"

    def drop_database(self, name: str) -> None:
        self.done.append(f"drop {name}")


def test_a_database_is_dropped_after_its_test_on_a_server_that_runs() -> None:
    """The test may have killed it."""
    server: Any = Server()
    fixture = pytest_plugin._own_database(server)
    assert next(fixture) == "mysql://root@127.0.0.1:3306/test_1"
    assert server.done == ["start", "create"]
    assert list(fixture) == []
    assert server.done == ["start", "create", "start", "drop test_1"]


def test_a_server_ends_with_the_session() -> None:
    server: Any = Server()
    fixture = pytest_plugin._running(server)
    assert next(fixture) is server
    assert list(fixture) == []
    assert server.done == ["start", "close"]


def test_where_programs_are_missing_tests_are_skipped_and_say_why() -> None:
    server: Any = Server(BinariesNotFound("no mariadbd"))
    with pytest.raises(pytest.skip.Exception, match="no mariadbd"):
        next(pytest_plugin._running(server))


def test_a_server_that_does_not_start_is_a_failure_and_no_skip() -> None:
    server: Any = Server(ServerFailed("no disk"))
    with pytest.raises((ServerFailed, pytest.skip.Exception)) as ended:
        next(pytest_plugin._running(server))
    assert ended.type is ServerFailed


def test_a_package_that_is_missing_is_named() -> None:
    pytest_plugin._require("pytest")
    with pytest.raises(pytest.fail.Exception, match=r"needs no_such_package: run `pip install"):
        pytest_plugin._require("pytest", "no_such_package")

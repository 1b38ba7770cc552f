"""Options that several commands have."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import pytest

from marshal_py.admin.connection import Connection
from marshal_py.cli.options import moment
from marshal_py.errors import InvalidArgument
from tests.support.marshal_command import without_brokers


def test_a_moment_is_in_milliseconds_and_none_if_none_was_given() -> None:
    assert moment(None) is None
    assert moment("1970-01-01T00:00:01Z") == 1_000
    now_ms = time.time_ns() // 1_000_000
    ago_ms = moment("10s")
    assert ago_ms is not None
    assert now_ms - 10_000 <= ago_ms <= time.time_ns() // 1_000_000 - 10_000


def test_what_is_to_come_has_no_state_yet() -> None:
    with pytest.raises(InvalidArgument, match="'2100-01-01' lies in the future"):
        moment("2100-01-01")


@pytest.mark.parametrize(
    ("command", "option", "value", "longest"),
    [
        ("status", "--observe", "inf", "31536000"),
        ("top", "--every", "1e20", "31536000"),
        ("tail", "--lines", "99999999999999999999", "1000000000"),
        ("dashboard", "--history", "inf", "31536000"),
        ("dashboard", "--lag-every", "inf", "31536000"),
        ("doctor", "--watch", "inf", "31536000"),
        ("lag", "--timeout", "inf", "3600"),
        ("group pause billing", "--wait", "inf", "31536000"),
        ("audit", "--sample", "1e20", "31536000"),
        ("audit", "--every", "inf", "31536000"),
        ("audit", "--report-days", "9999999", "3650"),
        ("lake run", "--grace", "1e20", "31536000"),
        ("lake run", "--sample", "inf", "31536000"),
        ("lake run", "--late-days", "9999999", "3650"),
        ("lake run", "--every", "inf", "31536000"),
        ("lake maintain", "--vacuum", "1e20", "87600"),
    ],
    ids=lambda value: value.replace(" ", "_"),
)
def test_what_is_too_large_to_be_meant_is_refused_with_the_largest_value(
    command: str, option: str, value: str, longest: str
) -> None:
    done = without_brokers(*command.split(), option, value)
    assert done.exit_code == 2, done.stderr
    assert option in done.stderr
    assert longest in done.stderr


MODULES = {"members": "groups"}
"""Of the commands that are not called like theirs."""


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        ("claims", "read_world"),
        ("groups", "read_world"),
        ("members", "read_world"),
        ("lag", "read_world"),
        ("status", "read_status"),
        ("top", "open_reader"),
    ],
)
def test_the_log_is_asked_what_the_command_was_asked(
    monkeypatch: pytest.MonkeyPatch, command: str, reads: str
) -> None:
    found: list[dict[str, Any]] = []

    def read_world(connection: Connection, **how: Any) -> None:
        found.append({"topic": connection.topic, **how})
        raise InvalidArgument("enough")

    def read_status(connection: Connection, observe_s: float, wire: Any) -> None:
        read_world(connection, observe_s=observe_s, wire=wire)

    def open_reader(connection: Connection, wire: Any) -> None:
        read_world(connection, wire=wire)

    def asked(*options: str) -> dict[str, Any]:
        done = without_brokers(command, *options, MARSHAL_TOPIC="mine")
        assert "enough" in done.stderr
        return found.pop()

    module = import_module(f"marshal_py.cli.{MODULES.get(command, command)}")
    fakes = {"read_world": read_world, "read_status": read_status, "open_reader": open_reader}
    monkeypatch.setattr(module, reads, fakes[reads])
    assert asked()["topic"] == "mine"
    assert asked()["wire"].name == "msgpack"
    text = asked("--wire", "text", "--interval", "7")["wire"]
    assert (text.name, text.state.keywords["interval_s"]) == ("text", 7)
    if command not in ("status", "top"):
        assert asked("--at", "1970-01-01T00:00:05Z")["at_ms"] == 5_000
        assert asked()["at_ms"] is None
    if command not in ("lag", "top"):
        assert asked("--observe", "2.5")["observe_s"] == 2.5
        assert asked()["observe_s"] == 0


class View:
    """A world in which there is the group `billing`."""

    is_text = False

    def require_group(self, group: str | None) -> None:
        if group not in (None, "billing"):
            raise InvalidArgument(f"no group {group!r}")

    def explain(self) -> str:
        return "By timestamps."


@pytest.mark.parametrize(
    ("command", "rows", "filters"),
    [
        ("claims", "claim_rows", {"topic": "orders", "held": True}),
        ("members", "summarize", {}),
        ("lag", "measure_lag", {"topic": "orders", "by_slot": True}),
    ],
)
def test_what_was_filtered_is_of_that_and_a_group_that_nobody_knows_is_an_error(
    monkeypatch: pytest.MonkeyPatch, command: str, rows: str, filters: dict[str, Any]
) -> None:
    module = import_module(f"marshal_py.cli.{MODULES.get(command, command)}")

    asked: list[dict[str, Any]] = []

    def find(*_: object, **filters: Any) -> None:
        asked.append(filters)
        raise InvalidArgument("enough")

    monkeypatch.setattr(module, "read_world", lambda *_, **__: View())
    monkeypatch.setattr(module, rows, find)
    options = ["--group", "billing"]
    for name, value in filters.items():
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    without_brokers(command, *options)
    assert asked.pop() == {"group": "billing", **filters}
    without_brokers(command)
    assert not any(asked.pop().values())
    done = without_brokers(command, "--group", "biling")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no group 'biling'" in done.stderr

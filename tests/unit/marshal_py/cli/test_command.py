"""The connection flags that every command has: before its name, after it, in the environment."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import typer

from marshal_py.admin.connection import Connection
from marshal_py.cli import command
from marshal_py.cli import snapshot as module
from marshal_py.cli.app import app
from tests.support.marshal_command import without_brokers


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """The connections that the command `snapshot` was run with."""
    found: list[Connection] = []

    def write_snapshots(connection: Connection) -> tuple[str, list[dict[str, int]]]:
        found.append(connection)
        return "me", []

    monkeypatch.setattr(module, "write_snapshots", write_snapshots)
    return found


def test_the_environment_says_what_no_flag_does(used: list[Connection], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\n")
    done = without_brokers(
        "snapshot",
        MARSHAL_BOOTSTRAP_SERVERS="there:1",
        MARSHAL_TOPIC="mine",
        MARSHAL_CONFIG=str(file),
    )
    assert done.exit_code == 0
    (connection,) = used
    assert connection.topic == "mine"
    assert connection.kafka["bootstrap.servers"] == "there:1"
    assert connection.kafka["security.protocol"] == "SSL"
    assert connection.timeout_s == 10


def test_a_flag_after_the_name_wins_over_one_before_it_and_that_over_the_environment(
    used: list[Connection],
) -> None:
    before = ["-b", "before:1", "--topic", "before", "--timeout", "3"]
    without_brokers(*before, "snapshot", MARSHAL_TOPIC="environment")
    without_brokers(*before, "snapshot", "-b", "after:1", "--topic", "after", "--timeout", "4")
    assert [(c.kafka["bootstrap.servers"], c.topic, c.timeout_s) for c in used] == [
        ("before:1", "before", 3),
        ("after:1", "after", 4),
    ]


def test_without_brokers_it_is_told_how_to_name_them(used: list[Connection]) -> None:
    done = without_brokers("snapshot", MARSHAL_BOOTSTRAP_SERVERS="")
    assert (done.exit_code, used) == (2, [])
    assert "-b HOST:PORT" in done.stderr


def test_who_breaks_off_a_question_has_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: Connection) -> tuple[str, list[Any]]:
        raise typer.Abort

    monkeypatch.setattr(module, "write_snapshots", ask)
    with pytest.raises(SystemExit) as end:
        app(["snapshot", "-b", "there:1"])
    assert end.value.code == 130


@pytest.mark.parametrize("arguments", [["-v", "snapshot"], ["snapshot", "-v"], ["snapshot"]])
def test_what_a_client_does_is_told_if_that_is_wanted(
    used: list[Connection], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    levels: list[int] = []
    monkeypatch.setattr(command, "log_to_stderr", lambda _: levels.append(-1))
    monkeypatch.setattr(logging.getLogger("marshal_py"), "setLevel", levels.append)
    without_brokers(*arguments)
    assert len(used) == 1
    assert levels == ([-1, logging.INFO] if "-v" in arguments else [])


def test_what_nobody_foresaw_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_down(_: Connection) -> tuple[str, list[Any]]:
        raise ZeroDivisionError("\x1b[2J")

    monkeypatch.setattr(module, "write_snapshots", break_down)
    with pytest.raises(SystemExit) as end:
        app(["snapshot", "-b", "there:1"])
    assert end.value.code == 4
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "\x1b" not in told

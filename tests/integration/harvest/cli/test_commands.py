"""The `harvest` command: output, JSON and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from harvest.cli.app import app


def harvest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harvest.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_init_stash_and_check(postgres_database: str) -> None:
    url = postgres_database
    missing = harvest("check", "-d", url)
    assert missing.returncode == 1
    assert "outbox does not exist: run `harvest init`" in missing.stdout

    assert json.loads(harvest("init", "-d", url, "--json").stdout) == {
        "table": "outbox",
        "created": True,
    }
    again = harvest("init", "-d", url)
    assert (again.returncode, again.stdout) == (0, "outbox: exists already, left as it is\n")

    stashed = harvest("stash", "orders", "o-1", '{"a": 1}', "-H", "n=x=y", "-d", url)
    assert (stashed.returncode, stashed.stderr) == (0, "")
    harvest("stash", "orders", "o-1", "-d", url)
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values "
            "FROM outbox ORDER BY id"
        ).fetchall()
    assert rows == [
        ("orders", "o-1", '{"a": 1}', ["n"], ["x=y"]),
        ("orders", "o-1", None, [], []),
    ]
    report = json.loads(harvest("check", "-d", url, "--json").stdout)
    assert report["ok"] is True
    assert report["backlog_rows"] == 2


@pytest.mark.parametrize("mode", ["range", "wal"])
def test_init_makes_the_first_partitions_as_they_are_configured(
    postgres_database: str, tmp_path: Path, mode: str
) -> None:
    config = tmp_path / "reaper.yaml"
    config.write_text(
        f"kafka: {{bootstrap.servers: 'unused:1'}}\ndatabase: {postgres_database}\ngroup: g\n"
        f"mode: {mode}\n"
        + ("wal: {purge: partitions}\n" if mode == "wal" else "")
        + "partitions: {rows: 20, ahead: 2}\n"
    )
    assert harvest("init", "-c", str(config)).returncode == 0
    with psycopg.connect(postgres_database) as connection:
        parts = connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits "
            "WHERE inhparent = 'outbox'::regclass ORDER BY inhrelid"
        ).fetchall()
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
    assert [name for (name,) in parts] == ["outbox_default", "outbox_p0", "outbox_p20"]


def test_init_with_bytes_and_another_name(postgres_database: str) -> None:
    table = '"Odd Name"'
    assert harvest("init", "-d", postgres_database, "-t", table, "--bytes").returncode == 0
    with psycopg.connect(postgres_database) as connection:
        kinds = connection.execute(
            "SELECT data_type FROM information_schema.columns "
            "WHERE table_name = 'Odd Name' AND column_name IN ('kafka_key', 'kafka_value')"
        ).fetchall()
    assert kinds == [("bytea",), ("bytea",)]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["init"], 2, "give either --config FILE or --database"),
        (["init", "-d", "host=127.0.0.1 port=1 password=hush"], 3, "cannot be reached"),
        (["init", "-d", "nonsense hush"], 2, "cannot be read"),
        (["check", "-c", "nowhere.yaml"], 2, "nowhere.yaml cannot be read"),
        (["stash", "bad topic", "k", "-d", "dbname=x"], 2, "topic is 'bad topic'"),
        (
            ["stash", "t", "k", "v", "-H", "x", "-d", "dbname=x"],
            2,
            "--header 'x': write name=value",
        ),
        (["reap", "-c", "nowhere.yaml"], 2, "nowhere.yaml"),
        (["reap"], 2, "--config"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistakes_and_outages_have_their_exit_codes(
    arguments: list[str], code: int, words: str
) -> None:
    result = harvest(*arguments)
    assert result.returncode == code
    assert words in result.stderr
    assert "hush" not in result.stderr
    assert "Traceback" not in result.stderr


def test_reaping_without_a_table_says_what_to_do(postgres_database: str, tmp_path: Path) -> None:
    config = tmp_path / "reaper.yaml"
    config.write_text(
        f"kafka: {{bootstrap.servers: '127.0.0.1:1'}}\ndatabase: {postgres_database}\ngroup: g\n"
    )
    result = harvest("reap", "-c", str(config))
    assert result.returncode == 2
    assert "run `harvest init`" in result.stderr


def test_every_command_has_help_with_an_example() -> None:
    commands = [
        command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    assert commands[:6] == ["init", "reap", "stash", "check", "bench", "reconcile"]
    for command in commands:
        result = harvest(command, "--help")
        assert result.returncode == 0
        assert f"harvest {command}" in result.stdout
        assert "Example:" in result.stdout

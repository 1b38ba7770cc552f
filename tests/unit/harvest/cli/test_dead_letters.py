"""`harvest dead-letters` on a real table: which rows it means, what it says, how it ends."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli.app import app
from harvest.core.dead_letters import BadRow
from harvest.core.mark_checkpoint import Term
from harvest.core.source import Registration
from harvest.core.table_name import TableName
from harvest.databases.registry import database
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher

OUTBOX = TableName(("outbox",))
TERM = Term.of(1)
KEYS = ("a", "a", "b", "a key that is longer than the column of keys", "c")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An outbox of five rows. The first, with the second behind it, the third and the fourth are
    set aside; the first and the last are of the topic `orders`."""
    url = f"sqlite:///{tmp_path}/shop.db"
    tables = database(url)
    with closing(tables.mark_store(OUTBOX)) as store, closing(tables.dead_letters(OUTBOX)) as aside:
        store.init()
        with tables.transaction() as connection:
            for number, key in enumerate(KEYS):
                topic = "orders" if number in (0, 1, 4) else "bills"
                Stasher().stash(connection, OutboxRecord(topic, key, "value"))
        store.mark(TERM, 0, 100, 60_000.0)
        bad = [BadRow(1, "too large"), BadRow(2, "", waits=True), BadRow(3, "no"), BadRow(4, "no")]
        assert aside.add(bad, TERM) == {1, 2, 3, 4}
        store.reset([5], TERM.tag(0))
    return url


def run(url: str, *arguments: str, code: int = 0) -> Any:
    """What the command says as JSON."""
    done = CliRunner().invoke(app, ["dead-letters", *arguments, "-d", url, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def shown(url: str, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["dead-letters", *arguments, "-d", url])
    assert done.exit_code == code, done.output
    return done.stdout


def waiting(url: str) -> list[int]:
    with closing(database(url).mark_store(OUTBOX)) as store:
        return [row_id for row_id, _, _ in store.first_rows(0, 100)]


def test_a_list_counts_all_and_shows_as_many_as_it_may(url: str) -> None:
    assert (
        shown(url, "list", "--limit", "3", code=1)
        .splitlines()[-1]
        .endswith("outbox_dead_letters: 4 rows, 3 shown")
    )
    assert shown(url, "list", "--limit", "4", code=1).splitlines()[-1].endswith("4 rows")
    listed = run(url, "list", "--limit", "1", code=1)
    assert (listed["count"], [row["id"] for row in listed["rows"]]) == (4, [1])


def test_a_list_says_of_each_row_what_an_operator_needs(url: str) -> None:
    first, second = run(url, "list", "--topic", "orders", code=1)["rows"]
    assert first.pop("dead_lettered_at").endswith("+00:00")
    assert first == {
        "id": 1,
        "topic": "orders",
        "key": "a",
        "value_bytes": 5,
        "error": "too large",
        "waits": False,
        "destination": None,
        "retries": None,
        "destination_response_status": None,
    }
    assert (second["id"], second["waits"]) == (2, True)
    lines = shown(url, "list", code=1).splitlines()
    assert "too large" in lines[0]
    assert f"  {KEYS[3][:23]}…  " in lines[3]


def test_a_key_that_is_none_or_no_text_is_shown(url: str) -> None:
    with database(url).transaction() as connection:
        for id, key in ((3, "NULL"), (4, "x'61ff'")):
            connection.execute(f"UPDATE outbox_dead_letters SET kafka_key = {key} WHERE id = {id}")
    rows = run(url, "list", "--topic", "bills", code=1)["rows"]
    assert [row["key"] for row in rows] == [None, "a\\xff"]
    first, second, _ = shown(url, "list", "--topic", "bills", code=1).splitlines()
    assert "  bills  NULL  " in first
    assert "  bills  a\\xff  " in second


def test_what_is_selected_by_each_option(url: str) -> None:
    for options, ids in (
        (["--id", "3", "--id", "1"], [1, 3]),
        (["--topic", "bills"], [3, 4]),
        (["--key", "b"], [3]),
        (["--topic", "bills", "--key", "a"], []),
        (["--since", "2000-01-01T00:00:00Z"], [1, 2, 3, 4]),
        (["--until", "2000-01-01T00:00:00Z"], []),
        (["--since", "2999-01-01"], []),
    ):
        listed = run(url, "list", *options, code=1 if ids else 0)
        assert [row["id"] for row in listed["rows"]] == ids
        assert listed["count"] == len(ids)


@pytest.mark.parametrize("command", ["retry", "drop"])
@pytest.mark.parametrize(
    "options", [[], ["--all", "--id", "1"], ["--all", "--since", "2020-01-01"]]
)
def test_nothing_is_changed_until_somebody_has_said_which_rows(
    url: str, command: str, options: list[str]
) -> None:
    done = CliRunner().invoke(app, ["dead-letters", command, *options, "-d", url])
    assert done.exit_code == 2
    assert "say which rows" in done.stderr
    assert run(url, "list", code=1)["count"] == 4


def test_a_dry_run_counts_and_changes_nothing(url: str) -> None:
    assert run(url, "retry", "--key", "a", "--dry-run") == {"retried": 2, "dry_run": True}
    assert "2 rows would go back" in shown(url, "retry", "--key", "a", "--dry-run")
    assert run(url, "drop", "--id", "1", "--dry-run") == {
        "dropped": 1,
        "released": 0,
        "dry_run": True,
    }
    assert shown(url, "drop", "--id", "1", "--dry-run") == "1 rows would be dropped\n"
    assert run(url, "list", code=1)["count"] == 4


def test_what_is_retried_is_in_the_outbox_again(url: str) -> None:
    assert run(url, "retry", "--key", "a") == {"retried": 2, "dry_run": False}
    assert waiting(url) == [1, 2, 5]
    assert shown(url, "retry", "--all") == "2 rows went back into the outbox\n"
    assert waiting(url) == [1, 2, 3, 4, 5]
    assert shown(url, "list") == "outbox_dead_letters: 0 rows\n"


def test_what_is_dropped_is_gone_and_what_waited_for_it_goes_on(url: str) -> None:
    assert shown(url, "drop", "--id", "1") == (
        "1 rows were dropped, 1 that waited for them are in the outbox\n"
    )
    assert waiting(url) == [2, 5]
    assert run(url, "drop", "--all") == {"dropped": 2, "released": 0, "dry_run": False}
    assert waiting(url) == [2, 5]


@pytest.mark.parametrize("option", ["--since", "--until"])
@pytest.mark.parametrize(
    "text", ["soon", "2026-02-30", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
)
def test_a_time_that_is_none_is_named_with_its_option(url: str, option: str, text: str) -> None:
    """Nor is one that the years that there are do not hold."""
    done = CliRunner().invoke(app, ["dead-letters", "list", option, text, "-d", url])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{option} is '{text}'" in done.stderr


def test_a_time_without_a_zone_is_that_of_this_machine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        hour_ago = f"{datetime.now() - timedelta(hours=1):%Y-%m-%dT%H:%M:%S}"
        listed = run(url, "list", "--since", hour_ago, code=1)
    time.tzset()
    assert listed["count"] == 4


def test_a_window_in_which_nothing_can_lie_is_not_one_without_dead_letters(url: str) -> None:
    window = ["--since", "2026-03-02", "--until", "2026-03-02"]
    done = CliRunner().invoke(app, ["dead-letters", "list", *window, "-d", url])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--until 2026-03-02 is not after --since 2026-03-02" in done.stderr


def register(url: str, mode: str) -> None:
    with closing(database(url).mark_store(OUTBOX)) as store:
        store.register(Registration("kafka", "__marshal", "g", mode))


@pytest.mark.parametrize("command", ["retry", "drop"])
@pytest.mark.parametrize("mode", ["range", "wal"])
def test_nothing_is_put_back_where_no_harvester_looks_for_it(
    url: str, command: str, mode: str
) -> None:
    """Without a file the mode is that of the harvesters, or it is refused: in range mode, what came
    back under its old id would be below the position, and in no table of rows set aside."""
    register(url, mode)
    done = CliRunner().invoke(app, ["dead-letters", command, "--all", "-d", url])
    assert done.exit_code == 2
    assert f"outbox is harvested in mode {mode}, and not mark" in done.stderr
    assert run(url, "list", code=1)["count"] == 4
    assert waiting(url) == [5]


@pytest.mark.parametrize("mode", ["mark", "relay"])
def test_destinations_have_the_table_of_mark_mode(url: str, mode: str) -> None:
    register(url, mode)
    assert run(url, "retry", "--all") == {"retried": 4, "dry_run": False}

"""`harvest stash`: the row that it writes, and how it ends where it writes none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harvest.cli.app import app
from harvest.core.mark_checkpoint import Term
from harvest.core.table_name import TableName
from harvest.databases.registry import database

OUTBOX = TableName(("outbox",))


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    with closing(database(url).mark_store(OUTBOX)) as store:
        store.init()
    return url


def stash(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["stash", *arguments, "-d", url])


def test_a_row_is_what_was_said(url: str) -> None:
    assert stash(url, "orders", "k", "v", "-H", "a=b=c", "-H", "a=").output == (
        "outbox: one row for orders, key 'k'\n"
    )
    assert stash(url, "orders", "k").exit_code == 0
    with closing(database(url).mark_store(OUTBOX)) as store:
        first, second = store.mark(Term.of(1), 0, 10, 60_000.0)
    assert (first.topic, first.key, first.value) == ("orders", b"k", b"v")
    assert (first.header_keys, first.header_values) == ((b"a", b"a"), (b"b=c", b""))
    assert (second.value, second.header_keys) == (None, ())


def test_a_table_that_is_not_there_is_told_and_no_file_is_made(tmp_path: Path, url: str) -> None:
    nowhere = tmp_path / "nowhere.db"
    done = stash(f"sqlite:///{nowhere}", "orders", "k")
    assert (done.exit_code, nowhere.exists()) == (2, False)
    assert "run `harvest init`" in done.stderr
    done = stash(url, "orders", "k", "-t", "other")
    assert (done.exit_code, "run `harvest init`" in done.stderr) == (2, True)


def test_a_row_that_the_database_refuses_is_told_in_a_line(url: str) -> None:
    with database(url).transaction() as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'no rows'); END"
        )
    done = stash(url, "orders", "k")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == "error: the database broke off a transaction: no rows\n"

"""Which database a connection string means, and what is refused for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harvest.core.table_name import TableName
from harvest.core.wal_options import WalOptions
from harvest.databases.registry import database
from harvest.errors import ConfigurationError

TABLE = TableName.parse("outbox")


@pytest.fixture(params=["SQLite", "MySQL"])
def polled(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Its name, and a connection string. Nothing is connected to."""
    urls = {"SQLite": f"sqlite:///{tmp_path}/app.db", "MySQL": "mysql://user@127.0.0.1:1/app"}
    return request.param, urls[request.param]


def test_notifications_are_refused_where_there_are_none(polled: tuple[str, str]) -> None:
    name, url = polled
    with pytest.raises(ConfigurationError, match=f"--notify: {name} has no notifications"):
        database(url).install_notify(TABLE, remove=False)
    assert database(url).listener(TABLE) is None
    assert database(url).attempts(TABLE) is None


def test_the_log_is_refused_where_it_is_not_read(polled: tuple[str, str]) -> None:
    _, url = polled
    found = database(url)
    for ask in (
        lambda: found.wal_source(TABLE, WalOptions()),
        lambda: found.wal_dead_letters(TABLE, WalOptions()),
        lambda: found.wal_partitions(TABLE, lambda: 0),
    ):
        with pytest.raises(ConfigurationError, match="mode: wal is for PostgreSQL"):
            ask()

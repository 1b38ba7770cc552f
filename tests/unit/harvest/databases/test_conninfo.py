"""Connection strings: those of libpq, and of Go's lib/pq."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest.databases.postgres.conninfo import libpq_conninfo, parsed_conninfo
from harvest.databases.postgres.table import PostgresTable
from harvest.databases.registry import database
from harvest.errors import ConfigurationError


@pytest.mark.parametrize(
    ("source", "pairs"),
    [
        (
            "host=h search_path=a options='-c geqo=off' work_mem=64MB",
            {"host": "h", "options": "-c search_path=a -c geqo=off -c work_mem=64MB"},
        ),
        ("host = h   port= 5433", {"host": "h", "port": "5433"}),
        ("host=h disable_prepared_binary_result=yes", {"host": "h"}),
        (
            r"host=h application_name=a\ b password='x \' y'",
            {"host": "h", "application_name": "a b", "password": "x ' y"},
        ),
        (
            r"host=h search_path='a\\b c'",
            {"host": "h", "options": r"-c search_path=a\\b\ c"},
        ),
        (
            "postgresql://u@h:5433/d?connect_timeout=3&binary_parameters=yes",
            {"user": "u", "host": "h", "port": "5433", "dbname": "d", "connect_timeout": "3"},
        ),
        (
            "postgres://h/d?options=-c%20geqo%3Doff&search_path=a",
            {"host": "h", "dbname": "d", "options": "-c geqo=off -c search_path=a"},
        ),
        ("postgres:///d", {"dbname": "d"}),
        (
            "postgresql:///d?host=/run/pg&search_path=a#x",
            {"host": "/run/pg", "dbname": "d", "options": "-c search_path=a"},
        ),
    ],
)
def test_the_same_is_said_to_libpq(source: str, pairs: dict[str, str]) -> None:
    assert conninfo_to_dict(libpq_conninfo(source)) == pairs


@pytest.mark.parametrize(
    "source", ["hush", "host=h hush", "postgres://[hush/d", "host=h password='hush"]
)
def test_what_cannot_be_read_is_not_shown(source: str) -> None:
    with pytest.raises(ConfigurationError, match="dataSource cannot be read") as caught:
        libpq_conninfo(source)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "postgresql://u:p@hush@h/d",
        "postgresql://u:p@hush:x@h/d",
        "postgresql://u:p@hush/x@h/d",
        "postgresql://u:12/hush@h/d",
        "postgres://u:p@hush@h/d?connect_timeout=1",
        "host=u:hush@h dbname=d",
        "host=a,u:hush@h dbname=d",
        "host=h password=p hush",
    ],
)
def test_a_password_that_is_not_encoded_is_not_taken_for_a_host_or_a_database_and_named(
    source: str,
) -> None:
    """libpq would say that it does not know the host ``hush@h``."""
    for read in (
        parsed_conninfo,
        lambda it: PostgresTable(it, "outbox"),
        lambda it: database(it).transaction().__enter__(),
    ):
        with pytest.raises(ConfigurationError, match="percent-encode special") as caught:
            read(source)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("postgresql://u:p%40q@h:1,i:2/d?application_name=a@b", "h,i"),
        ("postgresql://h/d", "h"),
        ("postgresql:///d?host=@pg", "@pg"),
        ("host=@pg user=u@x password=p@q/r dbname=a@b", "@pg"),
        ("user=u@x", None),
    ],
)
def test_what_has_an_at_where_it_may_is_read(source: str, host: str | None) -> None:
    assert parsed_conninfo(source).get("host") == host

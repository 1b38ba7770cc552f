"""Connection strings of Go's lib/pq, for libpq."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest.databases.postgres.conninfo import libpq_conninfo
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

"""A few runs of the matrix; 500 are `python -m tests.sources`."""

from __future__ import annotations

import pytest

from marshal_py.embedded import EmbeddedKafka, EmbeddedMariaDB, EmbeddedPostgres
from tests.sources.matrix import Servers, run

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("kind", "mode", "fault", "is_loud"),
    [
        ("postgres", "mark", "failover", False),
        ("postgres", "range", "failover", False),
        ("postgres", "range", "failover, commits lost", True),
        ("postgres", "mark", "restore", True),
        ("postgres", "wal", "restore", True),
        ("mariadb", "range", "truncate", True),
        ("mariadb", "mark", "switch", False),
        ("postgres", "relay", "two configurations", True),
    ],
)
def test_nothing_is_lost_or_doubled_in_silence(
    kafka: EmbeddedKafka,
    postgres: EmbeddedPostgres,
    mariadb: EmbeddedMariaDB,
    kind: str,
    mode: str,
    fault: str,
    is_loud: bool,
) -> None:
    result = run(Servers(kafka, postgres, mariadb), kind, mode, fault, 1)
    assert result.passed, result
    assert (result.loud is not None) is is_loud

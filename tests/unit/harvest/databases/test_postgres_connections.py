"""How a harvester asks PostgreSQL for a connection."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict

from harvest.databases.postgres.table import PostgresTable


def asked(given: str = "") -> dict[str, object]:
    return dict(conninfo_to_dict(PostgresTable(given, "outbox").conninfo))


def test_a_server_that_is_gone_while_its_answer_is_waited_for_is_noticed() -> None:
    """Nothing is sent then that it would not acknowledge: without a question of the kernel's own,
    which by default comes after two hours, the harvest stands still for as long."""
    settings = asked()
    assert settings["keepalives_idle"] == "10"
    assert settings["keepalives_interval"] == "2"
    assert settings["keepalives_count"] == "3"
    assert asked("keepalives_idle=60")["keepalives_idle"] == "60"

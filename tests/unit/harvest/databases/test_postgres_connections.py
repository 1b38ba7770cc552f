"""How a harvester asks PostgreSQL for a connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.table import PostgresTable
from harvest.databases.postgres.wal import PostgresWalSource
from harvest.errors import ConfigurationError, HarvestError, SchemaError, StoreUnavailable


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


@pytest.mark.parametrize(
    "standby", ["host=replica password=one hush dbname=x", "postgresql://u:pa%hush@h/x"]
)
def test_a_standby_that_cannot_be_read_is_named_and_not_shown(standby: str) -> None:
    with pytest.raises(ConfigurationError, match=r"wal\.standby cannot be read") as refused:
        PostgresWalSource("", "outbox", WalOptions(standby=standby))
    assert "hush" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_standby_is_read_with_what_else_the_database_has() -> None:
    source = PostgresWalSource("host=p user=u", "outbox", WalOptions(standby="host=r port=7"))
    given = conninfo_to_dict(source.slot.conninfo)
    assert [given[name] for name in ("host", "port", "user")] == ["r", "7", "u"]
    assert given["target_session_attrs"] == "any"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(errors.AdminShutdown, StoreUnavailable), (errors.InsufficientPrivilege, SchemaError)],
)
def test_what_the_database_cannot_change_now_is_no_fault_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, error: type[psycopg.Error], kind: type[HarvestError]
) -> None:
    """A command ends with 3 then: whoever runs it tries again, and has nothing to correct."""

    def fail(*_: object) -> None:
        raise error("no")

    session: Any = SimpleNamespace(execute=fail, closed=False)
    source = PostgresWalSource("", "outbox", WalOptions(slot="s"))
    monkeypatch.setattr(source, "_connection", session)
    monkeypatch.setattr(source.slot, "_connection", session)
    monkeypatch.setattr(source.slot, "state", object)
    monkeypatch.setattr(source.slot, "end_reader", lambda: None)
    for change in (source.install_notify, source.drop_publication, source.slot.drop):
        with pytest.raises(kind, match=r": no$"):
            change()

"""What is said of a slot, from what the server says of it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from harvest.core.wal_position import WalPosition
from harvest.core.wal_slot import ServerState, SlotHealth, SlotState
from harvest.databases.postgres.slot import PostgresSlot
from harvest.databases.postgres.wal import _wait_for_standby
from harvest.errors import SchemaError, StoreUnavailable

MIB = 1 << 20


class Slot(PostgresSlot):
    """On a server whose log ends at 1000 MiB."""

    def __init__(self, restart: int, confirmed: int, safe: int | None = None) -> None:
        super().__init__("postgresql://localhost/d", "outbox", "s")
        lsns = confirmed * MIB, restart * MIB
        allowed = None if safe is None else safe * MIB
        self.about = SlotState("s", "", "d", *lsns, "reserved", None, allowed, 7, False, False)

    def state(self) -> SlotState:
        return self.about

    def log_end(self) -> int:
        return 1000 * MIB


def test_it_keeps_the_log_from_its_oldest_transaction_on_not_from_what_is_confirmed() -> None:
    assert Slot(100, 700, 50).health() == SlotHealth(
        True,
        False,
        active=True,
        pinned_bytes=900 * MIB,
        behind_bytes=300 * MIB,
        safe_bytes=50 * MIB,
    )


@pytest.mark.parametrize(
    ("restart", "safe", "level"),
    [(600, 100, "ok"), (600, 99, "warning"), (600, 5_000, "ok"), (600, None, "ok")],
)
def test_it_is_a_warning_when_less_is_left_than_a_quarter_of_what_it_keeps(
    restart: int, safe: int | None, level: str
) -> None:
    finding = Slot(restart, 700, safe)._cost(Slot(restart, 700, safe).about)
    assert finding.level == level
    assert "it keeps 400.0 MiB of log, of which 300.0 MiB is not harvested" in finding.text
    assert ("a transaction open for long?" in finding.text) == (level == "warning")


@pytest.mark.parametrize(
    ("version", "failover", "synced", "is_warned_of"),
    [
        (170000, False, False, True),
        (170000, True, False, False),
        (170000, False, True, False),
        (169999, False, False, False),
    ],
)
def test_it_is_a_warning_when_no_replica_keeps_it(
    version: int, *, failover: bool, synced: bool, is_warned_of: bool
) -> None:
    """One that is kept from a primary is on a replica already; before PostgreSQL 17 none is."""
    connection: Any = SimpleNamespace(info=SimpleNamespace(server_version=version))

    class There(Slot):
        def _connected(self) -> Any:
            return connection

    slot = There(600, 700)
    slot.about = replace(slot.about, failover=failover, synced=synced)
    assert [f.subject for f in slot.findings()] == ["slot"] + ["failover"] * is_warned_of


# --- What the server says, and what is done about it ---


class Server:
    """Answers one question, and does as it is told with what is executed besides."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.rows = list(rows)
        self.failures: list[Exception] = []
        self.executed: list[str] = []

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows

    def execute(self, statement: str, _: object) -> None:
        self.executed.append(statement)
        if self.failures:
            raise self.failures.pop(0)


class Asked(PostgresSlot):
    """A slot on a server that is made up."""

    def __init__(self, server: Server) -> None:
        super().__init__("postgresql://localhost/d", "outbox", "s")
        self._server: Any = server

    def _execute(self, *_: Any, **__: Any) -> Any:
        return self._server

    def _connected(self) -> Any:
        return self._server


def about(**changes: Any) -> tuple[dict[str, Any], str, str]:
    row = {"plugin": "pgoutput", "database": "d", "wal_status": "reserved", "active_pid": 7}
    return {**row, **changes}, "700", "600"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"invalidation_reason": "wal_removed"}, "wal_removed"),
        ({"conflicting": True}, "conflict"),
        ({"wal_status": "lost"}, None),
    ],
)
def test_a_slot_that_was_invalidated_is_lost_and_says_why(
    changes: dict[str, Any], why: str | None
) -> None:
    """Whatever the server thinks of the log that it still has."""
    slot = Asked(Server(about(**changes)))
    found = slot.state()
    assert found is not None
    assert (found.lost, found.why_lost) == (True, why)
    assert slot.health() == SlotHealth(True, lost=True)
    ((level, text),) = [(f.level, f.text) for f in slot.findings()]
    assert level == "error"
    assert f"the slot s is lost{f' ({why})' if why else ''}: see" in text


def test_a_slot_is_as_the_server_says() -> None:
    row = about(conflicting=False, invalidation_reason=None, safe_wal_size=9, failover=True)
    assert Asked(Server(row)).state() == SlotState(
        "s", "pgoutput", "d", 700, 600, "reserved", None, 9, 7, True, False
    )
    assert Asked(Server()).state() is None
    assert Asked(Server()).health() == SlotHealth(False, lost=True)
    assert "run `harvest init --mode wal`" in Asked(Server()).findings()[0].text


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (("logical", "10GB", True), []),
        (("replica", "10GB", True), [("error", "wal_level")]),
        (("logical", "-1", True), [("warning", "log-kept")]),
        (("logical", "10GB", False), [("error", "privilege")]),
        (("logical", "10GB", None), [("error", "privilege")]),
    ],
)
def test_what_the_server_lacks_is_found(
    row: tuple[str, str, bool | None], wrong: list[tuple[str, str]]
) -> None:
    found = Asked(Server(row)).server_findings()
    assert [(f.level, f.subject) for f in found if f.level != "ok"] == wrong


def test_who_reads_a_slot_is_ended_and_it_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvest.databases.postgres.slot.time.sleep", lambda _: None)
    server = Server(about())
    server.failures = [
        psycopg.errors.InsufficientPrivilege("may not end it"),
        psycopg.errors.ObjectInUse("in use"),
    ]
    assert Asked(server).drop() is True
    assert ["terminate" in s for s in server.executed] == [True, False, True, False]
    assert Asked(Server()).drop() is False
    server.failures = [psycopg.OperationalError("x"), psycopg.OperationalError("gone")]
    with pytest.raises(StoreUnavailable, match="the reader of the slot s could not be ended"):
        Asked(server).drop()


def test_who_drops_a_slot_may_be_too_late_or_not_allowed() -> None:
    server = Server(about(active_pid=None))
    server.failures = [psycopg.errors.UndefinedObject("gone")]
    assert Asked(server).drop() is False
    server.failures = [psycopg.errors.InsufficientPrivilege("no")]
    with pytest.raises(SchemaError, match="the slot s could not be dropped: no"):
        Asked(server).drop()


def test_a_slot_that_stays_in_use_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1_000.0]

    def sleep(for_s: float) -> None:
        now_s[0] += for_s

    monkeypatch.setattr("harvest.databases.postgres.slot.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("harvest.databases.postgres.slot.time.sleep", sleep)

    class Busy(Server):
        def execute(self, statement: str, _: object) -> None:
            if "drop" in statement:
                raise psycopg.errors.ObjectInUse("in use")

    with pytest.raises(StoreUnavailable, match="the slot s is in use"):
        Asked(Busy(about())).drop()
    assert 9 < now_s[0] - 1_000 < 11


@pytest.mark.parametrize(
    ("timeline", "lsn", "waits"), [(1, 199, True), (1, 200, False), (2, 199, False)]
)
def test_a_standby_is_waited_for_only_where_it_can_still_come(
    timeline: int, lsn: int, waits: bool
) -> None:
    """On another timeline it has replayed what it ever will of ours: whether that is enough is
    for others to say."""
    position, server = WalPosition(7, "s", 1, 300, 200), ServerState("s", timeline, lsn)
    expected = pytest.raises(StoreUnavailable, match="waiting for it") if waits else nullcontext()
    with expected:
        _wait_for_standby(server, position)

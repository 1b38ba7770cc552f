"""A listener behind a pooler, and one that cannot connect: it says so, and the harvester polls."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from harvest.core.table_name import TableName
from harvest.databases.postgres.notify import PostgresListener, behind_pooler
from harvest.runtime.wake import WakeEvent

WAIT_S = 20.0
OUTBOX = TableName.parse("outbox")


class Pooler:
    """Greets with one process, and answers from another."""

    def __init__(self, answers: int | None, enough: int = 4) -> None:
        self.info = SimpleNamespace(backend_pid=1)
        self.answers = answers
        self.connected = self.closed = 0
        self.enough = enough
        self.done = threading.Event()

    def connect(self, conninfo: str, *, autocommit: bool) -> Any:
        assert (conninfo, autocommit) == ("host=pooler", True)
        self.connected += 1
        if self.connected == self.enough:
            self.done.set()
        return self

    def execute(self, *_: object, **__: object) -> Any:
        row = None if self.answers is None else (self.answers,)
        return SimpleNamespace(fetchone=lambda: row)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(("answers", "behind"), [(1, False), (2, True), (None, True)])
def test_another_process_that_answers_is_a_poolers(answers: int | None, behind: bool) -> None:
    pooler: Any = Pooler(answers)
    assert behind_pooler(pooler) is behind


def test_a_pooler_is_told_of_once_and_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pooler, woken = Pooler(2), WakeEvent()
    woken.listening = True
    monkeypatch.setattr(psycopg, "connect", pooler.connect)
    listener = PostgresListener("host=pooler", OUTBOX, look_every_s=0.001)
    listener.start(woken)
    assert pooler.done.wait(WAIT_S)
    listener.close()
    assert not woken.listening
    assert woken.wait(WAIT_S), "the harvester looks by itself"
    assert pooler.closed == pooler.connected
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "give `direct_database`" in told[0]


def test_who_cannot_connect_says_why_and_does_not_say_that_it_listens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried, woken = threading.Event(), WakeEvent()

    class Woken(WakeEvent):
        def wake(self) -> None:
            super().wake()
            tried.set()

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("connection\nrefused")

    woken = Woken()
    woken.listening = True
    monkeypatch.setattr(psycopg, "connect", refuse)
    listener = PostgresListener("host=pooler", OUTBOX)
    listener.start(woken)
    assert tried.wait(WAIT_S)
    listener.close()
    assert not woken.listening
    assert "not listening for new rows, polling instead: connection refused" in caplog.text


def test_who_was_connected_begins_anew_with_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of yesterday does not make today's rows wait."""
    pauses: list[float | None] = []

    class Patience(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 5:
                self.set()
            return self.is_set()

    class Lost(Pooler):
        def connect(self, conninfo: str, *, autocommit: bool) -> Any:
            super().connect(conninfo, autocommit=autocommit)
            if self.connected != 4:
                raise psycopg.OperationalError
            return self

    def lose(*_: object) -> None:
        raise psycopg.OperationalError

    monkeypatch.setattr(psycopg, "connect", Lost(1).connect)
    listener = PostgresListener("host=pooler", OUTBOX)
    monkeypatch.setattr(listener, "_stopping", Patience())
    monkeypatch.setattr(listener, "_listen", lose)
    listener._run(WakeEvent())
    assert pauses == [0.2, 0.4, 0.8, 0.2, 0.4]


def test_a_listener_that_was_not_started_is_closed() -> None:
    PostgresListener("host=pooler", OUTBOX).close()


def test_the_trigger_is_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be made, removed, or be that of a new table; and each time rows may have come before
    anybody listened."""
    triggers = [None, (7, 1), (7, 0), (8, 1), (8, 1)]
    said: list[str] = []
    seen: list[tuple[bool, bool]] = []
    woken = WakeEvent()

    def execute(statement: Any, parameters: object = None) -> Any:
        if parameters is not None:
            row = triggers.pop(0)
            return SimpleNamespace(fetchone=lambda: row)
        said.append(statement if isinstance(statement, str) else statement.as_string(None))
        return None

    def hear(*_: object) -> None:
        seen.append((woken.listening, woken.wait(0.0)))
        woken.clear()
        if not triggers:
            listener.close()

    listener = PostgresListener("host=d", OUTBOX)
    monkeypatch.setattr(listener, "_hear", hear)
    session: Any = SimpleNamespace(execute=execute)
    listener._listen(session, woken)
    assert seen == [(False, True), (True, True), (False, True), (True, True), (True, True)]
    assert said == ["UNLISTEN *", 'LISTEN "harvest.7"', *["UNLISTEN *"] * 2, 'LISTEN "harvest.8"']

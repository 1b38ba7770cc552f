"""A preview that means something else by now is refused."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from marshal_py.admin.connection import Connection
from marshal_py.admin.positions import Change
from marshal_py.dashboard.audit_trail import AuditTrail, Entry
from marshal_py.dashboard.dead_letters import DeadLetterTopics
from marshal_py.dashboard.operations import Action, Operations, has_moved


class SlowAdmin:
    """Stands in for a `GroupAdmin` whose broker does not answer, until it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def __enter__(self) -> SlowAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def require(self) -> None:
        pass

    def held(self) -> list[object]:
        return []

    def pause(self, for_s: float) -> int:
        self.asked.set()
        assert self.answers.wait(10)
        return 1_000


class Trail(AuditTrail):
    """Keeps what is written down."""

    def ensure(self) -> None:
        self.kept: list[Entry] = []

    def _append(self, entry: Entry) -> None:
        self.kept.append(entry)


def test_a_preview_waits_for_nobody_elses_action(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection.of_servers("nowhere:1")
    operations = Operations(connection, DeadLetterTopics(connection), Trail(connection))
    admin = SlowAdmin()
    monkeypatch.setattr(operations, "_admin", lambda group: admin)
    pause = Action("pause", "g")
    ticket = operations.preview(pause)["ticket"]
    done: list[str] = []
    acting = threading.Thread(target=lambda: done.append(operations.perform(ticket)["text"]))
    acting.start()
    assert admin.asked.wait(10)
    looking = threading.Thread(target=lambda: done.append(operations.preview(pause)["text"]))
    looking.start()
    looking.join(10)
    assert "members stop" in done[0]
    admin.answers.set()
    acting.join(10)
    assert "is paused until" in done[1]


def change(before: int, after: int, partition: int = 0) -> Change:
    return Change("orders", partition, before, after, None, None)


def test_a_group_that_went_on_a_little_is_no_reason() -> None:
    assert has_moved([change(100, 90)], [change(105, 90)]) is None
    assert has_moved([change(-1, 90)], [change(-1, 90)]) is None


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ([change(85, 90)], "orders/0 was at 100, and is at 85"),
        ([change(90, 90)], "orders/0 was at 100, and is at 90"),
        ([change(100, 95)], "orders/0 has no message at offset 90"),
        ([change(100, 90), change(3, 0, 1)], "the partitions are others"),
        ([], "the partitions are others"),
    ],
)
def test_what_means_something_else_is_refused(now: list[Change], why: str) -> None:
    said = has_moved([change(100, 90)], now)
    assert said is not None
    assert said.startswith(why)

"""`marshal group migrate`: what is moved, how long it is waited for, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin.migration_plan import Step
from marshal_py.cli import migrate as module
from marshal_py.errors import TopicMissing
from tests.support.marshal_command import without_brokers

FREE = Step("orders", 0, "free", None, 60, None, -1)
IN_USE = Step("orders", 1, "in_use", "old", 60, "new", 70)
MOVED = Step("orders", 2, "moved", None, 60, "new", 70)


class Client:
    """A client that holds nothing, of the topic and the version that it was made for."""

    def __init__(self, _kafka: object, *, topic: str, wire: str = "msgpack", **given: Any) -> None:
        self.settings = SimpleNamespace(topic=topic)
        self.group_id, self.wire, self.given = given["group_id"], wire, given
        self.cells = {("orders", 0): "old"}
        self.missing = False
        self.closed: list[bool] = []

    def start(self) -> None:
        if self.missing:
            raise TopicMissing(self.settings.topic)

    def close(self, *, release: bool) -> None:
        self.closed.append(release)

    def cell(self, *_: object) -> None:
        return None

    @contextmanager
    def world(self) -> Iterator[Any]:
        rows = [(0, ("g", *key), None) for key in self.cells]
        yield SimpleNamespace(cells=lambda _: rows)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Those that were made; nothing connects."""
    found: list[Client] = []

    def make(*given: Any, **settings: Any) -> Client:
        found.append(Client(*given, **settings))
        return found[-1]

    metadata = {"orders": SimpleNamespace(partitions={0: 0, 1: 0, 2: 0})}
    admin = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics=metadata))
    monkeypatch.setattr(module, "Marshal", make)
    monkeypatch.setattr(module, "admin_client", lambda _: admin)
    return found


def rehearse(
    monkeypatch: pytest.MonkeyPatch, steps: dict[int, Step], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(module, "assess", lambda key, *_, **__: steps[key[1]])
    done = without_brokers("group", "migrate", "g", "--dry-run", *arguments)
    return done.exit_code, done.stdout, done.stderr


def test_a_rehearsal_says_what_cannot_move_by_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client]
) -> None:
    code, text, said = rehearse(monkeypatch, {0: FREE, 1: FREE, 2: MOVED})
    assert code == 0
    assert [line.split()[2] for line in text.splitlines()[1:]] == ["free", "free", "moved"]
    assert "2 would move at once, 0 when their holders are stopped, 1 have moved" in said
    assert "Nothing was written" in said
    code, text, said = rehearse(monkeypatch, {0: FREE, 1: IN_USE, 2: MOVED})
    assert code == 1
    assert "in use" in text
    assert "1 cannot" in said
    code, text, _ = rehearse(monkeypatch, {0: FREE, 1: IN_USE, 2: MOVED}, "--json")
    assert code == 1
    assert [row["state"] for row in json.loads(text)] == ["free", "in_use", "moved"]


def test_both_sides_are_opened_with_their_own_topic_and_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client]
) -> None:
    rehearse(monkeypatch, {0: FREE, 1: FREE, 2: FREE}, "--text-topic", "old", "--interval", "24")
    text, new = clients
    assert (text.settings.topic, text.wire, text.given["interval_ms"]) == ("old", "text", 24_000)
    assert (new.settings.topic, new.wire, new.given["interval_ms"]) == ("old.v2", "msgpack", 2_000)
    assert new.given["member"] is False
    assert [client.closed for client in clients] == [[False], [False]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--text-topic", "old", "--new-topic", "old"], "is the topic of version 1"),
        (["--dry-run", "--topics", "orders, bills"], "--topics: there is no topic 'bills'"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    clients: list[Client], arguments: list[str], why: str
) -> None:
    done = without_brokers("group", "migrate", "g", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr

"""Moments that are over: each is read once while it is kept, and the latest used are kept."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin.cell_timeline import CellStatus, CellTimeline, TimelineEntry
from marshal_py.admin.connection import Connection
from marshal_py.dashboard import replay as module
from marshal_py.dashboard.replay import KEPT, MAX_ENTRIES, Replay
from marshal_py.protocol.messages import ClaimingPartition
from marshal_py.protocol.slots import agreement_cell
from marshal_py.protocol.wire import text_wire
from marshal_py.protocol.world import World
from tests.support.log_by_hand import LogByHand


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The moments that were read from the log."""
    found: list[int] = []

    def read_world(_: object, *, at_ms: int, wire: object) -> Any:
        found.append(at_ms)
        return SimpleNamespace(world=World(4))

    monkeypatch.setattr(module, "read_world", read_world)
    return found


def test_a_moment_is_read_once_and_told_as_what_it_is(read: list[int]) -> None:
    replay = Replay(Connection.of_servers("nowhere:1"))
    document = json.loads(replay.at(7))
    assert (document["phase"], document["now"], document["coordinators"]) == ("past", 7, 4)
    assert replay.at(7) == replay.at(7)
    assert read == [7]


def test_of_many_moments_those_used_last_are_kept(read: list[int]) -> None:
    replay = Replay(Connection.of_servers("nowhere:1"))
    for at_ms in range(KEPT):
        replay.at(at_ms)
    replay.at(0)
    replay.at(100)
    assert read == [*range(KEPT), 100]
    replay.at(0)
    assert read[-1] == 100, "it was used a while ago, and others longer ago"
    replay.at(1)
    assert read[-1] == 1


def test_a_moment_of_which_more_may_come_is_read_again(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    replay = Replay(Connection.of_servers("nowhere:1"))
    for at_ms in (2_000_000, 1_000_000, 940_001, 940_000):
        replay.at(at_ms)
        replay.at(at_ms)
    assert read == [2_000_000] * 2 + [1_000_000] * 2 + [940_001] * 2 + [940_000]


def test_of_a_long_history_the_latest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = CellTimeline(("g", "t", 0), 0)
    timeline.entries = [
        TimelineEntry(n, n, "claimed", "a", "a-1", 7, f"entry {n}") for n in range(MAX_ENTRIES + 1)
    ]
    status = CellStatus(0, "a", "a-1", 7, 0, 0, 0, "fresh", 0, False, "a holds it.")
    monkeypatch.setattr(module, "read_cell_history", lambda *_, **__: (timeline, status))
    found = Replay(Connection.of_servers("nowhere:1")).timeline(("g", "t", 0), None)
    assert found["standing"] == "a holds it."
    assert len(found["entries"]) == MAX_ENTRIES
    assert found["entries"][-1]["sentence"] == f"entry {MAX_ENTRIES}"


def test_of_the_past_claims_are_shown_and_not_how_a_topic_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogByHand()
    for cell in (("t", 3), agreement_cell("t")):
        log.write(ClaimingPartition(2, "a", "a1", "g", 0, *cell, 1_000, -1))
    monkeypatch.setattr(module, "read_world", lambda *_, **__: log.view())
    document = json.loads(Replay(Connection.of_servers("nowhere:1")).at(7))
    assert [(row["group"], row["topic"]) for row in document["rows"]] == [("g", "t")]


def test_a_log_of_version_1_is_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wires: list[object] = []

    def read_world(_: object, *, at_ms: int, wire: object) -> Any:
        wires.append(wire)
        return SimpleNamespace(world=World(4))

    def read_cell_history(*where: object, wire: object) -> Any:
        assert where[1:] == ("g", "t", 3, 7)
        wires.append(wire)
        return SimpleNamespace(entries=[]), SimpleNamespace(text="nobody")

    monkeypatch.setattr(module, "read_world", read_world)
    monkeypatch.setattr(module, "read_cell_history", read_cell_history)
    replay = Replay(Connection.of_servers("nowhere:1"), wire := text_wire(60))
    replay.at(7)
    assert replay.timeline(("g", "t", 3), 7) == {"standing": "nobody", "entries": []}
    assert wires == [wire, wire]

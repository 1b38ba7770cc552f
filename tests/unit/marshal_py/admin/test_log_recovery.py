"""Which snapshots a recovery goes by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin import log_recovery as module
from marshal_py.admin.log_recovery import Recovery, Restored
from marshal_py.errors import BrokerUnavailable, MalformedRecord


def test_the_newest_snapshot_that_can_be_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one has positions from before: what was done since would come again."""

    def found(coordinator: int, state: str | None) -> Any:
        def restore() -> str:
            if state is None:
                raise MalformedRecord("its digest differs")
            return state

        return SimpleNamespace(coordinator=coordinator, snapshot=SimpleNamespace(restore=restore))

    records = [found(0, "0, old"), found(1, "1, old"), found(0, "0, new"), found(1, None)]
    records.append(SimpleNamespace(coordinator=0, snapshot=None))
    read: list[dict[int, int]] = []

    def read_snapshots(_connection: Any, ends: dict[int, int], *, newest_only: bool) -> list[Any]:
        assert not newest_only
        read.append(ends)
        return records

    monkeypatch.setattr(module, "read_snapshots", read_snapshots)
    monkeypatch.setattr(module, "extent", lambda *_: {0: (2, 9), 1: (0, 5)})
    fakes: Any = SimpleNamespace(snapshot_topic="t.snapshots")
    states: list[Any] = list(module._newest_states(fakes, fakes, 2))
    assert states == ["0, new", "1, old"]
    assert read == [{0: 9, 1: 5}]
    assert module._newest_states(fakes, fakes, 0) == []


class Log:
    """Of a paused group. What is written is refused if somebody else wrote before."""

    def __init__(self, *, refused: bool) -> None:
        self.position = 3
        self._refused = refused
        group = SimpleNamespace(pause=None, cells={}, version=lambda _: 1)
        self.states = [SimpleNamespace(paused={"g"}, groups={"g": group})]
        cell = lambda *_: SimpleNamespace(position=self.position)  # noqa: E731
        self.reader = SimpleNamespace(world=SimpleNamespace(home=lambda _: 0, cell=cell))

    def sender(self, group_id: str) -> tuple[str, str, str, int]:
        return ("operator", "i", group_id, 0)

    def write(self, records: Any) -> None:
        for _, record in records:
            if not self._refused:
                self.position = record.next_offset


@pytest.mark.parametrize("refused", [False, True])
def test_positions_are_restored_when_they_are_seen_to_be(refused: bool) -> None:
    plan = Recovery("t", 1, 1, {}, 0, 0, [Restored("g", "orders", 0, 9, 3, "a snapshot")])
    log: Any = Log(refused=refused)
    if refused:
        with pytest.raises(BrokerUnavailable, match="the position of g orders/0 could not be set"):
            module._restore(log, plan)
    else:
        module._restore(log, plan)
        assert log.position == 9

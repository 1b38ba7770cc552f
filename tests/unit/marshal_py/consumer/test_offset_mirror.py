"""What is copied to Kafka's committed offsets, and when it is copied again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin.positions import Key
from marshal_py.consumer import offset_mirror as module
from marshal_py.consumer.offset_mirror import OffsetMirror
from marshal_py.errors import ConfigurationError

A, B = ("t", 0), ("t", 1)


class World:
    """Where claims stand, and what was written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stand: dict[Key, int] = {}
        self.written: list[dict[Key, int]] = []
        self.fails: bool | KafkaException = False
        monkeypatch.setattr(module, "admin_client", lambda _: object())
        monkeypatch.setattr(module, "write_committed_offsets", self._write)
        claims: Any = lambda: list(self.stand)  # noqa: E731
        position: Any = lambda key: (key, self.stand[key])  # noqa: E731
        self.mirror = OffsetMirror({}, "g", claims, position, every_s=3_600.0, timeout_s=7.0)

    def round(self, **stand: int) -> dict[Key, int]:
        """Have positions copied; return which were."""
        self.stand = {{"a": A, "b": B}[name]: at for name, at in stand.items()}
        before = len(self.written)
        self.mirror._round()
        return {key: at for one in self.written[before:] for key, at in one.items()}

    def _write(self, _admin: Any, group: str, offsets: Mapping[Key, int], timeout_s: float) -> None:
        assert (group, timeout_s) == ("g", 7.0)
        if isinstance(self.fails, KafkaException):
            raise self.fails
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.written.append(dict(offsets))


def test_what_has_moved_is_written_and_what_comes_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member has written meanwhile what it held meanwhile."""
    world = World(monkeypatch)
    assert world.round(a=5, b=-1) == {A: 5}
    assert world.round(a=5, b=0) == {B: 0}, "whoever reads it sees what waits"
    assert world.round(a=5, b=7) == {B: 7}
    assert world.round(b=7) == {}
    assert world.round(a=5, b=7) == {A: 5}


def test_what_could_not_be_written_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.fails = True
    assert world.round(a=5) == {}
    world.fails = False
    assert world.round(a=5) == {A: 5}


def test_what_was_held_at_the_end_is_written_after_it_was_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.mirror.start()
    held = world.stand = {A: 5}
    world.mirror.keep()
    world.mirror._position_of = lambda key: (key, held[key])  # type: ignore[assignment, index, return-value]
    world.stand = {}
    world.mirror.close(60)
    assert world.written == [{A: 5}]


def test_after_an_outage_another_client_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before has a question open, whose late answer would end the process."""
    world, made = World(monkeypatch), list[object]()

    def admin_client(_: object) -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(module, "admin_client", admin_client)
    world.round(a=1)
    world.round(a=2)
    assert len(made) == 1
    world.fails = True
    world.round(a=3)
    world.round(a=4)
    assert len(made) == 2


def test_a_client_that_cannot_be_made_now_is_made_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its certificate is being renewed, say: after an outage, the thread would end by it."""
    world = World(monkeypatch)
    made = iter([ConfigurationError("librdkafka refuses: no such file"), object()])

    def admin_client(_: object) -> object:
        found = next(made)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "admin_client", admin_client)
    assert world.round(a=5) == {}
    assert "were not mirrored to Kafka's committed offsets (librdkafka refuses" in caplog.text
    assert world.round(a=5) == {A: 5}


def test_what_does_not_move_is_written_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka forgets the offsets of a group that is silent for days."""
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    world = World(monkeypatch)
    assert world.round(a=5) == {A: 5}
    now_s[0] += module.REPEAT_S - 1
    assert world.round(a=5) == {}
    for _ in range(2):
        now_s[0] += 1
        assert world.round(a=5) == {A: 5}
        assert world.round(a=5) == {}
        now_s[0] += module.REPEAT_S - 1


def test_an_outage_is_worth_one_line_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    world = World(monkeypatch)
    world.fails = True
    for _ in range(5):
        world.round(a=5)
        now_s[0] += module.WARN_EVERY_S / 5
    assert len(caplog.records) == 1
    assert "positions of group 'g' were not mirrored" in caplog.text
    world.round(a=5)
    assert len(caplog.records) == 2


def test_a_mirror_that_never_began_has_nothing_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer whose start failed is closed, too."""
    mirror = OffsetMirror({}, "g", list, lambda _: None)
    mirror.close(0.0)


@pytest.mark.parametrize(
    ("code", "hints"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, True),
        (KafkaError.NON_EMPTY_GROUP, True),
        (KafkaError._TIMED_OUT, False),
    ],
)
def test_a_group_that_has_members_of_kafkas_own_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, hints: bool
) -> None:
    world = World(monkeypatch)
    world.fails = KafkaException(KafkaError(code))
    world.round(a=5)
    assert ("give the marshal group another name" in caplog.text) is hints

"""The bridge of a migration, where the simulation of `tests/interop` seldom comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import migration as module
from marshal_py.admin.migration import Bridge
from marshal_py.errors import BrokerUnavailable, ClaimTimeout, ConfigurationError, NotHeld

KEY = ("t", 0)
GRANT = ("migrated:t", 0)
MIGRATION = ("migration:", 0)


class Claim:
    """A claim as the bridge sees it."""

    def __init__(self, topic: str, partition: int, *, held: bool, position: int) -> None:
        self.topic, self.partition = topic, partition
        self.held, self.position = held, position
        self.next_offset = position
        self.remaining_ms = 500.0
        self.reason: str | None = None
        self.metadata: list[Any] = []
        self.committed: list[int] = []
        self.released = False

    def set_metadata(self, metadata: Any) -> None:
        self.metadata.append(metadata)

    def commit(self, offset: int) -> None:
        self.committed.append(offset)
        self.next_offset = offset

    def release(self, *, wait: bool) -> None:
        assert not wait, "the bridge waits for nothing"
        self.released = True


class Side:
    """A client of one version: what the log says, and which claims were asked for."""

    def __init__(self, wire: str) -> None:
        self.group_id, self.client_id, self.failure = "g", "bridge", None
        self.settings = SimpleNamespace(wire=wire, topic=f"__{wire}", kafka={}, group_id="g")
        self.cells: dict[tuple[str, int], Any] = {}
        self.claims: dict[tuple[str, int], Claim] = {}
        self.gives = True
        """Whether claims are held at once."""
        self.driver = SimpleNamespace(
            lock=threading.RLock(), claimant=SimpleNamespace(), before_heartbeat=[]
        )

    def cell(self, topic: str, partition: int) -> Any:
        return self.cells.get((topic, partition))

    def put(self, key: tuple[str, int], holder: str | None, position: int = -1) -> None:
        self.cells[key] = SimpleNamespace(
            holder=holder, position=position, held=holder is not None, next_offset=position
        )

    def want(self, topic: str, partition: int) -> Any:
        cell = self.cells.get((topic, partition))
        position = -1 if cell is None else cell.position
        claim = Claim(topic, partition, held=self.gives, position=position)
        self.claims[topic, partition] = claim
        return claim

    @contextmanager
    def world(self) -> Iterator[Any]:
        yield SimpleNamespace(cells=lambda _: [])


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Version 1 and version 2."""
    monkeypatch.setattr(module, "driver_of", lambda side: side.driver)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    return Side("text"), Side("msgpack")


def test_what_was_worked_on_while_no_bridge_held_it_is_taken_back(sides: tuple[Any, Any]) -> None:
    """A process of version 1 was in between two bridges, so briefly that nobody saw it hold."""
    text, new = sides
    for key in (MIGRATION, GRANT):
        new.put(key, "bridge")
    text.put(KEY, "bridge", 10)
    text.gives = False
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    assert bridge.moved == {KEY}
    text.claims[KEY].held, text.claims[KEY].position = True, 12
    bridge.step()
    assert bridge.moved == set()
    assert bridge.conflicts == {KEY: "worked on while no bridge held it"}
    assert new.claims[GRANT].released
    assert not bridge.complete


def test_a_claim_that_ends_at_once_is_not_waited_for(sides: tuple[Any, Any]) -> None:
    text, new = sides
    wants = new.want

    def want(topic: str, partition: int) -> Any:
        claim = wants(topic, partition)
        claim.reason = "the group is paused"
        return claim

    new.gives, new.want = False, want
    with pytest.raises(NotHeld, match="ended at once: the group is paused"):
        Bridge(text, new, {"t": 1}).block(0)


def test_a_bridge_that_goes_on_finds_what_it_has_moved(sides: tuple[Any, Any]) -> None:
    text, new = sides
    for key in (MIGRATION, GRANT):
        new.put(key, "bridge")
    text.put(KEY, "bridge", 10)
    new.put(KEY, None, 12)
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    assert bridge.moved == {KEY}, "what is told first"
    for _ in range(2):
        bridge.step()
        assert (bridge.moved, bridge.conflicts, bridge.complete) == ({KEY}, {}, True)
    assert text.claims[KEY].committed == [12], "the way back begins where the group is"
    (pass_leases_on,) = new.driver.before_heartbeat
    before = len(new.claims[GRANT].metadata)
    pass_leases_on()
    assert len(new.claims[GRANT].metadata) == before + 1


def test_a_position_that_kafka_does_not_tell_is_asked_for_again(
    sides: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text, new = sides
    answers: list[Any] = [KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")), 7]

    def committed(*_: object, **__: object) -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    monkeypatch.setattr(module, "committed_position", committed)
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    assert bridge.step() == []
    assert "t/0: no answer; trying again" in caplog.text
    assert (new.claims[KEY].released, bridge.busy) == (False, False)
    bridge.step()
    assert (new.claims[KEY].committed, new.claims[KEY].released, bridge.busy) == ([7], True, True)


def test_who_waits_in_vain_for_the_target_leaves_nothing_behind(sides: tuple[Any, Any]) -> None:
    text, new = sides
    new.gives = False
    bridge = Bridge(text, new, {"t": 1})
    with pytest.raises(ClaimTimeout, match=r"the target side was not claimed within 0.01 s"):
        bridge.block(0.01)
    assert new.claims[MIGRATION].released


def test_a_process_of_the_target_that_comes_while_it_begins_is_seen(
    sides: tuple[Any, Any],
) -> None:
    text, new = sides
    new.gives = False
    bridge = Bridge(text, new, {"t": 1})
    beginning = bridge.begin()
    next(beginning)
    new.put(KEY, "other", 3)
    with pytest.raises(ConfigurationError, match="t/0: other of the target holds it already"):
        next(beginning)


def test_the_end_waits_for_one_kind_of_claims_after_the_other(sides: tuple[Any, Any]) -> None:
    """Grants go last: by one that is left, the next run sees that this one was ending."""
    text, new = sides
    for key in (MIGRATION, GRANT):
        new.put(key, "bridge")
    text.put(KEY, "bridge", 10)
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    migration, grant, held = new.claims[MIGRATION], new.claims[GRANT], text.claims[KEY]
    ending = bridge.end()
    for claims in ((migration,), (held,), (grant,)):
        next(ending)
        assert [c.released for c in (migration, held, grant)].count(True) == sum(
            c.reason is not None for c in (migration, held, grant)
        ) + len(claims)
        assert all(claim.released for claim in claims)
        for claim in claims:
            claim.reason = "released"
    assert list(ending) == []
    grant.reason = None
    with pytest.raises(ClaimTimeout, match=r"the releases were not seen within 0.01 s"):
        bridge.finish(0.01)


def test_a_migration_that_was_lost_with_its_log_is_claimed_again(sides: tuple[Any, Any]) -> None:
    """Without it, version 2 would work on what version 1 has."""
    text, new = sides
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    lost = new.claims[MIGRATION]
    bridge.step()
    assert new.claims[MIGRATION] is lost
    lost.reason = "the log was made anew"
    bridge.step()
    assert new.claims[MIGRATION] is not lost


def test_a_side_that_has_failed_for_good_ends_the_migration(sides: tuple[Any, Any]) -> None:
    text, new = sides
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    text.failure = BrokerUnavailable("for good")
    with pytest.raises(BrokerUnavailable, match="for good"):
        bridge.step()


@pytest.mark.parametrize(
    ("holder", "position", "is_granted"),
    [(None, 7, True), (None, 8, True), (None, 6, False), ("other", 7, False)],
)
def test_what_was_handed_over_is_granted_once_its_position_is_in_the_log(
    sides: tuple[Any, Any], holder: str | None, position: int, is_granted: bool
) -> None:
    text, new = sides
    text.put(KEY, None, 7)
    bridge = Bridge(text, new, {"t": 1})
    bridge.block(10)
    bridge.step()
    handed_over = new.claims[KEY]
    assert (handed_over.committed, handed_over.released) == ([7], True)
    bridge.step()
    assert GRANT not in new.claims, "the release has not been read"
    assert handed_over.committed == [7], "and is not written again"
    handed_over.reason = "released"
    new.put(KEY, holder, position)
    bridge.step()
    assert (GRANT in new.claims) is is_granted
    bridge.step()
    assert (bridge.moved == {KEY}) is is_granted
    assert (new.claims[KEY] is handed_over) is is_granted, "or it is handed over once more"


def test_where_an_earlier_bridge_was_ending_its_grants_are_all_that_is_left(
    sides: tuple[Any, Any],
) -> None:
    text, new = sides
    new.put(GRANT, "bridge")
    bridge = Bridge(text, new, {"t": 2})
    bridge.block(10)
    assert bridge.ended
    assert bridge.moved == {KEY, ("t", 1)}
    assert list(new.claims) == [GRANT]
    assert text.claims == {}
    new.claims[GRANT].reason = "released"
    bridge.finish(10)
    assert new.claims[GRANT].released


@pytest.mark.parametrize("back", [False, True])
def test_what_is_new_is_version_1s_until_it_moves(sides: tuple[Any, Any], back: bool) -> None:
    text, new = sides
    bridge = Bridge(new, text, {"t": 1}) if back else Bridge(text, new, {"t": 1})
    assert bridge.adopt({"t": 2, "leader:x": 1}) == [("leader:x", 0), ("t", 1)]
    assert bridge.moved == ({("leader:x", 0), ("t", 1)} if back else set())
    assert bridge.keys == [("leader:x", 0), KEY, ("t", 1)]
    assert ("migration:leader:x", 0) in new.claims, "no Kafka topic has this name"
    assert bridge.adopt({"t": 2}) == []

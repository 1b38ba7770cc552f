"""`marshal explain`: what is shown of a history, what of it is left out, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.admin.cell_timeline import CellStatus, CellTimeline, TimelineEntry
from marshal_py.admin.message_timeline import MessageStatus, MessageTimeline
from marshal_py.cli import explain as module
from marshal_py.protocol.slots import slot_of_key, slots_cell
from tests.support.marshal_command import without_brokers

STRANGER = "[/bold] [red]x[/red]"
"""A name that is a mistake as rich's markup."""

HELD = CellStatus(10_000, "a", "a-1", 7, 1_000, 1_000, 5, "fresh", 60, False, "a holds it.")
FREE = replace(HELD, holder=None, instance_id=None, epoch=None, text="Nobody holds it.")


def entry(at_s: int, text: str = "") -> TimelineEntry:
    return TimelineEntry(at_s * 1000, at_s, "claimed", "a", "a-1", 7, text or f"entry {at_s}")


class World:
    """What the command reads."""

    def __init__(self) -> None:
        self.entries: list[TimelineEntry] = []
        self.status = HELD
        self.slots = 0
        self.asked: list[tuple[str, str, int, int | None]] = []

    def history(
        self, _: object, group: str, topic: str, partition: int, at_ms: int | None, **__: Any
    ) -> tuple[CellTimeline, CellStatus]:
        self.asked.append((group, topic, partition, at_ms))
        timeline = CellTimeline((group, topic, partition), 2)
        timeline.entries += self.entries
        return timeline, self.status

    def message_history(
        self,
        _: object,
        key: tuple[str, str, int],
        topic: str,
        partition: int,
        message: int,
        at_ms: int | None,
    ) -> tuple[MessageTimeline, MessageStatus]:
        self.asked.append((*key, at_ms))
        timeline = MessageTimeline(key, topic, partition, message, 2)
        return timeline, timeline.status(0)


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(module, "read_cell_history", found.history)
    monkeypatch.setattr(module, "read_message_history", found.message_history)
    monkeypatch.setattr(module, "read_world", lambda _: SimpleNamespace(world=None))
    monkeypatch.setattr(module, "slots_of", lambda *_: found.slots)
    return found


def test_the_latest_of_what_was_before_is_shown_and_how_much_is_not(world: World) -> None:
    world.entries = [entry(n) for n in range(1, 6)]
    text = without_brokers("explain", "g", "t", "0", "-n", "2").stdout
    assert "How it came to that" in text
    assert "… 3 earlier entries; --lines 5 shows all" in text
    assert "entry 3" not in text
    assert text.index("entry 4") < text.index("entry 5")
    assert "2@5" in text


def test_a_moment_divides_what_was_before_it_from_what_came_after(world: World) -> None:
    """What happened at that very moment was so then."""
    world.entries = [entry(n) for n in range(1, 13)]
    at = "1970-01-01T00:00:05Z"
    text = without_brokers("explain", "g", "t", "0", "--at", at).stdout
    before, after = text.split("After that:")
    assert "entry 5" in before
    assert "entry 6" not in before
    assert "entry 6" in after
    assert "entry 10" in after
    assert "entry 11" not in after
    assert "… and 2 more until now" in after
    assert world.asked == [("g", "t", 0, 5_000)]


def test_what_nobody_ever_claimed_is_exit_code_1(world: World) -> None:
    world.status = FREE
    done = without_brokers("explain", "g", "t", "0")
    assert done.exit_code == 1
    assert "group g has never claimed t/0" in done.stderr
    world.entries = [entry(1)]
    assert without_brokers("explain", "g", "t", "0").exit_code == 0, "it was held once"


def test_where_a_partition_has_slots_it_is_told_how_to_name_one(world: World) -> None:
    world.status, world.slots = FREE, 16
    done = without_brokers("explain", "g", "t", "0")
    assert "16 slots to a partition: add --slot N or --key KEY" in done.stderr
    done = without_brokers("explain", "g", "t", "0", "--wire", "text")
    assert "slots" not in done.stderr, "version 1 has none"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--slot", "16"], "there are 16, numbered from 0"),
        (["--offset", "3"], "add --key KEY"),
        (["--offset", "3", "--wire", "text"], "is not told by message"),
    ],
)
def test_what_cannot_be_meant_is_exit_code_2(world: World, arguments: list[str], why: str) -> None:
    world.slots = 16
    done = without_brokers("explain", "g", "t", "0", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr
    assert world.asked == []


@pytest.mark.parametrize(
    ("named", "slot"),
    [(["--slot", "0"], 0), (["--slot", "3", "--key", "k"], 3), (["--key", ""], None)],
)
def test_a_slot_is_named_by_its_number_or_by_a_key_of_its_messages(
    world: World, named: list[str], slot: int | None
) -> None:
    """Keys are dealt out alike in each partition: the number of it plays no part."""
    world.slots = 16
    slot = slot_of_key(b"", 0, 16) if slot is None else slot
    assert without_brokers("explain", "g", "t", "5", *named).exit_code == 0
    assert world.asked == [("g", slots_cell("t", 5, 16), slot, None)]


@pytest.mark.parametrize("shown", [[], ["--json"]])
def test_the_first_message_of_a_partition_has_a_history_too(world: World, shown: list[str]) -> None:
    done = without_brokers("explain", "g", "t", "5", "--offset", "0", *shown)
    assert done.exit_code == 1
    assert "group g has not had message 0 of t/5 yet" in done.stderr
    assert world.asked == [("g", "t", 5, None)]
    if shown:
        assert json.loads(done.stdout)["offset"] == 0


def test_a_slot_is_none_where_partitions_are_shared_whole(world: World) -> None:
    done = without_brokers("explain", "g", "t", "0", "--slot", "1")
    assert done.exit_code == 2
    assert "it has no slots" in done.stderr


def test_json_has_all_of_it_with_times(world: World) -> None:
    world.entries = [entry(n) for n in range(1, 30)]
    document = json.loads(without_brokers("explain", "g", "t", "3", "--json").stdout)
    assert (document["group"], document["topic"], document["partition"]) == ("g", "t", 3)
    assert document["coordinator"] == 2
    assert len(document["history"]) == 29
    assert document["history"][0]["time"] == "1970-01-01T00:00:01.000Z"
    assert document["standing"]["holder"] == "a"
    assert document["at"] is None
    then = without_brokers("explain", "g", "t", "3", "--json", "--at", "1970-01-01T00:00:05Z")
    assert json.loads(then.stdout)["at"] == "1970-01-01T00:00:05.000Z"


def test_what_strangers_wrote_is_shown_as_it_is(world: World) -> None:
    world.entries = [entry(1, STRANGER)]
    world.status = replace(HELD, text=STRANGER)
    assert without_brokers("explain", "g", "t", "0").stdout.count(STRANGER) == 2

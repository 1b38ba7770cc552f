"""What an operator changes about checkpoints, and in which order.

A change that is refused, or that fails, leaves no connection open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.core.interfaces.range_store import Bounds
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.range_checkpoint import Position
from harvest.core.source import Registration, Source
from harvest.errors import CheckpointError, ConfigurationError, HarvestError, StoreUnavailable
from harvest.runtime import checkpoint_changes as changes
from harvest.runtime import registration
from harvest.runtime.parts import make_any_store

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
    "group: g\nmode: range\nshards: 2\n"
)


class Broken:
    """A store that works with nothing; it counts how many are open."""

    opened = 0

    def __init__(self, *_: object) -> None:
        Broken.opened += 1

    def close(self) -> None:
        Broken.opened -= 1

    def __getattr__(self, name: str) -> Any:
        raise StoreUnavailable(f"no {name}")


CHANGES: Sequence[Callable[[ReaperConfig], object]] = (
    lambda config: changes.change_shards(config, 4),
    lambda config: changes.reset_checkpoints(config, None),
    changes.restore_checkpoints,
    changes.accept_database,
)


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_opened_is_closed(
    change: Callable[[ReaperConfig], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("make_range_store", "make_any_store"):
        monkeypatch.setattr(changes, name, Broken)
    monkeypatch.setattr(changes, "check_registration", lambda *_, **__: None)
    monkeypatch.setattr(changes, "alone", lambda *_: contextlib.nullcontext())
    Broken.opened = 0
    with pytest.raises(HarvestError):
        change(CONFIG)
    assert Broken.opened == 0


# --- What is changed ---


class World:
    """A table, and what Kafka has of it. It notes what is written, and who was shut out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka: dict[int, Position] = {}
        self.mark: Checkpoint | None = None
        self.copies: list[Position] = []
        self.first_id = 1
        self.source_now = Source(server="s", timeline=2, log=50)
        self.source_before: Source | None = Source(server="s", timeline=1, log=40)
        self.shards_before = 2
        self.seen: list[object] = []
        for name in ("make_range_store", "make_any_store"):
            monkeypatch.setattr(changes, name, lambda *_: self)
        record = SimpleNamespace(load=lambda: self.source_before, close=lambda: None)
        monkeypatch.setattr(changes, "make_record", lambda _: record)
        monkeypatch.setattr(changes, "Checkpoints", lambda _: _Kafka(self))
        monkeypatch.setattr(changes, "alone", self._alone)
        for name in ("check_registration", "keep_source"):
            monkeypatch.setattr(changes, name, self._note(name))

    def connect(self) -> None: ...
    def close(self) -> None: ...

    def bounds(self) -> Bounds:
        return Bounds(self.first_id, 100)

    def source(self) -> Source:
        return self.source_now

    def promoted_at(self) -> int | None:
        return None

    def layout(self) -> int:
        return self.shards_before

    def saved(self) -> list[Position]:
        return self.copies

    def lookup(self, ranges: object) -> list[object]:
        del ranges
        return []

    def fetch(self, ranges: object) -> list[object]:
        del ranges
        return []

    def rewrite(self, shards: int, positions: Sequence[Position]) -> None:
        self.seen.append(("rewrite", shards, list(positions)))

    def _note(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: self.seen.append(name)

    @contextlib.contextmanager
    def _alone(self, _: object, shards: int) -> Iterator[None]:
        self.seen.append(("alone", shards))
        yield


class _Kafka:
    def __init__(self, world: World) -> None:
        self._world = world

    def read(self, shard: int) -> Position | None:
        return self._world.kafka.get(shard)

    def read_mark(self) -> Checkpoint | None:
        return self._world.mark

    def write(self, positions: Sequence[Position], *, fence: int) -> None:
        self._world.seen.append(("write", list(positions), fence))

    def write_mark(self, checkpoint: Checkpoint) -> None:
        self._world.seen.append(("write", checkpoint))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def position(shard: int, shards: int, last_id: int, log: int = 0) -> Position:
    return Position(5, shard, shards, last_id, (), 1 if log else 0, log)


def test_what_is_accepted_rests_on_no_log_any_more(world: World) -> None:
    """Positions in the log of the server before say nothing about the one that is there now."""
    world.kafka = {0: position(0, 2, 90, 30), 1: position(1, 2, 80, 45)}
    found = changes.accept_database(CONFIG)
    assert (found.before, found.now) == (Source(server="s", timeline=1, log=45), world.source_now)
    new = [position(0, 2, 90), position(1, 2, 80)]
    assert world.seen == ["check_registration", ("alone", 2), ("write", new, 2), "keep_source"]


def test_the_same_in_mark_mode(world: World) -> None:
    world.mark = Checkpoint(5, Term.of(1), 0, 1, 2, 1, 45)
    found = changes.accept_database(CONFIG.model_copy(update={"mode": "mark", "shards": 1}))
    assert found.before == Source(server="s", timeline=1, log=45)
    assert world.seen[2] == ("write", replace(world.mark, timeline=0, log=0))


def test_a_dry_run_accepts_nothing_and_says_what_differs(world: World) -> None:
    world.source_now = Source(server="another", timeline=2, log=50)
    assert changes.accept_database(CONFIG, dry_run=True).difference is not None
    assert world.seen == ["check_registration"]


def test_a_dry_run_registers_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the wrong file, all real harvesters would be refused afterwards."""
    (tmp_path / "app.db").touch()
    config = parse(
        f"database: sqlite:///{tmp_path}/app.db\nkafka: {{bootstrap.servers: 'localhost:1'}}\n"
        "group: g\n"
    )
    before = Source(visit=3, token="x")
    record = SimpleNamespace(load=lambda: before, close=lambda: None)
    monkeypatch.setattr(changes, "make_record", lambda _: record)
    monkeypatch.setattr(changes, "Checkpoints", lambda _: SimpleNamespace(read_mark=lambda: None))
    monkeypatch.setattr(registration, "_cluster_id", lambda _: "c")
    found = changes.accept_database(config, dry_run=True)
    assert "it has gone back in time" in str(found.difference)
    with contextlib.closing(make_any_store(config)) as store:
        assert store.registration() is None
        store.register(Registration("c", "another", "theirs", "mark"))
    with pytest.raises(ConfigurationError, match="group 'theirs' and not 'g'"):
        changes.accept_database(config, dry_run=True)


@pytest.mark.parametrize("above", [0, 1])
def test_a_position_above_all_ids_is_not_accepted(world: World, above: int) -> None:
    world.kafka = {shard: position(shard, 2, 101 if shard == above else 9) for shard in range(2)}
    with pytest.raises(CheckpointError, match=r"up to 100 only.*checkpoint restore"):
        changes.accept_database(CONFIG)
    assert world.seen == ["check_registration", ("alone", 2)]


def test_in_wal_mode_there_is_nothing_to_accept(world: World) -> None:
    with pytest.raises(ConfigurationError, match="`harvest slot renew` takes"):
        changes.accept_database(CONFIG.model_copy(update={"mode": "wal"}))
    assert world.seen == []


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_leaders_of_all_shards_that_there_were_are_shut_out(
    world: World, before: int, after: int
) -> None:
    world.shards_before = before
    world.kafka = {shard: position(shard, before, 50) for shard in range(before)}
    assert changes.change_shards(CONFIG, after) == before
    new = [position(shard, after, 50) for shard in range(after)]
    assert world.seen == [
        "check_registration",
        ("alone", before),
        ("write", new, before),
        ("rewrite", after, new),
    ]


def test_what_was_interrupted_goes_on_with_what_is_written(world: World) -> None:
    world.kafka = {shard: position(shard, 3, 50) for shard in range(3)}
    assert changes.change_shards(CONFIG, 3) == 2
    assert world.seen[1:] == [("alone", 2), ("rewrite", 3, [*world.kafka.values()])]


def test_a_shard_without_a_checkpoint_is_not_divided(world: World) -> None:
    world.kafka = {1: position(1, 2, 50)}
    with pytest.raises(CheckpointError, match="only 1 of 2 shards have a checkpoint"):
        changes.change_shards(CONFIG, 4)
    assert world.seen[1:] == [("alone", 2)]


def test_where_nothing_was_published_shards_begin_anew(world: World) -> None:
    assert changes.change_shards(CONFIG, 4) == 2
    assert world.seen[1:] == [("alone", 2), ("rewrite", 4, [])]


def test_copies_of_this_division_are_restored(world: World) -> None:
    world.copies = [position(0, 2, 90, 30), position(1, 2, 80, 45), position(2, 3, 7)]
    assert changes.restore_checkpoints(CONFIG) == world.copies[:2]
    new = [position(0, 2, 90), position(1, 2, 80)]
    assert world.seen == ["check_registration", ("alone", 2), ("write", new, 2), "keep_source"]


def test_where_there_are_no_copies_nothing_is_written(world: World) -> None:
    world.copies = [position(2, 3, 7)]
    with pytest.raises(CheckpointError, match="nothing to restore"):
        changes.restore_checkpoints(CONFIG)
    assert world.seen[1:] == [("alone", 2)]


@pytest.mark.parametrize(("after", "last_id"), [(None, 0), (0, 0), (70, 70)])
def test_all_shards_go_on_after_one_id(world: World, after: int | None, last_id: int) -> None:
    assert changes.reset_checkpoints(CONFIG, after) == last_id
    new = [Position(0, shard, 2, last_id) for shard in range(2)]
    assert world.seen == [
        "check_registration",
        ("alone", 2),
        ("write", new, 2),
        ("rewrite", 2, new),
        "keep_source",
    ]


def test_before_the_first_row_is_where_ids_begin(world: World) -> None:
    world.first_id = -5
    assert changes.reset_checkpoints(CONFIG, None) == -6
    assert changes.reset_checkpoints(CONFIG, 0) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_another_configuration_than_the_harvesters_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[ReaperConfig], object]
) -> None:
    """It holds claims that are none of theirs: they may be at work. What the database has of
    shards and positions is theirs, and after their next start they would refuse it."""

    def refuse(*_: object, **__: object) -> None:
        raise ConfigurationError("it is harvested with group 'h' and not 'g'")

    monkeypatch.setattr(changes, "check_registration", refuse)
    world.copies = [position(0, 2, 90), position(1, 2, 80)]
    with pytest.raises(ConfigurationError, match="and not 'g'"):
        change(CONFIG)
    assert world.seen == []

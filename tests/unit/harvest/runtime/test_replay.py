"""Publishing rows again: all that are wanted, in their order, in transactions of so many."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.core.interfaces.range_store import Window
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.errors import ConfigurationError, SinkUnavailable
from harvest.runtime import replay as module
from harvest.runtime.replay import Replay, Replayed, replay

CONFIG: Any = SimpleNamespace(mode="range")


class Producer:
    """Notes what each transaction brought; every third record finds the queue full at first."""

    def __init__(self) -> None:
        self.transactions: list[list[bytes]] = []
        self._open: list[bytes] = []
        self._asked = 0

    def begin_transaction(self) -> None:
        self._open = []

    def produce(self, topic: str, value: bytes, key: bytes, **more: Any) -> None:
        self._asked += 1
        if self._asked % 3 == 0:
            raise BufferError
        assert (topic, key, more["headers"]) == ("into", b"k", [("harvest.replay", value)])
        self._open.append(value)

    def poll(self, timeout_s: float) -> None:
        del timeout_s

    def commit_transaction(self, timeout_s: float) -> None:
        del timeout_s
        self.transactions.append(self._open)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 9])
def test_every_row_is_in_one_transaction(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """None is left out between two of them."""
    producer = Producer()
    rows = [Row(n, "t", b"k", b"%d" % n) for n in range(count)]
    monkeypatch.setattr(module, "_BATCH", 3)
    monkeypatch.setattr(module, "_check_published", lambda *_: None)
    monkeypatch.setattr(module, "_dead_letters", lambda *_: frozenset({4}))
    monkeypatch.setattr(module, "_rows", lambda *_: (row for row in rows))
    monkeypatch.setattr(module, "_producer", lambda *_: producer)
    told: list[int | None] = []

    def progress(done: Replayed) -> None:
        told.append(done.last_id)

    done = replay(CONFIG, Replay(0, 9, "t", "into"), progress=progress)
    wanted = [b"%d" % n for n in range(count) if n != 4]
    assert producer.transactions == [wanted[n : n + 3] for n in range(0, len(wanted), 3)]
    assert (done.rows, done.payload_bytes) == (len(wanted), 2 * len(wanted)), "and their keys"
    assert told == [int(values[-1]) for values in producer.transactions]


# --- Which rows there are ---


class World:
    """A table, an archive, and the positions of two shards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = [row(n) for n in (4, 5, 6)]
        self.archive: list[int] | None = None
        self.dropped: list[int] = []
        """What the next page finds to be archived, and dropped from the table."""
        self.positions: list[Position | None] = [Position(1, 0, 2, 9), Position(1, 1, 2, 9)]
        self.aside: frozenset[int] = frozenset()
        self.closed: list[str] = []
        self.asked: list[tuple[int, int]] = []
        read = SimpleNamespace(read=lambda shard: self.positions[shard])
        letters = SimpleNamespace(ids=self._ids, close=lambda: self.closed.append("letters"))
        store = SimpleNamespace(read=self._read, close=lambda: self.closed.append("table"))
        tables = SimpleNamespace(dead_letters=lambda _: letters)
        monkeypatch.setattr(module, "Checkpoints", lambda _: read)
        monkeypatch.setattr(module, "database", lambda _: tables)
        self.shards: list[int] = []
        """Of each table that was opened; with one, its rows are those of all."""

        def make_range_store(config: ReaperConfig) -> Any:
            self.shards.append(config.shards)
            return store

        monkeypatch.setattr(module, "make_range_store", make_range_store)
        monkeypatch.setattr(module, "make_archive", lambda _: self._archive())

    def ids(self, low: int, high: int, topic: str = "t") -> list[int]:
        """What a dry run would publish again: how many, and from where to where."""
        done = replay(SHARDED, Replay(low, high, topic, "into"), dry_run=True)
        assert self.shards.pop() == 1
        return [done.rows, done.first_id or 0, done.last_id or 0]

    def _ids(self, low: int, high: int) -> frozenset[int]:
        self.asked.append((low, high))
        return self.aside

    def _read(self, after: int, limit: int) -> Window:
        """Two rows a page."""
        del limit
        rows = [one for one in self.table if one.id > after]
        if self.dropped:
            self.archive = self.dropped
            self.table = [one for one in self.table if one.id not in self.dropped]
        return Window(rows[:2], rows[:2][-1].id if rows else after, (), len(rows) > 2)

    def _archive(self) -> Any:
        if self.archive is None and not self.dropped:
            return None
        folder = SimpleNamespace(is_dir=lambda: self.archive is not None)
        names = ("id", "kafka_topic", "kafka_key", "kafka_value")
        ends = {"kafka_header_keys": None, "kafka_header_values": None}

        def read(low: int, high: int) -> Iterator[dict[str, Any]]:
            found = [n for n in self.archive or () if low <= n <= high]
            return iter([dict(zip(names, row(n)[:4], strict=True)) | ends for n in found])

        return SimpleNamespace(folder=folder, read=read)


SHARDED = parse(
    "database: host=d\nkafka: {bootstrap.servers: 'localhost:1'}\ngroup: g\n"
    "mode: range\nshards: 2\n"
)


def row(number: int, topic: str = "t") -> Row:
    return Row(number, topic, b"k", b"%d" % number)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_row_that_is_in_the_archive_and_the_table_comes_once(world: World) -> None:
    assert world.ids(0, 9) == [3, 4, 6]
    world.archive = [1, 2, 4, 5]
    assert world.ids(0, 9) == [5, 1, 6]
    assert world.closed == ["letters", "table"] * 2


def test_what_is_archived_and_dropped_meanwhile_is_published_again_as_well(world: World) -> None:
    world.table = [row(n) for n in (4, 5, 6, 7, 8, 9)]
    world.dropped = [6, 7]
    assert world.ids(0, 9) == [6, 4, 9]


def test_ids_of_both_ends_are_wanted_and_no_others(world: World) -> None:
    assert world.ids(5, 5) == [1, 5, 5]
    assert world.ids(4, 5) == [2, 4, 5]
    assert world.ids(7, 9) == [0, 0, 0]


def test_rows_of_other_topics_and_those_that_are_aside_are_left_out(world: World) -> None:
    world.table += [row(7, "another")]
    world.aside = frozenset({5})
    assert world.ids(0, 9) == [2, 4, 6]
    assert world.ids(0, 9, "another") == [1, 7, 7]
    assert world.asked == [(0, 9)] * 2


@pytest.mark.parametrize(
    ("position", "most"),
    [(Position(1, 0, 2, 5), 5), (Position(1, 0, 2, 9, ((3, 3), (7, 7))), 2), (None, -1)],
)
def test_what_the_slowest_shard_may_still_publish_is_not_published_again(
    world: World, position: Position | None, most: int
) -> None:
    world.positions[0] = position
    with pytest.raises(ConfigurationError, match=f"the highest that can be replayed is {most}$"):
        world.ids(0, most + 1)
    if most >= 0:
        world.ids(0, most)


@pytest.mark.parametrize("ends", [(-1, 3), (4, 3)])
def test_a_range_that_is_none_is_refused(ends: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"--from {ends[0]} --to {ends[1]}"):
        Replay(*ends, "t", "t")


@pytest.mark.parametrize("mode", ["mark", "wal"])
def test_the_mode_that_has_nothing_to_publish_again_is_named(mode: Any) -> None:
    config = SHARDED.model_copy(update={"mode": mode, "shards": 1})
    with pytest.raises(ConfigurationError, match=f"^mode is {mode}, must be range"):
        replay(config, Replay(0, 1, "t", "t"))


_STATE = KafkaException(KafkaError(KafkaError._STATE))


@pytest.mark.parametrize(
    ("at", "worse", "how_far"),
    [
        ("commit", None, "up to id 5: no answer"),
        ("produce", None, "up to id 5: no answer"),
        ("produce", _STATE, "up to id 5: no answer"),
        ("begin", SystemError, "up to id 5: no answer"),
        ("init", None, "nothing was published: no answer"),
        *[
            (
                "commit",
                worse,
                r"up to id 5 \(whether ids 6 to 8 were, all of them or none, is not known: look in "
                r"'into' for header harvest.replay = 8\): no answer",
            )
            for worse in (_STATE, SystemError)
        ],
    ],
)
@pytest.mark.parametrize(
    "why",
    [KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")), SystemError("no answer")],
)
def test_what_broke_off_says_how_far_it_came(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str, worse: Any, how_far: str, why: Any
) -> None:
    """It can be taken up from there, and what is not known is said. Nor does a producer that failed
    for good hide the reason."""
    world.table += [row(8), row(9)]
    world.positions = [Position(1, 0, 2, 10)] * 2
    seen: list[str] = []

    class Failing(Producer):
        def list_topics(self, topic: str, timeout_s: float) -> Any:
            del timeout_s
            return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

        def _at(self, step: str) -> None:
            if step == at and (step == "init" or self.transactions):
                raise why

        def init_transactions(self, timeout_s: float) -> None:
            del timeout_s
            self._at("init")

        def begin_transaction(self) -> None:
            self._at("begin")
            super().begin_transaction()

        def produce(self, topic: str, value: bytes, key: bytes, **more: Any) -> None:
            self._at("produce")
            super().produce(topic, value, key, **more)

        def commit_transaction(self, timeout_s: float) -> None:
            self._at("commit")
            super().commit_transaction(timeout_s)

        def purge(self) -> None:
            seen.append("purge")

        def abort_transaction(self, timeout_s: float) -> None:
            del timeout_s
            seen.append("abort")
            if worse is not None:
                raise worse

    monkeypatch.setattr(module, "_BATCH", 2)
    monkeypatch.setattr(module, "make_client", lambda *_: Failing())
    with pytest.raises(SinkUnavailable, match=f"^the replay broke off, {how_far}$"):
        replay(SHARDED, Replay(0, 9, "t", "into"))
    assert seen == ([] if at == "init" else ["purge", "abort"])
    assert world.closed == (["letters"] if at == "init" else ["letters", "table"])


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ConfigurationError, "there is no topic 'into': create"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkUnavailable, "nothing was published: .*author"),
    ],
)
def test_a_topic_that_may_not_be_seen_is_not_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], text: str
) -> None:
    topic = SimpleNamespace(error=KafkaError(code))
    producer = SimpleNamespace(list_topics=lambda *_: SimpleNamespace(topics={"into": topic}))
    monkeypatch.setattr(module, "make_client", lambda *_: producer)
    with pytest.raises(kind, match=text):
        replay(SHARDED, Replay(0, 3, "t", "into"))


def test_a_row_keeps_its_time_and_not_its_partition() -> None:
    """The other topic has partitions of its own."""
    produced: list[dict[str, Any]] = []

    def produce(topic: str, value: bytes, key: bytes, **more: Any) -> None:
        del topic, value, key
        produced.append(more)

    producer: Any = SimpleNamespace(
        begin_transaction=lambda: None, produce=produce, commit_transaction=lambda _: None
    )
    names = (b"harvest.partition", b"harvest.timestamp", b"h")
    module._publish(producer, [Row(7, "t", b"k", b"v", names, (b"2", b"5000", b"1"))], "into")
    assert produced == [{"headers": [("h", b"1"), ("harvest.replay", b"7")], "timestamp": 5_000}]

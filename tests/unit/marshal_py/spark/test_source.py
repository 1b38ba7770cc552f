"""The source plans batches of what is held, and of nothing else: no Kafka, no JVM."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from confluent_kafka import KafkaError, KafkaException
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from marshal_py.client.headers import UNREADABLE
from marshal_py.errors import ClaimTimeout, ConfigurationError, MessagesMissing, NotHeld
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.spark import positions
from marshal_py.spark import source as module
from marshal_py.spark.positions import TopicIds
from marshal_py.spark.source import (
    TICK,
    ClaimedReader,
    MarshalSource,
    Offset,
    Range,
    SourceOptions,
    UncommittedReader,
)
from tests.support.unreadable import make_unreadable

ALL = ReadAllAvailable()
GIVEN = {"kafka.bootstrap.servers": "x", "groupId": "g", "topics": "t", "clientId": "me"}


class Claim:
    """A claim that is held from the beginning."""

    def __init__(self, topic: str, partition: int, epoch: int, position: int) -> None:
        self.topic, self.partition, self.epoch, self.position = topic, partition, epoch, position
        self.held, self.reason, self.metadata = True, None, b""
        self.calls: list[tuple[Any, ...]] = []
        self.wins: bool | Exception = True

    def commit(self, offset: int, *, wait: bool = False) -> None:
        self.calls.append(("commit", offset, wait))
        if not self.held:
            raise NotHeld("lost")
        self.position = offset

    def claim_messages(self, offset: int) -> bool:
        self.calls.append(("claim_messages", offset))
        if isinstance(self.wins, Exception):
            raise self.wins
        return self.wins

    def set_metadata(self, metadata: bytes) -> None:
        self.metadata = metadata

    def wait_held(self, timeout_s: float) -> bool:
        return self.held

    def release(self, *, wait: bool) -> None:
        self.calls.append(("release", wait))
        self.held = False


def stored(offset: int) -> list[tuple[Any, ...]]:
    """With the others first, and then waited for."""
    return [("commit", offset, False), ("commit", offset, True)]


class Client:
    """The client of the group, and what it knows of others."""

    client_id = "me"

    def __init__(self) -> None:
        self.claims: dict[tuple[str, int], Claim] = {}
        self.cells: dict[tuple[str, int], Any] = {}
        self.alive: dict[tuple[str, int], str] = {}
        self.members: dict[str, tuple[int, int]] = {"me": (1, 1_000)}
        """Log offset of the last heartbeat, and interval."""
        self.free = True

    def want(self, topic: str, partition: int) -> Claim:
        place = (topic, partition)
        if place not in self.claims:
            cell = self.cells.get(place)
            position = -1 if cell is None else cell.position
            self.claims[place] = Claim(topic, partition, 7, position)
            self.claims[place].held = self.free
        return self.claims[place]

    def cell(self, topic: str, partition: int) -> Any:
        return self.cells.get((topic, partition))

    def liveness(self, topic: str, partition: int) -> str | None:
        return self.alive.get((topic, partition))

    @contextlib.contextmanager
    def world(self) -> Iterator[Any]:
        yield SimpleNamespace(
            members=lambda _group: [
                SimpleNamespace(
                    client_id=name, member=SimpleNamespace(version=version, interval_ms=ms)
                )
                for name, (version, ms) in self.members.items()
            ]
        )


class Ids(TopicIds):
    """What Kafka says of the topic `t`: one after the other, if it is made anew."""

    def __init__(self, *told: bytes) -> None:
        self._told, self._ids = list(told), {}
        self.is_open = False

    def ask(self, _topics: Iterable[str]) -> None:
        self.is_open = True
        if self._told:
            self._ids = {"t": self._told.pop(0)}

    def close(self) -> None:
        self.is_open = False


class Ends:
    """Where partitions begin and end."""

    def __init__(self, **ends: tuple[int, int]) -> None:
        self.ends = ends

    def extent(self, topic: str) -> dict[int, tuple[int, int]]:
        return {int(name[1:]): both for name, both in self.ends.items()}


class World:
    """A reader with a client and ends that are made up."""

    def __init__(self, ends: dict[str, tuple[int, int]], **options: str) -> None:
        self.client, self.ends = Client(), Ends(**ends)
        self.reader = ClaimedReader(SourceOptions.of({**GIVEN, **options}))
        self.reader._ids = Ids()
        self.reader._marshal, self.reader._offsets = cast(Any, self.client), cast(Any, self.ends)

    def cell(self, partition: int, position: int, holder: str | None = None) -> None:
        cell = SimpleNamespace(position=position, holder=holder, metadata=b"")
        self.client.cells["t", partition] = cell

    def claim(self, partition: int) -> Claim:
        return self.client.claims["t", partition]

    def plan(self, start: Offset | None = None, most: int | None = None) -> Offset:
        limit = ALL if most is None else ReadMaxRows(most)
        return self.reader.latestOffset(start or {TICK: 0}, limit)


def entry(begin: int, end: int, *, epoch: int = 7, turn: int = 0) -> dict[str, int]:
    return {"epoch": epoch, "turn": turn, "from": begin, "offset": end}


def test_a_batch_goes_from_the_position_to_the_end_and_is_stored_when_spark_has_it() -> None:
    world = World({"p0": (0, 10), "p1": (0, 5)})
    world.cell(0, 4)
    end = world.plan()
    assert end == {TICK: 0, "t/0": entry(4, 10), "t/1": entry(0, 5)}
    assert world.reader.partitions({TICK: 0}, end) == [Range("t", 0, 4, 10), Range("t", 1, 0, 5)]
    assert world.reader.reportLatestOffset() == {
        "t/0": {"offset": 10, "lag": 0},
        "t/1": {"offset": 5, "lag": 0},
    }
    assert world.claim(0).calls == []  # not before Spark says so
    world.ends.ends["p0"] = (0, 12)
    following = world.plan(end)
    assert following == end | {"t/0": entry(10, 12)}
    assert world.reader.partitions(end, following) == [Range("t", 0, 10, 12)]
    world.reader.commit(end)
    assert world.claim(0).calls == [("commit", 10, False)]


def test_a_batch_has_no_more_than_the_limit_shared_by_what_is_held() -> None:
    world = World({"p0": (0, 100), "p1": (0, 3), "p2": (0, 100)})
    end = world.plan(most=21)
    assert [end[f"t/{p}"]["offset"] for p in range(3)] == [7, 3, 7]
    assert world.reader.reportLatestOffset() == {
        f"t/{p}": {"offset": last, "lag": lag}
        for p, (last, lag) in enumerate([(100, 93), (3, 0), (100, 93)])
    }
    assert world.plan(most=1)["t/0"]["offset"] == 1  # it always goes on


@pytest.mark.parametrize("change", ["another epoch", "lost", "given up"])
def test_what_was_planned_under_a_claim_that_is_gone_is_planned_again(change: str) -> None:
    world = World({"p0": (0, 10)})
    end = world.plan()
    claim = world.claim(0)
    if change == "another epoch":
        claim.epoch = 9
    elif change == "lost":
        claim.held = False
    else:
        world.reader._wanted.clear()
    assert world.reader.partitions({TICK: 0}, end) == []
    world.reader.commit(end)
    assert claim.calls == []
    claim.held, claim.position = True, 6
    world.reader._wanted["t/0"] = cast(Any, claim)
    # From where the group is, and not from where the batch would have ended.
    assert world.plan(end)["t/0"] == entry(6, 10, epoch=claim.epoch, turn=1)


def test_one_claim_that_is_lost_just_now_keeps_no_other_from_being_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"p0": (0, 10), "p1": (0, 10)})
    end = world.plan()

    def lost(*_: object, **__: object) -> None:
        raise NotHeld("lost")

    monkeypatch.setattr(world.claim(0), "commit", lost)
    world.reader.commit(end)
    assert world.claim(1).calls == [("commit", 10, False)]


def test_one_position_that_is_not_stored_in_time_keeps_no_other_from_being_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The query fails with it, and its last heartbeat has the others."""
    world = World({"p0": (0, 10), "p1": (0, 10)})
    end = world.plan()

    def late(_offset: int, *, wait: bool = False) -> None:
        if wait:
            raise ClaimTimeout("late")

    monkeypatch.setattr(world.claim(0), "commit", late)
    world.reader._draining.add("t/0")
    with pytest.raises(ClaimTimeout):
        world.reader.commit(end)
    assert world.claim(1).calls == [("commit", 10, False)]
    assert world.claim(0).held


def test_a_lapse_within_one_epoch_skips_nothing() -> None:
    """The claim is held again when the next batch is planned: as if nothing had been."""
    world = World({"p0": (0, 10)})
    end = world.plan()
    world.claim(0).held = False
    assert world.reader.partitions({TICK: 0}, end) == []
    world.claim(0).held = True
    following = world.plan(end)
    assert following["t/0"] == entry(0, 10, turn=1)
    world.reader.commit(end)  # Spark has committed a batch that was empty
    assert world.claim(0).calls == []
    assert world.reader.partitions(end, following) == [Range("t", 0, 0, 10)]


def test_at_most_once_a_range_is_claimed_once_and_before_it_is_handed_out() -> None:
    world = World({"p0": (0, 10), "p1": (0, 6)}, delivery="at-most-once")
    probe = world.plan()
    assert (probe, world.client.claims) == ({TICK: 1}, {})
    assert world.reader.partitions({TICK: 0}, probe) == [Range("", 0, 0, 0)]
    end = world.plan(probe)
    for _ in range(2):  # Spark may ask again about the same batch
        found = world.reader.partitions(probe, end)
        assert found == [Range("t", 0, 0, 10), Range("t", 1, 0, 6)]
    assert [world.claim(p).calls for p in (0, 1)] == [
        [("claim_messages", 10)],
        [("claim_messages", 6)],
    ]


@pytest.mark.parametrize("verdict", [False, NotHeld("lost")])
def test_at_most_once_a_range_that_was_not_won_is_dropped(verdict: bool | Exception) -> None:
    world = World({"p0": (0, 10)}, delivery="at-most-once")
    world.reader._probed = True
    end = world.plan()
    world.claim(0).wins = verdict
    assert world.reader.partitions({TICK: 0}, end) == []
    world.claim(0).wins = True
    assert world.reader.partitions({TICK: 0}, end) == []


@pytest.mark.parametrize(
    ("delivery", "attempt", "read"),
    [
        ("at-least-once", 0, True),
        ("at-least-once", 1, True),
        ("at-most-once", 0, True),
        ("at-most-once", 1, False),
    ],
)
def test_at_most_once_the_first_attempt_of_a_task_alone_reads(
    monkeypatch: pytest.MonkeyPatch, delivery: str, attempt: int, read: bool
) -> None:
    context = SimpleNamespace(attemptNumber=lambda: attempt, getLocalProperty=lambda _name: "false")
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    monkeypatch.setattr(module, "read_range", lambda *_, **__: iter([[Message(5)]]))
    reader = World({}, delivery=delivery).reader
    found = [batch.num_rows for batch in reader.read(Range("t", 0, 5, 6))]
    assert found == ([1] if read else [])


def test_a_start_that_was_chosen_is_stored_for_whoever_comes_next() -> None:
    world = World({"p0": (3, 10), "p1": (3, 10)}, startingOffsets='{"t": {"0": 5}}')
    assert world.plan()["t/0"] == entry(5, 10)
    assert world.claim(0).calls == [("commit", 5, False)]
    assert world.claim(1).calls == []  # the beginning needs no note
    world = World({"p0": (3, 10)}, startingOffsets="latest")
    world.reader._ids = Ids(b"id")
    assert "t/0" not in world.plan()
    assert world.claim(0).calls == [("commit", 10, False)]
    assert ClaimMetadata.decode(world.claim(0).metadata).topic_id == b"id"


def test_a_starting_offset_is_one_that_the_partition_has() -> None:
    options = SourceOptions.of({**GIVEN, "startingOffsets": '{"t": {"0": 5, "1": -2, "2": -1}}'})
    assert [options.begin("t", p, 3, 9) for p in range(4)] == [5, 3, 9, 3]
    assert [options.begin("t", 0, *ends) for ends in ((5, 9), (0, 5))] == [5, 5]
    for ends in ((6, 9), (0, 4)):
        with pytest.raises(ConfigurationError, match="startingOffsets = 5 of t/0"):
            options.begin("t", 0, *ends)


@pytest.mark.parametrize(
    ("name", "value"),
    [("maxOffsetsPerTrigger", "0"), ("maxOffsetsPerTrigger", "-1"), ("topics", " , ")],
)
def test_a_limit_of_nothing_and_topics_that_are_none_are_refused(name: str, value: str) -> None:
    """The one would be no limit, and the other a query that never reads anything."""
    with pytest.raises(ConfigurationError, match=f"{name} = '?{value}"):
        SourceOptions.of({**GIVEN, name: value})


def test_what_retention_has_deleted_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A query that was down for longer would fail for ever."""
    world = World({"p0": (6, 10), "p1": (9, 9)})
    world.cell(0, 4)
    world.cell(1, 4)
    assert world.plan(most=4) == {TICK: 0, "t/0": entry(6, 8)}
    assert world.reader.reportLatestOffset() == {
        "t/0": {"offset": 10, "lag": 2},
        "t/1": {"offset": 9, "lag": 0},
    }
    assert caplog.messages == ["retention has deleted t/0 from 4 to 5"]
    world = World({"p0": (0, 10)})
    world.cell(0, 4)
    world.reader.prepareForTriggerAvailableNow()
    world.ends.ends["p0"] = (12, 15)  # of what was there then nothing is left
    assert world.plan() == {TICK: 0}
    assert world.client.claims == {}


# A topic that was made anew

MADE_ANEW = "t/0, which has records 0 to 10, was made anew"


def test_a_topic_that_was_made_anew_is_not_read_on() -> None:
    """Whether it has grown past the position, or not: nothing is left out in silence."""
    world = World({"p0": (0, 10)})
    world.reader._ids = Ids(b"old", b"old", b"new")
    end = world.plan()
    claim = world.claim(0)
    assert ClaimMetadata.decode(claim.metadata).topic_id == b"old"
    assert world.plan(end) == end
    world.reader.commit(end)
    with pytest.raises(MessagesMissing, match=f"{MADE_ANEW}: the position of the group is 10. Set"):
        world.plan(end)
    # The next application of the group hears of it, too; until the position is set.
    following = World({"p0": (0, 20)})
    following.reader._ids = Ids(b"new")
    following.client.want("t", 0).metadata, following.claim(0).position = claim.metadata, 10
    with pytest.raises(MessagesMissing, match="was made anew"):
        following.plan()
    following.claim(0).position = -1
    assert following.plan()["t/0"] == entry(0, 20)
    assert ClaimMetadata.decode(following.claim(0).metadata).topic_id == b"new"


def test_a_position_beyond_the_end_is_told_also_if_no_id_is_known() -> None:
    world = World({"p0": (0, 10), "p1": (0, 10)})
    world.cell(0, 11)
    with pytest.raises(MessagesMissing, match=f"{MADE_ANEW}, or truncated: .* 11"):
        world.plan()
    world = World({"p0": (0, 10)})
    world.cell(0, 11)
    world.reader.prepareForTriggerAvailableNow()
    with pytest.raises(MessagesMissing, match=f"{MADE_ANEW}, or truncated: .* 11"):
        world.plan()
    world = World({"p0": (0, 10)})
    end = world.plan()  # nothing of it is stored yet
    world.ends.ends.clear()  # the topic has no such partition any more
    with pytest.raises(MessagesMissing, match="t/0, which has records 0 to 0"):
        world.plan(end)


def test_ids_are_asked_for_and_a_cluster_that_does_not_tell_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = [b"id", KafkaException(KafkaError(KafkaError._TIMED_OUT)), b"v"]

    def describe(_admin: object, topics: Iterable[str], _timeout_s: float) -> dict[str, Any]:
        answer = told.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {topic: SimpleNamespace(topic_id=answer) for topic in topics}

    admin = SimpleNamespace(get=lambda: None, tells_ids=True)
    monkeypatch.setattr(positions, "describe", describe)
    monkeypatch.setattr(positions, "AdminOnDemand", lambda _: admin)
    ids = TopicIds({})
    ids.ask(["t"])
    ids.ask(["t"])  # without an answer, what was known
    ids.ask(["u"])  # nor is it forgotten where another answer says nothing of it
    for known, anew in ((b"id", False), (b"other", True)):
        metadata = ClaimMetadata(topic_id=known).encode()
        with pytest.raises(MessagesMissing) if anew else contextlib.nullcontext():
            ids.check(("t", 0), 5, metadata, (0, 10))
    admin.tells_ids = False
    ids.ask(["t"])  # of a broker that has none to tell, nothing is asked
    assert told == []


def test_a_position_that_is_younger_than_the_look_at_the_end_is_none_beyond_it() -> None:
    world = World({"p0": (0, 10)})
    world.cell(0, 12)  # stored by its last holder, after we had looked
    ends = [{0: (0, 10)}, {0: (0, 15)}]
    world.reader._offsets = cast(Any, SimpleNamespace(extent=lambda _: ends.pop(0)))
    assert world.plan() == {TICK: 0}
    assert ends == []


# Available now


def test_available_now_reads_to_the_ends_that_it_found_and_gives_all_back() -> None:
    world = World({"p0": (0, 10)})
    world.reader.prepareForTriggerAvailableNow()
    world.ends.ends["p0"] = (0, 15)
    end = world.plan()
    assert end["t/0"] == entry(0, 10)
    assert world.reader.reportLatestOffset() == {"t/0": {"offset": 15, "lag": 5}}
    last = world.plan(end)
    assert last == end | {TICK: 1}  # an empty batch, so that Spark commits the one before
    assert world.plan(last) == last
    world.reader.commit(end)
    assert world.claim(0).calls == [*stored(10), ("release", True)]


def test_available_now_with_nothing_to_read_gives_back_at_once() -> None:
    world = World({"p0": (0, 10)})
    world.cell(0, 10)
    world.reader.prepareForTriggerAvailableNow()
    assert world.plan() == {TICK: 0}
    assert world.client.claims == {}  # nobody else has to wait
    world = World({"p0": (0, 0)})  # nothing in it, and no position yet
    world.reader.prepareForTriggerAvailableNow()
    assert world.plan() == {TICK: 0}
    assert world.claim(0).calls == [("release", True)]


def test_available_now_leaves_what_a_client_holds_that_is_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"p0": (0, 10), "p1": (0, 10)})
    world.cell(0, 2, holder="other")
    world.client.members["other"] = (5, 1_000)
    want = world.client.want

    def beats(topic: str, partition: int) -> Claim:
        claim = want(topic, partition)
        claim.held = partition == 1
        world.client.members["other"] = (6, 1_000)
        return claim

    monkeypatch.setattr(world.client, "want", beats)
    world.reader.prepareForTriggerAvailableNow()
    end = world.plan()
    assert end == {TICK: 0, "t/1": entry(0, 10)}
    assert world.claim(0).calls == [("release", False)]
    assert world.reader.reportLatestOffset() == {
        "t/0": {"offset": 10, "lag": 8},
        "t/1": {"offset": 10, "lag": 0},
    }


def test_available_now_asks_again_for_what_it_lost_before_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"p0": (0, 10)})
    world.reader.prepareForTriggerAvailableNow()
    lost = Claim("t", 0, 5, -1)
    lost.held, lost.reason = False, cast(Any, "taken over")
    world.reader._wanted["t/0"] = cast(Any, lost)
    monkeypatch.setattr(module, "_PATIENCE_S", -10.0)
    assert world.plan()["t/0"] == entry(0, 10)


def test_the_client_of_a_query_is_the_one_that_its_options_describe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []

    def make(config: dict[str, str], **given: Any) -> Any:
        made.append({"config": config, **given})
        return SimpleNamespace(start=lambda: "started")

    monkeypatch.setattr(module, "Marshal", make)
    more = {"clientId": "job", "intervalMs": "700", "coordinationTopic": "mine"}
    reader = ClaimedReader(SourceOptions.of({**GIVEN, **more}))
    assert [cast(Any, reader._client()) for _ in range(2)] == ["started"] * 2
    # Spark's driver ends itself, and its queries before.
    assert made == [
        {
            "config": {"bootstrap.servers": "x"},
            "group_id": "g",
            "client_id": "job",
            "interval_ms": 700,
            "topic": "mine",
            "create_topics": True,
            "close_on_sigterm": False,
        }
    ]


def test_a_query_that_is_stopped_keeps_its_claims_while_tasks_may_be_at_work() -> None:
    reader = ClaimedReader(SourceOptions.of(GIVEN))
    reader.stop()  # before it began
    closed: list[bool] = []
    client = SimpleNamespace(close=lambda *, release: closed.append(release))
    reader._marshal = cast(Any, client)
    reader.stop()
    assert closed == [False]


def test_headers_are_a_column_for_who_asks_for_them() -> None:
    assert MarshalSource(GIVEN).schema() == module.SCHEMA
    assert MarshalSource({**GIVEN, "includeHeaders": "true"}).schema().endswith(module.HEADERS)


def test_available_now_does_not_end_as_if_there_were_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", -10.0)
    world = World({"p0": (0, 10)})
    world.client.free = False
    world.cell(0, 2, holder="other")
    world.reader.prepareForTriggerAvailableNow()
    with pytest.raises(ClaimTimeout, match="holder 'other' is not heard of"):
        world.plan()


# Shares


def test_a_share_is_all_partitions_over_the_living_members_rounded_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("marshal_py.spark.source.time.monotonic", lambda: now[0])
    world = World({f"p{p}": (0, 10) for p in range(5)})
    world.client.members["other"] = (5, 1_000)
    assert sorted(world.plan()) == [TICK, "t/0", "t/1", "t/2"]
    now[0] += 2
    world.client.members["me"] = (2, 1_000)
    assert len(world.reader._wanted) == 3
    world.plan()
    assert len(world.reader._wanted) == 3  # two intervals are not over yet
    now[0] += 0.1
    world.plan()
    assert len(world.reader._wanted) == 5


def test_what_is_too_much_is_read_no_further_stored_and_given_back() -> None:
    world = World({"p0": (0, 10), "p1": (0, 10)})
    end = world.plan()
    world.client.members["other"] = (5, 1_000)
    world.ends.ends = {"p0": (0, 12), "p1": (0, 12)}
    following = world.plan(end)
    assert following == end | {"t/0": entry(10, 12), TICK: 1}
    world.reader.commit(end)
    assert world.claim(0).calls == [("commit", 10, False)]
    assert world.claim(1).calls == [*stored(10), ("release", False)]


def test_what_is_too_much_and_not_held_yet_is_given_back_at_once() -> None:
    world = World({"p0": (0, 10), "p1": (0, 10)})
    world.client.free = False
    world.plan()
    world.client.members["other"] = (5, 1_000)
    assert world.plan() == {TICK: 0}
    assert [world.claim(p).calls for p in (0, 1)] == [[], [("release", False)]]
    assert list(world.reader._wanted) == ["t/0"]


def test_what_was_lost_while_it_was_given_back_is_read_when_it_is_held_again() -> None:
    world = World({"p0": (0, 10), "p1": (0, 10)})
    end = world.plan()
    world.client.members["other"] = (5, 1_000)
    end = world.plan(end)  # 1 is to go
    lost, again = world.claim(1), Claim("t", 1, 9, 4)
    world.client.claims["t", 1] = again
    lost.held, lost.reason = False, cast(Any, "taken over")
    world.client.alive = {("t", 1): "alive"}
    end = world.plan(end)
    world.client.alive.clear()
    del world.client.members["other"]
    assert world.plan(end)["t/1"] == entry(4, 10, epoch=9)


def test_nothing_is_wanted_that_a_living_client_holds() -> None:
    world = World({"p0": (0, 10), "p1": (0, 10), "p2": (0, 10)})
    world.client.alive = {("t", 0): "alive", ("t", 1): "stale"}
    assert sorted(world.plan()) == [TICK, "t/1", "t/2"]


def test_a_claim_that_ended_is_let_go() -> None:
    world = World({"p0": (0, 10)})
    world.plan()
    claim = world.claim(0)
    claim.held, claim.reason = False, cast(Any, "taken over")
    world.client.alive = {("t", 0): "alive"}
    assert world.plan() == {TICK: 0}
    assert (world.reader._wanted, claim.calls) == ({}, [("release", False)])


def test_executors_get_nothing_but_the_options() -> None:
    reader = World({"p0": (0, 10)}).reader
    assert pickle.loads(pickle.dumps(reader)).__dict__ == {"options": reader.options}


# A look, and rows


def test_a_look_is_from_the_position_on_as_far_as_records_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, asked = Client(), []

    class Looking:
        def __init__(self, *_: object, **given: Any) -> None:
            asked.append(given["member"])

        def __enter__(self) -> Client:
            return client

        def __exit__(self, *_: object) -> None:
            pass

        def cell(self, topic: str, partition: int) -> Any:
            return client.cell(topic, partition)

    ends = {"p0": (0, 10), "p1": (6, 10), "p2": (0, 10), "p3": (2, 10)}
    monkeypatch.setattr(module, "Marshal", Looking)
    offsets = contextlib.nullcontext(Ends(**ends))
    monkeypatch.setattr(module, "Offsets", lambda *_: offsets)
    monkeypatch.setattr(module, "TopicIds", lambda _: Ids())
    for partition, position in ((0, 4), (1, 3), (2, 10)):
        client.cells["t", partition] = SimpleNamespace(position=position, metadata=b"")
    look = UncommittedReader(SourceOptions.of(GIVEN))
    found = [(r.partition, r.begin, r.end) for r in look.partitions()]
    assert found == [(0, 4, 10), (1, 6, 10), (3, 2, 10)]
    assert asked == [False]  # it takes no part in the group
    client.cells["t", 1].position = 11
    with pytest.raises(MessagesMissing, match="the position of the group is 11"):
        look.partitions()
    client.cells["t", 1].position = 3
    # Between two looks the topic was made anew, with fewer partitions.
    client.cells["t", 3] = SimpleNamespace(position=11, metadata=b"")
    extents = [Ends(**ends).extent("t"), {0: (0, 10)}]
    looks = contextlib.nullcontext(SimpleNamespace(extent=lambda _: extents.pop(0)))
    with monkeypatch.context() as patch:
        patch.setattr(module, "Offsets", lambda *_: looks)
        with pytest.raises(MessagesMissing, match="t/3, which has records 0 to 0"):
            look.partitions()
    del client.cells["t", 3]
    limited = UncommittedReader(SourceOptions.of({**GIVEN, "maxOffsetsPerTrigger": "8"}))
    found = [(r.partition, r.begin, r.end) for r in limited.partitions()]
    assert found == [(0, 4, 6), (1, 6, 8), (3, 2, 4)]


class Message:
    """A record, written 1,500 ms after 1970 as its broker says."""

    def __init__(self, offset: int, kind: int = 2) -> None:
        self._offset, self._kind = offset, kind

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None if self._offset % 2 else b""

    def value(self) -> bytes:
        return b"v"

    def timestamp(self) -> tuple[int, int]:
        return self._kind, 1_500

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("a", b"1"), ("a", None)] if self._offset % 2 else None


def test_a_row_has_what_sparks_own_source_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def read(*given: Any, **_: Any) -> Iterator[list[Message]]:
        asked.append(given[1:])
        yield [Message(4), Message(5, kind=1), make_unreadable(Message(6))]

    monkeypatch.setattr(module, "read_range", read)
    options = SourceOptions.of({**GIVEN, "includeHeaders": "true"})
    (batch,) = module._arrow_range(options, Range("t", 3, 4, 7))
    assert asked == [("t", 3, 4, 7)]
    written = dt.datetime.fromtimestamp(1.5, dt.UTC)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (b"", b"v", "t", 3, 4, written, 1, None),
        (
            None,
            b"v",
            "t",
            3,
            5,
            written,
            0,
            [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        ),
        (
            b"",
            b"v",
            "t",
            3,
            6,
            written,
            1,
            [{"key": UNREADABLE, "value": b"the name of a header is not UTF-8"}],
        ),
    ]

"""What a claimed batch reads, and when it is stored: no Kafka, no JVM."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from marshal_py.errors import ClaimTimeout, ConfigurationError, MessagesMissing, NotHeld
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.spark import batch as module
from marshal_py.spark.batch import claimable, claimed_batch
from tests.unit.marshal_py.spark.test_source import Ids

ENDS = {0: (2, 10), 1: (0, 6), 2: (0, 4)}
"""Where the partitions of the topic begin and end."""


class Claim:
    """A claim at a position."""

    def __init__(self, partition: int, position: int) -> None:
        self.topic, self.partition, self.position, self.epoch = "t", partition, position, 7
        self.calls: list[tuple[Any, ...]] = []
        self.timeouts_s: list[float] = []
        self.held, self.wins, self.lost, self.late = True, True, False, False
        self.metadata = b""

    def set_metadata(self, metadata: bytes) -> None:
        self.metadata = metadata

    def wait_held(self, timeout_s: float) -> bool:
        self.timeouts_s.append(timeout_s)
        return self.held

    def claim_messages(self, offset: int) -> bool:
        if self.lost:
            raise NotHeld("lost")
        self.calls.append(("claim_messages", offset))
        return self.wins

    def commit(self, offset: int, *, wait: bool = False, timeout_s: float = 0) -> None:
        if self.lost:
            raise NotHeld("lost")
        self.calls.append(("commit", offset, wait))
        self.timeouts_s += [timeout_s] if wait else []
        if wait and self.late:
            raise ClaimTimeout("late")

    def release(self, *, wait: bool) -> None:
        self.calls.append(("release", wait))


def stored(offset: int) -> list[tuple[Any, ...]]:
    """With the others first, and then waited for."""
    return [("commit", offset, False), ("commit", offset, True)]


class Spark:
    """A session that keeps the options of what is read."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.options_: dict[str, Any] = {}
        self.empty = False
        self.conf, self.read = SimpleNamespace(get=self.settings.get), self

    def createDataFrame(self, rows: list[Any], _schema: str) -> Spark:
        assert rows == []
        self.empty = True
        return self

    def format(self, name: str) -> Spark:
        assert name == "kafka"
        return self

    def options(self, **given: str) -> Spark:
        self.options_.update(given)
        return self

    def option(self, name: str, value: str) -> Spark:
        return self.options(**{name: value})

    def load(self) -> Spark:
        return self


class World:
    """A topic of three partitions, a client of the group, and a session."""

    client_id = "me"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark = Spark()
        self.claims = {p: Claim(p, -1) for p in ENDS}
        self.cells: dict[int, Any] = {}
        self.alive: dict[int, str] = {}
        self.watched: list[str] = []
        offsets = SimpleNamespace(partitions=lambda _: [*ENDS], extent=self.extent)
        self.wanted: set[int] = set()
        self.ids = Ids()
        monkeypatch.setattr(module, "TopicIds", lambda _: self.ids)
        monkeypatch.setattr(module, "Offsets", self.asking)
        self.is_asking = False
        self._offsets = offsets
        monkeypatch.setattr(module, "Marshal", self.client)
        self.settings: dict[str, str] = {}
        self.asked: dict[str, Any] = {}
        monkeypatch.setattr(module, "cluster_watched", lambda _: contextlib.nullcontext())

    @contextlib.contextmanager
    def asking(self, *_: object) -> Iterator[Any]:
        self.is_asking = True
        yield self._offsets
        self.is_asking = False

    def client(self, settings: dict[str, str], **asked: Any) -> World:
        self.settings, self.asked = settings, asked
        return self

    def extent(self, _topic: str) -> dict[int, tuple[int, int]]:
        """It may not be older than positions, which would be beyond it."""
        assert self.wanted
        return ENDS

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cell(self, _topic: str, partition: int) -> Any:
        return self.cells.get(partition)

    def liveness(self, _topic: str, partition: int) -> str | None:
        return self.alive.get(partition)

    def want(self, _topic: str, partition: int) -> Claim:
        self.wanted.add(partition)
        return self.claims[partition]

    def run(self, config: Any = "x", **more: Any) -> Any:
        given = {"group_id": "g", "topics": ["t"], **more}
        return claimed_batch(cast(Any, self.spark), config, **given)

    def ranges(self, **more: Any) -> list[tuple[int, int, int]]:
        with self.run(**more) as batch:
            return [(r.partition, r.begin, r.end) for r in batch.ranges]

    def calls(self) -> list[list[tuple[Any, ...]]]:
        return [claim.calls for claim in self.claims.values()]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_batch_is_what_is_new_and_its_ends_are_stored_behind_the_block(world: World) -> None:
    world.claims[0].position = 1  # retention has deleted what came next
    world.claims[1].position = 5
    world.claims[2].position = 4  # nothing new
    with world.run() as batch:
        assert world.calls() == [[], [], []]
        # Clients that are not needed any more would keep their threads for as long as the job.
        assert not world.is_asking
        assert not world.ids.is_open
        assert [(r.partition, r.epoch, r.begin, r.end) for r in batch.ranges] == [
            (0, 7, 2, 10),
            (1, 7, 5, 6),
        ]
        assert batch.records == 9
    assert world.calls() == [stored(10), stored(6), []]
    options = world.spark.options_
    assert json.loads(options["assign"]) == {"t": [0, 1]}
    assert json.loads(options["startingOffsets"]) == {"t": {"0": 2, "1": 5}}
    assert json.loads(options["endingOffsets"]) == {"t": {"0": 10, "1": 6}}
    assert options["kafka.isolation.level"] == "read_committed"
    assert (options["failOnDataLoss"], options["includeHeaders"]) == ("true", "true")


def test_a_block_that_fails_stores_nothing(world: World) -> None:
    with pytest.raises(ZeroDivisionError), world.run():
        raise ZeroDivisionError
    assert world.calls() == [[], [], []]


def test_of_claims_that_were_lost_the_others_are_stored_and_all_are_named(world: World) -> None:
    world.claims[0].lost = world.claims[2].lost = True
    with pytest.raises(NotHeld, match=r"t/0 from 2 to 10, t/2 from 0 to 4;"), world.run():
        pass
    assert world.calls() == [[], stored(6), []]


def test_a_position_that_is_not_stored_in_time_keeps_no_other_from_being_stored(
    world: World,
) -> None:
    world.claims[0].late = True
    said = r"not stored within 7 s: t/0 from 2 to 10; .* The other partitions are committed"
    with pytest.raises(ClaimTimeout, match=said), world.run(timeout_s=7.0):
        pass
    assert world.calls() == [stored(10), stored(6), stored(4)]
    # Who may have had the records as well has to be known first; what comes again is told as well.
    world.claims[1].lost = True
    said = r"lost while .*: t/1 from 0 to 6; .*\. not stored within 30 s: t/0 from 2 to 10; "
    with pytest.raises(NotHeld, match=said), world.run():
        pass


def test_at_most_once_a_range_is_claimed_before_the_block_or_is_not_in_it(world: World) -> None:
    world.claims[1].wins = False
    with world.run(delivery="at-most-once") as batch:
        assert [r.partition for r in batch.ranges] == [0, 2]
        before = [[("claim_messages", end)] for _, end in ENDS.values()]
        assert world.calls() == before
    assert world.calls() == before
    for true in ("true", "True"):  # as Spark reads it
        world.spark.settings["spark.speculation"] = true
        with pytest.raises(ConfigurationError, match=r"set spark\.speculation=false"):
            world.ranges(delivery="at-most-once")
    assert len(world.ranges()) == 3


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_at_most_once_a_claim_that_is_lost_just_now_loses_no_records_of_others(
    world: World, starting: str
) -> None:
    world.claims[0].position, world.claims[2].position = 2, 0
    world.claims[1].lost = True
    assert world.ranges(delivery="at-most-once", starting=starting) == [(0, 2, 10), (2, 0, 4)]


def test_at_most_once_what_spark_refuses_is_not_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started without the connector, say: each run would lose what is new."""

    def load() -> None:
        raise ValueError("Failed to find data source: kafka")

    monkeypatch.setattr(world.spark, "load", load)
    with pytest.raises(ValueError, match="data source"):
        world.ranges(delivery="at-most-once")
    assert world.calls() == [[], [], []]


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_a_group_begins_at_the_end_if_it_is_told_to_and_goes_on_from_there(
    world: World, delivery: str
) -> None:
    """Otherwise each run would begin at the end of its time, and none would read anything."""
    world.ids = Ids(b"id")
    world.claims[1].position = 5
    assert world.ranges(starting="latest", delivery=delivery) == [(1, 5, 6)]
    assert world.spark.options_["assign"] == '{"t": [1]}'
    once = delivery == "at-most-once"
    read = [("claim_messages", 6)] if once else stored(6)
    assert world.calls() == [[("commit", 10, False)], read, [("commit", 4, False)]]
    for claim in world.claims.values():  # a topic that is made anew until then is noticed
        assert ClaimMetadata.decode(claim.metadata).topic_id == b"id"


def test_a_limit_is_shared_by_what_is_held(world: World) -> None:
    assert world.ranges(max_records=10) == [(0, 2, 5), (1, 0, 3), (2, 0, 3)]
    assert world.ranges(max_records=1) == [(0, 2, 3), (1, 0, 1), (2, 0, 1)]
    assert world.ranges(max_records=10, max_partitions=2) == [(0, 2, 7), (1, 0, 5)]


def test_times_are_those_of_the_whole_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions there are to wait for."""
    now = iter((100.0, 101.0, 104.0, 200.0, 300.0, 301.0, 304.0, 400.0))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    world.ranges(timeout_s=7.0)
    waited = [claim.timeouts_s for claim in world.claims.values()]
    assert waited == [[6.0, 6.0], [3.0, 3.0], [0.0, 0.0]]  # to be held, and to be stored


def test_the_client_of_a_batch_is_the_one_that_was_described(world: World) -> None:
    given = {"client_id": "job", "interval_ms": 700}
    world.ranges(**given, coordination_topic="mine")
    # Whose process it is ends by itself, and the block before.
    more = {"group_id": "g", "topic": "mine", "create_topics": True, "close_on_sigterm": False}
    assert world.asked == given | more


def test_settings_for_java_are_for_spark_alone(world: World) -> None:
    config = {"bootstrap.servers": "x", "kafka.max.poll.records": "7"}
    with world.run(config):
        assert world.settings == {"bootstrap.servers": "x"}
        assert world.spark.options_["kafka.max.poll.records"] == "7"


def test_settings_that_spark_does_not_know_are_told_before_anything_is_claimed(
    world: World,
) -> None:
    config = {"bootstrap.servers": "x", "ssl.crl.location": "y"}
    with pytest.raises(ConfigurationError, match=r"ssl\.crl\.location has no translation"):
        world.ranges(config=config, delivery="at-most-once")
    assert (world.wanted, world.calls()) == (set(), [[], [], []])


def test_what_is_not_got_in_time_is_left_to_others(world: World) -> None:
    world.claims[1].held = False
    assert world.ranges() == [(0, 2, 10), (2, 0, 4)]
    assert world.claims[1].calls == [("release", False)]


def test_what_a_living_client_holds_is_not_asked_for(world: World) -> None:
    world.cells[0] = SimpleNamespace(holder="other")
    world.alive[0] = "alive"
    assert [p for p, _, _ in world.ranges()] == [1, 2]
    world.alive[0] = "stale"
    assert [p for p, _, _ in world.ranges()] == [0, 1, 2]
    world.alive[0] = "alive"
    world.cells[0] = SimpleNamespace(holder="me")
    assert claimable(cast(Any, world), "t", 0)
    world.cells[0] = SimpleNamespace(holder=None)
    assert claimable(cast(Any, world), "t", 0)


def test_a_topic_that_was_made_anew_or_cut_off_is_not_read_on(world: World) -> None:
    world.ids = Ids(b"new")
    assert len(world.ranges()) == 3
    assert {ClaimMetadata.decode(c.metadata).topic_id for c in world.claims.values()} == {b"new"}
    for position, metadata, what in (
        (7, b"", "t/1, which has records 0 to 6, was made anew, or truncated: .* is 7"),
        (7, ClaimMetadata(topic_id=b"new").encode(), "was truncated: "),
        (5, ClaimMetadata(topic_id=b"old").encode(), "was made anew: "),
    ):
        world.claims[1].position, world.claims[1].metadata = position, metadata
        for claim in world.claims.values():
            claim.calls.clear()
        for delivery in ("at-least-once", "at-most-once"):
            with pytest.raises(MessagesMissing, match=what):
                world.ranges(delivery=delivery)
        assert world.calls() == [[], [], []]  # at most once, they would be lost


def test_where_there_is_nothing_the_frame_is_empty_and_kafka_is_not_asked(world: World) -> None:
    for p, claim in world.claims.items():
        claim.position = ENDS[p][1]
    assert world.ranges() == []
    assert world.spark.empty
    assert world.spark.options_ == {}

"""What a run of the lake does, one after the other, told by steps that do nothing: no Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from marshal_py.errors import ConfigurationError
from marshal_py.spark.lake import gold
from marshal_py.spark.lake import run as module
from marshal_py.spark.lake.gold import Expectation, Expectations, write_gold
from marshal_py.spark.lake.run import LakeSettings, run_lake
from marshal_py.spark.lake.tables import Lake

DAY = dt.date(2026, 3, 1)
BEGAN = dt.datetime(2026, 3, 2, 2, 30, tzinfo=dt.UTC)


class World:
    """Steps that note that they were taken, of what, and whether the cluster was watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.clock, self.watched = BEGAN, False
        self.again: set[dt.date] = set()
        """Days that the lake knows more of."""
        for name, step in {
            "Offsets": lambda *_: contextlib.nullcontext(self),
            "cluster_watched": self.watch,
            "ingest": self.ingest,
            "fold_new": lambda _s, _l, *of: self.note("fold", *of),
            "check_days": lambda _s, _l, days, **_: self.note("check", *days),
            "_days_again": lambda *_: self.again,
            "days_left": lambda _s, _l, days, **_: {day for day in days if day.day != 13},
            "write_deliveries": self.deliveries,
            "write_gold": self.gold,
            "_note": lambda _s, _l, at, _days, done=None: self.note("noted", at, done is not None),
        }.items():
            monkeypatch.setattr(module, name, step)
        clock = SimpleNamespace(now=lambda _zone: self.clock)
        times = {name: getattr(dt, name) for name in ("UTC", "date", "timedelta")}
        monkeypatch.setattr(module, "dt", SimpleNamespace(datetime=clock, **times))
        lake = cast(Any, SimpleNamespace(check_version=lambda _: self.note("version")))
        monkeypatch.setattr(Lake, "to_write", classmethod(lambda *_: lake))

    @contextlib.contextmanager
    def watch(self, _spark: object) -> Iterator[None]:
        self.watched = True
        yield
        self.watched = False

    def note(self, *what: Any) -> None:
        assert self.watched, "it would wait for ever for a cluster that is gone"
        self.did.append(what)

    def partitions(self, _topic: str) -> list[int]:
        return [0, 1, 2]

    def ingest(self, _s: object, _l: object, config: Any, **given: Any) -> tuple[int, int]:
        self.note("ingest", config, given["topic"], given["published"], given["timeout_s"])
        self.clock += dt.timedelta(hours=1)  # records come that are not read
        return 5, 7

    def deliveries(self, _s: object, _l: object, day: dt.date, **given: Any) -> None:
        self.note("deliveries", day, given["as_of"], given["topics"])

    def gold(self, _s: object, _l: object, day: dt.date, **given: Any) -> list[Expectation]:
        self.note("gold", day, given["as_of"])
        given["deliveries"]()
        return [Expectation("lost", 0.0, 0.0, True, day)]

    def run(self, *days: dt.date, **more: Any) -> Any:
        settings = LakeSettings("log", ["orders"], sample_s=0.25)
        config = {"bootstrap.servers": "x:1", "kafka.client.id": "job"}
        return run_lake(cast(Any, None), config, "/lake", days, settings, **more)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_day_is_judged_as_of_when_the_run_began(world: World) -> None:
    """What has come since was not read: its rows would be lost, and its lag be none."""
    done = world.run(DAY, timeout_s=7.0, tell=lambda _: world.note("told"))
    assert world.did == [
        ("version",),
        ("ingest", {"bootstrap.servers": "x:1", "kafka.client.id": "job"}, "log", ["orders"], 7.0),
        ("fold", "log", 3, 250),
        ("check", DAY),
        ("noted", BEGAN, False),
        ("gold", DAY, BEGAN),
        ("deliveries", DAY, BEGAN, ["orders"]),
        ("told",),
        ("noted", BEGAN, True),
    ]
    assert (done.days, done.records, done.published) == ((str(DAY),), 5, 7)


def test_days_are_those_that_are_asked_for_left_unfinished_and_known_more_of(world: World) -> None:
    world.again = {DAY - dt.timedelta(3), dt.date(2026, 2, 13)}
    finish = [DAY - dt.timedelta(1), dt.date(2026, 1, 13), DAY]
    done = world.run(DAY, finish=finish)
    # Of some bronze has nothing any more: they are no failure, as the one would be that is asked.
    assert done.days == ("2026-02-26", "2026-02-28", "2026-03-01")
    assert ("check", DAY) in world.did


@pytest.mark.parametrize(
    "said",
    [
        "DELTA_CONCURRENT_APPEND.WITHOUT_HINT",
        "DELTA_METADATA_CHANGED",
        "DELTA_PROTOCOL_CHANGED",
        "CONCURRENT_STREAM_LOG_UPDATE",
        "",
    ],
)
def test_a_run_that_another_was_faster_than_is_to_be_started_again(
    monkeypatch: pytest.MonkeyPatch, world: World, said: str
) -> None:
    """Two at once are no error that nobody foresaw."""

    def fold(*_: object) -> None:
        raise failure

    failure = RuntimeError(f"o1.save. : io.delta.exceptions.X: [{said}] …")
    monkeypatch.setattr(module, "fold_new", fold)
    with pytest.raises(ConfigurationError if said else RuntimeError) as raised:
        world.run(DAY)
    assert ("start this one again" in str(raised.value)) is bool(said)
    assert failure in (raised.value, raised.value.__cause__)


@pytest.mark.parametrize("broken", ["gold.groups", "gold.lag", "gold.leadership", None])
def test_a_table_that_could_not_be_written_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    written: list[str] = []

    def replace_day(table: str, _frame: object, _day: dt.date) -> None:
        if table == broken:
            raise OSError("the disk is full")
        written.append(table)

    lake = SimpleNamespace(frame=lambda *_: None, replace_day=replace_day)
    spark = SimpleNamespace(sql=lambda *_, **__: None, createDataFrame=lambda *_: None)
    gates = [Expectation("lost", 0.0, 0.0, True)]
    monkeypatch.setattr(gold, "_add_findings", lambda *_: {})
    monkeypatch.setattr(gold, "_gates", lambda *_: gates)

    def write() -> list[Expectation]:
        return write_gold(
            cast(Any, spark),
            cast(Any, lake),
            DAY,
            as_of=BEGAN,
            late_days=1,
            lifetime_days=90,
            expectations=Expectations(),
            deliveries=lambda: None,
        )

    if broken is None:
        assert write() == [gates[0]._replace(day=DAY)]
        assert "gold.expectations" in written
    else:
        with pytest.raises(OSError, match="the disk is full"):
            write()
        assert "gold.expectations" not in written

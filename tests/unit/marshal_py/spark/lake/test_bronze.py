"""How bronze reads Kafka, and what it makes of a stream that fails: no Kafka, no JVM."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import StreamingQueryException

from marshal_py.errors import LogHole, TopicMissing
from marshal_py.spark.lake import bronze as module
from marshal_py.spark.lake.bronze import _check_same_topic, _finish, _source
from marshal_py.spark.lake.tables import Lake


class Session:
    """Keeps how a stream is read."""

    def __init__(self) -> None:
        self.readStream, self.given = self, dict[str, str]()

    def format(self, name: str) -> Session:
        assert name == "kafka"
        return self

    def options(self, **given: str) -> Session:
        self.given.update(given)
        return self

    def option(self, name: str, value: str) -> Session:
        return self.options(**{name: value})

    def load(self) -> dict[str, str]:
        return self.given


def test_committed_records_are_read_from_the_first_on_and_gaps_are_errors() -> None:
    config = {"bootstrap.servers": "x", "kafka.isolation.level": "read_uncommitted"}
    config["kafka.max.poll.records"] = "7"  # whoever says so has a reason
    given: Any = _source(cast(Any, Session()), config, "subscribe", "t", includeHeaders="true")
    assert given["kafka.isolation.level"] == "read_committed"
    assert given["kafka.max.poll.records"] == "7"
    assert (given["startingOffsets"], given["failOnDataLoss"]) == ("earliest", "true")
    assert (given["subscribe"], given["includeHeaders"]) == ("t", "true")


class Writer:
    """Keeps how a stream is written."""

    def __init__(self) -> None:
        self.writeStream = self
        self.given: dict[str, Any] = {}

    def format(self, name: str) -> Writer:
        return self.option("format", name)

    def queryName(self, name: str) -> Writer:
        return self.option("name", name)

    def option(self, name: str, value: Any) -> Writer:
        self.given[name] = value
        return self

    def trigger(self, **when: bool) -> Writer:
        self.given |= when
        return self


def test_a_stream_has_a_checkpoint_of_its_own_and_ends_when_it_has_read_what_there_is() -> None:
    found = module.lake_stream(Lake.at("/lake"), "published/t", cast(Any, Writer()))
    assert found.given == {
        "format": "delta",
        "name": "published/t",
        "checkpointLocation": "/lake/_checkpoints/published/t",
        "mergeSchema": "true",
        "availableNow": True,
    }


class Query:
    """A stream that ends, or fails."""

    def __init__(self, *batches: int, error: str = "") -> None:
        self._error = error
        self.recentProgress = [{"batchId": n, "numInputRows": c} for n, c in enumerate(batches)]
        self.lastProgress = self.recentProgress[-1] if batches else None
        self._looks = 0

    def awaitTermination(self, _timeout_s: float) -> bool:
        self._looks += 1
        if self._error:
            raise StreamingQueryException(self._error)
        return self._looks > 2


def test_a_stream_is_told_of_while_it_goes_on_and_counted_when_it_ends() -> None:
    said: list[str] = []
    assert _finish("log", cast(Any, Query(5, 1_200)), said.append) == 1_205
    assert said == ["log: 1,200 records"]
    assert _finish("log", cast(Any, Query()), said.append) == 0


@pytest.mark.parametrize("why", ["some data may have been lost", "offset was changed from 9 to 3"])
def test_records_that_are_gone_are_a_hole_and_another_failure_is_itself(why: str) -> None:
    with pytest.raises(LogHole, match=f"log: records are gone .*{why}"):
        _finish("log", cast(Any, Query(error=f"{why}\nmore")), print)
    with pytest.raises(StreamingQueryException, match="no space left"):
        _finish("log", cast(Any, Query(error="no space left")), print)


def test_a_run_reads_its_own_log_and_stops_what_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log's name is no pattern, and no part of one; a table of several streams is made before."""
    did: list[Any] = []

    def stream(_lake: object, name: str, _frame: object) -> Any:
        def start(path: str) -> Any:
            did.append(("start", name, path))
            return SimpleNamespace(stop=lambda: did.append(("stop", name)))

        return SimpleNamespace(partitionBy=lambda _: SimpleNamespace(start=start))

    def source(_spark: object, _config: object, how: str, what: str, **_: str) -> Any:
        did.append((how, what))
        return SimpleNamespace(selectExpr=lambda *_: None)

    def finish(name: str, *_: object) -> int:
        if name == "published/u":
            raise LogHole(name)
        return 1

    def compare(_spark: object, _lake: object, _config: object, _offsets: object, *of: Any) -> None:
        compared.append(of[1])
        if of[1] in anew:
            raise LogHole(f"{of[1]} was made anew")

    def partitions(topic: str) -> list[int]:
        if topic == "missing":
            raise TopicMissing(topic)
        return [0]

    compared: list[str] = []
    anew: set[str] = set()
    lake = SimpleNamespace(
        path=lambda table: table,
        exists=lambda *_: False,
        frame=lambda _, table: table,
        append=lambda table, _: did.append(("make", table)),
    )
    offsets = SimpleNamespace(partitions=partitions)
    monkeypatch.setattr(module, "_check_same_topic", compare)
    monkeypatch.setattr(module, "Offsets", lambda *_: contextlib.nullcontext(offsets))
    for name, fake in (("_source", source), ("lake_stream", stream), ("_finish", finish)):
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(module, "_published", lambda frame: frame)

    def run(*published: str) -> tuple[int, int]:
        did.clear()
        given = {"topic": "a.log", "published": published, "timeout_s": 1.0, "progress": print}
        return module.ingest(cast(Any, None), cast(Any, lake), {}, **cast(Any, given))

    assert run() == (1, 0)
    assert did == [
        ("subscribePattern", r"^a\.log(\.snapshots)?$"),
        ("start", "coordination", "bronze.coordination"),
        ("stop", "coordination"),
    ]
    names = ["a.log", "a.log.snapshots", "a.log.audit", "a.log2", "xa.log", "a-log"]
    names += ["a.log.snapshots.x", "x.a.log.snapshots"]
    # Spark asks Scala's `findFirstIn`, which is `search` here.
    assert [name for name in names if re.search(did[0][1], name)] == names[:2]
    with pytest.raises(LogHole):
        run("t", "u")
    assert sorted(compared) == ["a.log", "a.log", "t", "u"]
    assert did[1:] == [
        ("subscribe", "t"),
        ("subscribe", "u"),
        ("make", "bronze.published"),
        ("start", "coordination", "bronze.coordination"),
        ("start", "published/t", "bronze.published"),
        ("start", "published/u", "bronze.published"),
        *(("stop", name) for name in ("coordination", "published/t", "published/u")),
    ]
    # Nothing is read where a topic is missing, or was made anew.
    with pytest.raises(TopicMissing):
        run("t", "missing")
    for topic in ("a.log", "t", "u"):
        anew.clear()
        anew.add(topic)
        with pytest.raises(LogHole, match=f"{topic} was made anew"):
            run("t", "u")
    assert did == []


DAY_MS = 86_400_000
Places = dict[tuple[int, int], int]
"""(partition, offset) → timestamp."""


class Table:
    """What was read: of the newest day, which is the second since 1970; and of all days."""

    newest_day, looks = "1970-01-02", 0

    def __init__(self, newest: Places, all_days: Places) -> None:
        self._newest, self._all_days = newest, all_days
        self._rows: list[tuple[int, int, int]] = []
        self.read = self
        self.of_last_week = self

    def exists(self, *_: object) -> bool:
        return True

    def path(self, table: str) -> str:
        return table

    def format(self, _name: str) -> Table:
        return self

    def load(self, _path: str) -> Table:
        return self

    def filter(self, condition: Any) -> Table:
        if str(condition).startswith("day >= "):
            return self.of_last_week
        found = self._newest if condition == "day = DATE '1970-01-02'" else self._all_days
        if str(condition).startswith("nth"):
            return self
        self._rows = [(*place, ms) for place, ms in found.items()]
        return self

    def selectExpr(self, *what: str) -> Any:
        self.looks += what == ("max(day)",)
        one = {"max(day)": self.newest_day, "unix_millis(cast(min(day) AS timestamp))": DAY_MS}
        if what[0] not in one:
            return self
        return SimpleNamespace(collect=lambda: [(one[what[0]],)])

    def collect(self) -> list[tuple[int, int, int]]:
        return self._rows


def check(
    monkeypatch: pytest.MonkeyPatch,
    read: Places,
    extent: dict[int, tuple[int, int]],
    *records: tuple[int, int, int],
    all_days: Places | None = None,
    table: Table | None = None,
) -> list[Any]:
    """Look at a topic that has these records: partition, offset, timestamp; what is asked for."""
    asked: list[Any] = []

    def read_to_end(
        _c: object, topic: str, starts: Any, ends: Any, deadline: float, *, whole: bool
    ) -> Iterator[Any]:
        assert whole  # what a replica does not know yet would be compared with nothing
        assert deadline - time.monotonic() <= 1.0  # as of the clock that the reader goes by
        asked.append((starts, ends))
        for p, offset, ms in records:
            if not starts.get(p, offset + 1) <= offset:
                continue
            yield SimpleNamespace(
                partition=lambda p=p: p,
                offset=lambda offset=offset: offset,
                timestamp=lambda ms=ms: (1, ms),
            )

    monkeypatch.setattr(module, "read_to_end", read_to_end)
    monkeypatch.setattr("pyspark.sql.functions.col", lambda _: "x")
    lake = cast(Any, table or Table(read, read if all_days is None else all_days))
    offsets = cast(Any, SimpleNamespace(extent=lambda _: extent))
    _check_same_topic(lake, lake, {}, offsets, "bronze.published", "t", "partition", 1.0)
    return asked


def test_the_last_record_that_was_read_must_still_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = {(0, 3): 90, (0, 4): 100, (1, 9): 200, (2, 3): 300}
    extent = {0: (4, 5), 1: (2, 12), 2: (4, 9)}
    asked = check(monkeypatch, read, extent, (0, 4, 100), (1, 9, 200), (1, 10, 201))
    assert asked == [({0: 4, 1: 9}, {0: 5, 1: 10, 2: 4})]  # retention has deleted the others
    with pytest.raises(LogHole, match="record at t/1/9 is not the one that was read"):
        check(monkeypatch, read, extent, (0, 4, 100), (1, 9, 201))
    with pytest.raises(LogHole, match="t/0 has fewer records than were read"):
        check(monkeypatch, read, {**extent, 0: (0, 4)})
    with pytest.raises(LogHole, match="t/2 has fewer records"):
        check(monkeypatch, read, {0: (0, 5), 1: (0, 12)})


def test_of_a_topic_without_a_record_on_the_newest_day_not_all_days_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, extent = {(0, 3): 90}, {0: (0, 9)}
    table = Table({}, read)
    table.of_last_week = Table({}, {})
    table.of_last_week.newest_day = "1970-01-01"
    assert check(monkeypatch, read, extent, (0, 3, 90), table=table) == [({0: 3}, {0: 4})]
    assert (table.looks, table.of_last_week.looks) == (1, 1)
    with pytest.raises(LogHole, match="record at t/0/3 is not the one"):
        check(monkeypatch, read, extent, (0, 3, 91), table=table)


def test_a_marker_in_the_place_of_the_last_record_hides_no_topic_that_was_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = DAY_MS
    read, extent = {(0, 3): at, (0, 5): at}, {0: (0, 9)}
    with pytest.raises(LogHole, match="record at t/0/4 is not the one"):
        check(monkeypatch, read, extent, (0, 2, at), (0, 4, at), (0, 6, at))
    # It is one of an older day, which came between those of the newest.
    check(monkeypatch, read, extent, (0, 4, at - 1), (0, 5, at), all_days={**read, (0, 4): at - 1})
    check(monkeypatch, read, extent, (0, 4, at - 1), (0, 5, at))  # and was deleted from the lake
    # Of the newest day Kafka has nothing any more, but of what came behind it.
    extent, all_days = {0: (6, 9)}, {(0, 7): 5}
    check(monkeypatch, read, extent, (0, 7, 5), (0, 8, 5), all_days=all_days)
    with pytest.raises(LogHole, match="record at t/0/7 is not the one"):
        check(monkeypatch, read, extent, (0, 7, 6), (0, 8, 5), all_days=all_days)

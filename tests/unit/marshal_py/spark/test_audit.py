"""What a run of the audit plans, and refuses: no Kafka, no Spark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from marshal_py.errors import ConfigurationError, LogHole, TopicMissing
from marshal_py.protocol.messages import ClaimingPartition, encode
from marshal_py.protocol.snapshots import anchor_of
from marshal_py.spark import audit as module
from marshal_py.spark.audit import LAG_SAMPLES, _Driver, _Part
from marshal_py.spark.audit_store import Store
from tests.support.watched_cluster import watched_sessions
from tests.unit.marshal_py.protocol.history.test_partition_history import Script, life

Before = dict[str, Any]


class Ends:
    """The ends of topics, each of one partition, now and earlier."""

    def __init__(self) -> None:
        self.extents: dict[str, dict[int, tuple[int, int]]] = {}
        self.asked: list[tuple[str, list[int], int]] = []

    def extent(self, topic: str) -> dict[int, tuple[int, int]]:
        if topic not in self.extents:
            raise TopicMissing(topic)
        return self.extents[topic]

    def partitions(self, topic: str) -> list[int]:
        return sorted(self.extent(topic))

    def at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        self.asked.append((topic, partitions, at_ms))
        return dict.fromkeys(partitions, at_ms)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def driver(ends: Ends) -> _Driver:
    return _Driver({}, "log", "log.snapshots", cast(Any, ends), 1.0)


def before(*next_offsets: int, **more: Any) -> Before:
    """What the last run has committed."""
    parts = {
        str(p): {"next_offset": at, "state": f"state-{p}", "anchor": anchor_of(b"last").hex()}
        for p, at in enumerate(next_offsets)
    }
    return {"run": 1, "topic": "log", "partitions": len(parts), "parts": parts, **more}


NEW: Before = {"run": 0, "topic": "log", "parts": {}}


def snapshot(next_offset: int) -> Any:
    state = SimpleNamespace(next_offset=next_offset, state=b"state %d" % next_offset)
    return state, SimpleNamespace(next_offset=next_offset)


def kinds(driver: _Driver) -> list[tuple[int, int, str]]:
    return [(p, offset, kind) for p, offset, _, kind, *_ in driver.findings]


def test_a_run_goes_on_where_the_last_one_ended(driver: _Driver) -> None:
    extent = {0: (0, 9), 1: (0, 5), 2: (0, 0), 3: (7, 9)}
    plan = driver._plan(before(4, 5, 0, 7), extent, {})
    assert plan == {0: _Part(4, 9, "state-0"), 3: _Part(7, 9, "state-3")}
    assert driver._plan(NEW, {0: (0, 9)}, {}) == {0: _Part(0, 9, None)}
    assert driver.findings == []


def test_a_log_without_its_beginning_is_entered_at_the_oldest_snapshot_that_reaches_it(
    driver: _Driver,
) -> None:
    snapshots = [snapshot(at) for at in (30, 19, 20, 25, 41)]
    part = driver._plan(NEW, {0: (20, 40)}, {0: snapshots})[0]
    assert (part.start, part.end, part.state, part.snapshot) == (20, 40, None, b"state 20")
    # Those that come later are compared with what the log gives.
    assert [seen.next_offset for seen in part.snapshots] == [30, 25, 41]
    assert driver.findings == []


def test_what_is_gone_is_told_where_no_snapshot_covers_it_and_where_rows_are_missing(
    driver: _Driver,
) -> None:
    assert driver._plan(NEW, {0: (20, 40)}, {0: [snapshot(19)]})[0] == _Part(
        20, 40, None, None, (snapshot(19)[1],)
    )
    assert kinds(driver) == [(0, 20, "log_hole")]
    assert "records 0 to 19 are gone and no snapshot covers them" in driver.findings[0]
    driver.findings.clear()
    part = driver._plan(before(10), {0: (20, 40)}, {0: [snapshot(30)]})[0]
    assert (part.start, part.state, part.snapshot) == (30, None, b"state 30")
    assert kinds(driver) == [(0, 30, "log_hole")]
    assert "records 10 to 29 are gone" in driver.findings[0]


def test_what_is_gone_is_told_once_though_nothing_comes_behind_the_snapshot(
    driver: _Driver,
) -> None:
    """Each run would tell it anew, and none would come any further."""
    for _ in range(2):
        assert driver._plan(before(10), {0: (29, 30)}, {0: [snapshot(30)]}) == {}
    assert driver.findings == []
    assert driver._plan(before(10), {0: (29, 31)}, {0: [snapshot(30)]})[0].start == 30
    assert kinds(driver) == [(0, 30, "log_hole")]


def log_with(monkeypatch: pytest.MonkeyPatch, *records: tuple[int, int, bytes]) -> list[Any]:
    """The log has these records: partition, offset, value. Returns what is asked for."""
    asked: list[Any] = []

    def read(
        _config: object, topic: str, starts: Any, until: Any, deadline: float, *, whole: bool
    ) -> Iterator[Any]:
        assert whole  # a snapshot that a replica does not know yet would be a hole
        assert deadline - time.monotonic() <= 1.0  # as of the clock that the reader goes by
        asked.append((topic, starts, until))
        for p, offset, value in records:
            yield SimpleNamespace(
                partition=lambda p=p: p,
                offset=lambda offset=offset: offset,
                value=lambda value=value: value,
                timestamp=lambda: (2, 1_000),
            )

    monkeypatch.setattr(module, "read_to_end", read)
    return asked


def test_the_last_record_of_each_partition_must_be_the_one_that_was_audited(
    monkeypatch: pytest.MonkeyPatch, driver: _Driver
) -> None:
    extent = {0: (0, 9), 1: (3, 5), 2: (8, 9)}
    asked = log_with(monkeypatch, (0, 3, b"last"), (1, 4, b"last"), (1, 5, b"new"))
    driver._check_same_log(before(4, 5, 8), extent)
    assert [starts for _, starts, _ in asked] == [{0: 3, 1: 4}]  # 2: that record is deleted
    log_with(monkeypatch, (0, 3, b"last"), (1, 4, b"another"))
    with pytest.raises(LogHole, match="log/1/4 is not the one that was audited"):
        driver._check_same_log(before(4, 5, 8), extent)


@pytest.mark.parametrize(
    ("known", "extent", "error", "why"),
    [
        (before(4) | {"topic": "u"}, {0: (0, 9)}, ConfigurationError, "audit of 'u', not of 'log'"),
        (before(4), {0: (0, 9), 1: (0, 9)}, LogHole, "had 1 partitions and now has 2"),
        (before(4), {0: (0, 3)}, LogHole, "ends at 3, and 4 records of it were audited"),
    ],
)
def test_another_log_is_refused(
    driver: _Driver, known: Before, extent: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        driver._check_same_log(known, extent)


def test_a_damaged_snapshot_is_told_once_and_a_tombstone_never(
    monkeypatch: pytest.MonkeyPatch, driver: _Driver, ends: Ends
) -> None:
    assert driver._read_snapshots(NEW, 1) == ({}, {})  # there is no such topic
    ends.extents["log.snapshots"] = {0: (2, 10), 1: (4, 4)}
    records = [(0, 3, b"junk"), (0, 5, None), (0, 8, b"junk"), (0, 9, None)]
    asked = log_with(monkeypatch, *cast(Any, records))
    found, known = driver._read_snapshots(before(4, snapshot_ends={"0": 8}), 1)
    assert (found, known) == ({}, {"0": 10})
    assert asked == [("log.snapshots", {0: 2}, {0: 10})]
    assert kinds(driver) == [(0, 8, "snapshot_damaged")]


def test_ends_are_those_of_the_claimed_topics_over_the_run_and_now(
    driver: _Driver, ends: Ends
) -> None:
    ends.extents["t"] = {0: (0, 50), 1: (0, 60)}
    claimed = [["t", 0], ["t", 7], ["u", 0]]  # a partition, and a topic, that there is not
    parts = {
        0: {"claimed": claimed, "from_ms": 1_000, "until_ms": 5_000},
        1: {"claimed": [["t", 1], ["t/1#2", 0]], "from_ms": 2_000, "until_ms": 7_000},
    }
    rows = driver._ends(parts)
    moments = [at_ms for _, _, at_ms in ends.asked]
    assert (moments[0], moments[-1], len(moments)) == (1_000, 7_000, LAG_SAMPLES + 1)
    assert {tuple(partitions) for _, partitions, _ in ends.asked} == {(0, 1)}
    assert rows[:2] == [("t", 0, 1_000, 1_000), ("t", 1, 1_000, 1_000)]
    assert [(p, end) for _, p, _, end in rows[-2:]] == [(0, 50), (1, 60)]
    assert driver._ends({0: {"claimed": [], "from_ms": 1, "until_ms": 2}}) == []


class Spark:
    """Runs the tasks of a job here, one after the other."""

    def __init__(self) -> None:
        self.function: Any = None
        self.tasks = 0

    def range(self, _start: int, tasks: int, _step: int, *, numPartitions: int) -> Spark:
        assert numPartitions == tasks  # one for each coordination partition
        self.tasks = tasks
        return self

    def mapInArrow(self, function: Any, _columns: str) -> Spark:
        self.function = function
        return self

    def collect(self) -> list[dict[str, Any]]:
        found = []
        for n in range(self.tasks):
            ids = pa.RecordBatch.from_pydict({"id": pa.array([n])})
            for batch in self.function(iter([ids])):
                found += batch.to_pylist()
        return found


def claimed(p: int, offset: int) -> Any:
    """A record of the log: a claim of a cell of its own."""
    cell = (f"data-{p}", offset)
    value = encode(ClaimingPartition(2, "c", f"{1:016x}", "g", offset, *cell, 5_000, -1))
    return SimpleNamespace(
        partition=lambda: p,
        offset=lambda: offset,
        value=lambda: value,
        timestamp=lambda: (2, 1_700_000_000_000 + offset * 1_000),
    )


class Log:
    """A log of three coordination partitions that grows, and the folder of its audit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: Ends, folder: Path) -> None:
        self.ends, self.store = ends, Store(str(folder))
        self.read: list[tuple[int, int, int]] = []
        self.markers: set[int] = set()
        """Partitions whose new records are no records, but markers of transactions."""
        monkeypatch.setattr(module, "read_range", self._range)
        monkeypatch.setattr(module, "read_to_end", self._last)

    def _range(self, _c: object, _t: str, p: int, start: int, end: int) -> Iterator[list[Any]]:
        self.read.append((p, start, end))
        if p not in self.markers:
            yield [claimed(p, offset) for offset in range(start, end)]

    def _last(
        self, _c: object, _t: str, starts: dict[int, int], *_: Any, whole: bool
    ) -> Iterator[Any]:
        assert whole
        return iter([claimed(p, offset) for p, offset in starts.items()])

    def run(self, *log_ends: int) -> Any:
        self.read.clear()
        self.ends.extents["log"] = {p: (0, end) for p, end in enumerate(log_ends)}
        driver = _Driver({}, "log", "log.snapshots", cast(Any, self.ends), 1.0)
        return driver.run(cast(Any, Spark()), self.store, 60_000)

    def claims(self) -> list[tuple[int, int]]:
        found = self.store.table("claims", ["coordinator", "partition"]).to_pylist()
        return sorted((row["coordinator"], row["partition"]) for row in found)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, ends: Ends, tmp_path: Path) -> Log:
    return Log(monkeypatch, ends, tmp_path)


def test_a_run_folds_what_is_new_and_keeps_what_is_known_of_the_other_partitions(log: Log) -> None:
    first = log.run(4, 2, 0)
    assert sorted(log.read) == [(0, 0, 4), (1, 0, 2)]
    assert (first.run, first.records, first.open["claims"]) == (1, 6, 6)
    second = log.run(4, 3, 1)
    assert sorted(log.read) == [(1, 2, 3), (2, 0, 1)]
    assert (second.run, second.records, second.open["claims"]) == (2, 2, 8)
    third = log.run(5, 3, 1)
    assert log.read == [(0, 4, 5)]
    assert (third.run, third.records) == (3, 1)
    assert log.claims() == [*((0, n) for n in range(5)), *((1, n) for n in range(3)), (2, 0)]
    assert log.run(5, 3, 1).run == 0


def test_where_nothing_but_markers_came_the_next_run_looks_again(log: Log) -> None:
    log.run(4, 0, 0)
    log.markers = {0}
    assert log.run(5, 1, 0).records == 1
    assert log.run(5, 1, 0).run == 0
    log.markers = set()
    log.run(6, 1, 0)
    assert log.read == [(0, 4, 6)]
    assert log.claims() == [*((0, n) for n in range(6)), (1, 0)]


def test_a_damaged_snapshot_is_told_and_counted_though_nothing_else_is_new(log: Log) -> None:
    log.run(4)
    log.ends.extents["log.snapshots"] = {0: (0, 1)}  # it has a claim in place of a snapshot
    found = log.run(4)
    assert (found.run, found.records, found.rows) == (2, 0, {"anomalies": 1})
    assert found.anomalies == {"snapshot_damaged": 1}
    assert log.store.values("anomalies", "kind") == {"snapshot_damaged": 1}
    assert log.run(4).run == 0
    assert log.run(5).anomalies == {}


def test_a_run_keeps_others_out_and_does_not_wait_for_a_cluster_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: Ends
) -> None:
    watched = watched_sessions(monkeypatch, module)

    def run(driver: _Driver, spark: object, store: Store, sample_ms: int) -> Any:
        assert watched == [spark]
        with pytest.raises(ConfigurationError, match="another audit"), store.locked():
            pass
        return driver.config, driver.topic, driver.snapshot_topic, driver.timeout_s, sample_ms

    monkeypatch.setattr(module, "Offsets", lambda *_: contextlib.nullcontext(ends))
    monkeypatch.setattr(_Driver, "run", run)
    found = module.audit(
        cast(Any, "spark"), "b:1", str(tmp_path), topic="log", sample_ms=7, timeout_s=3.0
    )
    assert cast(Any, found) == ({"bootstrap.servers": "b:1"}, "log", "log.snapshots", 3.0, 7)
    with pytest.raises(ConfigurationError, match="sample_ms = 0 must be 1 or more"):
        module.audit(cast(Any, "spark"), "b:1", str(tmp_path), sample_ms=0)


def test_what_has_ended_is_written_and_senders_time_is_told_once(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script()
    life(script)

    def read(_c: object, _t: str, _p: int, start: int, end: int) -> Iterator[list[Any]]:
        for low in range(start, end, 7):
            yield [
                SimpleNamespace(
                    offset=lambda n=n: n, value=lambda v=v: v, timestamp=lambda at=at: (1, at)
                )
                for n, v, at in script.records[low : min(low + 7, end)]
            ]

    monkeypatch.setattr(module, "read_range", read)
    done = log.run(len(script.records))
    assert done.anomalies == {"create_time": 1}
    ended = [row["how"] for row in log.store.table("claims", ["how"]).to_pylist()]
    assert sorted(ended) == ["released", "resumed", "taken_over"]

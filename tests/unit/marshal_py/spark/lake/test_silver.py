"""The fold of the lake on rows as Spark gives them, without Spark."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.snapshots import anchor_of, encode_snapshot
from marshal_py.spark.audit_tables import to_arrow
from marshal_py.spark.lake import silver
from marshal_py.spark.lake.silver import FoldTask
from marshal_py.spark.lake.tables import FOLDED, Lake
from tests.unit.marshal_py.protocol.history.test_partition_history import START_MS, Script, life

STATE, SNAPSHOT, RECORD = range(3)
Input = tuple[int, int, int, int, bool, bytes | None]
"""coordinator, what, log_offset, at_ms, create_time, value"""

TYPES = [pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.bool_(), pa.binary()]


def records(script: Script, coordinator: int = 0) -> list[Input]:
    return [(coordinator, RECORD, offset, at, False, v) for offset, v, at in script.records]


def fold(rows: list[Input], *, partitions: int = 1, at_once: int = 7) -> dict[str, list[Any]]:
    """What the fold gives, by table; rows come in batches that end anywhere."""

    def batches() -> Iterator[pa.RecordBatch]:
        for low in range(0, len(rows), at_once):
            columns = zip(*rows[low : low + at_once], strict=True)
            arrays = [pa.array(c, t) for c, t in zip(columns, TYPES, strict=True)]
            yield (batch := pa.RecordBatch.from_arrays(arrays, names=list("abcdef")))
            yield batch.slice(0, 0)  # which has nothing, and ends nothing

    found: dict[str, list[Any]] = defaultdict(list)
    for batch in FoldTask(partitions, 60_000)(batches()):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            found[name] += [row for row in column.to_pylist() if row is not None]
    return found


def going_on(known: dict[str, Any]) -> Input:
    """What a run knows by what the one before has left."""
    return (0, STATE, known["next_offset"], known["latest_ms"], False, known["state"])


def expected(script: Script, table: str) -> list[Any]:
    history = script.history()
    final = to_arrow(table, history.rows.tables.get(table, [])).to_pylist()
    opened = to_arrow(table, history.open_rows().get(table, [])).to_pylist()
    return [row | {"open": False} for row in final] + [row | {"open": True} for row in opened]


@pytest.fixture
def script() -> Script:
    found = Script()
    life(found)
    found.wait(2_500)
    found.claim("c")
    return found


def test_a_log_gives_the_rows_of_the_fold(script: Script) -> None:
    found = fold(records(script))
    for table in FOLDED:
        assert found[table] == expected(script, table), table
    [state] = found["fold"]
    assert (state["coordinator"], state["next_offset"]) == (0, len(script.records))
    assert state["records"] == len(script.records)
    assert state["latest_ms"] == script.records[-1][2]


@pytest.mark.parametrize("cut", [1, 5, 33, 39])
def test_it_goes_on_from_what_it_knew(script: Script, cut: int) -> None:
    rows = records(script)
    first = fold(rows[:cut])
    [state] = first["fold"]
    # A batch that is done again has records that are in what the fold goes on from.
    second = fold([going_on(state), *rows[cut - 1 :]])
    for table in FOLDED:
        final = [row for row in first[table] if not row["open"]]
        assert final + second[table] == expected(script, table), table


def test_what_is_open_stays_without_a_new_record(script: Script) -> None:
    first = fold(records(script))
    [state] = first["fold"]
    second = fold([going_on(state)])
    assert second["fold"] == first["fold"]
    assert second["claims"] == [row for row in first["claims"] if row["open"]] != []


def test_coordination_partitions_do_not_meet(script: Script) -> None:
    other = Script()
    other.claim("z", "u")
    found = fold([*records(script), *records(other, coordinator=1)], partitions=2)
    assert {row["coordinator"] for row in found["fold"]} == {0, 1}
    assert [row["topic"] for row in found["claims"] if row["coordinator"] == 1] == ["u"]
    assert [row["coordinator"] for row in found["claims"]].count(0) == 4


def snapshot_at(script: Script, offset: int, partition: int = 0) -> bytes:
    state = PartitionState(partition)
    for at, value, _ in script.records[:offset]:
        apply(state, at, value)
    return encode_snapshot(
        state.encode(),
        coordinator=partition,
        partitions=1,
        next_offset=offset,
        anchor=anchor_of(script.records[offset - 1][1]),
        writer="writer",
    )


@pytest.mark.parametrize("begin", [10, 20])
def test_a_log_without_its_beginning_is_entered_at_a_snapshot(script: Script, begin: int) -> None:
    snapshots: list[Input] = [
        (0, SNAPSHOT, n, START_MS, False, snapshot_at(script, at)) for n, at in enumerate((35, 20))
    ]
    found = fold([*snapshots, *records(script)[begin:]])
    [state] = found["fold"]
    assert state["records"] == len(script.records) - 20
    assert found["anomalies"] == []
    assert found["claims"][-1] == expected(script, "claims")[-1]


def test_what_no_snapshot_covers_is_told(script: Script) -> None:
    found = fold(records(script)[10:])
    [hole] = [row for row in found["anomalies"] if row["kind"] == "log_hole"]
    assert hole["what"] == "records 0 to 9 are gone and no snapshot covers them"
    assert (hole["log_offset"], hole["open"]) == (10, False)


@pytest.mark.parametrize("first", [12, 20])
def test_a_snapshot_that_came_before_any_record_is_known_to_the_next_run(
    script: Script, first: int
) -> None:
    """Of a log that nobody writes to, retention may have left nothing but its snapshots."""
    snapshots: list[Input] = [
        (0, SNAPSHOT, n, START_MS, False, snapshot_at(script, at)) for n, at in enumerate((20, 15))
    ]
    [known] = fold(snapshots)["fold"]
    for more in ([], [(0, SNAPSHOT, 2, START_MS, False, snapshot_at(script, 18))]):
        [known] = fold([going_on(known), *more])["fold"]
    found = fold([going_on(known), *records(script)[first:]])
    [state] = found["fold"]
    assert state["records"] == len(script.records) - 20
    assert found["anomalies"] == []
    assert found["claims"][-1] == expected(script, "claims")[-1]


def test_a_snapshot_that_came_before_any_record_hides_no_hole_behind_it(script: Script) -> None:
    [known] = fold([(0, SNAPSHOT, 0, START_MS, False, snapshot_at(script, 20))])["fold"]
    found = fold([going_on(known), *records(script)[25:]])
    [hole] = [row for row in found["anomalies"] if row["kind"] == "log_hole"]
    assert (hole["what"], hole["log_offset"]) == (
        "records 0 to 24 are gone and no snapshot covers them", 25,
    )  # fmt: skip
    # A later one covers it.
    later: Input = (0, SNAPSHOT, 1, START_MS, False, snapshot_at(script, 30))
    found = fold([going_on(known), later, *records(script)[25:]])
    assert found["anomalies"] == []
    assert found["fold"][0]["records"] == len(script.records) - 30


def test_a_log_that_is_there_from_its_first_record_on_is_folded_from_there(script: Script) -> None:
    """Its snapshot may have come with the batch before."""
    [known] = fold([(0, SNAPSHOT, 0, START_MS, False, snapshot_at(script, 20))])["fold"]
    found = fold([going_on(known), *records(script)])
    for table in FOLDED:
        assert found[table] == expected(script, table), table


def test_a_snapshot_that_cannot_be_read_is_told_and_not_used(script: Script) -> None:
    rows: list[Input] = [
        (0, SNAPSHOT, 3, START_MS, False, b"junk"),
        (0, SNAPSHOT, 4, START_MS, False, None),
        (0, SNAPSHOT, 5, START_MS, False, snapshot_at(script, 20, partition=1)),
    ]
    found = fold([*rows, *records(script)])
    told = [(row["kind"], row["log_offset"]) for row in found["anomalies"]]
    assert told == [("snapshot_damaged", 3), ("snapshot_damaged", 5)]
    assert found["claims"] == expected(script, "claims")


def test_a_snapshot_is_compared_with_the_log(script: Script) -> None:
    other = Script()
    other.claim("somebody else")
    other.beats("somebody else", 0, 19)
    rows: list[Input] = [(0, SNAPSHOT, 0, START_MS, False, snapshot_at(other, 20))]
    found = fold([*rows, *records(script)])
    assert [row["kind"] for row in found["anomalies"]] == ["snapshot_differs"]


def test_senders_time_is_told_once(script: Script) -> None:
    rows = [(*row[:4], True, row[5]) for row in records(script)]
    assert [row["kind"] for row in fold(rows)["anomalies"]] == ["create_time"]
    # It is that of the first record which has it, of those that are folded.
    rows = [(*row[:4], row[2] in (12, 25), row[5]) for row in rows]
    snapshot: Input = (0, SNAPSHOT, 0, START_MS, False, snapshot_at(script, 20))
    for given, offset in ((rows, 12), ([snapshot, *rows[10:]], 25)):
        [told] = fold(given, at_once=100)["anomalies"]
        assert (told["kind"], told["log_offset"]) == ("create_time", offset)
        assert (told["at"].timestamp() * 1000) == script.records[offset][2]


class Stream:
    """A session, what it reads and what it writes in one: keeps how, and fails if it is to."""

    def __init__(self, *, fails: bool) -> None:
        self.readStream = self.writeStream = self
        self.given: dict[str, Any] = {}
        self.fails, self.stopped = fails, 0

    def format(self, name: str) -> Stream:
        return self.option("format", name)

    def option(self, name: str, value: Any) -> Stream:
        self.given[name] = value
        return self

    def load(self, path: str) -> Stream:
        return self.option("path", path)

    def foreachBatch(self, function: Any) -> Stream:
        return self.option("function", function)

    def queryName(self, _name: str) -> Stream:
        return self

    def trigger(self, **when: bool) -> Stream:
        self.given |= when
        return self

    def start(self) -> Stream:
        return self

    def awaitTermination(self) -> None:
        if self.fails:
            raise OSError("the disk is full")

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("fails", [False, True])
def test_all_that_is_new_is_folded_as_one_and_a_fold_that_fails_is_stopped(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """In several batches the records would not come in the order of their offsets."""
    stream, lake = Stream(fails=fails), Lake.at("/lake")
    folded: list[Any] = []
    monkeypatch.setattr(silver, "_fold_batch", lambda *given: folded.append(given))
    with pytest.raises(OSError, match="disk is full") if fails else contextlib.nullcontext():
        silver.fold_new(cast(Any, stream), lake, "log", 3, 250)
    assert stream.stopped == 1
    stream.given.pop("function")(SimpleNamespace(sparkSession="session"), 5)
    assert folded == [("session", lake, SimpleNamespace(sparkSession="session"), 5, "log", 3, 250)]
    assert stream.given.pop("maxFilesPerTrigger") >= 1_000_000
    assert stream.given == {
        "format": "delta",
        "path": "/lake/bronze/coordination",
        "skipChangeCommits": "true",  # what retention deletes was folded
        "checkpointLocation": "/lake/_checkpoints/silver",
        "availableNow": True,
    }

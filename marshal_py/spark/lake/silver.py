"""Silver: what the coordination log means, by the very fold that the clients run.

What is new in bronze comes as one micro-batch. One Spark task for each coordination partition (or
several) gets what the fold knew of it, and the new records in offset order; what it gives are the
rows of all tables, and what it knows then. The batch has a number, which each table keeps: a batch
that is done again after a driver was killed is written to those tables that do not have it yet.
What the fold goes on from is written last.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from marshal_py.errors import MalformedRecord
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.snapshot_checks import SnapshotSeen
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import Snapshot
from marshal_py.spark.audit_tables import schema, to_arrow
from marshal_py.spark.lake.tables import FOLDED, LAKE_TABLES, Lake, spark_types
from marshal_py.spark.log_snapshots import read_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FoldTask", "fold_new"]

_STATE, _SNAPSHOT, _RECORD = range(3)
"""What an input row is, in the order in which the fold wants them."""

_OPEN: Final = "day IS NULL"
_STREAM: Final = "silver"
_AT_ONCE: Final = 4
"""Tables that are written at the same time."""
_MOST_FILES: Final = 10_000_000
"""Of one micro-batch: all there are, since only then the records come in the order of offsets."""


def fold_new(spark: SparkSession, lake: Lake, topic: str, partitions: int, sample_ms: int) -> None:
    """Fold what is new in bronze into the tables of silver.

    `partitions`: of the coordination topic. `sample_ms`: how often the position of each claim
    becomes a row, in broker time.
    """
    stream = (
        spark.readStream.format("delta")
        .option("skipChangeCommits", "true")  # what retention deletes was folded
        .option("maxFilesPerTrigger", _MOST_FILES)
        .load(lake.path("bronze.coordination"))
    )

    def fold(frame: DataFrame, batch: int) -> None:
        _fold_batch(frame.sparkSession, lake, frame, batch, topic, partitions, sample_ms)

    query = (
        stream.writeStream.foreachBatch(fold)
        .queryName(_STREAM)
        .option("checkpointLocation", lake.checkpoint(_STREAM))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _fold_batch(
    spark: SparkSession,
    lake: Lake,
    new: DataFrame,
    batch: int,
    topic: str,
    partitions: int,
    sample_ms: int,
) -> None:
    state = lake.frame(spark, "silver.fold").selectExpr(
        "coordinator",
        f"{_STATE} AS what",
        "next_offset AS log_offset",
        "latest_ms AS at_ms",
        "false AS create_time",
        "state AS value",
    )
    records = new.selectExpr(
        "coordinator",
        f"IF(topic = '{topic}', {_RECORD}, {_SNAPSHOT}) AS what",
        "log_offset",
        "unix_millis(at) AS at_ms",
        "create_time",
        "value",
    )
    folded = (
        state.unionByName(records)
        .repartition(partitions, "coordinator")
        .sortWithinPartitions("coordinator", "what", "log_offset")
        .mapInArrow(FoldTask(partitions, sample_ms), _output_types())
        .persist()
    )
    try:
        counts = folded.selectExpr(*(f"count({table}) AS {table}" for table in FOLDED)).collect()[0]

        def write(table: str) -> None:
            name = f"silver.{table}"
            if not counts[table] and lake.has_none(spark, name, _OPEN):
                return  # nothing to add, and nothing to replace: on most days most tables
            rows = folded.filter(f"{table} IS NOT NULL").selectExpr(
                f"{table}.*", f"IF({table}.open, NULL, to_date({table}.{FOLDED[table]})) AS day"
            )
            lake.replace(name, rows.coalesce(1), _OPEN, once=(table, batch))

        with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of it is waiting for small jobs
            list(pool.map(write, FOLDED))
        rows = folded.filter("fold IS NOT NULL").select("fold.*")
        lake.replace("silver.fold", rows.coalesce(1), None, once=("fold", batch))
    finally:
        folded.unpersist()


def _output_types() -> str:
    """One column for each table, of which a row has one; `fold` is what to go on from."""
    found = [f"{table} struct<{_struct(f'silver.{table}')}, `open` boolean>" for table in FOLDED]
    return ", ".join([*found, f"fold struct<{_struct('silver.fold')}>"])


def _struct(table: str) -> str:
    columns = tuple(c for c in LAKE_TABLES[table] if c.name != "day")
    return spark_types(columns).replace("` ", "`:")


class FoldTask:
    """The function that folds the rows of one task: coordination partitions, one after the other.

    Columns in: coordinator, what, log_offset, at_ms, create_time, value; out: `_output_types`.
    """

    def __init__(self, partitions: int, sample_ms: int) -> None:
        self._partitions, self._sample_ms = partitions, sample_ms

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        current: _CoordinatorFold | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            kinds = batch.column(0).to_numpy() * 3 + batch.column(1).to_numpy()
            starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), batch.num_rows]
            for low, high in pairwise(starts):
                part = batch.slice(low, high - low)
                coordinator, what = divmod(int(kinds[low]), 3)
                if current is None or current.coordinator != coordinator:
                    if current is not None:
                        yield from current.close()
                    current = _CoordinatorFold(coordinator, self._partitions, self._sample_ms)
                yield from current.take(what, part)
        if current is not None:
            yield from current.close()


class _CoordinatorFold:
    """The fold of one coordination partition in one batch."""

    def __init__(self, coordinator: int, partitions: int, sample_ms: int) -> None:
        self.coordinator = coordinator
        self._partitions, self._sample_ms = partitions, sample_ms
        self._history: PartitionHistory | None = None
        self._seen: list[tuple[Snapshot, SnapshotSeen]] = []
        self._findings: list[tuple[Any, ...]] = []
        self._from = 0
        """The first offset that is folded."""
        self._begun = False

    def take(self, what: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take in rows of one kind; give what has become certain."""
        offsets = rows.column(2).to_pylist()
        times_ms = rows.column(3).to_pylist()
        values = rows.column(5).to_pylist()
        if what == _STATE:
            self._history = PartitionHistory.decode(
                values[0], self._partitions, sample_ms=self._sample_ms
            )
            self._from = offsets[0]
            return
        if what == _SNAPSHOT:
            for offset, at_ms, value in zip(offsets, times_ms, values, strict=True):
                self._see(offset, at_ms, value)
            return
        if not self._begun:
            self._begin(offsets[0], times_ms[0])
        history = self._history
        assert history is not None  # noqa: S101
        keep = next((n for n, offset in enumerate(offsets) if offset >= self._from), len(offsets))
        offsets, times_ms, values = offsets[keep:], times_ms[keep:], values[keep:]
        if not offsets:
            return
        if not history.create_time:
            stamped = rows.column(4).to_pylist()[keep:]
            if True in stamped:
                at = stamped.index(True)
                history.saw_create_time(offsets[at], times_ms[at])
        history.feed(offsets, values, times_ms)
        yield from _rows(history.take_rows(), opened=False)

    def close(self) -> Iterator[pa.RecordBatch]:
        """Give what holds until more records come, and what the fold goes on from."""
        if not self._begun:
            self._keep_newest_snapshot()
        history = self._history
        yield from _rows({"anomalies": self._findings}, opened=False)
        if history is None:
            return
        yield from _rows(history.open_rows(), opened=True)
        yield _fold_row(
            self.coordinator,
            history.state.next_offset,
            history.latest_ms,
            history.records,
            history.encode(),
        )

    def _see(self, offset: int, at_ms: int, value: bytes | None) -> None:
        if value is None:
            return  # a tombstone: the snapshot was taken back
        try:
            found = read_snapshot(self.coordinator, self._partitions, offset, at_ms, value)
        except MalformedRecord as error:
            self._finding(offset, at_ms, "snapshot_damaged", str(error))
        else:
            self._seen.append(found)

    def _begin(self, offset: int, at_ms: int) -> None:
        """Before the first record: where the log's beginning is gone, a snapshot tells of it."""
        self._begun = True
        seen, self._seen = self._seen, []
        if self._history is None or not self._history.records:
            states = {s.next_offset: s.state for s, _ in seen}
            if self._history is not None:  # a snapshot, of a batch without records
                states[self._history.state.next_offset] = self._history.state.encode()
            reaching = min((n for n in states if n >= offset), default=None)
            if offset and reaching is None:
                what = f"records 0 to {offset - 1} are gone and no snapshot covers them"
                self._finding(offset, at_ms, "log_hole", what)
            if not offset or reaching is None:
                self._enter(0, None)
            else:
                self._enter(reaching, states[reaching])
        assert self._history is not None  # noqa: S101
        self._history.watch(s for _, s in seen if s.next_offset > self._from)

    def _keep_newest_snapshot(self) -> None:
        """The next batch may have the log's first record that is left, and no snapshot."""
        if self._history is None or not self._history.records:
            newest = max((s for s, _ in self._seen), key=lambda s: s.next_offset, default=None)
            if newest is not None and newest.next_offset > self._from:
                self._enter(newest.next_offset, newest.state)

    def _enter(self, offset: int, state: bytes | None) -> None:
        self._from = offset
        self._history = PartitionHistory(
            self.coordinator,
            self._partitions,
            state=None if state is None else PartitionState.decode(state),
            sample_ms=self._sample_ms,
        )

    def _finding(self, offset: int, at_ms: int, kind: str, what: str) -> None:
        self._findings.append((self.coordinator, offset, at_ms, kind, what, *[None] * 6))


def _rows(tables: dict[str, list[tuple[Any, ...]]], *, opened: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for table, rows in tables.items():
        if rows:
            found = to_arrow(table, rows)
            arrays = [
                column.combine_chunks().cast(_arrow_type(column.type)) for column in found.columns
            ]
            arrays.append(pa.array([opened] * len(rows)))
            yield _one_column(table, pa.StructArray.from_arrays(arrays, fields=_fields(table)))


def _fold_row(*values: Any) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [
        pa.array([value], type=field.type)
        for value, field in zip(values, _fields("fold"), strict=True)
    ]
    return _one_column("fold", pa.StructArray.from_arrays(arrays, fields=_fields("fold")))


def _one_column(table: str, rows: pa.StructArray) -> pa.RecordBatch:
    import pyarrow as pa

    names = [*FOLDED, "fold"]
    return pa.RecordBatch.from_arrays(
        [
            rows if name == table else pa.nulls(len(rows), pa.struct(_fields(name)))
            for name in names
        ],
        names=names,
    )


def _fields(table: str) -> list[pa.Field]:
    import pyarrow as pa

    if table == "fold":
        kinds = {"int": pa.int64(), "bytes": pa.binary()}
        return [pa.field(c.name, kinds[c.kind]) for c in LAKE_TABLES["silver.fold"]]
    fields = [pa.field(f.name, _arrow_type(f.type)) for f in schema(table)]
    return [*fields, pa.field("open", pa.bool_())]


def _arrow_type(given: pa.DataType) -> pa.DataType:
    """Spark counts time in microseconds."""
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(given) else given

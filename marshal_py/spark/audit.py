"""The audit: the coordination log as tables, by the very fold that the clients run.

One Spark task for each coordination partition reads its new records in offset order and folds them:
no shuffle, no second implementation. It reads with the very client that the rest of the library
uses; handing every record from a Java client to Python would cost as much again as the fold. Its
memory is the state of that partition and what the client has fetched ahead. Every run goes on from
where the last one ended, with the history that it kept in the folder; see `store` for why each row
is there exactly once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME

from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.settings import DEFAULT_TOPIC, kafka_config
from marshal_py.errors import ConfigurationError, LogHole, MalformedRecord, TopicMissing
from marshal_py.protocol.history.anomalies import Kind
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.snapshot_checks import SnapshotSeen
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.slots import source_of
from marshal_py.protocol.snapshots import Snapshot, anchor_of
from marshal_py.spark.audit_store import Store
from marshal_py.spark.kafka import Offsets, librdkafka_settings, read_range
from marshal_py.spark.log_snapshots import read_snapshot
from marshal_py.spark.watch import cluster_watched

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message
    from pyspark.sql import SparkSession

__all__ = ["AuditRun", "audit"]

LAG_SAMPLES: Final = 60
"""Moments of a run at which the ends of the claimed topics are looked up."""

_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class AuditRun:
    """What one run did.

    `rows` and `anomalies` count what it added for good, `open` what has not ended. `run` is 0
    when there was nothing new. `seconds` is the time of the Spark job alone.
    """

    run: int
    records: int = 0
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    anomalies: dict[str, int] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """What one task is to do with a coordination partition."""

    start: int
    end: int
    state: str | None
    """The history that it goes on from, by its name in the store; None for none."""
    snapshot: bytes | None = None
    """The state to begin with where the log does not reach back to its first record."""
    snapshots: tuple[SnapshotSeen, ...] = ()


def audit(
    spark: SparkSession,
    config: Mapping[str, Any] | str,
    out: str,
    *,
    topic: str = DEFAULT_TOPIC,
    snapshot_topic: str | None = None,
    sample_ms: int = 60_000,
    timeout_s: float = _TIMEOUT_S,
) -> AuditRun:
    """Fold what is new in the coordination log into the tables of the folder `out`.

    - `config`: librdkafka settings, or just the brokers; keys that begin with ``kafka.``, which are
      for Spark's Java client in other pipelines, are left aside.
    - `out`: a local path, or a URI that all executors reach.
    - `sample_ms`: how often the position of each claim becomes a row, in broker time.

    Killed at any moment and started again, it leaves no row out and writes none twice. Raises
    `TopicMissing`, `BrokerUnavailable`, `ConfigurationError`, and `LogHole` when the log is not the
    one that the folder was made from, and `ClusterLost` (see `cluster_watched`).
    """
    if sample_ms < 1:
        raise ConfigurationError(f"sample_ms = {sample_ms} must be 1 or more milliseconds")
    store = Store(out)
    config = {"bootstrap.servers": config} if isinstance(config, str) else dict(config)
    kafka_config(librdkafka_settings(config))
    with store.locked(), Offsets(config, timeout_s) as offsets, cluster_watched(spark):
        driver = _Driver(config, topic, snapshot_topic or f"{topic}.snapshots", offsets, timeout_s)
        return driver.run(spark, store, sample_ms)


class _Driver:
    """Plans a run, starts the job and commits it."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        snapshot_topic: str,
        offsets: Offsets,
        timeout_s: float,
    ) -> None:
        self.config = config
        self.topic = topic
        self.snapshot_topic = snapshot_topic
        self.offsets = offsets
        self.timeout_s = timeout_s
        self.findings: list[tuple[Any, ...]] = []
        """Rows of `anomalies` that no task sees."""

    def run(self, spark: SparkSession, store: Store, sample_ms: int) -> AuditRun:
        last = store.recover()
        before: dict[str, Any] = last or {"run": 0, "topic": self.topic, "parts": {}}
        extent = self.offsets.extent(self.topic)
        self._check_same_log(before, extent)
        snapshots, snapshot_ends = self._read_snapshots(before, len(extent))
        plan = self._plan(before, extent, snapshots)
        if not plan and not self.findings:
            return AuditRun(0)
        number = before["run"] + 1
        attempt = store.prepare(number)
        started = time.perf_counter()
        parts = self._fold(spark, store, attempt, plan, len(extent), sample_ms) if plan else {}
        seconds = time.perf_counter() - started
        if not parts and not self.findings:
            return AuditRun(0)
        driver_rows = store.rows(attempt, "driver")
        driver_rows.add({"anomalies": self.findings, "ends": self._ends(parts)})
        files = driver_rows.close()
        for part in parts.values():
            files += part.pop("files")
        kept = {p: part for p, part in before["parts"].items() if int(p) not in parts}
        rows = sum((Counter(part["rows"]) for part in parts.values()), Counter())
        kinds = sum((Counter(part["kinds"]) for part in parts.values()), Counter())
        kinds.update(row[3] for row in self.findings)
        rows["anomalies"] = kinds.total()
        document = {
            "run": number,
            "topic": self.topic,
            "partitions": len(extent),
            "records": sum(part["records"] for part in parts.values()),
            "seconds": round(seconds, 3),
            "rows": dict(rows),
            "anomalies": dict(kinds),
            "files": files,
            "snapshot_ends": snapshot_ends,
            "parts": kept | {str(p): part for p, part in parts.items()},
        }
        store.commit(attempt, document)
        opened = sum((Counter(part["open"]) for part in document["parts"].values()), Counter())
        return AuditRun(number, document["records"], seconds, dict(rows), dict(kinds), dict(opened))

    # Planning

    def _check_same_log(self, before: dict[str, Any], extent: dict[int, tuple[int, int]]) -> None:
        if before["topic"] != self.topic:
            raise ConfigurationError(
                f"this folder holds the audit of {before['topic']!r}, not of {self.topic!r}: give "
                "another --out"
            )
        if before["run"] and before["partitions"] != len(extent):
            raise LogHole(
                f"{self.topic!r} had {before['partitions']} partitions and now has {len(extent)}: "
                "it is another log; give another --out"
            )
        ends = {int(p): part["next_offset"] for p, part in before["parts"].items()}
        for p, end in ends.items():
            if extent[p][1] < end:
                raise LogHole(
                    f"{self.topic}/{p} ends at {extent[p][1]}, and {end} records of it were "
                    "audited: it lost its end, or was made anew; give another --out"
                )
        # The last record of each partition must still be the one that was audited.
        starts = {p: end - 1 for p, end in ends.items() if extent[p][0] < end}
        if not starts:
            return
        deadline = time.monotonic() + self.timeout_s
        for message in read_to_end(
            librdkafka_settings(self.config), self.topic, starts, ends, deadline, whole=True
        ):
            p = message.partition()
            if message.offset() != starts[p]:
                continue
            if anchor_of(message.value()).hex() != before["parts"][str(p)]["anchor"]:
                raise LogHole(
                    f"the record at {self.topic}/{p}/{starts[p]} is not the one that was audited: "
                    "the log was made anew; give another --out"
                )

    def _read_snapshots(
        self, before: dict[str, Any], partitions: int
    ) -> tuple[dict[int, list[tuple[Snapshot, SnapshotSeen]]], dict[str, int]]:
        """Return the snapshots by coordination partition, and the ends of their topic."""
        found: dict[int, list[tuple[Snapshot, SnapshotSeen]]] = {}
        try:
            extent = self.offsets.extent(self.snapshot_topic)
        except TopicMissing:
            return {}, {}
        ends = {p: end for p, (begin, end) in extent.items() if end > begin}
        known = before.get("snapshot_ends", {})
        deadline = time.monotonic() + self.timeout_s
        settings = librdkafka_settings(self.config)
        starts = {p: extent[p][0] for p in ends}
        for message in read_to_end(
            settings, self.snapshot_topic, starts, ends, deadline, whole=True
        ):
            p, offset = message.partition(), message.offset()
            if message.value() is None:
                continue  # a tombstone: the snapshot was taken back
            at_ms = message.timestamp()[1]
            try:
                snapshot = read_snapshot(p, partitions, offset, at_ms, message.value())
            except MalformedRecord as error:
                if offset >= known.get(str(p), 0):
                    self._finding(p, offset, at_ms, "snapshot_damaged", str(error))
                continue
            found.setdefault(p, []).append(snapshot)
        return found, {str(p): end for p, end in ends.items()}

    def _plan(
        self,
        before: dict[str, Any],
        extent: dict[int, tuple[int, int]],
        snapshots: dict[int, list[tuple[Snapshot, SnapshotSeen]]],
    ) -> dict[int, _Part]:
        plan = {}
        for p, (begin, end) in extent.items():
            known = before["parts"].get(str(p))
            start = known["next_offset"] if known else 0
            if end <= max(start, begin):
                continue
            seen = tuple(s for _, s in snapshots.get(p, []))
            if start >= begin:
                plan[p] = _Part(start, end, known["state"] if known else None, None, seen)
                continue
            # Records are gone. The oldest snapshot that reaches what is left tells what they did.
            reaching = [s for s, _ in snapshots.get(p, []) if begin <= s.next_offset <= end]
            oldest = min(reaching, key=lambda s: s.next_offset, default=None)
            if oldest is not None and oldest.next_offset == end:
                continue  # nothing to go on with yet; the run that has something tells what is gone
            if oldest is None or known is not None:
                until = begin if oldest is None else oldest.next_offset
                self._finding(
                    p,
                    until,
                    int(time.time() * 1000),
                    "log_hole",
                    f"records {start} to {until - 1} are gone"
                    + ("" if oldest else " and no snapshot covers them"),
                )
            if oldest is None:
                plan[p] = _Part(begin, end, None, None, seen)
            else:
                later = tuple(s for s in seen if s.next_offset > oldest.next_offset)
                plan[p] = _Part(oldest.next_offset, end, None, oldest.state, later)
        return plan

    def _finding(self, p: int, offset: int, at_ms: int, kind: Kind, what: str) -> None:
        self.findings.append((p, offset, at_ms, kind, what, *[None] * 6))

    # The job

    def _fold(
        self,
        spark: SparkSession,
        store: Store,
        attempt: str,
        plan: dict[int, _Part],
        partitions: int,
        sample_ms: int,
    ) -> dict[int, dict[str, Any]]:
        fold = _task(self.config, self.topic, store, attempt, plan, partitions, sample_ms)
        done = (
            spark.range(0, len(plan), 1, numPartitions=len(plan))
            .mapInArrow(fold, "partition int, result string")
            .collect()
        )
        # A range of nothing but transaction markers gives no row: it stays for the next run.
        return {row["partition"]: json.loads(row["result"]) for row in done}

    def _ends(self, parts: dict[int, dict[str, Any]]) -> list[tuple[Any, ...]]:
        """Look up where the claimed topics ended, at some moments of this run and now."""
        claimed: dict[str, set[int]] = {}
        for part in parts.values():
            for topic, partition in (source_of(*claim) for claim in part["claimed"]):
                claimed.setdefault(topic, set()).add(partition)
        if not claimed:
            return []
        first = min(part["from_ms"] for part in parts.values())
        last = max(part["until_ms"] for part in parts.values())
        step = max(1, (last - first) // LAG_SAMPLES)
        rows: list[tuple[Any, ...]] = []
        for topic, wanted in claimed.items():
            try:
                known = sorted(wanted & set(self.offsets.partitions(topic)))
            except TopicMissing:
                continue  # a virtual topic
            for at_ms in range(first, last + 1, step):
                found = self.offsets.at(topic, known, at_ms)
                rows += [(topic, p, at_ms, end) for p, end in found.items()]
            now_ms = int(time.time() * 1000)
            now = self.offsets.extent(topic)
            rows += [(topic, p, now_ms, now[p][1]) for p in known]
        return rows


def _task(
    config: Mapping[str, Any],
    topic: str,
    store: Store,
    attempt: str,
    plan: dict[int, _Part],
    partitions: int,
    sample_ms: int,
) -> Any:
    """Return the function that folds the coordination partitions of one task."""
    # The longest first, so that no core waits long for another one at the end.
    numbers = sorted(plan, key=lambda p: plan[p].start - plan[p].end)

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            for index in batch.column("id").to_pylist():
                p = numbers[index]
                part = plan[p]
                partition_fold = _PartitionFold(store, attempt, p, part, partitions, sample_ms)
                for messages in read_range(config, topic, p, part.start, part.end):
                    partition_fold.feed(messages)
                if not partition_fold.records:
                    continue
                yield pyarrow.RecordBatch.from_arrays(
                    [
                        pyarrow.array([p], pyarrow.int32()),
                        pyarrow.array([json.dumps(partition_fold.close())]),
                    ],
                    names=["partition", "result"],
                )

    return fold


class _PartitionFold:
    """The fold of one coordination partition in one run."""

    def __init__(
        self, store: Store, attempt: str, p: int, part: _Part, partitions: int, sample_ms: int
    ) -> None:
        self.store, self.attempt, self.p, self.part = store, attempt, p, part
        if part.state:
            data = store.read_state(part.state)
            self.history = PartitionHistory.decode(data, partitions, sample_ms=sample_ms)
        else:
            state = PartitionState.decode(part.snapshot) if part.snapshot else None
            self.history = PartitionHistory(p, partitions, state=state, sample_ms=sample_ms)
        self.history.watch(part.snapshots)
        self.rows = store.rows(attempt, f"p{p}")
        self.kinds: Counter[str] = Counter()
        self.before = self.history.records
        self.from_ms = -1

    @property
    def records(self) -> int:
        """How many records this run has folded so far."""
        return self.history.records - self.before

    def feed(self, messages: list[Message]) -> None:
        offsets = [message.offset() or 0 for message in messages]
        stamps = [message.timestamp() for message in messages]
        times_ms = [at_ms for _, at_ms in stamps]
        if self.from_ms < 0:
            self.from_ms = times_ms[0]
        if not self.history.create_time:
            for offset, (kind, at_ms) in zip(offsets, stamps, strict=True):
                if kind == TIMESTAMP_CREATE_TIME:
                    self.history.saw_create_time(offset, at_ms)
                    break
        self.history.feed(offsets, [message.value() for message in messages], times_ms)
        self._take()

    def _take(self) -> None:
        rows = self.history.take_rows()
        self.kinds.update(row[3] for row in rows.get("anomalies", ()))
        self.rows.add(rows)

    def close(self) -> dict[str, Any]:
        """Write what is left, and say what was done."""
        history = self.history
        opened = self.store.rows(self.attempt, f"p{self.p}-open")
        opened.add(history.open_rows())
        state = self.store.write_state(self.attempt, self.p, history.encode())
        return {
            "files": [*self.rows.close(), *opened.close(), f"state/{state}"],
            "state": state,
            "open_name": opened.name,
            "next_offset": history.state.next_offset,
            "anchor": history.anchor.hex(),
            "records": self.records,
            "from_ms": self.from_ms,
            "until_ms": history.latest_ms,
            "rows": self.rows.counts,
            "open": opened.counts,
            "kinds": dict(self.kinds),
            "claimed": sorted({(key[1], key[2]) for key in history.tracks if ":" not in key[1]}),
        }

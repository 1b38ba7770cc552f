"""Batch jobs that share topics through claims: claim, read with Spark's own source, commit.

::

    with claimed_batch(spark, "localhost:9092", group_id="billing", topics=["orders"]) as batch:
        batch.frame.groupBy("key").count().write.saveAsTable("orders_by_key")

Two jobs that run at once, on one cluster or on two, never work on one partition at the same time;
the next run goes on where the last one ended. What holds: specs/AUDIT.md §6.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from marshal_py.client.marshal import Claim, Marshal
from marshal_py.client.settings import DEFAULT_TOPIC
from marshal_py.errors import ClaimTimeout, ConfigurationError, NotHeld
from marshal_py.spark.kafka import READER_OPTIONS, Offsets, java_settings, librdkafka_settings
from marshal_py.spark.positions import TopicIds
from marshal_py.spark.watch import cluster_watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ClaimedBatch", "ClaimedRange", "claimable", "claimed_batch"]

_EMPTY = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)


@dataclass(frozen=True)
class ClaimedRange:
    """Records of one partition, from offset `begin` to below `end`, held under `epoch`."""

    topic: str
    partition: int
    epoch: int
    begin: int
    end: int


@dataclass(frozen=True)
class ClaimedBatch:
    """What one run works on: `frame` has the columns of Spark's Kafka source, with headers."""

    frame: DataFrame
    ranges: tuple[ClaimedRange, ...]
    """Empty where there was nothing new, or others hold every partition."""

    @property
    def records(self) -> int:
        """At most so many records: offsets of transaction markers count as well."""
        return sum(r.end - r.begin for r in self.ranges)


@contextmanager
def claimed_batch(
    spark: SparkSession,
    config: Mapping[str, Any] | str,
    *,
    group_id: str,
    topics: Sequence[str],
    client_id: str | None = None,
    delivery: Literal["at-least-once", "at-most-once"] = "at-least-once",
    starting: Literal["earliest", "latest"] = "earliest",
    max_records: int | None = None,
    max_partitions: int | None = None,
    interval_ms: int = 5_000,
    coordination_topic: str = DEFAULT_TOPIC,
    timeout_s: float = 30.0,
) -> Iterator[ClaimedBatch]:
    """Claim what is free of `topics`, give it as a data frame, and commit it when the block ends.

    - `config`: librdkafka settings, or just the brokers; keys that begin with ``kafka.`` are for
      Spark's Java client.
    - `max_records`: at most so many, shared evenly by the partitions; `max_partitions` leaves the
      rest to other jobs.
    - at least once: the positions are stored when the block ends without an exception. Otherwise,
      and when the process dies, the records come again.
    - at most once: the ranges are claimed in the log before the block begins. Read the frame once:
      Spark reads again what it computes again (cache it, run with ``spark.task.maxFailures=1`` and
      without speculation).

    Raises `NotHeld` at the end of the block if a claim was lost meanwhile: its records may be
    handled by somebody else as well, so fence what you write with `ClaimedRange.epoch`. Raises
    `ClaimTimeout` there if positions were not stored within `timeout_s`, seconds: their records may
    come again. Either way the others are stored, and the error names the partitions. Raises
    `ConfigurationError`, `TopicMissing` and `BrokerUnavailable` before anything is claimed,
    `MessagesMissing` where a topic was made anew, or truncated, and `ClusterLost` out of the block
    (see `cluster_watched`): nothing is committed, and the claims are given back.
    """
    given = {"bootstrap.servers": config} if isinstance(config, str) else dict(config)
    _check(topics, delivery, starting, max_records, max_partitions)
    java_settings(given)  # raises
    if delivery == "at-most-once" and _speculates(spark):
        raise ConfigurationError(
            "delivery = 'at-most-once' with spark.speculation = true: a copy of a task would read "
            "records a second time; set spark.speculation=false, or delivery = 'at-least-once'"
        )
    with ExitStack() as until_the_end:
        with Offsets(given, timeout_s) as offsets:
            parts = [(t, p) for t in topics for p in offsets.partitions(t)]
            marshal = until_the_end.enter_context(
                Marshal(
                    librdkafka_settings(given),
                    group_id=group_id,
                    client_id=client_id,
                    interval_ms=interval_ms,
                    topic=coordination_topic,
                    create_topics=True,
                    close_on_sigterm=False,
                )
            )
            claims = _claim(marshal, parts, max_partitions, timeout_s)
            ids = TopicIds(librdkafka_settings(given))
            ids.ask(topics)
            ids.close()
            extents = {topic: offsets.extent(topic) for topic in topics}
        share = None if max_records is None else max(1, max_records // max(1, len(claims)))
        with cluster_watched(spark):
            held = _ranges(claims, ids, extents, starting, share)
            if delivery == "at-most-once":
                # What Spark refuses (its connector may be missing) is not to be lost with that.
                _frame(spark, given, [r for r, _ in held])
                held = [(r, claim) for r, claim in held if _is_won(claim, r.end)]
            ranges = tuple(r for r, _ in held)
            yield ClaimedBatch(_frame(spark, given, ranges), ranges)
        if delivery == "at-least-once":
            _commit(held, timeout_s)


def _speculates(spark: SparkSession) -> bool:
    """Whether Spark starts copies of slow tasks; it reads its settings in upper or lower case."""
    return (spark.conf.get("spark.speculation", "false") or "").strip().lower() == "true"


def claimable(marshal: Marshal, topic: str, partition: int) -> bool:
    """Say whether nobody holds it, its holder is silent, or the holder is this very client."""
    cell = marshal.cell(topic, partition)
    if cell is None or cell.holder in (None, marshal.client_id):
        return True
    return marshal.liveness(topic, partition) == "stale"


def _check(
    topics: Sequence[str],
    delivery: str,
    starting: str,
    max_records: int | None,
    max_partitions: int | None,
) -> None:
    if isinstance(topics, str) or not topics:
        raise ConfigurationError(f"topics = {topics!r}: give a list of names, as in ['orders']")
    if delivery not in ("at-least-once", "at-most-once"):
        raise ConfigurationError(f"delivery = {delivery!r}: 'at-least-once' or 'at-most-once'")
    if starting not in ("earliest", "latest"):
        raise ConfigurationError(f"starting = {starting!r}: 'earliest' or 'latest'")
    for name, value in (("max_records", max_records), ("max_partitions", max_partitions)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{name} = {value}: 1 or more, or None for no limit")


def _claim(
    marshal: Marshal, parts: list[tuple[str, int]], most: int | None, timeout_s: float
) -> list[Claim]:
    """Claim what nobody alive holds, all at once."""
    waiting: list[Claim] = []
    for topic, partition in parts:
        if most is not None and len(waiting) == most:
            break
        if claimable(marshal, topic, partition):
            waiting.append(marshal.want(topic, partition))
    deadline = time.monotonic() + min(timeout_s, 10.0)
    claims = []
    for claim in waiting:
        if claim.wait_held(max(0.0, deadline - time.monotonic())):
            claims.append(claim)
        else:
            claim.release(wait=False)
    return claims


def _ranges(
    claims: list[Claim],
    ids: TopicIds,
    extents: dict[str, dict[int, tuple[int, int]]],
    starting: str,
    share: int | None,
) -> list[tuple[ClaimedRange, Claim]]:
    """What is new of the claims; without those that were lost just now."""
    found = []
    for claim in claims:
        extent = extents[claim.topic].get(claim.partition, (0, 0))
        ids.check((claim.topic, claim.partition), claim.position, claim.metadata, extent)
        with contextlib.suppress(NotHeld):
            begin, end = _bounds(claim, ids, extent, starting, share)
            if end > begin:
                ids.tell(claim)
                part = ClaimedRange(claim.topic, claim.partition, claim.epoch, begin, end)
                found.append((part, claim))
    return found


def _is_won(claim: Claim, end: int) -> bool:
    """Claim its records up to `end`; say whether they are this run's, and nobody else's."""
    try:
        return claim.claim_messages(end)
    except NotHeld:
        return False


def _bounds(
    claim: Claim, ids: TopicIds, extent: tuple[int, int], starting: str, share: int | None
) -> tuple[int, int]:
    first, last = extent
    begin = claim.position
    if begin < 0:
        begin = first if starting == "earliest" else last
        if starting == "latest":
            ids.tell(claim)
            claim.commit(begin)  # so that the next run begins here
    begin = max(begin, first)  # retention deleted the rest
    return begin, last if share is None else min(last, begin + share)


def _frame(
    spark: SparkSession, config: Mapping[str, Any], ranges: Sequence[ClaimedRange]
) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], _EMPTY)
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for r in ranges:
        assigned.setdefault(r.topic, []).append(r.partition)
        starts.setdefault(r.topic, {})[str(r.partition)] = r.begin
        ends.setdefault(r.topic, {})[str(r.partition)] = r.end
    return (
        spark.read.format("kafka")
        .options(**READER_OPTIONS)
        .option("kafka.isolation.level", "read_committed")
        .options(**java_settings(config))
        .option("includeHeaders", "true")
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def _commit(held: list[tuple[ClaimedRange, Claim]], timeout_s: float) -> None:
    """Store the ends, all that can be. Raises for the others: `NotHeld` or `ClaimTimeout`."""
    for wanted, claim in held:
        with contextlib.suppress(NotHeld):
            claim.commit(wanted.end)  # one heartbeat has all of them, or the releases have
    deadline = time.monotonic() + timeout_s
    lost, late = [], []
    for wanted, claim in held:
        where = f"{wanted.topic}/{wanted.partition} from {wanted.begin} to {wanted.end}"
        try:
            left_s = max(0.0, deadline - time.monotonic())
            claim.commit(wanted.end, wait=True, timeout_s=left_s)
        except NotHeld:
            lost.append(where)
        except ClaimTimeout:
            late.append(where)
    said = []
    if lost:
        said.append(
            f"lost while the batch was at work: {', '.join(lost)}; these records may be handled by "
            "another job as well"
        )
    if late:
        said.append(
            f"not stored within {timeout_s:g} s: {', '.join(late)}; these records may come again"
        )
    if said:
        kind = NotHeld if lost else ClaimTimeout
        raise kind(". ".join([*said, "The other partitions are committed"]))

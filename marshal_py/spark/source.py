"""The claim-gated streaming source: Spark applications that share topics through claims.

::

    spark.dataSource.register(MarshalSource)
    frame = (spark.readStream.format("marshal")
             .option("kafka.bootstrap.servers", "localhost:9092")
             .option("groupId", "billing").option("topics", "orders").load())

Each application claims a fair share of the partitions, as any client of its group does: they come,
go, crash and take over from each other. The schema is that of Spark's own Kafka source, without
headers. Options: specs/AUDIT.md §5.

The claims are held in the driver, by a process that lives as long as the query. The end offset of a
micro-batch names, for each partition, the epoch under which it was planned. A range is handed out
only while that very claim is held, and committed to the claim when Spark has committed the batch:

- at least once: what was not committed comes again, to whoever holds the claim then;
- at most once (``delivery`` = ``at-most-once``): the range is claimed in the log before it is
  handed out, and dropped if it was not won. No record is handed out twice, whoever crashes: what a
  failed task had not handed out is lost with it.

Restarting from a checkpoint: Spark plans the last batch again with its old epochs. Those claims are
gone, so that batch is empty, and the records come from the claims' positions in the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from marshal_py.client.marshal import Claim, Marshal
from marshal_py.errors import ConfigurationError, NotHeld
from marshal_py.spark.batch import claimable
from marshal_py.spark.kafka import Offsets, read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["MarshalSource"]

_LOG: Final = logging.getLogger("marshal_py.spark")
SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
DELIVERIES: Final = ("at-least-once", "at-most-once")
TICK: Final = "#"
"""A key of the offsets that is no partition: it makes Spark run, and so commit, an empty batch."""

Offset = dict[str, Any]
"""'topic/partition' → {"epoch", "turn", "from", "offset"}"""


@dataclass(frozen=True)
class SourceOptions:
    """The checked options of one source."""

    kafka: dict[str, str]
    group_id: str
    client_id: str | None
    topics: tuple[str, ...]
    at_most_once: bool
    from_latest: bool
    max_rows: int | None
    interval_ms: int
    coordination_topic: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options. Raises `ConfigurationError`, naming the option and the way out."""
        given = {name.lower(): value for name, value in options.items()}
        kafka = {n[6:]: value for n, value in given.items() if n.startswith("kafka.")}
        if "bootstrap.servers" not in kafka:
            raise ConfigurationError("option 'kafka.bootstrap.servers' is missing")
        for name in ("groupId", "topics"):
            if not given.get(name.lower()):
                raise ConfigurationError(f"option {name!r} is missing")
        delivery = given.get("delivery", DELIVERIES[0])
        if delivery not in DELIVERIES:
            raise ConfigurationError(f"delivery = {delivery!r} must be one of {DELIVERIES}")
        starting = given.get("startingoffsets", "earliest")
        if starting not in ("earliest", "latest"):
            raise ConfigurationError(f"startingOffsets = {starting!r}: 'earliest' or 'latest'")
        try:
            most = given.get("maxoffsetspertrigger")
            max_rows = None if most is None else int(most)
            interval_ms = int(given.get("intervalms", "5000"))
        except ValueError as error:
            raise ConfigurationError(
                f"maxOffsetsPerTrigger and intervalMs are whole numbers: {error}"
            ) from None
        return cls(
            kafka,
            given["groupid"],
            given.get("clientid"),
            tuple(sorted({t.strip() for t in given["topics"].split(",") if t.strip()})),
            delivery == DELIVERIES[1],
            starting == "latest",
            max_rows,
            interval_ms,
            given.get("coordinationtopic", "__marshal"),
        )


@dataclass
class Range(InputPartition):
    """Records of one partition from `begin` to below `end`."""

    topic: str
    partition: int
    begin: int
    end: int


class MarshalSource(DataSource):
    """`spark.dataSource.register(MarshalSource)`, then `format("marshal")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "marshal"

    def schema(self) -> str:
        """The columns of Spark's own Kafka source, without headers."""
        return SCHEMA

    def reader(self, schema: StructType) -> UncommittedReader:  # noqa: ARG002
        """A look at what the group has not committed yet; claims nothing, commits nothing."""
        options = SourceOptions.of(self.options)
        if options.at_most_once:
            raise ConfigurationError(
                "delivery = 'at-most-once' with spark.read: Spark plans and reads a batch as often "
                "as it likes; use marshal_py.spark.batch.claimed_batch, or readStream"
            )
        return UncommittedReader(options)

    def streamReader(self, schema: StructType) -> ClaimedReader:  # noqa: ARG002
        """Start a client of the group in the driver."""
        return ClaimedReader(SourceOptions.of(self.options))


class UncommittedReader(DataSourceReader):
    """Reads from the positions of a group's claims to the ends of the topics."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[Range]:
        """One range for each partition that has something new. Called in the driver."""
        options = self.options
        marshal = Marshal(
            options.kafka,
            group_id=options.group_id,
            topic=options.coordination_topic,
            create_topics=True,
            close_on_sigterm=False,
            member=False,
        )
        ranges = []
        with Offsets(options.kafka) as offsets, marshal:
            for topic in options.topics:
                for p, (first, last) in offsets.extent(topic).items():
                    cell = marshal.cell(topic, p)
                    begin = -1 if cell is None else cell.position
                    if begin < 0:
                        begin = last if options.from_latest else first
                    if last > begin:
                        ranges.append(Range(topic, p, max(begin, first), last))
        most = options.max_rows
        if most is None:
            return ranges
        share = max(1, most // max(1, len(ranges)))
        return [Range(r.topic, r.partition, r.begin, min(r.end, r.begin + share)) for r in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Raises `LogHole` when records of it are gone, and as `read_range`."""
        return _arrow_range(self.options.kafka, cast(Range, partition))


class ClaimedReader(DataSourceStreamReader):
    """Plans micro-batches out of what this application holds. Lives in a process of the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._marshal: Marshal | None = None
        self._offsets: Offsets | None = None
        self._wanted: dict[str, Claim] = {}
        self._draining: set[str] = set()
        self._turns: dict[str, int] = {}
        """How often the planning of a partition went back to its committed position."""
        self._heard: dict[str, tuple[int, float]] = {}
        """Member → (log offset of its last heartbeat, when this was first seen, in seconds)."""
        self._handed_out: dict[tuple[str, int, int, int], bool] = {}
        self._ticks = 0

    def __getstate__(self) -> dict[str, Any]:
        """The executors get the options and nothing else."""
        return {"options": self.options}

    # Spark's calls, in the driver

    def initialOffset(self) -> Offset:
        """Nothing is known before anything is claimed."""
        return {TICK: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option `maxOffsetsPerTrigger`."""
        most = self.options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan a batch: what is new in the partitions that are held, up to the limit."""
        extents = self._extents()
        self._balance(sorted(extents))
        end = dict(start)
        held = [
            (name, claim)
            for name, claim in self._wanted.items()
            if claim.held and name not in self._draining
        ]
        most = getattr(limit, "max_rows", None) or getattr(limit, "maxRows", None)
        share = None if most is None else max(1, most // max(1, len(held)))
        for name, claim in held:
            first, last = extents[name]
            turn = self._turns.setdefault(name, 0)
            known = start.get(name)
            if known is not None and (known["epoch"], known["turn"]) == (claim.epoch, turn):
                begin = known["offset"]
            elif claim.position >= 0:
                begin = claim.position
            else:
                begin = last if self.options.from_latest else first
            upto = last if share is None else min(last, begin + share)
            if upto > begin:
                entry = {"epoch": claim.epoch, "turn": turn, "from": begin, "offset": upto}
                end[name] = entry
        if self._draining:
            self._ticks += 1
            end[TICK] = int(start.get(TICK, 0)) + 1
        return end

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        """Hand out the ranges whose claims are held as they were when they were planned."""
        ranges = []
        for name, entry in end.items():
            if name == TICK or start.get(name) == entry:
                continue
            topic, _, number = name.rpartition("/")
            if self._may_hand_out(name, entry):
                ranges.append(Range(topic, int(number), entry["from"], entry["offset"]))
            else:
                # Nothing of it was handed out: plan again from what is committed.
                self._turns[name] = self._turns.get(name, 0) + 1
        return ranges

    def commit(self, end: Offset) -> None:
        """Store in the claims what Spark has committed."""
        for name, entry in end.items():
            claim = self._wanted.get(name)
            if name == TICK or claim is None or not self._same(name, entry, claim):
                continue
            try:
                claim.commit(entry["offset"], wait=name in self._draining)
            except NotHeld:
                continue
        for name in list(self._draining):
            self._draining.discard(name)
            claim = self._wanted.pop(name, None)
            if claim is not None:
                claim.release(wait=False)

    def stop(self) -> None:
        """End the client. Its leases run out by themselves: tasks may still be at work."""
        if self._marshal is not None:
            self._marshal.close(release=False)

    # Claims

    def _client(self) -> Marshal:
        if self._marshal is None:
            options = self.options
            self._marshal = Marshal(
                options.kafka,
                group_id=options.group_id,
                client_id=options.client_id,
                interval_ms=options.interval_ms,
                topic=options.coordination_topic,
                create_topics=True,
                close_on_sigterm=False,
            ).start()
        return self._marshal

    def _extents(self) -> dict[str, tuple[int, int]]:
        if self._offsets is None:
            self._offsets = Offsets(self.options.kafka)
        return {
            f"{topic}/{p}": extent
            for topic in self.options.topics
            for p, extent in self._offsets.extent(topic).items()
        }

    def _balance(self, names: list[str]) -> None:
        """Want a fair share: all partitions over the members of the group, rounded up."""
        marshal = self._client()
        for name, claim in list(self._wanted.items()):
            if claim.reason is not None or not (
                claim.held or claimable(marshal, claim.topic, claim.partition)
            ):
                # It ended, or somebody else was faster: do not wait for their end.
                del self._wanted[name]
                self._draining.discard(name)
                claim.release(wait=False)
        share = -(-len(names) // self._members())
        mine = [name for name in self._wanted if name not in self._draining]
        for name in mine[share:]:
            claim = self._wanted[name]
            if claim.held:
                self._draining.add(name)
            else:
                del self._wanted[name]
                claim.release(wait=False)
        for name in names:
            if len(mine) >= share:
                break
            topic, _, number = name.rpartition("/")
            if name not in self._wanted and marshal.liveness(topic, int(number)) in (None, "stale"):
                self._wanted[name] = marshal.want(topic, int(number))
                mine.append(name)

    def _members(self) -> int:
        """How many members of the group live: heard of within two of their intervals, or new."""
        now = time.monotonic()
        with self._client().world() as world:
            found = {m.client_id: m.member for m in world.members(self.options.group_id)}
        heard = {}
        for client, member in found.items():
            version, at = self._heard.get(client, (None, now))
            heard[client] = (member.version, at if version == member.version else now)
        self._heard = heard
        alive = [
            client
            for client, (_, at) in heard.items()
            if now - at <= 2 * found[client].interval_ms / 1000
        ]
        return max(1, len(alive))

    def _same(self, name: str, entry: Offset, claim: Claim) -> bool:
        turn = self._turns.get(name, 0)
        return claim.held and (claim.epoch, turn) == (entry["epoch"], entry["turn"])

    def _may_hand_out(self, name: str, entry: Offset) -> bool:
        claim = self._wanted.get(name)
        if claim is None or not self._same(name, entry, claim):
            return False
        if not self.options.at_most_once:
            return True
        key = (name, entry["epoch"], entry["from"], entry["offset"])
        if key not in self._handed_out:  # Spark may ask again about the same batch
            self._handed_out = {k: v for k, v in self._handed_out.items() if k[0] != name}
            try:
                self._handed_out[key] = claim.claim_messages(entry["offset"])
            except NotHeld:
                self._handed_out[key] = False
        return self._handed_out[key]

    # In the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Raises `LogHole` when records of it are gone, and as `read_range`.

        At most once, nothing but the first attempt of a task gets anything: how far that came is
        not known.
        """
        wanted = cast(Range, partition)
        if self.options.at_most_once and _tried_before():
            _LOG.warning("a task failed: what was left of %s is lost, at most once", wanted)
            return iter(())
        return _arrow_range(self.options.kafka, wanted)


def _tried_before() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


_BATCH: Final = 2_000
"""Records of an Arrow batch. Spark has work with each batch, however short."""


def _arrow_range(kafka: Mapping[str, str], wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as Arrow batches of the columns of `SCHEMA`."""
    import pyarrow

    schema = pyarrow.schema(
        [
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("us", tz="UTC")),
            ("timestampType", pyarrow.int32()),
        ]
    )
    partition = pyarrow.scalar(wanted.partition, pyarrow.int32())
    milliseconds = pyarrow.timestamp("ms", tz="UTC")
    lists = read_range(
        kafka, wanted.topic, wanted.partition, wanted.begin, wanted.end, at_once=_BATCH
    )
    for messages in lists:
        stamps = [m.timestamp() for m in messages]
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([m.key() for m in messages], pyarrow.binary()),
                pyarrow.array([m.value() for m in messages], pyarrow.binary()),
                pyarrow.repeat(wanted.topic, len(messages)),
                pyarrow.repeat(partition, len(messages)),
                pyarrow.array([m.offset() for m in messages], pyarrow.int64()),
                pyarrow.array([at for _, at in stamps], milliseconds).cast(schema[5].type),
                pyarrow.array([max(0, kind - 1) for kind, _ in stamps], pyarrow.int32()),
            ],
            schema=schema,
        )

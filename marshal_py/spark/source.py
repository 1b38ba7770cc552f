"""The claim-gated streaming source: Spark applications that share topics through claims.

::

    spark.dataSource.register(MarshalSource)
    frame = (spark.readStream.format("marshal")
             .option("kafka.bootstrap.servers", "localhost:9092")
             .option("groupId", "billing").option("topics", "orders").load())

Each application claims a fair share of the partitions, as any client of its group does: they come,
go, crash and take over from each other. The schema is that of Spark's own Kafka source. With
``trigger(availableNow=True)`` a query takes what nobody else alive holds, reads it to the ends that
it found, gives it back and ends. Options: specs/AUDIT.md §5.

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

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from marshal_py.client.headers import make_headers_readable
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.errors import ClaimTimeout, ConfigurationError, NotHeld
from marshal_py.spark.batch import claimable
from marshal_py.spark.kafka import Offsets, read_range
from marshal_py.spark.positions import TopicIds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["MarshalSource"]

_LOG: Final = logging.getLogger("marshal_py.spark")
SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS: Final = ", headers array<struct<key:string,value:binary>>"
DELIVERIES: Final = ("at-least-once", "at-most-once")
EARLIEST, LATEST = -2, -1
"""As Spark's own Kafka source writes them in `startingOffsets`."""
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
    headers: bool
    starting: dict[tuple[str, int], int]
    """Where partitions begin that nobody has a position for; the others: `otherwise`."""
    otherwise: int
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
        topics = tuple(sorted({t.strip() for t in given["topics"].split(",") if t.strip()}))
        if not topics:
            raise ConfigurationError(f"topics = {given['topics']!r} names none")
        starting, otherwise = _starting(given.get("startingoffsets", "earliest"), topics)
        headers = given.get("includeheaders", "false").lower()
        if headers not in ("true", "false"):
            raise ConfigurationError(f"includeHeaders = {headers!r}: 'true' or 'false'")
        try:
            most = given.get("maxoffsetspertrigger")
            max_rows = None if most is None else int(most)
            interval_ms = int(given.get("intervalms", "5000"))
        except ValueError as error:
            raise ConfigurationError(
                f"maxOffsetsPerTrigger and intervalMs are whole numbers: {error}"
            ) from None
        if max_rows is not None and max_rows < 1:
            raise ConfigurationError(
                f"maxOffsetsPerTrigger = {max_rows} must be 1 or more; leave it out for no limit"
            )
        return cls(
            kafka,
            given["groupid"],
            given.get("clientid"),
            topics,
            delivery == DELIVERIES[1],
            headers == "true",
            starting,
            otherwise,
            max_rows,
            interval_ms,
            given.get("coordinationtopic", "__marshal"),
        )

    def begin(self, topic: str, partition: int, first: int, last: int) -> int:
        """Where a partition begins that nobody has a position for.

        Raises `ConfigurationError` for an offset that it does not have.
        """
        asked = self.starting.get((topic, partition), self.otherwise)
        if asked in (EARLIEST, LATEST):
            return first if asked == EARLIEST else last
        if not first <= asked <= last:
            raise ConfigurationError(
                f"startingOffsets = {asked} of {topic}/{partition}, which has {first} to {last}: "
                "give one of these, -2 for the earliest or -1 for the latest"
            )
        return asked


def _starting(given: str, topics: tuple[str, ...]) -> tuple[dict[tuple[str, int], int], int]:
    """Offsets by partition, and that of the others, which are read from their beginning."""
    if given in ("earliest", "latest"):
        return {}, EARLIEST if given == "earliest" else LATEST
    try:
        found = {(t, int(p)): o for t, parts in json.loads(given).items() for p, o in parts.items()}
    except (ValueError, AttributeError):
        found = {("", 0): None}
    for (topic, partition), offset in found.items():
        if type(offset) is not int or offset < EARLIEST or partition < 0:
            raise ConfigurationError(
                f"startingOffsets = {given!r}: 'earliest', 'latest', or JSON such as "
                '{"orders": {"0": 23, "1": -2}}, -2 for the earliest and -1 for the latest'
            )
        if topic not in topics:
            raise ConfigurationError(f"startingOffsets names {topic!r}, which is not in topics")
    return found, EARLIEST


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
        """The columns of Spark's own Kafka source, with headers if `includeHeaders` says so."""
        return SCHEMA + HEADERS if SourceOptions.of(self.options).headers else SCHEMA

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
        ids = TopicIds(options.kafka)
        ids.ask(options.topics)
        with Offsets(options.kafka) as offsets, marshal:
            for topic in options.topics:
                for p, (first, last) in offsets.extent(topic).items():
                    cell = marshal.cell(topic, p)
                    begin = -1 if cell is None else cell.position
                    if cell is not None:
                        now = partial(_extent, offsets, topic, p)
                        ids.check((topic, p), begin, cell.metadata, (first, last), now)
                    if begin < 0:
                        begin = options.begin(topic, p, first, last)
                    if last > begin:
                        ranges.append(Range(topic, p, max(begin, first), last))
        most = options.max_rows
        if most is None:
            return ranges
        share = max(1, most // max(1, len(ranges)))
        return [Range(r.topic, r.partition, r.begin, min(r.end, r.begin + share)) for r in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. Raises `LogHole` when records of it are gone, and as `read_range`."""
        return _arrow_range(self.options, cast(Range, partition))


def _extent(offsets: Offsets, topic: str, partition: int) -> tuple[int, int]:
    return offsets.extent(topic).get(partition, (0, 0))


class ClaimedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches out of what this application holds. Lives in a process of the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._marshal: Marshal | None = None
        self._offsets: Offsets | None = None
        self._ids = TopicIds(options.kafka)
        self._wanted: dict[str, Claim] = {}
        self._draining: set[str] = set()
        self._turns: dict[str, int] = {}
        """How often the planning of a partition went back to its committed position."""
        self._heard: dict[str, tuple[int, float]] = {}
        """Member → (log offset of its last heartbeat, when this was first seen, in seconds)."""
        self._handed_out: dict[tuple[str, int, int, int], bool] = {}
        self._begins: dict[str, int] = {}
        """Where partitions began that nobody had a position for."""
        self._targets: dict[str, int] | None = None
        """Where the topics ended when a query with the trigger availableNow began."""
        self._planned = self._ended = False
        self._probed = not options.at_most_once
        self._latest: dict[str, dict[str, int]] = {}

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

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the topics end: what comes later is for another run."""
        self._targets = {name: last for name, (_, last) in self._extents().items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan a batch: what is new in the partitions that are held, up to the limit."""
        if not self._probed or self._ended:  # nothing is claimed before the probe has succeeded
            return start if self._ended else _tick(start)
        self._ids.ask(self.options.topics)
        # A partition that is gone, since the topic was made anew, is one without records.
        whole = extents = dict.fromkeys(self._wanted, (0, 0)) | self._extents()
        if self._targets is None:
            self._balance(sorted(extents))
        else:
            ends = self._targets
            extents = {n: (a, min(b, ends[n])) for n, (a, b) in whole.items() if n in ends}
            self._take([n for n in extents if self._is_due(n, start, extents, whole)])
        end = dict(start)
        held = [
            (name, claim)
            for name, claim in self._wanted.items()
            if claim.held and name not in self._draining
        ]
        most = getattr(limit, "max_rows", None) or getattr(limit, "maxRows", None)
        share = None if most is None else max(1, most // max(1, len(held)))
        for name, claim in held:
            known, (first, last) = self._position(name, start, extents), extents[name]
            metadata = claim.metadata if claim.position >= 0 else b""
            now = partial(self._extent_now, name)
            self._ids.check((claim.topic, claim.partition), known, metadata, whole[name], now)
            begin = max(known, first)
            upto = last if share is None else min(last, begin + share)
            if upto > begin:
                if begin > known:
                    _LOG.warning("retention has deleted %s from %d to %d", name, known, begin - 1)
                self._ids.tell(claim)
                turn = self._turns.setdefault(name, 0)
                end[name] = {"epoch": claim.epoch, "turn": turn, "from": begin, "offset": upto}
                self._planned = True
        self._latest = {
            name: {"offset": last, "lag": self._lag(name, end, whole)}
            for name, (_, last) in whole.items()
        }
        if self._targets is not None and end == start:
            return self._give_back(start)
        return _tick(end) if self._draining else end

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """Where each partition ends, and how many records of it are behind this batch.

        For partitions of others: behind the position of their claim. In the query's progress as
        ``latestOffset``.
        """
        return self._latest or None

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        """Hand out the ranges whose claims are held as they were when they were planned."""
        ranges = []
        if not self._probed:
            self._probed = True
            ranges.append(Range("", 0, 0, 0))
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
        """Store in the claims what Spark has committed.

        Raises `ClaimTimeout` for a position that is to be given back and could not be stored.
        """
        waited = []
        for name, entry in end.items():
            claim = self._wanted.get(name)
            if name == TICK or claim is None or not self._same(name, entry, claim):
                continue
            try:
                claim.commit(entry["offset"])
            except NotHeld:
                continue
            if name in self._draining:
                waited.append((claim, entry["offset"]))
        for claim, offset in waited:
            with contextlib.suppress(NotHeld):
                claim.commit(offset, wait=True)
        for name in list(self._draining):
            self._draining.discard(name)
            claim = self._wanted.pop(name, None)
            if claim is not None:
                claim.release(wait=self._targets is not None)

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

    def _extent_now(self, name: str) -> tuple[int, int]:
        return self._extents().get(name, (0, 0))

    def _position(self, name: str, start: Offset, extents: dict[str, tuple[int, int]]) -> int:
        """What to plan next: after what is planned, or from where the group is."""
        claim, known = self._wanted.get(name), start.get(name)
        held = claim is not None and claim.held
        if claim is not None and held and known is not None and self._same(name, known, claim):
            return int(known["offset"])
        topic, _, number = name.rpartition("/")
        if claim is not None and held:
            position = claim.position
        else:
            cell = self._client().cell(topic, int(number))
            position = -1 if cell is None else cell.position
        if position >= 0:
            return position
        if name not in self._begins:
            begin = self.options.begin(topic, int(number), *extents[name])
            if claim is None or not held:
                return begin
            self._begins[name] = begin
            if begin != extents[name][0]:
                self._ids.tell(claim)
                claim.commit(begin)  # so that whoever comes next begins here
        return self._begins[name]

    def _lag(self, name: str, end: Offset, extents: dict[str, tuple[int, int]]) -> int:
        """How many records are behind what is planned; not those that are deleted."""
        first, last = extents[name]
        return max(0, last - max(first, self._position(name, end, extents)))

    def _is_due(
        self,
        name: str,
        start: Offset,
        extents: dict[str, tuple[int, int]],
        whole: dict[str, tuple[int, int]],
    ) -> bool:
        """Whether there is something to read, or no position, or one beyond the end."""
        topic, _, number = name.rpartition("/")
        cell = self._client().cell(topic, int(number))
        if cell is None or cell.position < 0:
            return True
        first, end = extents[name]
        return not end <= max(first, self._position(name, start, extents)) <= whole[name][1]

    def _take(self, names: list[str]) -> None:
        """Claim what nobody else alive holds: return when each is held, or known to be theirs.

        Raises `ClaimTimeout` for one of which neither can be said.
        """
        marshal = self._client()
        before, interval_ms = self._heartbeats()
        deadline = time.monotonic() + 3 * interval_ms / 1000 + _PATIENCE_S
        waiting = set(names)
        while waiting:
            heard, _ = self._heartbeats()
            for name in sorted(waiting):
                topic, _, number = name.rpartition("/")
                claim = self._wanted.get(name)
                if claim is None or claim.reason is not None:
                    claim = self._wanted[name] = marshal.want(topic, int(number))
                cell = marshal.cell(topic, int(number))
                holder = None if cell is None else cell.holder
                if claim.held:
                    waiting.discard(name)
                elif holder not in (None, marshal.client_id) and (
                    heard.get(holder, -1) > before.get(holder, -1)
                ):
                    del self._wanted[name]
                    claim.release(wait=False)
                    waiting.discard(name)
                elif time.monotonic() > deadline:
                    raise ClaimTimeout(
                        f"{name} could not be claimed, and its holder {holder!r} is not heard of: "
                        "is the group paused?"
                    )
                else:
                    claim.wait_held(_LOOK_S)

    def _heartbeats(self) -> tuple[dict[str | None, int], int]:
        """Member → log offset of its last heartbeat; the longest interval of all, in ms."""
        with self._client().world() as world:
            found = list(world.members(self.options.group_id))
        longest = max((m.member.interval_ms for m in found), default=0)
        return {m.client_id: m.member.version for m in found}, longest

    def _give_back(self, start: Offset) -> Offset:
        """End a run: all is read. An empty batch makes Spark commit the last one that was not."""
        self._ended = True
        if self._planned:
            self._draining.update(self._wanted)
            return _tick(start)
        for claim in self._wanted.values():
            claim.release(wait=True)
        self._wanted.clear()
        return start

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
        if self.options.at_most_once:
            context = TaskContext.get()
            speculation = context and context.getLocalProperty("spark.speculation")
            if speculation and speculation.strip().lower() == "true":
                raise ConfigurationError(SPECULATION)
            if wanted.begin == wanted.end:
                return iter(())
            if context is not None and context.attemptNumber() > 0:
                _LOG.warning("a task failed: what was left of %s is lost, at most once", wanted)
                return iter(())
        return _arrow_range(self.options, wanted)


SPECULATION: Final = (
    "delivery = 'at-most-once' with spark.speculation = true: a copy of a task gets nothing, and "
    "may win over the one that has the records; set spark.speculation=false, or "
    "delivery = 'at-least-once'"
)


def _tick(end: Offset) -> Offset:
    return {**end, TICK: int(end.get(TICK, 0)) + 1}


_PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.05
_BATCH: Final = 2_000
"""Records of an Arrow batch. Spark has work with each batch, however short."""


def _arrow_range(options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range as Arrow batches of the columns of the schema."""
    import pyarrow

    pair = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    schema = pyarrow.schema(
        [
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("us", tz="UTC")),
            ("timestampType", pyarrow.int32()),
            *([("headers", pyarrow.list_(pair))] if options.headers else []),
        ]
    )
    partition = pyarrow.scalar(wanted.partition, pyarrow.int32())
    milliseconds = pyarrow.timestamp("ms", tz="UTC")
    lists = read_range(
        options.kafka, wanted.topic, wanted.partition, wanted.begin, wanted.end, at_once=_BATCH
    )
    for messages in lists:
        stamps = [m.timestamp() for m in messages]
        if options.headers:
            make_headers_readable(messages)
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([m.key() for m in messages], pyarrow.binary()),
                pyarrow.array([m.value() for m in messages], pyarrow.binary()),
                pyarrow.repeat(wanted.topic, len(messages)),
                pyarrow.repeat(partition, len(messages)),
                pyarrow.array([m.offset() for m in messages], pyarrow.int64()),
                pyarrow.array([at for _, at in stamps], milliseconds).cast(schema[5].type),
                pyarrow.array([max(0, kind - 1) for kind, _ in stamps], pyarrow.int32()),
                *(
                    [pyarrow.array([m.headers() for m in messages], schema[7].type)]
                    if options.headers
                    else []
                ),
            ],
            schema=schema,
        )

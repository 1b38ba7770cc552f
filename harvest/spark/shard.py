"""One shard of a backlog, published by a task while the driver of the job holds the claim.

A task is a leadership of range mode (`harvest.runtime.range_leader`), no other code: what differs
is that the lease is somebody else's, that it ends at an id, and that it may be one of several
attempts. Why no attempt repeats or reorders a row, whatever Spark does (specs/HARVEST.md §17):

- Opening the sink fences every earlier attempt in Kafka and gives the last committed position.
- Rows and position are one transaction. So an attempt begins where the one before it has ended.
- A later leader, with a later epoch, has fenced the task's producer; and a task that finds the
  position of a later epoch stops.

No Spark in this file: a task is a function call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from harvest.config.model import ReaperConfig
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import Sink, StillHeld
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.errors import HarvestError
from harvest.runtime.checkpoints import Checkpoints
from harvest.runtime.events import Stats
from harvest.runtime.leadership import Leadership
from harvest.runtime.parts import make_guard, make_range_store, make_range_tools
from harvest.sinks.kafka.settings import connection_settings
from harvest.spark.pages import PagedStore, Pages
from marshal_py import Marshal
from marshal_py.errors import MarshalError

__all__ = [
    "CLAIM_LOST",
    "DistantLease",
    "Job",
    "Outcome",
    "PatientSink",
    "SinkWrapper",
    "publish",
    "publish_together",
]

_LOG: Final = logging.getLogger("harvest")
CLAIM_LOST: Final = "the claim was lost"
_LOOK_S: Final = 0.1
_SILENCE_S: Final = 20.0
"""Longer than a transaction of another attempt may last."""

SinkWrapper = Callable[[Sink], Sink]


@dataclass(frozen=True, slots=True)
class Job:
    """A shard to publish up to an id, under the claim of which the driver has won `epoch`."""

    config: ReaperConfig = field(repr=False)
    shard: int
    epoch: int
    until: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task did. `error` is empty if every row up to the job's end is published.

    `late`: rows whose transactions committed after rows with higher ids had been published;
    `dead_ids`: ids that turned out to belong to no row; `gaps`: ranges of ids that are still open,
    for the harvester to decide; `dead_lettered`: rows that Kafka refuses, set aside.
    """

    published: int = 0
    late: int = 0
    dead_ids: int = 0
    gaps: int = 0
    dead_lettered: int = 0
    error: str = ""

    def then(self, later: Outcome) -> Outcome:
        """What this and a later attempt have come to."""
        return replace(
            later,
            published=self.published + later.published,
            late=self.late + later.late,
            dead_ids=self.dead_ids + later.dead_ids,
            dead_lettered=self.dead_lettered + later.dead_lettered,
        )


class DistantLease:
    """A claim that another process holds, as the log shows it. Implements `Lease`.

    `marshal` is a client of the same group that claims nothing. The claim counts as held while it
    has the epoch and its holder is not stale. What that leaves open, Kafka's fencing closes.
    """

    def __init__(self, marshal: Marshal, unit: tuple[str, int], epoch: int) -> None:
        self._marshal = marshal
        self._unit = unit
        self._epoch = epoch
        self._superseded = False

    @property
    def epoch(self) -> int:
        """See `Lease.epoch`."""
        return self._epoch

    @property
    def held(self) -> bool:
        """See `Lease.held`."""
        if self._superseded:
            return False
        try:
            cell = self._marshal.cell(*self._unit)
            alive = self._marshal.liveness(*self._unit) in ("fresh", "unknown")
        except MarshalError:
            return False
        return alive and cell is not None and cell.epoch == self._epoch

    @property
    def remaining_ms(self) -> float:
        """See `Lease.remaining_ms`; at least, and roughly."""
        return float(self._marshal.settings.interval_ms) if self.held else 0.0

    def supersede(self) -> None:
        """Somebody has a later epoch."""
        self._superseded = True

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """See `Lease.wait_lost`."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while self.held:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_LOOK_S, left_s))  # silence is no event
        return True


class PatientSink:
    """A sink that, once another attempt has fenced it, opens again only if that one falls silent.

    So two attempts at the same shard do not fence each other for ever: the later one works, the
    earlier one waits, to be killed by Spark or to go on where the later one has died. Implements
    `Sink`.
    """

    def __init__(
        self, sink: Sink, lease: DistantLease, progress: Callable[[], object], silence_s: float
    ) -> None:
        self._sink = sink
        self._lease = lease
        self._progress = progress
        self._silence_s = silence_s
        self._fenced = False

    @property
    def atomic(self) -> bool:
        """See `Sink.atomic`."""
        return self._sink.atomic

    def prepare(self) -> None:
        """See `Sink.prepare`."""
        self._sink.prepare()

    def open(self, still_held: StillHeld) -> str | None:
        """See `Sink.open`."""
        if self._fenced:
            _LOG.warning("another attempt has taken over; this one waits")
            self._wait_for_silence(still_held)
        found = self._sink.open(still_held)
        self._fenced = False
        if found is not None and Position.decode(found).epoch > self._lease.epoch:
            self._lease.supersede()
        return found

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        """See `Sink.deliver`."""
        failure = self._sink.deliver(rows, checkpoint)
        self._fenced = self._fenced or (failure is not None and failure.fenced)
        return failure

    def close(self) -> None:
        """See `Sink.close`."""
        self._sink.close()

    def _wait_for_silence(self, still_held: StillHeld) -> None:
        seen, changed_s = self._progress(), time.monotonic()
        while still_held() and time.monotonic() < changed_s + self._silence_s:
            time.sleep(_LOOK_S)
            now = self._progress()
            if now != seen:
                seen, changed_s = now, time.monotonic()


def publish_together(jobs: Sequence[Job], wrap: SinkWrapper | None = None) -> list[Outcome]:
    """Publish shards of one outbox at the same time, each as `publish` does, reading it once."""
    if len(jobs) == 1:
        return [publish(jobs[0], wrap)]
    reader = make_range_store(jobs[0].config, jobs[0].shard)
    pages = Pages(reader, len(jobs)) if isinstance(reader, PostgresRangeStore) else None
    try:
        with ThreadPoolExecutor(len(jobs), "backlog-shard") as threads:
            return list(threads.map(lambda job: publish(job, wrap, pages=pages), jobs))
    finally:
        if pages is not None:
            pages.close()


def publish(
    job: Job,
    wrap: SinkWrapper | None = None,
    *,
    silence_s: float = _SILENCE_S,
    pages: Pages | None = None,
) -> Outcome:
    """Publish the shard; return when that is done, or cannot be. Raises what nobody foresaw.

    `pages`: where the rows come from, if other shards are read together with this one.
    """
    config, shard = job.config, job.shard
    stats = Stats()
    try:
        with Marshal(
            connection_settings(config.kafka),
            group_id=config.group,
            interval_ms=config.coordination.interval_ms,
            topic=config.coordination.topic,
            member=False,
            close_on_sigterm=False,
        ) as marshal:
            lease = DistantLease(marshal, config.shard_units()[shard], job.epoch)
            tools = make_range_tools(config, shard)
            if pages is not None:
                tools.reader = PagedStore(
                    config.database, config.table, shard=shard, shards=config.shards, pages=pages
                )
                tools.guard = make_guard(config, tools.reader, exact=True)
            tools.until = job.until
            checkpoints = Checkpoints(config)
            sink = tools.sink if wrap is None else wrap(tools.sink)
            tools.sink = PatientSink(sink, lease, lambda: checkpoints.read(shard), silence_s)
            try:
                tools.connect()
                leadership = Leadership(
                    lease,
                    shard=shard,
                    stats=stats,
                    drain_timeout_s=config.limits.drain_timeout_ms / 1000,
                )
                ended = leadership.run(tools.leader(leadership))
            finally:
                tools.close()
    except (HarvestError, MarshalError) as error:
        return _outcome(stats, str(error))
    return _outcome(stats, "" if ended else CLAIM_LOST)


def _outcome(stats: Stats, error: str) -> Outcome:
    return Outcome(
        stats.published, stats.late, stats.dead_ids, stats.gaps, stats.dead_lettered, error
    )

"""`harvest backlog`: publish what an outbox has piled up, with a Spark task for several shards.

The driver holds the claims of all shards, as a live harvester would: where one leads, the job does
not begin; where the job works, none can begin. Each task gets the epoch of its shard, and does what
`harvest.spark.shard` says. The ids that were drawn when the job began are its end; what was open
then stays in the positions, for the harvester that comes afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from harvest.config.model import ReaperConfig
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.range_checkpoint import Position
from harvest.errors import ConfigurationError, HarvestError
from harvest.runtime.checkpoints import Checkpoints
from harvest.runtime.parts import make_range_store
from harvest.runtime.range_leader import check_layout
from harvest.runtime.registration import check_registration
from harvest.sinks.kafka.settings import connection_settings
from harvest.spark.shard import CLAIM_LOST, Job, Outcome, SinkWrapper, publish_together
from marshal_py import ClaimTimeout, Marshal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Backlog", "Progress", "ShardResult", "backlog"]

_LOG: Final = logging.getLogger("harvest")
_COLUMNS: Final = "task bigint, shard bigint, " + ", ".join(
    f"{f.name} {'string' if f.name == 'error' else 'bigint'}" for f in fields(Outcome)
)
_PROGRESS_S: Final = 2.0
SHARDS_PER_TASK: Final = 4
"""A task reads the whole table, once for all its shards."""
_TURNS: Final = 5
_INTERVAL_MS: Final = 5_000
"""The least heartbeat interval of a job: a driver at work may be slow, and nobody waits for it."""
_PATIENCE_INTERVALS: Final = 4
"""A claim of a process that was killed lasts for two; the second two are for a busy machine."""


class _AtWork(ConfigurationError):
    """A harvester leads shards of the outbox, or another job has claimed them."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of one shard of one outbox."""

    outbox: str
    shard: int
    until: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a job did. `seconds` is the time of everything but the start of the session."""

    shards: Sequence[ShardResult]
    seconds: float

    @property
    def published(self) -> int:
        """Rows that Kafka has, of all shards."""
        return sum([shard.outcome.published for shard in self.shards])

    @property
    def done(self) -> bool:
        """Whether every shard is published up to its end."""
        return not any(shard.outcome.error for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, seen from the copies of the positions: up to a second late.

    `rows`: published by now, and `total_rows`: when the job is done; both estimated from the ids.
    """

    rows: int
    total_rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        """Since the job began."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the end at this rate; None before anything is published."""
        return (self.total_rows - self.rows) / self.rows_per_s if self.rows else None


def backlog(
    spark: SparkSession,
    configs: Sequence[ReaperConfig],
    *,
    wait_s: float | None = None,
    shards_per_task: int = SHARDS_PER_TASK,
    on_progress: Callable[[Progress], None] | None = None,
    wrap_sink: SinkWrapper | None = None,
) -> Backlog:
    """Publish all rows of these outboxes that are there now.

    - `wait_s`: how long to wait for shards that somebody else leads; by default long enough for the
      claims of a process that was killed to end.
    - `shards_per_task`: each task publishes so many shards of one outbox, at the same time. Fewer
      make more tasks, of which each reads the table for itself: faster if database and brokers have
      cores to spare.
    - `on_progress` is called every 2 s, in a thread of its own.
    - `wrap_sink`: for tests, put around the sink of each task.

    Exactly once for read_committed readers, in the order of the ids within each key, whatever is
    killed or tried again (specs/HARVEST.md §17). Killed, it is simply run again.

    Raises `ConfigurationError` for an outbox that is not in range mode, or that a harvester leads;
    what the stores, Kafka and Spark raise. That a shard could not be finished is in its outcome.
    """
    started = time.perf_counter()
    _check(configs, shards_per_task)
    results: dict[tuple[str, int], ShardResult] = {}
    for turn in range(_TURNS):
        try:
            with _claimed(configs, wait_s) as claims:
                jobs = _jobs(configs, claims, results)
                tasks = _divided(jobs, shards_per_task)
                with _watched(configs, jobs, on_progress):
                    found = _run(spark, tasks, wrap_sink)
        except _AtWork:
            if turn == 0:
                raise
            break  # somebody else goes on with what was lost
        for job, outcome in zip(jobs, found, strict=True):
            key = job.config.sink_name, job.shard
            before = results[key].outcome if key in results else Outcome()
            results[key] = ShardResult(
                str(job.config.table), job.shard, job.until, before.then(outcome)
            )
        if not any(outcome.error == CLAIM_LOST for outcome in found):
            break
        _LOG.warning("claims were lost: what is not published yet is tried again")
    return Backlog(list(results.values()), time.perf_counter() - started)


def _jobs(
    configs: Sequence[ReaperConfig],
    claims: Sequence[Sequence[int]],
    results: Mapping[tuple[str, int], ShardResult],
) -> list[Job]:
    """The shards that are not finished; their end is what it was when the job began."""
    jobs = []
    for config, epochs in zip(configs, claims, strict=True):
        with contextlib.closing(make_range_store(config)) as store:
            store.connect()
            check_layout(store, config.shards)
            check_registration(config, store)
            until = store.bounds().last
        for shard, epoch in enumerate(epochs):
            result = results.get((config.sink_name, shard))
            if result is None:
                jobs.append(Job(config, shard, epoch, until))
            elif result.outcome.error:
                jobs.append(Job(config, shard, epoch, result.until))
    return jobs


def _divided(jobs: Sequence[Job], shards_per_task: int) -> list[list[Job]]:
    """Tasks, each with shards of one outbox."""
    of: dict[str, list[Job]] = {}
    for job in jobs:
        of.setdefault(job.config.sink_name, []).append(job)
    return [
        its[n : n + shards_per_task]
        for its in of.values()
        for n in range(0, len(its), shards_per_task)
    ]


def _run(
    spark: SparkSession, tasks: Sequence[Sequence[Job]], wrap: SinkWrapper | None
) -> list[Outcome]:
    """What came of each job, in the order in which the tasks have them."""
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_work(tasks, wrap), _COLUMNS)
    found = {(row["task"], row["shard"]): row for row in frame.collect()}
    return [
        Outcome(**{f.name: found[number, job.shard][f.name] for f in fields(Outcome)})
        for number, task in enumerate(tasks)
        for job in task
    ]


def _check(configs: Sequence[ReaperConfig], shards_per_task: int) -> None:
    if shards_per_task < 1:
        raise ConfigurationError(f"shards_per_task = {shards_per_task}: must be at least 1")
    if not configs:
        raise ConfigurationError("no configuration: give at least one")
    seen = set()
    for config in configs:
        if config.mode != "range":
            raise ConfigurationError(
                f"the outbox {config.table} is in mode {config.mode}: the backlog job needs "
                "`mode: range`; rows of mark mode are published by `harvest reap` alone"
            )
        if config.sink_name in seen:
            raise ConfigurationError(
                f"group {config.group} and outbox {config.table} are given twice: leave one out"
            )
        seen.add(config.sink_name)


def _work(tasks: Sequence[Sequence[Job]], wrap: SinkWrapper | None) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            for number in batch.column(0).to_pylist():
                jobs = tasks[number]
                rows = [
                    {"task": number, "shard": job.shard, **asdict(outcome)}
                    for job, outcome in zip(jobs, publish_together(jobs, wrap), strict=True)
                ]
                yield pyarrow.RecordBatch.from_pylist(rows)

    return run


@contextmanager
def _claimed(configs: Sequence[ReaperConfig], wait_s: float | None) -> Iterator[list[list[int]]]:
    """Hold the claims of all shards; give their epochs.

    Released when the block ends well. When it does not, tasks may still be at work for a moment:
    then the claims run out by themselves.
    """
    clients: list[Marshal] = []
    in_order = False
    try:
        epochs = []
        for config in configs:
            interval_ms = max(config.coordination.interval_ms, _INTERVAL_MS)
            marshal = Marshal(
                connection_settings(config.kafka),
                group_id=config.group,
                interval_ms=interval_ms,
                topic=config.coordination.topic,
                create_topics=config.coordination.create_topics,
                close_on_sigterm=False,
            ).start()
            clients.append(marshal)
            timeout_s = _PATIENCE_INTERVALS * interval_ms / 1000 if wait_s is None else wait_s
            try:
                claims = marshal.claim_many(config.shard_units(), timeout_s=timeout_s)
            except ClaimTimeout as error:
                raise _AtWork(
                    f"a harvester of {config.table} is at work: stop it, or let it do the work; "
                    f"--wait SECONDS waits for its end ({error})"
                ) from None
            epochs.append([claim.epoch for claim in claims])
        try:
            yield epochs
            in_order = True
        except HarvestError:
            in_order = True
            raise
    finally:
        for marshal in clients:
            marshal.close(release=in_order)


# --- Progress ---


@contextmanager
def _watched(
    configs: Sequence[ReaperConfig],
    jobs: Sequence[Job],
    on_progress: Callable[[Progress], None] | None,
) -> Iterator[None]:
    if on_progress is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(configs, jobs, on_progress, over), name="backlog-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(
    configs: Sequence[ReaperConfig],
    jobs: Sequence[Job],
    on_progress: Callable[[Progress], None],
    over: threading.Event,
) -> None:
    started = time.perf_counter()
    its = [(config, [job for job in jobs if job.config is config]) for config in configs]
    meters = [_Meter(config, found) for config, found in its if found]
    try:
        for meter in meters:
            meter.begin()
        while not over.wait(_PROGRESS_S):
            rows = sum([meter.rows() for meter in meters])
            total = sum([meter.total_rows for meter in meters])
            on_progress(Progress(rows, total, time.perf_counter() - started))
    except HarvestError:
        return  # it is for people only
    finally:
        for meter in meters:
            meter.close()


class _Meter:
    """How far one outbox is. Methods raise `HarvestError`."""

    def __init__(self, config: ReaperConfig, jobs: Sequence[Job]) -> None:
        self._config = config
        self._until = {job.shard: job.until for job in jobs}
        self._store: RangeStore = make_range_store(config.model_copy(update={"shards": 1}))
        self._starts: dict[int, int] = {}
        self.total_rows = 0

    def begin(self) -> None:
        """Look at where the shards are, and count what is above."""
        first = self._store.bounds().first - 1
        checkpoints = Checkpoints(self._config)
        found = {shard: checkpoints.read(shard) for shard in self._until}
        self._starts = {s: first if p is None else p.last_id for s, p in found.items()}
        low = min(self._starts.values())
        self.total_rows = self._store.backlog(Position(0, 0, 1, low)).rows

    def rows(self) -> int:
        """Rows that are published, about."""
        total = sum([self._until[shard] - start for shard, start in self._starts.items()])
        at = {position.shard: position.last_id for position in self._store.saved()}
        ids = [
            min(max(at.get(shard, start), start), self._until[shard]) - start
            for shard, start in self._starts.items()
        ]
        return self.total_rows * sum(ids) // total if total else 0

    def close(self) -> None:
        """Let go of the database."""
        self._store.close()

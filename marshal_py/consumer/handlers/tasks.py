"""Tasks: messages in the hands of workers, what waits behind them, and what came of them.

Who has messages handled (`Runner`), who runs handlers (`Workers`) and who decides about failures
(`Retries`) meet here, under one lock that is never held while anything waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, Final, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from marshal_py.client.claim import core_of
from marshal_py.consumer.core import ConsumerCore
from marshal_py.consumer.handlers.failing_messages import FailingMessages
from marshal_py.consumer.handlers.histograms import Counts
from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.consumer.handlers.run_stats import RunStats
from marshal_py.consumer.handlers.schedule import Item, Schedule
from marshal_py.consumer.held_partition import HeldPartition, Stage

__all__ = ["NotBegun", "Task", "TaskSource", "Tasks", "Workers"]

ORDINARY: Final = 0.5
"""So much of the buffer is filled without need. The rest is for when all of it has to wait."""


class NotBegun(Exception):
    """The lease had lapsed when the handler was to be called: its messages come again."""


class Task:
    """What a worker was given: messages of one partition, under one claim."""

    __slots__ = ("items", "part", "reported_s", "since_s", "worker")

    def __init__(self, items: list[Item], worker: Any) -> None:
        self.items = items
        self.part: HeldPartition = items[0].part
        self.worker = worker
        self.since_s = time.monotonic()
        self.reported_s = 0.0
        """When it was reported as stuck, as seconds after the start; 0: it was not."""


class TaskSource(Protocol):
    """What workers need of the runner."""

    @property
    def lock(self) -> threading.RLock:
        """Held by who calls `take`."""

    @property
    def is_over(self) -> bool:
        """Whether workers should end."""

    @property
    def is_stopping(self) -> bool:
        """Whether only what is in flight is finished."""

    def take(self, worker: Any) -> Task | None:
        """Return what to run next, None if there is nothing. The caller holds the lock."""

    def given_to_handler(self, task: Task) -> Any:
        """Return what the handler is called with: a message, or a `Batch`; None for nothing.

        Raises `NotBegun`, and what the program's deserializers and filter do: then it `failed`.
        """

    def succeeded(self, task: Task) -> None:
        """The handler returned."""

    def failed(self, task: Task, error: BaseException) -> None:
        """The handler raised. May wait, for a dead letter to be written."""

    def gave_up(self, task: Task) -> None:
        """The handler was interrupted because time was up: its messages are handed back."""

    def crashed(self, error: BaseException) -> None:
        """A worker cannot go on: `run` ends with this error."""


class Workers(Protocol):
    """What runs handlers. `marshal_py.consumer.handlers.workers` has one for each executor."""

    def start(self, source: TaskSource) -> None:
        """Begin to take tasks."""

    def wake(self, count: int) -> None:
        """So many tasks may be there. Called under the source's lock."""

    def stop(self, timeout_s: float) -> bool:
        """End. Returns False if some handler did not return within `timeout_s`."""

    def has_caller(self) -> bool:
        """Whether the caller is one of them."""

    def describe(self, worker: Any) -> tuple[str, str]:
        """Return the name of a worker, and where it is now, as a stack trace or ""."""


class Tasks:
    """The messages that wait and run, of all partitions. Methods, but `stats`, under `lock`."""

    def __init__(self, core: ConsumerCore, options: HandlerOptions, workers: Workers) -> None:
        self.lock: Final = threading.RLock()
        self.has_room: Final = threading.Event()
        """Set when more may be queued, by who finished something."""
        self.running: Final[set[Task]] = set()
        self.schedule: Final = Schedule(
            options.ordering,
            max_count=options.max_buffered,
            max_bytes=options.max_buffered_bytes,
        )
        self.failing: Final = FailingMessages()
        self.taken = 0
        """How many messages workers were given."""
        self._core = core
        self._options = options
        self._workers = workers
        self._durations: dict[str, Counts] = {}
        self._ages: dict[str, Counts] = {}
        self._counts = dict.fromkeys(
            (
                "handled",
                "filtered",
                "failures",
                "retries",
                "dead_lettered",
                "skipped",
                "handed_back",
            ),
            0,
        )

    # Room

    @property
    def is_starving(self) -> bool:
        """Whether some worker has nothing to do, as all that is queued has to wait."""
        schedule = self.schedule
        return schedule.running < self._options.workers and not schedule.is_ready

    @property
    def wants_more(self) -> bool:
        """Whether to fetch more."""
        schedule = self.schedule
        if self._core.delivery.claims_messages:
            # What is claimed and not handed out is lost in a crash: no more than is needed.
            return schedule.count - schedule.running < self._options.workers
        if schedule.has_room(ORDINARY):
            return True
        return self.is_starving and schedule.has_room()

    # From the queue to a worker

    def take(self, worker: Any) -> Task | None:
        """Return what to run next, None if there is nothing."""
        schedule = self.schedule
        while True:
            items = schedule.next(self._options.batch_size or 1)
            if not items:
                return None
            part = items[0].part
            is_paused = part.is_paused and not self._core.delivery.claims_messages
            if part.claim.held and not is_paused and part.stage in (Stage.ACTIVE, Stage.DRAINING):
                task = Task(items, worker)
                self.running.add(task)
                self.taken += len(items)
                return task
            # It is paused, its lease has lapsed, or the claim has ended: the loop sees to it.
            schedule.hold(items[0].partition)
            schedule.put_back(items)

    # What came of it

    def handled(self, task: Task) -> None:
        """The handler has done them, or they are not for it."""
        filtered = sum(item.is_filtered for item in task.items)
        self._counts["filtered"] += filtered
        self._measure(task)
        self._counts["handled"] += len(task.items) - filtered
        for item in task.items:
            if item.attempts:
                self.failing.recovered(item.partition, item.offset)
        self.done(task)

    def done(self, task: Task) -> None:
        """Its messages are done with."""
        self.running.discard(task)
        part = task.part
        self._core.delivery.done(len(task.items), time.monotonic() - task.since_s)
        if not self._core.delivery.claims_messages:
            for item in task.items:
                part.acknowledge(item.offset)  # of a claim that has ended: nobody asks it any more
        self._workers.wake(self.schedule.done(task.items) - 1)
        self._after(part)

    def abandon(self, task: Task) -> None:
        """Its messages will not be done here, nor what follows them in order under its claim.

        Another claim of the partition may have come while the handler worked, or while the dead
        letter was waited for: what is queued of that one goes on.
        """
        self.running.discard(task)
        dropped, ready = self.schedule.abandon(task.items)
        self._workers.wake(ready)
        self.hand_back(task.part, dropped)
        for item in dropped:
            self.failing.recovered(item.partition, item.offset)
        self._after(task.part)

    def split(self, task: Task) -> None:
        """A batch failed: its messages come again, each alone."""
        self.running.discard(task)
        self._counts["retries"] += 1
        self._workers.wake(self.schedule.split(task.items))

    def put_back(self, task: Task) -> None:
        """Its handler was not called, as the lease had lapsed: when that is regained."""
        part = task.part
        if core_of(part.claim).ended.is_set() or part.stage is Stage.RELEASING:
            self.abandon(task)  # nobody would look for it any more
            return
        self.running.discard(task)
        self.schedule.hold(task.items[0].partition)
        self.schedule.put_back(task.items)
        self._after(part)

    def retry(self, task: Task, due_s: float, error: BaseException) -> None:
        """Its only message failed, and comes again at `due_s`."""
        item = task.items[0]
        self.running.discard(task)
        self._counts["retries"] += 1
        self.failing.failing(item.partition, item.offset, error)
        self.schedule.retry(item, due_s)

    def attempt_failed(self, task: Task) -> None:
        """An attempt failed, whatever comes of it."""
        self._counts["failures"] += 1
        self._measure(task)

    def _measure(self, task: Task) -> None:
        """Count how long an attempt took, and how old messages were that came for the first time.

        What was filtered has not come to a handler.
        """
        items = [item for item in task.items if not item.is_filtered]
        if not items:
            return
        topic = items[0].source[0]
        durations = self._durations.get(topic)
        if durations is None:
            durations = self._durations[topic] = Counts()
            self._ages[topic] = Counts()
        ages = self._ages[topic]
        took_s = time.monotonic() - task.since_s
        durations.add(took_s)
        began_s = time.time() - took_s
        for item in items:
            if not item.alone and not item.attempts:
                kind, timestamp_ms = item.payload.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE and timestamp_ms >= 0:  # −1 is none, too
                    ages.add(began_s - timestamp_ms / 1000)

    def given_up(self, item: Item, error: BaseException, *, dead: bool) -> None:
        """A message failed for good: it is a dead letter, or skipped."""
        self._counts["dead_lettered" if dead else "skipped"] += 1
        self.failing.given_up(item.partition, item.offset, error, dead=dead)

    def hand_back(self, part: HeldPartition, items: list[Item]) -> None:
        """They were fetched, and are left to others."""
        if not items:
            return
        self._counts["handed_back"] += len(items)
        part.withdraw(len(items))
        self._core.delivery.drop(len(items))
        self._core.wakeup.wake()

    def _after(self, part: HeldPartition) -> None:
        if part.stage is Stage.DRAINING or part.is_over:
            self._core.wakeup.wake()
        if not self.has_room.is_set() and self.wants_more:
            self.has_room.set()

    # Looking

    def runs_of(self, part: HeldPartition) -> bool:
        """Whether something of `part` runs."""
        return any(task.part is part for task in self.running)

    def set_stuck(self, tasks: Iterable[Task]) -> None:
        """These are all that are stuck now."""
        self.failing.stuck((item.partition, item.offset) for t in tasks for item in t.items[:1])

    def stats(self) -> RunStats:
        """Return what was done so far, and what is going on now. Takes the lock."""
        schedule = self.schedule
        with self.lock:
            return RunStats(
                **self._counts,
                buffered=schedule.count,
                buffered_bytes=schedule.bytes,
                running=schedule.running,
                retrying=schedule.waiting,
                stuck=self.failing.stuck_now,
                durations={topic: each.histogram() for topic, each in self._durations.items()},
                ages={topic: each.histogram() for topic, each in self._ages.items()},
            )

"""`Runner`: the body of `Consumer.run`. Feeds handlers, takes what comes of it, and winds up.

Three kinds of threads meet here, under one lock that is never held while anything waits:

- the *loop* (whichever thread called `run`) fetches, looks after the partitions, and watches;
- *workers* (see `marshal_py.consumer.handlers.workers`) take tasks, run the handler, and settle
them;
- the consumer's *keeper* claims and gives back partitions, and asks whether they are still used.

Nothing here beats hearts: that is the driver's, so no handler, however slow, costs a claim.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from marshal_py.consumer.core import ConsumerCore
from marshal_py.consumer.handlers.dead_letters import DeadLetters
from marshal_py.consumer.handlers.failing_messages import FailingMessages
from marshal_py.consumer.handlers.options import HandlerOptions, Stuck
from marshal_py.consumer.handlers.retries import Failures
from marshal_py.consumer.handlers.schedule import Item, PartitionId, Schedule
from marshal_py.consumer.held_partition import Batch, HeldPartition, Run, Stage
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState

__all__ = ["RunStats", "Runner", "Task", "Workers"]


TICK_S: Final = 0.02
"""The loop looks up so often; a new attempt is late by as much at most."""

ORDINARY: Final = 0.5
"""So much of the buffer is filled without need. The rest is for when all of it has to wait."""

PATIENCE_S: Final = 1.0
"""What is to be given back waits so long, if the drain time allows, for another attempt at messages
that failed: what is done behind them would come twice. A longer backoff is nobody's to wait for."""

OVERHEAD: Final = 256
"""Bytes that a message takes besides what it carries, about."""


@dataclass(frozen=True)
class RunStats:
    """What `Consumer.run` has done so far, and does now."""

    handled: int = 0
    """Messages done by a handler."""
    failures: int = 0
    """Attempts that failed."""
    retries: int = 0
    """Attempts that failed and were followed, or will be, by another."""
    dead_lettered: int = 0
    skipped: int = 0
    handed_back: int = 0
    """Fetched, but not handled: the partition went to somebody else, or `run` was stopped."""
    buffered: int = 0
    """Messages that wait or run now."""
    buffered_bytes: int = 0
    running: int = 0
    """Messages in the hands of handlers now."""
    retrying: int = 0
    """Messages that wait for another attempt now."""
    stuck: int = 0
    """Handlers that have been running for longer than `stuck_after_s` now."""


class Task:
    """What a worker was given: messages of one partition, under one claim."""

    __slots__ = ("items", "part", "since_s", "told_s", "worker")

    def __init__(self, items: list[Item], worker: Any) -> None:
        self.items = items
        self.part: HeldPartition = items[0].part
        self.worker = worker
        self.since_s = time.monotonic()
        self.told_s = 0.0
        """When it was reported as stuck, as seconds after the start; 0: it was not."""


class Workers(Protocol):
    """What runs handlers. `marshal_py.consumer.handlers.workers` has one for each executor."""

    def start(self, runner: Runner) -> None:
        """Begin to take tasks."""

    def wake(self, count: int) -> None:
        """So many tasks may be there. Called under the runner's lock."""

    def stop(self, timeout_s: float) -> bool:
        """End. Returns False if some handler did not return within `timeout_s`."""

    def describe(self, worker: Any) -> tuple[str, str]:
        """Return the name of a worker, and where it is now, as a stack trace or ""."""


class Runner:
    """One call of `Consumer.run`."""

    def __init__(self, core: ConsumerCore, handling: HandlerOptions, workers: Workers) -> None:
        self.handling = handling
        self.lock = threading.RLock()
        self.over = False
        """Workers should end."""
        self._core = core
        self._workers = workers
        self._schedule = Schedule(
            handling.ordering,
            max_count=handling.max_buffered,
            max_bytes=handling.max_buffered_bytes,
        )
        self._parts: dict[PartitionId, HeldPartition] = {}
        """Partitions of which something was queued. The loop's; others read it."""
        self._draining: dict[PartitionId, float] = {}
        """Partitions that are given back → until when what runs is waited for."""
        self._throttled: set[PartitionId] = set()
        self._tasks: set[Task] = set()
        self._troubles = FailingMessages()
        self._stop_by_s = math.inf
        self._stopped_s = math.inf
        """When the first stop was asked for."""
        self._error: BaseException | None = None
        self._dead_letters: DeadLetters | None = None
        self._has_room = threading.Event()
        self._average = 1_000.0
        self._counts = dict.fromkeys(
            ("handled", "failures", "retries", "dead_lettered", "skipped", "handed_back"), 0
        )
        self._failures = Failures(self)

    # The loop

    def run(self) -> None:
        """Feed the workers until stopped, and wind up. Raises what stopped it, if that was bad."""
        self._prepare()
        self._workers.start(self)
        try:
            while not self._should_end():
                self._turn()
        except BaseException as error:  # raised by the program's own signal handler, say
            self._error = self._error or error
            if self.is_stopping:  # already: a second signal, and no more patience
                self._stop_by_s = time.monotonic()
        finally:
            self._wind_up()
        if self._error is not None:
            raise self._error

    def _prepare(self) -> None:
        handling, topics = self.handling, self._core.topics
        if handling.on_failure != "dead_letter":
            return
        letters = {handling.dead_letter_topic_of(topic) for topic in topics.counts}
        for topic in sorted(letters):
            if topics.wants(topic):
                raise ConfigurationError(
                    f"dead_letter_topic: {topic!r} is among the topics that this consumer reads, "
                    "so dead letters would come again for ever; name another, or leave it out of "
                    "`pattern`"
                )
        self._letters().check(letters)

    def _letters(self) -> DeadLetters:
        settings = self._core.marshal.settings
        with self.lock:
            if self._dead_letters is None:
                timeout_s = settings.connect_timeout_ms / 1000
                self._dead_letters = DeadLetters(settings.kafka, timeout_s=timeout_s)
            return self._dead_letters

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """End soon. Takes no lock, so that a signal handler may call it."""
        wait_s = self.handling.drain_timeout_s if drain_timeout_s is None else drain_timeout_s
        now_s = time.monotonic()
        self._stopped_s = min(self._stopped_s, now_s)
        self._stop_by_s = now_s + wait_s

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_by_s < math.inf

    def _should_end(self) -> bool:
        core = self._core
        if self._error is None:
            self._error = core.wakeup.failure or core.marshal.failure
        return self._error is not None or self.is_stopping or core.closing.is_set()

    def _turn(self) -> None:
        self._tend()
        if not self._wants_more():
            self._has_room.clear()
            self._has_room.wait(TICK_S)
            return
        delivery, fetcher = self._core.delivery, self._core.fetcher
        run = delivery.next_run()
        if run is not None:
            self._accept(run)
        elif not delivery.awaits_log and not fetcher.fetch(self._how_many()):
            fetcher.fetch(1, TICK_S)

    def _wants_more(self) -> bool:
        schedule = self._schedule
        with self.lock:
            if self._core.delivery.claims_messages:
                # What is claimed and not handed out is lost in a crash: no more than is needed.
                return schedule.count - schedule.running < self.handling.workers
            if schedule.has_room(ORDINARY):
                return True
            starving = schedule.running < self.handling.workers and not schedule.is_ready
            return starving and schedule.has_room()

    def _how_many(self) -> int:
        schedule, handling = self._schedule, self.handling
        with self.lock:
            room = min(
                handling.max_buffered - schedule.count,
                int((handling.max_buffered_bytes - schedule.bytes) / self._average),
            )
        return max(1, min(room, 1_000))

    def _accept(self, run: Run) -> None:
        """Queue what was fetched (at most once: and claimed)."""
        part = run.part
        part.begin(run)
        run.rest = iter(())
        items = [
            Item(part.key, message.offset(), message, _size(message), part)
            for message in run.messages
        ]
        total = sum(item.size for item in items)
        self._average = max(total / len(items), 0.9 * self._average)
        schedule = self._schedule
        with self.lock:
            if self._parts.get(part.key) is not part:
                self._let_go(part.key)  # what is left from an earlier claim
                self._parts[part.key] = part
            ready = 0
            for item in items:
                ready += schedule.add(item, item.payload.key())
            self._workers.wake(ready)
        part.finish(run)
        self._core.delivery.began()

    # Partitions

    def _tend(self) -> None:
        """Follow what the claims do: hold, go on, give back, let go."""
        now_s = time.monotonic()
        schedule = self._schedule
        with self.lock:
            self._workers.wake(schedule.due(now_s))
            for partition, part in list(self._parts.items()):
                if part.claim.core.ended.is_set() or part.stage is Stage.RELEASING:
                    self._let_go(partition)
                    del self._parts[partition]
                elif part.stage is Stage.DRAINING:
                    self._drain(partition, part, now_s)
                elif schedule.is_held(partition) and part.claim.held:
                    self._workers.wake(schedule.resume(partition))
        self._throttle()
        self._watch(now_s)
        self._publish()

    def _drain(self, partition: PartitionId, part: HeldPartition, now_s: float) -> None:
        """Others should have it. What would leave gaps is finished, while there is time."""
        until_s = self._draining.get(partition)
        if until_s is None:
            until_s = self._draining[partition] = now_s + self.handling.drain_timeout_s
            if not self._core.delivery.claims_messages:  # what is claimed would be lost
                self._hand_back(part, self._schedule.trim(partition, self._retry_by_s(partition)))
        if now_s >= until_s:
            self._hand_back(part, self._schedule.drop(partition))
        elif self._schedule.is_held(partition) and part.claim.held:
            self._workers.wake(self._schedule.resume(partition))

    def _let_go(self, partition: PartitionId) -> None:
        """The claim has ended: nothing more of it is started."""
        self._draining.pop(partition, None)
        self._throttled.discard(partition)
        part = self._parts.get(partition)
        if part is not None:
            self._hand_back(part, self._schedule.drop(partition))
            self._troubles.forget(partition)

    def _hand_back(self, part: HeldPartition, items: list[Item]) -> None:
        if not items:
            return
        self._counts["handed_back"] += len(items)
        part.withdraw(len(items))
        self._core.delivery.drop(len(items))
        self._core.wakeup.wake()

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether `part` should not be given back yet. Asked by the keeper."""
        with self.lock:
            if any(task.part is part for task in self._tasks):
                # One that does not return is not waited for without end.
                until_s = self._draining.get(part.key)
                return until_s is None or time.monotonic() < until_s
            return self._parts.get(part.key) is part and self._schedule.open(part.key) > 0

    def _throttle(self) -> None:
        """Fetch no more of partitions that fill the buffer, or are far ahead of their position."""
        core, schedule = self._core, self._schedule
        with self.lock:
            parts = list(self._parts.items())
            starving = schedule.running < self.handling.workers and not schedule.is_ready
            full = starving and not schedule.has_room(ORDINARY)
            share = ORDINARY / max(1, len(core.fetcher.active))
            filled = {partition: schedule.filled(partition) for partition, _ in parts}
        for partition, part in parts:
            if part.stage is not Stage.ACTIVE:
                continue
            ahead = part.ahead if not core.delivery.claims_messages else 0
            if partition in self._throttled:
                if ahead <= self.handling.max_ahead // 2 and filled[partition] <= share / 2:
                    self._throttled.discard(partition)
                    core.partitions.throttle(part, False)
            elif ahead > self.handling.max_ahead or (
                full and filled[partition] > share and len(core.fetcher.active) > 1
            ):
                self._throttled.add(partition)
                core.partitions.throttle(part, True)

    # Tasks: for the workers

    def take(self, worker: Any) -> Task | None:
        """Return what to run next, None if there is nothing. The caller holds the lock."""
        schedule = self._schedule
        while True:
            items = schedule.next(self.handling.batch_size or 1)
            if not items:
                return None
            if self._may_start(items[0].part):
                task = Task(items, worker)
                self._tasks.add(task)
                return task
            # Its lease has lapsed, or the claim has ended: the loop sees to it.
            schedule.hold(items[0].partition)
            schedule.put_back(items)

    def _may_start(self, part: HeldPartition) -> bool:
        return part.claim.held and part.stage in (Stage.ACTIVE, Stage.DRAINING)

    def given_to_handler(self, task: Task) -> Any:
        """Return what the handler is called with: a message, or a `Batch`."""
        if self._core.deserializers:
            for item in task.items:
                self._deserialize(item)
        if self.handling.batch_size is None:
            return task.items[0].payload
        return Batch([item.payload for item in task.items], task.part.claim)

    def _deserialize(self, item: Item) -> None:
        message = item.payload
        if item.raw is None:
            item.raw = (message.key(), message.value())
        else:  # an attempt before this one has, perhaps in part
            message.set_key(item.raw[0])
            message.set_value(item.raw[1])
        self._core.deserializers.apply(message)

    def succeeded(self, task: Task) -> None:
        """The handler returned."""
        with self.lock:
            self._tasks.discard(task)
            self._counts["handled"] += len(task.items)
            for item in task.items:
                if item.attempts:
                    self._troubles.recovered(item.partition, item.offset)
            self._done(task.items)

    def gave_up(self, task: Task) -> None:
        """The handler was interrupted because time was up: its messages are handed back."""
        with self.lock:
            self._tasks.discard(task)
            self._abandon(task)

    def failed(self, task: Task, error: BaseException) -> None:
        """The handler raised. May wait, for a dead letter to be written."""
        self._failures.failed(task, error)

    def crashed(self, error: BaseException) -> None:
        """A worker cannot go on: `run` ends with this error."""
        self._error = self._error or error

    # Under the lock

    def _done(self, items: list[Item]) -> None:
        part = items[0].part
        if not self._core.delivery.claims_messages:
            for item in items:
                part.acknowledge(item.offset)  # of a claim that has ended: nobody asks it any more
        self._workers.wake(self._schedule.done(items) - 1)
        self._after(part)

    def _abandon(self, task: Task) -> None:
        dropped = self._schedule.abandon(task.items)
        self._hand_back(task.part, dropped)
        for item in dropped:
            self._troubles.recovered(item.partition, item.offset)
        self._after(task.part)

    def _after(self, part: HeldPartition) -> None:
        if part.stage is Stage.DRAINING:
            self._core.wakeup.wake()
        if not self._has_room.is_set() and self._wants_more():
            self._has_room.set()

    def _is_ending(self, task: Task) -> bool:
        """Whether nothing of this task will be tried again here."""
        return (
            self._error is not None
            or self.is_stopping
            or task.part.stage is not Stage.ACTIVE
            or task.part.claim.core.ended.is_set()
        )

    def _may_retry_at(self, task: Task, due_s: float) -> bool:
        """Whether there will be another attempt, at `due_s`."""
        part = task.part
        if part.claim.core.ended.is_set() or part.stage is Stage.RELEASING:
            return False
        return not self._is_ending(task) or due_s <= self._retry_by_s(part.key)

    def _retry_by_s(self, partition: PartitionId) -> float:
        """Until when another attempt is waited for, as the partition is to be given back."""
        now_s = time.monotonic()
        by_s = min(self._stop_by_s, min(self._stopped_s, now_s) + PATIENCE_S)
        drained_by_s = self._draining.get(partition)
        if drained_by_s is not None:
            began_s = drained_by_s - self.handling.drain_timeout_s
            by_s = min(by_s, drained_by_s, began_s + PATIENCE_S)
        return by_s

    # Watching

    def _watch(self, now_s: float) -> None:
        limit_s = self.handling.stuck_after_s
        if limit_s is None:
            return
        with self.lock:
            stuck = [task for task in self._tasks if now_s - task.since_s > limit_s]
            self._troubles.stuck(
                (item.partition, item.offset) for task in stuck for item in task.items[:1]
            )
            news = [
                t for t in stuck if not t.told_s or now_s - t.since_s >= 2 * t.told_s
            ]  # and again each time that it has taken twice as long
        for task in news:
            task.told_s = now_s - task.since_s
            name, stack = self._workers.describe(task.worker)
            report = Stuck([item.payload for item in task.items], task.told_s, name, stack)
            self._core.log.error(
                "%s: %s\n%s",
                self._core.marshal.client_id,
                report,
                stack.rstrip(),
                extra=task.part.log_fields,
            )
            if self.handling.on_stuck is not None:
                try:
                    self.handling.on_stuck(report)
                except Exception:
                    self._core.log.exception("%s: on_stuck raised", self._core.marshal.client_id)

    def _publish(self) -> None:
        """Tell the others, with the claims, of messages that fail: see `claim_metadata`."""
        with self.lock:
            changed = [
                (self._parts.get(partition), metadata)
                for partition, metadata in self._troubles.take_changed()
            ]
        for part, metadata in changed:
            if part is None:
                continue
            if part.holding.state is ClaimState.HELD:
                self._core.partitions.publish(
                    part, msgspec.structs.replace(metadata, cost=part.metadata.cost)
                )
            else:  # its lease has lapsed: when it is regained
                with self.lock:
                    self._troubles.publish_again(part.key)

    def troubles(self) -> dict[PartitionId, ClaimMetadata]:
        """Return what is to be said of the messages that fail, by partition."""
        with self.lock:
            return self._troubles.all()

    def stats(self) -> RunStats:
        """Return what was done so far, and what is going on now."""
        schedule = self._schedule
        with self.lock:
            return RunStats(
                **self._counts,
                buffered=schedule.count,
                buffered_bytes=schedule.bytes,
                running=schedule.running,
                retrying=schedule.waiting,
                stuck=self._troubles.stuck_now,
            )

    # The end

    def _wind_up(self) -> None:
        """Finish what must be finished, hand back the rest, and close the consumer."""
        if not self.is_stopping:
            self.stop()
        self._core.delivery.end()
        try:
            self._finish_what_runs()
        except Exception:
            self._core.log.exception("%s: run winds up in a hurry", self._core.marshal.client_id)
        except BaseException as error:  # a second Ctrl-C: no more patience
            self._stop_by_s = time.monotonic()
            self._error = self._error or error
        with self.lock:
            for partition in list(self._parts):
                self._let_go(partition)
            self.over = True
            self._workers.wake(self.handling.workers)
        left_s = max(0.0, self._stop_by_s - time.monotonic())
        if not self._workers.stop(left_s):
            with self.lock:
                for task in self._tasks:
                    self._core.log.error(
                        "%s: a handler did not return within the drain time; its %d messages from "
                        "%s/%d at offset %d on are handed back",
                        self._core.marshal.client_id,
                        len(task.items),
                        *task.items[0].partition,
                        task.items[0].offset,
                        extra=task.part.log_fields,
                    )
                self._tasks.clear()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _finish_what_runs(self) -> None:
        amo = self._core.delivery.claims_messages
        with self.lock:
            for partition, part in self._parts.items():
                if not amo:
                    self._hand_back(
                        part, self._schedule.trim(partition, self._retry_by_s(partition))
                    )
        while self._core.delivery.owes:
            # Already claimed in the log: deliver them.
            run = self._core.delivery.next_run()
            if run is not None:
                self._accept(run)
            if self._is_late():
                return
        while not self._is_late():
            self._tend()
            with self.lock:
                if not self._schedule.count:
                    return
            self._has_room.clear()
            self._has_room.wait(TICK_S)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._stop_by_s


def _size(message: Any) -> int:
    """Return about how many bytes a message takes."""
    size = OVERHEAD + len(message)
    key = message.key()
    if key is not None:
        size += len(key)
    headers = message.headers()
    if headers:
        size += sum(OVERHEAD + len(name) + len(value or b"") for name, value in headers)
    return size

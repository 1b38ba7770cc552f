"""`Runner`: the body of `Consumer.run`. Feeds handlers, takes what comes of it, and winds up.

Three kinds of threads meet here, under the lock of `Tasks`, never held while anything waits:

- the *loop* (whichever thread called `run`) fetches, looks after the partitions, and watches;
- *workers* (see `marshal_py.consumer.handlers.workers`) take tasks, run the handler, and settle
  them;
- the thread of the consumer's *assignment* claims and gives back partitions, and asks whether they
  are still used.

Nothing here beats hearts: that is the driver's, so no handler, however slow, costs a claim.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from marshal_py.client.claim import core_of
from marshal_py.consumer.core import ConsumerCore
from marshal_py.consumer.deserializers import restore
from marshal_py.consumer.handlers.ending import Ending
from marshal_py.consumer.handlers.options import HandlerOptions
from marshal_py.consumer.handlers.retries import Retries
from marshal_py.consumer.handlers.run_stats import RunStats
from marshal_py.consumer.handlers.schedule import Item, PartitionId
from marshal_py.consumer.handlers.stuck import StuckHandlers
from marshal_py.consumer.handlers.tasks import ORDINARY, NotBegun, Task, Tasks, Workers
from marshal_py.consumer.held_partition import Batch, HeldPartition, Run, Stage
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.claimant import ClaimState

__all__ = ["Runner"]

TICK_S: Final = 0.02
"""The loop looks up so often; a new attempt is late by as much at most."""

OVERHEAD: Final = 256
"""Bytes that a message takes besides what it carries, about."""


class Runner:
    """One call of `Consumer.run`. For workers, a `TaskSource`; for the consumer, `Handlers`."""

    def __init__(self, core: ConsumerCore, options: HandlerOptions, workers: Workers) -> None:
        self.is_over = False
        """Workers should end."""
        self.is_loop = False
        self._thread: int | None = None
        """Which thread is in `run`."""
        self._core = core
        self._options = options
        self._workers = workers
        self._tasks = Tasks(core, options, workers)
        self._ending = Ending(options.drain_timeout_s)
        self._retries = Retries(core, options, self._tasks, self._ending)
        self._stuck = StuckHandlers(self._tasks, workers, options, core.log, core.marshal.client_id)
        self._parts: dict[PartitionId, HeldPartition] = {}
        """Partitions of which something was queued. The loop's; others read it."""
        self._throttled: set[PartitionId] = set()
        self._is_idle = False
        self._average = 1_000.0
        """Bytes of a message, about."""

    @property
    def lock(self) -> threading.RLock:
        """The lock of all tasks."""
        return self._tasks.lock

    # The loop

    def run(self) -> None:
        """Feed the workers until stopped, and wind up. Raises what stopped it, if that was bad."""
        self._thread = threading.get_ident()
        try:
            self._run()
        finally:
            self._thread = None

    def _run(self) -> None:
        self._retries.prepare()
        schedule = self._tasks.schedule
        self._core.delivery.serve(self._options.workers, lambda: schedule.count)
        self._workers.start(self)
        try:
            while not self._should_end():
                self._turn()
        except BaseException as error:  # raised by the program's own signal handler, say
            self._ending.fail(error)
            if self.is_stopping:  # already: a second signal, and no more patience
                self._ending.hurry()
        finally:
            self._wind_up()
        if self._ending.error is not None:
            raise self._ending.error

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """End soon. Takes no lock, so that a signal handler may call it."""
        self._ending.stop(drain_timeout_s)
        self._core.fetcher.interrupt()

    @property
    def is_within(self) -> bool:
        """Whether the caller is a handler, or something that `run` calls. See `Handlers`."""
        return self._thread == threading.get_ident() or self._workers.has_caller()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._ending.is_stopping

    def _should_end(self) -> bool:
        core, ending = self._core, self._ending
        if ending.error is None:
            ending.error = core.wakeup.failure or core.marshal.failure
        return ending.error is not None or self.is_stopping or core.closing.is_set()

    def _turn(self) -> None:
        self._look_after_partitions()
        with self.lock:
            wants_more = self._tasks.wants_more
        if not wants_more:
            self._wait_for_room()
            return
        delivery, fetcher = self._core.delivery, self._core.fetcher
        run = delivery.next_run()
        if run is not None:
            self._accept(run)
        elif delivery.is_full:
            self._wait_for_room()
        elif not delivery.awaits_log:
            wait_s = 0.0
            if self._is_idle:
                wait_s = TICK_S if self._tasks.schedule.count else fetcher.idle_wait_s
            self._is_idle = not fetcher.fetch(self._how_many(), wait_s)

    def _wait_for_room(self) -> None:
        self._tasks.has_room.clear()
        self._tasks.has_room.wait(TICK_S)

    def _how_many(self) -> int:
        schedule, options = self._tasks.schedule, self._options
        with self.lock:
            room = min(
                options.max_buffered - schedule.count,
                int((options.max_buffered_bytes - schedule.bytes) / self._average),
            )
        return max(1, min(room, 1_000))

    def _accept(self, run: Run) -> None:
        """Queue what was fetched (at most once: and claimed)."""
        part = run.part
        if part.range is None:
            self._queue(part, run)
            return
        if not part.first_s:
            self._core.wakeup.wake()  # the next one may be asked for
        with self.lock:  # nothing of it is given back meanwhile
            within = part.within(run)
            if within is not None:
                self._queue(part, within)

    def _queue(self, part: HeldPartition, run: Run) -> None:
        part.begin(run)
        run.be(run.messages, iter(()))
        items = [
            Item(part.key, message.offset(), message, _size(message), part)
            for message in run.messages
        ]
        total = sum(item.size for item in items)
        self._average = max(total / len(items), 0.9 * self._average)
        with self.lock:
            if self._parts.get(part.key) is not part:
                self._let_go(part.key)  # what is left from an earlier claim
                self._parts[part.key] = part
            if not self._options.at_most_once and self._ending.is_ending(part):
                # What a handler failed with may have been handed back since they were fetched.
                self._tasks.hand_back(part, items)
            else:
                ready = 0
                for item in items:
                    ready += self._tasks.schedule.add(item, item.payload.key())
                self._workers.wake(ready)
        part.finish(run)
        self._core.delivery.began()

    # Ranges: see `Work`

    def cut(self, part: HeldPartition, give_back: Callable[[int], None]) -> None:
        """Call `give_back` with the first message that no handler was given."""
        with self.lock:
            if not self._options.at_most_once:
                self._tasks.hand_back(part, self._tasks.schedule.trim(part.key, math.inf))
            give_back(self._next_offset(part))

    def next_offset(self, part: HeldPartition) -> int:
        """Return the first message that no handler was given."""
        with self.lock:
            return self._next_offset(part)

    def _next_offset(self, part: HeldPartition) -> int:
        return max(self._tasks.schedule.started(part.key) + 1, part.position())

    def progress(self) -> object | None:
        """Return how many messages were given to handlers; None while one has nothing to do."""
        with self.lock:
            tasks = self._tasks
            return None if tasks.schedule.running < self._options.workers else tasks.taken

    # Partitions

    def _look_after_partitions(self) -> None:
        """Follow what the claims do: hold, go on, give back, let go."""
        now_s = time.monotonic()
        schedule = self._tasks.schedule
        with self.lock:
            self._workers.wake(schedule.due(now_s))
            for partition, part in list(self._parts.items()):
                if core_of(part.claim).ended.is_set() or part.stage is Stage.RELEASING:
                    self._let_go(partition)
                    del self._parts[partition]
                elif part.stage is Stage.DRAINING:
                    self._drain(partition, part, now_s)
                elif part.is_paused and self.is_stopping and not self._options.at_most_once:
                    self._tasks.hand_back(part, schedule.drop(partition))  # it would never run
                elif schedule.is_held(partition) and part.claim.held and not part.is_paused:
                    self._workers.wake(schedule.resume(partition))
        self._throttle()
        self._stuck.look(now_s)
        self._publish()

    def _drain(self, partition: PartitionId, part: HeldPartition, now_s: float) -> None:
        """Others should have it. What would leave gaps is finished, while there is time."""
        schedule = self._tasks.schedule
        if self._ending.drain(partition, now_s) and not self._options.at_most_once:
            self._trim(partition, part)  # at most once, what is claimed would be lost
        is_paused = part.is_paused and not self._options.at_most_once
        if is_paused or now_s >= self._ending.drain_by_s(partition):
            self._tasks.hand_back(part, schedule.drop(partition))
        elif schedule.is_held(partition) and part.claim.held:
            self._workers.wake(schedule.resume(partition))

    def _trim(self, partition: PartitionId, part: HeldPartition) -> None:
        """Hand back what can be, so that no gaps are left."""
        by_s = self._ending.retry_by_s(partition)
        self._tasks.hand_back(part, self._tasks.schedule.trim(partition, by_s))

    def _let_go(self, partition: PartitionId) -> None:
        """The claim has ended: nothing more of it is started."""
        self._ending.forget(partition)
        self._throttled.discard(partition)
        part = self._parts.get(partition)
        if part is not None:
            self._tasks.hand_back(part, self._tasks.schedule.drop(partition))
            self._tasks.failing.forget(partition)

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether `part` should not be given back yet. Asked by the thread of the assignment."""
        with self.lock:
            # A handler that does not return is not waited for without end, of whatever claim it is.
            if time.monotonic() >= self._ending.drain_by_s(part.key):
                return False
            if self._tasks.runs_of(part):
                return True
            return self._parts.get(part.key) is part and self._tasks.schedule.open(part.key) > 0

    def runs(self, part: HeldPartition) -> bool:
        """Whether a handler works on something of `part`. Asked by the same thread."""
        with self.lock:
            return self._tasks.runs_of(part)

    def _throttle(self) -> None:
        """Fetch no more of partitions that fill the buffer, or are far ahead of their position."""
        core, schedule, options = self._core, self._tasks.schedule, self._options
        with self.lock:
            parts = list(self._parts.items())
            full = self._tasks.is_starving and not schedule.has_room(ORDINARY)
            share = ORDINARY / max(1, len(core.fetcher.active))
            filled = {partition: schedule.filled(partition) for partition, _ in parts}
        for partition, part in parts:
            if part.stage is not Stage.ACTIVE:
                continue
            ahead = 0 if options.at_most_once else part.ahead
            if partition in self._throttled:
                if ahead <= options.max_ahead // 2 and filled[partition] <= share / 2:
                    self._throttled.discard(partition)
                    core.partitions.throttle(part, False)
            elif ahead > options.max_ahead or (
                full and filled[partition] > share and len(core.fetcher.active) > 1
            ):
                self._throttled.add(partition)
                core.partitions.throttle(part, True)

    # For the workers: see `TaskSource`

    def take(self, worker: Any) -> Task | None:
        """Return what to run next, None if there is nothing. The caller holds the lock."""
        return self._tasks.take(worker)

    def given_to_handler(self, task: Task) -> Any:
        """Return what the handler is called with: a message, or a `Batch`; None for nothing."""
        self._core.check_deliveries(task.part)
        if self._core.deserializers:
            for item in task.items:
                self._deserialize(item)
        wanted = self._options.filter
        if wanted is not None:
            for item in task.items:
                item.is_filtered = not wanted(item.payload)
        payloads = [item.payload for item in task.items if not item.is_filtered]
        if payloads and not task.part.claim.held:  # that may have taken its time
            raise NotBegun
        if self._options.batch_size is None or not payloads:
            return payloads[0] if payloads else None
        return Batch(payloads, task.part.claim)

    def _deserialize(self, item: Item) -> None:
        message = item.payload
        if item.raw is None:
            item.raw = (message.key(), message.value())
        else:  # an attempt before this one has
            restore(message, item.raw)
        self._core.deserializers.apply(message)

    def raw_of(self, message: Any) -> tuple[Any, Any] | None:
        """Return key and value, as they came, of a message that a handler has; None: it has not."""
        with self.lock:
            for task in self._tasks.running:
                for item in task.items:
                    if item.payload is message:
                        return item.raw
        return None

    def succeeded(self, task: Task) -> None:
        """The handler returned."""
        with self.lock:
            self._tasks.handled(task)

    def failed(self, task: Task, error: BaseException) -> None:
        """The handler raised, or was not called. May wait, for a dead letter to be written."""
        if isinstance(error, NotBegun):
            with self.lock:
                self._tasks.put_back(task)
            return
        self._retries.failed(task, error)

    def gave_up(self, task: Task) -> None:
        """The handler was interrupted because time was up: its messages are handed back."""
        with self.lock:
            self._tasks.abandon(task)

    def crashed(self, error: BaseException) -> None:
        """A worker cannot go on: `run` ends with this error."""
        self._ending.fail(error)

    # Looking

    def _publish(self) -> None:
        """Tell the others, with the claims, of messages that fail: see `claim_metadata`."""
        failing = self._tasks.failing
        with self.lock:
            changed = [(self._parts.get(key), metadata) for key, metadata in failing.take_changed()]
        for part, metadata in changed:
            if part is None:
                continue
            if part.holding.state is ClaimState.HELD:
                self._core.partitions.publish(part, partial(_with_failures, metadata))
            else:  # its lease has lapsed: when it is regained
                with self.lock:
                    failing.publish_again(part.key)

    def troubles(self) -> dict[PartitionId, ClaimMetadata]:
        """Return what is to be said of the messages that fail, by partition."""
        with self.lock:
            return self._tasks.failing.all()

    def stats(self) -> RunStats:
        """Return what was done so far, and what is going on now."""
        return self._tasks.stats()

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
            self._ending.hurry()
            self._ending.fail(error)
        with self.lock:
            for partition in list(self._parts):
                self._let_go(partition)
            self.is_over = True
            self._workers.wake(self._options.workers)
        if not self._workers.stop(self._ending.left_s):
            with self.lock:
                for task in self._tasks.running:
                    self._core.log.error(
                        "%s: a handler did not return within the drain time; its %d messages from "
                        "%s/%d at offset %d on are handed back",
                        self._core.marshal.client_id,
                        len(task.items),
                        *task.items[0].source,
                        task.items[0].offset,
                        extra=task.part.log_fields,
                    )
                self._tasks.running.clear()
        self._retries.close()

    def _finish_what_runs(self) -> None:
        ending = self._ending
        with self.lock:
            if not self._options.at_most_once:
                for partition, part in self._parts.items():
                    self._trim(partition, part)
        if self._core.delivery.owes:
            for partition in self._throttled:
                self._core.partitions.throttle(self._parts[partition], False)
        while self._core.delivery.owes:
            # Already claimed in the log: deliver them.
            run = self._core.delivery.next_run()
            if run is not None:
                self._accept(run)
            if ending.is_late:
                return
        while not ending.is_late:
            self._look_after_partitions()
            with self.lock:
                if not self._tasks.schedule.count:
                    return
            self._wait_for_room()


def _with_failures(failures: ClaimMetadata, known: ClaimMetadata) -> ClaimMetadata:
    return known.with_failures(failures)


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

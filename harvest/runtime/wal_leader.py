"""A leader in wal mode.

The thread of the leadership itself reads the stream, asks the scheduler and, at least once, hands
rows to the producer: between a commit and its row in Kafka no other thread is waited for. Further
threads open the sink and commit to it, look after the slot and the dead letters, and purge.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harvest.core import wal as w
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import PipelinedSink, Sink
from harvest.core.interfaces.wal_stream import RowDeadLetterStore, WalSource, WalStream
from harvest.core.pacing import Limits
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.errors import CheckpointError, ConfigurationError, DatabaseChanged, HarvestError
from harvest.runtime.action_threads import ActionThread, Handler, InlineActions
from harvest.runtime.dead_letters import DeadLetterWriter
from harvest.runtime.events import LeaderRefreshed
from harvest.runtime.leadership import Leadership
from harvest.runtime.publisher import Publisher, SinkWatch
from harvest.runtime.source_guard import WalGuard

__all__ = ["WalLeader", "WalTools"]

_MERGED_ROWS: Final = 20_000
_RENEW_S: Final = 3600.0
"""A checkpoint is renewed long before Kafka forgets it (`offsets.retention.minutes`)."""
_PURGE_S: Final = 1.0
_PURGE_ANYWAY_S: Final = 60.0
"""Though nothing was published: rows that are set aside stay in the table until then, and one whose
commit waits for a replica is to be seen only after it was published."""
_MAINTAIN_S: Final = 60.0
_KEEP_ALIVE_S: Final = 1.0
_LOOK_S: Final = 1.0
"""The guard is asked; it knows whether it is time."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What the leader has its own thread do."""


class WalLeader:
    """Carries out the actions of a `WalScheduler`. Implements `Leader` and `Input`."""

    def __init__(self, leadership: Leadership, tools: WalTools) -> None:
        self.dead_letters = DeadLetterWriter(leadership, tools.dead_letters, tools.bad_rows)
        atomic = tools.pipeline is None
        settled = self._settled if atomic else self._saved
        self.scheduler = w.WalScheduler(
            leadership.lease.epoch,
            atomic,
            tools.limits,
            BadRowFilter(self.dead_letters.policy),
        )
        self.publisher = Publisher(
            leadership,
            tools.sink,
            w.Send if atomic else w.Save,
            opened=self._opened,
            checkpoint=lambda action: action.position.encode(),
            settled=settled,
            most_rows=_MERGED_ROWS,
        )
        slot: dict[type, Handler] = {
            w.OpenStream: self._open_stream,
            w.AddRows: self.dead_letters.add_rows,
            _Look: self._look,
        }
        inline: dict[type, Handler] = {
            w.Read: self._allow_read,
            w.CloseStream: self._close_stream,
            w.Confirm: self._confirm,
        }
        if not atomic:
            inline[w.Send] = self._send
        self._purging: ActionThread[None] = ActionThread(
            "purge", self._purge, cancel=tools.purger.cancel
        )
        self._maintenance: ActionThread[None] = ActionThread("maintain", self._maintain)
        self._slot: ActionThread[Any] = ActionThread.answering(
            "slot", slot, self._report, cancel=tools.source.cancel
        )
        self.threads: Sequence[ActionThread[Any]] = (
            InlineActions(inline),
            self._slot,
            self.publisher.thread,
            self._purging,
            self._maintenance,
        )
        self._leadership = leadership
        self._tools = tools
        self._pipeline_watch = SinkWatch(leadership)
        self._stream: WalStream | None = None
        self._new_stream: WalStream | None = None
        """Opened by its thread, until the scheduler hears of it."""
        self._may_read: w.Read | None = None
        self._events: deque[w.Event] = deque()
        """What the thread of the leadership has to tell itself."""
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._committed_s = time.monotonic()
        self._purged_s = float("-inf")
        self._purged_at = -1
        self._maintained_s = float("-inf")
        self._looked_s = float("-inf")
        self._told: Failure | None = None
        if tools.guard is not None:
            tools.guard.lease = leadership.lease
        leadership.listen(self)

    # --- Leader ---

    def observe(self, event: Any) -> None:
        """See `Leader.observe`."""
        leadership, stats = self._leadership, self._leadership.stats
        match event:
            case w.ReadDone(chunks):
                rows = sum([len(chunk.rows) for chunk in chunks])
                stats.marked += rows
                if rows and self._tools.guard is not None:
                    self._tools.guard.streamed()
            case w.Settled(sends, failure):
                stats.deliveries += 1
                stats.failed_deliveries += failure is not None
                if failure is None:
                    stats.published += sum([self.scheduler.rows_of(send) for send in sends])
            case w.StreamOpened(position):
                self._close_stream()
                self._stream, self._new_stream = self._new_stream, None
                stats.terms += 1
                epoch = leadership.lease.epoch
                at = format_lsn(position.lsn)
                leadership.log.info("harvesting as leader, epoch %d, from %s", epoch, at)
                leadership.on_event(LeaderRefreshed(epoch, None, leadership.shard))

    def every_tick(self) -> None:
        """See `Leader.every_tick`: save the checkpoint, purge, maintain and look at the database
        now and then."""
        self.publisher.check()
        self._pipeline_watch.check()
        now_s = time.monotonic()
        self._leadership.report(w.Refresh(anyway=now_s > self._committed_s + _RENEW_S))
        published = self._leadership.stats.published
        every_s = _PURGE_S if published != self._purged_at else _PURGE_ANYWAY_S
        is_due = now_s > self._purged_s + every_s
        if is_due and self._purging.wait_idle(0):
            self._purged_s, self._purged_at = now_s, published
            self._purging.put(None)
        is_working = self.scheduler.state is w.State.RUNNING
        is_due = is_working and now_s > self._maintained_s + _MAINTAIN_S
        if self._tools.maintain is not None and is_due:
            self._maintained_s = now_s
            self._maintenance.put(None)
        is_due = is_working and now_s > self._looked_s + _LOOK_S
        if self._tools.guard is not None and is_due and self._slot.wait_idle(0):
            self._looked_s = now_s
            self._slot.put(_Look())

    def due_s(self) -> float | None:
        """See `Leader.due_s`: never."""
        return None

    def close(self) -> None:
        """See `Leader.close`."""
        for stream in (self._stream, self._new_stream):
            if stream is not None:
                stream.close()
        if self._tools.pipeline is not None:
            self._tools.pipeline.close()
        self.publisher.close()

    # --- Input: what the thread of the leadership waits for ---

    def wake(self) -> None:
        """See `Input.wake`."""
        with contextlib.suppress(BlockingIOError):  # it was woken often enough
            self._waker.send(b"\0")

    def wait(self, timeout_s: float | None) -> w.Event | None:
        """See `Input.wait`."""
        if self._events:
            return self._events.popleft()
        try:
            event = self._read_stream()
            if event is not None:
                return event
            watched = [self._woken.fileno()]
            if self._stream is not None and self._may_read is not None:
                watched.append(self._stream.fileno())
        except HarvestError as error:
            self._leadership.failed("the stream broke off: %s", error)
            self._close_stream()
            return w.StreamFailed()
        wait_s = _KEEP_ALIVE_S if timeout_s is None else min(_KEEP_ALIVE_S, timeout_s)
        poll = select.poll()
        for fd in watched:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(wait_s * 1000):
            if fd == self._woken.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
        return None

    def _read_stream(self) -> w.Event | None:
        stream, wanted = self._stream, self._may_read
        if stream is None:
            return None
        stream.keep_alive()
        if wanted is None:
            return None
        self._leadership.wait_for_heartbeat()
        event = stream.read(wanted.limit, wanted.limit_bytes)
        if event is not None:
            self._may_read = None
        return event

    def _allow_read(self, action: w.Read) -> None:
        self._may_read = action

    def _confirm(self, action: w.Confirm) -> None:
        self._committed_s = time.monotonic()
        if self._stream is not None:
            try:
                self._stream.confirm(action.lsn)
            except HarvestError as error:
                self._leadership.failed("the stream broke off: %s", error)
                self._close_stream()
                self._events.append(w.StreamFailed())

    def _close_stream(self, _: object = None) -> None:
        stream, self._stream = self._stream, None
        self._may_read = None
        self._events.clear()  # what it has to tell itself is about this stream, not the next one
        if stream is not None:
            stream.close()

    # --- At least once ---

    def _send(self, action: w.Send) -> None:
        pipeline, leadership = self._tools.pipeline, self._leadership
        assert pipeline is not None  # noqa: S101 - else it is the publisher's

        def settle(failure: Failure | None) -> None:
            if failure is not None and failure is not self._told:
                self._told = failure  # which may be that of several sends
                rows = len(failure.undelivered or action.rows)
                leadership.log.warning("%d rows were not published: %s", rows, failure.reason)
            leadership.report(w.Settled((action.number,), failure))

        self._pipeline_watch.submit(pipeline, action.rows, settle)

    # --- The sink ---

    def _opened(self, found: str | None) -> w.Event:
        if self._tools.pipeline is not None:
            with self._pipeline_watch.calling():
                self._tools.pipeline.open(self._pipeline_watch.may_act)
        waiting = self.dead_letters.waiting_keys()
        return w.Opened(None if found is None else WalPosition.decode(found), waiting)

    def _settled(self, sends: Sequence[w.Send], failure: Failure | None) -> w.Event:
        return w.Settled(tuple([send.number for send in sends]), failure)

    def _saved(self, saves: Sequence[w.Save], failure: Failure | None) -> w.Event:
        return w.Saved(saves[-1].position) if failure is None else w.SaveFailed()

    # --- The slot ---

    def _open_stream(self, action: w.OpenStream) -> w.Event:
        """Raises `CheckpointError` and `ConfigurationError`, which end the process, and
        `DatabaseChanged`, which ends the leadership: to go on would lose rows."""
        leadership = self._leadership
        if not leadership.may_act():
            return w.LeaseLost()
        try:
            self._new_stream, position = self._tools.source.open(
                leadership.lease.epoch, action.position
            )
            if self._tools.guard is not None:
                self._tools.guard.begin()
                leadership.accept_source()
        except (CheckpointError, ConfigurationError):
            raise
        except HarvestError as error:
            leadership.failed("the slot could not be read: %s", error)
            stream, self._new_stream = self._new_stream, None
            if stream is not None:
                stream.close()
            return w.StreamFailed()
        return w.StreamOpened(position)

    def _look(self, _: _Look) -> None:
        guard = self._tools.guard
        try:
            if guard is not None and self._leadership.may_act():
                guard.look()
        except DatabaseChanged:
            raise
        except HarvestError as error:
            self._leadership.log.warning("the database could not be looked at: %s", error)

    def _report(self, event: w.Event | None) -> None:
        if event is not None:
            self._leadership.report(event)

    def _purge(self, _: Sequence[None]) -> None:
        try:
            purged = self._tools.purger.purge(self._published_lsn)
        except HarvestError as error:
            self._leadership.log.warning("published rows could not be deleted: %s", error)
            purged = None
        if purged is None:
            self._purged_at = -1  # again
        else:
            self._leadership.stats.purged += purged

    def _maintain(self, _: Sequence[None]) -> None:
        if self._tools.maintain is None or not self._leadership.may_act():
            return
        try:
            self._tools.maintain(self._published_lsn)
        except HarvestError as error:
            self._leadership.log.warning("the partitions could not be looked after: %s", error)

    def _published_lsn(self) -> int:
        return self.scheduler.purgeable_lsn if self._leadership.may_act() else 0


@dataclass(slots=True)
class WalTools:
    """What a leadership in wal mode works with. Implements `Tools`.

    - `sink`: keeps the checkpoint. Without `pipeline`, rows are published with it, exactly once.
    - `pipeline`: publishes rows at least once.
    - `purger`: another connection to what `source` is.

    Without `dead_letters`, a row that cannot be published stops the harvest.
    """

    source: WalSource
    purger: WalSource
    sink: Sink
    pipeline: PipelinedSink | None = None
    limits: Limits = field(default_factory=Limits)
    dead_letters: RowDeadLetterStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    maintain: Callable[[Callable[[], int]], None] | None = None
    """What is done about partitions once a minute, told how far the log is published; raises
    `HarvestError`."""
    guard: WalGuard | None = None
    """Of `source`."""

    def connect(self) -> None:
        """See `Tools.connect`."""
        self.source.connect()
        self.sink.prepare()
        if self.pipeline is not None:
            self.pipeline.prepare()

    def leader(self, leadership: Leadership) -> WalLeader:
        """See `Tools.leader`."""
        return WalLeader(leadership, self)

    def close(self) -> None:
        """See `Tools.close`."""
        self.sink.close()
        for part in (self.source, self.purger, self.pipeline, self.dead_letters, self.guard):
            if part is not None:
                part.close()

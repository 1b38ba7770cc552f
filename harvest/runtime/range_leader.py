"""A leader in range mode, of one shard.

Its threads ask the table and write dead letters, publish to the sink, save copies of the checkpoint
on a second database connection, and look after partitions.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from harvest.core import range as r
from harvest.core.dead_letters import BadRowFilter, BadRowPolicy
from harvest.core.failure import Failure
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.range_store import Bounds, RangeStore, Window
from harvest.core.interfaces.sink import Sink
from harvest.core.pacing import Limits
from harvest.core.range_checkpoint import Position
from harvest.core.row import Row
from harvest.errors import CheckpointError, ConfigurationError, DatabaseChanged, HarvestError
from harvest.runtime.action_threads import ActionThread
from harvest.runtime.dead_letters import DeadLetterWriter
from harvest.runtime.events import LeaderRefreshed
from harvest.runtime.leadership import Leadership
from harvest.runtime.publisher import Publisher
from harvest.runtime.source_guard import SourceGuard

__all__ = ["RangeLeader", "RangeTools", "check_layout"]

_MERGED_ROWS: Final = 20_000
_REFRESH_S: Final = 2.0
"""How long a checkpoint without rows may wait."""
_RENEW_S: Final = 3600.0
"""A checkpoint is renewed long before Kafka forgets it (`offsets.retention.minutes`)."""
_SAVE_S: Final = 1.0
_SAVE_AGAIN_S: Final = 10.0
"""So much later, if that failed: the log would say so every second."""
_MAINTAIN_S: Final = 60.0


class RangeLeader:
    """Carries out the actions of a `RangeScheduler`. Implements `Leader`."""

    def __init__(self, leadership: Leadership, tools: RangeTools) -> None:
        limits, shard = tools.limits, tools.shard
        self.dead_letters = DeadLetterWriter(leadership, tools.dead_letters, tools.bad_rows)
        self.scheduler = r.RangeScheduler(
            leadership.lease.epoch,
            shard,
            tools.shards,
            limits,
            row_filter=BadRowFilter(self.dead_letters.policy),
        )
        self.publisher = Publisher(
            leadership,
            tools.sink,
            r.Send,
            opened=self._opened,
            checkpoint=self._checkpoint,
            settled=self._settled,
            most_rows=_MERGED_ROWS,
        )
        questions = (r.CheckTable, r.Read, r.AskHolders, r.Lookup, r.Fetch, r.AddDeadLetters)
        table: ActionThread[r.Action] = ActionThread(
            "table", self._ask, questions, cancel=tools.reader.cancel
        )
        self._saving: ActionThread[Position] = ActionThread(
            "save", self._save, cancel=tools.saver.cancel
        )
        self._maintenance: ActionThread[None] = ActionThread("maintain", self._maintain)
        self.threads: Sequence[ActionThread[Any]] = (
            table,
            self.publisher.thread,
            self._saving,
            self._maintenance,
        )
        self._leadership = leadership
        self._tools = tools
        if tools.guard is not None:
            tools.guard.lease = leadership.lease
        self._found: Position | None = None
        """What the sink was opened with."""
        self._committed: Position | None = None
        self._committed_s = 0.0
        self._refreshed_s = 0.0
        self._saved: Position | None = None
        self._saved_s = 0.0
        self._maintained_s = float("-inf")
        self._was_crowded = False

    # --- Leader ---

    def observe(self, event: Any) -> None:
        """See `Leader.observe`."""
        leadership, scheduler, stats = self._leadership, self.scheduler, self._leadership.stats
        match event:
            case r.ReadDone(window):
                stats.marked += len(window.rows)
            case r.Fetched(rows):
                stats.marked += len(rows)
                stats.late += len(rows)
            case r.Settled(_, failure):
                stats.deliveries += 1
                stats.failed_deliveries += failure is not None
            case r.TableChecked():
                stats.terms += 1
                epoch, shard = leadership.lease.epoch, scheduler.shard
                leadership.log.info("harvesting as leader of shard %d, epoch %d", shard, epoch)
                leadership.on_event(LeaderRefreshed(epoch, None, shard))
        stats.gaps = scheduler.open_gaps
        stats.dead_ids = scheduler.gaps.dead_ids
        if scheduler.crowded != self._was_crowded:
            self._was_crowded = scheduler.crowded
            self._tell_crowded()

    def every_tick(self) -> None:
        """See `Leader.every_tick`: commit, save and maintain now and then."""
        self.publisher.check()
        now_s = time.monotonic()
        if now_s > self._refreshed_s + _REFRESH_S:
            self._refreshed_s = now_s
            self._leadership.report(r.Refresh(anyway=now_s > self._committed_s + _RENEW_S))
        committed = self._committed
        if (
            committed is not None
            and committed is not self._saved
            and self.scheduler.state in (r.State.RUNNING, r.State.STOPPING)
            and now_s > self._saved_s + _SAVE_S
        ):
            self._saved, self._saved_s = committed, now_s
            self._saving.put(committed)
        # Only of the database that it was: in another one, what is below the position may be other
        # rows, which nobody has published.
        is_working = self.scheduler.state is r.State.RUNNING
        is_due = is_working and now_s > self._maintained_s + _MAINTAIN_S
        if self._tools.maintain is not None and is_due:
            self._maintained_s = now_s
            self._maintenance.put(None)

    def due_s(self) -> float | None:
        """See `Leader.due_s`: never."""
        return None

    def close(self) -> None:
        """See `Leader.close`."""
        self.publisher.close()

    # --- Questions to the table ---

    def _ask(self, actions: Sequence[r.Action]) -> None:
        for action in actions:
            try:
                event = self._asked(action)
            except (CheckpointError, ConfigurationError):
                raise
            except HarvestError as error:
                self._leadership.failed("the outbox could not be read: %s", error)
                event = r.AskFailed()
            self._leadership.report(event)

    def _asked(self, action: r.Action) -> r.Event:
        tools = self._tools
        match action:
            case r.Read(after, limit, delay_ms):
                return self._read(after, limit, delay_ms)
            case r.AskHolders():
                return r.HoldersSeen(tools.reader.holders())
            case r.Lookup(ranges):
                return r.Found(tools.reader.lookup(ranges))
            case r.Fetch(ids):
                rows = tools.reader.fetch(ids)
                if tools.guard is not None:
                    tools.guard.saw(tools.reader)
                return r.Fetched(rows)
            case r.CheckTable(position):
                return self._check_table(position)
            case r.AddDeadLetters():
                return self.dead_letters.add(action)
        raise AssertionError(action)

    def _read(self, after: int, limit: int, delay_ms: int) -> r.ReadDone:
        tools, deliveries = self._tools, self.publisher.thread
        notified_delay_ms = tools.limits.notified_poll_interval_ms
        if not self._leadership.wait_for_rows(delay_ms, notified_delay_ms, deliveries):
            return r.ReadDone(Window((), after))
        self._look()
        window = tools.reader.read(after, limit)
        if window.rows and tools.guard is not None:
            last = window.rows[-1]
            known = self._known_by(last[0], last)
            tools.guard.saw(tools.reader, None if known is None else (last[0], known))
        return r.ReadDone(window)

    def _check_table(self, position: Position | None) -> r.Event:
        """Whether table, configuration and checkpoint belong together.

        Raises `ConfigurationError` and `CheckpointError`, which end the process: to go on would
        lose rows or publish them twice.
        """
        scheduler, reader, guard = self.scheduler, self._tools.reader, self._tools.guard
        if guard is not None:
            found = self._found
            guard.begin((0, 0) if found is None else (found.timeline, found.log))
            self._check_row()
            self._leadership.accept_source()
        check_layout(reader, scheduler.shards)
        bounds = reader.bounds()
        if position is None:
            copies = [copy for copy in reader.saved() if copy.shard == scheduler.shard]
            if copies:
                raise CheckpointError(
                    f"Kafka has no checkpoint of shard {scheduler.shard}, and the database has a "
                    f"copy of one at id {copies[0].last_id}: is it another Kafka cluster, another "
                    "group, or have the offsets expired? `harvest checkpoint restore` starts from "
                    "the copy (what was published after it is published again)"
                )
        else:
            _check_bounds(position, bounds)
        return r.TableChecked(bounds)

    def _look(self) -> None:
        """Now and then: is it still the same database, and not behind the position?"""
        tools = self._tools
        if tools.guard is not None and tools.guard.look():
            _check_bounds(self.scheduler.position, tools.reader.bounds())
            self._check_row()

    def _check_row(self) -> None:
        """Whether a row that was read is still that row, if it is there: else ids came again."""
        tools = self._tools
        if tools.guard is None:
            return
        for row_id, known in tools.guard.rows:
            now = self._known_by(row_id)
            if now is not None and now != known:
                raise DatabaseChanged(
                    f"the row with id {row_id} is another one than was read: ids were given again, "
                    "and rows below the position were not published; `harvest checkpoint reset` "
                    "starts from the first row"
                )
        tools.guard.rows_fit()

    def _known_by(self, row_id: int, row: Row | None = None) -> str | None:
        """By what a row is known again; None if it is not there."""
        tools = self._tools
        if tools.message_of is not None:
            return tools.message_of(row_id)
        if row is None:
            row = next(iter(tools.reader.fetch([(row_id, row_id)])), None)
        return None if row is None else _checksum(row)

    # --- The sink ---

    def _opened(self, found: str | None) -> r.Event:
        position = self._found = None if found is None else Position.decode(found)
        scheduler = self.scheduler
        if position is not None and position.shards != scheduler.shards:
            raise CheckpointError(
                f"the checkpoint of shard {scheduler.shard} is one of {position.shards} shards, "
                f"and the configuration has {scheduler.shards}: a change was interrupted; run "
                f"`harvest shards {position.shards}` again"
            )
        waiting = self.dead_letters.waiting_keys()
        self._committed, self._committed_s = position, time.monotonic()
        return r.Opened(position, waiting)

    def _checkpoint(self, send: r.Send) -> str:
        position = send.position
        if self._tools.guard is not None:
            timeline, log = self._tools.guard.log_position
            position = replace(position, timeline=timeline, log=log)
        return position.encode()

    def _settled(self, sends: Sequence[r.Send], failure: Failure | None) -> r.Event:
        position = sends[-1].position
        if failure is None:
            self._leadership.stats.published += sum([len(send.rows) for send in sends])
            self._committed, self._committed_s = position, time.monotonic()
        return r.Settled(tuple([send.number for send in sends]), failure)

    # --- What is done now and then ---

    def _save(self, positions: Sequence[Position]) -> None:
        guard, saver = self._tools.guard, self._tools.saver
        try:
            # A database that went back keeps the copy that went back with it: it is the way out.
            if guard is None or guard.fits(saver):
                saver.save(positions[-1])
        except HarvestError as error:
            said = "the copy of the checkpoint could not be written: %s"
            self._leadership.log.warning(said, error)
            self._saved, self._saved_s = None, self._saved_s + _SAVE_AGAIN_S

    def _maintain(self, _: Sequence[None]) -> None:
        if self._tools.maintain is None or not self._leadership.may_act():
            return
        try:
            self._tools.maintain()
        except HarvestError as error:
            self._leadership.log.warning("the partitions could not be looked after: %s", error)

    def _tell_crowded(self) -> None:
        log = self._leadership.log
        if self._was_crowded:
            log.warning(
                "the position stands still at id %d: %d gaps are open, more than a checkpoint "
                "holds; what transaction inserts into the outbox for so long, or is prepared and "
                "forgotten? Late rows are still published",
                self.scheduler.last_id,
                self.scheduler.open_gaps,
            )
        else:
            log.info("the position moves again, from id %d", self.scheduler.last_id)


def _checksum(row: Row) -> str:
    return f"{zlib.crc32(repr((row[1], row[2], row[3])).encode()):08x}"


def _check_bounds(position: Position, bounds: Bounds) -> None:
    problem = bounds.problem(position)
    if problem is not None:
        raise DatabaseChanged(problem)


def check_layout(store: RangeStore, shards: int) -> None:
    """Raises `ConfigurationError` if the outbox is harvested in another number of shards."""
    found = store.layout()
    if found != shards:
        raise ConfigurationError(
            f"shards is {shards}, and the outbox is harvested in {found}: rows would change their "
            f"shard; write shards: {found}, or run `harvest shards {shards}` while no harvester "
            "runs"
        )


@dataclass(slots=True)
class RangeTools:
    """Two stores of one shard, its sink, and the table of dead letters. Implements `Tools`.

    Without `dead_letters`, a row that cannot be published stops the harvest.
    """

    reader: RangeStore
    saver: RangeStore
    sink: Sink
    limits: Limits = field(default_factory=Limits)
    shard: int = 0
    shards: int = 1
    maintain: Callable[[], None] | None = None
    """What is done about partitions once a minute; raises `HarvestError`."""
    dead_letters: DeadLetterStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    guard: SourceGuard | None = None
    message_of: Callable[[int], str | None] | None = None
    """With two databases, the message of an id of the primary; None if it is not there."""

    def connect(self) -> None:
        """See `Tools.connect`."""
        self.reader.connect()
        self.saver.connect()
        self.sink.prepare()

    def leader(self, leadership: Leadership) -> RangeLeader:
        """See `Tools.leader`."""
        return RangeLeader(leadership, self)

    def close(self) -> None:
        """See `Tools.close`."""
        self.sink.close()
        self.reader.close()
        self.saver.close()
        if self.guard is not None:
            self.guard.close()
        if self.dead_letters is not None:
            self.dead_letters.close()

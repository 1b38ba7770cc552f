"""A leadership in range mode, of one shard.

The lanes are questions to the table, the sink, and copies of the checkpoint on a second database
connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harvest.core import range as r
from harvest.core.dead_letters import BadRowPolicy
from harvest.core.interfaces.dead_letter_store import DeadLetterStore
from harvest.core.interfaces.range_store import RangeStore, Window
from harvest.core.interfaces.sink import Sink
from harvest.core.pacing import Limits
from harvest.core.range_checkpoint import Position
from harvest.errors import CheckpointError, ConfigurationError, HarvestError
from harvest.runtime.events import Event, LeaderRefreshed, Stats
from harvest.runtime.leadership import Leader, Work, merged
from harvest.runtime.lease import Lease
from harvest.runtime.wake import Bell
from harvest.sinks.dead_letter_sink import DeadLetterSink

__all__ = ["RangeLeader", "RangeTools", "check_layout"]

_MERGED_ROWS: Final = 20_000
_REFRESH_S: Final = 2.0
"""How long a checkpoint without rows may wait."""
_RENEW_S: Final = 3600.0
"""A checkpoint is renewed long before Kafka forgets it (`offsets.retention.minutes`)."""
_SAVE_S: Final = 1.0
_KEEP_S: Final = 60.0

_LANES: Final[dict[type[r.Action], str]] = {
    r.Look: "table",
    r.Read: "table",
    r.AskHolders: "table",
    r.Lookup: "table",
    r.Fetch: "table",
    r.Open: "sink",
    r.Send: "sink",
}


class RangeLeader(Leader[r.RangeScheduler]):
    """A leadership in range mode; see `Leader`. `reader` and `saver` are stores of one shard.

    With `until` it ends by itself, once every row up to that id is published.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        reader: RangeStore,
        saver: RangeStore,
        sink: Sink,
        limits: Limits,
        stats: Stats,
        on_event: Callable[[Event], None],
        shard: int = 0,
        shards: int = 1,
        bell: Bell | None = None,
        drain_timeout_s: float = 10.0,
        keep: Callable[[], None] | None = None,
        until: int | None = None,
    ) -> None:
        scheduler = r.RangeScheduler(lease.epoch, shard, shards, limits)
        super().__init__(
            lease,
            scheduler,
            sink,
            drain_timeout_s,
            bell=bell,
            notified_poll_ms=limits.notified_poll_interval_ms,
            place={"partition": shard},
        )
        self._reader = reader
        self._saver = saver
        self._stats = stats
        self._on_event = on_event
        self._committed: Position | None = None
        self._committed_s = 0.0
        self._refreshed_s = 0.0
        self._saved: Position | None = None
        self._saved_s = 0.0
        self._was_crowded = False
        self._keep = keep
        """What is done about partitions once a minute; raises `HarvestError`."""
        self._kept_s = float("-inf")
        self._until = until

    def _works(self) -> Mapping[str, Work]:
        return {
            "table": self._table_work,
            "sink": self._sink_work,
            "save": self._save_work,
            "keep": self._keep_work,
        }

    def _lane_of(self, action: r.Action) -> str:
        return _LANES[type(action)]

    def _break_off(self, lane: str) -> None:
        if lane in ("table", "save"):
            (self._reader if lane == "table" else self._saver).cancel()

    def _in_flight(self) -> int:
        return self._scheduler.in_flight_records

    # --- The lanes ---

    def _table_work(self, actions: Sequence[r.Action]) -> None:
        for action in actions:
            try:
                self._events.put(self._asked(action))
            except (CheckpointError, ConfigurationError):
                raise
            except HarvestError as error:
                self._log.warning("the outbox could not be read: %s", error)
                self._events.put(r.AskFailed())

    def _asked(self, action: r.Action) -> r.Event:
        match action:
            case r.Read(after, limit, delay_ms):
                if not self._wait_for_rows(delay_ms):
                    return r.ReadDone(Window((), after))
                window = self._reader.read(after, limit)
                return r.ReadDone(window if self._until is None else window.upto(self._until))
            case r.AskHolders():
                return r.HoldersSeen(self._reader.holders())
            case r.Lookup(ranges):
                return r.Found(self._reader.lookup(ranges))
            case r.Fetch(ids):
                return r.Fetched(self._reader.fetch(ids))
            case r.Look(position):
                return self._looked(position)
        raise AssertionError(action)

    def _looked(self, position: Position | None) -> r.Event:
        """Whether table, configuration and checkpoint belong together.

        Raises `ConfigurationError` and `CheckpointError`, which end the process: to go on would
        lose rows or publish them twice.
        """
        scheduler = self._scheduler
        check_layout(self._reader, scheduler.shards)
        bounds = self._reader.bounds()
        if position is None:
            copies = [copy for copy in self._reader.saved() if copy.shard == scheduler.shard]
            if copies:
                raise CheckpointError(
                    f"Kafka has no checkpoint of shard {scheduler.shard}, and the database has a "
                    f"copy of one at id {copies[0].last_id}: is it another Kafka cluster, another "
                    "group, or have the offsets expired? `harvest checkpoint restore` starts from "
                    "the copy (what was published after it is published again)"
                )
        elif position.last_id > bounds.last:
            raise CheckpointError(
                f"the checkpoint is at id {position.last_id}, and the table has drawn ids up to "
                f"{bounds.last} only: was the table made anew, or an old backup restored? New rows "
                "would be skipped; `harvest checkpoint reset` starts from the first row"
            )
        return r.Looked(bounds)

    def _sink_work(self, actions: Sequence[r.Action]) -> None:
        for sends in merged(actions, _MERGED_ROWS):
            if isinstance(sends, r.Open):
                self._events.put(self._open(sends))
                continue
            rows = sends[0].rows
            if len(sends) > 1:
                rows = [row for send in sends for row in send.rows]
            position = sends[-1].position
            failure = self._sink.deliver(rows, position.encode())
            if failure is not None:
                self._log.warning("%d rows were not published: %s", len(rows), failure.reason)
            else:
                self._stats.published += len(rows)
                self._committed, self._committed_s = position, time.monotonic()
            self._events.put(r.Settled(tuple([send.number for send in sends]), failure))

    def _open(self, action: r.Open) -> r.Event:
        self._hurry.wait(action.delay_ms / 1000)
        if not self._may_act():
            return r.LeaseLost()
        try:
            found = self._sink.open(self._may_act)
            position = None if found is None else Position.decode(found)
        except CheckpointError:
            raise
        except HarvestError as error:
            self._log.warning("the sink could not be opened: %s", error)
            return r.OpenFailed()
        scheduler = self._scheduler
        if position is not None and position.shards != scheduler.shards:
            raise CheckpointError(
                f"the checkpoint of shard {scheduler.shard} is one of {position.shards} shards, "
                f"and the configuration has {scheduler.shards}: a change was interrupted; run "
                f"`harvest shards {position.shards}` again"
            )
        self._committed, self._committed_s = position, time.monotonic()
        return r.Opened(position)

    def _save_work(self, actions: Sequence[Position]) -> None:
        position = actions[-1]
        try:
            self._saver.save(position)
        except HarvestError as error:
            self._log.warning("the copy of the checkpoint could not be written: %s", error)

    def _keep_work(self, actions: Sequence[object]) -> None:
        del actions
        if self._keep is None or not self._may_act():
            return
        try:
            self._keep()
        except HarvestError as error:
            self._log.warning("the partitions could not be looked after: %s", error)

    # --- Telling, and what is done now and then ---

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s > self._refreshed_s + _REFRESH_S:
            self._refreshed_s = now_s
            self._events.put(r.Refresh(anyway=now_s > self._committed_s + _RENEW_S))
        committed = self._committed
        if (
            committed is not None
            and committed is not self._saved
            and now_s > self._saved_s + _SAVE_S
        ):
            self._saved, self._saved_s = committed, now_s
            self._put("save", committed)
        if self._keep is not None and now_s > self._kept_s + _KEEP_S:
            self._kept_s = now_s
            self._put("keep", True)

    def _count(self, event: Any) -> None:
        scheduler, stats = self._scheduler, self._stats
        match event:
            case r.ReadDone(window):
                stats.marked += len(window.rows)
                if self._until is not None:
                    self._end_if_done(window)
            case r.Fetched(rows):
                stats.marked += len(rows)
                stats.late += len(rows)
            case r.Settled(_, failure):
                stats.deliveries += 1
                stats.failed_deliveries += failure is not None
            case r.Looked():
                stats.terms += 1
                epoch = self._lease.epoch
                self._log.info("harvesting as leader of shard %d, epoch %d", scheduler.shard, epoch)
                self._on_event(LeaderRefreshed(epoch, None, scheduler.shard))
        stats.gaps = scheduler.open_gaps
        stats.dead_ids = scheduler.gaps.dead_ids
        if scheduler.crowded != self._was_crowded:
            self._was_crowded = scheduler.crowded
            self._tell_crowded()

    def _end_if_done(self, window: Window) -> None:
        scheduler = self._scheduler
        nothing_new = window.last_id <= scheduler.last_id
        if nothing_new and scheduler.running and not scheduler.in_flight_records:
            self._events.put(r.Refresh())  # it may have passed ids that are no rows of this shard
            self.stop()

    def _tell_crowded(self) -> None:
        if self._was_crowded:
            self._log.warning(
                "the position stands still at id %d: %d gaps are open, more than a checkpoint "
                "holds; what transaction inserts into the outbox for so long, or is prepared and "
                "forgotten? Late rows are still published",
                self._scheduler.last_id,
                self._scheduler.open_gaps,
            )
        else:
            self._log.info("the position moves again, from id %d", self._scheduler.last_id)


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
    """Two stores of one shard, its sink, and the table of rows set aside. Implements `Tools`."""

    reader: RangeStore
    saver: RangeStore
    sink: Sink
    limits: Limits = field(default_factory=Limits)
    shard: int = 0
    shards: int = 1
    keep: Callable[[], None] | None = None
    dead_letters: DeadLetterStore | None = None
    bad_rows: BadRowPolicy = field(default_factory=BadRowPolicy)
    until: int | None = None

    def connect(self) -> None:
        """See `Tools.connect`."""
        self.reader.connect()
        self.saver.connect()
        self.sink.prepare()

    def leader(
        self,
        lease: Lease,
        *,
        stats: Stats,
        on_event: Callable[[Event], None],
        bell: Bell,
        drain_timeout_s: float,
    ) -> RangeLeader:
        """See `Tools.leader`."""
        sink = self.sink
        if self.dead_letters is not None:
            sink = DeadLetterSink(sink, self.dead_letters, self.bad_rows, stats)
        return RangeLeader(
            lease,
            reader=self.reader,
            saver=self.saver,
            sink=sink,
            limits=self.limits,
            stats=stats,
            on_event=on_event,
            shard=self.shard,
            shards=self.shards,
            bell=bell,
            drain_timeout_s=drain_timeout_s,
            keep=self.keep,
            until=self.until,
        )

    def close(self) -> None:
        """See `Tools.close`."""
        self.sink.close()
        self.reader.close()
        self.saver.close()
        if self.dead_letters is not None:
            self.dead_letters.close()

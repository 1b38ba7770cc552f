"""What the page shows, kept up to date from what the log brings. No I/O, no clock of its own.

`log_follower.LogFollower` tells it each record that was folded with its events, the ends of topics,
and the time. It keeps the grid, the claims of late, the activity stream and the alerts.

Liveness is judged as specs/PROTOCOL.md §5.1 has it, by how long this observer has seen nothing that
renewed the cell; of cells that nothing renewed since it began to watch, by the broker's timestamps.
A cell is looked at again when its liveness could next change, not at every tick. One quarter of an
interval is granted before "fresh" becomes "unknown": heartbeats come once in an interval, and a
page that blinks whenever one takes its time would hide what matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from marshal_py.admin.books import seen_as, shown_of
from marshal_py.admin.event_text import ROUTINE, as_text, cell_text, without_epoch
from marshal_py.admin.formatting import count
from marshal_py.admin.sharing import slots_of
from marshal_py.admin.world_summary import wanted_topics
from marshal_py.dashboard.alerts import Alerts, Severity
from marshal_py.dashboard.cell_grid import FRESH, STALE, UNKNOWN, CellGrid, GridRow
from marshal_py.dashboard.groups import groups_document, leaders_document, members_document
from marshal_py.dashboard.lag import Ends, Lags
from marshal_py.dashboard.recent_claims import RecentClaims
from marshal_py.protocol import events as ev
from marshal_py.protocol.history.anomalies import MEANING
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.text_history import text_history
from marshal_py.protocol.rationalizer import Cell, CellKey
from marshal_py.protocol.slots import BY_PARTITIONS, agreement_of, slot_of, source_of
from marshal_py.protocol.text.rationalizer import TextWorld
from marshal_py.protocol.world import LEADER_PREFIX, MS, Observer, World

__all__ = ["ActivityLine", "LiveState"]

ACTIVITY: Final = 10_000
"""Events that are kept for the stream."""

SENT_AT_ONCE: Final = 400
"""Events that go to the pages in one delta; of more, the latest."""

SENT_AT_FIRST: Final = 2_000
"""Events that a page gets when it comes."""

TICK_NS: Final = 250 * MS
GRACE: Final = 4
"""A quarter of an interval, after which a holder that is late counts as unknown."""

MANY_CLIENTS: Final = 5_000
MANY_ENDED: Final = 1_000

_AGAIN_MS: Final = 600_000
"""An anomaly counts as over when it has not come again for so long."""

_CELL_EVENTS: Final = (ev.Claimed, ev.Released, ev.PositionSet, ev.MessagesClaimed)
_HIGH: Final = {
    "duplicate_client_id",
    "early_takeover",
    "foreign_sender",
    "snapshot_differs",
    "impossible_epoch",
    "log_hole",
}


class ActivityLine(NamedTuple):
    """One line of the activity stream; put into words only when somebody reads it."""

    number: int
    coordinator: int
    at_ms: int
    event: ev.Event

    @property
    def kind(self) -> str:
        """The event's name; of claims, those of cells that were held have names of their own."""
        event = self.event
        if isinstance(event, ev.Claimed) and event.previous_holder is not None:
            return "Resumed" if event.previous_holder == event.client_id else "TakenOver"
        return type(event).__name__

    def document(self) -> dict[str, Any]:
        """Return the line as the page reads it."""
        event, kind = self.event, self.kind
        text = as_text(event)
        if isinstance(event, ev.Claimed):
            text = f"claimed {cell_text(event.topic, event.partition)} by {event.client_id}"
            if kind == "TakenOver":
                text += f" from {event.previous_holder}"
        return {
            "n": self.number,
            "at": self.at_ms,
            "kind": kind,
            "text": text,
            "group": getattr(event, "group_id", None),
            "topic": getattr(event, "topic", None),
            "partition": getattr(event, "partition", None),
            "client": getattr(event, "client_id", None),
            "where": f"{self.coordinator}@{event.offset}",
        }


class LiveState:
    """The state behind the page. For one thread at a time; the follower guards it with a lock."""

    def __init__(self, world: World, observers: Sequence[Observer]) -> None:
        self.world = world
        self.observers = observers
        self.is_text = isinstance(world, TextWorld)
        """Whether the log is of version 1: then there are no epochs, no members, no snapshots."""
        new_history: Any = text_history if self.is_text else PartitionHistory
        self.histories: list[PartitionHistory] = [
            new_history(state.partition, world.partitions, state=state, sample_ms=2**40)
            for state in world.states
        ]
        self.grid = CellGrid()
        self.claims = RecentClaims()
        self.alerts = Alerts()
        self.activity: list[ActivityLine] = []
        """The latest `ACTIVITY` lines, and up to as many again."""
        self.lags = Lags(world, self.alerts)
        self.live_since_ns: int | None = None
        """This observer's clock when it had caught up; None: it still reads the past."""
        self.contact_ns: int | None = None
        """The last moment at which the brokers were seen to answer; None: it was not asked."""
        self.contact_since_ns: int | None = None
        """When they last answered again after they had not; None: they always have."""
        self.live_since_ms = 0
        self.newest_ms = 0
        """The latest broker timestamp."""
        self.first_ms = 0
        """The broker's timestamp of the first record that was read; 0: there was none."""
        self._sequence = 0
        self._unsent: list[ActivityLine] = []
        self._due: dict[int, list[tuple[int, GridRow, int]]] = {}
        self._ticked = 0
        self._sent: dict[str, Any] = {}
        self._sent_tick = -1
        self._ended = 0
        """Cells on the grid that were ended since it was made."""
        self._late: set[tuple[int, str, str, str]] = set()
        """Sessions (coordination partition, group, client, instance) with cells not fresh."""

    # What the log brings

    def record(
        self, p: int, offset: int, value: bytes | None, at_ms: int, events: Sequence[ev.Event]
    ) -> None:
        """Take in a record of coordination partition `p` that was folded just now."""
        self.newest_ms = max(self.newest_ms, at_ms)
        if not self.first_ms or at_ms < self.first_ms:
            self.first_ms = at_ms
        history = self.histories[p]
        history.note(offset, value, at_ms, events)
        live = self.live_since_ns is not None  # before that there is no grid: `rebuild` makes it
        for event in events:
            kind = type(event)
            if kind is ev.Renewed:
                if live and self.is_text:
                    self._renewed(p, event)  # type: ignore[arg-type]
                continue
            if kind is ev.Beat:
                if live:
                    self._beat(p, event)  # type: ignore[arg-type]
                continue
            if live and isinstance(event, _CELL_EVENTS) and agreement_of(event.topic) is None:
                key = (event.group_id, event.topic, event.partition)
                source = seen_as(self.world, key)
                shown = shown_of(self.world, source)
                row, slot = self.grid.put(*source, None if shown is None else shown[1])
                if shown is not None and shown[0] != key and shown[1].held:
                    # Of a partition that is shared by ranges, another one is shown.
                    self._judge(self._ticked * TICK_NS, p, row, slot, *shown)
                elif isinstance(event, ev.Claimed):
                    row.set_live(slot, FRESH)
                    self._judge_after(event.interval_ms, self._ticked, p, row, slot)
                elif isinstance(event, ev.Released) and event.ended and source == key:
                    self._ended += 1
            elif (
                live
                and isinstance(event, ev.GroupForgotten)
                and p == self.world.home(event.group_id)
            ):
                self.grid.remove_group(event.group_id)
            self._add_activity(p, event, at_ms)
        if history.rows.tables:
            self._take_rows(history)

    def _beat(self, p: int, event: ev.Beat) -> None:
        """All that a session holds is fresh again; while it was, there is nothing to do."""
        who = (event.group_id, event.client_id, event.instance_id)
        if (p, *who) not in self._late:
            return
        self._late.discard((p, *who))
        session = self.world.states[p].session(*who)
        for cell in () if session is None else session.claims.values():
            self._now_fresh(p, *seen_as(self.world, (event.group_id, *cell.unit)))

    def _renewed(self, p: int, event: ev.Renewed) -> None:
        """In version 1, a heartbeat renews one cell."""
        self._now_fresh(p, event.group_id, event.topic, event.partition)

    def _now_fresh(self, p: int, group: str, topic: str, partition: int) -> None:
        row = self.grid.rows.get((group, topic))
        slot = None if row is None else row.slots.get(partition)
        if row is None or slot is None:
            return
        if row.live[slot] != FRESH:
            row.set_live(slot, FRESH)
            self.grid.touch(row)
            shown = shown_of(self.world, (group, topic, partition))
            if shown is not None:
                self._judge_after(shown[1].interval_ms, self._ticked, p, row, slot)

    def _add_activity(self, p: int, event: ev.Event, at_ms: int) -> None:
        if isinstance(event, ROUTINE):
            return
        self._sequence += 1
        line = ActivityLine(
            self._sequence, p, at_ms, without_epoch(event) if self.is_text else event
        )
        self.activity.append(line)
        if len(self.activity) > 2 * ACTIVITY:
            self._trim_activity()
        self._unsent.append(line)
        if len(self._unsent) > 2 * SENT_AT_ONCE:
            del self._unsent[:-SENT_AT_ONCE]

    def _trim_activity(self) -> None:
        """Keep the latest by time: the past is read one coordination partition after the other."""
        self.activity.sort(key=attrgetter("at_ms"))
        del self.activity[:-ACTIVITY]

    def _take_rows(self, history: PartitionHistory) -> None:
        rows = history.take_rows()
        self.claims.add(rows)
        for row in rows.get("anomalies", ()):
            _, _, at_ms, kind, what, group, client, _, topic, partition, _ = row
            severity: Severity = "high" if kind in _HIGH else "low"
            place = "" if topic is None else f"{cell_text(topic, partition)}: "
            who = "" if client is None else f"{client}: "
            self.alerts.raise_(
                # A client that is late is late with all it holds: that is one alert, not many.
                (kind, group, topic, partition) if kind == "flapping" else (kind, group, client),
                kind,
                severity,
                f"{place}{who}{what or MEANING.get(kind, kind)}",
                at_ms,
                group=group,
                topic=topic,
                partition=partition,
                client_id=client,
                again=True,
            )

    def mismatch(self, text: str, at_ms: int) -> None:
        """Note that somebody's snapshot is not the state that the log gives."""
        self.alerts.raise_(("snapshot", text), "snapshot_mismatch", "high", text, at_ms)

    # Liveness

    def caught_up(self, now_ns: int, now_ms: int) -> None:
        """Begin to judge liveness: the log was read to its end at this moment."""
        self.live_since_ns = now_ns
        # A record from the future shows that this clock is behind the broker's.
        self.live_since_ms = max(now_ms, self.newest_ms)
        self._trim_activity()
        self.activity = [
            line._replace(number=number) for number, line in enumerate(self.activity, 1)
        ]  # nobody has seen another number
        self.rebuild(now_ns)

    def in_contact(self, now_ns: int, *, again: bool) -> None:
        """Note that the brokers answered a question asked at this moment.

        `again`: they had not answered before. Then whoever seemed stale is unknown until a
        heartbeat, or two intervals of silence in contact; pages that have seen the grid need all.
        """
        self.contact_ns = now_ns
        if again:
            self.contact_since_ns = now_ns
            if self.live_since_ns is not None:
                self.rebuild(now_ns)

    @property
    def needs_rebuild(self) -> bool:
        """Whether most of the clients, or of the cells, on the grid are long gone.

        Names of pods come and go, and so do cells that their users end.
        """
        if self._ended > MANY_ENDED:
            cells = sum(len(state.cells) for state in self.world.states)
            if self._ended > 4 * cells:
                return True
        known = len(self.grid.clients)
        return known > MANY_CLIENTS and known > 4 * len(self.grid.present())

    def rebuild(self, now_ns: int) -> None:
        """Make the grid anew, with slots in order. Pages that have seen the old one need all."""
        self._ticked = now_ns // TICK_NS
        self._due.clear()
        self._late.clear()
        self._ended = 0
        self.grid = CellGrid()
        rows: dict[tuple[str, str], list[tuple[int, int, tuple[CellKey, Cell]]]] = {}
        for p, key, cell in self.world.cells():
            group, topic, partition = key
            # Neither what says how a topic is shared, nor ranges: a partition has many.
            if agreement_of(topic) is None and seen_as(self.world, key) == key:
                shown = shown_of(self.world, key) or (key, cell)
                rows.setdefault((group, topic), []).append((partition, p, shown))
        for place in sorted(rows):
            cells = sorted(rows[place], key=itemgetter(0))
            row = self.grid.add(*place, [(n, shown[1].holder) for n, _, shown in cells])
            for slot, (_, p, shown) in enumerate(cells):
                if shown[1].held:
                    self._judge(now_ns, p, row, slot, *shown)
        for row in self.set_ends(self.lags.ends):
            self.update_lag(row, self.newest_ms)

    def silence_ms(self, p: int, key: CellKey, cell: Cell, now_ns: int) -> int | None:
        """Return for how long the cell's holder has been silent; None where that is not known.

        Without contact with the brokers nobody's heartbeats are seen: that time proves nothing.
        """
        if self.contact_ns is not None:
            now_ns = min(now_ns, self.contact_ns)
        silence_ms = self._silence_ms(p, key, cell, now_ns)
        if silence_ms is None or self.contact_since_ns is None:
            return silence_ms
        watched_ms = (now_ns - self.contact_since_ns) // MS
        return None if watched_ms <= 2 * cell.interval_ms < silence_ms else silence_ms

    def _silence_ms(self, p: int, key: CellKey, cell: Cell, now_ns: int) -> int | None:
        since_ns = self.live_since_ns
        observer = self.observers[p]
        if since_ns is None or observer.caught_up_at_offset is None:
            return None
        version = self.world.states[p].version(*key)
        if version >= observer.caught_up_at_offset:
            silence_ns = observer.silence_ns(version, now_ns)
            if silence_ns is not None:
                return silence_ns // MS
        watched_ms = (now_ns - since_ns) // MS
        track = self.histories[p].track(key)
        if track is not None and track.epoch == cell.epoch and track.version_ms >= 0:
            return watched_ms + max(0, self.live_since_ms - track.version_ms)
        # Its last record lies before all that was read: silent for this long, or longer.
        return watched_ms if watched_ms > 2 * cell.interval_ms else None

    def _judge(
        self, now_ns: int, p: int, row: GridRow, slot: int, key: CellKey, cell: Cell
    ) -> None:
        silence_ms = self.silence_ms(p, key, cell, now_ns)
        interval_ms = cell.interval_ms
        grace_ms = interval_ms + interval_ms // GRACE
        if silence_ms is None:
            code, left_ms = UNKNOWN, interval_ms // 2
        elif silence_ms > 2 * interval_ms:
            code, left_ms = STALE, 0
        elif silence_ms >= grace_ms:
            code, left_ms = UNKNOWN, 2 * interval_ms - silence_ms
        else:
            code, left_ms = FRESH, grace_ms - silence_ms
        if row.set_live(slot, code):
            self.grid.touch(row)
        if code != FRESH:
            self._late.add((p, row.group, cell.holder or "", cell.instance_id or ""))
        if left_ms:
            self._judge_after(left_ms, now_ns // TICK_NS, p, row, slot)

    def _judge_after(self, after_ms: int, tick: int, p: int, row: GridRow, slot: int) -> None:
        due = row.due[slot] = tick + 1 + after_ms * MS // TICK_NS
        self._due.setdefault(due, []).append((p, row, slot))

    def tick(self, now_ns: int) -> None:
        """Judge what may have changed by the time alone."""
        if self.live_since_ns is None:
            return
        until = now_ns // TICK_NS
        while self._ticked < until:
            self._ticked += 1
            for p, row, slot in self._due.pop(self._ticked, ()):
                if row.due[slot] != self._ticked:
                    continue  # it was put off, or brought forward, meanwhile
                key = (row.group, row.topic, row.partitions[slot])
                shown = shown_of(self.world, key)
                # A stale cell is not looked at any more: only a record can make it fresh.
                if shown is not None and shown[1].held:
                    self._judge(now_ns, p, row, slot, *shown)

    def _stale_alerts(self, now_ms: int) -> None:
        found = set()
        for row in self.grid.rows.values():
            holders = {holder: cells for holder, cells in row.stale_by.items() if cells > 0}
            if not holders:
                continue
            key = ("stale", row.group, row.topic)
            found.add(key)
            worst = sorted(holders, key=lambda holder: -holders[holder])
            names = ", ".join(self.grid.clients[holder] for holder in worst[:3])
            if len(worst) > 3:
                names += f" and {count(len(worst) - 3, 'other')}"
            what = (
                f"leads {row.topic.removeprefix(LEADER_PREFIX)}"
                if row.topic.startswith(LEADER_PREFIX)
                else f"{'holds' if len(worst) == 1 else 'hold'} "
                f"{count(sum(holders.values()), 'partition')} of {row.topic}"
            )
            self.alerts.raise_(
                key,
                "stale",
                "high",
                f"{names} {what}, silent for over two intervals: anyone may take over",
                now_ms,
                group=row.group,
                topic=row.topic,
                client_id=self.grid.clients[worst[0]] if len(worst) == 1 else None,
            )
        for key_ in self.alerts.raised("stale"):
            if key_ not in found:
                self.alerts.end(key_, now_ms)

    # Lag

    def set_ends(self, ends: Ends, now_ms: int | None = None) -> list[GridRow]:
        """Take in where the topics end; return the rows for which to call `update_lag`.

        Of the others the lag is not known: those whose topic is gone, or has no leaders, and those
        that stand for nothing any more. `now_ms` None: as of the newest record.
        """
        now_ms = self.newest_ms if now_ms is None else now_ms
        self.lags.ends = ends
        self.lags.forget(self.grid.rows.values(), now_ms)
        known = []
        for row in self.grid.rows.values():
            if row.topic in ends and self._counts(row):
                known.append(row)
            else:
                self.lags.unknown(self.grid, row, now_ms)
        return known

    def _counts(self, row: GridRow) -> bool:
        """Whether the group still shares the topic of a row like that (PROTOCOL.md §5.17)."""
        if self.is_text:
            return True
        slot = slot_of(row.topic, 0)
        topic = row.topic if slot is None else slot.topic
        now = slots_of(self.world, row.group, topic)
        return now == (BY_PARTITIONS if slot is None else slot.slots)

    def consumed_beyond(self, ends: Ends) -> set[str]:
        """The topics that groups consume by name, and of which it is not known where they end.

        See `marshal_py.admin.lag.hidden_topics`.
        """
        wanted = set[str]()
        for view in self.world.members():
            wanted.update(wanted_topics(view.member.metadata) or ())
        for row in self.grid.rows.values():
            if row.topic not in ends and agreement_of(row.topic) is None:
                cells = [self.world.cell(row.group, row.topic, p) for p in row.partitions]
                if any(cell is not None and cell.position >= 0 for cell in cells):
                    wanted.add(source_of(row.topic, row.partitions[0])[0])
        return wanted - ends.keys()

    def set_hidden(self, hidden: Mapping[str, str], now_ms: int) -> None:
        """Take in which topics the brokers hide, and what is missing: their lag is not known."""
        for key in self.alerts.raised("topic_hidden"):
            if key[1] not in hidden:
                self.alerts.end(key, now_ms)
        for topic, missing in hidden.items():
            text = (
                f"{topic} is hidden from this dashboard, and how far groups are behind: {missing}"
            )
            self.alerts.raise_(("hidden", topic), "topic_hidden", "low", text, now_ms, topic=topic)

    def update_lag(self, row: GridRow, now_ms: int) -> None:
        """Bring a row's lag up to date."""
        if self.grid.rows.get((row.group, row.topic)) is row:
            self.lags.update(self.grid, row, now_ms)

    # What pages get

    def document(self, now_ms: int) -> dict[str, Any]:
        """Return everything, for a page that has just come."""
        document = self.grid.document()
        document["alerts"] = self.alerts.all()
        document["activity"] = [line.document() for line in self.activity[-SENT_AT_FIRST:]]
        return document | self._groups(now_ms)

    def take_changes(self, now_ms: int) -> dict[str, Any]:
        """Return what changed since the last call; empty: nothing did."""
        if self.live_since_ns is not None:
            self._stale_alerts(now_ms)
        self.alerts.expire(now_ms)
        for kind in MEANING:
            for key in self.alerts.raised(kind):
                self.alerts.end_if_old(key, now_ms - _AGAIN_MS)
        changes = self.grid.take_changes()
        if self._unsent:
            changes["activity"] = [line.document() for line in self._unsent[-SENT_AT_ONCE:]]
            self._unsent = []
        changed, gone = self.alerts.take_changes()
        if changed:
            changes["alerts"] = changed
        if gone:
            changes["alerts_gone"] = gone
        if self._sent_tick != self._ticked // 4:  # once a second
            self._sent_tick = self._ticked // 4
            for name, found in self._groups(now_ms).items():
                if self._sent.get(name) != found:
                    changes[name] = self._sent[name] = found
        return changes

    def _groups(self, now_ms: int) -> dict[str, Any]:
        """Groups, members and leaders: few, and what they publish changes without an event."""
        groups = groups_document(self.world, self.grid.groups(), now_ms)
        over = set()
        for group in groups:
            name, until_ms = group["group"], group["paused_until_ms"]
            key = ("pause_expired", name)
            if until_ms is not None and until_ms < now_ms:
                over.add(key)
                self.alerts.raise_(
                    key,
                    "pause_expired",
                    "low",
                    f"the pause of {name} is over, and nobody has resumed it: no client of it runs",
                    now_ms,
                    group=name,
                    since_ms=until_ms,
                )
        for ended in self.alerts.raised("pause_expired"):
            if ended not in over:
                self.alerts.end(ended, now_ms)
        return {
            "groups": groups,
            "members": members_document(self.world),
            "leaders": leaders_document(self.world, self.grid.rows.values()),
        }

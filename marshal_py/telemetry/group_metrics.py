"""Prometheus metrics of every group, as one reader of the log sees them; extra `metrics`.

`marshal metrics serve` serves them. It takes no part in any group: it goes on telling when all
clients of a group are dead, which is when somebody must be woken. It is the one exporter of what is
true of a group; clients tell of themselves (`client_metrics`, `consumer_metrics`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from confluent_kafka import KafkaException
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from marshal_py.admin.connection import Connection
from marshal_py.admin.event_text import kinds_of
from marshal_py.admin.lag import Extents, PartitionLag, hidden_topics, measure_lag
from marshal_py.admin.topic_offsets import extent
from marshal_py.admin.world_reader import WorldView
from marshal_py.admin.world_summary import Group, WorldSummary, summarize
from marshal_py.client.acl import denied
from marshal_py.client.log_reader import boottime_ns
from marshal_py.client.topics import admin_client
from marshal_py.errors import MarshalError
from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import Cell, CellKey
from marshal_py.protocol.slots import BY_PARTITIONS
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import LEADER_PREFIX
from marshal_py.telemetry.lag_clock import LagClock

__all__ = ["GroupMetrics"]

logger = logging.getLogger("marshal_py.metrics")

ASK_EVERY_S: Final = 10.0
LATELY_S: Final = 2 * ASK_EVERY_S
LOST_FOR_MS: Final = 15 * 60_000
"""So long a member that fell silent counts as lost; then it is history."""
_SHARDS_PREFIX: Final = "harvest:"
"""Of the claims of a harvester's shards, which are leaderships, too."""


_Told: TypeAlias = tuple[PartitionLag, float, float]
"""A partition as the brokers told it last, for how long its next message has waited, and for how
long its position has stood still."""
_Leadership: TypeAlias = tuple[str, str, int, bool, bool]


class GroupMetrics(Collector):
    """What `view`, which somebody keeps up to date under `lock`, shows of all groups.

    Gauges by ``group_id``: ``marshal_group_members``, ``_members_live``, ``_members_lost`` (silent
    for over two intervals, and for less than 15 minutes), ``_claims_held``, ``_claims_stale`` (held
    by somebody who is silent; no leaderships), ``_claims_free``, ``_paused``; by ``leadership`` and
    ``shard`` as well: ``_leader_held`` (by somebody who is not silent); by ``topic`` and
    ``partition``: ``_lag_messages``, ``_lag_seconds`` (how long the next message has waited, as far
    as it was watched), ``_stalled_seconds`` (held, messages wait, and the position stands still),
    ``_partition_held`` (of those that are held or wanted), ``_partition_stopped`` (messages wait,
    and nobody alive holds it), ``_partition_offline`` (Kafka has no leader for it: its lag is that
    of the last known end); of partitions that are shared by ranges, ``_open_ranges`` and
    ``_open_range_grants`` (how often in a row one of them was granted without progress, at most: a
    message may kill its handlers).

    Counters: ``marshal_group_events_total`` by ``event``, ``marshal_group_redeliveries_total``
    (ranges granted again at the position where they were), ``marshal_coordination_records_total``,
    ``marshal_coordination_snapshot_mismatches_total``, ``marshal_coordination_restarts_total`` (the
    log was made anew, or lost records that had been read).

    Of itself: ``marshal_exporter_kafka_reachable``, ``marshal_exporter_newest_record_age_seconds``,
    ``marshal_exporter_clock_behind_seconds``, ``marshal_exporter_kafka_answer_seconds`` (how long
    the brokers took to say where topics end, when they were asked last; every 10 s), and by
    ``topic``, ``marshal_exporter_topic_hidden`` (a group consumes it, and the brokers hide it from
    the exporter for want of Describe: nothing is said of its partitions). While the brokers do not
    answer for the log, or nobody keeps `view` up to date (its topic is gone), it does not know
    who is alive: what is said of groups is left out, and an outage is no death of everybody.

    The brokers are asked by `ask`, beside; `collect` never waits for them.
    """

    def __init__(self, connection: Connection, view: WorldView, lock: threading.Lock) -> None:
        self._connection, self.view, self._lock = connection, view, lock
        self._events: Counter[tuple[str, str]] = Counter()
        self._redeliveries: Counter[str] = Counter()
        self._books: set[tuple[str, str, int]] = set()
        """Partitions that were seen to be shared by ranges: theirs are 0 when none is open."""
        self.restarts = 0
        self._told: list[_Told] = []
        self._clocks: dict[tuple[str, str, int], LagClock] = {}
        self._extents: Extents = {}
        """Where partitions began and ended last: while they are offline, nothing comes to them."""
        self._hidden: list[str] = []
        self._answered_s = time.monotonic()
        self._took_s: float | None = None
        self._failed = False

    def count(self, event: ev.Event) -> None:
        """Count an event that the log brought. The caller holds the lock."""
        for kind in kinds_of(event):
            self._events[getattr(event, "group_id", ""), kind] += 1
        if isinstance(event, ev.RangeGranted):
            self._redeliveries[event.group_id] += event.granted > 1

    def describe(self) -> Iterator[Metric]:
        """Nothing: the values are known only when the metrics are collected."""
        return iter(())

    def ask_until(self, stop: threading.Event) -> None:
        """Ask the brokers where topics end, again and again. For a thread of its own."""
        while not stop.is_set():
            try:
                self.ask()
            except Exception:  # a fault of ours: the exporter must not go on without this thread
                if not self._failed:
                    logger.exception("where topics end could not be asked; trying on")
                self._failed = True
            stop.wait(ASK_EVERY_S)

    def ask(self) -> None:
        """Ask the brokers once where topics end."""
        try:
            _ask_log(self._connection)
            began_s = time.monotonic()
            rows = measure_lag(self._connection, self.view, lock=self._lock, last=self._extents)
            took_s = time.monotonic() - began_s
            hidden = hidden_topics(self._connection, self.view, lock=self._lock)
        except (KafkaException, MarshalError) as error:
            if not self._failed:
                logger.warning("the brokers do not tell the ends of topics: %s", error)
            self._failed = True
            return
        now_s = time.monotonic()
        before, self._clocks = self._clocks, {}
        told: list[_Told] = []
        extents = {}
        for row in rows:
            if row.first_offset is None or row.next_offset is None:
                told.append((row, 0.0, 0.0))
                continue
            extents[row.topic, row.partition] = row.first_offset, row.next_offset
            key = (row.group, row.topic, row.partition)
            clock = self._clocks[key] = before.get(key) or LagClock()
            clock.note(now_s, _next_message(row), row.next_offset, held=_is_alive(row))
            told.append((row, clock.lag_s(), clock.stalled_s()))
        self._extents = extents
        self._told, self._answered_s, self._failed = told, now_s, False
        self._took_s = took_s
        for topic in hidden:
            if topic not in self._hidden:
                why = denied(self._connection.kafka, topic, "Describe")
                logger.warning("nothing is known of the lag of %r: %s", topic, why)
        self._hidden = hidden

    def reachable(self) -> bool:
        """Whether the brokers have answered lately."""
        return not self._failed and time.monotonic() - self._answered_s < LATELY_S

    def collect(self) -> Iterator[Metric]:
        """Look at the world now, and at what the brokers said last."""
        reachable = self.reachable()
        with self._lock:
            view = self.view
            unread_s = (boottime_ns() - view.observed_until_ns) / 1e9
            summary = summarize(view)
            events = dict(self._events)
            redeliveries = dict(self._redeliveries)
            records = sum(state.next_offset for state in view.world.states)
            mismatches = len(view.reader.mismatches)
            newest_ms, behind_ms = view.newest_ms, view.behind_ms
            leaderships = list(_leaderships(view))
        reachable = reachable and unread_s < LATELY_S
        yield _gauge("exporter_kafka_reachable", "Whether the brokers answer.", reachable)
        if newest_ms is not None:
            age_s = max(0.0, time.time() - newest_ms / 1000)
            yield _gauge("exporter_newest_record_age_seconds", "Of the log, as it is read.", age_s)
        yield _gauge(
            "exporter_clock_behind_seconds", "Behind the brokers' at least.", behind_ms / 1000
        )
        if reachable and self._took_s is not None:
            text = "How long the brokers took to answer, last."
            yield _gauge("exporter_kafka_answer_seconds", text, self._took_s)
        if reachable:
            yield from _groups(summary, leaderships)
            yield from self._lag()
            text = "Consumed, and hidden from the exporter for want of Describe."
            unseen = GaugeMetricFamily("marshal_exporter_topic_hidden", text, labels=["topic"])
            for topic in self._hidden:
                unseen.add_metric([topic], 1)
            yield unseen
        counter = CounterMetricFamily(
            "marshal_group_events", "What the log brought.", labels=["group_id", "event"]
        )
        for (name, kind), number in sorted(events.items()):
            counter.add_metric([name, kind], number)
        yield counter
        again = CounterMetricFamily(
            "marshal_group_redeliveries",
            "Ranges granted again where their last holder got nowhere.",
            labels=["group_id"],
        )
        for name, number in sorted(redeliveries.items()):
            again.add_metric([name], number)
        yield again
        for name, text, value in (
            ("records", "Records of the coordination topic so far.", records),
            ("snapshot_mismatches", "Snapshots that differ from the log.", mismatches),
            ("restarts", "Times that the log was made anew, or lost records.", self.restarts),
        ):
            yield CounterMetricFamily(f"marshal_coordination_{name}", text, value=value)

    def _lag(self) -> Iterator[Metric]:
        labels = ["group_id", "topic", "partition"]

        def family(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"marshal_group_{name}", text, labels=labels)

        messages = family("lag_messages", "Offsets behind.")
        seconds = family("lag_seconds", "How long the next message has waited, at least.")
        stalled = family("stalled_seconds", "How long a held position has stood still.")
        held = family("partition_held", "Whether somebody holds it.")
        stopped = family("partition_stopped", "Messages wait, and nobody alive holds it.")
        offline = family("partition_offline", "Whether Kafka has no leader for it.")
        ranges = family("open_ranges", "Ranges of its messages that are open.")
        grants = family("open_range_grants", "Grants in a row without progress, at most.")
        told = self._told
        telling = {row.group for row, *_ in told if row.wanted}
        for row, waited_s, still_s in told:
            where = [row.group, row.topic, str(row.partition)]
            alive = _is_alive(row)
            # Where nobody says what the group consumes, or nobody is left, it is what it has
            # consumed. A lock that is free, and a topic that is not consumed any more, is no fault.
            wanted = row.wanted or (row.group not in telling and row.position is not None)
            if wanted or row.holder is not None:
                held.add_metric(where, row.holder is not None)
            waits = row.lag != 0  # where it is not known, there may be messages
            stopped.add_metric(where, not alive and waits)
            offline.add_metric(where, row.offline)
            if row.next_offset is not None:
                stalled.add_metric(where, still_s if alive and waits else 0.0)
            key = (row.group, row.topic, row.partition)
            if row.open_ranges:
                self._books.add(key)
            if key in self._books:
                ranges.add_metric(where, row.open_ranges)
                grants.add_metric(where, row.most_granted)
            if row.lag is not None:
                messages.add_metric(where, row.lag)
                seconds.add_metric(where, waited_s)
        yield from (messages, seconds, stalled, held, stopped, offline, ranges, grants)


def _ask_log(connection: Connection) -> None:
    """Raise as `extent` does if a partition of the log has nobody who answers for it."""
    extent(admin_client(connection.kafka), connection.topic, connection)


def _next_message(row: PartitionLag) -> int | None:
    """The position; of a consumer that has done nothing yet, the first message that there is."""
    # Of slots, it may be the one that has no message whose position is not known.
    is_first = row.position is None and row.wanted and row.slots == BY_PARTITIONS
    return row.first_offset if is_first else row.position


def _is_alive(row: PartitionLag) -> bool:
    """Whether somebody holds a partition, and is not silent."""
    return row.holder is not None and row.liveness != "stale"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"marshal_{name}", text, value=value)


def _leaderships(view: WorldView) -> Iterator[_Leadership]:
    """Yield (group, leadership, shard, whether somebody alive leads, whether a silent one does).

    Claims of an outbox outlive what they were for. Where it was divided into shards, or is no more,
    those count that were claimed last; and not a shard that the living harvesters do not have.
    """
    found: dict[tuple[str, str], dict[str, list[tuple[int, CellKey, Cell]]]] = {}
    for coordinator, key, cell in view.world.cells(None):
        group, topic, _ = key
        if topic.startswith((LEADER_PREFIX, _SHARDS_PREFIX)):
            ways = found.setdefault((group, topic.removeprefix(LEADER_PREFIX)), {})
            ways.setdefault(topic, []).append((coordinator, key, cell))
    for (group, name), ways in found.items():
        topic, cells = max(ways.items(), key=lambda way: max(c.epoch for *_, c in way[1]))
        shards = _shards(view, group, name) if topic == name else None
        for coordinator, key, cell in cells:
            _, _, shard = key
            if shards is not None and shard >= shards:
                continue
            silence = view.cell_silence(coordinator, key, cell)
            stale = silence is not None and silence.liveness == "stale"
            leads = silence is not None and not stale
            yield group, name, shard, leads, stale


def _shards(view: WorldView, group: str, name: str) -> int | None:
    """So many shards the living harvesters say there are; None if it is not known."""
    said = set()
    for _, _, member in view.world.members(group):
        wanted = Subscription.decode(member.metadata) if member.metadata else None
        if wanted is None or name not in wanted.topics:
            continue
        silence = view.silence(view.world.home(group), member.version, member.interval_ms)
        if silence.liveness != "stale":
            said.add(wanted.labels.get("shards", ""))
    known = [int(number) for number in said if number.isascii() and number.isdigit()]
    return max(known) if known and len(known) == len(said) else None


def _is_paused(group: Group) -> bool:
    """Only members end a pause whose time is up; where none is left, nobody does."""
    until_ms = group.paused_until_ms
    return group.paused and (until_ms is None or until_ms > time.time() * 1000)


def _groups(summary: WorldSummary, leaderships: list[_Leadership]) -> Iterator[Metric]:
    silent_leaders = Counter(group for group, *_, stale in leaderships if stale)
    live = Counter(member.group for member in summary.members if member.liveness != "stale")
    lost = Counter(
        member.group
        for member in summary.members
        if member.liveness == "stale" and member.silence_ms < LOST_FOR_MS
    )
    for name, text, value in (
        ("members", "Members of the group, dead ones included for a while.", lambda g: g.members),
        ("members_live", "Members that are not silent.", lambda g: live[g.group]),
        ("members_lost", "Members that fell silent of late.", lambda g: lost[g.group]),
        ("claims_held", "Claims that somebody holds.", lambda g: g.held),
        (
            "claims_stale",
            "Claims, leaderships apart, whose holder is silent for over two intervals.",
            lambda g: g.stale - silent_leaders[g.group],
        ),
        ("claims_free", "Claims that nobody holds.", lambda g: g.free),
        ("paused", "Whether an operator paused the group, until now or later.", _is_paused),
    ):
        gauge = GaugeMetricFamily(f"marshal_group_{name}", text, labels=["group_id"])
        for group in summary.groups:
            gauge.add_metric([group.group], value(group))
        yield gauge
    led = GaugeMetricFamily(
        "marshal_group_leader_held",
        "Whether somebody alive leads.",
        labels=["group_id", "leadership", "shard"],
    )
    for group_id, leadership, shard, leads, _ in leaderships:
        led.add_metric([group_id, leadership, str(shard)], leads)
    yield led

"""The way back for a coordination topic that was made anew, grown, cut off or restored (§7.5).

Each coordination partition gets a new genesis: a fresh identity, the number of partitions that the
topic has now, and a base above every epoch that the log or its snapshots have ever seen. So every
claim from then on has a larger epoch than any before, and whatever fences by epochs goes on doing
so. What the topic lost is looked for in the snapshots: positions that groups had, and have no more.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from marshal_py.admin.books import book_in
from marshal_py.admin.connection import Connection
from marshal_py.admin.snapshot_reader import read_snapshots
from marshal_py.admin.topic_offsets import extent, partitions_of
from marshal_py.admin.world_reader import TRIES
from marshal_py.client.genesis import new_genesis, new_identity
from marshal_py.client.log_reader import LogReader, Truncated
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import default_client_id, new_instance_id
from marshal_py.client.topics import admin_client
from marshal_py.errors import (
    BrokerUnavailable,
    ConfigurationError,
    MalformedRecord,
    MarshalError,
    TopicMissing,
)
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import (
    MAX_BASE,
    NO_OFFSET,
    VERSION,
    Message,
    ReleaseGroup,
    ResumeGroup,
    SetPosition,
    encode,
)
from marshal_py.protocol.rationalizer import GroupState, PartitionState, Pause

__all__ = ["Recovery", "Restored", "found_log", "recover_log"]

PAUSED_FOR_MS: Final = 3_600_000
"""A pause of ours ends by itself, should this process not live to end it."""

_FOR_NOBODY: Final = "-"
"""The group that a genesis names, as it has to name one."""


@dataclass
class Restored:
    """A position that the log does not have any more, and that a snapshot or an old place has."""

    group_id: str
    topic: str
    partition: int
    position: int
    present: int
    """What the log has now, −1 for nothing."""
    source: str


@dataclass
class Recovery:
    """What a recovery does, or has done (`done`)."""

    topic: str
    partitions: int
    snapshot_partitions: int
    previous: dict[int, str | None]
    """Coordination partition → the identity that is replaced."""
    highest_epoch: int
    """No claim in the log or its snapshots has a larger epoch."""
    base: int
    """Every epoch from now on is larger than this."""
    positions: list[Restored] = field(default_factory=list)
    done: bool = False
    paused: list[str] = field(default_factory=list)
    """Groups with such positions that are paused already, and stay so."""


class _Log:
    """Reads all of the log, writes records, and tells what the fold made of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._who = (default_client_id(new_instance_id()), new_instance_id())
        self._seq = itertools.count()
        topic, snapshot_topic = connection.topic, connection.snapshot_topic
        self.reader = LogReader(
            connection.kafka, topic=topic, snapshot_topic=snapshot_topic, compare_snapshots=False
        )
        try:
            self._writer = LogWriter(
                connection.kafka, topic=topic, snapshot_topic=snapshot_topic, timeout_ms=10_000
            )
            self._replay()
        except BaseException:
            self.reader.close()
            raise

    def _replay(self) -> None:
        failed = 0
        # Each partition may have a snapshot of another log: the reader passes it over from then on.
        while failed < TRIES + self.reader.world.partitions:
            try:
                self.reader.open(self._connection.timeout_s)
                self.reader.replay()
            except Truncated:
                failed += 1
                continue
            return
        raise BrokerUnavailable(f"topic {self._connection.topic!r} changes while it is read")

    @property
    def states(self) -> list[PartitionState]:
        return self.reader.world.states

    def sender(self, group_id: str) -> tuple[str, str, str, int]:
        """What a record begins with."""
        return (*self._who, group_id, next(self._seq))

    def write(self, records: Iterable[tuple[int, Message]]) -> list[Any]:
        """Append records to their coordination partitions; return the events that they led to.

        Raises `BrokerUnavailable` when one is not seen in time: it may yet turn up; and when the
        log is made anew meanwhile.
        """
        waiting: list[int] = []
        for p, record in records:
            waiting.append(record.seq)
            self._writer.append(p, record.seq, encode(record))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + max(30.0, self._connection.timeout_s)
        while len(answers) < len(waiting):
            self._writer.serve()
            for event in self._heard():
                if not isinstance(event, ev.Ignored | ev.MemberLeft) and (
                    event.instance_id == self._who[1]
                ):
                    answers.setdefault(event.seq, event)
            if self._writer.refusal is not None:
                raise self._writer.refusal
            failed = self._writer.take_failures()
            if failed or time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"{len(waiting) - len(answers)} of {len(waiting)} records were not seen in "
                    f"{self._connection.topic!r}"
                    + (f" ({failed[0][1]})" if failed else "")
                    + ": run it again, it goes on from where it is"
                )
        return [answers[seq] for seq in waiting]

    def _heard(self) -> list[ev.Event]:
        try:
            batches = self.reader.fold(self.reader.poll(0.1))
            return [event for batch in batches for event in batch.events]
        except Truncated as error:
            raise BrokerUnavailable(
                f"{error}: topic {self._connection.topic!r} lost records meanwhile; look, and run "
                "it again"
            ) from None

    def close(self) -> None:
        self._writer.flush(5.0)
        self.reader.close()


def found_log(connection: Connection) -> list[int]:
    """Write the genesis of each coordination partition that has none; return which had none.

    Raises `TopicMissing`, `BrokerUnavailable`, `AccessDenied`, `LogHole`.
    """
    log = _Log(connection)
    try:
        bare = [state.partition for state in log.states if state.identity is None]
        above = max((s.base + s.next_offset for s in log.states), default=0)
        _write_genesis(log, bare, above, len(log.states))
        return bare
    finally:
        log.close()


def _write_genesis(log: _Log, partitions: list[int], above: int, count: int) -> None:
    identity = new_identity()
    log.write(
        (
            p,
            new_genesis(
                log.sender(_FOR_NOBODY),
                previous=log.states[p].identity or "",
                above=above,
                partitions=count,
                identity=identity,
            ),
        )
        for p in partitions
    )


def recover_log(
    connection: Connection,
    *,
    apply: bool,
    restore_positions: bool = True,
    above: int | None = None,
) -> Recovery:
    """Plan a recovery of the log and, with `apply`, carry it out.

    `above`: an epoch that was given out and that neither the log nor the snapshots know of. All
    clients should have been stopped: those that run drop their leases when they read the genesis.
    Every step bears to be done again. Raises `TopicMissing`, `BrokerUnavailable`, `AccessDenied`,
    `LogHole`, `ConfigurationError` for an `above` beyond what epochs can reach.
    """
    admin = admin_client(connection.kafka)
    snapshot_count = _count(admin, connection)
    log = _Log(connection)
    try:
        states = log.states
        count = len(states)
        old = _newest_states(admin, connection, snapshot_count)
        highest = max(
            -1 if above is None else above,
            *(s.base + s.next_offset for s in (*states, *old)),
        )
        base = new_genesis(("-", "-", "-", 0), previous="", above=highest, partitions=count).base
        if base <= highest or highest >= MAX_BASE:
            raise ConfigurationError(
                f"the largest epoch is {highest}, and no base above it is left (at most "
                f"{MAX_BASE}): was --above mistyped?"
            )
        plan = Recovery(
            connection.topic,
            count,
            snapshot_count,
            {s.partition: s.identity for s in states},
            highest,
            base,
        )
        if restore_positions:
            plan.positions = _lost_positions(log, old)
            groups = sorted({row.group_id for row in plan.positions})
            plan.paused = [g for g in groups if log.reader.world.paused(g)]
        if apply:
            if 0 < snapshot_count < count:
                _grow(admin, connection, count)
            _refound(log, plan)
            _restore(log, plan)
            plan.done = True
        return plan
    finally:
        log.close()


def _count(admin: AdminClient, connection: Connection) -> int:
    try:
        topic = connection.snapshot_topic
        return len(partitions_of(admin, connection.kafka, topic, connection.timeout_s, "Read"))
    except TopicMissing:
        return 0


def _grow(admin: AdminClient, connection: Connection, count: int) -> None:
    """Give the topic of snapshots as many partitions as the log has."""
    wanted = [NewPartitions(connection.snapshot_topic, count)]
    try:
        asked = admin.create_partitions(wanted, request_timeout=connection.timeout_s)
        for future in asked.values():
            future.result()
    except KafkaException as error:
        problem = error.args[0]
        refused = problem.code() not in (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
        kind = ConfigurationError if refused else BrokerUnavailable
        raise kind(
            f"{connection.snapshot_topic!r} cannot be grown to {count} partitions: {problem.str()}"
        ) from None


def _newest_states(
    admin: AdminClient, connection: Connection, snapshot_count: int
) -> list[PartitionState]:
    """Return what the newest readable snapshot of each coordination partition holds."""
    if not snapshot_count:
        return []
    ends = {p: e for p, (_, e) in extent(admin, connection.snapshot_topic, connection).items()}
    newest: dict[int, PartitionState] = {}
    for found in read_snapshots(connection, ends, newest_only=False):
        if found.snapshot is not None:
            try:
                newest[found.coordinator] = found.snapshot.restore()  # oldest first
            except MalformedRecord:
                continue
    return list(newest.values())


def _lost_positions(log: _Log, old: list[PartitionState]) -> list[Restored]:
    """Return the positions that snapshots, or places that are not looked at any more, know of."""
    world = log.reader.world
    best: dict[tuple[str, str, int], Restored] = {}
    sources = [(state, "a snapshot") for state in old]
    sources += [(state, f"coordination partition {state.partition}") for state in world.states]
    for state, source in sources:
        for group_id, group in state.groups.items():
            now = world.group(group_id)
            if now is group:
                continue
            for unit in group.cells:
                position = _goes_on_at(group, *unit)
                present = _goes_on_at(now, *unit)
                key = (group_id, *unit)
                known = best[key].position if key in best else present
                if position > known:
                    best[key] = Restored(*key, position, present, source)
    return [best[key] for key in sorted(best)]


def _goes_on_at(group: GroupState | None, topic: str, partition: int) -> int:
    """Return where a group goes on, −1 for nowhere.

    An open range does so nowhere by itself: it is a part of what its partition has not done.
    """
    if group is None or (topic, partition) in group.open_ranges.of_cell:
        return NO_OFFSET
    book = book_in(group, "", topic, partition)
    if book is not None:
        return book.goes_on_at
    cell = group.cells.get((topic, partition))
    return NO_OFFSET if cell is None else cell.position


def _refound(log: _Log, plan: Recovery) -> None:
    partitions = list(range(plan.partitions))
    _write_genesis(log, partitions, plan.highest_epoch, plan.partitions)
    for state in log.states:
        if state.partitions != plan.partitions or state.base <= plan.highest_epoch:
            raise BrokerUnavailable(
                f"somebody else gave {plan.topic}/{state.partition} another genesis meanwhile: "
                "stop all clients, and run it again"
            )
    plan.base = min(state.base for state in log.states)


def _restore(log: _Log, plan: Recovery) -> None:
    """Set the positions, group by group, each while it is paused."""
    for group_id, rows in itertools.groupby(plan.positions, lambda row: row.group_id):
        home = log.reader.world.home(group_id)
        state = log.states[home]
        was_paused = group_id in state.paused
        if not was_paused:
            until_ms = time.time_ns() // 1_000_000 + PAUSED_FOR_MS
            log.write([(home, ReleaseGroup(VERSION, *log.sender(group_id), until_ms))])
        group = state.groups[group_id]
        pause = None if was_paused else group.pause
        try:
            log.write(
                (
                    home,
                    SetPosition(
                        VERSION,
                        *log.sender(group_id),
                        *unit,
                        position,
                        group.version(group.cells.get(unit)),
                    ),
                )
                for row in list(rows)
                for unit, position in _to_set(group, row)
            )
        except BaseException:
            with contextlib.suppress(MarshalError):  # it ends by itself then
                _resume(log, group_id, pause)
            raise
        _resume(log, group_id, pause)
    for row in plan.positions:
        found = log.reader.world.group(row.group_id)
        if _goes_on_at(found, row.topic, row.partition) < row.position:
            raise BrokerUnavailable(
                f"the position of {row.group_id} {row.topic}/{row.partition} could not be set, as "
                "somebody else wrote at the same time: stop all clients, and run it again"
            )


def _resume(log: _Log, group_id: str, pause: Pause | None) -> None:
    """End a pause of ours; None: there is none."""
    if pause is not None:
        record = ResumeGroup(VERSION, *log.sender(group_id), pause.version)
        log.write([(log.reader.world.home(group_id), record)])


def _to_set(group: GroupState, row: Restored) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the cells to set for a position, and to what: none, if it has been reached by now.

    Ranges are closed by that, if nobody holds them: so those that are held are set free first.
    """
    if _goes_on_at(group, row.topic, row.partition) >= row.position:
        return
    book = book_in(group, row.group_id, row.topic, row.partition)
    for one in () if book is None else book.ranges:
        if one.cell.held:
            yield one.about.cell, min(one.cell.position, one.about.end)
    yield (row.topic, row.partition), row.position

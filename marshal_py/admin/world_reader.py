"""Reading the coordination log once, without joining: the world, and how old everything in it is.

A command that has just started has watched nobody, so it cannot know by its own clock how long a
holder has been silent (specs/PROTOCOL.md §5.1). It has two honest ways, and says which it took:

- *timestamps*: from the broker's timestamp of the cell's last record to this machine's clock. That
  is as good as the two clocks agree. A record from the future shows that this clock is behind; the
  newest record is "now", then.
- *observed*: watch the log for some seconds as a client does. No two clocks are compared.

In a log of version 1 (`wire="text"`) Go's records have no timestamps. There, *timestamps* means the
time in the holder's last record, from its own clock: what all clients of that version judge by.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, iso_utc
from marshal_py.client.log_reader import Batch, LogReader, Truncated, boottime_ns
from marshal_py.client.suggestions import did_you_mean
from marshal_py.errors import BrokerUnavailable, InvalidArgument, LogHole, MalformedRecord
from marshal_py.protocol.events import Event
from marshal_py.protocol.rationalizer import Cell, CellKey, PartitionState
from marshal_py.protocol.text.codec import decode_any
from marshal_py.protocol.text.rationalizer import TextCell, TextWorld
from marshal_py.protocol.wire import MSGPACK, Wire, WireName, text_wire
from marshal_py.protocol.world import MS, Liveness, World

__all__ = [
    "SilenceEstimate",
    "WorldView",
    "catch_up",
    "open_reader",
    "own_time_ms",
    "read_world",
    "stamp_ms",
    "until_silent",
    "wire_of",
]

TRIES: Final = 3


def wire_of(name: WireName, interval_s: int) -> Wire:
    """Return the version that `--wire` names; `interval_s` is for version 1 alone."""
    return text_wire(interval_s) if name == "text" else MSGPACK


def open_reader(connection: Connection, wire: Wire = MSGPACK) -> LogReader:
    """Return a reader of the connection's log, not opened yet."""
    return LogReader(
        {"reconnect.backoff.max.ms": 500, **connection.kafka},
        topic=connection.topic,
        snapshot_topic=connection.snapshot_topic,
        wire=wire,
        needs=("Read",),
    )


def stamp_ms(message: Any, wire: Wire) -> int:
    """Return the record's timestamp in ms since 1970, −1 for none.

    Where the broker has none, as for Go Marshal's records, it is the time that the record carries.
    """
    stamp: int = message.timestamp()[1]
    if stamp >= 0 or wire.name != "text":
        return stamp
    return own_time_ms(message.value())


def own_time_ms(value: bytes | None) -> int:
    """Return the time that a record of version 1 carries, in ms since 1970; −1 if it is none."""
    try:
        return max(-1, decode_any(value).time_s * 1000)
    except MalformedRecord:
        return -1


def _until(wire: Wire, at_ms: int) -> Wire:
    """Return version 1 for a reader to which what a record dates later than `at_ms` is not there.

    The broker cannot be asked, as Go's records have no time that it knows of.
    """

    def apply(
        state: PartitionState, offset: int, value: bytes | None, events: list[Event] | None
    ) -> bool:
        if own_time_ms(value) <= at_ms:
            return wire.apply(state, offset, value, events)
        state.next_offset = max(state.next_offset, offset + 1)
        return True

    return replace(wire, apply=apply)


def until_silent(
    connection: Connection, reader: LogReader, *, events: bool = True
) -> Iterator[tuple[list[Any], list[Batch]]]:
    """Pass on what `LogReader.history` reads, and say how far it is (`Connection.progress`).

    Raises `BrokerUnavailable` when nothing comes for the timeout, and as `history` does.
    """
    states = reader.world.states
    starts = {p: states[p].next_offset for p in reader.extent()}
    total = sum(max(0, end - starts[p]) for p, (_, end) in reader.extent().items())
    heard_s = time.monotonic()
    for messages, batches in reader.history(events=events):
        if messages:
            heard_s = time.monotonic()
            done = sum(states[p].next_offset - start for p, start in starts.items())
            connection.progress(done, total)
        elif time.monotonic() - heard_s > connection.timeout_s:
            raise BrokerUnavailable(
                f"the brokers have sent nothing for {connection.timeout_s:g} s, before the end of "
                f"{connection.topic!r}"
            )
        yield messages, batches


class SilenceEstimate(NamedTuple):
    """For how long a holder has been silent, and what that makes it.

    `at_least`: the last record lies before all that was read, so `ms` is a lower bound.
    """

    ms: int
    at_least: bool
    liveness: Liveness
    basis: Literal["timestamps", "observed"]

    def __str__(self) -> str:
        return f"{'>' if self.at_least else ''}{age(self.ms)}"


@dataclass
class _Timestamps:
    """The timestamp of every record read of one coordination partition."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    limit: int | None = None

    def note(self, offset: int, time_ms: int) -> None:
        """Keep one more; forget the oldest of very many, as a view that stays open must."""
        self.offsets.append(offset)
        self.times.append(time_ms)
        if self.limit is not None and len(self.offsets) > 2 * self.limit:
            del self.offsets[: self.limit], self.times[: self.limit]

    def at(self, offset: int) -> tuple[int, bool] | None:
        """Return (time, exact); for an offset before all that was read, an upper bound."""
        index = bisect_left(self.offsets, offset)
        if index == len(self.offsets):
            return None
        return self.times[index], self.offsets[index] == offset


@dataclass
class WorldView:
    """The world at one moment, read from the log by somebody who takes no part in it."""

    reader: LogReader
    stamps: list[_Timestamps]
    observed_ms: float = 0.0
    taken_ms: int = 0
    """This machine's clock when the reading ended, ms since 1970."""
    observed_until_ns: int = 0
    log_append_time: bool = True
    at_ms: int | None = None
    """The moment that was asked for; None: now."""

    @property
    def world(self) -> World:
        """What the fold has built."""
        return self.reader.world

    def require_group(self, group_id: str | None) -> None:
        """Raise `InvalidArgument`, naming what is close, if the log does not know the group.

        A look that finds nothing must not pass for one that finds nothing wrong. None: any group.
        """
        known = self.world.groups()
        if group_id is not None and group_id not in known:
            hint = did_you_mean(group_id, known)
            raise InvalidArgument(f"the coordination topic knows no group {group_id!r}{hint}")

    @property
    def is_text(self) -> bool:
        """Whether the log is of version 1."""
        return self.reader.wire.name == "text"

    @property
    def newest_ms(self) -> int | None:
        """Timestamp of the newest record that was read, ms since 1970."""
        return max((max(s.times[-1:], default=0) for s in self.stamps), default=0) or None

    @property
    def behind_ms(self) -> int:
        """By how much this machine's clock is behind the broker's at least; 0: not seen to be."""
        if self.is_text:
            return 0  # the times are those of many clients
        return max(0, (self.newest_ms or 0) - self.taken_ms)

    def limit_timestamps(self, records: int) -> None:
        """Keep the timestamps of so many records of each partition, and of the same again."""
        for stamps in self.stamps:
            stamps.limit = records

    def keep_timestamps(self, messages: list[Any]) -> None:
        """Keep the timestamps of the messages that are records of the log."""
        for message in messages:
            if message.error() is None and message.topic() == self.reader.topic:
                if message.timestamp()[0] == TIMESTAMP_CREATE_TIME:
                    self.log_append_time = False
                stamps = self.stamps[message.partition()]
                stamps.note(message.offset(), max(0, stamp_ms(message, self.reader.wire)))

    def watch(self, seconds: float) -> list[tuple[int | None, int, Event]]:
        """Wait up to `seconds` for more of the log; return (ms, coordinator, event) of it.

        Raises `Truncated` when the log lost records that had been read.
        """
        return self.fold(self.reader.poll(seconds))

    def fold(self, messages: list[Any]) -> list[tuple[int | None, int, Event]]:
        """Fold what the reader polled; return as `watch` does."""
        batches = list(self.reader.fold(messages))
        self.keep_timestamps(messages)
        self.observed_until_ns = boottime_ns()
        self.taken_ms = time.time_ns() // MS
        found = []
        for batch in batches:
            stamps = self.stamps[batch.coordinator]
            for event in batch.events:
                stamp = stamps.at(event.offset)
                found.append((None if stamp is None else stamp[0], batch.coordinator, event))
        return found

    def cell_silence(self, coordinator: int, key: CellKey, cell: Cell) -> SilenceEstimate | None:
        """Say how long the holder has been silent; None if nobody holds the cell.

        What it wrote last for any of its claims counts: its heartbeats renew them all (§4.2).
        """
        if not cell.held:
            return None
        version = self.world.states[coordinator].version(*key)
        watched = self._watched(coordinator, version, cell.interval_ms)
        if watched is None and isinstance(cell, TextCell):
            ms = self.taken_ms - cell.heartbeat_s * 1000
            if ms < -cell.interval_ms:
                return SilenceEstimate(0, True, "unknown", "timestamps")  # its clock is far ahead
            return _estimate(max(0, ms), cell.interval_ms, "timestamps")
        return watched or self._stamped(coordinator, version, cell.interval_ms)

    def _watched(self, coordinator: int, version: int, interval_ms: int) -> SilenceEstimate | None:
        """Say what watching has shown, None if it is not enough."""
        observer = self.reader.observers[coordinator]
        seen_ns = observer.seen.at(version)
        caught_up = observer.caught_up_at_offset
        if seen_ns is not None and caught_up is not None:
            watched_ms = max(0, self.observed_until_ns - seen_ns) // MS
            if version >= caught_up:
                return _estimate(watched_ms, interval_ms, "observed")
            if watched_ms > 2 * interval_ms:
                return _estimate(watched_ms, interval_ms, "observed", at_least=True)
        return None

    def silence(self, coordinator: int, version: int, interval_ms: int) -> SilenceEstimate:
        """Say how long ago the record at `version` was, and what that means at this interval."""
        return self._watched(coordinator, version, interval_ms) or self._stamped(
            coordinator, version, interval_ms
        )

    def _stamped(self, coordinator: int, version: int, interval_ms: int) -> SilenceEstimate:
        """Say what the records' times say."""
        found = self.stamps[coordinator].at(version)
        if found is None:
            return SilenceEstimate(0, True, "unknown", "timestamps")
        stamp, exact = found
        now_ms = self.taken_ms + self.behind_ms
        return _estimate(max(0, now_ms - stamp), interval_ms, "timestamps", at_least=not exact)

    def explain(self) -> str:
        """Say in a sentence or two how silences were measured, and what may be wrong with them."""
        if self.is_text:
            if self.at_ms is not None:
                return (
                    f"As it was at {iso_utc(self.at_ms)}, and silence until then, by the times in "
                    "the records, each from its sender's clock."
                )
            if not self.observed_ms:
                return (
                    "Silence: from the time in the holder's last record to this machine's clock, "
                    "as good as the two agree; --observe SECONDS watches the log instead."
                )
            return (
                f"Silence: watched for {self.observed_ms / 1000:.1f} s; of holders that said "
                "nothing meanwhile, from the time in their last record to this machine's clock."
            )
        if self.at_ms is not None:
            text = (
                f"As it was at {iso_utc(self.at_ms)}, and silence until then, by the broker's "
                "timestamps."
            )
        elif self.observed_ms:
            text = (
                f"Silence: watched for {self.observed_ms / 1000:.1f} s; of holders that said "
                "nothing meanwhile, from the broker's timestamps to this machine's clock."
            )
        else:
            text = (
                "Silence: from the broker's timestamps to this machine's clock, as good as the two "
                "agree; --observe SECONDS watches the log instead."
            )
        if self.behind_ms:
            text += (
                f" This machine's clock is behind by {age(self.behind_ms)} or more: measured "
                "against the newest record."
            )
        if not self.log_append_time:
            text += (
                " The topic does not have message.timestamp.type=LogAppendTime: these are the "
                "producers' clocks."
            )
        return text


def _estimate(
    ms: int,
    interval_ms: int,
    basis: Literal["timestamps", "observed"],
    *,
    at_least: bool = False,
) -> SilenceEstimate:
    liveness: Liveness = "unknown"
    if ms > 2 * interval_ms:
        liveness = "stale"
    elif ms < interval_ms and not at_least:
        liveness = "fresh"
    return SilenceEstimate(ms, at_least, liveness, basis)


def read_world(
    connection: Connection,
    *,
    observe_s: float = 0.0,
    at_ms: int | None = None,
    wire: Wire = MSGPACK,
) -> WorldView:
    """Read the log to its end, then watch it for `observe_s` seconds; or read it up to `at_ms`.

    Raises `TopicMissing`, `BrokerUnavailable`, `LogHole`, `ConfigurationError`, `InvalidArgument`,
    and `PartitionCountChanged` where groups are not looked for where they were written.
    """
    if at_ms is not None and observe_s:
        raise InvalidArgument("--observe watches what comes; the past (--at) cannot be watched")
    if at_ms is not None and wire.name == "text":
        wire = _until(wire, at_ms)
    reader = open_reader(connection, wire)
    failed = 0
    try:
        while True:
            try:
                return _read(connection, reader, observe_s, at_ms)
            except LogHole:
                if at_ms is None:
                    raise
                raise InvalidArgument(
                    f"the log does not reach back to {iso_utc(at_ms)}: older records were deleted "
                    "(`marshal status` shows its size)"
                ) from None
            except Truncated as error:
                failed += 1
                if failed >= TRIES:
                    raise BrokerUnavailable(f"the log changes while it is read: {error}") from None
    finally:
        reader.close()


def _read(
    connection: Connection, reader: LogReader, observe_s: float, at_ms: int | None
) -> WorldView:
    view = catch_up(connection, reader, at_ms=at_ms)
    began_ns = boottime_ns()
    end_ns = began_ns + int(observe_s * 1e9)
    while (left_ns := end_ns - boottime_ns()) > 0:
        view.watch(min(0.2, left_ns / 1e9))
    view.observed_ms = (boottime_ns() - began_ns) / MS if observe_s else 0.0
    if reader.partition_count_error is None:
        return view
    if at_ms is None:
        raise reader.partition_count_error
    raise InvalidArgument(
        f"topic {connection.topic!r} had another number of partitions at {iso_utc(at_ms)} than it "
        "has now: where groups were then is not known"
    )


def catch_up(connection: Connection, reader: LogReader, *, at_ms: int | None = None) -> WorldView:
    """Open the reader and read to the end of the log, or up to `at_ms`.

    A snapshot of another log is passed over, by opening it again. Raises as `read_world` does, and
    `Truncated`.
    """
    failed = 0
    while True:
        try:
            return _catch_up(connection, reader, at_ms)
        except Truncated:
            failed += 1
            if failed > reader.world.partitions:  # each of them may have such a snapshot
                raise


def _catch_up(connection: Connection, reader: LogReader, at_ms: int | None) -> WorldView:
    is_text = reader.wire.name == "text"
    reader.open(connection.timeout_s, until_ms=None if is_text else at_ms)
    if isinstance(reader.world, TextWorld):
        reader.world.at_ms = at_ms
    view = WorldView(reader, [_Timestamps() for _ in range(reader.world.partitions)], at_ms=at_ms)
    for messages, _ in until_silent(connection, reader, events=False):
        view.keep_timestamps(messages)
    view.observed_until_ns = boottime_ns()
    view.taken_ms = time.time_ns() // MS if at_ms is None else at_ms
    return view

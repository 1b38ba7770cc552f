"""The events of the log with their times, those of all coordination partitions in one order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from marshal_py.admin.connection import Connection
from marshal_py.admin.event_text import ROUTINE, without_epoch
from marshal_py.admin.world_reader import stamp_ms, until_silent
from marshal_py.client.log_reader import Batch, LogReader
from marshal_py.protocol.events import Event

__all__ = ["TimedEvent", "in_order", "new_events", "past_events"]


class TimedEvent(NamedTuple):
    """An event with where and when it was: the broker's time in ms, None if the record has none.

    Of Go Marshal's records the broker has no time: it is theirs.
    """

    stamp_ms: int | None
    coordinator: int
    event: Event


def past_events(
    connection: Connection, reader: LogReader, *, routine: bool = True
) -> Iterator[list[TimedEvent]]:
    """Yield what the log holds, batch by batch; not `routine`: without heartbeats and renewals.

    Raises `BrokerUnavailable`, `Truncated`.
    """
    for messages, batches in until_silent(connection, reader):
        yield _timed(reader, messages, batches, routine=routine)


def new_events(reader: LogReader) -> list[TimedEvent]:
    """Return what comes within a moment, by time. Raises `Truncated`."""
    messages = reader.poll(0.2)
    found = _timed(reader, messages, list(reader.fold(messages)))
    return sorted(found, key=_when)


def _timed(
    reader: LogReader, messages: list[Any], batches: list[Batch], *, routine: bool = True
) -> list[TimedEvent]:
    kept = [
        (batch.coordinator, event)
        for batch in batches
        for event in batch.events
        if routine or type(event) not in ROUTINE
    ]
    if not kept:
        return []
    stamps: dict[tuple[int, int], int] = {}
    for message in messages:
        if message.error() is None and message.topic() == reader.topic:
            stamps[message.partition(), message.offset()] = stamp_ms(message, reader.wire)
    found = []
    for coordinator, event in kept:
        stamp = stamps.get((coordinator, event.offset), -1)
        if reader.wire.name == "text":
            event = without_epoch(event)
        found.append(TimedEvent(stamp if stamp >= 0 else None, coordinator, event))
    return found


def in_order(reader: LogReader, batches: Iterator[list[TimedEvent]]) -> Iterator[TimedEvent]:
    """Merge the partitions' events by time, holding back only what may be preceded yet.

    What a partition brings is in order. So everything up to the time that each partition has
    reached, or the end of those that are read to theirs, can go.
    """
    extent = reader.extent()
    waiting: dict[int, deque[TimedEvent]] = {p: deque() for p in extent}
    reached: dict[int, int] = dict.fromkeys(extent, -1)
    for batch in batches:
        for found in batch:
            p = found.coordinator
            # A topic with the producers' own times may step back; the merge must not.
            reached[p] = max(reached[p], found.stamp_ms or 0)
            waiting[p].append(found)
        horizon = min(
            (reached[p] for p in extent if reader.world.states[p].next_offset < extent[p][1]),
            default=None,
        )
        if horizon is not None:
            yield from _merged(waiting, horizon)
    yield from _merged(waiting, None)


def _merged(waiting: dict[int, deque[TimedEvent]], horizon: int | None) -> Iterator[TimedEvent]:
    ready: list[TimedEvent] = []
    for queue in waiting.values():
        while queue and (horizon is None or (queue[0].stamp_ms or 0) < horizon):
            ready.append(queue.popleft())
    return iter(sorted(ready, key=_when))


def _when(found: TimedEvent) -> tuple[int, int, int]:
    return found.stamp_ms or 0, found.coordinator, found.event.offset

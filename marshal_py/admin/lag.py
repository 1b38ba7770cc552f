"""How far each group is behind the ends of its topics, now or at a moment of the past."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from marshal_py.admin.books import Book, book_of
from marshal_py.admin.connection import Connection
from marshal_py.admin.sharing import Sharings
from marshal_py.admin.topic_offsets import offset_ranges
from marshal_py.admin.world_reader import WorldView
from marshal_py.admin.world_summary import summarize
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.settings import is_topic
from marshal_py.client.topics import admin_client
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.rationalizer import Cell, CellKey
from marshal_py.protocol.slots import BY_PARTITIONS, agreement_of, source_of
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import LEADER_PREFIX, Liveness

__all__ = [
    "Extents",
    "PartitionLag",
    "hidden_among",
    "hidden_topics",
    "measure_lag",
    "require_online",
    "require_readable",
]


@dataclass
class PartitionLag:
    """One partition that a group consumes, or wants to.

    `position` is None where nothing was stored yet, and `lag` with it. `holder` is None when nobody
    holds the partition; `claimed` is False when nobody ever has. Of the past, `next_offset` is
    where the topic ended then, and `first_offset` is today's. While Kafka has no leader for the
    partition (`offline`), neither is known, nor is the lag.
    """

    group: str
    topic: str
    partition: int
    position: int | None
    first_offset: int | None
    next_offset: int | None
    lag: int | None
    holder: str | None
    liveness: str | None
    claimed: bool
    slots: int = BY_PARTITIONS
    """Into so many slots it is divided, where it is shared by keys. `position` is then the lowest
    of theirs, `holder` all that hold some (None while nobody holds one of them), and `liveness`
    that of the most silent."""
    slot: int | None = None
    """Which of them this row is about, None for all."""
    open_ranges: int = 0
    """So many ranges of it are open, where it is shared by ranges. `position` is then the first
    message that is not done, `lag` counts those that are not (beyond `position`, some are),
    `holder` is all that hold a range, and `liveness` that of the most silent."""
    most_granted: int = 0
    """How often in a row that range was granted, without progress, of which it is the most; of
    those that have messages."""
    offline: bool = False
    wanted: bool = False
    """Whether a member of the group says that it consumes the topic; a claim may be a mere lock."""


def measure_lag(
    connection: Connection,
    found: WorldView,
    *,
    group: str | None = None,
    topic: str | None = None,
    lock: AbstractContextManager[Any] | None = None,
    by_slot: bool = False,
    last: Extents | None = None,
) -> list[PartitionLag]:
    """Ask the brokers for the ends of all topics that the groups consume; compare.

    Of a look at the past, the ends are those of then, by the timestamps of the messages: the first
    message that is later, or the end where there is none. `by_slot`: of partitions that are shared
    by keys, each slot is a row. `lock` is held while `found` is looked
    at, and not while the brokers are asked. `last`: what is known from earlier of partitions that
    are offline now, to which nothing comes.
    """
    lock = lock or nullcontext()
    admin = admin_client(connection.kafka)
    topics = {
        name: metadata.partitions
        for name, metadata in admin.list_topics(timeout=connection.timeout_s).topics.items()
        if metadata.error is None
    }
    there = {name: sorted(partitions) for name, partitions in topics.items()}
    cells: _Cells = {}
    with lock:
        wanted = _wanted(found, group, there)
        by_members = frozenset(wanted)
        sharings = Sharings(found.world, group)
        for coordinator, key, cell in found.world.cells(group):
            share = sharings.share(*key)
            if share is None or share.topic not in there or share.topic.startswith(LEADER_PREFIX):
                continue
            wanted.add((key[0], share.topic))
            if share.range is None:
                shared = cells.setdefault((key[0], share.topic, share.partition), {})
                shared[share.slot] = coordinator, key, cell
    wanted = {(g, t) for g, t in wanted if topic is None or t == topic}
    asked = {(t, p) for _, t in wanted for p in there[t]}
    # Who is asked for one without a leader gets no answer about any.
    offline = {(t, p) for t, p in asked if topics[t][p].leader < 0}
    extents = offset_ranges(admin, asked - offline, connection.timeout_s, found.at_ms)
    known = {key: extent for key, extent in (last or {}).items() if key in offline} | extents
    with lock:
        rows = _rows(found, sharings, wanted, there, cells, known, by_slot=by_slot)
    for row in rows:
        row.offline = (row.topic, row.partition) in offline
        row.wanted = (row.group, row.topic) in by_members
    return rows


Extents: TypeAlias = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, partition) → (first offset, next offset)."""

_Cells: TypeAlias = dict[tuple[str, str, int], dict[int | None, tuple[int, CellKey, Cell]]]
"""(group, topic, partition) → slot, None for all of it → where its cell is, and the cell."""


def _rows(
    found: WorldView,
    sharings: Sharings,
    wanted: set[tuple[str, str]],
    there: Mapping[str, list[int]],
    cells: _Cells,
    extents: Extents,
    *,
    by_slot: bool,
) -> list[PartitionLag]:
    rows = []
    for g, t in sorted(wanted):
        slots = sharings.slots(g, t)
        for p in there[t]:
            shared = cells.get((g, t, p), {})
            parts: list[PartitionLag] = []
            for slot in range(slots) if slots else [None]:
                first, end = extents.get((t, p), (None, None))
                row = PartitionLag(g, t, p, None, first, end, None, None, None, slot in shared)
                row.slots, row.slot = slots, slot
                parts.append(row)
                book = None if slots else book_of(found.world, g, t, p)
                if book is not None:
                    _fill_in_book(row, found, book)
                elif row.claimed:
                    _fill_in(row, found, *shared[slot])
            rows += parts if by_slot or not slots else [_together(parts)]
    return rows


def _fill_in(
    row: PartitionLag, found: WorldView, coordinator: int, key: CellKey, cell: Cell
) -> None:
    silence = found.cell_silence(coordinator, key, cell)
    row.holder = cell.holder
    row.liveness = silence and silence.liveness
    if cell.position >= 0:
        row.position = cell.position
        if row.next_offset is not None:
            row.lag = max(0, row.next_offset - max(cell.position, _first(row, found)))


def _fill_in_book(row: PartitionLag, found: WorldView, book: Book) -> None:
    coordinator = found.world.home(book.group)
    live, holders = set(), set()
    for one in book.ranges:
        silence = found.cell_silence(coordinator, (book.group, *one.about.cell), one.cell)
        if silence is not None:
            live.add(silence.liveness)
            holders.add(one.cell.holder or "")
    row.holder = ", ".join(sorted(holders)) or None
    row.liveness = _most_silent(live)
    row.position = book.position
    if row.next_offset is not None:
        row.lag = book.lag(_first(row, found), row.next_offset)
    end = sys.maxsize if row.next_offset is None else row.next_offset
    row.open_ranges, row.most_granted = len(book.ranges), book.most_granted(end)


def _first(row: PartitionLag, found: WorldView) -> int:
    """Deleted messages wait for nobody; of the past, it is not known which were."""
    return 0 if found.at_ms is not None else row.first_offset or 0


_SILENT: Final[tuple[Liveness, ...]] = ("stale", "unknown", "fresh")


def _most_silent(live: Collection[str | None]) -> Liveness | None:
    return next((word for word in _SILENT if word in live), None)


def _together(parts: list[PartitionLag]) -> PartitionLag:
    """Return one row for all slots of a partition."""
    positions = [part.position for part in parts if part.position is not None]
    lags = [part.lag for part in parts if part.lag is not None]
    is_known = len(positions) == len(parts)
    holders = sorted({part.holder for part in parts if part.holder is not None})
    return replace(
        parts[0],
        position=min(positions) if is_known else None,
        lag=max(lags) if is_known else None,
        holder=", ".join(holders) if all(part.holder is not None for part in parts) else None,
        liveness=_most_silent({part.liveness for part in parts}),
        claimed=any(part.claimed for part in parts),
        slot=None,
    )


def hidden_topics(
    connection: Connection,
    found: WorldView,
    *,
    group: str | None = None,
    topic: str | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> list[str]:
    """Return the topics that groups consume by name, and that brokers hide for want of Describe.

    They are missing from `measure_lag`, as are those that do not exist (yet). `lock` is held while
    `found` is looked at, and not while the brokers are asked. Raises
    `confluent_kafka.KafkaException`.
    """
    with lock or nullcontext():
        used = {name for m in summarize(found, group=group).members for name in m.wants or ()}
        used |= {
            source_of(*key[1:])[0]
            for _, key, cell in found.world.cells(group)
            if cell.position >= 0 and agreement_of(key[1]) is None
        }
    admin = admin_client(connection.kafka)
    missing = used - set(admin.list_topics(timeout=connection.timeout_s).topics)
    if topic is not None:
        missing &= {topic}
    return hidden_among(admin, missing, connection.timeout_s)


def hidden_among(admin: AdminClient, topics: Iterable[str], timeout_s: float) -> list[str]:
    """Return those of the topics, which no list has, that are hidden for want of Describe.

    Names that no topic can have are left out. Raises `confluent_kafka.KafkaException`.
    """
    # By name: the brokers say nothing of what they hide otherwise, and this creates no topic.
    asked = TopicCollection([name for name in sorted(topics) if is_topic(name)])
    if not asked.topic_names:
        return []
    hidden = []
    for name, answer in admin.describe_topics(asked, request_timeout=timeout_s).items():
        error = answer.exception(timeout_s)
        if isinstance(error, KafkaException) and error.args[0].code() in REFUSED:
            hidden.append(name)
    return hidden


def require_readable(
    connection: Connection, found: WorldView, *, group: str | None = None, topic: str | None = None
) -> None:
    """Raise `AccessDenied` if the brokers hide a topic that a group consumes: its lag is unknown.

    Raises `confluent_kafka.KafkaException`, too.
    """
    for name in hidden_topics(connection, found, group=group, topic=topic):
        raise denied(connection.kafka, name, "Describe")


def require_online(rows: Iterable[PartitionLag]) -> None:
    """Raise `BrokerUnavailable` if the end of a partition is not known."""
    unknown = sorted({(row.topic, row.partition) for row in rows if row.next_offset is None})
    if unknown:
        named = ", ".join(f"{topic}/{p}" for topic, p in unknown[:_NAMED])
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        raise BrokerUnavailable(
            f"Kafka has no leader for {named}{more}: how far their groups are behind is not known; "
            "start the brokers that have them"
        )


_NAMED: Final = 5


def _wanted(found: WorldView, group: str | None, there: Iterable[str]) -> set[tuple[str, str]]:
    """Return (group, topic) for every topic that a member says it consumes, and that exists."""
    wanted = set()
    for name, _, member in found.world.members(group):
        subscription = Subscription.decode(member.metadata) if member.metadata else None
        if subscription is not None:
            wanted |= {(name, topic) for topic in there if subscription.wants(topic)}
    return wanted

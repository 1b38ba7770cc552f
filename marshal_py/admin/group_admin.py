"""`GroupAdmin`: pause a group, set its positions or its level, forget it (specs/PROTOCOL.md §5.13).

An operator writes to the coordination log like everybody else, and reads there what became of it.
Every call has a deadline; whatever it could not bring about by then it
says, and a group that was not paused before is resumed on every way out.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from confluent_kafka import KafkaException

from marshal_py.admin.books import book_of
from marshal_py.admin.event_text import cell_text
from marshal_py.admin.operator import Make, Operator
from marshal_py.admin.positions import (
    Change,
    Key,
    Target,
    committed_offsets,
    extents,
    offsets_at,
    partitions_of,
    resolve,
    target_of,
    write_committed_offsets,
)
from marshal_py.admin.sharing import agreed_on, open_range
from marshal_py.client.settings import DEFAULT_TOPIC, kafka_config
from marshal_py.client.suggestions import did_you_mean
from marshal_py.client.topics import admin_client
from marshal_py.errors import (
    BrokerUnavailable,
    ClaimTimeout,
    GroupInUse,
    InvalidArgument,
    TopicMissing,
)
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import (
    LEVEL,
    MAX_LEVEL,
    NO_OFFSET,
    ForgetGroup,
    ReleaseGroup,
    ResumeGroup,
    SetLevel,
    SetPosition,
)
from marshal_py.protocol.rationalizer import Cell, GroupState, Pause, Session
from marshal_py.protocol.slots import (
    BY_PARTITIONS,
    BY_RANGES,
    Slots,
    agreed_for,
    agreement_cell,
    check_slots,
    in_words,
    slots_cell,
    source_of,
)
from marshal_py.protocol.world import World

__all__ = ["Change", "GroupAdmin", "SlotsChange", "Target"]

logger = logging.getLogger("marshal_py.groups")

DEFAULT_PAUSE_S: Final = 900.0
"""A pause that its operator forgot ends after a quarter of an hour."""

RESTORE_S: Final = 15.0
"""To put things back as they were takes a round trip; after so long the pause ends by itself."""

KAFKA_S: Final = 30.0

_WHOLE: Final = (BY_PARTITIONS, BY_RANGES)
"""With these, a partition has one position."""

Positions: TypeAlias = Mapping[Key, Target | str | int | datetime]


@dataclass(frozen=True)
class SlotsChange:
    """What sharing a topic otherwise comes to: by another number of slots, by partitions, ..."""

    topic: str
    before: Slots
    after: Slots
    positions: Mapping[Key, int]
    """Where each new slot (or partition) goes on."""
    between: int
    """So many offsets of old slots lie between their positions and that one, altogether."""
    comes_again: bool
    """Whether what lies there comes again; else, at most once, it is left out."""


class GroupAdmin:
    """What an operator does to one group. A context manager.

    ::

        with GroupAdmin("localhost:9092", "billing") as admin:
            for change in admin.plan({("orders", 3): "-1000"}):
                print(change.before, "→", change.after)
            admin.set_positions({("orders", 3): "-1000"})

    - `config`: librdkafka settings, or just the brokers.
    - `topic`: the coordination topic, of protocol version 2.
    - `client_id`: who did it, as `marshal tail` shows it.
    - `cold_start_skew_ms`: how far brokers' clocks may be apart, see specs/PROTOCOL.md §5.3; None
      judges silence by watching alone.
    - `say`: is told in words what is waited for, and what could not be done besides.

    `start` (or `with`) raises `TopicMissing`, `BrokerUnavailable` and `LogHole`. One thread only.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str,
        group_id: str,
        *,
        topic: str = DEFAULT_TOPIC,
        snapshot_topic: str | None = None,
        client_id: str = "marshal-operator",
        cold_start_skew_ms: int | None = 1_000,
        connect_timeout_s: float = 30.0,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.group_id = group_id
        self.topic = topic
        self._say = say or logger.info
        self._warn = say or logger.warning
        self._log = Operator(
            kafka_config(config),
            group_id,
            topic=topic,
            snapshot_topic=snapshot_topic or f"{topic}.snapshots",
            client_id=client_id,
            cold_start_skew_ms=cold_start_skew_ms,
            connect_timeout_s=connect_timeout_s,
        )
        self._kafka = kafka_config(config)
        self._admin = admin_client(config)

    # Life

    def start(self) -> Self:
        """Connect and replay the log. Returns the admin itself."""
        self._log.start()
        return self

    def close(self) -> None:
        """Disconnect."""
        self._log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Looking

    @property
    def world(self) -> World:
        """The world as it was when a call last read the log."""
        return self._log.world

    def refresh(self, timeout_s: float = 10.0) -> None:
        """Read the log up to its present end."""
        self._log.probe(timeout_s)

    @property
    def _state(self) -> GroupState:
        """What the log says of the group."""
        return self.world.group(self.group_id) or GroupState()

    def exists(self) -> bool:
        """Whether the log knows the group: it has cells, members or a pause."""
        return self.group_id in self.world.groups()

    def require(self) -> None:
        """Raise `InvalidArgument`, naming what is close, if the log does not know the group."""
        known = self.world.groups()
        if self.group_id not in known:
            hint = did_you_mean(self.group_id, known)
            raise InvalidArgument(f"{self.topic} knows no group {self.group_id!r}{hint}")

    def cells(self) -> dict[Key, Cell]:
        """Return the cells of the group, sorted. They belong to the world: do not change them."""
        return {key[1:]: cell for _, key, cell in sorted(self.world.cells(self.group_id))}

    def held(self) -> dict[Key, str]:
        """Return who holds what."""
        return {key: cell.holder for key, cell in self.cells().items() if cell.holder is not None}

    @property
    def standing_pause(self) -> Pause | None:
        """The pause of the group that stands: its version, and until when; None: it has none."""
        return self._state.pause

    @property
    def paused_until_ms(self) -> int | None:
        """Until when the group is paused, in milliseconds since 1970; None: it is not."""
        pause = self.standing_pause
        return None if pause is None else pause.expires_at_ms

    @property
    def paused(self) -> bool:
        """Whether the group is paused."""
        return self.standing_pause is not None

    @property
    def level(self) -> int:
        """The level that the group works by (§5.15)."""
        return self._state.level

    def levels_of_clients(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return from which to which level each session, (client_id, instance_id), can follow."""
        found = self._state.sessions.items()
        return {who: (session.lowest, session.highest) for who, session in sorted(found, key=_who)}

    # Pause and resume

    def pause(self, for_s: float = DEFAULT_PAUSE_S, *, timeout_s: float = 30.0) -> int:
        """Pause the group; return until when, in milliseconds since 1970.

        Returns when the log has the pause: from then on no claim of the group is accepted. Its
        members stop and release what they hold (see `await_released`). When the time has come, by
        its own clock, any member resumes the group. A pause of a paused group takes the place of
        the one before: whoever meant to end that one does not end this one.

        Raises `InvalidArgument`, `BrokerUnavailable`.
        """
        until_ms = _deadline_ms(for_s)
        self._log.write_one(_pause_until(until_ms), timeout_s)
        return until_ms

    def resume(self, version: int | None = None, *, timeout_s: float = 30.0) -> bool:
        """End the pause of this `version` (default: that which stands); return whether it stood.

        Raises `GroupInUse` if somebody else paused the group anew before this was written: that
        pause stands. `BrokerUnavailable`.
        """
        self.refresh(timeout_s)
        pause = self.standing_pause
        if pause is None:
            return False
        answer = self._log.write_one(
            _resume(pause.version if version is None else version), timeout_s
        )
        if isinstance(answer, ev.Rejected) and answer.reason == "stale_version":
            raise GroupInUse(
                f"group {self.group_id!r} was paused anew meanwhile, by somebody else: that pause "
                "stands. Look who did it (`marshal tail`), or run this again to end it, too"
            )
        return isinstance(answer, ev.GroupResumed)

    def await_released(self, timeout_s: float) -> dict[Key, str]:
        """Wait until nobody of the group holds anything; return who holds what after `timeout_s`.

        A holder that has been silent for two of its intervals counts as dead, and what it holds as
        released: while the group is paused nobody else can claim it. Without a `timeout_s` it is
        not found out. Raises `BrokerUnavailable`.
        """
        held = self.held()
        if not held or timeout_s <= 0:
            return held
        deadline = time.monotonic() + timeout_s
        self._log.probe(timeout_s)
        while (held := self._held_by_the_living()) and time.monotonic() < deadline:
            self._log.turn()
        return held

    def _held_by_the_living(self) -> dict[Key, str]:
        return {
            key: cell.holder
            for key, cell in self.cells().items()
            if cell.holder is not None and not self._is_stale(key, cell)
        }

    @contextlib.contextmanager
    def while_paused(self, for_s: float, *, timeout_s: float = 30.0) -> Iterator[None]:
        """Keep the group paused during the block, and leave it as it was found.

        A group that was paused before is paused until the same time as before afterwards; one that
        was not is resumed, whatever ended the block. A pause that somebody else began meanwhile is
        left alone. Should this process die in the block, the pause ends after `for_s`.
        """
        until_ms = _deadline_ms(for_s)
        before = self.standing_pause
        if before is not None and before.expires_at_ms >= until_ms:
            yield
            return
        was_read = False
        try:
            self._log.write_one(_pause_until(until_ms), timeout_s)
            was_read = True
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                self._log.replay()  # a signal may have come between reading and folding
            self._restore(before, None if was_read else until_ms)
            raise
        else:
            self._restore(before)

    def _restore(self, before: Pause | None, unread_until_ms: int | None = None) -> None:
        """End our pause; `unread_until_ms` tells it where it was not seen to be accepted."""
        now = self.standing_pause
        if now is None:
            return
        mine = now.version in self._log.pauses or now.expires_at_ms == unread_until_ms
        if not mine:
            return  # what somebody else has done meanwhile is not ours to undo
        make = _resume(now.version) if before is None else _pause_until(before.expires_at_ms)
        self._log.write_one(make, RESTORE_S)

    # Level

    def set_level(
        self, level: int, *, even_if_unknown: bool = False, timeout_s: float = 30.0
    ) -> int:
        """Set the level that the group works by; return the one before.

        Raises `GroupInUse`, naming them, while clients of the group run that cannot follow it, and
        if somebody else has set another level meanwhile; `InvalidArgument` for a level that there
        is not, or that this version does not know, unless `even_if_unknown`; `BrokerUnavailable`.
        """
        if type(level) is not int or not 1 <= level <= MAX_LEVEL:
            raise InvalidArgument(f"level = {level!r} must be a number from 1 to {MAX_LEVEL}")
        if level > LEVEL and not even_if_unknown:
            raise InvalidArgument(
                f"level = {level} is not known to this version, which follows {LEVEL}: its clients "
                "could not join the group. Set it with the version that brings it"
            )
        self.refresh(timeout_s)
        before = self.level
        if before == level:
            return before
        answer = self._log.write_one(lambda head: SetLevel(*head, level, before), timeout_s)
        if isinstance(answer, ev.Rejected):
            if answer.reason == "stale_level":
                raise GroupInUse(
                    f"somebody else set the level of group {self.group_id!r} meanwhile, to "
                    f"{self.level}: look, and run it again"
                )
            raise GroupInUse(
                f"group {self.group_id!r} stays at level {before}: {self._in_doubt_of(level)} "
                f"cannot follow level {level}. Upgrade or stop them; a client that died is dropped "
                "when its claims are taken over and others have written for long enough, or with "
                "`marshal group forget`"
            )
        return before

    def _in_doubt_of(self, level: int) -> str:
        """Name the clients that cannot follow a level."""
        who = [
            f"{client_id} (levels {lowest} to {highest})"
            for (client_id, _), (lowest, highest) in self.levels_of_clients().items()
            if not lowest <= level <= highest
        ]
        more = f" and {len(who) - 3} more" if len(who) > 3 else ""
        return ", ".join(who[:3]) + more if who else "a client that has gone since"

    # Positions

    def keys_of(self, topic: str, partitions: Iterable[int] | None = None) -> list[Key]:
        """Return the keys of some partitions of a topic, of all by default.

        All means those in Kafka, or those with cells if it has no such topic. Raises
        `InvalidArgument` for a partition that the topic does not have, `TopicMissing`,
        `AccessDenied`, `BrokerUnavailable`.
        """
        cells = [key[1] for key in self.cells() if key[0] == topic]
        try:
            count = partitions_of(self._admin, self._kafka, topic, KAFKA_S)
        except TopicMissing:
            if not cells:
                raise
            count = max(cells) + 1
        chosen = range(count) if partitions is None else sorted(set(partitions))
        for p in chosen:
            if not 0 <= p < count:
                raise InvalidArgument(f"{topic}: there is no partition {p}; it has {count}")
        return [(topic, p) for p in chosen]

    def plan(self, positions: Positions) -> list[Change]:
        """Say what setting these positions would come to now. Writes nothing.

        The position of a partition that is shared by keys is that of all its slots. One that is
        shared by ranges goes on where it is set, whatever was done beyond that: its book is closed.

        Raises `InvalidArgument` for what cannot be meant: an offset outside of the messages that
        there are, a time in a partition that Kafka does not have.
        """
        targets = {
            unit: target_of(to)
            for key, to in sorted(positions.items())
            for unit in self._units_of(key)
        }
        ranges = extents(self._admin, {source_of(*key) for key in targets}, KAFKA_S)
        times = {
            source_of(*k): t.value
            for k, t in targets.items()
            if t.kind == "time" and source_of(*k) in ranges
        }
        moments = offsets_at(self._admin, times, KAFKA_S)
        changes = []
        for key, target in targets.items():
            before, holder = self._standing(key)
            extent = ranges.get(source_of(*key))
            after, moved = resolve(key, target, before, extent, moments.get(source_of(*key)))
            changes.append(Change(*key, before, after, holder, extent, moved))
        return changes

    def _standing(self, key: Key) -> tuple[int, str | None]:
        """Return the position of a cell and its holder; of a book, where all below is done."""
        book = book_of(self.world, self.group_id, *key)
        if book is not None:
            holders = {r.cell.holder for r in book.ranges if r.cell.holder is not None}
            return book.position, ", ".join(sorted(holders)) or None
        cell = self.world.cell(self.group_id, *key)
        return (-1, None) if cell is None else (cell.position, cell.holder)

    def set_positions(
        self,
        positions: Positions,
        *,
        timeout_s: float = 60.0,
        check: Callable[[list[Change]], None] | None = None,
    ) -> list[Change]:
        """Set where the group goes on, back or forth; return what was changed.

        The group is paused meanwhile (unless it is already, and then stays so). A held partition
        is waited for until its holder releases it or has been silent for two of its intervals by
        this process's clock, as a claimant waits. Targets such as "-100" or "latest" are resolved
        then. Nothing is written before all partitions are ready; each is then compared and set.
        `check` is told then what it comes to, and may raise: nothing is set in that case.

        For at-most-once consumers, messages above the new position may be delivered again: this is
        what going back means. Where a Kafka consumer group of the same name has committed offsets
        (`mirror_offsets`, `Transactions`), they are set too; if they cannot be, `say` is told.

        Raises `ClaimTimeout`, naming what was in the way, `InvalidArgument` as `plan` does before
        anything is paused, `BrokerUnavailable`.
        """
        self.plan(positions)
        deadline = time.monotonic() + timeout_s
        with self.while_paused(timeout_s + 2 * RESTORE_S, timeout_s=timeout_s):
            units = [unit for key in positions for unit in self._units_of(key)]
            self._await_settable(units, deadline)
            changes = self.plan(positions)
            if check is not None:
                check(changes)
            self._set({c.key: c.after for c in changes}, deadline)
            self._align_kafka(changes)
        return changes

    def _await_settable(self, keys: list[Key], deadline: float) -> None:
        """Wait until every cell is free, or its holder is stale (§5.1)."""
        busy = [key for key in keys if not self._settable(key)]
        if busy:
            self._log.probe(max(0.0, deadline - time.monotonic()))
        told = 0.0
        while busy := [key for key in busy if not self._settable(key)]:
            now = time.monotonic()
            if now >= deadline:
                raise ClaimTimeout(
                    f"{self._in_the_way(busy)}. Give it longer, or stop that process; it was not "
                    "touched"
                )
            if now - told > 2.0:
                self._say(f"waiting: {self._in_the_way(busy)}")
                told = now
            self._log.turn()

    def _in_the_way(self, keys: list[Key]) -> str:
        more = f", and {len(keys) - 1} more" if len(keys) > 1 else ""
        for key, cell in self._held_of(keys[0]):
            return (
                f"{cell_text(*key)} is held by {cell.holder} (interval {cell.interval_ms} ms; a "
                f"holder that died is waited for two of them){more}"
            )
        return f"{keys[0][0]}/{keys[0][1]}{more}"

    def _held_of(self, key: Key) -> Iterator[tuple[Key, Cell]]:
        """Yield the cell, if it is held; of a partition that is shared by ranges, those held."""
        cell = self.world.cell(self.group_id, *key)
        if cell is not None and cell.held:
            yield key, cell
        book = book_of(self.world, self.group_id, *key)
        for one in () if book is None else book.ranges:
            if one.cell.held:
                yield one.about.cell, one.cell

    def _settable(self, key: Key) -> bool:
        return all(self._is_stale(*held) for held in self._held_of(key))

    def _is_stale(self, key: Key, cell: Cell) -> bool:
        """Whether the holder counts as dead, by the last that it wrote for any of its claims."""
        return self._log.is_stale(self.world.version(self.group_id, *key), cell.interval_ms)

    def _set(self, offsets: Mapping[Key, int], deadline: float) -> None:
        """Set positions of cells that may be set. What was set already is not set again."""
        left = dict(offsets)
        while left:
            # A book is closed when none of its ranges is held any more.
            freed = {
                unit: self._clipped(unit, cell.position)
                for key in left
                for unit, cell in self._held_of(key)
                if unit != key
            }
            if freed:
                self._set(freed, deadline)
            answers = self._log.write(
                {key: self._set_position(key, offset) for key, offset in left.items()},
                max(1.0, deadline - time.monotonic()),
            )
            for key, answer in answers.items():
                if isinstance(answer, ev.PositionSet):
                    del left[key]
                elif isinstance(answer, ev.Rejected) and answer.reason == "not_paused":
                    raise GroupInUse(
                        f"somebody resumed group {self.group_id!r} meanwhile: "
                        f"{len(offsets) - len(left)} of {len(offsets)} positions were set; run it "
                        "again"
                    )
            # Rejected for its version: a holder had still written something. Look again.
            self._await_settable(list(left), deadline)

    def _clipped(self, key: Key, position: int) -> int:
        """Return where a cell can be set free: a range, not beyond its end."""
        found = open_range(self.world, self.group_id, *key)
        return max(0, position) if found is None else min(position, found.end)

    def _set_position(self, key: Key, offset: int) -> Make:
        version = self.world.version(self.group_id, *key)
        return lambda head: SetPosition(*head, *key, offset, version)

    def _align_kafka(self, changes: list[Change]) -> None:
        """Set what Kafka itself has committed for a group of this name, where it has any."""
        after: dict[Key, int] = {}
        for change in changes:
            if change.extent is not None:  # of slots, the lowest
                source = source_of(*change.key)
                after[source] = min(change.after, after.get(source, change.after))
        try:
            admin = admin_client(self._kafka)
            there = committed_offsets(admin, self.group_id, KAFKA_S)
            after = {key: offset for key, offset in after.items() if key in there}
            write_committed_offsets(admin, self.group_id, after, KAFKA_S)
        except (BrokerUnavailable, KafkaException) as error:
            text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            self._warn(
                f"the positions are set; what Kafka itself has committed for group "
                f"{self.group_id!r}, if anything (mirror_offsets, Transactions), is not: {text}"
            )

    # Slots

    def slots_of(self, topic: str) -> Slots:
        """Return in how many slots the group divides each partition of a topic (§5.17).

        Or ``"partitions"``, if its members claim whole ones, or ``"ranges"``.
        """
        return in_words(self._agreed(topic))

    def _agreed(self, topic: str) -> int:
        return agreed_on(self.world, self.group_id, topic)

    def _units_of(self, key: Key) -> list[Key]:
        """Return what the group claims of a partition: all of it, or its slots."""
        return _units(key, self._agreed(key[0]))

    def plan_slots(self, topic: str, slots: Slots) -> SlotsChange:
        """Say what sharing a topic by so many slots would come to now. Writes nothing.

        Or by ``"partitions"``, or ``"ranges"``. Raises `InvalidArgument`, `ConfigurationError`,
        `TopicMissing`, `BrokerUnavailable`.
        """
        return self._plan_slots(topic, _checked_slots(topic, slots))

    def _plan_slots(self, topic: str, slots: int) -> SlotsChange:
        before = self._agreed(topic)
        positions: dict[Key, int] = {}
        between = 0
        comes_again = True
        for key in self.keys_of(topic):
            book = book_of(self.world, self.group_id, *key) if before in _WHOLE else None
            if book is not None:
                undone = book.lag(0, book.frontier)
                between += undone if book.is_claimed else book.frontier - book.position - undone
                comes_again = comes_again and not book.is_claimed
                positions |= dict.fromkeys(_units(key, slots), book.goes_on_at)
                continue
            cells = {u: self.world.cell(self.group_id, *u) for u in _units(key, before)}
            known = {u: c.position for u, c in cells.items() if c is not None and c.position >= 0}
            if not known:
                continue  # nobody has begun: whoever does, begins at its `start`
            missing = cells.keys() - known.keys()
            if missing:
                raise InvalidArgument(
                    f"slot {min(missing)[1]} of {key[0]}/{key[1]} has no position yet, others "
                    "have: let a member hold it for a moment, or set where all go on (`marshal "
                    f"group set-position {self.group_id} --topic {key[0]} "
                    f"--partitions {key[1]} --to …`)"
                )
            is_claimed = any(c is not None and c.claimed_offset >= 0 for c in cells.values())
            at = max(known.values()) if is_claimed else min(known.values())
            between += sum(abs(position - at) for position in known.values())
            comes_again = comes_again and not is_claimed
            positions |= dict.fromkeys(_units(key, slots), at)
        return SlotsChange(
            topic, in_words(before), in_words(slots), positions, between, comes_again
        )

    def set_slots(self, topic: str, slots: Slots, *, timeout_s: float = 60.0) -> SlotsChange:
        """Have the group share a topic by so many slots, by ``"partitions"`` or by ``"ranges"``.

        The group is paused meanwhile, as by `set_positions`, and its members finish what they have
        in hand. Then all new slots of a partition go on where the last of the old ones was: what
        others had done beyond that comes again (`SlotsChange.between` offsets at most). For
        at-most-once consumers it is where the first of the old ones was: what others had not
        reached is left out. Of ranges, the first message that is not done counts (at most once: the
        first that nobody has claimed). Members that share it otherwise stop with `SharingDiffers`.

        Until the number itself is set, by one record at the end, all is as it was. Raises
        as `plan_slots` does, `ClaimTimeout`, `GroupInUse`, `BrokerUnavailable`.
        """
        before, to = self._agreed(topic), _checked_slots(topic, slots)
        if before == to:
            return self._plan_slots(topic, to)
        deadline = time.monotonic() + timeout_s
        agreement = agreement_cell(topic)
        with self.while_paused(timeout_s + 2 * RESTORE_S, timeout_s=timeout_s):
            units = [
                unit
                for key in self.keys_of(topic)
                for number in (before, to)
                for unit in _units(key, number)
            ]
            self._await_settable([*units, agreement], deadline)
            change = self._plan_slots(topic, to)
            self._set(change.positions, deadline)
            self._set({agreement: to}, deadline)
            books = {
                key: at for key in self.keys_of(topic) if (at := self._open_at(key)) is not None
            }
            self._set(books, deadline)
        return change

    def _open_at(self, key: Key) -> int | None:
        """Return the position of a book; None if the partition has no open ranges."""
        book = book_of(self.world, self.group_id, *key)
        return None if book is None else book.position

    def import_positions(
        self,
        kafka_group: str,
        *,
        topics: Iterable[str] | None = None,
        even_if_active: bool = False,
    ) -> dict[Key, Target]:
        """Return what a Kafka consumer group has committed, for `plan` and `set_positions`.

        Of `topics` only, if they are given, else of all but the coordination topic: what is there
        is no position (see `marshal_py.client.committed`). Raises `GroupInUse` while the group has
        active members, unless `even_if_active`; `InvalidArgument` if it has committed nothing, or
        nothing of one of `topics`: whoever names it wants to go on there.
        """
        admin = admin_client(self._kafka)
        found = committed_offsets(admin, kafka_group, KAFKA_S, even_if_active=even_if_active)
        wanted = None if topics is None else set(topics)
        chosen = {
            key: Target("committed", offset)
            for key, offset in sorted(found.items())
            if (key[0] != self.topic if wanted is None else key[0] in wanted)
        }
        there = extents(self._admin, chosen, KAFKA_S)
        chosen = {key: target for key, target in chosen.items() if key in there}
        if not chosen:
            raise InvalidArgument(
                f"Kafka consumer group {kafka_group!r} has committed no offsets"
                + ("" if wanted is None else f" of {', '.join(sorted(wanted))}")
                + "; check the name: `kafka-consumer-groups.sh --list` shows those that there are"
            )
        if missing := set(wanted or ()) - {topic for topic, _ in chosen}:
            raise InvalidArgument(
                f"Kafka consumer group {kafka_group!r} has committed no offsets of "
                f"{', '.join(map(repr, sorted(missing)))}, or there is no such topic (any more): "
                "nothing was imported. Check the name, or leave it out"
            )
        return chosen

    # Forget

    def in_use_by(self, timeout_s: float) -> list[str]:
        """Return the clients of the group that live, or may.

        Watches the log until all that hold something have written, or been silent for two of their
        intervals; returns as soon as one has written, and after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        self._log.probe(timeout_s)
        self._log.alive.clear()  # who wrote before that may have died since
        while True:
            doubtful = {
                cell.holder
                for key, cell in self.cells().items()
                if cell.holder is not None and not self._is_stale(key, cell)
            }
            for client_id, session in self._state.members.items():
                if not self._log.is_stale(session.version, max(1, session.interval_ms)):
                    doubtful.add(client_id)
            heard = doubtful & self._log.alive
            if not doubtful or heard or time.monotonic() >= deadline:
                return sorted(heard or doubtful)
            self._log.turn()

    def forget(self, *, timeout_s: float = 60.0) -> int:
        """Remove all that the log's state holds of the group; return how many cells there were.

        Positions are gone with them, and so is a pause. Raises `GroupInUse` while a client of the
        group lives (or may: one that died is waited for two of its intervals), before anything is
        paused, and when one comes meanwhile; then the group is as it was found.
        """
        self.require()
        deadline = time.monotonic() + timeout_s
        living = self.in_use_by(timeout_s)
        if living:
            raise GroupInUse(
                f"group {self.group_id!r} is in use by {', '.join(living[:3])}"
                + (f" and {len(living) - 3} more" if len(living) > 3 else "")
                + ": stop its clients first"
            )
        with self.while_paused(timeout_s + 2 * RESTORE_S, timeout_s=timeout_s):
            pause = self.standing_pause
            version = NO_OFFSET if pause is None else pause.version
            # What a client that died still holds is freed first; the fold forgets no held cell.
            held = {
                key: self._clipped(key, c.position) for key, c in self.cells().items() if c.held
            }
            self._await_settable(list(held), deadline)
            self._set(held, deadline)
            answer = self._log.write_one(_forget(version), max(1.0, deadline - time.monotonic()))
            if isinstance(answer, ev.GroupForgotten):  # nothing of it is to be left
                self._log.write_one(_resume(version), RESTORE_S)
        if isinstance(answer, ev.Rejected) and answer.reason == "stale_version":
            raise GroupInUse(
                f"group {self.group_id!r} was paused anew meanwhile, by somebody else: that pause "
                "stands, and nothing was forgotten. Look who did it (`marshal tail`), and run this "
                "again"
            )
        if not isinstance(answer, ev.GroupForgotten):
            raise GroupInUse(
                f"group {self.group_id!r} was claimed or resumed meanwhile: stop its clients"
            )
        return answer.cells


def _checked_slots(topic: str, slots: Slots) -> int:
    """Return what stands in the log for it. Raises `ConfigurationError`."""
    to = agreed_for(slots)
    if to not in _WHOLE:
        check_slots(to, {topic})
    return to


def _units(key: Key, slots: int) -> list[Key]:
    """Return what is claimed of a partition that is shared by so many slots."""
    if slots in _WHOLE:
        return [key]
    name = slots_cell(*key, slots)
    return [(name, slot) for slot in range(slots)]


def _deadline_ms(for_s: float) -> int:
    if not 0 < for_s <= 10 * 366 * 86_400:
        raise InvalidArgument(f"for_s = {for_s!r} must be above 0 seconds, and below ten years")
    return int((time.time() + for_s) * 1000)


def _pause_until(expires_at_ms: int) -> Make:
    return lambda head: ReleaseGroup(*head, expires_at_ms)


def _resume(version: int) -> Make:
    return lambda head: ResumeGroup(*head, version)


def _who(item: tuple[tuple[str, str], Session]) -> tuple[str, str]:
    return item[0]


def _forget(version: int) -> Make:
    return lambda head: ForgetGroup(*head, version)

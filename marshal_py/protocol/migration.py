"""What version 2 may work on while a bridge moves its group (specs/INTEROP.md §7.2).

Two kinds of claims in version 2's log, held by the bridge, on topics that Kafka cannot have:

- the **migration** of a topic: partition 0 of ``migration:TOPIC``, or of ``migration:`` for every
  topic of Kafka. While somebody holds it, alive or dead, the group's partitions of the topic are
  version 1's, except those that are granted;
- the **grant** of a partition: the same partition of ``migrated:TOPIC``. Its metadata passes on the
  lease that the bridge has on the partition in version 1: a holder in version 2 may act for as long
  as both leases last, its own and this one.

So version 2 stops before a Go client may take back what a dead bridge held, and a partition that
no bridge has granted is never taken, however long the bridge is gone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.world import MS, Observer, World

__all__ = [
    "GRANT_PREFIX",
    "MIGRATION_PREFIX",
    "Grants",
    "decode_lease",
    "encode_lease",
    "migration_topic",
]

MIGRATION_PREFIX: Final = "migration:"
"""What the virtual topics of migrations begin with."""

GRANT_PREFIX: Final = "migrated:"
"""What the virtual topics of grants begin with."""

UNLIMITED_NS: Final = 2**63

_LEASE: Final = struct.Struct(">IQ")
_KAFKA_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class PassedOnLease(NamedTuple):
    """What a grant says: `remaining_ms` were left when the bridge's wall clock showed `wall_ms`."""

    remaining_ms: int
    wall_ms: int


def encode_lease(remaining_ms: float, wall_s: float) -> bytes:
    """Return a grant's metadata: what is left of the version 1 lease, at this wall-clock time."""
    return _LEASE.pack(min(int(remaining_ms), 2**32 - 1), int(wall_s * 1000))


def decode_lease(metadata: bytes) -> PassedOnLease | None:
    """Return what a grant says, None where it says nothing yet."""
    if len(metadata) != _LEASE.size:
        return None
    return PassedOnLease(*_LEASE.unpack(metadata))


def migration_topic(topic: str, *, every: bool) -> str:
    """Return the virtual topic whose partition 0 is the migration that covers `topic`.

    `every`: the group moves as a whole. Names that no Kafka topic has, such as those of elections,
    are covered by migrations of their own in any case.
    """
    return MIGRATION_PREFIX + ("" if every and _KAFKA_NAME.fullmatch(topic) else topic)


class _Known(NamedTuple):
    metadata: bytes
    until_ns: int


class Grants:
    """What one client of a group may work on, and until when. No I/O.

    `wall_s` is the client's wall clock; None: leases are measured from reading alone. The client
    that moves the group, `client_id` being its name, is not bound by what it says itself.
    """

    def __init__(
        self,
        world: World,
        observers: list[Observer],
        group_id: str,
        client_id: str,
        wall_s: Callable[[], float] | None,
    ) -> None:
        self.bridges: frozenset[str] = frozenset()
        """The client ids of the bridges that move the group's topics: mostly none."""
        self.exist = False
        """Whether there is, or was, a cell of a grant: else nothing that is said bears on any."""
        self._world = world
        self._observers = observers
        self._group_id = group_id
        self._client_id = client_id
        self._wall_s = wall_s
        self._migrations: dict[str, str] = {}
        """Virtual topic of a migration → client id of its bridge."""
        self._known: dict[tuple[str, int], _Known] = {}
        self._said: set[tuple[str, int]] = set()
        """Of which grants something was said under the claim that is there, and read since this
        client had caught up."""

    # Which migrations there are

    def caught_up(self, coordinator: int) -> None:
        """Look for migrations in one coordination partition, which has been replayed."""
        if coordinator != self._world.home(self._group_id):
            return
        self._migrations.clear()
        self._said.clear()
        for _, (_, topic, partition), cell in self._world.cells(self._group_id):
            if partition == 0 and topic.startswith(MIGRATION_PREFIX):
                self._note(topic, cell.holder)
            elif topic.startswith(GRANT_PREFIX):  # what was said before counts for nothing
                self.exist = True
                unit = (topic.removeprefix(GRANT_PREFIX), partition)
                self._known[unit] = _Known(cell.metadata, 0)
        self.bridges = frozenset(self._migrations.values())

    def heard(self, event: ev.Claimed | ev.Released | ev.PositionSet) -> bool:
        """Take in what happened to a cell of the group; say whether it bears on what is granted."""
        topic = event.topic
        if not topic.startswith((MIGRATION_PREFIX, GRANT_PREFIX)):
            return False
        if topic.startswith(MIGRATION_PREFIX) and event.partition == 0:
            self._note(topic, event.client_id if isinstance(event, ev.Claimed) else None)
            self.bridges = frozenset(self._migrations.values())
        elif isinstance(event, ev.Claimed):
            self.exist = True
            # What a claim found there was said of another one.
            self._said.discard((topic.removeprefix(GRANT_PREFIX), event.partition))
        return True

    def renewed(self, event: ev.Renewed) -> None:
        """Take in that somebody has said something of a claim: of a grant, maybe."""
        if event.topic.startswith(GRANT_PREFIX):
            unit = (event.topic.removeprefix(GRANT_PREFIX), event.partition)
            self._said.add(unit)
            if unit in self._known:
                self._known[unit] = _Known(b"", self._known[unit].until_ns)

    def _note(self, topic: str, bridge: str | None) -> None:
        if bridge is None or bridge == self._client_id:
            self._migrations.pop(topic, None)
        else:
            self._migrations[topic] = bridge

    def _bridge_of(self, topic: str) -> str | None:
        """Return who moves the topic, None if nobody does."""
        if not self.bridges:
            return None
        bridge = self._migrations.get(MIGRATION_PREFIX + topic)
        if bridge is None and _KAFKA_NAME.fullmatch(topic):
            bridge = self._migrations.get(MIGRATION_PREFIX)
        return bridge

    # What they grant

    def withholds(self, topic: str, partition: int) -> bool:
        """Say whether the partition is version 1's, so that this client may not claim it."""
        bridge = self._bridge_of(topic)
        return bridge is not None and self._grant(bridge, topic, partition) is None

    def until_ns(self, topic: str, partition: int, now_ns: int) -> int:
        """Return until when the partition may be worked on, as far as migrations go; 0: not at all.

        What is left of the bridge's lease counts from when this client has read it, and less what
        has passed since by the wall clocks: to overrun it takes a client that both reads late and
        has a wrong clock. What was written before this client had caught up counts for nothing.
        """
        bridge = self._bridge_of(topic)
        if bridge is None:
            return UNLIMITED_NS
        cell = self._grant(bridge, topic, partition)
        if cell is None:
            self._known.pop((topic, partition), None)
            return 0
        known = self._known.get((topic, partition))
        if known is not None and known.metadata == cell.metadata:
            return known.until_ns
        observer = self._observers[self._world.home(self._group_id)]
        version = self._world.version(self._group_id, GRANT_PREFIX + topic, partition)
        lease = decode_lease(cell.metadata)
        until_ns = 0 if known is None else known.until_ns
        if lease is not None and (topic, partition) in self._said:
            read_ns = now_ns - (observer.silence_ns(version, now_ns) or 0)
            left_ns = read_ns + lease.remaining_ms * MS
            if self._wall_s is not None:
                passed_ms = int(self._wall_s() * 1000) - lease.wall_ms
                left_ns = min(left_ns, now_ns + (lease.remaining_ms - passed_ms) * MS)
            until_ns = max(until_ns, left_ns)
        self._known[topic, partition] = _Known(cell.metadata, until_ns)
        return until_ns

    def _grant(self, bridge: str, topic: str, partition: int) -> Cell | None:
        cell = self._world.cell(self._group_id, GRANT_PREFIX + topic, partition)
        return cell if cell is not None and cell.holder == bridge else None

"""What a Go Marshal client thinks and does, after its description: a stand-in for the real one.

It shares no code with `marshal_py`, so that a mistake there does not cancel out here. No I/O: the
simulation (`simulation.py`) runs it in virtual time, `gopeer.py` as a process on a real broker.

Its known bugs are part of it. Those that would end or block the process are switches of `Bugs`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


class GoPanic(Exception):
    """The Go process would be dead here."""


@dataclass
class Bugs:
    """Which bugs of the real client this one has; the names are those of INTEROP.md §6."""

    negative_partition_panics: bool = True
    dense_partitions: bool = True
    """A record with a partition number makes room for all numbers below it."""
    invalid_ends_start: bool = True
    """A record that does not decode, read before catching up, ends the start-up."""
    stuck_on_slash: bool = True
    busy_start_panics: bool = True
    """More than 100,000 records, of which the 100,000th from the end is young."""
    stuck_on_marker: bool = True
    """A transaction marker at the end of the log: the start-up never ends."""
    stuck_beyond_end: bool = True
    """An offset beyond the log's end: claim and release for ever."""
    deadlock_on_leave: bool = False
    spurious_release: bool = False


@dataclass
class Partition:
    instance_id: str = ""
    client_id: str = ""
    group_id: str = ""
    last_heartbeat: int = 0
    last_release: int = 0
    current_offset: int = 0

    def claimed(self, now: int, hb: int) -> bool:
        return self.last_heartbeat != 0 and 0 <= now - self.last_heartbeat < 2 * hb


def parse_int(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or any(c not in "0123456789" for c in digits):
        raise ValueError(text)
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


def parse(raw: bytes, *, before_94: bool = False) -> tuple[str, int, str, str, str, str, int, int]:
    """Return (type, time, instance, client, group, topic, partition, offset).

    Raises ValueError for what is no record.
    """
    parts = raw.decode(errors="replace").split("/")
    if len(parts) < 8:
        raise ValueError("length")
    parse_int(parts[1])
    time_s, partition = parse_int(parts[2]), parse_int(parts[7])
    kinds = {"Heartbeat": 9, "ReleasingPartition": 9, "ClaimingMessages": 9, "ClaimingPartition": 8}
    if before_94:
        kinds["ReleaseGroup"] = 9
    if kinds.get(parts[0]) != len(parts):
        raise ValueError("type")
    offset = parse_int(parts[8]) if len(parts) == 9 else 0
    return parts[0], time_s, parts[3], parts[4], parts[5], parts[6], partition, offset


@dataclass
class GoWorld:
    """The state that one Go process computes: with its own clock, at the moment of reading."""

    hb: int = 60
    bugs: Bugs = field(default_factory=Bugs)
    before_94: bool = False
    cells: dict[tuple[str, str], list[Partition]] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    invalid: int = 0

    def partition(self, group: str, topic: str, number: int) -> Partition:
        cells = self.cells.setdefault((group, topic), [])
        if number < 0:
            if self.bugs.negative_partition_panics:
                raise GoPanic("index out of range [-1]")
            return Partition()
        if number >= 1_000_000 and not self.bugs.dense_partitions:
            return Partition()
        while len(cells) <= number:
            cells.append(Partition())
        return cells[number]

    def read(self, raw: bytes, now: int) -> tuple[str, str, int] | None:
        """Apply a record; return the cell whose waiters are woken by it, if it wakes any."""
        try:
            kind, time_s, instance, client, group, topic, number, offset = parse(
                raw, before_94=self.before_94
            )
        except ValueError:
            self.invalid += 1
            return None
        if kind == "ReleaseGroup":
            self.paused[group] = offset
            return None
        if kind == "ClaimingMessages":
            return None
        cell = self.partition(group, topic, number)
        if kind == "Heartbeat":
            cell.instance_id, cell.client_id, cell.group_id = instance, client, group
            cell.last_heartbeat, cell.last_release, cell.current_offset = time_s, 0, offset
        elif kind == "ClaimingPartition":
            if not cell.claimed(now, self.hb):
                cell.instance_id, cell.client_id, cell.group_id = instance, client, group
                cell.last_heartbeat, cell.last_release = time_s, 0
            return group, topic, number
        elif (cell.client_id, cell.group_id, cell.instance_id) == (client, group, instance):
            cell.current_offset, cell.last_heartbeat, cell.last_release = offset, 0, time_s
        return None


def record(
    kind: str, now: int, who: GoClient, topic: str, number: int, offset: int | None
) -> bytes:
    fields = [kind, "1", str(now), who.instance_id, who.client_id, who.group_id, topic, str(number)]
    if offset is not None:
        fields.append(str(offset))
    return "/".join(fields).encode()


@dataclass
class GoClaim:
    topic: str
    number: int
    offset: int
    last_heartbeat: int
    beat_at: float
    """On the process's own clock, when the health loop runs next."""


@dataclass
class GoClient:
    """The claims of one Go process. Every method takes its wall clock, in seconds.

    Before each heartbeat and each release it looks at the state that it has read so far: a cell
    that is somebody else's, or nobody's any more, is let go without a word. Between two looks it
    works on.
    """

    world: GoWorld
    client_id: str
    group_id: str
    instance_id: str
    rng: random.Random
    max_claims: int = 0
    claims: dict[tuple[str, int], GoClaim] = field(default_factory=dict)
    waiting: tuple[str, int] | None = None
    released: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def hb(self) -> int:
        return self.world.hb

    def jitter(self) -> float:
        return self.rng.randrange(max(1, self.hb // 2)) + self.hb // 4

    def is_paused(self, now: float) -> bool:
        return now < self.world.paused.get(self.group_id, 0)

    def fast_reclaim(self, topic: str, number: int, now: float) -> list[bytes]:
        """At start: what our client id and group hold is taken with a heartbeat alone."""
        cell = self.world.partition(self.group_id, topic, number)
        if not cell.claimed(int(now), self.hb):
            return []
        if (cell.client_id, cell.group_id) != (self.client_id, self.group_id):
            return []
        return self._start(topic, number, cell.current_offset, now)

    def try_claim(self, topic: str, number: int, now: float) -> list[bytes]:
        """One step of the claim loop for one partition: a claim, if it looks free."""
        key = (topic, number)
        if self.waiting is not None or key in self.claims or self.is_paused(now):
            return []
        if self.max_claims and len(self.claims) >= self.max_claims:
            return []
        if now - self.released.get(key, float("-inf")) < self.hb:
            return []
        if self.world.partition(self.group_id, topic, number).claimed(int(now), self.hb):
            return []
        self.waiting = key
        return [record("ClaimingPartition", int(now), self, topic, number, None)]

    def woken(self, cell: tuple[str, str, int] | None, now: float) -> list[bytes]:
        """Some claim for a cell was read: if we wait for it, see whether it is ours now."""
        if cell is None or self.waiting is None or cell != (self.group_id, *self.waiting):
            return []
        (topic, number), self.waiting = self.waiting, None
        found = self.world.partition(self.group_id, topic, number)
        if not found.claimed(int(now), self.hb):
            return []
        if (found.client_id, found.group_id) != (self.client_id, self.group_id):
            return []
        return self._start(topic, number, found.current_offset, now)

    def _start(self, topic: str, number: int, offset: int, now: float) -> list[bytes]:
        claim = GoClaim(topic, number, offset, int(now), now + self.jitter())
        self.claims[topic, number] = claim
        return [record("Heartbeat", int(now), self, topic, number, offset)]

    def looks_ours(self, key: tuple[str, int], now: float) -> bool:
        """The look before each heartbeat and release. The instance is not compared."""
        cell = self.world.partition(self.group_id, *key)
        named = (cell.client_id, cell.group_id) == (self.client_id, self.group_id)
        return named and cell.claimed(int(now), self.hb)

    def health(self, key: tuple[str, int], now: float) -> list[bytes]:
        """The health loop of one claim, when it is due: a heartbeat, or the end."""
        if int(now) - self.claims[key].last_heartbeat > self.hb or self.is_paused(now):
            return self.release(key, now)
        if not self.looks_ours(key, now):
            del self.claims[key]
            return []
        return self.beat(key, now)

    def beat(self, key: tuple[str, int], now: float) -> list[bytes]:
        """What follows the look; a process that was stopped in between writes it, too."""
        claim = self.claims[key]
        claim.last_heartbeat, claim.beat_at = int(now), now + self.jitter()
        return [record("Heartbeat", int(now), self, *key, claim.offset)]

    def release(self, key: tuple[str, int], now: float) -> list[bytes]:
        claim = self.claims.pop(key)
        if not self.looks_ours(key, now):
            return []
        self.released[key] = now
        return [record("ReleasingPartition", int(now), self, *key, claim.offset)]

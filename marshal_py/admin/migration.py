"""Move a group from version 1 (text) to version 2 while it works, or back (specs/INTEROP.md §7).

Theory of operation
-------------------
The two versions have a coordination topic each, and do not see each other. A `Bridge` is a client
of both, in the same group, and keeps one rule: **a partition is free on at most one side**.

1. It claims every partition on the target side. The target's processes may start now: they wait.
2. Whatever becomes free on the source side, because a process there was stopped, it claims there,
   carries the position over, and releases on the target side. From then on it belongs to the
   target; on the source side the bridge goes on holding it, and repeats the target's position
   there, so that the way back begins where the group is.
3. When everything has moved and the last process of the source has been stopped, it releases what
   it holds there.

What a process released comes over to the message. What a process held when it died comes over as
of its last heartbeat, after the wait that its version asks for: within the at-least-once bound.
Where the log of version 1 has no position, what Go clients committed to Kafka counts, as for them.

A bridge that ends keeps its claims; started again within one of its intervals, under the same
client_id, it goes on where it was: the two logs are all that it needs to know. After that time
nothing keeps the two sides apart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from confluent_kafka import KafkaException

from marshal_py.admin.version1_positions import committed_position
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.client.topics import admin_client
from marshal_py.errors import ClaimTimeout, ConfigurationError, NotHeld
from marshal_py.protocol.messages import NO_OFFSET
from marshal_py.protocol.rationalizer import Cell

__all__ = ["Bridge", "Step", "StepState", "assess", "explain", "partitions_of"]

logger = logging.getLogger("marshal_py.migrate")

Key: TypeAlias = tuple[str, int]

StepState: TypeAlias = Literal["free", "held", "moved", "in_use", "target_ahead"]
"""Where a partition is on its way.

- ``free``: nobody holds it on the source side; it moves at once.
- ``held``: a process of the source holds it; it moves when that process releases it or dies.
- ``moved``: it belongs to the target.
- ``in_use``: a process of the target holds it, and it was not given to it by a bridge.
- ``target_ahead``: the position on the target side is beyond the source's: to go on from there
  would skip messages.
"""

_BLOCKING: Final = ("in_use", "target_ahead")

LOOK_S: Final = 0.02


class Step(NamedTuple):
    """One partition on its way. Offsets are the next to process; −1: there is no position."""

    topic: str
    partition: int
    state: StepState
    source_holder: str | None
    source_offset: int
    target_holder: str | None
    target_offset: int


class Bridge:
    """Moves the group that `source` and `target` belong to from the one side to the other.

    Both are started clients of one group and one client_id, on topics of their own. `topics` maps
    the topics to move to their numbers of partitions; `skip_to_target` takes the target's position
    where it is ahead, instead of refusing.

    Raises `ConfigurationError` where the two clients cannot be two sides of one group.
    """

    def __init__(
        self,
        source: Marshal,
        target: Marshal,
        topics: Mapping[str, int],
        *,
        skip_to_target: bool = False,
    ) -> None:
        if source.group_id != target.group_id:
            raise ConfigurationError(
                f"the source is of group {source.group_id!r}, the target of {target.group_id!r}"
            )
        if source.settings.wire == target.settings.wire:
            raise ConfigurationError(f"both sides speak {source.settings.wire!r}")
        if source.settings.topic == target.settings.topic:
            raise ConfigurationError(
                f"both versions on topic {source.settings.topic!r}: give each a topic of its own"
            )
        self.source = source
        self.target = target
        self.keys: list[Key] = [(t, p) for t, count in sorted(topics.items()) for p in range(count)]
        self.skip_to_target = skip_to_target
        self.moved: set[Key] = set()
        self.intruders: set[Key] = set()
        """Moved partitions that a process of the source took all the same."""
        self._admin: Any = None
        self._source_claims: dict[Key, Claim] = {}
        self._target_claims: dict[Key, Claim] = {}

    # Looking

    def plan(self) -> list[Step]:
        """Say of every partition where it is on its way. Changes nothing."""
        return [self._assess(key) for key in self.keys]

    def _assess(self, key: Key) -> Step:
        step = assess(
            key,
            self.source.cell(*key),
            self.target.cell(*key),
            self.source.client_id,
            skip_to_target=self.skip_to_target,
        )
        return step._replace(state="moved") if key in self.moved else step

    # Moving

    def block(self, timeout_s: float) -> None:
        """Claim the target side of everything that has not been moved, and what has been, here.

        After this, and not before, processes of the target may start. Raises `ConfigurationError`
        for partitions that cannot be moved as they are, `ClaimTimeout` if the claims take longer.
        """
        steps = self._check()
        self.moved = {(s.topic, s.partition) for s in steps if s.state == "moved"}
        claims = {key: self.target.want(*key) for key in self.keys if key not in self.moved}
        deadline = time.monotonic() + timeout_s
        try:
            # What a process of the target does at the same moment shows while we wait.
            while not all(claim.held for claim in claims.values()):
                if time.monotonic() >= deadline:
                    raise ClaimTimeout(f"the target side was not claimed within {timeout_s:g} s")
                self._check()
                time.sleep(LOOK_S)
        except BaseException:
            for claim in claims.values():
                claim.release(wait=False)
            raise
        self._target_claims = claims
        for key in self.keys:
            self._source_claims[key] = self.source.want(*key)

    def _check(self) -> list[Step]:
        steps = self.plan()
        blocked = [step for step in steps if step.state in _BLOCKING]
        if blocked:
            raise ConfigurationError("; ".join(explain(step) for step in blocked[:5]))
        return steps

    def step(self) -> list[Step]:
        """Move what can be moved now; return it. Repeats the positions of what was moved before.

        Call it again and again, a few times a second. Raises what the clients raise when one of
        them has failed for good.
        """
        done = []
        for key in self.keys:
            claim = self._source_claims[key]
            if claim.reason is not None:  # lost: wanted again
                if key in self.moved and key not in self.intruders:
                    self.intruders.add(key)
                    logger.error(
                        "%s/%d: %s on the source side, although the target works on it: stop that "
                        "process",
                        *key,
                        claim.reason,
                    )
                claim = self._source_claims[key] = self.source.want(*key)
            if not claim.held:
                continue
            self.intruders.discard(key)
            if key in self.moved:
                self._repeat(key, claim)
            elif self._move(key, claim):
                done.append(self._assess(key))
        return done

    def _move(self, key: Key, claim: Claim) -> bool:
        target = self._target_claims[key]
        if target.reason is not None:
            target = self._target_claims[key] = self.target.want(*key)
        if not target.held:
            return False
        try:
            position = self._source_position(claim)
        except KafkaException as error:
            logger.warning("%s/%d: %s; trying again", *key, error.args[0].str())
            return False
        if target.position > position and not self.skip_to_target:
            return False  # a process of the source has set its position back meanwhile
        try:
            if position > target.position:
                target.commit(position, wait=True)
            if not claim.held:
                return False
            target.release()
        except (ClaimTimeout, NotHeld) as error:
            logger.warning("%s/%d: %s; trying again", *key, error)
            return False
        self.moved.add(key)
        del self._target_claims[key]
        return True

    def _source_position(self, claim: Claim) -> int:
        """Return where the source is; without a word in its log, where Go would begin."""
        if claim.position >= 0 or self.source.settings.wire != "text":
            return claim.position
        if self._admin is None:
            self._admin = admin_client(self.source.settings.kafka)
        return committed_position(
            self._admin, self.source.group_id, claim.topic, claim.partition, timeout_s=5.0
        )

    def _repeat(self, key: Key, claim: Claim) -> None:
        position = _position(self.target.cell(*key))
        if position > claim.next_offset:
            claim.commit(position)

    @property
    def complete(self) -> bool:
        """Whether everything has been moved, and is held here against the source's processes."""
        return len(self.moved) == len(self.keys) and not self.intruders

    def finish(self, timeout_s: float = 30.0) -> None:
        """Release the source side. Only when no process of the source runs any more."""
        for key, claim in self._source_claims.items():
            if claim.held and key in self.moved:
                self._repeat(key, claim)
            claim.release(wait=False)
        for claim in self._source_claims.values():
            claim.release(timeout_s=timeout_s)


def assess(
    key: Key,
    source: Cell | None,
    target: Cell | None,
    bridge_id: str,
    *,
    skip_to_target: bool = False,
) -> Step:
    """Say where a partition is on its way, from its cells on both sides and the bridge's name."""
    source_holder = None if source is None else source.holder
    target_holder = None if target is None else target.holder
    state: StepState
    if source_holder == bridge_id and target is not None and target_holder != bridge_id:
        state = "moved"  # an earlier run holds the source side alone
    elif target_holder not in (None, bridge_id):
        state = "in_use"
    elif _position(target) > _position(source) and not skip_to_target:
        state = "target_ahead"
    elif source_holder in (None, bridge_id):
        state = "free"
    else:
        state = "held"
    return Step(*key, state, source_holder, _position(source), target_holder, _position(target))


def explain(step: Step) -> str:
    """Say in a sentence what keeps a partition from moving, or where it is."""
    name = f"{step.topic}/{step.partition}"
    if step.state == "in_use":
        return (
            f"{name}: {step.target_holder} of the target holds it already, without a bridge: stop "
            "it first"
        )
    if step.state == "target_ahead":
        return (
            f"{name}: the target's position {step.target_offset} is beyond the source's "
            f"{step.source_offset}, so messages would be skipped: set it with `marshal group "
            "set-position`, or accept it with --skip-to-target"
        )
    if step.state == "held":
        return f"{name}: {step.source_holder} holds it; it moves when that process is stopped"
    return f"{name}: {step.state}"


def partitions_of(
    cells: Iterable[tuple[str, int]], count_of: Callable[[str], int]
) -> dict[str, int]:
    """Return topic → partitions, for the (topic, partition) of a group's cells.

    `count_of` returns how many partitions a Kafka topic has, 0 for one that does not exist.
    """
    found: dict[str, int] = {}
    for topic, partition in cells:
        found[topic] = max(found.get(topic, 0), partition + 1)
    return {topic: max(count, count_of(topic)) for topic, count in sorted(found.items())}


def _position(cell: Cell | None) -> int:
    return NO_OFFSET if cell is None else cell.position

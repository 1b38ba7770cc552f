"""Move a group from version 1 (text) to version 2 while it works, or back (specs/INTEROP.md §7).

Theory of operation
-------------------
The two versions have a coordination topic each, and do not see each other. A `Bridge` is a client
of both, in the same group, and keeps one rule: **version 2 works on a partition only while the
bridge holds it in version 1**. It holds it there with a claim, as any client of version 1, and says
so in version 2 with a *grant*, which passes the lease on (`marshal_py.protocol.migration`). What is
not granted is version 1's, and version 2's clients leave it alone: from before the first of them
starts, over every death of a bridge, and for partitions that nobody has seen before.

To version 2: what becomes free in version 1, because a process there was stopped, the bridge claims
there; it stores the position in version 2 and grants the partition. It goes on holding it in
version 1, and repeats version 2's position there, so that the way back begins where the group is.

Back: everything that version 2 has is granted first. What becomes free in version 2 the bridge
claims there, takes the grant back, stores the position in version 1, and releases it there.

If a process of version 1 takes by force what was granted, the grant is taken back at once, and the
partition is version 1's again until it moves once more.

What a process released comes over to the message. What a process held when it died comes over as
of its last heartbeat, after the wait that its version asks for: within the at-least-once bound.
Where the log of version 1 has no position, what Go clients committed to Kafka counts, as for them.

All that a bridge knows is in the two logs, so the next one under the same client_id goes on where
it was. Nothing here waits but `block` and `finish`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from marshal_py.admin.migration_plan import (
    BLOCKING,
    MAX_MOVABLE_LENGTH,
    Key,
    Sides,
    Step,
    assess,
    explain,
    position_of,
)
from marshal_py.admin.version1_positions import committed_position
from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.errors import ClaimTimeout, ConfigurationError, NotHeld
from marshal_py.protocol.migration import (
    GRANT_PREFIX,
    MIGRATION_PREFIX,
    encode_lease,
    migration_topic,
)

__all__ = ["Bridge"]

logger = logging.getLogger("marshal_py.migrate")

LOOK_S: Final = 0.02


class _Partition:
    """One partition on its way: the bridge's claims about it."""

    __slots__ = (
        "data",
        "found_at",
        "grant",
        "handing_over",
        "key",
        "moved",
        "position",
        "revoking",
        "text",
        "trusted",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.text: Claim | None = None
        """On the partition in version 1."""
        self.data: Claim | None = None
        """On the partition in version 2."""
        self.grant: Claim | None = None
        self.moved = False
        self.revoking = False
        """The grant is being taken back."""
        self.handing_over = False
        """The position was stored with a release, of `data` or `text`, that has not been read."""
        self.position = -1
        """The position that was handed over."""
        self.trusted = False
        """Whether the position in version 2 came from a bridge, so that none is skipped by it."""
        self.found_at: int | None = None
        """The position in version 1 when this bridge began, until it holds it there again."""


class Bridge:
    """Moves the group that `source` and `target` belong to from the one side to the other.

    Both are started clients of one group and one client_id, on topics of their own; no other bridge
    of the group may run. `topics` maps the topics to move to their numbers of partitions. With
    `every` the group moves as a whole: also partitions of topics that this bridge has not been told
    of are version 1's. `skip_to_target` takes the target's position where it is ahead, instead of
    refusing. `wall_s` is the wall clock.

    Raises `ConfigurationError` where the two clients cannot be two sides of one group, or the name
    of a topic is too long.
    """

    def __init__(
        self,
        source: Marshal,
        target: Marshal,
        topics: Mapping[str, int],
        *,
        every: bool = True,
        skip_to_target: bool = False,
        wall_s: Callable[[], float] = time.time,
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
        self.back = target.settings.wire == "text"
        self.every = every
        self.skip_to_target = skip_to_target
        self.conflicts: dict[Key, str] = {}
        """Partitions that version 1 took by force from version 2, and by what."""
        self.ended = False
        """An earlier bridge was ending: there is nothing to move, only `finish` is left."""
        self._text, self._new = (target, source) if self.back else (source, target)
        self._wall_s = wall_s
        self._resumed = False
        self._migrations: dict[str, Claim] = {}
        self._partitions: dict[Key, _Partition] = {}
        self._in_order: tuple[_Partition, ...] = ()
        """Replaced as a whole: the driver's thread walks through it."""
        self._add(topics)
        # A pause ends work, and the bridge does none: what it holds keeps the sides apart.
        with driver_of(self._new).lock:
            driver_of(self._new).claimant.heeds_pauses = False
            driver_of(self._new).before_heartbeat.append(self._pass_leases_on)

    # Looking

    @property
    def keys(self) -> list[Key]:
        """The partitions that are moved, in order."""
        return [part.key for part in self._in_order]

    @property
    def moved(self) -> set[Key]:
        """The partitions that belong to the target."""
        return {part.key for part in self._in_order if part.moved}

    def plan(self) -> list[Step]:
        """Say of every partition where it is on its way. Changes nothing."""
        return [self._assess(part.key) for part in self._in_order]

    def _assess(self, key: Key) -> Step:
        step = assess(
            key,
            Sides(self.source.cell(*key), self.target.cell(*key), self._grant_cell(key)),
            self._new.client_id,
            back=self.back,
            resumed=self._resumed,
            skip_to_target=self.skip_to_target,
        )
        return step._replace(state="moved") if self._partitions[key].moved else step

    def _grant_cell(self, key: Key) -> Any:
        return self._new.cell(GRANT_PREFIX + key[0], key[1])

    @property
    def busy(self) -> bool:
        """Whether a partition is between the sides: `step` is worth calling at once."""
        return any(
            part.handing_over or part.revoking or (part.grant is not None and not part.moved)
            for part in self._in_order
        )

    @property
    def complete(self) -> bool:
        """Whether everything has been moved, and nothing was taken back by force."""
        return all(part.moved for part in self._in_order) and not self.conflicts

    # Beginning

    def adopt(self, topics: Mapping[str, int]) -> list[Key]:
        """Take in topics and partitions that are new since; return them.

        Until they move they are version 1's: nobody of version 2 has touched them.
        """
        added = self._add(topics)
        for topic in self._migration_topics():
            if topic not in self._migrations:
                self._migrations[topic] = self._new.want(topic, 0)
        for key in added:
            self._partitions[key].moved = self.back
        return added

    def _add(self, topics: Mapping[str, int]) -> list[Key]:
        too_long = [topic for topic in topics if len(topic) > MAX_MOVABLE_LENGTH]
        if too_long:
            raise ConfigurationError(
                f"topic {too_long[0]!r} cannot be moved: its name is longer than "
                f"{MAX_MOVABLE_LENGTH} characters; name others with --topics"
            )
        added = [
            (topic, p)
            for topic, count in sorted(topics.items())
            for p in range(count)
            if (topic, p) not in self._partitions
        ]
        self._partitions.update((key, _Partition(key)) for key in added)
        self._in_order = tuple(part for _, part in sorted(self._partitions.items()))
        return added

    def block(self, timeout_s: float) -> None:
        """Make sure that every partition belongs to one side alone, from here on.

        After this, and not before, processes of the target may start. Raises `ConfigurationError`
        for partitions that cannot be moved as they are, `ClaimTimeout` if the claims take longer.
        """
        deadline = time.monotonic() + timeout_s
        try:
            for _ in self.begin():
                if time.monotonic() >= deadline:
                    raise ClaimTimeout(f"the target side was not claimed within {timeout_s:g} s")
                time.sleep(LOOK_S)
        except BaseException:
            if not self._resumed:
                self._let_go()
            raise

    def begin(self) -> Iterator[None]:
        """Do what `block` does, yielding while there is something to wait for."""
        me, parts = self._new.client_id, self._in_order
        migrations = [self._new.cell(topic, 0) for topic in self._migration_topics()]
        self._resumed = any(cell is not None and cell.holder == me for cell in migrations)
        if not self._resumed and not self.back:
            self.ended = any(self._is_granted(part) for part in parts)
        if self.ended:
            yield from self._find_what_is_left()
            return
        if not self._resumed:
            self._check()
            if self.back:  # version 2 goes on working: it is granted what it has
                for part in parts:
                    part.text = self._text.want(*part.key)
                yield from self._until_held([part.text for part in parts])
                for part in parts:
                    self._grant(part)
                yield from self._until_held([part.grant for part in parts])
        for topic in self._migration_topics():
            self._migrations[topic] = self._new.want(topic, 0)
        yield from self._until_held(list(self._migrations.values()))
        if self._resumed:
            for part in parts:
                self._resume(part)
            return
        if not self.back:
            for part in parts:
                part.data = self._new.want(*part.key)
            yield from self._until_held([part.data for part in parts])
        self._resumed = True

    def _find_what_is_left(self) -> Iterator[None]:
        """Take over the grants that an earlier bridge had not released when it died at the end.

        Without a migration they bind nobody. What it still held in version 1 runs out by itself.
        """
        self._resumed = True
        for part in self._in_order:
            if self._is_granted(part):
                self._grant(part)
            part.moved = True
        yield from self._until_held([part.grant for part in self._in_order if part.grant])

    def _is_granted(self, part: _Partition) -> bool:
        grant = self._grant_cell(part.key)
        return grant is not None and grant.holder == self._new.client_id

    def _migration_topics(self) -> list[str]:
        topics = {topic for topic, _ in self._partitions} | ({""} if self.every else set())
        return sorted({migration_topic(topic, every=self.every) for topic in topics})

    def _resume(self, part: _Partition) -> None:
        """Go on where an earlier bridge of this name was."""
        cell = self._text.cell(*part.key)
        is_granted = self._is_granted(part)
        is_held = cell is not None and cell.holder == self._text.client_id
        part.trusted = True
        if is_granted:
            self._grant(part)
            if not is_held:
                self._take_back(part, "left by the bridge, and taken" if cell else "not held")
                return
            part.moved = not self.back
            part.found_at = position_of(cell)
        if self.back and not is_granted and not is_held:
            part.moved = True
            return
        part.text = self._text.want(*part.key)

    def _until_held(self, claims: list[Claim | None]) -> Iterator[None]:
        while not all(claim is not None and claim.held for claim in claims):
            for claim in claims:
                if claim is not None and claim.reason is not None:
                    raise NotHeld(f"{claim!r} ended at once: {claim.reason}")
            # What a process of the target does at the same moment shows while we wait.
            if not self._resumed:
                self._check()
            yield

    def _check(self) -> None:
        blocked = [step for step in self.plan() if step.state in BLOCKING]
        if blocked:
            raise ConfigurationError("; ".join(explain(step) for step in blocked[:5]))
        if self.back or not self.every:
            return
        with self._new.world() as world:
            for _, (_, topic, partition), cell in world.cells(self._new.group_id):
                if (
                    cell.holder not in (None, self._new.client_id)
                    and (topic, partition) not in self._partitions
                    and migration_topic(topic, every=True) == MIGRATION_PREFIX
                ):
                    raise ConfigurationError(
                        f"{topic}/{partition}: {cell.holder} works on it in version 2, and version "
                        "1 does not know it: name the topics to move with --topics"
                    )

    def _let_go(self) -> None:
        for part in self._in_order:
            for claim in (part.text, part.data, part.grant):
                if claim is not None:
                    claim.release(wait=False)
            part.text = part.data = part.grant = None
        for claim in self._migrations.values():
            claim.release(wait=False)
        self._migrations.clear()

    # Moving

    def step(self) -> list[Step]:
        """Move what can be moved now; return it. Repeats the positions of what was moved before.

        Call it again and again, a few times a second, and at once while it is `busy`. Raises what
        the clients raise when one of them has failed for good.
        """
        self._check_sides()
        for name, claim in self._migrations.items():
            if claim.reason is not None:
                self._migrations[name] = self._new.want(name, 0)
        done = []
        for part in self._in_order:
            try:
                if self._advance(part):
                    done.append(self._assess(part.key))
            except NotHeld as error:
                logger.info("%s/%d: %s; trying again", *part.key, error)
        return done

    def _check_sides(self) -> None:
        for side in (self._text, self._new):
            if side.failure is not None:
                raise side.failure

    def _advance(self, part: _Partition) -> bool:
        """Do what is next for a partition; say whether it has just been moved."""
        if part.grant is not None and not part.revoking:
            taken = self._taken(part)
            if taken is not None:
                self._take_back(part, taken)
        if part.text is not None and part.text.reason is not None and not part.handing_over:
            part.text = None
        if part.revoking:
            self._revoke(part)
            return False
        return self._move_back(part) if self.back else self._move(part)

    def _taken(self, part: _Partition) -> str | None:
        """Say how version 1 took a granted partition by force, None if it did not."""
        text = part.text
        if text is None or part.handing_over:
            return None
        if text.reason is not None:
            return text.reason
        cell = self._text.cell(*part.key)
        if cell is not None and cell.holder not in (None, self._text.client_id):
            return f"taken by {cell.holder}"
        if text.held and part.found_at is not None:
            found_at, part.found_at = part.found_at, None
            if text.position != found_at:
                return "worked on while no bridge held it"
        return None

    def _take_back(self, part: _Partition, why: str) -> None:
        part.revoking, part.moved = True, False
        self.conflicts[part.key] = why

    def _revoke(self, part: _Partition) -> None:
        grant = part.grant
        if grant is None or grant.reason is not None:
            part.grant, part.revoking = None, False
            if part.key in self.conflicts:
                part.moved = self.back
        elif grant.held:  # else it is not ours to release yet: it is claimed anew first
            grant.release(wait=False)

    def _move(self, part: _Partition) -> bool:
        """To version 2."""
        if part.text is None:
            part.text = self._text.want(*part.key)
        if part.grant is not None:
            return self._watch_granted(part)
        if part.data is None:
            part.data = self._new.want(*part.key)
        data = part.data
        if data.reason is not None:
            part.data = None
            if part.handing_over:
                part.handing_over = False
                cell = self._new.cell(*part.key)
                is_stored = cell is not None and not cell.held and cell.position >= part.position
                if is_stored and part.text.held:
                    self._grant(part)
            return False
        if part.handing_over or not (part.text.held and data.held):
            return False
        try:
            part.position = self._text_position(part.text)
        except KafkaException as error:
            logger.warning("%s/%d: %s; trying again", *part.key, error.args[0].str())
            return False
        if data.position > part.position and not (part.trusted or self.skip_to_target):
            return False  # a process of version 1 has set its position back meanwhile
        if part.position > data.position:
            data.commit(part.position)
        part.handing_over = True
        data.release(wait=False)  # the position goes with it
        return False

    def _watch_granted(self, part: _Partition) -> bool:
        grant, text = part.grant, part.text
        assert grant is not None  # noqa: S101
        assert text is not None  # noqa: S101
        if grant.reason is not None:  # lost, with the log or by reading too late
            part.grant = None
            if text.held:
                self._grant(part)
            return False
        if not (grant.held and text.held):
            return False
        self.conflicts.pop(part.key, None)
        position = position_of(self._new.cell(*part.key))
        if position > text.next_offset:
            text.commit(position)
        was_moved, part.moved = part.moved, True
        return not was_moved

    def _move_back(self, part: _Partition) -> bool:
        """To version 1."""
        if part.data is None or part.data.reason is not None:
            part.data = self._new.want(*part.key)
        data, text = part.data, part.text
        if part.moved:
            position = position_of(self._text.cell(*part.key))
            if data.held and position > data.next_offset:
                data.commit(position)
            return False
        if text is None or text.reason is not None:  # released by us, or version 1's already
            part.handing_over, part.text, part.moved = False, None, True
            return True
        if part.handing_over:
            return False
        if not data.held:
            if part.grant is not None and part.grant.reason is not None and text.held:
                self._grant(part)
        elif part.grant is not None:
            part.revoking = True
            self._revoke(part)
        elif text.held:
            if data.position > text.next_offset:
                text.commit(data.position)
            part.handing_over = True
            text.release(wait=False)
        return False

    def _text_position(self, claim: Claim) -> int:
        """Return where version 1 is; without a word in its log, where Go would begin."""
        if claim.position >= 0:
            return claim.position
        settings = self._text.settings
        return committed_position(
            settings.kafka, settings.group_id, claim.topic, claim.partition, timeout_s=5.0
        )

    # The lease in version 1 is version 2's, too

    def _grant(self, part: _Partition) -> None:
        part.trusted = True
        part.grant = self._new.want(GRANT_PREFIX + part.key[0], part.key[1])
        part.grant.set_metadata(encode_lease(0, self._wall_s()))  # not what the last bridge said

    def _pass_leases_on(self) -> None:
        """Put what is left of the leases in version 1 into the grants, before a heartbeat goes."""
        wall_s = self._wall_s()
        for part in self._in_order:
            grant, text = part.grant, part.text
            if grant is None or text is None or part.revoking:
                continue
            # Also when nothing is left: what was said before goes out again until it is read.
            grant.set_metadata(encode_lease(text.remaining_ms, wall_s))

    # Ending

    def finish(self, timeout_s: float = 30.0) -> None:
        """Release everything. Only when no process of the source runs any more."""
        deadline = time.monotonic() + timeout_s
        for _ in self.end():
            if time.monotonic() >= deadline:
                raise ClaimTimeout(f"the releases were not seen within {timeout_s:g} s")
            time.sleep(LOOK_S)

    def end(self) -> Iterator[None]:
        """Do what `finish` does, yielding while there is something to wait for."""
        # Version 2 is bound by grants until it has read that there is no migration any more. Grants
        # go last: by one that is left, the next run sees that this one was ending (`ended`).
        parts = self._in_order
        for claims in (
            list(self._migrations.values()),
            [claim for part in parts for claim in (part.text, part.data) if claim is not None],
            [part.grant for part in parts if part.grant is not None],
        ):
            for claim in claims:
                claim.release(wait=False)
            while any(claim.reason is None for claim in claims):
                self._check_sides()
                yield
        self._migrations.clear()

"""What a consumer tells of itself: its partitions, and whether it is well."""

from __future__ import annotations

from dataclasses import dataclass

from marshal_py.consumer.core import ConsumerCore
from marshal_py.consumer.held_partition import HeldPartition, Stage

__all__ = ["AssignedPartition", "Health", "assignment", "health"]


@dataclass(frozen=True)
class AssignedPartition:
    """A partition that a consumer works on."""

    topic: str
    partition: int
    epoch: int
    """What fences: that of the claim; −1 with ``wire="text"``, where there is none."""
    position: int
    """Everything below is done (at most once: claimed); −1 while nothing is known."""
    done_above: int
    """Offsets above the position that are done, as messages before them are not."""
    gaps: int
    """In how many stretches those lie: so many times, work waits for something before it."""
    paused: bool
    """By `Consumer.pause`."""
    slot: int | None = None
    """The number of the slot, where partitions are shared by keys."""


@dataclass(frozen=True)
class Health:
    """Whether a consumer is well; if not, why."""

    ok: bool
    problems: tuple[str, ...] = ()


def assignment(core: ConsumerCore) -> list[AssignedPartition]:
    """See `Consumer.assignment`."""
    is_text = core.marshal.settings.wire == "text"
    found = []
    for part in core.partitions.all():
        if part.stage not in (Stage.ACTIVE, Stage.DRAINING):
            continue
        _, ranges = ((), ()) if core.delivery.claims_messages else part.done_above()
        found.append(
            AssignedPartition(
                part.topic,
                part.partition,
                -1 if is_text else part.claim.epoch,
                core.delivery.position(part),
                sum(end - first for first, end in ranges),
                len(ranges),
                part.is_paused,
                None if part.slot is None else part.slot.number,
            )
        )
    return sorted(found, key=lambda each: (each.topic, each.partition, each.slot or 0))


def _has_lapsed(part: HeldPartition) -> bool:
    """Whether nothing of it goes out for want of a lease.

    The claim is asked, too: whoever sets `suspended` may wait for a program's `on_assigned`.
    """
    is_active = part.stage is Stage.ACTIVE and not part.holding.paused
    return part.suspended or (is_active and not part.claim.held)


def health(core: ConsumerCore, stuck: int) -> Health:
    """See `Consumer.health`. `stuck`: so many handlers are."""
    problems = []
    failure = core.wakeup.failure or core.marshal.failure
    if core.closing.is_set():
        problems.append("it is closed, or closing")
    elif not core.started:
        problems.append("it has not started yet")
    elif failure is not None:
        problems.append(f"{type(failure).__name__}: {failure}")
    elif core.marshal.refused is not None:  # in the end others have all, and no lease has lapsed
        problems.append(f"{type(core.marshal.refused).__name__}: {core.marshal.refused}")
    elif core.fetcher.problem is not None:
        problems.append(f"nothing is fetched for now: {core.fetcher.problem}")
    else:
        lapsed = [part for part in core.partitions.all() if _has_lapsed(part)]
        if lapsed:
            names = ", ".join(sorted(f"{part.topic}/{part.partition}" for part in lapsed)[:3])
            problems.append(f"the leases of {len(lapsed)} partitions have lapsed: {names}")
        elif not core.assignment.is_alive:
            problems.append("its thread that claims partitions has ended")
    if stuck:
        problems.append(f"{stuck} handlers do not return")
    return Health(not problems, tuple(problems))

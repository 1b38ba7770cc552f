"""The parts of a consumer, put together. `Consumer` and `AsyncConsumer` are faces of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from marshal_py.client import forks
from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.assignment import Assignment
from marshal_py.consumer.at_least_once import AtLeastOnce
from marshal_py.consumer.at_most_once import AtMostOnce
from marshal_py.consumer.callbacks import Callbacks
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.fetcher import Fetcher, key_of
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.iteration import Iteration
from marshal_py.consumer.options import ConsumerOptions
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.sharing import Sharing
from marshal_py.consumer.topics import Topics
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.consumer.work import Work
from marshal_py.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    Closed,
    DeliveriesExhausted,
    Forked,
    MarshalError,
)
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.slots import BY_RANGES, slot_of, slot_of_key, slots_cell, source_of

if TYPE_CHECKING:  # what only some need is imported there: a restart is mostly imports
    import asyncio

    from marshal_py.consumer.offset_mirror import OffsetMirror
    from marshal_py.consumer.ranges import RangeClaims

__all__ = ["ConsumerCore", "Handlers"]

logger = logging.getLogger("marshal_py.consumer")


class Handlers(Work, Protocol):
    """What a consumer needs of the handlers that it runs: of `Runner`."""

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether `part` should not be given back yet."""

    def runs(self, part: HeldPartition) -> bool:
        """Whether a handler works on something of `part` now."""

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Finish what is in flight, and end."""


class ConsumerCore:
    """The parts of one consumer, from `start` to `close`.

    `owns_marshal`: the client was made for it, and ends with it.
    """

    def __init__(self, marshal: Marshal, options: ConsumerOptions, *, owns_marshal: bool) -> None:
        self.marshal: Final = marshal
        self.owns_marshal = owns_marshal
        self.keep_on_close = options.keep_on_close
        self.max_deliveries = options.max_deliveries
        self.log: Final = Fields(logger, driver_of(marshal).log.extra)
        """The logger, with who this is in every record."""
        self.closing: Final = threading.Event()
        self.started = False
        self.handlers: Handlers | None = None
        """What `Consumer.run` runs, None while it does not."""
        self.event_loop: asyncio.AbstractEventLoop | None = None
        """Where handlers that are coroutines run, None for a loop of their own."""
        self.deserializers: Final = options.deserializers
        self.wakeup: Final = Wakeup()
        self.callbacks: Final = Callbacks(
            options.on_assigned, options.on_revoked, self.log, self.wakeup, marshal.client_id
        )
        self.fetcher: Final = Fetcher(
            marshal, options.kafka, self.log, self.wakeup, batch_size=options.batch_size
        )
        self.delivery: Final[Delivery] = (
            AtMostOnce(marshal, self.fetcher, self.log, self.wakeup, self.closing)
            if options.mode == "at_most_once"
            else AtLeastOnce(self.fetcher, self.wakeup)
        )
        self.iteration: Final = Iteration(
            marshal,
            self.fetcher,
            self.delivery,
            self.deserializers,
            self.wakeup,
            start=self.start,
            closing=self.closing,
        )
        self.admin: Final = driver_of(marshal).admin
        self.admin.is_kept = True  # the topics are looked at, too
        self.topics: Final = Topics(
            marshal,
            self.admin,
            self.fetcher,
            self.log,
            options.subscription,
            discovery_interval_s=options.discovery_interval_s,
        )
        self.positions: Final = Positions(
            marshal,
            self.admin,
            self.delivery,
            self.topics,
            self.log,
            start=options.start,
            on_missing=options.on_missing,
            isolation_level=self.fetcher.isolation_level,
        )
        self._slots = options.subscription.slots
        self.ranges: RangeClaims | None = None
        sharing = Sharing(marshal, self._slots)
        self.partitions: Final = Partitions(
            marshal,
            self.fetcher,
            self.delivery,
            self.positions,
            sharing,
            self.log,
            self.wakeup,
            callbacks=self.callbacks,
            busy_with=self.busy_with,
            in_use=self.in_use,
            manual=not options.auto_ack and not self.delivery.claims_messages,
        )
        if self._slots == BY_RANGES:
            from marshal_py.consumer.ranges import RangeClaims

            self.ranges = RangeClaims(
                marshal,
                self.partitions,
                self.positions,
                self.fetcher,
                self.delivery,
                lambda: self.handlers or self.iteration,
                self.log,
                self.wakeup,
                max_deliveries=options.max_deliveries,
            )
        self.assignment: Final = Assignment(
            marshal,
            self.topics,
            self.partitions,
            self.positions,
            sharing,
            self.fetcher,
            self.delivery,
            self.log,
            self.wakeup,
            options.subscription,
            self.ranges,
            greedy=options.greedy,
            settle_ms=options.settle_ms,
        )
        self.mirror: OffsetMirror | None = None
        if options.mirror_group is not None:
            from marshal_py.consumer.offset_mirror import OffsetMirror

            self.mirror = OffsetMirror(
                marshal.settings.kafka, options.mirror_group, self.claims, self._position_of
            )
        self._life = threading.Lock()

    @property
    def lock(self) -> threading.RLock:
        """See `forks.Forkable`: nothing of it is used in a child, so any lock will do."""
        return driver_of(self.marshal).lock

    def forked(self, error: Forked) -> None:
        """See `forks.Forkable`: the loop asks the client why it should stop."""

    def claims(self) -> list[Claim]:
        """Return the claims of all partitions that are fetched, lapsed ones included."""
        return [part.claim for part in list(self.fetcher.active.values())]

    def part_of(self, message: Any) -> HeldPartition | None:
        """Return the partition, or slot, that a message was handed out from, if it is wanted."""
        source = key_of(message)
        if self.ranges is not None:
            return self.ranges.part_of(*source, message.offset())
        if not self._slots:
            return self.partitions.by_key.get(source)
        name = slots_cell(*source, self._slots)
        if not self.deserializers.changes_keys:
            slot = slot_of_key(message.key(), message.offset(), self._slots)
            return self.partitions.by_key.get((name, slot))
        for part in self.parts_of(*source):  # its key does not tell any more
            if part.has_handed_out(message.offset()):
                return part
        return None

    def parts_of(self, topic: str, partition: int) -> list[HeldPartition]:
        """Return what is wanted of a partition: itself, or some slots of it."""
        return [part for part in self.partitions.all() if part.source == (topic, partition)]

    def _position_of(self, claim: Claim) -> tuple[Unit, int] | None:
        """Return where a partition stands in the log, None if another claim tells.

        One that is shared by keys stands at the lowest of its slots, as whoever holds the first of
        them tells; one that is shared by ranges, at the first message that is not done, as whoever
        holds the first range that is open tells.
        """
        if self.ranges is not None:
            return self.ranges.standing_of(claim)
        slot = slot_of(claim.topic, claim.partition)
        at = max(claim.stored_offset, claim.claimed_offset)
        if slot is not None:
            if slot.number:
                return None
            driver = driver_of(self.marshal)
            with driver.lock:  # also when it is closed: what was stored at the end counts
                world, group = driver.world, self.marshal.group_id
                cells = [world.cell(group, claim.topic, n) for n in range(slot.slots)]
            at = min(-1 if cell is None else cell.position for cell in cells)
        return source_of(claim.topic, claim.partition), at

    def check_deliveries(self, part: HeldPartition) -> None:
        """Raise `DeliveriesExhausted` for a message that was claimed too often and not got done.

        It is alone in its range then: `range_choice.piece` has seen to that.
        """
        held, most = part.range, self.max_deliveries
        if held is None or most is None or held.granted <= most:
            return
        if held.end - part.first_offset == 1:
            raise DeliveriesExhausted(
                f"{part.topic}/{part.partition} at offset {part.first_offset} was claimed "
                f"{held.granted} times, and nobody got past it (max_deliveries = {most})"
            )

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether something of `part` is in the user's hands, or must still go there."""
        if self.handlers is not None:
            return self.delivery.has_claimed(part) or self.handlers.busy_with(part)
        return self.iteration.busy_with(part)

    def in_use(self, part: HeldPartition) -> bool:
        """Whether the user works on a message of `part` now."""
        if self.handlers is not None:
            return self.handlers.runs(part)
        return self.iteration.is_looping and part.run is not None

    # Life

    def start(self) -> None:
        """Connect and begin to claim; once is enough. Raises as `Consumer.start` does."""
        if isinstance(self.marshal.failure, Forked):
            raise self.marshal.failure
        with self._life:
            if self.started:
                if self.closing.is_set():
                    raise Closed("the consumer has been closed; make a new one")
                return
            self.callbacks.check()
            self.fetcher.open()
            try:
                self._discover_and_join()
                metadata = self.assignment.subscription.encode()
                if self.marshal.settings.wire != "text" and (
                    self.marshal.settings.member_metadata != metadata
                ):
                    self.marshal.set_member_metadata(metadata)
                self.assignment.start()
                forks.watch(self)
                if self.mirror is not None:
                    self.mirror.start()
            except BaseException:
                self.fetcher.close()
                if self.owns_marshal:
                    self.marshal.close(timeout_s=1)
                raise
            self.started = True

    def _discover_and_join(self) -> None:
        """Look for the topics while the log is replayed: a restart waits for both.

        Without its topics the client never appears in the group.
        """
        driver, given_up = driver_of(self.marshal), threading.Event()
        if driver.started:
            self.topics.discover_at_start(given_up)
            return
        failures: list[BaseException] = []

        def discover() -> None:
            try:
                self.topics.discover_at_start(given_up)
            except BaseException as error:
                failures.append(error)

        discovery = threading.Thread(target=discover, name="marshal-discovery", daemon=True)
        discovery.start()
        try:
            driver.connect()
        except MarshalError as error:
            if isinstance(error, AuthenticationFailed | BrokerUnavailable):
                given_up.set()  # they ask the same brokers; this one says why there is no answer
            discovery.join()
            if given_up.is_set():
                failures.clear()
            failures.append(error)
        except BaseException:
            given_up.set()
            discovery.join()
            raise
        else:
            discovery.join()
            if failures:
                driver.disconnect()
        if failures:
            raise failures[0]
        driver.start()
        self.owns_marshal = True

    def close(self, timeout_s: float, *, mine: bool) -> None:
        """See `Consumer.close`.

        `mine`: who closes is who iterates, so nothing that it has in hand is waited for.
        """
        if isinstance(self.marshal.failure, Forked):
            return
        with self._life:
            if self.closing.is_set():
                return
            self.closing.set()
            self.fetcher.interrupt()
            if not self.started:
                self.started = True
                return
        deadline = time.monotonic() + timeout_s
        if self.mirror is not None:
            self.mirror.keep()
        if self.handlers is not None and not mine:
            self.handlers.stop(timeout_s)
        if mine:
            self.iteration.leave()
        # Nobody but this thread has ever acknowledged anything: nobody is there to wait for.
        wait_s = timeout_s if not mine or self.iteration.others_acknowledge else 0.0
        release = not self.keep_on_close
        self.assignment.close(wait_s, deadline, release=release)
        if self.owns_marshal:
            self.marshal.close(max(1.0, deadline - time.monotonic()), release=release)
        elif driver_of(self.marshal).running and self.marshal.settings.wire != "text":
            with contextlib.suppress(MarshalError):
                self.marshal.set_member_metadata(b"")
        if self.mirror is not None:
            self.mirror.close(max(1.0, deadline - time.monotonic()))
        self.delivery.close(self.iteration.hand)
        self.fetcher.close()

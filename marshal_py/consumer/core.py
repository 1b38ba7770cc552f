"""The parts of a consumer, put together. `Consumer` and `AsyncConsumer` are faces of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from marshal_py.client import forks
from marshal_py.client.marshal import Claim, Marshal, driver_of
from marshal_py.client.signals import hush
from marshal_py.client.structured_logs import Fields
from marshal_py.client.waiting import FOR_EVER_S
from marshal_py.consumer.agreement import Agreement
from marshal_py.consumer.assignment import Assignment, Claims
from marshal_py.consumer.at_least_once import AtLeastOnce
from marshal_py.consumer.at_most_once import AtMostOnce
from marshal_py.consumer.callbacks import Callbacks
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.iteration import Iteration
from marshal_py.consumer.options import ConsumerOptions
from marshal_py.consumer.partition_claims import PartitionClaims
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.shared import ByPartitions, BySlots, Shared
from marshal_py.consumer.topics import Topics
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.consumer.work import Work
from marshal_py.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    DeliveriesExhausted,
    Forked,
    MarshalError,
)

if TYPE_CHECKING:  # what only some need is imported there: a restart is mostly imports
    import asyncio

    from marshal_py.consumer.offset_mirror import OffsetMirror
    from marshal_py.consumer.rejections import Rejections

__all__ = ["ConsumerCore", "Handlers"]

logger = logging.getLogger("marshal_py.consumer")


class Handlers(Work, Protocol):
    """What a consumer needs of the handlers that it runs: of `Runner`."""

    def runs(self, part: HeldPartition) -> bool:
        """Whether a handler works on something of `part` now."""

    def raw_of(self, message: Any) -> tuple[Any, Any] | None:
        """Return key and value, as they came, of a message that a handler has; None: it has not."""

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Finish what is in flight, and end."""

    @property
    def is_within(self) -> bool:
        """Whether the caller is a handler, or called by who runs them: it is waited for."""


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
        wanted = options.subscription
        agreement = Agreement(marshal, wanted.agreed)
        self.partitions: Final = Partitions(
            marshal,
            self.fetcher,
            self.delivery,
            self.positions,
            agreement,
            self.log,
            self.wakeup,
            callbacks=self.callbacks,
            busy_with=self.busy_with,
            in_use=self.in_use,
            manual=not options.auto_ack and not self.delivery.claims_messages,
        )
        claims, shared = self._sharing(agreement, options)
        self.shared: Final[Shared] = shared
        self.assignment: Final = Assignment(
            marshal,
            self.topics,
            self.partitions,
            self.positions,
            claims,
            self.fetcher,
            self.delivery,
            self.log,
            self.wakeup,
        )
        self.rejections: Rejections | None = None
        """Where rejected messages are written; None: they are not."""
        if options.dead_letter_topic is not None:
            self.write_rejected(options.dead_letter_topic)
        self.mirror: OffsetMirror | None = None
        if options.mirror_group is not None:
            from marshal_py.consumer.offset_mirror import OffsetMirror

            self.mirror = OffsetMirror(
                marshal.settings.kafka, options.mirror_group, self.claims, self.shared.standing_of
            )
        self._life = threading.RLock()  # a signal handler may call `close` within `start`
        self._is_connecting = False
        """Within `start`, the client is being started, and is this consumer's own."""
        self._is_unwanted = False
        """It was closed before `start` had come to its end."""

    def _sharing(self, agreement: Agreement, options: ConsumerOptions) -> tuple[Claims, Shared]:
        """Return what claims, and what its members share as `Consumer` sees it."""
        marshal, wanted = self.marshal, options.subscription
        if wanted.sharing == "ranges":
            from marshal_py.consumer.by_ranges import ByRanges
            from marshal_py.consumer.ranges import RangeClaims

            ranges = RangeClaims(
                marshal,
                self.partitions,
                self.positions,
                self.fetcher,
                self.delivery,
                self.topics,
                agreement,
                lambda: self.handlers or self.iteration,
                self.log,
                self.wakeup,
                max_deliveries=options.max_deliveries,
            )
            releases = not options.auto_ack and not self.delivery.claims_messages
            return ranges, ByRanges(ranges, wanted, releases=releases)
        claims = PartitionClaims(
            marshal,
            self.topics,
            self.partitions,
            self.positions,
            agreement,
            self.fetcher,
            self.log,
            self.wakeup,
            wanted,
            greedy=options.greedy,
            settle_ms=options.settle_ms,
        )
        parts = (self.partitions, self.positions, self.fetcher, claims)
        if wanted.sharing == "keys":
            return claims, BySlots(marshal, *parts, self.deserializers, wanted.slots)
        return claims, ByPartitions(*parts)

    @property
    def lock(self) -> threading.RLock:
        """See `forks.Forkable`: nothing of it is used in a child, so any lock will do."""
        return driver_of(self.marshal).lock

    def forked(self, error: Forked) -> None:
        """See `forks.Forkable`: the loop asks the client why it should stop."""

    def claims(self) -> list[Claim]:
        """Return the claims of all partitions that are fetched, lapsed ones included."""
        return [part.claim for part in list(self.fetcher.active.values())]

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

    # What is rejected

    def write_rejected(self, dead_letter_topic: str) -> None:
        """Have rejected messages written there from now on, unless they are written already."""
        from marshal_py.consumer.rejections import Rejections

        if self.rejections is None:
            self.rejections = Rejections(self.marshal, self.topics, dead_letter_topic)
            self.iteration.keeps_raw = True

    def reject(self, message: Any, reason: str) -> None:
        """Write a message that is not to come again as a dead letter, and say so in the log."""
        part = self.shared.part_of(message)
        if part is None:
            return  # whoever holds it now delivers it again
        if self.rejections is not None:
            raw = None if self.handlers is None else self.handlers.raw_of(message)
            raw = raw or self.iteration.raw_of(part, message)
            self.rejections.write(message, raw, part, reason)
        self.log.warning(
            "%s: %s/%d at offset %d is rejected: it %s",
            self.marshal.client_id,
            message.topic(),
            message.partition(),
            message.offset(),
            "will not come again" if self.rejections is None else "is a dead letter now",
        )

    # Life

    def start(self) -> None:
        """Connect and begin to claim; once is enough. Raises as `Consumer.start` does."""
        if isinstance(self.marshal.failure, Forked):
            raise self.marshal.failure
        with self._life:
            if self.closing.is_set():
                raise Closed("the consumer has been closed; make a new one")
            if self.started:
                return
            self.callbacks.check()
            self.fetcher.open()
            try:
                self._attach()
                self._discover_and_join()
                if self.rejections is not None:
                    self.rejections.check()
                metadata = self.shared.subscription.encode()
                if self.marshal.settings.wire != "text" and (
                    self.marshal.settings.member_metadata != metadata
                ):
                    self.marshal.set_member_metadata(metadata)
                self.assignment.start()
                forks.watch(self)
                if self.mirror is not None:
                    self.mirror.start()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    hush(error)
                self._is_connecting = False
                self.fetcher.close()
                self._detach()
                if self.owns_marshal:
                    self.marshal.close(timeout_s=1)
                raise
            self.started = True
            if self._is_unwanted:
                self._close(1.0, mine=False)
                raise Closed("the consumer was closed while it started; make a new one")

    def _attach(self) -> None:
        """Be the consumer of the client; `ConfigurationError` where another one runs with it."""
        driver = driver_of(self.marshal)
        with driver.lock:
            if driver.consumer is not None:
                raise ConfigurationError(
                    f"another consumer runs with this Marshal ({self.marshal.client_id!r}), and a "
                    "member of a group tells it one set of topics: give one consumer all of them, "
                    "or the second a Marshal of its own"
                )
            driver.consumer = self

    def _detach(self) -> None:
        """Be the consumer of the client no more, if this is it: another one may run with it."""
        driver = driver_of(self.marshal)
        with driver.lock:
            if driver.consumer is self:
                driver.consumer = None

    def _discover_and_join(self) -> None:
        """Look for the topics while the log is replayed: a restart waits for both.

        Without its topics the client never appears in the group.
        """
        driver, given_up = driver_of(self.marshal), threading.Event()
        if driver.started:
            with driver.lock:
                driver.check_open()  # of one that was closed nothing ever comes
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
        self._is_connecting = True
        try:
            driver.connect()
        except MarshalError as error:
            if isinstance(error, AuthenticationFailed | BrokerUnavailable | Closed):
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
        self.owns_marshal, self._is_connecting = True, False

    def close(self, timeout_s: float, *, mine: bool) -> None:
        """See `Consumer.close`.

        `mine`: who closes is who iterates, so nothing that it has in hand is waited for.
        """
        if isinstance(self.marshal.failure, Forked):
            return
        timeout_s = min(timeout_s, FOR_EVER_S)
        if self.handlers is not None and self.handlers.is_within:
            self.handlers.stop(timeout_s)  # who runs them closes this when they have ended
            return
        if self.callbacks.is_within:
            closer = threading.Thread(
                target=partial(self.close, timeout_s, mine=False), name="marshal-close"
            )
            closer.start()
            self.closing.wait(timeout_s)  # nothing more goes out
            return
        with self._life:
            if self.closing.is_set():
                return
            self.closing.set()
            self.fetcher.interrupt()
            if not self.started:
                self.started = self._is_unwanted = True
                if self._is_connecting:
                    self.marshal.close()  # it gives up, and `start` raises `Closed`
                return
        self._close(timeout_s, mine=mine)

    def _close(self, timeout_s: float, *, mine: bool) -> None:
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
        try:
            self.assignment.close(wait_s, deadline, release=release)
        except BaseException:  # Ctrl-C: nothing is waited for any more
            deadline = time.monotonic()
            raise
        finally:  # or what is held would be, for as long as this process lives
            self._end(deadline, release=release)

    def _end(self, deadline: float, *, release: bool) -> None:
        """Close all that nothing is given back with."""
        if self.owns_marshal:
            self.marshal.close(max(1.0, deadline - time.monotonic()), release=release)
        elif driver_of(self.marshal).running and self.marshal.settings.wire != "text":
            with contextlib.suppress(MarshalError):
                self.marshal.set_member_metadata(b"")
        self._detach()  # before anything that Ctrl-C may break off
        if self.mirror is not None:
            self.mirror.close(max(1.0, deadline - time.monotonic()))
        self.delivery.close(self.iteration.hand)
        if self.rejections is not None:
            self.rejections.close()
        self.fetcher.close()

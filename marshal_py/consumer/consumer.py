"""`Consumer`: shares the partitions of topics among the members of a group, over claims.

Each partition is claimed, read from the claim's position with one confluent-kafka consumer (no
Kafka consumer group is involved), and given back when others should have it. Who should hold what
is decided by each member for itself (see `marshal_py.protocol.balance`); nothing stops while things
move.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message

from marshal_py.client.kafka_clients import connect
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.client.signals import StopRequests
from marshal_py.consumer.assignment import Keeper
from marshal_py.consumer.claim_metadata import ClaimMetadata
from marshal_py.consumer.fetcher import FETCH, key_of
from marshal_py.consumer.handlers.schedule import Ordering
from marshal_py.consumer.held_partition import Batch, HeldPartition, Run, Stage
from marshal_py.consumer.iteration import Iterating
from marshal_py.consumer.options import Mode, Start, check, check_names, client_of, start_ms
from marshal_py.errors import (
    Closed,
    ConfigurationError,
    MarshalError,
    NotHeld,
)
from marshal_py.protocol.subscription import Subscription

if TYPE_CHECKING:  # what only some need is imported there: a restart is mostly imports
    import asyncio

    from marshal_py.consumer.handlers.options import Executor, OnFailure, Retry, Stuck
    from marshal_py.consumer.handlers.runner import Runner, RunStats
    from marshal_py.consumer.offset_mirror import OffsetMirror

__all__ = ["Batch", "Consumer", "Mode", "Start"]

logger = logging.getLogger("marshal_py.consumer")

_offset_of: Callable[[Any], int] = Message.offset  # type: ignore[assignment]


class Consumer(Iterating):
    """Consumes topics together with the other members of a group.

    ::

        with Consumer("localhost:9092", group_id="billing", topics=["orders"]) as consumer:
            for message in consumer:      # confluent_kafka.Message, unchanged
                handle(message.value())   # it is done when the loop asks for the next one

    - `config`: librdkafka settings or just the brokers, or a `Marshal` of your own (`group_id` and
      all that follows `settings` below are then its matter).
    - `topics`: a name or several; `pattern`: a regular expression for whole names. Partitions and
      topics that appear later are picked up within `discovery_interval_s`.
    - `mode`: ``"at_least_once"``: what is stored is the lowest offset not yet done; after a crash
      at most one interval of messages comes again. ``"at_most_once"``: messages are claimed in the
      log before they are handed out; after a crash some are lost, and none comes twice, whatever
      clocks and networks do (specs/PROTOCOL.md §5.11).
    - `start`: where to begin without a stored position: ``"earliest"``, ``"latest"``, a `datetime`,
      or milliseconds since 1970.
    - `auto_ack`: a message (or batch) is done when the loop asks for the next. With False, `ack`
      says so, in any order and from any thread.
    - `greedy`: with ``wire="text"`` alone: take all that is free at once, not one by one.
    - `claim_entire_topic`: all partitions of a topic go to one member; the claim on partition 0
      decides.
    - `max_claims`, `weight`, `by_lag`, `labels`, `prefer`: this member's part in the sharing, see
      `Subscription`.
    - `batch_size`: most messages in one batch.
    - `keep_on_close`: keep the claims over a restart: `close` stores positions and releases
      nothing. A new start under the same `client_id` within two intervals goes on at once.
    - `mirror_offsets`: copy the positions every few seconds to Kafka's own committed offsets, under
      the group's name (or the name given here), for lag exporters. No other Kafka consumer group of
      that name may be in use. A failure is a warning, and stops nothing.
    - `kafka`: librdkafka settings for the messages alone, such as ``isolation.level``.
    - `key_deserializer`, `value_deserializer`: as for confluent-kafka's DeserializingConsumer.
    - `settings`: all else is for `Marshal`: `client_id`, `interval_ms`, `create_topics`, ...

    Raises `ConfigurationError` before anything touches the network; starting (`with`, or the first
    iteration) raises `TopicMissing` and `BrokerUnavailable`; iterating raises what stops the client
    for good, such as `DuplicateClientId`. Outages raise nothing: leases lapse, delivery stops, and
    goes on when the brokers are back.

    One thread iterates; `ack`, `commit` and `close` are for any thread.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Marshal,
        *,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        group_id: str | None = None,
        mode: Mode = "at_least_once",
        start: Start = "earliest",
        auto_ack: bool = True,
        claim_entire_topic: bool = False,
        max_claims: int | None = None,
        weight: float = 1.0,
        by_lag: bool = False,
        labels: Mapping[str, str] | None = None,
        prefer: Iterable[str] = (),
        batch_size: int = FETCH,
        greedy: bool = False,
        keep_on_close: bool = False,
        mirror_offsets: bool | str = False,
        kafka: Mapping[str, Any] | None = None,
        key_deserializer: Callable[..., Any] | None = None,
        value_deserializer: Callable[..., Any] | None = None,
        discovery_interval_s: float = 10.0,
        settle_ms: int = 100,
        **settings: Any,
    ) -> None:
        check_names(settings, Consumer.__init__)
        check(
            topics=topics,
            auto_ack=auto_ack,
            claim_entire_topic=claim_entire_topic,
            by_lag=by_lag,
            labels=labels,
            prefer=prefer,
            greedy=greedy,
            keep_on_close=keep_on_close,
            mirror_offsets=mirror_offsets,
            kafka=kafka,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            discovery_interval_s=discovery_interval_s,
            settle_ms=settle_ms,
        )
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names and pattern is None:
            raise ConfigurationError("no topics: give `topics`, `pattern`, or both")
        if mode not in ("at_least_once", "at_most_once"):
            raise ConfigurationError(f"mode = {mode!r} must be 'at_least_once' or 'at_most_once'")
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigurationError(f"batch_size = {batch_size!r} must be 1 or more")
        self.start_ms = start_ms(start)
        self.mode: Mode = mode
        self.auto_ack = auto_ack
        self.keep_on_close = keep_on_close
        self.greedy = greedy
        self.claim_entire_topic = claim_entire_topic
        self.subscription = Subscription(
            frozenset(names),
            pattern,
            claim_entire_topic,
            max_claims,
            weight,
            by_lag,
            dict(labels or {}),
            tuple(prefer),
        )
        super().__init__(
            client_of(config, group_id, settings, self.subscription, mode=mode, greedy=greedy),
            kafka,
            batch_size=batch_size,
            at_most_once=mode == "at_most_once",
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )
        self._owns_marshal = not isinstance(config, Marshal)
        self.discovery_interval_s = discovery_interval_s
        self.settle_ms = settle_ms
        self.parts: dict[tuple[str, int], HeldPartition] = {}
        """All partitions that are wanted, held or being given back. The keeper's."""
        self._acks_from_elsewhere = False
        self._runner: Runner | None = None
        self._stop_asked: tuple[float | None] | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        """Where `run` has coroutines run, if not in a loop of its own: set by `AsyncConsumer`."""
        self._started = False
        self._life = threading.Lock()
        self._keeper = Keeper(self)
        self.mirror_offsets = mirror_offsets
        self._mirror: OffsetMirror | None = None
        if mirror_offsets:
            from marshal_py.consumer.offset_mirror import OffsetMirror

            name = self.marshal.group_id if mirror_offsets is True else mirror_offsets
            self._mirror = OffsetMirror(self.marshal.settings.kafka, name, self._claimed)

    @property
    def closing(self) -> bool:
        """Whether `close` has been called."""
        return self._closing.is_set()

    @property
    def manual(self) -> bool:
        """Whether messages are acknowledged one by one."""
        return (not self.auto_ack or self._runner is not None) and not self._amo

    def busy_with(self, part: HeldPartition) -> bool:
        """Whether something of `part` is in the user's hands, or must still go there."""
        if self._runner is not None:
            return (self._amo and self._has_claimed(part)) or self._runner.busy_with(part)
        if self._amo:
            if self._closing.is_set() and not self._looping:
                return False  # nobody will come for it
            return self._has_claimed(part) or (part.run is not None and self._looping)
        if self.manual:
            return part.outstanding > 0
        return part.run is not None and self._looping

    # Life

    def start(self) -> Self:
        """Connect and begin to claim. Returns the consumer itself; once is enough."""
        with self._life:
            if self._started:
                if self._closing.is_set():
                    raise Closed("the consumer has been closed; make a new one")
                return self
            self._consumer = connect(KafkaConsumer, self._kafka_config)
            try:
                self._discover_and_join()
                if self.marshal.settings.wire != "text" and (
                    self.marshal.settings.member_metadata != self.subscription.encode()
                ):
                    self.marshal.set_member_metadata(self.subscription.encode())
                self._keeper.start()
                if self._mirror is not None:
                    self._mirror.start()
            except BaseException:
                self._consumer.close()
                if self._owns_marshal:
                    self.marshal.close(timeout_s=1)
                raise
            self._started = True
        return self

    def _discover_and_join(self) -> None:
        """Look for the topics while the log is replayed: a restart waits for both.

        Without its topics the client never appears in the group.
        """
        marshal, given_up = self.marshal, threading.Event()
        if marshal.driver.started:
            self._keeper.discover_at_start(given_up)
            return
        failures: list[BaseException] = []

        def discover() -> None:
            try:
                self._keeper.discover_at_start(given_up)
            except BaseException as error:
                failures.append(error)

        discovery = threading.Thread(target=discover, name="marshal-discovery", daemon=True)
        discovery.start()
        try:
            marshal.driver.connect()
        except MarshalError as error:
            discovery.join()
            failures.append(error)
        except BaseException:
            given_up.set()
            discovery.join()
            raise
        else:
            discovery.join()
            if failures:
                marshal.driver.disconnect()
        if failures:
            raise failures[0]
        marshal.driver.start()
        self._owns_marshal = True

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop handing out, wait for what is being worked on, store positions, release all.

        Waits up to `timeout_s`, altogether, for messages that other threads still have to
        acknowledge; what is not done by then will be delivered again, here or elsewhere. A message
        that this thread has in hand is not waited for. For any thread, and safe to call twice.
        `run`, if it runs in another thread, returns.
        """
        self._close(timeout_s, mine=self._loop_thread == threading.get_ident())

    def _close(self, timeout_s: float, *, mine: bool) -> None:
        """`mine`: who closes is who iterates, so nothing that it has in hand is waited for."""
        with self._life:
            if self._closing.is_set():
                return
            self._closing.set()
            if not self._started:
                self._started = True
                return
        deadline = time.monotonic() + timeout_s
        if self._mirror is not None:
            self._mirror.keep()
        if self._runner is not None and not mine:
            self._runner.stop(timeout_s)
        if mine:
            self._looping = False
        # Nobody but this thread has ever acknowledged anything: nobody is there to wait for.
        wait_s = timeout_s if not mine or self._acks_from_elsewhere else 0.0
        self._keeper.close(wait_s, deadline, release=not self.keep_on_close)
        if self._owns_marshal:
            self.marshal.close(
                max(1.0, deadline - time.monotonic()), release=not self.keep_on_close
            )
        elif self.marshal.driver.running and self.marshal.settings.wire != "text":
            with contextlib.suppress(MarshalError):
                self.marshal.set_member_metadata(b"")
        if self._mirror is not None:
            self._mirror.close(max(1.0, deadline - time.monotonic()))
        claimed = sum(length_hint(run.rest) for run in [*self._proposed, *self._in_hand()])
        claimed += sum(  # of what was gathered, most was not
            message.offset() < run.part.claim.claimed_offset
            for run in self._gathered
            for message in run.messages
        )
        self._drop(claimed)
        with self._kafka_lock:
            self._commands.clear()
            self._consumer.close()

    def _in_hand(self) -> list[Run]:
        return [self._hand] if self._amo and self._hand is not None else []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Handlers

    def run(
        self,
        handler: Callable[..., Any],
        *,
        workers: int = 8,
        ordering: Ordering = "key",
        executor: Executor | None = None,
        batch_size: int | None = None,
        retry: Retry | None = None,
        on_failure: OnFailure = "stop",
        not_retriable: type[BaseException] | tuple[type[BaseException], ...] = (),
        dead_letter_topic: str = "{topic}.dlq",
        max_buffered: int = 10_000,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        max_ahead: int = 100_000,
        stuck_after_s: float | None = 60.0,
        on_stuck: Callable[[Stuck], None] | None = None,
        drain_timeout_s: float = 30.0,
    ) -> RunStats:
        """Call `handler(message)`, or `handler(message, claim)`, for each message, side by side.

        Returns after `stop` or `close`; the consumer is closed then. A message is done when its
        handler returns (`auto_ack` plays no part); what is stored is the lowest offset not done.

        - `workers`: so many handlers run at a time. `executor`: in threads, in processes (the
          handler must be importable, and is given a `MessageCopy` and a `ClaimSnapshot`), or as
          asyncio tasks. By default asyncio for an ``async def`` handler, threads for others. What
          keeps the interpreter lock for seconds (some C code) stops heartbeats: use processes.
        - `ordering`: messages of a partition that have the same key one after the other
          (``"key"``; those without a key have no order), all of a partition, or none.
        - `batch_size`: the handler is given a `Batch` of up to so many messages of one partition,
          as many as are there. A batch that fails is split, and its messages come one by one.
        - `retry`: how often and when a message comes again that a handler failed with; by default
          3 attempts. Only what is behind it in order waits. `not_retriable`: exceptions after which
          there is no other attempt.
        - `on_failure`: then ``"stop"`` (`run` raises `HandlerFailed`), ``"dead_letter"`` (it is
          written to `dead_letter_topic` before it counts as done: see
          `marshal_py.consumer.handlers.dead_letters`), ``"skip"``, or a function that is given a
          `Failure` and returns one of these, or ``"retry"``.
        - `max_buffered`, `max_buffered_bytes`: so many messages, and so many bytes of them, wait or
          run; fetching rests meanwhile. librdkafka's own queue comes on top
          (``queued.max.messages.kbytes``). `max_ahead`: no partition gets further ahead of its
          stored position, which is how much may come again after a crash.
        - `stuck_after_s`: a handler that runs for longer is reported in the log and to `on_stuck`
          (in the thread of `run`: be quick). It is neither killed nor is its claim lost.
        - `drain_timeout_s`: when stopped, and when a partition goes to another member, what runs is
          finished within that time; what is not by then will be delivered again. So will be what
          failed, if its next attempt is more than a second away.

        When a claim is lost, what was not started is dropped; what runs ends, and counts for
        nothing. With ``mode="at_most_once"`` nothing is tried again. Ctrl-C and SIGTERM, in the
        main thread, stop it as `stop` does, and are let through afterwards; a second one at once.
        Signals that the program handles itself are its own matter: have them call `stop`.

        Raises `ConfigurationError` before anything touches the network, `TopicMissing` for a
        dead-letter topic, and as iterating does. Guarantees: specs/GUARANTEES.md.
        """
        from marshal_py.consumer.handlers.options import HandlerOptions
        from marshal_py.consumer.handlers.runner import Runner
        from marshal_py.consumer.handlers.workers import workers_for

        handling = HandlerOptions(
            handler,
            workers,
            ordering,
            executor,
            batch_size,
            retry,
            on_failure,
            not_retriable if isinstance(not_retriable, tuple) else (not_retriable,),
            dead_letter_topic,
            max_buffered,
            max_buffered_bytes,
            max_ahead,
            stuck_after_s,
            on_stuck,
            drain_timeout_s,
            self._amo,
        )
        return self._run(Runner(self, handling, workers_for(handling, self._event_loop)))

    def _run(self, runner: Runner) -> RunStats:
        if self._runner is not None:
            raise Closed("run() can be called once only; make a new consumer")
        self._enter_loop()
        self._settle_hand()
        with self.marshal.driver.lock:  # the keeper makes no partition meanwhile
            self._runner = runner
            for part in list(self.parts.values()):
                part.manual = self.manual
        if self._stop_asked is not None:
            runner.stop(*self._stop_asked)
        with StopRequests(self.stop, name=self.marshal.client_id):
            try:
                runner.run()
            finally:
                self._looping = False
                self.close()
        return runner.stats()

    def stop(self, drain_timeout_s: float | None = None) -> None:
        """Have `run` finish what is in flight, within `drain_timeout_s`, and return.

        Does not wait. For any thread, and for signal handlers: it takes no lock. Before `run` has
        begun, it ends as soon as it has.
        """
        self._stop_asked = (drain_timeout_s,)
        runner = self._runner
        if runner is not None:
            runner.stop(drain_timeout_s)

    def stats(self) -> RunStats:
        """Return what `run` has done so far."""
        from marshal_py.consumer.handlers.runner import RunStats

        return RunStats() if self._runner is None else self._runner.stats()

    def troubles(self) -> dict[tuple[str, int], ClaimMetadata]:
        """Return, for partitions held by `run`, which messages fail or do not come to an end."""
        return {} if self._runner is None else self._runner.troubles()

    # Acknowledging

    def ack(self, message: Message) -> None:
        """Say that `message` is done. In any order, from any thread.

        With `auto_ack` the loop does so by itself. What belongs to a partition that is no longer
        held is ignored: whoever holds it now delivers the message again.
        """
        part = self.parts.get(key_of(message))
        if part is None:
            return
        if threading.get_ident() != self._loop_thread:
            self._acks_from_elsewhere = True
        part.acknowledge(_offset_of(message))
        if part.stage is Stage.DRAINING:
            self._keeper.wake()

    def commit(self, timeout_s: float = 10.0) -> None:
        """Store the positions of all partitions now, and wait until they are in the log.

        Without it they go with each heartbeat. Raises `ClaimTimeout`, after `timeout_s`. Partitions
        that are lost meanwhile are passed over.
        """
        deadline = time.monotonic() + timeout_s
        with self.marshal.driver.lock:
            self.refresh_offsets()
        for part in list(self.parts.values()):
            position = part.position()
            if position < 0 or part.stage not in (Stage.ACTIVE, Stage.DRAINING):
                continue
            with contextlib.suppress(NotHeld):
                part.claim.commit(
                    position, wait=True, timeout_s=max(0.001, deadline - time.monotonic())
                )

    def refresh_offsets(self) -> None:
        """Hand the positions to the claims: called before each heartbeat, under the lock."""
        if self._amo:
            return
        for part in list(self.parts.values()):
            holding = part.holding
            position = part.position()
            if position > holding.next_offset and holding.epoch >= 0:
                holding.next_offset = position

    # Looking

    def claims(self) -> list[Claim]:
        """Return the claims of the partitions that this consumer works on now."""
        return [part.claim for part in list(self._active.values()) if part.claim.held]

    def _claimed(self) -> list[Claim]:
        return [part.claim for part in list(self._active.values())]

    def claim_of(self, message: Message) -> Claim:
        """Return the claim that a message was read under: its `epoch` fences. Raises `NotHeld`."""
        part = self._active.get(key_of(message))
        if part is None:
            raise NotHeld(f"{message.topic()}/{message.partition()} is not held any more")
        return part.claim

    def lag(self, *, timeout_s: float = 5.0) -> dict[tuple[str, int], int]:
        """Return how many offsets each held partition is behind its end."""
        return self._keeper.lags(timeout_s)

    def shed(self, count: int = 1) -> None:
        """Give `count` partitions to others, and take no more than are left: this member is slow.

        The limit stays until `set_max_claims` lifts it.
        """
        self.set_max_claims(max(0, len(self._active) - count))

    def set_max_claims(self, max_claims: int | None) -> None:
        """Limit how many units this member takes; None lifts the limit."""
        self._keeper.change(max_claims=max_claims)

    def __repr__(self) -> str:
        held = sorted(f"{t}/{p}" for t, p in self._active)
        return f"<Consumer {self.marshal.client_id} in {self.marshal.group_id} {' '.join(held)}>"

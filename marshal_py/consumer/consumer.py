"""`Consumer`: shares the partitions of topics among the members of a group, over claims.

Each partition is claimed, read from the claim's position with one confluent-kafka consumer (no
Kafka consumer group is involved), and given back when others should have it. Who should hold what
is decided by each member for itself (see `marshal_py.protocol.balance`); nothing stops while things
move.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack

from confluent_kafka import Message

from marshal_py.client.forks import OfOneProcess
from marshal_py.client.marshal import Claim, Marshal
from marshal_py.client.options import ClientOptions
from marshal_py.client.signals import StopRequests, hush
from marshal_py.consumer.acknowledging import AcknowledgeType, check_acknowledgement
from marshal_py.consumer.callbacks import OnPartition
from marshal_py.consumer.core import ConsumerCore
from marshal_py.consumer.deserializers import Deserializers
from marshal_py.consumer.fetcher import FETCH
from marshal_py.consumer.handlers.schedule import Ordering
from marshal_py.consumer.held_partition import Batch, Stage
from marshal_py.consumer.looking import AssignedPartition, Health, assignment, health
from marshal_py.consumer.options import (
    ConsumerOptions,
    Mode,
    OnMissing,
    Start,
    check,
    check_by_ranges,
    check_max_deliveries,
    check_names,
    check_prefer,
    check_retries,
    check_topics,
    client_of,
    start_at,
)
from marshal_py.consumer.typed import Decode, Handler, TypedMessage, V, decoder
from marshal_py.errors import (
    Closed,
    ConfigurationError,
    InvalidArgument,
    NotHeld,
    NotInVersion1,
)
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.slots import Sharing, check_slots
from marshal_py.protocol.subscription import Subscription

if TYPE_CHECKING:  # what only some need is imported there: a restart is mostly imports
    from marshal_py.consumer.handlers.middleware import Middleware
    from marshal_py.consumer.handlers.options import Executor, OnFailure, Retry, Stuck
    from marshal_py.consumer.handlers.run_stats import RunStats
    from marshal_py.consumer.handlers.runner import Runner

__all__ = ["Batch", "Consumer", "Mode", "Start", "core_of"]

_offset_of: Callable[[Any], int] = Message.offset  # type: ignore[assignment]


class Consumer(OfOneProcess, Generic[V]):
    """Consumes topics together with the other members of a group.

    ::

        with Consumer("localhost:9092", group_id="billing", topics=["orders"]) as consumer:
            for message in consumer:      # confluent_kafka.Message, unchanged
                handle(message.value())   # it is done when the loop asks for the next one

    - `config`: librdkafka settings or just the brokers, or a `Marshal` of your own (`group_id` and
      all that follows `settings` below are then its matter), with which one consumer runs at a
      time.
    - `topics`: a name or several; `pattern`: a regular expression for whole names. Partitions and
      topics that appear later are picked up within `discovery_interval_s`.
    - `mode`: ``"at_least_once"``: what is stored is the lowest offset not yet done; after a crash
      at most one interval of messages comes again. ``"at_most_once"``: messages are claimed in the
      log before they are handed out; after a crash some are lost, and none comes twice, whatever
      clocks and networks do (specs/PROTOCOL.md §5.11).
    - `start`: where the group begins without a stored position: ``"earliest"``, ``"latest"``, a
      `datetime`, milliseconds since 1970, or a `timedelta`: so long ago. It is decided once for a
      group and a topic: partitions that the topic gets later begin at their first message.
    - `on_missing`: where to go on when messages were deleted before they were consumed: at the
      ``"earliest"`` that is left, at the ``"latest"``, or ``"stop"``: iterating raises
      `MessagesMissing`. A topic that was made anew is consumed from its first message, a truncated
      partition from its end, unless it is ``"stop"``.
    - `auto_ack`: a message (or batch) is done when the loop asks for the next. With False, `ack`
      says so, in any order and from any thread.
    - `greedy`: with ``wire="text"`` alone: take all that is free at once, not one by one.
    - `claim_entire_topic`: all partitions of a topic go to one member; the claim on partition 0
      decides.
    - `sharing`: ``"partitions"``: each partition goes to one member; ``"keys"``: several members
      work on one partition, each on the keys that fall into its `slots`, in which each partition is
      divided. Messages that have the same key are handed out in order, whatever moves; those
      without a key are dealt out in turn, and have no order. Every member that holds a slot reads
      the whole partition. What is claimed is a slot then (`Claim.topic` is ``orders/2#16``,
      `Claim.partition` the number of the slot), and `max_claims` counts slots. ``"ranges"``: any
      number of members work on one partition, each on ranges of its messages that it has claimed
      ahead, as many at a time as it gets done within some 150 ms (or a tenth of the interval, if
      that is less). There is no order between ranges; what one member has not begun goes to another
      that is idle, so a slow message holds up no other. All members of a group say the same, or
      `SharingDiffers` is raised; `marshal group slots` changes it.
    - `max_deliveries`: with ``sharing="ranges"``, messages that keep killing the processes that
      handle them are found: what is claimed a third time without having got any further (below 4:
      a second time) is taken in smaller and smaller pieces, message by message from the
      `max_deliveries`-th time on; None: by halves, down to one. What is claimed once more than that
      is not given to the handler of `run`: it fails at once, and goes where `on_failure` says. In a
      loop, `delivery_count` tells.
    - `dead_letter_topic`: where messages that the program rejects (`acknowledge`) are written;
      ``"{topic}.dlq"`` names one for each topic. None: they are only logged; within `run`, what is
      told there counts, if `on_failure` is ``"dead_letter"``.
    - `max_claims`, `weight`, `by_lag`, `labels`, `prefer`: this member's part in the sharing, see
      `Subscription`.
    - `batch_size`: most messages in one batch.
    - `keep_on_close`: keep the claims over a restart: `close` stores positions and releases
      nothing. A new start under the same `client_id` within two intervals goes on at once.
    - `mirror_offsets`: copy the positions every few seconds to Kafka's own committed offsets, under
      the group's name (or the name given here), for lag exporters. No other Kafka consumer group of
      that name may be in use. A failure is a warning, and stops nothing.
    - `kafka`: librdkafka settings for the messages alone, such as ``isolation.level``.
    - `decode`: what a value is: a pydantic model, or a type that msgspec knows (a Struct, a
      dataclass, a `TypedDict`), of which it is the JSON; or a function of its bytes. With
      ``decode=Order`` this is a `Consumer[Order]` for type checkers, and `value()` of its messages
      an `Order`, or None for a tombstone. What cannot be read raises `DeserializationFailed`; with
      `run` it goes the way of messages that failed.
    - `key_deserializer`, `value_deserializer`: as for confluent-kafka's DeserializingConsumer.
    - `on_assigned`, `on_revoked`: called with the claim of each partition that comes, before its
      first message, and that goes, when nothing of it is in the program's hands any more, and
      before others can have it. In a thread of the consumer's, one at a time, whatever the loop or
      the handlers do meanwhile; coroutines (`AsyncConsumer`) in its event loop. No other partition
      moves until they return, and leases stand meanwhile. What `on_assigned` raises stops the
      consumer (`HandlerFailed`); what `on_revoked` raises is logged. Of a partition that was lost
      (`claim.reason`), or whose group was paused for as long as the lease lasts, others may have
      messages already; and a handler that does not return within
      `drain_timeout_s` (after a loss: 30 s) is not waited for.
    - `settings`: all else is for `Marshal`: `client_id`, `interval_ms`, `create_topics`, ...

    Raises `ConfigurationError` before anything touches the network; starting (`with`, or the first
    iteration) raises `TopicMissing`, `AccessDenied` and `BrokerUnavailable`; iterating raises what
    stops the client for good, such as `DuplicateClientId`. Outages raise nothing: leases lapse,
    delivery stops, and goes on when the brokers are back.

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
        on_missing: OnMissing = "earliest",
        auto_ack: bool = True,
        claim_entire_topic: bool = False,
        sharing: Sharing = "partitions",
        slots: int = 16,
        max_deliveries: int | None = 5,
        dead_letter_topic: str | None = None,
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
        decode: Decode[V] | None = None,
        discovery_interval_s: float = 10.0,
        settle_ms: int = 100,
        on_assigned: OnPartition | None = None,
        on_revoked: OnPartition | None = None,
        **settings: Unpack[ClientOptions],
    ) -> None:
        check_names(settings, Consumer.__init__)
        if decode is not None:
            if value_deserializer is not None:
                raise ConfigurationError("decode and value_deserializer: give one of them")
            value_deserializer = decoder(decode)
        check(
            topics=topics,
            pattern=pattern,
            max_claims=max_claims,
            auto_ack=auto_ack,
            dead_letter_topic=dead_letter_topic,
            claim_entire_topic=claim_entire_topic,
            by_lag=by_lag,
            labels=labels,
            greedy=greedy,
            keep_on_close=keep_on_close,
            mirror_offsets=mirror_offsets,
            kafka=kafka,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            discovery_interval_s=discovery_interval_s,
            settle_ms=settle_ms,
        )
        prefer = check_prefer(prefer)
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names and not pattern:
            raise ConfigurationError("no topics: give `topics`, `pattern`, or both")
        check_topics(names)
        if mode not in ("at_least_once", "at_most_once"):
            raise ConfigurationError(f"mode = {mode!r} must be 'at_least_once' or 'at_most_once'")
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigurationError(f"batch_size = {batch_size!r} must be 1 or more")
        if on_missing not in ("earliest", "latest", "stop"):
            raise ConfigurationError(
                f"on_missing = {on_missing!r} must be 'earliest', 'latest' or 'stop'"
            )
        if sharing not in ("partitions", "keys", "ranges"):
            raise ConfigurationError(
                f"sharing = {sharing!r} must be 'partitions', 'keys' or 'ranges'"
            )
        check_slots(slots)
        check_max_deliveries(max_deliveries)
        if sharing == "ranges":
            check_by_ranges(
                max_claims=(max_claims, None),
                weight=(weight, 1.0),
                by_lag=(by_lag, False),
                prefer=(prefer, ()),
                on_assigned=(on_assigned, None),
                on_revoked=(on_revoked, None),
            )
        begin = start_at(start)
        self.mode: Final[Mode] = mode
        self.sharing: Final[Sharing] = sharing
        self.auto_ack: Final = auto_ack
        self.mirror_offsets: Final = mirror_offsets
        subscription = Subscription(
            frozenset(names),
            pattern,
            claim_entire_topic,
            max_claims,
            weight,
            by_lag,
            dict(labels or {}),
            prefer,
            sharing,
            slots if sharing == "keys" else 0,
        )
        marshal = client_of(config, group_id, {**settings}, subscription, mode=mode, greedy=greedy)
        options = ConsumerOptions(
            subscription,
            mode,
            begin,
            on_missing,
            auto_ack,
            batch_size,
            greedy,
            keep_on_close,
            (marshal.group_id if mirror_offsets is True else mirror_offsets) or None,
            kafka,
            Deserializers(key_deserializer, value_deserializer),
            discovery_interval_s,
            settle_ms,
            max_deliveries,
            dead_letter_topic,
            on_assigned,
            on_revoked,
        )
        self.marshal: Final = marshal
        self._core: Final = ConsumerCore(
            marshal, options, owns_marshal=not isinstance(config, Marshal)
        )
        self._runner: Runner | None = None
        self._stop_asked: tuple[float | None] | None = None
        self.unfinished: Batch | None = None
        """What the last run of `Transactions` was left with: it comes first in the next."""

    @property
    def closing(self) -> bool:
        """Whether `close` has been called."""
        return self._core.closing.is_set()

    @property
    def dropped(self) -> int:
        """At most once: messages that were claimed and never handed out, as the claim was lost."""
        return self._core.delivery.dropped

    # Life

    def start(self) -> Self:
        """Connect and begin to claim. Returns the consumer itself; once is enough.

        Raises `Closed` after `close`, also if a signal handler calls that meanwhile.
        """
        self._core.start()
        return self

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop handing out, wait for what is being worked on, store positions, release all.

        Waits up to `timeout_s`, altogether, for messages that other threads still have to
        acknowledge; what is not done by then will be delivered again, here or elsewhere. A message
        that this thread has in hand is not waited for. For any thread, and safe to call twice;
        within `on_assigned` and `on_revoked` it goes on in the background. `run` returns; a handler
        that closes its consumer does not wait for that: it stops it, as `stop` does. Where a
        signal handler closes what is being started, `start` gives up and raises `Closed`.
        """
        self._core.close(timeout_s, mine=self._core.iteration.thread == threading.get_ident())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            hush(error)
        self.close()

    # Iterating

    def __iter__(self) -> Iterator[TypedMessage[V]]:
        """Hand out messages, one by one, until `close`. See `messages`."""
        return self.messages()

    def messages(self, *, idle_timeout_s: float | None = None) -> Iterator[TypedMessage[V]]:
        """Hand out messages until `close`, or until none came for `idle_timeout_s`.

        A message whose partition was lost meanwhile, or whose lease has lapsed, is not handed out.
        A message is done when the loop asks for the next one. So a loop that is left, by an
        exception, a cancellation or `break`, hands out its last message again when it is entered
        again (at most once: it goes on with the next); say `ack(message)` before leaving if it is
        done. Raises `DeserializationFailed` for what a deserializer cannot read, and `MarshalError`
        if the Kafka client hangs: it gave no sign of life for a minute.
        """
        return self._core.iteration.messages(  # type: ignore[return-value]
            idle_timeout_s=idle_timeout_s
        )

    def batches(self, *, idle_timeout_s: float | None = None) -> Iterator[Batch]:
        """Hand out messages in batches, each of one partition, of at most `batch_size`.

        The lease is looked at for each batch. With `auto_ack`, a batch is done when the loop asks
        for the next. Otherwise as `messages`.
        """
        return self._core.iteration.batches(idle_timeout_s=idle_timeout_s)

    def poll(self, timeout_s: float = 1.0) -> TypedMessage[V] | None:
        """Return the next message, None if there is none within `timeout_s`.

        The message before it is done (`auto_ack`).
        """
        return self._core.iteration.poll(timeout_s)  # type: ignore[return-value]

    # Handlers

    def run(
        self,
        handler: Handler[V],
        *,
        workers: int = 8,
        ordering: Ordering = "key",
        executor: Executor | None = None,
        batch_size: int | None = None,
        retry: Retry | Mapping[str, Retry] | None = None,
        on_failure: OnFailure = "stop",
        not_retriable: type[BaseException] | tuple[type[BaseException], ...] = (),
        dead_letter_topic: str = "{topic}.dlq",
        max_buffered: int = 10_000,
        max_buffered_bytes: int = 64 * 1024 * 1024,
        max_ahead: int = 100_000,
        stuck_after_s: float | None = 60.0,
        on_stuck: Callable[[Stuck], None] | None = None,
        drain_timeout_s: float = 30.0,
        middleware: Sequence[Middleware] = (),
        filter: Callable[[TypedMessage[V]], object] | None = None,
    ) -> RunStats:
        """Call `handler(message)`, or `handler(message, claim)`, for each message, side by side.

        Returns after `stop` or `close`; the consumer is closed then. A message is done when its
        handler returns (`auto_ack` plays no part); what is stored is the lowest offset not done.

        - `workers`: so many handlers run at a time. `executor`: in threads, in processes (the
          handler must be importable, and is given a `MessageCopy` and a `ClaimSnapshot`), or as
          asyncio tasks. By default asyncio for an ``async def`` handler, threads for others. What
          keeps the interpreter lock for seconds (some C code) stops heartbeats: use processes.
        - `ordering`: messages of a partition that have the same key one after the other
          (``"key"``; those without a key have no order), all of a partition (by `sharing`, of what
          is claimed of it: a slot, a range), or none.
        - `batch_size`: the handler is given a `Batch` of up to so many messages of one partition,
          as many as are there. A batch that fails is split, and its messages come one by one.
        - `middleware`: functions around the handler, the first outermost:
          ``each(message, call_next)``, which returns ``call_next(message)``; ``async def``, with
          ``await call_next(message)``, if the handler is. With `batch_size`, the message is a
          `Batch`. See `marshal_py.consumer.handlers.middleware`.
        - `filter`: a quick function of a message; those for which it is false are done without the
          handler, and counted (`RunStats.filtered`). What it raises counts as a failed attempt.
        - `retry`: how often and when a message comes again that a handler failed with, or a mapping
          of that by topic; by default 3 attempts. Only what is behind it in order waits.
          `not_retriable`: exceptions after which there is no other attempt.
        - `on_failure`: then ``"stop"`` (`run` raises `HandlerFailed`), ``"dead_letter"`` (it is
          written to `dead_letter_topic` before it counts as done: see
          `marshal_py.consumer.dead_letters`), ``"skip"``, or a function that is given a
          `Failure` and returns one of these, or ``"retry"``.
        - `max_buffered`, `max_buffered_bytes`: so many messages, and so many bytes of them, wait or
          run; fetching rests meanwhile. librdkafka's own queue comes on top
          (``queued.max.messages.kbytes``). `max_ahead`: no partition gets further ahead of its
          stored position, which is how much may come again after a crash.
        - `stuck_after_s`: a handler that runs for longer is reported in the log and to `on_stuck`
          (in the thread of `run`: be quick). It is neither killed nor is its claim lost.
        - `drain_timeout_s`: when stopped, and when a partition goes to another member, what runs is
          finished within that time (`math.inf`: however long it takes); what is not by then will be
          delivered again. So will be what failed, if its next attempt would come more than a second
          after that was asked for.

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

        options = HandlerOptions(
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
            self.mode == "at_most_once",
            middleware,
            filter,
            self._core.marshal.settings.wire != "text",
        )
        check_retries(retry, self._core.shared.subscription)
        if on_failure == "dead_letter":
            self._core.write_rejected(dead_letter_topic)
        return self._run(Runner(self._core, options, workers_for(options, self._core.event_loop)))

    def _run(self, runner: Runner) -> RunStats:
        if self._runner is not None:
            raise Closed("run() can be called once only; make a new consumer")
        iteration = self._core.iteration
        iteration.enter()
        iteration.settle()
        self._runner = self._core.handlers = runner
        self._core.partitions.acknowledge_each()
        if self._stop_asked is not None:
            runner.stop(*self._stop_asked)
        with StopRequests(self.stop, name=self.marshal.client_id):
            try:
                runner.run()
            finally:
                iteration.leave()
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
        from marshal_py.consumer.handlers.run_stats import RunStats

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
        part = self._core.shared.part_of(message)
        if part is not None:
            self._core.iteration.acknowledge(part, _offset_of(message))

    def acknowledge(
        self,
        message: Message,
        kind: AcknowledgeType = AcknowledgeType.ACCEPT,
        *,
        delay_s: float = 0.0,
        reason: str = "",
    ) -> None:
        """Say what became of one message, by the names of Kafka's share groups. From any thread.

        - ``ACCEPT``: it is done, as `ack` says.
        - ``REJECT``: it is never to come again: done, as far as the group is concerned. It is
          logged; and with `dead_letter_topic` it is written there first, as it came, with `reason`
          (see `marshal_py.consumer.dead_letters`; ``dlq-error-class`` is
          `MessageRejected`). This waits until all replicas have it; if it raises, the message is
          not acknowledged.
        - ``RELEASE``: it comes again, here or elsewhere, in `delay_s` seconds at the earliest, or
          when this consumer ends before; its `delivery_count` is one more then. What was
          acknowledged of the range that it is in does not come again, as far as 256 bytes have room
          to tell; what was not begun of it is left to others when the delay is over. With
          ``sharing="ranges"`` and ``auto_ack=False`` alone: elsewhere, those behind it in order
          would have to wait for it.
        - ``RENEW``: it is still being worked on. Nothing need be done for that, the claim is
          renewed as long as the process lives; this tells whether it is.

        What belongs to a claim that is no longer held is ignored, as by `ack`; but ``RENEW`` raises
        `NotHeld`. Raises `InvalidArgument`; to reject, `BrokerUnavailable`, `DeadLetterFailed` and
        `AccessDenied`.
        """
        check_acknowledgement(kind, delay_s)
        part = self._core.shared.part_of(message)
        if kind is AcknowledgeType.RENEW:
            if part is None or not part.claim.held:
                raise NotHeld(f"{message.topic()}/{message.partition()} is not held any more")
        elif kind is AcknowledgeType.RELEASE:
            self._core.shared.release(message, delay_s)
        else:
            if kind is AcknowledgeType.REJECT:
                self._core.reject(message, reason)
            self.ack(message)

    def delivery_count(self, message: Message) -> int:
        """Return how often a message was claimed, this time included, as far as is known.

        With ``sharing="ranges"``: how often in a row the range that it is in was claimed without
        having got any further, and how often it was released besides; it may have been handed out
        less often. Of a range, 8 released messages at most are counted. Raises `NotHeld`, and
        `InvalidArgument` with another `sharing`, where nothing counts that.
        """
        return self._core.shared.delivery_count(message)

    def commit(self, timeout_s: float = 10.0) -> None:
        """Store the positions of all partitions now, and wait until they are in the log.

        Without it they go with each heartbeat. Raises `ClaimTimeout`, after `timeout_s`. Partitions
        that are lost meanwhile are passed over.
        """
        self._core.partitions.commit(timeout_s)

    # Single partitions

    def pause(self, topic: str, partition: int) -> None:
        """Hand out nothing more of a partition that is held, until `resume`, and keep its claim.

        With ``sharing="ranges"``, what was not begun is given back, and nothing more is claimed of
        it. Otherwise what was fetched waits; with ``mode="at_most_once"``, what was claimed already
        may still come. It ends with the claim: whoever holds the partition next is not paused. (To
        stop a whole group: `marshal group pause`.) For any thread. Raises `NotHeld`.
        """
        self._core.shared.pause(topic, partition)

    def resume(self, topic: str, partition: int) -> None:
        """Go on with a partition that was paused. For any thread. Raises `NotHeld`."""
        self._core.shared.resume(topic, partition)

    def paused(self) -> list[tuple[str, int]]:
        """Return the partitions that are paused (`pause`): topic and number."""
        return self._core.shared.paused()

    def seek(self, topic: str, partition: int, offset: int, *, timeout_s: float = 10.0) -> None:
        """Go on with a partition at `offset`, forth or back.

        It goes by way of the log: the claim ends, what is in work under it counts for nothing, and
        the next claim, under a new epoch, begins there; `on_revoked` and `on_assigned` are called.
        Of a partition that is shared by keys, it is all slots that this member holds, or none where
        one just goes or its lease has lapsed (`NotHeld`); within `on_assigned`, the one that comes.
        Waits until the position is in the log; within `on_assigned` it does not, and the partition
        is assigned again, there; within `on_revoked`, the one that goes is held no more. Going back
        repeats messages, whatever the `mode`.

        Raises `NotHeld`, `ClaimTimeout` after `timeout_s`, `InvalidArgument`, and `NotInVersion1`
        with ``wire="text"``.
        """
        if self.marshal.settings.wire == "text":
            raise NotInVersion1("seek: positions of version 1 (wire='text') only go forth")
        if type(offset) is not int or not 0 <= offset < 2**63:
            raise InvalidArgument(f"offset = {offset!r} must be 0 or more")
        self._core.shared.seek(topic, partition, offset, timeout_s)

    # Looking

    def claims(self) -> list[Claim]:
        """Return the claims of the partitions that this consumer works on now."""
        return [claim for claim in self._core.claims() if claim.held]

    def claim_of(self, message: Message) -> Claim:
        """Return the claim that a message was read under: its `epoch` fences. Raises `NotHeld`."""
        part = self._core.shared.part_of(message)
        if part is None or part.stage not in (Stage.ACTIVE, Stage.DRAINING):
            raise NotHeld(f"{message.topic()}/{message.partition()} is not held any more")
        return part.claim

    def assignment(self) -> list[AssignedPartition]:
        """Return the partitions that this consumer works on, and how far it is in each."""
        return assignment(self._core)

    def health(self) -> Health:
        """Say whether all is well, for a container's probe: it has started, nothing has stopped it.

        It is not while leases have lapsed, as the brokers do not answer, nor while they refuse what
        this client writes (`Marshal.refused`), nor while handlers do not return (`stuck_after_s`).
        To have it over HTTP: `marshal_py.telemetry.serve_status`.
        """
        return health(self._core, self.stats().stuck)

    def lag(self, *, timeout_s: float = 5.0) -> dict[tuple[str, int], int]:
        """Return how many offsets each held partition is behind its end.

        With ``sharing="ranges"``, of each partition of the topics: from its first message that is
        not done, whoever works on it.

        Raises `BrokerUnavailable`.
        """
        return self._core.shared.lag(timeout_s)

    def shed(self, count: int = 1) -> None:
        """Give `count` partitions to others, and take no more than are left: this member is slow.

        The limit stays until `set_max_claims` lifts it.
        """
        self.set_max_claims(max(0, len(self._core.fetcher.active) - count))

    def set_max_claims(self, max_claims: int | None) -> None:
        """Limit how many units this member takes; None lifts the limit."""
        self._core.shared.set_max_claims(max_claims)

    def __repr__(self) -> str:
        held = sorted(f"{t}/{p}" for t, p in list(self._core.fetcher.active))
        return f"<Consumer {self.marshal.client_id} in {self.marshal.group_id} {' '.join(held)}>"


def core_of(consumer: Consumer[Any]) -> ConsumerCore:
    """Return the parts of a consumer: for the rest of this library alone."""
    return consumer._core  # noqa: SLF001 (it is defined here)

"""`Consumer`: shares the partitions of topics among the members of a group, over claims.

Each partition is claimed, read from the claim's position with one confluent-kafka consumer (no
Kafka consumer group is involved), and given back when others should have it. Who should hold what
is decided by each member for itself (see `marshal_py.balance`); nothing stops while things move.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain, groupby
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, Message

from marshal_py.access import REFUSED, denied
from marshal_py.claims import Notice
from marshal_py.client import Claim, Marshal
from marshal_py.clients import RECONNECT, connect
from marshal_py.delivery import Batch, HeldPartition, Run, Stage
from marshal_py.errors import (
    Closed,
    ConfigurationError,
    MarshalError,
    NotHeld,
    NotInVersion1,
)
from marshal_py.handling import Executor, Handling, OnFailure, Retry, Stuck
from marshal_py.keeper import Keeper
from marshal_py.mirror import OffsetMirror
from marshal_py.notes import Note
from marshal_py.ordering import Ordering
from marshal_py.runner import Runner, RunStats
from marshal_py.settings import kafka_config
from marshal_py.signals import StopRequests
from marshal_py.subscription import Subscription
from marshal_py.workers import workers_for

__all__ = ["Batch", "Consumer", "Mode", "Start"]

logger = logging.getLogger("marshal_py.consumer")

Mode: TypeAlias = Literal["at_least_once", "at_most_once"]
Start: TypeAlias = Literal["earliest", "latest"] | datetime | int

FETCH: Final = 1_000
"""Messages per `consume`: more is slower in librdkafka, not faster."""

IDLE_WAIT_S: Final = 0.02
"""An idle loop looks up so often: for new partitions, Ctrl-C, `close`, claims that came back."""

TARGET_S: Final = 0.025
"""At most once: a proposal should claim about so much work, so that a crash loses little."""

AHEAD: Final = 4
"""At most once: so many proposals' worth is claimed ahead, or is being claimed, while the loop
works: the log answers in milliseconds, in which a fast loop takes thousands of messages."""

MAX_PROPOSAL: Final = 2_000
MIN_PROPOSAL: Final = 10

_message: Final[Any] = Message
_partition_of: Callable[[Any], int] = _message.partition
_topic_of: Callable[[Any], str] = _message.topic
_offset_of: Callable[[Any], int] = _message.offset
_error_of: Callable[[Any], KafkaError | None] = _message.error
_now_ns: Final[Callable[[], int]] = partial(
    time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""`boottime_ns` without a Python frame: it is read for every message."""


class Consumer:
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
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names and pattern is None:
            raise ConfigurationError("no topics: give `topics`, `pattern`, or both")
        if mode not in ("at_least_once", "at_most_once"):
            raise ConfigurationError(f"mode = {mode!r} must be 'at_least_once' or 'at_most_once'")
        if type(batch_size) is not int or batch_size < 1:
            raise ConfigurationError(f"batch_size = {batch_size!r} must be 1 or more")
        self.start_ms = _start(start)
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
        self.marshal = self._client_of(config, group_id, settings)
        self._owns_marshal = not isinstance(config, Marshal)
        self.discovery_interval_s = discovery_interval_s
        self.settle_ms = settle_ms
        self.dropped = 0
        """At most once: messages that were claimed and never handed out, as the claim was lost."""
        self._amo = mode == "at_most_once"
        self._batch_size = batch_size
        self._proposal_size = min(100, batch_size)
        self._deserializers = (key_deserializer, value_deserializer)
        base = self.marshal.settings.kafka
        own = dict(kafka or {})
        # Every reader of the coordination log must see the same; of the messages, as each likes.
        isolation = {k: own.pop(k) for k in ("isolation.level",) if k in own}
        checked = kafka_config({**base, **own}) | isolation
        self._kafka_config = {
            "client.id": f"marshal-{self.marshal.client_id}",
            # A new partition is fetched when the broker has answered the last fetch: soon.
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 5,
            **RECONNECT,
            **checked,
            # librdkafka wants a group; nothing is joined or committed under it.
            "group.id": f"marshal.{self.marshal.group_id}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
        }
        self.parts: dict[tuple[str, int], HeldPartition] = {}
        """All partitions that are wanted, held or being given back. The keeper's."""
        self._active: dict[tuple[str, int], HeldPartition] = {}
        """Partitions that are fetched. The keeper's; the loop reads it."""
        self._ready: deque[Run] = deque()
        self._parked: list[HeldPartition] = []
        self._proposed: deque[Run] = deque()
        self._passing: HeldPartition | None = None
        """At most once: whose run the loop has just taken, and not begun with. If the keeper gave
        the partition back then, what was claimed would be lost."""
        self._verdicts: dict[int, str] = {}
        self._decided = threading.Event()
        self._hand: Run | None = None
        """The run that the loop is in, kept when it leaves the loop and comes back."""
        self._loop_thread: int | None = None
        self._looping = False
        self._acks_from_elsewhere = False
        self._handed: tuple[Run, float] | None = None
        """At most once: what the loop was given last, and when."""
        self._kafka_lock = threading.Lock()
        self._commands: deque[Callable[[], None]] = deque()
        self._closing = threading.Event()
        self._runner: Runner | None = None
        self._stop_asked: tuple[float | None] | None = None
        self._is_ending = False
        """`run` winds up, and claims no more messages."""
        self._event_loop: asyncio.AbstractEventLoop | None = None
        """Where `run` has coroutines run, if not in a loop of its own: set by `AsyncConsumer`."""
        self._started = False
        self._life = threading.Lock()
        self._consumer: Any = None
        self._keeper = Keeper(self)
        self.mirror_offsets = mirror_offsets
        self._mirror: OffsetMirror | None = None
        if mirror_offsets:
            name = self.marshal.group_id if mirror_offsets is True else mirror_offsets
            self._mirror = OffsetMirror(base, name, self._claimed)

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

    def _has_claimed(self, part: HeldPartition) -> bool:
        """At most once: whether messages of `part` were claimed and are on their way to the user.

        The loop moves runs on while the keeper looks: each place is looked at before the one that
        it leads to, and `parked` before and after, as a run may go there and come back.
        """
        return bool(
            part.parked
            or any(run.part is part for run in list(self._proposed))
            or self._passing is part
            or part.parked
        )

    def _client_of(
        self,
        config: Mapping[str, Any] | str | Marshal,
        group_id: str | None,
        settings: dict[str, Any],
    ) -> Marshal:
        if isinstance(config, Marshal):
            if group_id is not None or settings:
                given = ", ".join([*(["group_id"] if group_id else []), *settings])
                raise ConfigurationError(
                    f"{given}: this is a matter of the Marshal that was passed; set it there"
                )
            self._check_wire(config.settings.wire)
            if not config.settings.member and config.settings.wire != "text":
                raise ConfigurationError(
                    "the Marshal of a consumer must be a member of its group: leave member=True"
                )
            return config
        if group_id is None:
            raise ConfigurationError("group_id is missing: the name of those who share the topics")
        for name in ("member", "member_metadata"):
            if name in settings:
                raise ConfigurationError(f"{name} is set by the consumer itself")
        wire = settings.get("wire", "msgpack")
        self._check_wire(wire)
        metadata = b"" if wire == "text" else self.subscription.encode()
        return Marshal(config, group_id=group_id, member_metadata=metadata, **settings)

    def _check_wire(self, wire: str) -> None:
        """Refuse what version 1 cannot give, and what only version 1 can (specs/INTEROP.md §4)."""
        wanted = self.subscription
        if wire == "text":
            if self.mode == "at_most_once":
                raise NotInVersion1(
                    "mode='at_most_once': version 1 clients (wire='text') ignore claims of "
                    "messages, so two of them could deliver the same one"
                )
            if wanted.weight != 1 or wanted.by_lag or wanted.labels or wanted.prefer:
                raise NotInVersion1(
                    "weight, by_lag, labels and prefer: version 1 (wire='text') has no members "
                    "that could be told of them"
                )
        elif self.greedy:
            raise ConfigurationError(
                "greedy: members of version 2 share by themselves; it is for wire='text'"
            )

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
                self._keeper.discover_at_start()
                if not self.marshal._started:
                    self.marshal.start()
                    self._owns_marshal = True
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
        elif self.marshal._running and self.marshal.settings.wire != "text":
            with contextlib.suppress(MarshalError):
                self.marshal.set_member_metadata(b"")
        if self._mirror is not None:
            self._mirror.close(max(1.0, deadline - time.monotonic()))
        self._drop(chain.from_iterable(run.rest for run in [*self._proposed, *self._in_hand()]))
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

    # Iterating

    def __iter__(self) -> Iterator[Message]:
        """Hand out messages, one by one, until `close`. See `messages`."""
        return self.messages()

    def messages(self, *, idle_timeout_s: float | None = None) -> Iterator[Message]:
        """Hand out messages until `close`, or until none came for `idle_timeout_s`.

        A message whose partition was lost meanwhile, or whose lease has lapsed, is not handed out.
        A loop that is left by `break` may be entered again: it goes on with the next message, and
        the last one counts as done only then; say `ack(message)` before `break` if it is.
        """
        if self._deserializers != (None, None):
            return map(self._deserialize, self._messages(idle_timeout_s))
        return self._messages(idle_timeout_s)

    def _messages(self, idle_timeout_s: float | None) -> Iterator[Message]:
        self._enter_loop()
        try:
            while True:
                run = self._hand
                if run is None:
                    run = self._hand = self._next_run(idle_timeout_s)
                    if run is None:
                        return
                yield from self._hand_out(run)
        finally:
            self._looping = False

    def _hand_out(self, run: Run) -> Iterator[Message]:
        """Hand out what is left of the run in hand, for as long as that is allowed."""
        now_ns = _now_ns
        part, holding = run.part, run.part.holding
        active = Stage.ACTIVE
        for message in run.rest:
            # Every single time: the process may have been suspended since the last one.
            if (
                now_ns() >= holding.lease_until_ns or part.stage is not active
            ) and not self._may_hand_out(part):
                self._put_back(run, message)
                return
            yield message
        part.finish(run)
        self._hand = None

    def _take_batch(self, run: Run) -> Batch | None:
        """Return the run in hand as a batch, None if it may not be handed out now."""
        part = run.part
        if not self._may_hand_out(part):
            self._put_back(run, run.messages[0])
            return None
        messages = run.messages
        if self._deserializers != (None, None):
            messages = [self._deserialize(message) for message in messages]
        run.whole, run.rest = True, iter(())
        return Batch(messages, part.claim)

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
          written to `dead_letter_topic` before it counts as done: see `marshal_py.dead_letters`),
          ``"skip"``, or a function that is given a `Failure` and returns one of these, or
          ``"retry"``.
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
        handling = Handling(
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
        with self.marshal._lock:  # the keeper makes no partition meanwhile
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
        return RunStats() if self._runner is None else self._runner.stats()

    def troubles(self) -> dict[tuple[str, int], Note]:
        """Return, for partitions held by `run`, which messages fail or do not come to an end."""
        return {} if self._runner is None else self._runner.troubles()

    def batches(self, *, idle_timeout_s: float | None = None) -> Iterator[Batch]:
        """Hand out messages in batches, each of one partition, of at most `batch_size`.

        The lease is looked at for each batch. With `auto_ack`, a batch is done when the loop asks
        for the next. Otherwise as `messages`.
        """
        self._enter_loop()
        try:
            while True:
                self._settle_hand()
                run_or_none = self._next_run(idle_timeout_s)
                if run_or_none is None:
                    return
                self._hand = run_or_none
                batch = self._take_batch(run_or_none)
                if batch is not None:
                    yield batch
        finally:
            self._looping = False

    def _settle_hand(self) -> None:
        """The run in hand is done, as far as it was handed out."""
        run, self._hand = self._hand, None
        if run is None:
            return
        if rest := list(run.rest):  # a loop over messages was left in the middle
            run.part.finish(run, returned=rest[0])
            self._ready.appendleft(Run(run.part, rest))
        else:
            run.part.finish(run)

    def poll(self, timeout_s: float = 1.0) -> Message | None:
        """Return the next message, None if there is none within `timeout_s`.

        The message before it is done (`auto_ack`).
        """
        messages = self.messages(idle_timeout_s=timeout_s)
        message = next(messages, None)
        del messages  # which ends the loop, but not the work on the message
        self._looping = message is not None
        return message

    def _enter_loop(self) -> None:
        self.start()
        self._loop_thread = threading.get_ident()
        self._looping = True

    def _may_hand_out(self, part: HeldPartition) -> bool:
        """Whether a message that was fetched (at most once: and claimed) may still go out."""
        if not part.claim.held:
            return False
        # What was claimed for at-most-once delivery goes out before the partition is given back.
        return part.stage is Stage.ACTIVE or (self._amo and part.stage is Stage.DRAINING)

    def _put_back(self, run: Run, message: Message) -> None:
        """The loop may not hand out `message`, nor what follows it, now."""
        part = run.part
        rest = [message, *run.rest]
        if part.stage is Stage.ACTIVE or (self._amo and part.stage is Stage.DRAINING):
            again = Run(part, rest)  # the lease has lapsed: it may come back
            again.seq = run.seq
            part.parked.appendleft(again)
            self._parked.append(part)
        part.finish(run, returned=message)  # last: the keeper must find it somewhere
        self._hand = None
        self._keeper.wake()

    def _next_run(self, idle_timeout_s: float | None) -> Run | None:
        """Return what to hand out next, None when closing, or after `idle_timeout_s`."""
        give_up_s = None if idle_timeout_s is None else time.monotonic() + idle_timeout_s
        while not self._closing.is_set() or self._proposed:
            if self._keeper.failure is not None:
                raise self._keeper.failure
            if self.marshal._failure is not None:
                raise self.marshal._failure
            run = self._next_claimed() if self._amo else self._next_ready()
            if run is not None:
                run.part.begin(run)
                self._passing = None
                return run
            if give_up_s is not None and time.monotonic() >= give_up_s:
                return None
            most = self._proposal_size if self._amo else FETCH
            if not self._proposed and not self._fetch(most):
                wait_s = IDLE_WAIT_S
                if give_up_s is not None:
                    wait_s = min(wait_s, max(0.0, give_up_s - time.monotonic()))
                self._fetch(most, wait_s)
        return None

    def _next_ready(self) -> Run | None:
        """At least once: the next run that was fetched and may be handed out."""
        if self._parked:
            self._unpark()
        ready = self._ready
        while ready:
            run = ready.popleft()
            part = run.part
            if part.stage is not Stage.ACTIVE:
                continue
            if part.parked or not part.claim.held:
                part.parked.append(run)
                self._parked.append(part)
                continue
            return run
        return None

    def _unpark(self) -> None:
        """Take up what was put back when leases lapsed, where they have been regained."""
        for part in list(dict.fromkeys(self._parked)):
            gone = part.claim._ended.is_set() or (
                part.stage is not Stage.ACTIVE and not (self._amo and part.stage is Stage.DRAINING)
            )
            if gone or part.claim.held:
                if not gone:
                    # What the log has given to us goes out before what was proposed after it.
                    self._proposed.extendleft(r for r in reversed(part.parked) if r.seq >= 0)
                    self._ready.extendleft(r for r in reversed(part.parked) if r.seq < 0)
                elif self._amo:
                    self._drop(chain.from_iterable(run.messages for run in part.parked))
                part.parked.clear()
                self._parked = [other for other in self._parked if other is not part]

    # At most once

    def _next_claimed(self) -> Run | None:
        """The next run that the log has given to us; keeps the one after it in flight."""
        if self._handed is not None:
            self._adapt(*self._handed)
            self._handed = None
        self._top_up()
        while self._proposed:
            run = self._proposed[0]
            verdict = self._verdict(run)
            if verdict is None:
                self._decided.clear()
                if self._verdict(run) is None:
                    self._decided.wait(IDLE_WAIT_S)
                if self._verdict(run) is None:
                    return None
                continue
            self._passing = run.part
            self._proposed.popleft()
            self._verdicts.pop(run.seq, None)
            if verdict and run.part.claim.held and not run.part.parked:
                self._top_up()
                self._handed = (run, time.monotonic())
                return run
            if verdict and not run.part.claim._ended.is_set():
                run.part.parked.append(run)  # ours; the lease may come back, or has: in order
                self._parked.append(run.part)
            elif verdict:
                self._drop(run.messages)
            self._passing = None
            self._keeper.wake()
        return None

    def _adapt(self, run: Run, since_s: float) -> None:
        """Let a proposal claim about `TARGET_S` of work, judging by what `run` took."""
        took_s = max(time.monotonic() - since_s, 1e-6)
        fitting = int(TARGET_S / took_s * len(run.messages))
        most = self._most()
        self._proposal_size = max(
            min(fitting, 2 * self._proposal_size, most), min(MIN_PROPOSAL, most)
        )

    def _most(self) -> int:
        return self._batch_size if self._batch_size != FETCH else MAX_PROPOSAL

    def _top_up(self) -> None:
        """Have the next messages claimed while the last ones are handed out."""
        if self._parked:
            self._unpark()
        ahead = sum(len(run.messages) for run in self._proposed)
        while ahead < AHEAD * self._proposal_size:
            if self._closing.is_set() or self._is_ending:
                return
            if not self._ready:
                have = 0
                while have < self._proposal_size:
                    got = self._fetch(min(FETCH, self._proposal_size - have))
                    have += got
                    if not got:
                        break
                self._merge_ready()
            if not self._ready:
                return
            run = self._ready.popleft()
            part = run.part
            if part.stage is not Stage.ACTIVE:
                continue
            if part.parked or not part.claim.held:
                part.parked.append(run)
                self._parked.append(part)
            elif run.messages[0].offset() >= part.floor:
                with contextlib.suppress(NotHeld, Closed):
                    run.seq = part.claim._propose(run.end)
                    self._proposed.append(run)
                    ahead += len(run.messages)

    def _merge_ready(self) -> None:
        """Join runs of one partition that were fetched one after the other: one proposal for all.

        Order matters within a partition alone.
        """
        if len(self._ready) < 2:
            return
        joined: dict[HeldPartition, list[Any]] = {}
        for run in self._ready:
            joined.setdefault(run.part, []).extend(run.messages)
        self._ready = deque(Run(part, messages) for part, messages in joined.items())

    def _verdict(self, run: Run) -> bool | None:
        """Whether the log has given the messages of `run` to us; None while nobody knows."""
        part = run.part
        if part.claim.claimed_offset >= run.end:
            return True
        detail = self._verdicts.get(run.seq)
        if detail is None:
            return False if part.claim._ended.is_set() else None
        # It was rejected, or nobody knows. Within one epoch nobody but us claims messages: if they
        # are claimed now, an earlier attempt of ours was accepted after all.
        with contextlib.suppress(MarshalError):
            cell = self.marshal.cell(part.topic, part.partition)
            if cell is not None and cell.held and cell.epoch == part.claim.epoch:
                if cell.claimed_offset >= run.end:
                    return True
                if detail == "unknown outcome":
                    self._verdicts.pop(run.seq)
                    run.seq = part.claim._propose(run.end)
                    return None
        return False

    def _drop(self, messages: Iterable[Any]) -> None:
        count = sum(1 for _ in messages)
        if count:
            self.dropped += count
            logger.warning(
                "%s: %d messages were claimed, but the claim was lost before they were handed out; "
                "nobody will deliver them (at most once)",
                self.marshal.client_id,
                count,
            )

    def _hear(self, notice: Notice) -> None:
        """Called by the driver, under its lock, with all that happens to our claims."""
        if notice.kind == "messages_claimed":
            self._decided.set()
        elif notice.kind == "messages_rejected":
            self._verdicts[notice.number] = notice.detail
            self._decided.set()
        elif notice.kind != "stored":
            self._decided.set()
            self._keeper.wake()

    # Fetching

    def _fetch(self, most: int, wait_s: float = 0.0) -> int:
        """Fetch up to `most` messages, and put them on `_ready` as runs. Returns how many."""
        with self._kafka_lock:
            self._run_commands()
            if wait_s:
                message = self._consumer.poll(wait_s)
                messages = [] if message is None else [message]
                if messages and most > 1:  # more have come with it
                    messages += self._consumer.consume(min(most, self._batch_size) - 1, 0)
            else:
                messages = self._consumer.consume(min(most, self._batch_size), 0)
            if messages:
                self._sort_out(messages)
        self._run_commands_if_free()
        return len(messages)

    def command(self, command: Callable[[], None]) -> None:
        """Have `command` use the Kafka consumer, in the order given, and never during a fetch.

        confluent-kafka's consumer has a lock of its own, which a polling thread hardly ever leaves
        to another; and what a fetch brings must belong to the assignment of that moment.
        """
        self._commands.append(command)
        self._run_commands_if_free()

    def _run_commands_if_free(self) -> None:
        while self._commands and self._kafka_lock.acquire(blocking=False):
            try:
                self._run_commands()
            finally:
                self._kafka_lock.release()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _sort_out(self, messages: list[Any]) -> None:
        """Put what was fetched on `_ready`, by partition; order matters within a partition only.

        Every message passes here: the loops are those of `map` and `groupby`, not of Python.
        """
        if any(map(_error_of, messages)):
            messages = self._without_errors(messages)
            if not messages:
                return
        active = self._active
        if len(active) == 1:  # nothing else is fetched
            [part] = active.values()
            if _key(messages[0]) == part.key == _key(messages[-1]):
                self._ready.append(Run(part, messages))
            return
        seen = self._keeper.topics_seen
        only = next(iter(seen)) if len(seen) == 1 else None
        groups: dict[tuple[str, int], list[Any]] = {}
        for number, same_number in groupby(messages, _partition_of):
            if only is not None:
                groups.setdefault((only, number), []).extend(same_number)
                continue
            for topic, group in groupby(same_number, _topic_of):
                groups.setdefault((topic, number), []).extend(group)
        for key, found in groups.items():
            if key in active:
                self._ready.append(Run(active[key], found))

    def _without_errors(self, messages: list[Any]) -> list[Any]:
        good = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            else:
                self._on_error(message, error)
        return good

    def _on_error(self, message: Any, error: KafkaError) -> None:
        part = self._active.get(_key(message))
        code = error.code()
        if code == KafkaError._PARTITION_EOF or part is None:
            return
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            part.out_of_range = True
            self._keeper.wake()
        elif code in REFUSED:
            self._keeper.fail(denied(self._kafka_config, part.topic, "Read"))
        else:
            logger.warning(
                "%s: %s/%d: %s", self.marshal.client_id, part.topic, part.partition, error.str()
            )

    def _deserialize(self, message: Any) -> Any:
        from confluent_kafka.serialization import MessageField, SerializationContext

        key_deserializer, value_deserializer = self._deserializers
        headers = message.headers()
        if value_deserializer is not None:
            context = SerializationContext(message.topic(), MessageField.VALUE, headers)
            message.set_value(value_deserializer(message.value(), context))
        if key_deserializer is not None:
            context = SerializationContext(message.topic(), MessageField.KEY, headers)
            message.set_key(key_deserializer(message.key(), context))
        return message

    # Acknowledging

    def ack(self, message: Message) -> None:
        """Say that `message` is done. In any order, from any thread.

        With `auto_ack` the loop does so by itself. What belongs to a partition that is no longer
        held is ignored: whoever holds it now delivers the message again.
        """
        part = self.parts.get(_key(message))
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
        with self.marshal._lock:
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
        part = self._active.get(_key(message))
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


def _key(message: Any) -> tuple[str, int]:
    return (message.topic(), message.partition())


def _start(start: Start) -> int:
    """Return the offset or the time that `start` stands for: −2, −1, or milliseconds."""
    if start == "earliest":
        return -2
    if start == "latest":
        return -1
    if isinstance(start, datetime):
        return int(start.timestamp() * 1000)
    if type(start) is int and start >= 0:
        return start
    raise ConfigurationError(
        f"start = {start!r} must be 'earliest', 'latest', a datetime, or milliseconds since 1970"
    )

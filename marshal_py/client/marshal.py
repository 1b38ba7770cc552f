"""`Marshal`: the live client. One driver thread joins the claimant and the log.

The driver polls the log, folds what came, feeds the claimant, and appends what it asks for. Calls
of the user take the same lock, change the claimant, and hand its appends to the producer at once:
a claim costs one produce round trip and one fetch, and no hand-over between threads. Hooks run in a
thread of their own, so that a slow one delays no heartbeat.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from marshal_py.client.leader_election import Leader, Leadership, LeaderWatch
from marshal_py.client.log_reader import LogReader, Truncated, boottime_ns
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_TOPIC,
    ClientSettings,
    default_client_id,
    kafka_config,
    new_instance_id,
)
from marshal_py.client.signals import exit_on_sigterm
from marshal_py.client.structured_logs import Fields
from marshal_py.client.waiting import Bell, Steps, Wait, block
from marshal_py.errors import (
    BrokerUnavailable,
    ClaimTimeout,
    Closed,
    DuplicateClientId,
    MarshalError,
    NotHeld,
    NotInVersion1,
    SnapshotMismatch,
    TopicMissing,
)
from marshal_py.protocol.claimant import Claimant, ClaimState, Holding, Notice
from marshal_py.protocol.events import Event
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.text.claimant import TextClaimant
from marshal_py.protocol.wire import MSGPACK, WireName, text_wire
from marshal_py.protocol.world import MS, Liveness, World

__all__ = ["Claim", "Marshal"]

logger = logging.getLogger("marshal_py")

MAX_POLL_S: Final = 0.1
"""The driver looks at the time at least this often; a record or a deadline wakes it before."""

MIN_SNAPSHOT_GAP_S: Final = 60.0
"""A client writes at most one snapshot of a coordination partition in this time (§6.3)."""

Listener = Callable[[int, list[Event]], None]
Hook = Callable[["Claim"], None]


class Claim:
    """A claim on one partition of one topic: a lease in time, and an epoch that fences for ever.

    Act only while `held` is true, and hand `epoch` to whatever the work writes to: a process that
    was suspended between looking and acting is stopped by the epoch, not by the lease (§5.4).

    For any thread. A context manager that releases at the end.
    """

    def __init__(self, marshal: Marshal, holding: Holding) -> None:
        self._marshal = marshal
        self._holding = holding
        self._acquired = threading.Event()
        self._decided = threading.Event()
        """Acquired, ended, or found to be held by somebody else for now."""
        self._not_held = threading.Event()
        self._ended = threading.Event()
        self._changed = Bell(marshal._lock)
        self._messages: dict[int, str | None] = {}
        self._watch: Callable[[Notice], None] | None = None
        """Hears of everything at once, in the driver and under the client's lock: be quick."""
        self.on_lost: Hook | None = None
        """Called once, in the hook thread, when the log says that the claim is somebody else's."""
        self.on_lapsed: Hook | None = None
        """Called when the lease ran out: no heartbeat came back in time. It may be regained."""
        self.on_regained: Hook | None = None
        """Called when a heartbeat came back after a lapse, and nobody had taken over."""
        self.on_pause: Hook | None = None
        """Called when an operator paused the group; return, or `release`, once work has stopped."""

    topic = property(lambda self: self._holding.topic, doc="The topic, real or virtual.")
    partition = property(lambda self: self._holding.partition, doc="The partition number.")

    @property
    def epoch(self) -> int:
        """The fencing token: the log offset of the accepted claim. Larger for every new holder.

        Raises `NotInVersion1` with wire="text".
        """
        if self._marshal.settings.wire == "text":
            raise NotInVersion1(
                "claim.epoch: records of version 1 (wire='text') carry no fencing epoch, and Go "
                "clients would not honour one. Use wire='msgpack', after `marshal group migrate`"
            )
        return self._holding.epoch

    @property
    def held(self) -> bool:
        """Whether the holder may act now. False the moment the lease lapses, network or not.

        Takes no lock and asks nobody: cheap enough for every message.
        """
        holding = self._holding
        return holding.state is ClaimState.HELD and self._marshal._clock() < holding.lease_until_ns

    @property
    def remaining_ms(self) -> float:
        """Milliseconds that are left of the lease; 0 when it is not held."""
        if not self.held:
            return 0.0
        return max(0, self._holding.lease_until_ns - self._marshal._clock()) / MS

    @property
    def next_offset(self) -> int:
        """The next offset to process, as committed here; −1 when there is no position yet."""
        return self._holding.next_offset

    @property
    def stored_offset(self) -> int:
        """The next offset to process, as the log has it: what another holder would see."""
        return self._holding.stored_offset

    @property
    def claimed_offset(self) -> int:
        """Every message below it was claimed for at-most-once delivery; −1: none was."""
        return self._holding.claimed_offset

    @property
    def position(self) -> int:
        """Where a new holder starts: the larger of `next_offset` and `claimed_offset`."""
        return max(self._holding.next_offset, self._holding.claimed_offset)

    @property
    def reason(self) -> str | None:
        """Why the claim ended, in words; None while it has not."""
        return self._holding.reason

    def commit(self, next_offset: int, *, wait: bool = False, timeout_s: float = 10.0) -> None:
        """Store the next offset to process.

        It goes with the next heartbeat; with `wait`, at once, and the call returns when it is in
        the log. Offsets only go up: a smaller one is ignored. Raises `NotHeld` when the claim is
        released or lost, or is lost while waiting; `ClaimTimeout` after `timeout_s`.
        """
        block(self._marshal._lock, self._commit(next_offset, wait, timeout_s))

    def _commit(self, next_offset: int, wait: bool, timeout_s: float) -> Steps[None]:
        marshal, holding = self._marshal, self._holding
        marshal._check_open()
        if wait:
            marshal._refresh_offsets()  # the heartbeat carries all claims
        marshal._claimant.commit(holding, next_offset, marshal._clock(), flush=wait)
        marshal._pump()
        if not wait:
            return
        done = yield Wait(
            self._changed,
            lambda: holding.stored_offset >= next_offset or self._ended.is_set(),
            timeout_s,
        )
        if holding.stored_offset >= next_offset:
            return
        if done:
            raise NotHeld(f"{self!r} ended before offset {next_offset} was stored")
        raise ClaimTimeout(
            f"offset {next_offset} was not stored within {timeout_s} s; it goes with the next "
            "heartbeat that comes through"
        )

    def claim_messages(self, proposed_offset: int, *, timeout_s: float = 10.0) -> bool:
        """Claim every message below `proposed_offset` for at-most-once delivery (§5.11).

        Returns True when the log accepted it and the lease stands: now, and only now, deliver them.
        False when it did not, or nobody knows: do not deliver. Raises `NotHeld` when the claim is
        released or lost already.
        """
        return block(self._marshal._lock, self._claim_messages(proposed_offset, timeout_s))

    def _claim_messages(self, proposed_offset: int, timeout_s: float) -> Steps[bool]:
        marshal = self._marshal
        marshal._check_open()
        seq = marshal._claimant.claim_messages(self._holding, proposed_offset, marshal._clock())
        marshal._proposals[seq] = self
        marshal._pump()
        try:
            yield Wait(
                self._changed, lambda: seq in self._messages or self._ended.is_set(), timeout_s
            )
        finally:
            marshal._proposals.pop(seq, None)
        return self._messages.pop(seq, "no answer") is None and self.held

    def _propose(self, proposed_offset: int) -> int:
        """Claim messages without waiting; the verdict is a notice with this seq to `_watch`."""
        marshal = self._marshal
        with marshal._lock:
            marshal._check_open()
            seq = marshal._claimant.claim_messages(self._holding, proposed_offset, marshal._clock())
            marshal._pump()
            return seq

    def set_metadata(self, metadata: bytes) -> None:
        """Publish up to 256 bytes with the claim, from the next heartbeat on."""
        with self._marshal._lock:
            self._marshal._claimant.set_metadata(self._holding, metadata)

    def release(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """Give the claim back. Stop acting on it before you call this.

        `held` is false from here on, and the next claimant need not wait. With `wait`, returns when
        the release is in the log; raises `ClaimTimeout` if that takes longer than `timeout_s` (it
        goes on being tried). A claim that has ended already is left as it is.
        """
        block(self._marshal._lock, self._release(wait, timeout_s))

    def _release(self, wait: bool, timeout_s: float) -> Steps[None]:
        marshal = self._marshal
        if not marshal._running:
            return
        marshal._claimant.release(self._holding, marshal._clock())
        marshal._pump()
        if wait and not (yield Wait(self._changed, self._ended.is_set, timeout_s)):
            raise ClaimTimeout(f"the release of {self!r} was not seen within {timeout_s} s")

    def wait_held(self, timeout_s: float | None = None) -> bool:
        """Wait until the claim is held, for the first time or again after a lapse.

        Returns True when it is, False when it ended instead (see `reason`) or after `timeout_s`.
        """
        return block(self._marshal._lock, self._wait_held(timeout_s))

    def _wait_held(self, timeout_s: float | None) -> Steps[bool]:
        yield Wait(self._changed, lambda: self.held or self._ended.is_set(), timeout_s)
        return self.held

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the right to act ends: the lease lapsed, or the claim was lost or released.

        Returns True when it did, False after `timeout_s`. After a lapse the claim may be regained
        (`held` is true again); call it anew.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.held:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            # The driver tells of the end; the lease itself needs nobody to tell.
            lease_s = self.remaining_ms / 1000
            self._not_held.wait(lease_s if left is None else min(lease_s, left))
        return True

    def _fields(self) -> dict[str, object]:
        """What a log record says of it."""
        h = self._holding
        return {"topic": h.topic, "partition": h.partition, "epoch": h.epoch}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ClaimTimeout):
            self.release()

    def __repr__(self) -> str:
        h = self._holding
        return f"<Claim {h.topic}/{h.partition} {h.state.value} epoch={h.epoch}>"


class Marshal:
    """A client of the coordination topic: claims, leases, members, and the world as it is.

    ::

        with Marshal("localhost:9092", group_id="billing", client_id="billing-1") as m:
            claim = m.claim("orders", 3)
            while claim.held:
                ...

    - `config`: librdkafka settings (all are passed through: SASL, TLS, ...), or just the brokers.
    - `group_id`: who shares. Claims of different groups do not meet.
    - `client_id`: unique in its group, and best kept over restarts: a client that comes back under
      the same name resumes its claims without waiting. By default a fresh one.
    - `interval_ms`: the heartbeat interval, 20 or more; 5,000 by default (with wire="text" 60,000,
      and the same for all clients, in whole seconds). A dead holder is replaced after two.
    - `margin_ms`: what the lease keeps back for clocks whose rates differ; a tenth of the interval.
    - `create_topics`: make the topics with sound settings if they are missing.
    - `resume`, `cold_start_skew_ms`: see specs/PROTOCOL.md §5.8 and §5.3.
    - `member`, `member_metadata`: whether and with which bytes other members see this client.
    - `snapshot_every`: records of a coordination partition between two snapshots.
    - `wire`: "msgpack" for version 2, or "text" to work beside Go Marshal on its topic. What
      version 1 cannot give raises `NotInVersion1`: see specs/INTEROP.md.
    - `close_on_sigterm`: on SIGTERM, if the program handles it nowhere else, raise SystemExit in
      the main thread, so that the `with` block ends and everything is released.

    Raises `ConfigurationError` before anything touches the network. `start`, or entering the `with`
    block, raises `TopicMissing`, `BrokerUnavailable` after `connect_timeout_ms`, and `LogHole`.
    Later outages raise nothing: leases lapse, and the client reconnects without end.

    For any thread; not for use after fork.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str,
        *,
        group_id: str,
        client_id: str | None = None,
        interval_ms: int | None = None,
        margin_ms: int | None = None,
        topic: str = DEFAULT_TOPIC,
        snapshot_topic: str | None = None,
        create_topics: bool = False,
        resume: bool = True,
        cold_start_skew_ms: int | None = 1_000,
        member: bool = True,
        member_metadata: bytes = b"",
        connect_timeout_ms: int = 30_000,
        snapshot_every: int = 50_000,
        close_on_sigterm: bool = True,
        wire: WireName = "msgpack",
    ) -> None:
        instance_id = new_instance_id()
        if wire == "text":
            instance_id = instance_id[:8]  # as Go has it
        if interval_ms is None:
            interval_ms = DEFAULT_INTERVAL_MS.get(wire, 5_000)
        if margin_ms is None:
            margin_ms = max(1, interval_ms // 10) if isinstance(interval_ms, int) else 0
        self.settings = ClientSettings(
            kafka=kafka_config(config),
            group_id=group_id,
            client_id=default_client_id(instance_id) if client_id is None else client_id,
            instance_id=instance_id,
            interval_ms=interval_ms,
            margin_ms=margin_ms,
            topic=topic,
            snapshot_topic=f"{topic}.snapshots" if snapshot_topic is None else snapshot_topic,
            resume=resume,
            cold_start_skew_ms=cold_start_skew_ms,
            member=member,
            member_metadata=member_metadata,
            connect_timeout_ms=connect_timeout_ms,
            snapshot_every=snapshot_every,
            wire=wire,
        )
        self._log = Fields(
            logger,
            {
                "group_id": group_id,
                "client_id": self.settings.client_id,
                "instance_id": instance_id,
            },
        )
        self._create_topics = create_topics
        self._close_on_sigterm = close_on_sigterm
        self._clock = boottime_ns
        self._lock = threading.RLock()
        self._settled = threading.Condition(self._lock)
        self._started = self._running = False
        self._stop = threading.Event()
        self._failure: MarshalError | None = None
        self._claims: dict[int, Claim] = {}
        """id(holding) → claim."""
        self._proposals: dict[int, Claim] = {}
        self._listeners: list[Listener] = []
        self._watchers: list[Listener] = []
        """Like listeners, but called in the driver and under the lock: be quick."""
        self._before_beat: list[Callable[[], None]] = []
        """Called in the driver, under the lock, before heartbeats are made: refresh offsets."""
        self._hooks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hook_thread: threading.Thread | None = None
        self._last_snapshot_s: dict[int, float] = {}
        self._look_at_pauses_s = 0.0
        self._jitter = random.Random(instance_id)
        self._restore_signal: Callable[[], None] | None = None
        self._reader: LogReader
        self._writer: LogWriter
        self._claimant: Claimant
        self._driver: threading.Thread

    # Life

    @property
    def group_id(self) -> str:
        """The group of this client."""
        return self.settings.group_id

    @property
    def client_id(self) -> str:
        """The name of this client in its group."""
        return self.settings.client_id

    @property
    def instance_id(self) -> str:
        """What tells this start of the client from every other: random hex digits."""
        return self.settings.instance_id

    def start(self) -> Self:
        """Connect, replay the log and start the driver thread. Returns the client itself."""
        self._open()
        self._join()
        return self

    def _open(self) -> None:
        """Connect and replay the log. Nothing is appended yet."""
        with self._lock:
            if self._started:
                raise Closed("this client was started before; make a new one")
            self._started = True
            self._stop.clear()
        settings = self.settings
        if self._create_topics:
            from marshal_py.client.topics import ensure_topics

            ensure_topics(
                settings.kafka,
                topic=settings.topic,
                snapshot_topic=None if settings.wire == "text" else settings.snapshot_topic,
            )
        kafka = {"client.id": f"marshal-{settings.client_id}", **settings.kafka}
        # A heartbeat that could not be sent within two intervals is of no use to anyone. In version
        # 1 it would even take the partition away from whoever had claimed it meanwhile.
        is_text = settings.wire == "text"
        timeout_ms = settings.interval_ms // 2 if is_text else max(2 * settings.interval_ms, 5_000)
        self._writer = LogWriter(
            kafka,
            topic=settings.topic,
            snapshot_topic=settings.snapshot_topic,
            timeout_ms=timeout_ms,
        )
        self._reader = LogReader(
            kafka,
            topic=settings.topic,
            snapshot_topic=settings.snapshot_topic,
            wire=text_wire(settings.interval_ms // 1000) if is_text else MSGPACK,
        )
        try:
            self._replay()
        except BaseException:
            self._reader.close()
            raise

    def _never_mind(self) -> None:
        """After `_open`: somebody else's start failed. It may be tried again."""
        self._reader.close()
        self._started = False

    def _join(self) -> None:
        """After `_open`: begin to take part."""
        self._claimant = self._new_claimant()
        self._running = True
        with self._lock:
            self._caught_up()
        self._driver = threading.Thread(target=self._drive, name="marshal-driver", daemon=True)
        self._driver.start()
        atexit.register(_close_at_exit, weakref.ref(self))
        if self._close_on_sigterm:
            self._restore_signal = exit_on_sigterm()

    def _new_claimant(self) -> Claimant:
        settings = self.settings
        if settings.wire == "text":
            return TextClaimant(
                self._reader.world,
                self._reader.observers,
                client_id=settings.client_id,
                instance_id=settings.instance_id,
                group_id=settings.group_id,
                interval_ms=settings.interval_ms,
                margin_ms=settings.margin_ms,
                wall_s=time.time,
                resume=settings.resume,
            )
        return Claimant(
            self._reader.world,
            self._reader.observers,
            client_id=settings.client_id,
            instance_id=settings.instance_id,
            group_id=settings.group_id,
            interval_ms=settings.interval_ms,
            margin_ms=settings.margin_ms,
            member=settings.member,
            member_metadata=settings.member_metadata,
            resume=settings.resume,
            cold_start_skew_ms=settings.cold_start_skew_ms,
        )

    def close(self, timeout_s: float = 10.0, *, release: bool = True) -> None:
        """Release every claim, leave the group, and stop. Safe to call twice.

        Waits up to `timeout_s` for the releases to be in the log; what is not by then ends with its
        lease. With `release=False` the claims are kept: a last heartbeat stores their positions,
        and the next start under the same client_id resumes them, if it comes within two intervals.
        Stop acting on the claims before you call this.
        """
        with self._lock:
            if not self._running:
                self._stop.set()
                return
            self._refresh_offsets()
            if release:
                self._claimant.leave(self._clock())
            else:
                self._claimant.keep(self._clock())
            self._pump()
        deadline = time.monotonic() + timeout_s
        with self._settled:
            settled = not release or self._settled.wait_for(
                lambda: self._claimant.settled or not self._driver.is_alive(), timeout_s
            )
            self._running = False
        if not settled:
            self._log.warning(
                "%s: not every release was seen within %s s; those claims end with their leases",
                self.client_id,
                timeout_s,
            )
        self._stop.set()
        self._driver.join(max(1.0, deadline - time.monotonic()))
        self._writer.flush(max(0.5, deadline - time.monotonic()))
        self._reader.close()
        for claim in list(self._claims.values()):
            self._finish(claim)
        if self._hook_thread is not None:
            self._hooks.put(None)
            if self._hook_thread is not threading.current_thread():
                self._hook_thread.join(max(0.5, deadline - time.monotonic()))
        if self._restore_signal is not None:
            self._restore_signal()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Claims

    def claim(self, topic: str, partition: int, *, timeout_s: float | None = None) -> Claim:
        """Claim (topic, partition) for this client and wait until it is held.

        Any names will do: a claim need not be about a Kafka topic that exists. A free cell takes
        one round trip; one whose holder died, two of the holder's intervals. Raises `ClaimTimeout`
        after `timeout_s` (None: wait for ever), `DuplicateClientId`, `InvalidArgument`, `Closed`.
        Claiming what this client has already returns the same claim, once it is held.
        """
        return self.claim_many([(topic, partition)], timeout_s=timeout_s)[0]

    def claim_many(
        self, keys: Iterable[tuple[str, int]], *, timeout_s: float | None = None
    ) -> list[Claim]:
        """Claim several (topic, partition) at once; wait until all are held.

        Raises as `claim` does; those that this call has won are then released again.
        """
        return block(self._lock, self._claim_many(keys, timeout_s))

    def _claim_many(
        self, keys: Iterable[tuple[str, int]], timeout_s: float | None
    ) -> Steps[list[Claim]]:
        had = set(self._claims.values())
        claims = [self.want(topic, partition) for topic, partition in keys]
        try:
            yield from self._await(claims, timeout_s)
        except BaseException:
            for claim in claims:
                if claim not in had:
                    claim.release(wait=False)
            raise
        return claims

    def _await(self, claims: list[Claim], timeout_s: float | None) -> Steps[None]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for claim in claims:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if (yield from claim._wait_held(left)):
                continue
            if not claim._ended.is_set():
                raise ClaimTimeout(self._why_not(claim, timeout_s))
            self._check_open()
            if self._claimant.twin is not None:
                raise DuplicateClientId(claim.reason)
            raise NotHeld(f"{claim!r} ended at once: {claim.reason}")

    def try_claim(self, topic: str, partition: int, *, timeout_s: float = 10.0) -> Claim | None:
        """Claim (topic, partition) if that is possible now; None if a live client holds it."""
        return block(self._lock, self._try_claim(topic, partition, timeout_s))

    def _try_claim(self, topic: str, partition: int, timeout_s: float) -> Steps[Claim | None]:
        claim = self.want(topic, partition)
        yield Wait(claim._changed, claim._decided.is_set, timeout_s)
        if claim.held:
            return claim
        claim.release(wait=False)
        return None

    def want(self, topic: str, partition: int) -> Claim:
        """Ask for a claim without waiting: it is held some time later, see `Claim.held`.

        The client goes on trying until it wins, or `Claim.release` is called.
        """
        with self._lock:
            self._check_open()
            holding = self._claimant.want(topic, partition, self._clock())
            claim = self._claims.get(id(holding))
            if claim is None:
                claim = self._claims[id(holding)] = Claim(self, holding)
            self._pump()
            return claim

    def claims(self) -> list[Claim]:
        """Return the claims that this client holds now."""
        with self._lock:
            return [claim for claim in self._claims.values() if claim.held]

    def _why_not(self, claim: Claim, timeout_s: float | None) -> str:
        with self._lock:
            topic, partition = claim.topic, claim.partition
            if self._reader.world.paused(self.group_id):
                return f"{topic}/{partition}: the group is paused; `marshal group resume` ends that"
            cell = self._reader.world.cell(self.group_id, topic, partition)
            if cell is not None and cell.held:
                return (
                    f"{topic}/{partition} was not won within {timeout_s} s: {cell.holder} holds it "
                    f"(epoch {cell.epoch}, interval {cell.interval_ms} ms)"
                )
            return f"{topic}/{partition} was not won within {timeout_s} s: no answer from the log"

    def leader(self, name: str) -> Leadership:
        """Stand for leader of `name`; entering the `with` block waits until elected (§8)."""
        return Leadership(self, name)

    def watch_leader(
        self,
        name: str,
        on_change: Callable[[Leader | None, Leader | None], None] | None = None,
    ) -> LeaderWatch:
        """Observe who leads `name`; `on_change(old, new)` hears of every change."""
        return LeaderWatch(self, name, on_change)

    # The world

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        """Look at the world as this client knows it, while it stands still.

        Heartbeats wait as long as the block lasts: copy what you need and leave.
        """
        with self._lock:
            self._check_open()
            yield self._reader.world

    def cell(self, topic: str, partition: int, *, group_id: str | None = None) -> Cell | None:
        """Return a copy of one cell, None if it was never touched."""
        with self._lock:
            self._check_open()
            cell = self._reader.world.cell(group_id or self.group_id, topic, partition)
            return None if cell is None else _copy(cell)

    def liveness(self, topic: str, partition: int) -> Liveness | None:
        """Say how alive the holder looks to this client; None if nobody holds the cell."""
        with self._lock:
            self._check_open()
            world = self._reader.world
            cell = world.cell(self.group_id, topic, partition)
            if cell is None or not cell.held:
                return None
            observer = self._reader.observers[world.coordinator(topic, partition)]
            return observer.liveness(cell, self._clock())

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(coordination partition, events)` for what the log brings from now on.

        Runs in the hook thread, in order. Returns a function that ends it.
        """
        with self._lock:
            self._check_open()
            self._listeners.append(listener)
            self._need_hooks()

        def stop() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return stop

    def set_member_metadata(self, metadata: bytes) -> None:
        """Tell the other members of the group something else (up to 4,096 bytes), at once."""
        with self._lock:
            self._check_open()
            self._refresh_offsets()  # the heartbeat that tells it carries claims, too
            self._claimant.set_member_metadata(metadata, self._clock())
            self._pump()

    @property
    def failure(self) -> MarshalError | None:
        """Why this client has stopped claiming, None while it has not."""
        return self._failure

    @property
    def snapshot_mismatches(self) -> tuple[SnapshotMismatch, ...]:
        """The snapshots read so far that differ from what this process made of the log.

        Not empty: some client does not follow the protocol, or its memory is damaged. Each is
        logged as an error as well (specs/PROTOCOL.md §6.5); `marshal verify` says who is wrong.
        """
        reader: LogReader | None = getattr(self, "_reader", None)  # there is none before `start`
        return () if reader is None else tuple(reader.mismatches)

    # The driver

    def _replay(self) -> None:
        for _ in range(5):
            try:
                self._reader.open(self.settings.connect_timeout_ms / 1000)
                self._reader.replay()
            except Truncated as error:
                self._log.warning("%s; replaying", error)
            else:
                return
        raise BrokerUnavailable(f"topic {self.settings.topic!r} changes while it is read")

    def _caught_up(self) -> None:
        now_ns = self._clock()
        for p in range(self._reader.world.partitions):
            self._claimant.caught_up(p, now_ns)
        self._pump()

    def _drive(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._turn()
                except Truncated as error:
                    self._truncated(error)
        except MarshalError as error:
            with self._lock:
                self._fail(error)
        except BaseException as error:
            self._log.exception("%s: the driver stopped; every lease lapses", self.client_id)
            failure = MarshalError(f"the driver stopped: {error}")
            failure.__cause__ = error
            with self._lock:
                self._fail(failure)

    def _turn(self) -> None:
        deadline_ns = self._claimant.next_deadline_ns()
        wait_s = MAX_POLL_S
        if deadline_ns is not None:
            wait_s = min(wait_s, max(0.0, (deadline_ns - self._clock()) / 1e9))
        messages = self._reader.poll(wait_s)
        self._writer.serve()
        with self._lock:
            for batch in self._reader.fold(messages):
                self._claimant.applied(batch.coordinator, batch.events, batch.now_ns)
                for watcher in self._watchers:
                    watcher(batch.coordinator, batch.events)
                if self._listeners and batch.events:
                    self._tell(batch.coordinator, batch.events)
            now_ns = self._clock()
            failures = self._writer.take_failures()
            due_ns = self._claimant.next_deadline_ns()
            if failures or (due_ns is not None and due_ns <= now_ns):
                self._refresh_offsets()  # heartbeats may go out now
            for seq, why in failures:
                self._log.info("%s: an append failed (%s); the log decides", self.client_id, why)
                self._claimant.append_failed(seq, now_ns)
            self._claimant.tick(now_ns)
            self._end_expired_pauses()
            if self._writer.refusal is not None and self._failure is None:
                self._fail(self._writer.refusal)
            if self._reader.partition_count_error is not None and self._failure is None:
                self._fail(self._reader.partition_count_error)
            self._pump()
            if self._reader.due:
                self._write_snapshots()

    def _end_expired_pauses(self) -> None:
        """A pause that is over by this machine's clock is ended by whichever client looks first.

        Each looks about once a second and at a moment of its own, so that few records are written.
        """
        now_s = time.monotonic()
        if now_s < self._look_at_pauses_s or self.settings.wire == "text":
            return
        self._look_at_pauses_s = now_s + self._jitter.uniform(0.5, 1.5)
        now_ms = time.time() * 1000
        for state in self._reader.world.states:
            if state.paused.get(self.group_id, now_ms + 1) <= now_ms:
                self._claimant.end_pause(state.partition)

    def _refresh_offsets(self) -> None:
        for refresh in self._before_beat:
            refresh()

    def _truncated(self, error: Truncated) -> None:
        self._log.error("%s: %s; leases are dropped, replaying", self.client_id, error)
        with self._lock:
            self._claimant.truncated()
            self._pump()
        while not self._stop.is_set():
            try:
                # World and observers are refilled in place, so nobody may look meanwhile.
                with self._lock:
                    self._replay()
                    self._caught_up()
                return
            except (BrokerUnavailable, TopicMissing) as problem:
                self._log.warning("%s: %s; trying on", self.client_id, problem)
                self._stop.wait(1.0)

    def _fail(self, error: MarshalError) -> None:
        """Stop claiming for good; leases lapse by themselves."""
        self._log.error("%s: %s", self.client_id, error)
        self._failure = error
        self._claimant.stop_claiming(str(error))
        self._pump()

    def _pump(self) -> None:
        """Carry out what the claimant asks for. The caller holds the lock."""
        for append in self._claimant.take_appends():
            self._writer.append(append.coordinator, append.seq, append.value)
        for notice in self._claimant.take_notices():
            self._on_notice(notice)
        if self._claimant.leaving and self._claimant.settled:
            self._settled.notify_all()

    def _on_notice(self, notice: Notice) -> None:
        claim = self._claims.get(id(notice.holding))
        kind = notice.kind
        if claim is None:
            return
        if claim._watch is not None:
            claim._watch(notice)
        if kind == "stored":
            claim._changed.notify_all()
        elif kind == "waiting":
            claim._decided.set()
            claim._changed.notify_all()
        elif kind == "acquired":
            claim._not_held.clear()
            claim._acquired.set()
            claim._decided.set()
            claim._changed.notify_all()
        elif kind == "regained":
            claim._not_held.clear()
            claim._changed.notify_all()
            self._log.info("%s: %r regained", self.client_id, claim, extra=claim._fields())
            self._hook(claim.on_regained, claim)
        elif kind == "lapsed":
            claim._not_held.set()
            claim._changed.notify_all()
            self._log.warning(
                "%s: the lease of %r lapsed", self.client_id, claim, extra=claim._fields()
            )
            self._hook(claim.on_lapsed, claim)
        elif kind == "paused":
            claim._not_held.set()
            claim._changed.notify_all()
            self._log.info(
                "%s: the group was paused; %r ends",
                self.client_id,
                claim,
                extra=claim._fields(),
            )
            if claim.on_pause is not None:
                self._hook(_pause_then_release(claim.on_pause), claim)
        elif kind in ("messages_claimed", "messages_rejected"):
            if notice.number in self._proposals:
                claim._messages[notice.number] = (
                    None if kind == "messages_claimed" else notice.detail
                )
                claim._changed.notify_all()
        elif kind == "duplicate_client_id":
            self._failure = DuplicateClientId(notice.detail)
            self._log.error("%s: %s", self.client_id, notice.detail)
        elif kind in ("lost", "released"):
            if kind == "lost" and claim._acquired.is_set():
                self._log.warning(
                    "%s: %r lost: %s",
                    self.client_id,
                    claim,
                    notice.detail,
                    extra=claim._fields(),
                )
                self._hook(claim.on_lost, claim)
            del self._claims[id(notice.holding)]
            self._finish(claim)

    def _finish(self, claim: Claim) -> None:
        claim._ended.set()
        claim._not_held.set()
        claim._acquired.set()
        claim._decided.set()
        with claim._changed:
            claim._changed.notify_all()

    def _hook(self, hook: Hook | None, claim: Claim) -> None:
        if hook is not None:
            self._need_hooks()
            self._hooks.put(partial(hook, claim))

    def _tell(self, coordinator: int, events: list[Event]) -> None:
        for listener in list(self._listeners):
            self._hooks.put(partial(listener, coordinator, events))

    def _need_hooks(self) -> None:
        if self._hook_thread is None:
            self._hook_thread = threading.Thread(
                target=self._run_hooks, name="marshal-hooks", daemon=True
            )
            self._hook_thread.start()

    def _run_hooks(self) -> None:
        while (hook := self._hooks.get()) is not None:
            try:
                hook()
            except Exception:
                self._log.exception("%s: a hook raised", self.client_id)

    def _write_snapshots(self) -> None:
        due, self._reader.due[:] = list(self._reader.due), []
        for snapshot in due:
            p = snapshot.coordinator
            newest = self._reader.newest_snapshot.get(p, 0)
            last_s = self._last_snapshot_s.get(p)
            now_s = time.monotonic()
            if (
                snapshot.crossed_by == self.instance_id
                and snapshot.next_offset - newest >= self.settings.snapshot_every
                and (last_s is None or now_s - last_s >= MIN_SNAPSHOT_GAP_S)
            ):
                self._last_snapshot_s[p] = now_s
                self._writer.write_snapshot(snapshot, self._reader.world.partitions, self.client_id)

    def _check_open(self) -> None:
        if not self._running:
            raise Closed(
                "the client has been closed; make a new one"
                if self._started
                else "the client was not started: use `with Marshal(...)`, or call start()"
            )
        if self._failure is not None and not isinstance(self._failure, DuplicateClientId):
            raise self._failure

    def __repr__(self) -> str:
        return f"<Marshal {self.client_id} in {self.group_id}>"


def _pause_then_release(on_pause: Hook) -> Hook:
    def hook(claim: Claim) -> None:
        on_pause(claim)
        claim.release(wait=False)

    return hook


def _copy(cell: Cell) -> Cell:
    return type(cell)(*(getattr(cell, name) for name in cell.__struct_fields__))


def _close_at_exit(reference: weakref.ref[Marshal]) -> None:
    marshal = reference()
    if marshal is not None:
        marshal.close(timeout_s=3.0)

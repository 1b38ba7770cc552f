"""The driver of a client: one thread that joins the claimant and the log.

It polls the log, folds what came, feeds the claimant, and appends what that asks for. Calls of the
user take the same lock, change the claimant, and hand its appends to the producer at once
(`Driver.carry_out`): a claim costs one produce round trip and one fetch, and no hand-over between
threads.

What the claimant has to say of a claim goes to `Driver.on_notice` (`claims.ClaimRegistry`); what
the fold reports, to `watchers` and listeners.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from marshal_py.client import forks
from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.client.genesis import new_genesis
from marshal_py.client.hooks import HookThread
from marshal_py.client.log_reader import LogReader, Truncated, boottime_ns
from marshal_py.client.log_trimming import LogTrimmer
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import ClientSettings
from marshal_py.client.signals import exit_on_sigterm
from marshal_py.client.snapshots import next_offset_in
from marshal_py.client.topic_watch import LOOK_EVERY_S
from marshal_py.client.unread_watch import UnreadWatch
from marshal_py.client.waiting import FOR_EVER_S
from marshal_py.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    DuplicateClientId,
    Forked,
    MarshalError,
    SnapshotMismatch,
    TopicMissing,
)
from marshal_py.protocol.claimant import Claimant, Notice
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import encode
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.wire import MSGPACK, text_wire
from marshal_py.protocol.world import Observer, World

__all__ = ["Driver", "Listener"]

POLL_S: Final = (0.1, 0.5)
"""The driver looks up at least this often, and ten times in an interval if that is between the two;
a record or a deadline wakes it before."""

LAST_POLL_S: Final = 0.02
"""Once nothing is left but to end: whoever closes waits for it."""

MIN_LOOK_S: Final = 0.2
"""A client looks at the topic once an interval: one that was made anew has two holders for no
longer than a lease (§7.1). No oftener than this, though."""

FIRST_GENESIS_SEQ: Final = 2**62
"""Above all that a claimant counts to: its own records are told apart by their seq."""

GENESIS_AGAIN_S: Final = 2.0

UNREAD_S: Final = 10.0
"""What this client has appended comes back within this time, or within `UNREAD_INTERVALS` of its
intervals, if those are longer: by then all its leases are over."""

UNREAD_INTERVALS: Final = 4

MIN_SNAPSHOT_GAP_S: Final = 60.0
"""A client writes at most one snapshot of a coordination partition in this time (§6.3)."""

Listener = Callable[[int, list[Event]], None]
"""Hears what the fold reported: (coordination partition, events)."""


class Driver:
    """Drives one client from `connect` to `close`. Attributes are read and changed under `lock`.

    `connect` replays the log, `start` begins to take part, `close` ends it. After a change of
    `claimant`, `carry_out` does what it asks for.

    It is long because the thread, the start, the founding of a log and the recovery from a log that
    was lost all hand the same claimant between the same reader and writer, under one lock.
    """

    reader: LogReader
    claimant: Claimant

    def __init__(
        self,
        settings: ClientSettings,
        log: logging.LoggerAdapter[Any],
        *,
        create_topics: bool = False,
        close_on_sigterm: bool = True,
    ) -> None:
        self.settings = settings
        self.log = log
        self.lock = threading.RLock()
        self._kafka = {"client.id": f"marshal-{settings.client_id}", **settings.kafka}
        self.admin: Final = AdminOnDemand(self._kafka)
        """What is known to the brokers' administration alone, is asked for with it."""
        self.clock: Final = boottime_ns
        """The monotonic clock, in nanoseconds, that all leases are measured by."""
        self.hooks = HookThread(log, settings.client_id)
        self.started = self.running = False
        self.failure: MarshalError | None = None
        """Why this client has stopped claiming, None while it has not."""
        self.mismatches: list[SnapshotMismatch] = []
        """Snapshots that differ from what this process made of the log."""
        self.on_notice: Callable[[Notice], None] = lambda _: None
        """Called under the lock for what the claimant tells of a claim."""
        self.on_stopped: Callable[[], None] = lambda: None
        """Called at the end of `close`: nothing more will be told of any claim."""
        self.on_ended: list[Callable[[], None]] = []
        """Called in the thread when nothing more will be heard of the log."""
        self.consumer: object | None = None
        """Who tells the group what this member wants; there is one at a time."""
        self.watchers: list[Listener] = []
        """Called in the driver's thread and under the lock: be quick."""
        self.before_heartbeat: list[Callable[[], None]] = []
        """Called under the lock before heartbeats are made: refresh offsets."""
        self.restarted: list[Callable[[str], None]] = []
        """Called in the driver's thread and under the lock when the log was read anew, with why:
        what was known of the world before holds no more."""
        self._create_topics = create_topics
        self._close_on_sigterm = close_on_sigterm
        self._restore_sigterm: Callable[[], None] | None = None
        self._settled = threading.Condition(self.lock)
        self.has_ended = False
        """Whether the thread hears nothing more."""
        self._stop = threading.Event()
        self._closing = threading.Event()
        """Set by `close` before it takes the lock, which a replay holds: it is given up then."""
        self._awaiting = threading.Lock()
        """Held by the thread while it waits for brokers to read a lost log from, without `lock`."""
        least_s, most_s = POLL_S
        self._poll_s = min(most_s, max(least_s, settings.interval_ms / 10_000))
        self._listeners: list[Listener] = []
        self._last_snapshot_s: dict[int, float] = {}
        self._unread = UnreadWatch(max(UNREAD_S, UNREAD_INTERVALS * settings.interval_ms / 1000))
        self._look_at_pauses_s = 0.0
        self._jitter = random.Random(settings.instance_id)
        self._trimmer: LogTrimmer | None = None
        self._writer: LogWriter
        self._thread: threading.Thread

    @property
    def world(self) -> World:
        """The state of all groups, as this client has read it."""
        return self.reader.world

    @property
    def refused(self) -> AccessDenied | None:
        """The right to write that this client lacks at present."""
        writer: LogWriter | None = getattr(self, "_writer", None)  # before the start, there is none
        return None if writer is None else writer.refused_now

    @property
    def observers(self) -> list[Observer]:
        """When this client saw what, for each coordination partition."""
        return self.reader.observers

    # From start to end

    def connect(self) -> None:
        """Connect and replay the log. Nothing is appended yet. Raises as `Marshal.start` does."""
        with self.lock:
            if self.started:
                raise Closed("this client was started before; make a new one")
            self.started = True
            self._closing.clear()
            self._stop.clear()
        try:
            self._connect()
        except BaseException:
            self.started = False  # it may be tried again
            raise

    def _connect(self) -> None:
        settings = self.settings
        if self._create_topics:
            from marshal_py.client.topics import ensure_topics

            ensure_topics(
                settings.kafka,
                topic=settings.topic,
                snapshot_topic=None if settings.wire == "text" else settings.snapshot_topic,
                timeout_s=settings.connect_timeout_ms / 1000,
            )
        # A heartbeat that could not be sent within two intervals is of no use to anyone. In version
        # 1 it would even take the partition away from whoever had claimed it meanwhile.
        is_text = settings.wire == "text"
        timeout_ms = settings.interval_ms // 2 if is_text else max(2 * settings.interval_ms, 5_000)
        self._writer = LogWriter(
            self._kafka,
            topic=settings.topic,
            snapshot_topic=settings.snapshot_topic,
            timeout_ms=timeout_ms,
        )
        self.reader = LogReader(
            self._kafka,
            topic=settings.topic,
            snapshot_topic=settings.snapshot_topic,
            wire=text_wire(settings.interval_ms // 1000) if is_text else MSGPACK,
            look_every_s=min(LOOK_EVERY_S, max(MIN_LOOK_S, settings.interval_ms / 1000)),
            doubt_after_s=2 * settings.interval_ms / 1000,
            groups=None if is_text else {settings.group_id},
            gather_ms=settings.gather_ms,
            admin=self.admin,
        )
        self.reader.writer_of = self._writer_of
        self.reader.check_waiting = self._check_closing
        self.mismatches = self.reader.mismatches
        if settings.trim_log:
            self._trimmer = LogTrimmer(self._kafka, settings.topic)
        try:
            self._replay()
        except BaseException:
            self.reader.close()
            raise

    def disconnect(self) -> None:
        """Undo `connect`, which may then be called again: something else failed at the start."""
        self.reader.close()
        self.started = False

    def start(self) -> None:
        """Begin to take part, after `connect`. Raises `Closed` if `close` was called meanwhile."""
        self.claimant = _new_claimant(self.settings, self.reader)
        with self.lock:
            try:
                self._check_closing()
            except Closed:
                self.disconnect()
                raise
            self.running = True
            forks.watch(self)
            self._caught_up()
            self._thread = threading.Thread(target=self._run, name="marshal-driver", daemon=True)
            self._thread.start()
            atexit.register(_close_at_exit, weakref.ref(self))
            self.handle_sigterm()

    def close(self, timeout_s: float, *, release: bool) -> None:
        """See `Marshal.close`."""
        if isinstance(self.failure, Forked):
            return
        timeout_s = min(timeout_s, FOR_EVER_S)
        self._closing.set()
        with self.lock:
            if not self.running:
                self._stop.set()
                return
            self.refresh_offsets()
            if release:
                self.claimant.leave(self.clock())
            else:
                self.claimant.keep(self.clock())
            self.carry_out()
        deadline = time.monotonic() + timeout_s
        with self._settled:
            settled = not release or self._settled.wait_for(
                lambda: self.claimant.settled or self.has_ended, timeout_s
            )
            self.running = False
        if not settled:
            self.log.warning(
                "%s: not every release was seen within %s s; those claims end with their leases",
                self.settings.client_id,
                timeout_s,
            )
        self._stop.set()
        self._thread.join(max(1.0, deadline - time.monotonic()))
        self._writer.flush(max(0.5, deadline - time.monotonic()))
        with self._awaiting:
            self.reader.close()
        if self._trimmer is not None:
            self._trimmer.close()
        self.on_stopped()
        self.hooks.close(max(0.5, deadline - time.monotonic()))
        self.take_sigterm_undo()()

    def abandon(self) -> None:
        """Stop as a killed process does: nothing more is written, and what waits is forgotten."""
        with self.lock:
            if self.running:
                self.claimant.stop_claiming("the client was abandoned")
                self._writer.purge()
        self.close(0.0, release=False)

    def forked(self, error: Forked) -> None:
        """See `forks.Forkable`: no thread of this client is in this process."""
        self.running, self.failure = False, error
        self.claimant.disown(str(error))
        self.on_stopped()

    def handle_sigterm(self) -> None:
        """Turn SIGTERM into SystemExit, if that was asked for. Only the main thread can."""
        if self._close_on_sigterm and self._restore_sigterm is None:
            self._restore_sigterm = exit_on_sigterm()

    def take_sigterm_undo(self) -> Callable[[], None]:
        """Return what undoes `handle_sigterm` when the main thread calls it: the caller will."""
        undo, self._restore_sigterm = self._restore_sigterm, None
        return undo or (lambda: None)

    # For calls of the user: the caller holds the lock

    def check_open(self) -> None:
        """Raise `Closed` unless this client runs, and what made it stop claiming."""
        self.check_fork()
        if not self.running:
            raise Closed(
                "the client has been closed; make a new one"
                if self.started
                else "the client was not started: use `with Marshal(...)`, or call start()"
            )
        if self.failure is not None and not isinstance(self.failure, DuplicateClientId):
            raise self.failure

    def check_fork(self) -> None:
        """Raise `Forked` if this client was made before the process forked, in the parent."""
        if isinstance(self.failure, Forked):
            raise self.failure

    def carry_out(self) -> None:
        """Carry out what the claimant asks for: append its records, pass on its notices."""
        for append in self.claimant.take_appends():
            self._writer.append(append.coordinator, append.seq, append.value)
        for notice in self.claimant.take_notices():
            self.on_notice(notice)
            if notice.kind == "duplicate_client_id":
                self.failure = DuplicateClientId(notice.detail)
                self.log.error("%s: %s", self.settings.client_id, notice.detail)
        if self.claimant.leaving and self.claimant.settled:
            self._settled.notify_all()

    def refresh_offsets(self) -> None:
        """Have the newest offsets put into the claims: heartbeats may go out now."""
        for refresh in self.before_heartbeat:
            refresh()

    def listen(
        self, listener: Listener, start_over: Callable[[str], None] | None = None
    ) -> Callable[[], None]:
        """See `Marshal.listen`; `start_over` is one of `restarted`."""
        with self.lock:
            self.check_open()
            self._listeners.append(listener)
            if start_over is not None:
                self.restarted.append(start_over)
            self.hooks.start()

        def stop() -> None:
            with self.lock, contextlib.suppress(ValueError):
                self._listeners.remove(listener)
                if start_over is not None:
                    self.restarted.remove(start_over)

        return stop

    # The thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._turn()
                except Truncated as error:
                    self._truncated(error)
        except MarshalError as error:
            # Closed during a replay: nothing is held.
            if not (isinstance(error, Closed) and self._closing.is_set()):
                with self.lock:
                    self._fail(error)
        except BaseException as error:
            self.log.exception(
                "%s: the driver stopped; every lease lapses", self.settings.client_id
            )
            failure = MarshalError(f"the driver stopped: {error}")
            failure.__cause__ = error
            with self.lock:
                self._fail(failure)
        finally:
            with self._settled:
                self.has_ended = True
                self._settled.notify_all()
            for hear in list(self.on_ended):
                hear()

    def _turn(self) -> None:
        deadline_ns = self.claimant.next_deadline_ns()
        wait_s = LAST_POLL_S if self._closing.is_set() else self._poll_s
        if deadline_ns is not None:
            left_ms = math.ceil((deadline_ns - self.clock()) / 1e6)  # librdkafka rounds down
            wait_s = min(wait_s, max(0.0, (left_ms + 0.1) / 1_000))
        messages = self.reader.poll(wait_s)
        self._writer.serve()
        with self.lock:
            for batch in self.reader.fold(messages):
                self.claimant.applied(batch.coordinator, batch.events, batch.now_ns)
                for watcher in self.watchers:
                    watcher(batch.coordinator, batch.events)
                if batch.events:
                    for listener in self._listeners:
                        self.hooks.call(partial(listener, batch.coordinator, batch.events))
            now_ns = self.clock()
            failures = self._writer.take_failures()
            due_ns = self.claimant.next_deadline_ns()
            if failures or (due_ns is not None and due_ns <= now_ns):
                self.refresh_offsets()  # heartbeats may go out now
            for seq, why in failures:
                self.log.info(
                    "%s: an append failed (%s); the log decides", self.settings.client_id, why
                )
                self.claimant.append_failed(seq, now_ns)
            self.claimant.tick(now_ns)
            self._end_expired_pauses()
            if self._writer.refusal is not None and self.failure is None:
                self._fail(self._writer.refusal)
            if self.reader.partition_count_error is not None and self.failure is None:
                self._fail(self.reader.partition_count_error)
            if self.mismatches and self.failure is None:
                self._fail(self.mismatches[0])
            self.carry_out()
            while not self.reader.snapshots_to_write.empty():
                p, value = self.reader.snapshots_to_write.get()
                self._writer.append_snapshot(p, value)
                if self._trimmer is not None:
                    self._trimmer.written(p, next_offset_in(value))
            if self._trimmer is not None and self.failure is None:
                self._trimmer.read(self.reader.newest_snapshot)
        self._check_reading()

    def _check_reading(self) -> None:
        """Raise `Truncated` if nothing comes of the log though there is something (§7.1)."""
        ends = dict(self._writer.ends)  # others may add to it meanwhile
        places = {p: self.world.states[p].next_offset for p in ends}
        p = self._unread.look(ends, places, time.monotonic())
        if p is not None:
            raise Truncated(
                f"nothing has come of {self.settings.topic}/{p} for {self._unread.limit_s:g} s, "
                f"though there is more than was read: offset {places[p]} is to come, and "
                f"{ends[p] - 1} was written"
            )

    def _replay(self) -> None:
        for _ in range(5):
            try:
                try:
                    self.reader.open(self.settings.connect_timeout_ms / 1000)
                finally:  # it may fail with the number of partitions changed already
                    if self.running:
                        self.claimant.reshape()
                self.reader.replay(progress=self._check_closing)
                if self.reader.partition_count_error is not None:
                    raise self.reader.partition_count_error
                self._found()
                self._tell_replayed()
            except Truncated as error:
                self.log.warning("%s; replaying", error)
            else:
                return
        raise BrokerUnavailable(f"topic {self.settings.topic!r} changes while it is read")

    def _check_closing(self, *_: int) -> None:
        if self._closing.is_set():
            raise Closed("the client was closed while it read the log")

    def _tell_replayed(self) -> None:
        restored = {p: at for p, at in dict(self.reader.newest_snapshot).items() if at}
        origin = f"from snapshots at {restored}" if restored else "from the start of the log"
        self.log.info("%d records replayed, %s", self.reader.replayed, origin)

    def _found(self) -> None:
        """Give the log a genesis if it needs one, and read on until it has (§7.4).

        It needs one where there is none, and where epochs would come again that were given out
        before: this client knows of larger ones than the log could have given.

        Raises `Truncated`, `AccessDenied`, `BrokerUnavailable`.
        """
        if self.settings.wire == "text":
            return
        timeout_s = self.settings.connect_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        for p in self.reader.partitions:
            state = self.world.states[p]
            end = self.reader.check_founding(timeout_s)[p] if state.identity is None else 0
            # Others may have founded the log while this client replayed it: that is read first,
            # unless what ends the log are no records.
            first_s = time.monotonic() + GENESIS_AGAIN_S
            seq, again_s, why = FIRST_GENESIS_SEQ, 0.0, ""
            replaced: str | None = None
            while self._needs_genesis(state):
                self._check_closing()
                now_s = time.monotonic()
                # One that replaces an identity that has gone since then is refused.
                is_due = now_s >= again_s or state.identity != replaced
                if is_due and (state.next_offset >= end or now_s >= first_s):
                    again_s, replaced = now_s + GENESIS_AGAIN_S, state.identity
                    seq += 1
                    self._writer.append(p, seq, self._genesis(state, seq))
                self._writer.serve()
                for _, text in self._writer.take_failures():
                    why = f": {text}"
                for _ in self.reader.fold(self.reader.poll(0.05)):
                    pass
                if self._writer.refusal is not None:
                    raise self._writer.refusal
                if now_s >= deadline:
                    raise BrokerUnavailable(
                        f"the genesis of {self.settings.topic!r} could not be written{why}"
                    )

    def _needs_genesis(self, state: PartitionState) -> bool:
        floor = self.reader.highest_epoch
        return state.identity is None or state.base + state.next_offset < floor

    def _genesis(self, state: PartitionState, seq: int) -> bytes:
        settings = self.settings
        return encode(
            new_genesis(
                (settings.client_id, settings.instance_id, settings.group_id, seq),
                previous=state.identity or "",
                above=max(self.reader.highest_epoch, state.base + state.next_offset),
                partitions=self.world.partitions,
            )
        )

    def _caught_up(self) -> None:
        now_ns = self.clock()
        for p in self.reader.partitions:
            self.claimant.caught_up(p, now_ns)
        self.carry_out()

    def _truncated(self, error: Truncated) -> None:
        client_id = self.settings.client_id
        self.log.error("%s: %s; leases are dropped, replaying", client_id, error)
        with self.lock:
            if self._trimmer is not None:
                self._trimmer.start_over()
            self.claimant.truncated(str(error))
            self.carry_out()
        self._unread.start_over()
        while not self._stop.is_set():
            try:
                with self._awaiting:  # and not the lock: others would wait for as long
                    self._check_closing()
                    self.reader.await_topic(self.settings.connect_timeout_ms / 1000)
                # World and observers are refilled in place, so nobody may look meanwhile.
                with self.lock:
                    self._check_closing()
                    self._writer.start_over()
                    self._replay()
                    self._caught_up()
                    for start_over in self.restarted:
                        start_over(str(error))
                self.log.warning("%s: has read the log anew and goes on", client_id)
                return
            except (
                AuthenticationFailed,
                BrokerUnavailable,
                ConfigurationError,  # files that are about to be replaced: it worked before
                TopicMissing,
            ) as problem:
                for observer in self.observers:  # nothing is claimed before there is a log
                    observer.caught_up_at_offset = None
                self.log.warning("%s: %s; trying on", client_id, problem)
                self._stop.wait(1.0)

    def _fail(self, error: MarshalError) -> None:
        """Stop claiming for good; leases lapse by themselves."""
        self.log.error("%s: %s", self.settings.client_id, error)
        self.failure = error
        self.claimant.stop_claiming(str(error))
        self.carry_out()

    def _end_expired_pauses(self) -> None:
        """A pause that is over by this machine's clock is ended by whichever client looks first.

        Each looks about once a second and at a moment of its own, so that few records are written.
        """
        now_s = time.monotonic()
        if now_s < self._look_at_pauses_s or self.settings.wire == "text":
            return
        self._look_at_pauses_s = now_s + self._jitter.uniform(0.5, 1.5)
        self.claimant.end_expired_pause(time.time() * 1000)

    def _writer_of(self, p: int, next_offset: int, crossed_by: str) -> str:
        """Say whether this client writes the snapshot of a boundary (§6.3): its name, or nothing.

        Whoever crossed it does, but not too often.
        """
        now_s = time.monotonic()
        last_s = self._last_snapshot_s.get(p)
        if (
            crossed_by != self.settings.instance_id
            or next_offset - self.reader.newest_snapshot.get(p, 0) < self.settings.snapshot_every
            or (last_s is not None and now_s - last_s < MIN_SNAPSHOT_GAP_S)
        ):
            return ""
        self._last_snapshot_s[p] = now_s
        return self.settings.client_id


def _new_claimant(settings: ClientSettings, reader: LogReader) -> Claimant:
    if settings.wire == "text":
        from marshal_py.protocol.text.claimant import TextClaimant

        return TextClaimant(
            reader.world,
            reader.observers,
            client_id=settings.client_id,
            instance_id=settings.instance_id,
            group_id=settings.group_id,
            interval_ms=settings.interval_ms,
            margin_ms=settings.margin_ms,
            wall_s=time.time,
            resume=settings.resume,
        )
    return Claimant(
        reader.world,
        reader.observers,
        client_id=settings.client_id,
        instance_id=settings.instance_id,
        group_id=settings.group_id,
        interval_ms=settings.interval_ms,
        margin_ms=settings.margin_ms,
        member=settings.member,
        member_metadata=settings.member_metadata,
        resume=settings.resume,
        cold_start_skew_ms=settings.cold_start_skew_ms,
        wall_s=time.time,
    )


def _close_at_exit(reference: weakref.ref[Driver]) -> None:
    driver = reference()
    if driver is not None:
        driver.close(3.0, release=True)

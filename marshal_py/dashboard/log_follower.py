"""Follows the coordination log in a thread, and tells every page what changes.

One thread reads and folds; a second asks the brokers where the topics end, which also shows whether
they answer at all. What changes is put into one document for all pages, four times a second.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

from confluent_kafka import KafkaException

from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import stamp_ms
from marshal_py.client.acl import denied
from marshal_py.client.log_reader import Batch, LogReader, Truncated, boottime_ns
from marshal_py.dashboard.lag import Ends
from marshal_py.dashboard.live_state import LiveState
from marshal_py.dashboard.subscribers import Subscriber, Subscribers
from marshal_py.dashboard.topic_ends import TopicEnds
from marshal_py.errors import MarshalError
from marshal_py.protocol.wire import MSGPACK, Wire
from marshal_py.protocol.world import MS

__all__ = ["LogFollower", "Phase"]

logger = logging.getLogger("marshal_py.dashboard")

Phase: TypeAlias = Literal["reading", "live", "lost"]
Notify: TypeAlias = Callable[[LogReader, int, int, bytes | None, int, list[Any]], None]

SEND_S: Final = 0.25
RETRY_S: Final = 2.0
TURN_S: Final = 0.01
READING_S: Final = 30.0
"""Who opens a dashboard wants to see what is now: the history must not keep them waiting longer."""

PACE_S: Final = 3.0
"""After so long the pace of reading is known well enough."""

CONTACT_S: Final = 1.0
"""How often the brokers are asked where the log ends, which shows that silence is silence."""

BATCH: Final = 2_000
"""So many messages at once, and there are more waiting."""


class _ReadingTooLong(Exception):
    """So much history is not read in reasonable time."""


class FairLock:
    """A lock that whoever waits for it gets before who has just had it.

    The follower takes it again and again; with a plain lock, questions of pages might starve.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Reader(LogReader):
    """A reader that tells of each record right after it was folded."""

    notify: Notify | None = None

    def fold(self, messages: list[Any]) -> Iterator[Batch]:
        for message in messages:
            for batch in super().fold([message]):
                if self.notify is not None:
                    at_ms = max(0, stamp_ms(message, self.wire))
                    self.notify(
                        self,
                        batch.coordinator,
                        message.offset(),
                        message.value(),
                        at_ms,
                        batch.events,
                    )
                yield batch


class LogFollower:
    """Follows one coordination topic until `close`.

    - `history_s`: how far back claims, activity and alerts reach; less, if reading so much would
      take longer than `READING_S`.
    - `lag_every_s`: how often topics are asked where they end; 0: never, and no lag is shown.
    - `wire`: the version of the records.
    - `ends`: what answers instead of the brokers, for tests and benchmarks.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        history_s: float = 3_600.0,
        lag_every_s: float = 5.0,
        ends: TopicEnds | None = None,
        wire: Wire = MSGPACK,
    ) -> None:
        self.connection = connection
        self.wire = wire
        self.history_s = history_s
        self.lag_every_s = lag_every_s
        self.lock = FairLock()
        """Guards `live` and everything that it knows."""
        self.live: LiveState | None = None
        self.phase: Phase = "reading"
        self.trouble = ""
        self.progress = 0.0
        self.history_from_ms = 0
        self.write = False
        """Whether pages may offer to change things."""
        self._ends = ends or TopicEnds(connection)
        self._reader: _Reader | None = None
        self._subscribers = Subscribers()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._mismatches = 0
        self._sent_s = 0.0
        self._sent_heading: dict[str, Any] = {}
        self._out_of_contact = False
        self._behind = False
        """Whether there is more in the log than was read by the last look."""
        self._shortened = False
        self._reopen = False
        """Whether the log must be opened and read again."""

    # Life

    def start(self) -> None:
        """Connect, then follow in the background.

        Raises `TopicMissing`, `BrokerUnavailable`, `LogHole`, `ConfigurationError`.
        """
        self._open()
        self._threads = [
            threading.Thread(target=self._follow, name="marshal-follower", daemon=True)
        ]
        self._threads.append(
            threading.Thread(target=self._follow_ends, name="marshal-ends", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop, and end every page's stream."""
        self._stop.set()
        self.end_streams()
        for thread in self._threads:
            thread.join(10)
        if self._reader is not None:
            self._reader.close()

    def end_streams(self) -> None:
        """Tell every page that there will be no more; for any thread, and signal handlers."""
        self._subscribers.end()

    # Pages

    def subscribe(self, subscriber: Subscriber) -> None:
        """Send everything to a page, and from then on what changes."""
        with self.lock:
            # What changed so far is part of the whole, and must not come again.
            self._send_changes()
            self._subscribers.add(subscriber, self._document())

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Forget a page."""
        with self.lock:
            self._subscribers.remove(subscriber)

    def _document(self) -> dict[str, Any]:
        now_ms = self.now_ms()
        document: dict[str, Any] = {**self._heading(), "now": now_ms}
        if self.live is not None and self.phase != "reading":
            document |= self.live.document(now_ms)
        return document

    def _heading(self) -> dict[str, Any]:
        partitions = 0 if self.live is None else self.live.world.partitions
        return {
            "topic": self.connection.topic,
            "wire": self.wire.name,
            "coordinators": partitions,
            "phase": self.phase,
            "trouble": self.trouble or self._slowness(),
            "progress": round(self.progress, 3),
            "history_from": self.known_from_ms(),
            "write": self.write,
        }

    def _slowness(self) -> str:
        """Say so when more is written than this process can read."""
        if not self._behind or self.live is None or self.phase != "live":
            return ""
        behind_s = (self.now_ms() - self.live.newest_ms) // 5_000 * 5  # not new with every look
        return f"this dashboard is {behind_s} s behind the log" if behind_s else ""

    def now_ms(self) -> int:
        """Return this machine's time, or the newest record's where that is later."""
        newest = 0 if self.live is None else self.live.newest_ms
        return max(time.time_ns() // MS, newest)

    def known_from_ms(self) -> int:
        """Return since when claims and activity are known, as far as the log reaches back."""
        first = 0 if self.live is None else self.live.first_ms
        return max(self.history_from_ms, first)

    def _send_changes(self) -> None:
        """Send what changed to every page. The caller holds the lock."""
        now_ms = self.now_ms()
        changes: dict[str, Any] = {}
        if self.live is not None and self.phase != "reading":
            changes = self.live.take_changes(now_ms)
        heading = self._heading()
        changes |= {k: v for k, v in heading.items() if self._sent_heading.get(k) != v}
        self._sent_heading = heading
        self._sent_s = time.monotonic()
        if not changes or not self._subscribers:
            return
        self._subscribers.send("delta", {**changes, "now": now_ms})

    def _send_everything(self) -> None:
        """Send everything to every page. The caller holds the lock."""
        if self.live is not None:
            self.live.take_changes(self.now_ms())
        self._sent_heading = self._heading()
        if self._subscribers:
            self._subscribers.send("state", self._document())

    # Reading

    def _open(self) -> None:
        """Connect and begin anew, so that nothing of an old log is left."""
        connection = self.connection
        # After a truncation the same reader knows which snapshots not to trust.
        reader = self._reader or _Reader(
            {"reconnect.backoff.max.ms": 500, **connection.kafka},
            topic=connection.topic,
            snapshot_topic=connection.snapshot_topic,
            wire=self.wire,
        )
        since_ms = max(1, time.time_ns() // MS - int(self.history_s * 1000))
        # Pages still ask about the world of a reader that is used again.
        in_use = self.lock if reader is self._reader else contextlib.nullcontext()
        try:
            with in_use:
                reader.open(connection.timeout_s, since_ms=since_ms)
        except BaseException:
            self._reader = None
            reader.close()
            raise
        with self.lock:
            self._reader = reader
            self._mismatches = len(reader.mismatches)
            self.live = LiveState(reader.world, reader.observers)
            self.history_from_ms = since_ms
            self.phase, self.trouble, self.progress = "reading", "", 0.0
        reader.notify = self._on_record

    def _on_record(
        self,
        reader: LogReader,
        p: int,
        offset: int,
        value: bytes | None,
        at_ms: int,
        events: list[Any],
    ) -> None:
        if self.live is not None and reader is self._reader:
            self.live.record(p, offset, value, at_ms, events)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                if self._reopen:
                    self._open()
                    self._reopen = False
                self._replay()
                self._tail()
            except _ReadingTooLong:
                logger.info("reading takes long: history reaches back %.0f s only", self.history_s)
                self._reopen = True
            except Truncated as error:
                self._lost(f"the log lost records; it is read anew: {error}", discard=False)
            except (MarshalError, KafkaException) as error:
                self._lost(str(error))
            except Exception as error:  # a page that stops without a word would be worse
                logger.exception("the dashboard stumbled; it begins anew")
                self._lost(f"{type(error).__name__}: see the log of the dashboard")

    def _lost(self, why: str, *, discard: bool = True) -> None:
        logger.warning("%s", why)
        self._reopen = True
        with self.lock:
            self.phase, self.trouble = "lost", why
            self._send_changes()
            reader = self._reader
            if discard:
                self._reader = None
        if reader is not None and discard:
            reader.close()  # without the lock: it may take seconds, and pages wait for that
        self._stop.wait(RETRY_S)

    def _following(self) -> tuple[LogReader, LiveState]:
        if self._reader is None or self.live is None:
            raise RuntimeError("the follower was not opened")
        return self._reader, self.live

    def _replay(self) -> None:
        reader, live = self._following()
        extent = reader.extent()
        starts = [state.next_offset for state in reader.world.states]
        total = sum(max(0, extent[p][1] - start) for p, start in enumerate(starts))
        steps = reader.history()
        began_s = time.monotonic()
        while not self._stop.is_set():
            with self.lock:
                if next(steps, None) is None:
                    break
                done = sum(
                    s.next_offset - a for s, a in zip(reader.world.states, starts, strict=True)
                )
                self.progress = min(1.0, done / total) if total else 1.0
                self._check_pace(time.monotonic() - began_s)
                if time.monotonic() - self._sent_s > SEND_S:
                    self._send_changes()
        with self.lock:
            live.caught_up(boottime_ns(), time.time_ns() // MS)
            self.phase, self.progress = "live", 1.0
            self._send_everything()

    def _check_pace(self, passed_s: float) -> None:
        """Give up reading so far back if that takes too long; once, since there may be no less."""
        if not self.wire.has_snapshots:
            return  # all of the log is needed
        if self._shortened or passed_s < PACE_S or self.progress <= 0:
            return
        needed_s = passed_s / self.progress
        if needed_s > READING_S:
            self._shortened = True
            self.history_s *= READING_S / needed_s / 2
            raise _ReadingTooLong

    def _tail(self) -> None:
        reader, live = self._following()
        while not self._stop.is_set():
            # Whatever was written before this moment is folded when the silences are judged: a
            # follower that cannot keep up must not call anybody stale.
            polled_ns = min(boottime_ns(), live.contact_ns or 0)
            messages = reader.poll(0.1)
            self._behind = len(messages) >= BATCH
            self._fold(reader, messages)
            if time.monotonic() - self._sent_s < SEND_S:
                continue
            with self.lock:
                now_ms = self.now_ms()
                if self.phase == "live" and not self._behind:
                    live.tick(polled_ns)
                for mismatch in reader.mismatches[self._mismatches :]:
                    live.mismatch(str(mismatch), now_ms)
                self._mismatches = len(reader.mismatches)
                if live.needs_rebuild:
                    live.rebuild(polled_ns)
                    self._send_everything()
                else:
                    self._send_changes()
            if reader.partition_count_error is not None:
                raise reader.partition_count_error

    def _fold(self, reader: LogReader, messages: list[Any]) -> None:
        """Fold a batch, and let pages in between: a record may renew thousands of claims."""
        waiting = iter(messages)
        more = bool(messages)
        while more:
            with self.lock:
                if time.monotonic() - self._sent_s >= 4 * SEND_S:
                    self._send_changes()
                turn_s = time.monotonic() + TURN_S
                while time.monotonic() < turn_s:
                    message = next(waiting, None)
                    if message is None:
                        more = False
                        break
                    for _ in reader.fold([message]):
                        pass

    # Where topics end

    def _follow_ends(self) -> None:
        asked_s = -math.inf
        while not self._stop.is_set():
            with self.lock:
                live = self.live if self.phase != "reading" else None
            if live is None:
                self._stop.wait(0.1)
                continue
            lag = 0 < self.lag_every_s <= time.monotonic() - asked_s
            if lag:
                asked_s = time.monotonic()
                with self.lock:
                    topics = {topic for _, topic in live.grid.rows}
            self._ask_ends(live, topics if lag else set())
            self._stop.wait(min(CONTACT_S, self.lag_every_s or CONTACT_S))

    def _ask_ends(self, live: LiveState, topics: set[str]) -> None:
        """Ask whether the log's brokers answer, and where these topics end."""
        asked_ns, answered, trouble = boottime_ns(), False, ""
        ends: Ends | None = None
        hidden: dict[str, str] = {}
        try:
            self._ends.ask_log(live.world.partitions)
            answered = True
            if topics:
                found = self._ends.ask(topics)
                with self.lock:
                    unseen = live.consumed_beyond(found)
                for topic in self._ends.hidden(unseen):
                    hidden[topic] = str(denied(self.connection.kafka, topic, "Describe"))
                ends = found
        except (KafkaException, MarshalError) as error:
            trouble = f"no answer from the brokers: {error}"
        except Exception:  # the grid goes on without lag
            logger.exception("where the topics end could not be asked")
        with self.lock:
            if live is not self.live:
                return
            if answered or trouble:
                self._note_contact(trouble, asked_ns)
            if ends is not None:
                live.lags.offline = self._ends.offline
                live.set_hidden(hidden, self.now_ms())
            rows = [] if ends is None else live.set_ends(ends, self.now_ms())
        for row in rows:
            with self.lock:
                if live is self.live:
                    live.update_lag(row, self.now_ms())

    def _note_contact(self, trouble: str, asked_ns: int) -> None:
        """While the brokers do not answer nobody's silence means anything: nothing is judged."""
        again = self._out_of_contact and not trouble
        if trouble and self.phase == "live":
            self.phase, self.trouble = "lost", trouble
            self._out_of_contact = True
        elif again:
            self._out_of_contact = False
            if self.phase == "lost" and not self._reopen:
                self.phase, self.trouble = "live", ""
        if not trouble and self.live is not None:
            self.live.in_contact(asked_ns, again=again)
            if again:
                self._send_everything()

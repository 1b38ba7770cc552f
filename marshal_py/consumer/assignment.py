"""The keeper: the thread of a consumer that claims, assigns, gives back and looks for new topics.

It goes round whenever something happened, and at least every tenth of an interval. Each round looks
at every partition and does what its stage and its claim ask for; nothing depends on having seen
what happened in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from marshal_py.admin.version1_positions import committed_position
from marshal_py.client.kafka_clients import connect
from marshal_py.client.suggestions import did_you_mean
from marshal_py.consumer.assignor import Assignor, Decision
from marshal_py.consumer.assignor_version1 import Version1Assignor
from marshal_py.consumer.claim_metadata import ClaimMetadata
from marshal_py.consumer.fetcher import CONNECT_S
from marshal_py.consumer.held_partition import HeldPartition, Stage
from marshal_py.errors import (
    BrokerUnavailable,
    Closed,
    DuplicateClientId,
    MarshalError,
    NotHeld,
    TopicMissing,
)
from marshal_py.protocol.balance import Unit, weigh
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.events import Event

if TYPE_CHECKING:
    from marshal_py.consumer.consumer import Consumer

__all__ = ["Keeper"]

MIN_GAP_S: Final = 0.005
"""Between two plans: a flood of events must not keep the keeper busy."""

LOOK_AT_ENDS_S: Final = 0.5
"""At most once: between two looks at how many messages wait, while there are many."""

OWED_INTERVALS: Final = 2
"""At most once: what was claimed ahead has so long to be fetched before its partition goes."""

Key = tuple[str, int]


class Keeper:
    """Keeps the partitions of one consumer. `close` ends it."""

    def __init__(self, consumer: Consumer) -> None:
        self.failure: MarshalError | None = None
        """Why the loop should stop, None while it should not."""
        self._consumer = consumer
        self._log = consumer.log
        self._admin_once: Any = None
        self._admin_lock = threading.Lock()
        self._is_text = consumer.marshal.settings.wire == "text"
        self._assignor: Assignor | Version1Assignor
        self._topics: dict[str, int] = {}
        """Topics that are wanted and exist → number of partitions."""
        self.topics_seen: set[str] = set()
        """Every topic of which something was ever fetched."""
        self._wake = threading.Event()
        self._plan_due = True
        self._is_settling = True
        self._closing = False
        self._release = True
        self._settled = threading.Event()
        self._giving: tuple[Unit, float] | None = None
        self._new_subscription: dict[str, Any] | None = None
        self._looked_s = 0.0
        self._lags: dict[Unit, int] = {}
        self._looked_at_ends_s = float("-inf")
        self._hurry_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="marshal-keeper", daemon=True)
        self._scout = threading.Thread(target=self._scout_topics, name="marshal-scout", daemon=True)
        self._stopped = threading.Event()

    # Life

    def start(self) -> None:
        consumer, marshal = self._consumer, self._consumer.marshal
        if self._is_text:
            self._assignor = Version1Assignor(
                marshal, consumer.subscription, greedy=consumer.greedy
            )
        else:
            self._assignor = Assignor(marshal, consumer.subscription, settle_ms=consumer.settle_ms)
        with marshal.driver.lock:
            marshal.driver.watchers.append(self._watch)
            marshal.driver.before_heartbeat.append(consumer.refresh_offsets)
        self.wake()
        self._thread.start()
        self._scout.start()

    def wake(self) -> None:
        """Have the keeper go round now."""
        self._wake.set()

    def fail(self, error: MarshalError) -> None:
        """Make the loop raise `error`."""
        self.failure = error

    def close(self, wait_s: float, deadline: float, *, release: bool) -> None:
        """Give everything back, or keep it (`release=False`), and end."""
        if not self._thread.is_alive():
            return
        self._release = release
        self._hurry_s = time.monotonic() + wait_s
        self._closing = True
        self.wake()
        self._settled.wait(max(0.1, deadline - time.monotonic()))
        self._stopped.set()
        self.wake()
        self._thread.join(max(1.0, deadline - time.monotonic()))
        marshal = self._consumer.marshal
        with marshal.driver.lock:
            marshal.driver.watchers.remove(self._watch)
            if release:
                marshal.driver.before_heartbeat.remove(self._consumer.refresh_offsets)

    def change(self, **changes: Any) -> None:
        """Want something else from now on."""
        subscription = dataclasses.replace(self._consumer.subscription, **changes)
        self._consumer.subscription = subscription
        self._assignor.subscription = subscription
        if not self._is_text:
            self._consumer.marshal.set_member_metadata(subscription.encode())
        self._plan_due = True
        self.wake()

    @property
    def wanted_topics(self) -> set[str]:
        """The topics that are wanted and exist."""
        return set(self._topics)

    def throttle(self, part: HeldPartition, throttled: bool) -> None:
        """Fetch no more of `part` for now, or again. For the loop of `Consumer.run`."""
        part.throttled = throttled
        self._pause(part)

    def note_trouble(self, part: HeldPartition, note: ClaimMetadata) -> None:
        """Publish what is to be said of the messages of `part`, beside its lag."""
        self._publish(part, msgspec.structs.replace(note, cost=part.note.cost))

    def _publish(self, part: HeldPartition, note: ClaimMetadata) -> None:
        part.note = note
        if not self._is_text:  # records of version 1 have no room for it
            part.claim.set_metadata(note.encode())

    def _watch(self, _: int, events: list[Event]) -> None:
        if self._assignor.is_affected_by(events):
            self._plan_due = True
            self._wake.set()

    # Topics

    def discover_at_start(self, given_up: threading.Event) -> None:
        """Look for the topics. Raises `TopicMissing`, naming what is close, `BrokerUnavailable`."""
        consumer = self._consumer
        timeout_s = consumer.marshal.settings.connect_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                # Asked by the consumer, which must be connected anyhow.
                left_s = max(0.1, deadline - time.monotonic())
                found = _names(consumer._consumer.list_topics(timeout=min(5.0, left_s)))
                break
            except KafkaException as error:
                if given_up.is_set() or time.monotonic() >= deadline:
                    raise BrokerUnavailable(
                        f"no answer from the brokers within {timeout_s:g} s: {error.args[0].str()}"
                    ) from None
        for topic in sorted(consumer.subscription.topics):
            if topic not in found:
                raise TopicMissing(f"topic {topic!r} does not exist{did_you_mean(topic, found)}")
        self._topics = self._wanted(found)
        consumer.connect_to_leaders(self._topics)
        if not self._topics:
            self._log.warning(
                "%s: no topic matches %r yet",
                consumer.marshal.client_id,
                consumer.subscription.pattern,
            )

    @property
    def _admin(self) -> Any:
        """Made when it is first needed: a start, and an end, are the quicker without it."""
        with self._admin_lock:
            if self._admin_once is None:
                self._admin_once = connect(AdminClient, self._consumer.marshal.settings.kafka)
                # The first request of a client that is not connected may wait for its time-out.
                with contextlib.suppress(KafkaException):
                    self._admin_once.list_topics(timeout=CONNECT_S)
            return self._admin_once

    def _wanted(self, found: dict[str, int]) -> dict[str, int]:
        subscription = self._consumer.subscription
        return {
            name: count
            for name, count in found.items()
            if name in subscription.topics
            or (subscription.wants(name) and not name.startswith("__"))
        }

    def _scout_topics(self) -> None:
        while not self._stopped.wait(self._consumer.discovery_interval_s):
            try:
                found = self._wanted(_names(self._admin.list_topics(timeout=5.0)))
            except KafkaException as error:
                self._log.info("%s: no metadata: %s", self._name, error.args[0].str())
                continue
            if found != self._topics:
                for topic in sorted(self._topics.keys() - found.keys()):
                    self._log.warning(
                        "%s: topic %r is gone", self._name, topic, extra={"topic": topic}
                    )
                for topic in sorted(found):
                    before = self._topics.get(topic, 0)
                    if found[topic] > before:
                        self._log.info(
                            "%s: topic %r has %d partitions now (%d before)",
                            self._name,
                            topic,
                            found[topic],
                            before,
                            extra={"topic": topic},
                        )
                self._topics = found
                self._plan_due = True
                self.wake()
            if self._consumer.subscription.by_lag:
                self._publish_lags()

    @property
    def _name(self) -> str:
        return self._consumer.marshal.client_id

    # Rounds

    def _run(self) -> None:
        interval_s = self._consumer.marshal.settings.interval_ms / 1000
        tick_s = min(0.25, max(0.02, interval_s / 10))
        while not self._stopped.is_set():
            self._wake.wait(0.02 if self._closing or self._is_settling else tick_s)
            self._wake.clear()
            try:
                self._round()
            except Closed:
                if self._consumer.marshal.failure is None or self._closing:
                    self._let_go_of_all()
                    return
            except MarshalError as error:  # the client has failed for good: leases lapse
                self.failure = error
                if self._closing:
                    self._let_go_of_all()
                    return
            except Exception as error:
                self._log.exception("%s: the keeper of a consumer stumbled", self._name)
                failure = MarshalError(f"the consumer's keeper stumbled: {error}")
                failure.__cause__ = error
                self.failure = failure
                if self._closing:
                    self._let_go_of_all()
                    return

    def _let_go_of_all(self) -> None:
        for part in list(self._consumer.parts.values()):
            self._remove(part)
        self._settled.set()

    def _round(self) -> None:
        consumer = self._consumer
        for part in list(consumer.parts.values()):
            self._tend(part)
        if self._closing:
            self._wind_up()
            return
        now_s = time.monotonic()
        if consumer.is_behind and now_s - self._looked_at_ends_s > LOOK_AT_ENDS_S:
            self._looked_at_ends_s, consumer.is_behind = now_s, False
            if not self._is_text:
                self._look_at_ends()
        look_again_s = consumer.marshal.settings.interval_ms / 2_000
        if self._plan_due or now_s - self._looked_s > look_again_s or self._assignor.is_due():
            self._share(now_s)

    def _tend(self, part: HeldPartition) -> None:
        """Do for one partition what its claim and its stage ask for."""
        claim = part.claim
        if claim.core.ended.is_set():
            self._remove(part)
            return
        if part.holding.paused and part.stage is Stage.ACTIVE:
            self._drain(part)
        if part.stage is Stage.WANTED:
            if claim.held:
                self._activate(part)
        elif part.stage is Stage.ACTIVE:
            self._suspend_or_resume(part)
            if part.out_of_range:
                self._find_position(part)
        if part.stage is Stage.DRAINING:
            if self._is_drained(part):
                self._give_back(part)
            elif part.is_owed:
                self._pause(part)  # or not: it was claimed ahead after fetching had been paused

    def _remove(self, part: HeldPartition) -> None:
        """The claim has ended, whoever ended it."""
        was_active = part.stage in (Stage.ACTIVE, Stage.DRAINING)
        part.stage = Stage.RELEASING
        self._unassign(part)
        if was_active:
            self._consumer._drop_owed(part)
        self._consumer.parts.pop(part.key, None)
        self._plan_due = True
        if was_active and part.claim.reason not in (None, "released"):
            self._log.warning(
                "%s: lost %s/%d: %s",
                self._name,
                part.topic,
                part.partition,
                part.claim.reason,
                extra=part.log_fields,
            )

    # From a claim to messages

    def _want(self, key: Key) -> None:
        consumer, marshal = self._consumer, self._consumer.marshal
        with marshal.driver.lock:
            claim = marshal.want(*key)
            claim.core.on_notice = consumer._hear
            part = HeldPartition(claim, manual=consumer.manual)
            consumer.parts[key] = part
        if claim.held:
            self.wake()

    def _activate(self, part: HeldPartition) -> None:
        """The claim is held: find the position, and have its messages fetched."""
        consumer = self._consumer
        position = part.claim.position
        part.floor = part.claim.claimed_offset
        if position < 0:
            try:
                if self._is_text:
                    position = committed_position(
                        self._admin, consumer.marshal.group_id, *part.key, timeout_s=2.0
                    )
                if position < 0:
                    start_ms = consumer.start_ms
                    position = OFFSET_BEGINNING if start_ms == -2 else self._look_up(part, start_ms)
            except KafkaException as error:
                self._log.warning(
                    "%s: no start offset of %s/%d yet: %s",
                    self._name,
                    part.topic,
                    part.partition,
                    error.args[0].str(),
                    extra=part.log_fields,
                )
                return
        part.start(max(position, -1))
        part.stage = Stage.ACTIVE
        self._assign(part, position)

    def _look_up(self, part: HeldPartition, which: int) -> int:
        """Return the first (−2) or next (−1) offset, or that of a time in milliseconds."""
        found = self._offsets([part.key], which)[part.key]
        if found < 0:  # there is no message so young: the end
            found = self._offsets([part.key], -1)[part.key]
        return found

    def _offsets(self, keys: list[Key], which: int, timeout_s: float = 2.0) -> dict[Key, int]:
        """Ask the brokers for offsets. Raises `KafkaException`."""
        specs: Any = kafka_admin.OffsetSpec
        special = {-2: specs.earliest, -1: specs.latest}
        query = special[which]() if which in special else specs.for_timestamp(which)
        futures = self._admin.list_offsets(
            {TopicPartition(*key): query for key in keys}, request_timeout=timeout_s
        )
        return {(at.topic, at.partition): future.result().offset for at, future in futures.items()}

    def _assign(self, part: HeldPartition, offset: int) -> None:
        consumer = self._consumer

        def assign() -> None:
            self.topics_seen.add(part.topic)
            consumer._active[part.key] = part
            consumer._consumer.incremental_assign(
                [TopicPartition(part.topic, part.partition, offset)]
            )

        part.assigned = True
        consumer.command(assign)

    def _unassign(self, part: HeldPartition) -> None:
        consumer = self._consumer

        def unassign() -> None:
            del consumer._active[part.key]
            where = [TopicPartition(part.topic, part.partition)]
            consumer._consumer.resume(where)  # a pause would outlive the assignment
            consumer._consumer.incremental_unassign(where)

        if part.assigned:
            part.assigned = False
            consumer.command(unassign)

    def _suspend_or_resume(self, part: HeldPartition) -> None:
        held = part.claim.held
        if held is not part.suspended:
            return
        # Fetched messages would only pile up until the lease is regained, or the claim is lost.
        part.suspended = not held
        self._pause(part)

    def _pause(self, part: HeldPartition) -> None:
        """Have Kafka asked for the messages of `part`, or not, as things stand when it is done."""

        def pause() -> None:
            if not part.assigned:
                return
            kafka, where = self._consumer._consumer, [TopicPartition(part.topic, part.partition)]
            is_over = part.stage is Stage.DRAINING and not part.is_owed
            if part.suspended or part.throttled or is_over:
                kafka.pause(where)
            else:
                kafka.resume(where)

        self._consumer.command(pause)

    def _find_position(self, part: HeldPartition) -> None:
        """Kafka has nothing at our position: messages were deleted, or the topic was made anew."""
        try:
            first, end = self._look_up(part, -2), self._look_up(part, -1)
        except KafkaException:
            return  # the next round tries again
        # At most once, what was claimed may lie ahead of what was fetched.
        position = max(part.position(), part.fetched if part.is_owed else part.claim.position)
        if position <= first:
            self._log.error(
                "%s: %s/%d: messages from offset %d on were deleted before they were consumed; "
                "going on at %d",
                self._name,
                part.topic,
                part.partition,
                position,
                first,
                extra=part.log_fields,
            )
        else:
            self._log.error(
                "%s: %s/%d: the stored position %d lies beyond the end, %d: was the topic created "
                "anew? Going on at the first message, %d. `marshal group set-position` mends the "
                "position itself",
                self._name,
                part.topic,
                part.partition,
                position,
                end,
                first,
                extra=part.log_fields,
            )
            if self._is_text:  # positions of version 1 may go back, and Go would wait for ever
                with self._consumer.marshal.driver.lock:
                    part.holding.next_offset = part.holding.stored_offset = first
        part.out_of_range = False
        self._unassign(part)
        part.start(first)  # or what is known of the old position would be stored again
        self._assign(part, first)

    # From messages back to a claim

    def _drain(self, part: HeldPartition) -> None:
        """Hand out nothing more of it; it is given back when what is out is done."""
        interval_s = self._consumer.marshal.settings.interval_ms / 1000
        part.owed_until_s = time.monotonic() + OWED_INTERVALS * interval_s
        part.stage = Stage.DRAINING
        if not self._consumer._amo:
            self._unassign(part)
        elif part.assigned:
            self._pause(part)

    def _is_drained(self, part: HeldPartition) -> bool:
        consumer = self._consumer
        if consumer.busy_with(part):
            return self._hurry_s is not None and time.monotonic() >= self._hurry_s
        return True

    def _give_back(self, part: HeldPartition) -> None:
        part.stage = Stage.RELEASING
        self._unassign(part)
        self._consumer._drop_owed(part)
        claim = part.claim
        position = part.position()
        if not self._consumer._amo and position >= 0:
            try:
                claim.commit(position)
            except (NotHeld, Closed):
                return
        if self._release:
            claim.release(wait=False)

    def _wind_up(self) -> None:
        consumer = self._consumer
        for part in list(consumer.parts.values()):
            if part.stage is Stage.WANTED:
                part.claim.release(wait=False)
                self._remove(part)
            elif part.stage is Stage.ACTIVE:
                self._drain(part)
                self._tend(part)
        waiting = [
            part
            for part in consumer.parts.values()
            if part.stage is not Stage.RELEASING
            or (self._release and not part.claim.core.ended.is_set())
        ]
        if not waiting:
            self._settled.set()

    # Assignor

    def _units(self) -> list[Unit]:
        if self._consumer.claim_entire_topic:
            return [(topic, 0) for topic, count in self._topics.items() if count]
        return [(topic, p) for topic, count in self._topics.items() for p in range(count)]

    def _share(self, now_s: float) -> None:
        if now_s - self._looked_s < MIN_GAP_S:
            self._wake.wait(MIN_GAP_S)
            now_s = time.monotonic()
        self._plan_due = False
        self._looked_s = now_s
        consumer = self._consumer
        decision = self._assignor.decide(self._units(), self._lags)
        if isinstance(consumer.marshal.failure, DuplicateClientId):
            return
        self._is_settling = decision.settling or decision.newcomers_settling
        if decision.paused:
            return
        for unit in decision.resume:
            if unit not in consumer.parts:
                self._want(unit)
        if decision.settling:
            self._plan_due = True  # the next tick looks again
            return
        for unit in decision.plan.claim:
            if unit not in consumer.parts:
                self._want(unit)
        for part in list(consumer.parts.values()):
            if part.stage is Stage.ACTIVE and part.partition >= self._topics.get(part.topic, 0):
                self._drain(part)  # the topic is gone
        self._cancel(decision)
        if decision.newcomers_settling:
            self._plan_due = True
        else:
            self._give_up_one(decision, now_s)
        if consumer.claim_entire_topic:
            self._follow()

    def _cancel(self, decision: Decision) -> None:
        """Stop wanting what others got."""
        me = self._name
        wanted = {*decision.plan.claim, *decision.resume}
        for part in list(self._consumer.parts.values()):
            unit = part.key
            if (
                part.stage is Stage.WANTED
                and unit in decision.holders
                and unit not in wanted
                and decision.holders[unit] != me
                and part.holding.state in (ClaimState.WAITING, ClaimState.CLAIMING)
            ):
                part.claim.release(wait=False)
                self._remove(part)

    def _give_up_one(self, decision: Decision, now_s: float) -> None:
        if self._giving is not None:
            unit, since_s = self._giving
            patience_s = 2 * self._consumer.marshal.settings.interval_ms / 1000
            holder = decision.holders.get(unit, "gone")
            given = self._consumer.parts.get(unit)
            if holder == self._name and given is not None and given.stage is not Stage.ACTIVE:
                return  # still being drained; if it is active, it has come back to us
            if holder is None and now_s - since_s < patience_s:
                return  # whoever lacks one will take it
            self._giving = None
        unit_or_none = decision.plan.give_up
        if unit_or_none is None:
            return
        part = self._consumer.parts.get(unit_or_none)
        if part is None or part.stage is not Stage.ACTIVE:
            return
        self._log.info(
            "%s: %s/%d goes to another member", self._name, *unit_or_none, extra=part.log_fields
        )
        self._giving = (unit_or_none, now_s)
        self._drain(part)
        if self._consumer.claim_entire_topic:
            for other in list(self._consumer.parts.values()):
                if other.topic == part.topic and other.stage is Stage.ACTIVE:
                    self._drain(other)
        self.wake()

    def _follow(self) -> None:
        """Whole topics: the other partitions go where partition 0 is."""
        parts = self._consumer.parts
        for topic, count in self._topics.items():
            lock = parts.get((topic, 0))
            leads = lock is not None and lock.stage is Stage.ACTIVE
            for p in range(1, count):
                follower = parts.get((topic, p))
                if leads and follower is None:
                    self._want((topic, p))
                elif not leads and follower is not None:
                    if follower.stage is Stage.ACTIVE:
                        self._drain(follower)
                        self.wake()
                    elif follower.stage is Stage.WANTED:
                        follower.claim.release(wait=False)
                        self._remove(follower)

    # Lag

    def _look_at_ends(self) -> None:
        """Ask how far the messages go, and do not wait for the answer."""
        consumer = self._consumer
        isolation = consumer._kafka_config.get("isolation.level", "read_committed")
        parts = {part.key: part for part in list(consumer._active.values())}
        specs: Any = kafka_admin.OffsetSpec
        with contextlib.suppress(KafkaException):
            futures = self._admin.list_offsets(
                {TopicPartition(*key): specs.latest() for key in parts},
                isolation_level=IsolationLevel[str(isolation).upper()],
                request_timeout=2.0,
            )
            for at, future in futures.items():
                future.add_done_callback(partial(_note_end, parts[at.topic, at.partition]))

    def lags(self, timeout_s: float) -> dict[Unit, int]:
        """Return how far each partition is behind its end. Raises `BrokerUnavailable`."""
        parts = list(self._consumer._active.values())
        if not parts:
            return {}
        try:
            ends = self._offsets([part.key for part in parts], -1, timeout_s)
        except KafkaException as error:
            raise BrokerUnavailable(f"no answer from the brokers: {error.args[0].str()}") from None
        return {
            part.key: max(0, ends[part.key] - max(self._at(part), 0))
            for part in parts
            if part.key in ends
        }

    def _at(self, part: HeldPartition) -> int:
        return part.claim.position if self._consumer._amo else part.position()

    def _publish_lags(self) -> None:
        """Tell the others, with the claims, how far behind each partition is."""
        try:
            self._lags = self.lags(5.0)
        except BrokerUnavailable:
            return
        for key, lag in self._lags.items():
            part = self._consumer.parts.get(key)
            if part is not None and part.stage is Stage.ACTIVE:
                self._publish(part, msgspec.structs.replace(part.note, cost=weigh(lag)))
        self._plan_due = True


def _note_end(part: HeldPartition, answer: Any) -> None:
    with contextlib.suppress(KafkaException):  # then nothing is claimed ahead
        part.end = answer.result().offset


def _names(found: Any) -> dict[str, int]:
    """Return topic → how many partitions, of those that can be read."""
    return {name: len(t.partitions) for name, t in found.topics.items() if t.error is None}

"""Positions in Kafka: where a partition begins, how far it goes, and what became of a position.

A position means something in one topic, which Kafka's id names, whatever it is called. The id goes
with the position, in the metadata of the claim (`protocol.claim_metadata`). Where the id is
another, or the position lies outside of the messages that there are, `judge` says what happened.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import admin as kafka_admin

from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.client.kafka_clients import no_answer
from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.leader_epochs import truncated_at
from marshal_py.consumer.options import OnMissing, StartAt
from marshal_py.consumer.topics import Topics, describe
from marshal_py.errors import MessagesMissing
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.claim_metadata import ClaimMetadata
from marshal_py.protocol.slots import slots_cell

__all__ = ["Fate", "Positions", "judge"]

Fate: TypeAlias = Literal["sound", "trimmed", "truncated", "anew", "unknown"]
"""What became of a position. Unknown: it lies beyond the end, and nobody knows of which topic."""


def judge(position: int, first: int, end: int, topic_id: bytes, known_id: bytes) -> Fate:
    """Say what became of `position`, which is of the topic `known_id`; b"": nobody knows.

    There are messages from `first` to below `end` now, in the topic `topic_id`.
    """
    is_known = bool(topic_id and known_id)
    if is_known and topic_id != known_id:
        return "anew"
    if position < first:
        return "trimmed"
    if position > end:
        return "truncated" if is_known else "unknown"
    return "sound"


class Positions:
    """Asks the brokers. For any thread.

    `start`: where a group begins that has no position yet. `on_missing`: where to go on when the
    messages at a position are gone.
    """

    def __init__(
        self,
        marshal: Marshal,
        admin: AdminOnDemand,
        delivery: Delivery,
        topics: Topics,
        log: Fields,
        *,
        start: StartAt,
        on_missing: OnMissing,
        isolation_level: str,
    ) -> None:
        self._marshal = marshal
        self._admin = admin
        self._delivery = delivery
        self._topics = topics
        self._log = log
        self._start = start
        self._on_missing = on_missing
        self._isolation_level = isolation_level
        self._is_text = marshal.settings.wire == "text"

    def start_of(self, part: HeldPartition) -> int | None:
        """Return where to begin with a partition that has just been claimed; None: not known yet.

        An offset, or `OFFSET_BEGINNING`. A choice that would come out otherwise another time is
        stored first. May set `HeldPartition.reset_to` instead. Raises `MessagesMissing`.
        """
        if not self._knows_the_topic(part):
            return None
        stored = max(part.claim.stored_offset, part.claim.claimed_offset)
        try:
            if part.claim.position >= 0:
                if self._is_of_another_topic(part):
                    self._begin_anew(part)
                    return None
                if part.chosen and stored < part.claim.position:
                    return None  # on its way to the log
                return part.claim.position if self._is_told_that_it_was_set(part) else None
            if self._is_of_another_topic(part):  # what was told without a position means nothing
                part.metadata = msgspec.structs.replace(
                    part.metadata, topic_id=b"", leader_epoch=-1
                )
            return self._choose(part)
        except KafkaException as error:
            why = error.args[0].str()
            if why != part.no_start:  # it is asked for several times a second
                part.no_start = why
                self._log.warning(
                    "%s: no start offset of %s/%d yet: %s; trying on",
                    self._marshal.client_id,
                    part.topic,
                    part.partition,
                    why,
                    extra=part.log_fields,
                )
            return None

    def _knows_the_topic(self, part: HeldPartition) -> bool:
        """Whether Kafka has told the id of the topic, or will not."""
        if not self._is_text and part.metadata == ClaimMetadata():
            part.metadata = ClaimMetadata.decode(part.claim.metadata).inherited()
        return not part.metadata.topic_id or self._topics.ids_known.is_set()

    def _is_told_that_it_was_set(self, part: HeldPartition) -> bool:
        """Whether the log has under which claim a position was first taken up after it was set.

        Setting it leaves no metadata, where any other position has at least its topic's id. What
        `Transactions` committed under earlier claims is of before: whoever holds the claim later
        must know, too.
        """
        if self._is_text or self._delivery.claims_messages or part.number is not None:
            return True
        if not part.claim.metadata and self.topic_id(part):
            part.metadata = msgspec.structs.replace(
                part.metadata, first_epoch_since_set=part.claim.epoch
            )
            part.claim.set_metadata(part.metadata.encode(), flush=True)
        if part.metadata.first_epoch_since_set != part.claim.epoch:
            return True
        return bool(part.holding.stored_metadata == part.holding.metadata)

    def _is_of_another_topic(self, part: HeldPartition) -> bool:
        known, now = _known_id(part), self._topics.ids.get(part.topic, b"")
        return bool(known and now and known != now)

    def _choose(self, part: HeldPartition) -> int | None:
        """Nothing is stored: begin where the group says. Raises `KafkaException`."""
        if self._is_text:
            from marshal_py.admin.version1_positions import committed_position

            committed = committed_position(
                self._marshal.settings.kafka, self._marshal.group_id, *part.key, timeout_s=2.0
            )
            if committed >= 0:
                return committed
        start = self._start
        began = self._began(part)
        if start.kind == "earliest" or (began is not None and part.partition >= began.began_with):
            return OFFSET_BEGINNING  # or the topic has got it since then
        now_ms = time.time_ns() // 1_000_000
        began_ms = now_ms if began is None else began.began_ms
        if start.kind == "latest":
            offset = self._look_up(part, -1 if began is None else began_ms)
        elif start.kind == "ago":
            offset = self._look_up(part, max(0, began_ms - start.ms))
        else:
            offset = self._look_up(part, start.ms)
        if self._is_text:
            return offset
        count = self._topics.counts.get(part.topic, 0) if began is None else began.began_with
        part.metadata = msgspec.structs.replace(
            part.metadata, began_with=count, began_ms=began_ms, topic_id=self.topic_id(part)
        )
        part.chosen = True
        part.claim.commit(offset)
        part.claim.set_metadata(part.metadata.encode(), flush=True)
        return None

    def _began(self, part: HeldPartition) -> ClaimMetadata | None:
        """Return what the group knows of its beginning with a topic, None before that.

        A group that has positions and does not say has begun when there was no partition.
        """
        found: ClaimMetadata | None = None
        with self._marshal.world() as world:
            for unit in self._units_beside(part):
                cell = world.cell(self._marshal.group_id, *unit)
                if cell is None or (unit == part.key and cell.position < 0):
                    continue
                about = _NOTHING if self._is_text else ClaimMetadata.decode(cell.metadata)
                is_better = found is None or 0 < about.began_ms < (found.began_ms or _LATE_MS)
                if (about.began_ms or cell.position >= 0) and is_better:
                    found = about
        return found

    def _units_beside(self, part: HeldPartition) -> Iterator[Unit]:
        """Yield all that is claimed of the topic of `part`: partitions, or slots."""
        for p in range(self._topics.counts.get(part.topic, 0)):
            if part.slot is None:
                yield part.topic, p
            else:
                name = slots_cell(part.topic, p, part.slot.slots)
                for number in range(part.slot.slots):
                    yield name, number

    def topic_id(self, part: HeldPartition) -> bytes:
        """Return Kafka's id of the topic, b"" if it is not known."""
        return self.id_of(part.source)

    def id_of(self, source: Unit) -> bytes:
        """Return Kafka's id of the topic of a partition, b"" if it is not known."""
        return self._topics.ids.get(source[0], b"")

    def first_of(self, source: Unit) -> int | None:
        """Return the first message that a partition has; None: no answer."""
        with contextlib.suppress(KafkaException):
            return self._offsets([source], -2)[source]
        return None

    def end_of(self, source: Unit) -> int | None:
        """Return below what a partition has messages; None: no answer."""
        with contextlib.suppress(KafkaException):
            return self._offsets([source], -1)[source]
        return None

    def id_to_tell(self, part: HeldPartition) -> bytes:
        """Return the id that goes with its first position, b"" if it is not known.

        What was fetched before the topic was made anew is none of the new one's. At most once it
        is told all the same: from the first message of the new topic, some would come again.
        """
        return part.fetched_from or self.topic_id(part)

    def may_be_told(self, part: HeldPartition) -> bool:
        """Whether the id of its topic, or that there is none, is known, so that it can go along."""
        return self._is_text or bool(part.metadata.topic_id) or self._topics.ids_known.is_set()

    def wait_until_told(self, part: HeldPartition, timeout_s: float) -> bool:
        """Wait until `may_be_told`. Returns whether it is."""
        return self.may_be_told(part) or self._topics.ids_known.wait(max(0.0, timeout_s))

    def look_after(self, part: HeldPartition) -> None:
        """See that a partition that is consumed is of the topic it was. Raises `MessagesMissing`.

        Sets `HeldPartition.reset_to` if it is not.
        """
        if self._is_of_another_topic(part):
            with contextlib.suppress(KafkaException):  # the next round tries again
                self._begin_anew(part)

    def restart_of(
        self,
        part: HeldPartition,
        end_known: int,
        look: Callable[[TopicPartition], Any],
    ) -> int | None:
        """Kafka has nothing at our position: messages were deleted, or the topic was made anew.

        `end_known`: below what the partition was known to have messages, if it is shared by ranges.
        `look`: `Fetcher.look`. Return where to go on; None: not known yet, or
        `HeldPartition.reset_to` was set. Raises `MessagesMissing`.
        """
        now = self.topic_id(part)
        if not self._is_text and (_known_id(part) or now):
            try:  # what is known may be older than the topic
                now = describe(self._admin.get(), [part.topic], 2.0)[part.topic].topic_id
            except (KafkaException, KeyError):
                return None
            self._topics.note_ids({part.topic: now})
            now = self._topics.ids.get(part.topic, now)
        try:
            first, end_now = self._look_up(part, -2), self._look_up(part, -1)
        except KafkaException:
            return None
        if part.slot is not None and part.truncated_at < 0 <= part.leader_epoch:
            # Other slots may know that it was truncated; Kafka knows where.
            found = look(
                TopicPartition(*part.source, part.started_at, leader_epoch=part.leader_epoch)
            )
            if found is None:
                return None
            part.truncated_at, part.leader_epoch = truncated_at(found), -1
        # If it was truncated, it may have grown beyond our position since then.
        end = end_now if part.truncated_at < 0 else min(end_now, part.truncated_at)
        # At most once, what was claimed may lie ahead of what was fetched.
        position = max(part.position(), part.fetched if part.is_owed else part.claim.position)
        if part.number is not None:  # where it is read is another matter than what of it is done
            position = part.read_to
        elif not (self._delivery.claims_messages or self._is_text):
            position = max(position, part.last_end, part.tail[1])
        if part.range is not None and end_known >= 0:  # it may be granted before there is any of it
            position = min(position, end_known)
        known = _known_id(part)
        if known == now and not (part.metadata.topic_id or part.has_begun):
            known = b""  # an inherited position at which nothing was found yet may be older
        fate = judge(position, first, end, now, known)
        if fate == "sound":  # it was not when Kafka answered: an end that has not got here
            return position
        if fate == "anew":
            self._begin_anew(part)
            return None
        if position <= end_now and fate != "trimmed":  # only the leader epoch says so
            # It is older than Kafka's, too, where the marker of a transaction came last.
            found = look(TopicPartition(*part.source, end))
            if found is None or (
                found.error() is not None and found.error().code() != KafkaError._PARTITION_EOF
            ):
                return None
            if found.offset() >= position:
                return position
        if fate == "trimmed":
            to = end_now if self._on_missing == "latest" else first
            self._tell(
                part,
                f"messages from offset {position} on were deleted before they were "
                f"consumed; going on at {to}",
            )
            return to
        to = self._to_after_the_end(part, position, first, end, is_known=fate == "truncated")
        if self._is_text:  # positions of version 1 may go back, and Go would wait for ever
            with driver_of(self._marshal).lock:
                part.holding.next_offset = part.holding.stored_offset = to
            return to
        part.reset_to = to
        return None

    def look_beyond(self, part: HeldPartition, done_to: int, end: int) -> None:
        """See whether messages below `done_to` were done that Kafka, up to `end`, has no more.

        `part` is a range; sets its `reset_to` if so. Raises `MessagesMissing`.
        """
        if done_to > end and (first := self.first_of(part.source)) is not None:
            is_known = bool(self.topic_id(part))
            part.reset_to = self._to_after_the_end(part, done_to, first, end, is_known=is_known)

    def _to_after_the_end(
        self, part: HeldPartition, position: int, first: int, end: int, *, is_known: bool
    ) -> int:
        """Return where to go on after a position beyond the end. Raises `MessagesMissing`.

        `is_known`: of the same topic. At most once, nothing comes again; at least once, nothing is
        left out.
        """
        to = end if is_known or self._delivery.claims_messages else first
        done_to = part.position()
        if part.range is None and not self._delivery.claims_messages and done_to >= 0:
            to = min(to, done_to)  # what was fetched and not done comes again
        why = "the partition was truncated"
        if not is_known:
            why = "the topic was made anew, or truncated"
        self._tell(
            part,
            f"it was read up to offset {position}, and ends at {end} now: {why}; going on at {to}",
        )
        return to

    def _begin_anew(self, part: HeldPartition) -> None:
        """The topic is another one of the same name. Raises `KafkaException`."""
        first = self._look_up(part, -2)
        self._tell(
            part,
            f"the topic was made anew, so the position {part.claim.position} means "
            f"nothing in it; going on at its first message, {first}",
        )
        part.reset_to = first

    def _tell(self, part: HeldPartition, what: str) -> None:
        text = f"{part.topic}/{part.partition}: {what}"
        if self._on_missing == "stop":
            raise MessagesMissing(
                f"{text.partition('; going on')[0]}. Set where to go on with "
                "`marshal group set-position`, or with on_missing"
            )
        self._log.error("%s: %s", self._marshal.client_id, text, extra=part.log_fields)

    def request_ends(self, parts: Iterable[HeldPartition]) -> None:
        """Ask how far the messages go, and do not wait for the answer (`HeldPartition.end`)."""
        by_key = {part.key: part for part in parts if part.number is None}
        specs: Any = kafka_admin.OffsetSpec
        with contextlib.suppress(KafkaException):
            futures = self._admin.get().list_offsets(
                {TopicPartition(*key): specs.latest() for key in by_key},
                isolation_level=IsolationLevel[self._isolation_level.upper()],
                request_timeout=2.0,
            )
            for at, future in futures.items():
                future.add_done_callback(partial(_set_end, by_key[at.topic, at.partition]))

    def lags(self, parts: Iterable[HeldPartition], timeout_s: float) -> dict[Unit, int]:
        """Return how far each partition is behind its end. Raises `BrokerUnavailable`."""
        parts = list(parts)
        ends = self.ends_of([part.source for part in parts], timeout_s)
        return {
            part.key: max(0, ends[part.source] - max(self._delivery.position(part), 0))
            for part in parts
            if part.source in ends
        }

    def ends_of(self, sources: list[Unit], timeout_s: float) -> dict[Unit, int]:
        """Return below what partitions have messages. Raises `BrokerUnavailable`."""
        if not sources:
            return {}
        try:
            return self._offsets(sources, -1, timeout_s)
        except KafkaException as error:
            raise no_answer(error) from None

    def _look_up(self, part: HeldPartition, which: int) -> int:
        """Return the first (−2) or next (−1) offset, or that of a time in milliseconds."""
        found = self._offsets([part.source], which)[part.source]
        if found < 0:  # there is no message so young: the end
            found = self._offsets([part.source], -1)[part.source]
        return found

    def _offsets(self, keys: list[Unit], which: int, timeout_s: float = 2.0) -> dict[Unit, int]:
        """Ask the brokers for offsets. Raises `KafkaException`."""
        specs: Any = kafka_admin.OffsetSpec
        special = {-2: specs.earliest, -1: specs.latest}
        query = special[which]() if which in special else specs.for_timestamp(which)
        futures = self._admin.get().list_offsets(
            {TopicPartition(*key): query for key in keys},
            isolation_level=IsolationLevel[self._isolation_level.upper()],
            request_timeout=timeout_s,
        )
        return {(at.topic, at.partition): future.result().offset for at, future in futures.items()}


_NOTHING: Final = ClaimMetadata()
_LATE_MS: Final = 2**63


def _known_id(part: HeldPartition) -> bytes:
    """The id of the topic that its position is of, or that it is about to be fetched from."""
    return part.metadata.topic_id or part.fetched_from


def _set_end(part: HeldPartition, answer: Any) -> None:
    with contextlib.suppress(KafkaException):  # then nothing is claimed ahead
        part.end = answer.result().offset

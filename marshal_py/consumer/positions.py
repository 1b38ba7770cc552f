"""Positions in Kafka: where a partition begins, how far it goes, and what became of a position."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka import admin as kafka_admin

from marshal_py.admin.version1_positions import committed_position
from marshal_py.client.marshal import Marshal
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.admin_on_demand import AdminOnDemand
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol.balance import Unit

__all__ = ["Positions"]


class Positions:
    """Asks the brokers. For any thread.

    `start_ms`: where to begin without a stored position: −2 for the first message, −1 for the next,
    or a time in milliseconds.
    """

    def __init__(
        self,
        marshal: Marshal,
        admin: AdminOnDemand,
        delivery: Delivery,
        log: Fields,
        *,
        start_ms: int,
        isolation_level: str,
    ) -> None:
        self._marshal = marshal
        self._admin = admin
        self._delivery = delivery
        self._log = log
        self._start_ms = start_ms
        self._isolation_level = isolation_level
        self._is_text = marshal.settings.wire == "text"

    def start_of(self, part: HeldPartition) -> int | None:
        """Return where to begin with a partition that has just been claimed; None: not known yet.

        An offset, or `OFFSET_BEGINNING`.
        """
        position = part.claim.position
        if position >= 0:
            return position
        try:
            if self._is_text:
                position = committed_position(
                    self._admin.get(), self._marshal.group_id, *part.key, timeout_s=2.0
                )
            if position >= 0:
                return position
            return OFFSET_BEGINNING if self._start_ms == -2 else self._look_up(part, self._start_ms)
        except KafkaException as error:
            self._log.warning(
                "%s: no start offset of %s/%d yet: %s",
                self._marshal.client_id,
                part.topic,
                part.partition,
                error.args[0].str(),
                extra=part.log_fields,
            )
            return None

    def restart_of(self, part: HeldPartition) -> int | None:
        """Kafka has nothing at our position: messages were deleted, or the topic was made anew.

        Return where to go on; None: not known yet.
        """
        try:
            first, end = self._look_up(part, -2), self._look_up(part, -1)
        except KafkaException:
            return None
        # At most once, what was claimed may lie ahead of what was fetched.
        position = max(part.position(), part.fetched if part.is_owed else part.claim.position)
        if position <= first:
            self._log.error(
                "%s: %s/%d: messages from offset %d on were deleted before they were consumed; "
                "going on at %d",
                self._marshal.client_id,
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
                self._marshal.client_id,
                part.topic,
                part.partition,
                position,
                end,
                first,
                extra=part.log_fields,
            )
            if self._is_text:  # positions of version 1 may go back, and Go would wait for ever
                with self._marshal.driver.lock:
                    part.holding.next_offset = part.holding.stored_offset = first
        return first

    def request_ends(self, parts: Iterable[HeldPartition]) -> None:
        """Ask how far the messages go, and do not wait for the answer (`HeldPartition.end`)."""
        by_key = {part.key: part for part in parts}
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
        if not parts:
            return {}
        try:
            ends = self._offsets([part.key for part in parts], -1, timeout_s)
        except KafkaException as error:
            raise BrokerUnavailable(f"no answer from the brokers: {error.args[0].str()}") from None
        return {
            part.key: max(0, ends[part.key] - max(self._delivery.position(part), 0))
            for part in parts
            if part.key in ends
        }

    def _look_up(self, part: HeldPartition, which: int) -> int:
        """Return the first (−2) or next (−1) offset, or that of a time in milliseconds."""
        found = self._offsets([part.key], which)[part.key]
        if found < 0:  # there is no message so young: the end
            found = self._offsets([part.key], -1)[part.key]
        return found

    def _offsets(self, keys: list[Unit], which: int, timeout_s: float = 2.0) -> dict[Unit, int]:
        """Ask the brokers for offsets. Raises `KafkaException`."""
        specs: Any = kafka_admin.OffsetSpec
        special = {-2: specs.earliest, -1: specs.latest}
        query = special[which]() if which in special else specs.for_timestamp(which)
        futures = self._admin.get().list_offsets(
            {TopicPartition(*key): query for key in keys}, request_timeout=timeout_s
        )
        return {(at.topic, at.partition): future.result().offset for at, future in futures.items()}


def _set_end(part: HeldPartition, answer: Any) -> None:
    with contextlib.suppress(KafkaException):  # then nothing is claimed ahead
        part.end = answer.result().offset

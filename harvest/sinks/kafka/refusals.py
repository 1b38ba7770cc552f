"""Which rows of a failed delivery Kafka will refuse again, and which only failed with them.

- A topic that does not exist, or may not be described, is found before anything is produced.
- A record that the producer itself finds too large is certain. When the *broker* finds a batch too
  large, all records in it fail, and perhaps none alone is too large. The next producer makes
  batches that hold no more than the largest of them: what still fails alone is blamed.
- For a record that the broker does not accept, or not with its time, all of its batch fails, too.
  Less is delivered at once after each failure: what still fails alone is blamed. For the time, only
  a row that has one of its own: the others have that of this machine's clock.
- A missing right to write fails the whole transaction; the broker is asked for which topics.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from harvest.core.dead_letters import MISSING_TOPIC
from harvest.core.extra_columns import TIMESTAMP
from harvest.core.failure import Failure
from harvest.core.interfaces.sink import StillHeld
from harvest.core.row import Row
from harvest.core.topic_names import is_topic
from harvest.errors import ConfigurationError
from harvest.sinks.kafka.clients import make_client

__all__ = [
    "BadTopics",
    "RowError",
    "RowErrors",
    "TopicLook",
    "advice",
    "missing_topics",
    "unwritable_topics",
]

_LOG: Final = logging.getLogger("harvest.kafka")
_UNKNOWN: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_LASTING: Final = {
    *_UNKNOWN,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
_PURGED: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
_TOO_LARGE: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_CERTAIN: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._INVALID_ARG}
_OWN_TIME: Final = TIMESTAMP.encode()
_ASK_TIMEOUT_S: Final = 4.0
_APPEARS_WITHIN_S: Final = 1.0  # a topic that was created a moment ago
_ASK_AGAIN_S: Final = 0.1
_BATCH_SIZE: Final = "batch.size"
_BATCH_DEFAULT: Final = 1_000_000


class RowError(Exception):
    """A row that cannot be handed to the producer."""

    def __init__(self, row_id: int, text: str, code: int = KafkaError._INVALID_ARG) -> None:
        super().__init__(text)
        self.row_id = row_id
        self.code = code


class BadTopics(Exception):
    """Rows whose topics cannot be written to; nothing was produced."""


class RowErrors:
    """What went wrong with the rows of one delivery."""

    def __init__(self, *, wait_for_topics: bool) -> None:
        self._wait_for_topics = wait_for_topics
        self.texts: dict[int, str] = {}
        self._codes: dict[int, int] = {}
        self._certain: set[int] = set()

    def add(self, row_id: int, text: str, code: int, *, certain: bool = False) -> None:
        """Note an error; the first one of a row counts. `certain`: it is about this row alone.

        That we took a row back from the producer is an error, too, but explains nothing.
        """
        if row_id not in self.texts or self._codes[row_id] in _PURGED:
            self.texts[row_id] = text
            self._codes[row_id] = code
            if certain:
                self._certain.add(row_id)

    def failure(
        self,
        reason: str,
        rows: Sequence[Row],
        settings: dict[str, Any],
        undelivered: frozenset[int] | None = None,
    ) -> Failure:
        """What a sink answers; `settings` as in `refused`, `undelivered` as in `Failure`."""
        refused = self.refused(rows, settings)
        if self.texts:
            row_id, text = next(iter(self.texts.items()))
            reason = f"{reason}; {len(self.texts)} rows failed, the first is row {row_id}: {text}"
        return Failure(reason, undelivered, dict(self.texts), refused)

    def refused(self, rows: Sequence[Row], settings: dict[str, Any]) -> frozenset[int]:
        """The rows to blame. May lower ``batch.size`` in the `settings` of the next producer."""
        lasting = _LASTING - _UNKNOWN if self._wait_for_topics else _LASTING
        blamed = {i for i, code in self._codes.items() if code in lasting}
        blamed |= {i for i in self._certain if self._codes[i] in _CERTAIN}
        if len(rows) == 1:
            blamed |= {row[0] for row in rows if self._is_refused_alone(row)}
        suspects = {
            row[0]: len(row[2] or b"") + len(row[3] or b"")
            for row in rows
            if self._codes.get(row[0]) in _TOO_LARGE and row[0] not in self._certain
        }
        if suspects:
            limit = int(settings.get(_BATCH_SIZE, _BATCH_DEFAULT))
            alone = {i for i, size in suspects.items() if size >= limit}
            if alone or len(rows) == 1:
                blamed |= alone or set(suspects)
            else:
                settings[_BATCH_SIZE] = max(1, *suspects.values())
                _LOG.warning(
                    "the broker refuses batches as too large: batch.size is %d from now on; set it "
                    "in `producer` to no more than the topics' max.message.bytes",
                    settings[_BATCH_SIZE],
                )
        return frozenset(blamed)

    def _is_refused_alone(self, row: Row) -> bool:
        code = self._codes.get(row[0])
        if code == KafkaError.INVALID_TIMESTAMP:
            return _OWN_TIME in (row[4] or ())
        return code == KafkaError.INVALID_RECORD


class TopicLook:
    """Asks for topics that were not seen yet: librdkafka takes 30 s to miss one.

    Asks before each whether there is a point in it: they may be many.
    """

    def __init__(self, still_held: StillHeld = lambda: True) -> None:
        self._still_held = still_held
        self._seen: set[str] = set()

    def look(self, producer: Producer, rows: Sequence[Row], errors: RowErrors) -> None:
        """Note the rows whose topics cannot be written to. Raises `BadTopics` if there are any."""
        new = {row[1] for row in rows} - self._seen
        if not new:
            return
        bad = missing_topics(producer, new, self._still_held)
        self._seen |= new - bad.keys()
        for row in rows if bad else ():
            if row[1] in bad:
                errors.add(row[0], advice(row[1], bad[row[1]]), bad[row[1]].code())
        if bad:
            raise BadTopics


def missing_topics(
    producer: Producer, topics: set[str], still: StillHeld = lambda: True
) -> dict[str, KafkaError]:
    """Those of `topics` that cannot be written to for a reason that lasts, and the reason.

    A broker that does not answer has no opinion, and is not asked about a name that no topic can
    have: librdkafka takes offence. Brokers that make topics by themselves do so now.
    """
    missing = {
        name: KafkaError(KafkaError.TOPIC_EXCEPTION) for name in topics if not is_topic(name)
    }
    left, until_s = sorted(topics - missing.keys()), float("inf")
    while left:
        is_last = time.monotonic() > until_s
        again = []
        for topic in left:
            if not still():
                return missing
            try:
                found = producer.list_topics(topic, timeout=_ASK_TIMEOUT_S).topics[topic].error
            except KafkaException:
                return missing
            if found is None or found.code() not in _LASTING:
                continue
            if found.code() not in _UNKNOWN or is_last:
                missing[topic] = found
            else:
                again.append(topic)
        left = again
        if until_s == float("inf"):  # all were asked once
            until_s = time.monotonic() + _APPEARS_WITHIN_S
        if left:
            time.sleep(_ASK_AGAIN_S)
    return missing


def unwritable_topics(settings: Mapping[str, Any], topics: set[str]) -> set[str]:
    """Those of `topics` that these credentials may not write to; the broker is asked."""
    if len(topics) == 1:
        return set(topics)
    try:
        admin = make_client(AdminClient, dict(settings))
    except ConfigurationError:  # files are being replaced: with the next attempt, then
        return set()
    found = set()
    futures = admin.describe_topics(
        TopicCollection(sorted(topics)),
        include_authorized_operations=True,
        request_timeout=_ASK_TIMEOUT_S,
    )
    for topic, future in futures.items():
        with contextlib.suppress(KafkaException):
            if AclOperation.WRITE not in (future.result().authorized_operations or ()):
                found.add(topic)
    return found


def advice(topic: str, error: KafkaError) -> str:
    """What is wrong with a topic, and what to do."""
    if error.code() in _UNKNOWN:
        what = MISSING_TOPIC.format(topic)
    elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        what = f"the topic {topic!r} may not be written to: grant WRITE and DESCRIBE on it"
    else:
        what = f"the topic {topic!r}: {error.str()}"
    return f"{what}, then `harvest dead-letters retry --topic {topic}`"

"""Dead letters: which there are, why, and how they are put back to where they came from.

A dead letter is a record that `Consumer.run` gave up, with headers that say why
(`marshal_py.consumer.dead_letters`). Whoever may write to its topic may write anything
into these headers, so what they say is shown, and checked before anything is done with it.

Replayed, the message as it was goes to the partition that it came from, with these headers: they
stay with it if it fails again.

| header | what |
|---|---|
| ``dlq-replayed-from`` | topic/partition@offset of the dead letter |
| ``dlq-replayed-at`` | when, milliseconds since 1970 |
| ``dlq-replayed-by`` | who asked for it |
"""

from __future__ import annotations

import fnmatch
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException
from msgspec import Struct

from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_offsets import extent_of_led, offset_ranges
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.headers import make_headers_readable
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.settings import is_topic
from marshal_py.client.topics import admin_client
from marshal_py.consumer.dead_letters import PREFIX, REPLAYED
from marshal_py.consumer.topics import Described, describe
from marshal_py.dashboard.appending import NewRecord, append
from marshal_py.errors import BrokerUnavailable, InvalidArgument

__all__ = ["DeadLetterTopics", "Letter", "LetterId", "Replayed", "Target"]

PATTERN: Final = "*.dlq"
"""The names of dead-letter topics, as `Consumer.run` gives them."""

MAX_SHOWN: Final = 1_000
MAX_TEXT: Final = 2_000
_PREFETCH_KB: Final = 16_384
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)

_MAYBE: Final = {
    KafkaError._FATAL,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.REQUEST_TIMED_OUT,
}
"""With these, a record may be in its topic or not."""

LetterId = tuple[int, int]
"""Partition and offset of a dead letter in its topic."""


class Letter(Struct):
    """A dead letter, as the page shows it. What is not told, or no number, is None."""

    partition: int
    offset: int
    at_ms: int | None
    key: str | None
    value: str | None
    size: int
    headers: list[tuple[str, str | None]]
    error_class: str | None = None
    error_message: str | None = None
    topic: str | None = None
    source_partition: int | None = None
    source_offset: int | None = None
    attempts: int | None = None
    group: str | None = None
    client: str | None = None


class Target(Struct, frozen=True):
    """Where a dead letter would go. `end`: the offset that it would get at least."""

    letter: LetterId
    checksum: int
    topic: str
    partition: int
    about: Described
    """How many partitions the topic has, and its id: another one means another topic."""
    end: int
    key: str | None


class Replayed(Struct):
    """What a replay came to. `done`: what was replayed, or may have been."""

    done: list[LetterId]
    text: str
    failed: bool


class DeadLetterTopics:
    """Looks for dead letters, and replays them. For any thread.

    `pattern`: of the names of their topics, with * and ?.
    """

    def __init__(self, connection: Connection, pattern: str = PATTERN) -> None:
        self._connection = connection
        self.pattern = pattern

    def topics(self) -> list[dict[str, Any]]:
        """Return the topics with how many records each has, the fullest first.

        Transactions leave marks that count as records. ``offline`` are the partitions for which
        Kafka has no leader: of these it is not known. Raises `BrokerUnavailable`.
        """
        admin = admin_client(self._connection.kafka)
        timeout_s = self._connection.timeout_s
        try:
            found = admin.list_topics(timeout=timeout_s).topics
            parts = {
                (name, p): about.leader
                for name, topic in found.items()
                if fnmatch.fnmatchcase(name, self.pattern) and topic.error is None
                for p, about in topic.partitions.items()
            }
            # Who asks for one without a leader gets no answer about any.
            led = {part for part, leader in parts.items() if leader >= 0}
            ranges = offset_ranges(admin, led, timeout_s)
        except KafkaException as error:
            raise BrokerUnavailable(f"no answer: {error.args[0].str()}") from None
        counts: dict[str, int] = {}
        offline: dict[str, list[int]] = {}
        for name, p in sorted(parts):
            first, end = ranges.get((name, p), (0, 0))
            counts[name] = counts.get(name, 0) + end - first
            offline.setdefault(name, []).extend([] if (name, p) in led else [p])
        by_size = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [
            {"topic": name, "records": records, "offline": offline[name]}
            for name, records in by_size
        ]

    def latest(self, topic: str, limit: int) -> tuple[list[Letter], list[int]]:
        """Return up to `limit` of the latest letters of a topic, the latest first.

        And the partitions for which Kafka has no leader: theirs are not among them.
        Raises `InvalidArgument`, `TopicMissing`, `AccessDenied`, `BrokerUnavailable`.
        """
        limit = min(limit, MAX_SHOWN)
        extents, offline = self._extent(topic)
        starts = {p: max(first, end - limit) for p, (first, end) in extents.items()}
        ends = {p: end for p, (_, end) in extents.items()}
        letters = [_letter(message) for message in self._read(topic, starts, ends)]
        letters.sort(key=lambda letter: (letter.at_ms or 0, letter.offset), reverse=True)
        return letters[:limit], offline

    def targets(self, topic: str, chosen: Iterable[LetterId]) -> list[Target]:
        """Say where letters would go. Writes nothing.

        Raises `InvalidArgument` for a letter that is not there (any more), or that cannot be
        replayed, and as `latest` does.
        """
        messages = self._messages(topic, chosen)
        admin = admin_client(self._connection.kafka)
        try:
            sources = {key: self._source(topic, message) for key, message in messages.items()}
            names = {source for source, _ in sources.values() if is_topic(source)}
            known = describe(admin, names, self._connection.timeout_s)
            for key, source in sources.items():
                _check(_where(topic, key), *source, known)
            ends = offset_ranges(admin, set(sources.values()), self._connection.timeout_s)
        except KafkaException as error:
            raise BrokerUnavailable(f"no answer: {error.args[0].str()}") from None
        return [
            Target(
                key,
                zlib.crc32(messages[key].value() or b""),
                *source,
                known[source[0]],
                ends[source][1],
                _text(messages[key].key()),
            )
            for key, source in sorted(sources.items())
        ]

    def replay(self, topic: str, targets: list[Target], who: str) -> Replayed:
        """Append the messages of letters to where they came from; return what became of them.

        Raises `InvalidArgument`, and appends nothing, if a letter is not what it was.
        """
        messages = self._messages(topic, [target.letter for target in targets])
        now_ms = time.time_ns() // 1_000_000
        records = []
        for target in targets:
            message = messages[target.letter]
            if zlib.crc32(message.value() or b"") != target.checksum:
                raise InvalidArgument(
                    f"{_where(topic, target.letter)} is another record by now; nothing was replayed"
                )
            told = {"from": _where(topic, target.letter), "at": now_ms, "by": who}
            headers = [(n, v) for n, v in message.headers() or () if not n.startswith(PREFIX)]
            headers += [(REPLAYED + n, str(v).encode(errors="replace")) for n, v in told.items()]
            key, value = message.key(), message.value()
            records.append(NewRecord(target.topic, target.partition, key, value, headers))
        done: list[LetterId] = []
        unknown: list[LetterId] = []
        maybe, problems = list[str](), list[str]()
        for target, written in zip(targets, append(self._connection.kafka, records), strict=True):
            if written.error is None:
                done.append(target.letter)
                continue
            problem = f"{target.topic}/{target.partition}: {written.error.str()}"
            if written.error.code() in REFUSED:
                problem = str(denied(self._connection.kafka, target.topic, "Write"))
            if written.error.code() in _MAYBE:
                unknown.append(target.letter)
                maybe.append(problem)
            else:
                problems.append(problem)
        text = f"{len(done)} of {len(targets)} replayed"
        if unknown:
            text += f"; of {len(unknown)} it is not known: {'; '.join(dict.fromkeys(maybe))}"
        if problems:
            text += f"; not the others: {'; '.join(dict.fromkeys(problems))}"
        return Replayed([*done, *unknown], f"{text}.", bool(unknown or problems))

    def _messages(self, topic: str, chosen: Iterable[LetterId]) -> dict[LetterId, Any]:
        """Read certain letters anew."""
        wanted = set(chosen)
        extents, offline = self._extent(topic)
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for p, offset in wanted:
            if p in offline:
                raise BrokerUnavailable(f"Kafka has no leader for {topic}/{p}: nobody can read it")
            first, end = extents.get(p, (0, 0))
            if not first <= offset < end:
                raise _gone(topic, (p, offset))
            starts[p] = min(offset, starts.get(p, offset))
            ends[p] = max(offset + 1, ends.get(p, 0))
        found = {
            key: message
            for message in self._read(topic, starts, ends)
            if (key := (message.partition(), message.offset())) in wanted
        }
        if missing := wanted - found.keys():
            raise _gone(topic, min(missing))
        return found

    def _source(self, topic: str, message: Any) -> tuple[str, int]:
        """Return topic and partition that a letter says it came from.

        Raises `InvalidArgument` for what is none of consumers': whoever may write letters must not
        be able to have something written that coordinates.
        """
        letter = _letter(message)
        where = _where(topic, (letter.partition, letter.offset))
        if letter.topic is None or letter.source_partition is None:
            raise InvalidArgument(f"{where} does not say where it came from")
        log = self._connection.topic
        if letter.topic in (topic, log) or letter.topic.startswith(("__", f"{log}.")):
            raise InvalidArgument(f"{where} says that it came from {letter.topic!r}: refused")
        return letter.topic, letter.source_partition

    def _extent(self, topic: str) -> tuple[dict[int, tuple[int, int]], list[int]]:
        if not fnmatch.fnmatchcase(topic, self.pattern):
            raise InvalidArgument(
                f"{topic!r} is no topic of dead letters: these are {self.pattern}"
            )
        try:
            return extent_of_led(admin_client(self._connection.kafka), topic, self._connection)
        except KafkaException as error:
            raise BrokerUnavailable(f"{topic}: {error.args[0].str()}") from None

    def _read(self, topic: str, starts: dict[int, int], ends: dict[int, int]) -> Iterator[Any]:
        starts = {p: start for p, start in starts.items() if start < ends[p]}
        if not starts:
            return
        kafka = {"queued.max.messages.kbytes": _PREFETCH_KB, **self._connection.kafka}
        deadline = time.monotonic() + self._connection.timeout_s
        for message in read_to_end(kafka, topic, starts, ends, deadline):
            if message.offset() < ends[message.partition()]:
                make_headers_readable([message])
                yield message


def _check(where: str, topic: str, partition: int, known: Mapping[str, Described]) -> None:
    if topic not in known:
        raise InvalidArgument(f"{where} came from {topic!r}, which does not exist (any more)")
    if partition >= known[topic].partitions:
        raise InvalidArgument(
            f"{where} came from {topic}/{partition}, and there are only "
            f"{known[topic].partitions} partitions"
        )


def _letter(message: Any) -> Letter:
    kind, stamp_ms = message.timestamp()
    value = message.value()
    headers = message.headers() or []
    told = {name: _text(data) for name, data in headers if name.startswith(PREFIX)}

    def number(name: str) -> int | None:
        text = told.get(PREFIX + name)
        return int(text) if text is not None and _NUMBER.fullmatch(text) else None

    return Letter(
        message.partition(),
        message.offset(),
        number("failed-at") or (None if kind == TIMESTAMP_NOT_AVAILABLE else stamp_ms),
        _text(message.key()),
        _text(value),
        len(value or b""),
        [(name, _text(data)) for name, data in headers],
        told.get(f"{PREFIX}error-class"),
        told.get(f"{PREFIX}error-message"),
        told.get(f"{PREFIX}topic"),
        number("partition"),
        number("offset"),
        number("attempts"),
        told.get(f"{PREFIX}group-id"),
        told.get(f"{PREFIX}client-id"),
    )


def _text(data: bytes | str | None) -> str | None:
    """Bytes as text, cut; what is no UTF-8 is escaped."""
    if data is None:
        return None
    text = data if isinstance(data, str) else data[:MAX_TEXT].decode(errors="backslashreplace")
    return text if len(data) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _where(topic: str, letter: LetterId) -> str:
    return f"{topic}/{letter[0]}@{letter[1]}"


def _gone(topic: str, letter: LetterId) -> InvalidArgument:
    return InvalidArgument(f"{_where(topic, letter)} is not there (any more): look again first")

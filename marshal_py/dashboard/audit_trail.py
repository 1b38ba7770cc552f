"""Who did what from the page, kept in a topic beside the log: ``<coordination topic>.audit``.

An action is written down before it is done, and how it ended afterwards. What cannot be written
down is not done. An entry without an end is of a process that died, or lost the brokers, meanwhile:
how the action ended is not known then.

A record is a JSON object: ``id`` (the same for both), ``at_ms``, ``who``, ``what``, ``text``,
``phase`` (asked, done, failed), and of replayed dead letters ``topic`` and ``letters``, pairs of
partition and offset.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Annotated, Final, Literal

import msgspec
from confluent_kafka import KafkaException
from msgspec import Meta, Struct

from marshal_py.admin.connection import Connection
from marshal_py.admin.topic_offsets import extent
from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.topics import admin_client, create_topics
from marshal_py.dashboard.appending import NewRecord, append
from marshal_py.errors import BrokerUnavailable, TopicMissing

__all__ = ["AuditTrail", "Entry"]

READ: Final = 10_000
"""Records that are read at most, the latest."""


class Entry(Struct, omit_defaults=True):
    """One record of the trail."""

    id: Annotated[str, Meta(max_length=64)]
    at_ms: int
    who: str
    what: str
    phase: Literal["asked", "done", "failed"]
    text: str = ""
    topic: str = ""
    letters: list[tuple[int, int]] = []


class AuditTrail:
    """Writes and reads the trail. For any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.topic = f"{connection.topic}.audit"
        self._lock = threading.Lock()
        self._is_there = False

    def ensure(self) -> None:
        """Make the topic if it is not there: one partition, kept for ever.

        Raises `AccessDenied`, `BrokerUnavailable`, `ConfigurationError`.
        """
        with self._lock:
            if not self._is_there:
                create_topics(
                    self._connection.kafka,
                    timeout_s=self._connection.timeout_s,
                    topic=self.topic,
                    partitions=1,
                    with_snapshots=False,
                )
                self._is_there = True

    def begin(
        self, who: str, what: str, *, topic: str = "", letters: list[tuple[int, int]] | None = None
    ) -> Entry:
        """Write down what is about to be done. Raises `AccessDenied`, `BrokerUnavailable`."""
        self.ensure()
        entry = Entry(
            secrets.token_hex(8), _now_ms(), who, what, "asked", topic=topic, letters=letters or []
        )
        self._append(entry)
        return entry

    def end(
        self,
        begun: Entry,
        text: str,
        *,
        failed: bool = False,
        letters: list[tuple[int, int]] | None = None,
    ) -> None:
        """Write down how it ended. `letters`: those that were replayed. Raises as `begin` does."""
        self._append(
            Entry(
                begun.id,
                _now_ms(),
                begun.who,
                begun.what,
                "failed" if failed else "done",
                text,
                begun.topic,
                letters or [],
            )
        )

    def entries(self) -> list[Entry]:
        """Return what happened, the latest first: of an action that has ended, its end.

        Records that are none of ours are left out. Raises `BrokerUnavailable`, `AccessDenied`.
        """
        admin = admin_client(self._connection.kafka)
        try:
            first, end = extent(admin, self.topic, self._connection)[0]
        except TopicMissing:
            return []
        except KafkaException as error:
            raise BrokerUnavailable(f"{self.topic}: {error.args[0].str()}") from None
        found: dict[str, Entry] = {}
        starts = {0: max(first, end - READ)}
        if starts[0] < end:
            deadline = time.monotonic() + self._connection.timeout_s
            kafka = self._connection.kafka
            for message in read_to_end(kafka, self.topic, starts, {0: end}, deadline):
                try:
                    entry = msgspec.json.decode(message.value() or b"", type=Entry)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue
                if entry.id not in found or entry.phase != "asked":
                    found.pop(entry.id, None)
                    found[entry.id] = entry
        return list(reversed(found.values()))

    def _append(self, entry: Entry) -> None:
        record = NewRecord(self.topic, 0, None, msgspec.json.encode(entry), [])
        (written,) = append(self._connection.kafka, [record])
        if written.error is None:
            return
        if written.error.code() in REFUSED:
            raise denied(self._connection.kafka, self.topic, "Write")
        raise BrokerUnavailable(f"{self.topic} took no record: {written.error.str()}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

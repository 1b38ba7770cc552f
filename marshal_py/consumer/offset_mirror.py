"""Copies a consumer's positions to Kafka's own committed offsets, for the tools that read those.

Burrow, kafka-ui and the lag exporters know nothing of the coordination log. With
``Consumer(mirror_offsets=True)`` they find, under the group's name, what the log says. It is a copy
and nothing reads it back: what it lacks after a crash or an outage costs nobody a message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from marshal_py.admin.positions import Key, write_committed_offsets
from marshal_py.client.marshal import Claim
from marshal_py.client.settings import KafkaConfig
from marshal_py.client.topics import admin_client
from marshal_py.errors import ConfigurationError

__all__ = ["OffsetMirror"]

logger = logging.getLogger("marshal_py.consumer")

WARN_EVERY_S: Final = 60.0
"""That mirroring fails is worth a line in this time."""

REPEAT_S: Final = 3_600.0
"""What does not move is written again: Kafka drops offsets of a group that is silent for days."""


class OffsetMirror:
    """A thread that commits where `claims` stand in the log, every `every_s` while they move.

    `claims` is called in that thread, and `position_of` with each: which partition stands where, or
    None where another claim tells. Failures are logged, once in a while, and tried again in the
    next round. At the end, `keep` (before the claims are released) and `close` write once more.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        kafka_group: str,
        claims: Callable[[], list[Claim]],
        position_of: Callable[[Claim], tuple[Key, int] | None],
        *,
        every_s: float = 5.0,
        timeout_s: float = 10.0,
    ) -> None:
        self.kafka_group = kafka_group
        self._claims = claims
        self._position_of = position_of
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._written: dict[Key, int] = {}
        self._repeat_at_s = time.monotonic() + REPEAT_S
        self._warned_s = -WARN_EVERY_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marshal-mirror", daemon=True)

    def start(self) -> None:
        """Begin. Raises nothing: whatever is wrong later is a warning."""
        self._thread.start()

    def keep(self) -> None:
        """Remember the claims of now: they are about to be released, and `close` comes after."""
        claims = self._claims()
        self._claims = lambda: claims

    def close(self, timeout_s: float) -> None:
        """Write what has changed, and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._round()
        self._round()

    def _round(self) -> None:
        if time.monotonic() >= self._repeat_at_s:
            self._repeat_at_s = time.monotonic() + REPEAT_S
            self._written.clear()
        now = dict(filter(None, map(self._position_of, self._claims())))
        changed = {k: at for k, at in now.items() if at >= 0 and self._written.get(k) != at}
        try:
            if self._admin is None:
                self._admin = admin_client(self._kafka)
            write_committed_offsets(self._admin, self.kafka_group, changed, self._timeout_s)
        except KafkaException as error:
            self._admin = None
            self._warn(error.args[0].str(), error.args[0].code())
        except ConfigurationError as error:  # what it was made of before is not there now
            self._warn(str(error))
        else:
            self._written = now  # what went elsewhere is forgotten: if it returns, it is written

    def _warn(self, why: str, code: int | None = None) -> None:
        if time.monotonic() - self._warned_s < WARN_EVERY_S:
            return
        self._warned_s = time.monotonic()
        hint = ""
        if code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
            hint = (
                ": a Kafka consumer group of this name has members; give the marshal group another "
                "name, or mirror_offsets the name of a group that nobody uses"
            )
        logger.warning(
            "the positions of group %r were not mirrored to Kafka's committed offsets (%s)%s",
            self.kafka_group,
            why,
            hint,
        )

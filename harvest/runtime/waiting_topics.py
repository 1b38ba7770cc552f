"""Rows that wait for their topic: set aside, and put back once it exists (specs/HARVEST.md §11).

With `unknown_topic: wait` only the rows of a missing topic wait, and the later ones of their keys.
What sets them aside is the same as for every row that Kafka refuses; this is the operator who
retries them in time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from harvest.core.interfaces.dead_letter_store import DeadLetterTable, RetryMode, Selection
from harvest.errors import HarvestError

__all__ = ["WaitingTopics", "topics_of"]

_LOG: Final = logging.getLogger("harvest")
_CHECK_EVERY_S: Final = 5.0
_ASK_TIMEOUT_S: Final = 4.0


class WaitingTopics:
    """Checks every few seconds, between `start` and `close`, while `leading`.

    - `existing`: the topics that there are; raises `KafkaException` when the broker does not say.
    """

    def __init__(
        self,
        dead_letters: DeadLetterTable,
        existing: Callable[[], set[str]],
        *,
        mode: RetryMode,
        leading: Callable[[], bool],
    ) -> None:
        self._dead_letters = dead_letters
        self._existing = existing
        self._mode = mode
        self._leading = leading
        self._seen: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="harvest-topics", daemon=True)

    def start(self) -> None:
        """Begin to check."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _ASK_TIMEOUT_S)
        self._dead_letters.close()

    def check(self) -> int:
        """Put the rows back whose topics exist; return how many.

        Not at the first check that finds a topic missing: in range mode the checkpoint must have
        passed its rows. Raises `HarvestError`, `KafkaException`.
        """
        missed = self._dead_letters.missing_topics()
        known, self._seen = missed & self._seen, missed
        if not known:
            return 0
        count = 0
        for topic in sorted(known & self._existing()):
            found = self._dead_letters.retry(Selection(topic=topic), mode=self._mode)
            _LOG.info("the topic %r exists now: %d rows that waited are back", topic, found)
            count += found
        return count

    def _run(self) -> None:
        while not self._stopping.wait(_CHECK_EVERY_S):
            if not self._leading():
                self._seen = set()
                continue
            try:
                self.check()
            except (HarvestError, KafkaException) as error:
                _LOG.warning("whether topics that rows wait for exist is not known: %s", error)


def topics_of(admin: AdminClient) -> set[str]:
    """Every topic that these credentials may see. Raises `KafkaException`."""
    return set(admin.list_topics(timeout=_ASK_TIMEOUT_S).topics)

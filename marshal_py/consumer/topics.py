"""Which topics a consumer wants and how many partitions they have: looked up now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from marshal_py.client.marshal import Marshal
from marshal_py.client.structured_logs import Fields
from marshal_py.client.suggestions import did_you_mean
from marshal_py.consumer.admin_on_demand import AdminOnDemand
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.errors import BrokerUnavailable, TopicMissing
from marshal_py.protocol.subscription import Subscription

__all__ = ["Topics"]


class Topics:
    """The topics of one subscription that exist. From `start` on, a thread looks for new ones."""

    def __init__(
        self,
        marshal: Marshal,
        admin: AdminOnDemand,
        fetcher: Fetcher,
        log: Fields,
        subscription: Subscription,
        *,
        discovery_interval_s: float,
    ) -> None:
        self.counts: dict[str, int] = {}
        """Topics that are wanted and exist → number of partitions."""
        self._marshal = marshal
        self._admin = admin
        self._fetcher = fetcher
        self._log = log
        self._subscription = subscription
        self._interval_s = discovery_interval_s
        self._stopped: threading.Event
        self._on_look: Callable[[bool], None]
        self._thread = threading.Thread(target=self._run, name="marshal-topics", daemon=True)

    def wants(self, topic: str) -> bool:
        """Whether the subscription is for this topic, should it exist."""
        return self._subscription.wants(topic)

    def discover_at_start(self, given_up: threading.Event) -> None:
        """Look for the topics. Raises `TopicMissing`, naming what is close, `BrokerUnavailable`."""
        timeout_s = self._marshal.settings.connect_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                # Asked by the consumer, which must be connected anyhow.
                left_s = max(0.1, deadline - time.monotonic())
                found = _counts(self._fetcher.list_topics(min(5.0, left_s)))
                break
            except KafkaException as error:
                if given_up.is_set() or time.monotonic() >= deadline:
                    raise BrokerUnavailable(
                        f"no answer from the brokers within {timeout_s:g} s: {error.args[0].str()}"
                    ) from None
        for topic in sorted(self._subscription.topics):
            if topic not in found:
                raise TopicMissing(f"topic {topic!r} does not exist{did_you_mean(topic, found)}")
        self.counts = self._wanted(found)
        self._fetcher.connect_to_leaders(self.counts)
        if not self.counts:
            self._log.warning(
                "%s: no topic matches %r yet", self._marshal.client_id, self._subscription.pattern
            )

    def start(self, stopped: threading.Event, on_look: Callable[[bool], None]) -> None:
        """Look every `discovery_interval_s` until `stopped`, and call `on_look(changed)` each time.

        It is called in a thread of its own.
        """
        self._stopped = stopped
        self._on_look = on_look
        self._thread.start()

    def _wanted(self, found: dict[str, int]) -> dict[str, int]:
        subscription = self._subscription
        return {
            name: count
            for name, count in found.items()
            if name in subscription.topics
            or (subscription.wants(name) and not name.startswith("__"))
        }

    def _run(self) -> None:
        name = self._marshal.client_id
        while not self._stopped.wait(self._interval_s):
            try:
                found = self._wanted(_counts(self._admin.get().list_topics(timeout=5.0)))
            except KafkaException as error:
                self._log.info("%s: no metadata: %s", name, error.args[0].str())
                continue
            changed = found != self.counts
            if changed:
                self._tell_of_changes(found)
                self.counts = found
            self._on_look(changed)

    def _tell_of_changes(self, found: dict[str, int]) -> None:
        name = self._marshal.client_id
        for topic in sorted(self.counts.keys() - found.keys()):
            self._log.warning("%s: topic %r is gone", name, topic, extra={"topic": topic})
        for topic in sorted(found):
            before = self.counts.get(topic, 0)
            if found[topic] > before:
                self._log.info(
                    "%s: topic %r has %d partitions now (%d before)",
                    name,
                    topic,
                    found[topic],
                    before,
                    extra={"topic": topic},
                )


def _counts(found: Any) -> dict[str, int]:
    """Return topic → how many partitions, of those that can be read."""
    return {name: len(t.partitions) for name, t in found.topics.items() if t.error is None}

"""Which topics a consumer wants, what Kafka calls them, and how many partitions they have."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from marshal_py.client.acl import REFUSED, denied
from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.client.kafka_clients import patience
from marshal_py.client.marshal import Marshal
from marshal_py.client.structured_logs import Fields
from marshal_py.client.suggestions import did_you_mean
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.errors import TopicMissing
from marshal_py.protocol.subscription import Subscription

__all__ = ["Topics", "describe"]

GONE_AFTER: Final = 3
"""A topic is gone when so many looks in a row have not found it: one answer may be of a broker that
does not know yet."""

ONE_BY_ONE: Final = 20
"""So many topics are asked for by name at the start; with more, one request for all is quicker."""

HURRY_S: Final = 0.5
"""Between two looks, while Kafka says that a topic is not there."""


class Described(NamedTuple):
    """What Kafka says of a topic: its number of partitions, and its id; b"" where it has none."""

    partitions: int
    topic_id: bytes


class Topics:
    """The topics of one subscription that exist. From `start` on, a thread looks for changes."""

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
        self.ids: dict[str, bytes] = {}
        """Topics → Kafka's id of each, where it is known. A topic that is made anew has another."""
        self._past_ids: set[bytes] = set()
        self._noting = threading.Lock()
        self.ids_known = threading.Event()
        """Set when the ids have been asked for: what is not in `ids` has none, or is not told."""
        self._marshal = marshal
        self._admin = admin
        self._fetcher = fetcher
        self._log = log
        self._subscription = subscription
        self._interval_s = discovery_interval_s
        self._missing: dict[str, int] = {}
        """Topics that the last looks did not find → how many looks."""
        self._hurry = threading.Event()
        self._stopped: threading.Event
        self._on_look: Callable[[bool], None]
        self._thread = threading.Thread(target=self._run, name="marshal-topics", daemon=True)
        fetcher.on_gone = self._on_gone

    def wants(self, topic: str) -> bool:
        """Whether the subscription is for this topic, should it exist."""
        return self._subscription.wants(topic)

    def discover_at_start(self, given_up: threading.Event) -> None:
        """Look for the topics.

        Raises `TopicMissing`, naming what is close; `AccessDenied`, `BrokerUnavailable`,
        `AuthenticationFailed`.
        """
        deadline = time.monotonic() + self._marshal.settings.connect_timeout_ms / 1000
        for wait_s in patience(deadline):
            try:
                # Asked by the consumer, which must be connected anyhow.
                found = self._ask_consumer(wait_s)
                break
            except KafkaException as error:
                errors = self._fetcher.hear_errors()
                if given_up.is_set() or errors.repeated or time.monotonic() >= deadline:
                    raise errors.failure(error.args[0]) from None
        for topic in sorted(self._subscription.topics):
            if topic not in found:
                if self._is_hidden(topic):
                    raise denied(self._marshal.settings.kafka, topic, "Read")
                known: dict[str, int] = {}
                with contextlib.suppress(KafkaException):  # it would only say what is close
                    known = _counts(self._fetcher.list_topics(5.0))
                raise TopicMissing(f"topic {topic!r} does not exist{did_you_mean(topic, known)}")
        self.counts = self._wanted(found)
        self._admin.known_topic = next(iter(self.counts), None)
        ids = threading.Thread(target=self._find_ids, name="marshal-topic-ids", daemon=True)
        ids.start()
        self._fetcher.connect_to_leaders(self.counts)
        if not self.counts:
            self._log.warning(
                "%s: no topic matches %r yet", self._marshal.client_id, self._subscription.pattern
            )

    def _is_hidden(self, topic: str) -> bool:
        """Whether the brokers say that this client may not see a topic. Asked by name alone."""
        with contextlib.suppress(KafkaException, KeyError):
            error = self._fetcher.list_topics(5.0, topic).topics[topic].error
            return error is not None and error.code() in REFUSED
        return False

    def _ask_consumer(self, timeout_s: float) -> dict[str, int]:
        names = self._subscription.topics
        if self._subscription.pattern is not None or len(names) > ONE_BY_ONE:
            return _counts(self._fetcher.list_topics(timeout_s))
        found: dict[str, int] = {}
        for name in sorted(names):
            found |= _counts(self._fetcher.list_topics(timeout_s, name))
        return found

    def start(self, stopped: threading.Event, on_look: Callable[[bool], None]) -> None:
        """Look every `discovery_interval_s` until `stopped`, and call `on_look(changed)` each time.

        It is called in a thread of its own.
        """
        self._stopped = stopped
        self._on_look = on_look
        self._thread.start()

    def stop(self) -> None:
        """Look no more: `stopped` is set."""
        self._hurry.set()

    def _wanted(self, found: dict[str, int]) -> dict[str, int]:
        subscription = self._subscription
        return {
            name: count
            for name, count in found.items()
            if name in subscription.topics
            or (subscription.wants(name) and not name.startswith("__"))
        }

    def _find_ids(self) -> None:
        """Ask for the ids of the topics, while the client starts."""
        try:
            admin = self._admin.get()
            found = describe(admin, self.counts, 5.0) if self._admin.tells_ids else {}
            self.note_ids({name: topic.topic_id for name, topic in found.items()})
        except KafkaException as error:
            self._log.info(
                "%s: topic ids are not known: %s", self._marshal.client_id, error.args[0].str()
            )
        finally:
            self.ids_known.set()

    def note_ids(self, ids: dict[str, bytes]) -> bool:
        """Take in what Kafka says are the ids of topics. Returns whether one was made anew.

        b"": it did not say. One that another has replaced does not come back, though a broker that
        lags may tell it: it is passed over.
        """
        with self._noting:
            ids = {t: new for t, new in ids.items() if new and new not in self._past_ids}
            renewed = {topic for topic, new in ids.items() if self.ids.get(topic, new) != new}
            if renewed:  # first: who knows the new id has it fetched afterwards
                self._fetcher.reconnect(renewed)
                self._past_ids |= {self.ids[topic] for topic in renewed}
            self.ids |= ids
        return bool(renewed)

    def _on_gone(self, topic: str) -> None:
        self._missing.setdefault(topic, 0)
        self._hurry.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            if self._hurry.wait(HURRY_S if self._missing else self._interval_s):
                self._hurry.clear()
                self._stopped.wait(HURRY_S)  # Kafka may not know yet, either
            if not self._stopped.is_set():
                try:
                    self._look()
                except Exception:  # whoever looks no more knows of no topic that is made anew
                    self._log.exception(
                        "%s: a look at the topics failed; it looks again", self._marshal.client_id
                    )

    def _look(self) -> None:
        name = self._marshal.client_id
        try:
            found = self._ask()
        except KafkaException as error:
            self._log.info("%s: no metadata: %s", name, error.args[0].str())
            return
        renewed = self.note_ids({topic: about.topic_id for topic, about in found.items()})
        counts = {topic: about.partitions for topic, about in found.items()}
        for topic in self.counts.keys() - counts.keys():
            looks = self._missing.get(topic, 0) + 1
            self._missing[topic] = looks
            if looks < GONE_AFTER:
                counts[topic] = self.counts[topic]
        missing = list(self._missing.items())  # whoever fetches may add to it meanwhile
        self._missing = {t: looks for t, looks in missing if t not in found}
        changed = counts != self.counts
        if changed:
            self._tell_of_changes(counts)
            self.counts = counts
        self._on_look(changed or renewed)

    def _ask(self) -> dict[str, Described]:
        """Return what Kafka says of the topics that are wanted. Raises `KafkaException`."""
        admin = self._admin.get()
        wanted: Iterable[str] = self._subscription.topics
        listed: dict[str, int] = {}
        if self._subscription.pattern is not None:
            listed = self._wanted(_counts(admin.list_topics(timeout=5.0)))
            wanted = listed
        try:
            if self._admin.tells_ids:
                return describe(admin, wanted, 5.0)
        except KafkaException:
            pass  # not every cluster describes topics: without ids, then
        listed = listed or self._wanted(_counts(admin.list_topics(timeout=5.0)))
        return {name: Described(count, b"") for name, count in listed.items()}

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


def describe(admin: Any, topics: Iterable[str], timeout_s: float) -> dict[str, Described]:
    """Return what Kafka says of those of `topics` that exist. Raises `KafkaException`."""
    names = sorted(topics)
    if not names:
        return {}
    found = {}
    futures = admin.describe_topics(TopicCollection(names), request_timeout=timeout_s)
    for name, future in futures.items():
        try:
            about = future.result()
        except KafkaException as error:
            if error.args[0].code() in _NO_SUCH_TOPIC:
                continue
            raise
        high = about.topic_id.get_most_significant_bits()
        low = about.topic_id.get_least_significant_bits()
        topic_id = b"".join((bits % 2**64).to_bytes(8, "big") for bits in (high, low))
        found[name] = Described(len(about.partitions), topic_id if any(topic_id) else b"")
    return found


_NO_SUCH_TOPIC: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}


def _counts(found: Any) -> dict[str, int]:
    """Return topic → how many partitions, of those that can be read."""
    return {name: len(t.partitions) for name, t in found.topics.items() if t.error is None}

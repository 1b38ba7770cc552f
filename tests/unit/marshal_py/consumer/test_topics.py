"""Which topics there are, and when one is gone, by an admin client that the test answers for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client.kafka_clients import ConnectionErrors
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer import topics as topics_module
from marshal_py.consumer.topics import GONE_AFTER, HURRY_S, Topics, describe
from marshal_py.errors import AccessDenied, MarshalError, TopicMissing
from marshal_py.protocol.subscription import Subscription
from tests.support.interleave import Case, explore


class Kafka:
    """Stands for an `AdminOnDemand` and its client: knows the topics in `there`."""

    tells_ids = False

    def __init__(self) -> None:
        self.there: dict[str, int] = {}

    def get(self) -> Kafka:
        return self

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        found = {
            name: SimpleNamespace(partitions=dict.fromkeys(range(count)), error=None)
            for name, count in self.there.items()
        }
        return SimpleNamespace(topics=found)


def looking(kafka: Kafka, changes: list[bool]) -> Topics:
    fakes: Any = SimpleNamespace(client_id="me")
    admin: Any = kafka
    log = Fields(logging.getLogger("marshal_py.consumer"), {})
    wanted = Subscription(frozenset({"a"}))
    topics = Topics(fakes, admin, fakes, log, wanted, discovery_interval_s=60)
    topics._on_look = changes.append
    return topics


def test_a_topic_is_gone_when_looks_in_a_row_have_not_found_it() -> None:
    """One answer may be of a broker that does not know yet, however often that happens."""
    kafka, changes = Kafka(), list[bool]()
    topics = looking(kafka, changes)
    for there in [True] + ([False] * (GONE_AFTER - 1) + [True]) * 3:
        kafka.there = {"a": 4} if there else {}
        topics._look()
        assert topics.counts == {"a": 4}
    assert changes.count(True) == 1
    kafka.there = {}
    for _ in range(GONE_AFTER):
        assert topics.counts == {"a": 4}
        topics._look()
    assert topics.counts == {}
    assert changes.count(True) == 2


def test_a_look_that_fails_for_no_known_reason_is_not_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka, changes = Kafka(), list[bool]()
    topics = looking(kafka, changes)
    stopped = threading.Event()
    answers: Iterator[Callable[[], None]] = iter([lambda: 1 // 0, stopped.set])  # type: ignore[list-item]
    kafka.list_topics = lambda timeout: next(answers)() or Kafka.list_topics(kafka, timeout)  # type: ignore[method-assign]
    topics._interval_s = 0
    topics.start(stopped, changes.append)
    topics._thread.join(10)
    assert stopped.is_set()
    assert changes == [False]
    assert "me: a look at the topics failed; it looks again" in caplog.text


class Described:
    """Answers `describe_topics`: topic → (partitions, id), or the code of an error."""

    def __init__(self, **topics: Any) -> None:
        self.topics = topics

    def describe_topics(self, asked: Any, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        found: dict[str, Future[Any]] = {}
        for name in asked.topic_names:
            found[name] = Future()
            told = self.topics.get(name, KafkaError.UNKNOWN_TOPIC_OR_PART)
            if isinstance(told, int):
                found[name].set_exception(KafkaException(KafkaError(told)))
                continue
            high, low = told[1]
            topic_id = SimpleNamespace(
                get_most_significant_bits=lambda high=high: high,
                get_least_significant_bits=lambda low=low: low,
            )
            parts = [None] * told[0]
            found[name].set_result(SimpleNamespace(partitions=parts, topic_id=topic_id))
        return found


def test_topics_that_there_are_not_or_that_are_hidden_are_left_out() -> None:
    hidden = KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka = Described(a=(4, (1, -1)), b=(2, (0, 0)), c=hidden)
    found = describe(kafka, ["c", "b", "a", "d"], 5.0)
    one = b"\x00" * 7 + b"\x01" + b"\xff" * 8
    assert found == {"a": (4, one), "b": (2, b"")}, "an id of zeros is none"
    assert describe(kafka, [], 5.0) == {}
    with pytest.raises(KafkaException):
        describe(Described(a=KafkaError._TIMED_OUT), ["a"], 5.0)


class Failing(Kafka):
    """Describes nothing, and lists what there is until `is_down`."""

    tells_ids = True
    is_down = False

    def describe_topics(self, *_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE))

    def list_topics(self, timeout: float) -> Any:
        if self.is_down:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return super().list_topics(timeout)


def test_a_cluster_that_describes_no_topics_is_asked_for_a_list() -> None:
    kafka, changes = Failing(), list[bool]()
    topics = looking(kafka, changes)
    kafka.there = {"a": 4, "b": 2}
    topics._look()
    assert (topics.counts, changes) == ({"a": 4}, [True])


def test_an_outage_is_no_change_and_says_nothing_of_topics() -> None:
    kafka, changes = Failing(), list[bool]()
    topics = looking(kafka, changes)
    kafka.there = {"a": 4}
    topics._look()
    kafka.is_down = True
    for _ in range(2 * GONE_AFTER):
        topics._look()
    assert (topics.counts, changes) == ({"a": 4}, [True])


def test_who_waits_for_ids_goes_on_when_they_are_not_told() -> None:
    topics = looking(Failing(), [])
    topics.counts = {"a": 1}
    topics._find_ids()
    assert topics.ids_known.is_set()
    assert topics.ids == {}


def test_ids_that_are_not_told_at_the_start_are_not_forgotten() -> None:
    """A look at the topics may have come before it."""
    topics = looking(Kafka(), [])
    admin: Any = Described(a=(1, (0, 0)))
    topics._admin = SimpleNamespace(get=lambda: admin, tells_ids=True)  # type: ignore[assignment]
    topics.counts, topics.ids = {"a": 1}, {"a": b"known"}
    topics._find_ids()
    assert topics.ids == {"a": b"known"}


def test_of_a_topic_that_was_made_anew_whoever_claims_is_told() -> None:
    """Though it has as many partitions as before."""
    topics = looking(Kafka(), changes := list[bool]())
    fakes: Any = topics
    fakes._fetcher.reconnect = lambda _: None
    for topic_id, is_news in (((1, 1), True), ((1, 1), False), ((2, 2), True), ((1, 1), False)):
        admin: Any = Described(a=(4, topic_id))
        fakes._admin = SimpleNamespace(get=lambda admin=admin: admin, tells_ids=True)
        topics._look()
        assert changes.pop() is is_news
    assert topics.counts == {"a": 4}


def test_one_that_is_missing_is_looked_for_soon_and_the_others_in_their_time() -> None:
    kafka, waits = Kafka(), list[float]()
    topics = looking(kafka, [])
    stopped = threading.Event()

    class Hurry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) > 3:
                stopped.set()
            return self.is_set()

    topics._hurry, kafka.there = Hurry(), {"a": 4}
    stopped.wait = lambda timeout=None: False  # type: ignore[method-assign]
    topics._on_gone("a")
    topics.start(stopped, lambda _: None)
    topics._thread.join(10)
    assert waits == [HURRY_S, 60, 60, 60]
    assert not topics._hurry.is_set()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Subscription(frozenset(), ".*"), {"a", "orders"}),
        (Subscription(frozenset({"__internal"}), "ord.*"), {"__internal", "orders"}),
        (Subscription(frozenset({"a"})), {"a"}),
    ],
)
def test_a_pattern_means_no_topic_of_kafkas_own(wanted: Subscription, found: set[str]) -> None:
    topics = looking(Kafka(), [])
    topics._subscription = wanted
    there = {"a": 1, "orders": 2, "__internal": 50, "__consumer_offsets": 50}
    assert set(topics._wanted(there)) == found


def test_a_topic_is_gone_however_often_kafka_says_that_it_does_not_know_it() -> None:
    """It says so with each fetch: the looks that have not found it are counted all the same."""
    kafka, changes = Kafka(), list[bool]()
    topics = looking(kafka, changes)
    kafka.there = {"a": 4}
    topics._look()
    kafka.there = {}
    for _ in range(GONE_AFTER):
        assert topics.counts == {"a": 4}
        topics._on_gone("a")
        assert topics._hurry.is_set()
        topics._look()
    assert topics.counts == {}


def test_a_look_goes_on_while_kafka_says_that_it_does_not_know_another_topic() -> None:
    """Whoever fetches is told that, at any time."""

    def case() -> Case:
        kafka = Kafka()
        topics = looking(kafka, [])
        kafka.there, topics._missing = {"a": 4}, {"a": 1}

        def check(*_: object) -> None:
            assert topics.counts == {"a": 4}
            assert topics._hurry.is_set()

        return Case(topics._look, lambda: topics._on_gone("b"), check)

    assert explore(case, [topics_module], preemptions=1, grain="opcode") > 50


def test_a_topic_is_missing_also_where_nobody_tells_what_is_close_to_it() -> None:
    topics = looking(Kafka(), [])
    fakes: Any = topics
    fakes._marshal.settings = SimpleNamespace(connect_timeout_ms=1_000)

    def list_topics(_: float, topic: str | None = None) -> Any:
        if topic is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return SimpleNamespace(topics={})

    fakes._fetcher.list_topics = list_topics
    with pytest.raises(TopicMissing, match=r"topic 'a' does not exist$"):
        topics.discover_at_start(threading.Event())


def test_a_topic_that_this_client_may_not_see_is_not_called_missing() -> None:
    """Whoever is told that would create it, and find that it is there."""
    topics = looking(Kafka(), [])
    fakes: Any = topics
    fakes._marshal.settings = SimpleNamespace(connect_timeout_ms=1_000, kafka={})
    hidden = SimpleNamespace(partitions={}, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    fakes._fetcher.list_topics = lambda _, topic=None: SimpleNamespace(
        topics={} if topic is None else {topic: hidden}
    )
    with pytest.raises(AccessDenied, match="lacks Read on topic 'a'"):
        topics.discover_at_start(threading.Event())


@pytest.mark.parametrize("why", ["the start was given up", "it was said often enough"])
def test_whoever_looks_for_topics_does_not_wait_for_brokers_that_nobody_waits_for(why: str) -> None:
    topics, given_up, asked = looking(Kafka(), []), threading.Event(), list[float]()
    fakes: Any = topics
    fakes._marshal.settings = SimpleNamespace(connect_timeout_ms=500)
    errors = ConnectionErrors()
    fakes._fetcher.hear_errors = lambda: errors

    def list_topics(timeout_s: float, _: str) -> Any:
        asked.append(timeout_s)
        if why == "the start was given up" and len(asked) == 2:
            given_up.set()
        elif why == "it was said often enough":
            errors.note(KafkaError._SSL, "the certificate has expired")
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    fakes._fetcher.list_topics = list_topics
    with pytest.raises(MarshalError):
        topics.discover_at_start(given_up)
    assert len(asked) == (2 if given_up.is_set() else 4)


def test_what_is_found_at_the_start_is_what_others_connect_with() -> None:
    """To ask for all of them again, or for leaders as a partition is claimed, takes longer."""
    kafka: Any = Kafka()
    topics, led = looking(kafka, []), list[dict[str, int]]()
    fakes: Any = topics
    fakes._marshal.settings = SimpleNamespace(connect_timeout_ms=1_000)
    fakes._fetcher.connect_to_leaders = led.append
    about = SimpleNamespace(partitions=dict.fromkeys(range(4)), error=None)
    fakes._fetcher.list_topics = lambda _, topic: SimpleNamespace(topics={topic: about})
    topics.discover_at_start(threading.Event())
    assert topics.counts == {"a": 4}
    assert kafka.known_topic == "a"
    assert led == [{"a": 4}]
    assert topics.ids_known.wait(60)


def test_whoever_looks_for_topics_ends_when_it_is_told_to() -> None:
    """And not with its next look, in a minute."""
    topics, stopped = looking(Kafka(), []), threading.Event()
    topics.start(stopped, lambda _: None)
    stopped.set()
    topics.stop()
    topics._thread.join(10)
    assert not topics._thread.is_alive()

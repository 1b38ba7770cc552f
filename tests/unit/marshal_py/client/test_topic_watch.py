"""Watching the coordination topic, by an admin client whose answers the test gives (§7.2)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.client import topic_watch
from marshal_py.client.topic_watch import AGAIN_S, KEEP_S, TopicFacts, TopicWatch
from marshal_py.errors import ConfigurationError

NO_TOPIC = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
NO_ANSWER = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Admin:
    """Stands for an `AdminOnDemand` and its client. `asked` has a future for each look."""

    def __init__(self) -> None:
        self.asked: list[Future[Any]] = []
        self.rests = 0
        self.polls = 0

    def open(self) -> Admin:
        return self

    def rest(self) -> None:
        self.rests += 1

    def describe_topics(self, _topics: Any, *, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout > 0
        self.asked.append(Future())
        return {"t": self.asked[-1]}

    def poll(self, _timeout_s: float) -> int:
        self.polls += 1
        return 0

    def tell(self, topic_id: str = "one", partitions: int = 8) -> None:
        told = SimpleNamespace(topic_id=topic_id, partitions=[object()] * partitions)
        self.asked[-1].set_result(told)

    def fail(self, error: KafkaException) -> None:
        self.asked[-1].set_exception(error)


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def admin() -> Admin:
    return Admin()


def watch_of(admin: Admin, every_s: float = 5.0) -> TopicWatch:
    return TopicWatch(admin, "t", every_s)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(topic_watch, "time", made)
    return made


def test_it_asks_at_once_and_then_once_in_its_period(admin: Admin, clock: Clock) -> None:
    watch = watch_of(admin)
    assert watch.look() is None
    assert watch.look() is None  # an answer is awaited: it does not ask again
    assert len(admin.asked) == 1
    admin.tell()
    assert watch.look() == TopicFacts("one", 8)
    clock.now_s += 4.9
    assert watch.look() is None
    assert len(admin.asked) == 1
    clock.now_s += 0.1
    assert watch.look() is None
    assert len(admin.asked) == 2


def test_a_client_that_cannot_be_made_now_is_made_with_the_next_look(
    admin: Admin, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while its certificate is being replaced."""

    def fail() -> Admin:
        raise ConfigurationError("ssl.key.location: it does not fit the certificate")

    watch = watch_of(admin)
    with monkeypatch.context() as patch:
        patch.setattr(admin, "open", fail)
        assert watch.look() is None
        assert watch.wait(clock.now_s + 1.0) is None
    assert watch.look() is None
    assert admin.asked == [], "it is not due"
    clock.now_s += 5.0
    assert watch.look() is None
    admin.tell()
    assert watch.look() == TopicFacts("one", 8)


def test_while_an_answer_is_awaited_callbacks_are_called(admin: Admin, clock: Clock) -> None:
    """That of OAUTHBEARER, without which there may never be an answer."""
    watch = watch_of(admin)
    watch.look()
    for looks in range(3):
        assert admin.polls == looks
        assert watch.look() is None


def test_what_is_told_is_known_of_the_moment_at_which_it_was_asked(
    admin: Admin, clock: Clock
) -> None:
    watch = watch_of(admin)
    watch.look()
    clock.now_s += 1.0
    admin.fail(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    watch.look()
    assert watch.as_of_s < 0, "it was told nothing"
    watch.ask()
    clock.now_s += 1.0
    admin.tell()
    watch.look()
    assert watch.as_of_s == clock.now_s - 1.0


def test_who_is_asked_to_look_soon_does_not_wait_for_its_period(admin: Admin, clock: Clock) -> None:
    watch = watch_of(admin)
    watch.look()
    admin.tell()
    watch.look()
    watch.soon()
    watch.look()
    assert len(admin.asked) == 2


def test_a_topic_is_gone_when_it_is_missing_twice_in_a_row(admin: Admin, clock: Clock) -> None:
    watch = watch_of(admin)
    for error in (NO_TOPIC, None, NO_TOPIC, NO_ANSWER):
        watch.ask()
        admin.tell() if error is None else admin.fail(error)
        found = watch.look()
        assert found == (TopicFacts("one", 8) if error is None else None)
    watch.ask()
    admin.fail(NO_TOPIC)  # the one before it brought no answer, and so no news
    assert watch.look() == TopicFacts(None, 0)


def test_a_topic_that_is_missing_once_is_looked_at_again_soon(admin: Admin, clock: Clock) -> None:
    watch = watch_of(admin, 60.0)
    watch.look()
    admin.fail(NO_TOPIC)
    assert watch.look() is None
    clock.now_s += AGAIN_S
    watch.look()
    assert len(admin.asked) == 2


def test_brokers_without_ids_tell_none(admin: Admin) -> None:
    watch = watch_of(admin)
    watch.ask()
    admin.tell(topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    assert watch.look() == TopicFacts(None, 8)


@pytest.mark.parametrize(("every_s", "rests"), [(KEEP_S, 0), (KEEP_S + 1, 2)])
def test_who_looks_seldom_keeps_no_connection(admin: Admin, every_s: float, rests: int) -> None:
    watch = watch_of(admin, every_s)
    for _ in range(2):
        watch.ask()
        admin.tell()
        assert watch.look() is not None
    assert admin.rests == rests


def test_a_wait_ends_at_its_deadline_and_leaves_the_question_open(admin: Admin) -> None:
    watch = watch_of(admin)
    assert watch.wait(time.monotonic()) is None
    admin.tell()
    assert watch.wait(time.monotonic() + 60) == TopicFacts("one", 8)
    assert len(admin.asked) == 1


def test_who_has_given_up_asks_no_more(admin: Admin) -> None:
    watch = watch_of(admin)
    watch.give_up()
    assert watch.wait(time.monotonic() + 60) is None
    assert watch.look() is None
    assert not admin.asked
    assert admin.rests == 1, "nor does it keep a connection"


def test_who_waits_for_an_answer_has_callbacks_called(admin: Admin) -> None:
    """Without that of OAUTHBEARER there is none, and each start takes longer."""
    watch = watch_of(admin)

    def poll(_timeout_s: float) -> int:
        admin.tell()
        return 1

    admin.poll = poll  # type: ignore[method-assign]
    assert watch.wait(time.monotonic() + 5) == TopicFacts("one", 8)

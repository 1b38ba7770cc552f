"""Leader election on a real broker: one leader, hand-over, take-over, and watchers that hear it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marshal_py import Claim, ClaimTimeout, InvalidArgument, Leader, Leadership, Marshal
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka

pytestmark = pytest.mark.kafka

Client = Callable[..., Marshal]
_topics = iter(range(10_000))


@pytest.fixture
def client(kafka: EmbeddedKafka) -> Iterator[Client]:
    """Start clients of one coordination topic; they are closed after the test."""
    kafka.start()
    topic = f"__election.{os.getpid()}.{next(_topics)}"
    create_topics(kafka.bootstrap_servers, topic=topic, partitions=4)
    started: list[Marshal] = []

    def start(client_id: str, interval_ms: int = 60_000) -> Marshal:
        settings: dict[str, Any] = {"topic": topic, "interval_ms": interval_ms}
        marshal = Marshal(kafka.bootstrap_servers, group_id="g", client_id=client_id, **settings)
        started.append(marshal.start())
        return marshal

    yield start
    for marshal in started:
        marshal.close(timeout_s=5)


def test_the_block_is_entered_by_the_leader_alone(client: Client) -> None:
    a, b = client("a"), client("b")
    with a.leader("job") as leadership:
        assert leadership.held
        assert leadership.epoch >= 0
        with pytest.raises(ClaimTimeout, match=r"not elected leader of 'job'.*a holds it"):
            b.leader("job").campaign(timeout_s=0.2)
    assert not leadership.held
    assert leadership.reason == "released"


def test_a_release_hands_over_without_waiting_for_a_timeout(client: Client) -> None:
    a, b = client("a"), client("b")  # an interval of a minute: nothing here waits for one
    first = a.leader("job").campaign(timeout_s=60)
    elected = threading.Event()
    second = b.leader("job")

    def campaign() -> None:
        second.campaign(timeout_s=60)
        elected.set()

    thread = threading.Thread(target=campaign, daemon=True)
    thread.start()
    first.resign()
    assert elected.wait(60)
    thread.join(60)
    assert second.held
    assert second.epoch > first.epoch


def test_leaders_of_different_names_do_not_meet(client: Client) -> None:
    a, b = client("a"), client("b")
    assert a.leader("x").campaign(timeout_s=60).held
    assert b.leader("y").campaign(timeout_s=60).held


def test_a_watcher_hears_every_change(client: Client) -> None:
    a, b, watcher = client("a"), client("b"), client("w")
    changes: list[tuple[str | None, str | None]] = []
    three = threading.Event()

    def on_change(old: Leader | None, new: Leader | None) -> None:
        changes.append((old and old.client_id, new and new.client_id))
        if len(changes) >= 3:
            three.set()

    with watcher.watch_leader("job", on_change) as watch:
        assert watch.current is None
        first = a.leader("job").campaign(timeout_s=60)
        seen = watch.wait(timeout_s=60)
        assert seen == Leader("a", a.instance_id, first.epoch)
        first.resign()
        second = b.leader("job").campaign(timeout_s=60)
        seen = watch.wait(epoch_above=first.epoch, timeout_s=60)
        assert seen == Leader("b", b.instance_id, second.epoch)
        assert three.wait(60)
    assert changes == [(None, "a"), ("a", None), (None, "b")]
    assert watcher.watch_leader("job").current == seen, "one who comes later knows it at once"


def test_a_deposed_leader_hears_that_it_lost(client: Client) -> None:
    a, b = client("a", interval_ms=1_000), client("b", interval_ms=300)
    first = a.leader("job")
    heard: list[Leadership] = []
    lost = threading.Event()

    def on_lost(leadership: Leadership) -> None:
        heard.append(leadership)
        lost.set()

    first.on_lost = on_lost
    first.campaign(timeout_s=60)
    with a._driver.lock:  # stops the driver of `a` between two steps, as a pause of its process
        second = b.leader("job").campaign(timeout_s=60)
        assert not first.held, "the lease is over before anybody takes over"
    assert lost.wait(60)
    assert heard == [first]
    assert first.wait_lost(0)
    assert second.held
    assert first.reason == "taken over by b"
    again = first  # the same candidate may stand again
    second.resign()
    assert again.campaign(timeout_s=60).epoch > second.epoch


def test_a_candidate_whose_leadership_lapsed_waits_until_it_comes_back(
    kafka: EmbeddedKafka, client: Client
) -> None:
    marshal = client("a", interval_ms=1_000)
    leadership = marshal.leader("job").campaign(timeout_s=60)
    epoch = leadership.epoch
    wants: list[str] = []
    want = marshal._registry.want

    def counted(topic: str, partition: int, *, ephemeral: bool = False) -> Claim:
        wants.append(topic)
        return want(topic, partition, ephemeral=ephemeral)

    marshal._registry.want = counted  # type: ignore[method-assign]
    kafka.pause(0)
    try:
        assert leadership.wait_lost(60)
        with pytest.raises(ClaimTimeout):
            leadership.campaign(timeout_s=0.5)
        assert len(wants) == 1, "it waits; it does not ask again and again"
    finally:
        kafka.resume(0)
    assert leadership.campaign(timeout_s=60).held
    assert leadership.epoch == epoch, "nobody took over meanwhile"


@pytest.mark.parametrize("name", ["", "x" * 250, 7])
def test_names_that_no_record_can_carry_are_refused(client: Client, name: Any) -> None:
    with pytest.raises(InvalidArgument, match="leader name"):
        client("a").leader(name)

"""A topic is made anew under running consumers: each goes on with the messages of the new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import (
    Loop,
    Make,
    consumers,
    fill,
    new_coordination_topic,
    pid_suffix,
    until,
)
from tests.support.messages import number_of

pytestmark = pytest.mark.kafka

KINDS: dict[str, dict[str, Any]] = {
    "partitions": {},
    "at most once": {"mode": "at_most_once"},
    "keys": {"sharing": "keys", "slots": 4},
    "ranges": {"sharing": "ranges"},
}


@pytest.fixture
def make(kafka: EmbeddedKafka) -> Iterator[Make]:
    coordination = new_coordination_topic(kafka)
    with consumers(kafka, topic=coordination, settle_ms=50, discovery_interval_s=0.2) as make:
        yield make


class Taken:
    """What each consumer took: (topic, number) → how often."""

    def __init__(self) -> None:
        self.of: dict[str, Counter[tuple[str, int]]] = {kind: Counter() for kind in KINDS}

    def take(self, kind: str, message: Any) -> None:
        self.of[kind][message.topic(), number_of(message)] += 1

    def have_all(self, topic: str, numbers: range) -> bool:
        return all(taken[topic, n] for taken in self.of.values() for n in numbers)


def test_it_is_consumed_though_its_leaders_have_changed_less_often(
    kafka: EmbeddedKafka, make: Make
) -> None:
    steady, remade = (f"{kind}.{pid_suffix()}" for kind in ("steady", "remade"))
    for topic in (steady, remade):
        kafka.create_topic(topic, partitions=2)
    for _ in range(2):  # each restart has the partitions led anew
        kafka.stop()
        kafka.start()
    for topic in (steady, remade):
        fill(kafka.bootstrap_servers, topic, 50, partitions=2)
    taken = Taken()
    loops = [
        Loop(
            make(kind, group_id=kind, topics=[steady, remade], **settings),
            lambda message, kind=kind: taken.take(kind, message),  # type: ignore[misc]
        )
        for kind, settings in KINDS.items()
    ]
    for topic in (steady, remade):
        until(lambda topic=topic: taken.have_all(topic, range(50)))  # type: ignore[misc]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([remade])[remade].result(60)
    until(lambda: remade not in admin.list_topics(timeout=10).topics)
    kafka.create_topic(remade, partitions=2)
    fill(kafka.bootstrap_servers, remade, 20, partitions=2, start=1_000)
    until(lambda: taken.have_all(remade, range(1_000, 1_020)), 60)
    fill(kafka.bootstrap_servers, remade, 80, partitions=2, start=1_020)
    until(lambda: taken.have_all(remade, range(1_020, 1_100)), 60)
    fill(kafka.bootstrap_servers, steady, 50, partitions=2, start=50)
    until(lambda: taken.have_all(steady, range(50, 100)), 60)
    for loop in loops:
        loop.close()
    # The other topic is read on where it was: nothing of it is left out, and nothing comes twice.
    for kind, found in taken.of.items():
        assert {n: c for (topic, n), c in found.items() if topic == steady} == dict.fromkeys(
            range(100), 1
        ), kind

"""A topic is made anew, or cut off, under running consumers: each goes on with what is there."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from marshal_py import Consumer
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


def cut_off(kafka: EmbeddedKafka, topic: str, offset: int) -> None:
    """Take from a broker that was killed what partition 0 has from `offset` on."""
    [log] = Path(kafka._broker(0).folder).glob(f"data/{topic}-0/*.log")
    content, at = log.read_bytes(), 0
    while at < len(content):
        first, length = struct.unpack_from(">qi", content, at)
        if first >= offset:
            break
        at += 12 + length
    assert at < len(content)
    with log.open("r+b") as file:
        file.truncate(at)


def undone(consumer: Consumer, topic: str) -> set[int]:
    """The first message that is not done, as the log has it: of the partition, or of each slot."""
    with consumer.marshal.world() as world:
        group = world.group(consumer.marshal.settings.group_id)
        found = {} if group is None else {name: c.position for (name, _), c in group.cells.items()}
    ranges = [at for name, at in found.items() if name.startswith(f"{topic}/0@")]
    if ranges:
        return {min(found.get(topic, -1), *ranges)}
    return {at for name, at in found.items() if name == topic or name.startswith(f"{topic}/0#")}


@pytest.mark.parametrize(
    "case", ["running", "running, grown again", "stopped", "stopped, grown again"]
)
def test_a_partition_that_was_cut_off_goes_on_at_its_end(
    kafka: EmbeddedKafka, make: Make, case: str
) -> None:
    topic = f"cut.{pid_suffix()}.{case.replace(', ', '.').replace(' ', '.')}"
    kafka.create_topic(topic, partitions=1)
    for first, count in ((0, 20), (20, 10)):  # a batch each, at least
        fill(kafka.bootstrap_servers, topic, count, partitions=1, start=first)
    taken = Taken()

    def start(kind: str) -> Loop:
        consumer = make(kind, group_id=topic + kind, topics=[topic], **KINDS[kind])
        return Loop(consumer.start(), lambda message: taken.take(kind, message))

    loops = {kind: start(kind) for kind in KINDS}
    until(lambda: taken.have_all(topic, range(30)))
    if case == "running":  # it is seen to be set back from there
        for kind, loop in loops.items():
            until(lambda loop=loop: max(undone(loop.consumer, topic)) == 30, 60, kind)  # type: ignore[misc]
    if "stopped" in case:
        for loop in loops.values():
            loop.close()
    kafka.kill()
    cut_off(kafka, topic, 20)
    kafka.start()
    if case == "stopped, grown again":
        fill(kafka.bootstrap_servers, topic, 30, partitions=1, start=1_000)
    if "stopped" in case:
        loops = {kind: start(kind) for kind in KINDS}
    if "grown" not in case:
        for kind, loop in loops.items():
            until(lambda loop=loop: max(undone(loop.consumer, topic)) == 20, 60, kind)  # type: ignore[misc]
    if case != "stopped, grown again":
        fill(kafka.bootstrap_servers, topic, 30, partitions=1, start=1_000)
    for kind, found in taken.of.items():
        # Nobody has heard of it, and nothing tells that the first of them are others than before.
        is_unseen = case == "stopped, grown again" and kind in ("at most once", "ranges")
        new = {(topic, n) for n in range(1_010 if is_unseen else 1_000, 1_030)}
        until(lambda found=found, new=new: new <= found.keys(), 60, kind)  # type: ignore[misc]
    for loop in loops.values():
        loop.close()
    for kind, found in taken.of.items():
        assert set(found.values()) == {1}, (kind, found)


@pytest.mark.parametrize("what_came_last", ["a message", "a marker"])
def test_messages_of_a_later_leader_are_no_loss(
    kafka: EmbeddedKafka, make: Make, what_came_last: str
) -> None:
    """A transaction that ends under a later leader: its marker comes after the last message."""
    topic = f"led.{pid_suffix()}.{what_came_last[-3:]}"
    kafka.create_topic(topic, partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"10", b"10", 0)
    producer.flush(60)
    if what_came_last == "a message":
        producer.commit_transaction(60)
    kafka.stop()
    kafka.start()
    if what_came_last == "a marker":
        producer.commit_transaction(60)
    taken = Taken()

    def start(kind: str) -> Loop:
        consumer = make(
            kind, group_id=topic + kind, topics=[topic], on_missing="stop", **KINDS[kind]
        )
        return Loop(consumer.start(), lambda message: taken.take(kind, message))

    def read_to(end: int) -> None:
        loops = {kind: start(kind) for kind in KINDS}
        until(lambda: taken.have_all(topic, range(end)))
        for kind, loop in loops.items():  # until the marker, too, is behind it
            until(lambda loop=loop: min(undone(loop.consumer, topic)) > end, 60, kind)  # type: ignore[misc]
            loop.close()

    read_to(11)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1, start=11)
    read_to(21)
    for kind, found in taken.of.items():
        assert set(found.values()) == {1}, (kind, found)

"""Members that share partitions by keys, against a real broker: order, handover, tools."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message, Producer
from typer.testing import CliRunner

from marshal_py import AsyncConsumer, SharingDiffers
from marshal_py.admin.connection import Connection
from marshal_py.admin.group_admin import GroupAdmin
from marshal_py.admin.lag import measure_lag
from marshal_py.admin.positions import committed_offsets
from marshal_py.admin.world_reader import read_world
from marshal_py.cli.app import app
from marshal_py.client.topics import admin_client
from marshal_py.consumer.consumer import Consumer
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.slots import slot_of_key, slots_cell
from tests.support.consumers import (
    INTERVAL_MS,
    Loop,
    Make,
    consumers,
    new_coordination_topic,
    until,
)

pytestmark = pytest.mark.kafka

SLOTS = 8


@pytest.fixture
def coordination(kafka: EmbeddedKafka) -> str:
    return new_coordination_topic(kafka)


@pytest.fixture
def topic(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> str:
    return kafka_topic(partitions=1)


@pytest.fixture
def make(kafka: EmbeddedKafka, coordination: str, topic: str) -> Iterator[Make]:
    with consumers(
        kafka, topic=coordination, topics=topic, settle_ms=50, sharing="keys", slots=SLOTS
    ) as make:
        yield make


class Writer:
    """Writes messages of 20 keys and of none, numbered, to one partition."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True}
        )

    def write(self, count: int) -> None:
        for n in range(self.count, self.count + count):
            key = None if n % 7 == 0 else b"k%d" % (n % 20)
            self._producer.produce(self._topic, b"%d" % n, key=key, partition=0)
        assert self._producer.flush(30) == 0
        self.count += count


class Ledger:
    """Who handled which message under which epoch."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen: list[tuple[bytes | None, int, int]] = []

    def take(self, message: Message, epoch: int) -> None:
        offset = message.offset()
        assert offset is not None
        with self.lock:
            self.seen.append((message.key(), offset, epoch))

    def distinct(self) -> int:
        with self.lock:
            return len({offset for _, offset, _ in self.seen})

    def check(self, count: int, *, repeats: int) -> None:
        """All came, few twice, and each key in order under each claim and from claim to claim."""
        times = Counter(offset for _, offset, _ in self.seen)
        assert len(times) == count
        assert sum(times.values()) - count <= repeats
        first: dict[bytes, int] = defaultdict(int)
        for key, offset, _ in self.seen:
            if key is not None and times[offset] == 1:
                assert offset >= first[key], f"{key!r}: {offset} after {first[key]}"
                first[key] = offset


def slots_of(consumer: Consumer) -> int:
    return len(consumer.claims())


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_members_share_one_partition_and_keys_stay_in_order_while_slots_move(
    kafka: EmbeddedKafka, make: Make, topic: str, mode: str
) -> None:
    writer, ledger = Writer(kafka, topic), Ledger()
    loops: list[Loop] = []

    def join(name: str) -> None:
        consumer = make(name, mode=mode)
        loops.append(Loop(consumer, lambda m: ledger.take(m, consumer.claim_of(m).epoch)))

    writer.write(500)
    for name in "abc":
        join(name)
        most = -(-SLOTS // len(loops))
        until(lambda most=most: all(0 < slots_of(x.consumer) <= most for x in loops))  # type: ignore[misc]
        writer.write(500)
    until(lambda: sum(slots_of(x.consumer) for x in loops) == SLOTS)
    assert loops[0].consumer.lag().keys() == {(topic, 0)}
    assert {each.partition for each in loops[0].consumer.assignment()} == {0}
    loops[1].close()
    until(lambda: slots_of(loops[0].consumer) == SLOTS // 2 == slots_of(loops[2].consumer))
    writer.write(500)
    until(lambda: ledger.distinct() == writer.count)
    for loop in loops:
        loop.close()
        assert loop.error is None
    ledger.check(writer.count, repeats=0)


def test_run_and_asyncio_work_on_slots(
    kafka: EmbeddedKafka, make: Make, coordination: str, topic: str
) -> None:
    writer, ledger = Writer(kafka, topic), Ledger()
    writer.write(1_000)
    made = make("a", mirror_offsets=True)
    running = threading.Thread(
        target=lambda: made.run(lambda m, claim: ledger.take(m, claim.epoch), workers=4)
    )
    running.start()

    async def beside() -> None:
        async with AsyncConsumer(
            kafka.bootstrap_servers,
            group_id="g",
            client_id="b",
            topic=coordination,
            topics=topic,
            interval_ms=INTERVAL_MS,
            settle_ms=50,
            sharing="keys",
            slots=SLOTS,
        ) as consumer:
            await asyncio.to_thread(until, lambda: len(consumer.claims()) == SLOTS // 2)
            await asyncio.to_thread(writer.write, 1_000)
            async for batch in consumer.batches(idle_timeout_s=5):
                assert (batch.topic, batch.partition) == (topic, 0)
                for message in batch:
                    ledger.take(message, batch.claim.epoch)
                if ledger.distinct() == writer.count:
                    break

    asyncio.run(beside())
    until(lambda: ledger.distinct() == writer.count)
    made.stop()
    running.join(30)
    ledger.check(writer.count, repeats=0)
    admin = admin_client({"bootstrap.servers": kafka.bootstrap_servers})
    mirrored = committed_offsets(admin, "g", 10.0)
    assert set(mirrored) <= {(topic, 0)}  # and no slot, by whatever name


def test_a_member_that_disagrees_is_told_and_an_operator_changes_the_number(
    kafka: EmbeddedKafka, make: Make, coordination: str, topic: str
) -> None:
    writer, ledger = Writer(kafka, topic), Ledger()
    writer.write(300)
    before = make("a")
    loop = Loop(before, lambda m: ledger.take(m, 0))
    until(lambda: ledger.distinct() == writer.count)
    for arguments, way_out in (
        ({"slots": 3}, f"sharing='keys', slots={SLOTS}"),
        ({"sharing": "partitions"}, "marshal group slots"),
    ):
        other = make("other", **arguments)
        with pytest.raises(SharingDiffers, match=way_out):
            next(other.messages(idle_timeout_s=60))
        other.close()
    assert slots_of(before) == SLOTS

    where = ["-b", kafka.bootstrap_servers, "--coordination-topic", coordination]

    def tell(*arguments: str) -> str:
        return CliRunner().invoke(app, [*arguments, *where]).output

    connection = Connection({"bootstrap.servers": kafka.bootstrap_servers}, coordination)
    with GroupAdmin(kafka.bootstrap_servers, "g", topic=coordination) as admin:
        change = admin.set_slots(topic, 3, timeout_s=60)
        assert (change.before, change.after, change.comes_again) == (SLOTS, 3, True)
        assert set(change.positions) == {(slots_cell(topic, 0, 3), s) for s in range(3)}
        (at,) = set(change.positions.values())
        assert 0 <= at <= writer.count
        assert {c.key for c in admin.plan({(topic, 0): "earliest"})} == set(change.positions)
    until(lambda: isinstance(loop.error, SharingDiffers))
    loop.close()
    after = make("b", slots=3)
    again = Loop(after, lambda m: ledger.take(m, 0))
    writer.write(300)
    until(lambda: ledger.distinct() == writer.count)
    again.close()
    after.close()
    rows = measure_lag(connection, read_world(connection))
    assert [(r.topic, r.partition, r.slots, r.lag, r.holder) for r in rows] == [
        (topic, 0, 3, 0, None)
    ]
    assert [r.slot for r in measure_lag(connection, read_world(connection), by_slot=True)] == [
        0,
        1,
        2,
    ]
    slot = slot_of_key(b"k1", 0, 3)
    told = json.loads(tell("explain", "g", topic, "0", "--key", "k1", "--json"))
    assert (told["topic"], told["partition"]) == (slots_cell(topic, 0, 3), slot)
    assert told["history"]
    assert "--slot" in tell("explain", "g", topic, "7")
    assert json.loads(tell("group", "slots", "g", topic, "--json"))["after"] == 3
    with GroupAdmin(kafka.bootstrap_servers, "g", topic=coordination) as admin:
        assert admin.set_slots(topic, "partitions").after == "partitions"
        assert admin.slots_of(topic) == "partitions"
    whole = make("c", sharing="partitions")
    writer.write(10)
    got = [m.offset() for m in whole.messages(idle_timeout_s=4)]
    assert got[-10:] == list(range(writer.count - 10, writer.count))

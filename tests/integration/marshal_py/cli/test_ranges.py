"""What the commands say of a partition that is shared by ranges; its records are written here."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

pytest.importorskip("prometheus_client")

from confluent_kafka import Producer
from prometheus_client import CollectorRegistry, generate_latest

from marshal_py import Consumer, GroupAdmin, Marshal
from marshal_py.admin.books import book_of
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import read_world
from marshal_py.embedded import EmbeddedKafka
from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.ranges import range_cell
from marshal_py.protocol.world import coordinating_partition
from marshal_py.telemetry.group_metrics import GroupMetrics
from tests.support.consumers import fill
from tests.support.marshal_command import Cli
from tests.support.messages import heartbeat

pytestmark = pytest.mark.kafka

GROUP = "g"
INTERVAL_MS = 500


class RangeLog:
    """Writes records of members that share partition 0 of a topic by ranges."""

    def __init__(self, kafka: EmbeddedKafka, log: str, topic: str) -> None:
        self.servers, self.log, self.topic = kafka.bootstrap_servers, log, topic
        self._producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        self._partition = coordinating_partition(GROUP, 4)
        self._seq = itertools.count()

    def write(self, record: m.Message) -> int:
        """Append a record; return its offset."""
        offsets: list[int] = []
        self._producer.produce(
            self.log,
            m.encode(record),
            partition=self._partition,
            on_delivery=lambda error, found: offsets.append(-1 if error else found.offset() or 0),
        )
        assert self._producer.flush(60) == 0
        assert offsets[0] >= 0
        return offsets[0]

    def _who(self, client: str) -> tuple[str, str, str, int]:
        return client, f"{client}1", GROUP, next(self._seq)

    def claim(self, client: str, count: int) -> int:
        record = m.ClaimingRange(2, *self._who(client), self.topic, 0, INTERVAL_MS, 0, count)
        return self.write(record)

    def take(self, client: str, start: int, version: int) -> int:
        unit = range_cell(self.topic, 0, start)
        record = m.ClaimingPartition(2, *self._who(client), *unit, INTERVAL_MS, version)
        return self.write(record)

    def split(self, client: str, start: int, epoch: int, at: int) -> None:
        unit = range_cell(self.topic, 0, start)
        self.write(m.SplittingRange(2, *self._who(client), *unit, epoch, at))

    def release(self, client: str, start: int, epoch: int, at: int) -> None:
        unit = range_cell(self.topic, 0, start)
        self.write(m.ReleasingPartition(2, *self._who(client), *unit, epoch, at))

    def beat(self, client: str, epoch: int, at: int) -> int:
        _, instance, group, seq = self._who(client)
        return self.write(heartbeat(client, seq, {epoch: at}, instance_id=instance, group_id=group))


@pytest.fixture
def book(kafka: EmbeddedKafka, made: str) -> RangeLog:
    """100 messages: a has 0–19 and is at 5; b is done with 20–39; c has taken 40–59 over from a,
    after one claim of another version; d has claimed 60–119, beyond the end."""
    topic = f"{made.lstrip('_')}.orders"
    kafka.create_topic(topic, 1)
    fill(kafka.bootstrap_servers, topic, 100, partitions=1)
    log = RangeLog(kafka, made, topic)
    first = log.claim("a", 20)
    second = log.claim("b", 20)
    third = log.claim("a", 20)
    log.release("b", 20, second, 40)
    version = log.beat("a", first, 5)
    log.claim("d", 60)
    log.take("c", 40, third)  # refused: the heartbeat has renewed it
    log.take("c", 40, version)
    return log


def test_a_book_is_told_by_every_command(
    run: Cli, book: RangeLog, kafka: EmbeddedKafka, made: str
) -> None:
    topic = book.topic
    # claims
    rows = json.loads(run("claims", "--json", "--topic", topic).stdout)
    assert [(r["partition"], r["source_partition"], r["end"], r["granted"]) for r in rows] == [
        (0, 0, None, None),
        (0, 0, 20, 1),
        (0, 0, 60, 2),
        (0, 0, 120, 1),
    ]
    assert [r["holder"] for r in rows] == [None, "a", "c", "d"]
    table = run("claims", "--topic", topic).stdout
    assert "0: 40–59, 2 times" in table
    # lag
    (row,) = json.loads(run("lag", "--json").stdout)
    assert (row["position"], row["lag"], row["open_ranges"]) == (5, 15 + 20 + 40, 3)
    assert (row["holder"], row["most_granted"]) == ("a, c, d", 2)
    assert "a, c, d" in run("lag").stdout
    assert run("lag", "--max", "75").returncode == 0
    assert run("lag", "--max", "74").returncode == 1
    # status
    (group,) = json.loads(run("status", "--json").stdout)["groups"]
    assert (group["held"], group["free"], group["open_ranges"], group["topics"]) == (3, 0, 3, 1)
    assert "3 open ranges" in run("groups").stdout
    # tail: what is about a range is of its partition
    told = run("tail", "--topic", topic, "--partition", "0", "--json").stdout.splitlines()
    kinds = [json.loads(line)["event"] for line in told]
    assert kinds.count("RangeGranted") == 5
    assert kinds.count("Claimed") == 5
    assert kinds.count("Rejected") == 1
    assert f"{topic}/0@40 by c, epoch" in run("tail", "-n", "100").stdout
    # explain
    explained = run("explain", GROUP, topic, "0", "--offset", "45")
    assert explained.returncode == 0, explained.stderr
    assert "took 40–59 over from a" in explained.stdout
    found = json.loads(run("explain", GROUP, topic, "0", "--offset", "45", "--json").stdout)
    assert (found["standing"]["state"], found["standing"]["holder"]) == ("held", "c")
    assert (found["standing"]["start"], found["standing"]["end"]) == (40, 60)
    assert [e["kind"] for e in found["history"]] == ["claimed", "taken_over"]
    done = json.loads(run("explain", GROUP, topic, "0", "--offset", "25", "--json").stdout)
    assert (done["standing"]["state"], done["standing"]["holder"]) == ("done", "b")
    unknown = run("explain", GROUP, topic, "0", "--offset", "500")
    assert unknown.returncode == 1
    assert "has not had message 500" in unknown.stderr
    # verify, and describe
    (wrong,) = json.loads(run("verify", "--json").stdout)["findings"]
    assert (wrong["kind"], wrong["topic"]) == ("early_takeover", f"{topic}/0@40")  # c was too fast
    described = json.loads(run("group", "describe", GROUP, "--json").stdout)
    assert described["partitions"][0]["open_ranges"] == 3


def test_members_that_share_by_ranges_are_told_by_every_command(
    run: Cli, kafka: EmbeddedKafka, made: str
) -> None:
    topic = f"{made.lstrip('_')}.live"
    kafka.create_topic(topic, 1)
    fill(kafka.bootstrap_servers, topic, 50, partitions=1)
    consumer = Consumer(
        kafka.bootstrap_servers,
        topics=topic,
        group_id=GROUP,
        sharing="ranges",
        topic=made,
        client_id="w",
        auto_ack=False,
    )
    with consumer:
        left = set(range(50))
        for message in consumer.messages(idle_timeout_s=60):
            consumer.ack(message)
            left.discard(message.offset() or 0)
            if not left:
                break
        assert not left
        consumer.commit(60)
        (row,) = json.loads(run("lag", "--json").stdout)
        assert (row["position"], row["lag"], row["slots"], row["holder"]) == (50, 0, 0, "w")
        (group,) = json.loads(run("groups", "--json").stdout)
        assert (group["held"], group["topics"]) == (group["open_ranges"], 1)
        assert group["held"] >= 1, "it holds messages that do not exist yet"
        told = json.loads(run("explain", GROUP, topic, "0", "--offset", "7", "--json").stdout)
        assert (told["standing"]["state"], told["standing"]["holder"]) == ("done", "w")
    assert "ranges of messages" in run("group", "slots", GROUP, topic).stdout
    change = run("group", "set-position", GROUP, "--topic", topic, "--to", "20", "--json")
    assert change.returncode == 0, change.stderr
    assert len(json.loads(change.stdout)["changes"]) == 1
    for to, slots in (("4", 4), ("ranges", "ranges"), ("0", "partitions")):
        done = json.loads(run("group", "slots", GROUP, topic, to, "--json").stdout)
        assert done["after"] == slots
        assert {p["position"] for p in done["positions"]} == {20}
    (row,) = json.loads(run("lag", "--json").stdout)
    assert (row["position"], row["lag"], row["slots"]) == (20, 30, 0)
    assert run("group", "slots", GROUP, topic, "many").returncode == 2


def test_the_exporter_counts_open_ranges_and_redeliveries(
    book: RangeLog, kafka: EmbeddedKafka, made: str
) -> None:
    connection = Connection.of_servers(kafka.bootstrap_servers, made)
    found = read_world(connection)
    collector = GroupMetrics(connection, found, threading.Lock())
    registry = CollectorRegistry()
    registry.register(collector)
    where = f'{{group_id="{GROUP}",partition="0",topic="{book.topic}"}}'

    def shown(name: str) -> bool:
        return name in generate_latest(registry).decode().splitlines()

    collector.ask()
    assert shown(f"marshal_group_open_ranges{where} 3.0")
    assert shown(f"marshal_group_open_range_grants{where} 2.0")
    assert shown(f"marshal_group_lag_messages{where} 75.0")
    assert not shown(f'marshal_group_redeliveries_total{{group_id="{GROUP}"}} 1.0')
    for granted in (1, 2, 3):
        collector.count(ev.RangeGranted(0, "c", "c1", GROUP, 0, book.topic, 0, 40, 60, granted))
    assert shown(f'marshal_group_redeliveries_total{{group_id="{GROUP}"}} 2.0')


def test_the_position_of_a_book_can_be_set_when_its_holders_are_gone(
    run: Cli, book: RangeLog, kafka: EmbeddedKafka, made: str
) -> None:
    arguments = ("group", "set-position", GROUP, "--topic", book.topic, "--to", "30", "--json")
    (would,) = json.loads(run(*arguments, "--dry-run").stdout)["changes"]
    assert (would["before"], would["after"], would["holder"]) == (5, 30, "a, c, d")
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    with GroupAdmin(kafka.bootstrap_servers, GROUP, topic=made) as admin:
        assert book_of(admin.world, GROUP, book.topic, 0) is None
        assert list(admin.cells()) == [(book.topic, 0)]
        assert not admin.paused
    # Whole partitions can be claimed again.
    with Marshal(kafka.bootstrap_servers, group_id=GROUP, client_id="w", topic=made) as marshal:
        assert marshal.claim(book.topic, 0, timeout_s=60).next_offset == 30


def test_a_book_gives_way_to_slots_and_is_forgotten(
    run: Cli, book: RangeLog, kafka: EmbeddedKafka, made: str
) -> None:
    would = json.loads(run("group", "slots", GROUP, book.topic, "4", "--dry-run", "--json").stdout)
    assert {p["position"] for p in would["positions"]} == {5}
    assert would["comes_again"]
    assert would["between"] == 20  # of b, which is done
    done = run("group", "slots", GROUP, book.topic, "4", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(run("lag", "--json").stdout)
    assert (row["position"], row["slots"], row["open_ranges"]) == (5, 4, 0)
    left = read_world(Connection.of_servers(kafka.bootstrap_servers, made)).world
    assert book_of(left, GROUP, book.topic, 0) is None
    assert run("group", "forget", GROUP, "--yes").returncode == 0
    assert json.loads(run("claims", "--json").stdout) == []

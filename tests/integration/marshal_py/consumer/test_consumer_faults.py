"""Consumers as processes that are killed, suspended and stopped: what is delivered, and how often.

Every process writes each delivery down before it asks for the next message, so what it was given
can be checked message by message, whatever was done to it.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import (
    INTERVAL_MS,
    Process,
    delivered,
    fill,
    pid_suffix,
    processes,
    until,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

_names = itertools.count()
PARTITIONS = 4
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(2, 6))]


class Stage:
    """A topic that is written to all the time, and three consumers."""

    def __init__(
        self, kafka: EmbeddedKafka, topic: str, folder: Path, mode: str, pause_s: float
    ) -> None:
        self.kafka = kafka
        coordination = f"__marshal.faults.{pid_suffix()}.{next(_names)}"
        create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
        settings = {
            "group_id": "g",
            "topics": [topic],
            "topic": coordination,
            "interval_ms": INTERVAL_MS,
            "mode": mode,
            "connect_timeout_ms": 300_000,  # brokers come back late on a busy machine
        }
        self.consumers = [
            Process(kafka.bootstrap_servers, folder, name, settings, pause_s) for name in "abc"
        ]
        self.topic = topic
        self.sent = 0
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        while not self._stop.wait(0.1):
            fill(
                self.kafka.bootstrap_servers,
                self.topic,
                40,
                partitions=PARTITIONS,
                start=self.sent,
            )
            self.sent += 40

    def stop_writing(self) -> int:
        self._stop.set()
        self._writer.join()
        return self.sent

    def wait_for_share(self, timeout_s: float = 60) -> None:
        """Wait until every running consumer has delivered something new."""
        seen = {c.name: len(c.deliveries()) for c in self.consumers}
        until(
            lambda: all(len(c.deliveries()) > seen[c.name] for c in self.consumers if c.running),
            timeout_s,
            "some consumer delivers nothing",
        )


def act_at_random(stage: Stage, order: random.Random, rounds: int) -> None:
    """Kill, suspend past the lease, and stop consumers at random moments; start them again."""
    for _ in range(rounds):
        stage.wait_for_share()
        victim = order.choice(stage.consumers)
        time.sleep(order.random() * INTERVAL_MS / 1000)
        deed = order.choice(["kill", "suspend", "stop"])
        if deed == "kill":
            victim.kill()
            time.sleep(order.random() * 3 * INTERVAL_MS / 1000)
            victim.start()
        elif deed == "suspend":
            victim.signal(signal.SIGSTOP)
            time.sleep((1 + 3 * order.random()) * INTERVAL_MS / 1000)
            victim.signal(signal.SIGCONT)
        else:
            assert victim.stop() == 128 + signal.SIGTERM
            victim.start()


@pytest.mark.parametrize("seed", SEEDS)
def test_at_least_once_nothing_is_missed_and_redelivery_is_bounded(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path, seed: int
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    stage = Stage(kafka, topic, tmp_path, "at_least_once", 0.001)
    try:
        with processes(*stage.consumers):
            for consumer in stage.consumers:
                consumer.start()
            act_at_random(stage, random.Random(seed), 8)
            total = stage.stop_writing()
            until(lambda: len(delivered(*stage.consumers)) == total, 240, "some message never came")
    finally:
        stage.stop_writing()
    # A message comes again only if it was delivered within an interval (and a round trip) before
    # the end of the claim it came under: nothing older.
    lines = sorted(line for c in stage.consumers for line in c.deliveries())
    by_epoch: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for at_ns, partition, offset, _, epoch in lines:
        by_epoch.setdefault((partition, epoch), []).append((at_ns, offset))
    for (partition, epoch), given in by_epoch.items():
        later = [k for k in by_epoch if k[0] == partition and k[1] > epoch]
        if later:
            resumed_at = min(offset for key in later for _, offset in by_epoch[key])
            last_ns = given[-1][0]
            again = [at for at, offset in given if offset >= resumed_at]
            if again:
                assert last_ns - min(again) <= (1.5 * INTERVAL_MS + 200) * 1e6


@pytest.mark.parametrize("seed", SEEDS)
def test_at_most_once_nothing_ever_comes_twice(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path, seed: int
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    stage = Stage(kafka, topic, tmp_path, "at_most_once", 0.0005)
    order = random.Random(seed)
    try:
        with processes(*stage.consumers):
            for consumer in stage.consumers:
                consumer.start()
            act_at_random(stage, order, 5)
            kafka.kill(0)  # the brokers fail as well
            kafka.start()
            act_at_random(stage, order, 3)
            total = stage.stop_writing()
            until(lambda: quiet(stage), 240, "messages come without end")
    finally:
        stage.stop_writing()
    counts = delivered(*stage.consumers)
    assert [n for n, times in counts.items() if times > 1] == []
    assert len(counts) > total / 2, "most of it was delivered"


def quiet(stage: Stage) -> bool:
    before = len(delivered(*stage.consumers))
    time.sleep(2)
    return len(delivered(*stage.consumers)) == before


def test_two_processes_of_one_name_never_deliver_twice_at_most_once(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    stage = Stage(kafka, topic, tmp_path, "at_most_once", 0.001)
    first = stage.consumers[0]
    (tmp_path / "twin").mkdir()
    twin = Process(first.servers, tmp_path / "twin", first.name, first.settings, 0.001)
    try:
        with processes(first, twin):
            first.start()
            until(lambda: len(first.deliveries()) > 100)
            twin.start()
            until(lambda: len(twin.deliveries()) > 100, 60)
            until(lambda: not first.running, what="the first one should stop with an error")
    finally:
        stage.stop_writing()
    assert max(delivered(first, twin).values()) == 1


def test_a_suspended_consumer_delivers_nothing_after_its_lease(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    """A zombie wakes in the middle of a batch; the one message in its hands is all it finishes."""
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 3_000, partitions=1)
    coordination = f"__marshal.faults.{pid_suffix()}.{next(_names)}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
    settings = {
        "group_id": "g",
        "topics": [topic],
        "topic": coordination,
        "interval_ms": INTERVAL_MS,
    }
    first, second = (Process(kafka.bootstrap_servers, tmp_path, n, settings, 0.002) for n in "ab")
    with processes(first, second):
        first.start()
        until(lambda: len(first.deliveries()) > 50)
        second.start()
        first.signal(signal.SIGSTOP)
        until(lambda: len(second.deliveries()) > 50, what="nobody took over")
        before = len(first.deliveries())
        first.signal(signal.SIGCONT)
        until(lambda: len(second.deliveries()) > 300)
        assert len(first.deliveries()) <= before + 1
        epoch = second.deliveries()[0][4]
        assert epoch > first.deliveries()[0][4]


def test_sigterm_releases_at_once(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    fill(kafka.bootstrap_servers, topic, 2_000, partitions=PARTITIONS)
    coordination = f"__marshal.faults.{pid_suffix()}.{next(_names)}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
    settings = {
        "group_id": "g",
        "topics": [topic],
        "topic": coordination,
        "interval_ms": 60_000,  # staleness would take two minutes
    }
    first, second = (Process(kafka.bootstrap_servers, tmp_path, n, settings, 0.002) for n in "ab")
    with processes(first, second):
        first.start()
        until(lambda: len(first.deliveries()) > 50)
        assert first.stop() == 128 + signal.SIGTERM
        second.start()
        until(lambda: len(delivered(first, second)) == 2_000)
    # Nothing but what was in hand comes again.
    assert sum(n - 1 for n in delivered(first, second).values()) <= 1


def test_ctrl_c_releases_at_once(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = kafka_topic(partitions=1)
    coordination = f"__marshal.faults.{pid_suffix()}.{next(_names)}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
    settings = {
        "group_id": "g",
        "topics": [topic],
        "topic": coordination,
        "interval_ms": 60_000,
    }
    first, second = (Process(kafka.bootstrap_servers, tmp_path, n, settings) for n in "ab")
    with processes(first, second):
        first.start()
        fill(kafka.bootstrap_servers, topic, 10, partitions=1)
        until(lambda: len(first.deliveries()) == 10)
        first.signal(signal.SIGINT)  # while it waits for messages
        until(lambda: not first.running, 10)
        second.start()
        fill(kafka.bootstrap_servers, topic, 10, partitions=1, start=10)
        until(lambda: len(delivered(first, second)) == 20)
    assert max(delivered(first, second).values()) == 1

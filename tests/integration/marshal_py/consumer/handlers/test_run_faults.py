"""`Consumer.run` in processes that are killed, suspended and stopped: each delivery is checked."""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.integration.marshal_py.consumer.test_consumer_faults import (
    PARTITIONS,
    Stage,
    act_at_random,
    quiet,
)
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

CHILD = """
import json, os, sys, threading, time
from marshal_py import Consumer, Retry

settings = json.loads(sys.argv[1])
log = os.open(settings.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pause_s = settings.pop("pause_s")
fails = settings.get("mode") != "at_most_once"
tried = set()

def handle(message, claim):
    number = int(message.value())
    if fails and number % 50 == 7 and number not in tried:
        tried.add(number)
        raise OSError("the first time")
    line = [time.clock_gettime_ns(time.CLOCK_BOOTTIME), message.partition(), message.offset(),
            number, claim.epoch]
    os.write(log, (json.dumps(line) + "\\n").encode())
    time.sleep(pause_s)

retry = Retry(attempts=5, backoff_ms=10) if fails else None
Consumer(settings.pop("servers"), **settings).run(handle, workers=6, retry=retry)
"""

ASYNC_CHILD = (
    CHILD.replace("import Consumer", "import AsyncConsumer")
    .replace("import json", "import asyncio, json")
    .replace("def handle", "async def handle")
    .replace("time.sleep", "await asyncio.sleep")
    .replace(
        "Consumer(settings.pop",
        "async def main():\n    await AsyncConsumer(settings.pop",
    )
    + "asyncio.run(main())\n"
)


def members(
    kafka: EmbeddedKafka,
    topic: str,
    folder: Path,
    names: str,
    *,
    child: str = CHILD,
    **settings: Any,
) -> list[Process]:
    coordination = f"__marshal.run.faults.{pid_suffix()}.{topic}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
    shared = {
        "group_id": "g",
        "topics": [topic],
        "topic": coordination,
        "interval_ms": INTERVAL_MS,
        **settings,
    }
    return [
        Process(kafka.bootstrap_servers, folder, name, shared, 0.004, child=child) for name in names
    ]


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_killed_suspended_and_stopped_under_load(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path, mode: str
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    stage = Stage(kafka, topic, tmp_path, mode, 0.002)
    for consumer in stage.consumers:
        consumer.child = CHILD
    try:
        with processes(*stage.consumers):
            for consumer in stage.consumers:
                consumer.start()
            act_at_random(stage, random.Random(5), 5)
            total = stage.stop_writing()
            if mode == "at_most_once":
                until(lambda: quiet(stage), 60)
            else:
                until(lambda: len(delivered(*stage.consumers)) == total, 90, "some never came")
    finally:
        stage.stop_writing()
    counts = delivered(*stage.consumers)
    if mode == "at_most_once":
        assert max(counts.values()) == 1, "a message came twice"
        assert len(counts) > total / 2
    # Whatever happened: under one claim every key's messages came in order, each once.
    offsets: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for process in stage.consumers:
        for _, partition, offset, number, epoch in process.deliveries():
            offsets[partition, epoch, number % 7].append(offset)
    for lane, found in offsets.items():
        assert found == sorted(set(found)), lane


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("child", [CHILD, ASYNC_CHILD], ids=["threads", "asyncio"])
def test_a_signal_finishes_what_runs_and_releases_at_once(
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    tmp_path: Path,
    number: signal.Signals,
    child: str,
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    fill(kafka.bootstrap_servers, topic, 3_000, partitions=PARTITIONS)
    # Staleness would take two minutes.
    first, second = members(kafka, topic, tmp_path, "ab", child=child, interval_ms=60_000)
    with processes(first, second):
        first.start()
        # Number 207 has failed by now, or is about to, and waits for its second attempt.
        until(lambda: len(first.deliveries()) > 200)
        first.signal(number)
        until(lambda: not first.running, 15)
        assert first.exit_code == (-number if number == signal.SIGINT else 128 + number)
        assert len(first.deliveries()) < 2_900
        second.start()
        until(lambda: len(delivered(first, second)) == 3_000, 60)
    twice = {number: n for number, n in delivered(first, second).items() if n > 1}
    assert not twice, "nothing comes twice"

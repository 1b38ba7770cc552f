"""The on-call guide's questions, each answered by the one command that it names."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from marshal_py import Consumer, Marshal, Retry
from marshal_py.admin.formatting import iso_utc
from marshal_py.embedded import EmbeddedKafka
from tests.support.marshal_command import Cli
from tests.support.paths import DOCS

pytestmark = pytest.mark.kafka

GUIDE = DOCS / "operate" / "on-call.md"
COMMANDS = re.findall(r"^\$ (marshal .*)$", GUIDE.read_text(), re.MULTILINE)
"""In the order of the questions."""

HOUR_MS = 3_600_000
POISON = 12

VICTIM = """
import os, sys
from marshal_py import Marshal
servers, log, topic = sys.argv[1:]
marshal = Marshal(servers, group_id="billing", client_id="billing-1", topic=log, interval_ms=1_000)
marshal.start().claim(topic, 7, timeout_s=60).commit(15, wait=True)
os._exit(9)
"""


def fill(servers: str, topic: str, now_ms: int) -> None:
    """In each partition ten messages of two hours ago, and ten of half an hour ago."""
    producer = Producer({"bootstrap.servers": servers})
    for partition in (3, 7):
        for n in range(20):
            at_ms = now_ms - (2 * HOUR_MS if n < 10 else HOUR_MS // 2)
            producer.produce(topic, f"order {n}", partition=partition, timestamp=at_ms)
    assert producer.flush(60) == 0


@contextmanager
def heir(servers: str, log: str, topic: str) -> Iterator[None]:
    """billing-2 takes over, and stumbles over one message."""

    def handle(message: Any) -> None:
        if (message.partition(), message.offset()) == (3, POISON):
            raise ValueError("no price")

    marshal = Marshal(
        servers, group_id="billing", client_id="billing-2", topic=log, interval_ms=1_000
    )
    with marshal, Consumer(marshal, topics=[topic]) as consumer:
        patient = Retry(attempts=None, backoff_ms=50, max_backoff_ms=50)
        running = threading.Thread(
            target=consumer.run, args=(handle,), kwargs={"retry": patient}, daemon=True
        )
        running.start()
        try:
            yield
        finally:
            consumer.stop()
            running.join()


def test_each_question_of_the_guide_is_one_command(
    run: Cli, kafka: EmbeddedKafka, made: str, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=8)
    fill(kafka.bootstrap_servers, topic, time.time_ns() // 1_000_000)
    arguments = (kafka.bootstrap_servers, made, topic)
    assert subprocess.run([sys.executable, "-c", VICTIM, *arguments], timeout=120).returncode == 9
    at = iso_utc(time.time_ns() // 1_000_000)

    def ask(number: int, *more: str) -> subprocess.CompletedProcess[str]:
        """Run the guide's command with this test's topic and moment."""
        words = shlex.split(COMMANDS[number])[1:]
        place = {"orders": topic, "02:13": at}
        done = run(*(place.get(word, word) for word in words), *more)
        assert done.returncode == 0, done.stderr
        print(f"$ {COMMANDS[number]}\n{done.stdout}{done.stderr}")
        return done

    with heir(kafka.bootstrap_servers, made, topic):
        until = time.monotonic() + 120
        while not (failing := json.loads(ask(1, "--json").stdout)["failing"]):
            assert time.monotonic() < until
        while json.loads(run("explain", "billing", topic, "7", "--json").stdout)["standing"][
            "position"
        ] != 20:  # fmt: skip
            assert time.monotonic() < until

        # Who held partition 7 at 02:13?
        then = json.loads(ask(0, "--json").stdout)["standing"]
        assert (then["holder"], then["position"]) == ("billing-1", 15)
        assert f"billing-1 held {topic}/7 of billing" in ask(0).stdout

        # Find the poison message.
        (found,) = failing
        assert (found["topic"], found["partition"], found["offset"]) == (topic, 3, POISON)
        assert (found["holder"], found["error"]) == ("billing-2", "ValueError")
        assert f"{topic}/3" in ask(1).stdout

        # Explain the takeover.
        story = json.loads(ask(2, "--json").stdout)
        (taken,) = [entry for entry in story["history"] if entry["kind"] == "taken_over"]
        assert taken["client_id"] == "billing-2"
        assert "billing-1 had been silent for" in taken["sentence"]
        told = ask(2).stdout.replace("\n", " ")
        assert told.startswith(f"Now billing-2 holds {topic}/7 of billing")
        assert "it died, or was cut off for good" in told

        # How far behind were we?
        behind = {row["partition"]: row for row in json.loads(ask(3, "--json").stdout)}
        assert (behind[7]["position"], behind[7]["lag"], behind[7]["holder"]) == (
            *(15, 5),
            "billing-1",
        )
        assert behind[3]["claimed"] is False
        ask(3)

    # Move the group back by one hour; look first.
    before = {c["partition"]: (c["before"], c["after"]) for c in changes(ask(4, "--json"))}
    assert before[7] == (20, 10)
    assert before[3] == (POISON, 10)
    ask(4)
    assert {c["partition"]: c["after"] for c in changes(ask(5, "--json"))}.items() >= {
        (7, 10),
        (3, 10),
    }
    after = json.loads(run("lag", "-g", "billing", "--json").stdout)
    assert {row["partition"]: row["lag"] for row in after}[7] == 10


def changes(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["changes"]
    return found

"""A process that forks while it has clients: the child holds nothing, and is told what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import fill, pid_suffix

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PROGRAM = """
import asyncio, os, sys, threading, time
from marshal_py import AsyncConsumer, Consumer, Forked, Marshal

servers, topic, coordination = sys.argv[1:]
settings = {"group_id": "g", "topic": coordination, "interval_ms": 1000}
marshal = Marshal(servers, **settings, client_id="m").start()
claim = marshal.claim("x", 0)
consumer = Consumer(servers, topics=topic, **settings, client_id="c").start()
got = [message.value() for message in consumer.messages(idle_timeout_s=1)]
assert len(got) == 10, got
stop = threading.Event()

def busy():  # clients are in the middle of something at most moments
    while not stop.is_set():
        claim.commit(claim.next_offset + 1)
        marshal.cell("x", 0)

threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()

def forked(call):
    try:
        call()
    except Forked as error:
        assert "Make a client after the fork" in str(error), error
    else:
        raise AssertionError(f"{call} went through")

def child():
    assert not claim.held and not claim.remaining_ms, claim
    assert claim.wait_lost(5)
    assert consumer.claims() == []
    forked(lambda: claim.commit(5, wait=True))
    forked(lambda: marshal.try_claim("x", 1))
    forked(lambda: next(consumer.messages()))
    forked(lambda: consumer.poll())
    forked(lambda: consumer.run(print))
    marshal.close()
    consumer.close()
    with Marshal(servers, **settings, client_id="child") as own:
        assert own.try_claim("x", 0) is None  # the parent's
        assert own.claim("x", 2).held

for _ in range(3):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            print("child:", repr(error), flush=True)
            os._exit(1)
        sys.exit(0)  # as a program ends: everything is freed that can be
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    assert claim.held and consumer.claims()
stop.set()
for thread in threads:
    thread.join()
consumer.close()
marshal.close()
print("done")
"""


def test_the_child_of_a_fork_holds_nothing_and_ends(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    coordination = f"__marshal.fork.{pid_suffix()}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=1)
    program = [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, topic, coordination]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100)
    assert done.stdout == "done\n", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr

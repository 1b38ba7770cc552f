"""Ctrl-C ends a loop or `run` as it ends any program, and prints no traceback."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marshal_py.testing import TestBroker

PROGRAMS = {
    "loop": """
with Consumer(BROKERS, group_id="g", topics="orders") as consumer:
    for message in consumer:
        got()
""",
    "batches": """
with Consumer(BROKERS, group_id="g", topics="orders") as consumer:
    for batch in consumer.batches():
        got()
""",
    "run": """
Consumer(BROKERS, group_id="g", topics="orders").run(lambda message: got())
""",
    "asyncio loop": """
async def main():
    async with AsyncConsumer(BROKERS, group_id="g", topics="orders") as consumer:
        async for message in consumer:
            got()
asyncio.run(main())
""",
    "asyncio run": """
async def handle(message):
    got()
async def main():
    await AsyncConsumer(BROKERS, group_id="g", topics="orders").run(handle)
asyncio.run(main())
""",
    "while it starts": """
import time
from marshal_py.client.driver import Driver
def connect(driver):
    got()
    while True:
        time.sleep(0.05)
Driver.connect = connect
with Consumer(BROKERS, group_id="g", topics="orders") as consumer:
    list(consumer)
""",
    "own error": """
try:
    with Consumer(BROKERS, group_id="g", topics="orders") as consumer:
        for message in consumer:
            got()
except KeyboardInterrupt:
    raise SystemError("of the program") from None
""",
}


RECEIVERS = {
    "main thread": "",
    # As when the signal comes just before the main thread goes to sleep: nothing interrupts it.
    "another thread": """
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
""",
}


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("what", PROGRAMS)
def test_ctrl_c_prints_nothing(mock_kafka: TestBroker, what: str, receiver: str) -> None:
    mock_kafka.send("orders", "1")
    head = f"""
import asyncio, signal, threading
from marshal_py import *
BROKERS = {mock_kafka.bootstrap_servers!r}
def got():
    print("got", flush=True)
{RECEIVERS[receiver]}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", head + PROGRAMS[what]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "got\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    if what == "own error":
        assert "SystemError: of the program" in said
        assert process.returncode == 1
    else:
        assert said == ""
        assert process.returncode == -signal.SIGINT


def polled(consumer: Any) -> Callable[[], Any]:
    return lambda: consumer.poll(20)


def looped(consumer: Any) -> Callable[[], Any]:
    def messages() -> Iterator[Any]:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                yield from consumer

    following = messages()
    return lambda: next(following)


def kept(consumer: Any) -> Callable[[], Any]:
    messages: Iterator[Any] = consumer.messages()
    return lambda: next(messages)


@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("way", [polled, looped, kept])
def test_what_it_keeps_from_being_decoded_is_handed_out_afterwards_and_nothing_else(
    mock_kafka: TestBroker, way: Callable[[Any], Callable[[], Any]], mode: Any, auto_ack: bool
) -> None:
    """Nobody has had it: it must not count as done."""
    sent = ["a", "b", "c", "d"]
    mock_kafka.send("orders", *sent, partition=0)
    interrupted = [value.encode() for value in ("b", "b", "d")]

    def decode(value: bytes) -> str:
        if value in interrupted:
            interrupted.remove(value)
            raise KeyboardInterrupt
        return value.decode()

    got: list[str] = []
    with mock_kafka.consumer("orders", decode=decode, mode=mode, auto_ack=auto_ack) as consumer:
        following = way(consumer)
        while len(got) < len(sent):
            with contextlib.suppress(KeyboardInterrupt):
                message = following()
                got.append(message.value())
                if not auto_ack or len(got) == len(sent):
                    consumer.ack(message)
        assert got == sent
        consumer.commit()
        assert consumer.assignment()[0].position == 4

"""Ctrl-C ends a loop or `run` as it ends any program, and prints no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

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

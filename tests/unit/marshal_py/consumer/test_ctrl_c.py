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
        print("got", flush=True)
""",
    "batches": """
with Consumer(BROKERS, group_id="g", topics="orders") as consumer:
    for batch in consumer.batches():
        print("got", flush=True)
""",
    "run": """
Consumer(BROKERS, group_id="g", topics="orders").run(lambda message: print("got", flush=True))
""",
    "asyncio loop": """
async def main():
    async with AsyncConsumer(BROKERS, group_id="g", topics="orders") as consumer:
        async for message in consumer:
            print("got", flush=True)
asyncio.run(main())
""",
    "asyncio run": """
async def handle(message):
    print("got", flush=True)
async def main():
    await AsyncConsumer(BROKERS, group_id="g", topics="orders").run(handle)
asyncio.run(main())
""",
    "own error": """
try:
    with Consumer(BROKERS, group_id="g", topics="orders") as consumer:
        for message in consumer:
            print("got", flush=True)
except KeyboardInterrupt:
    raise SystemError("of the program") from None
""",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_ctrl_c_prints_nothing(mock_kafka: TestBroker, what: str) -> None:
    mock_kafka.send("orders", "1")
    head = f"import asyncio\nfrom marshal_py import *\nBROKERS = {mock_kafka.bootstrap_servers!r}\n"
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

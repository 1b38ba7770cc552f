"""What faults are made with does what it says: clocks that jump, logs that lose their end."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.embedded.errors import NotRunning, ServerFailed
from tests.chaos import unsynced
from tests.chaos.clocks import WallClocks, build
from tests.chaos.receiver import Receiver
from tests.chaos.stage import Stage

_TELL = """
import sys, threading, time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
def boot(): return time.clock_gettime(time.CLOCK_BOOTTIME)
for _ in sys.stdin:
    before, wall = boot(), time.time()
    threading.Event().wait(0.05)
    lock = threading.Lock()
    with lock:
        lock.acquire(timeout=0.05)
    consumer.poll(0.05)  # librdkafka waits by the time of day
    print(wall, boot() - before, flush=True)
"""


def test_a_wall_clock_jumps_and_no_other_and_nobody_waits_for_longer(tmp_path: Path) -> None:
    library = build(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    clocks = WallClocks(tmp_path, library)
    process = subprocess.Popen(
        [sys.executable, "-c", _TELL],
        env={**os.environ, **clocks.environment("one")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask() -> tuple[float, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wall, waited_s = process.stdout.readline().split()
        return float(wall), float(waited_s)

    with process:
        before, _ = ask()
        for off_s in (90_000.0, -90_000.0):
            clocks.set("one", off_s)
            wall, waited_s = ask()
            assert abs(wall - before - off_s) < 3_600
            assert waited_s < 3_600
        clocks.set("one", 0.0)
        assert clocks.off_s("one") == 0.0
        assert abs(ask()[0] - before) < 3_600
        assert process.stdin is not None
        process.stdin.close()


def _batch(first: int, size: int) -> bytes:
    return struct.pack(">qi", first, size - 12) + bytes(size - 12)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_loss_takes_only_what_was_not_synced(tmp_path: Path, seed: int) -> None:
    for name in ("a-b-0", "c-1", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()
        older, log = (tmp_path / name / f"{n:020}.log" for n in (0, 50))
        older.write_bytes(_batch(0, 100))
        log.write_bytes(_batch(50, 100) + _batch(55, 100) + _batch(60, 100))
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n2\na-b 0 55\nc 1 70\n")
    assert unsynced.cut(tmp_path, random.Random(seed)) == 1
    sizes = {
        name: [log.stat().st_size for log in sorted((tmp_path / name).iterdir())]
        for name in ("a-b-0", "c-1", "__cluster_metadata-0")
    }
    assert sizes["c-1"] == sizes["__cluster_metadata-0"] == [100, 300]
    assert sizes["a-b-0"][0] == 100
    assert 100 <= sizes["a-b-0"][1] < 300


def test_a_receiver_takes_rows_of_the_newest_leader_alone_and_not_in_each_mood() -> None:
    with Receiver() as receiver:
        connection = HTTPConnection("127.0.0.1", receiver.port, timeout=60)

        def post(row: str, epoch: int) -> int:
            headers = {"Harvest-Epoch": str(epoch), "Idempotency-Key": f"g.posted.{row}"}
            connection.request("POST", "/7", row, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        assert post("a", 3) == 204
        assert post("b", 5) == 204
        assert post("c", 3) == 409
        receiver.mood = "down"
        assert post("d", 5) == 503
        receiver.mood = "broken"
        assert post("e", 5) == 500
        connection.close()
    assert [(each.body, each.key, each.epoch) for each in receiver.received] == [
        ("a", "7", 3),
        ("b", "7", 5),
        ("e", "7", 5),
    ]
    assert (receiver.refused, receiver.turned_away) == (1, 2)


class Brokers:
    """Three that may give up, or hang, when they are started."""

    def __init__(self, **starts: list[str]) -> None:
        self._starts = starts
        self._up = {0, 1, 2}
        self.done: list[str] = []

    def running(self, one: int) -> bool:
        return one in self._up

    def kill(self, one: int) -> None:
        if one not in self._up:
            raise NotRunning(f"{one}")
        self.done.append(f"kill {one}")
        self._up.remove(one)

    def start(self, one: int | None = None) -> None:
        name = "all" if one is None else f"one{one}"
        self.done.append(name)
        self._up |= {0, 1, 2} if one is None else {one}
        for what in (self._starts.get(name) or [""]).pop(0).split():
            if what == "hangs":
                raise ServerFailed("was not ready within 120 s")
            self._up.remove(int(what))  # gave up


@pytest.mark.parametrize(
    ("broker", "starts", "done"),
    [
        (1, {}, ["one1"]),
        (1, {"one1": ["hangs"]}, ["one1", "kill 1", "all"]),
        (1, {"one1": ["2"]}, ["one1", "all"]),
        (1, {"one1": ["2 hangs"]}, ["one1", "kill 1", "all"]),
        (None, {"all": ["0 hangs"]}, ["all", "kill 1", "kill 2", "all"]),
    ],
)
def test_brokers_that_give_up_or_hang_are_started_again_whoever_was_to_be(
    broker: int | None, starts: dict[str, list[str]], done: list[str]
) -> None:
    brokers = Brokers(**starts)
    stage: Any = SimpleNamespace(kafka=brokers)
    Stage.up(stage, broker)
    assert brokers.done == done
    assert all(map(brokers.running, range(3)))
